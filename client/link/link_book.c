/* SPDX-License-Identifier: Apache-2.0 */
/* With whom this daemon's updates were summed, in policy.dir: NAME.sums, 64 bytes for each sum (client/secure/member.h), which only
 * grows; 0600. So a daemon that was restarted remembers. Written on the loop thread, like the site's audit log. A daemon without a
 * policy has no place for it, and remembers as long as it runs.
 *
 * Ways to fail: a file that can't be read (the daemon ends at its start), or written (the sum is refused). */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/link/link_secure.h"

#define ROW_BYTES (2 * MFL_SHA256_BYTES)
#define ROWS_AT_ONCE 256

static int fail(struct mfl_error *err, int code, const char *path)
{
        return mfl_fail(err, code, "%s: %s", path, strerror(errno));
}

static int put_rows(struct mfl_secure_book *book, const uint8_t *rows, size_t n, struct mfl_error *err)
{
        for (size_t i = 0; i < n; i++) {
                int r = mfl_secure_book_room(book, err);
                if (r)
                        return r;
                mfl_secure_book_put(book, rows + i * ROW_BYTES, rows + i * ROW_BYTES + MFL_SHA256_BYTES);
        }
        return 0;
}

/* A row that a crash has cut off is overwritten. */
static int read_rows(int fd, const char *path, struct mfl_secure_book *book, struct mfl_error *err)
{
        struct stat st;
        uint8_t rows[ROWS_AT_ONCE * ROW_BYTES];
        if (fstat(fd, &st))
                return fail(err, -errno, path);
        off_t n = st.st_size / ROW_BYTES;
        if (st.st_size % ROW_BYTES && ftruncate(fd, n * ROW_BYTES))
                return fail(err, -errno, path);
        for (off_t i = 0; i < n; i += ROWS_AT_ONCE) {
                size_t count = (size_t)MFL_MIN(n - i, (off_t)ROWS_AT_ONCE);
                ssize_t got = pread(fd, rows, count * ROW_BYTES, i * ROW_BYTES);
                if (got < 0)
                        return fail(err, -errno, path);
                if (got != (ssize_t)(count * ROW_BYTES)) /* which sets no errno */
                        return mfl_fail(err, -EIO,
                                "%s: has become shorter than its %lld bytes while it was read", path,
                                (long long)n * ROW_BYTES);
                int r = put_rows(book, rows, count, err);
                if (r)
                        return r;
        }
        return 0;
}

int mfl_link_book_open(struct mfl_link *link, struct mfl_error *err)
{
        const struct mfl_policy *policy = mfl_gate_policy(link->options.gate);
        link->book_file = -1;
        link->book = mfl_calloc(1, sizeof *link->book);
        if (!link->book)
                return mfl_fail_memory(err, sizeof *link->book, "secure sums");
        if (!policy)
                return 0;
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/%s.sums", policy->dir, link->options.agent.info.name);
        if (!path)
                return mfl_fail_memory(err, 256, "a file name");
        link->book_file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        return link->book_file < 0 ? fail(err, -errno, path)
                                   : read_rows(link->book_file, path, link->book, err);
}

int mfl_link_book_keep(struct mfl_link *link, const uint8_t update[MFL_SHA256_BYTES],
        const uint8_t with[MFL_SHA256_BYTES], struct mfl_error *err)
{
        uint8_t row[ROW_BYTES];
        memcpy(row, update, MFL_SHA256_BYTES);
        memcpy(row + MFL_SHA256_BYTES, with, MFL_SHA256_BYTES);
        struct stat st;
        if (link->book_file < 0)
                return 0;
        if (fstat(link->book_file, &st))
                return fail(err, MFL_INVALID, "a secure sum can't be written down");
        /* A part of a row that an earlier failure has left would move all that follow. */
        if (st.st_size % ROW_BYTES && ftruncate(link->book_file, st.st_size - st.st_size % ROW_BYTES))
                return fail(err, MFL_INVALID, "a secure sum can't be written down");
        errno = ENOSPC;
        if (write(link->book_file, row, sizeof row) != (ssize_t)sizeof row || fdatasync(link->book_file))
                return fail(err, MFL_INVALID, "a secure sum can't be written down");
        return 0;
}

void mfl_link_book_close(struct mfl_link *link)
{
        if (link->book && link->book_file >= 0)
                close(link->book_file);
        if (link->book)
                mfl_secure_book_deinit(link->book);
        free(link->book);
        link->book = NULL;
}
