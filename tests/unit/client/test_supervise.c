/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a child that has ended, and what children are called. */
#include "tests/lib/test.h"

#include <signal.h>

#include "client/service/supervise.h"
#include "client/service/supervise_core.h"

/* A life of lived_ms that ends so; returns the delay, 0 for none. */
static uint32_t live(struct mfl_child *child, uint64_t *now_ms, uint64_t lived_ms, int status, int number)
{
        mfl_child_started(child, *now_ms);
        *now_ms += lived_ms;
        mfl_child_exited(child, status, number, false, *now_ms);
        if (child->state == MFL_CHILD_ENDED)
                return 0;
        assert_int_equal(child->state, MFL_CHILD_WAITING);
        assert_int_equal(child->due_ms, *now_ms + child->backoff_ms);
        *now_ms = child->due_ms;
        return child->backoff_ms;
}

static void delays_double_up_to_a_minute(void **state)
{
        static const uint32_t seconds[] = {1, 2, 4, 8, 16, 32, 60, 60};
        struct mfl_child child = {0};
        uint64_t now_ms = 5;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(seconds); i++)
                assert_int_equal(
                        live(&child, &now_ms, 59999, i % 2 ? 1 : 0, i % 2 ? 0 : SIGKILL), 1000 * seconds[i]);
        assert_int_equal(child.n_restarts, 8);
        assert_int_equal(live(&child, &now_ms, 60000, 1, 0), 1000); /* a healthy minute */
        assert_int_equal(live(&child, &now_ms, 0, 1, 0), 2000);
}

static void some_ends_are_final(void **state)
{
        static const int final[] = {0, 2, 78};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(final); i++) {
                struct mfl_child child = {0};
                uint64_t now_ms = 0;
                assert_int_equal(live(&child, &now_ms, 10, final[i], 0), 0);
                assert_int_equal(child.status, final[i]);
        }
        struct mfl_child child = {0};
        uint64_t now_ms = 0;
        assert_int_equal(live(&child, &now_ms, 10, 0, SIGTERM), 1000); /* nobody had asked for it */
        assert_int_equal(child.status, 128 + SIGTERM);
        mfl_child_stop(&child);
        assert_int_equal(child.state, MFL_CHILD_ENDED);
}

static int stopped_status(int status, int number)
{
        struct mfl_child child = {0};
        mfl_child_started(&child, 0);
        mfl_child_stop(&child); /* it runs: it is waited for */
        assert_int_equal(child.state, MFL_CHILD_RUNNING);
        mfl_child_exited(&child, status, number, true, 1);
        assert_int_equal(child.state, MFL_CHILD_ENDED);
        return child.status;
}

static void a_stop_is_not_a_failure(void **state)
{
        assert_int_equal(stopped_status(0, 0), 0);
        assert_int_equal(stopped_status(0, SIGTERM), 0);
        assert_int_equal(stopped_status(0, SIGINT), 0);
        assert_int_equal(stopped_status(0, SIGKILL), 128 + SIGKILL);
        assert_int_equal(stopped_status(1, 0), 1);
}

static int status_of(int a, int b, int c)
{
        struct mfl_child v[3] = {{.status = a}, {.status = b}, {.status = c}};
        const struct mfl_child *children[] = {&v[0], &v[1], &v[2]};
        return mfl_children_status(children, 3);
}

static void the_status_is_what_they_have_in_common(void **state)
{
        assert_int_equal(status_of(0, 0, 0), 0);
        assert_int_equal(status_of(78, 78, 78), 78);
        assert_int_equal(status_of(0, 78, 0), 78);
        assert_int_equal(status_of(1, 0, 78), 1);
        assert_int_equal(status_of(2, 78, 78), 1);
        assert_int_equal(status_of(0, 0, 137), 1);
}

static void names_tell_the_gpu_and_fit(void **state)
{
        char name[MFL_NAME_BYTES], longest[MFL_NAME_BYTES];
        struct mfl_gpu gpu = {.index = 3, .mig = -1}, mig = {.index = 10, .mig = 2};
        mfl_supervise_name("lab", &gpu, name);
        assert_string_equal(name, "lab-gpu3");
        memset(longest, 'x', sizeof(longest) - 1);
        longest[sizeof(longest) - 1] = 0;
        mfl_supervise_name(longest, &mig, name);
        assert_int_equal(strlen(name), MFL_NAME_BYTES - 1);
        assert_string_equal(name + strlen(name) - strlen("x-gpu10-mig2"), "x-gpu10-mig2");
        assert_true(mfl_client_name_valid(name));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(delays_double_up_to_a_minute),
                cmocka_unit_test(some_ends_are_final),
                cmocka_unit_test(a_stop_is_not_a_failure),
                cmocka_unit_test(the_status_is_what_they_have_in_common),
                cmocka_unit_test(names_tell_the_gpu_and_fit),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
