/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the recurrent part of LSTM, GRU and RNN (ops_recurrent.h): after the product of the input in
 * forward, before the products of its gradients in backward. Those products have plans and are launched like
 * a dense layer's (run.c, run_backward.c). */
#include "kernels/cuda/ops/ops_recurrent.h"
#include "kernels/cuda/net/run.h"

/* After the gates: for GRU those of the previous output, for LSTM the cells. */
static char *second_at(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        uint64_t places = (uint64_t)net->model.options.groups * (uint64_t)net->model.options.batch *
                          (uint64_t)layer->out.dim[0];
        return (char *)mfl_cuda_aux_at(net, i) +
               mfl_cuda_recurrent_gates(places, layer->out_channels, mfl_cell_of(layer), net->model.type);
}

void *mfl_cuda_lstm_gates(const struct mfl_net *net, int i, bool hidden)
{
        bool second = hidden && net->model.graph->layers[i].op == MFL_OP_GRU;
        return second ? second_at(net, i) : mfl_cuda_aux_at(net, i);
}

uint32_t mfl_cuda_lstm_launches(const struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        uint32_t launches = 2;
        for (int backward = 0; backward < 2; backward++)
                launches += mfl_cuda_recurrent_is_whole(layer->out_channels, mfl_cell_of(layer),
                                    model->options.precision, backward)
                                    ? 1
                                    : (uint32_t)layer->out.dim[0];
        return launches;
}

static struct mfl_cuda_recurrent recurrent_of(const struct mfl_cuda_run *pass, int i, bool backward)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        struct mfl_cuda_recurrent v = {.groups = net->model.options.groups,
                .batch = net->model.options.batch,
                .positions = (int)layer->out.dim[0],
                .hidden = layer->out_channels,
                .kind = mfl_cell_of(layer),
                .last_cell = layer->last_cell,
                .precision = net->model.options.precision,
                .weight = mfl_cuda_low_at(pass, layer->param_weight2),
                .bias = mfl_cuda_param_at(pass, layer->param_bias2),
                .stride = pass->stride,
                .gates = mfl_cuda_lstm_gates(net, i, false),
                .hidden_gates = mfl_cuda_lstm_gates(net, i, true),
                .out = mfl_cuda_act_at(net, i),
                .dout = backward ? mfl_cuda_grad_at(net, i) : NULL,
                .workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE),
                .steps = pass->steps};
        v.cell = v.kind == MFL_CELL_LSTM ? (float *)(void *)second_at(net, i) : NULL;
        v.whole = mfl_cuda_recurrent_is_whole(v.hidden, v.kind, v.precision, backward);
        return v;
}

cudaError_t mfl_cuda_lstm_forward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_recurrent v = recurrent_of(pass, i, false);
        return mfl_cuda_recurrent_forward(&v, pass->net->main.stream);
}

cudaError_t mfl_cuda_lstm_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_recurrent v = recurrent_of(pass, i, true);
        return mfl_cuda_recurrent_backward(&v, pass->net->main.stream);
}
