/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers, in plain loops: what kernels/grad.h says, element by element. The gradient has the order of the
 * flat vector's params that move. */
#include "kernels/bodies.h"
#include "kernels/host.h"
#include "kernels/reference/net.h"

int mfl_ref_grad_tensors_new(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        net->tensors = mfl_calloc((size_t)graph->n_params + 1, sizeof *net->tensors);
        if (!net->tensors)
                return mfl_fail_memory(err, (size_t)graph->n_params * sizeof *net->tensors, "network");
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].trained)
                        net->tensors[net->n_tensors++] = (struct mfl_grad_tensor){
                                t, graph->params[t].offset - graph->n_frozen, graph->params[t].count};
        return 0;
}

/* Where layer i's floats begin among those that a grain leaves for running statistics; i = n_layers: how many there are. */
uint64_t mfl_ref_statistics_at(const struct mfl_graph *graph, int i)
{
        uint64_t at = 0;
        for (int k = 0; k < i; k++)
                if (graph->layers[k].param_mean >= 0)
                        at += 2 * graph->params[graph->layers[k].param_mean].count;
        return at;
}

/* Lent memory has the frozen params before those that move. */
static uint64_t elements(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        return options->lent ? graph->n : graph->n_moving;
}

static void layout(const struct mfl_net *net, struct mfl_grad_layout *ret_layout)
{
        const struct mfl_graph *graph = net->graph;
        *ret_layout = (struct mfl_grad_layout){.n = graph->n_moving,
                .n_tensors = net->n_tensors,
                .tensors = net->tensors,
                .params = net->params ? net->params + graph->n_frozen : NULL,
                .n_statistics = mfl_ref_statistics_at(graph, graph->n_layers)};
}

static void round_elements(
        const float *grads, uint64_t n, double factor, bool first, int64_t *sum, float *largest)
{
        for (uint64_t i = 0; i < n; i++) {
                float size = fabsf(grads[i]);
                *largest = size > *largest ? size : isnan(size) ? INFINITY : *largest;
                uint64_t before = first ? 0 : (uint64_t)sum[i];
                sum[i] = (int64_t)(before + mfl_fixed_round((double)grads[i] * factor));
        }
}

static void add_elements(const float *grads, uint64_t n, bool first, float *sum)
{
        for (uint64_t i = 0; i < n; i++)
                sum[i] = first ? grads[i] : sum[i] + grads[i];
}

static void take_tensor(
        const struct mfl_grad_tensor *tensor, const float *grads, const struct mfl_grad_sink *sink, int t)
{
        for (uint64_t i = 0, n; i < tensor->count; i += n) {
                n = tensor->count - i;
                void *to = sink->place(sink->user, tensor->at + i, &n);
                if (!to)
                        return;
                if (sink->floats)
                        add_elements(grads + i, n, sink->first, to);
                else
                        round_elements(
                                grads + i, n, ldexp(1.0, sink->bits[t]), sink->first, to, &sink->largest[t]);
        }
        if (sink->ready)
                sink->ready(sink->user, t);
}

static int grain(struct mfl_net *net, const struct mfl_device_data *data, const struct mfl_grain *g,
        const struct mfl_grad_sink *sink, struct mfl_score *score, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        struct pass pass = {.net = net,
                .params = net->params,
                .statistics = sink->statistics,
                .rows = g->rows,
                .first_row = g->first_row,
                .dropout = &g->dropout,
                .step = g->step};
        int last = graph->n_layers - 1, rc = mfl_ref_check_step(net, data, err);
        if (rc)
                return rc;
        mfl_assert(net->options.worker && g->rows <= (uint32_t)net->options.batch);
        if (sink->statistics)
                memset(sink->statistics, 0,
                        (size_t)mfl_ref_statistics_at(graph, graph->n_layers) * sizeof(float));
        struct mfl_rng_key key = mfl_rng_augment_key(g->augment, g->step);
        mfl_ref_gather(&pass, data, &key, g->index);
        mfl_ref_forward(&pass);
        struct mfl_host_loss loss = {
                data, graph, &net->options.loss, g->index, g->rows, g->share, NULL, NULL};
        mfl_host_loss(&loss, mfl_ref_act(net, last), mfl_ref_grad(net, last), score);
        mfl_ref_backward(&pass, net->grads);
        for (int t = net->n_tensors; t-- > 0;)
                take_tensor(&net->tensors[t], net->grads + graph->n_frozen + net->tensors[t].at, sink, t);
        return 0;
}

/* Element i of the gradient as a float; params: those that move. */
static float element(const struct mfl_net *net, const struct mfl_grad_total *total, int t, uint64_t i,
        const struct mfl_optimizer *opt)
{
        uint64_t own = i - total->first;
        float g = total->floats ? total->floats[own]
                                : (float)((double)total->sum[own] * ldexp(1.0, -total->bits[t]));
        return mfl_optimizer_clips_prox(opt)
                       ? g + opt->prox_mu * (net->params[net->graph->n_frozen + i] - total->start[own])
                       : g;
}

static int squares(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        double *ret_squares, struct mfl_error *err)
{
        uint64_t end = total->first + total->n;
        memset(ret_squares, 0,
                (size_t)((total->n + MFL_GRAD_BLOCK - 1) / MFL_GRAD_BLOCK) * sizeof *ret_squares);
        for (int t = 0; t < net->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &net->tensors[t];
                for (uint64_t i = MFL_MAX(tensor->at, total->first);
                        i < MFL_MIN(tensor->at + tensor->count, end); i++) {
                        double g = (double)element(net, total, t, i, opt);
                        ret_squares[(i - total->first) / MFL_GRAD_BLOCK] += g * g;
                }
        }
        return 0;
}

static int apply(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        const struct mfl_rate *rate, float factor, struct mfl_error *err)
{
        uint64_t end = total->first + total->n;
        struct mfl_optimizer rest = *opt;
        if (mfl_optimizer_clips_prox(opt))
                rest.prox_mu = 0;
        for (int t = 0; t < net->n_tensors; t++) {
                const struct mfl_grad_tensor *tensor = &net->tensors[t];
                for (uint64_t i = MFL_MAX(tensor->at, total->first);
                        i < MFL_MIN(tensor->at + tensor->count, end); i++) {
                        float g = element(net, total, t, i, opt);
                        uint64_t own = i - total->first;
                        mfl_ref_update(&net->params[net->graph->n_frozen + i],
                                total->momentum ? &total->momentum[own] : NULL,
                                total->second ? &total->second[own] : NULL,
                                total->start ? &total->start[own] : NULL, &rest, rate,
                                factor == 1.0f ? g : g * factor);
                }
        }
        return 0;
}

static int statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        for (int i = 0; i < graph->n_layers; i++) {
                const struct mfl_layer *layer = &graph->layers[i];
                if (layer->param_mean < 0)
                        continue;
                float *mean = net->params + graph->params[layer->param_mean].offset;
                float *var = net->params + graph->params[layer->param_var].offset;
                uint64_t n = graph->params[layer->param_mean].count;
                mfl_running_update(n, layer->momentum, of_grain, mean);
                mfl_running_update(n, layer->momentum, of_grain + n, var);
                of_grain += 2 * n;
        }
        return 0;
}

static void lend(struct mfl_net *net, float *params)
{
        mfl_assert(net->options.lent);
        net->params = params;
}

static int flatten(struct mfl_net *net, struct mfl_error *err)
{
        const struct mfl_graph *graph = net->graph;
        memmove(net->params, net->params + graph->n_frozen, (size_t)graph->n_moving * sizeof(float));
        lend(net, NULL);
        return 0;
}

const struct mfl_grad_ops mfl_ref_grad_ops = {
        .elements = elements,
        .layout = layout,
        .grain = grain,
        .squares = squares,
        .apply = apply,
        .statistics = statistics,
        .lend = lend,
        .flatten = flatten,
};
