/* SPDX-License-Identifier: Apache-2.0 */
/* The grid: a client's delta is rounded to whole multiples of a power of two per tensor, up or down at random, so that its
 * mean stays (unbiased stochastic rounding; Gupta et al. 2015, "Deep learning with limited numerical precision", section 3).
 * It is rounded for each client, before any sum: the sums then are exact as always, and the result does not depend on how
 * clients are grouped. What is left of an update is narrow integers, which pack.h packs.
 *
 * A tensor's step follows from the mean delta of the last committed round: 4 times its largest element, rounded up to a
 * power of two, is the range of `bits` bits with a sign. Elements beyond the range become its end, and are counted. Running
 * statistics of norms have no grid, and a tensor whose mean delta was zero has none in the next round.
 *
 * Random numbers come from the job's seed, the round, the client and the element's place, so they are the same on every
 * daemon. All arithmetic is exact: floats are scaled by powers of two. Pure functions, no allocation, any thread.
 */
#ifndef MFL_COMMON_CODEC_GRID_H
#define MFL_COMMON_CODEC_GRID_H

#include "common/model/graph.h"

#define MFL_GRID_EXACT 200 /* in place of an exponent: the tensor is not rounded */
#define MFL_GRID_LEAST -126

/* The exponent of a tensor's step, from the largest |element| of its mean delta: finite, >= 0. 0 gives MFL_GRID_EXACT. */
int mfl_grid_exponent(int bits, double largest);

/* The tensors that move, which have a grid: graph->n_params - graph->i_moving. */
static inline uint32_t mfl_grid_tensors(const struct mfl_graph *graph)
{
        return (uint32_t)(graph->n_params - graph->i_moving);
}

/* largest[t] = max(largest[t], |d[e]|) for elements e in [first, first + count) of the moving vector; t counts its tensors. */
void mfl_grid_measure(
        const struct mfl_graph *graph, uint64_t first, size_t count, const double *d, double *largest);

/* Rounds a client's delta (n_moving floats, all finite). exponent: mfl_grid_tensors of them, each MFL_GRID_EXACT or from
 * MFL_GRID_LEAST to 127. Returns how many elements were beyond the range. */
uint64_t mfl_grid_round(const struct mfl_graph *graph, int bits, const int32_t *exponent, uint64_t seed,
        uint64_t client, uint32_t round, float *delta);

#endif
