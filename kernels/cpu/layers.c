/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and norms of channels as operators. */
#include "kernels/cpu/op.h"

static int conv_forward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_cpu_conv *conv = &net->layers[i].conv;
        const float *weights = mfl_cpu_param(pass, layer->param_weight),
                    *bias = mfl_cpu_param(pass, layer->param_bias);
        if (!net->options.infer)
                return mfl_cpu_conv_run_forward(conv, net->stream, weights, bias, pass->err);
        return mfl_cpu_conv_run_rows(conv, net->stream, weights, bias, net->rows,
                net->layers[layer->input].layout.count, net->layers[i].layout.count, pass->err);
}

static int conv_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_cpu_conv *conv = &net->layers[i].conv;
        float *dw = mfl_cpu_param_grad(pass, i, layer->param_weight);
        int rc = 0;
        if (dx)
                rc = mfl_cpu_conv_run_data(
                        conv, net->stream, mfl_cpu_param(pass, layer->param_weight), pass->err);
        if (rc || !dw)
                return rc;
        rc = mfl_cpu_conv_run_gradient(
                conv, net->stream, dw, mfl_cpu_param_grad(pass, i, layer->param_bias), pass->err);
        if (rc)
                return rc;
        mfl_cpu_take_grad(pass, i, layer->param_weight);
        mfl_cpu_take_grad(pass, i, layer->param_bias);
        return 0;
}

static int norm_forward(const struct pass *pass, int i)
{
        mfl_cpu_norm_forward(pass, i);
        return 0;
}

/* The loops always give the params' gradients. */
static int norm_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const int params[] = {layer->param_weight, layer->param_bias};
        float *grads[2];
        for (int k = 0; k < 2; k++) {
                grads[k] = mfl_cpu_param_grad(pass, i, params[k]);
                if (!grads[k])
                        grads[k] = net->unused;
        }
        mfl_cpu_norm_backward(pass, i, dx, grads);
        for (int k = 0; k < 2; k++)
                mfl_cpu_take_grad(pass, i, params[k]);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_conv2d = {MFL_CPU_YIELDS, conv_forward, conv_backward};
const struct mfl_cpu_op mfl_cpu_op_convtranspose2d = {MFL_CPU_YIELDS, conv_forward, conv_backward};
const struct mfl_cpu_op mfl_cpu_op_batchnorm = {
        MFL_CPU_YIELDS, norm_forward, norm_backward, mfl_cpu_norm_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_groupnorm = {
        MFL_CPU_YIELDS, norm_forward, norm_backward, mfl_cpu_norm_aux_bytes};
