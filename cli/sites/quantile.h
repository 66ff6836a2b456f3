/* SPDX-License-Identifier: Apache-2.0 */
/* A quantile by repeated histograms: the part of the range that it lies in becomes the next range. Pure.
 *
 * The quantile of share p of n values is the smallest value with at least p * n values up to it. */
#ifndef MFL_CLI_SITES_QUANTILE_H
#define MFL_CLI_SITES_QUANTILE_H

#include "common/base/base.h"

#define MFL_QUANTILES 3
extern const double mfl_quantile_shares[MFL_QUANTILES]; /* 0.25, 0.5, 0.75 */
extern const char *const mfl_quantile_names[MFL_QUANTILES];

struct mfl_quantile {
        uint64_t rank, n; /* it is the rank-th smallest of n, from 1 */
        double low, high; /* it lies between them */
        double width;     /* of the first range */
        uint32_t steps;
        bool done, known; /* done: further histograms tell nothing; known: low and high mean something */
};

void mfl_quantile_begin(struct mfl_quantile *q, double share, uint64_t n, double low, double high);
/* bins: n_bins counts over [low, high], with what is below it first and above it last. Counts that sites keep to themselves are missing: where
 * they leave it open which part it is, the range stays as it is, and the quantile is done. */
void mfl_quantile_step(struct mfl_quantile *q, const uint64_t *bins, uint32_t n_bins);

#endif
