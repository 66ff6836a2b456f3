/* SPDX-License-Identifier: Apache-2.0 */
/* What a team will take, before there is one. */
#include "kernels/team/team_internal.h"

_Static_assert(MFL_PARALLEL_BLOCK == MFL_GRAD_BLOCK, "slices are whole blocks");

uint32_t mfl_team_stage(const struct mfl_team_options *options, uint32_t n_ranks)
{
        return mfl_parallel_stage(options->zero, options->shared, n_ranks);
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

/* Those that a team defers, and perhaps one that is a few elements short of it. */
static void add_deferred(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options,
        struct mfl_parallel_shape *shape)
{
        uint32_t grains = mfl_team_grains(options, options->step_rows);
        for (int i = 0; ops->grad && ops->grad->operands && i < graph->n_params; i++) {
                uint64_t operands = ops->grad->operands(graph, net, i), n = graph->params[i].count;
                if (!mfl_team_defers(options, grains, n, operands))
                        continue;
                shape->deferred += n;
                shape->n_deferred++;
                shape->operands += operands * grains * options->grain;
        }
}

void mfl_team_shape(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options,
        struct mfl_parallel_shape *ret_shape)
{
        uint32_t size = options->floats ? sizeof(float) : sizeof(int64_t);
        uint64_t statistics = 0;
        for (int i = 0; i < graph->n_params; i++)
                if (mfl_param_is_statistics(&graph->params[i]))
                        statistics += graph->params[i].count;
        *ret_shape = (struct mfl_parallel_shape){.n = ops->grad ? ops->grad->elements(graph, net) : 0,
                .n_tensors = (uint64_t)graph->n_params,
                .largest = largest_layer(graph),
                .statistics = mfl_team_grains(options, options->step_rows) * statistics,
                .kept = moments_of(options->moments) + options->start,
                .size = size,
                .grains = mfl_team_grains(options, options->step_rows),
                .bucket = (options->bucket_bytes ? options->bucket_bytes : MFL_TEAM_BUCKET) / size,
                .aside = options->follows,
                .snapshot = options->snapshot ? 2 * (1 + MFL_MAX(1u, options->keeps)) *
                                                        (1 + moments_of(options->moments)) * sizeof(float)
                                              : 0};
        add_deferred(ops, graph, net, options, ret_shape);
}

uint64_t mfl_team_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options, uint32_t n_ranks)
{
        struct mfl_parallel_shape shape;
        mfl_team_shape(ops, graph, net, options, &shape);
        return mfl_parallel_rank_bytes(&shape, n_ranks, mfl_team_stage(options, n_ranks));
}

/* A rank's slices of buckets are equal but for a block of each; there is a bucket per tensor at most. */
uint64_t mfl_team_device_bytes(const struct mfl_backend_ops *ops, const struct mfl_graph *graph,
        const struct mfl_net_options *net, const struct mfl_team_options *options, uint32_t n_ranks)
{
        uint64_t n = ops->grad->elements(graph, net), kept = moments_of(options->moments) + options->start;
        uint64_t most = n / n_ranks + (uint64_t)graph->n_params * MFL_GRAD_BLOCK;
        uint64_t own = mfl_team_stage(options, n_ranks) ? MFL_MIN(n, most) : n;
        return n * sizeof(int64_t) + kept * own * sizeof(float);
}

uint64_t mfl_team_sums(const struct mfl_team *team)
{
        return team->late ? team->n_own : team->layout.n;
}
