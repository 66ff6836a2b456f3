/* SPDX-License-Identifier: Apache-2.0 */
/* Quantiles of what was added since they were last asked for: never below the true one, and at most a quarter above it. */
#include "tests/lib/test.h"

#include "serve/shell/latency.h"

static void take(struct mfl_latency *latency, uint64_t *p50, uint64_t *p99)
{
        mfl_latency_take(latency, p50, p99);
}

static void one_value(void **state)
{
        uint64_t p50, p99;
        for (uint64_t us = 1; us < 1ull << 31; us += 1 + us / 7) {
                struct mfl_latency latency = {.sum_us = 0};
                mfl_latency_add(&latency, us);
                take(&latency, &p50, &p99);
                assert_true(p50 == p99 && p50 >= us && p50 <= us + us / 4);
        }
}

static void ends_of_the_range(void **state)
{
        struct mfl_latency latency = {.sum_us = 0};
        uint64_t p50, p99;
        take(&latency, &p50, &p99);
        assert_true(!p50 && !p99); /* nothing yet */
        mfl_latency_add(&latency, 0);
        take(&latency, &p50, &p99);
        assert_true(p50 == 1 && p99 == 1);
        mfl_latency_add(&latency, UINT64_MAX);
        take(&latency, &p50, &p99);
        assert_true(p50 >= 1ull << 31);
        assert_int_equal(latency.bucket[MFL_LATENCY_BUCKETS], 1);
}

static void quantiles(void **state)
{
        struct mfl_latency latency = {.sum_us = 0};
        uint64_t p50, p99;
        for (uint32_t i = 0; i < 989; i++)
                mfl_latency_add(&latency, 1000);
        for (uint32_t i = 0; i < 11; i++)
                mfl_latency_add(&latency, 500000);
        take(&latency, &p50, &p99);
        assert_in_range(p50, 1000, 1250);
        assert_in_range(p99, 500000, 625000);
        take(&latency, &p50, &p99); /* nothing since: what was told */
        assert_in_range(p99, 500000, 625000);
        for (uint32_t i = 0; i < 100; i++)
                mfl_latency_add(&latency, 1000);
        take(&latency, &p50, &p99); /* of these alone */
        assert_in_range(p99, 1000, 1250);
        assert_int_equal(latency.n, 1100);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_value),
                cmocka_unit_test(ends_of_the_range),
                cmocka_unit_test(quantiles),
        };
        return cmocka_run_group_tests_name("serve_latency", tests, NULL, NULL);
}
