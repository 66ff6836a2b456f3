/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a network: layouts from the convolutions' choices, fusions, the plan. */
#include <omp.h>

#include "kernels/cpu/op.h"

/* Whether layer i is add, multiply or gate of two equal shapes. */
static bool joins_equals(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return (layer->op == MFL_OP_ADD || layer->op == MFL_OP_MULTIPLY || layer->op == MFL_OP_GATE) &&
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
                /* max and ReLU commute: the gradient can be masked behind the pool, where it is smallest. */
                int pool = reader_of(graph, relu);
                if (pool >= 0 && graph->layers[pool].op == MFL_OP_MAXPOOL2D)
                        net->layers[relu].masked = net->layers[pool].masked = true;
        }
}

/* A norm of a vector needs its features in order, so flattening has to restore the order. */
static bool has_vector_norm(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (is_norm(graph->layers[i].op) && graph->layers[i].out.rank == 1)
                        return true;
        return false;
}

/* Operators that work in plain order. Adding tensors of equal shape works in any layout; multiplying them
 * works where both have the same one. */
static bool works_plain(const struct mfl_net *net, int i)
{
        const struct mfl_graph *graph = net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->op == MFL_OP_ADD)
                return !joins_equals(graph, i);
        if (layer->op == MFL_OP_MULTIPLY || layer->op == MFL_OP_GATE)
                return !joins_equals(graph, i) ||
                       net->layers[layer->input].layout.tag != net->layers[layer->input2].layout.tag;
        if (layer->op == MFL_OP_MAP)
                return !mfl_cpu_map_keeps_layout(net, i);
        if (layer->op == MFL_OP_CONCAT)
                return !mfl_cpu_concat_keeps_layout(net, i);
        return mfl_cpu_has(layer->op, MFL_CPU_PLAIN) || mfl_cpu_is_product(graph, i);
}

static int choose_layouts(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        bool plain = has_vector_norm(graph);
        struct mfl_net_options conv = net->options;
        if (conv.infer) /* the library may compute other batches in another order */
                conv.batch = 1;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                struct mfl_cpu_layer *own = &net->layers[i];
                const struct mfl_layout *in = layer->input < 0 ? NULL : &net->layers[layer->input].layout;
                own->plain = i > 0 && works_plain(net, i);
                own->gemm = mfl_cpu_is_product(graph, i);
                if (mfl_cpu_is_conv(layer->op)) {
                        int rc = mfl_cpu_conv_init(&own->conv, net->device->engine, net->device->loops, graph,
                                i, &conv, net->bf16, in, own->relu, &own->layout, err);
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

static int check_ops(const struct mfl_graph *graph, struct mfl_error *err)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (!mfl_cpu_ops[graph->layers[i].op])
                        return mfl_fail(err, MFL_INVALID, "layer %s: the cpu backend has no %s",
                                graph->layers[i].name, mfl_op_name(graph->layers[i].op));
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
                "layer %s: the cpu backend supports max pool windows of at most 65536 pixels, not %lldx%lld",
                layer->name, (long long)h, (long long)w);
}

/* Whether layer i's backward reads the input. */
static bool reads_input(const struct mfl_net *net, int i)
{
        enum mfl_op op = net->graph->layers[i].op;
        return mfl_op_info(op)->reads & MFL_READS_INPUT && !mfl_cpu_has(op, MFL_CPU_NO_INPUT);
}

/* The input whose memory layer i works in, or -1. */
static int alias_of(const struct mfl_net *net, int i)
{
        const struct mfl_graph *graph = net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->input < 0 || mfl_plan_readers(graph, layer->input) != 1)
                return -1;
        bool in_place = mfl_cpu_has(graph->layers[layer->input].op, MFL_CPU_YIELDS) &&
                        !net->layers[layer->input].masked;
        bool own_place = net->options.training && reads_input(net, i);
        if (layer->op == MFL_OP_FLATTEN || layer->op == MFL_OP_RESHAPE)
                return mfl_cpu_moves(net, i) ? -1 : layer->input;
        if (layer->op == MFL_OP_RELU && net->layers[i].done)
                return layer->input;
        bool adds = layer->op == MFL_OP_ADD && !net->layers[i].plain;
        return in_place && !own_place && (mfl_cpu_has(layer->op, MFL_CPU_IN_PLACE) || adds) ? layer->input
                                                                                            : -1;
}

static void describe_needs(const struct mfl_net *net, struct mfl_plan_need *needs)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_cpu_layer *own = &net->layers[i];
                const struct mfl_cpu_op *op = mfl_cpu_ops[graph->layers[i].op];
                unsigned reads = mfl_op_info(graph->layers[i].op)->reads;
                uint64_t floats = (uint64_t)own->layout.count * (uint64_t)net->options.batch;
                needs[i] = (struct mfl_plan_need){.act_bytes = floats * sizeof(float),
                        .aux_bytes = op && op->aux_bytes ? op->aux_bytes(net, i) : 0,
                        .alias = alias_of(net, i),
                        .uses_input = reads_input(net, i),
                        .uses_input2 = reads & MFL_READS_INPUT2,
                        .uses_output = reads & MFL_READS_OUTPUT || own->masked};
        }
}

/* Norms pad their vectors as their layouts pad channels. */
static uint64_t padded_count(const struct mfl_net *net, int i)
{
        return (uint64_t)(net->layers[i].layout.n_blocks * net->layers[i].layout.block);
}

/* Enough for each layer that uses it. */
static uint64_t shared_count(const struct mfl_net *net, int param)
{
        uint64_t count = net->graph->params[param].count;
        for (int i = 1; i < net->graph->n_layers; i++) {
                const struct mfl_layer *layer = &net->graph->layers[i];
                bool uses = layer->param_weight == param || layer->param_bias == param ||
                            layer->param_mean == param || layer->param_var == param;
                if (is_norm(layer->op) && uses)
                        count = MFL_MAX(count, padded_count(net, i));
        }
        return count;
}

/* Embeddings add their gradients in place. */
static bool needs_extra(const struct mfl_graph *graph, int param)
{
        for (int i = 1; i < graph->params[param].last_layer; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                bool uses = layer->param_weight == param || layer->param_bias == param ||
                            layer->param_weight2 == param || layer->param_bias2 == param;
                if (uses && layer->op != MFL_OP_EMBEDDING && graph->params[param].trained)
                        return true;
        }
        return false;
}

/* Floats of a tensor in this backend's layout. */
static uint64_t wide_count(const struct mfl_net *net, int param)
{
        const struct mfl_param *p = &net->graph->params[param];
        const struct mfl_layer *layer = &net->graph->layers[p->layer];
        if (p->n_uses > 1)
                return shared_count(net, param);
        if (is_norm(layer->op))
                return MFL_MAX(padded_count(net, p->layer), p->count);
        if (!p->is_bias && mfl_cpu_is_conv(layer->op))
                return mfl_md_bytes(mfl_md_in(&net->layers[p->layer].conv.weights)) / sizeof(float);
        if (!p->is_bias && layer->op == MFL_OP_DENSE && !net->layers[p->layer].gemm)
                return (uint64_t)layer->out_channels * (uint64_t)net->layers[layer->input].layout.count;
        return p->count;
}

static uint64_t align_up(uint64_t count)
{
        return (count + MFL_CPU_WIDE_ALIGN - 1) / MFL_CPU_WIDE_ALIGN * MFL_CPU_WIDE_ALIGN;
}

static void place_params(struct mfl_net *net)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                uint64_t count = wide_count(net, i);
                struct mfl_cpu_param *own = &net->wide[i];
                bool frozen = param->offset < graph->n_frozen;
                bool lent = frozen && count == param->count && mfl_cpu_is_flat(net, param);
                *own = (struct mfl_cpu_param){.count = count, .extra = net->n_extra};
                own->home = lent ? MFL_CPU_LENT : frozen ? MFL_CPU_COPIED : MFL_CPU_WIDE;
                if (is_norm(graph->layers[param->layer].op) && !param->trained)
                        net->n_unused = MFL_MAX(net->n_unused, count);
                if (lent) {
                        own->at = param->offset;
                        continue;
                }
                uint64_t *end = frozen ? &net->n_copied : &net->n_wide;
                own->at = *end;
                count = align_up(count);
                *end += count;
                if (frozen)
                        net->n_copied_flat += param->count;
                if (needs_extra(graph, i))
                        net->n_extra += count;
        }
}

/* Where gradients lie: as the params, or, of a worker's network, those of a layer together, and those of each layer in the
 * same place. */
static void place_grads(struct mfl_net *net)
{
        const struct mfl_graph *graph = net->graph;
        net->n_grads = net->n_wide;
        for (int t = 0; t < graph->n_params; t++) {
                net->wide[t].grad = net->wide[t].at;
                net->layers[graph->params[t].layer].pads |=
                        graph->params[t].trained && net->wide[t].count != graph->params[t].count;
        }
        if (!net->options.worker)
                return;
        net->n_grads = 0;
        for (int t = 0; t < graph->n_params; t++) {
                uint64_t *end = &net->layers[graph->params[t].layer].grads;
                if (!graph->params[t].trained || mfl_cpu_is_shared(graph, t))
                        continue;
                net->wide[t].grad = *end;
                *end += align_up(net->wide[t].count);
                net->n_grads = MFL_MAX(net->n_grads, *end);
        }
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].trained && mfl_cpu_is_shared(graph, t)) {
                        net->wide[t].grad = net->n_grads;
                        net->n_grads += align_up(net->wide[t].count);
                }
}

/* Neighbours are one part, the room between them included: it has no update. */
static void place_statistics(struct mfl_net *net)
{
        size_t n = 0;
        for (int i = 0, last = -2; i < net->graph->n_params; i++) {
                if (!mfl_param_is_statistics(&net->graph->params[i]))
                        continue;
                mfl_assert(net->wide[i].home == MFL_CPU_WIDE);
                if (last == i - 1)
                        n--;
                else
                        net->edges[n++] = net->wide[i].at;
                net->edges[n++] = net->wide[i].at + net->wide[i].count;
                last = i;
        }
        net->statistics = (struct mfl_fixed_parts){net->edges, n};
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
        net->edges = mfl_calloc(2 * n_params, sizeof *net->edges);
        if (!needs || !net->layers || !net->wide || !net->edges)
                return mfl_fail_memory(err, n_layers * sizeof *net->layers, "network");
        if (dnnl_stream_create(&net->stream, net->device->engine, dnnl_stream_in_order))
                return mfl_fail(err, -ENOMEM, "cpu: cannot make a oneDNN stream");
        /* The library divides its work by this number when primitives are made. */
        omp_set_num_threads(net->options.threads);
        find_fusions(net);
        int rc = mfl_maps_new(net->graph, &net->maps, err);
        if (!rc)
                rc = choose_layouts(net, err);
        if (rc)
                return rc;
        describe_needs(net, needs);
        place_params(net);
        place_grads(net);
        place_statistics(net);
        rc = mfl_plan_new(net->graph, &net->options, needs, &net->plan, err);
        if (!rc)
                rc = make_backward(net, err);
        if (!rc)
                rc = mfl_cpu_allocate(net, err);
        if (!rc)
                rc = bind_convolutions(net, err);
        if (!rc && net->options.training)
                rc = mfl_cpu_grad_new(net, err);
        /* A sibling's params are set and read through the other network. */
        return rc || net->options.sibling ? rc : mfl_cpu_places_new(net, err);
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
        if (!rc)
                rc = check_ops(graph, err);
        if (rc)
                return rc;
        struct mfl_net *net = mfl_calloc(1, sizeof *net);
        if (!net)
                return mfl_fail_memory(err, sizeof *net, "network");
        net->own_device = *device;
        net->device = &net->own_device;
        if (bf16) {
                net->bf16 = device->bf16;
                mfl_loops_bf16(device->loops, device->bf16, &net->own_loops);
                net->own_device.loops = &net->own_loops;
        }
        net->graph = graph;
        net->options = *options;
        net->rows = options->batch;
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
        mfl_maps_free(net->graph, net->maps);
        free(net->layers);
        mfl_cpu_places_free(net);
        free(net->wide);
        free(net->edges);
        free(net->tensors);
        free(net->arena);
        free(net->scratch);
        free(net->staging);
        if (!net->options.sibling) {
                free(net->options.lent ? NULL : net->params);
                free(net->copies);
                free(net->frozen);
        }
        free(net->first);
        if (net->base != net->first)
                free(net->base);
        free(net->momentum);
        free(net->second);
        free(net->unused);
        free(net->correction);
        free(net->corrected);
        free(net->sum);
        free(net->grads);
        free(net->part);
        free(net->extra);
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
