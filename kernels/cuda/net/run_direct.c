/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of convolutions that have no plan: grouped and transposed ones (ops_direct.h). */
#include "kernels/cuda/ops/ops_direct.h"
#include "kernels/cuda/net/run.h"

/* For a transposed convolution, the convolution whose gradient by its input it is: input and output change
 * places. */
static struct mfl_window window_of(const struct mfl_graph *graph, int i)
{
        struct mfl_window v = mfl_window_of(graph, i), t = v;
        if (graph->layers[i].op != MFL_OP_CONVTRANSPOSE2D)
                return v;
        t.c = v.o;
        t.h = v.oh;
        t.w = v.ow;
        t.o = v.c;
        t.oh = v.h;
        t.ow = v.w;
        return t;
}

static struct mfl_cuda_direct direct_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        return (struct mfl_cuda_direct){.groups = model->options.groups,
                .batch = model->options.batch,
                .type = model->type,
                .window = window_of(model->graph, i),
                .w = mfl_cuda_low_at(pass, layer->param_weight),
                .w_stride = pass->stride,
                .p_stride = pass->stride,
                .steps = pass->steps};
}

cudaError_t mfl_cuda_direct_layer_forward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        struct mfl_cuda_direct a = direct_of(pass, i);
        a.x = a.y = mfl_cuda_act_at(pass->net, layer->input);
        a.to = mfl_cuda_act_at(pass->net, i);
        a.bias = mfl_cuda_param_at(pass, layer->param_bias);
        return layer->op == MFL_OP_CONVTRANSPOSE2D ? mfl_cuda_direct_data(&a, pass->net->main.stream)
                                                   : mfl_cuda_direct_forward(&a, pass->net->main.stream);
}

static cudaError_t direct_params(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        bool turned = layer->op == MFL_OP_CONVTRANSPOSE2D;
        const void *x = mfl_cuda_act_at(net, layer->input), *dy = mfl_cuda_grad_at(net, i);
        struct mfl_cuda_direct a = direct_of(pass, i);
        struct mfl_cuda_bias bias = {.x = net->model.layers[i].x,
                .values = mfl_cuda_grad_at(net, i),
                .db = mfl_cuda_param_grad_at(pass, layer->param_bias),
                .stride = net->model.stride,
                .workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE),
                .steps = pass->steps};
        a.dw = mfl_cuda_param_grad_at(pass, layer->param_weight);
        a.p_stride = net->model.stride;
        a.x = turned ? dy : x;
        a.y = turned ? x : dy;
        cudaError_t r = a.dw ? mfl_cuda_direct_weights(&a, net->main.stream) : cudaSuccess;
        return r || !bias.db ? r : mfl_cuda_bias_grad(&bias, net->main.stream);
}

cudaError_t mfl_cuda_direct_layer_backward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        struct mfl_cuda_direct a = direct_of(pass, i);
        cudaError_t r = direct_params(pass, i);
        a.x = a.y = mfl_cuda_grad_at(pass->net, i);
        a.to = want.dx;
        a.add = want.add;
        if (r || !want.dx)
                return r;
        return layer->op == MFL_OP_CONVTRANSPOSE2D ? mfl_cuda_direct_forward(&a, pass->net->main.stream)
                                                   : mfl_cuda_direct_data(&a, pass->net->main.stream);
}
