/* SPDX-License-Identifier: Apache-2.0 */
/* The reference in double: a network of one group that computes its outputs and gradients, and does not train. Params, samples and
 * results are floats, as everywhere; all between them is double. So its differences from another program's doubles are nothing but
 * mistakes, where floats differ by which side of a ReLU's kink a number is on. */
#include "kernels/double.h"

#include "kernels/host.h"
#include "kernels/reference/net.h"

struct mfl_device {
        char unused;
};

static int device_open(struct mfl_device **ret_device, struct mfl_error *err)
{
        struct mfl_device *device = mfl_calloc(1, sizeof *device);
        if (!device)
                return mfl_fail_memory(err, sizeof *device, "reference device");
        *ret_device = device;
        return 0;
}

static void device_close(struct mfl_device *device)
{
        free(device);
}

/* Tensors of doubles are as large as floats of twice the batch. */
static int make_plan(const struct mfl_graph *graph, const struct mfl_net_options *options,
        struct mfl_plan **ret_plan, struct mfl_error *err)
{
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc((size_t)graph->n_layers, sizeof *needs);
        if (!needs)
                return mfl_fail_memory(err, sizeof *needs, "plan of a network");
        mfl_plan_plain_needs(graph, 2 * options->batch, needs);
        for (int i = 0; i < graph->n_layers; i++)
                needs[i].aux_bytes = mfl_ref_aux_bytes(graph, i, options->batch);
        return mfl_plan_new(graph, options, needs, ret_plan, err);
}

static uint64_t net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        struct mfl_plan *plan = NULL;
        if (make_plan(graph, options, &plan, NULL))
                return 0; /* net_new reports the error */
        uint64_t n = graph->n * (mfl_graph_is_tied(graph) ? 4 : 2);
        uint64_t bytes = plan->arena_bytes + n * sizeof(mfl_real);
        for (int i = 0; i < graph->n_layers; i++)
                bytes += mfl_map_bytes(graph, i);
        mfl_plan_free(plan);
        return bytes;
}

static void net_free(struct mfl_net *net)
{
        if (!net)
                return;
        mfl_plan_free(net->plan);
        mfl_maps_free(net->graph, net->maps);
        free(net->arena);
        free(net->params);
        free(net->grads);
        free(net->extra);
        free(net->turned);
        free(net);
}

static int allocate(struct mfl_net *net, struct mfl_error *err)
{
        size_t n = (size_t)net->graph->n + 1, tied = mfl_graph_is_tied(net->graph) ? n : 1;
        int r = make_plan(net->graph, &net->options, &net->plan, err);
        if (!r)
                r = mfl_maps_new(net->graph, &net->maps, err);
        if (r)
                return r;
        net->arena = mfl_alloc_aligned(net->plan->arena_bytes);
        net->params = mfl_calloc(n, sizeof *net->params);
        net->grads = mfl_calloc(n, sizeof *net->grads);
        net->extra = mfl_calloc(tied, sizeof *net->extra);
        net->turned = mfl_calloc(tied, sizeof *net->turned);
        bool is_there = net->arena && net->params && net->grads && net->extra && net->turned;
        return is_there ? 0 : mfl_fail_memory(err, (size_t)net_bytes(net->graph, &net->options), "network");
}

static int net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        mfl_assert(options->groups == 1 && !options->worker);
        int r = mfl_host_check_options(options, err);
        struct mfl_net *net = r ? NULL : mfl_calloc(1, sizeof *net);
        if (r || !net)
                return r ? r : mfl_fail_memory(err, sizeof *net, "network");
        net->graph = graph;
        net->options = *options;
        r = mfl_ref_check_ops(graph, err);
        if (!r)
                r = allocate(net, err);
        if (r)
                net_free(net);
        else
                *ret_net = net;
        return r;
}

static void widen(mfl_real *to, const float *from, size_t n)
{
        for (size_t i = 0; i < n; i++)
                to[i] = (mfl_real)from[i];
}

static void narrow(float *to, const mfl_real *from, size_t n)
{
        for (size_t i = 0; i < n; i++)
                to[i] = (float)from[i];
}

static int params_set(
        struct mfl_net *net, int group, const float *frozen, const float *moving, struct mfl_error *err)
{
        size_t n_frozen = (size_t)net->graph->n_frozen;
        widen(net->params, frozen, n_frozen);
        widen(net->params + n_frozen, moving, (size_t)net->graph->n - n_frozen);
        return 0;
}

static struct pass pass_of(struct mfl_net *net)
{
        static const struct mfl_rng_key unused = {
                {0}, {0}}; /* rates are 0: it only says that this is training */
        return (struct pass){.net = net,
                .params = net->params,
                .rows = net->options.batch,
                .dropout = net->dropout ? &unused : NULL};
}

static size_t input_count(const struct mfl_net *net)
{
        return (size_t)(net->plan->layers[0].out_count * net->options.batch);
}

static size_t output_count(const struct mfl_net *net)
{
        return (size_t)(net->plan->layers[net->graph->n_layers - 1].out_count * net->options.batch);
}

static int forward(struct mfl_net *net, const float *x, const struct mfl_rng_key *dropout, float *y,
        struct mfl_error *err)
{
        net->dropout = dropout != NULL;
        struct pass pass = pass_of(net);
        widen(mfl_ref_act(net, 0), x, input_count(net));
        mfl_ref_forward(&pass);
        narrow(y, mfl_ref_act(net, net->graph->n_layers - 1), output_count(net));
        return 0;
}

double mfl_double_dot(const struct mfl_net *net, const float *dy)
{
        const mfl_real *y = mfl_ref_act(net, net->graph->n_layers - 1);
        double sum = 0;
        for (size_t i = 0; i < output_count(net); i++)
                sum += y[i] * (mfl_real)dy[i];
        return sum;
}

/* Once for each forward, which has left in the arena what this needs. */
static int backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        struct pass pass = pass_of(net);
        mfl_assert(net->options.training && (!dx || net->options.input_grad));
        widen(mfl_ref_grad(net, net->graph->n_layers - 1), dy, output_count(net));
        mfl_ref_backward(&pass, net->grads);
        narrow(dparams, net->grads, (size_t)net->graph->n);
        if (dx)
                narrow(dx, mfl_ref_grad(net, 0), input_count(net));
        return 0;
}

const struct mfl_backend_ops mfl_backend_double = {
        .abi = MFL_BACKEND_ABI,
        .name = "reference in double",
        .device_open = device_open,
        .device_close = device_close,
        .net_new = net_new,
        .net_free = net_free,
        .net_bytes = net_bytes,
        .params_set = params_set,
        .forward = forward,
        .backward = backward,
};
