/* SPDX-License-Identifier: Apache-2.0 */
/* Draws without replacement from a counter RNG. Pure; any thread; -ENOMEM. */
#ifndef MFL_COMMON_COHORT_DRAW_H
#define MFL_COMMON_COHORT_DRAW_H

#include "common/base/base.h"
#include "common/base/rng.h"

/* The first n of a Fisher-Yates shuffle of 0 .. population - 1, sorted; n is at most population. Time and memory depend
 * on n alone. */
int mfl_draw_uniform(struct mfl_rng *rng, uint32_t population, uint32_t n, uint32_t *ret_v);

/* One after another, each with a probability proportional to its weight among those that are left; in the order drawn. The
 * weights add up to less than 2^63. Who has weight 0 is never drawn, so fewer than n may be: *ret_n. O((population + n)
 * log population): cumulative sums in a Fenwick tree (Fenwick 1994), a number below the sum of what is left by rejection
 * (Lemire 2019). */
int mfl_draw_weighted(struct mfl_rng *rng, const uint64_t *weight, uint32_t population, uint32_t n,
        uint32_t *ret_v, uint32_t *ret_n);

#endif
