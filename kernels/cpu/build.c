/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a network: layouts from the convolutions' choices, fusions, the plan, memory. */
#include <omp.h>
#include <sys/mman.h>

#include "kernels/cpu/net.h"

#define WIDE_ALIGN 16 /* floats: a cache line */
#define HUGE_PAGE ((size_t)2 << 20)

static bool is_elementwise(enum mfl_op op)
{
        return op == MFL_OP_RELU || op == MFL_OP_TANH || op == MFL_OP_SIGMOID || op == MFL_OP_DROPOUT;
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
                bool joins = is_norm(op) || op == MFL_OP_ADD;
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

static int choose_layouts(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        bool plain = has_vector_norm(graph);
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                struct mfl_cpu_layer *own = &net->layers[i];
                const struct mfl_layout *in = i ? &net->layers[layer->input].layout : NULL;
                if (layer->op == MFL_OP_CONV2D) {
                        int rc = mfl_cpu_conv_init(&own->conv, net->device->engine, graph, i, &net->options,
                                in, own->relu, &own->layout, err);
                        if (rc)
                                return rc;
                } else if (layer->op == MFL_OP_INPUT || layer->op == MFL_OP_DENSE) {
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
        if (layer->op != MFL_OP_MAXPOOL2D || (int64_t)layer->kernel[0] * layer->kernel[1] <= 65536)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "layer %s: the cpu backend's max pool has windows of at most 65536 pixels, not %dx%d",
                layer->name, layer->kernel[0], layer->kernel[1]);
}

/* Backward of these reads other things than their output, so that what comes next may be computed in its
 * place.
 */
static bool keeps_no_output(enum mfl_op op)
{
        return op == MFL_OP_CONV2D || op == MFL_OP_DENSE || op == MFL_OP_AVGPOOL2D || op == MFL_OP_ADD ||
               op == MFL_OP_GLOBAL_AVGPOOL2D || is_norm(op);
}

/* The input whose memory layer i works in, or -1. */
static int alias_of(const struct mfl_net *net, int i)
{
        const struct mfl_graph *graph = net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        if (i == 0 || mfl_plan_readers(graph, layer->input) != 1)
                return -1;
        bool in_place = keeps_no_output(graph->layers[layer->input].op) && !net->layers[layer->input].masked;
        bool moves = net->layers[i].layout.identity != net->layers[layer->input].layout.identity;
        if (layer->op == MFL_OP_FLATTEN)
                return moves ? -1 : layer->input;
        if (layer->op == MFL_OP_RELU && net->layers[i].done)
                return layer->input;
        return in_place && (is_elementwise(layer->op) || layer->op == MFL_OP_ADD) ? layer->input : -1;
}

static uint64_t aux_bytes(const struct mfl_net *net, int i)
{
        enum mfl_op op = net->graph->layers[i].op;
        uint64_t floats = (uint64_t)net->layers[i].layout.count * (uint64_t)net->options.batch;
        if (is_norm(op))
                return mfl_cpu_norm_aux_bytes(net, i);
        if (!net->options.training)
                return 0;
        if (op == MFL_OP_MAXPOOL2D)
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
                        .uses_input = op == MFL_OP_CONV2D || op == MFL_OP_DENSE || is_norm(op),
                        .uses_output = op == MFL_OP_RELU || op == MFL_OP_TANH || op == MFL_OP_SIGMOID ||
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
                else if (!param->is_bias && layer->op == MFL_OP_CONV2D)
                        count = mfl_md_bytes(mfl_md_in(&net->layers[param->layer].conv.weights)) /
                                sizeof(float);
                else if (!param->is_bias)
                        count = (uint64_t)layer->out_channels *
                                (uint64_t)net->layers[layer->input].layout.count;
                net->wide[i] = (struct mfl_cpu_param){.at = net->n_wide, .count = count};
                net->n_wide += (count + WIDE_ALIGN - 1) / WIDE_ALIGN * WIDE_ALIGN;
        }
}

/* Zeroed memory for tensors, on huge pages where the kernel has them: rows of a large dense layer lie pages
 * apart. */
static void *tensors_new(size_t bytes)
{
        size_t padded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
        void *p = NULL;
        if (bytes < HUGE_PAGE) {
                p = mfl_alloc_aligned(bytes);
        } else {
                void *probe = mfl_malloc(1); /* so that a failing allocator is seen here too */
                if (!probe)
                        return NULL;
                free(probe);
                if (posix_memalign(&p, HUGE_PAGE, padded))
                        return NULL;
                madvise(p, padded, MADV_HUGEPAGE);
        }
        if (p)
                memset(p, 0, bytes);
        return p;
}

/* Floats of the largest gradient that some layer adds to. */
static size_t share_floats(const struct mfl_net *net)
{
        int64_t most = 0;
        for (int i = 1; i < net->graph->n_layers; i++)
                if (!net->plan->layers[i].writes_grad && net->graph->layers[i].op != MFL_OP_ADD)
                        most = MFL_MAX(most, net->layers[net->graph->layers[i].input].layout.count);
        return (size_t)most * (size_t)net->options.batch;
}

static int allocate(struct mfl_net *net, struct mfl_error *err)
{
        size_t groups = (size_t)net->options.groups, wide = (size_t)net->n_wide * groups * sizeof(float);
        size_t input = (size_t)net->layers[0].layout.count * (size_t)net->options.batch;
        size_t outputs = (size_t)net->graph->classes * (size_t)net->options.batch * sizeof(float);
        bool training = net->options.training;
        net->arena = tensors_new((size_t)net->plan->arena_bytes);
        net->scratch = tensors_new(net->scratch_bytes);
        net->params = tensors_new(wide);
        net->first = training ? tensors_new(wide) : NULL;
        net->momentum = training ? tensors_new(wide) : NULL;
        net->grads = training ? tensors_new((size_t)net->n_wide * sizeof(float)) : NULL;
        net->share = training ? tensors_new(share_floats(net) * sizeof(float)) : NULL;
        net->logits = tensors_new(outputs);
        net->dlogits = tensors_new(outputs);
        /* Only the conformance program touches this one; untouched pages cost nothing. */
        net->x = mfl_calloc(input * groups, sizeof(float));
        net->keys = mfl_calloc(groups, sizeof *net->keys);
        bool trains = !training || (net->first && net->momentum && net->grads && net->share);
        if (net->arena && net->scratch && net->params && net->logits && net->dlogits && net->x && net->keys &&
                trains)
                return 0;
        return mfl_fail_memory(err, (size_t)mfl_cpu_net_bytes(net->graph, &net->options), "network");
}

static int bind_convolutions(struct mfl_net *net, struct mfl_error *err)
{
        for (int i = 1; i < net->graph->n_layers; i++) {
                const struct mfl_plan_layer *in = &net->plan->layers[net->graph->layers[i].input];
                const struct mfl_plan_layer *out = &net->plan->layers[i];
                if (net->graph->layers[i].op != MFL_OP_CONV2D)
                        continue;
                void *diff_src = out->writes_grad ? (void *)(net->arena + in->grad) : (void *)net->share;
                int rc = mfl_cpu_conv_bind(&net->layers[i].conv, net->device->engine, net->arena + in->act,
                        net->arena + out->act, diff_src, net->arena + out->grad, net->scratch, err);
                if (rc)
                        return rc;
        }
        return 0;
}

static int make_backward(struct mfl_net *net, struct mfl_error *err)
{
        for (int i = 1; i < net->graph->n_layers; i++) {
                struct mfl_cpu_conv *conv = &net->layers[i].conv;
                int rc = check_window(net->graph, i, err);
                if (!rc && net->graph->layers[i].op == MFL_OP_CONV2D && net->options.training)
                        rc = mfl_cpu_conv_backward(conv, net->device->engine, net->options.batch, err);
                if (rc)
                        return rc;
                net->scratch_bytes = MFL_MAX(net->scratch_bytes, conv->scratch_bytes);
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
        if (!rc)
                rc = make_backward(net, err);
        if (rc)
                return rc;
        describe_needs(net, needs);
        place_params(net);
        rc = mfl_plan_new(net->graph, net->options.training, needs, &net->plan, err);
        if (!rc)
                rc = allocate(net, err);
        return rc ? rc : bind_convolutions(net, err);
}

#define HAS(op) ((uint64_t)1 << (op))
static const struct mfl_backend_can can = {.backend = "cpu",
        .ops = HAS(MFL_OP_INPUT) | HAS(MFL_OP_CONV2D) | HAS(MFL_OP_DENSE) | HAS(MFL_OP_RELU) |
               HAS(MFL_OP_TANH) | HAS(MFL_OP_SIGMOID) | HAS(MFL_OP_MAXPOOL2D) | HAS(MFL_OP_AVGPOOL2D) |
               HAS(MFL_OP_DROPOUT) | HAS(MFL_OP_FLATTEN) | HAS(MFL_OP_ADD) | HAS(MFL_OP_GLOBAL_AVGPOOL2D) |
               HAS(MFL_OP_BATCHNORM) | HAS(MFL_OP_GROUPNORM)};

int mfl_cpu_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        int rc = mfl_host_check_options(options, err);
        if (!rc)
                rc = mfl_check_graph(&can, graph, options, err);
        if (rc)
                return rc;
        struct mfl_net *net = mfl_calloc(1, sizeof *net);
        if (!net)
                return mfl_fail_memory(err, sizeof *net, "network");
        net->device = device;
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
        free(net->params);
        free(net->first);
        free(net->momentum);
        free(net->grads);
        free(net->share);
        free(net->logits);
        free(net->dlogits);
        free(net->x);
        free(net->keys);
        free(net);
}

/* An upper estimate, without asking the library: channels padded to 16, activations and gradients side by
 * side, a scratchpad and a share as large as the largest activation. */
uint64_t mfl_cpu_net_bytes(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        uint64_t groups = (uint64_t)options->groups, batch = (uint64_t)options->batch, activations = 0,
                 wide = 0;
        uint64_t largest = 0;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_shape *out = &graph->layers[i].out;
                uint64_t channels = (uint64_t)out->dim[0], count = (uint64_t)mfl_shape_count(out);
                if (out->rank == 3)
                        count = count / channels * ((channels + 15) / 16 * 16);
                activations += count * batch;
                largest = MFL_MAX(largest, count * batch);
        }
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *param = &graph->params[i];
                uint64_t rest = param->count;
                bool conv = graph->layers[param->layer].op == MFL_OP_CONV2D && !param->is_bias;
                if (conv) {
                        uint64_t o = (uint64_t)param->shape.dim[0], c = (uint64_t)param->shape.dim[1];
                        rest = rest / (o * c) * ((o + 15) / 16 * 16) * ((c + 15) / 16 * 16);
                }
                wide += rest + WIDE_ALIGN;
        }
        uint64_t floats = activations * (options->training ? 3 : 1) + 2 * largest + groups * wide +
                          groups * batch * (uint64_t)mfl_shape_count(&graph->input);
        if (options->training)
                floats += (2 * groups + 1) * wide;
        return floats * sizeof(float) + 8 * HUGE_PAGE;
}
