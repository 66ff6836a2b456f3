/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move or join tensors. Floats of `rows` samples; `add`: dx += instead of dx =. Pure. */
#ifndef MFL_KERNELS_REFERENCE_SHAPE_H
#define MFL_KERNELS_REFERENCE_SHAPE_H

#include "kernels/plan.h"
#include "kernels/reference/real.h"

/* A tensor seen from one of its dimensions: outer x n x inner, the rows among the outer. */
struct mfl_ref_axis {
        int64_t outer, n, inner;
};
struct mfl_ref_axis mfl_ref_axis_of(const struct mfl_shape *shape, int axis, int64_t rows);

/* x and x2 of add and multiply, as three dimensions each. */
struct mfl_ref_join {
        int64_t dim[3], dim2[3];
};
struct mfl_ref_join mfl_ref_join_of(const struct mfl_shape *x, const struct mfl_shape *x2);
void mfl_ref_join_forward(const struct mfl_ref_join *v, int64_t rows, enum mfl_op op, const mfl_real *x,
        const mfl_real *x2, mfl_real *y);
/* dx = dy * x2, or dy where x2 is NULL. */
void mfl_ref_join_backward(const struct mfl_ref_join *v, int64_t rows, enum mfl_op op, const mfl_real *x2,
        const mfl_real *dy, bool add, mfl_real *dx);
/* dx2 = the sum, over all partners of an element of x2, of dy * x, or of dy where x is NULL. */
void mfl_ref_join_backward2(const struct mfl_ref_join *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        bool add, mfl_real *dx2);

/* Indices [first, first + n) of an axis of a whole tensor: copies them into a tensor of n, or (out false)
 * from that tensor back. */
void mfl_ref_part_copy(const struct mfl_ref_axis *whole, int64_t first, int64_t n, bool out, bool add,
        const mfl_real *from, mfl_real *to);

/* in: the input's shape. back: from the gradient of the output to that of the input. */
void mfl_ref_transpose(const struct mfl_shape *in, const int *order, int64_t rows, bool back, bool add,
        const mfl_real *from, mfl_real *to);

void mfl_ref_mean_forward(const struct mfl_ref_axis *v, const mfl_real *x, mfl_real *y);
void mfl_ref_mean_backward(const struct mfl_ref_axis *v, const mfl_real *dy, bool add, mfl_real *dx);

/* y = the map of each sample; dx = its transpose of dy. */
void mfl_ref_map_forward(const struct mfl_map *map, int64_t rows, const mfl_real *x, mfl_real *y);
void mfl_ref_map_backward(
        const struct mfl_map *map, int64_t rows, const mfl_real *dy, bool add, mfl_real *dx);

/* {c, plane} -> {c}: the largest of each of rows * c planes. */
void mfl_ref_global_maxpool_forward(int64_t planes, int64_t plane, const mfl_real *x, mfl_real *y);
void mfl_ref_global_maxpool_backward(
        int64_t planes, int64_t plane, const mfl_real *x, const mfl_real *dy, bool add, mfl_real *dx);

#endif
