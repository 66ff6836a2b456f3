/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and pools, in the reference backend. */
#include "kernels/reference/layer.h"

static void conv_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_window window = mfl_window_of(net->graph, i);
        mfl_ref_conv_forward(&window, pass->rows, x, param_of(net, pass->params, layer->param_weight),
                param_of(net, pass->params, layer->param_bias), y);
}

static void conv_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_window window = mfl_window_of(net->graph, i);
        if (g->dw || g->db)
                mfl_ref_conv_backward_params(
                        &window, pass->rows, mfl_ref_act(net, layer->input), dy, g->dw, g->db);
        if (g->dx)
                mfl_ref_conv_backward_data(&window, pass->rows, dy,
                        param_of(net, pass->params, layer->param_weight), g->add, g->dx);
}

static void convtranspose_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_window window = mfl_window_of(net->graph, i);
        mfl_ref_convtranspose_forward(&window, pass->rows, x,
                param_of(net, pass->params, layer->param_weight),
                param_of(net, pass->params, layer->param_bias), y);
}

static void convtranspose_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_window window = mfl_window_of(net->graph, i);
        if (g->dw || g->db)
                mfl_ref_convtranspose_backward_params(
                        &window, pass->rows, mfl_ref_act(net, layer->input), dy, g->dw, g->db);
        if (g->dx)
                mfl_ref_convtranspose_backward_data(&window, pass->rows, dy,
                        param_of(net, pass->params, layer->param_weight), g->add, g->dx);
}

static void maxpool_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_window window = mfl_window_of(pass->net->graph, i);
        mfl_ref_maxpool_forward(&window, pass->rows, x, y);
}

static void maxpool_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        struct mfl_window window = mfl_window_of(pass->net->graph, i);
        if (g->dx)
                mfl_ref_maxpool_backward(&window, pass->rows, input_of(pass, i), dy, g->add, g->dx);
}

static void avgpool_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_window window = mfl_window_of(pass->net->graph, i);
        mfl_ref_avgpool_forward(&window, pass->rows, x, y);
}

static void avgpool_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        struct mfl_window window = mfl_window_of(pass->net->graph, i);
        if (g->dx)
                mfl_ref_avgpool_backward(&window, pass->rows, dy, g->add, g->dx);
}

/* Planes of the pass, and their sizes: for pools over whole planes. */
static int64_t planes_of(const struct pass *pass, int i, int64_t *ret_size)
{
        const struct mfl_plan_layer *plan = &pass->net->plan->layers[i];
        *ret_size = plan->in_count / plan->out_count;
        return pass->rows * pass->net->graph->layers[i].out.dim[0];
}

static void global_maxpool_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        int64_t size, planes = planes_of(pass, i, &size);
        mfl_ref_global_maxpool_forward(planes, size, x, y);
}

static void global_maxpool_backward(
        const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        int64_t size, planes = planes_of(pass, i, &size);
        if (g->dx)
                mfl_ref_global_maxpool_backward(planes, size, input_of(pass, i), dy, g->add, g->dx);
}

static void global_avgpool_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        int64_t size, planes = planes_of(pass, i, &size);
        mfl_ref_global_avgpool_forward(planes, size, x, y);
}

static void global_avgpool_backward(
        const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        int64_t size, planes = planes_of(pass, i, &size);
        if (g->dx)
                mfl_ref_global_avgpool_backward(planes, size, dy, g->add, g->dx);
}

const struct mfl_ref_op mfl_ref_op_conv2d = {conv_forward, conv_backward};
const struct mfl_ref_op mfl_ref_op_convtranspose2d = {convtranspose_forward, convtranspose_backward};
const struct mfl_ref_op mfl_ref_op_maxpool2d = {maxpool_forward, maxpool_backward};
const struct mfl_ref_op mfl_ref_op_avgpool2d = {avgpool_forward, avgpool_backward};
const struct mfl_ref_op mfl_ref_op_global_maxpool2d = {global_maxpool_forward, global_maxpool_backward};
const struct mfl_ref_op mfl_ref_op_global_avgpool2d = {global_avgpool_forward, global_avgpool_backward};
