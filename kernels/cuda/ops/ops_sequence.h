/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences over G clients at once. Conventions, errors and the meaning of `add` are those of
 * ops.h. A sequence {T,F} lies in the order of its indices, [G][batch][T][F]. */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_SEQUENCE_H
#define MFL_KERNELS_CUDA_OPS_OPS_SEQUENCE_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Layer norm (centred) and RMS norm of `vectors` vectors of `width` elements in each group. A warp takes a
 * vector: lane l adds elements l, l + 32, ..., and a butterfly joins the lanes; the variance is taken about
 * the mean. kept: mean and 1 / sqrt(var + eps) of each vector, [G][vectors][2]; NULL where no backward
 * follows. Gradients of weight and bias are sums over vectors in the order of ops_columns.h. */
struct mfl_cuda_rownorm {
        int groups, vectors, width;
        enum mfl_cuda_type type;
        bool centred;
        float eps;
        const float *weight, *bias; /* of group 0; bias NULL: none */
        uint64_t stride;
        const void *in;
        void *out;
        float *kept;
        const void *dout;
        void *din; /* NULL: not wanted */
        bool add;
        float *dweight, *dbias; /* of group 0; dbias NULL: not wanted */
        void *workspace;        /* mfl_cuda_rownorm_workspace bytes */
        struct mfl_cuda_steps steps;
};
uint64_t mfl_cuda_rownorm_workspace(int groups, int vectors, int width, enum mfl_cuda_type type);
cudaError_t mfl_cuda_rownorm_forward(const struct mfl_cuda_rownorm *a, cudaStream_t stream);
cudaError_t mfl_cuda_rownorm_backward(const struct mfl_cuda_rownorm *a, cudaStream_t stream);

/* Softmax of vectors whose elements are `step` apart; vector v begins at v / inner * outer_step + v % inner.
 * Sums as above. Backward: dx = y (dy - sum y dy). */
struct mfl_cuda_softmax {
        int groups, vectors, width;
        int inner, step;
        int64_t outer_step, group_step; /* elements from one to the next */
        enum mfl_cuda_type type;
        const void *in;
        void *out;
        const void *dout;
        void *din;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_softmax_forward(const struct mfl_cuda_softmax *a, cudaStream_t stream);
cudaError_t mfl_cuda_softmax_backward(const struct mfl_cuda_softmax *a, cudaStream_t stream);

/* y[t] = row tokens[t] of the weights, in the type of the products' copies. Tokens are floats. Backward: row
 * v of dweight = the sum of dy over v's places in the rows that count, in their order; 0 where there are
 * none. links is [G][batch * positions]: each place's next place with the same token. */
struct mfl_cuda_embedding {
        int groups, batch, positions, width, vocabulary;
        enum mfl_cuda_type type;
        int padding;                   /* the token whose row has no gradient; -1: none */
        enum mfl_cuda_type token_type; /* F32, except for a part of a table */
        const void *tokens;
        const void *weight; /* of group 0 */
        uint64_t stride;
        void *out;
        const void *dout;
        float *dweight; /* of group 0, with the stride above */
        uint32_t *links;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_embedding_forward(const struct mfl_cuda_embedding *a, cudaStream_t stream);
cudaError_t mfl_cuda_embedding_backward(const struct mfl_cuda_embedding *a, cudaStream_t stream);

/* MFL_MASKED where a token is `padding`, 0 elsewhere; in fp16 the lowest number instead. */
struct mfl_cuda_mask {
        int groups, batch, positions, padding;
        enum mfl_cuda_type type, token_type;
        const void *tokens;
        void *out;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_mask(const struct mfl_cuda_mask *a, cudaStream_t stream);

/* Many matrices: element (i, j) of pair (outer, inner) of group g is at g * group + outer * outer + inner *
 * inner + i * row + j * column. */
struct mfl_cuda_matrix {
        void *p;
        int64_t group, outer, inner, row, column;
        enum mfl_cuda_type type;
};

static inline struct mfl_cuda_matrix mfl_cuda_turned(struct mfl_cuda_matrix x)
{
        int64_t row = x.row;
        x.row = x.column;
        x.column = row;
        return x;
}

/* c = alpha * a b (+ c), [m][k] x [k][n], for outer * inner pairs of each group. Products and sums by fmaf
 * from +0 in the order of k. Where all three matrices have the type of `precision`, tensor cores compute it
 * as that precision says, in the same order (ops_matmul_mma.cu); different types are always multiplied in
 * float. Neither G nor m nor n changes the bits of an element. Only own kernels: cuBLASLt's batch has one
 * stride where this has two, its heuristics may name another algorithm for another number of clients, and
 * these products (attention written out, K of 32 to 128) are limited by bytes. */
struct mfl_cuda_matmul {
        enum mfl_precision precision;
        int groups, outer, inner, m, n, k;
        struct mfl_cuda_matrix a, b, c;
        float alpha;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_matmul(const struct mfl_cuda_matmul *a, cudaStream_t stream);

/* The weights of attention, floats [G][batch][heads][T][T]; a warp takes one query's. forward: scores become
 * weights in place, 0 where `causal` hides a key; then, where training and rate > 0, dropped = weights *
 * keep. backward: the gradients of the dropped weights become those of the scores, in place: ds = p (k dp -
 * sum of p k dp). Element numbers of the mask are those of enum mfl_op's attention. */
struct mfl_cuda_attention {
        int groups, batch, heads, positions;
        bool causal, training;
        float rate;
        uint32_t layer;
        float *weights;
        float *dropped;   /* untouched without dropout */
        float *scores;    /* backward */
        const void *mask; /* [G][batch][T], added to the scores of keys; NULL: none */
        enum mfl_cuda_type mask_type;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_attention_weights(const struct mfl_cuda_attention *a, cudaStream_t stream);
cudaError_t mfl_cuda_attention_drop(const struct mfl_cuda_attention *a, cudaStream_t stream);
cudaError_t mfl_cuda_attention_scores(const struct mfl_cuda_attention *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
