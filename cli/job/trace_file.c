/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the table of a trace into a job file. */
#include "cli/job/trace_file.h"

#include <stdio.h>

#include "common/base/fs.h"
#include "common/job/job.h"
#include "common/settings/yaml.h"

static size_t line_start(const char *text, size_t n, uint32_t line)
{
        size_t at = 0;
        for (uint32_t i = 1; i < line && at < n; i++) {
                const char *end = memchr(text + at, '\n', n - at);
                at = end ? (size_t)(end - text) + 1 : n;
        }
        return at;
}

/* Writes each line of a text behind a prefix. */
static void put_lines(FILE *out, const char *prefix, const char *text, size_t n)
{
        for (size_t at = 0; at < n;) {
                const char *end = memchr(text + at, '\n', n - at);
                size_t stop = end ? (size_t)(end - text) : n;
                size_t length = stop - at - (stop > at && text[stop - 1] == '\r');
                fprintf(out, "%s%.*s\n", length ? prefix : "", (int)length, text + at);
                at = stop + 1;
        }
}

/* The lines of the key `trace` of the job file, [*ret_from, *ret_to). */
static int find_lines(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *trace, const char *text,
        size_t n, size_t *ret_from, size_t *ret_to, struct mfl_error *err)
{
        uint32_t first = trace->key_line, next = UINT32_MAX;
        for (const struct mfl_yaml_node *k = mfl_yaml_root(doc)->first; k; k = k->next) {
                if (k != trace && k->key_line == first)
                        return mfl_yaml_fail(
                                doc, trace, err, "must be on a line of its own, which the table replaces");
                if (k->key_line > first)
                        next = MFL_MIN(next, k->key_line);
        }
        *ret_from = line_start(text, n, first);
        *ret_to = line_start(text, n, next);
        return 0;
}

/* Where the document ends: at its "...", or with the text. */
static size_t find_end(const char *text, size_t at, size_t n)
{
        while (at < n) {
                const char *end = memchr(text + at, '\n', n - at);
                if (n - at >= 3 && !memcmp(text + at, "...", 3) &&
                        (n - at == 3 || strchr(" \t\r\n", text[at + 3])))
                        break;
                at = end ? (size_t)(end - text) + 1 : n;
        }
        return at;
}

static uint32_t count_lines(const char *text, size_t n)
{
        uint32_t lines = 0;
        for (size_t i = 0; i < n; i++)
                lines += text[i] == '\n';
        return lines;
}

/* A table has no more settings than `day`. */
static int find_day(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *trace,
        const struct mfl_yaml_node **ret_day, struct mfl_error *err)
{
        *ret_day = NULL;
        for (const struct mfl_yaml_node *k = trace->first; k; k = k->next) {
                if (!strcmp(k->key, "file"))
                        continue;
                if (strcmp(k->key, "day"))
                        return mfl_yaml_fail(
                                doc, k, err, "a table of a file has no setting but day; remove it, or file");
                if (k->type != MFL_YAML_SCALAR)
                        return mfl_yaml_fail(doc, k, err, "must be a single value");
                *ret_day = k;
        }
        return 0;
}

/* Within a job file such bytes would be an error of its own, on a line that the user does not have. */
static int check_plain(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *trace, const char *path,
        const char *table, size_t n, struct mfl_error *err)
{
        uint32_t line = 1;
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char)table[i];
                bool ends = c == '\n' || (c == '\r' && i + 1 < n && table[i + 1] == '\n');
                if (!ends && c != '\t' && (c < ' ' || c > '~'))
                        return mfl_yaml_fail(doc, trace, err,
                                "%.200s: line %u: byte 0x%02x: a table is plain ASCII text, with LF or CR LF "
                                "at the end of "
                                "each line",
                                path, line, c);
                line += c == '\n';
        }
        return 0;
}

static int compose(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *trace, const char *text,
        size_t n, struct mfl_trace_file *ret_trace, struct mfl_error *err)
{
        MFL_CLEANUP_FREE char *table = NULL;
        size_t table_bytes, from = 0, to = 0, bytes;
        struct mfl_error why;
        char *whole = NULL;
        const struct mfl_yaml_node *day;
        int r = find_lines(doc, trace, text, n, &from, &to, err);
        if (!r)
                r = find_day(doc, trace, &day, err);
        if (r)
                return r;
        r = mfl_fs_read(ret_trace->path, MFL_JOB_TEXT_MAX, &table, &table_bytes, &why);
        if (r)
                return mfl_yaml_fail(doc, trace, err, "%s", why.text);
        const size_t mark = table_bytes >= 3 && !memcmp(table, "\xef\xbb\xbf", 3) ? 3 : 0; /* Excel's */
        r = check_plain(doc, trace, ret_trace->path, table + mark, table_bytes - mark, err);
        if (r)
                return r;
        FILE *out = open_memstream(&whole, &bytes);
        if (!out)
                return mfl_fail_memory(err, n + table_bytes, "a job file");
        fprintf(out, "%.*s", (int)from, text);
        put_lines(out, "# ", text + from, to - from);
        const size_t end = find_end(text, to, n);
        fprintf(out, "%.*s%strace:\n", (int)(end - to), text + to,
                end > to && text[end - 1] != '\n' ? "\n" : "");
        if (day) {
                if (!fflush(out))
                        ret_trace->day_at = count_lines(whole, bytes) + 1;
                ret_trace->day_line = day->key_line;
                fprintf(out, "  day: %s\n", day->text ? day->text : "");
        }
        fputs("  csv: |2\n", out);
        put_lines(out, "    ", table + mark, table_bytes - mark);
        fprintf(out, "%.*s", (int)(n - end), text + end);
        if (fclose(out)) {
                free(whole);
                return mfl_fail_memory(err, n + table_bytes, "a job file");
        }
        if (bytes > MFL_JOB_TEXT_MAX) {
                free(whole);
                return mfl_yaml_fail(doc, trace, err,
                        "the job file with this table has %zu bytes; the limit is %d; a model needs no table "
                        "(speed, sigma, "
                        "online)",
                        bytes, MFL_JOB_TEXT_MAX);
        }
        ret_trace->text = whole;
        return 0;
}

int mfl_trace_file_read(
        const char *text, size_t n, const char *file, struct mfl_trace_file *ret_trace, struct mfl_error *err)
{
        struct mfl_yaml_limits limits = {.bytes_max = MFL_JOB_TEXT_MAX, .depth_max = 16, .nodes_max = 65536};
        struct mfl_yaml_doc *doc = NULL;
        *ret_trace = (struct mfl_trace_file){0};
        int r = mfl_yaml_parse(text, n, file, &limits, &doc, err);
        const struct mfl_yaml_node *trace = r ? NULL : mfl_yaml_find(mfl_yaml_root(doc), "trace");
        const struct mfl_yaml_node *path =
                trace && trace->type == MFL_YAML_MAPPING ? mfl_yaml_find(trace, "file") : trace;
        if (path && path->type == MFL_YAML_SCALAR && path->text && *path->text) {
                ret_trace->line = path->key_line;
                ret_trace->path = mfl_asprintf("%s", path->text);
                r = ret_trace->path ? compose(doc, trace, text, n, ret_trace, err)
                                    : mfl_fail_memory(err, strlen(path->text), "a file's name");
        }
        mfl_yaml_free(doc);
        return r;
}

void mfl_trace_file_name(const struct mfl_trace_file *trace, const char *file, struct mfl_error *err)
{
        static const char key[] = ": trace.csv: ";
        char what[sizeof err->text], day[sizeof err->text];
        int lead = mfl_snprintf(day, sizeof day, "%s:%u:", file, trace->day_at);
        if (trace->day_at && !strncmp(err->text, day, (size_t)lead)) {
                mfl_strcpy(what, sizeof what, err->text + lead);
                mfl_fail(err, MFL_INVALID, "%s:%u:%s", file, trace->day_line, what);
                return;
        }
        const char *at = trace->text ? strstr(err->text, key) : NULL; /* of the table, not beside it */
        if (!at)
                return;
        mfl_strcpy(what, sizeof what, at + strlen(key));
        mfl_fail(err, MFL_INVALID, "%s:%u: trace: %.200s: %s", file, trace->line, trace->path, what);
}
