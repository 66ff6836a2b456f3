/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' changes in a file.
 *   - open: the records of committed rounds stay;
 *   - round: what this round has written before goes;
 *   - add: one record at the end, up to the limit.
 * A record that can't be written is left out. */
#include "server/runtime/changes.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"

struct record {
        uint32_t round, zero;
        uint64_t client, weight, n;
};

struct mfl_changes {
        int fd;
        uint64_t n, bytes_max, end; /* end: of whole records */
        uint32_t round, n_round;
        bool full; /* told */
};

static bool read_at(int fd, void *to, uint64_t bytes, uint64_t offset)
{
        char *at = to;
        while (bytes) {
                ssize_t got = pread(fd, at, bytes, (off_t)offset);
                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0)
                        return false;
                at += got;
                offset += (uint64_t)got;
                bytes -= (uint64_t)got;
        }
        return true;
}

static bool write_at(int fd, const void *from, uint64_t bytes, uint64_t offset)
{
        const char *at = from;
        while (bytes) {
                ssize_t put = pwrite(fd, at, bytes, (off_t)offset);
                if (put < 0 && errno == EINTR)
                        continue;
                if (put <= 0)
                        return false;
                at += put;
                offset += (uint64_t)put;
                bytes -= (uint64_t)put;
        }
        return true;
}

/* The record there; false: the file has no whole one. */
static bool record_at(int fd, uint64_t offset, uint64_t file_bytes, struct record *ret_record)
{
        if (offset + sizeof *ret_record > file_bytes || !read_at(fd, ret_record, sizeof *ret_record, offset))
                return false;
        /* n is 0 where a crash has left floats without their record. */
        return !ret_record->zero && ret_record->n &&
               ret_record->n <= (file_bytes - offset - sizeof *ret_record) / sizeof(float);
}

static uint64_t bytes_of(uint64_t n)
{
        return sizeof(struct record) + n * sizeof(float);
}

/* Where the first record of a round after `round` begins, or the end of the whole ones. */
static uint64_t end_of(int fd, uint32_t round)
{
        struct record record;
        struct stat st;
        uint64_t at = 0;
        if (fstat(fd, &st))
                return 0;
        while (record_at(fd, at, (uint64_t)st.st_size, &record) && record.round <= round)
                at += bytes_of(record.n);
        return at;
}

int mfl_changes_open(const char *path, uint64_t bytes_max, uint32_t round, uint64_t n,
        struct mfl_changes **ret_changes, struct mfl_error *err)
{
        struct mfl_changes *changes = mfl_calloc(1, sizeof *changes);
        if (!changes)
                return mfl_fail_memory(err, sizeof *changes, "clients' changes");
        changes->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (changes->fd < 0) {
                int r = mfl_fail_errno(err, "open %s", path);
                free(changes);
                return r;
        }
        changes->n = n;
        changes->bytes_max = bytes_max;
        changes->end = end_of(changes->fd, round);
        *ret_changes = changes;
        return 0;
}

void mfl_changes_close(struct mfl_changes *changes)
{
        if (!changes)
                return;
        close(changes->fd);
        free(changes);
}

void mfl_changes_round(struct mfl_changes *changes, uint32_t round)
{
        changes->end = end_of(changes->fd, round - 1);
        changes->n_round = 0;
        changes->round = round;
        if (ftruncate(changes->fd, (off_t)changes->end)) /* what is there is written over */
                changes->full = true;
}

void mfl_changes_add(struct mfl_changes *changes, uint64_t client, uint64_t weight, const float *delta)
{
        const struct record record = {
                .round = changes->round, .client = client, .weight = weight, .n = changes->n};
        uint64_t bytes = bytes_of(changes->n);
        bool fits = changes->end + bytes <= changes->bytes_max;
        if (changes->n_round == MFL_CHANGES_CLIENTS_MAX) /* the next round begins anew */
                return;
        if (fits && !changes->full &&
                write_at(changes->fd, delta, changes->n * sizeof *delta, changes->end + sizeof record) &&
                write_at(changes->fd, &record, sizeof record, changes->end)) {
                changes->end += bytes;
                changes->n_round++;
                return;
        }
        if (!changes->full)
                mfl_log(MFL_LOG_INFO, "changes of clients are kept up to round %u: %s", changes->round,
                        fits ? strerror(errno) : "debug.deltas allows no more");
        changes->full = true;
}

static int by_client(const void *a, const void *b)
{
        uint64_t x = ((const struct mfl_change *)a)->client, y = ((const struct mfl_change *)b)->client;
        return (x > y) - (x < y);
}

static int tell_none(uint32_t round, uint32_t first, uint32_t last, struct mfl_error *err)
{
        if (!last)
                return mfl_fail(err, MFL_NOT_FOUND,
                        "no changes of clients are kept: the job needs debug: {deltas: SIZE} when it is "
                        "submitted");
        return mfl_fail(err, MFL_NOT_FOUND,
                "no changes of clients of round %u are kept, but of rounds %u to %u (debug.deltas)", round,
                first, last);
}

int mfl_changes_list(
        const char *path, uint32_t round, struct mfl_change **ret_v, uint32_t *ret_n, struct mfl_error *err)
{
        struct stat st = {0};
        struct record record;
        uint32_t n = 0, first = 0, last = 0;
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st)) {
                if (fd >= 0)
                        close(fd);
                return tell_none(round, 0, 0, err);
        }
        struct mfl_change *v = mfl_calloc(MFL_CHANGES_CLIENTS_MAX, sizeof *v);
        for (uint64_t at = 0;
                v && n < MFL_CHANGES_CLIENTS_MAX && record_at(fd, at, (uint64_t)st.st_size, &record);
                at += bytes_of(record.n)) {
                first = first ? first : record.round;
                last = record.round;
                if (record.round == round)
                        v[n++] = (struct mfl_change){
                                record.client, record.weight, at + sizeof record, record.n};
        }
        close(fd);
        if (!v)
                return mfl_fail_memory(err, MFL_CHANGES_CLIENTS_MAX * sizeof *v, "clients' changes");
        if (!n) {
                free(v);
                return tell_none(round, first, last, err);
        }
        qsort(v, n, sizeof *v, by_client);
        *ret_v = v;
        *ret_n = n;
        return 0;
}

int mfl_changes_read(const char *path, const struct mfl_change *change, float *to, struct mfl_error *err)
{
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        bool ok = fd >= 0 && read_at(fd, to, change->n * sizeof *to, change->offset);
        if (fd >= 0)
                close(fd);
        return ok ? 0
                  : mfl_fail(err, MFL_NOT_FOUND, "the change of client %" PRIu64 " is no longer kept",
                            change->client);
}
