/* SPDX-License-Identifier: Apache-2.0 */
/* The other operators of a training step as kernels over G clients at once: batches, pools, activations,
 * normalisation, loss, optimizer, exact sums. Bodies shared with the CPU are in kernels/bodies.h.
 *
 * Tensors are group-major NHWC of `type`, packed: [G][batch][h][w][c]; vectors have h = w = 1. Params,
 * gradients of params, momentum and statistics are float vectors of `n` elements per group, group-major with
 * stride `stride`. Gradients of tensors have the tensors' type. Every sum has a fixed order that does not
 * depend on G or on the launch; integer sums may be atomic. `add`: the gradient is added to what is there
 * (for a tensor that is read twice), else it overwrites. An operator may carry the gradient of the activation
 * of the layer that made its input. It then applies it to the complete gradient: act_grad(y, dx_old + dx). So
 * only the last writer of a gradient carries it.
 *
 * Tensors and workspaces are aligned to 16 bytes, so that rows move 16 bytes at once where their innermost
 * size allows it. The order of each sum is in the file that computes it (ops_columns.h for sums over rows).
 *
 * Pure launches on a stream: no allocation, nothing waits, any thread; safe to capture. Errors are CUDA's;
 * also cudaErrorInvalidValue where a group's tensor has 2^31 elements or more, or groups are above 65535.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_H
#define MFL_KERNELS_CUDA_OPS_OPS_H

#include "kernels/cuda/base/kernel.h"
#include "kernels/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mfl_cuda_tensor {
        int groups, batch, h, w, c;
        enum mfl_cuda_type type;
};

/* ---- batches ---- */

/* x[g][r] = sample index[..][r] * scale[c] + shift[c] for rows below count, augmented (kernels/backend.h,
 * struct mfl_augment), and zeros beyond; labels likewise (0 beyond). From NCHW samples of u8 or float. Only
 * tensors with more than one pixel are augmented. */
struct mfl_cuda_gather {
        struct mfl_cuda_tensor x;
        void *to;
        int32_t *labels; /* [G][batch][answers] */
        int answers;     /* labels of a sample, or its targets, whose bits are copied the same way; 0: 1 */
        const void *samples;
        const int32_t *sample_labels;
        bool u8, tokens; /* tokens: samples are int32, and scale and shift do not apply */
        float scale[MFL_CHANNELS_MAX], shift[MFL_CHANNELS_MAX];
        int n_planes; /* of the samples: scale[e / (count / n_planes)] is element e's. Vectors: 1, else c */
        struct mfl_augment augment;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_gather(const struct mfl_cuda_gather *a, cudaStream_t stream);

/* For conformance: plain float NCHW [G][batch][c][h][w] to the tensor, or back. */
struct mfl_cuda_layout {
        struct mfl_cuda_tensor x;
        void *nhwc;
        float *nchw;
        bool to_nchw;
};
cudaError_t mfl_cuda_layout(const struct mfl_cuda_layout *a, cudaStream_t stream);

/* *step += 1. */
cudaError_t mfl_cuda_next_step(uint32_t *step, cudaStream_t stream);

/* ---- pools: geometry of one sample in `window` (o = c) ---- */

struct mfl_cuda_pool {
        struct mfl_cuda_tensor x; /* of the input */
        struct mfl_window window;
        bool max;                    /* else the mean over the whole window, padding counts as zeros */
        void *in, *out, *din, *dout; /* backward gives din from dout */
        uint8_t *argmax;       /* max, training: k of the window, [G][batch][oh][ow][c]; windows up to 255 */
        uint32_t *argmax_wide; /* instead, for larger windows */
        enum mfl_cuda_act act; /* backward: of the layer that made `in`; its gradient is fused */
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_pool_forward(const struct mfl_cuda_pool *a, cudaStream_t stream);
cudaError_t mfl_cuda_pool_backward(const struct mfl_cuda_pool *a, cudaStream_t stream);
/* The mean of each channel; window and argmax are unused; out is [G][batch][c]. */
cudaError_t mfl_cuda_global_pool_forward(const struct mfl_cuda_pool *a, cudaStream_t stream);
cudaError_t mfl_cuda_global_pool_backward(const struct mfl_cuda_pool *a, cudaStream_t stream);

/* ---- elementwise ---- */

/* forward: y = act(x (+ x2)); y may be x. backward: dx = act_grad(y, dy) (+ dx), dx2 likewise where not NULL
 * (add2: added). Without x2 and with act none it copies. */
struct mfl_cuda_elementwise {
        struct mfl_cuda_tensor x;
        enum mfl_cuda_act act;
        const void *in, *in2;
        void *out;
        const void *dout;
        void *din, *din2;
        bool add, add2;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_elementwise_forward(const struct mfl_cuda_elementwise *a, cudaStream_t stream);
cudaError_t mfl_cuda_elementwise_backward(const struct mfl_cuda_elementwise *a, cudaStream_t stream);

/* y = x * factor, where the factor is that of element e in NCHW order of the batch (kernels/bodies.h).
 * Backward computes it again: no mask is stored. training false: a copy. The key is
 * mfl_rng_dropout_key(steps.dropout[g], step_first + step, layer); act as for pools. */
struct mfl_cuda_dropout {
        struct mfl_cuda_tensor x;
        const void *in;
        void *out;
        const void *dout;
        void *din;
        float rate;
        uint32_t layer;
        bool training, add;
        enum mfl_cuda_act act;
        const void *act_y; /* backward, unless act is none */
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_dropout_forward(const struct mfl_cuda_dropout *a, cudaStream_t stream);
cudaError_t mfl_cuda_dropout_backward(const struct mfl_cuda_dropout *a, cudaStream_t stream);

/* y = act(x + bias), in place: for libraries that cannot fuse it. dx = act_grad(act_y, dx (+ dx_old)). db =
 * sums of dy over rows and pixels. */
struct mfl_cuda_bias {
        struct mfl_cuda_tensor x;
        void *values;
        const void *old; /* act_grad: added first; NULL: none */
        const float *bias;
        float *db;
        uint64_t stride;
        enum mfl_cuda_act act;
        const void *act_y;
        void *workspace; /* mfl_cuda_bias_workspace(&x) bytes for db */
        struct mfl_cuda_steps steps;
};
uint64_t mfl_cuda_bias_workspace(const struct mfl_cuda_tensor *x);
cudaError_t mfl_cuda_bias_act(const struct mfl_cuda_bias *a, cudaStream_t stream);
cudaError_t mfl_cuda_bias_act_grad(const struct mfl_cuda_bias *a, cudaStream_t stream);
cudaError_t mfl_cuda_bias_grad(const struct mfl_cuda_bias *a, cudaStream_t stream);

/* ---- normalisation with what follows it: y = act(norm(x) + residual) ---- */

/* Variances are taken about the mean (two passes over the data, or a compensated one), not as E[x^2] -
 * E[x]^2. Forward in training keeps mean and 1 / sqrt(var + eps) in mean, inverse: [G][c] for batch norm,
 * [G][batch][norm_groups] for group norm. Backward: dz = act_grad(y, dy); dresidual = dz; dweight, dbias; dx.
 * Rows beyond count take no part in statistics and get a dx of zero. */
struct mfl_cuda_norm {
        struct mfl_cuda_tensor x;
        int norm_groups; /* 0: batch norm */
        float eps, momentum;
        bool training;
        const void *in, *residual; /* residual NULL: none */
        void *out;
        const float *weight, *bias;        /* of group 0, [c] */
        float *running_mean, *running_var; /* of group 0; batch norm; training: NULL leaves them unchanged */
        uint64_t stride;
        float *mean, *inverse;
        enum mfl_cuda_act act;
        const void *dout;
        void *din, *dresidual;
        bool add, add_residual;
        float *dweight, *dbias;
        void *workspace; /* mfl_cuda_norm_workspace bytes */
        struct mfl_cuda_steps steps;
};
uint64_t mfl_cuda_norm_workspace(const struct mfl_cuda_tensor *x, int norm_groups);
cudaError_t mfl_cuda_norm_forward(const struct mfl_cuda_norm *a, cudaStream_t stream);
cudaError_t mfl_cuda_norm_backward(const struct mfl_cuda_norm *a, cudaStream_t stream);

/* ---- loss ---- */

/* The loss scale of one group (fp16): a power of two from 2^-24 to 2^24. */
struct mfl_cuda_scale {
        float scale;
        uint32_t good_steps, overflow; /* overflow: mfl_cuda_check_grads sets it, mfl_cuda_scale_next
                                          clears it */
};

/* Losses of predictions below count (kernels/backend.h). A row of z is a prediction; each row of the batch
 * has `positions` of them, those of auxiliary outputs last. Softmax cross-entropy of up to 64 classes has the bits of mfl_softmax_xent; with
 * more classes it sums in another fixed order (ops_loss.cu). loss_sum is in mfl_fixed_loss units. dz =
 * gradient of the mean over the step's scored predictions, times the group's loss scale; 0 beyond count and
 * where a label is negative; NULL: not wanted. */
struct mfl_cuda_loss {
        struct mfl_cuda_tensor z;           /* batch = rows * positions, c = classes */
        int positions;                      /* 0: 1 */
        struct mfl_loss loss;               /* weights: on the device */
        const struct mfl_loss_share *share; /* [G][steps_max], of the whole step; NULL: of this batch, all
                                               predictions below count, and none of auxiliary outputs */
        const void *logits;
        void *dz;
        const int32_t *labels; /* [G][z.batch], without auxiliary outputs; or the bits of targets,
                                  [G][z.batch][classes] */
        const struct mfl_cuda_scale *scale; /* [G]; NULL: 1 */
        int64_t *loss_sum;                  /* [G] each; added to */
        uint64_t *n_correct, *n_scored;
        enum mfl_tally tally_kind; /* classes or confusion */
        uint64_t *tally;           /* of struct mfl_score, of all groups together; NULL: not wanted */
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_loss(const struct mfl_cuda_loss *a, cudaStream_t stream);

/* ---- params: vectors in the backend's own order, `stride` floats per group, the first `n` of them trained
 * ---- */

/* overflow |= any of the n gradients is not finite. */
struct mfl_cuda_sgd_args {
        int groups;
        uint64_t n, stride;
        float *params, *momentum;
        float *second;                /* Adam, AdamW, Adagrad: v. momentum is m */
        const struct mfl_rate *rates; /* [G][steps_max]; NULL: opt.lr always (SGD) */
        float *norms;                 /* clip_norm > 0: mfl_cuda_norms_count(n_norm) floats of each group, */
        uint64_t
                n_norm; /* where n_norm is n, or what the norm was taken of if only a part of that is updated */
        const float *first, *grads, *correction;
        uint64_t first_stride; /* from a group's first params to the next's: stride, or 0 for one start */
        void *low; /* bf16, fp16: the copies of the params that products read, [G][stride]; else NULL */
        enum mfl_cuda_type low_type;
        struct mfl_optimizer opt;
        struct mfl_cuda_scale
                *scale; /* [G]; gradients are divided by it; an overflow skips the step; NULL: none */
        struct mfl_cuda_steps steps; /* a group whose count is 0 stays untouched */
};
cudaError_t mfl_cuda_check_grads(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);
/* Adds the groups' corrections to the gradients: grads += correction, times the loss scale. */
cudaError_t mfl_cuda_add_correction(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);
/* Adds FedProx's term to the gradients: grads += prox_mu * (params - first), times the loss scale. */
cudaError_t mfl_cuda_add_prox(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);
/* Writes the factor that clips a group's gradients to the first of its norms. The order of its sum of
 * squares: block b of B, with B = mfl_cuda_norms_count(n) - 1 and n = n_norm, takes elements i with i / 256 % B = b; a
 * thread adds those that are 256 B apart; then a tree; and the same over the blocks. */
uint64_t mfl_cuda_norms_count(uint64_t n);
cudaError_t mfl_cuda_norms(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);
/* A step of the optimizer; clipped by norms[0] where opt.clip_norm > 0. */
cudaError_t mfl_cuda_sgd(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);
/* sum = grads in the first batch of a step, else sum += grads; n elements of groups that count. */
struct mfl_cuda_accumulate {
        int groups;
        uint64_t n, stride;
        const float *grads;
        float *sum;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_accumulate(const struct mfl_cuda_accumulate *a, cudaStream_t stream);
/* Halves or doubles the scales and clears overflow; call it after mfl_cuda_sgd. */
cudaError_t mfl_cuda_scale_next(const struct mfl_cuda_sgd_args *a, cudaStream_t stream);

/* to[place[i]] = from[i] (scatter) or to[i] = from[place[i]], i in [0, n): between the graph's flat order and
 * the backend's. low as above, NULL: none. */
struct mfl_cuda_reorder {
        uint64_t n;
        const uint32_t *place;
        const float *from;
        float *to;
        bool scatter;
        void *low;
        enum mfl_cuda_type low_type;
};
cudaError_t mfl_cuda_reorder(const struct mfl_cuda_reorder *a, cudaStream_t stream);
cudaError_t mfl_cuda_reorder_i64(
        uint64_t n, const uint32_t *place, const int64_t *from, int64_t *to, cudaStream_t stream);

/* Copies of params that several layers share, in each group's wide vector: values[copy + i] = values[own + table[i]],
 * i in [0, n); table NULL: i itself. add: values[own + table[i]] += values[copy + i], for groups that have rows. low as
 * above. */
struct mfl_cuda_copies {
        int groups;
        uint64_t n, stride, own, copy;
        const uint32_t *table;
        float *values;
        void *low;
        enum mfl_cuda_type type;
        bool add;
        struct mfl_cuda_steps steps;
};
cudaError_t mfl_cuda_copies(const struct mfl_cuda_copies *a, cudaStream_t stream);

/* Exact sums (common/base/fixed.h). count: n_bad[g] = elements of group g that are not finite or beyond
 * delta_max. add: sum[i] += the rounded weighted deltas of groups with weight > 0 and n_bad = 0. In the
 * backend's own order, for all `n` elements including the untrained; elements of `stride` beyond n stay
 * untouched. */
struct mfl_cuda_sum {
        int groups;
        uint64_t n, stride, first_stride; /* first_stride: 0 where all groups have the same start */
        const float *params, *first;
        const uint64_t *weight; /* [G], device memory */
        uint64_t *n_bad;        /* [G], device memory */
        struct mfl_fixed fixed;
        uint64_t n_trained; /* elements from here on are running statistics; a multiple of 4 */
        int64_t *sum;
};
cudaError_t mfl_cuda_sum_count(const struct mfl_cuda_sum *a, cudaStream_t stream);
cudaError_t mfl_cuda_sum_add(const struct mfl_cuda_sum *a, cudaStream_t stream);
/* to[i] += from[place[i]], i in [0, n): adds a sum in the backend's order to one in the graph's. */
cudaError_t mfl_cuda_sum_gather(
        uint64_t n, const uint32_t *place, const int64_t *from, int64_t *to, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
