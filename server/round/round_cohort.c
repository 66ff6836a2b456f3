/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has. */
#include "server/round/round_cohort.h"

#include <math.h>

#include "common/cohort/cohort.h"
#include "common/cohort/draw.h"
#include "common/method/method.h"
#include "common/partition/partition.h"
#include "server/live/live.h"

static int set_items(struct core_job *job, uint32_t n)
{
        mfl_core_items_clear(job);
        job->items = mfl_calloc(n, sizeof *job->items);
        if (!job->items)
                return -ENOMEM;
        job->n_items = job->n_wanted = job->count[ITEM_OPEN] = n;
        return 0;
}

/* Rounds of one turn of the method have the same clients. */
static uint32_t turn_of(const struct core_job *job)
{
        uint32_t rounds = mfl_method_get(job->spec)->turn_rounds;
        return rounds ? (job->round - 1) / rounds + 1 : job->round;
}

static uint32_t draw_of(const struct core_job *job)
{
        return mfl_method_get(job->spec)->turn_rounds ? 0 : job->attempt;
}

/* ---- partition local: the clients are sites ---- */

/* n of the keys without replacement. */
static int pick(struct core_job *job, const uint64_t *key, uint32_t n_keys, uint32_t n)
{
        uint32_t *v = n < n_keys ? mfl_malloc(n * sizeof *v) : NULL;
        struct mfl_rng rng = mfl_rng_new(job->select_seed, MFL_RNG_SELECT, turn_of(job), draw_of(job));
        int r = n < n_keys && !v ? -ENOMEM : set_items(job, n);
        if (!r && v)
                r = mfl_draw_uniform(&rng, n_keys, n, v);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = key[v ? v[i] : i];
        free(v);
        return r;
}

/* Each of them by itself. */
static int pick_each(struct core_job *job, const uint64_t *key, uint32_t n_keys)
{
        uint32_t most = mfl_job_cohort_size(job->spec, n_keys), n = 0;
        uint64_t below = (uint64_t)ceil(ldexp(job->spec->selection.rate, 32));
        uint32_t *v = mfl_malloc(most * sizeof *v);
        if (!v)
                return -ENOMEM;
        struct mfl_rng rng = mfl_rng_new(job->select_seed, MFL_RNG_SELECT, turn_of(job), draw_of(job));
        for (uint32_t i = 0; i < n_keys && n < most; i++)
                if (mfl_rng_u32(&rng) < below)
                        v[n++] = i;
        int r = set_items(job, n);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = key[v[i]];
        free(v);
        return r;
}

static int compare_keys(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static int compare_items(const void *a, const void *b)
{
        const struct core_item *x = a, *y = b;
        return compare_keys(&x->item, &y->item);
}

/* In proportion to the samples of the site's data set. */
static int pick_weighted(struct core_job *job, const uint64_t *key, uint32_t n_keys, uint32_t n)
{
        MFL_CLEANUP_FREE uint64_t *weight = mfl_calloc(n_keys, sizeof *weight);
        MFL_CLEANUP_FREE uint32_t *v = mfl_malloc(MFL_MAX(n, 1u) * sizeof *v);
        struct mfl_rng rng = mfl_rng_new(job->select_seed, MFL_RNG_SELECT, turn_of(job), draw_of(job));
        if (!weight || !v)
                return -ENOMEM;
        for (uint32_t i = 0; i < job->n_leased; i++) {
                const struct mfl_data_info *data = mfl_core_daemon_data(job->leased[i], job);
                uint64_t *at = bsearch(&job->leased[i]->client, key, n_keys, sizeof *key, compare_keys);
                if (data && at)
                        weight[at - key] = data->train_samples;
        }
        int r = mfl_draw_weighted(&rng, weight, n_keys, n, v, &n);
        if (!r)
                r = set_items(job, n);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = key[v[i]];
        if (!r)
                qsort(job->items, n, sizeof *job->items, compare_items);
        return r;
}

/* They are the sites of its daemons, sorted before drawing, so that the draw does not depend on the order of arrival. */
static int pick_local(struct core_job *job, uint32_t n_max, enum mfl_selection kind)
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
        int r = kind == MFL_SELECT_POISSON    ? pick_each(job, keys, n_sites)
                : kind == MFL_SELECT_WEIGHTED ? pick_weighted(job, keys, n_sites, n)
                                              : pick(job, keys, n_sites, n);
        free(keys);
        return r;
}

/* ---- a population ---- */

bool mfl_round_lacks_samples(const struct core_job *job)
{
        return !mfl_core_job_is_local(job) && job->spec->data.partition != MFL_PARTITION_IID &&
               !job->cut_exact && mfl_cohort_needs_samples(job->spec);
}

/* Without those that the client keeps for evaluations. */
static uint32_t trained_of(const struct core_job *job, uint32_t n)
{
        return n - mfl_job_held(job->spec, n);
}

bool mfl_round_samples_differ(const struct core_job *job)
{
        for (uint32_t k = 0; job->samples && job->cut_exact && k < job->spec->data.clients; k++)
                if (job->samples[k] != trained_of(job, job->cut->count[k]))
                        return true;
        return false;
}

static int take_samples(struct core_job *job)
{
        uint32_t population = job->spec->data.clients;
        if (!mfl_cohort_needs_samples(job->spec))
                return 0;
        mfl_assert(!mfl_round_lacks_samples(job));
        if (!job->samples)
                job->samples = mfl_malloc(population * sizeof *job->samples);
        if (!job->samples)
                return -ENOMEM;
        for (uint32_t k = 0; k < population; k++) {
                if (!mfl_partition_client(job->spec, job->data.train_samples, k, &job->samples[k]))
                        job->samples[k] = job->cut->count[k];
                job->samples[k] = trained_of(job, job->samples[k]);
        }
        return 0;
}

/* What people see of a version: how stale its updates are. */
static void measure_staleness(struct core_job *job, const struct mfl_cohort *cohort)
{
        uint32_t most = 0;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < cohort->n; i++) {
                uint32_t staleness = mfl_core_item_staleness(job, i);
                most = MFL_MAX(most, staleness);
                sum += staleness;
        }
        job->staleness = most;
        mfl_measure_set(&job->record.measures, MFL_MEASURE_STALENESS_MEAN, (double)sum / cohort->n);
        mfl_measure_set(&job->record.measures, MFL_MEASURE_STALENESS_MAX, most);
        mfl_measure_set(&job->record.measures, MFL_MEASURE_DROPPED, cohort->dropped);
}

/* Tombstones: the draw is as if they were there. Returns how many of the n stay. */
static uint32_t leave_out(const struct mfl_job *spec, uint32_t *client, uint32_t n)
{
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++)
                if (!mfl_job_is_without(spec, client[i]))
                        client[left++] = client[i];
        return left;
}

/* Each client starts from its region's params. */
static int set_regions(struct core_job *job)
{
        if (!mfl_job_has_regions(job->spec))
                return 0;
        job->base = mfl_calloc(MFL_MAX(job->n_items, 1u), sizeof *job->base);
        for (uint32_t i = 0; job->base && i < job->n_items; i++)
                job->base[i] = mfl_job_region(job->spec, job->items[i].item);
        return job->base ? 0 : -ENOMEM;
}

static int set_items_train(struct core_job *job, struct mfl_error *err)
{
        if (job->skip_round == job->round)
                return set_items(job, 0);
        if (mfl_job_is_live(job->spec))
                return mfl_live_items(job, err);
        if (mfl_core_job_is_local(job))
                return pick_local(job, job->spec->selection.clients, job->spec->selection.kind);
        struct mfl_cohort cohort;
        int r = take_samples(job);
        struct mfl_cohort_ask ask = {.job = job->spec,
                .population = job->spec->data.clients,
                .round = turn_of(job),
                .attempt = draw_of(job),
                .samples = job->samples,
                .memory = job->memory,
                .bytes =
                        (job->n_params + mfl_method_update_floats(job->spec, job->n_params - job->n_frozen)) *
                        sizeof(float),
                .start_us = job->virtual_us,
                .secret = &job->select_seed};
        if (!r)
                r = job->calendar
                            ? mfl_calendar_advance(&ask, job->calendar, job->calendar_next, &cohort, err)
                            : mfl_cohort_draw(&ask, &cohort, err);
        if (r)
                return r;
        uint32_t left = leave_out(job->spec, cohort.client, cohort.n);
        cohort.wanted -= MFL_MIN(cohort.wanted, cohort.n - left);
        cohort.n = left;
        r = set_items(job, cohort.n);
        job->base = cohort.base;
        if (!r && job->calendar)
                measure_staleness(job, &cohort);
        for (uint32_t i = 0; !r && i < cohort.n; i++)
                job->items[i].item = cohort.client[i];
        free(cohort.client);
        if (!r && job->memory) {
                job->losses = mfl_calloc(MFL_MAX(cohort.n, 1u), sizeof *job->losses);
                r = job->losses ? 0 : -ENOMEM;
        }
        job->n_wanted = cohort.wanted;
        job->record.has_virtual = job->spec->time == MFL_TIME_VIRTUAL;
        job->record.virtual_start_us = cohort.start_us;
        job->record.virtual_end_us = cohort.end_us;
        return r;
}

int mfl_round_items_train(struct core_job *job, struct mfl_error *err)
{
        int r = set_items_train(job, err);
        return r ? r : set_regions(job);
}

uint32_t mfl_round_quorum(const struct core_job *job)
{
        double need = ceil(job->spec->limits.quorum * job->n_wanted);
        /* A Poisson sample may be empty: the params stay what they are. */
        return need < 1 && job->n_items ? 1 : (uint32_t)need;
}

int mfl_round_items_census(struct core_job *job)
{
        return set_items(job, 1);
}

/* The same clients in each round, so that rounds compare. */
static int pick_evaluators(struct core_job *job)
{
        uint32_t population = job->spec->data.clients, n = job->spec->evaluation.clients;
        MFL_CLEANUP_FREE uint32_t *v = mfl_malloc(MFL_MAX(n, 1u) * sizeof *v);
        struct mfl_rng rng = mfl_rng_new(job->spec->seed, MFL_RNG_SELECT, 0, 0);
        int r = !v ? -ENOMEM : n < population ? mfl_draw_uniform(&rng, population, n, v) : 0;
        for (uint32_t i = 0; !r && n >= population && i < n; i++)
                v[i] = i;
        n = r ? 0 : leave_out(job->spec, v, n);
        for (uint32_t k = 0; !r && !n;
                k++) { /* all of them were: the first one that is left takes their place */
                v[0] = k;
                n = !mfl_job_is_without(job->spec, k);
        }
        if (!r)
                r = set_items(job, n);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = v[i];
        return r;
}

int mfl_round_items_eval(struct core_job *job)
{
        if (mfl_core_job_is_local(job))
                return pick_local(job, 0, MFL_SELECT_UNIFORM);
        if (job->spec->evaluation.on == MFL_EVALUATE_CLIENTS)
                return pick_evaluators(job);
        uint32_t per_shard,
                n = mfl_eval_shards(job->data.test_samples, job->spec->evaluation.batch, &per_shard);
        int r = set_items(job, n);
        for (uint32_t i = 0; !r && i < n; i++)
                job->items[i].item = i;
        return r;
}
