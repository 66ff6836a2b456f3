/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences. Tensors are row-major floats of `rows` samples; sums are taken in double and
 * rounded once. `add`: dx += instead of dx =. Pure, without allocation: the caller's `kept` carries what
 * backward needs from forward. */
#ifndef MFL_KERNELS_REFERENCE_SEQUENCE_H
#define MFL_KERNELS_REFERENCE_SEQUENCE_H

#include "kernels/reference/real.h"

/* Layer norm (without `centred`: RMS norm) of n vectors of `width`. kept: 2 n doubles, mean and 1 /
 * deviation. */
struct mfl_ref_rownorm {
        int64_t n, width;
        mfl_real eps;
        bool centred;
};
void mfl_ref_rownorm_forward(const struct mfl_ref_rownorm *v, const mfl_real *x, const mfl_real *weight,
        const mfl_real *bias, double *kept, mfl_real *y);
/* dx, dw and db may be NULL. */
void mfl_ref_rownorm_backward(const struct mfl_ref_rownorm *v, const mfl_real *x, const double *kept,
        const mfl_real *dy, const mfl_real *weight, bool add, mfl_real *dx, mfl_real *dw, mfl_real *db);

void mfl_ref_softmax_forward(int64_t n, int64_t width, const mfl_real *x, mfl_real *y);
void mfl_ref_softmax_backward(
        int64_t n, int64_t width, const mfl_real *y, const mfl_real *dy, bool add, mfl_real *dx);

/* n products [m][k] x [k][width], or x [width][k] where `transposed`. */
struct mfl_ref_matmul {
        int64_t n, m, k, width;
        bool transposed;
};
void mfl_ref_matmul_forward(
        const struct mfl_ref_matmul *v, const mfl_real *x, const mfl_real *x2, mfl_real *y);
void mfl_ref_matmul_backward(
        const struct mfl_ref_matmul *v, const mfl_real *x2, const mfl_real *dy, bool add, mfl_real *dx);
void mfl_ref_matmul_backward2(
        const struct mfl_ref_matmul *v, const mfl_real *x, const mfl_real *dy, bool add, mfl_real *dx2);

/* x: the tokens, rows * positions. */
void mfl_ref_embedding_forward(
        int64_t n, int64_t width, int vocabulary, const mfl_real *x, const mfl_real *weight, mfl_real *y);
void mfl_ref_embedding_backward(int64_t n, int64_t width, int vocabulary, int padding, const mfl_real *x,
        const mfl_real *dy, mfl_real *dw);

/* kept: the softmax, [rows][heads][T][T], before dropout; then T floats of scratch. */
struct mfl_ref_attention {
        int64_t rows, first_row, positions, width; /* first_row: number of the first row within the step */
        int heads;
        bool causal;
        mfl_real rate;
        const struct mfl_rng_key *dropout; /* of the layer and step; NULL: none */
        const mfl_real *mask;              /* rows * positions, added to the scores of keys; NULL: none */
};
void mfl_ref_attention_forward(
        const struct mfl_ref_attention *v, const mfl_real *x, mfl_real *kept, mfl_real *y);
void mfl_ref_attention_backward(const struct mfl_ref_attention *v, const mfl_real *x, mfl_real *kept,
        const mfl_real *dy, bool add, mfl_real *dx);

/* kept: for each row and position the gates after their functions (i, f, g, o; GRU: r, z, n, and the hidden
 * share of n before r), 4 H floats; for each the cell of LSTM, H; then 2 H of scratch. */
struct mfl_ref_recurrent {
        int64_t rows, positions, features, hidden;
        enum mfl_cell cell;
        bool last_cell;                                            /* LSTM: as struct mfl_layer says */
        const mfl_real *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* biases may be NULL */
};
#define MFL_REF_RECURRENT_KEPT 5
#define MFL_REF_RECURRENT_SCRATCH 2
void mfl_ref_recurrent_forward(
        const struct mfl_ref_recurrent *v, const mfl_real *x, mfl_real *kept, mfl_real *y);
/* dx and each gradient of params may be NULL. It overwrites `kept`: call it once for each forward, as for
 * attention. */
void mfl_ref_recurrent_backward(const struct mfl_ref_recurrent *v, const mfl_real *x, const mfl_real *y,
        mfl_real *kept, const mfl_real *dy, bool add, mfl_real *dx, mfl_real *dw_ih, mfl_real *dw_hh,
        mfl_real *db_ih, mfl_real *db_hh);

#endif
