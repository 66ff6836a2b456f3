/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has. */
#include "server/round/round_cohort.h"

#include "common/partition/partition.h"
#include "common/base/rng.h"

static int set_items(struct core_job *job, uint32_t n)
{
        mfl_core_items_clear(job);
        job->items = mfl_calloc(n, sizeof *job->items);
        if (!job->items)
                return -ENOMEM;
        job->n_items = job->count[ITEM_OPEN] = n;
        return 0;
}

/* ---- a draw without an array of the population ---- */

/* The values that swaps have put into places of the array 0, 1, 2, ...: open addressing, at most half
 * full. */
struct swaps {
        uint32_t *place, *value; /* place + 1; 0: free */
        uint32_t mask;
};

static uint32_t find_place(const struct swaps *swaps, uint32_t place)
{
        uint32_t at = place * 0x9E3779B1u >> 7 & swaps->mask;
        while (swaps->place[at] && swaps->place[at] != place + 1)
                at = (at + 1) & swaps->mask;
        return at;
}

static uint32_t value_at(const struct swaps *swaps, uint32_t place)
{
        uint32_t at = find_place(swaps, place);
        return swaps->place[at] ? swaps->value[at] : place;
}

/* Radix sort, eleven bits at a time from the lowest. */
static void sort_numbers(uint32_t *v, uint32_t *scratch, uint32_t n)
{
        for (uint32_t shift = 0; shift < 33; shift += 11) {
                uint32_t start[2048 + 1] = {0};
                for (uint32_t i = 0; i < n; i++)
                        start[(v[i] >> shift & 2047) + 1]++;
                for (uint32_t k = 0; k < 2048; k++)
                        start[k + 1] += start[k];
                for (uint32_t i = 0; i < n; i++)
                        scratch[start[v[i] >> shift & 2047]++] = v[i];
                uint32_t *t = v;
                v = scratch;
                scratch = t;
        }
        memcpy(scratch, v, n * sizeof *v); /* after three passes the result is in the former scratch */
}

int mfl_round_draw(struct mfl_rng *rng, uint32_t population, uint32_t n, uint32_t *ret_v)
{
        uint32_t capacity = 16;
        while (capacity < 2 * (uint64_t)n)
                capacity *= 2;
        struct swaps swaps = {mfl_calloc(capacity, sizeof *swaps.place),
                mfl_malloc(capacity * sizeof *swaps.value), capacity - 1};
        uint32_t *scratch = mfl_malloc(n * sizeof *scratch);
        bool ok = swaps.place && swaps.value && scratch;
        for (uint32_t i = 0; ok && i < n; i++) {
                uint32_t j = i + mfl_rng_below(rng, population - i);
                uint32_t first = value_at(&swaps, i), at = find_place(&swaps, j);
                ret_v[i] = swaps.place[at] ? swaps.value[at] : j;
                swaps.place[at] = j + 1; /* place i is not needed again */
                swaps.value[at] = first;
        }
        if (ok)
                sort_numbers(ret_v, scratch, n);
        free(swaps.place);
        free(swaps.value);
        free(scratch);
        return ok ? 0 : -ENOMEM;
}

/* item: the population, ascending; NULL: 0, 1, 2, ... */
static int pick_at(struct core_job *job, const uint64_t *item, uint32_t population, uint32_t n,
        uint32_t round, uint32_t attempt)
{
        uint32_t *v = n < population ? mfl_malloc(n * sizeof *v) : NULL;
        struct mfl_rng rng = mfl_rng_new(job->spec->seed, MFL_RNG_SELECT, round, attempt);
        int r = n < population && !v ? -ENOMEM : set_items(job, n);
        if (!r && v)
                r = mfl_round_draw(&rng, population, n, v);
        for (uint32_t i = 0; !r && i < n; i++) {
                uint32_t k = v ? v[i] : i;
                job->items[i].item = item ? item[k] : k;
        }
        free(v);
        return r;
}

static int pick(struct core_job *job, const uint64_t *item, uint32_t population, uint32_t n)
{
        return pick_at(job, item, population, n, job->round, job->attempt);
}

/* Each of a population by itself. item: as for pick. */
static int pick_each(struct core_job *job, const uint64_t *item, uint32_t population)
{
        uint32_t most = mfl_job_cohort_size(job->spec, population), n = 0;
        uint64_t below = (uint64_t)ceil(ldexp(job->spec->selection.rate, 32));
        uint32_t *v = mfl_malloc(most * sizeof *v);
        if (!v)
                return -ENOMEM;
        struct mfl_rng rng = mfl_rng_new(job->spec->seed, MFL_RNG_SELECT, job->round, job->attempt);
        for (uint32_t i = 0; i < population && n < most; i++)
                if (mfl_rng_u32(&rng) < below)
                        v[n++] = i;
        int r = set_items(job, n);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = item ? item[v[i]] : v[i];
        free(v);
        return r;
}

static int compare_keys(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* The items of a `local` job are the sites of its daemons. They are sorted before drawing, so that the draw does not
 * depend on the order of arrival. */
static int pick_local(struct core_job *job, uint32_t n_max, bool each)
{
        uint64_t *keys = mfl_malloc(job->n_leased * sizeof *keys);
        if (!keys)
                return -ENOMEM;
        for (uint32_t i = 0; i < job->n_leased; i++)
                keys[i] = job->leased[i]->client;
        qsort(keys, job->n_leased, sizeof *keys, compare_keys);
        uint32_t n_sites = 0;
        for (uint32_t i = 0; i < job->n_leased; i++)
                if (!i || keys[i] != keys[i - 1])
                        keys[n_sites++] = keys[i];
        uint32_t n = n_max ? MFL_MIN(n_max, n_sites) : n_sites;
        int r = each ? pick_each(job, keys, n_sites) : pick(job, keys, n_sites, n);
        free(keys);
        return r;
}

int mfl_round_items_train(struct core_job *job)
{
        enum mfl_selection kind = job->spec->selection.kind;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return pick_local(job, job->spec->selection.clients, kind == MFL_SELECT_POISSON);
        uint32_t population = job->spec->data.clients, n = mfl_job_cohort_size(job->spec, population);
        if (kind == MFL_SELECT_POISSON)
                return pick_each(job, NULL, population);
        if (kind != MFL_SELECT_SEPARATED)
                return pick(job, NULL, population, n);
        uint32_t apart = job->spec->selection.separation, turn = (job->round - 1) % apart;
        uint32_t n_turn = population / apart + (turn < population % apart);
        int r = pick(job, NULL, n_turn, MFL_MIN(n, n_turn));
        for (uint32_t i = 0; !r && i < job->n_items; i++)
                job->items[i].item = turn + job->items[i].item * apart;
        return r;
}

int mfl_round_items_eval(struct core_job *job)
{
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return pick_local(job, 0, false);
        if (job->spec->evaluation.on == MFL_EVALUATE_CLIENTS) /* the same ones, so that rounds compare */
                return pick_at(job, NULL, job->spec->data.clients, job->spec->evaluation.clients, 0, 0);
        uint32_t per_shard,
                n = mfl_eval_shards(job->data.test_samples, job->spec->evaluation.batch, &per_shard);
        return pick(job, NULL, n, n);
}
