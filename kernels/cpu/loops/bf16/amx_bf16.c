/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bfloat16 on the tiles of AMX. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS_BF16 mfl_products_amx_bf16
#define LOOPS_GEMM "kernels/cpu/loops/bf16/gemm_tile.h"
#define LOOPS_TILES "kernels/cpu/loops/bf16/conv_tile.h"
#include "kernels/cpu/loops/loops_body.h"
