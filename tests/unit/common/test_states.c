/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of legal edges: a legal change is carried out, an illegal one ends the process. */
#include "common/base/states.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum door { DOOR_OPEN, DOOR_SHUT, DOOR_LOCKED, DOORS_ };

static const struct mfl_states doors = {.thing = "door",
        .n = DOORS_,
        .v = {
                [DOOR_OPEN] = {"OPEN", MFL_TO(DOOR_SHUT)},
                [DOOR_SHUT] = {"SHUT", MFL_TO(DOOR_OPEN) | MFL_TO(DOOR_LOCKED)},
                [DOOR_LOCKED] = {"LOCKED", MFL_TO(DOOR_SHUT)},
        }};

static void test_legal(void **state)
{
        (void)state;
        unsigned door = DOOR_OPEN;
        door = mfl_states_move(&doors, door, DOOR_SHUT);
        door = mfl_states_move(&doors, door, DOOR_LOCKED);
        assert_int_equal(door, DOOR_LOCKED);
}

static void expect_abort(unsigned from, unsigned to, const char *text)
{
        int fd[2], status;
        char said[512] = "";
        assert_int_equal(pipe(fd), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
                dup2(fd[1], STDERR_FILENO);
                signal(SIGABRT, SIG_DFL);
                mfl_states_move(&doors, from, to);
                _exit(0);
        }
        close(fd[1]);
        assert_true(read(fd[0], said, sizeof said - 1) > 0);
        close(fd[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        assert_non_null(strstr(said, text));
}

static void test_illegal(void **state)
{
        (void)state;
        expect_abort(DOOR_OPEN, DOOR_LOCKED, "door: OPEN -> LOCKED");
        expect_abort(DOOR_OPEN, DOOR_OPEN, "door: OPEN -> OPEN");
        expect_abort(DOOR_OPEN, DOORS_, "to < states->n");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_legal),
                cmocka_unit_test(test_illegal),
        };
        return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
