/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles: tensor cores on float tensors, operands rounded to tf32. */
#define FLASH_PRECISION MFL_PRECISION_TF32
#define FLASH_GET mfl_cuda_flash_kernel_tf32
#include "kernels/cuda/attention/attention_kernels.h"
