/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences. Tensors are row-major floats of `rows` samples; sums are taken in double and
 * rounded once. `add`: dx += instead of dx =. Pure, without allocation: the caller's `kept` carries what
 * backward needs from forward. */
#ifndef MFL_KERNELS_REFERENCE_SEQUENCE_H
#define MFL_KERNELS_REFERENCE_SEQUENCE_H

#include "kernels/backend.h"

/* Layer norm (without `centred`: RMS norm) of n vectors of `width`. kept: 2 n doubles, mean and 1 /
 * deviation. */
struct mfl_ref_rownorm {
        int64_t n, width;
        float eps;
        bool centred;
};
void mfl_ref_rownorm_forward(const struct mfl_ref_rownorm *v, const float *x, const float *weight,
        const float *bias, double *kept, float *y);
/* dx, dw and db may be NULL. */
void mfl_ref_rownorm_backward(const struct mfl_ref_rownorm *v, const float *x, const double *kept,
        const float *dy, const float *weight, bool add, float *dx, float *dw, float *db);

void mfl_ref_softmax_forward(int64_t n, int64_t width, const float *x, float *y);
void mfl_ref_softmax_backward(int64_t n, int64_t width, const float *y, const float *dy, bool add, float *dx);

/* n products [m][k] x [k][width], or x [width][k] where `transposed`. */
struct mfl_ref_matmul {
        int64_t n, m, k, width;
        bool transposed;
};
void mfl_ref_matmul_forward(const struct mfl_ref_matmul *v, const float *x, const float *x2, float *y);
void mfl_ref_matmul_backward(
        const struct mfl_ref_matmul *v, const float *x2, const float *dy, bool add, float *dx);
void mfl_ref_matmul_backward2(
        const struct mfl_ref_matmul *v, const float *x, const float *dy, bool add, float *dx2);

/* x: the tokens, rows * positions. */
void mfl_ref_embedding_forward(
        int64_t n, int64_t width, int vocabulary, const float *x, const float *weight, float *y);
void mfl_ref_embedding_backward(
        int64_t n, int64_t width, int vocabulary, int padding, const float *x, const float *dy, float *dw);

/* kept: the softmax, [rows][heads][T][T], before dropout; then T floats of scratch. */
struct mfl_ref_attention {
        int64_t rows, first_row, positions, width; /* first_row: number of the first row within the step */
        int heads;
        bool causal;
        float rate;
        const struct mfl_rng_key *dropout; /* of the layer and step; NULL: none */
        const float *mask;                 /* rows * positions, added to the scores of keys; NULL: none */
};
void mfl_ref_attention_forward(const struct mfl_ref_attention *v, const float *x, float *kept, float *y);
void mfl_ref_attention_backward(
        const struct mfl_ref_attention *v, const float *x, float *kept, const float *dy, bool add, float *dx);

/* kept: for each row and position the gates after their functions (i, f, g, o; GRU: r, z, n, and the hidden
 * share of n before r), 4 H floats; for each the cell of LSTM, H; then 2 H of scratch. */
struct mfl_ref_recurrent {
        int64_t rows, positions, features, hidden;
        enum mfl_cell cell;
        bool last_cell;                                         /* LSTM: as struct mfl_layer says */
        const float *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* biases may be NULL */
};
#define MFL_REF_RECURRENT_KEPT 5
#define MFL_REF_RECURRENT_SCRATCH 2
void mfl_ref_recurrent_forward(const struct mfl_ref_recurrent *v, const float *x, float *kept, float *y);
/* dx and each gradient of params may be NULL. It overwrites `kept`: call it once for each forward, as for
 * attention. */
void mfl_ref_recurrent_backward(const struct mfl_ref_recurrent *v, const float *x, const float *y,
        float *kept, const float *dy, bool add, float *dx, float *dw_ih, float *dw_hh, float *db_ih,
        float *db_hh);

#endif
