/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM and GRU of float tensors, with products of operands rounded to tf32. */
#define RECURRENT_PRECISION MFL_PRECISION_TF32
#define RECURRENT_GET mfl_recurrent_kernel_tf32
#include "kernels/cuda/recurrent/recurrent_kernels.h"
