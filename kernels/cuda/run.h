/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that forward and backward of a layer share. Backward's own are set by run_backward.c. */
#ifndef MFL_KERNELS_CUDA_RUN_H
#define MFL_KERNELS_CUDA_RUN_H

#include "kernels/cuda/net.h"

struct mfl_cuda_conv_args mfl_cuda_conv_args_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_norm mfl_cuda_norm_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_pool mfl_cuda_pool_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_dropout mfl_cuda_dropout_of(const struct mfl_cuda_run *pass, int i);

#endif
