/* SPDX-License-Identifier: Apache-2.0 */
/* The tuning file: the next process reads what this one stored; damage, foreign files and full disks cost
 * only what was measured. */
#include "tests/lib/test.h"
#include "kernels/cuda/base/tune.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"

#define IDENTITY "emulated device, 9.0, CUDA 13.0"

static char dir[256];
static int n_lines;
static char last_line[512];

static void on_line(void *user, enum mfl_log_level level, const char *text)
{
        n_lines++;
        snprintf(last_line, sizeof last_line, "%s", text);
}

static int setup(void **state)
{
        strcpy(dir, "/tmp/mfl-test-tune-XXXXXX");
        assert_non_null(mkdtemp(dir));
        setenv("MFL_CACHE_DIR", dir, 1);
        n_lines = 0;
        mfl_log_set_sink(on_line, NULL);
        return 0;
}

static int teardown(void **state)
{
        mfl_fs_set_fault_hook(NULL, NULL);
        mfl_log_set_sink(NULL, NULL);
        char command[512];
        snprintf(command, sizeof command, "rm -rf %s", dir);
        return system(command);
}

static struct mfl_tuner *open_tuner(const char *identity)
{
        struct mfl_tuner *tuner = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_tuner_new(identity, &tuner, &err), 0);
        return tuner;
}

static void put(struct mfl_tuner *tuner, const char *key, const char *choice, double ns)
{
        struct mfl_error err;
        assert_int_equal(mfl_tuner_put(tuner, key, choice, ns, &err), 0);
}

static void assert_has(struct mfl_tuner *tuner, const char *key, const char *want, double want_ns)
{
        char choice[MFL_TUNE_CHOICE_BYTES] = "untouched";
        double ns = -1.0;
        assert_int_equal(mfl_tuner_get(tuner, key, choice, &ns), want != NULL);
        assert_string_equal(choice, want ? want : "untouched");
        assert_true(ns == (want ? want_ns : -1.0));
}

/* The path of the only tuning file. */
static const char *file_path(void)
{
        static char path[512];
        DIR *d = opendir(dir);
        int n = 0;
        for (struct dirent *e; (e = readdir(d));) {
                size_t length = strlen(e->d_name);
                if (strncmp(e->d_name, "tune-", 5) || strcmp(e->d_name + length - 4, ".txt"))
                        continue;
                assert_int_equal(length, 5 + 16 + 4);
                snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
                n++;
        }
        closedir(d);
        assert_int_equal(n, 1);
        return path;
}

static void write_text(const char *path, const char *text)
{
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        assert_int_equal(fclose(f), 0);
}

static char *read_text(const char *path)
{
        char *text;
        size_t bytes;
        assert_int_equal(mfl_fs_read(path, 1 << 20, &text, &bytes, NULL), 0);
        return text;
}

static void test_remembers(void **state)
{
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        assert_has(tuner, "conv a", NULL, 0);
        put(tuner, "conv a", "own simt 64x32x8", 1500.5);
        put(tuner, "conv b", "dnn 0 4", 10.0);
        put(tuner, "conv b", "dnn 0 8", 9.0);
        assert_has(tuner, "conv b", "dnn 0 8", 9.0);
        mfl_tuner_free(tuner);

        tuner = open_tuner(IDENTITY);
        assert_has(tuner, "conv a", "own simt 64x32x8", 1500.5);
        assert_has(tuner, "conv b", "dnn 0 8", 9.0);
        mfl_tuner_free(tuner);
        char *text = read_text(file_path());
        assert_string_equal(text, "mfl tuning file, format 1\t" IDENTITY
                                  "\nconv a\town simt 64x32x8\t1500.5\nconv b\tdnn 0 8\t9.0\n");
        free(text);
        assert_int_equal(n_lines, 0);
}

static void test_identity(void **state)
{
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        put(tuner, "conv a", "own x", 1.0);
        mfl_tuner_free(tuner);
        tuner = open_tuner("another device");
        assert_has(tuner, "conv a", NULL, 0);
        mfl_tuner_free(tuner);
        /* Another identity under the same name, as if two names collided: ignored, and replaced. */
        char *text = read_text(file_path());
        text[strlen("mfl tuning file, format 1\t")] = 'E';
        write_text(file_path(), text);
        free(text);
        tuner = open_tuner(IDENTITY);
        assert_has(tuner, "conv a", NULL, 0);
        put(tuner, "conv b", "own y", 2.0);
        mfl_tuner_free(tuner);
        tuner = open_tuner(IDENTITY);
        assert_has(tuner, "conv a", NULL, 0);
        assert_has(tuner, "conv b", "own y", 2.0);
        mfl_tuner_free(tuner);
}

static void test_damage(void **state)
{
        static const char *const damaged[] = {"no tabs at all", "key\tchoice", "\tchoice\t1.0", "key\t\t1.0",
                "key\tchoice\t", "key\tchoice\tfast", "key\tchoice\t1.0x", "key\tchoice\t-1.0",
                "key\tchoice\tnan", "key\tchoice\t1e300", "key\tchoice\t1.0\tmore", "key\x01\tchoice\t1.0",
                "key\tchoice that is longer than any choice that this program writes, far longer\t1.0", ""};
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        put(tuner, "good", "own x", 1.0);
        mfl_tuner_free(tuner);
        char path[512];
        strcpy(path, file_path());
        for (size_t i = 0; i < MFL_ARRAY_SIZE(damaged); i++) {
                char text[1024];
                snprintf(text, sizeof text,
                        "mfl tuning file, format 1\t%s\nfirst\town 1\t1.0\n%s\nlast\town 2\t2.0\ncut\town "
                        "3\t3.0",
                        IDENTITY, damaged[i]);
                write_text(path, text);
                tuner = open_tuner(IDENTITY);
                assert_has(tuner, "first", "own 1", 1.0);
                assert_has(tuner, "last", "own 2", 2.0);
                assert_has(tuner, "cut", NULL, 0);
                assert_has(tuner, "key", NULL, 0);
                mfl_tuner_free(tuner);
        }
        write_text(path, ""); /* and no first line */
        tuner = open_tuner(IDENTITY);
        assert_has(tuner, "first", NULL, 0);
        mfl_tuner_free(tuner);
}

/* Entries of others stay; on the same key the last one wins. */
static void test_two_at_once(void **state)
{
        struct mfl_tuner *a = open_tuner(IDENTITY), *b = open_tuner(IDENTITY);
        put(a, "of a", "own a", 1.0);
        put(a, "both", "own a", 1.0);
        put(b, "of b", "own b", 2.0);
        put(b, "both", "own b", 2.0);
        mfl_tuner_save(a);
        mfl_tuner_save(b);
        assert_has(b, "of a", "own a", 1.0); /* learned at its save */
        mfl_tuner_free(a);
        mfl_tuner_free(b);
        a = open_tuner(IDENTITY);
        assert_has(a, "of a", "own a", 1.0);
        assert_has(a, "of b", "own b", 2.0);
        assert_has(a, "both", "own b", 2.0);
        mfl_tuner_free(a);
}

static void test_processes(void **state)
{
        enum { CHILDREN = 6, KEYS = 8 };
        for (int c = 0; c < CHILDREN; c++) {
                pid_t pid = fork();
                assert_true(pid >= 0);
                if (pid)
                        continue;
                struct mfl_tuner *tuner = NULL;
                char key[32];
                bool ok = !mfl_tuner_new(IDENTITY, &tuner, NULL);
                for (int k = 0; k < KEYS && ok; k++) {
                        snprintf(key, sizeof key, "key %d of %d", k, c);
                        ok = !mfl_tuner_put(tuner, key, "own x", (double)c, NULL);
                        mfl_tuner_save(tuner);
                }
                mfl_tuner_free(tuner);
                _exit(!ok || n_lines != 0);
        }
        for (int c = 0; c < CHILDREN; c++) {
                int status;
                wait(&status);
                assert_int_equal(status, 0);
        }
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        for (int i = 0; i < CHILDREN * KEYS; i++) {
                char key[32];
                snprintf(key, sizeof key, "key %d of %d", i % KEYS, i / KEYS);
                assert_has(tuner, key, "own x", (double)(i / KEYS));
        }
        mfl_tuner_free(tuner);
}

static int fail_step(void *user, const char *point, const char *path)
{
        return strcmp(point, user) ? 0 : -ENOSPC;
}

/* A file that cannot be written is reported once, and the tuner stays usable; the old file stays intact. */
static void test_unwritable(void **state)
{
        static char *const points[] = {"before-open", "before-write", "before-fsync", "before-rename"};
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        put(tuner, "old", "own x", 1.0);
        mfl_tuner_free(tuner);
        char *before = read_text(file_path());
        for (size_t i = 0; i < MFL_ARRAY_SIZE(points); i++) {
                n_lines = 0;
                mfl_fs_set_fault_hook(fail_step, points[i]);
                tuner = open_tuner(IDENTITY);
                put(tuner, "new", "own y", 2.0);
                mfl_tuner_save(tuner);
                mfl_tuner_save(tuner);
                assert_int_equal(n_lines, 1);
                assert_non_null(strstr(last_line, "No space left on device"));
                assert_has(tuner, "new", "own y", 2.0);
                mfl_tuner_free(tuner);
                assert_int_equal(n_lines, 1);
                char *after = read_text(file_path());
                assert_string_equal(before, after);
                free(after);
        }
        free(before);
}

static void test_no_directory(void **state)
{
        char path[512];
        snprintf(path, sizeof path, "%s/file", dir);
        write_text(path, "not a directory");
        setenv("MFL_CACHE_DIR", path, 1);
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        put(tuner, "key", "own x", 1.0);
        assert_has(tuner, "key", "own x", 1.0);
        mfl_tuner_free(tuner);
        assert_int_equal(n_lines, 1);
        assert_non_null(strstr(last_line, "not stored"));

        n_lines = 0;
        static const char *const names[] = {"MFL_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME"};
        char *saved[4];
        for (int i = 0; i < 4; i++) {
                saved[i] = getenv(names[i]) ? strdup(getenv(names[i])) : NULL;
                unsetenv(names[i]);
        }
        mfl_tuner_free(open_tuner(IDENTITY));
        assert_int_equal(n_lines, 1);
        for (int i = 0; i < 4; i++) {
                if (saved[i])
                        setenv(names[i], saved[i], 1);
                free(saved[i]);
        }
}

/* Which variable names the directory, in order, and what is appended to it. */
static void test_where(void **state)
{
        static const struct {
                const char *name, *suffix, *more;
        } places[] = {{"HOME", "/.cache/mfl", ""}, {"XDG_CACHE_HOME", "/mfl", ""},
                {"CACHE_DIRECTORY", "", ":/elsewhere"}, {"MFL_CACHE_DIR", "", ""}};
        char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL, old_dir[128];
        snprintf(old_dir, sizeof old_dir, "%.100s", dir);
        unsetenv("MFL_CACHE_DIR");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(places); i++) {
                char value[256];
                snprintf(value, sizeof value, "%s/%zu%s", old_dir, i, places[i].more);
                setenv(places[i].name, value, 1);
                struct mfl_tuner *tuner = open_tuner(IDENTITY);
                put(tuner, "key", "own x", 1.0);
                mfl_tuner_free(tuner);
                snprintf(dir, sizeof dir, "%s/%zu%s", old_dir, i, places[i].suffix);
                (void)file_path();
        }
        strcpy(dir, old_dir);
        unsetenv("XDG_CACHE_HOME");
        unsetenv("CACHE_DIRECTORY");
        if (home)
                setenv("HOME", home, 1);
        free(home);
}

static void test_memory(void **state)
{
        struct mfl_tuner *tuner = open_tuner(IDENTITY);
        put(tuner, "old", "own x", 1.0);
        mfl_tuner_free(tuner);
        bool done = false;
        for (long n = 0; !done; n++) {
                struct mfl_error err = {""};
                tuner = NULL;
                mfl_alloc_fail_at(n);
                int r = mfl_tuner_new(IDENTITY, &tuner, &err);
                if (!r)
                        r = mfl_tuner_put(tuner, "new", "own y", 2.0, &err);
                if (!r)
                        mfl_tuner_save(tuner); /* may fail, and logs the failure */
                done = !mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_true(r == 0 || r == -ENOMEM);
                assert_true(r == 0 || *err.text);
                if (!r)
                        assert_has(tuner, "old", "own x", 1.0);
                mfl_tuner_free(tuner);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_remembers, setup, teardown),
                cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
                cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
                cmocka_unit_test_setup_teardown(test_two_at_once, setup, teardown),
                cmocka_unit_test_setup_teardown(test_processes, setup, teardown),
                cmocka_unit_test_setup_teardown(test_unwritable, setup, teardown),
                cmocka_unit_test_setup_teardown(test_no_directory, setup, teardown),
                cmocka_unit_test_setup_teardown(test_where, setup, teardown),
                cmocka_unit_test_setup_teardown(test_memory, setup, teardown),
        };
        mfl_log_init("test", MFL_LOG_INFO);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
