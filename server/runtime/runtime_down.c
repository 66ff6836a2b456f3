/* SPDX-License-Identifier: Apache-2.0 */
/* compression.down: what the round has made of the params is rounded, and what that leaves is kept for the next round. On a grid, the steps from the
 * params before stay with the new ones, and travel in their place to daemons that have those. */
#include "server/runtime/runtime_internal.h"

#include "common/codec/bf16.h"
#include "common/codec/grid_down.h"

static bool rounds_params(const struct mfl_job *spec)
{
        return spec->compression.down_half || spec->compression.down_bits;
}

uint64_t mfl_down_bytes(const struct mfl_job *spec, uint64_t n)
{
        /* Those of the newest params and of the ones before, which may still be sent. */
        uint64_t steps = spec->compression.down_bits ? 2 * n * sizeof(float) : 0;
        return steps + (rounds_params(spec) ? n * sizeof(float) : 0);
}

int mfl_down_open(struct mfl_runtime *rt, struct mfl_error *err)
{
        uint64_t bytes = rounds_params(rt->spec) ? rt->n * sizeof *rt->rest : 0;
        rt->rest = bytes ? mfl_alloc_aligned(bytes) : NULL;
        if (bytes && !rt->rest)
                return mfl_fail_memory(err, bytes, "the rest of rounded parameters");
        if (bytes)
                memset(rt->rest, 0, bytes);
        rt->down_largest = mfl_calloc(mfl_grid_tensors(rt->graph), sizeof *rt->down_largest);
        return rt->down_largest ? 0
                                : mfl_fail_memory(err, mfl_grid_tensors(rt->graph), "a grid of parameters");
}

void mfl_down_first(struct mfl_runtime *rt, float *moving)
{
        if (rt->spec->compression.down_half)
                mfl_bf16_feed(rt->n, moving, rt->rest);
}

int mfl_down_begin(struct mfl_runtime *rt, struct mfl_params *params, struct mfl_error *err)
{
        uint64_t bytes = rt->n * sizeof *params->step;
        if (!rt->spec->compression.down_bits)
                return 0;
        params->step = mfl_alloc_aligned(bytes);
        if (!params->step)
                return mfl_fail_memory(err, bytes, "steps of parameters");
        memcpy(params->base, rt->pool->current->digest, sizeof params->base);
        memset(rt->down_largest, 0, mfl_grid_tensors(rt->graph) * sizeof *rt->down_largest);
        return 0;
}

static struct mfl_grid_down range_of(const struct mfl_runtime *rt, uint64_t begin, const float *in,
        float *out, const struct mfl_params *params)
{
        return (struct mfl_grid_down){.before = in + begin,
                .v = out + begin,
                .rest = rt->rest + begin,
                .step = params->step + begin};
}

void mfl_down_made(struct mfl_runtime *rt, uint64_t begin, size_t count, const float *in, float *out,
        const struct mfl_params *params)
{
        if (rt->spec->compression.down_half)
                mfl_bf16_feed(count, out + begin, rt->rest + begin);
        if (!params->step)
                return;
        const struct mfl_grid_down down = range_of(rt, begin, in, out, params);
        mfl_grid_down_measure(rt->graph, begin, count, &down, rt->d, rt->down_largest);
}

void mfl_down_round(struct mfl_runtime *rt, uint64_t begin, size_t count, const float *in, float *out,
        const struct mfl_params *params)
{
        if (!params->step)
                return;
        const struct mfl_grid_down down = range_of(rt, begin, in, out, params);
        mfl_grid_down_round(
                rt->graph, (int)rt->spec->compression.down_bits, rt->down_largest, begin, count, &down);
}
