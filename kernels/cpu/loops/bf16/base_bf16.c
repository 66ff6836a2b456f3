/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 for baseline instructions of the platform. */
#define LANES 4
#define TILE_ROWS 2
#define LOOPS_BF16 mfl_products_base_bf16
#define LOOPS_GEMM "kernels/cpu/loops/bf16/gemm_bf16.h"
#include "kernels/cpu/loops/loops_body.h"
