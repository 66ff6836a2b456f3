/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers of G clients at once by cuBLASLt: one strided-batched product, with one client per batch
 * entry. Also 1x1 convolutions of stride 1 without padding, which are dense layers of n * h * w rows.
 *
 * With m rows, the row-major tensors of conv.h are x [m][c], y [m][k], w [k][c]. cuBLASLt is column-major,
 * and its bias epilogue wants that order, so each product is computed as its transpose:
 *
 *     forward           y^T  [k x m] = w   [k x c] x^T  [c x m]    (+ bias down the columns, + ReLU)
 *     backward data     dx^T [c x m] = w^T [c x k] dy^T [k x m]
 *     backward weights  dw^T [c x k] = x^T [c x m] dy   [m x k]
 *
 * Sums are float, and dw is float in every precision. fp32 computes with CUBLAS_COMPUTE_32F and takes no
 * algorithm that reports tensor cores or converted inputs; tf32 with CUBLAS_COMPUTE_32F_FAST_TF32; bf16 and
 * fp16 with CUBLAS_COMPUTE_32F. Split sums are added in float, in workspace, in a fixed order
 * (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE); other schemes are not allowed.
 *
 * One handle for each context; a plan belongs to the handle's thread. Only the CUDA module links cuBLASLt.
 * Not yet run on a device: whether every algorithm that the heuristics name for a bias accepts
 * CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE (a plan is verified before use, conv_plan.h).
 */
#ifndef MFL_KERNELS_CUDA_BASE_BLAS_H
#define MFL_KERNELS_CUDA_BASE_BLAS_H

#include "common/base/base.h"
#include "kernels/cuda/base/problem.h"

#define MFL_BLAS_WORKSPACE_MAX ((uint64_t)64 << 20) /* fixed, as MFL_DNN_WORKSPACE_MAX */

struct mfl_blas;
struct mfl_blas_plan;

/* Errors: negative, with cuBLAS's status. */
int mfl_blas_open(struct mfl_blas **ret_blas, struct mfl_error *err);
void mfl_blas_close(struct mfl_blas *blas); /* NULL is fine */

struct mfl_blas_want {
        enum mfl_cuda_pass pass;
        bool bias, relu; /* forward: fused; a plan that cannot fuse them is MFL_NOT_FOUND */
        int rank;        /* skip this many usable algorithms of the heuristics' list */
};

/* Whether a problem is a dense layer, or a convolution that is one. */
bool mfl_blas_can(const struct mfl_cuda_conv *conv);

/* Plans one call for conv->groups clients; requires mfl_blas_can(conv). MFL_NOT_FOUND: no algorithm does
 * this; the text says why. A bias is fused only for float tensors: cuBLASLt wants it in the type of y. */
int mfl_blas_plan_new(struct mfl_blas *blas, const struct mfl_cuda_conv *conv,
        const struct mfl_blas_want *want, struct mfl_blas_plan **ret_plan, struct mfl_error *err);
void mfl_blas_plan_free(struct mfl_blas_plan *plan);
uint64_t mfl_blas_plan_workspace(const struct mfl_blas_plan *plan);
int mfl_blas_plan_algorithm(const struct mfl_blas_plan *plan); /* CUBLASLT_ALGO_CONFIG_ID */

/* forward: x, w, bias, y; backward data: dy, w, -, dx; backward weights: dy, x, -, dw. Every group's part of
 * each begins at a multiple of 16 bytes. w_stride: elements from a group's w (backward weights: dw) to the
 * next's; p_stride: the same for its bias. Errors: negative. */
int mfl_blas_plan_run(struct mfl_blas_plan *plan, const void *x_or_dy, const void *w_or_x, const float *bias,
        void *out, uint64_t w_stride, uint64_t p_stride, void *workspace, cudaStream_t stream,
        struct mfl_error *err);

#endif
