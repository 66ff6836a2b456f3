/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops: the specification that every backend is compared with.
 *
 * Tensors are NCHW floats of `rows` samples. Sums of products are taken in double and rounded once to float,
 * so that the comparison's tolerance is the other side's. `add`: dx += instead of dx =. Pure functions, no
 * allocation.
 */
#ifndef MFL_KERNELS_REFERENCE_OPS_H
#define MFL_KERNELS_REFERENCE_OPS_H

#include "kernels/plan.h"

void mfl_ref_conv_forward(const struct mfl_window *v, int64_t rows, const float *x, const float *weight,
        const float *bias, float *y);
void mfl_ref_conv_backward_data(
        const struct mfl_window *v, int64_t rows, const float *dy, const float *weight, bool add, float *dx);
/* db may be NULL. */
void mfl_ref_conv_backward_params(
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

#endif
