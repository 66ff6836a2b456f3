/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of the reference in double: one multiple of a plane for each tap of each filter, several times as fast as one sum for
 * each element (conv.c). The sums' order is another, which double does not show. */
#include "kernels/reference/ops.h"

/* The outputs of an axis whose tap r lies inside the input: [first, end). */
struct range {
        int64_t first, end;
};

static struct range range_of(const struct mfl_window *v, int axis, int64_t r, int64_t in, int64_t out)
{
        int64_t offset = r * v->d[axis] - v->p[axis], s = v->s[axis];
        struct range range = {
                offset < 0 ? (-offset + s - 1) / s : 0, in - offset <= 0 ? 0 : (in - offset - 1) / s + 1};
        range.end = MFL_MIN(range.end, out);
        return range;
}

/* One tap of one filter's channel, for all rows; x and dy point to the channel's and the filter's planes of row 0. */
struct tap {
        struct range h, w;
        int64_t x_row, y_row;           /* elements from one row to the next */
        int64_t at, step_h, step_w, ow; /* at: of the input, for output (0, 0) */
};

static struct tap tap_of(const struct mfl_window *v, int64_t r, int64_t c)
{
        return (struct tap){range_of(v, 0, r, v->h, v->oh), range_of(v, 1, c, v->w, v->ow),
                v->c * v->h * v->w, v->o * v->oh * v->ow,
                (r * v->d[0] - v->p[0]) * v->w + c * v->d[1] - v->p[1], v->s[0] * v->w, v->s[1], v->ow};
}

/* y += weight * x. */
static void tap_forward(const struct tap *t, int64_t rows, const mfl_real *x, mfl_real weight, mfl_real *y)
{
        for (int64_t n = 0; n < rows; n++)
                for (int64_t h = t->h.first; h < t->h.end; h++) {
                        const mfl_real *from = x + n * t->x_row + t->at + h * t->step_h;
                        mfl_real *to = y + n * t->y_row + h * t->ow;
                        for (int64_t w = t->w.first; w < t->w.end; w++)
                                to[w] += weight * from[w * t->step_w];
                }
}

/* dx += weight * dy. */
static void tap_backward(const struct tap *t, int64_t rows, const mfl_real *dy, mfl_real weight, mfl_real *dx)
{
        for (int64_t n = 0; n < rows; n++)
                for (int64_t h = t->h.first; h < t->h.end; h++) {
                        mfl_real *to = dx + n * t->x_row + t->at + h * t->step_h;
                        const mfl_real *from = dy + n * t->y_row + h * t->ow;
                        for (int64_t w = t->w.first; w < t->w.end; w++)
                                to[w * t->step_w] += weight * from[w];
                }
}

static mfl_real tap_weight(const struct tap *t, int64_t rows, const mfl_real *x, const mfl_real *dy)
{
        mfl_real sum = 0;
        for (int64_t n = 0; n < rows; n++)
                for (int64_t h = t->h.first; h < t->h.end; h++) {
                        const mfl_real *a = x + n * t->x_row + t->at + h * t->step_h,
                                       *b = dy + n * t->y_row + h * t->ow;
                        for (int64_t w = t->w.first; w < t->w.end; w++)
                                sum += a[w * t->step_w] * b[w];
                }
        return sum;
}

/* Over all taps of all filters; weight or dw is OIHW. */
enum what {
        FORWARD, /* y from x */
        DATA,    /* x from y */
        WEIGHTS  /* dw from both */
};

static void all_taps(
        const struct mfl_window *v, int64_t rows, enum what what, mfl_real *x, mfl_real *y, mfl_real *weight)
{
        int64_t width = v->c / v->groups;
        for (int64_t r = 0; r < v->k[0]; r++)
                for (int64_t c = 0; c < v->k[1]; c++) {
                        struct tap t = tap_of(v, r, c);
                        for (int64_t o = 0; o < v->o; o++)
                                for (int64_t i = 0; i < width; i++) {
                                        mfl_real *w = weight + ((o * width + i) * v->k[0] + r) * v->k[1] + c;
                                        mfl_real *from =
                                                x + (o / (v->o / v->groups) * width + i) * v->h * v->w;
                                        mfl_real *to = y + o * v->oh * v->ow;
                                        if (what == FORWARD)
                                                tap_forward(&t, rows, from, *w, to);
                                        else if (what == DATA)
                                                tap_backward(&t, rows, to, *w, from);
                                        else
                                                *w = tap_weight(&t, rows, from, to);
                                }
                }
}

/* all_taps only writes to what it computes. */
static mfl_real *plain(const mfl_real *v)
{
        return (mfl_real *)(uintptr_t)v;
}

static void fill(int64_t rows, int64_t channels, int64_t plane, const mfl_real *bias, mfl_real *y)
{
        for (int64_t e = 0; e < rows * channels * plane; e++)
                y[e] = bias ? bias[e / plane % channels] : 0;
}

static void sum_bias(int64_t rows, int64_t channels, int64_t plane, const mfl_real *dy, mfl_real *db)
{
        for (int64_t o = 0; db && o < channels; o++) {
                db[o] = 0;
                for (int64_t n = 0; n < rows; n++)
                        for (int64_t j = 0; j < plane; j++)
                                db[o] += dy[(n * channels + o) * plane + j];
        }
}

void mfl_ref_conv_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, mfl_real *y)
{
        fill(rows, v->o, v->oh * v->ow, bias, y);
        all_taps(v, rows, FORWARD, plain(x), y, plain(weight));
}

void mfl_ref_conv_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx)
{
        if (!add)
                fill(rows, v->c, v->h * v->w, NULL, dx);
        all_taps(v, rows, DATA, dx, plain(dy), plain(weight));
}

void mfl_ref_conv_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db)
{
        if (dw)
                all_taps(v, rows, WEIGHTS, plain(x), plain(dy), dw);
        sum_bias(rows, v->o, v->oh * v->ow, dy, db);
}

/* The convolution whose gradient with respect to its input is this layer: input and output change places. */
static struct mfl_window turned(const struct mfl_window *v)
{
        struct mfl_window t = *v;
        t.c = v->o;
        t.h = v->oh;
        t.w = v->ow;
        t.o = v->c;
        t.oh = v->h;
        t.ow = v->w;
        return t;
}

void mfl_ref_convtranspose_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *weight, const mfl_real *bias, mfl_real *y)
{
        struct mfl_window t = turned(v);
        fill(rows, v->o, v->oh * v->ow, bias, y);
        all_taps(&t, rows, DATA, y, plain(x), plain(weight));
}

void mfl_ref_convtranspose_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx)
{
        struct mfl_window t = turned(v);
        if (!add)
                fill(rows, v->c, v->h * v->w, NULL, dx);
        all_taps(&t, rows, FORWARD, plain(dy), dx, plain(weight));
}

void mfl_ref_convtranspose_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db)
{
        struct mfl_window t = turned(v);
        if (dw)
                all_taps(&t, rows, WEIGHTS, plain(dy), plain(x), dw);
        sum_bias(rows, v->o, v->oh * v->ow, dy, db);
}
