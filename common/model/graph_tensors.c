/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs without layers: the parameter table of a model that only a program knows. */
#include "common/model/graph_internal.h"

static bool ends_with(const char *text, const char *end)
{
        size_t n = strlen(text), m = strlen(end);
        return n >= m && !strcmp(text + n - m, end);
}

static int add_tensor(
        struct mfl_graph *graph, const char *name, const struct mfl_shape *shape, struct mfl_error *err)
{
        struct mfl_param *param = &graph->params[graph->n_params];
        bool statistics = ends_with(name, "running_mean") || ends_with(name, "running_var");
        uint64_t count = 1;
        for (int d = 0; d < shape->rank; d++)
                count = mfl_graph_multiply(count, (uint64_t)shape->dim[d]);
        if (!count || count > MFL_PARAMS_MAX || graph->n + count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "tensor %.160s: a model has between 1 and %llu numbers, and so has each tensor", name,
                        (unsigned long long)MFL_PARAMS_MAX);
        *param = (struct mfl_param){.shape = *shape,
                .offset = graph->n,
                .count = count,
                .number = graph->n_params,
                .place = graph->n,
                .n_uses = 1,
                .fan_in = 1,
                .fan_out = 1,
                .trained = !statistics,
                .moves = true};
        if (!mfl_strcpy(param->name, sizeof param->name, name))
                return mfl_fail(err, MFL_INVALID, "tensor %.160s...: a name has at most %zu bytes", name,
                        sizeof param->name - 1);
        graph->n += count;
        graph->n_params++;
        return 0;
}

static int fill(struct mfl_graph *graph, const char *const *names, const struct mfl_shape *shapes, int n,
        struct mfl_error *err)
{
        graph->layers = mfl_calloc(1, sizeof *graph->layers);
        graph->params = mfl_calloc((size_t)n, sizeof *graph->params);
        if (!graph->layers || !graph->params)
                return mfl_fail_memory(err, (size_t)n * sizeof *graph->params, "the parameter table");
        struct mfl_layer *input = &graph->layers[0];
        *input = (struct mfl_layer){
                .op = MFL_OP_INPUT, .name = "input", .input = -1, .input2 = -1, .out = {1, {1}}};
        for (int k = 0; k < MFL_LAYER_PARAMS; k++)
                *mfl_layer_param(input, k) = -1;
        graph->n_layers = 1;
        graph->input = input->out;
        graph->classes = graph->positions = 1;
        const char *twin;
        int r = mfl_graph_find_twin(names, n, &twin, err);
        if (!r && twin)
                r = mfl_fail(err, MFL_INVALID, "two tensors have the name %.160s", twin);
        for (int i = 0; i < n && !r; i++)
                r = add_tensor(graph, names[i], &shapes[i], err);
        return r ? r : mfl_graph_part_params(graph, err);
}

int mfl_graph_of_tensors(const char *name, const char *const *names, const struct mfl_shape *shapes, int n,
        struct mfl_graph **ret_graph, struct mfl_error *err)
{
        struct mfl_graph *graph = mfl_calloc(1, sizeof *graph);
        if (!graph)
                return mfl_fail_memory(err, sizeof *graph, "a model");
        mfl_strcpy(graph->name, sizeof graph->name, name);
        int r = fill(graph, names, shapes, n, err);
        if (r) {
                mfl_graph_free(graph);
                return r;
        }
        *ret_graph = graph;
        return 0;
}
