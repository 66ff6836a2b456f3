/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a graph's parameters: which tensors each layer has, their names, shapes and places. */
#include "common/model/graph_internal.h"

#include <stdio.h>

#define PARAMS_PER_LAYER 4

/* Gives the next tensor its place in the flat vector. */
static int add_param(struct mfl_graph *graph, int i_layer, const char *suffix, const struct mfl_param *what,
        int *ret_index, struct mfl_error *err)
{
        const struct mfl_layer *layer = &graph->layers[i_layer];
        struct mfl_param *param = &graph->params[graph->n_params];
        uint64_t count = 1;
        for (int d = 0; d < what->shape.rank; d++)
                count = mfl_graph_multiply(count, (uint64_t)what->shape.dim[d]);
        if (count > MFL_PARAMS_MAX || graph->n + count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): the model has more than %llu parameters, the largest supported "
                        "number",
                        layer->name, mfl_op_name(layer->op), (unsigned long long)MFL_PARAMS_MAX);
        *param = *what;
        param->offset = graph->n;
        param->count = count;
        param->layer = i_layer;
        snprintf(param->name, sizeof param->name, "%s.%s", layer->name, suffix);
        graph->n += count;
        *ret_index = graph->n_params++;
        return 0;
}

static int add_weights(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        bool conv = layer->op == MFL_OP_CONV2D;
        int64_t window = conv ? (int64_t)layer->kernel[0] * layer->kernel[1] : 1;
        int64_t channels = conv ? in->dim[0] : mfl_shape_count(in), out = layer->out_channels;
        struct mfl_param weight = {.fan_in = window * channels, .fan_out = window * out, .trained = true};
        struct mfl_param bias = weight;
        weight.shape = conv ? (struct mfl_shape){4, {out, channels, layer->kernel[0], layer->kernel[1]}}
                            : (struct mfl_shape){2, {out, channels}};
        bias.shape = (struct mfl_shape){1, {out}};
        bias.is_bias = true;
        int r = add_param(graph, i, "weight", &weight, &layer->param_weight, err);
        if (!r && layer->bias)
                r = add_param(graph, i, "bias", &bias, &layer->param_bias, err);
        return r;
}

/* In the order of PyTorch's state_dict. */
static int add_norm(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        struct mfl_param own = {
                .shape = {1, {layer->out.dim[0]}}, .fan_in = 1, .fan_out = 1, .trained = true};
        struct mfl_param bias = own, running = own;
        bias.is_bias = true;
        running.trained = false;
        int r;
        if ((r = add_param(graph, i, "weight", &own, &layer->param_weight, err)) ||
                (r = add_param(graph, i, "bias", &bias, &layer->param_bias, err)) ||
                layer->op != MFL_OP_BATCHNORM)
                return r;
        if ((r = add_param(graph, i, "running_mean", &running, &layer->param_mean, err)))
                return r;
        return add_param(graph, i, "running_var", &running, &layer->param_var, err);
}

int mfl_graph_build_params(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        size_t bytes = PARAMS_PER_LAYER * (size_t)graph->n_layers * sizeof *graph->params;
        graph->params = mfl_calloc(1, bytes);
        if (!graph->params)
                return mfl_fail_memory(err, bytes, "the parameter table");
        for (int i = 1; i < graph->n_layers; i++) {
                enum mfl_op op = graph->layers[i].op;
                int r = 0;
                *ret_at = i;
                if (op == MFL_OP_CONV2D || op == MFL_OP_DENSE)
                        r = add_weights(graph, i, err);
                else if (op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM)
                        r = add_norm(graph, i, err);
                if (r)
                        return r;
        }
        return 0;
}
