/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms. */
#include "server/observe/histogram.h"

#include <math.h>

void mfl_histogram_add(struct mfl_histogram *histogram, const struct mfl_bounds *bounds, double value)
{
        uint32_t i = 0;
        mfl_assert(bounds->n <= MFL_HISTOGRAM_BOUNDS_MAX);
        while (i < bounds->n && !(value <= bounds->v[i]))
                i++;
        histogram->count[i]++;
        if (!isnan(value))
                histogram->sum += value;
}
