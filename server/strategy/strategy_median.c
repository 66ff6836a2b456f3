/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinate-wise median: Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards
 * Optimal Statistical Rates", ICML 2018, definition 1 and algorithm 1 (option I):
 *
 *      g = med{x_i : i = 1..m},  g_k = med{x_i,k},  med being the usual one-dimensional median
 *
 * For even m it is the mean of the two middle values. The clients' weights are not used. Then
 * w <- w + eta d. Each coordinate takes O(m) expected time, by quickselect with the median of three as pivot.
 */
#include "server/strategy/strategy.h"

static void swap(float *a, float *b)
{
        float t = *a;
        *a = *b;
        *b = t;
}

/* Reorders x: x[k] is as in the sorted array, no larger element is before it, and no smaller one after it. */
static void select_nth(float *x, long n, long k)
{
        long low = 0, high = n - 1;
        while (low < high) {
                long middle = low + (high - low) / 2;
                if (x[middle] < x[low])
                        swap(&x[middle], &x[low]);
                if (x[high] < x[low])
                        swap(&x[high], &x[low]);
                if (x[high] < x[middle])
                        swap(&x[high], &x[middle]);
                float pivot = x[middle];
                long i = low, j = high;
                while (i <= j) {
                        while (x[i] < pivot)
                                i++;
                        while (pivot < x[j])
                                j--;
                        if (i <= j)
                                swap(&x[i++], &x[j--]);
                }
                if (k <= j)
                        high = j;
                else if (k >= i)
                        low = i;
                else
                        return;
        }
}

static double median(float *x, long n)
{
        long k = n / 2;
        select_nth(x, n, k);
        if (n % 2)
                return (double)x[k];
        float below = x[0];
        for (long i = 1; i < k; i++)
                below = below < x[i] ? x[i] : below;
        return ((double)below + (double)x[k]) / 2.0;
}

static void reduce(const float *const *rows, uint32_t n_rows, size_t count, float *scratch, double *ret_d)
{
        mfl_assert(n_rows >= 1);
        for (size_t e = 0; e < count; e++) {
                for (uint32_t k = 0; k < n_rows; k++)
                        scratch[k] = rows[k][e];
                ret_d[e] = median(scratch, (long)n_rows);
        }
}

static void apply(const struct mfl_job *job, const struct mfl_strategy_round *round, size_t count,
        const float *params_in, const double *d, float *const *state, float *params_out)
{
        mfl_strategy_fedavg.apply(job, round, count, params_in, d, state, params_out);
}

const struct mfl_strategy_ops mfl_strategy_median = {
        .kind = MFL_STRATEGY_MEDIAN,
        .name = "median",
        .needs_single_updates = true,
        .reduce = reduce,
        .apply = apply,
};
