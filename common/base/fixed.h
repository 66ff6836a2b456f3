/* SPDX-License-Identifier: Apache-2.0 */
/* Exact aggregation: the sum of weighted deltas in 64-bit fixed point (DESIGN section 6).
 *
 * An element of an update is q = round(w * delta * 2^s), rounded once, to nearest, ties to even, and added as
 * an integer. Integer addition commutes and associates, so the sum does not depend on order, grouping, who
 * added, or resending. The scale s is chosen once per job so that nothing can overflow:
 *     weight_max (largest sum of weights of a round) * delta_max (largest |delta|) * 2^s <= 2^62.
 * A delta outside +-delta_max, or not finite, makes the whole client update invalid. w is an integer in
 * [1, 2^32) and delta a float, so w * delta is exact in double only up to 2^53; with w < 2^29 it always is.
 *
 * Running statistics of batch norm move with the data: features of deviation 10 move a variance by 100. They have a
 * scale and a limit of their own, chosen by the same rule, and so a wider range with coarser units. Which elements of
 * a vector are statistics is known to both sides from the model (struct mfl_fixed_parts).
 * Pure functions, no thread, no allocation.
 */
#ifndef MFL_COMMON_BASE_FIXED_H
#define MFL_COMMON_BASE_FIXED_H

#include "common/base/base.h"
#include "common/base/rng.h" /* MFL_HD */

#define MFL_WEIGHT_MAX ((uint64_t)1 << 29) /* of one client */

struct mfl_fixed {
        int scale_bits;       /* s; may be negative */
        float delta_max;      /* a power of two */
        uint64_t weight_max;  /* of a whole round */
        int statistics_bits;  /* s of running statistics, and their largest |delta|, a power of two; */
        float statistics_max; /* 0: they have the scale and limit of other elements */
        int share_bits;       /* a client's real weight is at most its whole one times 2^share_bits */
};

/* Which elements of a vector are running statistics: those in [edge[0], edge[1]), [edge[2], edge[3]), and so on.
 * Ascending; n is even; NULL or n = 0: none. The owner keeps the edges. */
struct mfl_fixed_parts {
        const uint64_t *edge;
        size_t n;
};

/* The scale of the elements from i on, and where it changes (at most `end`). */
struct mfl_fixed_part {
        struct mfl_fixed fixed; /* scale_bits and delta_max are those of the part */
        bool statistics;
        uint64_t end;
};
struct mfl_fixed_part mfl_fixed_part_at(
        const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, uint64_t i, uint64_t end);

/* llrint(x) for |x| <= 2^62, rounded to nearest, ties to even, as an integer that wraps: the one rounding of
 * an element, on the CPU and on a GPU.
 *
 * 1.5 * 2^52 is a double whose units are one, so adding it rounds to an integer and leaves that integer in
 * the low bits; right for |x| <= 2^51. Hence two halves, and no conversion instruction, which below AVX-512
 * does not exist for several numbers at once. `high` is a multiple of 2^32, so x - high is exact and has the parity
 * of x, which decides ties. */
static inline MFL_HD uint64_t mfl_fixed_round(double x)
{
        const double rounder = 0x1.8p52;
        const uint64_t rounder_bits = 0x4338000000000000u;
        double high_rounded = x * 0x1p-32 + rounder;
        double high = (high_rounded - rounder) * 0x1p32;
        double low_rounded = (x - high) + rounder;
        uint64_t high_bits, low_bits;
        memcpy(&high_bits, &high_rounded, sizeof high_bits);
        memcpy(&low_bits, &low_rounded, sizeof low_bits);
        return ((high_bits - rounder_bits) << 32) + (low_bits - rounder_bits);
}

/* The scale for the limits. delta_max is rounded up to a power of two in [2^-20, 2^40]; weight_max is at
 * least 1 and at most 2^50. MFL_INVALID outside. */
int mfl_fixed_choose(
        float delta_max, uint64_t weight_max, struct mfl_fixed *ret_fixed, struct mfl_error *err);

/* The scale for clients with real weights (common/method/method.h), which may be 2^share_bits times their whole ones. */
int mfl_fixed_choose_share(float delta_max, uint64_t weight_max, int share_bits, struct mfl_fixed *ret_fixed,
        struct mfl_error *err);

/* The same for running statistics: sets statistics_bits and statistics_max of ret_fixed. */
int mfl_fixed_choose_statistics(float statistics_max, struct mfl_fixed *ret_fixed, struct mfl_error *err);

/* acc[i] += round(weight * (p1[i] - p0[i]) * 2^s) for i in [0, n), which are elements [first, first + n) of a vector
 * with those parts; the delta is taken in float. Returns 0, or MFL_INVALID when an element is not finite or over its
 * limit: acc is then as it was before, and the text gives the element's place in the whole vector.
 */
int mfl_fixed_parts_add_delta(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *p1, const float *p0, size_t n, int64_t *acc,
        struct mfl_error *err);

/* The same for a delta that was computed elsewhere. */
int mfl_fixed_parts_add_f32(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *delta, size_t n, int64_t *acc, struct mfl_error *err);

/* The same for a client whose delta counts with a real weight: acc[i] += round(fl(real * delta[i]) * 2^s), and for running
 * statistics round(weight * delta[i] * 2^s). 0 <= real <= weight * 2^share_bits. */
int mfl_fixed_parts_add_real(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, double real, const float *delta, size_t n, int64_t *acc,
        struct mfl_error *err);

/* acc[i] += sum[i], sum being an update of total weight `weight`; MFL_INVALID (acc unchanged) when an element is
 * larger than any element of such an update can be. */
int mfl_fixed_parts_add_i64(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const int64_t *sum, size_t n, int64_t *acc, struct mfl_error *err);

/* Subtracts what mfl_fixed_parts_add_f32 has added. Takes the same bytes with the same weight. */
void mfl_fixed_parts_subtract_f32(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *delta, size_t n, int64_t *acc);
void mfl_fixed_subtract_i64(const int64_t *sum, size_t n, int64_t *acc);

/* Whether all deltas are within their limits; MFL_INVALID with the first that is not. */
int mfl_fixed_parts_check(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        const float *delta, size_t n, struct mfl_error *err);

/* The same for vectors without running statistics. */
static inline int mfl_fixed_add_delta(const struct mfl_fixed *fixed, uint64_t weight, const float *p1,
        const float *p0, size_t n, int64_t *acc, struct mfl_error *err)
{
        return mfl_fixed_parts_add_delta(fixed, NULL, 0, weight, p1, p0, n, acc, err);
}
static inline int mfl_fixed_add_f32(const struct mfl_fixed *fixed, uint64_t weight, const float *delta,
        size_t n, int64_t *acc, struct mfl_error *err)
{
        return mfl_fixed_parts_add_f32(fixed, NULL, 0, weight, delta, n, acc, err);
}
static inline int mfl_fixed_add_i64(const struct mfl_fixed *fixed, uint64_t weight, const int64_t *sum,
        size_t n, int64_t *acc, struct mfl_error *err)
{
        return mfl_fixed_parts_add_i64(fixed, NULL, 0, weight, sum, n, acc, err);
}

/* The mean delta of an accumulated sum: sum * 2^-s / weight, in double. */
static inline double mfl_fixed_mean(const struct mfl_fixed *fixed, int64_t sum, uint64_t weight)
{
        return __builtin_ldexp((double)sum / (double)weight, -fixed->scale_bits);
}

/* A per-sample loss as fixed point with 2^-32 resolution, so that sums of losses are exact too. Losses are
 * clamped to [0, 2^20]; NaN counts as 2^20. */
static inline MFL_HD int64_t mfl_fixed_loss(float loss)
{
        if (!(loss < 0x1p20f)) /* also NaN */
                return (int64_t)1 << 52;
        if (loss <= 0)
                return 0;
        return (int64_t)mfl_fixed_round((double)loss * 0x1p32);
}
/* Sums of losses saturate at the largest number: a model that diverges has a large loss, never a negative one. */
static inline MFL_HD int64_t mfl_fixed_loss_add(int64_t a, int64_t b)
{
        return b < 0 || a > INT64_MAX - b ? INT64_MAX : a + b;
}
static inline double mfl_fixed_loss_to_double(int64_t sum)
{
        return (double)sum * 0x1p-32;
}

#define MFL_SQUARE_BITS 24 /* a sum of squares of losses is in units of 2^-24 */

/* One client's losses in one local training, exactly as its daemon added them. */
struct mfl_client_loss {
        uint64_t samples;   /* scored predictions */
        int64_t loss_sum;   /* units of 2^-32, as above */
        int64_t square_sum; /* over batches: predictions * square of their mean loss; 0 where nobody needs it */
};

#endif
