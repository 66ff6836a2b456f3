/* SPDX-License-Identifier: Apache-2.0 */
/* Backward over the layers of a network. The gradient of a layer's weights runs on the side, beside that of
 * its input. Both end before the layer before it begins, whose tensors may use this layer's memory. */
#include "kernels/cuda/ops/ops_shape.h"
#include "kernels/cuda/net/run.h"

static int fork_side(const struct mfl_cuda_run *pass)
{
        struct mfl_net *net = pass->net;
        int rc = mfl_cuda_check(cudaEventRecord(net->fork, net->main.stream), "fork a stream", pass->err);
        return rc ? rc
                  : mfl_cuda_check(
                            cudaStreamWaitEvent(net->side.stream, net->fork, 0), "fork a stream", pass->err);
}

static int join_side(const struct mfl_cuda_run *pass)
{
        struct mfl_net *net = pass->net;
        int rc = mfl_cuda_check(cudaEventRecord(net->join, net->side.stream), "join a stream", pass->err);
        return rc ? rc
                  : mfl_cuda_check(
                            cudaStreamWaitEvent(net->main.stream, net->join, 0), "join a stream", pass->err);
}

/* The gradient of the plan's output. */
static const void *product_grad(const struct mfl_net *net, int i)
{
        return mfl_cuda_is_recurrent(net->model.graph->layers[i].op) ? mfl_cuda_lstm_gates(net, i, false)
                                                                     : mfl_cuda_grad_at(net, i);
}

static int conv_weights(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        struct mfl_cuda_conv_args args = mfl_cuda_conv_args_of(pass, i);
        args.dy = product_grad(net, i);
        args.dw = mfl_cuda_grads_at(net, layer->param_weight);
        args.db = mfl_cuda_grads_at(net, layer->param_bias);
        args.workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE_2);
        int rc = mfl_cuda_conv_plan_run(net->model.layers[i].weights, &args, pass->err);
        if (rc || !net->model.layers[i].weights2)
                return rc;
        args.x = mfl_cuda_act_at(net, i);
        args.dy = mfl_cuda_lstm_gates(net, i, true);
        args.dw = mfl_cuda_grads_at(net, layer->param_weight2);
        args.db = mfl_cuda_grads_at(net, layer->param_bias2);
        return mfl_cuda_conv_plan_run(net->model.layers[i].weights2, &args, pass->err);
}

static int conv_data(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_layer *own = &net->model.layers[i];
        struct mfl_cuda_conv_args args = mfl_cuda_conv_args_of(pass, i);
        args.dy = product_grad(net, i);
        args.dx = mfl_cuda_grad_at(net, net->model.graph->layers[i].input);
        args.act = own->in_act;
        args.act_y = own->in_act == MFL_CUDA_ACT_NONE ? NULL : args.x;
        args.x = NULL;
        args.add = own->add;
        args.workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE);
        if (own->data)
                return mfl_cuda_conv_plan_run(own->data, &args, pass->err);
        return mfl_cuda_check_layer(pass, i, "gradient of the input",
                mfl_cuda_conv_own(&own->conv, MFL_CUDA_BACKWARD_DATA, 0, &args, net->main.stream));
}

static int conv_backward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        if (!mfl_cuda_conv_gives(&pass->net->model, i, MFL_CUDA_BACKWARD_WEIGHTS)) { /* frozen */
                int rc = mfl_cuda_wants_grad(pass, layer->input) ? conv_data(pass, i) : 0;
                return rc || !layer->lora_rank
                               ? rc
                               : mfl_cuda_check_layer(pass, i, "backward", mfl_cuda_lora_backward(pass, i));
        }
        int rc = fork_side(pass);
        if (!rc)
                rc = conv_weights(pass, i);
        if (!rc && mfl_cuda_wants_grad(pass, layer->input))
                rc = conv_data(pass, i);
        return rc ? rc : join_side(pass);
}

static cudaError_t norm_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        const struct mfl_cuda_layer *own = &net->model.layers[i];
        struct mfl_cuda_norm a = mfl_cuda_norm_of(pass, i);
        a.dout = mfl_cuda_grad_at(net, i);
        if (mfl_cuda_wants_grad(pass, layer->input))
                a.din = mfl_cuda_grad_at(net, layer->input);
        a.add = own->add;
        if (own->residual >= 0 && mfl_cuda_wants_grad(pass, own->residual))
                a.dresidual = mfl_cuda_grad_at(net, own->residual);
        a.add_residual = own->add2;
        a.dweight = mfl_cuda_grads_at(net, layer->param_weight);
        a.dbias = mfl_cuda_grads_at(net, layer->param_bias);
        /* The strides of gradients are those of params, even where all groups read the same params. */
        a.stride = net->model.stride;
        return mfl_cuda_norm_backward(&a, net->main.stream);
}

static cudaError_t elementwise_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        const struct mfl_cuda_layer *own = &net->model.layers[i];
        bool sum = layer->op == MFL_OP_ADD, first = mfl_cuda_wants_grad(pass, layer->input);
        struct mfl_cuda_elementwise a = {.x = own->x,
                .act = sum ? own->act : mfl_cuda_act_of(layer->op),
                .out = mfl_cuda_act_at(net, i),
                .dout = mfl_cuda_grad_at(net, i),
                .add = own->add,
                .steps = pass->steps};
        if (first)
                a.din = mfl_cuda_grad_at(net, layer->input);
        if (sum && mfl_cuda_wants_grad(pass, layer->input2)) {
                a.din2 = mfl_cuda_grad_at(net, layer->input2);
                a.add2 = own->add2;
        }
        if (!first) {
                a.din = a.din2;
                a.add = a.add2;
                a.din2 = NULL;
        }
        return a.din ? mfl_cuda_elementwise_backward(&a, net->main.stream) : cudaSuccess;
}

static cudaError_t pool_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        struct mfl_cuda_pool a = mfl_cuda_pool_of(pass, i);
        a.din = mfl_cuda_grad_at(net, net->model.graph->layers[i].input);
        a.dout = mfl_cuda_grad_at(net, i);
        if (net->model.graph->layers[i].op == MFL_OP_GLOBAL_MAXPOOL2D)
                return mfl_cuda_global_max_backward(&a, net->main.stream);
        if (net->model.graph->layers[i].op == MFL_OP_GLOBAL_AVGPOOL2D)
                return mfl_cuda_global_pool_backward(&a, net->main.stream);
        return mfl_cuda_pool_backward(&a, net->main.stream);
}

static cudaError_t dropout_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        struct mfl_cuda_dropout a = mfl_cuda_dropout_of(pass, i);
        a.din = mfl_cuda_grad_at(net, net->model.graph->layers[i].input);
        a.dout = mfl_cuda_grad_at(net, i);
        return mfl_cuda_dropout_backward(&a, net->main.stream);
}

static int layer_backward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        cudaError_t status;
        if (mfl_cuda_is_recurrent(layer->op)) {
                int rc = mfl_cuda_check_layer(pass, i, "backward", mfl_cuda_lstm_backward(pass, i));
                return rc ? rc : conv_backward(pass, i);
        }
        if (mfl_cuda_is_conv(layer))
                return conv_backward(pass, i);
        if (mfl_cuda_is_norm(layer->op))
                status = norm_backward(pass, i);
        else if (mfl_cuda_is_direct(layer))
                status = mfl_cuda_direct_layer_backward(pass, i);
        else if (mfl_cuda_is_shape(&pass->net->model, i))
                status = mfl_cuda_shape_backward(pass, i);
        else if (mfl_cuda_is_sequence(layer->op))
                status = mfl_cuda_sequence_backward(pass, i);
        else if (layer->op == MFL_OP_ADD)
                status = elementwise_backward(pass, i);
        else if (!mfl_cuda_wants_grad(pass, layer->input))
                status = cudaSuccess;
        else if (layer->op == MFL_OP_DROPOUT)
                status = dropout_backward(pass, i);
        else if (layer->op == MFL_OP_MAXPOOL2D || layer->op == MFL_OP_AVGPOOL2D ||
                 layer->op == MFL_OP_GLOBAL_AVGPOOL2D || layer->op == MFL_OP_GLOBAL_MAXPOOL2D)
                status = pool_backward(pass, i);
        else
                status = elementwise_backward(pass, i);
        return mfl_cuda_check_layer(pass, i, "backward", status);
}

int mfl_cuda_run_backward(const struct mfl_cuda_run *pass)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_plan *plan = model->plan;
        struct mfl_cuda_run again = *pass;
        int rc = 0;
        again.again = true;
        for (int k = 0; !rc && k < plan->n_backward; k++) {
                int i = plan->backward[k].layer;
                if (plan->backward[k].again)
                        rc = mfl_cuda_layer_forward(&again, i);
                else if (!model->layers[i].folded)
                        rc = layer_backward(pass, i);
        }
        return rc ? rc : mfl_cuda_tie_grads(pass);
}
