/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the log of a database frame by frame. See store_wal.h. */
#include "server/store/store_wal.h"

#include <stdio.h>

#include "server/store/store_db.h"

#define HEADER_BYTES 32
#define FRAME_HEADER_BYTES 24
#define MAGIC 0x377f0682u /* its last bit: checksums use big-endian words */
#define PAGE_MAX 65536u

struct sum {
        uint32_t a, b;
};
struct log {
        FILE *file;
        bool big_endian;
        uint32_t page, salt[2];
        struct sum sum;
        uint8_t *frame; /* header and page */
};

static uint32_t read_be(const uint8_t *p)
{
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static uint32_t read_le(const uint8_t *p)
{
        return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* bytes is a multiple of 8. */
static struct sum add(const struct log *log, struct sum sum, const uint8_t *p, size_t bytes)
{
        for (size_t i = 0; i < bytes; i += 8) {
                sum.a += (log->big_endian ? read_be(p + i) : read_le(p + i)) + sum.b;
                sum.b += (log->big_endian ? read_be(p + i + 4) : read_le(p + i + 4)) + sum.a;
        }
        return sum;
}

static bool is_sum(struct sum sum, const uint8_t *p)
{
        return sum.a == read_be(p) && sum.b == read_be(p + 4);
}

static bool all_zero(FILE *file)
{
        rewind(file);
        for (int c; (c = getc(file)) != EOF;)
                if (c)
                        return false;
        return true;
}

/* False: there is nothing to read. A file of zeros was extended but never written. */
static bool read_header(struct log *log, bool *ret_bad)
{
        uint8_t h[HEADER_BYTES];
        if (fread(h, 1, sizeof h, log->file) != sizeof h)
                return false;
        log->big_endian = read_be(h) & 1;
        log->page = read_be(h + 8);
        log->salt[0] = read_be(h + 16);
        log->salt[1] = read_be(h + 20);
        log->sum = add(log, (struct sum){0, 0}, h, 24);
        bool good = (read_be(h) & ~1u) == MAGIC && is_sum(log->sum, h + 24) && log->page >= 512 &&
                    log->page <= PAGE_MAX && !(log->page & (log->page - 1));
        *ret_bad = !good && !all_zero(log->file);
        return good;
}

static void read_frames(struct log *log, struct mfl_wal_report *report)
{
        const size_t bytes = FRAME_HEADER_BYTES + log->page;
        struct sum before = log->sum; /* the checksum in the previous frame */
        bool ours_before = true;
        for (uint64_t i = 1; fread(log->frame, 1, bytes, log->file) == bytes; i++) {
                const uint8_t *f = log->frame;
                const bool ours = read_be(f + 8) == log->salt[0] && read_be(f + 12) == log->salt[1];
                const bool ends = read_be(f + 4) != 0; /* the database's size after a transaction */
                struct sum sum = add(log, before, f, 8);
                sum = add(log, sum, f + FRAME_HEADER_BYTES, log->page);
                const bool whole = ours && ours_before && is_sum(sum, f + 16);
                before = (struct sum){read_be(f + 16), read_be(f + 20)};
                ours_before = ours;
                if (whole && !report->broken_frame) {
                        report->frames = ends ? i : report->frames;
                        continue;
                }
                if (!report->broken_frame)
                        report->broken_frame = i;
                report->broken += ours;
                report->ends_behind += whole && ends;
        }
}

int mfl_wal_inspect(const char *path, struct mfl_wal_report *ret_report, struct mfl_error *err)
{
        struct mfl_wal_report report = {0};
        struct log log = {.file = fopen(path, "rbe")};
        if (!log.file && errno != ENOENT)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        int r = 0;
        if (log.file && read_header(&log, &report.bad_header)) {
                log.frame = mfl_malloc(FRAME_HEADER_BYTES + log.page);
                if (log.frame)
                        read_frames(&log, &report);
                else
                        r = mfl_fail_memory(err, log.page, "a page");
        }
        if (log.file && ferror(log.file) && !r)
                r = mfl_store_code(mfl_fail_errno(err, "read %s", path));
        free(log.frame);
        if (log.file)
                fclose(log.file);
        if (!report.broken) /* only frames of an earlier use */
                report.broken_frame = 0;
        if (!r)
                *ret_report = report;
        return r;
}

bool mfl_wal_lost(const struct mfl_wal_report *report)
{
        return report->bad_header || report->ends_behind >= 2;
}
