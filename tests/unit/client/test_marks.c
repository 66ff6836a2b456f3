/* SPDX-License-Identifier: Apache-2.0 */
/* The marks of filters' calls: what the next process finds of one that ended in a call, and what it does not take for that. */
#include "tests/lib/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/plugin/mark.h"

static char dir[] = "/tmp/mfl-marks-XXXXXX";

static struct mfl_marks *open_marks(void)
{
        struct mfl_marks *marks = NULL;
        struct mfl_error err;
        if (mfl_marks_open(dir, "d1", 4, &marks, &err))
                fail_msg("%s", err.text);
        return marks;
}

/* As a process that ends without a word: its memory goes, the file stays. */
static void end_in_call(const struct mfl_mark *mark)
{
        static struct mfl_marks *never_closed[4];
        static int n;
        never_closed[n] = open_marks();
        mfl_mark_begin(never_closed[n++], 2, mark);
}

static void calls_that_never_ended_are_found(void **state)
{
        const struct mfl_mark mark = {.job = "j-000001", .round = 3, .filter = 1, .client = 7};
        struct mfl_marks *marks = open_marks();
        uint32_t filter = 9;
        mfl_mark_begin(marks, 0, &mark);
        mfl_mark_end(marks, 0);
        assert_int_equal(mfl_marks_left(marks, "j-000001", 3, 7, &filter), 0);
        mfl_marks_close(marks); /* in good order: nothing stays */
        end_in_call(&mark);
        end_in_call(&mark);
        marks = open_marks();
        assert_int_equal(mfl_marks_left(marks, "j-000001", 3, 7, &filter), 2);
        assert_int_equal(filter, 1);
        assert_int_equal(mfl_marks_left(marks, "j-000001", 4, 7, &filter), 0);
        assert_int_equal(mfl_marks_left(marks, "j-000001", 3, 8, &filter), 0);
        assert_int_equal(mfl_marks_left(marks, "j-000002", 3, 7, &filter), 0);
        mfl_marks_close(marks);
        marks = open_marks();
        assert_int_equal(mfl_marks_left(marks, "j-000001", 3, 7, &filter), 0);
        mfl_marks_close(marks);
}

static void a_file_of_another_shape_is_begun_anew(void **state)
{
        char path[200];
        uint32_t filter;
        snprintf(path, sizeof path, "%s/mfl-filters-%u-d1", dir, (unsigned)geteuid());
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        for (int i = 0; i < 100000; i++)
                fputc('x', file);
        fclose(file);
        chmod(path, 0600);
        struct mfl_marks *marks = open_marks();
        assert_int_equal(mfl_marks_left(marks, "xxxx", 0x78787878, 0x7878787878787878, &filter), 0);
        mfl_marks_close(marks);
}

static void what_others_could_write_is_refused(void **state)
{
        char path[200], other[200];
        struct mfl_marks *marks;
        struct mfl_error err;
        snprintf(path, sizeof path, "%s/mfl-filters-%u-d1", dir, (unsigned)geteuid());
        snprintf(other, sizeof other, "%s/other", dir);
        close(open(path, O_CREAT | O_WRONLY, 0666));
        chmod(path, 0666);
        assert_int_equal(mfl_marks_open(dir, "d1", 4, &marks, &err), MFL_INVALID);
        unlink(path);
        close(open(other, O_CREAT | O_WRONLY, 0600));
        assert_int_equal(symlink(other, path), 0);
        assert_true(mfl_marks_open(dir, "d1", 4, &marks, &err) < 0);
        unlink(path);
        unlink(other);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(calls_that_never_ended_are_found),
                cmocka_unit_test(a_file_of_another_shape_is_begun_anew),
                cmocka_unit_test(what_others_could_write_is_refused)};
        if (!mkdtemp(dir))
                return 1;
        int r = cmocka_run_group_tests(tests, NULL, NULL);
        rmdir(dir);
        return r;
}
