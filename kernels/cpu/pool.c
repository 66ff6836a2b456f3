/* SPDX-License-Identifier: Apache-2.0 */
/* Pools. */
#include "kernels/cpu/op.h"

/* A global pool is one window over the whole plane. */
static struct mfl_window window_of(const struct mfl_net *net, int i)
{
        struct mfl_window window = mfl_window_of(net->graph, i);
        if (net->graph->layers[i].op == MFL_OP_GLOBAL_AVGPOOL2D ||
                net->graph->layers[i].op == MFL_OP_GLOBAL_MAXPOOL2D) {
                window.k[0] = window.s[0] = window.h;
                window.k[1] = window.s[1] = window.w;
        }
        return window;
}

static struct mfl_pool pool_of(const struct mfl_net *net, int i)
{
        return (struct mfl_pool){.window = window_of(net, i),
                .in = net->layers[net->graph->layers[i].input].layout,
                .out = net->layers[i].layout,
                .rows = net->rows,
                .threads = net->options.threads};
}

static int maxpool_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        struct mfl_pool pool = pool_of(net, i);
        net->device->loops->maxpool_forward(&pool, mfl_cpu_act(net, net->graph->layers[i].input),
                mfl_cpu_act(net, i), net->options.training ? mfl_cpu_aux(net, i) : NULL);
        return 0;
}

static int maxpool_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        struct mfl_pool pool = pool_of(net, i);
        if (dx)
                net->device->loops->maxpool_backward(&pool, mfl_cpu_grad(net, i), mfl_cpu_act(net, i),
                        mfl_cpu_aux(net, i), net->layers[i].masked, dx);
        return 0;
}

/* The places of the maxima. */
static uint64_t maxpool_aux_bytes(const struct mfl_net *net, int i)
{
        return net->options.training ? (uint64_t)mfl_cpu_floats(net, i) * sizeof(uint16_t) : 0;
}

static int avgpool_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        struct mfl_pool pool = pool_of(net, i);
        net->device->loops->avgpool_forward(
                &pool, mfl_cpu_act(net, net->graph->layers[i].input), mfl_cpu_act(net, i));
        return 0;
}

static int avgpool_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        struct mfl_pool pool = pool_of(net, i);
        if (dx)
                net->device->loops->avgpool_backward(&pool, mfl_cpu_grad(net, i), dx);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_maxpool2d = {
        MFL_CPU_NO_INPUT, maxpool_forward, maxpool_backward, maxpool_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_global_maxpool2d = {
        MFL_CPU_NO_INPUT, maxpool_forward, maxpool_backward, maxpool_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_avgpool2d = {MFL_CPU_YIELDS, avgpool_forward, avgpool_backward};
const struct mfl_cpu_op mfl_cpu_op_global_avgpool2d = {MFL_CPU_YIELDS, avgpool_forward, avgpool_backward};
