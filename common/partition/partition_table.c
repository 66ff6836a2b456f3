/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a partition, for people: each client's samples and classes, and how different the clients are. */
#include "common/partition/partition.h"

#include <math.h>
#include <stdio.h>

#define SIZE_COLUMNS 10
#define BAR_COLUMNS_DEFAULT 42 /* makes rows of 79 columns */
#define BAR_COLUMNS_MAX 400
#define LEGEND_CLASSES_MAX 62

/* A text that grows. After a failed allocation everything else is ignored. */
struct text {
        char *s;
        size_t n, capacity;
        bool failed;
};

static void add_bytes(struct text *text, const char *s, size_t n)
{
        if (text->failed)
                return;
        if (text->capacity - text->n < n + 1) {
                size_t capacity = MFL_MAX(text->capacity * 2, text->n + n + 1024);
                char *grown = mfl_realloc(text->s, capacity);
                if (!grown) {
                        text->failed = true;
                        return;
                }
                text->s = grown;
                text->capacity = capacity;
        }
        memcpy(text->s + text->n, s, n);
        text->n += n;
        text->s[text->n] = '\0';
}

static void add(struct text *text, const char *fmt, ...) MFL_PRINTF(2, 3);
static void add(struct text *text, const char *fmt, ...)
{
        char buf[256];
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(buf, sizeof buf, fmt, ap);
        va_end(ap);
        mfl_assert(n >= 0 && (size_t)n < sizeof buf);
        add_bytes(text, buf, (size_t)n);
}

static void add_repeat(struct text *text, const char *s, int n)
{
        for (int i = 0; i < n; i++)
                add_bytes(text, s, strlen(s));
}

/* Blocks of one to eight eighths, filled from the left: U+258F down to U+2588. */
static const char *const eighths[9] = {
        " ", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589", "\u2588"};

/* Of the 256-colour palette; neighbours differ in hue, the second ten are paler. More classes cycle. */
static int class_colour(uint32_t class)
{
        static const uint8_t colours[] = {32, 208, 34, 160, 134, 94, 175, 245, 142, 37, 117, 222, 120, 210,
                183, 180, 225, 252, 191, 159};
        return colours[class % MFL_ARRAY_SIZE(colours)];
}

static char class_letter(uint32_t class)
{
        static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
        return class < sizeof letters - 1 ? letters[class] : '+';
}

struct table {
        struct text text;
        const struct mfl_partition *partition;
        const int32_t *labels;
        int classes, bar_columns;
        bool colour, utf8;
        const char *heading; /* of the bars; at most as long as "classes" */
        uint32_t n, largest;
        uint32_t *whole;  /* classes: samples per class of all clients */
        uint32_t *counts; /* classes: of the current client */
        uint32_t *sizes;  /* clients, ascending */
};

static uint32_t client_size(const struct mfl_partition *p, uint32_t k)
{
        return p->start[k + 1] - p->start[k];
}

static void count_classes(struct table *t, uint32_t k)
{
        memset(t->counts, 0, (size_t)t->classes * sizeof *t->counts);
        for (uint32_t i = t->partition->start[k]; i < t->partition->start[k + 1]; i++)
                t->counts[t->labels[t->partition->index[i]]]++;
}

/* Total-variation distance between the client's class mix and the whole's: half the sum of |p - q|. */
static double client_skew(const struct table *t, uint32_t size)
{
        double sum = 0;
        for (int c = 0; c < t->classes && size; c++)
                sum += fabs((double)t->counts[c] / size - (double)t->whole[c] / t->n);
        return sum / 2;
}

static void add_size_bar(struct table *t, uint32_t size)
{
        int full, part = 0;
        if (t->utf8) {
                /* To the nearest eighth, and at least one eighth for a client with samples. */
                int units = (int)(((uint64_t)size * SIZE_COLUMNS * 8 * 2 + t->largest) /
                                  (2 * (uint64_t)t->largest));
                units = size ? MFL_MAX(units, 1) : 0;
                full = units / 8;
                part = units % 8;
        } else {
                full = (int)(((uint64_t)size * SIZE_COLUMNS + t->largest - 1) / t->largest);
        }
        add_repeat(&t->text, t->utf8 ? eighths[8] : "#", full);
        if (part)
                add(&t->text, "%s", eighths[part]);
        add_repeat(&t->text, " ", SIZE_COLUMNS - full - (part != 0));
}

/* The class at the middle of each of n_units equal stretches of a client's samples, sorted by class. */
static void spread_classes(const uint32_t *counts, uint32_t size, int n_units, uint32_t *units)
{
        uint32_t class = 0;
        uint64_t below = counts[0]; /* samples of classes up to this one */
        for (int u = 0; u < n_units; u++) {
                while (below * 2 * (uint64_t)n_units <= (2 * (uint64_t)u + 1) * size)
                        below += counts[++class];
                units[u] = class;
        }
}

/* A column of eight units shows two classes at most, the first and the last, split where the first one ends.
 */
static void add_block_column(struct table *t, const uint32_t *unit, uint32_t *last)
{
        int split = 0;
        while (split < 8 && unit[split] == unit[0])
                split++;
        uint32_t key[2] = {unit[0], split < 8 ? unit[7] : UINT32_MAX};
        if (key[0] != last[0] || key[1] != last[1]) {
                add(&t->text, "\x1b[0;38;5;%d", class_colour(key[0]));
                if (split < 8)
                        add(&t->text, ";48;5;%d", class_colour(key[1]));
                add(&t->text, "m");
                memcpy(last, key, sizeof key);
        }
        add(&t->text, "%s", eighths[split]);
}

static void add_letter_column(struct table *t, uint32_t class, uint32_t *last)
{
        if (t->colour && class != last[0])
                add(&t->text, "\x1b[0;38;5;16;48;5;%dm",
                        class_colour(class)); /* black on the class's colour */
        last[0] = class;
        add(&t->text, "%c", class_letter(class));
}

static void add_class_bar(struct table *t, const uint32_t *counts, uint32_t size)
{
        uint32_t units[BAR_COLUMNS_MAX * 8], last[2] = {UINT32_MAX, UINT32_MAX};
        int each = t->colour && t->utf8 ? 8 : 1;
        if (!size) {
                add_repeat(&t->text, " ", t->bar_columns);
                return;
        }
        spread_classes(counts, size, t->bar_columns * each, units);
        for (int i = 0; i < t->bar_columns; i++) {
                if (each == 8)
                        add_block_column(t, units + i * 8, last);
                else
                        add_letter_column(t, units[i], last);
        }
        if (t->colour)
                add(&t->text, "\x1b[0m");
}

static void add_rows(struct table *t, uint32_t rows_max)
{
        uint32_t n = t->partition->n_clients, rows = rows_max ? MFL_MIN(n, rows_max) : n;
        add(&t->text, "%6s  %8s  %-*s  %-*s  %5s\n", "client", "samples", SIZE_COLUMNS, "", t->bar_columns,
                t->heading, "skew");
        for (uint32_t k = 0; k < rows; k++) {
                uint32_t size = client_size(t->partition, k);
                count_classes(t, k);
                add(&t->text, "%6u  %8u  ", k, size);
                add_size_bar(t, size);
                add(&t->text, "  ");
                add_class_bar(t, t->counts, size);
                add(&t->text, "  %5.3f\n", client_skew(t, size));
        }
        if (rows < n)
                add(&t->text, "%6s  and %u more %s\n", "...", n - rows, n - rows == 1 ? "client" : "clients");
        add(&t->text, "%6s  %8u  %-*s  ", "all", t->n, SIZE_COLUMNS, "");
        add_class_bar(t, t->whole, t->n);
        add(&t->text, "\n");
}

static void add_legend(struct table *t)
{
        if (t->colour && t->utf8 && t->classes <= LEGEND_CLASSES_MAX) {
                int column = 0;
                for (int c = 0; c < t->classes; c++) {
                        int width = 2 + (c > 9 ? 2 : 1) + 2;
                        if (column + width > 78 || c == 0) {
                                add(&t->text, "%s%-9s", c ? "\n" : "", c ? "" : t->heading);
                                column = 9;
                        }
                        add(&t->text, "\x1b[38;5;%dm%s\x1b[0m %d%s", class_colour((uint32_t)c), eighths[8], c,
                                c + 1 < t->classes ? "  " : "");
                        column += width;
                }
                add(&t->text, "\n");
        } else if (t->classes > 10) {
                add(&t->text, "%-9s0-9: 0 to 9, a-z: 10 to 35, A-Z: 36 to 61, +: 62 and up\n", t->heading);
        }
}

static int compare_u32(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return x < y ? -1 : x > y;
}

static void add_summary(struct table *t)
{
        uint32_t n = t->partition->n_clients, with = 0;
        uint64_t twice = (uint64_t)t->sizes[(n - 1) / 2] + t->sizes[n / 2];
        double skew = 0;
        for (uint32_t k = 0; k < n; k++) {
                uint32_t size = client_size(t->partition, k);
                if (!size)
                        continue;
                count_classes(t, k);
                skew += client_skew(t, size);
                with++;
        }
        add(&t->text, "samples  min %u, median %llu%s, max %u per client; %u %s\n", t->sizes[0],
                (unsigned long long)(twice / 2), twice % 2 ? ".5" : "", t->sizes[n - 1], n,
                n == 1 ? "client" : "clients");
        add(&t->text, "skew     mean %.3f (0: clients have the class mix of all, 1: none of it)\n",
                with ? skew / with : 0.0);
}

static bool prepare(struct table *t)
{
        const struct mfl_partition *p = t->partition;
        t->whole = mfl_calloc((size_t)t->classes, sizeof *t->whole);
        t->counts = mfl_calloc((size_t)t->classes, sizeof *t->counts);
        t->sizes = mfl_calloc(p->n_clients, sizeof *t->sizes);
        if (!t->whole || !t->counts || !t->sizes)
                return false;
        t->n = p->start[p->n_clients];
        for (uint32_t i = 0; i < t->n; i++)
                t->whole[t->labels[p->index[i]]]++;
        for (uint32_t k = 0; k < p->n_clients; k++)
                t->sizes[k] = client_size(p, k);
        qsort(t->sizes, p->n_clients, sizeof *t->sizes, compare_u32);
        t->largest = MFL_MAX(t->sizes[p->n_clients - 1], 1);
        return true;
}

char *mfl_partition_table(const struct mfl_partition *partition, const int32_t *labels, int classes,
        const struct mfl_partition_view *view)
{
        int bar = view->bar_columns > 0 ? view->bar_columns : BAR_COLUMNS_DEFAULT;
        struct table t = {.partition = partition,
                .labels = labels,
                .classes = classes,
                .colour = view->colour,
                .utf8 = view->utf8,
                .heading = view->heading ? view->heading : "classes",
                .bar_columns = MFL_MIN(MFL_MAX(bar, (int)sizeof "classes" - 1), BAR_COLUMNS_MAX)};
        mfl_assert(classes > 0 && partition->n_clients > 0);
        if (prepare(&t)) {
                add_rows(&t, view->rows_max);
                add_legend(&t);
                add_summary(&t);
        } else {
                t.text.failed = true;
        }
        free(t.whole);
        free(t.counts);
        free(t.sizes);
        if (t.text.failed) {
                free(t.text.s);
                return NULL;
        }
        return t.text.s;
}
