/* SPDX-License-Identifier: Apache-2.0 */
/* A running job as text: bars, curves, quantities, and the lines of the live display. */
#include "cli/base/display.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

/* Appends what fits. The buffers of this file are large enough, so nothing is cut in practice. */
static void append(char *buf, size_t buf_bytes, const char *text)
{
        size_t n = strlen(buf);
        if (n + strlen(text) < buf_bytes)
                memcpy(buf + n, text, strlen(text) + 1);
}

const char *mfl_display_bar(double fraction, int columns, bool utf8, char *buf, size_t buf_bytes)
{
        static const char *const eighths[] = {
                " ", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589", "\u2588"};
        fraction = fraction > 0 ? MFL_MIN(fraction, 1.0) : 0;
        int parts = (int)floor(fraction * columns * 8);
        buf[0] = '\0';
        for (int i = 0; i < columns; i++) {
                int of_this = MFL_MAX(0, MFL_MIN(8, parts - 8 * i));
                append(buf, buf_bytes, utf8 ? eighths[of_this] : of_this == 8 ? "#" : of_this ? "-" : ".");
        }
        return buf;
}

const char *mfl_display_curve(
        const double *values, size_t n, int columns, bool utf8, char *buf, size_t buf_bytes)
{
        static const char *const blocks[] = {
                "\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
        static const char *const plain[] = {"_", ".", "-", ":", "=", "+", "*", "#"};
        size_t from = n > (size_t)columns ? n - (size_t)columns : 0;
        double low = INFINITY, high = -INFINITY;
        buf[0] = '\0';
        for (size_t i = from; i < n; i++) {
                low = fmin(low, values[i]);
                high = fmax(high, values[i]);
        }
        for (size_t i = from; i < n; i++) {
                double at = high > low ? (values[i] - low) / (high - low) : 0.5;
                int level = MFL_MIN(7, (int)(at * 8));
                append(buf, buf_bytes, utf8 ? blocks[level] : plain[level]);
        }
        return buf;
}

const char *mfl_display_bytes(double bytes, char *buf, size_t buf_bytes)
{
        static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
        size_t u = 0;
        while (bytes >= 999.5 && u + 1 < MFL_ARRAY_SIZE(units)) {
                bytes /= 1000;
                u++;
        }
        snprintf(buf, buf_bytes, u && bytes < 9.95 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
        return buf;
}

const char *mfl_display_time(double seconds, char *buf, size_t buf_bytes)
{
        uint64_t s = seconds > 0 ? (uint64_t)fmin(seconds + 0.5, 1e9) : 0;
        if (s < 3600)
                snprintf(buf, buf_bytes, "%" PRIu64 ":%02u", s / 60, (unsigned)(s % 60));
        else
                snprintf(buf, buf_bytes, "%" PRIu64 ":%02u:%02u", s / 3600, (unsigned)(s / 60 % 60),
                        (unsigned)(s % 60));
        return buf;
}

/* The length of an escape sequence (ESC [ ... letter) at text, which takes no column; 0: there is none. */
static size_t escape_length(const char *text)
{
        size_t n = 2;
        if (text[0] != '\033' || text[1] != '[')
                return 0;
        while (text[n] && (text[n] < '@' || text[n] > '~'))
                n++;
        return text[n] ? n + 1 : n;
}

int mfl_display_width(const char *text)
{
        int width = 0;
        while (*text) {
                size_t n = escape_length(text);
                text += n;
                if (n)
                        continue;
                width += ((uint8_t)*text & 0xc0) != 0x80;
                text++;
        }
        return width;
}

/* ---- the lines ---- */

struct lines {
        const struct mfl_style *style;
        char *text;
        size_t have, room;
        bool failed;
};

static bool make_room(struct lines *l, size_t bytes)
{
        if (l->failed || l->have + bytes + 1 <= l->room)
                return !l->failed;
        size_t room = (l->have + bytes + 1) * 2;
        char *text = mfl_realloc(l->text, room);
        if (!text) {
                l->failed = true;
                return false;
        }
        l->text = text;
        l->room = room;
        return true;
}

/* Adds a line, cut at the style's columns; a cut line still ends its colour. */
static void add_line(struct lines *l, const char *line)
{
        int left = l->style->columns;
        size_t n = 0;
        while (line[n]) {
                size_t escape = escape_length(line + n);
                if (!escape && ((uint8_t)line[n] & 0xc0) != 0x80 && left-- == 0)
                        break;
                n += escape ? escape : 1;
        }
        const char *end = line[n] && l->style->colour ? "\033[0m\n" : "\n";
        if (!make_room(l, n + strlen(end)))
                return;
        memcpy(l->text + l->have, line, n);
        strcpy(l->text + l->have + n, end);
        l->have += n + strlen(end);
}

static const char *paint(const struct lines *l, const char *code)
{
        return l->style->colour ? code : "";
}
#define BOLD "\033[1m"
#define DIM "\033[2m"
#define RED "\033[31m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define CYAN "\033[36m"
#define PLAIN "\033[0m"

#define NAME_COLUMNS_MIN 8 /* of a job's name in the head */

static const char *state_colour(const char *state)
{
        if (!strcmp(state, "done"))
                return GREEN;
        if (!strcmp(state, "failed") || !strcmp(state, "stopped"))
                return RED;
        return !strcmp(state, "waiting") ? YELLOW : CYAN;
}

/* The name, cut to n columns where it has more; its bytes are ASCII (a job's name). */
static void put_head(struct lines *l, const struct mfl_display_job *j, int n, char *line, size_t bytes)
{
        const char *dot = l->style->utf8 ? "\u00b7" : "-";
        bool cut = (int)strlen(j->name) > n;
        int at = mfl_snprintf(line, bytes, "%s%s%s %.*s%s  %s%s%s", paint(l, BOLD), j->job, paint(l, PLAIN),
                cut ? n - 2 : n, j->name, cut ? ".." : "", paint(l, state_colour(j->state)), j->state,
                paint(l, PLAIN));
        if (j->phase && *j->phase && j->in_round)
                at += mfl_snprintf(line + at, bytes - (size_t)at, " %s %s", dot, j->phase);
        if (j->daemons && (size_t)at < bytes)
                at += mfl_snprintf(line + at, bytes - (size_t)at, " %s %u daemon%s", dot, j->daemons,
                        j->daemons == 1 ? "" : "s");
        if (j->attempt && (size_t)at < bytes)
                mfl_snprintf(line + at, bytes - (size_t)at, " %s retry %u", dot, j->attempt);
}

/* On a narrow terminal the name is cut, because the state after it matters more. */
static void add_head(struct lines *l, const struct mfl_display_job *j)
{
        char line[512];
        int n = (int)strlen(j->name);
        put_head(l, j, n, line, sizeof line);
        int over = mfl_display_width(line) - l->style->columns;
        if (over > 0)
                put_head(l, j, MFL_MAX(n - over, MFL_MIN(n, NAME_COLUMNS_MIN)), line, sizeof line);
        add_line(l, line);
}

/* "rounds  [####......]  3/10  clients 12/50  31%  0:42 left" */
static void add_bar(struct lines *l, const struct mfl_display_job *j)
{
        char line[4096], bar[1024], tail[160], left[24];
        bool training = j->in_round && j->clients_total && !strcmp(j->phase, "train");
        /* After training, only the short phases of a round remain. */
        double part = training ? MFL_MAX((double)j->clients_done / j->clients_total, j->trained)
                               : j->in_round > j->round;
        double fraction = j->rounds ? (j->round + MFL_MIN(part, 1.0)) / j->rounds : 0;
        int n = snprintf(tail, sizeof tail, " %u/%u", j->round, j->rounds);
        if (training) /* clients whose updates were counted, or that are in training */
                n += snprintf(tail + n, sizeof tail - (size_t)n, "  clients %.0f/%u",
                        floor(part * j->clients_total + 1e-9), j->clients_total);
        if (training && j->trained > 0)
                n += snprintf(tail + n, sizeof tail - (size_t)n, "  %.0f%%", floor(part * 100));
        if (j->left >= 0)
                snprintf(tail + n, sizeof tail - (size_t)n, "  %s left",
                        mfl_display_time(j->left, left, sizeof left));
        int columns = MFL_MIN(60, l->style->columns - 9 - 1 - mfl_display_width(tail));
        if (columns >= 5)
                snprintf(line, sizeof line, "rounds   %s%s%s%s", paint(l, CYAN),
                        mfl_display_bar(fraction, columns, l->style->utf8, bar, sizeof bar), paint(l, PLAIN),
                        tail);
        else
                snprintf(line, sizeof line, "rounds  %s", tail);
        add_line(l, line);
}

static void add_curve(struct lines *l, const char *label, const double *v, size_t n)
{
        char line[4096], curve[1024], value[32];
        if (!n)
                return;
        snprintf(value, sizeof value, "%.4f", v[n - 1]);
        int columns = MFL_MIN(60, l->style->columns - 9 - 9);
        snprintf(line, sizeof line, "%-8s %-8s %s%s%s", label, value, paint(l, GREEN),
                columns > 0 ? mfl_display_curve(v, n, columns, l->style->utf8, curve, sizeof curve) : "",
                paint(l, PLAIN));
        add_line(l, line);
}

static void add_plain(struct lines *l, const char *text)
{
        char line[768];
        snprintf(line, sizeof line, "%s%s%s", paint(l, DIM), text, paint(l, PLAIN));
        add_line(l, line);
}

/* For a language model: exp of the mean loss per token. */
static void add_perplexity(struct lines *l, const struct mfl_display_job *j)
{
        char line[64];
        if (!j->per_token || !j->n_evaluated)
                return;
        snprintf(line, sizeof line, "perplexity %.2f", exp(j->loss[j->n_evaluated - 1]));
        add_plain(l, line);
}

static void add_traffic(struct lines *l, const struct mfl_display_job *j)
{
        char line[256], up[24], down[24], time[24];
        /* Without the first word, the time fits into 40 columns. */
        for (int shorter = 0; shorter < 2; shorter++) {
                snprintf(line, sizeof line, "%s%sup %s, down %s   time %s%s", paint(l, DIM),
                        shorter ? "" : "traffic  ", mfl_display_bytes(j->bytes_up, up, sizeof up),
                        mfl_display_bytes(j->bytes_down, down, sizeof down),
                        mfl_display_time(j->seconds, time, sizeof time), paint(l, PLAIN));
                if (mfl_display_width(line) <= l->style->columns)
                        break;
        }
        add_line(l, line);
}

/* The number of bytes of text that fit into the columns, cut at a blank if there is one. */
static size_t fitting(const char *text, int columns)
{
        size_t n = 0, blank = 0;
        for (; text[n]; n++) {
                if (((uint8_t)text[n] & 0xc0) != 0x80 && columns-- == 0)
                        return blank ? blank : MFL_MAX(n, (size_t)1);
                if (text[n] == ' ')
                        blank = n;
        }
        return n;
}

/* A reason is one or two sentences; it continues on the next lines. */
static void add_text(struct lines *l, const char *text)
{
        char line[768];
        while (text && *text) {
                size_t n = fitting(text, l->style->columns);
                mfl_snprintf(line, sizeof line, "%s%.*s%s", paint(l, YELLOW), (int)n, text, paint(l, PLAIN));
                add_line(l, line);
                text += n;
                text += strspn(text, " ");
        }
}

char *mfl_display_render(const struct mfl_display_job *job, const struct mfl_style *style)
{
        struct lines l = {.style = style};
        add_head(&l, job);
        add_bar(&l, job);
        if (job->no_accuracy)
                add_plain(&l, "accuracy n/a");
        else
                add_curve(&l, "accuracy", job->accuracy, job->n_evaluated);
        add_curve(&l, "loss", job->loss, job->n_evaluated);
        add_perplexity(&l, job);
        add_traffic(&l, job);
        add_text(&l, job->reason);
        add_text(&l, job->notice);
        if (l.failed) {
                free(l.text);
                return NULL;
        }
        return l.text;
}

char *mfl_display_cut(const char *text, const struct mfl_style *style)
{
        struct lines l = {.style = style};
        while (*text && !l.failed) {
                size_t n = strcspn(text, "\n");
                MFL_CLEANUP_FREE char *line = mfl_asprintf("%.*s", (int)n, text);
                if (line)
                        add_line(&l, line);
                l.failed |= !line;
                text += n + (text[n] == '\n');
        }
        if (!l.failed)
                return l.text ? l.text : mfl_strdup("");
        free(l.text);
        return NULL;
}
