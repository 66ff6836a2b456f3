/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon's shared directory: whether it is suitable, and its number.
 *
 * - open the directory; it must be a tmpfs, unless it was named in the configuration;
 * - unlink what dead daemons left behind, then make the own lock file (share_stale.c);
 * - buffers come and go (share_buffer.c), and so do views of others' buffers (share_view.c);
 * - close unlinks the lock file last, so that a file without a lock file belongs to nobody.
 * Fails by: no such directory, not writable, on a disk; a living process with the same instance number. */
#include "client/node/share_internal.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/base/fs.h"

#define DIR_DEFAULT "/dev/shm"

/* The default directory is memory by its name only: if it is a plain directory on a disk, every update would
 * be written there. Of the file systems in memory only tmpfs will do: ramfs can't reserve pages, and
 * hugetlbfs has files of whole huge pages only. */
static int check_dir(const struct mfl_share *share, bool by_name, struct mfl_error *err)
{
        struct statfs fs;
        struct stat st;
        if (fstatfs(share->fd, &fs) || fstat(share->fd, &st))
                return mfl_share_fail_errno(err, share, "", "look at", "");
        if (!by_name && fs.f_type != TMPFS_MAGIC)
                return mfl_fail(err, MFL_INVALID,
                        "%s is not in memory (no tmpfs; file system type 0x%lx): mount a tmpfs there, or "
                        "name "
                        "another directory for shared memory",
                        share->dir, (unsigned long)fs.f_type);
        /* Others could replace our files by files of their own. */
        if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
                return mfl_fail(err, MFL_INVALID,
                        "%s: everybody may rename files in it: set the sticky bit (chmod +t)", share->dir);
        if (faccessat(share->fd, ".", R_OK | W_OK | X_OK, AT_EACCESS))
                return mfl_share_fail_errno(err, share, "", "write to", "");
        return 0;
}

/* A mounted file system's device number is unique as long as it is mounted, and two containers have the same
 * number only if they share the file system. The numbers are mixed, so that different directories don't get
 * the same sum. */
static uint64_t dir_id(const struct stat *st)
{
        uint64_t x = (uint64_t)st->st_dev * 0x9e3779b97f4a7c15u + (uint64_t)st->st_ino;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
        return x ? x : 1;
}

static int open_dir(struct mfl_share *share, bool by_name, struct mfl_error *err)
{
        struct stat st;
        share->fd = open(share->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (share->fd < 0)
                return mfl_share_fail_errno(err, share, "", "open", "");
        int r = check_dir(share, by_name, err);
        if (r)
                return r;
        if (fstat(share->fd, &st))
                return mfl_share_fail_errno(err, share, "", "look at", "");
        share->id = dir_id(&st);
        return 0;
}

static void free_share(struct mfl_share *share)
{
        if (share->lock_fd >= 0)
                close(share->lock_fd);
        if (share->fd >= 0)
                close(share->fd);
        pthread_mutex_destroy(&share->lock);
        free(share->dir);
        free(share);
}

int mfl_share_open(
        const struct mfl_share_options *options, struct mfl_share **ret_share, struct mfl_error *err)
{
        mfl_assert(options->instance != 0);
        struct mfl_share *share = mfl_calloc(1, sizeof(*share));
        if (!share)
                return mfl_fail_memory(err, sizeof(*share), "shared memory");
        share->fd = share->lock_fd = -1;
        share->instance = options->instance;
        share->bytes_max = options->bytes_max ? options->bytes_max : UINT64_MAX;
        pthread_mutex_init(&share->lock, NULL);
        const char *dir = options->dir ? options->dir : DIR_DEFAULT;
        int r = 0;
        share->dir = mfl_strdup(dir);
        if (!share->dir)
                r = mfl_fail_memory(err, strlen(dir) + 1, "a path");
        if (!r)
                r = open_dir(share, options->dir != NULL, err);
        if (!r) {
                mfl_share_remove_stale(share);
                r = mfl_share_lock_new(share, err);
        }
        if (r) {
                free_share(share);
                return r;
        }
        *ret_share = share;
        return 0;
}

void mfl_share_close(struct mfl_share *share)
{
        if (!share)
                return;
        mfl_assert(!share->buffers && !share->n_views);
        mfl_share_drop_resting(share, true);
        char name[MFL_SHARE_FILE_BYTES];
        mfl_share_name_lock(name, share->instance);
        unlinkat(share->fd, name, 0);
        free_share(share);
}

uint64_t mfl_share_id(const struct mfl_share *share)
{
        return share->id;
}

uint64_t mfl_share_place(const struct mfl_share *share)
{
        MFL_CLEANUP_FREE char *boot = NULL;
        size_t bytes = 0;
        uint64_t place = share->id;
        if (!mfl_fs_read("/proc/sys/kernel/random/boot_id", 4096, &boot, &bytes, NULL))
                for (size_t i = 0; i < bytes; i++)
                        place = (place ^ (unsigned char)boot[i]) * 0x100000001b3u;
        return place ? place : 1;
}

uint64_t mfl_share_instance(const struct mfl_share *share)
{
        return share->instance;
}

const char *mfl_share_dir(const struct mfl_share *share)
{
        return share->dir;
}
