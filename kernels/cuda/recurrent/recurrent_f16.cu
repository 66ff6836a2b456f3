/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM and GRU of half-precision tensors. */
#define RECURRENT_PRECISION MFL_PRECISION_FP16
#define RECURRENT_GET mfl_recurrent_kernel_f16
#include "kernels/cuda/recurrent/recurrent_kernels.h"
