/* SPDX-License-Identifier: Apache-2.0 */
/* Quantiles by repeated histograms. */
#include "cli/sites/quantile.h"

#include <math.h>

#define STEPS_MAX 8u
#define NARROW 1e-6 /* of the first range */

const double mfl_quantile_shares[MFL_QUANTILES] = {0.25, 0.5, 0.75};
const char *const mfl_quantile_names[MFL_QUANTILES] = {"0.25", "0.5", "0.75"};

void mfl_quantile_begin(struct mfl_quantile *q, double share, uint64_t n, double low, double high)
{
        double rank = ceil(share * (double)n);
        *q = (struct mfl_quantile){.n = n, .low = low, .high = high, .width = high - low, .known = n > 0};
        q->rank = MFL_MAX((uint64_t)rank, (uint64_t)1);
        q->done = !n || !(high > low);
}

/* The part that the rank lies in wherever the hidden values are; 0: there is none. */
static uint32_t find_part(const struct mfl_quantile *q, const uint64_t *bins, uint32_t n_parts)
{
        uint64_t sum = 0, below = bins[0];
        uint32_t b = 1;
        for (uint32_t i = 0; i < n_parts + 2; i++)
                sum += bins[i];
        if (sum > q->n || q->rank <= below)
                return 0;
        while (b <= n_parts && q->rank > below + bins[b])
                below += bins[b++];
        return b <= n_parts && below + (q->n - sum) < q->rank ? b : 0;
}

void mfl_quantile_step(struct mfl_quantile *q, const uint64_t *bins, uint32_t n_bins)
{
        uint32_t parts = n_bins - 2;
        if (q->done)
                return;
        uint32_t b = find_part(q, bins, parts);
        q->done = !b;
        /* A first range that missed it, or that hides where it is, says nothing. */
        q->known &= !q->done || q->steps > 0;
        if (q->done)
                return;
        double width = (q->high - q->low) / parts, low = q->low + width * (b - 1),
               high = b == parts ? q->high : low + width;
        q->done = ++q->steps >= STEPS_MAX || high - low <= NARROW * q->width ||
                  !(low > q->low || high < q->high);
        q->low = low;
        q->high = high;
}
