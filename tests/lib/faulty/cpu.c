/* SPDX-License-Identifier: Apache-2.0 */
/* A "cpu" module with a planted fault, for tests of who notices one: the reference backend under that name, found by MFL_MODULE_DIR
 * alone. FAULTY_KIND is a kind of layers whose kernel gives its input in place of its result, forward and backward;
 * FAULTY_GRADIENTS=1 makes each gradient of a parameter three times as large. */
#include "kernels/backend.h"

static uint64_t n_params; /* of the last network */

static void info_of(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        mfl_backend_reference.device_info(device, ret_info);
        mfl_strcpy(ret_info->backend, sizeof ret_info->backend, "cpu");
        mfl_strcpy(ret_info->library, sizeof ret_info->library, "faulty 1.0");
}

/* The network refers to its graph, so the changed one stays. */
static int make_net(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        const char *kind = getenv("FAULTY_KIND");
        struct mfl_graph *faulty = mfl_calloc(1, sizeof *faulty);
        size_t n = (size_t)graph->n_layers;
        struct mfl_layer *layers = mfl_calloc(n, sizeof *layers);
        if (!faulty || !layers)
                abort();
        memcpy(layers, graph->layers, n * sizeof *layers);
        *faulty = *graph;
        faulty->layers = layers;
        n_params = graph->n;
        for (size_t i = 0; kind && i < n; i++)
                if (!strcmp(mfl_op_name(layers[i].op), kind))
                        layers[i].op = MFL_OP_RESHAPE;
        return mfl_backend_reference.net_new(device, faulty, options, ret_net, err);
}

static int backward(struct mfl_net *net, const float *dy, float *dx, float *dparams, struct mfl_error *err)
{
        int r = mfl_backend_reference.backward(net, dy, dx, dparams, err);
        for (uint64_t i = 0; !r && getenv("FAULTY_GRADIENTS") && i < n_params; i++)
                dparams[i] *= 3.0f;
        return r;
}

__attribute__((visibility("default"))) extern struct mfl_backend_ops mfl_backend_module;
struct mfl_backend_ops mfl_backend_module;

__attribute__((constructor)) static void make_ops(void)
{
        mfl_backend_module = mfl_backend_reference;
        mfl_backend_module.name = "cpu";
        mfl_backend_module.device_info = info_of;
        mfl_backend_module.net_new = make_net;
        mfl_backend_module.backward = backward;
}
