/* SPDX-License-Identifier: Apache-2.0 */
/* A new version on trial: which keys it answers, and when it is out. */
#include "tests/lib/test.h"

#include <math.h>

#include "serve/batch/canary.h"

static const struct mfl_canary_config config = {
        .share = 0.1, .for_us = 1000000, .failures_max = 0.02, .slower_max = 2};

static void a_tenth_of_ten_thousand_keys(void **state)
{
        uint32_t n = 0, n_half = 0;
        for (int i = 0; i < 10000; i++) {
                char key[32];
                const int bytes = mfl_snprintf(key, sizeof key, "user-%d", i);
                const bool tenth = mfl_canary_takes(0.1, key, (size_t)bytes),
                           half = mfl_canary_takes(0.5, key, (size_t)bytes);
                n += tenth;
                n_half += half;
                assert_true(half || !tenth); /* a larger share keeps those that it had */
                assert_false(mfl_canary_takes(0, key, (size_t)bytes));
                assert_true(mfl_canary_takes(1, key, (size_t)bytes));
        }
        assert_in_range(n, 900, 1100);
        assert_in_range(n_half, 4800, 5200);
}

/* A version that fails one request in twenty, by seeded chance, is out within 200 requests; one in a thousand is not. */
static void failures(void **state)
{
        uint32_t n_late = 0;
        for (uint32_t seed = 1; seed <= 300; seed++) {
                struct mfl_canary bad, fine;
                uint32_t random = seed;
                int out = 0;
                mfl_canary_begin(&bad, &config, 0);
                mfl_canary_begin(&fine, &config, 0);
                for (int i = 1; i <= 400; i++) {
                        random = random * 1664525u + 1013904223u;
                        mfl_canary_note(&bad, random < UINT32_MAX / 20);
                        mfl_canary_note(&fine, i == 200);
                        assert_int_not_equal(mfl_canary_judge(&fine, 5, 10, 10), MFL_CANARY_BAD);
                        if (!out && mfl_canary_judge(&bad, 5, 10, 10) == MFL_CANARY_BAD)
                                out = i;
                }
                n_late += out == 0 || out > 200;
        }
        /* Fewer than three failures in 200 requests have a probability of 0.2%. */
        assert_in_range(n_late, 0, 5);
}

static void two_accidents_are_no_rule(void **state)
{
        struct mfl_canary c;
        mfl_canary_begin(&c, &config, 100);
        mfl_canary_note(&c, true);
        mfl_canary_note(&c, true);
        assert_int_equal(mfl_canary_judge(&c, 200, 0, 0), MFL_CANARY_GOING);
        mfl_canary_note(&c, true);
        assert_int_equal(mfl_canary_judge(&c, 200, 0, 0), MFL_CANARY_BAD);
}

static void pace_and_time(void **state)
{
        struct mfl_canary c;
        mfl_canary_begin(&c, &config, 100);
        for (int i = 0; i < 49; i++)
                mfl_canary_note(&c, false);
        assert_int_equal(mfl_canary_judge(&c, 200, 100, 10), MFL_CANARY_GOING); /* too few to tell */
        mfl_canary_note(&c, false);
        assert_int_equal(mfl_canary_judge(&c, 200, 100, 10), MFL_CANARY_BAD);
        assert_int_equal(mfl_canary_judge(&c, 200, 19, 10), MFL_CANARY_GOING);
        assert_int_equal(mfl_canary_judge(&c, 200, 100, 0), MFL_CANARY_GOING); /* nothing to compare with */
        assert_int_equal(mfl_canary_judge(&c, 1000099, 19, 10), MFL_CANARY_GOING);
        assert_int_equal(mfl_canary_judge(&c, 1000100, 19, 10), MFL_CANARY_GOOD);
}

static void answers_and_mirrors_are_disjoint(void **state)
{
        uint32_t n = 0;
        for (int i = 0; i < 10000; i++) {
                char key[32];
                const size_t bytes = (size_t)mfl_snprintf(key, sizeof key, "user-%d", i);
                const bool mirrors = mfl_canary_mirrors(0.3, key, bytes);
                n += mirrors;
                assert_false(mirrors && mfl_canary_takes(0.7, key, bytes));
                assert_true(mfl_canary_mirrors(1, key, bytes));
                assert_false(mfl_canary_mirrors(0, key, bytes));
        }
        assert_in_range(n, 2800, 3200);
}

static void answers_are_compared(void **state)
{
        struct mfl_mirrored m = {0};
        const float before[] = {1, 2, 3, 3, 2, 1}, now[] = {1, 2, 2.5f, 3, 4, 1}, bad[] = {1, 2, NAN};
        mfl_mirrored_add(&m, before, now, 2, 3, 1);
        assert_int_equal(m.requests, 1);
        assert_int_equal(m.rows, 2);
        assert_int_equal(m.differ, 1); /* of the first, the class is the same */
        assert_float_equal(m.difference_max, 2, 0);
        mfl_mirrored_add(&m, before, now, 1, 6, 2); /* two positions of one row */
        assert_int_equal(m.differ, 2);
        mfl_mirrored_add(&m, before, before, 2, 3, 0);
        assert_int_equal(m.differ, 2);
        mfl_mirrored_add(&m, before, now, 2, 3, 0); /* numbers */
        assert_int_equal(m.differ, 4);
        mfl_mirrored_add(&m, before, bad, 1, 3, 1);
        assert_int_equal(m.differ, 5);
        assert_true(isinf(m.difference_max));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_tenth_of_ten_thousand_keys),
                cmocka_unit_test(failures),
                cmocka_unit_test(two_accidents_are_no_rule),
                cmocka_unit_test(pace_and_time),
                cmocka_unit_test(answers_and_mirrors_are_disjoint),
                cmocka_unit_test(answers_are_compared),
        };
        return cmocka_run_group_tests_name("serve_canary", tests, NULL, NULL);
}
