/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse linear maps: one thread for each element of the output. */
#include "kernels/cuda/ops/ops_map.h"
#include "kernels/cuda/ops/ops_common.h"

static inline MFL_HD int64_t map_count(const struct mfl_cuda_map *a)
{
        return (int64_t)a->batch * a->outer * a->n_to * a->inner;
}

MFL_KERNEL(map, struct mfl_cuda_map)
{
        int64_t i = MFL_GLOBAL_INDEX, n = map_count(&a);
        if (i >= n || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        int e = (int)i, b = e % a.inner, r = e / a.inner % a.n_to, block = e / a.inner / a.n_to;
        int64_t from = ((int64_t)blockIdx.y * a.batch * a.outer + block) * a.n_from * a.inner + b;
        int t = a.first ? a.first[r] : r, end = a.first ? a.first[r + 1] : r + 1;
        float sum = t < end ? 0.0f : a.fill;
        for (; t < end; t++) {
                float v = mfl_load(a.from, from + (int64_t)a.index[t] * a.inner, a.type);
                sum += a.weight ? a.weight[t] * v : v;
        }
        int64_t to = blockIdx.y * n + i;
        mfl_store(a.to, to, a.add ? mfl_load(a.to, to, a.type) + sum : sum, a.type);
}

MFL_HOST cudaError_t mfl_cuda_map(const struct mfl_cuda_map *a, cudaStream_t stream)
{
        int64_t n = map_count(a);
        if (a->groups < 1 || a->groups > 65535 || n < 1 || n >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(map), n, a->groups, stream, a);
}
