/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward share: where the tensors of a layer lie, and the arguments of its operators. */
#include "kernels/cuda/net/run.h"
#include "kernels/cuda/ops/ops_shape.h"

#include <stdio.h>

void *mfl_cuda_act_at(const struct mfl_net *net, int i)
{
        return net->memory + net->model.at_region[MFL_CUDA_ARENA] + net->model.plan->layers[i].act;
}

void *mfl_cuda_grad_at(const struct mfl_net *net, int i)
{
        return net->memory + net->model.at_region[MFL_CUDA_ARENA] + net->model.plan->layers[i].grad;
}

void *mfl_cuda_aux_at(const struct mfl_net *net, int i)
{
        return net->memory + net->model.at_region[MFL_CUDA_ARENA] + net->model.plan->layers[i].aux;
}

const float *mfl_cuda_param_at(const struct mfl_cuda_run *pass, int param)
{
        return param < 0 ? NULL : pass->params + pass->net->model.at[param];
}

const void *mfl_cuda_low_at(const struct mfl_cuda_run *pass, int param)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        return param < 0 ? NULL
                         : (const char *)pass->low +
                                   model->at[param] * (uint64_t)mfl_cuda_type_bytes(model->type);
}

float *mfl_cuda_grads_at(const struct mfl_net *net, int param)
{
        return param < 0 ? NULL : (float *)mfl_cuda_at(net, MFL_CUDA_GRADS) + net->model.at[param];
}

float *mfl_cuda_param_grad_at(const struct mfl_cuda_run *pass, int param)
{
        return param >= 0 && pass->net->model.graph->params[param].trained
                       ? mfl_cuda_grads_at(pass->net, param)
                       : NULL;
}

struct mfl_cuda_wanted mfl_cuda_wanted_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        const struct mfl_cuda_layer *own = &pass->net->model.layers[i];
        struct mfl_cuda_wanted want = {.add = own->add, .add2 = own->add2};
        if (mfl_cuda_wants_grad(pass, layer->input))
                want.dx = mfl_cuda_grad_at(pass->net, layer->input);
        if (mfl_cuda_wants_grad(pass, layer->input2))
                want.dx2 = mfl_cuda_grad_at(pass->net, layer->input2);
        return want;
}

cudaError_t mfl_cuda_clear_grad(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_tensor *x = &pass->net->model.layers[i].x;
        uint64_t bytes = (uint64_t)x->groups * (uint64_t)x->batch * (uint64_t)x->h * (uint64_t)x->w *
                         (uint64_t)x->c * (uint64_t)mfl_cuda_type_bytes(x->type);
        /* All groups as one: an odd number of halves would share a word. A tensor's place is aligned. */
        struct mfl_cuda_clear a = {.groups = 1,
                .n = (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t),
                .to = mfl_cuda_grad_at(pass->net, i),
                .steps = {.batch = pass->steps.batch}};
        return mfl_cuda_clear(&a, pass->net->main.stream);
}

int mfl_cuda_check_layer(const struct mfl_cuda_run *pass, int i, const char *what, cudaError_t status)
{
        char text[MFL_LAYER_NAME_BYTES + 64];
        if (status == cudaSuccess)
                return 0;
        snprintf(text, sizeof text, "%s of layer %s", what, pass->net->model.graph->layers[i].name);
        return mfl_cuda_check(status, text, pass->err);
}

struct mfl_cuda_run mfl_cuda_run_of(struct mfl_net *net, bool training, struct mfl_error *err)
{
        const struct mfl_cuda_control *control = &net->model.control;
        const void *low = mfl_cuda_at(net, MFL_CUDA_LOW);
        struct mfl_cuda_run pass = {.net = net,
                .training = training,
                .params = mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .low = low ? low : mfl_cuda_at(net, MFL_CUDA_PARAMS),
                .stride = net->model.stride,
                .steps = {.step = mfl_cuda_control_at(net, control->step),
                        .step_first = mfl_cuda_control_at(net, control->step_first),
                        .index = mfl_cuda_control_at(net, control->index),
                        .count = mfl_cuda_control_at(net, control->count),
                        .dropout = mfl_cuda_control_at(net, control->dropout),
                        .augment = mfl_cuda_control_at(net, control->augment),
                        .steps_max = net->model.steps_max,
                        .batch = (uint32_t)net->model.options.batch,
                        /* A worker's batches are grains of one step. */
                        .accumulate = !training                   ? 1
                                      : net->model.options.worker ? net->model.steps_max
                                                                  : net->model.accumulate},
                .err = err};
        return pass;
}

struct mfl_cuda_conv_args mfl_cuda_conv_args_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_conv_args args = {.x = mfl_cuda_act_at(pass->net, layer->input),
                .w_stride = pass->stride,
                .p_stride = pass->stride,
                .steps = pass->steps};
        args.w = mfl_cuda_low_at(pass, layer->param_weight);
        return args;
}

struct mfl_cuda_norm mfl_cuda_norm_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_model *model = &net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        const struct mfl_cuda_layer *own = &model->layers[i];
        struct mfl_cuda_norm a = {.x = mfl_cuda_norm_tensor(model, i),
                .norm_groups = layer->op == MFL_OP_GROUPNORM ? layer->norm_groups : 0,
                .eps = layer->eps,
                .momentum = layer->momentum,
                .training = pass->training,
                .in = mfl_cuda_act_at(net, layer->input),
                .residual = own->residual < 0 ? NULL : mfl_cuda_act_at(net, own->residual),
                .out = mfl_cuda_act_at(net, i),
                .weight = pass->params + model->at[layer->param_weight],
                .bias = pass->params + model->at[layer->param_bias],
                .stride = pass->stride,
                .act = own->act,
                .workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE),
                .steps = pass->steps};
        /* Statistics are params that forward itself updates, once. */
        bool stays = pass->training && layer->param_mean >= 0 &&
                     (pass->again || mfl_cuda_stays(model, layer->param_mean, pass->moves));
        if (layer->param_mean >= 0 && !stays) {
                bool of_grain = pass->training && model->options.worker; /* net_grad.c: they stay */
                float *to = of_grain ? mfl_cuda_at(net, MFL_CUDA_GRADS) : (float *)pass->params;
                a.momentum = of_grain ? 1.0f : layer->momentum;
                a.running_mean = to + model->at[layer->param_mean];
                a.running_var = to + model->at[layer->param_var];
        }
        if (model->options.training) {
                uint64_t rows = layer->op == MFL_OP_BATCHNORM
                                        ? (uint64_t)a.x.c
                                        : (uint64_t)a.x.batch * (uint64_t)layer->norm_groups;
                a.mean = mfl_cuda_aux_at(net, i);
                a.inverse = a.mean + (uint64_t)a.x.groups * rows;
        }
        return a;
}

struct mfl_cuda_pool mfl_cuda_pool_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_model *model = &net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_pool a = {.x = model->layers[layer->input].x,
                .max = layer->op == MFL_OP_MAXPOOL2D,
                .in = mfl_cuda_act_at(net, layer->input),
                .out = mfl_cuda_act_at(net, i),
                .act = model->layers[i].in_act,
                .add = model->layers[i].add,
                .steps = pass->steps};
        if (layer->op == MFL_OP_GLOBAL_AVGPOOL2D || layer->op == MFL_OP_GLOBAL_MAXPOOL2D)
                return a;
        a.window = mfl_window_of(model->graph, i);
        if (a.max && model->options.training && a.window.k[0] * a.window.k[1] > 255)
                a.argmax_wide = mfl_cuda_aux_at(net, i);
        else if (a.max && model->options.training)
                a.argmax = mfl_cuda_aux_at(net, i);
        return a;
}

struct mfl_cuda_dropout mfl_cuda_dropout_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        const struct mfl_cuda_layer *own = &net->model.layers[i];
        return (struct mfl_cuda_dropout){.x = own->x,
                .in = mfl_cuda_act_at(net, layer->input),
                .out = mfl_cuda_act_at(net, i),
                .rate = layer->rate,
                .layer = (uint32_t)i,
                .training = pass->training,
                .add = own->add,
                .act = own->in_act,
                .act_y = own->in_act == MFL_CUDA_ACT_NONE ? NULL : mfl_cuda_act_at(net, layer->input),
                .steps = pass->steps};
}
