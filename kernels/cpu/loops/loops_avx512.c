/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX-512. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS mfl_loops_avx512
#define LOOPS_NAME "avx512"
#include "kernels/cpu/loops/loops_body.h"
