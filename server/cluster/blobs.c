/* SPDX-License-Identifier: Apache-2.0 */
/* Files by their SHA-256. See blobs.h. */
#include "server/cluster/blobs.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"

#define PIECE_BYTES ((size_t)4 << 20)
#define PATH_BYTES MFL_BLOBS_PATH_BYTES

void mfl_blobs_path(const struct mfl_blobs *blobs, const uint8_t sha256[32], char path[PATH_BYTES])
{
        char hex[MFL_SHA256_HEX_BYTES];
        mfl_hex(sha256, 32, hex);
        snprintf(path, PATH_BYTES, "%s/%s", blobs->dir, hex);
}

/* Copies, and checks what it has copied. to NULL: only checks. bytes 0: any number. */
static int copy(struct mfl_blobs *blobs, int from, const char *from_path, struct mfl_fs_file *to,
        const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *piece = mfl_malloc(PIECE_BYTES);
        struct mfl_sha256 sha = {0};
        uint8_t got[32];
        uint64_t n_all = 0;
        if (!piece)
                return mfl_fail_memory(err, PIECE_BYTES, "copying a file");
        int r = mfl_sha256_init(&sha, err);
        while (!r) {
                ssize_t n = read(from, piece, PIECE_BYTES);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        r = mfl_fail_errno(err, "read %s", from_path);
                if (n <= 0)
                        break;
                n_all += (uint64_t)n;
                r = mfl_sha256_update(&sha, piece, (size_t)n, err);
                if (!r && to)
                        r = mfl_fs_write(to, piece, (size_t)n, err);
                if (!r && blobs->beat && !blobs->beat(blobs->user))
                        r = mfl_fail(err, -ECANCELED, "copying %s: the lease is over", from_path);
        }
        if (!r)
                r = mfl_sha256_final(&sha, got, err);
        mfl_sha256_deinit(&sha);
        if (!r && ((bytes && n_all != bytes) || memcmp(got, sha256, sizeof got) != 0))
                r = mfl_fail(err, MFL_INVALID, "%s: %llu bytes that are not those of its SHA-256", from_path,
                        (unsigned long long)n_all);
        return r;
}

static int copy_file(struct mfl_blobs *blobs, const char *from_path, const char *to_path,
        const uint8_t sha256[32], uint64_t bytes, struct mfl_error *err)
{
        struct mfl_fs_file to = {.fd = -1};
        int from = open(from_path, O_RDONLY | O_CLOEXEC);
        if (from < 0)
                return errno == ENOENT ? mfl_fail(err, MFL_NOT_FOUND, "there is no %s", from_path)
                                       : mfl_fail_errno(err, "open %s", from_path);
        int r = mfl_fs_begin(&to, to_path, err);
        if (!r)
                r = copy(blobs, from, from_path, &to, sha256, bytes, err);
        if (!r)
                r = mfl_fs_commit(&to, err);
        mfl_fs_abort(&to);
        close(from);
        return r;
}

/* Files that nobody writes to again (server/store/store.h). */
static bool is_constant(const char *path)
{
        const char *name = strrchr(path, '/');
        return name && (!strncmp(name, "/round-", 7) || !strcmp(name, "/initial.f32") ||
                               !strcmp(name, "/frozen.safetensors"));
}

/* A second name for the file; else MFL_BUSY: it must be copied. One of the two paths is the blob's. */
static int link_file(const struct mfl_blobs *blobs, const char *from, const char *to)
{
        char own[PATH_BYTES + 80];
        if (!blobs->links || (!is_constant(from) && !is_constant(to)))
                return MFL_BUSY;
        snprintf(own, sizeof own, "%s.link", to);
        unlink(own);
        if (link(from, own))
                return MFL_BUSY;
        if (!rename(own, to))
                return 0;
        unlink(own);
        return MFL_BUSY;
}

/* The directory of a file. */
static int sync_parent(const char *path, struct mfl_error *err)
{
        char dir[PATH_BYTES + 80];
        mfl_strcpy(dir, sizeof dir, path);
        char *slash = strrchr(dir, '/');
        if (slash)
                *slash = 0;
        return mfl_fs_sync_dir(dir, err);
}

int mfl_blobs_check(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return errno == ENOENT ? mfl_fail(err, MFL_NOT_FOUND, "there is no %s", path)
                                       : mfl_fail_errno(err, "open %s", path);
        int r = copy(blobs, fd, path, NULL, sha256, bytes, err);
        close(fd);
        return r;
}

bool mfl_blobs_is(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes)
{
        struct mfl_error err;
        return !mfl_blobs_check(blobs, path, sha256, bytes, &err);
}

int mfl_blobs_put(struct mfl_blobs *blobs, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err)
{
        char to[PATH_BYTES], own[PATH_BYTES + 80];
        struct stat st;
        mfl_blobs_path(blobs, sha256, to);
        /* A process that was killed may have left its name unsynced. */
        if (!stat(to, &st) && (uint64_t)st.st_size == bytes && !utimensat(AT_FDCWD, to, NULL, 0))
                return mfl_fs_sync_dir(blobs->dir, err);
        if (!link_file(blobs, path, to))
                return mfl_fs_sync_dir(blobs->dir, err);
        snprintf(own, sizeof own, "%s.%s", to, blobs->name); /* two servers may put the same blob */
        int r = copy_file(blobs, path, own, sha256, bytes, err);
        if (!r && rename(own, to))
                r = mfl_fail_errno(err, "rename %s to %s", own, to);
        return r ? r : mfl_fs_sync_dir(blobs->dir, err);
}

int mfl_blobs_get(struct mfl_blobs *blobs, const uint8_t sha256[32], uint64_t bytes, const char *path,
        struct mfl_error *err)
{
        char from[PATH_BYTES];
        mfl_blobs_path(blobs, sha256, from);
        if (blobs->links && mfl_blobs_is(blobs, from, sha256, bytes) && !link_file(blobs, from, path))
                return sync_parent(path, err);
        return copy_file(blobs, from, path, sha256, bytes, err);
}

/* The time of the file system, which may be another machine's. 0: not known. */
static uint64_t now_of(struct mfl_blobs *blobs)
{
        char path[PATH_BYTES];
        struct stat st = {.st_mtime = 0};
        snprintf(path, sizeof path, "%s/clock.%s", blobs->dir, blobs->name);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0)
                return 0;
        if (write(fd, "\n", 1) != 1 || fstat(fd, &st))
                st.st_mtime = 0;
        close(fd);
        return (uint64_t)st.st_mtime;
}

uint32_t mfl_blobs_sweep(
        struct mfl_blobs *blobs, uint64_t age_s, bool (*keeps)(void *user, const char *hex), void *user)
{
        uint64_t now = now_of(blobs);
        uint32_t n = 0;
        DIR *dir = now ? opendir(blobs->dir) : NULL;
        struct dirent *entry;
        struct stat st;
        while (dir && (entry = readdir(dir)))
                if (strspn(entry->d_name, "0123456789abcdef") == 64 && !keeps(user, entry->d_name) &&
                        !fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
                        (uint64_t)st.st_mtime + age_s < now)
                        n += !unlinkat(dirfd(dir), entry->d_name, 0);
        if (dir)
                closedir(dir);
        return n;
}
