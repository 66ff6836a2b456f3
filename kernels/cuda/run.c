/* SPDX-License-Identifier: Apache-2.0 */
/* Forward over the layers of a network: launches, one after another. */
#include "kernels/cuda/ops_shape.h"
#include "kernels/cuda/run.h"

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

int mfl_cuda_check_layer(const struct mfl_cuda_run *pass, int i, const char *what, cudaError_t status)
{
        char text[MFL_NAME_BYTES + 64];
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
                        .accumulate = training ? net->model.accumulate : 1},
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

static int conv_forward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_conv_args args = mfl_cuda_conv_args_of(pass, i);
        bool recurrent = mfl_cuda_is_recurrent(layer->op);
        args.y = recurrent ? mfl_cuda_lstm_gates(pass->net, i, false) : mfl_cuda_act_at(pass->net, i);
        args.bias = layer->param_bias < 0 ? NULL : pass->params + model->at[layer->param_bias];
        args.act = model->layers[i].act;
        args.workspace = mfl_cuda_at(pass->net, MFL_CUDA_WORKSPACE);
        int rc = mfl_cuda_conv_plan_run(model->layers[i].forward, &args, pass->err);
        if (!rc && layer->lora_rank)
                rc = mfl_cuda_check_layer(pass, i, "forward", mfl_cuda_lora_forward(pass, i));
        if (!rc && recurrent)
                rc = mfl_cuda_check_layer(pass, i, "forward", mfl_cuda_lstm_forward(pass, i));
        return rc;
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
        /* Statistics are params that forward itself moves, once. */
        if (layer->param_mean >= 0 && !(pass->training && pass->again)) {
                a.running_mean = (float *)pass->params + model->at[layer->param_mean];
                a.running_var = (float *)pass->params + model->at[layer->param_var];
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

static cudaError_t elementwise_forward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        const struct mfl_cuda_layer *own = &net->model.layers[i];
        struct mfl_cuda_elementwise a = {.x = own->x,
                .act = layer->op == MFL_OP_ADD ? own->act : mfl_cuda_act_of(layer->op),
                .in = mfl_cuda_act_at(net, layer->input),
                .in2 = layer->op == MFL_OP_ADD ? mfl_cuda_act_at(net, layer->input2) : NULL,
                .out = mfl_cuda_act_at(net, i),
                .steps = pass->steps};
        return mfl_cuda_elementwise_forward(&a, net->main.stream);
}

static cudaError_t launch_forward(const struct mfl_cuda_run *pass, int i)
{
        cudaStream_t stream = pass->net->main.stream;
        switch (pass->net->model.graph->layers[i].op) {
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D: {
                struct mfl_cuda_pool a = mfl_cuda_pool_of(pass, i);
                return mfl_cuda_pool_forward(&a, stream);
        }
        case MFL_OP_GLOBAL_AVGPOOL2D: {
                struct mfl_cuda_pool a = mfl_cuda_pool_of(pass, i);
                return mfl_cuda_global_pool_forward(&a, stream);
        }
        case MFL_OP_GLOBAL_MAXPOOL2D: {
                struct mfl_cuda_pool a = mfl_cuda_pool_of(pass, i);
                return mfl_cuda_global_max_forward(&a, stream);
        }
        case MFL_OP_DROPOUT: {
                struct mfl_cuda_dropout a = mfl_cuda_dropout_of(pass, i);
                return mfl_cuda_dropout_forward(&a, stream);
        }
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM: {
                struct mfl_cuda_norm a = mfl_cuda_norm_of(pass, i);
                return mfl_cuda_norm_forward(&a, stream);
        }
        default:
                if (mfl_cuda_is_direct(&pass->net->model.graph->layers[i]))
                        return mfl_cuda_direct_layer_forward(pass, i);
                if (mfl_cuda_is_shape(&pass->net->model, i))
                        return mfl_cuda_shape_forward(pass, i);
                if (mfl_cuda_is_sequence(pass->net->model.graph->layers[i].op))
                        return mfl_cuda_sequence_forward(pass, i);
                return elementwise_forward(pass, i);
        }
}

int mfl_cuda_layer_forward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        if (!model->layers[i].live || model->layers[i].carried)
                return 0;
        return mfl_cuda_has_plans(&model->graph->layers[i])
                       ? conv_forward(pass, i)
                       : mfl_cuda_check_layer(pass, i, "forward", launch_forward(pass, i));
}

int mfl_cuda_run_forward(const struct mfl_cuda_run *pass)
{
        int rc = 0;
        for (int i = 1; !rc && i < pass->net->model.graph->n_layers; i++)
                rc = mfl_cuda_layer_forward(pass, i);
        return rc;
}
