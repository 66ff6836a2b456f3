/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fp32 family of conv.h share: the arguments of its kernels, and who can do what.
 *
 * @HEADER@
 */
#ifndef MFL_KERNELS_CUDA_CONV_SIMT_H
#define MFL_KERNELS_CUDA_CONV_SIMT_H

#include "kernels/cuda/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x / d = x * magic >> shift for every x below 2^31: magic = ceil(2^shift / d), shift = 31 + ceil(log2 d)
 * (Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994, theorem 4.2).
 */
struct mfl_simt_div {
        uint32_t magic, shift, d;
};
static inline MFL_HD int mfl_simt_quotient(const struct mfl_simt_div *div, int x)
{
        return (int)((uint64_t)(uint32_t)x * div->magic >> div->shift);
}

/* One pass as a product out[m][n] = sum over `red` of a * b, for each group:
 *
 *                     m             n        red            a                  b
 *   forward           n, oh, ow     k        r, s, c        x, gathered        w
 *   backward data     n, h, w       c        r, s, k        dy, gathered       w
 *   backward weights  k             r, s, c  n, oh, ow      dy                 x, gathered
 *
 * `src` is the tensor that is gathered: rows of sh x sw x sc; `grid` is the plane of pixels that reads it. */
struct mfl_simt_args {
        const float *a, *b, *bias, *act_y;
        float *out, *db, *work; /* work: [G][segments][m * n (+ m for db)], where the segments are split */
        int64_t a_group, b_group, out_group, param_group; /* elements from a group to the next */
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

/* A kernel with its tile. slices: parts of a block that take segments side by side. can: NULL: every problem.
 */
struct mfl_simt_kernel {
        const char *name, *name_split;
        int bm, bn, slices, threads;
        bool direct; /* no tiled product: never split, limits of its own */
        bool (*can)(const struct mfl_simt_args *a);
        cudaError_t (*run)(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
};
#define MFL_SIMT_KERNELS_MAX 12
extern const struct mfl_simt_kernel mfl_simt_forward[], mfl_simt_data[], mfl_simt_weights[];
extern const int mfl_simt_forward_count, mfl_simt_data_count, mfl_simt_weights_count;

/* Direct kernels (conv_simt_patch.cu, conv_simt_rows.cu): whether the problem fits, from what mfl_simt_shape
 * fills in. */
bool mfl_simt_patch_can_forward(const struct mfl_simt_args *a);
bool mfl_simt_patch_can_data(const struct mfl_simt_args *a);
cudaError_t mfl_simt_patch_forward(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
cudaError_t mfl_simt_patch_data(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);
bool mfl_simt_rows_can(const struct mfl_simt_args *a);
cudaError_t mfl_simt_rows(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream);

/* What only the problem says, of the arguments. */
void mfl_simt_shape(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass, struct mfl_simt_args *a);
struct mfl_simt_div mfl_simt_divide_by(int d);

/* Sums the segments in `work` in order and finishes the outputs. */
cudaError_t mfl_simt_reduce(
        const struct mfl_simt_args *a, enum mfl_cuda_pass pass, int groups, cudaStream_t stream);

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
