/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of float32 and of their squares: long fixed-point numbers, so that no addition rounds and no order matters.
 *
 * A float32 is an integer of 24 bits times a power of two from 2^-149 on, and its square one of 48 bits from 2^-298 on
 * (Kulisch, "Computer Arithmetic and Validity", 2013, chapter 8: the long accumulator). A number here is kept as 32-bit digits,
 * each with room for carries, which are passed on only now and then. Room for 2^32 addends. Pure; any thread. */
#ifndef MFL_COMMON_STATS_WIDE_H
#define MFL_COMMON_STATS_WIDE_H

#include "common/base/base.h"

#define MFL_WIDE_SUM 10     /* digits of a sum, in units of 2^-149 */
#define MFL_WIDE_SQUARES 19 /* of squares, in units of 2^-298 */
#define MFL_WIDE_BYTES(digits) ((digits)*4)

struct mfl_wide {
        int64_t digit[MFL_WIDE_SQUARES]; /* the least significant first */
        uint32_t since;                  /* additions since carries were passed on */
};

/* x is finite. times: how often it is added, below 2^8 times fewer than there is room: at most 2^16 in one call. */
void mfl_wide_add(struct mfl_wide *sum, struct mfl_wide *squares, float x, uint32_t times);
/* to += from. digits: of both. */
void mfl_wide_join(struct mfl_wide *to, const struct mfl_wide *from, int digits);
/* Two's complement, little-endian; MFL_WIDE_BYTES(digits). Equal numbers have equal bytes. */
void mfl_wide_put(const struct mfl_wide *wide, int digits, uint8_t *ret_bytes);
void mfl_wide_get(const uint8_t *bytes, int digits, struct mfl_wide *ret_wide);

/* The nearest double of the sum itself, of the sum of squares, and of n * squares - sum^2 >= 0, which divided by n^2 is the variance: one rounding
 * each, so nothing cancels. Squares or a difference below 0, which no samples have, are 0. */
double mfl_wide_sum(const struct mfl_wide *sum);
double mfl_wide_squares(const struct mfl_wide *squares);
double mfl_wide_spread(const struct mfl_wide *sum, const struct mfl_wide *squares, uint64_t n);

#endif
