/* SPDX-License-Identifier: Apache-2.0 */
/* Activations, joins and dropout. */
#include "kernels/cuda/ops/ops_common.h"

/* ---- y = act(x + x2): the group's elements as one row of packs ---- */

MFL_DEVICE void elementwise_forward(const struct mfl_cuda_elementwise *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = mfl_ops_elements(&a->x);
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        i += blockIdx.y * n;
        float v[MFL_PACK_MAX], v2[MFL_PACK_MAX];
        mfl_pack_load(v, a->in, i, type, width);
        if (a->in2) {
                mfl_pack_load(v2, a->in2, i, type, width);
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] += v2[k];
        }
        mfl_pack_act(a->act, v, width);
        mfl_pack_store(a->out, i, v, type, width);
}
MFL_OPS_KERNELS(elementwise_forward, struct mfl_cuda_elementwise, elementwise_forward)

MFL_DEVICE void elementwise_backward(const struct mfl_cuda_elementwise *a, enum mfl_cuda_type type, int width)
{
        int64_t i = MFL_GLOBAL_INDEX * width, n = mfl_ops_elements(&a->x);
        if (i >= n || mfl_cuda_rows(&a->steps, blockIdx.y) == 0)
                return;
        i += blockIdx.y * n;
        float dy[MFL_PACK_MAX], y[MFL_PACK_MAX];
        mfl_pack_load(dy, a->dout, i, type, width);
        if (a->act != MFL_CUDA_ACT_NONE) {
                mfl_pack_load(y, a->out, i, type, width);
                mfl_pack_act_grad(a->act, y, dy, width);
        }
        mfl_pack_give(a->din, a->add, dy, i, type, width);
        mfl_pack_give(a->din2, a->add2, dy, i, type, width);
}
MFL_OPS_KERNELS(elementwise_backward, struct mfl_cuda_elementwise, elementwise_backward)

static bool elementwise_wide(const struct mfl_cuda_elementwise *a)
{
        return mfl_ops_wide(&a->x, mfl_ops_elements(&a->x),
                (uintptr_t)a->in | (uintptr_t)a->in2 | (uintptr_t)a->out | (uintptr_t)a->dout |
                        (uintptr_t)a->din | (uintptr_t)a->din2);
}

MFL_HOST cudaError_t mfl_cuda_elementwise_forward(const struct mfl_cuda_elementwise *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        if (!a->in2 && a->act == MFL_CUDA_ACT_NONE && a->in == a->out)
                return cudaSuccess;
        bool wide = elementwise_wide(a);
        return mfl_ops_launch_flat(elementwise_forward_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_elementwise_backward(const struct mfl_cuda_elementwise *a, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        bool wide = elementwise_wide(a);
        return mfl_ops_launch_flat(elementwise_backward_pick(a->x.type, wide),
                mfl_ops_elements(&a->x) / (wide ? mfl_pack_width(a->x.type) : 1), a->x.groups, stream, a);
}

/* ---- dropout ----
 *
 * One Philox block makes the factors of four elements that follow each other in NCHW order. So a thread
 * handles four pixels of one channel, and its neighbours the next channels: each thread needs one block (two
 * where the pixels of a plane are no multiple of four), and the loads of a warp are adjacent. Where a tensor
 * has one pixel or one channel, both orders are the same, and the group's elements count as the pixels of one
 * plane. */
#define QUAD 4

struct dropout {
        struct mfl_cuda_dropout op;
        bool backward;
        uint32_t planes, plane, quads; /* channels and pixels as the kernel sees them; quads of a plane */
        uint32_t n;                    /* threads of a group that have work */
};

/* The four factors of elements [e, e + 4); only the first `valid` exist. */
MFL_DEVICE void dropout_factors(struct mfl_rng_key key, uint64_t e, int valid, float rate, float *factor)
{
        struct mfl_philox block = mfl_rng_block(key, e / 4);
        MFL_UNROLL
        for (int k = 0; k < QUAD; k++) {
                uint32_t lane = (uint32_t)(e + (uint64_t)k) % 4;
                if (k > 0 && lane == 0 && k < valid)
                        block = mfl_rng_block(key, (e + (uint64_t)k) / 4);
                uint32_t u = lane == 0   ? block.v[0]
                             : lane == 1 ? block.v[1]
                             : lane == 2 ? block.v[2]
                                         : block.v[3];
                factor[k] = mfl_dropout_factor(u, rate);
        }
}

MFL_DEVICE void dropout_one(
        const struct mfl_cuda_dropout *a, bool backward, int64_t at, float factor, enum mfl_cuda_type type)
{
        if (!backward) {
                mfl_store(a->out, at, mfl_load(a->in, at, type) * factor, type);
                return;
        }
        float v = mfl_load(a->dout, at, type) * factor;
        if (a->add)
                v = mfl_load(a->din, at, type) + v;
        if (a->act != MFL_CUDA_ACT_NONE)
                v = mfl_act_grad(a->act, mfl_load(a->act_y, at, type), v);
        mfl_store(a->din, at, v, type);
}

/* Both as one kernel; `type` and `backward` are constants. */
MFL_DEVICE void dropout(const struct dropout *d, enum mfl_cuda_type type)
{
        MFL_SHARED(struct mfl_rng_key, key, 1);
        const struct mfl_cuda_dropout *a = &d->op;
        uint32_t g = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
        if (mfl_cuda_rows(&a->steps, g) == 0)
                return;
        if (threadIdx.x == 0 && a->training)
                key[0] = mfl_rng_dropout_key(
                        a->steps.dropout[g], mfl_cuda_step_number(&a->steps, g), a->layer);
        MFL_SYNC();
        if (i >= d->n)
                return;
        uint32_t channel = i % d->planes, quad = i / d->planes % d->quads, row = i / d->planes / d->quads;
        uint32_t pixel = quad * QUAD, left = d->plane - pixel;
        float factor[QUAD] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (a->training)
                dropout_factors(key[0],
                        (uint64_t)mfl_cuda_part(&a->steps) * (uint64_t)mfl_ops_elements(&a->x) +
                                ((uint64_t)row * d->planes + channel) * d->plane + pixel,
                        left < QUAD ? (int)left : QUAD, a->rate, factor);
        int64_t at = (int64_t)g * mfl_ops_elements(&a->x) + ((int64_t)row * d->plane + pixel) * d->planes +
                     channel;
        MFL_UNROLL
        for (uint32_t k = 0; k < QUAD; k++)
                if (k < left)
                        dropout_one(a, d->backward, at + (int64_t)k * d->planes, factor[k], type);
}

MFL_KERNEL(dropout_f32, struct dropout)
{
        dropout(&a, MFL_CUDA_F32);
}
MFL_KERNEL(dropout_bf16, struct dropout)
{
        dropout(&a, MFL_CUDA_BF16);
}
MFL_KERNEL(dropout_f16, struct dropout)
{
        dropout(&a, MFL_CUDA_F16);
}

static cudaError_t launch_dropout(const struct mfl_cuda_dropout *a, bool backward, cudaStream_t stream)
{
        if (!mfl_ops_fits(&a->x))
                return cudaErrorInvalidValue;
        struct dropout d;
        int64_t pixels = mfl_ops_pixels(&a->x);
        bool flat = pixels == 1 || a->x.c == 1;
        d.op = *a;
        d.backward = backward;
        d.planes = flat ? 1u : (uint32_t)a->x.c;
        d.plane = (uint32_t)(flat ? mfl_ops_elements(&a->x) : pixels);
        d.quads = (d.plane + QUAD - 1) / QUAD;
        d.n = d.planes * d.quads * (flat ? 1u : (uint32_t)a->x.batch);
        const void *kernel = a->x.type == MFL_CUDA_F32    ? (const void *)(dropout_f32)
                             : a->x.type == MFL_CUDA_BF16 ? (const void *)(dropout_bf16)
                                                          : (const void *)(dropout_f16);
        return mfl_ops_launch_flat(kernel, d.n, a->x.groups, stream, &d);
}

MFL_HOST cudaError_t mfl_cuda_dropout_forward(const struct mfl_cuda_dropout *a, cudaStream_t stream)
{
        if (!a->training && a->in == a->out)
                return cudaSuccess;
        return launch_dropout(a, false, stream);
}

MFL_HOST cudaError_t mfl_cuda_dropout_backward(const struct mfl_cuda_dropout *a, cudaStream_t stream)
{
        return launch_dropout(a, true, stream);
}
