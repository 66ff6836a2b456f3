/* SPDX-License-Identifier: Apache-2.0 */
/* CSV files as a data set: numeric labels are classes; other labels are class names, which are numbered in byte
 * order. */
#include "common/data/sources.h"

#include <math.h>

struct tables {
        const struct mfl_dataset_config *config;
        struct mfl_dataset *dataset;
        int n; /* 1 or 2 */
        char *path[2];
        struct mfl_data_bytes bytes[2];
        struct mfl_csv csv[2];
};

#define NUMBERS_MAX 65536 /* larger ones are names, such as codes of articles */
static bool label_number(struct mfl_span s, int32_t *ret_label)
{
        int32_t v = 0;
        if (!s.n || s.n > 5 || (s.n > 1 && *s.s == '0'))
                return false;
        for (size_t i = 0; i < s.n; i++) {
                if (s.s[i] < '0' || s.s[i] > '9')
                        return false;
                v = v * 10 + (s.s[i] - '0');
        }
        *ret_label = v;
        return v < NUMBERS_MAX;
}

static bool all_numbers(const struct tables *t)
{
        int32_t label;
        for (int s = 0; s < t->n; s++)
                for (uint32_t i = 0; i < t->csv[s].n; i++)
                        if (!label_number(t->csv[s].labels[i], &label))
                                return false;
        return true;
}

/* "0.53" is a quantity; "1.0" is a class that was written as a float. */
static bool is_fraction(struct mfl_span s)
{
        char text[32], *end;
        if (!s.n || s.n >= sizeof text || !memchr(s.s, '.', s.n))
                return false;
        memcpy(text, s.s, s.n);
        text[s.n] = '\0';
        double v = strtod(text, &end);
        return end != text && !*end && v != floor(v);
}

/* Refuses quantities: as class names they would make almost every row a class of its own. */
static int check_labels(const struct mfl_csv *csv, const char *path, struct mfl_error *err)
{
        for (uint32_t i = 0; i < csv->n; i++)
                if (is_fraction(csv->labels[i]))
                        return mfl_fail(err, MFL_INVALID,
                                "%s: label '%.*s' of row %u is not a class: set label to the column with the "
                                "classes, or targets=[...] to the columns with numbers to predict",
                                path, (int)csv->labels[i].n, csv->labels[i].s, i);
        return 0;
}

static int settle_labels(struct tables *t, struct mfl_split *const *splits, struct mfl_error *err)
{
        struct mfl_dataset *d = t->dataset;
        uint32_t n_names = 0;
        bool numbers = all_numbers(t);
        int r = numbers ? 0 : check_labels(&t->csv[0], t->path[0], err);
        if (!r && !numbers)
                r = mfl_names_new(t->csv[0].labels, t->csv[0].n, &d->class_names, &n_names, err);
        if (r)
                return r;
        if (n_names > MFL_CLASSES_MAX)
                return mfl_fail(err, MFL_INVALID, "%s: %u different labels; the limit is %d", t->path[0],
                        n_names, MFL_CLASSES_MAX);
        d->classes = (int)n_names;
        for (int s = 0; s < t->n; s++) {
                const struct mfl_csv *csv = &t->csv[s];
                int32_t *labels = splits[s]->labels = mfl_calloc(csv->n, sizeof *labels);
                if (!labels)
                        return mfl_fail_memory(err, csv->n * sizeof *labels, t->path[s]);
                for (uint32_t i = 0; i < csv->n; i++) {
                        if (numbers) {
                                label_number(csv->labels[i], &labels[i]);
                                continue;
                        }
                        uint32_t c = mfl_names_find(d->class_names, n_names, csv->labels[i]);
                        if (c == UINT32_MAX)
                                return mfl_fail(err, MFL_INVALID,
                                        "%s: label '%.*s' of row %u does not occur in %s", t->path[s],
                                        (int)MFL_MIN(csv->labels[i].n, 40), csv->labels[i].s, i, t->path[0]);
                        labels[i] = (int32_t)c;
                }
        }
        return 0;
}

static int settle_owners(struct tables *t, struct mfl_split *const *splits, struct mfl_error *err)
{
        struct mfl_dataset *d = t->dataset;
        size_t n = t->csv[0].n + (size_t)t->csv[1].n;
        MFL_CLEANUP_FREE struct mfl_span *all = mfl_calloc(n, sizeof *all);
        if (!all)
                return mfl_fail_memory(err, n * sizeof *all, "owners");
        memcpy(all, t->csv[0].owners, t->csv[0].n * sizeof *all);
        if (t->n == 2)
                memcpy(all + t->csv[0].n, t->csv[1].owners, t->csv[1].n * sizeof *all);
        int r = mfl_names_new(all, n, &d->owner_names, &d->n_owners, err);
        for (int s = 0; !r && s < t->n; s++) {
                uint32_t *owner = splits[s]->owner = mfl_calloc(t->csv[s].n, sizeof *owner);
                if (!owner)
                        return mfl_fail_memory(err, t->csv[s].n * sizeof *owner, "owners");
                for (uint32_t i = 0; i < t->csv[s].n; i++)
                        owner[i] = mfl_names_find(d->owner_names, d->n_owners, t->csv[s].owners[i]);
        }
        return r;
}

static int settle_shape(struct tables *t, struct mfl_error *err)
{
        const struct mfl_shape *wanted = &t->config->shape;
        int64_t n = t->csv[0].n_features, window = t->config->window;
        if (t->config->text)
                return 0; /* load_words.c knows it */
        if (t->n == 2 && t->csv[1].n_features != n)
                return mfl_fail(err, MFL_INVALID, "%s: %u features, but %s has %u", t->path[1],
                        t->csv[1].n_features, t->path[0], t->csv[0].n_features);
        if (window) {
                t->dataset->shape = (struct mfl_shape){2, {window, n}};
                return mfl_sample_shape_check(&t->dataset->shape, t->path[0], err);
        }
        t->dataset->shape = wanted->rank ? *wanted : (struct mfl_shape){.rank = 1, .dim = {n}};
        int r = mfl_sample_shape_check(&t->dataset->shape, "shape", err);
        if (!r && mfl_shape_count(&t->dataset->shape) != n)
                r = mfl_fail(err, MFL_INVALID,
                        "%s: %lld features, but the configured shape has %lld elements", t->path[0],
                        (long long)n, (long long)mfl_shape_count(wanted));
        return r;
}

/* Names and categories of the training file; those of the test file must be the same categories. */
static int settle_columns(struct tables *t, struct mfl_error *err)
{
        struct mfl_csv *csv = &t->csv[0];
        const char *have = csv->encoding ? csv->encoding : "",
                   *test = t->csv[1].encoding ? t->csv[1].encoding : "";
        if (t->n == 2 && strcmp(have, test))
                return mfl_fail(err, MFL_INVALID, "%s: declares different categories than %s", t->path[1],
                        t->path[0]);
        if (t->dataset->shape.rank != 1 && !t->config->window)
                return csv->encoding
                               ? mfl_fail(err, MFL_INVALID,
                                         "%s: has columns with categories, which do not fit samples of shape "
                                         "%s",
                                         t->path[0], mfl_shape_text(&t->dataset->shape, (char[96]){0}, 96))
                               : 0;
        t->dataset->feature_names = csv->names;
        t->dataset->categorical = csv->categorical;
        t->dataset->encoding = csv->encoding;
        csv->names = NULL;
        csv->categorical = NULL;
        csv->encoding = NULL;
        return 0;
}

/* Without test files, the test split comes from the training rows. */
static int settle_test(struct tables *t, const struct mfl_csv *const tables[2], struct mfl_error *err)
{
        struct mfl_dictionary dictionary = {0};
        int r = 0;
        if (t->config->window)
                return mfl_series_windows(t->config, tables, t->dataset, err);
        if (t->config->text)
                r = mfl_words_take(t->config, tables, t->dataset, &dictionary, err);
        if (!r && t->n == 1)
                r = mfl_split_off_test(t->config, t->dataset, err);
        if (!r && t->config->text && t->config->unit != MFL_TEXT_BYTES)
                r = mfl_words_vocabulary(t->config, &dictionary, t->dataset, err);
        free(dictionary.words);
        return r;
}

static int settle(struct tables *t, struct mfl_error *err)
{
        struct mfl_split *splits[] = {&t->dataset->train, &t->dataset->test};
        const struct mfl_csv *const tables[] = {&t->csv[0], t->n == 2 ? &t->csv[1] : NULL};
        int r = settle_shape(t, err);
        for (int s = 0; !r && s < t->n; s++) {
                splits[s]->n = t->csv[s].n;
                splits[s]->dtype = MFL_F32;
                splits[s]->samples = t->config->text ? NULL : t->csv[s].features;
                splits[s]->targets = t->csv[s].targets;
                t->csv[s].features = t->config->text ? t->csv[s].features : NULL;
                t->csv[s].targets = NULL;
        }
        t->dataset->n_targets = (int)t->csv[0].n_targets;
        if (!r && !t->config->text)
                r = settle_columns(t, err);
        if (!r && t->config->unlabelled) {
                splits[0]->labels = mfl_calloc(t->csv[0].n, sizeof *splits[0]->labels);
                r = splits[0]->labels ? 0 : mfl_fail_memory(err, t->csv[0].n * sizeof(int32_t), t->path[0]);
        } else if (!r && !t->csv[0].n_targets) {
                r = settle_labels(t, splits, err);
        }
        if (!r && t->csv[0].owners)
                r = settle_owners(t, splits, err);
        return r ? r : settle_test(t, tables, err);
}

int mfl_load_csv(const struct mfl_dataset_config *config, struct mfl_dataset *dataset, struct mfl_error *err)
{
        struct tables t = {.config = config, .dataset = dataset};
        int r = mfl_data_find(config, ".csv", &t.path[0], &t.path[1], err);
        t.n = t.path[1] ? 2 : 1;
        for (int s = 0; !r && s < t.n; s++) {
                r = mfl_data_read_file(t.path[s], &t.bytes[s], err);
                if (!r)
                        r = mfl_csv_parse(t.bytes[s].data, t.bytes[s].n, t.path[s], config, &t.csv[s], err);
        }
        if (!r)
                r = settle(&t, err);
        for (int s = 0; s < 2; s++) {
                mfl_csv_deinit(&t.csv[s]);
                free(t.bytes[s].data);
                free(t.path[s]);
        }
        return r;
}
