/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move or join tensors, as plain loops. */
#include "kernels/reference/shape.h"

struct mfl_ref_axis mfl_ref_axis_of(const struct mfl_shape *shape, int axis, int64_t rows)
{
        struct mfl_ref_axis v = {.outer = rows, .n = shape->dim[axis], .inner = 1};
        for (int d = 0; d < axis; d++)
                v.outer *= shape->dim[d];
        for (int d = axis + 1; d < shape->rank; d++)
                v.inner *= shape->dim[d];
        return v;
}

struct mfl_ref_join mfl_ref_join_of(const struct mfl_shape *x, const struct mfl_shape *x2)
{
        struct mfl_ref_join v = {.dim = {1, 1, 1}, .dim2 = {1, 1, 1}};
        int shift = 3 - x->rank;
        mfl_assert(shift >= 0 && x->rank == x2->rank);
        for (int d = 0; d < x->rank; d++) {
                v.dim[shift + d] = x->dim[d];
                v.dim2[shift + d] = x2->dim[d];
        }
        return v;
}

/* Where the partner of x's element (i, j, k) lies in x2. */
static int64_t at2(const struct mfl_ref_join *v, int64_t i, int64_t j, int64_t k)
{
        int64_t a = v->dim2[0] == 1 ? 0 : i, b = v->dim2[1] == 1 ? 0 : j, c = v->dim2[2] == 1 ? 0 : k;
        return (a * v->dim2[1] + b) * v->dim2[2] + c;
}

void mfl_ref_join_forward(const struct mfl_ref_join *v, int64_t rows, enum mfl_op op, const mfl_real *x,
        const mfl_real *x2, mfl_real *y)
{
        int64_t count2 = v->dim2[0] * v->dim2[1] * v->dim2[2], e = 0;
        for (int64_t r = 0; r < rows; r++, x2 += count2)
                for (int64_t i = 0; i < v->dim[0]; i++)
                        for (int64_t j = 0; j < v->dim[1]; j++)
                                for (int64_t k = 0; k < v->dim[2]; k++, e++) {
                                        mfl_real b = x2[at2(v, i, j, k)];
                                        y[e] = op == MFL_OP_GATE       ? (b > 0 ? x[e] : 0)
                                               : op == MFL_OP_MULTIPLY ? x[e] * b
                                                                       : x[e] + b;
                                }
}

void mfl_ref_join_backward(const struct mfl_ref_join *v, int64_t rows, enum mfl_op op, const mfl_real *x2,
        const mfl_real *dy, bool add, mfl_real *dx)
{
        int64_t count2 = v->dim2[0] * v->dim2[1] * v->dim2[2], e = 0;
        for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < v->dim[0]; i++)
                        for (int64_t j = 0; j < v->dim[1]; j++)
                                for (int64_t k = 0; k < v->dim[2]; k++, e++) {
                                        mfl_real b = x2 ? x2[r * count2 + at2(v, i, j, k)] : 1.0f;
                                        mfl_real d = op != MFL_OP_GATE ? dy[e] * b : b > 0 ? dy[e] : 0.0f;
                                        dx[e] = (add ? dx[e] : 0.0f) + d;
                                }
}

/* The sum over all partners of x2's element (a, b, c) in one row. */
static double sum_met(
        const struct mfl_ref_join *v, const int64_t at[3], const mfl_real *x, const mfl_real *dy)
{
        int64_t first[3], end[3];
        double sum = 0;
        for (int d = 0; d < 3; d++) {
                bool repeated = v->dim2[d] == 1;
                first[d] = repeated ? 0 : at[d];
                end[d] = repeated ? v->dim[d] : at[d] + 1;
        }
        for (int64_t i = first[0]; i < end[0]; i++)
                for (int64_t j = first[1]; j < end[1]; j++)
                        for (int64_t k = first[2]; k < end[2]; k++) {
                                int64_t e = (i * v->dim[1] + j) * v->dim[2] + k;
                                sum += x ? (double)dy[e] * (double)x[e] : (double)dy[e];
                        }
        return sum;
}

void mfl_ref_join_backward2(const struct mfl_ref_join *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        bool add, mfl_real *dx2)
{
        int64_t count = v->dim[0] * v->dim[1] * v->dim[2], e = 0;
        for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < v->dim2[0]; i++)
                        for (int64_t j = 0; j < v->dim2[1]; j++)
                                for (int64_t k = 0; k < v->dim2[2]; k++, e++) {
                                        int64_t at[] = {i, j, k};
                                        double sum = sum_met(v, at, x ? x + r * count : NULL, dy + r * count);
                                        dx2[e] = (add ? dx2[e] : 0.0f) + (mfl_real)sum;
                                }
}

void mfl_ref_part_copy(const struct mfl_ref_axis *whole, int64_t first, int64_t n, bool out, bool add,
        const mfl_real *from, mfl_real *to)
{
        for (int64_t o = 0; o < whole->outer; o++) {
                int64_t large = (o * whole->n + first) * whole->inner, small = o * n * whole->inner;
                const mfl_real *src = from + (out ? large : small);
                mfl_real *dst = to + (out ? small : large);
                for (int64_t e = 0; e < n * whole->inner; e++)
                        dst[e] = (add ? dst[e] : 0.0f) + src[e];
        }
}

void mfl_ref_transpose(const struct mfl_shape *in, const int *order, int64_t rows, bool back, bool add,
        const mfl_real *from, mfl_real *to)
{
        int64_t dim[3] = {1, 1, 1}, stride[3] = {0, 0, 0}, strides_in[3], count = mfl_shape_count(in), e = 0;
        int shift = 3 - in->rank;
        for (int64_t d = in->rank - 1, s = 1; d >= 0; s *= in->dim[d], d--)
                strides_in[d] = s;
        for (int d = 0; d < in->rank; d++) {
                dim[shift + d] = in->dim[order[d]];
                stride[shift + d] = strides_in[order[d]];
        }
        for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < dim[0]; i++)
                        for (int64_t j = 0; j < dim[1]; j++)
                                for (int64_t k = 0; k < dim[2]; k++, e++) {
                                        int64_t other =
                                                r * count + i * stride[0] + j * stride[1] + k * stride[2];
                                        int64_t dst = back ? other : e, src = back ? e : other;
                                        to[dst] = (add ? to[dst] : 0.0f) + from[src];
                                }
}

void mfl_ref_mean_forward(const struct mfl_ref_axis *v, const mfl_real *x, mfl_real *y)
{
        for (int64_t o = 0; o < v->outer; o++)
                for (int64_t i = 0; i < v->inner; i++) {
                        double sum = 0;
                        for (int64_t k = 0; k < v->n; k++)
                                sum += (double)x[(o * v->n + k) * v->inner + i];
                        y[o * v->inner + i] = (mfl_real)(sum / (double)v->n);
                }
}

void mfl_ref_mean_backward(const struct mfl_ref_axis *v, const mfl_real *dy, bool add, mfl_real *dx)
{
        for (int64_t o = 0; o < v->outer; o++)
                for (int64_t k = 0; k < v->n; k++)
                        for (int64_t i = 0; i < v->inner; i++) {
                                mfl_real *at = &dx[(o * v->n + k) * v->inner + i];
                                *at = (add ? *at : 0.0f) + dy[o * v->inner + i] / (mfl_real)v->n;
                        }
}

void mfl_ref_global_maxpool_forward(int64_t planes, int64_t plane, const mfl_real *x, mfl_real *y)
{
        for (int64_t p = 0; p < planes; p++) {
                mfl_real best = x[p * plane];
                for (int64_t i = 1; i < plane; i++)
                        best = x[p * plane + i] > best ? x[p * plane + i] : best;
                y[p] = best;
        }
}

void mfl_ref_global_maxpool_backward(
        int64_t planes, int64_t plane, const mfl_real *x, const mfl_real *dy, bool add, mfl_real *dx)
{
        for (int64_t p = 0; p < planes; p++) {
                int64_t best = 0;
                for (int64_t i = 1; i < plane; i++)
                        best = x[p * plane + i] > x[p * plane + best] ? i : best;
                for (int64_t i = 0; i < plane; i++)
                        dx[p * plane + i] = (add ? dx[p * plane + i] : 0.0f) + (i == best ? dy[p] : 0.0f);
        }
}

/* The sum of row r's terms; `from` is the block's first element of the right lane. */
static double map_sum(const struct mfl_map_rows *rows, int64_t r, int64_t inner, const mfl_real *from)
{
        int64_t t = rows->first ? rows->first[r] : r, end = rows->first ? rows->first[r + 1] : r + 1;
        double sum = 0;
        for (; t < end; t++)
                sum += (rows->weight ? (double)rows->weight[t] : 1.0) * (double)from[rows->index[t] * inner];
        return sum;
}

void mfl_ref_map_forward(const struct mfl_map *map, int64_t rows, const mfl_real *x, mfl_real *y)
{
        const int32_t *first = map->y.first;
        for (int64_t a = 0; a < rows * map->outer; a++, x += map->n_in * map->inner)
                for (int64_t o = 0; o < map->n_out; o++)
                        for (int64_t b = 0; b < map->inner; b++)
                                *y++ = first && first[o] == first[o + 1]
                                               ? map->fill
                                               : (mfl_real)map_sum(&map->y, o, map->inner, x + b);
}

void mfl_ref_map_backward(const struct mfl_map *map, int64_t rows, const mfl_real *dy, bool add, mfl_real *dx)
{
        for (int64_t a = 0; a < rows * map->outer; a++, dy += map->n_out * map->inner)
                for (int64_t i = 0; i < map->n_in; i++)
                        for (int64_t b = 0; b < map->inner; b++, dx++)
                                *dx = (add ? *dx : 0.0f) + (mfl_real)map_sum(&map->x, i, map->inner, dy + b);
}
