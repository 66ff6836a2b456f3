/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles: fmaf on float tensors. */
#define FLASH_PRECISION MFL_PRECISION_FP32
#define FLASH_GET mfl_cuda_flash_kernel_fp32
#include "kernels/cuda/attention/attention_kernels.h"
