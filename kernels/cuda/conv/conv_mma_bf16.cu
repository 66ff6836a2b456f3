/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-core convolutions of bfloat16 tensors. */
#define MMA_PRECISION MFL_PRECISION_BF16
#define MMA_GET mfl_cuda_mma_kernel_bf16
#define MMA_LARGE(F, name, pass) F(name, pass, 128, 128, 64, 32, 1)
#include "kernels/cuda/conv/conv_mma_kernels.h"
