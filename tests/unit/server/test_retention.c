/* SPDX-License-Identifier: Apache-2.0 */
/* Which jobs that have ended go: exact edges of both limits, and clocks that were wrong. */
#include "tests/lib/test.h"

#include "server/jobs/retention.h"

static void nothing_goes_without_limits(void **state)
{
        const struct mfl_retention none = {0, 0};
        assert_int_equal(mfl_retention_check(&none, 1000, 1, UINT64_MAX), MFL_RETENTION_KEEP);
}

static void the_age_counts_from_its_end(void **state)
{
        const struct mfl_retention limits = {.keep_ms = 5000};
        assert_int_equal(mfl_retention_check(&limits, 1, 1000, 5999), MFL_RETENTION_KEEP);
        assert_int_equal(mfl_retention_check(&limits, 1, 1000, 6000), MFL_RETENTION_OLD);
        assert_int_equal(mfl_retention_check(&limits, 0, 1000, 6000), MFL_RETENTION_KEEP);
        assert_int_equal(mfl_retention_check(&limits, 1, 0, 6000), MFL_RETENTION_KEEP);
}

static void a_clock_that_was_set_back_deletes_nothing(void **state)
{
        const struct mfl_retention limits = {.keep_ms = 5000};
        assert_int_equal(mfl_retention_check(&limits, 1, 9000, 10), MFL_RETENTION_KEEP);
}

static void one_more_than_the_limit_is_too_many(void **state)
{
        const struct mfl_retention limits = {.keep_max = 3}, both = {.keep_ms = 5000, .keep_max = 3};
        char text[200];
        assert_int_equal(mfl_retention_check(&limits, 3, 1000, 1001), MFL_RETENTION_KEEP);
        assert_int_equal(mfl_retention_check(&limits, 4, 1000, 1001), MFL_RETENTION_MANY);
        assert_int_equal(mfl_retention_check(&both, 4, 1000, 1001), MFL_RETENTION_MANY);
        assert_int_equal(mfl_retention_check(&both, 4, 1000, 6000), MFL_RETENTION_OLD);
        assert_non_null(strstr(mfl_retention_text(&both, MFL_RETENTION_OLD, text, sizeof text), "5 s ago"));
        assert_non_null(
                strstr(mfl_retention_text(&both, MFL_RETENTION_MANY, text, sizeof text), "more than 3 jobs"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(nothing_goes_without_limits),
                cmocka_unit_test(the_age_counts_from_its_end),
                cmocka_unit_test(a_clock_that_was_set_back_deletes_nothing),
                cmocka_unit_test(one_more_than_the_limit_is_too_many),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
