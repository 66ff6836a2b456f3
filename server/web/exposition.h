/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus' text format, version 0.0.4: families of samples, and histograms
 * (https://prometheus.io/docs/instrumenting/exposition_formats/).
 *
 * A family is opened once, and its samples follow directly. The caller must not open a family twice or write
 * a series twice: labels must tell objects apart.
 */
#ifndef MFL_SERVER_WEB_EXPOSITION_H
#define MFL_SERVER_WEB_EXPOSITION_H

#include "server/observe/histogram.h"
#include "server/web/text.h"

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

/* name and help are static; help has no line break and no backslash. */
void mfl_exposition_family(
        struct mfl_exposition *out, enum mfl_metric_type type, const char *name, const char *help);
/* A sample of the family. labels: pairs of name and value, then NULL; values are escaped here. Floats are
 * written so that they read back unchanged; NaN and infinities as the format demands. */
void mfl_exposition_u64(struct mfl_exposition *out, uint64_t value, const char *const *labels);
void mfl_exposition_double(struct mfl_exposition *out, double value, const char *const *labels);
#define MFL_LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MFL_NO_LABELS ((const char *const[]){NULL})

void mfl_exposition_histogram(struct mfl_exposition *out, const struct mfl_histogram *histogram,
        const struct mfl_bounds *bounds, const char *const *labels);

#endif
