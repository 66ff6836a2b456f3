/* SPDX-License-Identifier: Apache-2.0 */
/* Files: atomic replacement in steps, whole files, directories; and the points where tests inject faults. */
#include "common/base/fs.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SLOW_S 3

static mfl_fs_fault_hook *fault_hook;
static void *fault_user;

static struct {
        pthread_once_t once;
        char point[64];
        atomic_long countdown; /* passages left until the fault; 0: off or done */
        int code;              /* 1: exit; 2: hang; 3: slow; -errno: fail */
} env_fault = {.once = PTHREAD_ONCE_INIT};

/* A malformed value ends the process: a test that thinks it injects a fault must not pass without one. */
static void read_env_fault(void)
{
        const char *text = getenv("MFL_FAULT");
        char action[8];
        long n;
        if (!text || !*text)
                return;
        if (sscanf(text, "%63[^:]:%ld:%7s", env_fault.point, &n, action) != 3 || n < 1)
                goto wrong;
        if (!strcmp(action, "exit"))
                env_fault.code = 1;
        else if (!strcmp(action, "hang"))
                env_fault.code = 2;
        else if (!strcmp(action, "slow"))
                env_fault.code = 3;
        else if (!strcmp(action, "enospc"))
                env_fault.code = -ENOSPC;
        else if (!strcmp(action, "eio"))
                env_fault.code = -EIO;
        else
                goto wrong;
        atomic_store(&env_fault.countdown, n);
        return;
wrong:
        fprintf(stderr, "MFL_FAULT: expected POINT:N:exit|hang|slow|enospc|eio, got '%s'\n", text);
        _exit(2);
}

void mfl_fs_set_fault_hook(mfl_fs_fault_hook *hook, void *user)
{
        fault_hook = hook;
        fault_user = user;
}

int mfl_fs_fault(const char *point, const char *path)
{
        if (fault_hook) {
                int r = fault_hook(fault_user, point, path);
                if (r)
                        return r;
        }
        pthread_once(&env_fault.once, read_env_fault);
        if (!env_fault.code || strcmp(point, env_fault.point))
                return 0;
        const long left = atomic_fetch_sub(&env_fault.countdown, 1);
        if (env_fault.code == 3) { /* that one and all after it */
                if (left <= 1)
                        sleep(SLOW_S);
                return 0;
        }
        if (left != 1)
                return 0;
        if (env_fault.code == 1)
                _exit(MFL_FS_FAULT_STATUS);
        while (env_fault.code == 2) /* like a disk that never answers */
                pause();
        return env_fault.code;
}

/* A fault requested at a point, as the result of a step: -1 with errno. */
static int pass(const char *point, const char *path)
{
        int r = mfl_fs_fault(point, path);
        if (!r)
                return 0;
        errno = -r;
        return -1;
}

/* Checks the target first: a rename by root would replace /dev/null or a socket with a file, and would refuse a
 * directory only at the end. */
static int check_target(const char *path, struct mfl_error *err)
{
        struct stat st;
        if (!*path)
                return mfl_fail(err, -ENOENT, "the file name is empty");
        if (stat(path, &st) || S_ISREG(st.st_mode))
                return 0;
        if (S_ISDIR(st.st_mode))
                return mfl_fail(err, -EISDIR, "%s: is a directory; name a file", path);
        return mfl_fail(err, -EINVAL, "%s: is not a regular file, and writing would replace it", path);
}

static int begin(struct mfl_fs_file *file, const char *path, int flags, mode_t mode, struct mfl_error *err)
{
        int checked = check_target(path, err);
        if (checked)
                return checked;
        struct mfl_fs_file f = {.fd = -1, .path = mfl_strdup(path), .tmp = mfl_asprintf("%s.tmp", path)};
        int r = 0;
        if (!f.path || !f.tmp) {
                r = mfl_fail_memory(err, strlen(path) + 5, "a file name");
                goto out;
        }
        if (!pass("before-open", f.tmp))
                f.fd = open(f.tmp, O_WRONLY | O_CREAT | O_CLOEXEC | flags, mode);
        if (f.fd < 0) {
                r = mfl_fail_errno(err, "create %s", f.tmp);
                goto out;
        }
        f.active = true;
        if (pass("after-open", f.tmp)) {
                r = mfl_fail_errno(err, "create %s", f.tmp);
                goto out;
        }
        *file = f;
        return 0;
out:
        mfl_fs_abort(&f);
        return r;
}

int mfl_fs_begin(struct mfl_fs_file *file, const char *path, struct mfl_error *err)
{
        return begin(file, path, O_TRUNC, 0644, err);
}

int mfl_fs_begin_exclusive(struct mfl_fs_file *file, const char *path, mode_t mode, struct mfl_error *err)
{
        return begin(file, path, O_EXCL | O_NOFOLLOW, mode, err);
}

/* Writes all of it. Signals and huge sizes cut writes short. */
static int write_all(int fd, const char *data, size_t bytes)
{
        while (bytes) {
                ssize_t n = write(fd, data, MFL_MIN(bytes, (size_t)1 << 30));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -1;
                data += n;
                bytes -= (size_t)n;
        }
        return 0;
}

int mfl_fs_write(struct mfl_fs_file *file, const void *data, size_t bytes, struct mfl_error *err)
{
        mfl_assert(file->active);
        if (pass("before-write", file->tmp) || write_all(file->fd, data, bytes) ||
                pass("after-write", file->tmp))
                return mfl_fail_errno(err, "write %s (%zu bytes at %llu)", file->tmp, bytes,
                        (unsigned long long)file->bytes);
        file->bytes += bytes;
        return 0;
}

int mfl_fs_room(const char *path, uint64_t *ret_bytes, struct mfl_error *err)
{
        struct statvfs vfs;
        if (statvfs(path, &vfs))
                return mfl_fail_errno(err, "statvfs %s", path);
        *ret_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
        return 0;
}

int mfl_fs_sync_dir(const char *path, struct mfl_error *err)
{
        int r = 0;
        int fd = -1;
        if (!pass("before-fsync-dir", path))
                fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) || pass("after-fsync-dir", path))
                r = mfl_fail_errno(err, "fsync of directory %s", path);
        if (fd >= 0)
                close(fd);
        return r;
}

/* The directory that a file is in: "." for a bare name. Heap. */
static char *directory_of(const char *path)
{
        const char *slash = strrchr(path, '/');
        if (!slash)
                return mfl_strdup(".");
        if (slash == path)
                return mfl_strdup("/");
        return mfl_asprintf("%.*s", (int)(slash - path), path);
}

static int sync_and_rename(struct mfl_fs_file *file, struct mfl_error *err)
{
        if (pass("before-fsync", file->tmp) || fsync(file->fd) || pass("after-fsync", file->tmp))
                return mfl_fail_errno(err, "fsync %s", file->tmp);
        int fd = file->fd;
        file->fd = -1;
        if (close(fd))
                return mfl_fail_errno(err, "close %s", file->tmp);
        if (pass("before-rename", file->path) || rename(file->tmp, file->path))
                return mfl_fail_errno(err, "rename %s to %s", file->tmp, file->path);
        file->active = false;
        if (pass("after-rename", file->path))
                return mfl_fail_errno(err, "fsync of the directory of %s", file->path);
        return 0;
}

int mfl_fs_commit(struct mfl_fs_file *file, struct mfl_error *err)
{
        mfl_assert(file->active);
        int r;
        /* Allocated first, so that memory cannot run out between the rename and the fsync of the directory. */
        MFL_CLEANUP_FREE char *dir = directory_of(file->path);
        if (!dir)
                r = mfl_fail_memory(err, strlen(file->path), "a file name");
        else
                r = sync_and_rename(file, err);
        if (!r)
                r = mfl_fs_sync_dir(dir, err);
        mfl_fs_abort(file);
        return r;
}

void mfl_fs_abort(struct mfl_fs_file *file)
{
        /* A zeroed object has fd 0 and is not active: it owns nothing. */
        if (file->active) {
                if (file->fd >= 0)
                        close(file->fd);
                unlink(file->tmp);
        }
        free(file->path);
        free(file->tmp);
        *file = (struct mfl_fs_file){.fd = -1};
}

/* Grows the buffer while it reads, because the size is only a hint: files may grow, and pipes have no size. */
static int read_all(int fd, const char *path, size_t bytes_max, size_t hint, char **ret_data,
        size_t *ret_bytes, struct mfl_error *err)
{
        size_t room = MFL_MIN(hint, bytes_max) + 2, used = 0;
        char *data = mfl_malloc(room);
        if (!data)
                return mfl_fail_memory(err, room, path);
        for (;;) {
                if (used + 1 == room) {
                        char *grown = mfl_realloc(data, room * 2);
                        if (!grown) {
                                free(data);
                                return mfl_fail_memory(err, room * 2, path);
                        }
                        data = grown;
                        room *= 2;
                }
                ssize_t n = read(fd, data + used, MFL_MIN(room - used - 1, (size_t)1 << 30));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        int r = mfl_fail_errno(err, "read %s", path);
                        free(data);
                        return r;
                }
                if (n == 0)
                        break;
                used += (size_t)n;
                if (used > bytes_max) {
                        free(data);
                        return mfl_fail(err, MFL_INVALID, "%s: more than %zu bytes", path, bytes_max);
                }
        }
        data[used] = '\0';
        *ret_data = data;
        *ret_bytes = used;
        return 0;
}

int mfl_fs_read(const char *path, size_t bytes_max, char **ret_data, size_t *ret_bytes, struct mfl_error *err)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
                return mfl_fail(err, MFL_NOT_FOUND, "%s: no such file", path);
        if (fd < 0)
                return mfl_fail_errno(err, "open %s", path);
        struct stat st;
        int r;
        if (fstat(fd, &st))
                r = mfl_fail_errno(err, "stat %s", path);
        else if (S_ISDIR(st.st_mode))
                r = mfl_fail(err, MFL_INVALID, "%s: is a directory", path);
        else if (S_ISREG(st.st_mode) && (uint64_t)st.st_size > bytes_max)
                r = mfl_fail(err, MFL_INVALID, "%s: %lld bytes; the limit is %zu", path,
                        (long long)st.st_size, bytes_max);
        else
                r = read_all(fd, path, bytes_max, S_ISREG(st.st_mode) ? (size_t)st.st_size : 4096, ret_data,
                        ret_bytes, err);
        close(fd);
        return r;
}

static int make_dir(const char *path, mode_t mode, struct mfl_error *err)
{
        struct stat st;
        if (!mkdir(path, mode))
                return 0;
        int saved = errno;
        if (saved == EEXIST && !stat(path, &st) && S_ISDIR(st.st_mode))
                return 0;
        errno = saved == EEXIST ? ENOTDIR : saved;
        return mfl_fail_errno(err, "make directory %s", path);
}

int mfl_fs_mkdirs(const char *path, mode_t mode, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *part = mfl_strdup(path);
        if (!part)
                return mfl_fail_memory(err, strlen(path), "a file name");
        for (char *c = part; *c; c++) {
                if (*c != '/' || c == part)
                        continue;
                *c = '\0';
                int r = make_dir(part, mode, err);
                if (r)
                        return r;
                *c = '/';
        }
        return make_dir(part, mode, err);
}

/* open() returns the lowest free descriptor. */
bool mfl_fs_open_standard(void)
{
        static const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
        for (int fd = 0; fd < 3; fd++)
                if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", modes[fd]) != fd)
                        return false;
        return true;
}
