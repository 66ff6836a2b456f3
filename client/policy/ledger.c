/* SPDX-License-Identifier: Apache-2.0 */
/* A line is "DATA SIGMA RATE ROUND JOB NAME", numbers as %.17g, digests in hexadecimal. A last line without its end was never durable, so
 * nothing has left for it, and it is cut off. */
#include "client/policy/ledger.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/policy/cost.h"
#include "common/base/fs.h"

#define LINE_BYTES (MFL_NAME_BYTES + 2 * MFL_SHA256_HEX_BYTES + 96)
#define ROWS_MAX 1000000u

struct mfl_ledger {
        pthread_mutex_t lock;
        int file;
        char *path;
        struct mfl_ledger_limit limit;
        off_t read; /* bytes of the file that `rows` has */
        uint32_t n, capacity;
        struct mfl_ledger_row *rows;
};

static int fail(const struct mfl_ledger *ledger, int r, const char *what, struct mfl_error *err)
{
        return mfl_fail(err, r, "policy: %s %s: %s", what, ledger->path, strerror(errno));
}

/* ---- lines ---- */

static bool parse_hex(const char *hex, uint8_t to[MFL_SHA256_BYTES])
{
        char back[MFL_SHA256_HEX_BYTES];
        for (int i = 0; i < MFL_SHA256_BYTES; i++) {
                unsigned byte;
                if (sscanf(hex + 2 * (ptrdiff_t)i, "%2x", &byte) != 1)
                        return false;
                to[i] = (uint8_t)byte;
        }
        mfl_hex(to, MFL_SHA256_BYTES, back);
        return strcmp(back, hex) == 0;
}

static bool parse_line(const char *line, struct mfl_ledger_row *ret_row)
{
        char job[MFL_SHA256_HEX_BYTES], name[MFL_SHA256_HEX_BYTES];
        int end = 0;
        _Static_assert(MFL_NAME_BYTES == 64 && MFL_SHA256_HEX_BYTES == 65, "the widths below");
        if (sscanf(line, "%63s %lf %lf %" SCNu32 " %64s %64s%n", ret_row->data, &ret_row->sigma,
                    &ret_row->rate, &ret_row->round, job, name, &end) != 6 ||
                line[end])
                return false;
        return ret_row->sigma > 0 && isfinite(ret_row->sigma) && ret_row->rate > 0 && ret_row->rate <= 1 &&
               strlen(job) == 64 && strlen(name) == 64 && parse_hex(job, ret_row->job) &&
               parse_hex(name, ret_row->name);
}

/* A server chooses the name, and a line with another number of words could never be read again. */
bool mfl_ledger_name(struct mfl_ledger_row *row, const char *data)
{
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:";
        data = *data ? data : "-";
        return strspn(data, allowed) == strlen(data) && mfl_strcpy(row->data, sizeof row->data, data);
}

static size_t print_line(const struct mfl_ledger_row *row, char line[LINE_BYTES])
{
        char job[MFL_SHA256_HEX_BYTES], name[MFL_SHA256_HEX_BYTES];
        mfl_hex(row->job, sizeof row->job, job);
        mfl_hex(row->name, sizeof row->name, name);
        return (size_t)mfl_snprintf(line, LINE_BYTES, "%s %.17g %.17g %" PRIu32 " %s %s\n", row->data,
                row->sigma, row->rate, row->round, job, name);
}

static int append(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err)
{
        if (ledger->n == ROWS_MAX)
                return mfl_fail(err, MFL_INVALID, "policy: %s is full", ledger->path);
        if (ledger->n == ledger->capacity) {
                uint32_t capacity = ledger->capacity ? 2 * ledger->capacity : 64;
                struct mfl_ledger_row *rows = mfl_realloc(ledger->rows, capacity * sizeof *rows);
                if (!rows)
                        return mfl_fail_memory(err, capacity * sizeof *rows, "a site's ledger");
                ledger->rows = rows;
                ledger->capacity = capacity;
        }
        ledger->rows[ledger->n++] = *row;
        return 0;
}

/* ---- the file; under both locks ---- */

/* What others have written since. */
static int read_new(struct mfl_ledger *ledger, struct mfl_error *err)
{
        struct stat st;
        if (fstat(ledger->file, &st))
                return fail(ledger, MFL_INVALID, "stat", err);
        if (st.st_size < ledger->read)
                return mfl_fail(err, MFL_INVALID,
                        "policy: %s has become shorter: restore it, and start the daemon again",
                        ledger->path);
        size_t bytes = (size_t)(st.st_size - ledger->read);
        MFL_CLEANUP_FREE char *text = mfl_malloc(bytes + 1);
        if (!text)
                return mfl_fail_memory(err, bytes, "a site's ledger");
        ssize_t got = pread(ledger->file, text, bytes, ledger->read);
        if (got != (ssize_t)bytes)
                return fail(ledger, MFL_INVALID, "read", err);
        text[bytes] = '\0';
        size_t whole = strlen(text); /* zeros are a damaged block; behind the last line, part of a line */
        if (memchr(text + whole, '\n', bytes - whole))
                return mfl_fail(err, MFL_INVALID, "%s: damaged after line %u: restore the file", ledger->path,
                        ledger->n + 1);
        for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
                struct mfl_ledger_row row = {.round = 0};
                *end = '\0';
                if (!parse_line(line, &row))
                        return mfl_fail(err, MFL_INVALID,
                                "%s:%u: not a release; restore the file, or remove it if this site's data "
                                "may be counted from 0 again",
                                ledger->path, ledger->n + 1);
                int r = append(ledger, &row, err);
                if (r)
                        return r;
                ledger->read += end + 1 - line;
        }
        return 0;
}

static int write_row(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err)
{
        char line[LINE_BYTES];
        size_t n = print_line(row, line);
        if (ftruncate(ledger->file, ledger->read)) /* a part of a line */
                return fail(ledger, MFL_INVALID, "write", err);
        errno = ENOSPC;
        if (pwrite(ledger->file, line, n, ledger->read) != (ssize_t)n || fdatasync(ledger->file))
                return fail(ledger, MFL_INVALID, "write", err);
        return 0;
}

/* ---- decisions ---- */

static bool has(const struct mfl_ledger *ledger, const struct mfl_ledger_row *row)
{
        for (uint32_t i = 0; i < ledger->n; i++)
                if (!memcmp(ledger->rows[i].name, row->name, sizeof row->name) &&
                        !strcmp(ledger->rows[i].data, row->data))
                        return true;
        return false;
}

static int check(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err)
{
        double epsilon = INFINITY;
        if (ledger->limit.epsilon == 0)
                return 0;
        int r = mfl_site_epsilon(ledger->rows, ledger->n, row, row->data, ledger->limit.delta, &epsilon, err);
        if (r || epsilon <= ledger->limit.epsilon)
                return r;
        return mfl_fail(err, MFL_INVALID,
                "another release of data set %s would bring it to epsilon %.4g at delta %g, and this site's "
                "policy allows %g",
                row->data, epsilon, ledger->limit.delta, ledger->limit.epsilon);
}

static int enter(struct mfl_ledger *ledger, struct mfl_error *err)
{
        pthread_mutex_lock(&ledger->lock);
        int r;
        while ((r = flock(ledger->file, LOCK_EX)) && errno == EINTR)
                ;
        return r ? fail(ledger, MFL_INVALID, "lock", err) : read_new(ledger, err);
}

static void leave(struct mfl_ledger *ledger)
{
        flock(ledger->file, LOCK_UN);
        pthread_mutex_unlock(&ledger->lock);
}

int mfl_ledger_charge(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err)
{
        int r = enter(ledger, err);
        if (!r && !has(ledger, row)) {
                r = check(ledger, row, err);
                if (!r)
                        r = write_row(ledger, row, err);
                if (!r)
                        r = read_new(ledger, err);
        }
        leave(ledger);
        return r;
}

int mfl_ledger_check(struct mfl_ledger *ledger, const struct mfl_ledger_row *row, struct mfl_error *err)
{
        int r = enter(ledger, err);
        if (!r && !has(ledger, row))
                r = check(ledger, row, err);
        leave(ledger);
        return r;
}

/* ---- for people ---- */

static bool is_first(const struct mfl_ledger *ledger, uint32_t i)
{
        for (uint32_t k = 0; k < i; k++)
                if (!strcmp(ledger->rows[k].data, ledger->rows[i].data))
                        return false;
        return true;
}

static int add_text(const struct mfl_ledger *ledger, const char *data, char **text, struct mfl_error *err)
{
        double epsilon = INFINITY;
        char limit[48] = "no limit";
        int r = mfl_site_epsilon(ledger->rows, ledger->n, NULL, data, ledger->limit.delta, &epsilon, err);
        if (r)
                return r;
        if (ledger->limit.epsilon > 0)
                snprintf(limit, sizeof limit, "%g", ledger->limit.epsilon);
        char *more = mfl_asprintf("%s%s: %" PRIu64 " releases, epsilon %.4g at delta %g, allowed: %s\n",
                *text, data, mfl_site_releases(ledger->rows, ledger->n, data), epsilon, ledger->limit.delta,
                limit);
        free(*text);
        *text = more;
        return more ? 0 : mfl_fail_memory(err, 128, "a ledger's text");
}

int mfl_ledger_text(struct mfl_ledger *ledger, char **ret_text, struct mfl_error *err)
{
        char *text = mfl_strdup("");
        int r = text ? enter(ledger, err) : mfl_fail_memory(err, 1, "a ledger's text");
        for (uint32_t i = 0; text && i < ledger->n && !r; i++)
                if (is_first(ledger, i))
                        r = add_text(ledger, ledger->rows[i].data, &text, err);
        if (text)
                leave(ledger);
        if (r)
                free(text);
        else
                *ret_text = text;
        return r;
}

int mfl_ledger_open(const char *dir, const struct mfl_ledger_limit *limit, struct mfl_ledger **ret_ledger,
        struct mfl_error *err)
{
        struct mfl_ledger *ledger = mfl_calloc(1, sizeof *ledger);
        if (!ledger)
                return mfl_fail_memory(err, sizeof *ledger, "a site's ledger");
        pthread_mutex_init(&ledger->lock, NULL);
        ledger->limit = *limit;
        ledger->file = -1;
        ledger->path = mfl_asprintf("%s/ledger", dir);
        int r = ledger->path ? 0 : mfl_fail_memory(err, strlen(dir), "a path");
        if (!r) {
                ledger->file = open(ledger->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
                r = ledger->file < 0 ? fail(ledger, -errno, "open", err) : mfl_fs_sync_dir(dir, err);
        }
        if (!r) {
                r = enter(ledger, err);
                leave(ledger);
        }
        if (r)
                mfl_ledger_close(ledger);
        else
                *ret_ledger = ledger;
        return r;
}

void mfl_ledger_close(struct mfl_ledger *ledger)
{
        if (!ledger)
                return;
        if (ledger->file >= 0)
                close(ledger->file);
        pthread_mutex_destroy(&ledger->lock);
        free(ledger->path);
        free(ledger->rows);
        free(ledger);
}
