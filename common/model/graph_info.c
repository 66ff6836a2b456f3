/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said about shapes and finished graphs: text, counts, cost. */
#include "common/model/graph.h"

#include <stdio.h>

int64_t mfl_shape_count(const struct mfl_shape *shape)
{
        int64_t count = 1;
        for (int i = 0; i < shape->rank; i++)
                count *= shape->dim[i];
        return count;
}

bool mfl_shape_equal(const struct mfl_shape *a, const struct mfl_shape *b)
{
        if (a->rank != b->rank)
                return false;
        for (int i = 0; i < a->rank; i++) {
                if (a->dim[i] != b->dim[i])
                        return false;
        }
        return true;
}

const char *mfl_shape_text(const struct mfl_shape *shape, char *buf, size_t buf_bytes)
{
        size_t len = 0;
        mfl_strcpy(buf, buf_bytes, shape->rank ? "" : "scalar");
        for (int i = 0; i < shape->rank && i < MFL_SHAPE_RANK_MAX && len < buf_bytes; i++)
                len += (size_t)snprintf(
                        buf + len, buf_bytes - len, "%s%lld", i ? "x" : "", (long long)shape->dim[i]);
        return buf;
}

const char *mfl_op_name(enum mfl_op op)
{
        static const char *const names[MFL_OP_COUNT_] = {
                [MFL_OP_INPUT] = "input",
                [MFL_OP_CONV2D] = "conv2d",
                [MFL_OP_DENSE] = "dense",
                [MFL_OP_RELU] = "relu",
                [MFL_OP_TANH] = "tanh",
                [MFL_OP_SIGMOID] = "sigmoid",
                [MFL_OP_MAXPOOL2D] = "maxpool2d",
                [MFL_OP_AVGPOOL2D] = "avgpool2d",
                [MFL_OP_DROPOUT] = "dropout",
                [MFL_OP_FLATTEN] = "flatten",
        };
        return (unsigned)op < MFL_OP_COUNT_ ? names[op] : "?";
}

static uint64_t add(uint64_t a, uint64_t b)
{
        uint64_t r;
        return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t multiply(uint64_t a, uint64_t b)
{
        uint64_t r;
        return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Weighted layers: one multiplication and one addition per weight and output position, one addition per
 * bias. Pools: one operation per element of the window. The rest: one per element. */
static uint64_t layer_flops(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        uint64_t n_out = (uint64_t)mfl_shape_count(&layer->out);
        switch (layer->op) {
        case MFL_OP_INPUT:
        case MFL_OP_FLATTEN:
                return 0;
        case MFL_OP_CONV2D:
        case MFL_OP_DENSE:
                return add(multiply(multiply(2, (uint64_t)graph->params[layer->param_weight].fan_in), n_out),
                        layer->bias ? n_out : 0);
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D:
                return multiply(multiply((uint64_t)layer->kernel[0], (uint64_t)layer->kernel[1]), n_out);
        default:
                return n_out;
        }
}

void mfl_graph_flops(const struct mfl_graph *graph, uint64_t *ret_forward, uint64_t *ret_training)
{
        uint64_t forward = 0, training = 0;
        bool seen_weights = false;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                uint64_t flops = layer_flops(graph, layer);
                bool weighted = layer->param_weight >= 0;
                /* Backward computes the weights' gradient (as much as forward) and, unless nothing below
                 * has weights, the input's (as much again). */
                uint64_t times = 1 + (weighted ? 1u : 0u) + (seen_weights ? 1u : 0u);
                seen_weights = seen_weights || weighted;
                forward = add(forward, flops);
                training = add(training, multiply(times, flops));
        }
        *ret_forward = forward;
        *ret_training = training;
}

#define DESCRIBE_ROW_BYTES 256

char *mfl_graph_describe(const struct mfl_graph *graph)
{
        size_t bytes = ((size_t)graph->n_layers + 3) * DESCRIBE_ROW_BYTES, len = 0;
        char *text = mfl_malloc(bytes), shape[96];
        if (!text)
                return NULL;
        len += (size_t)snprintf(
                text, bytes, "%-20s %-10s %-18s %12s\n", "layer", "operator", "output", "parameters");
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                uint64_t count = 0;
                if (layer->param_weight >= 0)
                        count += graph->params[layer->param_weight].count;
                if (layer->param_bias >= 0)
                        count += graph->params[layer->param_bias].count;
                len += (size_t)snprintf(text + len, bytes - len, "%-20s %-10s %-18s %12llu\n", layer->name,
                        mfl_op_name(layer->op), mfl_shape_text(&layer->out, shape, sizeof shape),
                        (unsigned long long)count);
        }
        uint64_t forward, training;
        mfl_graph_flops(graph, &forward, &training);
        snprintf(text + len, bytes - len,
                "%s: %llu parameters (%.2f MiB), %.2f MFLOP forward, %.2f MFLOP training per sample\n",
                graph->name, (unsigned long long)graph->n, (double)graph->n * 4 / 1048576,
                (double)forward / 1e6, (double)training / 1e6);
        return text;
}
