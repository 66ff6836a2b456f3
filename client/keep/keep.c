/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' states at their site.
 *   - load: the file of that name, if its bytes have that digest; it counts as new again, so that turns that do not count never push it out;
 *   - save: write, sync, rename; then remove the oldest of the client's files, beyond a few, but not this one.
 * Fails when the directory can't be written, or the disk is full. */
#include "client/keep/keep.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/fs.h"

#define PATH_BYTES 512
#define SUFFIX ".f32"

static void folder_of(const struct mfl_keep *keep, char path[PATH_BYTES])
{
        uint32_t text = mfl_crc32c(0, keep->job_text, strlen(keep->job_text));
        mfl_snprintf(path, PATH_BYTES, "%s/states/%s-%08" PRIx32 "-%016" PRIx64, keep->dir, keep->job, text,
                keep->client);
}

static void file_of(
        const struct mfl_keep *keep, const uint8_t sha256[MFL_SHA256_BYTES], char path[PATH_BYTES])
{
        char folder[PATH_BYTES], hex[MFL_SHA256_HEX_BYTES];
        folder_of(keep, folder);
        mfl_hex(sha256, MFL_SHA256_BYTES, hex);
        mfl_snprintf(path, PATH_BYTES, "%.*s/%s" SUFFIX, PATH_BYTES - 80, folder, hex);
}

/* n floats, and nothing behind them. */
static bool read_floats(const char *path, size_t n, float *to)
{
        struct stat st;
        char *at = (char *)to;
        size_t left = n * sizeof *to;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return false;
        bool ok = !fstat(fd, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == left;
        while (ok && left) {
                ssize_t got = read(fd, at, left);
                if (got < 0 && errno == EINTR)
                        continue;
                ok = got > 0;
                at += ok ? got : 0;
                left -= ok ? (size_t)got : 0;
        }
        if (ok)
                (void)futimens(fd, NULL);
        close(fd);
        return ok;
}

int mfl_keep_load(const struct mfl_keep *keep, const uint8_t sha256[MFL_SHA256_BYTES], size_t n, float *to,
        bool *ret_there, struct mfl_error *err)
{
        char path[PATH_BYTES];
        uint8_t found[MFL_SHA256_BYTES];
        *ret_there = false;
        file_of(keep, sha256, path);
        if (!read_floats(path, n, to)) /* whatever is wrong with it, the client begins anew */
                return 0;
        int r = mfl_sha256(to, n * sizeof *to, found, err);
        *ret_there = !r && !memcmp(found, sha256, sizeof found);
        return r;
}

struct found {
        char name[MFL_SHA256_HEX_BYTES + sizeof SUFFIX];
        struct timespec time;
};

static bool is_older(const struct found *a, const struct found *b)
{
        return a->time.tv_sec < b->time.tv_sec ||
               (a->time.tv_sec == b->time.tv_sec && a->time.tv_nsec < b->time.tv_nsec);
}

/* The oldest of the client's other files, and how many there are. */
static uint32_t find_oldest(DIR *dir, const char *own, struct found *ret_oldest)
{
        uint32_t n = 0;
        rewinddir(dir);
        for (const struct dirent *entry; (entry = readdir(dir));) {
                struct found found;
                struct stat st;
                size_t length = strlen(entry->d_name);
                if (length != MFL_SHA256_HEX_BYTES - 1 + strlen(SUFFIX) || !strcmp(entry->d_name, own) ||
                        fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode))
                        continue;
                mfl_strcpy(found.name, sizeof found.name, entry->d_name);
                found.time = st.st_mtim;
                if (!n++ || is_older(&found, ret_oldest))
                        *ret_oldest = found;
        }
        return n;
}

/* What can't be removed costs space, nothing else. own: the file that was just written: the clock may have been set back. */
static void prune(const char *folder, const char *own)
{
        DIR *dir = opendir(folder);
        struct found oldest;
        while (dir && find_oldest(dir, own, &oldest) >= MFL_KEEP_FILES &&
                !unlinkat(dirfd(dir), oldest.name, 0))
                ;
        if (dir)
                closedir(dir);
}

static int write_floats(const char *path, size_t n, const float *from, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        int r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, from, n * sizeof *from, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        return r;
}

int mfl_keep_save(const struct mfl_keep *keep, size_t n, const float *from,
        uint8_t ret_sha256[MFL_SHA256_BYTES], struct mfl_error *err)
{
        char folder[PATH_BYTES], path[PATH_BYTES];
        struct mfl_error why = {{0}};
        int r = mfl_sha256(from, n * sizeof *from, ret_sha256, err);
        if (r)
                return r;
        folder_of(keep, folder);
        file_of(keep, ret_sha256, path);
        r = mfl_fs_mkdirs(folder, 0700, &why);
        if (!r)
                r = write_floats(path, n, from, &why);
        if (r && r != -ENOMEM)
                return mfl_fail(err, MFL_INVALID, "its site can't keep its state: %.400s", why.text);
        if (r)
                return mfl_fail(err, r, "%s", why.text);
        prune(folder, strrchr(path, '/') + 1);
        return 0;
}
