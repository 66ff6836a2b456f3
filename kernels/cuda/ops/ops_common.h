/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ops.h share: packs of 16 bytes, and one kernel for each element type and width.
 *
 * A thread handles a pack: as many elements as 16 bytes hold, where the innermost size and the addresses
 * allow it, else one element. Neither changes a result: sums are ordered by element, not by pack.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_COMMON_H
#define MFL_KERNELS_CUDA_OPS_OPS_COMMON_H

#include "kernels/cuda/ops/ops.h"

/* Where gcc does not inline a body, it cannot see that loads and uses of a pack have one width. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define MFL_PACK_MAX 8 /* elements of the widest pack */
#define MFL_OPS_THREADS 256

static inline MFL_HD int mfl_pack_width(enum mfl_cuda_type type)
{
        return 16 / mfl_cuda_type_bytes(type);
}

/* Elements [at, at + width) of p as floats; width is 1 or mfl_pack_width(type), both constants. */
MFL_DEVICE void mfl_pack_load(float *v, const void *p, int64_t at, enum mfl_cuda_type type, int width)
{
        if (width == 1) {
                v[0] = mfl_load(p, at, type);
                return;
        }
        uint4 q;
        mfl_copy_16(&q, (const char *)p + at * mfl_cuda_type_bytes(type));
        uint32_t word[4] = {q.x, q.y, q.z, q.w};
        MFL_UNROLL
        for (int k = 0; k < 4; k++) {
                if (type == MFL_CUDA_F32) {
                        v[k] = mfl_bits_to_float(word[k]);
                } else if (type == MFL_CUDA_BF16) {
                        v[2 * k] = mfl_bits_to_float(word[k] << 16);
                        v[2 * k + 1] = mfl_bits_to_float(word[k] & 0xffff0000u);
                } else {
                        v[2 * k] = mfl_f16_to_float((uint16_t)word[k]);
                        v[2 * k + 1] = mfl_f16_to_float((uint16_t)(word[k] >> 16));
                }
        }
}

MFL_DEVICE uint32_t mfl_pack_pair(float low, float high, enum mfl_cuda_type type)
{
        return type == MFL_CUDA_BF16 ? mfl_float_to_bf16(low) | (uint32_t)mfl_float_to_bf16(high) << 16
                                     : mfl_float_to_f16(low) | (uint32_t)mfl_float_to_f16(high) << 16;
}

MFL_DEVICE void mfl_pack_store(void *p, int64_t at, const float *v, enum mfl_cuda_type type, int width)
{
        if (width == 1) {
                mfl_store(p, at, v[0], type);
                return;
        }
        uint32_t word[4];
        MFL_UNROLL
        for (int k = 0; k < 4; k++)
                word[k] = type == MFL_CUDA_F32 ? mfl_float_to_bits(v[k])
                                               : mfl_pack_pair(v[2 * k], v[2 * k + 1], type);
        uint4 q;
        q.x = word[0];
        q.y = word[1];
        q.z = word[2];
        q.w = word[3];
        mfl_copy_16((char *)p + at * mfl_cuda_type_bytes(type), &q);
}

/* v = act(v), and dy = act_grad(y, dy). One branch for each pack, not for each of its elements. */
MFL_DEVICE void mfl_pack_act(enum mfl_cuda_act act, float *v, int width)
{
        if (act == MFL_CUDA_ACT_NONE)
                return;
        if (act == MFL_CUDA_ACT_RELU) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] = mfl_act(MFL_CUDA_ACT_RELU, v[k]);
        } else if (act == MFL_CUDA_ACT_TANH) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] = mfl_act(MFL_CUDA_ACT_TANH, v[k]);
        } else {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] = mfl_act(MFL_CUDA_ACT_SIGMOID, v[k]);
        }
}
MFL_DEVICE void mfl_pack_act_grad(enum mfl_cuda_act act, const float *y, float *dy, int width)
{
        if (act == MFL_CUDA_ACT_NONE)
                return;
        if (act == MFL_CUDA_ACT_RELU) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        dy[k] = mfl_act_grad(MFL_CUDA_ACT_RELU, y[k], dy[k]);
        } else if (act == MFL_CUDA_ACT_TANH) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        dy[k] = mfl_act_grad(MFL_CUDA_ACT_TANH, y[k], dy[k]);
        } else {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        dy[k] = mfl_act_grad(MFL_CUDA_ACT_SIGMOID, y[k], dy[k]);
        }
}

/* to = v, or to + v; NULL: not wanted. */
MFL_DEVICE void mfl_pack_give(
        void *to, bool add, const float *v, int64_t i, enum mfl_cuda_type type, int width)
{
        if (!to)
                return;
        float sum[MFL_PACK_MAX];
        if (add)
                mfl_pack_load(sum, to, i, type, width);
        MFL_UNROLL
        for (int k = 0; k < width; k++)
                sum[k] = add ? sum[k] + v[k] : v[k];
        mfl_pack_store(to, i, sum, type, width);
}

/* sum += the packs at `at`, at + step, ..., n of them, one after another; all are requested before it waits
 * for the first. n is a constant, 1 or MFL_ROWS. */
#define MFL_ROWS 4
MFL_DEVICE void mfl_pack_sum(
        float *sum, const void *p, int64_t at, int64_t step, int n, enum mfl_cuda_type type, int width)
{
        float v[MFL_ROWS][MFL_PACK_MAX];
        MFL_UNROLL
        for (int j = 0; j < n; j++)
                mfl_pack_load(v[j], p, at + j * step, type, width);
        MFL_UNROLL
        for (int j = 0; j < n; j++) {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        sum[k] += v[j][k];
        }
}

/* `width` floats of a vector of params; their place in the flat vector may have any alignment. */
MFL_DEVICE void mfl_floats_load(float *v, const float *p, int width)
{
        if (width % 4 == 0 && (uintptr_t)p % 16 == 0) {
                MFL_UNROLL
                for (int k = 0; k < width; k += 4)
                        mfl_pack_load(v + k, p, k, MFL_CUDA_F32, 4);
        } else {
                MFL_UNROLL
                for (int k = 0; k < width; k++)
                        v[k] = p[k];
        }
}

/* Kernels of one body, called as body(const struct args *a, enum mfl_cuda_type type, int width), and
 * name_pick(type, wide), which returns the one to launch. */
#define MFL_OPS_KERNELS(name, args, body)                                                                    \
        MFL_KERNEL(name##_f32, args)                                                                         \
        {                                                                                                    \
                body(&a, MFL_CUDA_F32, 4);                                                                   \
        }                                                                                                    \
        MFL_KERNEL(name##_bf16, args)                                                                        \
        {                                                                                                    \
                body(&a, MFL_CUDA_BF16, 8);                                                                  \
        }                                                                                                    \
        MFL_KERNEL(name##_f16, args)                                                                         \
        {                                                                                                    \
                body(&a, MFL_CUDA_F16, 8);                                                                   \
        }                                                                                                    \
        MFL_KERNEL(name##_f32_single, args)                                                                  \
        {                                                                                                    \
                body(&a, MFL_CUDA_F32, 1);                                                                   \
        }                                                                                                    \
        MFL_KERNEL(name##_bf16_single, args)                                                                 \
        {                                                                                                    \
                body(&a, MFL_CUDA_BF16, 1);                                                                  \
        }                                                                                                    \
        MFL_KERNEL(name##_f16_single, args)                                                                  \
        {                                                                                                    \
                body(&a, MFL_CUDA_F16, 1);                                                                   \
        }                                                                                                    \
        static const void *name##_pick(enum mfl_cuda_type type, bool wide)                                   \
        {                                                                                                    \
                const void *kernels[2][3] = {                                                                \
                        {(const void *)(name##_f32_single), (const void *)(name##_bf16_single),              \
                                (const void *)(name##_f16_single)},                                          \
                        {(const void *)(name##_f32), (const void *)(name##_bf16),                            \
                                (const void *)(name##_f16)}};                                                \
                return kernels[wide][type];                                                                  \
        }

/* ---- host ---- */

/* Of one group. */
static inline MFL_HD int64_t mfl_ops_pixels(const struct mfl_cuda_tensor *x)
{
        return (int64_t)x->h * x->w;
}
static inline MFL_HD int64_t mfl_ops_elements(const struct mfl_cuda_tensor *x)
{
        return (int64_t)x->batch * x->h * x->w * x->c;
}

/* Kernels count a group's elements in 32 bits and have the groups in the grid's y dimension. */
static inline bool mfl_ops_fits(const struct mfl_cuda_tensor *x)
{
        return x->groups >= 1 && x->groups <= 65535 && mfl_ops_elements(x) >= 1 &&
               mfl_ops_elements(x) < (int64_t)1 << 31;
}

/* Whether packs of 16 bytes can be used: `inner` elements are adjacent, and `bits`, the addresses or-ed
 * together, are aligned. */
static inline bool mfl_ops_wide(const struct mfl_cuda_tensor *x, int64_t inner, uintptr_t bits)
{
        return inner % mfl_pack_width(x->type) == 0 && bits % 16 == 0;
}

/* A launch over `n` packs (elements where not wide) of each of `groups`. */
static inline cudaError_t mfl_ops_launch_flat(
        const void *kernel, int64_t n, int groups, cudaStream_t stream, const void *a)
{
        return mfl_launch(kernel, (uint32_t)mfl_blocks(n, MFL_OPS_THREADS), (uint32_t)groups, 1,
                MFL_OPS_THREADS, 0, stream, a);
}

#endif
