/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that forward and backward of a layer share, and the layers that have files of their own for their
 * launches: run_shape.c, run_sequence.c. run_backward.c sets backward's own arguments. */
#ifndef MFL_KERNELS_CUDA_NET_RUN_H
#define MFL_KERNELS_CUDA_NET_RUN_H

#include "kernels/cuda/net/net.h"

struct mfl_cuda_conv_args mfl_cuda_conv_args_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_norm mfl_cuda_norm_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_pool mfl_cuda_pool_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_dropout mfl_cuda_dropout_of(const struct mfl_cuda_run *pass, int i);

/* Whether the gradient of layer i's output is wanted; i < 0: no. */
static inline bool mfl_cuda_wants_grad(const struct mfl_cuda_run *pass, int i)
{
        return i >= 0 && pass->net->model.plan->layers[i].wants_grad;
}

/* The gradients of its inputs that a layer has to give; NULL: not wanted. */
struct mfl_cuda_wanted {
        void *dx, *dx2;
        bool add, add2;
};
struct mfl_cuda_wanted mfl_cuda_wanted_of(const struct mfl_cuda_run *pass, int i);
/* A tensor of params of group 0, in float and as products read it, and its gradient; NULL for none. */
const float *mfl_cuda_param_at(const struct mfl_cuda_run *pass, int param);
const void *mfl_cuda_low_at(const struct mfl_cuda_run *pass, int param);
float *mfl_cuda_param_grad_at(const struct mfl_cuda_run *pass, int param);
/* The same, also for params that are not trained: they lie after what the optimizer reads. */
float *mfl_cuda_grads_at(const struct mfl_net *net, int param);
/* Clears the gradient of layer i's output. */
cudaError_t mfl_cuda_clear_grad(const struct mfl_cuda_run *pass, int i);

cudaError_t mfl_cuda_shape_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_shape_backward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_sequence_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_sequence_backward(const struct mfl_cuda_run *pass, int i);
/* run_attention.c */
cudaError_t mfl_cuda_attention_layer_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_attention_layer_backward(const struct mfl_cuda_run *pass, int i);
/* run_lstm.c: what the plans of products leave over. The gates of layer i, and their gradients, as its plans
 * write and read them; hidden: as the plan of the previous output does. */
void *mfl_cuda_lstm_gates(const struct mfl_net *net, int i, bool hidden);
cudaError_t mfl_cuda_lstm_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_lstm_backward(const struct mfl_cuda_run *pass, int i);
/* run_map.c */
cudaError_t mfl_cuda_map_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_map_backward(const struct mfl_cuda_run *pass, int i);
/* run_direct.c */
cudaError_t mfl_cuda_direct_layer_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_direct_layer_backward(const struct mfl_cuda_run *pass, int i);
/* run_lora.c: a dense layer's low-rank share, after the layer's own forward and the gradient of its input. */
cudaError_t mfl_cuda_lora_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_lora_backward(const struct mfl_cuda_run *pass, int i);

#endif
