/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for baseline instructions of the platform. */
#define LANES 4
#define TILE_ROWS 2
#define LOOPS mfl_loops_base
#define LOOPS_NAME "base"
#include "kernels/cpu/loops/loops_body.h"
