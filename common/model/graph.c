/* SPDX-License-Identifier: Apache-2.0 */
/* Builds a graph: checks each layer, infers its output's shape and lays out the parameter table. */
#include "common/model/graph_internal.h"

#include <stdio.h>

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
                        MFL_LAYER_NAME_BYTES - 1);
        for (const char *p = layer->name; *p; p++) {
                bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                             (*p >= '0' && *p <= '9') || *p == '_' || *p == '-' || *p == '.';
                if (!plain)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %d: the name has byte 0x%02x; letters, digits, '_', '-' and '.' are "
                                "allowed",
                                i, (unsigned char)*p);
        }
        return 0;
}

static void generate_name(const struct mfl_graph *graph, struct mfl_layer *layer, int *counter)
{
        char name[MFL_LAYER_NAME_BYTES];
        do
                snprintf(name, sizeof name, "%s%d",
                        layer->op == MFL_OP_MAP ? mfl_map_name(layer->map.kind)
                                                : mfl_op_info(layer->op)->stem,
                        ++*counter);
        while (find_name(graph, graph->n_layers, name) >= 0);
        mfl_strcpy(layer->name, sizeof layer->name, name);
}

static int name_layers(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        int counter[MFL_OP_COUNT_ + MFL_MAP_COUNT_] = {0};
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
                int kind =
                        layer->op == MFL_OP_MAP ? (int)MFL_OP_COUNT_ + (int)layer->map.kind : (int)layer->op;
                if (!layer->name[0])
                        generate_name(graph, layer, &counter[kind]);
        }
        return 0;
}

static int infer_input(struct mfl_layer *layer, struct mfl_error *err)
{
        const struct mfl_shape *out = &layer->out;
        char text[96];
        if (out->rank < 1 || out->rank > 3)
                return mfl_fail(err, MFL_INVALID,
                        "the input has %d dimensions; 1 (features or tokens), 2 (positions x features) or 3 "
                        "(channels x height x width) are possible",
                        out->rank);
        for (int i = 0; i < out->rank; i++) {
                if (out->dim[i] < 1 || out->dim[i] > MFL_WIDTH_MAX)
                        return mfl_fail(err, MFL_INVALID, "the input is %s; each dimension must be 1 to %d",
                                mfl_shape_text(out, text, sizeof text), MFL_WIDTH_MAX);
        }
        return 0;
}

/* The layer's inputs come before it, and their number is what the operator takes. */
static int check_inputs(const struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        int n = mfl_op_inputs(layer->op);
        const char *op = mfl_layer_kind(layer);
        if (n == 0) {
                layer->input = layer->input2 = -1;
                return 0;
        }
        if (layer->input < 0 || layer->input >= i)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): reads layer %d; it can read layers 0 to %d",
                        layer->name, op, layer->input, i - 1);
        if (n == 2 && (layer->input2 < 0 || layer->input2 >= i))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): reads layer %d; it can read layers 0 to %d",
                        layer->name, op, layer->input2, i - 1);
        if (n == 2 && layer->input == layer->input2)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): reads layer %s twice; it joins two layers",
                        layer->name, op, graph->layers[layer->input].name);
        bool masked = layer->op == MFL_OP_ATTENTION && layer->input2 > 0;
        if (masked && (layer->input2 >= i || graph->layers[layer->input2].op != MFL_OP_PADDING_MASK))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (attention): mask must name a padding_mask layer before it; write other "
                        "masks "
                        "out as matmul, add and softmax",
                        layer->name);
        if (n == 1 && layer->input2 > 0 && !masked)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): takes one input", layer->name, op);
        layer->input2 = n == 2 || masked ? layer->input2 : -1;
        return 0;
}

static int infer_layer(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        char text[96];
        int r;
        layer->param_weight = layer->param_bias = layer->param_mean = layer->param_var = -1;
        layer->param_weight2 = layer->param_bias2 = -1;
        layer->turned = false;
        if (i == 0) {
                layer->input = layer->input2 = -1;
                r = infer_input(layer, err);
        } else if (layer->op == MFL_OP_INPUT) {
                r = mfl_fail(
                        err, MFL_INVALID, "layer %s: only the first layer can be the input", layer->name);
        } else if (!(r = check_inputs(graph, i, err))) {
                r = mfl_graph_infer(graph, i, err);
        }
        if (r)
                return r;
        uint64_t count = 1;
        for (int d = 0; d < layer->out.rank; d++)
                count = mfl_graph_multiply(count, (uint64_t)layer->out.dim[d]);
        if (count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): its output %s is larger than %llu numbers",
                        layer->name, mfl_layer_kind(layer), mfl_shape_text(&layer->out, text, sizeof text),
                        (unsigned long long)MFL_PARAMS_MAX);
        return 0;
}

/* A layer that no layer reads would be computed for nothing. With this check every layer leads to the last one. */
static int check_readers(const struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        bool is_read[MFL_LAYERS_MAX] = {false};
        for (int i = 1; i < graph->n_layers; i++) {
                if (graph->layers[i].input >= 0)
                        is_read[graph->layers[i].input] = true;
                if (graph->layers[i].input2 >= 0)
                        is_read[graph->layers[i].input2] = true;
        }
        for (int j = 0; j + 1 < graph->n_layers; j++) {
                *ret_at = j;
                if (!is_read[j])
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s) is not read by any other layer; every layer except the last "
                                "must be read",
                                graph->layers[j].name, mfl_layer_kind(&graph->layers[j]));
        }
        return 0;
}

/* Columns of a table that hold categories: a slice of the input; or the input or a slice of it, and a constant that says where
 * each column's rows begin in a table that is all columns'. */
static bool is_of_categories(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        const struct mfl_layer *in = &graph->layers[layer->input];
        if (layer->op != MFL_OP_EMBEDDING)
                return false;
        if (in->op == MFL_OP_ADD && graph->layers[in->input2].op == MFL_OP_WEIGHT &&
                graph->layers[in->input2].frozen)
                return in->input == 0 ||
                       (graph->layers[in->input].op == MFL_OP_SLICE && graph->layers[in->input].input == 0);
        return in->op == MFL_OP_SLICE && in->input == 0;
}

/* Numbers that follow from which tokens are padding, such as positions, and from constants. */
static bool is_of_padding(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        if (layer->op == MFL_OP_PADDING_MASK || (layer->op == MFL_OP_WEIGHT && layer->frozen))
                return true;
        int n = mfl_op_inputs(layer->op);
        return n > 0 && layer->param_weight < 0 && is_of_padding(graph, layer->input) &&
               (n < 2 || is_of_padding(graph, layer->input2));
}

static bool is_of_tokens(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        const struct mfl_layer *in = &graph->layers[layer->input];
        return layer->input == 0 || (in->op == MFL_OP_SLICE && in->input == 0);
}

/* Only embeddings and masks read tokens, and all of them with the same vocabulary. */
static int check_tokens(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        bool other = false;
        int mask = 0;
        for (int i = 1; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                *ret_at = i;
                if (layer->op == MFL_OP_PADDING_MASK && !is_of_tokens(graph, layer))
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (padding_mask): reads %s; it reads the input (tokens), or a slice "
                                "of it: write "
                                "input: input",
                                layer->name, graph->layers[layer->input].name);
                if (layer->op == MFL_OP_PADDING_MASK) {
                        mask = layer->input ? mask : i;
                } else if (layer->op != MFL_OP_EMBEDDING || is_of_categories(graph, layer) ||
                           is_of_padding(graph, layer->input)) {
                        other = other || layer->input == 0 || layer->input2 == 0;
                } else if (layer->input != 0) {
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (embedding): reads %s; an embedding reads the input (tokens), a "
                                "slice "
                                "of the input (columns with categories), or what follows from a padding_mask",
                                layer->name, graph->layers[layer->input].name);
                } else if (graph->vocabulary && graph->vocabulary != layer->vocabulary) {
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (embedding): a vocabulary of %d; another embedding of the same "
                                "tokens has %d",
                                layer->name, layer->vocabulary, graph->vocabulary);
                } else {
                        graph->vocabulary = layer->vocabulary;
                }
                if (other && graph->vocabulary)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): the input is tokens, which only embeddings can read",
                                layer->name, mfl_layer_kind(layer));
        }
        *ret_at = mask;
        if (mask && graph->layers[mask].padding_idx >= graph->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (padding_mask): token %d is outside the vocabulary of the embedding that "
                        "reads the "
                        "input, %d",
                        graph->layers[mask].name, graph->layers[mask].padding_idx, graph->vocabulary);
        return 0;
}

static int append(struct mfl_graph *graph, struct mfl_layer layer, int *ret_at, struct mfl_error *err)
{
        int i = graph->n_layers, counter = 0;
        layer.input = i - 1;
        graph->layers[graph->n_layers++] = layer;
        generate_name(graph, &graph->layers[i], &counter);
        *ret_at = i;
        return infer_layer(graph, i, err);
}

/* A model that ends in an image of a logit for each class and pixel {classes, H, W}: its pixels become positions
 * {H * W, classes}. */
static int end_in_positions(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        struct mfl_shape out = graph->layers[graph->n_layers - 1].out;
        if (!graph->classes || out.rank != 3 || out.dim[0] != graph->classes || out.dim[1] * out.dim[2] == 1)
                return 0;
        size_t bytes = ((size_t)graph->n_layers + 2) * sizeof *graph->layers;
        if (graph->n_layers + 2 > MFL_LAYERS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "a model of %d layers ends in an image, which takes 2 more; at most %d are possible",
                        graph->n_layers, MFL_LAYERS_MAX);
        struct mfl_layer *layers = mfl_realloc(graph->layers, bytes);
        if (!layers)
                return mfl_fail_memory(err, bytes, "the graph's layers");
        graph->layers = layers;
        struct mfl_shape flat = {2, {out.dim[0], out.dim[1] * out.dim[2]}};
        int r = append(
                graph, (struct mfl_layer){.op = MFL_OP_RESHAPE, .shape = flat, .input2 = -1}, ret_at, err);
        return r ? r
                 : append(graph, (struct mfl_layer){.op = MFL_OP_TRANSPOSE, .order = {1, 0}, .input2 = -1},
                           ret_at, err);
}

static int check_classes(struct mfl_graph *graph, struct mfl_error *err)
{
        const struct mfl_layer *last = &graph->layers[graph->n_layers - 1];
        const struct mfl_shape *out = &last->out;
        char text[96];
        graph->positions = out->rank == 2 ? (int)out->dim[0] : 1;
        if (graph->classes == 0)
                return 0;
        if (out->rank < 1 || out->rank > 2 || out->dim[out->rank - 1] != graph->classes)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): the last layer gives %s; it must give one number for each of the %d "
                        "classes",
                        last->name, mfl_layer_kind(last), mfl_shape_text(out, text, sizeof text),
                        graph->classes);
        return 0;
}

/* Lists of indices belong to the graph. */
static int copy_indices(struct mfl_graph *graph, struct mfl_error *err)
{
        int r = 0;
        for (int i = 0; i < graph->n_layers; i++) {
                struct mfl_map_spec *map = &graph->layers[i].map;
                const int32_t *from = map->index;
                size_t bytes = (size_t)map->n_index * sizeof *from;
                map->index = NULL;
                if (r || !from || graph->layers[i].op != MFL_OP_MAP)
                        continue;
                int32_t *own = mfl_malloc(bytes + 1);
                if (own)
                        map->index = memcpy(own, from, bytes);
                else
                        r = mfl_fail_memory(err, bytes, "the indices of a layer");
        }
        return r;
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
        if ((r = copy_indices(graph, err)))
                return r;
        for (int i = 0; i < graph->n_layers; i++) {
                *ret_at = i;
                if ((unsigned)layers[i].op >= MFL_OP_COUNT_)
                        return mfl_fail(err, MFL_INVALID, "layer %d: there is no operator number %u", i,
                                (unsigned)layers[i].op);
                if (layers[i].op == MFL_OP_MAP && (unsigned)layers[i].map.kind >= MFL_MAP_COUNT_)
                        return mfl_fail(err, MFL_INVALID, "layer %d: there is no map number %u", i,
                                (unsigned)layers[i].map.kind);
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
        if ((r = end_in_positions(graph, ret_at, err)))
                return r;
        graph->input = graph->layers[0].out;
        if ((r = check_readers(graph, ret_at, err)) || (r = check_tokens(graph, ret_at, err)))
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
        if (classes < 0 || classes > MFL_WIDTH_MAX)
                return mfl_fail(err, MFL_INVALID, "%d classes; 1 to %d are possible", classes, MFL_WIDTH_MAX);
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

int mfl_graph_untie(
        const struct mfl_graph *graph, struct mfl_graph **ret_graph, int **ret_param, struct mfl_error *err)
{
        size_t bytes = (size_t)graph->n_layers * sizeof *graph->layers;
        MFL_CLEANUP_FREE struct mfl_layer *layers = mfl_malloc(bytes);
        struct mfl_graph *apart = NULL;
        if (!layers)
                return mfl_fail_memory(err, bytes, "a graph");
        memcpy(layers, graph->layers, bytes);
        for (int i = 0; i < graph->n_layers; i++)
                layers[i].shares = 0;
        int r = mfl_graph_build(graph->name, layers, graph->n_layers, graph->classes, &apart, err);
        if (r)
                return r;
        size_t n = (size_t)apart->n_params;
        int *param = mfl_calloc(n + 1, sizeof *param);
        if (!param) {
                mfl_graph_free(apart);
                return mfl_fail_memory(err, n * sizeof *param, "a graph");
        }
        for (int i = 0; i < graph->n_layers; i++)
                for (int k = 0; k < MFL_LAYER_PARAMS; k++) {
                        int to = *mfl_layer_param(&apart->layers[i], k);
                        if (to >= 0)
                                param[to] = *mfl_layer_param(&graph->layers[i], k);
                }
        *ret_graph = apart;
        *ret_param = param;
        return 0;
}

void mfl_graph_free(struct mfl_graph *graph)
{
        if (!graph)
                return;
        for (int i = 0; graph->layers && i < graph->n_layers; i++)
                free((void *)graph->layers[i].map.index);
        free(graph->layers);
        free(graph->params);
        free(graph->aliases);
        free(graph->edges);
        free(graph->personal_edges);
        free(graph);
}
