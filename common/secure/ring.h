/* SPDX-License-Identifier: Apache-2.0 */
/* Narrow rings: a secure sum modulo 2^32 or 2^48, for elements that lie on the public grid (common/codec/grid.h).
 *
 * A client's element on the grid is k * 2^e with |k| < 2^(grid bits - 1). In the exact sum of common/base/fixed.h, whose units are
 * 2^-s, it is w * k * 2^(e + s): a multiple of 2^shift, shift = max(0, e + s). The sum of a round, whose weights add up to at most W,
 * divided by 2^shift is below W * 2^(grid bits - 1) in absolute value (a finer grid, e + s < 0, only makes it smaller). So it fits
 * the ring with its sign if W <= 2^(ring bits - grid bits).
 *
 * Elements without a grid keep the ring 2^64: all of the first round, running statistics, and tensors that did not move in the round
 * before. Nothing is rounded here: the sum is that of the plain job, bit for bit.
 *
 *   daemon: fold (divide), mask, cut (the lowest bits, as a signed number)
 *   server: add, unmask, unfold (cut, check, multiply)
 *
 * Masks are the lowest bits of the 64-bit ring's. Any thread. Errors: MFL_INVALID, -ENOMEM. */
#ifndef MFL_COMMON_SECURE_RING_H
#define MFL_COMMON_SECURE_RING_H

#include "common/base/fixed.h"
#include "common/codec/grid.h"

struct mfl_secure_ring_part {
        uint64_t end; /* the part ends before this element of the moving vector */
        uint8_t bits, shift;
};

/* A zeroed one is the ring 2^64 for all elements. */
struct mfl_secure_ring {
        uint32_t n;
        int grid_bits;
        struct mfl_secure_ring_part *v;
};

/* Whether sums of such weights fit. MFL_INVALID: they don't; the text has the numbers, and says what to write instead. Its beginning
 * is the caller's. */
int mfl_secure_ring_fits(uint32_t bits, uint32_t grid_bits, uint64_t weight_max, struct mfl_error *err);

/* exponent: as for mfl_grid_round, or NULL: there is no grid yet, and the ring is 2^64. */
int mfl_secure_ring_make(uint32_t bits, uint32_t grid_bits, const struct mfl_graph *graph,
        const struct mfl_fixed *fixed, const int32_t *exponent, struct mfl_secure_ring *ret_ring,
        struct mfl_error *err);
void mfl_secure_ring_deinit(struct mfl_secure_ring *ring); /* a zeroed one is fine */

/* A whole vector. MFL_INVALID: an element is not on the grid. */
int mfl_secure_ring_fold(const struct mfl_secure_ring *ring, int64_t *v, uint64_t n, struct mfl_error *err);
void mfl_secure_ring_cut(const struct mfl_secure_ring *ring, uint64_t first, uint64_t *v, uint64_t n);
/* weight: that of the sum. MFL_INVALID: no sum of such a weight has such an element. */
int mfl_secure_ring_unfold(const struct mfl_secure_ring *ring, uint64_t first, uint64_t weight, int64_t *v,
        uint64_t n, struct mfl_error *err);

#endif
