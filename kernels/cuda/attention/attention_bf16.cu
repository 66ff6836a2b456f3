/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles: tensors of bfloat16. */
#define FLASH_PRECISION MFL_PRECISION_BF16
#define FLASH_GET mfl_cuda_flash_kernel_bf16
#include "kernels/cuda/attention/attention_kernels.h"
