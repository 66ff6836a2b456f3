/* SPDX-License-Identifier: Apache-2.0 */
/* Exact aggregation in 64-bit fixed point: loops that check a block of an update and add it, and take it all
 * away again when a later block is wrong.
 *
 * The products need no care: weight has at most 30 bits of which 29 count, delta has 24, so weight * delta
 * has at most 53 and is exact in double; the factor 2^s only moves the exponent. So there is one rounding,
 * the one to an integer. The loops are plain C that compilers vectorise, and give the same integers on every
 * machine.
 */
#include "common/fixed.h"

#include <math.h>

/* One body, compiled for several instruction sets and picked at start. Not under sanitizers, whose run-time
 * is not up yet when the picking happens, and not where the C library has no ifunc. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(SANITIZED) &&                                      \
        (!defined(__clang__) || __clang_major__ >= 14)
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif

int mfl_fixed_choose(float delta_max, uint64_t weight_max, struct mfl_fixed *ret_fixed, struct mfl_error *err)
{
        if (!(delta_max > 0) || delta_max > 0x1p40f)
                return mfl_fail(err, MFL_INVALID, "delta_max: expected a number from 2^-20 to 2^40, got %g",
                        (double)delta_max);
        if (weight_max < 1 || weight_max > (uint64_t)1 << 50)
                return mfl_fail(err, MFL_INVALID, "sum of weights: expected 1 to 2^50, got %llu",
                        (unsigned long long)weight_max);
        int delta_bits;
        if (frexpf(delta_max, &delta_bits) == 0.5f)
                delta_bits--;
        if (delta_bits < -20)
                return mfl_fail(err, MFL_INVALID, "delta_max: expected a number from 2^-20 to 2^40, got %g",
                        (double)delta_max);
        int weight_bits = weight_max == 1 ? 0 : 64 - __builtin_clzll(weight_max - 1);
        struct mfl_fixed fixed = {.scale_bits = 62 - weight_bits - delta_bits,
                .delta_max = ldexpf(1, delta_bits),
                .weight_max = weight_max};
        *ret_fixed = fixed;
        return 0;
}

/* The checks count misfits instead of leaving at the first one: that makes them loops without a branch. */
/* While a block is checked, the sums that it will be added to are on their way from memory. Without that the
 * addition waits for them: processors look ahead only as far as a few iterations of a long loop body. */
#define STRIDE ((size_t)64)
static inline void prefetch_sums(const uint64_t *acc)
{
        for (size_t i = 0; i < STRIDE; i += 64 / sizeof *acc)
                __builtin_prefetch(acc + i, 1);
}

VECTORS static size_t count_bad_f32(const float *delta, size_t n, float delta_max, const uint64_t *acc)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= n; i += STRIDE) {
                prefetch_sums(acc + i);
                for (size_t k = i; k < i + STRIDE; k++)
                        bad += !(fabsf(delta[k]) <= delta_max);
        }
        for (; i < n; i++)
                bad += !(fabsf(delta[i]) <= delta_max);
        return bad;
}

VECTORS static size_t count_bad_delta(
        const float *p1, const float *p0, size_t n, float delta_max, const uint64_t *acc)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= n; i += STRIDE) {
                prefetch_sums(acc + i);
                for (size_t k = i; k < i + STRIDE; k++)
                        bad += !(fabsf(p1[k] - p0[k]) <= delta_max);
        }
        for (; i < n; i++)
                bad += !(fabsf(p1[i] - p0[i]) <= delta_max);
        return bad;
}

VECTORS static size_t count_bad_i64(const int64_t *sum, size_t n, int64_t limit, const uint64_t *acc)
{
        size_t bad = 0, i = 0;
        for (; i + STRIDE <= n; i += STRIDE) {
                prefetch_sums(acc + i);
                for (size_t k = i; k < i + STRIDE; k++)
                        bad += (sum[k] > limit) | (sum[k] < -limit);
        }
        for (; i < n; i++)
                bad += (sum[i] > limit) | (sum[i] < -limit);
        return bad;
}

/* Sums are done unsigned, where wrapping is defined: a caller that breaks the round's weight limit gets a
 * wrong sum but no undefined behaviour. */
VECTORS static void add_delta(
        double factor, const float *restrict p1, const float *restrict p0, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += mfl_fixed_round((double)(p1[i] - p0[i]) * factor);
}

VECTORS static void add_f32(double factor, const float *restrict delta, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += mfl_fixed_round((double)delta[i] * factor);
}

VECTORS static void add_i64(const uint64_t *restrict sum, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += sum[i];
}

/* What was added is taken away again: the integers are the same, so acc is as it was. */
VECTORS static void subtract_f32(double factor, const float *restrict delta, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= mfl_fixed_round((double)delta[i] * factor);
}

VECTORS static void subtract_delta(
        double factor, const float *restrict p1, const float *restrict p0, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= mfl_fixed_round((double)(p1[i] - p0[i]) * factor);
}

VECTORS static void subtract_i64(const uint64_t *restrict sum, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] -= sum[i];
}

/* An update is checked and added so many elements at a time, so that it comes from memory once and not twice.
 */
#define BLOCK ((size_t)1024)

static int check_weight(
        const struct mfl_fixed *fixed, uint64_t weight, uint64_t weight_max, struct mfl_error *err)
{
        weight_max = MFL_MIN(weight_max, fixed->weight_max);
        if (weight < 1 || weight > weight_max)
                return mfl_fail(err, MFL_INVALID, "weight of an update: expected 1 to %llu, got %llu",
                        (unsigned long long)weight_max, (unsigned long long)weight);
        return 0;
}

static int fail_delta(const struct mfl_fixed *fixed, size_t i, float delta, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "element %zu of an update is %.9g, expected within +-%g", i,
                (double)delta, (double)fixed->delta_max);
}

int mfl_fixed_add_delta(const struct mfl_fixed *fixed, uint64_t weight, const float *p1, const float *p0,
        size_t n, int64_t *acc, struct mfl_error *err)
{
        int r = check_weight(fixed, weight, MFL_WEIGHT_MAX, err);
        if (r)
                return r;
        double factor = ldexp((double)weight, fixed->scale_bits);
        for (size_t done = 0; done < n; done += BLOCK) {
                size_t count = MFL_MIN(BLOCK, n - done);
                const float *q1 = p1 + done, *q0 = p0 + done;
                if (count_bad_delta(q1, q0, count, fixed->delta_max, (uint64_t *)acc + done)) {
                        size_t i = done;
                        while (fabsf(p1[i] - p0[i]) <= fixed->delta_max)
                                i++;
                        subtract_delta(factor, p1, p0, done, (uint64_t *)acc);
                        return fail_delta(fixed, i, p1[i] - p0[i], err);
                }
                add_delta(factor, q1, q0, count, (uint64_t *)acc + done);
        }
        return 0;
}

int mfl_fixed_add_f32(const struct mfl_fixed *fixed, uint64_t weight, const float *delta, size_t n,
        int64_t *acc, struct mfl_error *err)
{
        int r = check_weight(fixed, weight, MFL_WEIGHT_MAX, err);
        if (r)
                return r;
        double factor = ldexp((double)weight, fixed->scale_bits);
        for (size_t done = 0; done < n; done += BLOCK) {
                size_t count = MFL_MIN(BLOCK, n - done);
                if (count_bad_f32(delta + done, count, fixed->delta_max, (uint64_t *)acc + done)) {
                        size_t i = done;
                        while (fabsf(delta[i]) <= fixed->delta_max)
                                i++;
                        subtract_f32(factor, delta, done, (uint64_t *)acc);
                        return fail_delta(fixed, i, delta[i], err);
                }
                add_f32(factor, delta + done, count, (uint64_t *)acc + done);
        }
        return 0;
}

int mfl_fixed_add_i64(const struct mfl_fixed *fixed, uint64_t weight, const int64_t *sum, size_t n,
        int64_t *acc, struct mfl_error *err)
{
        int r = check_weight(fixed, weight, fixed->weight_max, err);
        if (r)
                return r;
        /* delta_max * 2^s is a whole power of two (at least 2^12), so the largest sum is exact. */
        int64_t limit = (int64_t)weight * (int64_t)ldexp((double)fixed->delta_max, fixed->scale_bits);
        for (size_t done = 0; done < n; done += BLOCK) {
                size_t count = MFL_MIN(BLOCK, n - done);
                if (!count_bad_i64(sum + done, count, limit, (uint64_t *)acc + done)) {
                        add_i64((const uint64_t *)sum + done, count, (uint64_t *)acc + done);
                        continue;
                }
                size_t i = done;
                while (sum[i] <= limit && sum[i] >= -limit)
                        i++;
                subtract_i64((const uint64_t *)sum, done, (uint64_t *)acc);
                return mfl_fail(err, MFL_INVALID,
                        "element %zu of an update of weight %llu is %lld, expected within +-%lld", i,
                        (unsigned long long)weight, (long long)sum[i], (long long)limit);
        }
        return 0;
}
