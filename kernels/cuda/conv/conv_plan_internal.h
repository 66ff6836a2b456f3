/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of conv_plan.h share: ways of doing a pass; running, checking and timing them.
 *
 * conv_plan.c chooses, conv_plan_way.c makes and runs ways, conv_plan_trial.c compares and measures.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_PLAN_INTERNAL_H
#define MFL_KERNELS_CUDA_CONV_CONV_PLAN_INTERNAL_H

#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/conv/conv_plan.h"
#include "kernels/cuda/base/dnn.h"

enum mfl_conv_way {
        MFL_CONV_OWN,       /* one launch for all clients; index: the variant */
        MFL_CONV_DNN,       /* cuDNN, one call per client, on branches; index: the plan's rank */
        MFL_CONV_BLAS_LOOP, /* cuBLASLt, likewise */
        MFL_CONV_GROUPED,   /* cuDNN, one call between transposes */
        MFL_CONV_BATCHED,   /* cuBLASLt, one call */
        MFL_CONV_WAY_COUNT_
};

struct mfl_cuda_conv_plan {
        struct mfl_cuda_context *context;
        struct mfl_cuda_conv conv;
        struct mfl_cuda_conv_use use;
        enum mfl_conv_way way;
        int index, branches;
        struct mfl_dnn_plan *dnn;
        struct mfl_blas_plan *blas;
        bool fused; /* the library does bias and act of a forward */
        double ns;  /* of one run; huge: unknown */
        /* Parts of the workspace that the way needs: offsets in bytes. */
        uint64_t library_bytes;               /* of one branch; branch b's part begins at b times it */
        uint64_t first, second, bias, result; /* operands side by side, or dw of 16 bits */
        uint64_t added;                       /* the tensor that is added to dx */
        uint64_t workspace;                   /* of all */
        char name[96];
};

/* ---- conv_plan.c ---- */

/* The least arithmetic of one client's pass for which deterministic plans use a library: for fp32, for the
 * others. A constant; tests lower it. */
extern double mfl_conv_library_flops[2];

/* ---- conv_plan_way.c ---- */

struct mfl_conv_sizes {
        uint64_t x, y, w; /* elements of one client */
        int64_t reduction;
        int type_bytes;
};
struct mfl_conv_sizes mfl_conv_sizes(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass);
/* Whether a library could do it: every client's tensors begin at multiples of 16 bytes. */
bool mfl_conv_way_can(const struct mfl_cuda_conv *conv, enum mfl_conv_way way);
/* MFL_NOT_FOUND: there is no such way; the text says why. */
int mfl_conv_way_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, enum mfl_conv_way way, int index,
        struct mfl_cuda_conv_plan **ret_plan, struct mfl_error *err);
bool mfl_conv_way_is_looped(enum mfl_conv_way way);
/* Sets branches, the workspace's parts and the name. */
void mfl_conv_way_lay_out(struct mfl_cuda_conv_plan *plan, int branches);
/* Bytes of the parts other than the libraries' own. */
uint64_t mfl_conv_way_parts_max(const struct mfl_cuda_conv *conv, const struct mfl_cuda_conv_use *use);

/* ---- conv_plan_trial.c ---- */

/* Runs the way once with random tensors. 0: its output agrees with that of variant 0 of the own kernels.
 * MFL_INVALID: it differs; the text says by how much. MFL_BUSY: not enough memory on the device to find out.
 */
int mfl_conv_trial_verify(struct mfl_cuda_conv_plan *plan, struct mfl_error *err);
/* Buffers for timing ways of one problem. MFL_BUSY: no memory. */
struct mfl_conv_trial;
int mfl_conv_trial_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, struct mfl_conv_trial **ret_trial, struct mfl_error *err);
void mfl_conv_trial_free(struct mfl_conv_trial *trial);
/* The arguments of run with set k of the buffers that timing made. */
struct mfl_cuda_conv_args mfl_conv_trial_args(const struct mfl_conv_trial *trial, int k);
/* Sets plan->ns. MFL_BUSY: no memory for the workspace. */
int mfl_conv_trial_time(struct mfl_conv_trial *trial, struct mfl_cuda_conv_plan *plan, struct mfl_error *err);

#endif
