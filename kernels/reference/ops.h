/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops: the specification that every backend is compared with.
 *
 * Tensors are NCHW floats of `rows` samples. Sums of products are taken in double and rounded once to mfl_real,
 * so that the tolerance of a comparison covers only the other side. `add`: dx += instead of dx =. Pure
 * functions without allocation.
 */
#ifndef MFL_KERNELS_REFERENCE_OPS_H
#define MFL_KERNELS_REFERENCE_OPS_H

#include "kernels/plan.h"
#include "kernels/reference/real.h"

void mfl_ref_conv_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, mfl_real *y);
void mfl_ref_conv_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx);
/* dw and db may be NULL. */
void mfl_ref_conv_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db);
/* The same for transposed convolutions; the weight is IOHW. */
void mfl_ref_convtranspose_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *weight, const mfl_real *bias, mfl_real *y);
void mfl_ref_convtranspose_backward_data(const struct mfl_window *v, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx);
void mfl_ref_convtranspose_backward_params(const struct mfl_window *v, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db);

/* x: rows * n_in, weight: n_out * n_in, y: rows * n_out. */
void mfl_ref_dense_forward(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *x,
        const mfl_real *weight, const mfl_real *bias, mfl_real *y);
void mfl_ref_dense_backward_data(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx);
void mfl_ref_dense_backward_params(int64_t n_in, int64_t n_out, int64_t rows, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw, mfl_real *db);

void mfl_ref_maxpool_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, mfl_real *y);
void mfl_ref_maxpool_backward(const struct mfl_window *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        bool add, mfl_real *dx);
void mfl_ref_avgpool_forward(const struct mfl_window *v, int64_t rows, const mfl_real *x, mfl_real *y);
void mfl_ref_avgpool_backward(
        const struct mfl_window *v, int64_t rows, const mfl_real *dy, bool add, mfl_real *dx);

/* {c, plane} -> {c}: the mean of each of rows * c planes. */
void mfl_ref_global_avgpool_forward(int64_t planes, int64_t plane, const mfl_real *x, mfl_real *y);
void mfl_ref_global_avgpool_backward(
        int64_t planes, int64_t plane, const mfl_real *dy, bool add, mfl_real *dx);

/* Batch and group norm of rows * channels planes: (x - mean) / sqrt(var + eps) * weight[c] + bias[c], with
 * biased variances. Statistics are those of the given rows. */
struct mfl_norm {
        int64_t channels, plane; /* plane: floats of one plane; 1 for vectors */
        int64_t groups;          /* group norm; 0 for batch norm */
        mfl_real eps;
        const mfl_real *mean, *var; /* batch norm in inference: the running statistics; else NULL */
};
struct mfl_norm mfl_norm_of(const struct mfl_graph *graph, int i); /* mean and var NULL */

void mfl_ref_norm_forward(const struct mfl_norm *v, int64_t rows, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, mfl_real *y);
/* dx may be NULL; dw and db may both be NULL. */
void mfl_ref_norm_backward(const struct mfl_norm *v, int64_t rows, const mfl_real *x, const mfl_real *dy,
        const mfl_real *weight, bool add, mfl_real *dx, mfl_real *dw, mfl_real *db);
/* Batch norm: running = (1 - momentum) * running + momentum * (mean, unbiased variance) of the rows. For a
 * single value the variance is the biased one. */
void mfl_ref_norm_running(const struct mfl_norm *v, int64_t rows, const mfl_real *x, mfl_real momentum,
        mfl_real *mean, mfl_real *var);

#endif
