/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of deltas in a memory-mapped, unlinked file.
 *   - new: create, unlink, allocate every block, map;
 *   - put: copy a row in, give its pages back;
 *   - range, release: look at all rows from one element on, give those pages back.
 * Fails when the file system has no room, or when the mapping is refused.
 */
#include "server/runtime/spill.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "server/store/store.h"
#include "server/store/store_db.h"

struct row {
        uint64_t item, weight;
        uint32_t position; /* in the file */
};

struct mfl_spill {
        uint64_t n, row_bytes; /* rows begin at page boundaries, so that pages can be given back by row */
        uint32_t rows_max, n_rows, n_taken; /* n_taken: places in the file, those of dropped rows included */
        struct row *rows;                   /* ordered by item */
        char *map;
        size_t map_bytes;
};

static int check_room(int fd, const char *path, uint64_t bytes, struct mfl_error *err)
{
        struct statvfs vfs;
        if (fstatvfs(fd, &vfs))
                return mfl_fail_errno(err, "statvfs %s", path);
        uint64_t room = (uint64_t)vfs.f_bavail * vfs.f_frsize, all = (uint64_t)vfs.f_blocks * vfs.f_frsize;
        if (all < bytes)
                return mfl_fail(err, MFL_INVALID,
                        "%s: single updates need %llu KiB of disk for a round, the file system has %llu KiB",
                        path, (unsigned long long)(bytes >> 10), (unsigned long long)(all >> 10));
        if (room < bytes)
                return mfl_fail(err, MFL_STORE_FULL,
                        "%s: single updates need %llu KiB of disk for a round, %llu KiB are free: No space "
                        "left on device",
                        path, (unsigned long long)(bytes >> 10), (unsigned long long)(room >> 10));
        return 0;
}

static int map_file(struct mfl_spill *spill, int fd, const char *path, struct mfl_error *err)
{
        int r = check_room(fd, path, spill->map_bytes, err);
        if (r)
                return r;
        r = posix_fallocate(fd, 0, (off_t)spill->map_bytes);
        if (r == ENOSPC || r == EDQUOT || r == EFBIG)
                return mfl_fail(err, r == EFBIG ? MFL_INVALID : MFL_STORE_FULL,
                        "%s: single updates need %llu KiB of disk for a round: %s", path,
                        (unsigned long long)(spill->map_bytes >> 10), strerror(r));
        errno = r;
        if (r)
                return mfl_fail_errno(err, "allocate %s", path);
        void *map = mmap(NULL, spill->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return mfl_fail_errno(err, "map %s", path);
        spill->map = map;
        /* Pages by themselves. Else Linux keeps the file in pieces of up to 2 MB, and from 6.18 on maps a whole piece of each row when
         * one element of it is looked at. Advice only. */
        madvise(map, spill->map_bytes, MADV_RANDOM);
        return 0;
}

int mfl_spill_new(const char *dir, const char *job, uint32_t rows_max, uint64_t n,
        struct mfl_spill **ret_spill, struct mfl_error *err)
{
        mfl_assert(rows_max && n);
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t row_bytes = (n * sizeof(float) + page - 1) / page * page;
        if (row_bytes > (uint64_t)INT64_MAX / rows_max)
                return mfl_fail(err, MFL_INVALID,
                        "single updates of %u clients with %llu parameters: too large a file", rows_max,
                        (unsigned long long)n);
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/spill-%s", dir, job);
        struct mfl_spill *spill = mfl_calloc(1, sizeof *spill);
        struct row *rows = mfl_calloc(rows_max, sizeof *rows);
        int fd = -1, r;
        if (!path || !spill || !rows) {
                free(rows);
                free(spill);
                return mfl_fail_memory(err, rows_max * sizeof *rows, "the spill file's rows");
        }
        *spill = (struct mfl_spill){.n = n,
                .row_bytes = row_bytes,
                .rows_max = rows_max,
                .rows = rows,
                .map_bytes = (size_t)(row_bytes * rows_max)};
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0) {
                r = mfl_store_code(mfl_fail_errno(err, "create %s", path));
                goto out;
        }
        unlink(path);
        r = map_file(spill, fd, path, err);
out:
        if (fd >= 0)
                close(fd);
        if (r) {
                mfl_spill_free(spill);
                return r;
        }
        *ret_spill = spill;
        return 0;
}

void mfl_spill_free(struct mfl_spill *spill)
{
        if (!spill)
                return;
        if (spill->map)
                munmap(spill->map, spill->map_bytes);
        free(spill->rows);
        free(spill);
}

void mfl_spill_clear(struct mfl_spill *spill)
{
        spill->n_rows = spill->n_taken = 0;
}

uint32_t mfl_spill_rows(const struct mfl_spill *spill)
{
        return spill->n_rows;
}

static char *row_memory(const struct mfl_spill *spill, const struct row *row)
{
        return spill->map + row->position * spill->row_bytes;
}

uint64_t mfl_spill_item(const struct mfl_spill *spill, uint32_t i)
{
        return spill->rows[i].item;
}

uint64_t mfl_spill_weight(const struct mfl_spill *spill, uint32_t i)
{
        return spill->rows[i].weight;
}

float *mfl_spill_row(struct mfl_spill *spill, uint32_t i)
{
        return (float *)(void *)row_memory(spill, &spill->rows[i]);
}

/* Its place in the file stays taken until the round ends. */
void mfl_spill_drop(struct mfl_spill *spill, uint32_t i)
{
        mfl_assert(i < spill->n_rows);
        memmove(spill->rows + i, spill->rows + i + 1, (--spill->n_rows - i) * sizeof *spill->rows);
}

/* The item's row, a new one if it has none; NULL: all are taken. */
static struct row *find_row(struct mfl_spill *spill, uint64_t item, struct mfl_error *err)
{
        uint32_t i = 0;
        while (i < spill->n_rows && spill->rows[i].item < item)
                i++;
        if (i < spill->n_rows && spill->rows[i].item == item)
                return &spill->rows[i];
        if (spill->n_taken == spill->rows_max) {
                mfl_fail(err, MFL_INVALID, "client %llu: the round already has its %u updates",
                        (unsigned long long)item, spill->rows_max);
                return NULL;
        }
        memmove(spill->rows + i + 1, spill->rows + i, (spill->n_rows++ - i) * sizeof *spill->rows);
        spill->rows[i] = (struct row){.item = item, .position = spill->n_taken++};
        return &spill->rows[i];
}

int mfl_spill_zero(struct mfl_spill *spill, uint64_t item, float **ret_row, struct mfl_error *err)
{
        struct row *row = find_row(spill, item, err);
        if (!row)
                return MFL_INVALID;
        *ret_row = (float *)(void *)row_memory(spill, row);
        memset(*ret_row, 0, spill->row_bytes);
        return 0;
}

int mfl_spill_put(
        struct mfl_spill *spill, uint64_t item, uint64_t weight, const float *delta, struct mfl_error *err)
{
        struct row *row = find_row(spill, item, err);
        if (!row)
                return MFL_INVALID;
        row->weight = weight;
        char *memory = row_memory(spill, row);
        memcpy(memory, delta, spill->n * sizeof *delta);
        madvise(memory, spill->row_bytes,
                MADV_DONTNEED); /* advice only: what fails costs memory, nothing else */
        return 0;
}

void mfl_spill_range(struct mfl_spill *spill, uint64_t begin, const float **rows)
{
        mfl_assert(begin < spill->n);
        for (uint32_t i = 0; i < spill->n_rows; i++)
                rows[i] = (const float *)(const void *)row_memory(spill, &spill->rows[i]) + begin;
}

static void release_row(struct mfl_spill *spill, uint32_t i, uint64_t begin, uint64_t count)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        uint64_t first = begin * sizeof(float) / page * page;
        uint64_t last = (begin + count) * sizeof(float);
        last = last >= spill->n * sizeof(float) ? spill->row_bytes : last / page * page;
        if (first < last)
                madvise(row_memory(spill, &spill->rows[i]) + first, last - first, MADV_DONTNEED);
}

void mfl_spill_release(struct mfl_spill *spill, uint64_t begin, uint64_t count)
{
        for (uint32_t i = 0; i < spill->n_rows; i++)
                release_row(spill, i, begin, count);
}

void mfl_spill_release_rows(
        struct mfl_spill *spill, const uint32_t *rows, uint32_t n, uint64_t begin, uint64_t count)
{
        for (uint32_t i = 0; i < n; i++)
                release_row(spill, rows[i], begin, count);
}
