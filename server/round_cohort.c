/* SPDX-License-Identifier: Apache-2.0 */
/* Which clients or shards a phase has. */
#include "server/round_cohort.h"

#include "common/data/partition.h"
#include "common/rng.h"

void mfl_round_items_clear(struct core_job *job)
{
        free(job->items);
        job->items = NULL;
        job->n_items = 0;
        memset(job->count, 0, sizeof job->count);
}

static int set_items(struct core_job *job, uint32_t n)
{
        mfl_round_items_clear(job);
        job->items = mfl_calloc(n, sizeof *job->items);
        if (!job->items)
                return -ENOMEM;
        job->n_items = job->count[ITEM_OPEN] = n;
        return 0;
}

static int compare_items(const void *a, const void *b)
{
        const struct core_item *x = a, *y = b;
        return (x->item > y->item) - (x->item < y->item);
}

/* The first n places of `v` become a uniform draw without replacement. */
static void draw(struct mfl_rng *rng, uint32_t *v, uint32_t n, uint32_t population)
{
        for (uint32_t i = 0; i < n; i++) {
                uint32_t j = i + mfl_rng_below(rng, population - i), t = v[i];
                v[i] = v[j];
                v[j] = t;
        }
}

static int pick(struct core_job *job, const uint64_t *item, uint32_t population, uint32_t n)
{
        uint32_t *v = mfl_malloc(population * sizeof *v);
        if (!v || set_items(job, n)) {
                free(v);
                return -ENOMEM;
        }
        for (uint32_t i = 0; i < population; i++)
                v[i] = i;
        struct mfl_rng rng = mfl_rng_new(job->spec->seed, MFL_RNG_SELECT, job->round, job->attempt);
        if (n < population)
                draw(&rng, v, n, population);
        for (uint32_t i = 0; i < n; i++)
                job->items[i].item = item ? item[v[i]] : v[i];
        free(v);
        qsort(job->items, n, sizeof *job->items, compare_items);
        return 0;
}

static int compare_keys(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

/* Items of a `local` job: the daemons it has. Sorted before drawing, so that the draw does not depend on who
 * came first. */
static int pick_local(struct core_job *job, uint32_t n_max)
{
        uint64_t *keys = mfl_malloc(job->n_leased * sizeof *keys);
        if (!keys)
                return -ENOMEM;
        for (uint32_t i = 0; i < job->n_leased; i++)
                keys[i] = job->leased[i]->key;
        qsort(keys, job->n_leased, sizeof *keys, compare_keys);
        uint32_t n = n_max ? MFL_MIN(n_max, job->n_leased) : job->n_leased;
        int r = pick(job, keys, job->n_leased, n);
        free(keys);
        return r;
}

int mfl_round_items_train(struct mfl_core *core, struct core_job *job)
{
        (void)core;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return pick_local(job, job->spec->selection.clients);
        uint32_t population = job->spec->data.clients;
        return pick(job, NULL, population, mfl_job_cohort_size(job->spec, population));
}

int mfl_round_items_eval(struct mfl_core *core, struct core_job *job)
{
        (void)core;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return pick_local(job, 0);
        uint32_t per_shard,
                n = mfl_eval_shards(job->data.test_samples, job->spec->evaluation.batch, &per_shard);
        return pick(job, NULL, n, n);
}
