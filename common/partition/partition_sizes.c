/* SPDX-License-Identifier: Apache-2.0 */
/* Partitions by size alone: shuffled samples, cut as given or in proportion to a function of the client's
 * number.
 *
 * The proportions are those of LinearPartitioner and its relatives in flwr-datasets: client k, from 1, gets floor(n *
 * f(k) / sum of f), and the last client gets the remainder. There the quotient is a double, whose last bit may cost a
 * sample; here linear and square are exact integers.
 */
#include "common/partition/partition_draw.h"
#include "common/exact/exact.h"

int mfl_partition_sizes_given(const struct mfl_job *job, uint32_t n, uint32_t *start, struct mfl_error *err)
{
        uint32_t clients = job->data.clients;
        uint64_t at = 0;
        if (!job->data.n_sizes || (job->data.n_sizes != 1 && job->data.n_sizes != clients))
                return mfl_fail(err, MFL_INVALID,
                        "data.sizes: %u sizes for %u clients; give one size per client, or one size for all",
                        job->data.n_sizes, clients);
        for (uint32_t k = 0; k < clients; k++) {
                uint32_t size = job->data.sizes[job->data.n_sizes == 1 ? 0 : k];
                if (!size)
                        return mfl_fail(
                                err, MFL_INVALID, "data.sizes: client %u: 0; at least 1 is needed", k);
                at += size;
                if (at <= n)
                        start[k + 1] = (uint32_t)at;
        }
        if (at > n)
                return mfl_fail(err, MFL_INVALID, "data.sizes: %llu samples in all, but the data set has %u",
                        (unsigned long long)at, n);
        return 0;
}

static void cut_by_power(uint32_t n, uint32_t clients, bool square, uint32_t *start)
{
        uint64_t k = clients, linear = k * (k + 1) / 2;
        unsigned __int128 total = square ? (unsigned __int128)linear * (2 * k + 1) / 3 : linear;
        for (k = 1; k <= clients; k++)
                start[k] = start[k - 1] + (uint32_t)((unsigned __int128)n * (square ? k * k : k) / total);
}

static void cut_by_exp(uint32_t n, uint32_t clients, uint32_t *start)
{
        double total = 0;
        for (uint32_t k = 1; k <= clients; k++)
                total += mfl_exact_exp((double)k - clients);
        for (uint32_t k = 1; k <= clients; k++)
                start[k] = start[k - 1] + (uint32_t)(mfl_exact_exp((double)k - clients) / total * n);
}

int mfl_draw_sizes(const struct mfl_job *job, uint32_t n, struct mfl_partition *p, struct mfl_error *err)
{
        enum mfl_partition_kind kind = job->data.partition;
        if (kind == MFL_PARTITION_SIZE) {
                int r = mfl_partition_sizes_given(job, n, p->start, err);
                if (r)
                        return r;
        } else if (kind == MFL_PARTITION_EXPONENTIAL) {
                cut_by_exp(n, p->n_clients, p->start);
        } else {
                cut_by_power(n, p->n_clients, kind == MFL_PARTITION_SQUARE, p->start);
        }
        if (kind != MFL_PARTITION_SIZE)
                p->start[p->n_clients] = n;
        for (uint32_t k = 0; k < p->n_clients; k++)
                if (p->start[k + 1] == p->start[k])
                        return mfl_fail(err, MFL_INVALID,
                                "data.clients: %u samples over %u clients: partition %s leaves client %u "
                                "none; use fewer clients",
                                n, p->n_clients, mfl_partition_name(kind), k);
        MFL_CLEANUP_FREE uint32_t *order = mfl_calloc(n, sizeof *order);
        if (!order)
                return mfl_fail_memory(err, n * sizeof *order, "samples");
        for (uint32_t i = 0; i < n; i++)
                order[i] = i;
        struct mfl_rng rng = mfl_rng_new(job->seed, MFL_RNG_PARTITION, MFL_STREAM_SIZES, 0);
        mfl_rng_shuffle(&rng, order, n);
        memcpy(p->index, order, p->start[p->n_clients] * sizeof *order);
        return 0;
}
