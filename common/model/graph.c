/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a graph: checks each layer, infers its output's shape and lays out the parameter table. */
#include "common/model/graph_internal.h"

#include <math.h>
#include <stdio.h>

#define SIZE_LIMIT 65536

/* What a generated name starts with. */
static const char *const name_stem[MFL_OP_COUNT_] = {
        [MFL_OP_INPUT] = "input",
        [MFL_OP_CONV2D] = "conv",
        [MFL_OP_DENSE] = "dense",
        [MFL_OP_RELU] = "relu",
        [MFL_OP_TANH] = "tanh",
        [MFL_OP_SIGMOID] = "sigmoid",
        [MFL_OP_MAXPOOL2D] = "maxpool",
        [MFL_OP_AVGPOOL2D] = "avgpool",
        [MFL_OP_DROPOUT] = "dropout",
        [MFL_OP_FLATTEN] = "flatten",
        [MFL_OP_ADD] = "add",
        [MFL_OP_GLOBAL_AVGPOOL2D] = "pool",
        [MFL_OP_BATCHNORM] = "bn",
        [MFL_OP_GROUPNORM] = "gn",
};

static int find_name(const struct mfl_graph *graph, int n, const char *name)
{
        for (int i = 0; i < n; i++) {
                if (!strcmp(graph->layers[i].name, name))
                        return i;
        }
        return -1;
}

/* A name becomes part of tensor names in files and messages, so it is plain ASCII. */
static int check_name(const struct mfl_layer *layer, int i, struct mfl_error *err)
{
        if (!memchr(layer->name, 0, sizeof layer->name))
                return mfl_fail(err, MFL_INVALID, "layer %d: the name is longer than %d bytes", i,
                        MFL_NAME_BYTES - 1);
        for (const char *p = layer->name; *p; p++) {
                bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                             (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || *p == '.';
                if (!plain)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %d: the name holds byte 0x%02x; letters, digits, '_', '-' and '.' are "
                                "allowed",
                                i, (unsigned char)*p);
        }
        return 0;
}

static void generate_name(const struct mfl_graph *graph, struct mfl_layer *layer, int *counter)
{
        char name[MFL_NAME_BYTES];
        do
                snprintf(name, sizeof name, "%s%d", name_stem[layer->op], ++*counter);
        while (find_name(graph, graph->n_layers, name) >= 0);
        mfl_strcpy(layer->name, sizeof layer->name, name);
}

static int name_layers(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        int counter[MFL_OP_COUNT_] = {0};
        if (!graph->layers[0].name[0])
                mfl_strcpy(graph->layers[0].name, sizeof graph->layers[0].name, "input");
        for (int i = 0; i < graph->n_layers; i++) {
                *ret_at = i;
                int r = check_name(&graph->layers[i], i, err);
                if (r)
                        return r;
                int j = graph->layers[i].name[0] ? find_name(graph, i, graph->layers[i].name) : -1;
                if (j >= 0)
                        return mfl_fail(err, MFL_INVALID, "layers %d and %d have the same name: %s", j, i,
                                graph->layers[i].name);
        }
        for (int i = 1; i < graph->n_layers; i++) {
                struct mfl_layer *layer = &graph->layers[i];
                if (!layer->name[0])
                        generate_name(graph, layer, &counter[layer->op]);
        }
        return 0;
}

static int check_pair(
        const struct mfl_layer *layer, const char *what, const int pair[2], int min, struct mfl_error *err)
{
        if (pair[0] < min || pair[1] < min || pair[0] > SIZE_LIMIT || pair[1] > SIZE_LIMIT)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %dx%d is outside %d to %d", layer->name,
                        mfl_op_name(layer->op), what, pair[0], pair[1], min, SIZE_LIMIT);
        return 0;
}

/* With dilation a window that starts in the padding may step over the whole input; its largest value would
 * be undefined. Windows that start inside always hold a value, and none starts in the far padding because
 * the padding is at most half of the kernel. */
static bool has_empty_window(const struct mfl_layer *layer, int axis, int64_t size, int64_t out)
{
        for (int64_t o = 0; o < out; o++) {
                int64_t start = o * layer->stride[axis] - layer->padding[axis];
                if (start >= 0)
                        return false;
                int64_t skipped = (-start + layer->dilation[axis] - 1) / layer->dilation[axis];
                if (skipped >= layer->kernel[axis] || start + skipped * layer->dilation[axis] >= size)
                        return true;
        }
        return false;
}

static int check_pool(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        for (int axis = 0; axis < 2; axis++) {
                if (layer->padding[axis] > layer->kernel[axis] / 2)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): padding %dx%d is more than half of the kernel %dx%d",
                                layer->name, mfl_op_name(layer->op), layer->padding[0], layer->padding[1],
                                layer->kernel[0], layer->kernel[1]);
                if (layer->op == MFL_OP_MAXPOOL2D &&
                        has_empty_window(layer, axis, in->dim[1 + axis], layer->out.dim[1 + axis]))
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): a window of dilation %dx%d holds padding only; use a smaller "
                                "dilation",
                                layer->name, mfl_op_name(layer->op), layer->dilation[0], layer->dilation[1]);
        }
        return 0;
}

/* Output height and width of a convolution or pool: floor((in + 2p - d(k - 1) - 1) / s) + 1. */
static int infer_window(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        char text[96];
        int r;
        for (int axis = 0; axis < 2; axis++) {
                layer->stride[axis] += layer->stride[axis] == 0;
                layer->dilation[axis] += layer->dilation[axis] == 0;
        }
        if ((r = check_pair(layer, "kernel", layer->kernel, 1, err)) ||
                (r = check_pair(layer, "stride", layer->stride, 1, err)) ||
                (r = check_pair(layer, "dilation", layer->dilation, 1, err)) ||
                (r = check_pair(layer, "padding", layer->padding, 0, err)))
                return r;
        if (in->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): needs an image (channels x height x width), its input is %s",
                        layer->name, mfl_op_name(layer->op), mfl_shape_text(in, text, sizeof text));
        layer->out = (struct mfl_shape){.rank = 3, .dim = {in->dim[0]}};
        for (int axis = 0; axis < 2; axis++) {
                int64_t reach = (int64_t)layer->dilation[axis] * (layer->kernel[axis] - 1) + 1;
                int64_t padded = in->dim[1 + axis] + 2 * (int64_t)layer->padding[axis];
                if (reach > padded)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): the %s of its input %s with padding %d is %lld, less than "
                                "the "
                                "kernel's reach of %lld; use a smaller kernel or padding of at least %lld",
                                layer->name, mfl_op_name(layer->op), axis ? "width" : "height",
                                mfl_shape_text(in, text, sizeof text), layer->padding[axis],
                                (long long)padded, (long long)reach,
                                (long long)(reach - in->dim[1 + axis] + 1) / 2);
                layer->out.dim[1 + axis] = (padded - reach) / layer->stride[axis] + 1;
        }
        return 0;
}

static int check_out_channels(const struct mfl_layer *layer, struct mfl_error *err)
{
        if (layer->out_channels < 1 || layer->out_channels > SIZE_LIMIT)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %d is outside 1 to %d", layer->name,
                        mfl_op_name(layer->op), layer->op == MFL_OP_CONV2D ? "filters" : "units",
                        layer->out_channels, SIZE_LIMIT);
        if (layer->init > MFL_INIT_ZERO)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): there is no initialisation number %u",
                        layer->name, mfl_op_name(layer->op), (unsigned)layer->init);
        return 0;
}

static int infer_input(struct mfl_layer *layer, struct mfl_error *err)
{
        const struct mfl_shape *out = &layer->out;
        char text[96];
        if (out->rank != 1 && out->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "the input has %d dimensions; 1 (features) or 3 (channels x height x width) are "
                        "possible",
                        out->rank);
        for (int i = 0; i < out->rank; i++) {
                if (out->dim[i] < 1 || out->dim[i] > SIZE_LIMIT)
                        return mfl_fail(err, MFL_INVALID, "the input is %s; each dimension must be 1 to %d",
                                mfl_shape_text(out, text, sizeof text), SIZE_LIMIT);
        }
        return 0;
}

static int infer_add(
        struct mfl_layer *layer, const struct mfl_layer *a, const struct mfl_layer *b, struct mfl_error *err)
{
        char text[96], text2[96];
        if (a == b)
                return mfl_fail(err, MFL_INVALID, "layer %s (add): reads layer %s twice; it joins two layers",
                        layer->name, a->name);
        if (!mfl_shape_equal(&a->out, &b->out))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (add): its inputs must be of one shape; %s is %s, %s is %s", layer->name,
                        a->name, mfl_shape_text(&a->out, text, sizeof text), b->name,
                        mfl_shape_text(&b->out, text2, sizeof text2));
        layer->out = a->out;
        return 0;
}

static int infer_norm(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        const char *op = mfl_op_name(layer->op);
        layer->out = *in;
        if (layer->eps == 0)
                layer->eps = 1e-5f;
        if (layer->momentum == 0)
                layer->momentum = 0.1f;
        if (!(layer->eps > 0 && layer->eps <= 1))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): eps %g is outside (0, 1]", layer->name, op,
                        (double)layer->eps);
        if (!(layer->momentum > 0 && layer->momentum <= 1))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): momentum %g is outside (0, 1]", layer->name,
                        op, (double)layer->momentum);
        if (layer->op != MFL_OP_GROUPNORM)
                return 0;
        if (layer->norm_groups < 1 || in->dim[0] % layer->norm_groups)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (groupnorm): norm_groups %d does not divide its %lld channels", layer->name,
                        layer->norm_groups, (long long)in->dim[0]);
        return 0;
}

static int infer_global_pool(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        char text[96];
        if (in->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): needs an image (channels x height x width), its input is %s",
                        layer->name, mfl_op_name(layer->op), mfl_shape_text(in, text, sizeof text));
        layer->out = (struct mfl_shape){.rank = 3, .dim = {in->dim[0], 1, 1}};
        return 0;
}

static int infer_shape(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        int r = 0;
        switch (layer->op) {
        case MFL_OP_CONV2D:
                if ((r = check_out_channels(layer, err)) || (r = infer_window(layer, in, err)))
                        return r;
                layer->out.dim[0] = layer->out_channels;
                return 0;
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D:
                if ((r = infer_window(layer, in, err)))
                        return r;
                return check_pool(layer, in, err);
        case MFL_OP_DENSE:
                layer->out = (struct mfl_shape){.rank = 1, .dim = {layer->out_channels}};
                return check_out_channels(layer, err);
        case MFL_OP_FLATTEN:
                layer->out = (struct mfl_shape){.rank = 1, .dim = {mfl_shape_count(in)}};
                return 0;
        case MFL_OP_DROPOUT:
                layer->out = *in;
                if (!(layer->rate >= 0 && layer->rate < 1))
                        return mfl_fail(err, MFL_INVALID, "layer %s (dropout): rate %g is outside [0, 1)",
                                layer->name, (double)layer->rate);
                return 0;
        case MFL_OP_GLOBAL_AVGPOOL2D:
                return infer_global_pool(layer, in, err);
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                return infer_norm(layer, in, err);
        default:
                layer->out = *in;
                return 0;
        }
}

/* The layer's inputs lie before it, and there are as many as the operator takes. */
static int check_inputs(struct mfl_layer *layer, int i, struct mfl_error *err)
{
        bool joins = layer->op == MFL_OP_ADD;
        if (layer->input < 0 || layer->input >= i)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): reads layer %d; it can read layers 0 to %d",
                        layer->name, mfl_op_name(layer->op), layer->input, i - 1);
        if (joins && (layer->input2 < 0 || layer->input2 >= i))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (add): reads layer %d; it can read layers 0 to %d", layer->name,
                        layer->input2, i - 1);
        if (!joins && layer->input2 > 0)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): takes one input", layer->name,
                        mfl_op_name(layer->op));
        layer->input2 = joins ? layer->input2 : -1;
        return 0;
}

static int infer_layer(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        char text[96];
        int r;
        layer->param_weight = layer->param_bias = layer->param_mean = layer->param_var = -1;
        if (i == 0) {
                layer->input = layer->input2 = -1;
                r = infer_input(layer, err);
        } else if (layer->op == MFL_OP_INPUT) {
                r = mfl_fail(
                        err, MFL_INVALID, "layer %s: only the first layer can be the input", layer->name);
        } else if (!(r = check_inputs(layer, i, err))) {
                const struct mfl_layer *in = &graph->layers[layer->input];
                r = layer->op == MFL_OP_ADD ? infer_add(layer, in, &graph->layers[layer->input2], err)
                                            : infer_shape(layer, &in->out, err);
        }
        if (r)
                return r;
        uint64_t count = 1;
        for (int d = 0; d < layer->out.rank; d++)
                count = mfl_graph_multiply(count, (uint64_t)layer->out.dim[d]);
        if (count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): its output %s is larger than %llu numbers",
                        layer->name, mfl_op_name(layer->op), mfl_shape_text(&layer->out, text, sizeof text),
                        (unsigned long long)MFL_PARAMS_MAX);
        return 0;
}

/* What no layer reads would be computed for nothing. With this every layer reaches the last one. */
static int check_readers(const struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        bool is_read[MFL_LAYERS_MAX] = {false};
        for (int i = 1; i < graph->n_layers; i++) {
                is_read[graph->layers[i].input] = true;
                if (graph->layers[i].input2 >= 0)
                        is_read[graph->layers[i].input2] = true;
        }
        for (int j = 0; j + 1 < graph->n_layers; j++) {
                *ret_at = j;
                if (!is_read[j])
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s) is read by no other layer; each but the last must be",
                                graph->layers[j].name, mfl_op_name(graph->layers[j].op));
        }
        return 0;
}

static int check_classes(const struct mfl_graph *graph, struct mfl_error *err)
{
        const struct mfl_layer *last = &graph->layers[graph->n_layers - 1];
        char text[96];
        if (graph->classes == 0)
                return 0;
        if (last->out.rank != 1 || last->out.dim[0] != graph->classes)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): the last layer gives %s; it must give one number for each of the %d "
                        "classes",
                        last->name, mfl_op_name(last->op), mfl_shape_text(&last->out, text, sizeof text),
                        graph->classes);
        return 0;
}

static int fill_graph(
        struct mfl_graph *graph, const struct mfl_layer *layers, int *ret_at, struct mfl_error *err)
{
        int r;
        size_t bytes = (size_t)graph->n_layers * sizeof *layers;
        graph->layers = mfl_malloc(bytes);
        if (!graph->layers)
                return mfl_fail_memory(err, bytes, "the graph's layers");
        memcpy(graph->layers, layers, bytes);
        for (int i = 0; i < graph->n_layers; i++) {
                *ret_at = i;
                if ((unsigned)layers[i].op >= MFL_OP_COUNT_)
                        return mfl_fail(err, MFL_INVALID, "layer %d: there is no operator number %u", i,
                                (unsigned)layers[i].op);
        }
        *ret_at = 0;
        if (layers[0].op != MFL_OP_INPUT)
                return mfl_fail(err, MFL_INVALID, "layer 0 is %s; the first layer must be the input",
                        mfl_op_name(layers[0].op));
        if ((r = name_layers(graph, ret_at, err)))
                return r;
        for (int i = 0; i < graph->n_layers; i++) {
                *ret_at = i;
                if ((r = infer_layer(graph, i, err)))
                        return r;
        }
        graph->input = graph->layers[0].out;
        if ((r = check_readers(graph, ret_at, err)))
                return r;
        *ret_at = graph->n_layers - 1;
        if ((r = check_classes(graph, err)))
                return r;
        return mfl_graph_build_params(graph, ret_at, err);
}

static int build(const char *name, const struct mfl_layer *layers, int n_layers, int classes,
        struct mfl_graph **ret_graph, int *ret_at, struct mfl_error *err)
{
        *ret_at = 0;
        if (n_layers < 2 || n_layers > MFL_LAYERS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "a model of %d layers (the input included); 2 to %d are possible", n_layers,
                        MFL_LAYERS_MAX);
        if (classes < 0 || classes > SIZE_LIMIT)
                return mfl_fail(err, MFL_INVALID, "%d classes; 1 to %d are possible", classes, SIZE_LIMIT);
        struct mfl_graph *graph = mfl_calloc(1, sizeof *graph);
        if (!graph)
                return mfl_fail_memory(err, sizeof *graph, "a graph");
        mfl_strcpy(graph->name, sizeof graph->name, name);
        graph->n_layers = n_layers;
        graph->classes = classes;
        int r = fill_graph(graph, layers, ret_at, err);
        if (r) {
                mfl_graph_free(graph);
                return r;
        }
        *ret_graph = graph;
        return 0;
}

int mfl_graph_build(const char *name, const struct mfl_layer *layers, int n_layers, int classes,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        int at;
        return build(name, layers, n_layers, classes, ret_graph, &at, err);
}

int mfl_graph_check(
        const struct mfl_layer *layers, int n_layers, int classes, int *ret_layer, struct mfl_error *err)
{
        struct mfl_graph *graph = NULL;
        int at, r = build("", layers, n_layers, classes, &graph, &at, err);
        mfl_graph_free(graph);
        if (r > 0)
                *ret_layer = at;
        return r;
}

void mfl_graph_free(struct mfl_graph *graph)
{
        if (!graph)
                return;
        free(graph->layers);
        free(graph->params);
        free(graph);
}
