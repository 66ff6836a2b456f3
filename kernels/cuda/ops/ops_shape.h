/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move, join or average tensors, and activations that no layer carries. Conventions, errors
 * and the meaning of `add` are those of ops.h.
 *
 * Several of them see a sample as up to three dimensions; neighbouring threads count up the innermost first.
 * A side says where in a sample an index (i, j, k) lies: at first + i * stride[0] + j * stride[1] + k *
 * stride[2]. For a flattened image that keeps the image's order (pixels > 1), element e of the vector lies at
 * e % pixels * c + e / pixels.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_SHAPE_H
#define MFL_KERNELS_CUDA_OPS_OPS_SHAPE_H

#include "common/model/unary.h"
#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = f(x); dx = f'(x) dy (+ dx); y is not read. alpha, beta: the function's parameters (unary.def). */
struct mfl_cuda_unary {
        struct mfl_cuda_tensor x;
        enum mfl_curve curve;
        float alpha, beta;
        const void *in;
        void *out;
        const void *dout;
        void *din;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_unary_forward(const struct mfl_cuda_unary *a, cudaStream_t stream);
cudaError_t mfl_cuda_unary_backward(const struct mfl_cuda_unary *a, cudaStream_t stream);

struct mfl_cuda_side {
        int count; /* elements of the whole sample */
        int first, stride[3];
        int pixels, c; /* pixels 1: a plain sample */
};

/* to = from (add: to += from), index by index. */
struct mfl_cuda_move {
        int groups, batch, dim[3];
        enum mfl_cuda_type type;
        struct mfl_cuda_side source, target;
        const void *from;
        void *to;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_move(const struct mfl_cuda_move *a, cudaStream_t stream);

/* x = 0 in groups that count. */
struct mfl_cuda_clear {
        int groups;
        uint64_t n, stride; /* words of 32 bits of a group, and from one group's to the next's */
        uint32_t *to;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_clear(const struct mfl_cuda_clear *a, cudaStream_t stream);

/* y = x + x2, x * x2, or with `gate` x where x2 > 0 and 0 elsewhere; then dx2 = 0. x2 has dim2[d] = dim[d], or 1: then it is repeated, and its stride is 0. Backward: dx
 * = dy * x2, dx2 = the sum of dy * x over its element's partners (for a sum: without the factor); either may
 * be NULL. Order of these sums: where an element has 32 partners or more, lane l of 32 takes the l-th, l +
 * 32-th, ..., the last index counting first, and a butterfly joins the lanes; else one after another. */
struct mfl_cuda_join {
        int groups, batch, dim[3], dim2[3];
        enum mfl_cuda_type type;
        bool multiply, gate;
        struct mfl_cuda_side x, x2, y;
        const void *in, *in2;
        void *out;
        const void *dout;
        void *din, *din2;
        bool add, add2;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_join_forward(const struct mfl_cuda_join *a, cudaStream_t stream);
cudaError_t mfl_cuda_join_backward(const struct mfl_cuda_join *a, cudaStream_t stream);

/* y = the mean of `n` elements of x that are `step` apart, from 0 on one after another. */
struct mfl_cuda_mean {
        int groups, batch, dim[3]; /* of y */
        enum mfl_cuda_type type;
        struct mfl_cuda_side x, y;
        int n, step;
        const void *in;
        void *out;
        const void *dout;
        void *din;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_mean_forward(const struct mfl_cuda_mean *a, cudaStream_t stream);
cudaError_t mfl_cuda_mean_backward(const struct mfl_cuda_mean *a, cudaStream_t stream);

/* The largest of each channel; the first wins a tie. x is the input; backward reads `in` too. */
cudaError_t mfl_cuda_global_max_forward(const struct mfl_cuda_pool *a, cudaStream_t stream);
cudaError_t mfl_cuda_global_max_backward(const struct mfl_cuda_pool *a, cudaStream_t stream);

/* Every row of y = a tensor of params with x's n = h * w * c elements; its gradient is computed like a
 * bias's. */
struct mfl_cuda_rows_of {
        struct mfl_cuda_tensor x;
        const float *weight; /* of group 0 */
        uint64_t stride;
        void *out;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_rows_of(const struct mfl_cuda_rows_of *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
