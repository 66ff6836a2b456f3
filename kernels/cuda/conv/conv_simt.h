/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fp32 family of conv.h share: the arguments of its kernels, and which kernel can do
 * what.
 *
 * The bits. An output is total = +0, total += sum for each segment in order, where sum starts at +0 and is
 * sum = fmaf(a, b, sum) along the segment; then bias, add and act. Padding takes part as a = 0 times the
 * weight at its place (0 times infinity is a NaN in every variant), and so does a pixel that no stride
 * reaches in backward data. Tiles multiply further zeros, 0 * 0, where the reduction does not fill the last
 * step. These can only turn a sum of -0 (a product that underflowed) into +0, never change another value, and
 * both give the same total, because +0 + -0 = +0 and a total is never -0. So such zeros have no effect, and
 * every kernel of this family gives the bits of the plain loop in tests/unit/cuda/conv/test_conv_simt.c. db
 * is the same sum with b = 1.
 *
 * Limits: one image (h * w * c, oh * ow * k) and one filter bank's r * s * c and r * s * k stay below 2^30.
 * Batches and groups may be larger; their indices are 64 bits wide.
 *
 * The possible gain (computed, not measured; one client; the last two columns are 256 clients on an H200 at
 * 67 TFLOP/s and 4.8 TB/s with every tensor moved once; each pass of a layer does the same work except for
 * padding):
 *
 *                                  MFLOP   KiB moved   FLOP/byte   products us   memory us
 *   lenet5      5x5   1 -> 6        2.35         215        10.7           9.0        11.7
 *   batch 10    5x5   6 -> 16       4.80         118        39.8            18         6.4
 *               400 -> 120          0.96         208         4.5           3.7          11
 *               120 -> 84           0.20          47         4.2           0.8         2.6
 *               84 -> 10            0.02           7         2.4           0.1         0.4
 *   pfl-cnn     3x3   3 -> 32       15.6        1248        12.2            59          68
 *   batch 10    3x3  32 -> 64        289        3157        89.4          1104         172
 *               12544 -> 128        32.1        6767         4.6           123         370
 *   fedavg-cnn  5x5   1 -> 32       40.1        3237        12.1           153         177
 *   batch 32    5x5  32 -> 64        642        2552         246          2454         139
 *               3136 -> 512          103        6728        14.9           393         367
 *
 * Above about 14 FLOP/byte products are the limit, below it memory. So there are three kinds of kernels:
 * - Wide convolutions: tiles of 128x64 and 64x64, with 8x8 or 8x4 products per thread between two reads of 16
 *   bytes.
 * - Dense layers of a small batch read the weights once: tiles of 16 rows, 16-byte copies, several blocks or
 *   slices of the reduction on a multiprocessor for enough bytes under way (about 30 KiB each, by 4.8 TB/s *
 *   0.8 us / 132). 16 rows for a batch of 10 are 196 us of products in 12544 -> 128, still below its 370 us
 *   of memory.
 * - Few channels: a tile copies each input r * s times at about 10 instructions, which for 6 or 16 output
 *   channels is more than the products. conv_simt_patch.cu copies it once, conv_simt_rows.cu once per tap
 *   row, and both read it in place.
 * One client alone has few blocks: lenet5's 6 -> 16 has 16 tiles of 64x16 for 132 multiprocessors, and a
 * chain of 150 products takes as long for one as for many. There latency counts, and slices and split
 * segments reduce it.
 *
 * The code of ptxas 13.0: no spills for sm_80, sm_89 and sm_90. Registers for sm_90: 128x64 254 (2 blocks of
 * 128 threads on a multiprocessor), 64x64 168, the smaller tiles 109 to 168, patch 116 (8 channels) and 101
 * (6), rows 112 and 77. SASS for sm_90: in the inner loop of patch 128 of 169 instructions are FFMA (16 LDS,
 * 8 LDS.128), in that of rows 128 of 175 (16 LDS, 8 LDS.128). A tile's step of 16 has 1024 FFMA and 64
 * LDS.128 (128x64), or 512 and 48 (64x64). Its loop is 1725, or 1014 instructions long, including both kinds
 * of copies (4 and 16 bytes, only one of which runs) and the ends of segments.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_SIMT_H
#define MFL_KERNELS_CUDA_CONV_CONV_SIMT_H

#include "kernels/cuda/conv/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x / d = x * magic >> shift for every x below 2^31: magic = ceil(2^shift / d), shift = 31 + ceil(log2 d)
 * (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994, theorem 4.2).
 */
struct mfl_simt_div {
        uint32_t magic, shift, d;
};
static inline struct mfl_simt_div mfl_simt_divide_by(int d)
{
        struct mfl_simt_div div = {0, 31, (uint32_t)d};
        while ((1ull << (div.shift - 31)) < (uint64_t)d)
                div.shift++;
        div.magic = (uint32_t)(((1ull << div.shift) + (uint64_t)d - 1) / (uint64_t)d);
        return div;
}
static inline MFL_HD int mfl_simt_quotient(const struct mfl_simt_div *div, int x)
{
        return (int)((uint64_t)(uint32_t)x * div->magic >> div->shift);
}

/* One pass as a product out[m][n] = sum over `red` of a * b, for each group:
 *
 *                     m             n        red          a                  b
 *   forward           n, oh, ow     k        r, s, c      x, gathered        w
 *   backward data     n, h, w       c        r, s, k      dy, gathered       w
 *   backward weights  k             r, s, c  n, oh, ow    dy                 x, gathered
 *
 * `src` is the tensor that is gathered: rows of sh x sw x sc; `grid` is the plane of pixels that reads it. */
struct mfl_simt_args {
        const float *a, *b, *bias, *act_y;
        float *out, *db, *work; /* work: [G][segments][m * n (+ m for db)], where the segments are split */
        int64_t a_group, b_group, out_group, param_group; /* elements from one group to the next */
        int64_t m, red, segment, n_segments;
        int n, grid_w, grid_pixels, sh, sw, sc, s, rs; /* rs: taps */
        int stride[2], pad[2], dilation[2];
        int c, k;
        struct mfl_simt_div by_grid_pixels, by_grid_w, by_sc, by_s, by_stride_h, by_stride_w;
        int64_t m_tiles, n_tiles, n_splits; /* the launch: blocks are group, split, m, n; n fastest */
        enum mfl_cuda_act act;
        bool add, vector_a, vector_b;
        int groups;
        struct mfl_cuda_steps steps;
};

/* A kernel with its tile. slices: parts of a block that process segments side by side. can: NULL: every
 * problem. */
struct mfl_simt_kernel {
        const char *name, *name_split;
        int bm, bn, slices, threads;
        bool direct; /* no tiled product: never split, with limits of its own */
        bool (*can)(const struct mfl_simt_args *a);
        cudaError_t (*run)(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
};
#define MFL_SIMT_KERNELS_MAX 12
extern const struct mfl_simt_kernel mfl_simt_forward[], mfl_simt_data[], mfl_simt_weights[];
extern const int mfl_simt_forward_count, mfl_simt_data_count, mfl_simt_weights_count;

/* Direct kernels (conv_simt_patch.cu, conv_simt_rows.cu): whether the problem fits, by the arguments that
 * mfl_simt_shape sets. */
bool mfl_simt_patch_can_forward(const struct mfl_simt_args *a);
bool mfl_simt_patch_can_data(const struct mfl_simt_args *a);
cudaError_t mfl_simt_patch_forward(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
cudaError_t mfl_simt_patch_data(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
bool mfl_simt_rows_can(const struct mfl_simt_args *a);
cudaError_t mfl_simt_rows(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);

/* Sets the arguments that depend only on the problem. */
void mfl_simt_shape(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct mfl_simt_args *a);

/* Sums the segments in `work` in order and finishes the outputs. */
cudaError_t mfl_simt_reduce(
        const struct mfl_simt_args *a, enum mfl_cuda_pass pass, int groups, cudaStream_t stream);

/* A group that has no rows in this step. */
static inline MFL_HD bool mfl_simt_is_left_out(const struct mfl_cuda_steps *steps, int64_t group)
{
        return steps->count && mfl_cuda_rows(steps, (uint32_t)group) == 0;
}

/* Forward: bias and act; backward data: add and act_grad. i: the element within the group. */
static inline MFL_HD float mfl_simt_finish(
        const struct mfl_simt_args *a, enum mfl_cuda_pass pass, int64_t group, int64_t i, int n, float v)
{
        if (pass == MFL_CUDA_FORWARD) {
                if (a->bias)
                        v = v + a->bias[group * a->param_group + n];
                return mfl_act(a->act, v);
        }
        if (pass == MFL_CUDA_BACKWARD_DATA) {
                if (a->add)
                        v = v + a->out[group * a->out_group + i];
                if (a->act != MFL_CUDA_ACT_NONE)
                        v = mfl_act_grad(a->act, a->act_y[group * a->out_group + i], v);
        }
        return v;
}

#ifdef __cplusplus
}
#endif
#endif
