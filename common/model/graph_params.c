/* SPDX-License-Identifier: Apache-2.0 */
/* The table of a graph's parameters: which tensors each layer has, with their names, shapes and offsets. */
#include "common/model/graph_internal.h"

#include <stdio.h>

#define PARAMS_PER_LAYER 4
#define STATISTICS ".statistics"

/* Gives the next tensor its place in the flat vector. */
static int add_param(struct mfl_graph *graph, int i_layer, const char *suffix, const struct mfl_param *what,
        int *ret_index, struct mfl_error *err)
{
        const struct mfl_layer *layer = &graph->layers[i_layer];
        struct mfl_param *param = &graph->params[graph->n_params];
        uint64_t count = 1;
        if (mfl_graph_shares(layer, ret_index))
                return mfl_graph_share(graph, i_layer, suffix, what, ret_index, err);
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
        param->layer = param->last_layer = i_layer;
        param->n_uses = 1;
        param->number = graph->n_params;
        param->place = graph->n;
        param->trained = param->trained && !layer->frozen;
        param->moves = param->moves || param->trained;
        /* PyTorch's names, also where other layers scale and shift. */
        size_t n = strlen(layer->name), end = sizeof STATISTICS - 1;
        bool apart = layer->op == MFL_OP_BATCHNORM && !strncmp(suffix, "running", 7) && n > end &&
                     !strcmp(layer->name + n - end, STATISTICS);
        snprintf(param->name, sizeof param->name, "%.*s%s%s", (int)(apart ? n - end : n), layer->name,
                *suffix ? "." : "", suffix);
        graph->n += count;
        *ret_index = graph->n_params++;
        return 0;
}

static struct mfl_shape bias_shape(int64_t n)
{
        return (struct mfl_shape){1, {n}};
}

/* Fans as PyTorch counts them, by the weight's own dimensions. */
static void describe_conv(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_param *weight)
{
        int64_t window = (int64_t)layer->kernel[0] * layer->kernel[1], groups = layer->conv_groups;
        int64_t first = layer->out_channels, second = in->dim[0] / groups;
        if (layer->op == MFL_OP_CONVTRANSPOSE2D) {
                first = in->dim[0];
                second = layer->out_channels / groups;
        }
        weight->shape = (struct mfl_shape){4, {first, second, layer->kernel[0], layer->kernel[1]}};
        weight->fan_in = window * second;
        weight->fan_out = window * first;
}

static void describe_dense(
        const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_param *weight)
{
        weight->fan_in = in->rank == 2 ? in->dim[1] : mfl_shape_count(in);
        weight->fan_out = layer->out_channels;
        weight->shape = (struct mfl_shape){2, {weight->fan_out, weight->fan_in}};
}

static int add_weights(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = &graph->layers[layer->input].out;
        bool adapted = layer->op == MFL_OP_DENSE && layer->lora_rank;
        struct mfl_param weight = {.trained = !adapted};
        if (layer->op == MFL_OP_DENSE)
                describe_dense(layer, in, &weight);
        else
                describe_conv(layer, in, &weight);
        struct mfl_param bias = weight;
        bias.shape = bias_shape(layer->out_channels);
        bias.is_bias = true;
        int r = add_param(graph, i, "weight", &weight, &layer->param_weight, err);
        if (!r && layer->bias)
                r = add_param(graph, i, "bias", &bias, &layer->param_bias, err);
        if (r || !adapted)
                return r;
        struct mfl_param a = {.shape = {2, {layer->lora_rank, weight.fan_in}},
                .fan_in = weight.fan_in,
                .fan_out = layer->lora_rank,
                .trained = true};
        struct mfl_param b = {.shape = {2, {layer->out_channels, layer->lora_rank}},
                .fan_in = layer->lora_rank,
                .fan_out = layer->out_channels,
                .trained = true};
        r = add_param(graph, i, "lora_A", &a, &layer->param_weight2, err);
        return r ? r : add_param(graph, i, "lora_B", &b, &layer->param_bias2, err);
}

static int add_table(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        struct mfl_param table = {.shape = layer->shape, .fan_in = 1, .fan_out = 1, .trained = true};
        if (layer->op == MFL_OP_WEIGHT)
                return add_param(graph, i, "", &table, &layer->param_weight, err);
        table.shape = (struct mfl_shape){2, {layer->vocabulary, layer->out_channels}};
        return add_param(graph, i, "weight", &table, &layer->param_weight, err);
}

/* Names of torch.nn.LSTM, GRU and RNN with one layer. */
static int add_recurrent(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        int64_t hidden = layer->out_channels, gates = mfl_cell_gates(mfl_cell_of(layer)) * hidden;
        int64_t features = graph->layers[layer->input].out.dim[1];
        struct mfl_param ih = {
                .shape = {2, {gates, features}}, .fan_in = hidden, .fan_out = hidden, .trained = true};
        struct mfl_param hh = ih, bias = ih;
        hh.shape = (struct mfl_shape){2, {gates, hidden}};
        bias.shape = bias_shape(gates);
        bias.is_bias = true;
        int r = add_param(graph, i, "weight_ih_l0", &ih, &layer->param_weight, err);
        if (!r)
                r = add_param(graph, i, "weight_hh_l0", &hh, &layer->param_weight2, err);
        if (!r && layer->bias)
                r = add_param(graph, i, "bias_ih_l0", &bias, &layer->param_bias, err);
        if (!r && layer->bias)
                r = add_param(graph, i, "bias_hh_l0", &bias, &layer->param_bias2, err);
        return r;
}

/* In the order of PyTorch's state_dict. */
static int add_norm(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        bool by_channel = layer->op == MFL_OP_BATCHNORM || layer->op == MFL_OP_GROUPNORM;
        struct mfl_param own = {.shape = bias_shape(layer->out.dim[by_channel ? 0 : layer->out.rank - 1]),
                .fan_in = 1,
                .fan_out = 1,
                .trained = true};
        struct mfl_param bias = own, running = own;
        bias.is_bias = true;
        running.trained = false;
        running.moves = true;
        int r;
        if ((r = add_param(graph, i, "weight", &own, &layer->param_weight, err)))
                return r;
        if ((by_channel || layer->bias) && (r = add_param(graph, i, "bias", &bias, &layer->param_bias, err)))
                return r;
        if (layer->op != MFL_OP_BATCHNORM)
                return 0;
        if ((r = add_param(graph, i, "running_mean", &running, &layer->param_mean, err)))
                return r;
        return add_param(graph, i, "running_var", &running, &layer->param_var, err);
}

static int compare_parts(const void *a, const void *b)
{
        const struct mfl_param *x = a, *y = b;
        return x->moves != y->moves ? x->moves - y->moves : x->number - y->number;
}

static int compare_numbers(const void *a, const void *b)
{
        return ((const struct mfl_param *)a)->number - ((const struct mfl_param *)b)->number;
}

/* Reorders the table, and gives each tensor its place in the flat vector; layers refer to tensors by index.
 */
static int order_params(
        struct mfl_graph *graph, int (*compare)(const void *, const void *), struct mfl_error *err)
{
        size_t n = (size_t)graph->n_params;
        MFL_CLEANUP_FREE int *numbers = mfl_malloc(n * sizeof *numbers + 1);
        MFL_CLEANUP_FREE int *index = mfl_malloc(n * sizeof *index + 1);
        if (!numbers || !index)
                return mfl_fail_memory(err, n * sizeof *index, "the order of parameters");
        for (size_t t = 0; t < n; t++)
                numbers[t] = graph->params[t].number;
        qsort(graph->params, n, sizeof *graph->params, compare);
        uint64_t offset = 0;
        for (size_t t = 0; t < n; t++) {
                index[graph->params[t].number] = (int)t;
                graph->params[t].offset = offset;
                offset += graph->params[t].count;
        }
        for (int i = 0; i < graph->n_layers; i++) {
                for (int k = 0; k < MFL_LAYER_PARAMS; k++) {
                        int *own = mfl_layer_param(&graph->layers[i], k);
                        *own = *own < 0 ? -1 : index[numbers[*own]];
                }
        }
        for (int k = 0; k < graph->n_aliases; k++)
                graph->aliases[k].param = index[numbers[graph->aliases[k].param]];
        return 0;
}

/* Where running statistics begin and end among the params that move. Neighbours are one part. */
static void find_statistics(struct mfl_graph *graph)
{
        size_t n = 0;
        uint64_t *edge = graph->edges;
        for (int t = graph->i_moving; t < graph->n_params; t++) {
                const struct mfl_param *param = &graph->params[t];
                uint64_t at = param->offset - graph->n_frozen;
                if (!mfl_param_is_statistics(param) || !param->count)
                        continue;
                if (n && edge[n - 1] == at)
                        n--;
                else
                        edge[n++] = at;
                edge[n++] = at + param->count;
        }
        graph->statistics = (struct mfl_fixed_parts){edge, n};
}

int mfl_graph_by_layers(struct mfl_graph *graph, struct mfl_error *err)
{
        int r = order_params(graph, compare_numbers, err);
        if (r)
                return r;
        graph->n_frozen = 0;
        graph->n_moving = graph->n;
        graph->i_moving = 0;
        find_statistics(graph);
        return 0;
}

int mfl_graph_part_params(struct mfl_graph *graph, struct mfl_error *err)
{
        graph->n_moving = graph->n;
        for (int t = 0; t < graph->n_params; t++) {
                if (graph->params[t].moves)
                        continue;
                graph->n_frozen += graph->params[t].count;
                graph->i_moving++;
        }
        graph->n_moving -= graph->n_frozen;
        int r = graph->n_frozen ? order_params(graph, compare_parts, err) : 0;
        size_t bytes = 2 * (size_t)graph->n_params * sizeof *graph->edges;
        if (r)
                return r;
        graph->edges = mfl_malloc(bytes + 1);
        if (!graph->edges)
                return mfl_fail_memory(err, bytes, "the places of running statistics");
        find_statistics(graph);
        return 0;
}

static int compare_names(const void *a, const void *b)
{
        return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int mfl_graph_find_twin(const char *const *names, int n, const char **ret_twin, struct mfl_error *err)
{
        size_t bytes = (size_t)n * sizeof *names;
        MFL_CLEANUP_FREE const char **sorted = mfl_malloc(bytes + 1);
        if (!sorted)
                return mfl_fail_memory(err, bytes, "names of tensors");
        memcpy(sorted, names, bytes);
        qsort(sorted, (size_t)n, sizeof *sorted, compare_names);
        *ret_twin = NULL;
        for (int i = 1; i < n && !*ret_twin; i++)
                if (!strcmp(sorted[i - 1], sorted[i]))
                        *ret_twin = sorted[i];
        return 0;
}

/* The layer that has the tensor behind `after`, or the tensor under a second name; 0: none. */
static int layer_with(const struct mfl_graph *graph, const char *tensor, int after)
{
        int found = 0;
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].layer > after && !strcmp(graph->params[t].name, tensor))
                        found = found ? MFL_MIN(found, graph->params[t].layer) : graph->params[t].layer;
        for (int k = 0; k < graph->n_aliases; k++)
                if (graph->aliases[k].layer > after && graph->aliases[k].written &&
                        !strcmp(graph->aliases[k].name, tensor))
                        found = found ? MFL_MIN(found, graph->aliases[k].layer) : graph->aliases[k].layer;
        return found;
}

/* In files, and in what is sent home, a tensor is known by its name: a batch norm n has n.weight, which a layer may also be
 * named. */
static int check_twins(const struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        size_t bytes = (size_t)(graph->n_params + graph->n_aliases) * sizeof(char *);
        MFL_CLEANUP_FREE const char **names = mfl_malloc(bytes + 1);
        const char *twin;
        int n = 0;
        if (!names)
                return mfl_fail_memory(err, bytes, "names of tensors");
        for (int t = 0; t < graph->n_params; t++)
                names[n++] = graph->params[t].name;
        for (int k = 0; k < graph->n_aliases; k++)
                if (graph->aliases[k].written)
                        names[n++] = graph->aliases[k].name;
        int r = mfl_graph_find_twin(names, n, &twin, err);
        if (r || !twin)
                return r;
        int first = layer_with(graph, twin, 0), second = layer_with(graph, twin, first);
        *ret_at = second;
        return mfl_fail(err, MFL_INVALID,
                "layers %s (%s) and %s (%s) both have a tensor %s: give one of them another name",
                graph->layers[first].name, mfl_layer_kind(&graph->layers[first]), graph->layers[second].name,
                mfl_layer_kind(&graph->layers[second]), twin);
}

int mfl_graph_build_params(struct mfl_graph *graph, int *ret_at, struct mfl_error *err)
{
        size_t bytes = PARAMS_PER_LAYER * (size_t)graph->n_layers * sizeof *graph->params;
        graph->params = mfl_calloc(1, bytes);
        if (!graph->params)
                return mfl_fail_memory(err, bytes, "the parameter table");
        bool tied = mfl_graph_is_tied(graph);
        if (tied)
                graph->aliases =
                        mfl_calloc(PARAMS_PER_LAYER * (size_t)graph->n_layers, sizeof *graph->aliases);
        if (tied && !graph->aliases)
                return mfl_fail_memory(err, bytes, "the names of shared parameters");
        for (int i = 1; i < graph->n_layers; i++) {
                int r = mfl_graph_check_sharing(graph, i, err);
                *ret_at = i;
                if (r)
                        return r;
                switch (graph->layers[i].op) {
                case MFL_OP_CONV2D:
                case MFL_OP_CONVTRANSPOSE2D:
                case MFL_OP_DENSE:
                        r = add_weights(graph, i, err);
                        break;
                case MFL_OP_BATCHNORM:
                case MFL_OP_GROUPNORM:
                case MFL_OP_LAYERNORM:
                case MFL_OP_RMSNORM:
                        r = add_norm(graph, i, err);
                        break;
                case MFL_OP_EMBEDDING:
                case MFL_OP_WEIGHT:
                        r = add_table(graph, i, err);
                        break;
                case MFL_OP_LSTM:
                case MFL_OP_GRU:
                case MFL_OP_RNN:
                        r = add_recurrent(graph, i, err);
                        break;
                default:
                        break;
                }
                if (r)
                        return r;
        }
        int r = check_twins(graph, ret_at, err);
        return r ? r : mfl_graph_part_params(graph, err);
}
