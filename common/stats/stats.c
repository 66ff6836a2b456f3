/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a data set's training samples. */
#include "common/stats/stats.h"

#include <math.h>

#define FEATURES_MAX 3000 /* proto/inquiry.h has the same limits */
#define LABELS_MAX 1000

int mfl_stats_init(struct mfl_stats *stats, uint32_t n_features, uint32_t n_bins, uint32_t n_labels,
        struct mfl_error *err)
{
        struct mfl_stats s = {.n_features = n_features, .n_bins = n_bins, .n_labels = n_labels};
        bool ok = true;
        if (n_features)
                ok = (s.features = mfl_calloc(n_features, sizeof *s.features)) != NULL;
        if (ok && n_features && n_bins) {
                uint64_t *all = mfl_calloc((size_t)n_features * n_bins, sizeof *all);
                ok = all != NULL;
                for (uint32_t f = 0; f < n_features && ok; f++)
                        s.features[f].bins = all + (size_t)f * n_bins;
        }
        if (ok && n_labels)
                ok = (s.labels = mfl_calloc(n_labels, sizeof *s.labels)) != NULL;
        if (!ok) {
                mfl_stats_deinit(&s);
                return mfl_fail_memory(err, (size_t)n_features * sizeof *s.features, "statistics");
        }
        *stats = s;
        return 0;
}

void mfl_stats_deinit(struct mfl_stats *stats)
{
        if (stats->features)
                free(stats->features[0].bins);
        free(stats->features);
        free(stats->labels);
        *stats = (struct mfl_stats){0};
}

uint32_t mfl_stats_bin(double x, double low, double high, uint32_t n_bins)
{
        uint32_t parts = n_bins - 2;
        if (x < low)
                return 0;
        if (x > high)
                return n_bins - 1;
        double at = high > low ? floor((x - low) / (high - low) * parts) : 0;
        return 1 + (uint32_t)MFL_MIN(at, (double)(parts - 1));
}

/* ---- a data set ---- */

struct reading {
        const struct mfl_dataset *data;
        const struct mfl_stats_ask *ask;
        struct mfl_stats *stats;
        uint32_t n_inputs; /* features that are not targets */
};

/* Of images the channel is the first dimension; of other samples the column is the last. */
static uint32_t inputs_of(const struct mfl_dataset *d)
{
        if (d->vocabulary)
                return 0;
        return (uint32_t)(d->shape.rank == 3 ? d->shape.dim[0] : d->shape.dim[d->shape.rank - 1]);
}

static void add_value(struct reading *r, uint32_t f, float x, uint32_t times)
{
        struct mfl_stats_feature *feature = &r->stats->features[f];
        if (!isfinite(x))
                return;
        feature->count += times;
        if (r->stats->n_bins) {
                bool byte = r->stats->bytes && f < r->n_inputs;
                feature->bins[mfl_stats_bin(byte ? (double)x / 255 : (double)x, r->ask->edges[f],
                        r->ask->edges[r->stats->n_features + f], r->stats->n_bins)] += times;
                return;
        }
        mfl_wide_add(&feature->sum, &feature->squares, x, times);
        feature->least = feature->has_range ? MFL_MIN(feature->least, x) : x;
        feature->most = feature->has_range ? MFL_MAX(feature->most, x) : x;
        feature->has_range = true;
}

/* Bytes are counted first, so that each value is added once for many. */
static int add_bytes(struct reading *r, struct mfl_error *err)
{
        const struct mfl_dataset *d = r->data;
        size_t count = mfl_shape_count(&d->shape), n = r->n_inputs, run = d->shape.rank == 3 ? count / n : 1;
        MFL_CLEANUP_FREE uint64_t *seen = mfl_calloc(n * 256, sizeof *seen);
        if (!seen)
                return mfl_fail_memory(err, n * 256 * sizeof *seen, "statistics");
        const uint8_t *x = d->train.samples;
        for (size_t i = 0; i < d->train.n; i++)
                for (size_t e = 0; e < count; e++)
                        seen[e / run % n * 256 + *x++]++;
        for (size_t f = 0; f < n; f++)
                for (uint32_t b = 0; b < 256; b++)
                        for (uint64_t left = seen[f * 256 + b]; left;) {
                                uint32_t now = (uint32_t)MFL_MIN(left, (uint64_t)1 << 16);
                                add_value(r, (uint32_t)f, (float)b, now);
                                left -= now;
                        }
        return 0;
}

static void add_floats(struct reading *r)
{
        const struct mfl_dataset *d = r->data;
        size_t count = mfl_shape_count(&d->shape), n = r->n_inputs, run = d->shape.rank == 3 ? count / n : 1;
        const float *x = d->train.samples;
        for (size_t i = 0; i < d->train.n; i++)
                for (size_t e = 0; e < count; e++)
                        add_value(r, (uint32_t)(e / run % n), *x++, 1);
}

static void add_answers(struct reading *r)
{
        const struct mfl_dataset *d = r->data;
        for (size_t i = 0; i < d->train.n; i++) {
                for (size_t t = 0; t < (size_t)d->n_targets; t++)
                        add_value(r, r->n_inputs + (uint32_t)t,
                                d->train.targets[i * (size_t)d->n_targets + t], 1);
                if (r->stats->n_labels && d->train.labels[i] >= 0)
                        r->stats->labels[d->train.labels[i]]++;
        }
}

static void name_features(struct reading *r)
{
        const struct mfl_dataset *d = r->data;
        for (uint32_t f = 0; f < r->stats->n_features; f++) {
                char *name = r->stats->features[f].name;
                if (f >= r->n_inputs)
                        mfl_snprintf(name, MFL_NAME_BYTES, "target %u", f - r->n_inputs);
                else if (d->shape.rank != 3 && d->feature_names && d->share_names)
                        mfl_strcpy(name, MFL_NAME_BYTES, d->feature_names[f]);
        }
}

/* ---- what a site keeps to itself ---- */

static void hide(uint64_t *v, uint32_t n, uint32_t least, uint32_t *hidden)
{
        uint64_t sum = 0;
        uint32_t count = 0;
        for (uint32_t i = 0; i < n; i++)
                if (v[i] && v[i] < least) {
                        sum += v[i];
                        v[i] = 0;
                        count++;
                }
        while (count && sum < least) {
                uint32_t smallest = n;
                for (uint32_t i = 0; i < n; i++)
                        if (v[i] && (smallest == n || v[i] < v[smallest]))
                                smallest = i;
                if (smallest == n)
                        break;
                sum += v[smallest];
                v[smallest] = 0;
                count++;
        }
        *hidden += count;
}

static void keep_small(struct mfl_stats *s, const struct mfl_stats_ask *ask)
{
        for (uint32_t f = 0; f < s->n_features; f++) {
                if (s->n_bins)
                        hide(s->features[f].bins, s->n_bins, ask->least, &s->hidden);
                if (ask->keeps_range) {
                        s->features[f].has_range = false;
                        s->features[f].least = s->features[f].most = 0;
                }
        }
        hide(s->labels, s->n_labels, ask->least, &s->hidden);
}

static int check(
        const struct mfl_dataset *d, const struct mfl_stats_ask *ask, uint32_t n, struct mfl_error *err)
{
        if (d->train.n < ask->least)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has fewer training samples than this site tells of (min_samples %u)",
                        d->name, ask->least);
        if (d->column_mean)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has no raw values here: its columns are normalised as they are read; "
                        "write normalise: none",
                        d->name);
        if (n > FEATURES_MAX)
                return mfl_fail(err, MFL_INVALID, "data set %s has %u features; statistics are of at most %d",
                        d->name, n, FEATURES_MAX);
        if (ask->bins && ask->n_edges != 2 * n)
                return mfl_fail(err, MFL_INVALID, "ranges of %u features, but data set %s has %u",
                        ask->n_edges / 2, d->name, n);
        return 0;
}

int mfl_stats_measure(const struct mfl_dataset *dataset, const struct mfl_stats_ask *ask,
        struct mfl_stats *ret_stats, struct mfl_error *err)
{
        const struct mfl_dataset *d = dataset;
        struct mfl_stats stats = {0};
        uint32_t n_inputs = inputs_of(d), n = n_inputs + (uint32_t)d->n_targets;
        bool labels = !d->n_targets && mfl_dataset_labels_per_sample(d) == 1 && d->classes <= LABELS_MAX;
        int r = check(d, ask, n, err);
        if (!r)
                r = mfl_stats_init(&stats, n, ask->bins && n ? ask->bins + 2 : 0,
                        labels ? (uint32_t)d->classes : 0, err);
        if (r)
                return r;
        struct reading reading = {d, ask, &stats, n_inputs};
        stats.samples = d->train.n;
        stats.bytes = n_inputs && d->train.dtype == MFL_U8;
        if (stats.bytes)
                r = add_bytes(&reading, err);
        else if (n_inputs)
                add_floats(&reading);
        if (r) {
                mfl_stats_deinit(&stats);
                return r;
        }
        add_answers(&reading);
        name_features(&reading);
        keep_small(&stats, ask);
        *ret_stats = stats;
        return 0;
}

/* ---- sites together ---- */

static void join_feature(
        struct mfl_stats_feature *to, const struct mfl_stats_feature *from, uint32_t n_bins, bool first)
{
        if (first)
                mfl_strcpy(to->name, sizeof to->name, from->name);
        else if (strcmp(to->name, from->name))
                to->name[0] = '\0';
        to->has_range = (first || to->has_range || !to->count) && (from->has_range || !from->count);
        if (from->has_range) {
                to->least = to->count ? MFL_MIN(to->least, from->least) : from->least;
                to->most = to->count ? MFL_MAX(to->most, from->most) : from->most;
        }
        to->count += from->count;
        mfl_wide_join(&to->sum, &from->sum, MFL_WIDE_SUM);
        mfl_wide_join(&to->squares, &from->squares, MFL_WIDE_SQUARES);
        for (uint32_t b = 0; b < n_bins; b++)
                to->bins[b] += from->bins[b];
}

int mfl_stats_add(struct mfl_stats *total, const struct mfl_stats *part, struct mfl_error *err)
{
        bool first = !total->samples;
        int r = 0;
        if (first) {
                mfl_stats_deinit(total);
                r = mfl_stats_init(total, part->n_features, part->n_bins, part->n_labels, err);
                total->bytes = part->bytes;
        }
        if (r)
                return r;
        if (total->n_features != part->n_features || total->n_bins != part->n_bins ||
                total->n_labels != part->n_labels)
                return mfl_fail(err, MFL_INVALID,
                        "it has %u features and %u classes, and another site has %u and %u", part->n_features,
                        part->n_labels, total->n_features, total->n_labels);
        if (total->bytes != part->bytes)
                return mfl_fail(err, MFL_INVALID, "its values are %s, and another site's are %s",
                        part->bytes ? "bytes" : "floats", total->bytes ? "bytes" : "floats");
        for (uint32_t f = 0; f < part->n_features; f++)
                join_feature(&total->features[f], &part->features[f], part->n_bins, first);
        for (uint32_t c = 0; c < part->n_labels; c++)
                total->labels[c] += part->labels[c];
        total->samples += part->samples;
        total->hidden += part->hidden;
        return 0;
}

/* Targets are floats beside bytes, too. */
double mfl_stats_unit(const struct mfl_stats *stats, const struct mfl_stats_feature *feature)
{
        return stats->bytes && strncmp(feature->name, "target ", 7) != 0 ? 1.0 / 255 : 1;
}

void mfl_stats_moments(const struct mfl_stats *stats, const struct mfl_stats_feature *feature,
        double *ret_mean, double *ret_std)
{
        double n = (double)feature->count, unit = mfl_stats_unit(stats, feature);
        mfl_assert(feature->count);
        *ret_mean = mfl_wide_sum(&feature->sum) / n * unit;
        *ret_std = sqrt(mfl_wide_spread(&feature->sum, &feature->squares, feature->count)) / n * unit;
}
