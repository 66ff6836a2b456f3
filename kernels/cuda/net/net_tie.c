/* SPDX-License-Identifier: Apache-2.0 */
/* Params that several layers share. Each layer but the first has a copy in the order that it wants, behind all other
 * params of a wide vector. After each backward, the copies' gradients are added to the first one's, in the order of
 * backward; after each step of the optimizer, and when params arrive, the copies are made again. So operators and
 * their plans need not know what is shared. Running statistics have no copies: the layers use the same ones, in turn.
 */
#include "kernels/cuda/net/net.h"

#define PARAM_ALIGN 64

static void params_of(const struct mfl_layer *layer, int params[6])
{
        const int own[] = {layer->param_weight, layer->param_bias, layer->param_weight2, layer->param_bias2,
                layer->param_mean, layer->param_var};
        memcpy(params, own, sizeof own);
}

static int find_first(struct mfl_cuda_model *model, struct mfl_error *err)
{
        size_t n = (size_t)model->flat->n_params;
        model->first = mfl_calloc(n + 1, sizeof *model->first);
        if (!model->first)
                return mfl_fail_memory(err, n * sizeof *model->first, "shared params");
        for (int p = 0; p < model->flat->n_params; p++) {
                int shared[6], apart[6], layer = model->flat->params[p].layer;
                params_of(&model->flat->layers[layer], shared);
                params_of(&model->apart->layers[layer], apart);
                for (int k = 0; k < 6; k++)
                        if (shared[k] == p)
                                model->first[p] = apart[k];
        }
        return 0;
}

int mfl_cuda_model_untie(struct mfl_cuda_model *model, struct mfl_error *err)
{
        struct mfl_graph *apart = NULL;
        model->graph = model->flat;
        if (!mfl_graph_is_tied(model->flat))
                return 0;
        int rc = mfl_graph_untie(model->flat, &apart, &model->shared, err);
        if (rc)
                return rc;
        model->graph = model->apart = apart;
        return find_first(model, err);
}

/* Element e of a layer's own tensor, as an element of the shared one: transposed for a dense layer that reads it so. */
static uint64_t shared_element(const struct mfl_cuda_model *model, int p, uint64_t e)
{
        const struct mfl_param *param = &model->graph->params[p];
        const struct mfl_layer *layer = &model->flat->layers[param->layer];
        bool weight = param->shape.rank == 2 && model->shared[p] == layer->param_weight;
        uint64_t rows = (uint64_t)param->shape.dim[0], columns = (uint64_t)param->shape.dim[1];
        return layer->turned && weight ? e % columns * rows + e / columns : e;
}

/* Fills the table of copy p; *ret_same: both have one order, so none is needed. */
static int fill_table(const struct mfl_cuda_model *model, int p, int first, uint32_t *table, bool *ret_same,
        struct mfl_error *err)
{
        size_t n = (size_t)model->graph->params[p].count;
        MFL_CLEANUP_FREE uint32_t *copy = mfl_malloc(n * sizeof *copy), *own = mfl_malloc(n * sizeof *own);
        if (!copy || !own)
                return mfl_fail_memory(err, n * sizeof *copy, "order of params");
        uint64_t at = model->at[p], from = model->at[first];
        mfl_cuda_place_tensor(model, p, copy);
        mfl_cuda_place_tensor(model, first, own);
        *ret_same = true;
        for (uint64_t e = 0; e < n; e++) {
                uint64_t to = copy[e] - at, of = own[shared_element(model, p, e)] - from;
                table[to] = (uint32_t)of;
                *ret_same = *ret_same && to == of;
        }
        return 0;
}

static bool is_statistic(const struct mfl_graph *graph, int p)
{
        const struct mfl_layer *layer = &graph->layers[graph->params[p].layer];
        return p == layer->param_mean || p == layer->param_var;
}

/* Makes p a copy of `first`, or the same. */
static int tie_param(struct mfl_cuda_model *model, int p, int first, struct mfl_error *err)
{
        const struct mfl_param *param = &model->graph->params[p];
        struct mfl_cuda_tie *tie = &model->ties[model->n_ties];
        bool same = false;
        *tie = (struct mfl_cuda_tie){.count = param->count,
                .own = model->at[first],
                .copy = model->stride,
                .trained = param->trained};
        model->at[p] = model->stride;
        int rc = fill_table(model, p, first, model->tie_tables + model->n_tie_tables, &same, err);
        if (rc)
                return rc;
        if (model->options.worker && is_statistic(model->graph, p))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s: parallel is not supported on the cuda backend where layers share a batch "
                        "norm; use the cpu backend",
                        model->graph->layers[param->layer].name);
        if (same && !param->trained) {
                model->at[p] = model->at[first];
                return 0;
        }
        if (is_statistic(model->graph, p))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s: the cuda backend can't share running statistics between an image's "
                        "channels in "
                        "two orders; use the cpu backend",
                        model->graph->layers[param->layer].name);
        tie->has_table = !same;
        tie->table = model->n_tie_tables;
        model->n_tie_tables += same ? 0 : param->count;
        model->stride += (param->count + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
        model->n_ties++;
        return 0;
}

/* From the last layer to the first, as backward goes. */
int mfl_cuda_model_place_ties(struct mfl_cuda_model *model, struct mfl_error *err)
{
        const struct mfl_graph *graph = model->graph;
        uint64_t most = 1;
        int rc = 0;
        model->n_own = model->stride;
        if (!model->apart)
                return 0;
        for (int p = 0; p < graph->n_params; p++)
                most += mfl_cuda_first_use(model, model->shared[p]) == p ? 0 : graph->params[p].count;
        model->ties = mfl_calloc((size_t)graph->n_params, sizeof *model->ties);
        model->tie_tables = mfl_calloc((size_t)most, sizeof *model->tie_tables);
        if (!model->ties || !model->tie_tables)
                return mfl_fail_memory(err, (size_t)most * sizeof *model->tie_tables, "order of params");
        for (int i = graph->n_layers - 1; i > 0; i--)
                for (int p = 0; !rc && p < graph->n_params; p++) {
                        int first = mfl_cuda_first_use(model, model->shared[p]);
                        if (graph->params[p].layer == i && first != p)
                                rc = tie_param(model, p, first, err);
                }
        if (!rc && model->stride > UINT32_MAX)
                rc = mfl_fail(err, MFL_INVALID, "model %s: too many parameters for the cuda backend",
                        model->flat->name);
        return rc;
}

int mfl_cuda_send_ties(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_cuda_model *model = &net->model;
        if (!model->n_tie_tables)
                return 0;
        return mfl_cuda_check(cudaMemcpyAsync(mfl_cuda_at(net, MFL_CUDA_TIES), model->tie_tables,
                                      (size_t)model->n_tie_tables * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                      net->main.stream),
                "copy the order of shared params", err);
}

static struct mfl_cuda_copies copies_of(const struct mfl_net *net, const struct mfl_cuda_tie *tie)
{
        const uint32_t *tables = mfl_cuda_at(net, MFL_CUDA_TIES);
        return (struct mfl_cuda_copies){.groups = net->model.options.groups,
                .n = tie->count,
                .stride = net->model.stride,
                .own = tie->own,
                .copy = tie->copy,
                .table = tie->has_table ? tables + tie->table : NULL,
                .type = net->model.type};
}

int mfl_cuda_tie_grads(const struct mfl_cuda_run *pass)
{
        struct mfl_net *net = pass->net;
        int rc = 0;
        for (int k = 0; !rc && k < net->model.n_ties; k++) {
                struct mfl_cuda_copies a = copies_of(net, &net->model.ties[k]);
                a.values = mfl_cuda_at(net, MFL_CUDA_GRADS);
                a.add = true;
                a.steps = pass->steps;
                if (net->model.ties[k].trained)
                        rc = mfl_cuda_check(mfl_cuda_copies(&a, net->main.stream),
                                "add gradients of shared params", pass->err);
        }
        return rc;
}

int mfl_cuda_tie_params(
        struct mfl_net *net, int groups, float *params, void *low, bool all, struct mfl_error *err)
{
        int rc = 0;
        for (int k = 0; !rc && k < net->model.n_ties; k++) {
                struct mfl_cuda_copies a = copies_of(net, &net->model.ties[k]);
                a.groups = groups;
                a.values = params;
                a.low = low;
                if (all || net->model.ties[k].trained)
                        rc = mfl_cuda_check(mfl_cuda_copies(&a, net->main.stream), "copy shared params", err);
        }
        return rc;
}
