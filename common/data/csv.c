/* SPDX-License-Identifier: Apache-2.0 */
/* Tables as CSV (RFC 4180): quoted cells, CRLF or LF, a header or none, any one separator.
 *
 * Columns are features unless the configuration says label, target, owner or ignored. Numbers are decimal and
 * finite, but where a column has categories (csv_columns.c); every message names the line and the column.
 */
#include "common/data/sources.h"

#include <math.h>
#include <stdio.h>

#define COLUMNS_MAX 1000000
#define NUMBER_BYTES_MAX 63

enum role {
        ROLE_FEATURE,
        ROLE_LABEL,
        ROLE_TARGET, /* the k-th target: ROLE_TARGET + k */
        ROLE_OWNER = -1,
        ROLE_IGNORED = -2,
        ROLE_GROUP = -3,
        ROLE_TIME = -4,
        ROLE_TEXT = -5,
        ROLE_WANTED = -6, /* listed in features; ROLE_FEATURE in the end */
};

struct reader {
        uint8_t *at, *end;
        const char *path;
        char separator;
        uint32_t line; /* of the current cell, from 1 */
        struct mfl_error *err;

        const struct mfl_dataset_config *config;
        struct mfl_span *header;                  /* n_columns; NULL: headless */
        struct mfl_categories *typed;             /* n_columns; the categories that the header declares */
        const struct mfl_categories **categories; /* n_columns; NULL: a number */
        int *roles;                               /* n_columns */
        int *also; /* n_columns; of a feature that is the k-th target, too: k + 1 */
        uint32_t n_columns;
        size_t capacity; /* rows that fit into csv */
        struct mfl_csv csv;
};

/* ---- cells ---- */

enum end {
        END_CELL,
        END_ROW,
};

static int fail_line(struct reader *r, const char *what)
{
        return mfl_fail(r->err, MFL_INVALID, "%s:%u: %s", r->path, r->line, what);
}

/* A lone carriage return, an old line end, is refused: it would join two rows. */
static int fail_return(struct reader *r)
{
        return fail_line(
                r, "a carriage return without a line feed after it: convert the line ends to LF or CRLF");
}

/* A cell in quotes: turns doubled quotes into single ones, in place. */
static int take_quoted(struct reader *r, struct mfl_span *ret_cell)
{
        uint8_t *to = ++r->at;
        ret_cell->s = (const char *)to;
        for (;;) {
                if (r->at == r->end)
                        return fail_line(r, "an opening quote without a closing one");
                if (*r->at == '"') {
                        if (r->at + 1 == r->end || r->at[1] != '"')
                                break;
                        r->at++;
                }
                if (!*r->at)
                        return fail_line(r, "holds a zero byte: is this a text file?");
                r->line += *r->at == '\n';
                *to++ = *r->at++;
        }
        ret_cell->n = (size_t)(to - (uint8_t *)ret_cell->s);
        r->at++;
        if (r->at < r->end && *r->at != (uint8_t)r->separator && *r->at != '\r' && *r->at != '\n')
                return fail_line(r, "text after a closing quote");
        return 0;
}

static int take_cell(struct reader *r, struct mfl_span *ret_cell, enum end *ret_end)
{
        if (r->at < r->end && *r->at == '"') {
                int e = take_quoted(r, ret_cell);
                if (e)
                        return e;
        } else {
                uint8_t *from = r->at;
                while (r->at < r->end && *r->at != (uint8_t)r->separator && *r->at != '\n') {
                        if (!*r->at)
                                return fail_line(r, "holds a zero byte: is this a text file?");
                        if (*r->at == '\r' && r->at + 1 < r->end && r->at[1] != '\n')
                                return fail_return(r);
                        r->at++;
                }
                size_t n = (size_t)(r->at - from);
                bool cut = r->at == r->end || *r->at == '\n';
                *ret_cell = (struct mfl_span){(const char *)from, n - (cut && n && from[n - 1] == '\r')};
        }
        if (r->at < r->end && *r->at == '\r')
                r->at++;
        *ret_end = END_ROW;
        if (r->at < r->end && *r->at != (uint8_t)r->separator && *r->at != '\n')
                return fail_return(r);
        if (r->at < r->end)
                *ret_end = *r->at++ == (uint8_t)r->separator ? END_CELL : END_ROW;
        return 0;
}

static bool at_line_end(const struct reader *r)
{
        return *r->at == '\n' || (*r->at == '\r' && r->at + 1 < r->end && r->at[1] == '\n');
}

/* Blank lines are ignored. */
static void skip_blank_lines(struct reader *r)
{
        while (r->at < r->end && at_line_end(r)) {
                r->at += *r->at == '\r' ? 2 : 1;
                r->line++;
        }
}

static bool parse_number(struct mfl_span cell, float *ret_value)
{
        char text[NUMBER_BYTES_MAX + 1], *end;
        while (cell.n && (*cell.s == ' ' || *cell.s == '\t'))
                cell.s++, cell.n--;
        while (cell.n && (cell.s[cell.n - 1] == ' ' || cell.s[cell.n - 1] == '\t'))
                cell.n--;
        if (!cell.n || cell.n > NUMBER_BYTES_MAX)
                return false;
        memcpy(text, cell.s, cell.n);
        text[cell.n] = '\0';
        if (strspn(text, "0123456789+-.eE") != cell.n) /* strtof also takes hexadecimal, inf and nan */
                return false;
        *ret_value = strtof(text, &end);
        return !*end && isfinite(*ret_value);
}

/* ---- columns ---- */

/* By name if a header has it, otherwise by number from 0. */
static int find_column(struct reader *r, const char *text, uint32_t *ret_column)
{
        uint32_t n = 0;
        for (uint32_t i = 0; r->header && i < r->n_columns; i++)
                if (strlen(text) == r->header[i].n && !memcmp(text, r->header[i].s, r->header[i].n)) {
                        *ret_column = i;
                        n++;
                }
        if (n > 1)
                return mfl_fail(r->err, MFL_INVALID,
                        "%s: %u columns have the name '%.60s'; give the column's number, from 0", r->path, n,
                        text);
        if (n)
                return 0;
        char *end;
        unsigned long v = strtoul(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || v >= r->n_columns)
                return mfl_fail(r->err, MFL_INVALID, "%s: no column '%.60s'; columns are 0 to %u%s%s",
                        r->path, text, r->n_columns - 1,
                        r->header ? ", or their names in the first line" : "",
                        r->n_columns == 1 ? "; is the separator right?" : "");
        *ret_column = (uint32_t)v;
        return 0;
}

static int give_role(struct reader *r, const char *text, int role)
{
        uint32_t column = 0;
        int e = find_column(r, text, &column);
        if (e)
                return e;
        if (r->roles[column] != ROLE_FEATURE)
                return mfl_fail(r->err, MFL_INVALID, "%s: column '%.60s' is configured for two purposes",
                        r->path, text);
        r->roles[column] = role;
        return 0;
}

static int give_categories(struct reader *r, uint32_t column, const struct mfl_categories *c)
{
        int name = r->header ? (int)MFL_MIN(r->header[column].n, 40) : 0;
        const char *text = r->header ? r->header[column].s : "";
        if (r->roles[column] != ROLE_FEATURE || r->also[column])
                return mfl_fail(r->err, MFL_INVALID, "%s: column %u%s%.*s%s has categories, but is %s",
                        r->path, column, name ? " (" : "", name, text, name ? ")" : "",
                        r->also[column] ? "also a target" : "not a feature");
        if (r->categories[column])
                return mfl_fail(r->err, MFL_INVALID,
                        "%s: the categories of column %u%s%.*s%s are declared twice", r->path, column,
                        name ? " (" : "", name, text, name ? ")" : "");
        r->categories[column] = c;
        return 0;
}

static int assign_categories(struct reader *r)
{
        int e = 0;
        for (uint32_t i = 0; !e && i < r->n_columns; i++)
                if (r->typed[i].n)
                        e = give_categories(r, i, &r->typed[i]);
        for (int i = 0; !e && i < r->config->n_categories; i++) {
                uint32_t column = 0;
                e = find_column(r, r->config->categories[i].column, &column);
                if (!e)
                        e = give_categories(r, column, &r->config->categories[i]);
        }
        return e;
}

/* In windows, a target that may be a feature is both: its past is known. */
static int give_target(struct reader *r, const char *text, int k)
{
        const struct mfl_dataset_config *c = r->config;
        uint32_t column = 0;
        int e = c->window ? find_column(r, text, &column) : give_role(r, text, ROLE_TARGET + k);
        if (e || !c->window)
                return e;
        bool feature = r->roles[column] == (c->n_feature_columns ? ROLE_WANTED : ROLE_FEATURE);
        if (!feature || r->also[column])
                return give_role(r, text, ROLE_TARGET + k);
        r->also[column] = k + 1;
        return 0;
}

/* With a list of features, or a text, all other columns are ignored. */
static void ignore_others(struct reader *r)
{
        for (uint32_t i = 0; i < r->n_columns; i++) {
                if (r->roles[i] == ROLE_FEATURE && (r->config->n_feature_columns || r->config->text))
                        r->roles[i] = ROLE_IGNORED;
                if (r->roles[i] == ROLE_WANTED)
                        r->roles[i] = ROLE_FEATURE;
        }
}

static int assign_purposes(struct reader *r)
{
        const struct mfl_dataset_config *c = r->config;
        const struct {
                const char *column;
                int role;
        } single[] = {{c->group, ROLE_GROUP}, {c->time, ROLE_TIME}, {c->text, ROLE_TEXT}};
        bool grouped = c->owner && c->group && !strcmp(c->owner, c->group);
        int e = c->owner && !grouped ? give_role(r, c->owner, ROLE_OWNER) : 0;
        for (size_t i = 0; !e && i < MFL_ARRAY_SIZE(single); i++)
                if (single[i].column)
                        e = give_role(r, single[i].column, single[i].role);
        for (int i = 0; !e && i < c->n_ignored; i++)
                e = give_role(r, c->ignored[i], ROLE_IGNORED);
        for (int i = 0; !e && i < c->n_feature_columns; i++)
                e = give_role(r, c->features[i], ROLE_WANTED);
        for (int i = 0; !e && i < c->n_target_columns; i++)
                e = give_target(r, c->targets[i], i);
        return e;
}

/* Names by feature, and the values of features that are categories. */
static int describe_features(struct reader *r)
{
        struct mfl_csv *csv = &r->csv;
        uint32_t at = 0;
        size_t bytes = csv->n_features * sizeof *csv->names;
        int e = 0;
        for (uint32_t i = 0; r->header && i < r->n_columns; i++)
                bytes += r->header[i].n + 1;
        csv->names = r->header ? mfl_malloc(bytes) : NULL;
        if (r->header && !csv->names)
                return mfl_fail_memory(r->err, bytes, r->path);
        char *text = (char *)(csv->names + csv->n_features);
        for (uint32_t i = 0; !e && i < r->n_columns; i++) {
                const struct mfl_categories *c = r->categories[i];
                uint32_t width = mfl_categories_width(c);
                if (r->roles[i] != ROLE_FEATURE)
                        continue;
                if (c && !csv->categorical && !(csv->categorical = mfl_calloc(csv->n_features, 1)))
                        return mfl_fail_memory(r->err, csv->n_features, r->path);
                if (c)
                        e = mfl_categories_describe(c, at, &csv->encoding, r->err);
                for (uint32_t k = 0; k < width; k++) {
                        if (c)
                                csv->categorical[at + k] = 1;
                        if (r->header)
                                csv->names[at + k] = text;
                }
                at += width;
                if (r->header) {
                        memcpy(text, r->header[i].s, r->header[i].n);
                        text[r->header[i].n] = '\0';
                        text += r->header[i].n + 1;
                }
        }
        return e;
}

static int assign_roles(struct reader *r)
{
        const struct mfl_dataset_config *c = r->config;
        int e = assign_purposes(r);
        if (!e && c->label && c->n_target_columns)
                return mfl_fail(
                        r->err, MFL_INVALID, "%s: label and targets are both given; keep one", r->path);
        if (!e && c->label)
                e = give_role(r, c->label, ROLE_LABEL);
        else if (!e && !c->unlabelled && !c->n_target_columns && r->roles[r->n_columns - 1] == ROLE_FEATURE)
                r->roles[r->n_columns - 1] = ROLE_LABEL;
        else if (!e && !c->unlabelled && !c->n_target_columns)
                return mfl_fail(r->err, MFL_INVALID,
                        "%s: the last column is not the label; set label to the column that is", r->path);
        if (e)
                return e;
        ignore_others(r);
        e = assign_categories(r);
        if (e)
                return e;
        for (uint32_t i = 0; i < r->n_columns; i++)
                if (r->roles[i] == ROLE_FEATURE)
                        r->csv.n_features += mfl_categories_width(r->categories[i]);
        r->csv.n_targets = (uint32_t)c->n_target_columns;
        if (!r->csv.n_features && !c->text)
                return mfl_fail(r->err, MFL_INVALID,
                        "%s: %u column%s, none of which is a feature; is the separator '%c' right?", r->path,
                        r->n_columns, r->n_columns == 1 ? "" : "s", r->separator);
        return describe_features(r);
}

static bool is_all_numbers(const struct reader *r)
{
        float ignored;
        for (uint32_t i = 0; i < r->n_columns; i++)
                if (!parse_number(r->header[i], &ignored))
                        return false;
        return true;
}

/* The categories that the header declares. */
static int take_types(struct reader *r)
{
        struct mfl_error why;
        for (uint32_t i = 0; r->header && i < r->n_columns; i++) {
                struct mfl_categories c = {0};
                int e = mfl_categories_of_header(&r->header[i], &c, &why);
                if (e)
                        return e < 0 ? mfl_fail(r->err, e, "%s", why.text)
                                     : mfl_fail(r->err, e, "%s:%u: %.400s", r->path, r->line - 1, why.text);
                r->typed[i] = c;
        }
        return 0;
}

/* Reads the first row: its number of columns, and the names if it is a header. */
static int take_header(struct reader *r)
{
        struct mfl_span cell;
        enum end end = END_CELL;
        struct reader first =
                *r; /* parsing removes quotes in place, so only unquoted text can be read twice */
        bool header = !r->config->headless;
        size_t capacity = 0;
        for (; end == END_CELL; r->n_columns++) {
                if (r->n_columns == COLUMNS_MAX)
                        return fail_line(r, "more than 1000000 columns");
                if (!header && r->at < r->end && *r->at == '"')
                        return fail_line(r, "a quoted cell in the first row, which is not a header");
                int e = take_cell(r, &cell, &end);
                if (e)
                        return e;
                if (header && r->n_columns == capacity) {
                        capacity = MFL_MAX(capacity * 2, 32);
                        struct mfl_span *grown = mfl_realloc(r->header, capacity * sizeof *grown);
                        if (!grown)
                                return mfl_fail_memory(r->err, capacity * sizeof *grown, r->path);
                        r->header = grown;
                }
                if (header)
                        r->header[r->n_columns] = cell;
        }
        if (header && !r->config->header_given && is_all_numbers(r))
                return fail_line(r, "the first row has only numbers: set header: no if it is data, or "
                                    "header: yes if these are names");
        if (header) {
                r->line++;
        } else {
                r->at = first.at;
                r->line = first.line;
        }
        r->roles = mfl_calloc(r->n_columns, sizeof *r->roles);
        r->categories = mfl_calloc(r->n_columns, sizeof *r->categories);
        r->typed = mfl_calloc(r->n_columns, sizeof *r->typed);
        r->also = mfl_calloc(r->n_columns, sizeof *r->also);
        return r->roles && r->categories && r->typed && r->also
                       ? take_types(r)
                       : mfl_fail_memory(r->err, r->n_columns * sizeof *r->roles, r->path);
}

/* ---- rows ---- */

/* How spreadsheets and pandas write missing values. */
static bool is_missing(struct mfl_span cell)
{
        static const char *const words[] = {"", "na", "n/a", "nan", "null", "none", "?", "-"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(words); i++)
                if (strlen(words[i]) == cell.n && !strncasecmp(words[i], cell.s, cell.n))
                        return true;
        return false;
}

static int fail_cell(
        struct reader *r, uint32_t column, const char *what, struct mfl_span cell, const char *advice)
{
        int name = r->header ? (int)MFL_MIN(r->header[column].n, 40) : 0;
        return mfl_fail(r->err, MFL_INVALID, "%s:%u: column %u%s%.*s%s: %s, got '%.*s'%s", r->path, r->line,
                column, name ? " (" : "", name, name ? r->header[column].s : "", name ? ")" : "", what,
                (int)MFL_MIN(cell.n, 40), cell.s, advice);
}

static int fail_value(struct reader *r, uint32_t column, struct mfl_span cell)
{
        if (is_missing(cell))
                return fail_cell(r, column, "a value is missing", cell,
                        "; fill it in, remove the row, or ignore the column (ignore)");
        bool feature = r->roles[column] == ROLE_FEATURE;
        return fail_cell(r, column, "expected a finite decimal number", cell,
                feature ? "; ignore skips a column" : "");
}

static int fail_category(struct reader *r, uint32_t column, struct mfl_span cell)
{
        char values[200], what[260];
        mfl_categories_text(r->categories[column], values, sizeof values);
        mfl_snprintf(what, sizeof what, "expected one of %s", values);
        return fail_cell(
                r, column, what, cell, "; a category must be declared at every site, in the same order");
}

static int grow_rows(struct reader *r)
{
        struct mfl_csv *csv = &r->csv;
        size_t capacity = MFL_MAX(r->capacity * 2, 256);
        if (csv->n == INT32_MAX || (uint64_t)capacity * csv->n_features > INT64_MAX / 8)
                return mfl_fail(r->err, MFL_INVALID, "%s: more than %d rows", r->path, INT32_MAX);
        bool ok = true;
#define GROW(member, each)                                                                                   \
        do {                                                                                                 \
                void *grown = ok ? mfl_realloc(csv->member, capacity * (each) * sizeof *csv->member) : NULL; \
                if (grown)                                                                                   \
                        csv->member = grown;                                                                 \
                ok = grown != NULL;                                                                          \
        } while (0)
        GROW(features, MFL_MAX(csv->n_features, 1));
        if (csv->n_targets)
                GROW(targets, csv->n_targets);
        else
                GROW(labels, 1);
        if (r->config->owner)
                GROW(owners, 1);
        if (r->config->group)
                GROW(groups, 1);
        if (r->config->time)
                GROW(times, 1);
        if (r->config->text)
                GROW(texts, 1);
#undef GROW
        if (!ok)
                return mfl_fail_memory(r->err, capacity * csv->n_features * sizeof(float), r->path);
        r->capacity = capacity;
        return 0;
}

static int take_value(struct reader *r, uint32_t column, struct mfl_span cell, float *feature)
{
        struct mfl_csv *csv = &r->csv;
        int role = r->roles[column];
        if (role == ROLE_IGNORED)
                return 0;
        struct mfl_span *kept = role == ROLE_OWNER                      ? csv->owners
                                : role == ROLE_GROUP                    ? csv->groups
                                : role == ROLE_TIME                     ? csv->times
                                : role == ROLE_TEXT                     ? csv->texts
                                : role == ROLE_LABEL && !csv->n_targets ? csv->labels
                                                                        : NULL;
        if (kept) {
                kept[csv->n] = cell;
                return cell.n ? 0 : fail_cell(r, column, "empty", cell, "");
        }
        const struct mfl_categories *categories = r->categories[column];
        if (categories)
                return mfl_categories_encode(categories, cell, feature) ? 0 : fail_category(r, column, cell);
        float *to = role == ROLE_FEATURE
                            ? feature
                            : csv->targets + (size_t)csv->n * csv->n_targets + (role - ROLE_TARGET);
        if (!parse_number(cell, to))
                return fail_value(r, column, cell);
        if (r->also[column])
                csv->targets[(size_t)csv->n * csv->n_targets + (uint32_t)r->also[column] - 1] = *to;
        return 0;
}

static int fail_count(struct reader *r, const char *how)
{
        return mfl_fail(r->err, MFL_INVALID, "%s:%u: %s columns than the first row, which has %u", r->path,
                r->line, how, r->n_columns);
}

static int take_row(struct reader *r)
{
        float *feature;
        enum end end = END_CELL;
        uint32_t column = 0;
        int e = r->csv.n == r->capacity ? grow_rows(r) : 0;
        if (e)
                return e;
        feature = r->csv.features + (size_t)r->csv.n * r->csv.n_features;
        for (; end == END_CELL; column++) {
                struct mfl_span cell;
                e = take_cell(r, &cell, &end);
                if (e)
                        return e;
                if (column == r->n_columns)
                        return fail_count(r, "more");
                e = take_value(r, column, cell, feature);
                if (e)
                        return e;
                feature += r->roles[column] == ROLE_FEATURE ? mfl_categories_width(r->categories[column]) : 0;
        }
        if (column < r->n_columns)
                return fail_count(r, "fewer");
        r->csv.n++;
        r->line++;
        return 0;
}

void mfl_csv_deinit(struct mfl_csv *csv)
{
        free(csv->features);
        free(csv->targets);
        free(csv->labels);
        free(csv->owners);
        free(csv->groups);
        free(csv->times);
        free(csv->texts);
        free(csv->names);
        free(csv->categorical);
        free(csv->encoding);
        *csv = (struct mfl_csv){0};
}

int mfl_csv_parse(uint8_t *bytes, size_t n_bytes, const char *path, const struct mfl_dataset_config *config,
        struct mfl_csv *ret_csv, struct mfl_error *err)
{
        struct reader r = {.at = bytes,
                .end = bytes + n_bytes,
                .path = path,
                .separator = config->separator ? config->separator : ',',
                .line = 1,
                .err = err,
                .config = config};
        if (n_bytes >= 3 &&
                !memcmp(bytes, "\xef\xbb\xbf", 3)) /* a byte order mark, which spreadsheets write */
                r.at += 3;
        skip_blank_lines(&r);
        int e = r.at < r.end ? take_header(&r) : mfl_fail(err, MFL_INVALID, "%s: is empty", path);
        if (!e)
                e = assign_roles(&r);
        for (skip_blank_lines(&r); !e && r.at < r.end; skip_blank_lines(&r))
                e = take_row(&r);
        if (!e && !r.csv.n)
                e = mfl_fail(err, MFL_INVALID, "%s: has a header but no rows", path);
        free(r.header);
        free(r.roles);
        free(r.categories);
        free(r.also);
        mfl_categories_free(r.typed, (int)r.n_columns);
        if (e)
                mfl_csv_deinit(&r.csv);
        else
                *ret_csv = r.csv;
        return e;
}
