/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX-512 and its BF16 instructions, with products of bfloat16. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS mfl_loops_avx512_bf16
#define LOOPS_NAME "avx512"
#define LOOPS_BF16
#include "kernels/cpu/loops_body.h"
