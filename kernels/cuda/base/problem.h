/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a convolution or dense layer of several clients: what cuDNN, cuBLASLt and the own kernels all
 * take. Layouts are in conv.h. */
#ifndef MFL_KERNELS_CUDA_BASE_PROBLEM_H
#define MFL_KERNELS_CUDA_BASE_PROBLEM_H

#include "kernels/cuda/base/kernel.h"

struct mfl_cuda_conv {
        int groups, n; /* clients; rows of a batch */
        int h, w, c, oh, ow, k, r, s;
        int stride[2], pad[2], dilation[2];
        enum mfl_precision precision;
};

enum mfl_cuda_pass {
        MFL_CUDA_FORWARD,          /* y = act(x * w + bias) */
        MFL_CUDA_BACKWARD_DATA,    /* dx = act_grad(act_y, dy * w (+ dx)) */
        MFL_CUDA_BACKWARD_WEIGHTS, /* dw = dy * x over rows and pixels; db = sum of dy */
        MFL_CUDA_PASS_COUNT_
};

#endif
