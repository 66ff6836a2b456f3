/* SPDX-License-Identifier: Apache-2.0 */
/* What computes a pass of a convolution or dense layer: own kernels (conv.h), cuDNN on one branch of the
 * graph per client, cuDNN's grouped convolution between two transposes, or cuBLASLt's strided-batched product
 * (dense layers, and 1x1 convolutions of stride 1).
 *
 * Deterministic (the default): bits must depend only on the job and the kind of device. So measuring may
 * choose only between ways with equal bits: the variants of an own kernel, or the number of branches of one
 * cuDNN engine, or of one cuBLASLt algorithm (dense layers), that is called for each client separately. A
 * fixed rule of the problem without `groups` chooses the family (mfl_cuda_conv_uses_library). The cuDNN
 * engine is the first deterministic one that cuDNN's heuristics (mode A) name for one client within a fixed
 * workspace limit. Fast: everything is measured.
 *
 * A library's way is checked before use: its result on random tensors is compared with variant 0 of the own
 * kernel. A way that fails, that the library refuses, or that differs by more than its precision explains is
 * left out with a line in the log. The own kernels always exist. A deterministic plan that cannot use its
 * library returns an error, as its bits would no longer be those of other machines.
 *
 * Arguments of run: every group's tensors, weights, biases and gradients begin at multiples of 16 bytes (own
 * ways do not need that). A library also computes groups whose count is 0, from whatever their tensors hold;
 * nothing reads those results.
 *
 * Measurements are kept in the tuner (tune.h; NULL in the context: nowhere). A plan belongs to one context
 * and thread. plan_new allocates, verifies (once per process and shape, where there is a tuner) and measures.
 * run only launches, and is safe to capture once a run outside a capture has loaded a library's kernels.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_PLAN_H
#define MFL_KERNELS_CUDA_CONV_CONV_PLAN_H

#include "common/base/base.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/conv/conv.h"

struct mfl_cuda_conv_plan;

/* What a plan needs to know about its arguments beforehand. */
struct mfl_cuda_conv_use {
        enum mfl_cuda_pass pass;
        bool bias;             /* forward: adds one; backward weights: wants db */
        enum mfl_cuda_act act; /* as in the arguments */
        bool add;
        bool fast;
};

/* The rule: true for problems with enough arithmetic of their own to make a vendor's kernel worth its launch.
 */
bool mfl_cuda_conv_uses_library(const struct mfl_cuda_conv *conv, enum mfl_cuda_pass pass);

/* Measures unless the tuner knows the answer. Errors: never MFL_INVALID; negative: CUDA, memory. */
int mfl_cuda_conv_plan_new(struct mfl_cuda_context *context, const struct mfl_cuda_conv *conv,
        const struct mfl_cuda_conv_use *use, struct mfl_cuda_conv_plan **ret_plan, struct mfl_error *err);
void mfl_cuda_conv_plan_free(struct mfl_cuda_conv_plan *plan);
/* Device memory that run needs in args->workspace, aligned to 256. */
uint64_t mfl_cuda_conv_plan_workspace(const struct mfl_cuda_conv_plan *plan);
/* An upper bound for budgets, without a device. */
uint64_t mfl_cuda_conv_plan_workspace_max(
        const struct mfl_cuda_conv *conv, const struct mfl_cuda_conv_use *use);
/* How often run calls a library or starts an own kernel: once per client where each has its own call, else 1.
 */
uint32_t mfl_cuda_conv_plan_calls(const struct mfl_cuda_conv_plan *plan);
/* Launches on context->stream (and, between a fork and a join, on its branches). Own kernels afterwards do
 * the work that a library cannot fuse (bias, act, add, db). */
int mfl_cuda_conv_plan_run(
        struct mfl_cuda_conv_plan *plan, const struct mfl_cuda_conv_args *args, struct mfl_error *err);
/* "own simt 64x32x8", "cuDNN engine 7, 4 branches": for logs and tables. Lives as long as the plan. */
const char *mfl_cuda_conv_plan_name(const struct mfl_cuda_conv_plan *plan);

#endif
