/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 for AVX-512 and its BF16 instructions. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS_BF16 mfl_products_avx512_bf16
#define LOOPS_GEMM "kernels/cpu/loops/bf16/gemm_bf16.h"
#include "kernels/cpu/loops/loops_body.h"
