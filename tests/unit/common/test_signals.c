/* SPDX-License-Identifier: Apache-2.0 */
/* A service that is told to stop while it gets ready has stopped, and did not die. */
#include "tests/lib/test.h"
#include "common/base/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Status of a child that raises a signal, with what it does before. */
static int status_after(int number, void (*before)(void))
{
        pid_t child = fork();
        if (child == 0) {
                if (before)
                        before();
                raise(number);
                _exit(3); /* It lived on. */
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        return status;
}

static void stop_before_the_loop_is_no_failure(void **state)
{
        (void)state;
        const int stops[] = {SIGTERM, SIGINT};
        for (size_t i = 0; i < 2; i++) {
                int plain = status_after(stops[i], NULL);
                assert_true(WIFSIGNALED(plain) && WTERMSIG(plain) == stops[i]);
                int early = status_after(stops[i], mfl_signals_init);
                assert_true(WIFEXITED(early));
                assert_int_equal(WEXITSTATUS(early), 0);
        }
}

static void a_closed_pipe_is_an_error_code(void **state)
{
        (void)state;
        int status = status_after(SIGPIPE, mfl_signals_init);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 3);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(stop_before_the_loop_is_no_failure),
                cmocka_unit_test(a_closed_pipe_is_an_error_code),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
