/* SPDX-License-Identifier: Apache-2.0 */
/* Params that change by steps of a grid: what a round has made of them is rounded to whole multiples of a power of two per tensor, and what
 * rounding has taken away is added to the next round's (error feedback; bf16.h has the source). Everybody who has the params before and
 * the steps has the new ones:
 *
 *      wanted = made + rest
 *      step   = (wanted - before) on the grid, in float; of running statistics in float as it is
 *      after  = before + step, in double, rounded to float
 *      rest   = wanted - after
 *
 * The grid of a tensor has `bits` bits with a sign, and reaches to the largest change of an element in this round. All arithmetic is exact,
 * or in double in a fixed order. Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_CODEC_GRID_DOWN_H
#define MFL_COMMON_CODEC_GRID_DOWN_H

#include "common/codec/grid.h"

/* For elements [first, first + count) of the moving vector; the arrays begin with element `first`. */
struct mfl_grid_down {
        const float *before;
        float *v; /* what the round has made; then the new params */
        float *rest, *step;
};

/* largest[t] of the tensors that move = max(largest[t], |wanted - before|); scratch: count doubles. */
void mfl_grid_down_measure(const struct mfl_graph *graph, uint64_t first, size_t count,
        const struct mfl_grid_down *down, double *scratch, double *largest);

/* Once `largest` is that of all elements. */
void mfl_grid_down_round(const struct mfl_graph *graph, int bits, const double *largest, uint64_t first,
        size_t count, const struct mfl_grid_down *down);

/* step[i] = before[i] + step[i]: what everybody starts from. */
void mfl_grid_down_add(size_t n, const float *before, float *step);

#endif
