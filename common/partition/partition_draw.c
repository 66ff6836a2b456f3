/* SPDX-License-Identifier: Apache-2.0 */
/* What the partitioners share: samples sorted by label, and random numbers that are exact to the bit.
 *
 * Every daemon must draw the same partition, but log, exp and pow of two C libraries may differ in the last bit.
 * Nothing here calls them: common/exact/exact.h has its own.
 */
#include "common/partition/partition_draw.h"

#include "common/exact/exact.h"

#include <math.h>

/* Standard normal by Marsaglia's polar method; the second number of the pair is not kept. */
double mfl_draw_normal(struct mfl_rng *rng)
{
        for (;;) {
                double u = 2 * mfl_rng_unit(rng) - 1, v = 2 * mfl_rng_unit(rng) - 1, q = u * u + v * v;
                if (q > 0x1p-1000 && q < 1)
                        return u * sqrt(-2 * mfl_exact_log(q) / q);
        }
}

/* The logarithm of a Gamma(alpha) number: Marsaglia and Tsang, "A simple method for generating gamma
 * variables" (2000). For alpha < 1 it is Gamma(alpha + 1) * U^(1/alpha), which underflows for a small alpha;
 * its logarithm does not. */
double mfl_draw_log_gamma(struct mfl_rng *rng, double alpha)
{
        double boost = 0;
        if (alpha < 1) {
                boost = mfl_exact_log(mfl_rng_unit(rng)) / alpha;
                alpha += 1;
        }
        double d = alpha - 1.0 / 3.0, c = 1 / sqrt(9 * d);
        for (;;) {
                double x = mfl_draw_normal(rng), t = 1 + c * x;
                if (t <= 0)
                        continue;
                double v = t * t * t;
                if (mfl_exact_log(mfl_rng_unit(rng)) < 0.5 * x * x + d - d * v + d * mfl_exact_log(v))
                        return mfl_exact_log(d) + mfl_exact_log(v) + boost;
        }
}

/* Near-equal parts: sizes differ by one at most. */
void mfl_cut_evenly(uint32_t n, uint32_t parts, uint32_t *start)
{
        for (uint64_t k = 0; k <= parts; k++)
                start[k] = (uint32_t)(k * n / parts);
}

int mfl_sort_by_label(const int32_t *labels, uint32_t n, int classes, uint32_t *first, uint32_t *index)
{
        uint32_t *at = mfl_calloc((size_t)classes + 1, sizeof *at);
        if (!at)
                return -ENOMEM;
        memset(first, 0, ((size_t)classes + 1) * sizeof *first);
        for (uint32_t i = 0; i < n; i++)
                first[labels[i] + 1]++;
        for (int c = 0; c < classes; c++)
                first[c + 1] += first[c];
        memcpy(at, first, ((size_t)classes + 1) * sizeof *at);
        for (uint32_t i = 0; i < n; i++)
                index[at[labels[i]]++] = i;
        free(at);
        return 0;
}

int mfl_shuffle_by_label(uint64_t seed, const int32_t *labels, uint32_t n, int classes, uint32_t **ret_first,
        uint32_t **ret_index, struct mfl_error *err)
{
        uint32_t *index = mfl_calloc(n, sizeof *index);
        uint32_t *first = mfl_calloc((size_t)classes + 1, sizeof *first);
        if (!index || !first || mfl_sort_by_label(labels, n, classes, first, index)) {
                free(index);
                free(first);
                return mfl_fail_memory(err, n * sizeof *index, "samples by class");
        }
        for (int c = 0; c < classes; c++) {
                struct mfl_rng rng =
                        mfl_rng_new(seed, MFL_RNG_PARTITION, MFL_STREAM_CLASS_ORDER, (uint64_t)c);
                mfl_rng_shuffle(&rng, index + first[c], first[c + 1] - first[c]);
        }
        *ret_first = first;
        *ret_index = index;
        return 0;
}
