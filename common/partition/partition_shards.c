/* SPDX-License-Identifier: Apache-2.0 */
/* Shards (McMahan et al. 2017, section 3): samples sorted by label and cut into shards, which are divided over the
 * clients.
 */
#include "common/partition/partition_draw.h"

struct deal {
        uint32_t n_shards; /* that there are */
        uint32_t *cut;     /* n_shards + 1 */
        uint32_t *order;   /* n_shards, shuffled; client k gets order[first[k] .. first[k + 1]) */
        uint32_t *first;   /* clients + 1 */
};

/* Without shard_size: clients * shards near-equal shards, which take every sample. With it, as many shards of that
 * size as the samples fill; the first clients get one more if they do not divide evenly. */
static int plan_shards(const struct mfl_job *job, uint32_t n, struct deal *d, struct mfl_error *err)
{
        uint32_t clients = job->data.clients, size = job->data.shard_size;
        uint64_t wanted = (uint64_t)clients * job->data.shards;
        if (!size)
                d->n_shards = (uint32_t)wanted;
        else
                d->n_shards = n / size + (job->data.keep_incomplete_shard && n % size != 0);
        if (d->n_shards < clients)
                return mfl_fail(err, MFL_INVALID,
                        "data.shard_size: %u samples are %u shards of %u, too few for %u clients", n,
                        d->n_shards, size, clients);
        d->cut = mfl_calloc((size_t)d->n_shards + 1, sizeof *d->cut);
        d->order = mfl_calloc(d->n_shards, sizeof *d->order);
        d->first = mfl_calloc((size_t)clients + 1, sizeof *d->first);
        if (!d->cut || !d->order || !d->first)
                return mfl_fail_memory(err, 2 * (size_t)d->n_shards * sizeof *d->cut, "shards");
        if (!size)
                mfl_cut_evenly(n, d->n_shards, d->cut);
        for (uint32_t s = 0; s < d->n_shards; s++) {
                if (size)
                        d->cut[s + 1] = (uint32_t)MFL_MIN((uint64_t)(s + 1) * size, n);
                d->order[s] = s;
        }
        for (uint32_t k = 0; k < clients; k++)
                d->first[k + 1] = d->first[k] + d->n_shards / clients + (k < d->n_shards % clients);
        return 0;
}

int mfl_draw_shards(const struct mfl_job *job, const int32_t *labels, uint32_t n, int classes,
        struct mfl_partition *p, struct mfl_error *err)
{
        struct deal d = {0};
        MFL_CLEANUP_FREE uint32_t *sorted = mfl_calloc(n, sizeof *sorted);
        MFL_CLEANUP_FREE uint32_t *first = mfl_calloc((size_t)classes + 1, sizeof *first);
        int r = plan_shards(job, n, &d, err);
        if (!r && (!sorted || !first || mfl_sort_by_label(labels, n, classes, first, sorted)))
                r = mfl_fail_memory(err, (size_t)n * sizeof(uint32_t), "shards");
        if (!r) {
                struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_SHARDS, 0);
                mfl_rng_shuffle(&rng, d.order, d.n_shards);
        }
        for (uint32_t k = 0, at = 0; !r && k < p->n_clients; k++) {
                for (uint32_t s = d.first[k]; s < d.first[k + 1]; s++) {
                        uint32_t from = d.cut[d.order[s]], len = d.cut[d.order[s] + 1] - from;
                        memcpy(p->index + at, sorted + from, len * sizeof *sorted);
                        at += len;
                }
                p->start[k + 1] = at;
        }
        free(d.cut);
        free(d.order);
        free(d.first);
        return r;
}
