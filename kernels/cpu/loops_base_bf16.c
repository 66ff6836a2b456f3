/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for baseline instructions of the platform, with products of bfloat16. */
#define LANES 4
#define TILE_ROWS 2
#define LOOPS mfl_loops_base_bf16
#define LOOPS_NAME "base"
#define LOOPS_BF16
#include "kernels/cpu/loops_body.h"
