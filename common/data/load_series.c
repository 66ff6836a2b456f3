/* SPDX-License-Identifier: Apache-2.0 */
/* Time series in CSV files: a sample is a window of rows.
 *
 *   - puts the rows in order: by series (the column group), by time, then by their place in the file;
 *   - without test files, cuts the rows: the last test_fraction of each series, or whole series drawn by the seed;
 *   - takes windows, `stride` rows apart. A window and the row of its answer lie in one series and one split, so no row
 *     of one split is in the other.
 * The owner of a window is the configured owner, which a series has only one of, or the series itself.
 * Fails with MFL_INVALID: a time that appears twice in a series, times that have no order, a series with two owners,
 * no series as long as a window.
 */
#include "common/data/sources.h"
#include "common/base/rng.h"

#include <math.h>

#define STREAM_TEST_SERIES 4 /* of MFL_RNG_DATA, coordinate a; split.c has 3 */
#define TIME_BYTES_MAX 63

struct row {
        uint32_t series, at; /* at: of the table */
        double number;       /* the time, if times are numbers */
        struct mfl_span time;
};

/* Rows of one series that belong to one split. */
struct part {
        const struct row *rows;
        uint32_t n;
};

struct parts {
        struct part *list; /* at most one for each series */
        uint32_t n;
};

struct cutter {
        const struct mfl_dataset_config *config;
        struct mfl_dataset *dataset;
        struct mfl_error *err;
        uint32_t horizon;
        char **names; /* n_names, of series */
        uint32_t n_names;
        struct row *rows[2];
        struct parts parts[2]; /* by split */
        uint32_t n_short;      /* training series that are too short */
};

static const char *series_name(const struct cutter *c, const struct row *row)
{
        return c->names ? c->names[row->series] : "";
}

/* ---- order ---- */

static bool time_number(struct mfl_span s, double *ret_number)
{
        char text[TIME_BYTES_MAX + 1], *end;
        if (!s.n || s.n > TIME_BYTES_MAX)
                return false;
        memcpy(text, s.s, s.n);
        text[s.n] = '\0';
        if (strspn(text, "0123456789+-.eE") != s.n)
                return false;
        *ret_number = strtod(text, &end);
        return !*end && isfinite(*ret_number);
}

static bool is_digit(char c)
{
        return c >= '0' && c <= '9';
}

/* The UTC offset at the end of a text such as 2024-05-01T10:00:00+02:00; n: it has none. */
static size_t offset_of(struct mfl_span s)
{
        for (size_t i = MFL_MIN(s.n, (size_t)11); i < s.n; i++)
                if (s.s[i] == '+' || s.s[i] == '-')
                        return i;
        return s.n;
}

/* Dates as ISO 8601 writes them sort as text, if all have the same form. */
static bool same_form(struct mfl_span first, struct mfl_span s)
{
        size_t offset = offset_of(first);
        if (s.n != first.n || s.n < 10)
                return false;
        for (size_t i = 0; i < s.n; i++) {
                bool digit = is_digit(first.s[i]);
                if (digit != is_digit(s.s[i]) || ((!digit || i >= offset) && s.s[i] != first.s[i]))
                        return false;
        }
        for (size_t i = 0; i < 10; i++)
                if (is_digit(s.s[i]) == (i == 4 || i == 7))
                        return false;
        return true;
}

static int read_times(struct cutter *c, const struct mfl_csv *csv, struct row *rows)
{
        bool numbers = true;
        for (uint32_t i = 0; numbers && i < csv->n; i++)
                numbers = time_number(csv->times[i], &rows[i].number);
        for (uint32_t i = 0; i < csv->n; i++) {
                rows[i].time = csv->times[i];
                if (numbers || same_form(csv->times[0], csv->times[i]))
                        continue;
                return mfl_fail(c->err, MFL_INVALID,
                        "data set %s: times must be numbers, or all have the form of 2024-05-01 or "
                        "2024-05-01T10:00:00 in one time zone, got '%.*s' and '%.*s'",
                        c->config->name, (int)MFL_MIN(csv->times[0].n, 40), csv->times[0].s,
                        (int)MFL_MIN(csv->times[i].n, 40), csv->times[i].s);
        }
        for (uint32_t i = 0; !numbers && i < csv->n; i++)
                rows[i].number = 0;
        return 0;
}

static int compare_times(const struct row *x, const struct row *y)
{
        if (x->number != y->number)
                return x->number < y->number ? -1 : 1;
        return x->time.s && x->time.n == y->time.n ? memcmp(x->time.s, y->time.s, x->time.n) : 0;
}

/* Numbers of different text, such as 1 and 1.0, are one time. */
static bool same_time(const struct row *x, const struct row *y)
{
        double a, b;
        if (time_number(x->time, &a) && time_number(y->time, &b))
                return a == b;
        return x->time.n == y->time.n && !memcmp(x->time.s, y->time.s, x->time.n);
}

static int compare_rows(const void *a, const void *b)
{
        const struct row *x = a, *y = b;
        if (x->series != y->series)
                return x->series < y->series ? -1 : 1;
        int order = compare_times(x, y);
        return order ? order : (x->at > y->at) - (x->at < y->at);
}

/* The rows of a table in order. */
static int sort_rows(struct cutter *c, const struct mfl_csv *csv, struct row **ret_rows)
{
        struct row *rows = *ret_rows = mfl_calloc(csv->n, sizeof *rows);
        if (!rows)
                return mfl_fail_memory(c->err, csv->n * sizeof *rows, c->config->name);
        for (uint32_t i = 0; i < csv->n; i++) {
                rows[i].at = i;
                rows[i].series = csv->groups ? mfl_names_find(c->names, c->n_names, csv->groups[i]) : 0;
        }
        int r = csv->times ? read_times(c, csv, rows) : 0;
        if (r)
                return r;
        qsort(rows, csv->n, sizeof *rows, compare_rows);
        for (uint32_t i = 1; csv->times && i < csv->n; i++)
                if (rows[i].series == rows[i - 1].series && same_time(&rows[i], &rows[i - 1]))
                        return mfl_fail(c->err, MFL_INVALID,
                                "data set %s: time '%.*s' appears twice%s%.60s; if the rows are of several "
                                "series, set group to the column that tells them apart",
                                c->config->name, (int)MFL_MIN(rows[i].time.n, 40), rows[i].time.s,
                                c->names ? " in series " : "", series_name(c, &rows[i]));
        return 0;
}

static int find_series(struct cutter *c, const struct mfl_csv *const tables[2])
{
        size_t n = tables[0]->n + (tables[1] ? (size_t)tables[1]->n : 0);
        if (!tables[0]->groups)
                return 0;
        MFL_CLEANUP_FREE struct mfl_span *all = mfl_calloc(n, sizeof *all);
        if (!all)
                return mfl_fail_memory(c->err, n * sizeof *all, "series");
        memcpy(all, tables[0]->groups, tables[0]->n * sizeof *all);
        if (tables[1])
                memcpy(all + tables[0]->n, tables[1]->groups, tables[1]->n * sizeof *all);
        return mfl_names_new(all, n, &c->names, &c->n_names, c->err);
}

/* ---- splits ---- */

static int parts_new(struct cutter *c, int split)
{
        size_t n = MFL_MAX(c->n_names, 1u);
        c->parts[split].list = mfl_calloc(n, sizeof *c->parts[split].list);
        return c->parts[split].list ? 0 : mfl_fail_memory(c->err, n * sizeof *c->parts[split].list, "series");
}

static void add_part(struct cutter *c, int split, const struct row *rows, uint32_t n)
{
        struct parts *parts = &c->parts[split];
        parts->list[parts->n++] = (struct part){rows, n};
}

static uint32_t series_end(const struct row *rows, uint32_t n, uint32_t from)
{
        uint32_t end = from + 1;
        while (end < n && rows[end].series == rows[from].series)
                end++;
        return end;
}

/* Marks test_fraction of the series, to the nearest, at least one and not all. */
static int draw_series(struct cutter *c, const struct row *rows, uint32_t n, uint8_t *marked)
{
        MFL_CLEANUP_FREE uint32_t *order = mfl_calloc(c->n_names, sizeof *order);
        uint32_t n_series = 0;
        if (!order)
                return mfl_fail_memory(c->err, c->n_names * sizeof *order, "series");
        for (uint32_t i = 0; i < n; i = series_end(rows, n, i))
                order[n_series++] = rows[i].series;
        uint32_t n_test = (uint32_t)(n_series * c->config->test_fraction + 0.5);
        if (n_series < 2)
                return mfl_fail(c->err, MFL_INVALID,
                        "data set %s: split: group needs at least two series, and there is one; split: time "
                        "cuts "
                        "each series",
                        c->config->name);
        n_test = MFL_MIN(MFL_MAX(n_test, 1u), n_series - 1);
        struct mfl_rng rng = mfl_rng_new(c->config->seed, MFL_RNG_DATA, STREAM_TEST_SERIES, 0);
        mfl_rng_shuffle(&rng, order, n_series);
        for (uint32_t i = 0; i < n_test; i++)
                marked[order[i]] = 1;
        return 0;
}

static int cut_rows(struct cutter *c, const struct row *rows, uint32_t n, bool two)
{
        bool by_group = !two && c->config->split == MFL_SERIES_SPLIT_GROUP;
        MFL_CLEANUP_FREE uint8_t *marked = mfl_calloc(MFL_MAX(c->n_names, 1u), 1);
        if (!marked)
                return mfl_fail_memory(c->err, c->n_names, "series");
        int r = by_group ? draw_series(c, rows, n, marked) : 0;
        for (uint32_t i = 0, end; !r && i < n; i = end) {
                end = series_end(rows, n, i);
                uint32_t n_own = end - i, n_test = marked[rows[i].series] ? n_own : 0;
                if (!two && !by_group)
                        n_test = MFL_MIN((uint32_t)(n_own * c->config->test_fraction + 0.5), n_own);
                if (!marked[rows[i].series])
                        add_part(c, 0, rows + i, n_own - n_test);
                if (n_test)
                        add_part(c, 1, rows + end - n_test, n_test);
        }
        return r;
}

/* ---- windows ---- */

static uint64_t windows(const struct cutter *c, uint32_t n)
{
        uint64_t whole = (uint64_t)c->config->window + c->horizon;
        uint32_t stride = c->config->stride ? c->config->stride : c->config->window;
        return n >= whole ? (n - whole) / stride + 1 : 0;
}

/* The commonest label of a window; of equals, the smallest. */
static int32_t majority(const struct row *rows, uint32_t n, const int32_t *labels, int32_t *sorted)
{
        int32_t best = 0;
        uint32_t best_n = 0;
        for (uint32_t i = 0; i < n; i++) { /* insertion: windows are short, and neighbours mostly equal */
                int32_t label = labels[rows[i].at];
                uint32_t k = i;
                for (; k > 0 && sorted[k - 1] > label; k--)
                        sorted[k] = sorted[k - 1];
                sorted[k] = label;
        }
        for (uint32_t i = 0, run = 0; i < n; i++) {
                run = i && sorted[i] == sorted[i - 1] ? run + 1 : 1;
                if (run > best_n) {
                        best_n = run;
                        best = sorted[i];
                }
        }
        return best;
}

static int check_owner(struct cutter *c, const struct part *part, const uint32_t *owner)
{
        for (uint32_t i = 1; owner && i < part->n; i++)
                if (owner[part->rows[i].at] != owner[part->rows[0].at])
                        return mfl_fail(c->err, MFL_INVALID,
                                "data set %s: the rows of a series%s%.60s have two owners, '%.60s' and "
                                "'%.60s'",
                                c->config->name, c->names ? ", " : "", series_name(c, part->rows),
                                c->dataset->owner_names[owner[part->rows[0].at]],
                                c->dataset->owner_names[owner[part->rows[i].at]]);
        return 0;
}

/* Window `to` of the split begins at a row. */
static void take_window(const struct cutter *c, const struct row *rows, const struct mfl_split *from,
        struct mfl_split *to, int32_t *sorted)
{
        uint32_t window = c->config->window, at = rows[window - 1 + c->horizon].at;
        size_t width = (size_t)c->dataset->shape.dim[1], n_targets = (size_t)c->dataset->n_targets;
        float *x = (float *)to->samples + (size_t)to->n * window * width;
        for (uint32_t i = 0; i < window; i++)
                memcpy(x + i * width, (const float *)from->samples + rows[i].at * width, width * sizeof *x);
        if (to->targets)
                memcpy(to->targets + to->n * n_targets, from->targets + at * n_targets,
                        n_targets * sizeof *to->targets);
        else if (c->config->label_at == MFL_SERIES_LABEL_MAJORITY)
                to->labels[to->n] = majority(rows, window, from->labels, sorted);
        else
                to->labels[to->n] = from->labels[at];
        if (to->owner)
                to->owner[to->n] = from->owner ? from->owner[rows->at] : rows->series;
        to->n++;
}

static int fail_short(struct cutter *c, int split, uint32_t longest)
{
        return mfl_fail(c->err, MFL_INVALID,
                "data set %s: the longest %s series has %u rows, but a window and its answer need %u; set a "
                "smaller window",
                c->config->name, split ? "test" : "training", longest, c->config->window + c->horizon);
}

static int fill_split(struct cutter *c, int split, const struct mfl_split *from, struct mfl_split *to)
{
        const struct parts *parts = &c->parts[split];
        uint32_t longest = 0, stride = c->config->stride ? c->config->stride : c->config->window;
        size_t each = (size_t)mfl_shape_count(&c->dataset->shape), n_targets = (size_t)c->dataset->n_targets;
        uint64_t n = 0;
        for (uint32_t i = 0; i < parts->n; i++) {
                n += windows(c, parts->list[i].n);
                longest = MFL_MAX(longest, parts->list[i].n);
                c->n_short += !split && !windows(c, parts->list[i].n);
        }
        if (!n)
                return fail_short(c, split, longest);
        if (n > INT32_MAX || n * each > INT64_MAX / 8)
                return mfl_fail(c->err, MFL_INVALID, "data set %s: %llu windows; the limit is %d",
                        c->config->name, (unsigned long long)n, INT32_MAX);
        MFL_CLEANUP_FREE int32_t *sorted = mfl_calloc(c->config->window, sizeof *sorted);
        bool owned = from->owner || c->names;
        to->dtype = MFL_F32;
        to->samples = mfl_alloc_aligned(n * each * sizeof(float));
        to->labels = n_targets ? NULL : mfl_calloc(n, sizeof *to->labels);
        to->targets = n_targets ? mfl_calloc(n * n_targets, sizeof *to->targets) : NULL;
        to->owner = owned ? mfl_calloc(n, sizeof *to->owner) : NULL;
        if (!sorted || !to->samples || (!to->labels && !to->targets) || (owned && !to->owner))
                return mfl_fail_memory(c->err, n * each * sizeof(float), c->config->name);
        for (uint32_t i = 0; i < parts->n; i++) {
                const struct part *part = &parts->list[i];
                int r = check_owner(c, part, from->owner);
                if (r)
                        return r;
                for (uint64_t w = 0, n_own = windows(c, part->n); w < n_own; w++)
                        take_window(c, part->rows + w * stride, from, to, sorted);
        }
        return 0;
}

static void free_split(struct mfl_split *split)
{
        free(split->samples);
        free(split->labels);
        free(split->targets);
        free(split->owner);
}

int mfl_series_windows(const struct mfl_dataset_config *config, const struct mfl_csv *const tables[2],
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct cutter c = {.config = config, .dataset = dataset, .err = err};
        struct mfl_split *own[] = {&dataset->train, &dataset->test};
        struct mfl_split old[] = {dataset->train, dataset->test};
        c.horizon = config->horizon_given ? config->horizon : dataset->n_targets ? 1 : 0;
        dataset->train = dataset->test = (struct mfl_split){0};
        int r = find_series(&c, tables);
        r = r ? r : parts_new(&c, 0);
        r = r ? r : parts_new(&c, 1);
        r = r ? r : sort_rows(&c, tables[0], &c.rows[0]);
        if (!r && tables[1])
                r = sort_rows(&c, tables[1], &c.rows[1]);
        r = r ? r : cut_rows(&c, c.rows[0], tables[0]->n, tables[1] != NULL);
        for (uint32_t i = 0, end; !r && tables[1] && i < tables[1]->n; i = end) {
                end = series_end(c.rows[1], tables[1]->n, i);
                add_part(&c, 1, c.rows[1] + i, end - i);
        }
        for (int s = 0; !r && s < 2; s++)
                r = fill_split(&c, s, &old[tables[1] ? s : 0], own[s]);
        if (!r && c.n_short)
                mfl_snprintf(dataset->note, sizeof dataset->note,
                        "data set %s: %u of %u series are shorter than a window of %u rows, and give no "
                        "training "
                        "samples",
                        config->name, c.n_short, c.parts[0].n, config->window);
        if (!r && c.names && !old[0].owner) {
                dataset->owner_names = c.names;
                dataset->n_owners = c.n_names;
                c.names = NULL;
        }
        for (int s = 0; s < 2; s++) {
                free_split(&old[s]);
                free(c.rows[s]);
                free(c.parts[s].list);
        }
        free(c.names);
        return r;
}
