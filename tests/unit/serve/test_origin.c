/* SPDX-License-Identifier: Apache-2.0 */
/* The note beside the last round that came: whether that file is still what came, however the process ended. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <unistd.h>

#include "serve/follow/origin.h"

#define FILE_NAME "test_origin.safetensors"

static char folder[] = "/tmp/mfl-test-origin-XXXXXX";

static int set_up(void **state)
{
        return mkdtemp(folder) && !chdir(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
        unlink(FILE_NAME);
        unlink("origin");
        return chdir("/") || rmdir(folder) ? -1 : 0;
}

static void put(const char *text)
{
        FILE *f = fopen(FILE_NAME, "w");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
        assert_int_equal(fclose(f), 0);
}

static void a_file_that_has_changed(void **state)
{
        struct mfl_error err;
        char from[64];
        put("round 1");
        assert_int_equal(mfl_origin_note(FILE_NAME, "a:1", &err), 0);
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), 0);
        assert_false(mfl_origin_differs(FILE_NAME, "a:1", from, sizeof from));
        put("round 3");
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), MFL_INVALID);
}

/* Killed when the next round was in its place, and not yet noted. */
static void a_file_that_was_replaced(void **state)
{
        struct mfl_error err;
        char from[64];
        put("round 1");
        assert_int_equal(mfl_origin_note(FILE_NAME, "a:1", &err), 0);
        assert_int_equal(mfl_origin_forget_digest(FILE_NAME, &err), 0);
        put("round 2");
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), 0);
        assert_false(mfl_origin_differs(FILE_NAME, "a:1", from, sizeof from));
        assert_true(mfl_origin_differs(FILE_NAME, "b:1", from, sizeof from));
        assert_string_equal(from, "a:1");
        assert_int_equal(mfl_origin_note(FILE_NAME, "b:1", &err), 0);
        assert_false(mfl_origin_differs(FILE_NAME, "b:1", from, sizeof from));
        put("round 4");
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), MFL_INVALID);
}

static void nothing_noted(void **state)
{
        struct mfl_error err;
        unlink("origin");
        put("round 1");
        assert_int_equal(mfl_origin_forget_digest(FILE_NAME, &err), 0);
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), 0);
        unlink(FILE_NAME);
        assert_int_equal(mfl_origin_check(FILE_NAME, &err), 0);
        assert_int_equal(mfl_origin_note(FILE_NAME, "a:1", &err), MFL_NOT_FOUND);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_file_that_has_changed),
                cmocka_unit_test(a_file_that_was_replaced),
                cmocka_unit_test(nothing_noted),
        };
        return cmocka_run_group_tests_name("serve_origin", tests, set_up, tear_down);
}
