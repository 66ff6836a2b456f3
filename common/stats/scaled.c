/* SPDX-License-Identifier: Apache-2.0 */
/* A data set with another scale. */
#include "common/stats/scaled.h"

#include <math.h>

static bool is_image(const struct mfl_dataset *d)
{
        return d->shape.rank == 3;
}

static size_t floats_of(const struct mfl_dataset *d, const struct mfl_split *s)
{
        return s->n * (size_t)mfl_shape_count(&d->shape);
}

uint64_t mfl_dataset_scaled_bytes(const struct mfl_dataset *dataset)
{
        const struct mfl_dataset *d = dataset;
        return is_image(d) ? 0 : (floats_of(d, &d->train) + floats_of(d, &d->test)) * sizeof(float);
}

static int check(const struct mfl_dataset *d, uint32_t n, struct mfl_error *err)
{
        uint32_t width = (uint32_t)(is_image(d) ? d->shape.dim[0] : d->shape.dim[d->shape.rank - 1]);
        if (d->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "data.normalise: data set %s has tokens, which have no mean", d->name);
        if (d->column_mean)
                return mfl_fail(err, MFL_INVALID,
                        "data.normalise: this site normalises the columns of data set %s as it reads them; "
                        "write normalise: none there",
                        d->name);
        if (n != width || (is_image(d) && n > MFL_CHANNELS_MAX))
                return mfl_fail(err, MFL_INVALID,
                        "data.normalise has numbers for %u columns or channels, and data set %s has %u", n,
                        d->name, width);
        return 0;
}

static void scale_channels(struct mfl_dataset *d, uint32_t n, const double *mean, const double *std)
{
        double unit = d->train.dtype == MFL_U8 ? 1.0 / 255.0 : 1.0;
        for (uint32_t c = 0; c < n; c++) {
                d->scale[c] = (float)(unit / std[c]);
                d->shift[c] = (float)(-mean[c] / std[c]);
        }
}

static int scale_rows(const struct mfl_dataset *d, struct mfl_split *s, const double *mean, const double *std,
        struct mfl_error *err)
{
        size_t n = floats_of(d, s), width = (size_t)d->shape.dim[d->shape.rank - 1];
        float *to = mfl_alloc_aligned(n * sizeof *to + 1);
        if (!to)
                return mfl_fail_memory(err, n * sizeof *to, "rows of a table");
        for (size_t i = 0; i < n; i++) {
                double v = s->dtype == MFL_U8 ? ((const uint8_t *)s->samples)[i] / 255.0
                                              : (double)((const float *)s->samples)[i];
                to[i] = (float)((v - mean[i % width]) / std[i % width]);
        }
        s->samples = to;
        s->dtype = MFL_F32;
        return 0;
}

static int scale_columns(
        struct mfl_dataset *d, uint32_t n, const double *mean, const double *std, struct mfl_error *err)
{
        const struct mfl_split train = d->train, test = d->test;
        d->train.samples = d->test.samples = NULL;
        d->column_mean = mfl_calloc(2 * (size_t)n, sizeof *d->column_mean);
        if (!d->column_mean)
                return mfl_fail_memory(err, 2 * n * sizeof *d->column_mean, "columns");
        d->column_std = d->column_mean + n;
        for (uint32_t c = 0; c < n; c++) {
                bool keeps = d->categorical && d->categorical[c];
                d->column_mean[c] = keeps ? 0 : mean[c];
                d->column_std[c] = keeps ? 1 : std[c];
        }
        d->scale[0] = 1;
        d->shift[0] = 0;
        struct mfl_split scaled = train;
        int r = scale_rows(d, &scaled, d->column_mean, d->column_std, err);
        if (r)
                return r;
        d->train = scaled;
        scaled = test;
        r = scale_rows(d, &scaled, d->column_mean, d->column_std, err);
        if (!r)
                d->test = scaled;
        return r;
}

int mfl_dataset_scaled(const struct mfl_dataset *dataset, uint32_t n, const double *mean, const double *std,
        struct mfl_dataset **ret_scaled, struct mfl_error *err)
{
        int r = check(dataset, n, err);
        if (r)
                return r;
        struct mfl_dataset *d = mfl_malloc(sizeof *d);
        if (!d)
                return mfl_fail_memory(err, sizeof *d, "a data set");
        *d = *dataset;
        d->measured = false; /* the job says it, and no site alone */
        if (is_image(d))
                scale_channels(d, n, mean, std);
        else
                r = scale_columns(d, n, mean, std, err);
        if (r) {
                mfl_dataset_scaled_free(d);
                return r;
        }
        *ret_scaled = d;
        return 0;
}

void mfl_dataset_scaled_free(struct mfl_dataset *scaled)
{
        if (!scaled)
                return;
        if (!is_image(scaled)) {
                free(scaled->train.samples);
                free(scaled->test.samples);
                free(scaled->column_mean);
        }
        free(scaled);
}
