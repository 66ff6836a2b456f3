/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus' text format, version 0.0.4: families of samples, and histograms
 * (https://prometheus.io/docs/instrumenting/exposition_formats/).
 *
 * A family is opened once and its samples follow at once. That no family is opened twice and no series is
 * written twice is the caller's duty: its labels must tell its objects apart.
 */
#ifndef MFL_SERVER_EXPOSITION_H
#define MFL_SERVER_EXPOSITION_H

#include "server/text.h"

#define MFL_EXPOSITION_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum mfl_metric_type {
        MFL_METRIC_COUNTER,
        MFL_METRIC_GAUGE,
        MFL_METRIC_HISTOGRAM,
};

struct mfl_exposition {
        struct mfl_text *text;
        const char *family;
};

/* name and help are static: help has no line break and no backslash. */
void mfl_exposition_family(
        struct mfl_exposition *out, enum mfl_metric_type type, const char *name, const char *help);
/* A sample of the family. labels: pairs of name and value, then NULL; values are escaped here. Counts are
 * written whole, floats so that they read back as the same; NaN and infinities as the format wants them. */
void mfl_exposition_u64(struct mfl_exposition *out, uint64_t value, const char *const *labels);
void mfl_exposition_double(struct mfl_exposition *out, double value, const char *const *labels);
#define MFL_LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MFL_NO_LABELS ((const char *const[]){NULL})

/* ---- histograms ---- */
#define MFL_HISTOGRAM_BOUNDS_MAX 16

/* A zeroed one is empty. */
struct mfl_histogram {
        uint64_t count[MFL_HISTOGRAM_BOUNDS_MAX +
                       1]; /* by bucket, not summed up; the last is over all bounds */
        double sum;
};
/* Upper bounds, rising, of at most MFL_HISTOGRAM_BOUNDS_MAX buckets. */
struct mfl_bounds {
        uint32_t n;
        double v[MFL_HISTOGRAM_BOUNDS_MAX];
};
/* A value that is NaN counts as over all bounds and is left out of the sum. */
void mfl_histogram_add(struct mfl_histogram *histogram, const struct mfl_bounds *bounds, double value);
void mfl_exposition_histogram(struct mfl_exposition *out, const struct mfl_histogram *histogram,
        const struct mfl_bounds *bounds, const char *const *labels);

#endif
