/* SPDX-License-Identifier: Apache-2.0 */
/* Files: at every fault the path holds the old or the new content, and nothing is left over. */
#include "tests/lib/test.h"
#include "common/base/fs.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], path[96];

static int setup(void **state)
{
        strcpy(dir, "/tmp/mfl-test-fs-XXXXXX");
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/model", dir);
        return 0;
}

static int n_entries(void)
{
        DIR *d = opendir(dir);
        int n = 0;
        for (struct dirent *e; (e = readdir(d));)
                n += e->d_name[0] != '.';
        closedir(d);
        return n;
}

static int teardown(void **state)
{
        mfl_fs_set_fault_hook(NULL, NULL);
        DIR *d = opendir(dir);
        for (struct dirent *e; (e = readdir(d));)
                unlinkat(dirfd(d), e->d_name, 0);
        closedir(d);
        return rmdir(dir);
}

static int put(const char *text, struct mfl_error *err)
{
        struct mfl_fs_file file;
        int r = mfl_fs_begin(&file, path, err);
        if (r)
                return r;
        size_t half = strlen(text) / 2;
        r = mfl_fs_write(&file, text, half, err);
        if (!r)
                r = mfl_fs_write(&file, text + half, strlen(text) - half, err);
        if (r)
                mfl_fs_abort(&file);
        else
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

static void assert_content(const char *want)
{
        char *data;
        size_t bytes;
        assert_int_equal(mfl_fs_read(path, 100, &data, &bytes, NULL), 0);
        assert_int_equal(bytes, strlen(want));
        assert_string_equal(data, want);
        free(data);
}

static void a_file_is_replaced(void **state)
{
        assert_int_equal(put("old content", NULL), 0);
        assert_content("old content");
        assert_int_equal(put("new", NULL), 0);
        assert_content("new");
        assert_int_equal(n_entries(), 1);
}

static void an_aborted_file_leaves_nothing(void **state)
{
        struct mfl_fs_file file, zeroed = {0};
        assert_int_equal(put("old", NULL), 0);
        assert_int_equal(mfl_fs_begin(&file, path, NULL), 0);
        assert_int_equal(mfl_fs_write(&file, "new", 3, NULL), 0);
        assert_int_equal(n_entries(), 2);
        mfl_fs_abort(&file);
        mfl_fs_abort(&file);
        mfl_fs_abort(&zeroed);
        assert_content("old");
        assert_int_equal(n_entries(), 1);
}

/* As root a rename takes the place of anything but a directory: of /dev/null, for one. */
static void only_files_are_replaced(void **state)
{
        struct mfl_error err;
        struct stat st;
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(put("new", &err), -EINVAL);
        assert_non_null(strstr(err.text, "not a regular file"));
        assert_int_equal(stat(path, &st), 0);
        assert_true(S_ISFIFO(st.st_mode));
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink("/dev/null", path), 0);
        assert_int_equal(put("new", &err), -EINVAL);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(put("new", &err), -EISDIR);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(n_entries(), 0);
        *path = '\0';
        assert_int_equal(put("new", &err), -ENOENT);
        assert_non_null(strstr(err.text, "empty"));
}

struct order {
        int at, n;
        bool exits;
        char point[32];
};

static int strike(void *user, const char *point, const char *name)
{
        struct order *order = user;
        if (order->n++ != order->at)
                return 0;
        mfl_strcpy(order->point, sizeof order->point, point);
        if (order->exits)
                _exit(7);
        return -ENOSPC;
}

/* The points of one replacement: 2 each of open, write, write, fsync, rename, fsync-dir. */
enum { POINTS = 12 };

static void a_failing_step_leaves_old_or_new(void **state)
{
        for (int at = 0; at < POINTS; at++) {
                struct order order = {.at = at};
                struct mfl_error err = {""};
                mfl_fs_set_fault_hook(NULL, NULL);
                assert_int_equal(put("old", NULL), 0);
                mfl_fs_set_fault_hook(strike, &order);
                assert_int_equal(put("new one", &err), -ENOSPC);
                bool renamed = at >= 9; /* after-rename and later */
                assert_content(renamed ? "new one" : "old");
                assert_int_equal(n_entries(), 1);
                assert_non_null(strstr(err.text, "No space left on device"));
                assert_non_null(strstr(err.text, dir));
                assert_int_equal(!!strstr(err.text, "directory"), renamed);
        }
        struct order never = {.at = POINTS};
        mfl_fs_set_fault_hook(strike, &never);
        assert_int_equal(put("new one", NULL), 0);
        assert_int_equal(never.n, POINTS);
}

static int exit_status_of(void (*child)(void *), void *arg)
{
        pid_t pid = fork();
        if (pid == 0) {
                child(arg);
                _exit(0);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void put_with_order(void *order)
{
        mfl_fs_set_fault_hook(strike, order);
        (void)put("new one", NULL);
}

static void a_killed_process_leaves_old_or_new(void **state)
{
        for (int at = 0; at < POINTS; at++) {
                struct order order = {.at = at, .exits = true};
                assert_int_equal(put("old", NULL), 0);
                assert_int_equal(exit_status_of(put_with_order, &order), 7);
                assert_content(at >= 9 ? "new one" : "old");
                /* And what it left over is no obstacle. */
                assert_int_equal(put("third", NULL), 0);
                assert_content("third");
                assert_int_equal(n_entries(), 1);
        }
}

/* The variable is read once per process, so it takes a fresh one: this program with a path as its argument.
 */
static void put_with_environment(void *text)
{
        setenv("MFL_FAULT", text, 1);
        execl("/proc/self/exe", "test_fs", path, (char *)NULL);
        _exit(127);
}

static int put_and_report(const char *at)
{
        mfl_strcpy(path, sizeof path, at);
        int r = put("new one", NULL);
        return r == 0 ? 0 : r == -ENOSPC ? 50 : r == -EIO ? 51 : 52;
}

static void the_environment_orders_faults(void **state)
{
        static const struct {
                char text[32];
                int status;
        } cases[] = {
                {"before-rename:1:exit", MFL_FS_FAULT_STATUS},
                {"after-write:2:exit", MFL_FS_FAULT_STATUS},
                {"after-write:3:exit", 0},
                {"before-fsync:1:enospc", 50},
                {"before-fsync-dir:1:eio", 51},
                {"before-rename:2:eio", 0},
                {"nonsense", 2},
                {"before-rename:0:exit", 2},
                {"before-rename:1:explode", 2},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                assert_int_equal(exit_status_of(put_with_environment, (void *)(uintptr_t)cases[i].text),
                        cases[i].status);
}

static void reading_has_limits(void **state)
{
        char *data = NULL;
        size_t bytes = 0;
        struct mfl_error err;
        assert_int_equal(mfl_fs_read(path, 100, &data, &bytes, &err), MFL_NOT_FOUND);
        assert_int_equal(put("12345", NULL), 0);
        assert_int_equal(mfl_fs_read(path, 4, &data, &bytes, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "5 bytes; the limit is 4"));
        assert_int_equal(mfl_fs_read(dir, 4, &data, &bytes, &err), MFL_INVALID);
        assert_int_equal(mfl_fs_read("/dev/zero", 10000, &data, &bytes, &err), MFL_INVALID);
        assert_null(data);
        assert_int_equal(mfl_fs_read(path, 5, &data, &bytes, &err), 0);
        assert_int_equal(bytes, 5);
        free(data);
        assert_int_equal(mfl_fs_read("/proc/self/status", 100000, &data, &bytes, &err), 0);
        assert_true(bytes > 100 && bytes == strlen(data));
        free(data);
}

static void directories_are_made(void **state)
{
        char deep[128];
        struct mfl_error err;
        snprintf(deep, sizeof deep, "%s/a//b/c/", dir);
        assert_int_equal(mfl_fs_mkdirs(deep, 0700, &err), 0);
        assert_int_equal(mfl_fs_mkdirs(deep, 0700, &err), 0);
        assert_int_equal(mfl_fs_mkdirs("/", 0700, &err), 0);
        for (int cut = 0; cut < 3; cut++) {
                deep[strlen(dir) + (size_t)(const int[]){7, 5, 2}[cut]] = '\0';
                assert_int_equal(rmdir(deep), 0);
        }
        assert_int_equal(put("file", NULL), 0);
        snprintf(deep, sizeof deep, "%s/x", path);
        assert_int_equal(mfl_fs_mkdirs(deep, 0700, &err), -ENOTDIR);
        assert_non_null(strstr(err.text, path));
}

static void memory_may_run_out_anywhere(void **state)
{
        assert_int_equal(put("old", NULL), 0);
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                int r = put("new", NULL);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                assert_content(struck ? "old" : "new");
                assert_int_equal(n_entries(), 1);
                if (!struck)
                        break;
        }
}

#define FS_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
        if (argc > 1)
                return put_and_report(argv[1]);
        const struct CMUnitTest tests[] = {
                FS_TEST(a_file_is_replaced),
                FS_TEST(an_aborted_file_leaves_nothing),
                FS_TEST(only_files_are_replaced),
                FS_TEST(a_failing_step_leaves_old_or_new),
                FS_TEST(a_killed_process_leaves_old_or_new),
                FS_TEST(the_environment_orders_faults),
                FS_TEST(reading_has_limits),
                FS_TEST(directories_are_made),
                FS_TEST(memory_may_run_out_anywhere),
        };
        return cmocka_run_group_tests_name("fs", tests, NULL, NULL);
}
