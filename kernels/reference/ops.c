/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers and pooling as plain loops. */
#include "kernels/reference/ops.h"

#include "kernels/reference/tap.h"

void mfl_ref_dense_forward(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *x,
        const mfl_real *weight, const mfl_real *bias, mfl_real *y)
{
        for (int64_t n = 0; n < rows; n++)
                for (int64_t o = 0; o < n_out; o++) {
                        double sum = bias ? bias[o] : 0.0;
                        for (int64_t i = 0; i < n_in; i++)
                                sum += (double)x[n * n_in + i] * weight[o * n_in + i];
                        *y++ = (mfl_real)sum;
                }
}

void mfl_ref_dense_backward_data(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx)
{
        for (int64_t n = 0; n < rows; n++)
                for (int64_t i = 0; i < n_in; i++, dx++) {
                        double sum = 0;
                        for (int64_t o = 0; o < n_out; o++)
                                sum += (double)dy[n * n_out + o] * weight[o * n_in + i];
                        *dx = (add ? *dx : 0.0f) + (mfl_real)sum;
                }
}

void mfl_ref_dense_backward_params(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db)
{
        for (int64_t o = 0; o < n_out; o++) {
                double bias = 0;
                for (int64_t n = 0; n < rows; n++)
                        bias += dy[n * n_out + o];
                if (db)
                        db[o] = (mfl_real)bias;
                for (int64_t i = 0; dw && i < n_in; i++) {
                        double sum = 0;
                        for (int64_t n = 0; n < rows; n++)
                                sum += (double)dy[n * n_out + o] * x[n * n_in + i];
                        *dw++ = (mfl_real)sum;
                }
        }
}

/* Index within the plane of the window's first largest element; -1 where the window holds only padding. */
static int64_t window_argmax(const struct mfl_window *v, const mfl_real *plane, int64_t oh, int64_t ow)
{
        int64_t best = -1;
        for (int64_t r = 0; r < v->k[0]; r++)
                for (int64_t c = 0; c < v->k[1]; c++) {
                        int64_t h = tap(v, 0, oh, r), w = tap(v, 1, ow, c);
                        if (!inside(h, v->h) || !inside(w, v->w))
                                continue;
                        if (best < 0 || plane[h * v->w + w] > plane[best])
                                best = h * v->w + w;
                }
        return best;
}

void mfl_ref_maxpool_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, mfl_real *y)
{
        for (int64_t p = 0; p < rows * v->c; p++, x += v->h * v->w)
                for (int64_t oh = 0; oh < v->oh; oh++)
                        for (int64_t ow = 0; ow < v->ow; ow++) {
                                int64_t best = window_argmax(v, x, oh, ow);
                                *y++ = best < 0 ? 0.0f : x[best];
                        }
}

static void clear(int64_t n, bool add, mfl_real *dx)
{
        for (int64_t i = 0; !add && i < n; i++)
                dx[i] = 0.0f;
}

void mfl_ref_maxpool_backward(const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        bool add, mfl_real *dx)
{
        clear(rows * v->c * v->h * v->w, add, dx);
        for (int64_t p = 0; p < rows * v->c; p++, x += v->h * v->w, dx += v->h * v->w)
                for (int64_t oh = 0; oh < v->oh; oh++)
                        for (int64_t ow = 0; ow < v->ow; ow++, dy++) {
                                int64_t best = window_argmax(v, x, oh, ow);
                                if (best >= 0)
                                        dx[best] += *dy;
                        }
}

void mfl_ref_avgpool_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, mfl_real *y)
{
        double area = (double)(v->k[0] * v->k[1]);
        for (int64_t p = 0; p < rows * v->c; p++, x += v->h * v->w)
                for (int64_t oh = 0; oh < v->oh; oh++)
                        for (int64_t ow = 0; ow < v->ow; ow++) {
                                double sum = 0;
                                for (int64_t r = 0; r < v->k[0]; r++)
                                        for (int64_t c = 0; c < v->k[1]; c++) {
                                                int64_t h = tap(v, 0, oh, r), w = tap(v, 1, ow, c);
                                                if (inside(h, v->h) && inside(w, v->w))
                                                        sum += x[h * v->w + w];
                                        }
                                *y++ = (mfl_real)(sum / area);
                        }
}

void mfl_ref_avgpool_backward(
        const struct mfl_window *v, int64_t rows, const mfl_real *dy, bool add, mfl_real *dx)
{
        mfl_real area = (mfl_real)(v->k[0] * v->k[1]);
        clear(rows * v->c * v->h * v->w, add, dx);
        for (int64_t p = 0; p < rows * v->c; p++, dx += v->h * v->w)
                for (int64_t oh = 0; oh < v->oh; oh++)
                        for (int64_t ow = 0; ow < v->ow; ow++, dy++)
                                for (int64_t r = 0; r < v->k[0]; r++)
                                        for (int64_t c = 0; c < v->k[1]; c++) {
                                                int64_t h = tap(v, 0, oh, r), w = tap(v, 1, ow, c);
                                                if (inside(h, v->h) && inside(w, v->w))
                                                        dx[h * v->w + w] += *dy / area;
                                        }
}
