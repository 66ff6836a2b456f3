/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-core convolutions of float tensors, with products of operands rounded to tf32. */
#define MMA_PRECISION MFL_PRECISION_TF32
#define MMA_GET mfl_cuda_mma_kernel_tf32
#define MMA_LARGE(F, name, pass) F(name, pass, 128, 64, 64, 32, 2)
#include "kernels/cuda/conv/conv_mma_kernels.h"
