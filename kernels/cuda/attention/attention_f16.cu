/* SPDX-License-Identifier: Apache-2.0 */
/* Attention by tiles: IEEE half tensors. */
#define FLASH_PRECISION MFL_PRECISION_FP16
#define FLASH_GET mfl_cuda_flash_kernel_f16
#include "kernels/cuda/attention/attention_kernels.h"
