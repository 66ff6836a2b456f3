/* SPDX-License-Identifier: Apache-2.0 */
/* The cut between what is sent and what is kept, by counting: one pass over the vector for each 8 bits of the absolute values. */
#include "common/codec/top_k.h"

#include <math.h>

#define DIGIT_BITS 8u
#define DIGITS (1u << DIGIT_BITS)

static const struct mfl_fixed apart = {.statistics_max = 1}; /* the parts count as such */

/* Of floats without a sign, the order of the bits is that of the numbers. */
static uint32_t size_of(float v)
{
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        return bits & 0x7fffffffu;
}

void mfl_top_k_feed(
        const struct mfl_fixed_parts *statistics, uint64_t first, size_t n, const float *rest, float *u)
{
        for (uint64_t i = first, end = first + n; i < end;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, statistics, i, end);
                for (; i < part.end; i++)
                        u[i - first] += part.statistics ? 0 : rest[i - first];
        }
}

/* Of the trained elements whose bits above the digit are `known`: how many have which digit. Returns how many are trained. */
static uint64_t count_digits(const struct mfl_fixed_parts *statistics, size_t n, const float *u,
        unsigned shift, uint32_t known, uint64_t counts[DIGITS])
{
        uint64_t n_trained = 0;
        memset(counts, 0, DIGITS * sizeof *counts);
        for (uint64_t i = 0; i < n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, statistics, i, n);
                n_trained += part.statistics ? 0 : part.end - i;
                for (; i < part.end; i++) {
                        uint32_t size = size_of(u[i]);
                        if (!part.statistics && (uint64_t)size >> (shift + DIGIT_BITS) == known)
                                counts[size >> shift & (DIGITS - 1)]++;
                }
        }
        return n_trained;
}

/* The place behind the last of the first n_ties trained elements of exactly that size. */
static uint64_t place_ties(
        const struct mfl_fixed_parts *statistics, size_t n, const float *u, uint32_t size, uint64_t n_ties)
{
        for (uint64_t i = 0; i < n && n_ties;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, statistics, i, n);
                for (; i < part.end; i++)
                        if (!part.statistics && size_of(u[i]) == size && !--n_ties)
                                return i + 1;
        }
        return 0;
}

void mfl_top_k_find(const struct mfl_fixed_parts *statistics, double share, float limit, size_t n,
        const float *u, struct mfl_top_k *ret_cut)
{
        uint64_t counts[DIGITS],
                left = 0; /* elements still to be found, those of `known` being the largest */
        uint32_t known = 0;
        mfl_assert(share > 0 && share <= 1 && limit > 0);
        for (unsigned shift = 32; shift;) {
                bool first = shift == 32;
                shift -= DIGIT_BITS;
                uint64_t n_trained = count_digits(statistics, n, u, shift, known, counts);
                if (first)
                        left = (uint64_t)ceil(share * (double)n_trained);
                uint32_t digit = DIGITS - 1;
                while (digit && counts[digit] < left)
                        left -= counts[digit--];
                known = known << DIGIT_BITS | digit;
        }
        *ret_cut = (struct mfl_top_k){.statistics = statistics, .limit = limit, .least = known};
        ret_cut->last = place_ties(statistics, n, u, known, left);
}

void mfl_top_k_split(const struct mfl_top_k *cut, uint64_t first, size_t n, float *u, float *ret_rest)
{
        for (uint64_t i = first, end = first + n; i < end;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(&apart, cut->statistics, i, end);
                for (; i < part.end; i++) {
                        float *v = &u[i - first], whole = *v;
                        uint32_t size = size_of(whole);
                        bool sent = size > cut->least || (size == cut->least && i < cut->last);
                        if (!part.statistics)
                                *v = sent ? fminf(fmaxf(whole, -cut->limit), cut->limit) : 0;
                        ret_rest[i - first] = part.statistics ? 0 : whole - *v;
                }
        }
}
