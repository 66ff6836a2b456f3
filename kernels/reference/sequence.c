/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences as plain loops; recurrent ones are in recurrent.c. */
#include "kernels/reference/sequence.h"

#include <math.h>

#include "kernels/bodies.h"

void mfl_ref_rownorm_forward(const struct mfl_ref_rownorm *v, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, double *kept, mfl_real *y)
{
        for (int64_t i = 0; i < v->n; i++, x += v->width, y += v->width) {
                double mean = 0, square = 0;
                for (int64_t k = 0; v->centred && k < v->width; k++)
                        mean += (double)x[k] / (double)v->width;
                for (int64_t k = 0; k < v->width; k++)
                        square += ((double)x[k] - mean) * ((double)x[k] - mean);
                double rstd = 1 / sqrt(square / (double)v->width + (double)v->eps);
                kept[2 * i] = mean;
                kept[2 * i + 1] = rstd;
                for (int64_t k = 0; k < v->width; k++)
                        y[k] = (mfl_real)(((double)x[k] - mean) * rstd * (double)weight[k] +
                                          (bias ? (double)bias[k] : 0.0));
        }
}

static void rownorm_backward_data(const struct mfl_ref_rownorm *v, const mfl_real *x, const double *kept,
        const mfl_real *dy, const mfl_real *weight, bool add, mfl_real *dx)
{
        double width = (double)v->width;
        for (int64_t i = 0; i < v->n; i++, x += v->width, dy += v->width, dx += v->width) {
                double mean = kept[2 * i], rstd = kept[2 * i + 1], m1 = 0, m2 = 0;
                for (int64_t k = 0; k < v->width; k++) {
                        double d = (double)dy[k] * (double)weight[k];
                        m1 += d / width;
                        m2 += d * ((double)x[k] - mean) * rstd / width;
                }
                for (int64_t k = 0; k < v->width; k++) {
                        double d = (double)dy[k] * (double)weight[k], h = ((double)x[k] - mean) * rstd;
                        dx[k] = (add ? dx[k] : 0.0f) +
                                (mfl_real)(rstd * (d - (v->centred ? m1 : 0.0) - h * m2));
                }
        }
}

void mfl_ref_rownorm_backward(const struct mfl_ref_rownorm *v, const mfl_real *x, const double *kept,
        const mfl_real *dy, const mfl_real *weight, bool add, mfl_real *dx, mfl_real *dw, mfl_real *db)
{
        if (dx)
                rownorm_backward_data(v, x, kept, dy, weight, add, dx);
        for (int64_t k = 0; (dw || db) && k < v->width; k++) {
                double gw = 0, gb = 0;
                for (int64_t i = 0; i < v->n; i++) {
                        double d = (double)dy[i * v->width + k];
                        gw += d * ((double)x[i * v->width + k] - kept[2 * i]) * kept[2 * i + 1];
                        gb += d;
                }
                if (dw)
                        dw[k] = (mfl_real)gw;
                if (db)
                        db[k] = (mfl_real)gb;
        }
}

/* width values; only the first `n` count, the others become 0. */
static void softmax(int64_t n, int64_t width, const mfl_real *x, mfl_real *y)
{
        mfl_real max = x[0];
        double sum = 0;
        for (int64_t k = 1; k < n; k++)
                max = x[k] > max ? x[k] : max;
        for (int64_t k = 0; k < n; k++)
                sum += (double)MFL_REAL_EXP(x[k] - max);
        for (int64_t k = 0; k < width; k++)
                y[k] = k < n ? (mfl_real)((double)MFL_REAL_EXP(x[k] - max) / sum) : 0.0f;
}

/* ds from dp: ds = p (dp - sum of p dp). */
static void softmax_grad(int64_t width, const mfl_real *p, const mfl_real *dp, bool add, mfl_real *ds)
{
        double sum = 0;
        for (int64_t k = 0; k < width; k++)
                sum += (double)p[k] * (double)dp[k];
        for (int64_t k = 0; k < width; k++)
                ds[k] = (add ? ds[k] : 0.0f) + (mfl_real)((double)p[k] * ((double)dp[k] - sum));
}

void mfl_ref_softmax_forward(int64_t n, int64_t width, const mfl_real *x, mfl_real *y)
{
        for (int64_t i = 0; i < n; i++)
                softmax(width, width, x + i * width, y + i * width);
}

void mfl_ref_softmax_backward(
        int64_t n, int64_t width, const mfl_real *y, const mfl_real *dy, bool add, mfl_real *dx)
{
        for (int64_t i = 0; i < n; i++)
                softmax_grad(width, y + i * width, dy + i * width, add, dx + i * width);
}

/* out[i][j] (+)= the sum over k of a[i * a_i + k * a_k] * b[k * b_k + j * b_j]. */
struct product {
        int64_t m, k, n, a_i, a_k, b_k, b_j;
};

static void multiply(const struct product *v, const mfl_real *a, const mfl_real *b, bool add, mfl_real *out)
{
        for (int64_t i = 0; i < v->m; i++)
                for (int64_t j = 0; j < v->n; j++) {
                        double sum = 0;
                        for (int64_t k = 0; k < v->k; k++)
                                sum += (double)a[i * v->a_i + k * v->a_k] *
                                       (double)b[k * v->b_k + j * v->b_j];
                        out[i * v->n + j] = (add ? out[i * v->n + j] : 0.0f) + (mfl_real)sum;
                }
}

void mfl_ref_matmul_forward(
        const struct mfl_ref_matmul *v, const mfl_real *x, const mfl_real *x2, mfl_real *y)
{
        struct product p = {v->m, v->k, v->width, v->k, 1, v->width, 1};
        if (v->transposed) {
                p.b_k = 1;
                p.b_j = v->k;
        }
        for (int64_t i = 0; i < v->n; i++)
                multiply(&p, x + i * v->m * v->k, x2 + i * v->k * v->width, false, y + i * v->m * v->width);
}

void mfl_ref_matmul_backward(
        const struct mfl_ref_matmul *v, const mfl_real *x2, const mfl_real *dy, bool add, mfl_real *dx)
{
        struct product p = {v->m, v->width, v->k, v->width, 1, 1, v->width};
        if (v->transposed) {
                p.b_k = v->k;
                p.b_j = 1;
        }
        for (int64_t i = 0; i < v->n; i++)
                multiply(&p, dy + i * v->m * v->width, x2 + i * v->k * v->width, add, dx + i * v->m * v->k);
}

void mfl_ref_matmul_backward2(
        const struct mfl_ref_matmul *v, const mfl_real *x, const mfl_real *dy, bool add, mfl_real *dx2)
{
        struct product plain = {v->k, v->m, v->width, 1, v->k, v->width, 1};
        struct product turned = {v->width, v->m, v->k, 1, v->width, v->k, 1};
        for (int64_t i = 0; i < v->n; i++) {
                const mfl_real *a = x + i * v->m * v->k, *d = dy + i * v->m * v->width;
                mfl_real *out = dx2 + i * v->k * v->width;
                if (v->transposed)
                        multiply(&turned, d, a, add, out);
                else
                        multiply(&plain, a, d, add, out);
        }
}

void mfl_ref_embedding_forward(
        int64_t n, int64_t width, int vocabulary, const mfl_real *x, const mfl_real *weight, mfl_real *y)
{
        for (int64_t i = 0; i < n; i++)
                memcpy(y + i * width, weight + mfl_token(x[i], vocabulary) * width,
                        (size_t)width * sizeof *y);
}

void mfl_ref_embedding_backward(int64_t n, int64_t width, int vocabulary, int padding, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw)
{
        for (int64_t i = 0; i < n; i++) {
                int token = mfl_token(x[i], vocabulary);
                for (int64_t k = 0; token != padding && k < width; k++)
                        dw[token * width + k] += dy[i * width + k];
        }
}

/* One head of one row: pointers to its first query, key and value; rows of them are 3 width apart. */
struct head {
        const mfl_real *q, *k, *v;
        mfl_real *p;          /* T x T */
        const mfl_real *mask; /* T; NULL: none */
        int64_t first;        /* number of p[0] in the dropout mask */
};

static struct head head_of(
        const struct mfl_ref_attention *v, int64_t r, int h, const mfl_real *x, mfl_real *kept)
{
        int64_t t = v->positions, pair = r * v->heads + h, size = v->width / v->heads;
        const mfl_real *row = x + r * t * 3 * v->width + h * size;
        return (struct head){.q = row,
                .k = row + v->width,
                .v = row + 2 * v->width,
                .p = kept + pair * t * t,
                .mask = v->mask ? v->mask + r * t : NULL,
                .first = (pair + v->first_row * v->heads) * t * t};
}

static mfl_real keep_at(const struct mfl_ref_attention *v, int64_t e)
{
        return v->dropout ? mfl_dropout_at(*v->dropout, (uint64_t)e, v->rate) : 1.0f;
}

static double dot(int64_t n, const mfl_real *a, const mfl_real *b)
{
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
                sum += (double)a[i] * (double)b[i];
        return sum;
}

static void head_forward(const struct mfl_ref_attention *v, const struct head *head, mfl_real *y)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        double scale = 1 / sqrt((double)size);
        for (int64_t i = 0; i < t; i++) {
                int64_t seen = v->causal ? i + 1 : t;
                mfl_real *p = head->p + i * t;
                for (int64_t j = 0; j < seen; j++)
                        p[j] = (mfl_real)(dot(size, head->q + i * step, head->k + j * step) * scale) +
                               (head->mask ? head->mask[j] : 0.0f);
                softmax(seen, t, p, p);
                for (int64_t c = 0; c < size; c++) {
                        double sum = 0;
                        for (int64_t j = 0; j < seen; j++)
                                sum += (double)(p[j] * keep_at(v, head->first + i * t + j)) *
                                       (double)head->v[j * step + c];
                        y[i * v->width + c] = (mfl_real)sum;
                }
        }
}

void mfl_ref_attention_forward(
        const struct mfl_ref_attention *v, const mfl_real *x, mfl_real *kept, mfl_real *y)
{
        for (int64_t r = 0; r < v->rows; r++)
                for (int h = 0; h < v->heads; h++) {
                        struct head head = head_of(v, r, h, x, kept);
                        head_forward(v, &head, y + r * v->positions * v->width + h * (v->width / v->heads));
                }
}

/* The gradients of the values; then p becomes the gradient of the scores; then the gradients of queries and
 * keys. */
static void head_backward(const struct mfl_ref_attention *v, const struct head *head, const mfl_real *dy,
        bool add, mfl_real *scratch, mfl_real *dx)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        double scale = 1 / sqrt((double)size);
        mfl_real *dq = dx, *dk = dx + v->width, *dv = dx + 2 * v->width;
        for (int64_t j = 0; j < t; j++)
                for (int64_t c = 0; c < size; c++) {
                        double sum = 0;
                        for (int64_t i = 0; i < t; i++)
                                sum += (double)(head->p[i * t + j] * keep_at(v, head->first + i * t + j)) *
                                       (double)dy[i * v->width + c];
                        dv[j * step + c] = (add ? dv[j * step + c] : 0.0f) + (mfl_real)sum;
                }
        for (int64_t i = 0; i < t; i++) {
                for (int64_t j = 0; j < t; j++)
                        scratch[j] = (mfl_real)dot(size, dy + i * v->width, head->v + j * step) *
                                     keep_at(v, head->first + i * t + j);
                softmax_grad(t, head->p + i * t, scratch, false, head->p + i * t);
        }
        for (int64_t i = 0; i < t; i++)
                for (int64_t c = 0; c < size; c++) {
                        double q = 0, k = 0;
                        for (int64_t j = 0; j < t; j++) {
                                q += (double)head->p[i * t + j] * (double)head->k[j * step + c];
                                k += (double)head->p[j * t + i] * (double)head->q[j * step + c];
                        }
                        dq[i * step + c] = (add ? dq[i * step + c] : 0.0f) + (mfl_real)(q * scale);
                        dk[i * step + c] = (add ? dk[i * step + c] : 0.0f) + (mfl_real)(k * scale);
                }
}

void mfl_ref_attention_backward(const struct mfl_ref_attention *v, const mfl_real *x, mfl_real *kept,
        const mfl_real *dy, bool add, mfl_real *dx)
{
        int64_t t = v->positions, size = v->width / v->heads;
        mfl_real *scratch = kept + v->rows * v->heads * t * t;
        for (int64_t r = 0; r < v->rows; r++)
                for (int h = 0; h < v->heads; h++) {
                        struct head head = head_of(v, r, h, x, kept);
                        head_backward(v, &head, dy + r * t * v->width + h * size, add, scratch,
                                dx + r * t * 3 * v->width + h * size);
                }
}
