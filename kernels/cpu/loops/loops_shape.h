/* SPDX-License-Identifier: Apache-2.0 */
/* Joins with a repeated second input, and means; part of loops_body.h. */

/* Where the partner of x's element (i, j, 0) lies in x2. */
INLINE int64_t join_at(const struct mfl_join *v, int64_t i, int64_t j)
{
        int64_t a = v->dim2[0] == 1 ? 0 : i, b = v->dim2[1] == 1 ? 0 : j;
        return (a * v->dim2[1] + b) * v->dim2[2];
}

/* One line along the last dimension; step: b's, 0 where it is repeated. */
static void join_line(
        int64_t n, enum mfl_op op, int64_t step, const float *a, const float *b, float *restrict y)
{
        float one = b[0];
        bool multiplies = op == MFL_OP_MULTIPLY;
        if (op == MFL_OP_GATE)
                for (int64_t k = 0; k < n; k++)
                        y[k] = b[k * step] > 0.0f ? a[k] : 0.0f;
        else if (multiplies && step)
                for (int64_t k = 0; k < n; k++)
                        y[k] = a[k] * b[k];
        else if (multiplies)
                for (int64_t k = 0; k < n; k++)
                        y[k] = a[k] * one;
        else if (step)
                for (int64_t k = 0; k < n; k++)
                        y[k] = a[k] + b[k];
        else
                for (int64_t k = 0; k < n; k++)
                        y[k] = a[k] + one;
}

static void join(const struct mfl_join *v, enum mfl_op op, const float *x, const float *x2, float *y)
{
        int64_t n = v->dim[2], count2 = v->dim2[0] * v->dim2[1] * v->dim2[2];
        for (int64_t r = 0; r < v->rows; r++, x2 += count2)
                for (int64_t i = 0; i < v->dim[0]; i++)
                        for (int64_t j = 0; j < v->dim[1]; j++, x += n, y += n)
                                join_line(n, op, v->dim2[2] > 1, x, x2 + join_at(v, i, j), y);
}

/* dx2 = the sum, over all partners of an element of x2, of dy * x, or of dy where x is NULL. */
static void join_grad2(const struct mfl_join *v, const float *x, const float *dy, float *dx2)
{
        int64_t n = v->dim[2], count2 = v->dim2[0] * v->dim2[1] * v->dim2[2];
        memset(dx2, 0, (size_t)(v->rows * count2) * sizeof *dx2);
        for (int64_t r = 0; r < v->rows; r++, dx2 += count2)
                for (int64_t i = 0; i < v->dim[0]; i++)
                        for (int64_t j = 0; j < v->dim[1]; j++, dy += n, x = x ? x + n : NULL) {
                                float *restrict to = dx2 + join_at(v, i, j);
                                if (v->dim2[2] == 1)
                                        to[0] += x ? dot_of(dy, x, n) : sum_of(dy, n);
                                for (int64_t k = 0; v->dim2[2] > 1 && x && k < n; k++)
                                        to[k] += dy[k] * x[k];
                                for (int64_t k = 0; v->dim2[2] > 1 && !x && k < n; k++)
                                        to[k] += dy[k];
                        }
}

static void mean_axis(const struct mfl_axis *v, const float *x, float *y)
{
        float share = 1.0f / (float)v->n;
        for (int64_t o = 0; o < v->outer; o++, x += v->n * v->inner, y += v->inner) {
                if (v->inner == 1) {
                        y[0] = sum_of(x, v->n) * share;
                        continue;
                }
                column_sums(v->n, v->inner, v->inner, x, y);
                for (int64_t i = 0; i < v->inner; i++)
                        y[i] *= share;
        }
}

static void mean_axis_grad(const struct mfl_axis *v, const float *restrict dy, float *restrict dx)
{
        float share = 1.0f / (float)v->n;
        for (int64_t o = 0; o < v->outer; o++, dy += v->inner)
                for (int64_t k = 0; k < v->n; k++, dx += v->inner)
                        for (int64_t i = 0; i < v->inner; i++)
                                dx[i] = dy[i] * share;
}
