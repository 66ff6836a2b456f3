/* SPDX-License-Identifier: Apache-2.0 */
/* The products on tiles without tiles, for tests on any processor. */
#define LANES 16
#define TILE_ROWS 6
#define LOOPS_BF16 mfl_products_base_tile
#define LOOPS_GEMM "kernels/cpu/loops/bf16/gemm_tile.h"
#define LOOPS_TILES "kernels/cpu/loops/bf16/conv_tile.h"
#include "kernels/cpu/loops/loops_body.h"
