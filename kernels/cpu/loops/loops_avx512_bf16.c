/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 for AVX-512 and its BF16 instructions. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS_BF16 mfl_products_avx512_bf16
#include "kernels/cpu/loops/loops_body.h"
