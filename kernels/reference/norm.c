/* SPDX-License-Identifier: Apache-2.0 */
/* Batch norm, group norm and global pooling as plain loops; statistics and sums in double. */
#include <math.h>

#include "kernels/reference/ops.h"

struct mfl_norm mfl_norm_of(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return (struct mfl_norm){.channels = layer->out.dim[0],
                .plane = mfl_shape_count(&layer->out) / layer->out.dim[0],
                .groups = layer->op == MFL_OP_GROUPNORM ? layer->norm_groups : 0,
                .eps = layer->eps};
}

/* What one mean and variance cover: n_channels channels from `channel` on, of n_rows rows from `row` on. */
struct part {
        int64_t row, n_rows, channel, n_channels;
};

static int64_t part_count(const struct mfl_norm *v, const struct part *p)
{
        return p->n_rows * p->n_channels * v->plane;
}

static int64_t parts_of(const struct mfl_norm *v, int64_t rows)
{
        return v->groups ? rows * v->groups : v->channels;
}

static struct part part_at(const struct mfl_norm *v, int64_t rows, int64_t k)
{
        if (!v->groups)
                return (struct part){0, rows, k, 1};
        int64_t size = v->channels / v->groups;
        return (struct part){k / v->groups, 1, k % v->groups * size, size};
}

/* The plane of row r and channel c, both counted within the part. */
static int64_t plane_at(const struct mfl_norm *v, const struct part *p, int64_t r, int64_t c)
{
        return ((p->row + r) * v->channels + p->channel + c) * v->plane;
}

static double sum_powers(
        const struct mfl_norm *v, const struct part *p, const mfl_real *x, double center, bool squares)
{
        double sum = 0;
        for (int64_t r = 0; r < p->n_rows; r++)
                for (int64_t c = 0; c < p->n_channels; c++)
                        for (int64_t i = 0; i < v->plane; i++) {
                                double d = (double)x[plane_at(v, p, r, c) + i] - center;
                                sum += squares ? d * d : d;
                        }
        return sum;
}

struct moments {
        double mean, var, rstd;
};

static struct moments moments_of(const struct mfl_norm *v, const struct part *p, const mfl_real *x)
{
        struct moments m;
        double count = (double)part_count(v, p);
        if (v->mean) {
                m.mean = (double)v->mean[p->channel];
                m.var = (double)v->var[p->channel];
        } else {
                m.mean = sum_powers(v, p, x, 0, false) / count;
                m.var = sum_powers(v, p, x, m.mean, true) / count;
        }
        m.rstd = 1.0 / sqrt(m.var + (double)v->eps);
        return m;
}

void mfl_ref_norm_forward(const struct mfl_norm *v, int64_t rows, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, mfl_real *y)
{
        for (int64_t k = 0; k < parts_of(v, rows); k++) {
                struct part p = part_at(v, rows, k);
                struct moments m = moments_of(v, &p, x);
                for (int64_t r = 0; r < p.n_rows; r++)
                        for (int64_t c = 0; c < p.n_channels; c++)
                                for (int64_t i = 0; i < v->plane; i++) {
                                        int64_t at = plane_at(v, &p, r, c) + i, channel = p.channel + c;
                                        double hat = ((double)x[at] - m.mean) * m.rstd;
                                        y[at] = (mfl_real)(hat * weight[channel] + bias[channel]);
                                }
        }
}

/* Sums over a channel's part: of dy, and of dy times the normalised x. */
static void channel_sums(const struct mfl_norm *v, const struct part *p, const struct moments *m, int64_t c,
        const mfl_real *x, const mfl_real *dy, double sums[2])
{
        for (int64_t r = 0; r < p->n_rows; r++)
                for (int64_t i = 0; i < v->plane; i++) {
                        int64_t at = plane_at(v, p, r, c) + i;
                        sums[0] += dy[at];
                        sums[1] += (double)dy[at] * (((double)x[at] - m->mean) * m->rstd);
                }
}

/* With g = weight * dy: dx = rstd * (g - mean(g) - hat * mean(g * hat)), with means over the part. Where mean
 * and variance are constants, dx = rstd * g. */
static void part_backward(const struct mfl_norm *v, const struct part *p, const mfl_real *x,
        const mfl_real *dy, const mfl_real *weight, bool add, mfl_real *dx)
{
        struct moments m = moments_of(v, p, x);
        double mean_g = 0, mean_gx = 0, count = (double)part_count(v, p);
        for (int64_t c = 0; !v->mean && c < p->n_channels; c++) {
                double sums[2] = {0, 0};
                channel_sums(v, p, &m, c, x, dy, sums);
                mean_g += sums[0] * weight[p->channel + c] / count;
                mean_gx += sums[1] * weight[p->channel + c] / count;
        }
        for (int64_t r = 0; r < p->n_rows; r++)
                for (int64_t c = 0; c < p->n_channels; c++)
                        for (int64_t i = 0; i < v->plane; i++) {
                                int64_t at = plane_at(v, p, r, c) + i;
                                double hat = ((double)x[at] - m.mean) * m.rstd;
                                double g = (double)weight[p->channel + c] * dy[at];
                                mfl_real d = (mfl_real)(m.rstd * (g - mean_g - hat * mean_gx));
                                dx[at] = (add ? dx[at] : 0.0f) + d;
                        }
}

static void params_backward(const struct mfl_norm *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        mfl_real *dw, mfl_real *db)
{
        int64_t n_parts = parts_of(v, rows), per_row = v->groups ? v->groups : v->channels;
        for (int64_t channel = 0; channel < v->channels; channel++) {
                double sums[2] = {0, 0};
                int64_t first = channel / (v->channels / per_row);
                for (int64_t k = first; k < n_parts; k += per_row) {
                        struct part p = part_at(v, rows, k);
                        struct moments m = moments_of(v, &p, x);
                        channel_sums(v, &p, &m, channel - p.channel, x, dy, sums);
                }
                db[channel] = (mfl_real)sums[0];
                dw[channel] = (mfl_real)sums[1];
        }
}

void mfl_ref_norm_backward(const struct mfl_norm *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx, mfl_real *dw, mfl_real *db)
{
        for (int64_t k = 0; dx && k < parts_of(v, rows); k++) {
                struct part p = part_at(v, rows, k);
                part_backward(v, &p, x, dy, weight, add, dx);
        }
        if (dw)
                params_backward(v, rows, x, dy, dw, db);
}

void mfl_ref_norm_running(const struct mfl_norm *v, int64_t rows, const mfl_real *x, mfl_real momentum,
        mfl_real *mean, mfl_real *var)
{
        for (int64_t c = 0; c < v->channels; c++) {
                struct part p = part_at(v, rows, c);
                struct moments m = moments_of(v, &p, x);
                double count = (double)part_count(v, &p), share = (double)momentum;
                double unbiased = count > 1 ? m.var * count / (count - 1) : m.var;
                mean[c] = (mfl_real)((1 - share) * mean[c] + share * m.mean);
                var[c] = (mfl_real)((1 - share) * var[c] + share * unbiased);
        }
}

void mfl_ref_global_avgpool_forward(int64_t planes, int64_t plane, const mfl_real *x, mfl_real *y)
{
        for (int64_t p = 0; p < planes; p++) {
                double sum = 0;
                for (int64_t i = 0; i < plane; i++)
                        sum += *x++;
                y[p] = (mfl_real)(sum / (double)plane);
        }
}

void mfl_ref_global_avgpool_backward(
        int64_t planes, int64_t plane, const mfl_real *dy, bool add, mfl_real *dx)
{
        for (int64_t p = 0; p < planes; p++)
                for (int64_t i = 0; i < plane; i++, dx++)
                        *dx = (add ? *dx : 0.0f) + dy[p] / (mfl_real)plane;
}
