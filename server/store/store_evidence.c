/* SPDX-License-Identifier: Apache-2.0 */
/* The number of committed transactions in a file beside the database, and what this number and the log prove. See
 * store_evidence.h.
 */
#include "server/store/store_evidence.h"

#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/fs.h"
#include "server/store/store.h"
#include "server/store/store_db.h"

#define LINE_BYTES 96 /* padded with blanks, so that each write replaces the whole previous one */
#define BOOT_SLACK 2u /* seconds; no machine starts twice within this time */
#define SUM_BYTES 9   /* of the line's end: 8 digits and the line feed */

/* When the kernel was started, in Unix seconds. If the clock has been set since, this looks like another start.
 */
static uint64_t boot_time(void)
{
        struct timespec now, up;
        clock_gettime(CLOCK_REALTIME, &now);
        clock_gettime(CLOCK_BOOTTIME, &up);
        return (uint64_t)(now.tv_sec - up.tv_sec);
}

int mfl_store_count_open(const char *state_dir, struct mfl_store_counter *ret_counter, struct mfl_error *err)
{
        struct mfl_store_counter counter = {.boot = boot_time()};
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/commits", state_dir);
        if (!path)
                return mfl_fail_memory(err, strlen(state_dir), "a file name");
        counter.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (counter.fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        *ret_counter = counter;
        return 0;
}

static void make_sum(const char *line, char ret_sum[SUM_BYTES + 1])
{
        snprintf(ret_sum, SUM_BYTES + 1, "%08x\n", mfl_crc32c(0, line, LINE_BYTES - SUM_BYTES));
}

int mfl_store_count_write(const struct mfl_store_counter *counter, uint64_t commits)
{
        char line[LINE_BYTES + 1];
        int n = snprintf(line, sizeof line, "commits %llu boot %llu", (unsigned long long)commits,
                (unsigned long long)counter->boot);
        memset(line + n, ' ', (size_t)(LINE_BYTES - n));
        make_sum(line, line + LINE_BYTES - SUM_BYTES);
        ssize_t written = pwrite(counter->fd, line, LINE_BYTES, 0);
        return written == LINE_BYTES ? 0 : written < 0 ? -errno : -EIO;
}

void mfl_store_count_close(struct mfl_store_counter *counter)
{
        if (counter->fd < 0)
                return;
        fdatasync(counter->fd);
        close(counter->fd);
        counter->fd = -1;
}

static int read_count(const char *state_dir, struct mfl_store_count *count, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/commits", state_dir);
        MFL_CLEANUP_FREE char *text = NULL;
        unsigned long long commits, boot;
        char sum[SUM_BYTES + 1];
        size_t bytes;
        *count = (struct mfl_store_count){0};
        if (!path)
                return mfl_fail_memory(err, strlen(state_dir), "a file name");
        int r = mfl_fs_read(path, LINE_BYTES, &text, &bytes, err);
        if (r == MFL_NOT_FOUND || (!r && !bytes))
                return 0;
        count->there = true;
        if (r)
                return r == MFL_INVALID ? 0 : mfl_store_code(r);
        if (bytes == LINE_BYTES) {
                make_sum(text, sum);
                count->good = sscanf(text, "commits %llu boot %llu", &commits, &boot) == 2 &&
                              !memcmp(text + LINE_BYTES - SUM_BYTES, sum, SUM_BYTES);
        }
        if (!count->good)
                return 0;
        const uint64_t now = boot_time();
        count->commits = commits;
        count->same_boot = now - boot + BOOT_SLACK <= 2 * BOOT_SLACK;
        return 0;
}

int mfl_store_evidence_read(
        const char *state_dir, struct mfl_store_evidence *ret_evidence, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db-wal", state_dir);
        struct mfl_store_evidence evidence;
        if (!path)
                return mfl_fail_memory(err, strlen(state_dir), "a file name");
        /* Reads the number first: a running server may continue to count meanwhile. */
        int r = read_count(state_dir, &evidence.count, err);
        if (!r)
                r = mfl_wal_inspect(path, &evidence.wal, err);
        if (!r)
                *ret_evidence = evidence;
        return r;
}

static void describe_log(const struct mfl_wal_report *wal, char *text, size_t bytes)
{
        if (wal->bad_header)
                mfl_snprintf(text, bytes, "the header of mfl.db-wal is damaged");
        else if (wal->broken_frame)
                mfl_snprintf(text, bytes, "mfl.db-wal is broken at frame %llu of %llu",
                        (unsigned long long)wal->broken_frame,
                        (unsigned long long)(wal->broken_frame - 1 + wal->broken));
        else
                mfl_snprintf(text, bytes, "mfl.db-wal is whole, or was removed");
}

bool mfl_store_evidence_judge(const struct mfl_store_evidence *evidence, int64_t schema, uint64_t commits,
        char *text, size_t text_bytes)
{
        const struct mfl_store_count *count = &evidence->count;
        const struct mfl_wal_report *wal = &evidence->wal;
        char log[120];
        const bool counts = count->good && (!schema || schema >= (int64_t)MFL_STORE_SCHEMA_SUMS);
        describe_log(wal, log, sizeof log);
        *text = 0;
        if (counts && count->commits > commits) {
                mfl_snprintf(text, text_bytes,
                        "the database lacks the last %llu of %llu committed transactions (%s)",
                        (unsigned long long)(count->commits - commits), (unsigned long long)count->commits,
                        log);
                return true;
        }
        if (counts && schema && count->same_boot) {
                if (wal->bad_header || wal->broken_frame)
                        mfl_snprintf(text, text_bytes,
                                "%s; no committed transaction is missing: the broken one was unfinished",
                                log);
                return false;
        }
        if (mfl_wal_lost(wal)) {
                mfl_snprintf(text, text_bytes, "committed transactions are lost: %s%s", log,
                        wal->bad_header ? "" : ", with complete transactions after it");
                return true;
        }
        if (wal->broken_frame)
                mfl_snprintf(text, text_bytes,
                        "%s; the lost part was an unfinished transaction, or the last one", log);
        return false;
}
