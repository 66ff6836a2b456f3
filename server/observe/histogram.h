/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms: how many values fell into each of a few buckets, and their sum. */
#ifndef MFL_SERVER_OBSERVE_HISTOGRAM_H
#define MFL_SERVER_OBSERVE_HISTOGRAM_H

#include "common/base/base.h"

#define MFL_HISTOGRAM_BOUNDS_MAX 16

/* A zeroed one is empty. */
struct mfl_histogram {
        uint64_t count[MFL_HISTOGRAM_BOUNDS_MAX +
                       1]; /* by bucket, not cumulative; the last is above all bounds */
        double sum;
};
/* The buckets' upper bounds, ascending, at most MFL_HISTOGRAM_BOUNDS_MAX. */
struct mfl_bounds {
        uint32_t n;
        double v[MFL_HISTOGRAM_BOUNDS_MAX];
};
/* NaN counts as above all bounds and is left out of the sum. */
void mfl_histogram_add(struct mfl_histogram *histogram, const struct mfl_bounds *bounds, double value);

#endif
