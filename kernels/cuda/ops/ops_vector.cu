/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm, RMS norm and softmax: a warp for each vector. */
#include "kernels/cuda/ops/ops_columns.h"
#include "kernels/cuda/ops/ops_sequence.h"

#define WARP 32
#define VECTORS (MFL_OPS_THREADS / WARP) /* of a block */

MFL_DEVICE float warp_sum(float v)
{
        for (int s = WARP / 2; s > 0; s /= 2)
                v += mfl_shfl_xor(v, s);
        return v;
}

MFL_DEVICE float warp_max(float v)
{
        for (int s = WARP / 2; s > 0; s /= 2) {
                float other = mfl_shfl_xor(v, s);
                v = other > v ? other : v;
        }
        return v;
}

/* This warp's vector of the group; warps without one leave as a whole. */
MFL_DEVICE int warp_vector(void)
{
        return (int)(blockIdx.x * VECTORS + threadIdx.x / WARP);
}

static cudaError_t launch_vectors(const void *const kernels[3], enum mfl_cuda_type type, int vectors,
        int groups, cudaStream_t stream, const void *a)
{
        return mfl_launch(kernels[type], (uint32_t)mfl_blocks(vectors, VECTORS), (uint32_t)groups, 1,
                MFL_OPS_THREADS, 0, stream, a);
}

static bool vectors_fit(int groups, int vectors, int width)
{
        return groups >= 1 && groups <= 65535 && vectors >= 1 && width >= 1 &&
               (int64_t)vectors * width < (int64_t)1 << 31;
}

#define KERNELS(name, args)                                                                                  \
        MFL_KERNEL(name##_f32, args)                                                                         \
        {                                                                                                    \
                name(&a, MFL_CUDA_F32);                                                                      \
        }                                                                                                    \
        MFL_KERNEL(name##_bf16, args)                                                                        \
        {                                                                                                    \
                name(&a, MFL_CUDA_BF16);                                                                     \
        }                                                                                                    \
        MFL_KERNEL(name##_f16, args)                                                                         \
        {                                                                                                    \
                name(&a, MFL_CUDA_F16);                                                                      \
        }                                                                                                    \
        static const void *const name##_kernels[3] = {                                                       \
                (const void *)(name##_f32), (const void *)(name##_bf16), (const void *)(name##_f16)};

/* ---- norms ---- */

MFL_DEVICE void rownorm_forward(const struct mfl_cuda_rownorm *a, enum mfl_cuda_type type)
{
        int v = warp_vector(), lane = (int)threadIdx.x % WARP, n = a->width;
        if (v >= a->vectors || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t vector = (int64_t)blockIdx.y * a->vectors + v, at = vector * n;
        const float *weight = a->weight + blockIdx.y * a->stride;
        const float *bias = a->bias ? a->bias + blockIdx.y * a->stride : NULL;
        float mean = 0.0f, square = 0.0f;
        for (int k = lane; a->centred && k < n; k += WARP)
                mean += mfl_load(a->in, at + k, type);
        mean = a->centred ? warp_sum(mean) / (float)n : 0.0f;
        for (int k = lane; k < n; k += WARP) {
                float d = mfl_load(a->in, at + k, type) - mean;
                square += d * d;
        }
        float inverse = 1.0f / sqrtf(warp_sum(square) / (float)n + a->eps);
        for (int k = lane; k < n; k += WARP) {
                float y = (mfl_load(a->in, at + k, type) - mean) * inverse * weight[k];
                mfl_store(a->out, at + k, bias ? y + bias[k] : y, type);
        }
        if (a->kept && lane == 0) {
                a->kept[2 * vector] = mean;
                a->kept[2 * vector + 1] = inverse;
        }
}
KERNELS(rownorm_forward, struct mfl_cuda_rownorm)

/* With h = (x - mean) / deviation and d = dy * weight: dx = (d - mean of d - h * mean of d h) / deviation;
 * RMS norm has no second term. */
MFL_DEVICE void rownorm_backward(const struct mfl_cuda_rownorm *a, enum mfl_cuda_type type)
{
        int v = warp_vector(), lane = (int)threadIdx.x % WARP, n = a->width;
        if (v >= a->vectors || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t vector = (int64_t)blockIdx.y * a->vectors + v, at = vector * n;
        const float *weight = a->weight + blockIdx.y * a->stride;
        float mean = a->kept[2 * vector], inverse = a->kept[2 * vector + 1], m1 = 0.0f, m2 = 0.0f;
        for (int k = lane; k < n; k += WARP) {
                float d = mfl_load(a->dout, at + k, type) * weight[k];
                m1 += d;
                m2 += d * ((mfl_load(a->in, at + k, type) - mean) * inverse);
        }
        m1 = warp_sum(m1) / (float)n;
        m2 = warp_sum(m2) / (float)n;
        m1 = a->centred ? m1 : 0.0f;
        for (int k = lane; k < n; k += WARP) {
                float d = mfl_load(a->dout, at + k, type) * weight[k];
                float h = (mfl_load(a->in, at + k, type) - mean) * inverse;
                float dx = inverse * (d - m1 - h * m2);
                mfl_store(a->din, at + k, a->add ? mfl_load(a->din, at + k, type) + dx : dx, type);
        }
}
KERNELS(rownorm_backward, struct mfl_cuda_rownorm)

struct rownorm_params {
        struct mfl_cuda_rownorm op;
        struct mfl_columns plan;
};

/* sum[0 .. width) += dy h, sum[width .. 2 width) += dy of one vector. */
MFL_DEVICE void rownorm_terms(const struct mfl_cuda_rownorm *a, float *sum, int64_t vector, int column,
        enum mfl_cuda_type type, int width)
{
        float x[MFL_PACK_MAX], d[MFL_PACK_MAX];
        float mean = a->kept[2 * vector], inverse = a->kept[2 * vector + 1];
        mfl_pack_load(x, a->in, vector * a->width + column, type, width);
        mfl_pack_load(d, a->dout, vector * a->width + column, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++) {
                sum[k] += d[k] * ((x[k] - mean) * inverse);
                sum[width + k] += d[k];
        }
}

MFL_DEVICE void rownorm_params(const struct rownorm_params *b, enum mfl_cuda_type type, int width)
{
        MFL_SHARED(float, part, 2 * MFL_PACK_MAX * MFL_OPS_THREADS);
        const struct mfl_columns *plan = &b->plan;
        if (mfl_cuda_rows(&b->op.steps, blockIdx.y) == 0)
                return;
        struct mfl_columns_place at = mfl_columns_place(plan, plan->rows);
        float sum[2 * MFL_PACK_MAX];
        for (int k = 0; k < 2 * width; k++)
                sum[k] = 0.0f;
        for (int64_t r = at.first + at.lane; at.lane >= 0 && r < at.end; r += plan->lanes)
                rownorm_terms(&b->op, sum, blockIdx.y * plan->rows + r, at.unit * width, type, width);
        mfl_columns_tree(part, sum, 2 * width, at.slot, at.lane, plan->tile, plan->lanes);
        if (at.lane != 0)
                return;
        float *to = (float *)b->op.workspace +
                    ((int64_t)blockIdx.y * plan->chunks + at.chunk) * 2 * b->op.width + at.unit * width;
        for (int k = 0; k < width; k++) {
                to[k] = part[k * MFL_OPS_THREADS + at.slot];
                to[b->op.width + k] = part[(width + k) * MFL_OPS_THREADS + at.slot];
        }
}
MFL_OPS_KERNELS(rownorm_params, struct rownorm_params, rownorm_params)

MFL_HOST uint64_t mfl_cuda_rownorm_workspace(int groups, int vectors, int width, enum mfl_cuda_type type)
{
        struct mfl_columns plan = mfl_columns_of(vectors, width, type);
        return (uint64_t)groups * (uint64_t)plan.chunks * 2 * (uint64_t)width * sizeof(float);
}

MFL_HOST cudaError_t mfl_cuda_rownorm_forward(const struct mfl_cuda_rownorm *a, cudaStream_t stream)
{
        if (!vectors_fit(a->groups, a->vectors, a->width))
                return cudaErrorInvalidValue;
        return launch_vectors(rownorm_forward_kernels, a->type, a->vectors, a->groups, stream, a);
}

static cudaError_t launch_params(const struct mfl_cuda_rownorm *a, cudaStream_t stream)
{
        struct rownorm_params b;
        b.op = *a;
        b.plan = mfl_columns_of(a->vectors, a->width, a->type);
        bool wide = b.plan.width > 1;
        if (wide && ((uintptr_t)a->in | (uintptr_t)a->dout) % 16)
                return cudaErrorMisalignedAddress;
        cudaError_t r =
                mfl_launch(rownorm_params_pick(a->type, wide), (uint32_t)(b.plan.tiles * b.plan.chunks),
                        (uint32_t)a->groups, 1, MFL_OPS_THREADS, 0, stream, &b);
        struct mfl_sum_chunks sum = {(const float *)a->workspace, {a->dweight, a->dbias}, NULL, a->stride,
                a->groups, b.plan.chunks, 2, a->width, a->steps};
        return r == cudaSuccess ? mfl_cuda_sum_chunks(&sum, stream) : r;
}

MFL_HOST cudaError_t mfl_cuda_rownorm_backward(const struct mfl_cuda_rownorm *a, cudaStream_t stream)
{
        if (!vectors_fit(a->groups, a->vectors, a->width))
                return cudaErrorInvalidValue;
        cudaError_t r = a->dweight ? launch_params(a, stream) : cudaSuccess;
        if (r != cudaSuccess || !a->din)
                return r;
        return launch_vectors(rownorm_backward_kernels, a->type, a->vectors, a->groups, stream, a);
}

/* ---- softmax ---- */

MFL_DEVICE int64_t softmax_at(const struct mfl_cuda_softmax *a, int v)
{
        return (int64_t)blockIdx.y * a->group_step + v / a->inner * a->outer_step + v % a->inner;
}

MFL_DEVICE void softmax_forward(const struct mfl_cuda_softmax *a, enum mfl_cuda_type type)
{
        int v = warp_vector(), lane = (int)threadIdx.x % WARP, n = a->width;
        if (v >= a->vectors || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t at = softmax_at(a, v);
        float max = mfl_load(a->in, at, type), sum = 0.0f;
        for (int k = lane; k < n; k += WARP) {
                float x = mfl_load(a->in, at + (int64_t)k * a->step, type);
                max = x > max ? x : max;
        }
        max = warp_max(max);
        for (int k = lane; k < n; k += WARP)
                sum += expf(mfl_load(a->in, at + (int64_t)k * a->step, type) - max);
        float inverse = 1.0f / warp_sum(sum);
        for (int k = lane; k < n; k += WARP) {
                int64_t e = at + (int64_t)k * a->step;
                mfl_store(a->out, e, expf(mfl_load(a->in, e, type) - max) * inverse, type);
        }
}
KERNELS(softmax_forward, struct mfl_cuda_softmax)

MFL_DEVICE void softmax_backward(const struct mfl_cuda_softmax *a, enum mfl_cuda_type type)
{
        int v = warp_vector(), lane = (int)threadIdx.x % WARP, n = a->width;
        if (v >= a->vectors || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        int64_t at = softmax_at(a, v);
        float sum = 0.0f;
        for (int k = lane; k < n; k += WARP) {
                int64_t e = at + (int64_t)k * a->step;
                sum += mfl_load(a->out, e, type) * mfl_load(a->dout, e, type);
        }
        sum = warp_sum(sum);
        for (int k = lane; k < n; k += WARP) {
                int64_t e = at + (int64_t)k * a->step;
                float dx = mfl_load(a->out, e, type) * (mfl_load(a->dout, e, type) - sum);
                mfl_store(a->din, e, a->add ? mfl_load(a->din, e, type) + dx : dx, type);
        }
}
KERNELS(softmax_backward, struct mfl_cuda_softmax)

MFL_HOST cudaError_t mfl_cuda_softmax_forward(const struct mfl_cuda_softmax *a, cudaStream_t stream)
{
        if (!vectors_fit(a->groups, a->vectors, a->width))
                return cudaErrorInvalidValue;
        return launch_vectors(softmax_forward_kernels, a->type, a->vectors, a->groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_softmax_backward(const struct mfl_cuda_softmax *a, cudaStream_t stream)
{
        if (!vectors_fit(a->groups, a->vectors, a->width))
                return cudaErrorInvalidValue;
        return launch_vectors(softmax_backward_kernels, a->type, a->vectors, a->groups, stream, a);
}
