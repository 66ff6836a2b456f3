/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions by cuDNN 9's graph API, in C.
 *
 * A table of attributes describes an operation graph: convolution forward, backward data or backward filter,
 * with bias and ReLU after a forward where an engine can fuse them. Heuristics name engines, and the first
 * one that gives an execution plan within the limits is kept. Tensors are packed NHWC, filters KRSC, compute
 * type float; fp32 asks for plain float products (tensor cores not allowed), tf32 for tensor cores on float
 * data.
 *
 * A plan is for one client (groups = 1 in the problem), or, with `grouped`, for all clients' channels side by
 * side: x [n][h][w][G*c], w [G*k][r][s][c], y [n][oh][ow][G*k]. All pointers of a run are multiples of 16.
 * One handle for each context; a plan belongs to the handle's thread. Only the CUDA module links cuDNN. dnn.c
 * says what has been tried and what has not.
 */
#ifndef MFL_KERNELS_CUDA_BASE_DNN_H
#define MFL_KERNELS_CUDA_BASE_DNN_H

#include "common/base/base.h"
#include "kernels/cuda/base/problem.h"

/* Fixed: the choice must not depend on free memory. */
#define MFL_DNN_WORKSPACE_MAX ((uint64_t)256 << 20)

struct mfl_dnn;
struct mfl_dnn_plan;

int mfl_dnn_open(struct mfl_dnn **ret_dnn, struct mfl_error *err);
void mfl_dnn_close(struct mfl_dnn *dnn);
/* "9.19.0" */
const char *mfl_dnn_version(void);

struct mfl_dnn_want {
        enum mfl_cuda_pass pass;
        bool grouped;
        bool bias, relu;    /* forward: fused; a plan that cannot fuse them is MFL_NOT_FOUND */
        bool deterministic; /* only engines without CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC */
        int rank;           /* skip this many usable engines of the heuristics' list (to measure several) */
};

/* MFL_NOT_FOUND: no engine does this; the text has cuDNN's last answer. */
int mfl_dnn_plan_new(struct mfl_dnn *dnn, const struct mfl_cuda_conv *conv, const struct mfl_dnn_want *want,
        struct mfl_dnn_plan **ret_plan, struct mfl_error *err);
void mfl_dnn_plan_free(struct mfl_dnn_plan *plan);
uint64_t mfl_dnn_plan_workspace(const struct mfl_dnn_plan *plan);
int mfl_dnn_plan_engine(const struct mfl_dnn_plan *plan); /* cuDNN's global index */
/* in: x, w, bias; dy, w; or dy, x. out: y, dx or dw, in the type of the tensors. dw is float for fp32 and
 * tf32; for 16-bit tensors it is float where cuDNN's filter gradient can be (mfl_dnn_plan_dw_float). */
int mfl_dnn_plan_run(struct mfl_dnn_plan *plan, const void *x_or_dy, const void *w_or_x, const float *bias,
        void *out, void *workspace, cudaStream_t stream, struct mfl_error *err);
bool mfl_dnn_plan_dw_float(const struct mfl_dnn_plan *plan);

#endif
