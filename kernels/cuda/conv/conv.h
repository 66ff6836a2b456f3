/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and dense layers of G clients at once by this backend's own kernels: implicit GEMM with the
 * client in the grid, no im2col buffer. A dense layer is a convolution with h = w = oh = ow = r = s = 1.
 *
 * Tensors are group-major NHWC, elements of mfl_cuda_type_of(precision): x [G][n][h][w][c], y
 * [G][n][oh][ow][k]. Weights lie in each group's vector of params as [k][r][s][c]; the weight gradient has
 * the same layout, in float.
 *
 * Bits: an output depends only on the problem without `groups`: not on the variant (tile sizes, stages), not
 * on G, not on the launch. fp32: products and sums by fmaf from +0 in the order of the reduction index: r, s,
 * c for forward (c fastest), r, s, k for backward data, n, oh, ow for backward weights. Reductions longer
 * than the family's segment(conv, pass) are cut into segments of that length, and the segments' sums are
 * added in order. tf32, bf16, fp16: the same with tensor-core steps of 8 or 16 products. So measuring may
 * choose freely among variants.
 *
 * Pure launches: no allocation, nothing waits, any thread; safe to capture. Errors are CUDA's.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_H
#define MFL_KERNELS_CUDA_CONV_CONV_H

#include "kernels/cuda/base/problem.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mfl_cuda_conv_args {
        const void *x, *dy; /* backward data reads no x, forward no dy */
        void *y, *dx;
        const void *w;               /* of group 0 */
        const float *bias;           /* of group 0; NULL: none */
        float *dw, *db;              /* of group 0; overwritten; db NULL: not wanted */
        uint64_t w_stride, p_stride; /* elements from a group's w, and from its bias, dw and db, to the next
                                  group's */
        enum mfl_cuda_act act;       /* forward: of y. backward data: of the layer that made x */
        const void *act_y; /* backward data, unless act is none: the output of that layer, shaped like
                                  x */
        bool add;          /* backward data: dx is added to before act_grad, else overwritten */
        struct mfl_cuda_steps steps;
        void *workspace; /* mfl_cuda_conv_workspace bytes, aligned to 256; NULL if that is 0 */
};

/* How many variants of own kernels can do this pass of this problem; at least 1 for every precision and
 * shape. Variant 0 is a fair choice everywhere. */
int mfl_cuda_conv_variants(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass);
/* "simt 64x32x8", for tables and the tuning file. */
const char *mfl_cuda_conv_variant_name(
        const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant);
uint64_t mfl_cuda_conv_workspace(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant);
cudaError_t mfl_cuda_conv_own(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant,
        const struct mfl_cuda_conv_args *args, cudaStream_t stream);

/* The two families behind the functions above: conv_simt*.cu (fp32) and conv_mma*.cu (the others). */
struct mfl_cuda_conv_family {
        int (*variants)(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass);
        const char *(*variant_name)(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant);
        uint64_t (*workspace)(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant);
        int64_t (*segment)(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass);
        cudaError_t (*run)(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, int variant,
                const struct mfl_cuda_conv_args *args, cudaStream_t stream);
};
extern const struct mfl_cuda_conv_family mfl_cuda_conv_simt, mfl_cuda_conv_mma;

#ifdef __cplusplus
}
#endif
#endif
