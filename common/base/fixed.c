/* SPDX-License-Identifier: Apache-2.0 */
/* Exact aggregation in 64-bit fixed point: loops that check a block of an update and add it, and that subtract
 * everything again when a later block is wrong.
 *
 * The products of whole weights are exact: the weight has at most 29 significant bits and delta has 24, so weight * delta has at most
 * 53 and is exact in double; the factor 2^s only moves the exponent. The only rounding is the one to an integer. With a real weight
 * the product is rounded to double once, before it. The
 * loops are plain C that compilers vectorise, and give the same integers on every machine.
 */
#include "common/base/fixed.h"

#include <math.h>

static int choose_scale(const char *what, float max, uint64_t weight_max, int *ret_bits, float *ret_max,
        struct mfl_error *err)
{
        int bits;
        if (max > 0 && max <= 0x1p40f && frexpf(max, &bits) == 0.5f)
                bits--;
        if (!(max > 0) || max > 0x1p40f || bits < -20)
                return mfl_fail(err, MFL_INVALID, "%s: expected a number from 2^-20 to 2^40, got %g", what,
                        (double)max);
        int weight_bits = weight_max == 1 ? 0 : 64 - __builtin_clzll(weight_max - 1);
        *ret_bits = 62 - weight_bits - bits;
        *ret_max = ldexpf(1, bits);
        return 0;
}

int mfl_fixed_choose(float delta_max, uint64_t weight_max, struct mfl_fixed *ret_fixed, struct mfl_error *err)
{
        return mfl_fixed_choose_share(delta_max, weight_max, 0, ret_fixed, err);
}

int mfl_fixed_choose_share(float delta_max, uint64_t weight_max, int share_bits, struct mfl_fixed *ret_fixed,
        struct mfl_error *err)
{
        struct mfl_fixed fixed = {.weight_max = weight_max, .share_bits = share_bits};
        mfl_assert(share_bits >= 0 && share_bits <= 20);
        if (weight_max < 1 || weight_max > (uint64_t)1 << 50)
                return mfl_fail(err, MFL_INVALID, "sum of weights: expected 1 to 2^50, got %llu",
                        (unsigned long long)weight_max);
        int r = choose_scale("delta_max", delta_max, weight_max, &fixed.scale_bits, &fixed.delta_max, err);
        fixed.scale_bits -= share_bits;
        if (!r)
                *ret_fixed = fixed;
        return r;
}

int mfl_fixed_choose_statistics(float statistics_max, struct mfl_fixed *ret_fixed, struct mfl_error *err)
{
        return choose_scale("statistics_max", statistics_max, ret_fixed->weight_max,
                &ret_fixed->statistics_bits, &ret_fixed->statistics_max, err);
}

struct mfl_fixed_part mfl_fixed_part_at(
        const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, uint64_t i, uint64_t end)
{
        struct mfl_fixed_part part = {.fixed = *fixed, .end = end};
        if (!parts || fixed->statistics_max == 0)
                return part;
        size_t low = 0, high = parts->n; /* the first edge after i */
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (parts->edge[middle] <= i)
                        low = middle + 1;
                else
                        high = middle;
        }
        if (low < parts->n)
                part.end = MFL_MIN(end, parts->edge[low]);
        part.statistics = low % 2 == 1;
        if (part.statistics) {
                part.fixed.scale_bits = fixed->statistics_bits;
                part.fixed.delta_max = fixed->statistics_max;
                part.fixed.share_bits = 0;
        }
        return part;
}

/* An update is added in blocks, and while one block is added the next one is checked: an update is then read from
 * memory once, and the processor adds while it waits for the elements to check. Without the prefetch it would also
 * wait for the next block's sums: processors look ahead only a few iterations of a long loop body. The checks count
 * bad elements instead of stopping at the first one, so that the loops have no branch. */
#define BLOCK ((size_t)1024)
#define STRIDE ((size_t)64)
static inline void prefetch_sums(const uint64_t *acc)
{
        for (size_t i = 0; i < STRIDE; i += 64 / sizeof *acc)
                __builtin_prefetch(acc + i, 1);
}

/* Each function adds n elements to acc, checks the `next` elements after them, and returns how many of those are bad.
 * Sums are unsigned, where wrapping is defined: a caller that exceeds the round's weight limit gets a wrong sum but
 * no undefined behaviour. */
MFL_CLONES static size_t add_delta(double factor, const float *restrict p1, const float *restrict p0,
        size_t n, uint64_t *restrict acc, size_t next, float delta_max)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= MFL_MIN(n, next); i += STRIDE) {
                prefetch_sums(acc + n + i);
                for (size_t k = i; k < i + STRIDE; k++) {
                        bad += !(fabsf(p1[n + k] - p0[n + k]) <= delta_max);
                        acc[k] += mfl_fixed_round((double)(p1[k] - p0[k]) * factor);
                }
        }
        for (size_t k = i; k < next; k++)
                bad += !(fabsf(p1[n + k] - p0[n + k]) <= delta_max);
        for (size_t k = i; k < n; k++)
                acc[k] += mfl_fixed_round((double)(p1[k] - p0[k]) * factor);
        return bad;
}

MFL_CLONES static size_t add_f32(double factor, const float *restrict delta, size_t n, uint64_t *restrict acc,
        size_t next, float delta_max)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= MFL_MIN(n, next); i += STRIDE) {
                prefetch_sums(acc + n + i);
                for (size_t k = i; k < i + STRIDE; k++) {
                        bad += !(fabsf(delta[n + k]) <= delta_max);
                        acc[k] += mfl_fixed_round((double)delta[k] * factor);
                }
        }
        for (size_t k = i; k < next; k++)
                bad += !(fabsf(delta[n + k]) <= delta_max);
        for (size_t k = i; k < n; k++)
                acc[k] += mfl_fixed_round((double)delta[k] * factor);
        return bad;
}

MFL_CLONES static size_t add_i64(
        const int64_t *restrict sum, size_t n, uint64_t *restrict acc, size_t next, int64_t limit)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= MFL_MIN(n, next); i += STRIDE) {
                prefetch_sums(acc + n + i);
                for (size_t k = i; k < i + STRIDE; k++) {
                        bad += (sum[n + k] > limit) | (sum[n + k] < -limit);
                        acc[k] += (uint64_t)sum[k];
                }
        }
        for (size_t k = i; k < next; k++)
                bad += (sum[n + k] > limit) | (sum[n + k] < -limit);
        for (size_t k = i; k < n; k++)
                acc[k] += (uint64_t)sum[k];
        return bad;
}

/* Subtracts what was added: the integers are the same, so acc is as it was before. */
MFL_CLONES static void subtract_f32(
        double factor, const float *restrict delta, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= mfl_fixed_round((double)delta[i] * factor);
}

MFL_CLONES static void subtract_delta(
        double factor, const float *restrict p1, const float *restrict p0, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= mfl_fixed_round((double)(p1[i] - p0[i]) * factor);
}

MFL_CLONES static void subtract_i64(const uint64_t *restrict sum, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= sum[i];
}

static int check_weight(
        const struct mfl_fixed *fixed, uint64_t weight, uint64_t weight_max, struct mfl_error *err)
{
        weight_max = MFL_MIN(weight_max, fixed->weight_max);
        if (weight < 1 || weight > weight_max)
                return mfl_fail(err, MFL_INVALID, "weight of an update: expected 1 to %llu, got %llu",
                        (unsigned long long)weight_max, (unsigned long long)weight);
        return 0;
}

/* Elements to add: sum, or p1 - p0, or p1 where p0 is NULL. */
struct elements {
        const float *p1, *p0;
        const int64_t *sum;
        bool has_real; /* deltas that are no running statistics count with this weight */
        double real;
};

static struct elements elements_from(const struct elements *e, size_t at)
{
        struct elements rest = *e;
        rest.p1 = e->p1 ? e->p1 + at : NULL;
        rest.p0 = e->p0 ? e->p0 + at : NULL;
        rest.sum = e->sum ? e->sum + at : NULL;
        return rest;
}

static float delta_of(const struct elements *e, size_t i)
{
        return e->p0 ? e->p1[i] - e->p0[i] : e->p1[i];
}

/* The largest sum of an update of that weight. delta_max * 2^s is a whole power of two (at least 2^12), so this is
 * exact. */
static int64_t limit_of(const struct mfl_fixed *fixed, uint64_t weight)
{
        return (int64_t)weight *
               (int64_t)ldexp((double)fixed->delta_max, fixed->scale_bits + fixed->share_bits);
}

static double factor_of(const struct mfl_fixed_part *part, uint64_t weight, const struct elements *e)
{
        double w = e->has_real && !part->statistics ? e->real : (double)weight;
        return ldexp(w, part->fixed.scale_bits);
}

static void subtract(
        const struct mfl_fixed_part *part, uint64_t weight, const struct elements *e, size_t n, uint64_t *acc)
{
        double factor = factor_of(part, weight, e);
        if (e->sum)
                subtract_i64((const uint64_t *)e->sum, n, acc);
        else if (e->p0)
                subtract_delta(factor, e->p1, e->p0, n, acc);
        else
                subtract_f32(factor, e->p1, n, acc);
}

/* Adds elements of one scale. Returns n, or the index of the first element that is over the limit; acc is then as it
 * was before. */
static size_t add_part(
        const struct mfl_fixed_part *part, uint64_t weight, const struct elements *e, size_t n, uint64_t *acc)
{
        double factor = factor_of(part, weight, e);
        int64_t limit = e->sum ? limit_of(&part->fixed, weight) : 0;
        float max = part->fixed.delta_max;
        for (size_t added = 0, checked = 0; added < n;) {
                size_t next = MFL_MIN(BLOCK, n - checked), count = checked - added, bad;
                if (e->sum)
                        bad = add_i64(e->sum + added, count, acc + added, next, limit);
                else if (e->p0)
                        bad = add_delta(factor, e->p1 + added, e->p0 + added, count, acc + added, next, max);
                else
                        bad = add_f32(factor, e->p1 + added, count, acc + added, next, max);
                added = checked;
                checked += next;
                if (!bad)
                        continue;
                size_t i = added;
                while (e->sum ? e->sum[i] <= limit && e->sum[i] >= -limit : fabsf(delta_of(e, i)) <= max)
                        i++;
                subtract(part, weight, e, added, acc);
                return i;
        }
        return n;
}

static void subtract_all(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, uint64_t first,
        uint64_t weight, const struct elements *all, size_t n, uint64_t *acc)
{
        for (size_t at = 0; at < n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, parts, first + at, first + n);
                struct elements e = elements_from(all, at);
                subtract(&part, weight, &e, (size_t)(part.end - first) - at, acc + at);
                at = (size_t)(part.end - first);
        }
}

static int fail_delta(const struct mfl_fixed_part *part, uint64_t i, float delta, struct mfl_error *err)
{
        if (part->statistics)
                return mfl_fail(err, MFL_INVALID,
                        "element %llu of an update, one of the running statistics of batch norm, is %.9g, "
                        "expected "
                        "within +-%g (aggregation.statistics_max)",
                        (unsigned long long)i, (double)delta, (double)part->fixed.delta_max);
        return mfl_fail(err, MFL_INVALID, "element %llu of an update is %.9g, expected within +-%g",
                (unsigned long long)i, (double)delta, (double)part->fixed.delta_max);
}

static int add_all(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts, uint64_t first,
        uint64_t weight, const struct elements *all, size_t n, uint64_t *acc, struct mfl_error *err)
{
        int r = check_weight(fixed, weight, all->sum ? fixed->weight_max : MFL_WEIGHT_MAX, err);
        for (size_t at = 0; !r && at < n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, parts, first + at, first + n);
                struct elements e = elements_from(all, at);
                size_t count = (size_t)(part.end - first) - at;
                size_t bad = add_part(&part, weight, &e, count, acc + at);
                if (bad == count) {
                        at += count;
                        continue;
                }
                subtract_all(fixed, parts, first, weight, all, at, acc);
                if (!e.sum)
                        return fail_delta(&part, first + at + bad, delta_of(&e, bad), err);
                long long limit = (long long)limit_of(&part.fixed, weight);
                return mfl_fail(err, MFL_INVALID,
                        "element %llu of an update of weight %llu is %lld, expected within +-%lld",
                        (unsigned long long)(first + at + bad), (unsigned long long)weight,
                        (long long)e.sum[bad], limit);
        }
        return r;
}

int mfl_fixed_parts_add_delta(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *p1, const float *p0, size_t n, int64_t *acc,
        struct mfl_error *err)
{
        struct elements all = {.p1 = p1, .p0 = p0};
        return add_all(fixed, parts, first, weight, &all, n, (uint64_t *)acc, err);
}

int mfl_fixed_parts_add_f32(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *delta, size_t n, int64_t *acc, struct mfl_error *err)
{
        struct elements all = {.p1 = delta};
        return add_all(fixed, parts, first, weight, &all, n, (uint64_t *)acc, err);
}

int mfl_fixed_parts_add_real(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, double real, const float *delta, size_t n, int64_t *acc,
        struct mfl_error *err)
{
        struct elements all = {.p1 = delta, .has_real = true, .real = real};
        double most = ldexp((double)weight, fixed->share_bits);
        if (!(real >= 0 && real <= most))
                return mfl_fail(
                        err, MFL_INVALID, "real weight of an update: expected 0 to %g, got %g", most, real);
        return add_all(fixed, parts, first, weight, &all, n, (uint64_t *)acc, err);
}

int mfl_fixed_parts_add_i64(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const int64_t *sum, size_t n, int64_t *acc, struct mfl_error *err)
{
        struct elements all = {.sum = sum};
        return add_all(fixed, parts, first, weight, &all, n, (uint64_t *)acc, err);
}

void mfl_fixed_parts_subtract_f32(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        uint64_t first, uint64_t weight, const float *delta, size_t n, int64_t *acc)
{
        struct elements all = {.p1 = delta};
        subtract_all(fixed, parts, first, weight, &all, n, (uint64_t *)acc);
}

void mfl_fixed_subtract_i64(const int64_t *sum, size_t n, int64_t *acc)
{
        subtract_i64((const uint64_t *)sum, n, (uint64_t *)acc);
}

int mfl_fixed_parts_check(const struct mfl_fixed *fixed, const struct mfl_fixed_parts *parts,
        const float *delta, size_t n, struct mfl_error *err)
{
        for (uint64_t at = 0; at < n;) {
                struct mfl_fixed_part part = mfl_fixed_part_at(fixed, parts, at, n);
                for (; at < part.end; at++)
                        if (!(fabsf(delta[at]) <= part.fixed.delta_max))
                                return fail_delta(&part, at, delta[at], err);
        }
        return 0;
}
