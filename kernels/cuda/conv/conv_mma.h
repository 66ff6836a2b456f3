/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the tensor-core family of conv.h: what its host side (conv_mma.cu), its kernels (conv_mma_tf32.cu,
 * conv_mma_bf16.cu, conv_mma_f16.cu) and their bodies (conv_mma_load.h, conv_mma_tile.h) share.
 *
 * Every pass is one product per group, out[m][n] = sum over kk of a[m][kk] * b[kk][n]:
 *
 *     pass              m                 n        kk (the reduction)          a           b
 *     forward           row, oh, ow       k        r, s, c                     x gathered  w
 *     backward data     row, h, w         c        r, s, k                     dy gathered w
 *     backward weights  k                 r, s, c  row, oh, ow                 dy          x gathered
 *
 * The bit contract, for every tile size, every G and every launch:
 * - The reduction index is flat (taps are not padded one by one, so c = 1 or 3 costs no more than its
 *   products), padded with zeros at its end to a multiple of MFL_MMA_BK. It is cut into segments (mma_segment
 *   in conv_mma.cu; a multiple of MFL_MMA_BK that depends on the shape alone).
 * - In a segment, each output's accumulator starts at +0 and takes k-steps in ascending order, one mma.sync
 *   each: m16n8k8 for tf32, m16n8k16 for bf16 and fp16. The segments' sums are added as floats in ascending
 *   order, starting from the first.
 * - db: in a segment four float sums, one for each kk mod 4, in ascending order, then (s0 + s1) + (s2 + s3);
 *   segments as above.
 * - Then the epilogue, in float, and one rounding to the tensors' type.
 * ASSUMED: what mma.sync adds to an output depends only on that output's row of a, column of b and
 * accumulator, not on the place in the fragment. PTX does not promise it; the conformance program verifies on
 * a device that all variants are equal bit for bit.
 *
 * tf32: tensors are float. Operands lie unrounded in shared memory; mfl_to_tf32 rounds them when a fragment
 * is loaded, right before the product. db sums the unrounded dy.
 *
 * A block computes a bm x bn tile of one group, either over all segments (`whole`) or over one segment
 * (`split`). Split sums go to the workspace [G][segments][m][n] (after them [G][segments][k] of db), and a
 * second launch adds them in order. Three stages of cp.async; 16-byte copies where all addresses allow it,
 * else 4 bytes, and 2 bytes (not asynchronous) for odd channels of 16-bit types.
 *
 * Roofline, COMPUTED from published peaks, NOT MEASURED. One client of pfl-cnn, batch 10, a multiply-add as
 * 2: conv1 (m 9000, n 32, kk 27) 15.6 MFLOP per pass, two passes; conv2 (m 7840, n 64, kk 288) 289 MFLOP per
 * pass, three; dense 12544 -> 128 32.1 MFLOP per pass, three; 994 MFLOP per step in all.
 *
 * An H200's published peak is 989 TFLOP/s in bf16 and half of that in tf32, by wgmma; mma.sync reaches less.
 * At half of the peak a client's step takes 2 us (bf16) or 4 us (tf32). Memory is the other bound: the dense
 * layer's 1.6 M weights are read by forward and backward data and written as gradients, 19 MB per step in
 * tf32, 4 us at 4.8 TB/s; conv2's tensors (288,000 and 501,760 elements, 3.2 MB) move about three times, 2
 * us. So both limits are close, and the floor of fused training is about 4 to 8 us per step and client. One
 * client alone is far from it: conv2 has 62 tiles of 128x64 for 132 multiprocessors, and every launch costs
 * as much as the work.
 *
 * A k-tile of 128x64 moves 24 KiB (tf32) or 12 KiB (bf16) from L2 for 0.52 MFLOP: 21 or 43 FLOP per byte.
 * Shared memory takes it in and gives it out again, 64 or 32 KiB to warps of 32x32, at 128 bytes per clock:
 * 704 or 352 clocks, where the tensor cores' full rate (4096 FLOP per clock and multiprocessor in bf16, half
 * of it in tf32) would need 256 or 128. Warps of 64x32 read 48 or 24 KiB: 576 or 288 clocks. So on an H200
 * shared memory limits these kernels before the tensor cores do; tiles of larger warps are the first thing to
 * try.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_MMA_H
#define MFL_KERNELS_CUDA_CONV_CONV_MMA_H

#include "kernels/cuda/conv/conv.h"

enum {
        MFL_MMA_BK = 32, /* of the reduction, in one stage of shared memory */
        MFL_MMA_STAGES = 3,
};

/* A divisor for numbers below 2^31 whose quotients take one multiplication (Granlund and Montgomery 1994). */
struct mfl_mma_div {
        uint32_t d, mul, shift;
};
static inline MFL_HD uint32_t mfl_mma_quotient(struct mfl_mma_div by, uint32_t n)
{
        return by.d == 1 ? n : (uint32_t)((uint64_t)n * by.mul >> 32) >> by.shift;
}

/* How the gathered operand is read: element (position, tap) with position = (row, i, j) of the image that the
 * kernel slides over and tap = (r, s, channel). It lies at (i * mul + add + r * step) of the gathered
 * tensor's h; likewise j for w. With `strided` (backward data) only multiples of the stride exist, and are
 * divided by it. */
struct mfl_mma_gather {
        struct mfl_mma_div image, line;       /* positions of an image, of a line of it */
        struct mfl_mma_div channels, columns; /* c of the gathered tensor, s */
        struct mfl_mma_div stride_i, stride_j;
        int positions, taps; /* rows and columns of the gathered matrix */
        int mul_i, mul_j, add_i, add_j, step_i, step_j;
        int h, w, c;
        bool strided;
};

struct mfl_mma_args {
        const void *a, *b; /* of group 0, as in the table above */
        void *out;
        float *db;
        const float *bias;
        const void *act_y;
        float *workspace;    /* NULL: `out` is written; else a block writes the sums of one segment */
        float *workspace_db; /* the part for db */
        uint64_t a_stride, b_stride, out_stride, p_stride; /* elements from a group to the next */
        int m, n, kk, segment, segments;
        int row_weights; /* r * s * c: elements of w from one output channel to the next */
        int c;
        struct mfl_mma_div channels_out; /* backward data: k */
        struct mfl_mma_gather gather;
        int a_width, b_width; /* bytes of one copy from global memory: 16, 4 or 2 */
        bool wide;            /* the epilogue handles 4 outputs at once; act is none or ReLU */
        bool add;
        enum mfl_cuda_act act;
        enum mfl_cuda_pass pass;
        enum mfl_cuda_type type;
        struct mfl_cuda_steps steps;
};

/* A kernel of one precision, pass and tile. */
struct mfl_mma_kernel {
        const void *function;
        int bm, bn, threads;
        int shared_bytes;
        const char *name[2]; /* whole, split */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Kernel number `tile` of a pass; false: there are no more. */
bool mfl_cuda_mma_kernel_tf32(enum mfl_cuda_pass pass, int tile, struct mfl_mma_kernel *ret_kernel);
bool mfl_cuda_mma_kernel_bf16(enum mfl_cuda_pass pass, int tile, struct mfl_mma_kernel *ret_kernel);
bool mfl_cuda_mma_kernel_f16(enum mfl_cuda_pass pass, int tile, struct mfl_mma_kernel *ret_kernel);
#ifdef __cplusplus
}
#endif

#endif
