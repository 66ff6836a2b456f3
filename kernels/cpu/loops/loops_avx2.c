/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX2 and FMA. */
#define LANES 8
#define TILE_ROWS 2
#define LOOPS mfl_loops_avx2
#define LOOPS_NAME "avx2"
#include "kernels/cpu/loops/loops_body.h"
