/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward over the layers in the reference backend. */
#include "kernels/reference/layer.h"

mfl_real *mfl_ref_act(const struct mfl_net *net, int i)
{
        return (mfl_real *)(net->arena + net->plan->layers[i].act);
}

mfl_real *mfl_ref_grad(const struct mfl_net *net, int i)
{
        return (mfl_real *)(net->arena + net->plan->layers[i].grad);
}

uint64_t mfl_ref_aux_bytes(const struct mfl_graph *graph, int i, int batch)
{
        const struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_ref_op *op = mfl_ref_ops[layer->op];
        return op && op->aux_bytes ? op->aux_bytes(layer, batch) : 0;
}

int mfl_ref_check_ops(const struct mfl_graph *graph, struct mfl_error *err)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (!mfl_ref_ops[graph->layers[i].op])
                        return mfl_fail(err, MFL_INVALID, "layer %s: the reference backend has no %s",
                                graph->layers[i].name, mfl_op_name(graph->layers[i].op));
        return 0;
}

void mfl_ref_layer_forward(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        mfl_ref_ops[layer->op]->forward(
                pass, i, layer->input < 0 ? NULL : input_of(pass, i), mfl_ref_act(pass->net, i));
}

void mfl_ref_forward(const struct pass *pass)
{
        for (int i = 1; i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        mfl_ref_layer_forward(pass, i);
}

/* Where the gradient of a layer's tensor goes: to its place, or, where a later layer has written there, to
 * net->extra at *at, from where add_extra adds it. */
static mfl_real *place_grad(const struct mfl_net *net, int i, mfl_real *grads, int param, uint64_t *at)
{
        mfl_real *to = grad_param(net, grads, param);
        if (!to || net->graph->params[param].last_layer == i)
                return to;
        to = net->extra + *at;
        memset(to, 0, (size_t)net->graph->params[param].count * sizeof *to);
        *at += net->graph->params[param].count;
        return to;
}

static void add_extra(const struct mfl_net *net, int i, mfl_real *grads, int param, uint64_t *at)
{
        mfl_real *to = grad_param(net, grads, param);
        if (!to || net->graph->params[param].last_layer == i)
                return;
        for (uint64_t e = 0; e < net->graph->params[param].count; e++)
                to[e] += net->extra[*at + e];
        *at += net->graph->params[param].count;
}

static void add_shared(const struct mfl_net *net, int i, mfl_real *grads)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        uint64_t at = 0;
        add_extra(net, i, grads, layer->param_weight, &at);
        add_extra(net, i, grads, layer->param_bias, &at);
        add_extra(net, i, grads, layer->param_weight2, &at);
        add_extra(net, i, grads, layer->param_bias2, &at);
}

static struct wanted wanted_of(const struct pass *pass, int i, mfl_real *grads)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = net->plan->layers;
        struct wanted g = {.add = !plan[i].writes_grad, .add2 = !plan[i].writes_grad2};
        uint64_t at = 0;
        g.dw = place_grad(net, i, grads, layer->param_weight, &at);
        g.db = place_grad(net, i, grads, layer->param_bias, &at);
        g.dw2 = place_grad(net, i, grads, layer->param_weight2, &at);
        g.db2 = place_grad(net, i, grads, layer->param_bias2, &at);
        if (layer->input >= 0 && plan[layer->input].wants_grad)
                g.dx = mfl_ref_grad(net, layer->input);
        if (layer->input2 >= 0 && plan[layer->input2].wants_grad)
                g.dx2 = mfl_ref_grad(net, layer->input2);
        return g;
}

void mfl_ref_backward(const struct pass *pass, mfl_real *grads)
{
        const struct mfl_net *net = pass->net;
        struct pass again = *pass;
        again.running = NULL;
        again.statistics = NULL;
        memset(grads, 0, (size_t)net->graph->n * sizeof(mfl_real));
        for (int k = 0; k < net->plan->n_backward; k++) {
                int i = net->plan->backward[k].layer;
                if (net->plan->backward[k].again) {
                        mfl_ref_layer_forward(&again, i);
                        continue;
                }
                struct wanted g = wanted_of(pass, i, grads);
                mfl_ref_ops[net->graph->layers[i].op]->backward(pass, i, mfl_ref_grad(net, i), &g);
                add_shared(net, i, grads);
        }
}
