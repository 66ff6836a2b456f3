/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: order, rounding, limits. Everything here is compared exactly. */
#include "tests/lib/test.h"
#include "common/base/fixed.h"
#include "common/base/rng.h"

#include <math.h>
#include <stdio.h>

#define N 1003 /* no multiple of any vector's width */

static struct mfl_fixed fixed_of(float delta_max, uint64_t weight_max)
{
        struct mfl_fixed fixed;
        struct mfl_error err;
        assert_int_equal(mfl_fixed_choose(delta_max, weight_max, &fixed, &err), 0);
        return fixed;
}

static void scale_is_the_largest_that_cannot_overflow(void **state)
{
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        for (int i = 0; i < 2000; i++) {
                float delta_max =
                        ldexpf(1 + mfl_u32_to_unit(mfl_rng_u32(&rng)), (int)mfl_rng_below(&rng, 60) - 20);
                uint64_t weight_max = (mfl_rng_u64(&rng) >> (14 + mfl_rng_below(&rng, 50))) + 1;
                weight_max = MFL_MIN(weight_max, (uint64_t)1 << 50);
                struct mfl_fixed f = fixed_of(delta_max, weight_max);
                assert_true(f.weight_max == weight_max);
                assert_true(f.delta_max >= delta_max && f.delta_max < 2 * delta_max);
                assert_true(frexpf(f.delta_max, &(int){0}) == 0.5f);
                /* Long double has the 64 bits that make these products exact. */
                long double largest =
                        ldexpl((long double)weight_max * (long double)f.delta_max, f.scale_bits);
                assert_true(largest <= 0x1p62L);
                assert_true(2 * largest > 0x1p62L);
        }
}

static void limits_outside_are_refused(void **state)
{
        struct mfl_fixed f = {.scale_bits = 77};
        struct mfl_error err;
        const float bad[] = {0, -1, NAN, INFINITY, 0x1.8p40f, 0x1p-21f};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++)
                assert_int_equal(mfl_fixed_choose(bad[i], 1, &f, &err), MFL_INVALID);
        assert_int_equal(mfl_fixed_choose(1, 0, &f, &err), MFL_INVALID);
        assert_int_equal(mfl_fixed_choose(1, ((uint64_t)1 << 50) + 1, &f, &err), MFL_INVALID);
        assert_int_equal(f.scale_bits, 77);
        assert_int_equal(mfl_fixed_choose(0x1p40f, (uint64_t)1 << 50, &f, &err), 0);
        assert_int_equal(mfl_fixed_choose(0x1p-20f, 1, &f, &err), 0);
        assert_int_equal(f.scale_bits, 82);
}

/* The specification: one rounding of the exact product by the C library. */
static void elements_are_rounded_as_llrint_does(void **state)
{
        struct mfl_rng rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0);
        for (int round = 0; round < 200; round++) {
                float delta_max = ldexpf(1, (int)mfl_rng_below(&rng, 60) - 20), p0[N], p1[N], d[N];
                uint64_t weight = (mfl_rng_u32(&rng) >> (3 + mfl_rng_below(&rng, 29))) + 1;
                struct mfl_fixed f = fixed_of(delta_max, weight + mfl_rng_u32(&rng));
                int64_t acc_d[N] = {0}, acc_f[N] = {0};
                for (int i = 0; i < N; i++) {
                        int small = (int)mfl_rng_below(&rng, 70);
                        p1[i] = ldexpf(delta_max * (2 * mfl_u32_to_unit(mfl_rng_u32(&rng)) - 1) / 2, -small);
                        p0[i] = ldexpf(delta_max * (2 * mfl_u32_to_unit(mfl_rng_u32(&rng)) - 1) / 2, -small);
                        d[i] = p1[i] - p0[i];
                }
                d[0] = p1[0] = delta_max;
                p0[0] = 0;
                d[1] = p1[1] = -delta_max;
                p0[1] = 0;
                assert_int_equal(mfl_fixed_add_delta(&f, weight, p1, p0, N, acc_d, NULL), 0);
                assert_int_equal(mfl_fixed_add_f32(&f, weight, d, N, acc_f, NULL), 0);
                for (int i = 0; i < N; i++) {
                        int64_t want = llrint(ldexp((double)weight * (double)d[i], f.scale_bits));
                        assert_true(acc_d[i] == want);
                        assert_true(acc_f[i] == want);
                }
        }
}

static void ties_go_to_even(void **state)
{
        /* delta_max 2^40 and weight 2^50 make the scale 2^-28, so 2^28 is one unit and 2^27 a half. */
        struct mfl_fixed f = fixed_of(0x1p40f, (uint64_t)1 << 50);
        assert_int_equal(f.scale_bits, -28);
        const float unit = 0x1p28f;
        const float in[] = {
                0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.50000006f, -0.50000006f, 0.49999997f, 3.5f, 1};
        const int64_t out[] = {0, 2, 2, 0, -2, -2, 1, -1, 0, 4, 1};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(in); i++) {
                int64_t acc = 0;
                float delta = in[i] * unit;
                assert_int_equal(mfl_fixed_add_f32(&f, 1, &delta, 1, &acc, NULL), 0);
                assert_int_equal(acc, out[i]);
        }
}

static void sums_do_not_depend_on_order_or_grouping(void **state)
{
        enum { CLIENTS = 37 };
        static float delta[CLIENTS][N];
        static int64_t all[N], reversed[N], half[2][N], grouped[N];
        uint64_t weight[CLIENTS], total = 0, half_weight[2] = {0, 0};
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, 0, 0);
        for (int c = 0; c < CLIENTS; c++) {
                weight[c] = 1 + mfl_rng_below(&rng, 1000);
                total += weight[c];
                for (int i = 0; i < N; i++)
                        delta[c][i] = 16 * (2 * mfl_u32_to_unit(mfl_rng_u32(&rng)) - 1);
        }
        struct mfl_fixed f = fixed_of(16, total);
        for (int c = 0; c < CLIENTS; c++) {
                int r = CLIENTS - 1 - c;
                assert_int_equal(mfl_fixed_add_f32(&f, weight[c], delta[c], N, all, NULL), 0);
                assert_int_equal(mfl_fixed_add_f32(&f, weight[r], delta[r], N, reversed, NULL), 0);
                assert_int_equal(mfl_fixed_add_f32(&f, weight[c], delta[c], N, half[c % 2], NULL), 0);
                half_weight[c % 2] += weight[c];
        }
        for (int h = 1; h >= 0; h--)
                assert_int_equal(mfl_fixed_add_i64(&f, half_weight[h], half[h], N, grouped, NULL), 0);
        assert_memory_equal(all, reversed, sizeof all);
        assert_memory_equal(all, grouped, sizeof all);
        /* And the mean is the mean: one unit of rounding per client at most. */
        double sum = 0;
        for (int c = 0; c < CLIENTS; c++)
                sum += (double)weight[c] * (double)delta[c][5];
        assert_true(fabs(mfl_fixed_mean(&f, all[5], total) - sum / (double)total) < 1e-9);
}

static void wrong_elements_are_refused_and_nothing_is_added(void **state)
{
        struct mfl_fixed f = fixed_of(2, 100);
        const float bad[] = {NAN, INFINITY, -INFINITY, nextafterf(2, 3), -nextafterf(2, 3)};
        float p1[N] = {0}, p0[N] = {0};
        int64_t acc[N], before[N];
        for (int i = 0; i < N; i++)
                acc[i] = before[i] = i * 7 - 3;
        for (size_t b = 0; b < MFL_ARRAY_SIZE(bad); b++) {
                for (int at = 0; at < N; at += 167) {
                        struct mfl_error err = {""};
                        char want[64];
                        snprintf(want, sizeof want, "element %d of an update is %.9g,", at, (double)bad[b]);
                        p1[at] = bad[b];
                        assert_int_equal(mfl_fixed_add_f32(&f, 3, p1, N, acc, &err), MFL_INVALID);
                        assert_non_null(strstr(err.text, want));
                        memset(&err, 0, sizeof err);
                        assert_int_equal(mfl_fixed_add_delta(&f, 3, p1, p0, N, acc, &err), MFL_INVALID);
                        assert_non_null(strstr(err.text, want));
                        assert_memory_equal(acc, before, sizeof acc);
                        p1[at] = 0;
                }
        }
        /* Two finite numbers whose difference isn't. */
        p1[9] = 0x1.8p127f;
        p0[9] = -0x1.8p127f;
        assert_int_equal(mfl_fixed_add_delta(&f, 3, p1, p0, N, acc, NULL), MFL_INVALID);
        assert_memory_equal(acc, before, sizeof acc);
}

/* A long range that is wrong only at its end is left alone to the bit. */
static void a_late_wrong_element_leaves_the_rest_alone(void **state)
{
        enum { LONG = 40000 };
        static float delta[LONG], zero[LONG];
        static int64_t acc[LONG], before[LONG], all[LONG];
        struct mfl_fixed f = fixed_of(0x1p40f, (uint64_t)1 << 50); /* many ties */
        struct mfl_rng rng = mfl_rng_new(4, MFL_RNG_TEST, 0, 0);
        for (int i = 0; i < LONG; i++) {
                delta[i] = ((float)mfl_rng_below(&rng, 2000) - 1000) * 0x1p27f;
                acc[i] = before[i] = (int64_t)mfl_rng_u32(&rng);
        }
        const int at[] = {8191, 8192, 16384, LONG - 1};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(at); k++) {
                float good = delta[at[k]];
                delta[at[k]] = NAN;
                assert_int_equal(mfl_fixed_add_f32(&f, 3, delta, LONG, acc, NULL), MFL_INVALID);
                assert_memory_equal(acc, before, sizeof acc);
                assert_int_equal(mfl_fixed_add_delta(&f, 3, delta, zero, LONG, acc, NULL), MFL_INVALID);
                assert_memory_equal(acc, before, sizeof acc);
                delta[at[k]] = good;
        }
        assert_int_equal(mfl_fixed_add_f32(&f, 3, delta, LONG, all, NULL), 0);
        for (int i = 0; i < LONG; i++)
                assert_true(all[i] == llrint(ldexp(3 * (double)delta[i], f.scale_bits)));
}

/* Sums of updates as well: they are checked and added in pieces, and a wrong element may be in any of them.
 */
static void a_late_wrong_sum_leaves_the_rest_alone(void **state)
{
        static int64_t sum[5000], acc[5000], before[5000];
        struct mfl_fixed f = fixed_of(1, 1000);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sum); i++) {
                sum[i] = (int64_t)(i * 0x9e3779b97f4a7c15u) >> 20;
                before[i] = acc[i] = (int64_t)(i * 0xbf58476d1ce4e5b9u) >> 8;
        }
        for (size_t at = 0; at < MFL_ARRAY_SIZE(sum); at += 833) {
                int64_t right = sum[at];
                struct mfl_error err;
                char want[64];
                sum[at] = INT64_MIN;
                snprintf(want, sizeof want, "element %zu of an update", at);
                assert_int_equal(
                        mfl_fixed_add_i64(&f, 1000, sum, MFL_ARRAY_SIZE(sum), acc, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, want));
                assert_memory_equal(acc, before, sizeof acc);
                sum[at] = right;
        }
        assert_int_equal(mfl_fixed_add_i64(&f, 1000, sum, MFL_ARRAY_SIZE(sum), acc, NULL), 0);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sum); i++)
                assert_true(acc[i] == before[i] + sum[i]);
}

static void the_limits_themselves_are_fine(void **state)
{
        uint64_t weight_max = (1 << 20) + 1;
        struct mfl_fixed f = fixed_of(4, weight_max);
        float plus = 4, minus = -4;
        int64_t acc = 0, lowest = 0;
        assert_int_equal(mfl_fixed_add_f32(&f, weight_max, &plus, 1, &acc, NULL), 0);
        assert_int_equal(mfl_fixed_add_f32(&f, weight_max, &minus, 1, &lowest, NULL), 0);
        int64_t limit = (int64_t)ldexp((double)weight_max * 4, f.scale_bits);
        assert_true(acc == limit && lowest == -limit);
        assert_true(limit <= (int64_t)1 << 62 && limit > (int64_t)1 << 61);
        /* An added sum of the full weight has the same limits, to the unit. */
        const int64_t edge[] = {limit, -limit}, over[] = {0, limit + 1}, under[] = {-limit - 1, 0};
        int64_t sum[2] = {0, 0};
        struct mfl_error err;
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max, over, 2, sum, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "element 1 "));
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max, under, 2, sum, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "element 0 "));
        const int64_t extreme[] = {INT64_MIN, INT64_MAX};
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max, extreme, 2, sum, &err), MFL_INVALID);
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max - 1, edge, 2, sum, &err), MFL_INVALID);
        assert_true(sum[0] == 0 && sum[1] == 0);
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max, edge, 2, sum, &err), 0);
        assert_true(sum[0] == limit && sum[1] == -limit);
        assert_int_equal(mfl_fixed_add_i64(&f, weight_max + 1, edge, 2, sum, &err), MFL_INVALID);
}

static void weights_have_limits(void **state)
{
        struct mfl_fixed f = fixed_of(1, (uint64_t)1 << 40);
        float delta = 1;
        int64_t acc = 0;
        assert_int_equal(mfl_fixed_add_f32(&f, 0, &delta, 1, &acc, NULL), MFL_INVALID);
        assert_int_equal(mfl_fixed_add_f32(&f, MFL_WEIGHT_MAX + 1, &delta, 1, &acc, NULL), MFL_INVALID);
        assert_int_equal(acc, 0);
        assert_int_equal(mfl_fixed_add_f32(&f, MFL_WEIGHT_MAX, &delta, 1, &acc, NULL), 0);
        assert_true(acc == (int64_t)1 << (29 + 22));
        assert_int_equal(mfl_fixed_add_f32(&f, 1, &delta, 0, &acc, NULL), 0);
}

static void losses_are_clamped(void **state)
{
        assert_true(mfl_fixed_loss(NAN) == (int64_t)1 << 52);
        assert_true(mfl_fixed_loss(INFINITY) == (int64_t)1 << 52);
        assert_true(mfl_fixed_loss(0x1p20f) == (int64_t)1 << 52);
        assert_true(mfl_fixed_loss(-1) == 0 && mfl_fixed_loss(-INFINITY) == 0 && mfl_fixed_loss(0) == 0);
        assert_true(mfl_fixed_loss(1.5f) == (int64_t)3 << 31);
        assert_true(mfl_fixed_loss(0x1p-33f) == 0); /* a tie */
        assert_true(mfl_fixed_loss_to_double(mfl_fixed_loss(2.25f)) == 2.25);
}

/* Elements 3 to 5 and 8 are running statistics: each element has the bits that its own scale gives, whatever range is
 * added, and a bad one in a later part takes the earlier parts back. */
static void running_statistics_have_a_scale_of_their_own(void **state)
{
        enum { FEW = 11 };
        static const uint64_t edges[] = {3, 6, 8, 9};
        const struct mfl_fixed_parts parts = {edges, MFL_ARRAY_SIZE(edges)};
        struct mfl_fixed f = fixed_of(16, 1000), wide = fixed_of(65536, 1000);
        float delta[FEW] = {1, -2, 15.5f, 60000, -0.001f, 100, 3, 4, 17, 5, 6}, zero[FEW] = {0};
        int64_t sums[FEW] = {0}, deltas[FEW] = {0}, pieces[FEW] = {0}, want[FEW] = {0}, twice[FEW] = {0};
        assert_int_equal(mfl_fixed_choose_statistics(50000, &f, NULL), 0);
        assert_true(f.statistics_max == 65536 && f.statistics_bits == wide.scale_bits);
        for (size_t i = 0; i < FEW; i++) {
                bool statistics = (i >= 3 && i < 6) || i == 8;
                assert_int_equal(
                        mfl_fixed_add_f32(statistics ? &wide : &f, 7, &delta[i], 1, &want[i], NULL), 0);
        }
        assert_int_equal(mfl_fixed_parts_add_f32(&f, &parts, 0, 7, delta, FEW, sums, NULL), 0);
        assert_memory_equal(sums, want, sizeof want);
        assert_int_equal(mfl_fixed_parts_add_delta(&f, &parts, 0, 7, delta, zero, FEW, deltas, NULL), 0);
        assert_memory_equal(deltas, want, sizeof want);
        for (size_t at = 0, n = 1; at < FEW; at += n, n = MFL_MIN(n + 1, FEW - at))
                assert_int_equal(
                        mfl_fixed_parts_add_f32(&f, &parts, at, 7, delta + at, n, pieces + at, NULL), 0);
        assert_memory_equal(pieces, want, sizeof want);
        assert_int_equal(mfl_fixed_parts_add_i64(&f, &parts, 0, 7, want, FEW, twice, NULL), 0);
        assert_memory_equal(twice, want, sizeof want);
        mfl_fixed_parts_subtract_f32(&f, &parts, 0, 7, delta, FEW, twice);
        for (size_t i = 0; i < FEW; i++)
                assert_true(twice[i] == 0);
        struct mfl_error err;
        delta[8] = 70000;
        assert_int_equal(mfl_fixed_parts_add_f32(&f, &parts, 0, 7, delta, FEW, sums, &err), MFL_INVALID);
        assert_memory_equal(sums, want, sizeof want);
        assert_non_null(strstr(err.text, "element 8 of an update, one of the running statistics"));
        assert_int_equal(mfl_fixed_parts_check(&f, &parts, delta, FEW, &err), MFL_INVALID);
        delta[8] = 17;
        assert_int_equal(mfl_fixed_parts_check(&f, &parts, delta, FEW, &err), 0);
        delta[9] = 17;
        assert_int_equal(
                mfl_fixed_parts_add_delta(&f, &parts, 0, 7, delta, zero, FEW, sums, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "element 9 of an update is 17"));
        assert_memory_equal(sums, want, sizeof want);
        want[3] = ((int64_t)7 << f.statistics_bits) * 65536 + 1;
        assert_int_equal(mfl_fixed_parts_add_i64(&f, &parts, 0, 7, want, FEW, sums, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "element 3 "));
        f.statistics_max = 0; /* a job that began before: one scale for all */
        delta[8] = delta[9] = 5;
        assert_int_equal(mfl_fixed_parts_add_f32(&f, &parts, 0, 7, delta, FEW, sums, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "element 3 of an update is 60000, expected within +-16"));
}

/* The product is rounded to double, then to an integer, as written; running statistics count with the whole weight; and the
 * largest real weight of the largest round does not overflow. */
static void real_weights_are_folded_in_before_the_rounding(void **state)
{
        enum { MANY = 3000 };
        static const uint64_t edges[] = {5, 9};
        const struct mfl_fixed_parts parts = {edges, MFL_ARRAY_SIZE(edges)};
        static float delta[MANY];
        static int64_t sums[MANY], twice[MANY];
        struct mfl_rng rng = mfl_rng_new(5, 1, 0, 0);
        struct mfl_fixed f;
        struct mfl_error err;
        assert_int_equal(mfl_fixed_choose_share(16, 1000, 10, &f, NULL), 0);
        assert_int_equal(f.scale_bits, fixed_of(16, 1000).scale_bits - 10);
        assert_int_equal(mfl_fixed_choose_statistics(65536, &f, NULL), 0);
        for (size_t i = 0; i < MANY; i++)
                delta[i] = 32 * (float)mfl_rng_unit(&rng) - 16;
        double real = 7 / 3.0;
        assert_int_equal(mfl_fixed_parts_add_real(&f, &parts, 0, 7, real, delta, MANY, sums, NULL), 0);
        for (size_t i = 0; i < MANY; i++) {
                bool statistics = i >= 5 && i < 9;
                double product = (statistics ? 7 : real) * (double)delta[i];
                assert_true(sums[i] == llrint(ldexp(product, statistics ? f.statistics_bits : f.scale_bits)));
        }
        memcpy(twice, sums, sizeof sums);
        assert_int_equal(mfl_fixed_parts_add_i64(&f, &parts, 0, 7, sums, MANY, twice, NULL), 0);
        assert_true(twice[MANY - 1] == 2 * sums[MANY - 1]);
        delta[MANY - 1] = 17;
        assert_int_equal(
                mfl_fixed_parts_add_real(&f, &parts, 0, 7, real, delta, MANY, twice, &err), MFL_INVALID);
        assert_true(twice[0] == 2 * sums[0]);
        assert_int_equal(
                mfl_fixed_parts_add_real(&f, &parts, 0, 7, 7169, delta, 1, twice, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "expected 0 to 7168, got 7169"));
        float most = 16;
        int64_t sum = 0;
        assert_int_equal(mfl_fixed_parts_add_real(&f, NULL, 0, 1000, 1024000, &most, 1, &sum, NULL), 0);
        assert_true(sum > (int64_t)1 << 60 && sum <= (int64_t)1 << 62);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(scale_is_the_largest_that_cannot_overflow),
                cmocka_unit_test(limits_outside_are_refused),
                cmocka_unit_test(elements_are_rounded_as_llrint_does),
                cmocka_unit_test(ties_go_to_even),
                cmocka_unit_test(sums_do_not_depend_on_order_or_grouping),
                cmocka_unit_test(wrong_elements_are_refused_and_nothing_is_added),
                cmocka_unit_test(a_late_wrong_element_leaves_the_rest_alone),
                cmocka_unit_test(a_late_wrong_sum_leaves_the_rest_alone),
                cmocka_unit_test(the_limits_themselves_are_fine),
                cmocka_unit_test(weights_have_limits),
                cmocka_unit_test(losses_are_clamped),
                cmocka_unit_test(running_statistics_have_a_scale_of_their_own),
                cmocka_unit_test(real_weights_are_folded_in_before_the_rounding),
        };
        return cmocka_run_group_tests_name("fixed", tests, NULL, NULL);
}
