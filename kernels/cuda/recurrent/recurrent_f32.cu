/* SPDX-License-Identifier: Apache-2.0 */
/* Float LSTM and GRU: products by fmaf. */
#define RECURRENT_PRECISION MFL_PRECISION_FP32
#define RECURRENT_GET mfl_recurrent_kernel_f32
#include "kernels/cuda/recurrent/recurrent_kernels.h"
