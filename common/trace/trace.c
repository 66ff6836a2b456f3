/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the table of a trace. */
#include "common/trace/trace.h"

#include <inttypes.h>

enum column { CLIENT, SPEED, DURATION, BANDWIDTH, ON, COLUMNS };
static const char *const column_names[COLUMNS] = {"client", "speed", "duration", "bandwidth", "on"};

/* ---- reading a table ---- */

struct reader {
        struct mfl_trace *trace;
        const char *at;
        uint32_t line, n_columns, n_spans, room;
        enum column column[COLUMNS];
        bool has[COLUMNS];
};

static int fail(const struct reader *r, struct mfl_error *err, const char *fmt, ...) MFL_PRINTF(3, 4);
static int fail(const struct reader *r, struct mfl_error *err, const char *fmt, ...)
{
        char text[200];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        return mfl_fail(err, MFL_INVALID, "line %u: %s", r->line, text);
}

/* A decimal number in millionths, from text that ends before `end`. */
static bool read_micro(const char *text, const char *end, uint64_t *ret)
{
        uint64_t v = 0;
        int digits = 0, behind = -1;
        for (; text < end; text++) {
                if (*text == '.' && behind < 0) {
                        behind = 0;
                        continue;
                }
                if (*text < '0' || *text > '9' || behind == 6 || digits++ == 12)
                        return false;
                v = v * 10 + (uint64_t)(*text - '0');
                behind += behind >= 0;
        }
        if (!digits)
                return false;
        for (behind = behind < 0 ? 0 : behind; behind < 6; behind++)
                v *= 10;
        *ret = v;
        return true;
}

static const char *next_cell(const char *from, const char *end)
{
        while (from < end && *from != ',')
                from++;
        return from;
}

static void trim(const char **from, const char **end)
{
        while (*from < *end && (**from == ' ' || **from == '\t'))
                ++*from;
        while (*from < *end && ((*end)[-1] == ' ' || (*end)[-1] == '\t' || (*end)[-1] == '\r'))
                --*end;
}

static int read_header(struct reader *r, const char *end, struct mfl_error *err)
{
        for (const char *from = r->at, *stop; from <= end; from = stop + 1) {
                stop = next_cell(from, end);
                const char *a = from, *b = stop;
                trim(&a, &b);
                int c = 0;
                while (c < COLUMNS && (strlen(column_names[c]) != (size_t)(b - a) ||
                                              strncmp(column_names[c], a, (size_t)(b - a))))
                        c++;
                if (c == COLUMNS)
                        return fail(r, err, "column '%.*s' is none of client, speed, duration, bandwidth, on",
                                (int)MFL_MIN(b - a, 40), a);
                if (r->has[c])
                        return fail(r, err, "there are two columns '%s'", column_names[c]);
                r->has[c] = true;
                r->column[r->n_columns++] = (enum column)c;
        }
        if (!r->has[CLIENT] || r->has[SPEED] == r->has[DURATION])
                return fail(r, err, "a trace needs the columns client, and speed or duration");
        return 0;
}

static int add_span(
        struct reader *r, struct mfl_trace_client *client, struct mfl_trace_span span, struct mfl_error *err)
{
        struct mfl_trace *trace = r->trace;
        if (r->n_spans == r->room) {
                uint32_t room = r->room ? 2 * r->room : 64;
                void *v = mfl_realloc(trace->span, room * sizeof *trace->span);
                if (!v)
                        return mfl_fail_memory(err, room * sizeof *trace->span, "a trace");
                trace->span = v;
                r->room = room;
        }
        if (!client->n++)
                client->first = r->n_spans;
        trace->span[r->n_spans++] = span;
        return 0;
}

/* "0-3600;7200-86400", ascending. */
static int read_spans(struct reader *r, struct mfl_trace_client *client, const char *from, const char *end,
        struct mfl_error *err)
{
        uint64_t before = 0, day_us = r->trace->day_ms * 1000;
        for (const char *stop; from < end; from = stop + 1) {
                struct mfl_trace_span span;
                stop = from;
                while (stop < end && *stop != ';')
                        stop++;
                const char *dash = from;
                while (dash < stop && *dash != '-')
                        dash++;
                const char *a = from, *a_end = dash, *b = MFL_MIN(dash + 1, stop), *b_end = stop;
                trim(&a, &a_end);
                trim(&b, &b_end);
                if (!read_micro(a, a_end, &span.from_us) || !read_micro(b, b_end, &span.until_us))
                        return fail(r, err, "on '%.*s': expected seconds, for example 0-3600;7200-86400",
                                (int)MFL_MIN(stop - from, 40), from);
                if (span.until_us <= span.from_us || (client->n && span.from_us <= before))
                        return fail(r, err,
                                "on '%.*s': spans must ascend, each after the end of the one before",
                                (int)MFL_MIN(stop - from, 40), from);
                if (span.until_us > day_us)
                        return fail(r, err,
                                "on '%.*s' ends after the day, which has %" PRIu64 " s (trace.day)",
                                (int)MFL_MIN(stop - from, 40), from, day_us / 1000000);
                before = span.until_us;
                int status = add_span(r, client, span, err);
                if (status)
                        return status;
        }
        return 0;
}

static int read_cell(struct reader *r, struct mfl_trace_client *client, enum column column, const char *from,
        const char *end, struct mfl_error *err)
{
        if (column == ON)
                return read_spans(r, client, from, end, err);
        if (column == BANDWIDTH && from == end)
                return 0;
        uint64_t v;
        if (!read_micro(from, end, &v) || (!v && column != CLIENT))
                return fail(r, err,
                        "%s '%.*s': expected a number above 0 with at most six digits behind the point",
                        column_names[column], (int)MFL_MIN(end - from, 40), from);
        if (column == SPEED)
                client->speed = v;
        else if (column == DURATION)
                client->duration_us = MFL_MIN(v, MFL_VIRTUAL_MAX_US);
        else if (column == BANDWIDTH)
                client->bandwidth = v;
        return 0;
}

/* Which client a line is of. */
static int find_client(
        struct reader *r, const char *end, uint8_t *seen, uint32_t *ret_k, struct mfl_error *err)
{
        const char *from = r->at;
        uint32_t i = 0;
        for (; r->column[i] != CLIENT && from <= end; i++)
                from = next_cell(from, end) + 1;
        const char *a = MFL_MIN(from, end), *b = next_cell(a, end);
        uint64_t k;
        trim(&a, &b);
        if (!read_micro(a, b, &k) || k % 1000000)
                return fail(
                        r, err, "client '%.*s': expected the number of a client", (int)MFL_MIN(b - a, 40), a);
        k /= 1000000;
        if (k >= r->trace->n_clients)
                return fail(r, err, "client %" PRIu64 " is unknown: the population has %u, numbered from 0",
                        k, r->trace->n_clients);
        if (seen[k])
                return fail(r, err, "client %" PRIu64 " has a line already", k);
        seen[k] = 1;
        *ret_k = (uint32_t)k;
        return 0;
}

static int read_line(struct reader *r, const char *end, uint8_t *seen, struct mfl_error *err)
{
        uint32_t k = 0, i = 0;
        int status = find_client(r, end, seen, &k, err);
        for (const char *from = r->at, *stop; !status && from <= end; from = stop + 1, i++) {
                stop = next_cell(from, end);
                if (i == r->n_columns)
                        return fail(r, err, "more than the %u cells of the first line", r->n_columns);
                const char *a = from, *b = stop;
                trim(&a, &b);
                status = read_cell(r, &r->trace->client[k], r->column[i], a, b, err);
        }
        if (!status && i < r->n_columns)
                return fail(r, err, "%u cells, but the first line has %u", i, r->n_columns);
        return status;
}

static int read_lines(struct reader *r, uint8_t *seen, struct mfl_error *err)
{
        int status = 0;
        for (const char *end; !status && *r->at; r->at = *end ? end + 1 : end) {
                end = strchrnul(r->at, '\n');
                r->line++;
                const char *a = r->at, *b = end;
                trim(&a, &b);
                if (a == b)
                        continue;
                status = r->n_columns ? read_line(r, b, seen, err) : read_header(r, b, err);
        }
        if (!status && !r->n_columns) {
                r->line = 1;
                return fail(r, err, "the trace is empty");
        }
        for (uint32_t k = 0; !status && k < r->trace->n_clients; k++)
                if (!seen[k])
                        return fail(r, err,
                                "the trace ends without client %u; each of the %u clients needs a line", k,
                                r->trace->n_clients);
        return status;
}

int mfl_trace_read(struct mfl_trace *trace, uint32_t n_clients, struct mfl_error *err)
{
        struct reader reader = {.trace = trace, .at = trace->csv};
        MFL_CLEANUP_FREE uint8_t *seen = mfl_calloc(n_clients, 1);
        trace->n_clients = n_clients;
        trace->client = mfl_calloc(n_clients, sizeof *trace->client);
        if (!seen || !trace->client)
                return mfl_fail_memory(err, n_clients * sizeof *trace->client, "a trace");
        return read_lines(&reader, seen, err);
}

void mfl_trace_deinit(struct mfl_trace *trace)
{
        free(trace->csv);
        free(trace->client);
        free(trace->span);
}

bool mfl_trace_is_fixed(const struct mfl_trace *trace)
{
        return trace->client && trace->n_clients && !trace->client[0].speed;
}
