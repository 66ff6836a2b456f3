/* SPDX-License-Identifier: Apache-2.0 */
/* Describes finished graphs: text, counts, cost. */
#include "common/model/graph_internal.h"

#include <stdio.h>

static uint64_t add(uint64_t a, uint64_t b)
{
        uint64_t r;
        return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

/* Mean: 1; variance: 3; (x - mean) * scale * weight + bias: 4. */
#define NORM_FLOPS 8

#define SOFTMAX_FLOPS 5
/* An activation with an exponential: the exponential, and about as many operations around it. */
#define GATE_FLOPS 8

/* All costs are FLOPs of one sample. Here: one for each element. */
static uint64_t cost_element(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return (uint64_t)mfl_shape_count(&layer->out);
}

static uint64_t cost_nothing(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return 0;
}

static uint64_t cost_input(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return (uint64_t)mfl_shape_count(&graph->layers[layer->input].out);
}

static uint64_t cost_norm(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return mfl_graph_multiply(NORM_FLOPS, cost_element(graph, layer));
}

static uint64_t cost_softmax(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return mfl_graph_multiply(SOFTMAX_FLOPS, cost_element(graph, layer));
}

static uint64_t cost_gate(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return mfl_graph_multiply(GATE_FLOPS, cost_element(graph, layer));
}

/* One for each element of the window. */
static uint64_t cost_window(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        return mfl_graph_multiply(mfl_graph_multiply((uint64_t)layer->kernel[0], (uint64_t)layer->kernel[1]),
                cost_element(graph, layer));
}

static uint64_t cost_matmul(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        return mfl_graph_multiply(2 * (uint64_t)in->dim[in->rank - 1], cost_element(graph, layer));
}

/* T positions: two products for each gate (weights of F and H numbers), then the state. */
static uint64_t cost_recurrent(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        uint64_t gates = (uint64_t)mfl_cell_gates(mfl_cell_of(layer)),
                 positions = (uint64_t)layer->out.dim[0];
        uint64_t hidden = (uint64_t)layer->out.dim[1];
        uint64_t inputs = (uint64_t)graph->layers[layer->input].out.dim[1] + hidden;
        return mfl_graph_multiply(mfl_graph_multiply(gates * positions, hidden), add(2 * inputs, GATE_FLOPS));
}

/* Two products of T x T x D, and a softmax of each head's T x T. */
static uint64_t cost_attention(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        uint64_t positions = (uint64_t)layer->out.dim[0], width = (uint64_t)layer->out.dim[1];
        uint64_t pairs = mfl_graph_multiply(positions, positions);
        return add(mfl_graph_multiply(4 * width, pairs),
                mfl_graph_multiply(SOFTMAX_FLOPS * (uint64_t)layer->heads, pairs));
}

/* One multiplication and one addition per weight and output position, one addition per bias. */
static uint64_t cost_weighted(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        const struct mfl_shape *in = &graph->layers[layer->input].out, *out = &layer->out;
        uint64_t n_out = (uint64_t)mfl_shape_count(out), terms, adapters = 0;
        uint64_t window = (uint64_t)layer->kernel[0] * (uint64_t)layer->kernel[1];
        if (layer->op == MFL_OP_DENSE) {
                terms = (uint64_t)mfl_graph_features(graph, (int)(layer - graph->layers));
                adapters = 2 * (uint64_t)layer->lora_rank *
                           (terms * (n_out / (uint64_t)layer->out_channels) + n_out);
        } else {
                terms = window * (uint64_t)(in->dim[0] / layer->conv_groups);
        }
        if (layer->op == MFL_OP_CONVTRANSPOSE2D) {
                terms = window * (uint64_t)(layer->out_channels / layer->conv_groups);
                n_out = (uint64_t)mfl_shape_count(in);
        }
        uint64_t flops = add(mfl_graph_multiply(mfl_graph_multiply(2, terms), n_out), adapters);
        return add(flops, layer->bias ? (uint64_t)mfl_shape_count(out) : 0);
}

/* Copies cost nothing; each term of a sum is a product and a sum. */
static uint64_t cost_map(const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        uint64_t terms = mfl_map_terms(layer, &graph->layers[layer->input].out);
        return terms > (uint64_t)mfl_shape_count(&layer->out) ? mfl_graph_multiply(2, terms) : 0;
}

typedef uint64_t cost_fn(const struct mfl_graph *graph, const struct mfl_layer *layer);
static cost_fn *const costs[MFL_OP_COUNT_] = {
        [MFL_OP_INPUT] = cost_nothing,
#define OP(symbol, name, stem, inputs, shape, cost, ...) [MFL_OP_##symbol] = cost_##cost,
#include "common/model/op.def"
};

void mfl_graph_flops(const struct mfl_graph *graph, uint64_t *ret_forward, uint64_t *ret_training)
{
        uint64_t forward = 0, training = 0;
        bool wants_grad[MFL_LAYERS_MAX] = {false}; /* there are weights at or below the layer */
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                uint64_t flops = costs[layer->op](graph, layer);
                bool weighted = layer->param_weight >= 0 && !layer->frozen;
                /* Backward computes the weights' gradient (the cost of forward) and, if any layer below has weights,
                 * the input's gradient (the same again). */
                bool below = (layer->input >= 0 && wants_grad[layer->input]) ||
                             (layer->input2 >= 0 && wants_grad[layer->input2]);
                uint64_t times = 1 + (weighted ? 1u : 0u) + (below ? 1u : 0u);
                wants_grad[i] = below || weighted;
                forward = add(forward, flops);
                training = add(training, mfl_graph_multiply(times, flops));
        }
        *ret_forward = forward;
        *ret_training = training;
}

#define DESCRIBE_ROW_BYTES 1024

/* The line of one layer; with "reads ..." unless it just reads the layer above. */
static size_t describe_layer(const struct mfl_graph *graph, int i, char *text, size_t bytes)
{
        const struct mfl_layer *layer = &graph->layers[i];
        const int params[] = {layer->param_weight, layer->param_bias, layer->param_weight2,
                layer->param_bias2, layer->param_mean, layer->param_var};
        uint64_t count = 0;
        char shape[96], reads[2 * MFL_LAYER_NAME_BYTES + 16] = "", shares[MFL_LAYER_NAME_BYTES + 48] = "";
        for (size_t k = 0; k < MFL_ARRAY_SIZE(params); k++)
                if (params[k] >= 0 && graph->params[params[k]].layer == i)
                        count += graph->params[params[k]].count;
        if (layer->shares)
                snprintf(shares, sizeof shares, "  %s with %s%s", layer->sharing ? "weight shared" : "shared",
                        graph->layers[layer->shares].name,
                        layer->sharing == MFL_SHARES_TRANSPOSED ? ", transposed" : "");
        if (layer->input2 >= 0)
                snprintf(reads, sizeof reads, "  reads %s, %s", graph->layers[layer->input].name,
                        graph->layers[layer->input2].name);
        else if (layer->input >= 0 && layer->input != i - 1)
                snprintf(reads, sizeof reads, "  reads %s", graph->layers[layer->input].name);
        return (size_t)snprintf(text, bytes, "%-20s %-16s %-14s %12llu%s%s\n", layer->name,
                mfl_layer_kind(layer), mfl_shape_text(&layer->out, shape, sizeof shape),
                (unsigned long long)count, reads, shares);
}

char *mfl_graph_describe(const struct mfl_graph *graph)
{
        size_t bytes = ((size_t)graph->n_layers + 3) * DESCRIBE_ROW_BYTES, len = 0, len_some = 0;
        char *text = mfl_malloc(bytes), some[128] = "";
        uint64_t forward, training, untrained = 0;
        if (!text)
                return NULL;
        len += (size_t)snprintf(
                text, bytes, "%-20s %-16s %-14s %12s\n", "layer", "operator", "output", "parameters");
        for (int i = 0; i < graph->n_layers; i++)
                len += describe_layer(graph, i, text + len, bytes - len);
        for (int t = 0; t < graph->n_params; t++)
                untrained += graph->params[t].trained ? 0 : graph->params[t].count;
        if (untrained)
                len_some = (size_t)snprintf(
                        some, sizeof some, ", %llu of them not trained", (unsigned long long)untrained);
        if (graph->n_frozen)
                snprintf(some + len_some, sizeof some - len_some, ", %llu of them move",
                        (unsigned long long)graph->n_moving);
        mfl_graph_flops(graph, &forward, &training);
        snprintf(text + len, bytes - len,
                "%s: %llu parameters (%.2f MiB)%s, %.2f MFLOP forward, %.2f MFLOP training per sample\n",
                graph->name, (unsigned long long)graph->n, (double)graph->n * 4 / 1048576, some,
                (double)forward / 1e6, (double)training / 1e6);
        return text;
}
