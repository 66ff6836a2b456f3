/* SPDX-License-Identifier: Apache-2.0 */
/* Compares samples with a contract, and gives values, labels and tokens the model's numbers. */
#include "cli/predict/samples.h"

/* Arrays of (n, positions, features) are read as images of one channel: the numbers lie in the same order. */
static bool is_series(const struct mfl_shape *image, const struct mfl_shape *series)
{
        return image->rank == 3 && image->dim[0] == 1 && series->rank == 2 &&
               image->dim[1] == series->dim[0] && image->dim[2] == series->dim[1];
}

static int fit_shape(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        char have[96], want[96];
        bool same = mfl_shape_equal(&d->shape, &c->shape),
             flat = mfl_shape_count(&d->shape) == mfl_shape_count(&c->shape) &&
                    (d->shape.rank == 1 || c->shape.rank == 1);
        if (!same && !flat && !is_series(&d->shape, &c->shape))
                return mfl_fail(err, MFL_INVALID, "%.200s: its samples are %s, the model's are %s", path,
                        mfl_shape_text(&d->shape, have, sizeof have),
                        mfl_shape_text(&c->shape, want, sizeof want));
        if (!d->vocabulary != !c->vocabulary)
                return mfl_fail(err, MFL_INVALID, "%.200s: its samples are %s, the model's are %s", path,
                        d->vocabulary ? "tokens" : "numbers", c->vocabulary ? "tokens" : "numbers");
        d->shape = c->shape;
        return 0;
}

/* A table with other columns, or with these in another order, is read without complaint and gives wrong answers. */
static int fit_columns(
        const char *path, const struct mfl_contract *c, const struct mfl_dataset *d, struct mfl_error *err)
{
        const int64_t n = d->shape.dim[d->shape.rank - 1];
        if (!d->feature_names || !c->feature_names || n != c->shape.dim[c->shape.rank - 1])
                return 0;
        for (int64_t i = 0; i < n; i++)
                if (strcmp(d->feature_names[i], c->feature_names[i]) != 0)
                        return mfl_fail(err, MFL_INVALID,
                                "%.200s: column %lld is '%.60s', the model's is '%.60s'; give the columns of "
                                "`mfl model "
                                "show`, in that order",
                                path, (long long)i, d->feature_names[i], c->feature_names[i]);
        return 0;
}

/* Pixels or numbers as floats that are scaled. */
static int scale_values(const char *path, struct mfl_dataset *d, struct mfl_error *err)
{
        struct mfl_split *s = &d->train;
        size_t planes = d->shape.rank == 3 ? (size_t)d->shape.dim[0] : 1,
               count = (size_t)mfl_shape_count(&d->shape);
        float *to = mfl_alloc_aligned(s->n * count * sizeof *to + 1);
        if (!to)
                return mfl_fail_memory(err, s->n * count * sizeof *to, path);
        for (size_t i = 0; i < s->n * count; i++) {
                size_t c = MFL_MIN(i % count / (count / planes), (size_t)MFL_CHANNELS_MAX - 1);
                float v = s->dtype == MFL_U8 ? (float)((uint8_t *)s->samples)[i] : ((float *)s->samples)[i];
                to[i] = v * d->scale[c] + d->shift[c];
        }
        free(s->samples);
        s->samples = to;
        s->dtype = MFL_F32;
        for (int c = 0; c < MFL_CHANNELS_MAX; c++) {
                d->scale[c] = 1.0f;
                d->shift[c] = 0.0f;
        }
        return 0;
}

static int fit_values(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        static const char *const kinds[] = {
                [MFL_U8] = "bytes (0 to 255)", [MFL_F32] = "floats", [MFL_I32] = "tokens"};
        if (c->vocabulary)
                return 0;
        if (c->normalised)
                return scale_values(path, d, err);
        if (d->measured)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: normalise is given, but the model knows how its input is scaled; remove it",
                        path);
        if (d->train.dtype != c->dtype)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: its values are %s, the model's are %s; give them as the sites do", path,
                        kinds[d->train.dtype], kinds[c->dtype]);
        memcpy(d->scale, c->scale, sizeof d->scale);
        memcpy(d->shift, c->shift, sizeof d->shift);
        return 0;
}

static int class_of(const char *path, const struct mfl_contract *c, const char *name, int32_t *ret_class,
        struct mfl_error *err)
{
        for (int k = 0; k < c->classes; k++)
                if (!strcmp(c->class_names[k], name)) {
                        *ret_class = k;
                        return 0;
                }
        return mfl_fail(err, MFL_INVALID,
                "%.200s: class '%.60s' is none of the model's; `mfl model show` lists them", path, name);
}

static int map_names(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        size_t n = d->train.n * (size_t)mfl_dataset_labels_per_sample(d);
        MFL_CLEANUP_FREE int32_t *to = mfl_calloc((size_t)d->classes, sizeof *to);
        if (!to)
                return mfl_fail_memory(err, (size_t)d->classes * sizeof *to, path);
        for (int k = 0; k < d->classes; k++) {
                int r = class_of(path, c, d->class_names[k], &to[k], err);
                if (r)
                        return r;
        }
        for (size_t i = 0; i < n; i++)
                if (d->train.labels[i] >= 0)
                        d->train.labels[i] = to[d->train.labels[i]];
        return 0;
}

static int fit_labels(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        if (d->n_targets != c->n_targets)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: it has %d target values per sample (0: class labels), the model gives %d",
                        path, d->n_targets, c->n_targets);
        if (d->n_targets)
                return 0;
        if ((int)mfl_dataset_labels_per_sample(d) != MFL_MAX(1, c->labels_per_sample))
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: it has %u labels per sample, the model gives %d answers", path,
                        mfl_dataset_labels_per_sample(d), c->labels_per_sample);
        if (d->class_names && c->class_names) {
                int r = map_names(path, c, d, err);
                if (r)
                        return r;
        } else if (d->class_names && d->classes != c->classes) {
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: it has %d named classes, the model has %d and does not know their names: "
                        "write labels as numbers "
                        "from 0 to %d, or let the site set `names: share`",
                        path, d->classes, c->classes, c->classes - 1);
        } else if (d->classes > c->classes) {
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: it has labels up to %d, but the model's classes are 0 to %d", path,
                        d->classes - 1, c->classes - 1);
        }
        d->classes = c->classes;
        return 0;
}

/* Characters by their code points: the file has its own numbers. */
static int fit_symbols(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        size_t n = d->train.n * (size_t)mfl_shape_count(&d->shape);
        int32_t *tokens = d->train.samples;
        MFL_CLEANUP_FREE int32_t *to = mfl_calloc((size_t)d->vocabulary, sizeof *to);
        if (!c->symbols)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: the model does not know the characters of its tokens; let the site set "
                        "`names: share`, or give "
                        "tokens as an array",
                        path);
        if (!to)
                return mfl_fail_memory(err, (size_t)d->vocabulary * sizeof *to, path);
        for (int v = 0; v < d->vocabulary; v++) {
                int k = 0;
                while (k < c->vocabulary && c->symbols[k] != d->symbols[v])
                        k++;
                if (k == c->vocabulary)
                        return mfl_fail(err, MFL_INVALID, "%.200s: character U+%04X is none of the model's",
                                path, (unsigned)d->symbols[v]);
                to[v] = k;
        }
        for (size_t i = 0; i < n; i++)
                tokens[i] = to[tokens[i]];
        for (size_t i = 0; i < n && mfl_dataset_labels_per_sample(d) > 1; i++)
                if (d->train.labels[i] >= 0)
                        d->train.labels[i] = to[d->train.labels[i]];
        d->vocabulary = d->classes = c->vocabulary;
        return 0;
}

static int fit_tokens(
        const char *path, const struct mfl_contract *c, struct mfl_dataset *d, struct mfl_error *err)
{
        if (!c->vocabulary)
                return 0;
        if (d->symbols)
                return fit_symbols(path, c, d, err);
        if (d->vocabulary > c->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "%.200s: it has tokens up to %d, but the model's are 0 to %d", path,
                        d->vocabulary - 1, c->vocabulary - 1);
        d->vocabulary = c->vocabulary;
        return 0;
}

int mfl_samples_fit(const char *path, const struct mfl_contract *contract, bool labelled,
        struct mfl_dataset *dataset, struct mfl_error *err)
{
        int r = fit_columns(path, contract, dataset, err);
        if (!r)
                r = fit_shape(path, contract, dataset, err);
        if (!r)
                r = fit_values(path, contract, dataset, err);
        if (!r)
                r = fit_tokens(path, contract, dataset, err);
        return r || !labelled ? r : fit_labels(path, contract, dataset, err);
}
