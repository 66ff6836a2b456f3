/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM and GRU of bfloat16 tensors. */
#define RECURRENT_PRECISION MFL_PRECISION_BF16
#define RECURRENT_GET mfl_recurrent_kernel_bf16
#include "kernels/cuda/recurrent/recurrent_kernels.h"
