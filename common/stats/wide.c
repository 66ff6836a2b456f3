/* SPDX-License-Identifier: Apache-2.0 */
/* Long fixed-point sums. */
#include "common/stats/wide.h"

#include <math.h>

#define LOW 0xffffffffu
#define SINCE_MAX (1u << 29) /* each addition adds less than 2^33 to a digit */
#define LONG 42              /* digits of a product and of n times squares */

static void carry(struct mfl_wide *w, int digits)
{
        int64_t over = 0;
        for (int i = 0; i < digits - 1; i++) {
                int64_t v = w->digit[i] + over;
                w->digit[i] = v & (int64_t)LOW;
                over = (v - w->digit[i]) / ((int64_t)1 << 32);
        }
        w->digit[digits - 1] += over;
        w->since = 0;
}

/* sign * m * 2^shift units; m < 2^48. */
static void add_at(struct mfl_wide *w, int digits, uint64_t m, uint32_t shift, bool negative)
{
        uint32_t i = shift / 32, at = shift % 32;
        uint64_t low = (m & LOW) << at, high = (m >> 32) << at;
        const uint64_t part[3] = {low & LOW, (low >> 32) + (high & LOW), high >> 32};
        for (uint32_t k = 0; k < 3 && i + k < (uint32_t)digits; k++)
                w->digit[i + k] += negative ? -(int64_t)part[k] : (int64_t)part[k];
        if (++w->since >= SINCE_MAX)
                carry(w, digits);
}

void mfl_wide_add(struct mfl_wide *sum, struct mfl_wide *squares, float x, uint32_t times)
{
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint32_t exponent = bits >> 23 & 0xff, m = bits & 0x7fffff;
        uint32_t shift = exponent ? exponent - 1 : 0;
        mfl_assert(exponent != 0xff && times <= 1u << 16);
        if (exponent)
                m |= 0x800000;
        const uint64_t many = (uint64_t)m * times; /* below 2^40 */
        add_at(sum, MFL_WIDE_SUM, many, shift, bits >> 31);
        /* The square times `times` may have 64 bits: in two parts below 2^48. */
        const uint64_t square = (uint64_t)m * m;
        add_at(squares, MFL_WIDE_SQUARES, (square & LOW) * times, 2 * shift, false);
        add_at(squares, MFL_WIDE_SQUARES, (square >> 32) * times, 2 * shift + 32, false);
}

void mfl_wide_join(struct mfl_wide *to, const struct mfl_wide *from, int digits)
{
        struct mfl_wide other = *from;
        carry(&other, digits);
        carry(to, digits);
        for (int i = 0; i < digits; i++)
                to->digit[i] += other.digit[i];
        carry(to, digits);
}

void mfl_wide_put(const struct mfl_wide *wide, int digits, uint8_t *ret_bytes)
{
        struct mfl_wide w = *wide;
        carry(&w, digits);
        for (int i = 0; i < digits; i++)
                for (int k = 0; k < 4; k++)
                        ret_bytes[4 * i + k] = (uint8_t)((uint64_t)w.digit[i] >> 8 * k);
}

void mfl_wide_get(const uint8_t *bytes, int digits, struct mfl_wide *ret_wide)
{
        struct mfl_wide w = {.since = 0};
        for (int i = 0; i < digits; i++) {
                const uint8_t *b = bytes + 4 * (size_t)i;
                w.digit[i] = (int64_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                                       (uint32_t)b[3] << 24);
        }
        if (w.digit[digits - 1] >> 31)
                w.digit[digits - 1] -= (int64_t)1 << 32;
        *ret_wide = w;
}

/* The digits of |w|, each below 2^32; the sign is returned. */
static bool magnitude(const struct mfl_wide *wide, int digits, uint32_t *ret)
{
        struct mfl_wide w = *wide;
        carry(&w, digits);
        bool negative = w.digit[digits - 1] < 0;
        for (int i = 0; i < digits && negative; i++)
                w.digit[i] = -w.digit[i];
        carry(&w, digits);
        for (int i = 0; i < digits; i++)
                ret[i] = (uint32_t)w.digit[i];
        return negative;
}

/* The nearest double of v * 2^exponent: the 64 bits from the highest one on, with a last bit that says whether more follow. */
static double nearest(const uint32_t *v, int digits, int exponent)
{
        int top = digits - 1;
        while (top > 0 && !v[top])
                top--;
        uint64_t bits = (uint64_t)v[top] << 32 | (top > 0 ? v[top - 1] : 0);
        if (!bits)
                return 0;
        int shift = 0;
        while (!(bits >> 63)) {
                bits <<= 1;
                shift++;
        }
        uint32_t next = top > 1 ? v[top - 2] : 0;
        if (shift) /* at most 31: v[top] is not 0, or it is all there is */
                bits |= shift < 32 ? next >> (32 - shift) : 0;
        bool more = shift < 32 && (uint32_t)((uint64_t)next << shift) != 0;
        for (int i = 0; i < top - 2; i++)
                more |= v[i] != 0;
        return ldexp((double)(bits | more), exponent + 32 * (top - 1) - shift);
}

double mfl_wide_sum(const struct mfl_wide *sum)
{
        uint32_t v[MFL_WIDE_SUM];
        bool negative = magnitude(sum, MFL_WIDE_SUM, v);
        double d = nearest(v, MFL_WIDE_SUM, -149);
        return negative ? -d : d;
}

double mfl_wide_squares(const struct mfl_wide *squares)
{
        uint32_t v[MFL_WIDE_SQUARES];
        bool negative = magnitude(squares, MFL_WIDE_SQUARES, v);
        return negative ? 0 : nearest(v, MFL_WIDE_SQUARES, -298);
}

/* to += v * factor * 2^(32 at) */
static void add_product(uint32_t *to, const uint32_t *v, int digits, uint32_t factor, int at)
{
        uint64_t over = 0;
        for (int i = 0; i < digits || over; i++) {
                mfl_assert(i + at < LONG);
                over += to[i + at] + (i < digits ? (uint64_t)v[i] * factor : 0);
                to[i + at] = (uint32_t)over;
                over >>= 32;
        }
}

double mfl_wide_spread(const struct mfl_wide *sum, const struct mfl_wide *squares, uint64_t n)
{
        uint32_t s[MFL_WIDE_SUM], q[MFL_WIDE_SQUARES], a[LONG] = {0}, b[LONG] = {0};
        magnitude(sum, MFL_WIDE_SUM, s);
        if (magnitude(squares, MFL_WIDE_SQUARES, q))
                return 0;
        add_product(a, q, MFL_WIDE_SQUARES, (uint32_t)n, 0);
        add_product(a, q, MFL_WIDE_SQUARES, (uint32_t)(n >> 32), 1);
        for (int i = 0; i < MFL_WIDE_SUM; i++)
                add_product(b, s, MFL_WIDE_SUM, s[i], i);
        int64_t borrow = 0;
        for (int i = 0; i < LONG; i++) {
                int64_t v = (int64_t)a[i] - b[i] + borrow;
                a[i] = (uint32_t)v;
                borrow = v < 0 ? -1 : 0;
        }
        return borrow ? 0 : nearest(a, LONG, -298);
}
