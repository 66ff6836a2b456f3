/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that forward and backward of a layer share, and the layers that are launched in files of their
 * own: run_shape.c, run_sequence.c. Backward's own arguments are set by run_backward.c. */
#ifndef MFL_KERNELS_CUDA_RUN_H
#define MFL_KERNELS_CUDA_RUN_H

#include "kernels/cuda/net.h"

struct mfl_cuda_conv_args mfl_cuda_conv_args_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_norm mfl_cuda_norm_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_pool mfl_cuda_pool_of(const struct mfl_cuda_run *pass, int i);
struct mfl_cuda_dropout mfl_cuda_dropout_of(const struct mfl_cuda_run *pass, int i);

/* The gradients of its inputs that a layer is to give; NULL where it is not wanted. */
struct mfl_cuda_wanted {
        void *dx, *dx2;
        bool add, add2;
};
struct mfl_cuda_wanted mfl_cuda_wanted_of(const struct mfl_cuda_run *pass, int i);
/* A tensor of params of group 0, in float and as products read it, and its gradient; NULL for none. */
const float *mfl_cuda_param_at(const struct mfl_cuda_run *pass, int param);
const void *mfl_cuda_low_at(const struct mfl_cuda_run *pass, int param);
float *mfl_cuda_param_grad_at(const struct mfl_cuda_run *pass, int param);
/* The gradient of layer i's output = 0. */
cudaError_t mfl_cuda_clear_grad(const struct mfl_cuda_run *pass, int i);

cudaError_t mfl_cuda_shape_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_shape_backward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_sequence_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_sequence_backward(const struct mfl_cuda_run *pass, int i);
/* run_attention.c */
cudaError_t mfl_cuda_attention_layer_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_attention_layer_backward(const struct mfl_cuda_run *pass, int i);
/* run_lstm.c: what is beside the products that have plans. The gates of layer i, and their gradients, as its
 * plans write and read them, and (hidden) as the one of the output before does. */
void *mfl_cuda_lstm_gates(const struct mfl_net *net, int i, bool hidden);
cudaError_t mfl_cuda_lstm_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_lstm_backward(const struct mfl_cuda_run *pass, int i);
/* run_direct.c */
cudaError_t mfl_cuda_direct_layer_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_direct_layer_backward(const struct mfl_cuda_run *pass, int i);
/* run_lora.c: a dense layer's low-rank share, behind the layer's own forward and the gradient of its input.
 */
cudaError_t mfl_cuda_lora_forward(const struct mfl_cuda_run *pass, int i);
cudaError_t mfl_cuda_lora_backward(const struct mfl_cuda_run *pass, int i);

#endif
