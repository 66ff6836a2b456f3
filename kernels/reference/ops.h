/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops: the specification that every backend is compared with.
 *
 * Tensors are NCHW floats of `rows` samples. Sums of products are taken in double and rounded once to float,
 * so that the tolerance of a comparison covers only the other side. `add`: dx += instead of dx =. Pure
 * functions without allocation.
 */
#ifndef MFL_KERNELS_REFERENCE_OPS_H
#define MFL_KERNELS_REFERENCE_OPS_H

#include "kernels/plan.h"

void mfl_ref_conv_forward(const struct mfl_window *v, int64_t rows, const float *x, const float *weight,
        const float *bias, float *y);
void mfl_ref_conv_backward_data(
        const struct mfl_window *v, int64_t rows, const float *dy, const float *weight, bool add, float *dx);
/* dw and db may be NULL. */
void mfl_ref_conv_backward_params(
        const struct mfl_window *v, int64_t rows, const float *x, const float *dy, float *dw, float *db);
/* The same for transposed convolutions; the weight is IOHW. */
void mfl_ref_convtranspose_forward(const struct mfl_window *v, int64_t rows, const float *x,
        const float *weight, const float *bias, float *y);
void mfl_ref_convtranspose_backward_data(
        const struct mfl_window *v, int64_t rows, const float *dy, const float *weight, bool add, float *dx);
void mfl_ref_convtranspose_backward_params(
        const struct mfl_window *v, int64_t rows, const float *x, const float *dy, float *dw, float *db);

/* x: rows * n_in, weight: n_out * n_in, y: rows * n_out. */
void mfl_ref_dense_forward(int64_t n_in, int64_t n_out, int64_t rows, const float *x, const float *weight,
        const float *bias, float *y);
void mfl_ref_dense_backward_data(
        int64_t n_in, int64_t n_out, int64_t rows, const float *dy, const float *weight, bool add, float *dx);
void mfl_ref_dense_backward_params(
        int64_t n_in, int64_t n_out, int64_t rows, const float *x, const float *dy, float *dw, float *db);

void mfl_ref_maxpool_forward(const struct mfl_window *v, int64_t rows, const float *x, float *y);
void mfl_ref_maxpool_backward(
        const struct mfl_window *v, int64_t rows, const float *x, const float *dy, bool add, float *dx);
void mfl_ref_avgpool_forward(const struct mfl_window *v, int64_t rows, const float *x, float *y);
void mfl_ref_avgpool_backward(const struct mfl_window *v, int64_t rows, const float *dy, bool add, float *dx);

/* {c, plane} -> {c}: the mean of each of rows * c planes. */
void mfl_ref_global_avgpool_forward(int64_t planes, int64_t plane, const float *x, float *y);
void mfl_ref_global_avgpool_backward(int64_t planes, int64_t plane, const float *dy, bool add, float *dx);

/* Batch and group norm of rows * channels planes: (x - mean) / sqrt(var + eps) * weight[c] + bias[c], with
 * biased variances. Statistics are those of the given rows. */
struct mfl_norm {
        int64_t channels, plane; /* plane: floats of one plane; 1 for vectors */
        int64_t groups;          /* group norm; 0 for batch norm */
        float eps;
        const float *mean, *var; /* batch norm in inference: the running statistics; else NULL */
};
struct mfl_norm mfl_norm_of(const struct mfl_graph *graph, int i); /* mean and var NULL */

void mfl_ref_norm_forward(const struct mfl_norm *v, int64_t rows, const float *x, const float *weight,
        const float *bias, float *y);
/* dx may be NULL; dw and db may both be NULL. */
void mfl_ref_norm_backward(const struct mfl_norm *v, int64_t rows, const float *x, const float *dy,
        const float *weight, bool add, float *dx, float *dw, float *db);
/* Batch norm: running = (1 - momentum) * running + momentum * (mean, unbiased variance) of the rows. For a
 * single value the variance is the biased one. */
void mfl_ref_norm_running(
        const struct mfl_norm *v, int64_t rows, const float *x, float momentum, float *mean, float *var);

#endif
