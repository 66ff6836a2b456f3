/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that look at one element of all rows at a time. Selection is quickselect with the median of three as pivot, O(m)
 * expected; sums run in the order of rows. */
#include "server/robust/rule.h"

#include <math.h>

static void swap(double *a, double *b)
{
        double t = *a;
        *a = *b;
        *b = t;
}

/* Reorders x: x[k] is as in the sorted array, no larger element is before it, and no smaller one after it. */
static void select_nth(double *x, long n, long k)
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
                double pivot = x[middle];
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

double mfl_column_median(double *v, uint32_t n)
{
        long k = n / 2;
        select_nth(v, n, k);
        if (n % 2)
                return v[k];
        double below = v[0];
        for (long i = 1; i < k; i++)
                below = below < v[i] ? v[i] : below;
        return (below + v[k]) / 2.0;
}

/* The order of the sum is that of the selection, which depends on the values alone. */
double mfl_column_trim(double *v, uint32_t n, uint32_t cut)
{
        mfl_assert(2 * (uint64_t)cut < n);
        if (cut) {
                select_nth(v, n, cut);
                select_nth(v + cut, (long)(n - cut), (long)(n - 1 - 2 * cut));
        }
        double sum = 0;
        for (uint32_t i = cut; i < n - cut; i++)
                sum += v[i];
        return sum / (n - 2 * cut);
}

double mfl_column_near(const double *v, uint32_t n, uint32_t keep, double *scratch)
{
        double *far = scratch + n;
        mfl_assert(keep >= 1 && keep <= n);
        memcpy(scratch, v, n * sizeof *v);
        double median = mfl_column_median(scratch, n);
        for (uint32_t i = 0; i < n; i++)
                scratch[i] = far[i] = fabs(v[i] - median);
        select_nth(scratch, n, (long)keep - 1);
        double limit = scratch[keep - 1];
        uint32_t nearer = 0;
        for (uint32_t i = 0; i < n; i++)
                nearer += far[i] < limit;
        double sum = 0;
        for (uint32_t i = 0, equal = keep - nearer; i < n; i++) {
                bool at = far[i] == limit && equal;
                equal -= at;
                sum += far[i] < limit || at ? v[i] : 0;
        }
        return sum / keep;
}

#define TILE 256u /* elements of A X at a time */

size_t mfl_robust_scratch(const struct mfl_choice *choice)
{
        return choice->column == MFL_COLUMN_SUM ? 0 : (size_t)choice->n_out * (TILE + 3);
}

/* out[e] = sum of a[k] rows[k][from + e]. Rows without a part in it are not touched. */
static void combine(
        const double *a, uint32_t n_in, const float *const *rows, size_t from, size_t count, double *out)
{
        for (size_t e = 0; e < count; e++)
                out[e] = 0;
        for (uint32_t k = 0; k < n_in; k++)
                for (size_t e = 0; a[k] != 0 && e < count; e++)
                        out[e] += a[k] * (double)rows[k][from + e];
}

static double reduce_one(const struct mfl_choice *choice, double *v, double *scratch)
{
        switch (choice->column) {
        case MFL_COLUMN_MEDIAN:
                return mfl_column_median(v, choice->n_out);
        case MFL_COLUMN_TRIM:
                return mfl_column_trim(v, choice->n_out, choice->cut);
        default:
                return mfl_column_near(v, choice->n_out, choice->cut, scratch);
        }
}

static void add_noise(const struct mfl_choice *choice, uint64_t first, size_t count, double *d)
{
        for (size_t e = 0; e < count; e++)
                d[e] += choice->noise * mfl_robust_normal(choice->noise_key, first + e);
}

void mfl_robust_reduce(const struct mfl_choice *choice, bool means, const float *const *rows, uint64_t first,
        size_t count, double *scratch, double *d)
{
        const double *a = means ? choice->a_means : choice->a;
        uint32_t n = choice->n_out;
        if (choice->column == MFL_COLUMN_SUM) {
                combine(a, choice->n_in, rows, 0, count, d);
                if (choice->noise > 0 && !means)
                        add_noise(choice, first, count, d);
                return;
        }
        double *v = scratch, *rest = v + n, *tile = rest + 2 * (size_t)n;
        for (size_t from = 0; from < count; from += TILE) {
                size_t some = MFL_MIN(count - from, (size_t)TILE);
                for (uint32_t k = 0; a && k < n; k++)
                        combine(a + (size_t)k * choice->n_in, choice->n_in, rows, from, some,
                                tile + (size_t)k * TILE);
                for (size_t e = 0; e < some; e++) {
                        for (uint32_t k = 0; k < n; k++)
                                v[k] = a ? tile[(size_t)k * TILE + e] : (double)rows[k][from + e];
                        d[from + e] = reduce_one(choice, v, rest);
                }
        }
}
