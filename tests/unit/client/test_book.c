/* SPDX-License-Identifier: Apache-2.0 */
/* NAME.sums: rows come back after a restart; what a crash has cut off does not move those that follow; and a file that can't be read as a whole
 * ends the daemon, since what it has forgotten it would sum again. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/link/link_secure.h"
#include "tests/lib/test.h"

#define ROW_BYTES ((size_t)(2 * MFL_SHA256_BYTES))

static struct mfl_policy policy;
static char path[256];
static off_t cut_to = -1; /* somebody cuts the file off while it is read */

/* In place of the gate's: the book asks for the directory alone. */
const struct mfl_policy *mfl_gate_policy(const struct mfl_gate *gate)
{
        (void)gate;
        return &policy;
}

/* In place of the C library's. */
ssize_t pread(int fd, void *to, size_t n, off_t offset)
{
        if (cut_to >= 0 && ftruncate(fd, cut_to))
                return -1;
        return syscall(SYS_pread64, fd, to, n, offset);
}

static void row_of(uint8_t i, uint8_t ret_update[MFL_SHA256_BYTES], uint8_t ret_with[MFL_SHA256_BYTES])
{
        memset(ret_update, i, MFL_SHA256_BYTES);
        memset(ret_with, 255 - i, MFL_SHA256_BYTES);
}

static int open_book(struct mfl_link *link, struct mfl_error *err)
{
        memset(link, 0, sizeof *link);
        mfl_strcpy(link->options.agent.info.name, sizeof link->options.agent.info.name, "d1");
        return mfl_link_book_open(link, err);
}

static void expect_rows(const struct mfl_link *link, uint8_t n)
{
        uint8_t update[MFL_SHA256_BYTES], with[MFL_SHA256_BYTES];
        for (uint8_t i = 0; i < n; i++) {
                row_of(i, update, with);
                const uint8_t *found = mfl_secure_book_find(link->book, update);
                assert_non_null(found);
                assert_memory_equal(found, with, sizeof with);
        }
        row_of(n, update, with);
        assert_null(mfl_secure_book_find(link->book, update));
}

static void keep_rows(uint8_t from, uint8_t to)
{
        struct mfl_link link;
        struct mfl_error err;
        uint8_t update[MFL_SHA256_BYTES], with[MFL_SHA256_BYTES];
        assert_int_equal(open_book(&link, &err), 0);
        expect_rows(&link, from);
        for (uint8_t i = from; i < to; i++) {
                row_of(i, update, with);
                assert_int_equal(mfl_link_book_keep(&link, update, with, &err), 0);
        }
        mfl_link_book_close(&link);
}

static size_t file_bytes(void)
{
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        return (size_t)st.st_size;
}

static void test_a_restart_remembers(void **state)
{
        struct mfl_link link;
        struct mfl_error err;
        (void)state;
        keep_rows(0, 3);
        assert_int_equal(file_bytes(), 3 * ROW_BYTES);
        assert_int_equal(truncate(path, 2 * ROW_BYTES + 20), 0); /* a crash in mid-row */
        keep_rows(2, 200);
        keep_rows(200, 250); /* more than are read at once in the next test */
        assert_int_equal(open_book(&link, &err), 0);
        expect_rows(&link, 250);
        mfl_link_book_close(&link);
        assert_int_equal(file_bytes(), 250 * ROW_BYTES);
}

static void test_a_file_that_becomes_shorter(void **state)
{
        struct mfl_link link;
        struct mfl_error err;
        (void)state;
        keep_rows(0, 4);
        for (cut_to = 0; cut_to < 4 * (off_t)ROW_BYTES; cut_to += 50) {
                assert_int_equal(truncate(path, 4 * ROW_BYTES), 0);
                errno = ENOSPC; /* of something else */
                assert_int_equal(open_book(&link, &err), -EIO);
                assert_non_null(
                        strstr(err.text, "d1.sums: has become shorter than its 256 bytes while it was read"));
                assert_null(strstr(err.text, strerror(ENOSPC)));
                mfl_link_book_close(&link);
        }
        cut_to = -1;
}

static int begin(void **state)
{
        (void)state;
        mfl_snprintf(policy.dir, sizeof policy.dir, "/tmp/mfl-test-book-XXXXXX");
        if (!mkdtemp(policy.dir))
                return -1;
        mfl_snprintf(path, sizeof path, "%.200s/d1.sums", policy.dir);
        return 0;
}

static int end(void **state)
{
        (void)state;
        return unlink(path) || rmdir(policy.dir);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_a_restart_remembers, begin, end),
                cmocka_unit_test_setup_teardown(test_a_file_that_becomes_shorter, begin, end),
        };
        return cmocka_run_group_tests_name("book", tests, NULL, NULL);
}
