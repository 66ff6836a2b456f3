/* SPDX-License-Identifier: Apache-2.0 */
/* One warp's products on tensor cores, for convolutions, matrix products and attention alike: how a fragment
 * is read from a tile in shared memory. Operands of tf32 are rounded as they are read, right before the
 * product.
 *
 * A tile is "deep" ([row][k], read by ldmatrix) or "flat" ([k][row], read by transposing ldmatrix, or word by
 * word where elements have 4 bytes); its lines lie `pitch` elements apart, a multiple of 16 bytes. A k-step
 * is 8 of tf32 and 16 of the others. Every argument except tile, m, n, k and lane is a constant where speed
 * matters.
 */
#ifndef MFL_KERNELS_CUDA_BASE_MMA_H
#define MFL_KERNELS_CUDA_BASE_MMA_H

#include "kernels/cuda/base/kernel.h"

#ifdef __CUDACC__
#define MMA_ROLLED _Pragma("unroll 1")
#else
#define MMA_ROLLED
#endif

MFL_DEVICE uint32_t mma_round_tf32(uint32_t bits)
{
        return mfl_to_tf32(mfl_bits_to_float(bits));
}

/* 16 rows from `m` on, one k-step from `k` on. */
MFL_DEVICE void mma_fragment_a(
        int bytes, bool deep, int pitch, const unsigned char *tile, int m, int k, int lane, uint32_t f[4])
{
        if (deep)
                mfl_ldmatrix_x4(f, tile + ((m + lane % 16) * pitch + k) * bytes + lane / 16 * 16);
        else if (bytes == 2)
                mfl_ldmatrix_x4_trans(
                        f, tile + ((k + lane % 8 + lane / 16 * 8) * pitch + m + lane / 8 % 2 * 8) * 2);
        else
                for (int i = 0; i < 4; i++)
                        f[i] = ((const uint32_t *)
                                        tile)[(k + lane % 4 + i / 2 * 4) * pitch + m + lane / 4 + i % 2 * 8];
        MFL_UNROLL
        for (int i = 0; i < 4 && bytes == 4; i++)
                f[i] = mma_round_tf32(f[i]);
}

/* 16 columns from `n` on: two fragments. */
MFL_DEVICE void mma_fragment_b(
        int bytes, bool deep, int pitch, const unsigned char *tile, int n, int k, int lane, uint32_t f[4])
{
        if (deep)
                mfl_ldmatrix_x4(
                        f, tile + ((n + lane % 8 + lane / 16 * 8) * pitch + k) * bytes + lane / 8 % 2 * 16);
        else if (bytes == 2)
                mfl_ldmatrix_x4_trans(f, tile + ((k + lane % 16) * pitch + n + lane / 16 * 8) * 2);
        else
                for (int i = 0; i < 4; i++)
                        f[i] = ((const uint32_t *)
                                        tile)[(k + lane % 4 + i % 2 * 4) * pitch + n + lane / 4 + i / 2 * 8];
        MFL_UNROLL
        for (int i = 0; i < 4 && bytes == 4; i++)
                f[i] = mma_round_tf32(f[i]);
}

/* d[16x8] += a * b: d[0], d[1] are in row lane / 4, d[2], d[3] in the row 8 below; columns lane % 4 * 2 and
 * the next. */
MFL_DEVICE void mma_product(
        enum mfl_precision precision, float d[4], const uint32_t a[4], const uint32_t b[2])
{
        if (precision == MFL_PRECISION_TF32)
                mfl_mma_tf32(d, a, b);
        else if (precision == MFL_PRECISION_BF16)
                mfl_mma_bf16(d, a, b);
        else
                mfl_mma_f16(d, a, b);
}

#endif
