/* SPDX-License-Identifier: Apache-2.0 */
/* The shared directory of a daemon: whether it will do, names in it, and its number.
 *
 * - open the directory; it must be a tmpfs, unless it was asked for by name;
 * - unlink what the dead left behind, then make the own lock file (share_stale.c);
 * - buffers come and go (share_buffer.c), views of others' buffers, too (share_view.c);
 * - close unlinks the lock file last, so that a file without a lock file is nobody's.
 * Fails by: no such directory, not ours to write to, on a disk; an instance of the same number that lives.
 */
#include "client/share_internal.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/digest.h"

#define DIR_DEFAULT "/dev/shm"
#define DIGITS 16 /* of an instance */

void mfl_share_name_lock(char name[MFL_SHARE_FILE_BYTES], uint64_t instance)
{
        snprintf(name, MFL_SHARE_FILE_BYTES, "mfl-%016" PRIx64 ".lock", instance);
}

void mfl_share_name_key(
        char name[MFL_SHARE_FILE_BYTES], uint64_t instance, const uint8_t key[MFL_SHARE_KEY_BYTES])
{
        char hex[2 * MFL_SHARE_KEY_BYTES + 1];
        mfl_hex(key, MFL_SHARE_KEY_BYTES, hex);
        snprintf(name, MFL_SHARE_FILE_BYTES, "mfl-%016" PRIx64 ".%s", instance, hex);
}

static bool only_of(const char *text, const char *set)
{
        return *text && !text[strspn(text, set)];
}

bool mfl_share_name_parse(const char *name, uint64_t *ret_instance, enum mfl_share_file_kind *ret_kind)
{
        static const char hex[] = "0123456789abcdef", decimal[] = "0123456789";
        if (strncmp(name, "mfl-", 4) || strspn(name + 4, hex) != DIGITS)
                return false;
        char digits[DIGITS + 1] = "";
        memcpy(digits, name + 4, DIGITS);
        const char *rest = name + 4 + DIGITS;
        enum mfl_share_file_kind kind = MFL_SHARE_FILE_DATA;
        if (!strcmp(rest, ".lock"))
                kind = MFL_SHARE_FILE_LOCK;
        else if (!strncmp(rest, ".new", 4) && only_of(rest + 4, decimal))
                kind = MFL_SHARE_FILE_NEW;
        else if (!(rest[0] == '-' && only_of(rest + 1, decimal)) &&
                 !(rest[0] == '.' && strlen(rest + 1) == 2 * MFL_SHARE_KEY_BYTES && only_of(rest + 1, hex)))
                return false;
        *ret_instance = strtoull(digits, NULL, 16);
        *ret_kind = kind;
        return true;
}

bool mfl_share_is_ours(const struct stat *st)
{
        return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IRWXG | S_IRWXO));
}

bool mfl_share_is_named(const struct mfl_share *share, int fd, const char *name)
{
        struct stat opened, named;
        return !fstat(fd, &opened) && !fstatat(share->fd, name, &named, AT_SYMLINK_NOFOLLOW) &&
               opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

int mfl_share_fail_errno(struct mfl_error *err, const struct mfl_share *share, const char *name,
        const char *doing, const char *advice)
{
        const char *slash = *name ? "/" : "";
        switch (errno) {
        case ENOMEM:
        case EMFILE:
        case ENFILE:
                return mfl_fail_errno(err, "%s %s%s%s", doing, share->dir, slash, name);
        default:
                return mfl_fail(err, MFL_INVALID, "%s %s%s%s: %s%s", doing, share->dir, slash, name,
                        strerror(errno), advice);
        }
}

/* By its name the default directory is memory, but nothing makes it so: where it is a plain directory on a
 * disk, every update would be written there. Of the file systems in memory only tmpfs will do: ramfs can't
 * reserve pages, and hugetlbfs has files of whole huge pages only. */
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
        /* Others could put files of their own in the place of ours. */
        if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
                return mfl_fail(err, MFL_INVALID,
                        "%s: everybody may rename what is in it: it needs the sticky bit (chmod +t)",
                        share->dir);
        if (faccessat(share->fd, ".", R_OK | W_OK | X_OK, AT_EACCESS))
                return mfl_share_fail_errno(err, share, "", "write to", "");
        return 0;
}

/* A mounted file system's device number is its own as long as it is mounted, and two containers have the same
 * one only if they have the same file system. Mixed, as numbers of different directories must not add up to
 * the same. */
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

uint64_t mfl_share_instance(const struct mfl_share *share)
{
        return share->instance;
}
