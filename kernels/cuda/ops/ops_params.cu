/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of params: the optimizer, the loss scale of fp16, changes of order.
 *
 * A thread handles four elements: 16 bytes at once where `stride` and the addresses allow it; otherwise, and
 * at the end of a vector, one after another.
 */
#include "kernels/cuda/ops/ops_common.h"

#define QUAD 4

struct sgd {
        struct mfl_cuda_sgd_args op;
        bool wide;
};

/* Elements [i, i + n) of p, n <= 4. */
MFL_DEVICE void quad_load(float *v, const float *p, int64_t i, int n, bool wide)
{
        if (wide && n == QUAD) {
                mfl_pack_load(v, p, i, MFL_CUDA_F32, 4);
                return;
        }
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                v[k] = k < n ? p[i + k] : 0.0f;
}

MFL_DEVICE void quad_store(float *p, int64_t i, const float *v, int n, bool wide)
{
        if (wide && n == QUAD) {
                mfl_pack_store(p, i, v, MFL_CUDA_F32, 4);
                return;
        }
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                if (k < n)
                        p[i + k] = v[k];
}

/* The copy in a type of 2 bytes, aligned to 8 where wide. */
MFL_DEVICE void quad_store_low(void *p, int64_t i, const float *v, int n, bool wide, enum mfl_cuda_type type)
{
        if (wide && n == QUAD) {
                uint2 q;
                q.x = mfl_pack_pair(v[0], v[1], type);
                q.y = mfl_pack_pair(v[2], v[3], type);
                *(uint2 *)(void *)((uint16_t *)p + i) = q;
                return;
        }
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                if (k < n)
                        mfl_store(p, i + k, v[k], type);
}

/* How many elements this thread has, from its first, *ret_i of group blockIdx.y, on; <= 0: none. */
MFL_DEVICE int quad_place(uint64_t n, uint64_t stride, int64_t *ret_i)
{
        int64_t i = MFL_GLOBAL_INDEX * QUAD, left = (int64_t)n - i;
        *ret_i = (int64_t)(blockIdx.y * stride) + i;
        return left < QUAD ? (int)(left > 0 ? left : 0) : QUAD;
}

/* ---- the norm of all gradients ---- */

#define NORM_BLOCKS 1024
#define NORM_EACH 4096 /* elements per block, approximately */

/* The factor, then the blocks' sums. */
static inline MFL_HD uint64_t mfl_norms_count(uint64_t n)
{
        uint64_t blocks = (n + NORM_EACH - 1) / NORM_EACH;
        return 1 + (blocks < 1 ? 1 : blocks > NORM_BLOCKS ? NORM_BLOCKS : blocks);
}

MFL_HOST uint64_t mfl_cuda_norms_count(uint64_t n)
{
        return mfl_norms_count(n);
}

/* The sum over the block's threads, for thread 0. */
MFL_DEVICE float norm_tree(float *part, float v)
{
        part[threadIdx.x] = v;
        MFL_SYNC();
        for (uint32_t s = MFL_OPS_THREADS / 2; s > 0; s /= 2) {
                if (threadIdx.x < s)
                        part[threadIdx.x] += part[threadIdx.x + s];
                MFL_SYNC();
        }
        return part[0];
}

MFL_KERNEL(norm_parts, struct sgd)
{
        MFL_SHARED(float, part, MFL_OPS_THREADS);
        if (!mfl_cuda_updates(&a.op.steps, blockIdx.y))
                return;
        const float *g = a.op.grads + blockIdx.y * a.op.stride;
        uint64_t blocks = mfl_norms_count(a.op.n) - 1, step = blocks * MFL_OPS_THREADS;
        float sum = 0.0f, inverse = a.op.scale ? 1.0f / a.op.scale[blockIdx.y].scale : 1.0f;
        for (uint64_t i = (uint64_t)blockIdx.x * MFL_OPS_THREADS + threadIdx.x; i < a.op.n; i += step) {
                float v = g[i] * inverse;
                sum += v * v;
        }
        sum = norm_tree(part, sum);
        if (threadIdx.x == 0)
                a.op.norms[blockIdx.y * (blocks + 1) + 1 + blockIdx.x] = sum;
}

MFL_KERNEL(norm_factor, struct sgd)
{
        MFL_SHARED(float, part, MFL_OPS_THREADS);
        if (!mfl_cuda_updates(&a.op.steps, blockIdx.y))
                return;
        uint64_t blocks = mfl_norms_count(a.op.n) - 1;
        float *norms = a.op.norms + blockIdx.y * (blocks + 1), sum = 0.0f;
        for (uint64_t i = threadIdx.x; i < blocks; i += MFL_OPS_THREADS)
                sum += norms[1 + i];
        sum = norm_tree(part, sum);
        if (threadIdx.x == 0)
                norms[0] = mfl_clip_factor(a.op.opt.clip_norm, sqrtf(sum));
}

MFL_HOST cudaError_t mfl_cuda_norms(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        struct sgd b;
        b.op = *a;
        b.wide = false;
        if (a->groups < 1 || a->groups > 65535 || !a->norms || a->n_norm != a->n)
                return cudaErrorInvalidValue;
        cudaError_t r = MFL_LAUNCH(
                norm_parts, mfl_norms_count(a->n) - 1, a->groups, 1, MFL_OPS_THREADS, 0, stream, &b);
        return r == cudaSuccess ? MFL_LAUNCH(norm_factor, 1, a->groups, 1, MFL_OPS_THREADS, 0, stream, &b)
                                : r;
}

/* ---- gradients of several batches ---- */

struct accumulate {
        struct mfl_cuda_accumulate op;
        bool wide;
};

MFL_KERNEL(accumulate, struct accumulate)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        if (n == 0 || mfl_cuda_rows(&a.op.steps, blockIdx.y) == 0)
                return;
        float sum[QUAD], g[QUAD];
        bool first = mfl_cuda_part(&a.op.steps) == 0;
        quad_load(g, a.op.grads, i, n, a.wide);
        if (!first)
                quad_load(sum, a.op.sum, i, n, a.wide);
        for (int k = 0; k < QUAD; k++)
                sum[k] = first ? g[k] : sum[k] + g[k];
        quad_store(a.op.sum, i, sum, n, a.wide);
}

MFL_HOST cudaError_t mfl_cuda_accumulate(const struct mfl_cuda_accumulate *a, cudaStream_t stream)
{
        struct accumulate b;
        b.op = *a;
        b.wide = a->stride % QUAD == 0 && ((uintptr_t)a->grads | (uintptr_t)a->sum) % 16 == 0;
        if (a->groups < 1 || a->groups > 65535 || a->n > (uint64_t)1 << 39)
                return cudaErrorInvalidValue;
        return a->n ? mfl_ops_launch_flat((const void *)(accumulate), mfl_blocks((int64_t)a->n, QUAD),
                              a->groups, stream, &b)
                    : cudaSuccess;
}

/* ---- optimizer ---- */

MFL_KERNEL(check_grads, struct sgd)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        if (n == 0 || !mfl_cuda_updates(&a.op.steps, blockIdx.y))
                return;
        float g[QUAD];
        quad_load(g, a.op.grads, i, n, a.wide);
        bool bad = false;
        for (int k = 0; k < QUAD; k++)
                bad = bad || !(fabsf(g[k]) <= 3.402823466e38f);
        if (bad)
                mfl_atomic_or_u32(&a.op.scale[blockIdx.y].overflow, 1);
}

MFL_DEVICE struct mfl_rate rate_of(const struct mfl_cuda_sgd_args *a)
{
        return a->rates[blockIdx.y * a->steps.steps_max + (a->steps.step ? *a->steps.step : 0)];
}

/* Divides by the loss scale, and clips. */
MFL_DEVICE void quad_true(const struct mfl_cuda_sgd_args *a, float *g)
{
        float inverse = a->scale ? 1.0f / a->scale[blockIdx.y].scale : 1.0f; /* exact: a power of two */
        float factor = a->opt.clip_norm > 0.0f ? a->norms[blockIdx.y * mfl_norms_count(a->n_norm)] : 1.0f;
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++) {
                g[k] = a->scale ? g[k] * inverse : g[k];
                g[k] = factor == 1.0f ? g[k] : g[k] * factor;
        }
}

/* After a check of the gradients: an overflow is skipped. */
MFL_KERNEL(add_correction, struct sgd)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        const struct mfl_cuda_scale *scale = a.op.scale ? &a.op.scale[blockIdx.y] : NULL;
        if (n == 0 || !mfl_cuda_updates(&a.op.steps, blockIdx.y) || (scale && scale->overflow))
                return;
        float g[QUAD], c[QUAD], times = scale ? scale->scale : 1.0f; /* exact: a power of two */
        quad_load(g, a.op.grads, i, n, a.wide);
        quad_load(c, a.op.correction, i, n, a.wide);
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                g[k] = g[k] + c[k] * times;
        quad_store((float *)a.op.grads, i, g, n, a.wide);
}

/* After a check of the gradients: an overflow is skipped. */
MFL_KERNEL(add_prox, struct sgd)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        const struct mfl_cuda_scale *scale = a.op.scale ? &a.op.scale[blockIdx.y] : NULL;
        if (n == 0 || !mfl_cuda_updates(&a.op.steps, blockIdx.y) || (scale && scale->overflow))
                return;
        float p[QUAD], g[QUAD], p0[QUAD], times = scale ? scale->scale : 1.0f; /* exact: a power of two */
        quad_load(p, a.op.params, i, n, a.wide);
        quad_load(g, a.op.grads, i, n, a.wide);
        quad_load(p0, a.op.first,
                (int64_t)(blockIdx.y * a.op.first_stride) + (int64_t)(MFL_GLOBAL_INDEX * QUAD), n, a.wide);
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                g[k] = g[k] + a.op.opt.prox_mu * (p[k] - p0[k]) * times;
        quad_store((float *)a.op.grads, i, g, n, a.wide);
}

MFL_KERNEL(sgd, struct sgd)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        const struct mfl_cuda_scale *scale = a.op.scale ? &a.op.scale[blockIdx.y] : NULL;
        if (n == 0 || !mfl_cuda_updates(&a.op.steps, blockIdx.y) || (scale && scale->overflow))
                return;
        bool momentum = a.op.opt.momentum != 0.0f, prox = a.op.opt.prox_mu != 0.0f;
        float p[QUAD], g[QUAD], m[QUAD], p0[QUAD];
        quad_load(p, a.op.params, i, n, a.wide);
        quad_load(g, a.op.grads, i, n, a.wide);
        if (momentum)
                quad_load(m, a.op.momentum, i, n, a.wide);
        if (prox)
                quad_load(p0, a.op.first,
                        (int64_t)(blockIdx.y * a.op.first_stride) + (int64_t)(MFL_GLOBAL_INDEX * QUAD), n,
                        a.wide);
        quad_true(&a.op, g);
        float lr = a.op.rates ? rate_of(&a.op).lr : a.op.opt.lr;
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                mfl_sgd_update(&a.op.opt, lr, &p[k], &m[k], &p0[k], g[k]);
        quad_store(a.op.params, i, p, n, a.wide);
        if (momentum)
                quad_store(a.op.momentum, i, m, n, a.wide);
        if (a.op.low)
                quad_store_low(a.op.low, i, p, n, a.wide, a.op.low_type);
}

MFL_KERNEL(adaptive, struct sgd)
{
        int64_t i;
        int n = quad_place(a.op.n, a.op.stride, &i);
        if (n == 0 || !mfl_cuda_updates(&a.op.steps, blockIdx.y) ||
                (a.op.scale && a.op.scale[blockIdx.y].overflow))
                return;
        bool moments = a.op.opt.kind != MFL_OPTIMIZER_ADAGRAD, prox = a.op.opt.prox_mu != 0.0f;
        float p[QUAD], g[QUAD], m[QUAD], v[QUAD], p0[QUAD];
        struct mfl_rate rate = rate_of(&a.op);
        quad_load(p, a.op.params, i, n, a.wide);
        quad_load(g, a.op.grads, i, n, a.wide);
        quad_load(v, a.op.second, i, n, a.wide);
        if (moments)
                quad_load(m, a.op.momentum, i, n, a.wide);
        if (prox)
                quad_load(p0, a.op.first,
                        (int64_t)(blockIdx.y * a.op.first_stride) + (int64_t)(MFL_GLOBAL_INDEX * QUAD), n,
                        a.wide);
        quad_true(&a.op, g);
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++)
                mfl_adaptive_update(&a.op.opt, &rate, &p[k], &m[k], &v[k], &p0[k], g[k]);
        quad_store(a.op.params, i, p, n, a.wide);
        quad_store(a.op.second, i, v, n, a.wide);
        if (moments)
                quad_store(a.op.momentum, i, m, n, a.wide);
        if (a.op.low)
                quad_store_low(a.op.low, i, p, n, a.wide, a.op.low_type);
}

MFL_KERNEL(scale_next, struct sgd)
{
        uint32_t g = blockIdx.x * blockDim.x + threadIdx.x;
        if (g >= (uint32_t)a.op.groups || !mfl_cuda_updates(&a.op.steps, g))
                return;
        struct mfl_cuda_scale s = a.op.scale[g];
        mfl_loss_scale_next(&s.scale, &s.good_steps, s.overflow != 0);
        s.overflow = 0;
        a.op.scale[g] = s;
}

static cudaError_t launch_sgd(const void *kernel, const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        if (a->groups < 1 || a->groups > 65535 || a->n > (uint64_t)1 << 39)
                return cudaErrorInvalidValue;
        struct sgd b;
        b.op = *a;
        uintptr_t bits = (uintptr_t)a->params | (uintptr_t)a->grads | (uintptr_t)a->momentum |
                         (uintptr_t)a->first | (uintptr_t)a->second | (uintptr_t)a->correction;
        b.wide = (a->stride | a->first_stride) % QUAD == 0 && bits % 16 == 0 && (uintptr_t)a->low % 8 == 0;
        if (a->n == 0)
                return cudaSuccess;
        return mfl_ops_launch_flat(kernel, mfl_blocks((int64_t)a->n, QUAD), a->groups, stream, &b);
}

MFL_HOST cudaError_t mfl_cuda_check_grads(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        return launch_sgd((const void *)(check_grads), a, stream);
}

MFL_HOST cudaError_t mfl_cuda_add_correction(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        return launch_sgd((const void *)(add_correction), a, stream);
}

MFL_HOST cudaError_t mfl_cuda_add_prox(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        return launch_sgd((const void *)(add_prox), a, stream);
}

MFL_HOST cudaError_t mfl_cuda_sgd(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        if (a->low && a->low_type == MFL_CUDA_F32)
                return cudaErrorInvalidValue;
        if (a->opt.kind == MFL_OPTIMIZER_SGD)
                return launch_sgd((const void *)(sgd), a, stream);
        if (!a->second || !a->rates)
                return cudaErrorInvalidValue;
        return launch_sgd((const void *)(adaptive), a, stream);
}

MFL_HOST cudaError_t mfl_cuda_scale_next(const struct mfl_cuda_sgd_args *a, cudaStream_t stream)
{
        struct sgd b;
        b.op = *a;
        b.wide = false;
        return MFL_LAUNCH(scale_next, mfl_blocks(a->groups, 64), 1, 1, 64, 0, stream, &b);
}

/* ---- orders ---- */

MFL_KERNEL(reorder, struct mfl_cuda_reorder)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.n)
                return;
        uint32_t place = a.place[i];
        int64_t from = a.scatter ? i : (int64_t)place, to = a.scatter ? (int64_t)place : i;
        float v = a.from[from];
        a.to[to] = v;
        if (a.low)
                mfl_store(a.low, to, v, a.low_type);
}

MFL_HOST cudaError_t mfl_cuda_reorder(const struct mfl_cuda_reorder *a, cudaStream_t stream)
{
        if (a->n > (uint64_t)UINT32_MAX + 1)
                return cudaErrorInvalidValue;
        return a->n == 0 ? cudaSuccess
                         : mfl_ops_launch_flat((const void *)(reorder), (int64_t)a->n, 1, stream, a);
}

struct reorder_i64 {
        uint64_t n;
        const uint32_t *place;
        const int64_t *from;
        int64_t *to;
};

MFL_KERNEL(reorder_i64, struct reorder_i64)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i < (int64_t)a.n)
                a.to[i] = a.from[a.place[i]];
}

MFL_HOST cudaError_t mfl_cuda_reorder_i64(
        uint64_t n, const uint32_t *place, const int64_t *from, int64_t *to, cudaStream_t stream)
{
        struct reorder_i64 a = {n, place, from, to};
        if (n > (uint64_t)UINT32_MAX + 1)
                return cudaErrorInvalidValue;
        return n == 0 ? cudaSuccess
                      : mfl_ops_launch_flat((const void *)(reorder_i64), (int64_t)n, 1, stream, &a);
}

/* ---- shared params ---- */

MFL_KERNEL(copies, struct mfl_cuda_copies)
{
        int64_t i = MFL_GLOBAL_INDEX;
        if (i >= (int64_t)a.n || (a.add && mfl_cuda_rows(&a.steps, blockIdx.y) == 0))
                return;
        int64_t group = (int64_t)(blockIdx.y * a.stride), copy = group + (int64_t)a.copy + i;
        int64_t own = group + (int64_t)a.own + (a.table ? (int64_t)a.table[i] : i);
        if (a.add) {
                a.values[own] += a.values[copy];
                return;
        }
        float v = a.values[own];
        a.values[copy] = v;
        if (a.low)
                mfl_store(a.low, copy, v, a.type);
}

MFL_HOST cudaError_t mfl_cuda_copies(const struct mfl_cuda_copies *a, cudaStream_t stream)
{
        if (a->groups < 1 || a->groups > 65535 || a->n > (uint64_t)UINT32_MAX + 1)
                return cudaErrorInvalidValue;
        return a->n == 0 ? cudaSuccess
                         : mfl_ops_launch_flat((const void *)(copies), (int64_t)a->n, a->groups, stream, a);
}
