/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon per GPU: a lock file per device; and whether MPS runs, so that several daemons can share it.
 *
 *   - use the first place that accepts a file; open the file, or make it so that everybody can open it;
 *   - flock it, exclusive or shared; the file must still have its name (the last holder removes it),
 *     otherwise try again;
 *   - write the process's number into it, for the message that others print.
 * Fails by: another holder (MFL_BUSY); no place for the file (MFL_NOT_FOUND).
 *
 * Nothing relies on the file's contents: only flock counts. */
#include "client/gpu/gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"

/* The name of place i; NULL: not set; false: no more. */
static bool lock_folder(int i, const char **ret_folder)
{
        switch (i) {
        case 0:
                *ret_folder = getenv("MFL_GPU_LOCK_DIR");
                return true;
        case 1:
                *ret_folder = "/run/lock";
                return true;
        case 2:
                *ret_folder = getenv("XDG_RUNTIME_DIR");
                return true;
        case 3:
                *ret_folder = "/tmp";
                return true;
        }
        return false;
}

/* First without O_CREAT: in a folder that everybody may write to, the kernel may refuse O_CREAT on another
 * user's file (fs.protected_regular). Read access is enough for flock. */
static int open_lock(const char *path)
{
        int flags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        int fd = open(path, O_RDWR | flags);
        if (fd < 0 && errno == EACCES)
                fd = open(path, O_RDONLY | flags);
        if (fd >= 0 || errno != ENOENT)
                return fd;
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | flags, 0666);
        /* Overrides the umask, for daemons of other users. If it fails, they can't open the file and say
         * so. */
        if (fd >= 0 && fchmod(fd, 0666))
                mfl_log(MFL_LOG_WARN, "%s: make it readable for others: %s", path, strerror(errno));
        return fd;
}

static bool same_file(int fd, const char *path)
{
        struct stat open_one, named;
        return !fstat(fd, &open_one) && S_ISREG(open_one.st_mode) && !stat(path, &named) &&
               open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev;
}

/* "process 123", or "another process" if the file does not say. */
static void holder_text(int fd, char *buf, size_t bytes)
{
        char text[32] = "";
        ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
        long pid = n > 0 ? strtol(text, NULL, 10) : 0;
        if (pid > 0)
                snprintf(buf, bytes, "process %ld", pid);
        else
                snprintf(buf, bytes, "another process");
}

static void write_holder(int fd)
{
        char text[32];
        int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
        /* Another user's lock file can't be written, or the disk is full: the lock counts anyway. */
        if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)n, 0) != n)
                return;
}

static int refuse(int fd, const char *uuid, bool shared, struct mfl_error *err)
{
        char holder[48];
        holder_text(fd, holder, sizeof(holder));
        if (shared)
                return mfl_fail(err, MFL_BUSY,
                        "%s uses it without --share-gpu; start both daemons with --share-gpu (GPU %s)",
                        holder, uuid);
        return mfl_fail(err, MFL_BUSY,
                "GPU %s: %s already trains on it; several daemons may share it if all of them are started "
                "with --share-gpu",
                uuid, holder);
}

/* MFL_NOT_FOUND: no file can be made there. */
static int lock_file(
        struct mfl_gpu_lock *lock, const char *path, const char *uuid, bool shared, struct mfl_error *err)
{
        for (int tries = 0; tries < 100; tries++) {
                int fd = open_lock(path);
                if (fd < 0 && errno == EEXIST) /* made between the two opens */
                        continue;
                if (fd < 0)
                        return MFL_NOT_FOUND;
                if (flock(fd, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
                        int r = errno == EWOULDBLOCK ? refuse(fd, uuid, shared, err) : MFL_NOT_FOUND;
                        close(fd);
                        return r;
                }
                if (same_file(fd, path)) {
                        write_holder(fd);
                        lock->fd = fd;
                        mfl_strcpy(lock->path, sizeof(lock->path), path);
                        return 0;
                }
                close(fd);
        }
        return MFL_NOT_FOUND;
}

int mfl_gpu_lock_take(struct mfl_gpu_lock *lock, const char *uuid, bool shared, struct mfl_error *err)
{
        char name[MFL_GPU_TEXT_BYTES], path[256];
        const char *folder;
        mfl_strcpy(name, sizeof(name), uuid);
        for (char *c = name; *c; c++) {
                if (*c == '/') /* slashes of an old MIG name */
                        *c = '-';
        }
        for (int i = 0; lock_folder(i, &folder); i++) {
                if (!folder || !*folder ||
                        snprintf(path, sizeof(path), "%s/mfl-%s.lock", folder, name) >= (int)sizeof(path))
                        continue;
                int r = lock_file(lock, path, uuid, shared, err);
                if (r != MFL_NOT_FOUND)
                        return r;
        }
        return mfl_fail(err, MFL_NOT_FOUND,
                "GPU %s: no lock file could be made in /run/lock, $XDG_RUNTIME_DIR or /tmp", uuid);
}

void mfl_gpu_lock_release(struct mfl_gpu_lock *lock)
{
        if (lock->fd < 0)
                return;
        /* Other holders still need the file; the last one removes it. */
        if (!flock(lock->fd, LOCK_EX | LOCK_NB))
                unlink(lock->path);
        close(lock->fd);
        lock->fd = -1;
}

/* ---- MPS ---- */

/* Whether a process listens at a socket. It is asked with a datagram socket: the kernel answers "wrong type"
 * if a stream or packet socket is there, and "refused" if the file's process is dead. This does not disturb
 * the control daemon, and works from a container that can't see its process. */
static bool socket_lives(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        if (!mfl_strcpy(address.sun_path, sizeof(address.sun_path), path))
                return false;
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return false;
        bool lives = !connect(fd, (struct sockaddr *)&address, sizeof(address)) || errno == EPROTOTYPE;
        close(fd);
        return lives;
}

/* The control daemon removes its pid file when it stops, but not when it crashes: so check that the process
 * has its name. */
static bool control_process_lives(const char *folder)
{
        char path[300], name[32] = "";
        MFL_CLEANUP_FREE char *text = NULL, *comm = NULL;
        size_t bytes;
        snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", folder);
        if (mfl_fs_read(path, 64, &text, &bytes, NULL))
                return false;
        long pid = strtol(text, NULL, 10);
        snprintf(path, sizeof(path), "/proc/%ld/comm", pid);
        if (pid <= 0 || mfl_fs_read(path, 64, &comm, &bytes, NULL))
                return false;
        mfl_strcpy(name, sizeof(name), comm);
        return !strncmp(name, "nvidia-cuda-mps", 15); /* cut at 15 characters by the kernel */
}

bool mfl_gpu_mps_running(void)
{
        char path[256];
        const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
        if (!folder || !*folder)
                folder = "/tmp/nvidia-mps";
        if (snprintf(path, sizeof(path), "%s/control", folder) >= (int)sizeof(path))
                return false;
        return socket_lives(path) || control_process_lives(folder);
}
