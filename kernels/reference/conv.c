/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions as plain loops: one sum for each element, in double. */
#include "kernels/reference/ops.h"
#include "kernels/reference/tap.h"

/* The sum over i, r, c of x[i, tap] * W[o, i, r, c]; i counts within the group of filter o. */
static double conv_point(
        const struct mfl_window *v, const mfl_real *x, const mfl_real *weight, int64_t oh, int64_t ow)
{
        double sum = 0;
        for (int64_t i = 0; i < v->c / v->groups; i++, x += v->h * v->w)
                for (int64_t r = 0; r < v->k[0]; r++)
                        for (int64_t c = 0; c < v->k[1]; c++, weight++) {
                                int64_t h = tap(v, 0, oh, r), w = tap(v, 1, ow, c);
                                if (inside(h, v->h) && inside(w, v->w))
                                        sum += (double)x[h * v->w + w] * *weight;
                        }
        return sum;
}

void mfl_ref_conv_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, mfl_real *y)
{
        for (int64_t n = 0; n < rows; n++, x += v->c * v->h * v->w)
                for (int64_t o = 0; o < v->o; o++)
                        for (int64_t oh = 0; oh < v->oh; oh++)
                                for (int64_t ow = 0; ow < v->ow; ow++) {
                                        int64_t width = v->c / v->groups, group = o / (v->o / v->groups);
                                        const mfl_real *w = weight + o * width * v->k[0] * v->k[1];
                                        const mfl_real *from = x + group * width * v->h * v->w;
                                        double sum = conv_point(v, from, w, oh, ow);
                                        *y++ = (mfl_real)(sum + (bias ? bias[o] : 0.0));
                                }
}

/* The output coordinate whose tap r reads input coordinate `at`, or -1. */
static int64_t output_of(const struct mfl_window *v, int axis, int64_t at, int64_t r, int64_t size)
{
        int64_t o = at + v->p[axis] - r * v->d[axis];
        return o >= 0 && o % v->s[axis] == 0 && o / v->s[axis] < size ? o / v->s[axis] : -1;
}

static double conv_point_data(const struct mfl_window *v, const mfl_real *dy, const mfl_real *weight,
        int64_t i, int64_t h, int64_t w)
{
        double sum = 0;
        int64_t width = v->c / v->groups, filters = v->o / v->groups, first = i / width * filters;
        dy += first * v->oh * v->ow;
        for (int64_t o = first; o < first + filters; o++, dy += v->oh * v->ow) {
                const mfl_real *wp = weight + (o * width + i % width) * v->k[0] * v->k[1];
                for (int64_t r = 0; r < v->k[0]; r++) {
                        int64_t oh = output_of(v, 0, h, r, v->oh);
                        for (int64_t c = 0; oh >= 0 && c < v->k[1]; c++) {
                                int64_t ow = output_of(v, 1, w, c, v->ow);
                                if (ow >= 0)
                                        sum += (double)dy[oh * v->ow + ow] * wp[r * v->k[1] + c];
                        }
                }
        }
        return sum;
}

void mfl_ref_conv_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx)
{
        for (int64_t n = 0; n < rows; n++, dy += v->o * v->oh * v->ow)
                for (int64_t i = 0; i < v->c; i++)
                        for (int64_t h = 0; h < v->h; h++)
                                for (int64_t w = 0; w < v->w; w++, dx++)
                                        *dx = (add ? *dx : 0.0f) +
                                              (mfl_real)conv_point_data(v, dy, weight, i, h, w);
}

static double conv_point_weight(
        const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *dy, int64_t r, int64_t c)
{
        double sum = 0;
        for (int64_t n = 0; n < rows; n++, x += v->c * v->h * v->w, dy += v->o * v->oh * v->ow)
                for (int64_t oh = 0; oh < v->oh; oh++) {
                        int64_t h = tap(v, 0, oh, r);
                        for (int64_t ow = 0; inside(h, v->h) && ow < v->ow; ow++) {
                                int64_t w = tap(v, 1, ow, c);
                                if (inside(w, v->w))
                                        sum += (double)dy[oh * v->ow + ow] * x[h * v->w + w];
                        }
                }
        return sum;
}

void mfl_ref_conv_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db)
{
        int64_t plane = v->oh * v->ow;
        for (int64_t o = 0; o < v->o; o++) {
                const mfl_real *dyo = dy + o * plane;
                int64_t width = v->c / v->groups, first = o / (v->o / v->groups) * width;
                for (int64_t i = first; dw && i < first + width; i++)
                        for (int64_t r = 0; r < v->k[0]; r++)
                                for (int64_t c = 0; c < v->k[1]; c++)
                                        *dw++ = (mfl_real)conv_point_weight(
                                                v, rows, x + i * v->h * v->w, dyo, r, c);
                double sum = 0;
                for (int64_t n = 0; n < rows; n++)
                        for (int64_t j = 0; j < plane; j++)
                                sum += dyo[n * v->o * plane + j];
                if (db)
                        db[o] = (mfl_real)sum;
        }
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
        mfl_ref_conv_backward_data(&t, rows, x, weight, false, y);
        for (int64_t e = 0; bias && e < rows * v->o * v->oh * v->ow; e++)
                y[e] += bias[e / (v->oh * v->ow) % v->o];
}

void mfl_ref_convtranspose_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx)
{
        struct mfl_window t = turned(v);
        for (int64_t n = 0; n < rows; n++, dy += t.c * t.h * t.w)
                for (int64_t o = 0; o < t.o; o++)
                        for (int64_t e = 0; e < t.oh * t.ow; e++, dx++) {
                                int64_t width = t.c / t.groups, group = o / (t.o / t.groups);
                                const mfl_real *w = weight + o * width * t.k[0] * t.k[1];
                                double sum =
                                        conv_point(&t, dy + group * width * t.h * t.w, w, e / t.ow, e % t.ow);
                                *dx = (add ? *dx : 0.0f) + (mfl_real)sum;
                        }
}

void mfl_ref_convtranspose_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db)
{
        struct mfl_window t = turned(v);
        int64_t plane = v->oh * v->ow;
        mfl_ref_conv_backward_params(&t, rows, dy, x, dw, NULL);
        for (int64_t o = 0; db && o < v->o; o++) {
                double sum = 0;
                for (int64_t n = 0; n < rows; n++)
                        for (int64_t j = 0; j < plane; j++)
                                sum += (double)dy[(n * v->o + o) * plane + j];
                db[o] = (mfl_real)sum;
        }
}
