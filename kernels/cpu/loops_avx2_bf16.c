/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX2 and FMA, with products of bfloat16. */
#define LANES 8
#define TILE_ROWS 2
#define LOOPS mfl_loops_avx2_bf16
#define LOOPS_NAME "avx2"
#define LOOPS_BF16
#include "kernels/cpu/loops_body.h"
