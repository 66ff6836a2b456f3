/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: weighted deltas of G clients in fixed point, with the bits of mfl_fixed_add_delta.
 *
 * A thread handles four elements of all groups, so that the sum is read and written once, whatever G is.
 */
#include "common/base/fixed.h"
#include "kernels/cuda/ops/ops_common.h"

#define QUAD 4
#define TURNS 4 /* quads per thread of the count */

struct sum {
        struct mfl_cuda_sum op;
        double scale, statistics; /* 2^s of trained elements and of running statistics */
        int64_t n_trained;
        float statistics_max;
        bool wide;
};

/* Deltas of elements [i, i + n) of group g, n <= 4; 0 beyond. */
MFL_DEVICE void load_deltas(const struct sum *b, uint32_t g, int64_t i, int n, float *delta)
{
        int64_t at = (int64_t)(g * b->op.stride) + i, at_first = (int64_t)(g * b->op.first_stride) + i;
        float p[QUAD], first[QUAD];
        if (b->wide && n == QUAD) {
                mfl_pack_load(p, b->op.params, at, MFL_CUDA_F32, 4);
                mfl_pack_load(first, b->op.first, at_first, MFL_CUDA_F32, 4);
        } else {
                MFL_UNROLL
                for (int k = 0; k < QUAD; k++) {
                        p[k] = k < n ? b->op.params[at + k] : 0.0f;
                        first[k] = k < n ? b->op.first[at_first + k] : 0.0f;
                }
        }
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                delta[k] = p[k] - first[k];
}

MFL_DEVICE int quad_left(const struct sum *b, int64_t i)
{
        int64_t left = (int64_t)b->op.n - i;
        return left < QUAD ? (int)(left > 0 ? left : 0) : QUAD;
}

/* ---- count ---- */

MFL_KERNEL(sum_start, struct sum)
{
        uint32_t g = blockIdx.x * blockDim.x + threadIdx.x;
        if (g < (uint32_t)a.op.groups)
                a.op.n_bad[g] = 0;
}

MFL_KERNEL(sum_count, struct sum)
{
        MFL_SHARED(uint32_t, bad, MFL_OPS_THREADS);
        uint32_t g = blockIdx.y, t = threadIdx.x, n_bad = 0;
        if (a.op.weight[g] == 0)
                return;
        for (int turn = 0; turn < TURNS; turn++) {
                int64_t i = (((int64_t)blockIdx.x * TURNS + turn) * MFL_OPS_THREADS + t) * QUAD;
                float delta[QUAD];
                load_deltas(&a, g, i, quad_left(&a, i), delta);
                float max = i < a.n_trained ? a.op.fixed.delta_max : a.statistics_max;
                for (int k = 0; k < QUAD; k++)
                        n_bad += !(fabsf(delta[k]) <= max);
        }
        bad[t] = n_bad;
        MFL_SYNC();
        for (uint32_t s = MFL_OPS_THREADS / 2; s > 0; s /= 2) {
                if (t < s)
                        bad[t] += bad[t + s];
                MFL_SYNC();
        }
        if (t == 0 && bad[0] > 0)
                mfl_atomic_add_u64(&a.op.n_bad[g], bad[0]);
}

/* ---- add ---- */

/* Two elements of the sum, aligned to 16 bytes. */
MFL_DEVICE void add_pair(int64_t *to, const uint64_t *v)
{
        uint4 q;
        mfl_copy_16(&q, to);
        uint64_t a = v[0] + (q.x | (uint64_t)q.y << 32), b = v[1] + (q.z | (uint64_t)q.w << 32);
        q.x = (uint32_t)a;
        q.y = (uint32_t)(a >> 32);
        q.z = (uint32_t)b;
        q.w = (uint32_t)(b >> 32);
        mfl_copy_16(to, &q);
}

/* Unsigned, where wrapping is defined. */
MFL_DEVICE void add_sums(const struct sum *b, int64_t i, int n, const uint64_t *v)
{
        int64_t *to = b->op.sum + i;
        if (n == QUAD && (uintptr_t)to % 16 == 0) {
                add_pair(to, v);
                add_pair(to + 2, v + 2);
                return;
        }
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                if (k < n)
                        to[k] = (int64_t)((uint64_t)to[k] + v[k]);
}

MFL_KERNEL(sum_add, struct sum)
{
        int64_t i = MFL_GLOBAL_INDEX * QUAD;
        int n = quad_left(&a, i);
        if (n == 0)
                return;
        uint64_t sum[QUAD] = {0, 0, 0, 0};
        bool any = false;
        double scale = i < a.n_trained ? a.scale : a.statistics;
        for (int g = 0; g < a.op.groups; g++) {
                uint64_t weight = a.op.weight[g];
                if (weight == 0 || a.op.n_bad[g] > 0)
                        continue;
                double factor = (double)weight * scale;
                float delta[QUAD];
                load_deltas(&a, (uint32_t)g, i, n, delta);
                MFL_UNROLL
                for (int k = 0; k < QUAD; k++)
                        sum[k] += mfl_fixed_round((double)delta[k] * factor);
                any = true;
        }
        if (any)
                add_sums(&a, i, n, sum);
}

/* ---- gather ---- */

struct gather_sum {
        int64_t n;
        const uint32_t *place;
        const int64_t *from;
        int64_t *to;
};

/* Unsigned, where wrapping is defined. */
MFL_KERNEL(sum_gather, struct gather_sum)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i < a.n)
                a.to[i] = (int64_t)((uint64_t)a.to[i] + (uint64_t)a.from[a.place[i]]);
}

/* ---- host ---- */

MFL_HOST cudaError_t mfl_cuda_sum_gather(
        uint64_t n, const uint32_t *place, const int64_t *from, int64_t *to, cudaStream_t stream)
{
        struct gather_sum b = {(int64_t)n, place, from, to};
        if (n > (uint64_t)1 << 32)
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat((const void *)(sum_gather), (int64_t)n, 1, stream, &b);
}

static cudaError_t sum_of(const struct mfl_cuda_sum *a, struct sum *ret_sum)
{
        if (a->groups < 1 || a->groups > 65535 || a->n < 1 || a->n > (uint64_t)1 << 39 || a->n_trained % QUAD)
                return cudaErrorInvalidValue;
        ret_sum->op = *a;
        bool same = a->fixed.statistics_max == 0;
        ret_sum->scale = ldexp(1.0, a->fixed.scale_bits);
        ret_sum->statistics = same ? ret_sum->scale : ldexp(1.0, a->fixed.statistics_bits);
        ret_sum->statistics_max = same ? a->fixed.delta_max : a->fixed.statistics_max;
        ret_sum->n_trained = (int64_t)a->n_trained;
        ret_sum->wide = (a->stride | a->first_stride) % QUAD == 0 &&
                        ((uintptr_t)a->params | (uintptr_t)a->first) % 16 == 0;
        return cudaSuccess;
}

MFL_HOST cudaError_t mfl_cuda_sum_count(const struct mfl_cuda_sum *a, cudaStream_t stream)
{
        struct sum b;
        cudaError_t r = sum_of(a, &b);
        if (r == cudaSuccess)
                r = MFL_LAUNCH(sum_start, mfl_blocks(a->groups, 64), 1, 1, 64, 0, stream, &b);
        if (r != cudaSuccess)
                return r;
        return mfl_ops_launch_flat(
                (const void *)(sum_count), mfl_blocks((int64_t)a->n, QUAD * TURNS), a->groups, stream, &b);
}

MFL_HOST cudaError_t mfl_cuda_sum_add(const struct mfl_cuda_sum *a, cudaStream_t stream)
{
        struct sum b;
        cudaError_t r = sum_of(a, &b);
        return r != cudaSuccess ? r
                                : mfl_ops_launch_flat((const void *)(sum_add),
                                          mfl_blocks((int64_t)a->n, QUAD), 1, stream, &b);
}
