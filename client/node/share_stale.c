/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons live, told by their lock files; and removing what dead daemons left behind.
 *
 * A lock file is flock'ed as long as its process lives, and the kernel releases it however the process ends.
 * So that nobody sees it unlocked, it is made under another name (mfl-INSTANCE.newN), locked, and then linked
 * to its own name. A process that takes the lock of a dead process's file may unlink that process's files,
 * and the lock file last: if it is killed halfway, the next one does the rest.
 *
 * If two start at once, only one gets the lock of a dead process, and the other goes on. A file that was
 * opened before somebody unlinked it can be locked, too, so its name is checked again under the lock. Between
 * its making and its locking, a .newN file may be taken for a dead process's: then it can't be locked or
 * can't be linked, and its maker tries the next number. A file without a lock file belongs to nobody, because
 * lock files are made first and removed last. */
#include "client/node/share_internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"

#define TRIES 1000
#define OPEN_FLAGS (O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

/* One attempt; MFL_BUSY: another process was just at it. */
static int link_lock(struct mfl_share *share, const char *new, const char *name, struct mfl_error *err)
{
        int fd = openat(share->fd, new, OPEN_FLAGS | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
        if (fd < 0)
                return errno == EEXIST ? MFL_BUSY : mfl_share_fail_errno(err, share, new, "make", "");
        if (flock(fd, LOCK_EX | LOCK_NB)) {
                int code =
                        errno == EWOULDBLOCK ? MFL_BUSY : mfl_share_fail_errno(err, share, new, "lock", "");
                close(fd);
                return code;
        }
        if (linkat(share->fd, new, share->fd, name, 0)) {
                int code = errno == ENOENT ? MFL_BUSY : mfl_share_fail_errno(err, share, name, "make", "");
                unlinkat(share->fd, new, 0);
                close(fd);
                return code;
        }
        unlinkat(share->fd, new, 0);
        share->lock_fd = fd;
        return 0;
}

int mfl_share_lock_new(struct mfl_share *share, struct mfl_error *err)
{
        char name[MFL_SHARE_FILE_BYTES], new[MFL_SHARE_FILE_BYTES];
        mfl_share_name_lock(name, share->instance);
        for (int i = 0; i < TRIES; i++) {
                snprintf(new, sizeof(new), "mfl-%016" PRIx64 ".new%d", share->instance, i);
                int r = link_lock(share, new, name, err);
                if (r != MFL_BUSY)
                        return r;
        }
        return mfl_fail(
                err, MFL_INVALID, "%s/%s: other processes keep locking or removing it", share->dir, name);
}

int mfl_share_lock_check(struct mfl_share *share, struct mfl_error *err)
{
        char name[MFL_SHARE_FILE_BYTES];
        int r = 0;
        mfl_share_name_lock(name, share->instance);
        pthread_mutex_lock(&share->lock);
        if (!mfl_share_is_named(share, share->lock_fd, name)) {
                int old = share->lock_fd;
                r = mfl_share_lock_new(share, err);
                if (!r)
                        close(old);
        }
        pthread_mutex_unlock(&share->lock);
        return r;
}

bool mfl_share_is_dead(const struct mfl_share *share, uint64_t instance)
{
        char name[MFL_SHARE_FILE_BYTES];
        mfl_share_name_lock(name, instance);
        int fd = openat(share->fd, name, OPEN_FLAGS);
        if (fd < 0)
                return errno == ENOENT;
        bool dead = !flock(fd, LOCK_SH | LOCK_NB);
        close(fd);
        return dead;
}

/* Calls visit for every file of this user in the directory whose name is one of ours. */
static void each_file(const struct mfl_share *share,
        void (*visit)(const struct mfl_share *share, const char *name, uint64_t instance,
                enum mfl_share_file_kind kind, uint64_t arg),
        uint64_t arg)
{
        /* Opened again, because the read position belongs to the open file. */
        int fd = openat(share->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);
        if (!dir) {
                mfl_log(MFL_LOG_WARN, "look for what dead daemons left in %s: %s", share->dir,
                        strerror(errno));
                if (fd >= 0)
                        close(fd);
                return;
        }
        for (struct dirent *entry; (entry = readdir(dir));) {
                uint64_t instance;
                enum mfl_share_file_kind kind;
                struct stat st;
                if (mfl_share_name_parse(entry->d_name, &instance, &kind) &&
                        !fstatat(share->fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) && S_ISREG(st.st_mode) &&
                        st.st_uid == geteuid())
                        visit(share, entry->d_name, instance, kind, arg);
        }
        closedir(dir);
}

static void remove_file(const struct mfl_share *share, const char *name, uint64_t instance,
        enum mfl_share_file_kind kind, uint64_t of)
{
        if (kind == MFL_SHARE_FILE_DATA && instance == of && !unlinkat(share->fd, name, 0))
                mfl_log(MFL_LOG_INFO, "removed %s/%s, which a dead daemon left behind", share->dir, name);
}

static void remove_dead(const struct mfl_share *share, const char *name, uint64_t instance,
        enum mfl_share_file_kind kind, uint64_t arg)
{
        if (kind == MFL_SHARE_FILE_DATA) {
                char lock[MFL_SHARE_FILE_BYTES];
                mfl_share_name_lock(lock, instance);
                if (faccessat(share->fd, lock, F_OK, AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
                        remove_file(share, name, instance, kind, instance);
                return;
        }
        int fd = openat(share->fd, name, OPEN_FLAGS);
        if (fd < 0)
                return;
        if (!mfl_fs_fault("share-stale-opened", name) && !flock(fd, LOCK_EX | LOCK_NB) &&
                mfl_share_is_named(share, fd, name)) {
                if (kind == MFL_SHARE_FILE_LOCK)
                        each_file(share, remove_file, instance);
                unlinkat(share->fd, name, 0);
        }
        close(fd);
}

void mfl_share_remove_stale(const struct mfl_share *share)
{
        each_file(share, remove_dead, 0);
}
