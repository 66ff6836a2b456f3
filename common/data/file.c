/* SPDX-License-Identifier: Apache-2.0 */
/* Files of data sets: reads a whole file, and finds the files of the two splits.
 *
 * Fails with MFL_INVALID: a file that is missing, unreadable, no regular file, or changes while it is read.
 * Negative: I/O errors, memory.
 */
#include "common/data/sources.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* Errors that the operator can correct (a wrong path, a permission) are invalid input; other errors mean a broken
 * machine. */
static int fail_open(const char *path, struct mfl_error *err)
{
        int r = mfl_fail_errno(err, "%s", path);
        return r == -ENOENT || r == -ENOTDIR || r == -EACCES || r == -EPERM || r == -ELOOP ||
                               r == -ENAMETOOLONG
                       ? MFL_INVALID
                       : r;
}

static int read_all(int fd, const char *path, size_t n, uint8_t *data, struct mfl_error *err)
{
        size_t done = 0;
        while (done < n) {
                ssize_t got = read(fd, data + done, n - done);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return mfl_fail_errno(err, "%s: read", path);
                if (got == 0)
                        return mfl_fail(err, MFL_INVALID,
                                "%s: shrank from %zu to %zu bytes while it was read", path, n, done);
                done += (size_t)got;
        }
        return 0;
}

/* Not mapped: truncating a mapped file would kill the process. */
int mfl_data_read_file(const char *path, struct mfl_data_bytes *ret_bytes, struct mfl_error *err)
{
        struct stat st;
        struct mfl_data_bytes b = {0};
        int r = 0;
        /* Without O_NONBLOCK, opening a FIFO of that name would hang. */
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return fail_open(path, err);
        if (fstat(fd, &st) < 0) {
                r = mfl_fail_errno(err, "%s: stat", path);
        } else if (!S_ISREG(st.st_mode)) {
                r = mfl_fail(err, MFL_INVALID, "%s: not a regular file", path);
        } else {
                b.n = (size_t)st.st_size;
                b.data = mfl_alloc_aligned(b.n);
                r = b.data ? read_all(fd, path, b.n, b.data, err) : mfl_fail_memory(err, b.n, path);
        }
        close(fd);
        if (r)
                free(b.data);
        else
                *ret_bytes = b;
        return r;
}

bool mfl_data_is_folder(const char *path)
{
        struct stat st;
        return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int mfl_data_find(const struct mfl_dataset_config *config, const char *suffix, char **ret_train,
        char **ret_test, struct mfl_error *err)
{
        char *train, *test = NULL;
        if (access(config->dir, F_OK))
                return mfl_fail(
                        err, MFL_INVALID, "data set %s: %s: %s", config->name, config->dir, strerror(errno));
        if (!mfl_data_is_folder(config->dir)) {
                train = mfl_strdup(config->dir);
        } else {
                train = mfl_asprintf("%s/train%s", config->dir, suffix);
                test = mfl_asprintf("%s/test%s", config->dir, suffix);
        }
        if (!train || (mfl_data_is_folder(config->dir) && !test)) {
                free(train);
                free(test);
                return mfl_fail_memory(err, strlen(config->dir) + 16, "a path");
        }
        if (test && access(test, F_OK) != 0) {
                free(test);
                test = NULL;
        }
        if (config->whole && test) {
                free(train);
                train = test;
                test = NULL;
        }
        if (!config->whole && !test == !(config->test_fraction > 0)) {
                int r = test ? mfl_fail(err, MFL_INVALID,
                                       "%s: this test data exists, so test_fraction is not used; remove it",
                                       test)
                             : mfl_fail(err, MFL_INVALID,
                                       "data set %s: there is no test data%s%s; provide it, or set "
                                       "test_fraction, the share of %s that becomes the test split",
                                       config->name, mfl_data_is_folder(config->dir) ? " test" : "",
                                       mfl_data_is_folder(config->dir) ? suffix : "", train);
                free(train);
                free(test);
                return r;
        }
        *ret_train = train;
        *ret_test = test;
        return 0;
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

void mfl_data_list_free(char **names, size_t n)
{
        for (size_t i = 0; i < n; i++)
                free(names[i]);
        free(names);
}

int mfl_data_list(const char *dir, bool folders, char ***ret_names, size_t *ret_n, struct mfl_error *err)
{
        char **names = NULL;
        size_t n = 0, capacity = 0;
        int r = 0;
        DIR *d = opendir(dir);
        if (!d)
                return fail_open(dir, err);
        for (struct dirent *e; !r && (e = readdir(d));) {
                if (e->d_name[0] == '.')
                        continue;
                MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s", dir, e->d_name);
                if (path && mfl_data_is_folder(path) != folders)
                        continue;
                if (n == capacity) {
                        size_t wanted = MFL_MAX(capacity * 2, 64);
                        char **grown = mfl_realloc(names, wanted * sizeof *names);
                        if (grown) {
                                names = grown;
                                capacity = wanted;
                        }
                }
                char *name = path && n < capacity ? mfl_strdup(e->d_name) : NULL;
                if (name)
                        names[n++] = name;
                else
                        r = mfl_fail_memory(err, capacity * sizeof *names, dir);
        }
        closedir(d);
        if (r) {
                mfl_data_list_free(names, n);
                return r;
        }
        if (n)
                qsort(names, n, sizeof *names, compare_names);
        *ret_names = names;
        *ret_n = n;
        return 0;
}
