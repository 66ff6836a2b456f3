/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions: who owns which training samples. */
#include "common/data/partition_draw.h"

/* Streams of MFL_RNG_PARTITION by the coordinate a are listed in partition_draw.h. */

void mfl_partition_free(struct mfl_partition *partition)
{
        if (!partition)
                return;
        free(partition->start);
        free(partition->index);
        free(partition);
}

static int partition_alloc(
        uint32_t n_clients, uint32_t n, struct mfl_partition **ret_partition, struct mfl_error *err)
{
        struct mfl_partition *p = mfl_calloc(1, sizeof *p);
        if (p) {
                p->n_clients = n_clients;
                p->start = mfl_calloc((size_t)n_clients + 1, sizeof *p->start);
                p->index = mfl_calloc(n, sizeof *p->index);
        }
        if (!p || !p->start || !p->index) {
                mfl_partition_free(p);
                return mfl_fail_memory(err, ((size_t)n_clients + n) * sizeof(uint32_t), "a partition");
        }
        *ret_partition = p;
        return 0;
}

/* Near-equal parts: sizes differ by one at most. */
static void cut_evenly(uint32_t n, uint32_t parts, uint32_t *start)
{
        for (uint64_t k = 0; k <= parts; k++)
                start[k] = (uint32_t)(k * n / parts);
}

int mfl_sort_by_label(const int32_t *labels, uint32_t n, int classes, uint32_t *first, uint32_t *index)
{
        uint32_t *at = mfl_calloc((size_t)classes + 1, sizeof *at);
        if (!at)
                return -ENOMEM;
        memset(first, 0, ((size_t)classes + 1) * sizeof *first);
        for (uint32_t i = 0; i < n; i++)
                first[labels[i] + 1]++;
        for (int c = 0; c < classes; c++)
                first[c + 1] += first[c];
        memcpy(at, first, ((size_t)classes + 1) * sizeof *at);
        for (uint32_t i = 0; i < n; i++)
                index[at[labels[i]]++] = i;
        free(at);
        return 0;
}

static void draw_iid(uint64_t seed, uint32_t n, struct mfl_partition *p)
{
        for (uint32_t i = 0; i < n; i++)
                p->index[i] = i;
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_PARTITION, MFL_STREAM_IID, 0);
        mfl_rng_shuffle(&rng, p->index, n);
        cut_evenly(n, p->n_clients, p->start);
}

/* McMahan et al. 2017, section 3: sorted by label, cut into clients * k shards, k dealt to each client. */
static int draw_shards(uint64_t seed, uint32_t k, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *p, struct mfl_error *err)
{
        uint32_t n_shards = p->n_clients * k, at = 0;
        MFL_CLEANUP_FREE uint32_t *sorted = mfl_calloc(n, sizeof *sorted);
        MFL_CLEANUP_FREE uint32_t *first = mfl_calloc((size_t)classes + 1, sizeof *first);
        MFL_CLEANUP_FREE uint32_t *cut = mfl_calloc((size_t)n_shards + 1, sizeof *cut);
        MFL_CLEANUP_FREE uint32_t *deal = mfl_calloc(n_shards, sizeof *deal);
        if (!sorted || !first || !cut || !deal || mfl_sort_by_label(labels, n, classes, first, sorted))
                return mfl_fail_memory(err, ((size_t)n + 2 * (size_t)n_shards) * sizeof(uint32_t), "shards");
        cut_evenly(n, n_shards, cut);
        for (uint32_t s = 0; s < n_shards; s++)
                deal[s] = s;
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_PARTITION, MFL_STREAM_SHARDS, 0);
        mfl_rng_shuffle(&rng, deal, n_shards);
        for (uint32_t s = 0; s < n_shards; s++) {
                uint32_t from = cut[deal[s]], len = cut[deal[s] + 1] - from;
                if (s % k == 0)
                        p->start[s / k] = at;
                memcpy(p->index + at, sorted + from, len * sizeof *sorted);
                at += len;
        }
        p->start[p->n_clients] = at;
        return 0;
}

/* The population must fit the data, and labels must be what the data set promises. */
static int check_population(
        const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes, struct mfl_error *err)
{
        uint64_t clients = job->data.clients, each = 1;
        const char *what = "one sample";
        if (classes < 1 || classes > MFL_CLASSES_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "data: %d classes; 1 to %d are possible", classes, MFL_CLASSES_MAX);
        for (uint32_t i = 0; i < n; i++)
                if (labels[i] < 0 || labels[i] >= classes)
                        return mfl_fail(err, MFL_INVALID,
                                "data: label %d of sample %u, but there are %d classes", labels[i], i,
                                classes);
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return n ? 0
                         : mfl_fail(err, MFL_INVALID,
                                   "data: the data set has 0 training samples, a client needs 1");
        if (!clients)
                return mfl_fail(
                        err, MFL_INVALID, "data.clients: 0; this partition needs a population of at least 1");
        if (job->data.partition == MFL_PARTITION_SHARDS) {
                each = job->data.shards;
                what = "data.shards";
                if (!each)
                        return mfl_fail(err, MFL_INVALID, "data.shards: 0; each client gets at least 1");
        } else if (job->data.partition == MFL_PARTITION_DIRICHLET) {
                each = MFL_MAX(job->data.min_samples, 1);
                what = "data.min_samples";
                if (!(job->data.alpha >= MFL_ALPHA_MIN && job->data.alpha <= MFL_ALPHA_MAX))
                        return mfl_fail(err, MFL_INVALID, "data.alpha: %g; %g to %g are possible",
                                job->data.alpha, MFL_ALPHA_MIN, MFL_ALPHA_MAX);
        }
        if (clients * each > n)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %llu clients with at least %llu each (%s) need %llu "
                        "training samples, the data set has %u",
                        (unsigned long long)clients, (unsigned long long)each, what,
                        (unsigned long long)(clients * each), n);
        return 0;
}

int mfl_partition_new(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition **ret_partition, struct mfl_error *err)
{
        struct mfl_partition *p = NULL;
        int r = check_population(job, labels, n, classes, err);
        if (!r)
                r = partition_alloc(
                        job->data.partition == MFL_PARTITION_LOCAL ? 1 : job->data.clients, n, &p, err);
        if (r)
                return r;
        switch (job->data.partition) {
        case MFL_PARTITION_LOCAL:
                for (uint32_t i = 0; i < n; i++)
                        p->index[i] = i;
                p->start[1] = n;
                break;
        case MFL_PARTITION_IID:
                draw_iid(job->seed, n, p);
                break;
        case MFL_PARTITION_DIRICHLET:
                r = mfl_draw_dirichlet(job, labels, n, classes, p, err);
                break;
        case MFL_PARTITION_SHARDS:
                r = draw_shards(job->seed, job->data.shards, labels, n, classes, p, err);
                break;
        default:
                r = mfl_fail(err, MFL_INVALID, "data.partition: unknown kind %d", (int)job->data.partition);
        }
        if (r)
                mfl_partition_free(p);
        else
                *ret_partition = p;
        return r;
}

int mfl_partition_dataset(const struct mfl_job *job, const struct mfl_dataset *dataset,
        struct mfl_partition **ret_partition, struct mfl_error *err)
{
        return mfl_partition_new(
                job, dataset->train.labels, dataset->train.n, dataset->classes, ret_partition, err);
}

uint32_t mfl_eval_shards(uint32_t n, uint32_t batch, uint32_t *ret_per_shard)
{
        mfl_assert(batch > 0);
        uint64_t batches = ((uint64_t)n + batch - 1) / batch;
        uint64_t per = batch * MFL_MAX((batches + MFL_EVAL_SHARDS_MAX - 1) / MFL_EVAL_SHARDS_MAX, 1);
        /* Two batches or more in a shard mean that n is over 64 of them, so per is below n or is batch
         * itself. */
        mfl_assert(per <= UINT32_MAX);
        *ret_per_shard = (uint32_t)per;
        return (uint32_t)((n + per - 1) / per);
}
