/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions with groups of channels, including depthwise ones, and transposed convolutions, with a thread
 * for each output and a warp for each weight. Conventions and errors are those of ops.h; weights are
 * [o][r][s][c of a group].
 *
 * Order of sums: outputs r, s, c (for dx: r, s, o) by fmaf from +0, then the bias. A weight: lane l of 32
 * takes outputs l, l + 32, ... of rows and pixels; a butterfly joins the lanes.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_DIRECT_H
#define MFL_KERNELS_CUDA_OPS_OPS_DIRECT_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `window` is the convolution's. For a transposed one it is that of the convolution whose gradient it is: x
 * is then the layer's output, y its input. */
struct mfl_cuda_direct {
        int groups, batch;
        enum mfl_cuda_type type;
        struct mfl_window window;
        const void *w;     /* of group 0 */
        const float *bias; /* of group 0, for the tensor that is written; NULL: none */
        uint64_t w_stride, p_stride;
        const void *x, *y; /* what is read */
        void *to;
        bool add;
        float *dw;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_direct_forward(
        const struct mfl_cuda_direct *a, cudaStream_t stream); /* to = x * w + bias */
cudaError_t mfl_cuda_direct_data(
        const struct mfl_cuda_direct *a, cudaStream_t stream); /* to = y * w' + bias */
cudaError_t mfl_cuda_direct_weights(
        const struct mfl_cuda_direct *a, cudaStream_t stream); /* dw from x and y */

#ifdef __cplusplus
}
#endif
#endif
