/* SPDX-License-Identifier: Apache-2.0 */
/* Forward over the layers of a network: launches, one after another. */
#include "kernels/cuda/ops/ops_shape.h"
#include "kernels/cuda/net/run.h"

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
