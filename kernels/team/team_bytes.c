/* SPDX-License-Identifier: Apache-2.0 */
/* What a team will take, before there is one. */
#include "kernels/team/team_internal.h"

uint32_t mfl_team_grains(const struct mfl_team_options *options, uint32_t rows)
{
        return (rows + options->grain - 1) / options->grain;
}

/* One rank alone has nothing to share out, and ranks with one memory share it anyway. */
uint32_t mfl_team_stage(const struct mfl_team_options *options, uint32_t n_ranks)
{
        return n_ranks == 1 ? 1 : options->shared ? MFL_MAX(1, options->zero) : options->zero;
}

static uint32_t moments_of(enum mfl_moments moments)
{
        return moments == MFL_MOMENTS_NONE ? 0 : moments == MFL_MOMENTS_ANY ? 2 : 1;
}

/* Elements of the most params that a layer has. */
static uint64_t largest_layer(const struct mfl_graph *graph)
{
        uint64_t most = 0, own = 0;
        for (int i = 0; i < graph->n_params; i++) {
                own = i && graph->params[i - 1].layer == graph->params[i].layer ? own : 0;
                own += graph->params[i].trained ? graph->params[i].count : 0;
                most = MFL_MAX(most, own);
        }
        return most;
}

uint64_t mfl_team_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options, uint32_t n_ranks)
{
        uint64_t n = ops->grad ? ops->grad->elements(graph, net) : 0, statistics = 0;
        uint64_t size = options->floats ? sizeof(float) : sizeof(int64_t);
        uint64_t bucket = (options->bucket_bytes ? options->bucket_bytes : MFL_TEAM_BUCKET) / size;
        uint64_t n_buckets = MFL_MIN((uint64_t)graph->n_params, n / MFL_MAX(bucket, 1) + 2);
        uint32_t zero = mfl_team_stage(options, n_ranks),
                 kept = moments_of(options->moments) + options->start;
        /* A slice may have a block more than its share of a bucket. */
        uint64_t own = zero ? MFL_MIN(n, n / n_ranks + n_buckets * MFL_GRAD_BLOCK) : n;
        uint64_t sums =
                zero < 2 ? n : own + MFL_MIN(n, 3 * (MFL_MAX(bucket, largest_layer(graph)) + MFL_GRAD_BLOCK));
        for (int i = 0; i < graph->n_params; i++)
                if (mfl_param_is_statistics(&graph->params[i]))
                        statistics += graph->params[i].count;
        return sums * size + own * kept * sizeof(float) + n / MFL_GRAD_BLOCK * sizeof(double) +
               mfl_team_grains(options, options->step_rows) * statistics * sizeof(float) +
               (options->follows ? MFL_MIN(n, MFL_MAX(bucket, largest_layer(graph)) + MFL_GRAD_BLOCK) : 0) *
                       sizeof(float);
}
