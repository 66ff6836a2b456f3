/* SPDX-License-Identifier: Apache-2.0 */
/* Backward over the layers, with the optimizer's step in it. */
#include "kernels/cpu/op.h"

/* Where the gradient of an input is written. Unless it is the first one, it is written to a separate buffer
 * and then added. One in plain order, for an input that is not, is moved to its place afterwards. */
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

/* Elements without a place in the flat vector have no gradient. Not all operators write them, and in a worker's network another
 * layer's gradients have lain there. */
static void clear_grads(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        for (int t = 0; t < net->graph->n_params; t++)
                if (net->graph->params[t].layer == i && mfl_cpu_is_trained(net->graph, t) &&
                        !mfl_cpu_is_shared(net->graph, t))
                        memset(pass->grads + net->wide[t].grad, 0,
                                (size_t)net->wide[t].count * sizeof(float));
}

static int layer_backward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        if (net->options.worker && net->layers[i].pads)
                clear_grads(pass, i);
        struct delivery first = delivery_of(pass, i, 0), second = delivery_of(pass, i, 1);
        if (net->graph->layers[i].op == MFL_OP_ADD && !net->layers[i].plain) {
                mfl_cpu_add_backward(net, i, first.wanted, second.wanted);
                return 0;
        }
        int rc = mfl_cpu_ops[net->graph->layers[i].op]->backward(
                pass, i, place_of(net, &first), place_of(net, &second));
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
        again.statistics = NULL;
        for (int k = 0; !rc && k < plan->n_backward; k++) {
                int i = plan->backward[k].layer;
                rc = plan->backward[k].again ? mfl_cpu_layer_forward(&again, i) : layer_backward(pass, i);
        }
        return rc;
}
