/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers where params, sums and the optimizer's state lie on the device, in the order of the flat vector
 * (kernels/grad.h). The bits are those of kernels/grad_host.h. Errors are those of ops.h. */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_GRAD_H
#define MFL_KERNELS_CUDA_OPS_OPS_GRAD_H

#include "kernels/cuda/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements that belong to one tensor and to one block of the gradient (MFL_GRAD_BLOCK). */
struct mfl_cuda_grad_part {
        uint64_t at;
        uint32_t count;
        int tensor; /* of the layout */
};

/* Tables on the device, in the gradient's order. */
struct mfl_cuda_grad_table {
        const struct mfl_cuda_grad_part *part;
        const uint32_t *of_block;  /* the first part of each block, and their number at the end */
        const uint32_t *of_tensor; /* the first part of each tensor, and their number at the end */
        const double *factor;      /* [n_tensors] 2^bits */
        uint32_t n_parts, n_tensors;
};

/* sum[i] = or += round(from[place[i]] * times * factor) for the elements of all parts; largest[t]: becomes the largest of it and
 * of every |from * times| of the tensor, infinity for what is not finite. scratch: n_parts floats. */
struct mfl_cuda_grad_round {
        struct mfl_cuda_grad_table table;
        const uint32_t *place;
        const float *from;
        float times;
        bool first;
        int64_t *sum;
        float *largest, *scratch;
};
cudaError_t mfl_cuda_grad_round(const struct mfl_cuda_grad_round *a, cudaStream_t stream);

/* A range of whole blocks: sum[i], momentum[i] .. are of element first + i. */
struct mfl_cuda_grad_step {
        struct mfl_cuda_grad_table table;
        uint64_t first, n;
        const int64_t *sum;
        float *params; /* of the whole vector */
        float *momentum, *second;
        const float *start;
        float prox_mu; /* of the term that is part of the gradient; opt.prox_mu is of the one that is not */
        struct mfl_optimizer opt;
        struct mfl_rate rate;
        float factor;
        double *squares; /* [blocks] */
};
/* squares[b] = the sum of squares of block b's elements, one after another. */
cudaError_t mfl_cuda_grad_squares(const struct mfl_cuda_grad_step *a, cudaStream_t stream);
cudaError_t mfl_cuda_grad_apply(const struct mfl_cuda_grad_step *a, cudaStream_t stream);

/* Running statistics: element k is from[place[at[k]]] of a grain, and params[at[k]]. */
struct mfl_cuda_grad_running {
        uint32_t n;
        const uint32_t *at, *place;
        const float *momentum; /* of each */
        const float *from;
        float *to;     /* n: what a grain leaves */
        float *params; /* take it; NULL: `to` is written instead, from `from` */
};
cudaError_t mfl_cuda_grad_running(const struct mfl_cuda_grad_running *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
