/* SPDX-License-Identifier: Apache-2.0 */
/* Federated statistics: what a data set's training samples add up to, as exact integers, so that the total over sites is the
 * same however they are grouped and in whatever order they answer.
 *
 * A feature is a column of a table or time series, or a channel of images; targets follow as features of their own. Values are raw:
 * floats as they were read, bytes as b / 255. Tokens have no features. The mean is sum / n, the variance is that of all values
 * (divided by n), as `normalise: auto` has it.
 *
 * What a site keeps to itself: labels and bins with fewer than `least` samples are 0, and counted in `hidden`. Where those hidden beside
 * each other are fewer than `least` together, the smallest of the others is hidden too: otherwise the total would give them away. */
#ifndef MFL_COMMON_STATS_STATS_H
#define MFL_COMMON_STATS_STATS_H

#include "common/data/dataset.h"
#include "common/stats/wide.h"

struct mfl_stats_feature {
        char name[MFL_NAME_BYTES]; /* "": not shared */
        uint64_t count;            /* finite values */
        struct mfl_wide sum, squares;
        bool has_range;
        float least, most;
        uint64_t *bins; /* n_bins: below the range, its parts, above it */
};
struct mfl_stats {
        uint64_t samples;
        bool bytes;
        uint32_t n_features, n_bins; /* n_bins: the parts and two; 0: no histograms */
        struct mfl_stats_feature *features;
        uint32_t n_labels;
        uint64_t *labels;
        uint32_t hidden;
};

struct mfl_stats_ask {
        uint32_t bins;       /* equal parts of each feature's range; 0: sums instead of histograms */
        const double *edges; /* all lows, then all highs */
        uint32_t n_edges;
        uint32_t least;   /* samples of a count that is told; 0: 1 */
        bool keeps_range; /* least and most are not told: each is one sample's value */
};
/* Blocks for a pass over the samples. MFL_INVALID: the data set has no raw values, too many features, fewer samples than ask->least, or edges for
 * other features. */
int mfl_stats_measure(const struct mfl_dataset *dataset, const struct mfl_stats_ask *ask,
        struct mfl_stats *ret_stats, struct mfl_error *err);
/* total += part; a zeroed total becomes a copy. MFL_INVALID: they have not the same features; total is as before. */
int mfl_stats_add(struct mfl_stats *total, const struct mfl_stats *part, struct mfl_error *err);
/* An empty one with room for everything. */
int mfl_stats_init(struct mfl_stats *stats, uint32_t n_features, uint32_t n_bins, uint32_t n_labels,
        struct mfl_error *err);
void mfl_stats_deinit(struct mfl_stats *stats); /* a zeroed one is fine */

/* What a value of the sums is multiplied by to be raw: 1/255 for bytes. */
double mfl_stats_unit(const struct mfl_stats *stats, const struct mfl_stats_feature *feature);
/* Of a feature of stats, in the units that the model sees before any scaling. count > 0. */
void mfl_stats_moments(const struct mfl_stats *stats, const struct mfl_stats_feature *feature,
        double *ret_mean, double *ret_std);

/* Which part of [low, high] a value is in: 0 below it, n_bins - 1 above it. */
uint32_t mfl_stats_bin(double x, double low, double high, uint32_t n_bins);

#endif
