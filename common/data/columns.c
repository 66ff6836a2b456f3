/* SPDX-License-Identifier: Apache-2.0 */
/* The scale of samples that are rows of a table: each column is a quantity of its own. */
#include "common/data/sources.h"

#include <math.h>

#define SCALE_RATIO 100 /* of two columns' deviations, from which on one hides the other */

/* Rows of a table, or windows of them. */
static bool is_table(const struct mfl_dataset *d)
{
        return (d->shape.rank == 1 || d->shape.rank == 2) && d->train.dtype == MFL_F32 && d->train.n > 0;
}

static size_t width_of(const struct mfl_dataset *d)
{
        return (size_t)d->shape.dim[d->shape.rank - 1];
}

static size_t rows_of(const struct mfl_dataset *d, const struct mfl_split *split)
{
        return d->shape.rank == 2 ? split->n * (size_t)d->shape.dim[0] : split->n;
}

/* Mean and deviation of a column of the training samples, added in double in the order of the samples. */
static void measure(const struct mfl_dataset *d, size_t column, double *ret_mean, double *ret_std)
{
        const float *x = (const float *)d->train.samples + column;
        size_t width = width_of(d), n = rows_of(d, &d->train);
        double sum = 0, squares = 0;
        for (size_t i = 0; i < n; i++)
                sum += x[i * width];
        double mean = sum / (double)n;
        for (size_t i = 0; i < n; i++)
                squares += (x[i * width] - mean) * (x[i * width] - mean);
        *ret_mean = mean;
        *ret_std = sqrt(squares / (double)n);
}

static void rescale(
        const struct mfl_dataset *d, struct mfl_split *split, size_t column, double mean, double std)
{
        float *x = (float *)split->samples + column;
        size_t width = width_of(d), n = rows_of(d, split);
        for (size_t i = 0; i < n; i++)
                x[i * width] = (float)((x[i * width] - mean) / std);
}

int mfl_columns_normalise(struct mfl_dataset *d, struct mfl_error *err)
{
        if (!is_table(d))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s: normalise: columns is only for samples that are rows of numbers; auto "
                        "is for others",
                        d->name);
        size_t width = width_of(d);
        d->column_mean = mfl_calloc(2 * width, sizeof *d->column_mean);
        if (!d->column_mean)
                return mfl_fail_memory(err, 2 * width * sizeof *d->column_mean, "columns");
        d->column_std = d->column_mean + width;
        for (size_t c = 0; c < width; c++) {
                double mean, std;
                d->column_std[c] = 1;
                if (d->categorical && d->categorical[c])
                        continue;
                measure(d, c, &mean, &std);
                double unit = std > 0 ? std : 1;
                d->column_mean[c] = mean;
                d->column_std[c] = unit;
                rescale(d, &d->train, c, mean, unit);
                rescale(d, &d->test, c, mean, unit);
        }
        return 0;
}

static void name_column(const struct mfl_dataset *d, size_t column, char *text, size_t bytes)
{
        if (d->feature_names)
                mfl_snprintf(text, bytes, "%.40s", d->feature_names[column]);
        else
                mfl_snprintf(text, bytes, "feature %zu", column);
}

void mfl_columns_note(struct mfl_dataset *d)
{
        char wide[64], narrow[64];
        size_t widest = 0, narrowest = 0;
        double high = 0, low = INFINITY;
        if (!is_table(d) || d->note[0])
                return;
        for (size_t c = 0; c < width_of(d); c++) {
                double mean, std;
                if (d->categorical && d->categorical[c])
                        continue;
                measure(d, c, &mean, &std);
                if (std > high) {
                        high = std;
                        widest = c;
                }
                if (std > 0 && std < low) {
                        low = std;
                        narrowest = c;
                }
        }
        if (!(high > SCALE_RATIO * low))
                return;
        name_column(d, widest, wide, sizeof wide);
        name_column(d, narrowest, narrow, sizeof narrow);
        mfl_snprintf(d->note, sizeof d->note,
                "data set %s: %s varies by %.3g and %s by %.3g, so training hardly notices the latter: "
                "'normalise: columns' brings all columns to one scale",
                d->name, wide, high, narrow, low);
}
