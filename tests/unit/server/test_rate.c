/* SPDX-License-Identifier: Apache-2.0 */
/* How often each address may come: exact counts at exact times, and what a full table does. */
#include "tests/lib/test.h"

#include "server/session/rate.h"

#define S 1000000000u

static struct in6_addr address(uint32_t n)
{
        struct in6_addr a = {0};
        memcpy(a.s6_addr + 12, &n, sizeof n);
        return a;
}

static uint32_t take_all(struct mfl_rate *rate, uint32_t who, uint64_t now_ns)
{
        struct in6_addr a = address(who);
        uint32_t n = 0;
        while (n < 1000 && mfl_rate_take(rate, &a, now_ns))
                n++;
        return n;
}

static void a_burst_then_one_at_a_time(void **state)
{
        struct mfl_rate *rate;
        assert_int_equal(mfl_rate_new(10, 5, &rate, NULL), 0);
        assert_int_equal(take_all(rate, 1, 7 * (uint64_t)S), 5);
        assert_int_equal(take_all(rate, 1, 7 * (uint64_t)S + S / 10 - 1), 0);
        assert_int_equal(take_all(rate, 1, 7 * (uint64_t)S + S / 10), 1);
        assert_int_equal(take_all(rate, 1, 7 * (uint64_t)S + 3 * (S / 10)), 2);
        assert_int_equal(take_all(rate, 2, 7 * (uint64_t)S + 3 * (S / 10)), 5); /* somebody else */
        assert_int_equal(take_all(rate, 1, 900 * (uint64_t)S), 5); /* never more than the burst */
        mfl_rate_free(rate);
}

static void no_burst_is_one(void **state)
{
        struct mfl_rate *rate;
        assert_int_equal(mfl_rate_new(1, 1, &rate, NULL), 0);
        for (uint64_t t = 0; t < 5; t++) {
                assert_int_equal(take_all(rate, 1, t * S), 1);
                assert_int_equal(take_all(rate, 1, t * S + S - 1), 0);
        }
        mfl_rate_free(rate);
}

/* Far more addresses than fit: all of them come in, and the one that had used up its tokens gets no new ones.
 */
static void a_crowd_gives_nobody_new_tokens(void **state)
{
        struct mfl_rate *rate;
        struct in6_addr a;
        assert_int_equal(mfl_rate_new(1, 100, &rate, NULL), 0);
        assert_int_equal(take_all(rate, 0, 0), 100);
        for (uint32_t i = 1; i <= 30 * MFL_RATE_ADDRESSES_MAX; i++) {
                a = address(i * 2654435761u);
                assert_true(mfl_rate_take(rate, &a, 0));
        }
        assert_int_equal(take_all(rate, 0, 0), 0);
        assert_int_equal(take_all(rate, 0, 2 * (uint64_t)S), 2);
        mfl_rate_free(rate);
}

static void want_of_memory_is_told(void **state)
{
        struct mfl_rate *rate = NULL;
        mfl_alloc_fail_at(0);
        assert_int_equal(mfl_rate_new(1, 1, &rate, NULL), -ENOMEM);
        mfl_alloc_fail_at(-1);
        assert_null(rate);
        mfl_rate_free(rate);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_burst_then_one_at_a_time),
                cmocka_unit_test(no_burst_is_one),
                cmocka_unit_test(a_crowd_gives_nobody_new_tokens),
                cmocka_unit_test(want_of_memory_is_told),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
