/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many small matrices of any strides on tensor cores. A block of four warps computes a tile of
 * one of them, MFL_MATMUL_STEP columns and rows at a time in two stages of shared memory.
 *
 * Bits: each element starts at +0 and takes k-steps in ascending order (m16n8k8 of tf32, m16n8k16 of the
 * others), zeros up to a multiple of 32; then alpha, add, one rounding. conv_mma.h says what is assumed of
 * mma.sync, mma.h where tf32 is rounded. So tiles and methods of copying change nothing.
 *
 * An operand that is contiguous along k is copied as it is ("deep"), and so is one that is contiguous along
 * its other index ("flat"). One that is contiguous along neither is copied element by element into a deep
 * tile. Copies take 16 bytes where all addresses allow it. */
#include "kernels/cuda/base/mma.h"
#include "kernels/cuda/ops/ops_matmul.h"

#define STEP 32

struct matmul_shape {
        enum mfl_precision precision;
        int tile; /* of the block; each warp computes a quarter, half x half */
};
static inline MFL_HD int bytes_of(struct matmul_shape s)
{
        return mfl_cuda_type_bytes(mfl_cuda_type_of(s.precision));
}
static inline MFL_HD int deep_pitch(struct matmul_shape s)
{
        return STEP + 16 / bytes_of(s);
}
static inline MFL_HD int flat_pitch(struct matmul_shape s)
{
        return s.tile + 8;
}
/* Of either layout. */
static inline MFL_HD int tile_bytes(struct matmul_shape s)
{
        int deep = s.tile * deep_pitch(s), flat = STEP * flat_pitch(s);
        return (deep > flat ? deep : flat) * bytes_of(s);
}

/* How an operand is copied: the same in the whole grid. */
struct copying {
        bool deep, wide;
};
MFL_DEVICE struct copying copying_of(struct matmul_shape s, const struct mfl_cuda_matmul *v, bool is_a)
{
        const struct mfl_cuda_matrix *x = is_a ? &v->a : &v->b;
        int64_t other = is_a ? x->row : x->column, step = is_a ? x->column : x->row, each = 16 / bytes_of(s);
        bool along = step == 1;
        struct copying c;
        c.deep = along || other != 1;
        int64_t apart = c.deep ? other : step;
        c.wide = (along || other == 1) && (x->group | x->outer | x->inner | apart) % each == 0 &&
                 (uintptr_t)x->p % 16 == 0;
        return c;
}

/* All threads, 16 bytes or one element at a time. */
MFL_DEVICE void fill_by(struct matmul_shape s, const struct matmul_operand *o, struct copying c, int k0,
        unsigned char *to, bool wide)
{
        const int bytes = bytes_of(s), each = wide ? 16 / bytes : 1;
        int columns = c.deep ? STEP : s.tile, pitch = c.deep ? deep_pitch(s) : flat_pitch(s);
        int per_line = columns / each;
        for (int t = (int)threadIdx.x; t < STEP * s.tile / each; t += (int)blockDim.x) {
                int line = t / per_line, column = t % per_line * each;
                int other = c.deep ? line : column, k = k0 + (c.deep ? column : line);
                int left = c.deep ? o->end - k : o->end_other - o->first_other - other;
                bool there = matmul_inside(o, other, k);
                const unsigned char *from =
                        (const unsigned char *)o->x->p + (there ? matmul_at(o, other, k) : 0) * bytes;
                unsigned char *put = to + (line * pitch + column) * bytes;
                if (wide)
                        mfl_cp_async_16(put, from, !there ? 0 : left < each ? left * bytes : 16);
                else if (bytes == 4)
                        mfl_cp_async_4(put, from, there ? 4 : 0);
                else
                        *(uint16_t *)put = there ? *(const uint16_t *)from : 0;
        }
}

MFL_DEVICE void fill(
        struct matmul_shape s, const struct matmul_operand *o, struct copying c, int k0, unsigned char *to)
{
        if (c.wide)
                fill_by(s, o, c, k0, to, true);
        else
                fill_by(s, o, c, k0, to, false);
}

struct sums {
        float of[2][4][4];
};

MFL_DEVICE void multiply_stage(struct matmul_shape s, struct copying ca, struct copying cb,
        const unsigned char *a, const unsigned char *b, struct sums *sums)
{
        const int bytes = bytes_of(s), half = s.tile / 2;
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int m = warp / 2 * half, n = warp % 2 * half;
        MFL_UNROLL
        for (int k = 0; k < STEP; k += bytes == 4 ? 8 : 16) {
                uint32_t fa[2][4], fb[2][4];
                MFL_UNROLL
                for (int i = 0; i < half / 16; i++) {
                        if (ca.deep)
                                mma_fragment_a(bytes, true, deep_pitch(s), a, m + i * 16, k, lane, fa[i]);
                        else
                                mma_fragment_a(bytes, false, flat_pitch(s), a, m + i * 16, k, lane, fa[i]);
                        if (cb.deep)
                                mma_fragment_b(bytes, true, deep_pitch(s), b, n + i * 16, k, lane, fb[i]);
                        else
                                mma_fragment_b(bytes, false, flat_pitch(s), b, n + i * 16, k, lane, fb[i]);
                }
                MFL_UNROLL
                for (int i = 0; i < half / 16; i++)
                        MFL_UNROLL
                for (int j = 0; j < half / 8; j++)
                        mma_product(s.precision, sums->of[i][j], fa[i], fb[j / 2] + j % 2 * 2);
        }
}

MFL_DEVICE void give_sums(struct matmul_shape s, const struct mfl_cuda_matmul *v,
        const struct matmul_place *at, const struct sums *sums)
{
        const int half = s.tile / 2;
        int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
        int m = warp / 2 * half + lane / 4, n = warp % 2 * half + lane % 4 * 2;
        MFL_UNROLL
        for (int i = 0; i < half / 16; i++)
                MFL_UNROLL
        for (int j = 0; j < half / 8; j++)
                MFL_UNROLL
        for (int e = 0; e < 4; e++)
                matmul_give(v, at, m + i * 16 + e / 2 * 8, n + j * 8 + e % 2, sums->of[i][j][e]);
}

MFL_DEVICE void matmul_mma_block(
        const struct mfl_cuda_matmul *v, struct matmul_shape s, unsigned char *shared)
{
        struct matmul_place at = matmul_place_of(v, s.tile, s.tile);
        struct matmul_operand a = matmul_operand_of(v, &at, true), b = matmul_operand_of(v, &at, false);
        struct copying ca = copying_of(s, v, true), cb = copying_of(s, v, false);
        struct sums sums = {{{{0.0f}}}};
        unsigned char *now = shared, *next = shared + 2 * tile_bytes(s);
        fill(s, &a, ca, 0, now);
        fill(s, &b, cb, 0, now + tile_bytes(s));
        mfl_cp_async_commit();
        for (int k = 0; k < v->k; k += STEP) {
                mfl_cp_async_wait(0);
                MFL_SYNC(); /* this stage is ready; nobody reads the other one any longer */
                if (k + STEP < v->k) {
                        fill(s, &a, ca, k + STEP, next);
                        fill(s, &b, cb, k + STEP, next + tile_bytes(s));
                }
                mfl_cp_async_commit();
                multiply_stage(s, ca, cb, now, now + tile_bytes(s), &sums);
                unsigned char *was = now;
                now = next;
                next = was;
        }
        give_sums(s, v, &at, &sums);
}

#define THREADS 128
#define MATMUL_KERNEL(name, precision, tile)                                                                 \
        MFL_KERNEL_BOUNDS(matmul_##name##_##tile, struct mfl_cuda_matmul, THREADS, 3)                        \
        {                                                                                                    \
                MFL_SHARED_DYNAMIC(shared);                                                                  \
                const struct matmul_shape s = {precision, tile};                                             \
                if (mfl_cuda_rows(&a.steps, blockIdx.y) > 0)                                                 \
                        matmul_mma_block(&a, s, shared);                                                     \
        }
MATMUL_KERNEL(tf32, MFL_PRECISION_TF32, 64)
MATMUL_KERNEL(tf32, MFL_PRECISION_TF32, 32)
MATMUL_KERNEL(bf16, MFL_PRECISION_BF16, 64)
MATMUL_KERNEL(bf16, MFL_PRECISION_BF16, 32)
MATMUL_KERNEL(f16, MFL_PRECISION_FP16, 64)
MATMUL_KERNEL(f16, MFL_PRECISION_FP16, 32)

MFL_HOST cudaError_t mfl_cuda_matmul_mma(
        const struct mfl_cuda_matmul *a, int tile, uint32_t blocks, cudaStream_t stream)
{
        const void *const kernels[3][2] = {{(const void *)(matmul_tf32_32), (const void *)(matmul_tf32_64)},
                {(const void *)(matmul_bf16_32), (const void *)(matmul_bf16_64)},
                {(const void *)(matmul_f16_32), (const void *)(matmul_f16_64)}};
        const struct matmul_shape s = {a->precision, tile};
        return mfl_launch(kernels[a->precision - MFL_PRECISION_TF32][tile == 64], blocks, (uint32_t)a->groups,
                1, THREADS, (size_t)(4 * tile_bytes(s)), stream, a);
}
