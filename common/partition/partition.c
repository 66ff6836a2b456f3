/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions: who owns which training samples. */
#include "common/partition/partition_draw.h"

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

static void draw_iid(uint64_t seed, uint32_t n, struct mfl_partition *p)
{
        for (uint32_t i = 0; i < n; i++)
                p->index[i] = i;
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_PARTITION, MFL_STREAM_IID, 0);
        mfl_rng_shuffle(&rng, p->index, n);
        mfl_cut_evenly(n, p->n_clients, p->start);
}

/* The clients are the first n_clients owners, in order, that have training samples. */
static int draw_natural(const struct mfl_dataset *dataset, struct mfl_partition *p, struct mfl_error *err)
{
        const struct mfl_split *split = &dataset->train;
        uint32_t n_owners = dataset->n_owners, with = 0;
        MFL_CLEANUP_FREE uint32_t *count = mfl_calloc((size_t)n_owners + 1, sizeof *count);
        if (!count)
                return mfl_fail_memory(err, n_owners * sizeof *count, "owners");
        for (uint32_t i = 0; i < split->n; i++) {
                mfl_assert(split->owner[i] < n_owners);
                count[split->owner[i]]++;
        }
        /* Turns the count of an owner into the place of its next sample; UINT32_MAX: not in this population. */
        for (uint32_t o = 0, at = 0; o < n_owners; o++) {
                uint32_t n = count[o];
                count[o] = UINT32_MAX;
                if (!n || with++ >= p->n_clients)
                        continue;
                count[o] = at;
                at += n;
                p->start[with] = at;
        }
        if (with < p->n_clients)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %u clients, but the training samples have %u owners", p->n_clients,
                        with);
        for (uint32_t i = 0; i < split->n; i++)
                if (count[split->owner[i]] != UINT32_MAX)
                        p->index[count[split->owner[i]]++] = i;
        return 0;
}

static bool needs_labels(enum mfl_partition_kind kind)
{
        return kind == MFL_PARTITION_DIRICHLET || kind == MFL_PARTITION_SHARDS ||
               kind == MFL_PARTITION_PATHOLOGICAL || kind == MFL_PARTITION_DISTRIBUTION ||
               kind == MFL_PARTITION_INNER_DIRICHLET;
}

static int check_labels(const int32_t *labels, uint32_t n, int classes, struct mfl_error *err)
{
        if (classes < 1 || classes > MFL_CLASSES_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "data: %d classes; 1 to %d are possible", classes, MFL_CLASSES_MAX);
        for (uint32_t i = 0; i < n; i++)
                if (labels[i] < 0 || labels[i] >= classes)
                        return mfl_fail(err, MFL_INVALID,
                                "data: label %d of sample %u, but there are %d classes", labels[i], i,
                                classes);
        return 0;
}

/* The minimum number of samples of each client, and the key that sets it. */
static int check_settings(
        const struct mfl_job *job, uint32_t *ret_each, const char **ret_what, struct mfl_error *err)
{
        enum mfl_partition_kind kind = job->data.partition;
        *ret_each = 1;
        *ret_what = "one sample";
        if (kind == MFL_PARTITION_SHARDS && !job->data.shard_size) {
                *ret_each = job->data.shards;
                *ret_what = "data.shards";
                if (!*ret_each)
                        return mfl_fail(err, MFL_INVALID, "data.shards: 0; each client gets at least 1");
        }
        if (kind == MFL_PARTITION_DIRICHLET) {
                *ret_each = MFL_MAX(job->data.min_samples, 1);
                *ret_what = "data.min_samples";
        }
        if ((kind == MFL_PARTITION_DIRICHLET || kind == MFL_PARTITION_INNER_DIRICHLET) &&
                !(job->data.alpha >= MFL_ALPHA_MIN && job->data.alpha <= MFL_ALPHA_MAX))
                return mfl_fail(err, MFL_INVALID, "data.alpha: %g; %g to %g are possible", job->data.alpha,
                        MFL_ALPHA_MIN, MFL_ALPHA_MAX);
        if ((kind == MFL_PARTITION_PATHOLOGICAL || kind == MFL_PARTITION_DISTRIBUTION) &&
                !job->data.classes_per_client)
                return mfl_fail(
                        err, MFL_INVALID, "data.classes_per_client: 0; each client has at least 1 class");
        return 0;
}

int mfl_partition_check(const struct mfl_job *job, uint32_t n, struct mfl_error *err)
{
        uint64_t clients = job->data.clients;
        uint32_t each;
        const char *what;
        if (job->data.partition == MFL_PARTITION_LOCAL)
                return n ? 0
                         : mfl_fail(err, MFL_INVALID,
                                   "data: the data set has 0 training samples; a client needs 1");
        if (!clients)
                return mfl_fail(
                        err, MFL_INVALID, "data.clients: 0; this partition needs a population of at least 1");
        int r = check_settings(job, &each, &what, err);
        if (r)
                return r;
        if (clients * each > n)
                return mfl_fail(err, MFL_INVALID,
                        "data.clients: %llu clients with at least %u each (%s) need %llu training samples; "
                        "the data set has %u",
                        (unsigned long long)clients, each, what, (unsigned long long)(clients * each), n);
        return 0;
}

bool mfl_partition_client(const struct mfl_job *job, uint32_t n, uint64_t k, uint32_t *ret_samples)
{
        uint64_t clients = job->data.clients;
        if (job->data.partition != MFL_PARTITION_IID || k >= clients)
                return false;
        *ret_samples = (uint32_t)((k + 1) * n / clients) - (uint32_t)(k * n / clients);
        return true;
}

/* The population must fit the data, and the labels must match what the data set declares. */
static int check_population(
        const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes, struct mfl_error *err)
{
        int r = labels ? check_labels(labels, n, classes, err) : 0;
        return r ? r : mfl_partition_check(job, n, err);
}

static int draw(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        const struct mfl_dataset *dataset, struct mfl_partition *p, struct mfl_error *err)
{
        switch (job->data.partition) {
        case MFL_PARTITION_LOCAL:
                for (uint32_t i = 0; i < n; i++)
                        p->index[i] = i;
                p->start[1] = n;
                return 0;
        case MFL_PARTITION_IID:
                draw_iid(job->seed, n, p);
                return 0;
        case MFL_PARTITION_DIRICHLET:
                return mfl_draw_dirichlet(job, labels, n, classes, p, err);
        case MFL_PARTITION_SHARDS:
                return mfl_draw_shards(job, labels, n, classes, p, err);
        case MFL_PARTITION_PATHOLOGICAL:
                return mfl_draw_pathological(job, labels, n, classes, p, err);
        case MFL_PARTITION_SIZE:
        case MFL_PARTITION_LINEAR:
        case MFL_PARTITION_SQUARE:
        case MFL_PARTITION_EXPONENTIAL:
                return mfl_draw_sizes(job, n, p, err);
        case MFL_PARTITION_DISTRIBUTION:
                return mfl_draw_distribution(job, labels, n, classes, p, err);
        case MFL_PARTITION_INNER_DIRICHLET:
                return mfl_draw_inner_dirichlet(job, labels, n, classes, p, err);
        case MFL_PARTITION_NATURAL_ID:
                if (!dataset || !dataset->train.owner)
                        return mfl_fail(err, MFL_INVALID,
                                "data.partition: natural-id needs a data set with an owner for each sample; "
                                "%s has none",
                                job->data.name);
                return draw_natural(dataset, p, err);
        }
        return mfl_fail(err, MFL_INVALID, "data.partition: unknown kind %d", (int)job->data.partition);
}

/* What a client keeps for evaluations comes last. */
static void hold_back(const struct mfl_job *job, struct mfl_partition *p)
{
        for (uint32_t k = 0; k < p->n_clients; k++) {
                uint32_t n = p->start[k + 1] - p->start[k];
                struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_HELD, k);
                if (mfl_job_held(job, n))
                        mfl_rng_shuffle(&rng, p->index + p->start[k], n);
        }
}

static int make_partition(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        const struct mfl_dataset *dataset, struct mfl_partition **ret_partition, struct mfl_error *err)
{
        struct mfl_partition *p = NULL;
        int r = check_population(job, labels, n, classes, err);
        if (!r)
                r = partition_alloc(
                        job->data.partition == MFL_PARTITION_LOCAL ? 1 : job->data.clients, n, &p, err);
        if (!r)
                r = draw(job, labels, n, classes, dataset, p, err);
        if (r) {
                mfl_partition_free(p);
                return r;
        }
        hold_back(job, p);
        *ret_partition = p;
        return 0;
}

int mfl_partition_new(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition **ret_partition, struct mfl_error *err)
{
        return make_partition(job, labels, n, classes, NULL, ret_partition, err);
}

int mfl_partition_dataset(const struct mfl_job *job, const struct mfl_dataset *dataset,
        struct mfl_partition **ret_partition, struct mfl_error *err)
{
        bool classes = !dataset->n_targets && mfl_dataset_labels_per_sample(dataset) == 1;
        if (!classes && needs_labels(job->data.partition))
                return mfl_fail(err, MFL_INVALID,
                        "data.partition: %s divides by class, but the samples of %s have %s instead of a "
                        "class",
                        mfl_partition_name(job->data.partition), dataset->name,
                        dataset->n_targets ? "target values" : "a label for each token");
        return make_partition(job, classes ? dataset->train.labels : NULL, dataset->train.n, dataset->classes,
                dataset, ret_partition, err);
}

uint32_t mfl_eval_shards(uint32_t n, uint32_t batch, uint32_t *ret_per_shard)
{
        mfl_assert(batch > 0);
        uint64_t batches = ((uint64_t)n + batch - 1) / batch;
        uint64_t per = batch * MFL_MAX((batches + MFL_EVAL_SHARDS_MAX - 1) / MFL_EVAL_SHARDS_MAX, 1);
        /* A shard of two or more batches means that n exceeds 64 batches, so per is below n or equal to batch. */
        mfl_assert(per <= UINT32_MAX);
        *ret_per_shard = (uint32_t)per;
        return (uint32_t)((n + per - 1) / per);
}
