/* SPDX-License-Identifier: Apache-2.0 */
/* Backward of each layer, with the optimizer's step in it. */
#include "kernels/cpu/pass.h"

/* Whether the step is taken where a dense layer's gradient is made. */
static bool is_fused(const struct pass *pass)
{
        return pass->opt && pass->opt->kind == MFL_OPTIMIZER_SGD;
}

struct mfl_apply mfl_cpu_apply(const struct pass *pass, int param)
{
        struct mfl_net *net = pass->net;
        uint64_t at = net->wide[param].at, group = net->n_wide * (uint64_t)pass->group;
        return (struct mfl_apply){.opt = pass->opt,
                .lr = pass->rate.lr,
                .rate = pass->rate,
                .grad = is_fused(pass) ? NULL : pass->grads + at,
                .p = net->params + group + at,
                .m = net->momentum + group + at,
                .v = net->second + group + at,
                .p0 = mfl_cpu_first(net, pass->group) + at};
}

void mfl_cpu_take_grad(const struct pass *pass, int param)
{
        const struct mfl_net *net = pass->net;
        if (!pass->opt || !mfl_cpu_is_trained(net->graph, param))
                return;
        struct mfl_apply apply = mfl_cpu_apply(pass, param);
        apply.grad = NULL;
        net->device->loops->update((int64_t)net->wide[param].count, mfl_cpu_param_grad(pass, param), &apply,
                net->options.threads);
}

static int conv_backward(const struct pass *pass, int i, bool data)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_cpu_conv *conv = &net->layers[i].conv;
        float *dw = mfl_cpu_param_grad(pass, layer->param_weight);
        int rc = 0;
        if (data)
                rc = mfl_cpu_conv_run_data(
                        conv, net->stream, mfl_cpu_param(pass, layer->param_weight), pass->err);
        if (rc || !dw)
                return rc;
        rc = mfl_cpu_conv_run_gradient(
                conv, net->stream, dw, mfl_cpu_param_grad(pass, layer->param_bias), pass->err);
        if (rc)
                return rc;
        mfl_cpu_take_grad(pass, layer->param_weight);
        mfl_cpu_take_grad(pass, layer->param_bias);
        return 0;
}

/* The loops give the params' gradients always: those of a frozen layer are cleared again. */
static void norm_backward(const struct pass *pass, int i, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const int params[] = {layer->param_weight, layer->param_bias};
        mfl_cpu_norm_backward(net, i, pass->rows, pass->dropout != NULL,
                mfl_cpu_group_params(net, pass->group), dx, pass->grads);
        for (int k = 0; k < 2; k++) {
                if (!mfl_cpu_is_trained(net->graph, params[k]))
                        memset(pass->grads + net->wide[params[k]].at, 0,
                                (size_t)net->wide[params[k]].count * sizeof(float));
                mfl_cpu_take_grad(pass, params[k]);
        }
}

static void elementwise_backward(const struct pass *pass, int i, const float *dy, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *y = mfl_cpu_act(net, i);
        int64_t n = mfl_cpu_floats(net, i);
        int threads = net->options.threads;
        switch (layer->op) {
        case MFL_OP_RELU:
                if (!net->layers[i].masked)
                        loops->relu_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_TANH:
                loops->tanh_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_SIGMOID:
                loops->sigmoid_grad(n, y, dy, dx, threads);
                break;
        case MFL_OP_RELU6:
        case MFL_OP_LEAKY_RELU:
        case MFL_OP_ELU:
        case MFL_OP_HARDSIGMOID:
                loops->activation_grad(layer, n, y, dy, dx, threads);
                break;
        case MFL_OP_GELU:
        case MFL_OP_SILU:
        case MFL_OP_HARDSWISH:
        case MFL_OP_SOFTPLUS:
                loops->activation_grad(layer, n, mfl_cpu_act(net, layer->input), dy, dx, threads);
                break;
        case MFL_OP_DROPOUT:
                if (pass->dropout)
                        loops->multiply(n, dy, mfl_cpu_aux(net, i), dx, threads);
                else if (dx != dy)
                        memcpy(dx, dy, (size_t)n * sizeof *dx);
                break;
        default: /* flatten, reshape */
                if (mfl_cpu_moves(net, i))
                        mfl_layout_from_plain(
                                &net->layers[net->graph->layers[i].input].layout, net->options.batch, dy, dx);
                else if (dx != dy)
                        memcpy(dx, dy, (size_t)n * sizeof *dx);
        }
}

static int add_backward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        mfl_cpu_add_backward(pass->net, i, net->plan->layers[layer->input].wants_grad,
                net->plan->layers[layer->input2].wants_grad);
        return 0;
}

/* dx and dx2 are written; NULL: not wanted. A convolution's goes where its primitive was bound to. */
static int layer_backward_to(const struct pass *pass, int i, float *dx, float *dx2)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        enum mfl_op op = net->graph->layers[i].op;
        const float *dy = mfl_cpu_grad(net, i);
        struct mfl_pool pool;
        if (op == MFL_OP_CONV2D || op == MFL_OP_CONVTRANSPOSE2D)
                return conv_backward(pass, i, dx != NULL);
        if (op == MFL_OP_DENSE) {
                mfl_cpu_dense_backward(pass, i, dx);
        } else if (op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM) {
                norm_backward(pass, i, dx);
        } else if (op == MFL_OP_LSTM || op == MFL_OP_GRU) {
                mfl_cpu_recurrent_backward(pass, i, dx);
        } else if (mfl_cpu_is_sequence(op)) {
                mfl_cpu_sequence_backward(pass, i, dx, dx2);
        } else if (mfl_cpu_is_shape(op)) {
                mfl_cpu_shape_backward(pass, i, dx, dx2);
        } else if (!dx) {
                return 0;
        } else if (op == MFL_OP_MAXPOOL2D || op == MFL_OP_GLOBAL_MAXPOOL2D) {
                pool = mfl_cpu_pool_of(net, i);
                loops->maxpool_backward(
                        &pool, dy, mfl_cpu_act(net, i), mfl_cpu_aux(net, i), net->layers[i].masked, dx);
        } else if (op == MFL_OP_AVGPOOL2D || op == MFL_OP_GLOBAL_AVGPOOL2D) {
                pool = mfl_cpu_pool_of(net, i);
                loops->avgpool_backward(&pool, dy, dx);
        } else {
                elementwise_backward(pass, i, dy, dx);
        }
        return 0;
}

/* Where the gradient of an input is written. One that is not the first to be given is given apart and then
 * added; one that is in plain order while the input is not moves to its place afterwards. */
struct delivery {
        int input, which;
        bool wanted, writes, moves;
};

static struct delivery delivery_of(const struct pass *pass, int i, int which)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        int input = which ? net->graph->layers[i].input2 : net->graph->layers[i].input;
        struct delivery d = {.input = input, .which = which};
        d.wanted = input >= 0 && net->plan->layers[input].wants_grad;
        d.writes = which ? plan->writes_grad2 : plan->writes_grad;
        d.moves = input >= 0 && net->layers[i].plain && !net->layers[input].layout.identity;
        return d;
}

static float *place_of(const struct mfl_net *net, const struct delivery *d)
{
        if (!d->wanted)
                return NULL;
        return d->moves    ? net->plain_grad[d->which]
               : d->writes ? mfl_cpu_grad(net, d->input)
                           : net->share[d->which];
}

static void deliver(const struct mfl_net *net, const struct delivery *d)
{
        const struct mfl_layout *l = d->wanted ? &net->layers[d->input].layout : NULL;
        if (!d->wanted)
                return;
        float *dx = mfl_cpu_grad(net, d->input);
        if (d->moves)
                mfl_layout_from_plain(l, net->options.batch, net->plain_grad[d->which],
                        d->writes ? dx : net->share[d->which]);
        if (!d->writes)
                net->device->loops->add(mfl_cpu_floats(net, d->input), dx, net->share[d->which], false, dx,
                        net->options.threads);
}

static int layer_backward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        struct delivery first = delivery_of(pass, i, 0), second = delivery_of(pass, i, 1);
        if (net->graph->layers[i].op == MFL_OP_ADD && !net->layers[i].plain)
                return add_backward(pass, i);
        int rc = layer_backward_to(pass, i, place_of(net, &first), place_of(net, &second));
        if (rc)
                return rc;
        deliver(net, &first);
        deliver(net, &second);
        return 0;
}

int mfl_cpu_run_backward(const struct pass *pass)
{
        const struct mfl_plan *plan = pass->net->plan;
        struct pass again = *pass;
        int rc = 0;
        again.running = false;
        for (int k = 0; !rc && k < plan->n_backward; k++) {
                int i = plan->backward[k].layer;
                rc = plan->backward[k].again ? mfl_cpu_layer_forward(&again, i) : layer_backward(pass, i);
        }
        return rc;
}
