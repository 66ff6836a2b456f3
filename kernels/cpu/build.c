/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a network: layouts from the convolutions' choices, fusions, the plan. */
#include <omp.h>

#include "kernels/cpu/pass.h"

/* Activations whose backward looks at what came out, and at what came in. */
static bool is_of_output(enum mfl_op op)
{
        return op == MFL_OP_RELU || op == MFL_OP_TANH || op == MFL_OP_SIGMOID || op == MFL_OP_RELU6 ||
               op == MFL_OP_LEAKY_RELU || op == MFL_OP_ELU || op == MFL_OP_HARDSIGMOID;
}

static bool is_of_input(enum mfl_op op)
{
        return op == MFL_OP_GELU || op == MFL_OP_SILU || op == MFL_OP_HARDSWISH || op == MFL_OP_SOFTPLUS;
}

static bool is_elementwise(enum mfl_op op)
{
        return is_of_output(op) || is_of_input(op) || op == MFL_OP_DROPOUT;
}

/* Whether layer i is add or multiply of two equal shapes. */
static bool joins_equals(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return (layer->op == MFL_OP_ADD || layer->op == MFL_OP_MULTIPLY) &&
               mfl_shape_equal(&graph->layers[layer->input].out, &graph->layers[layer->input2].out);
}

/* The layer's only reader, or -1. */
static int reader_of(const struct mfl_graph *graph, int i)
{
        if (mfl_plan_readers(graph, i) != 1)
                return -1;
        for (int j = i + 1; j < graph->n_layers; j++)
                if (graph->layers[j].input == i || graph->layers[j].input2 == i)
                        return j;
        return -1;
}

static bool is_norm(enum mfl_op op)
{
        return op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM;
}

static void find_fusions(struct mfl_net *net)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 1; i < graph->n_layers; i++) {
                enum mfl_op op = graph->layers[i].op;
                int relu = reader_of(graph, i);
                bool joins = is_norm(op) || (op == MFL_OP_ADD && joins_equals(graph, i));
                if ((op != MFL_OP_CONV2D && op != MFL_OP_DENSE && !joins) || relu < 0 ||
                        graph->layers[relu].op != MFL_OP_RELU)
                        continue;
                net->layers[i].relu = true;
                net->layers[relu].done = true;
                if (joins) {
                        net->layers[i].masked = net->layers[relu].masked = true;
                        continue;
                }
                /* max and ReLU commute: the gradient can be masked where it is smallest, behind the pool. */
                int pool = reader_of(graph, relu);
                if (pool >= 0 && graph->layers[pool].op == MFL_OP_MAXPOOL2D)
                        net->layers[relu].masked = net->layers[pool].masked = true;
        }
}

/* A norm of a vector wants its features in their order, so that flattening has to put them there. */
static bool has_vector_norm(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (is_norm(graph->layers[i].op) && graph->layers[i].out.rank == 1)
                        return true;
        return false;
}

/* Dense layers of vectors that are trained have their own loops; the others are matrix products. */
static bool is_product(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return layer->op == MFL_OP_DENSE &&
               (layer->out.rank == 2 || layer->lora_rank || !graph->params[layer->param_weight].trained);
}

/* Operators that work in plain order. Adding tensors of equal shape works in any, and multiplying them where
 * they lie in one. */
static bool works_plain(const struct mfl_net *net, int i)
{
        const struct mfl_graph *graph = net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->op == MFL_OP_ADD)
                return !joins_equals(graph, i);
        if (layer->op == MFL_OP_MULTIPLY)
                return !joins_equals(graph, i) ||
                       net->layers[layer->input].layout.tag != net->layers[layer->input2].layout.tag;
        return mfl_cpu_is_sequence(layer->op) || mfl_cpu_is_shape(layer->op) ||
               mfl_cpu_is_recurrent(layer->op) || is_product(graph, i);
}

static int choose_layouts(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        bool plain = has_vector_norm(graph);
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                struct mfl_cpu_layer *own = &net->layers[i];
                const struct mfl_layout *in = layer->input < 0 ? NULL : &net->layers[layer->input].layout;
                own->plain = i > 0 && works_plain(net, i);
                own->gemm = is_product(graph, i);
                if (mfl_cpu_is_conv(layer->op)) {
                        int rc = mfl_cpu_conv_init(&own->conv, net->device->engine, net->device->loops, graph,
                                i, &net->options, net->bf16, in, own->relu, &own->layout, err);
                        if (rc)
                                return rc;
                } else if (layer->op == MFL_OP_INPUT || layer->op == MFL_OP_DENSE ||
                           layer->op == MFL_OP_RESHAPE || own->plain) {
                        own->layout = mfl_layout_of(&layer->out, dnnl_nchw);
                } else if (layer->op == MFL_OP_FLATTEN) {
                        own->layout = plain ? mfl_layout_of(&layer->out, dnnl_nchw) : *in;
                } else {
                        own->layout = *in;
                        if (layer->out.rank == 3)
                                own->layout = mfl_layout_of(&layer->out, in->tag);
                }
        }
        return 0;
}

static int check_window(const struct mfl_graph *graph, int i, struct mfl_error *err)
{
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->op != MFL_OP_MAXPOOL2D && layer->op != MFL_OP_GLOBAL_MAXPOOL2D)
                return 0;
        struct mfl_window window = mfl_window_of(graph, i);
        bool global = layer->op == MFL_OP_GLOBAL_MAXPOOL2D;
        int64_t h = global ? window.h : window.k[0], w = global ? window.w : window.k[1];
        if (h * w <= 65536)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "layer %s: the cpu backend's max pool has windows of at most 65536 pixels, not %lldx%lld",
                layer->name, (long long)h, (long long)w);
}

/* Backward of these reads other things than their output, so that what comes next may be computed in its
 * place.
 */
static bool keeps_no_output(enum mfl_op op)
{
        return mfl_cpu_is_conv(op) || op == MFL_OP_DENSE || op == MFL_OP_AVGPOOL2D || op == MFL_OP_ADD ||
               op == MFL_OP_GLOBAL_AVGPOOL2D || is_norm(op) || op == MFL_OP_LAYERNORM ||
               op == MFL_OP_RMSNORM || op == MFL_OP_EMBEDDING || op == MFL_OP_ATTENTION ||
               op == MFL_OP_MATMUL || op == MFL_OP_MULTIPLY || op == MFL_OP_WEIGHT;
}

/* Backward reads what came in. */
static bool reads_input(const struct mfl_net *net, int i)
{
        enum mfl_op op = net->graph->layers[i].op;
        return mfl_cpu_is_conv(op) || op == MFL_OP_DENSE || is_norm(op) || is_of_input(op) ||
               op == MFL_OP_LAYERNORM || op == MFL_OP_RMSNORM || op == MFL_OP_MULTIPLY ||
               op == MFL_OP_MATMUL || op == MFL_OP_EMBEDDING || op == MFL_OP_ATTENTION ||
               mfl_cpu_is_recurrent(op);
}

/* The input whose memory layer i works in, or -1. */
static int alias_of(const struct mfl_net *net, int i)
{
        const struct mfl_graph *graph = net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->input < 0 || mfl_plan_readers(graph, layer->input) != 1)
                return -1;
        bool in_place = keeps_no_output(graph->layers[layer->input].op) && !net->layers[layer->input].masked;
        bool own_place = net->options.training && reads_input(net, i);
        if (layer->op == MFL_OP_FLATTEN || layer->op == MFL_OP_RESHAPE)
                return mfl_cpu_moves(net, i) ? -1 : layer->input;
        if (layer->op == MFL_OP_RELU && net->layers[i].done)
                return layer->input;
        bool adds = layer->op == MFL_OP_ADD && !net->layers[i].plain;
        return in_place && !own_place && (is_elementwise(layer->op) || adds) ? layer->input : -1;
}

static uint64_t aux_bytes(const struct mfl_net *net, int i)
{
        enum mfl_op op = net->graph->layers[i].op;
        uint64_t floats = (uint64_t)net->layers[i].layout.count * (uint64_t)net->options.batch;
        if (is_norm(op))
                return mfl_cpu_norm_aux_bytes(net, i);
        if (mfl_cpu_is_sequence(op) || mfl_cpu_is_recurrent(op))
                return mfl_cpu_sequence_aux_bytes(net, i);
        if (op == MFL_OP_DENSE && net->graph->layers[i].lora_rank)
                return mfl_cpu_dense_aux_bytes(net, i);
        if (!net->options.training)
                return 0;
        if (op == MFL_OP_MAXPOOL2D || op == MFL_OP_GLOBAL_MAXPOOL2D)
                return floats * sizeof(uint16_t);
        return op == MFL_OP_DROPOUT ? floats * sizeof(float) : 0;
}

static void describe_needs(const struct mfl_net *net, struct mfl_plan_need *needs)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_cpu_layer *own = &net->layers[i];
                enum mfl_op op = graph->layers[i].op;
                uint64_t floats = (uint64_t)own->layout.count * (uint64_t)net->options.batch;
                needs[i] = (struct mfl_plan_need){.act_bytes = floats * sizeof(float),
                        .aux_bytes = aux_bytes(net, i),
                        .alias = alias_of(net, i),
                        .uses_input = reads_input(net, i),
                        .uses_input2 = op == MFL_OP_MULTIPLY || op == MFL_OP_MATMUL,
                        .uses_output = is_of_output(op) || op == MFL_OP_SOFTMAX || mfl_cpu_is_recurrent(op) ||
                                       own->masked};
        }
}

static void place_params(struct mfl_net *net)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                const struct mfl_layer *layer = &graph->layers[param->layer];
                uint64_t count = param->count;
                if (is_norm(layer->op))
                        count = (uint64_t)MFL_MAX(net->layers[param->layer].layout.n_blocks *
                                                          net->layers[param->layer].layout.block,
                                (int64_t)param->count);
                else if (!param->is_bias && mfl_cpu_is_conv(layer->op))
                        count = mfl_md_bytes(mfl_md_in(&net->layers[param->layer].conv.weights)) /
                                sizeof(float);
                else if (!param->is_bias && layer->op == MFL_OP_DENSE && !net->layers[param->layer].gemm)
                        count = (uint64_t)layer->out_channels *
                                (uint64_t)net->layers[layer->input].layout.count;
                net->wide[i] = (struct mfl_cpu_param){.at = net->n_wide, .count = count};
                net->n_wide += (count + MFL_CPU_WIDE_ALIGN - 1) / MFL_CPU_WIDE_ALIGN * MFL_CPU_WIDE_ALIGN;
        }
}

static int bind_convolutions(struct mfl_net *net, struct mfl_error *err)
{
        for (int i = 1; i < net->graph->n_layers; i++) {
                if (!mfl_cpu_is_conv(net->graph->layers[i].op))
                        continue;
                const struct mfl_plan_layer *in = &net->plan->layers[net->graph->layers[i].input];
                const struct mfl_plan_layer *out = &net->plan->layers[i];
                void *diff_src = out->writes_grad ? (void *)(net->arena + in->grad) : (void *)net->share[0];
                int rc = mfl_cpu_conv_bind(&net->layers[i].conv, net->device->engine, net->arena + in->act,
                        net->arena + out->act, diff_src, net->arena + out->grad, net->scratch, net->staging,
                        err);
                if (rc)
                        return rc;
        }
        return 0;
}

static int make_backward(struct mfl_net *net, struct mfl_error *err)
{
        for (int i = 1; i < net->graph->n_layers; i++) {
                struct mfl_cpu_conv *conv = &net->layers[i].conv;
                bool wants = net->options.training && net->plan->layers[i].wants_grad;
                int rc = check_window(net->graph, i, err);
                if (!rc && mfl_cpu_is_conv(net->graph->layers[i].op) && wants)
                        rc = mfl_cpu_conv_backward(conv, net->device->engine, net->options.batch, err);
                if (rc)
                        return rc;
                net->scratch_bytes = MFL_MAX(net->scratch_bytes, conv->scratch_bytes);
                net->staging_bytes = MFL_MAX(net->staging_bytes, conv->staging_bytes);
        }
        return 0;
}

static int build(struct mfl_net *net, struct mfl_error *err)
{
        size_t n_layers = (size_t)net->graph->n_layers, n_params = (size_t)net->graph->n_params;
        MFL_CLEANUP_FREE struct mfl_plan_need *needs = mfl_calloc(n_layers, sizeof *needs);
        net->layers = mfl_calloc(n_layers, sizeof *net->layers);
        net->wide = mfl_calloc(n_params, sizeof *net->wide);
        if (!needs || !net->layers || !net->wide)
                return mfl_fail_memory(err, n_layers * sizeof *net->layers, "network");
        if (dnnl_stream_create(&net->stream, net->device->engine, dnnl_stream_in_order))
                return mfl_fail(err, -ENOMEM, "cpu: cannot make a oneDNN stream");
        /* The library divides its work by this when primitives are made. */
        omp_set_num_threads(net->options.threads);
        find_fusions(net);
        int rc = choose_layouts(net, err);
        if (rc)
                return rc;
        describe_needs(net, needs);
        place_params(net);
        rc = mfl_plan_new(net->graph, &net->options, needs, &net->plan, err);
        if (!rc)
                rc = make_backward(net, err);
        if (!rc)
                rc = mfl_cpu_allocate(net, err);
        if (!rc)
                rc = bind_convolutions(net, err);
        return rc ? rc : mfl_cpu_places_new(net, err);
}

int mfl_cpu_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        bool bf16 = options->precision == MFL_PRECISION_BF16;
        struct mfl_net_options rest = *options;
        if (bf16)
                rest.precision = MFL_PRECISION_FP32;
        int rc = mfl_host_check_options(&rest, err);
        if (!rc && bf16 && !device->bf16)
                rc = mfl_cpu_bf16_refuse(err);
        if (rc)
                return rc;
        struct mfl_net *net = mfl_calloc(1, sizeof *net);
        if (!net)
                return mfl_fail_memory(err, sizeof *net, "network");
        net->own_device = *device;
        net->device = &net->own_device;
        if (bf16) {
                net->bf16 = device->bf16;
                net->own_device.loops = mfl_loops_bf16(device->loops, device->bf16 == MFL_CPU_BF16_LIBRARY);
        }
        net->graph = graph;
        net->options = *options;
        rc = build(net, err);
        if (rc) {
                mfl_cpu_net_free(net);
                return rc;
        }
        *ret_net = net;
        return 0;
}

void mfl_cpu_net_free(struct mfl_net *net)
{
        if (!net)
                return;
        for (int i = 0; net->layers && i < net->graph->n_layers; i++)
                mfl_cpu_conv_deinit(&net->layers[i].conv);
        if (net->stream)
                dnnl_stream_destroy(net->stream);
        mfl_plan_free(net->plan);
        free(net->layers);
        free(net->wide);
        free(net->arena);
        free(net->scratch);
        free(net->staging);
        free(net->params);
        free(net->first);
        if (net->base != net->first)
                free(net->base);
        free(net->sum);
        free(net->place);
        free(net->momentum);
        free(net->grads);
        free(net->second);
        free(net->part);
        free(net->work);
        for (int k = 0; k < 2; k++) {
                free(net->share[k]);
                free(net->plain[k]);
                free(net->plain_grad[k]);
        }
        free(net->logits);
        free(net->dlogits);
        free(net->x);
        free(net->keys);
        free(net);
}
