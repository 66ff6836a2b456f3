/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers, in plain loops (kernels/grad_host.h). The gradient has the order of the flat vector's params that
 * move. */
#include "kernels/bodies.h"
#include "kernels/host.h"
#include "kernels/reference/net.h"

/* Lent memory has the frozen params before those that move. */
static uint64_t elements(const struct mfl_graph *graph, const struct mfl_net_options *options)
{
        return options->lent ? graph->n : graph->n_moving;
}

static struct mfl_grad_host host_of(const struct mfl_net *net)
{
        struct mfl_grad_host host = net->host;
        host.params = net->params ? net->params + net->graph->n_frozen : NULL;
        return host;
}

static void layout(const struct mfl_net *net, struct mfl_grad_layout *ret_layout)
{
        const struct mfl_grad_host host = host_of(net);
        mfl_grad_host_layout(&host, ret_layout);
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
                        (size_t)mfl_grad_host_statistics_at(graph, graph->n_layers) * sizeof(float));
        struct mfl_rng_key key = mfl_rng_augment_key(g->augment, g->step);
        mfl_ref_gather(&pass, data, &key, g->index);
        mfl_ref_forward(&pass);
        struct mfl_host_loss loss = {
                data, graph, &net->options.loss, g->index, g->rows, g->share, NULL, NULL};
        mfl_host_loss(&loss, mfl_ref_act(net, last), mfl_ref_grad(net, last), score);
        mfl_ref_backward(&pass, net->grads);
        for (int t = net->host.n_tensors; t-- > 0;) {
                const struct mfl_grad_tensor *tensor = &net->host.tensors[t];
                const float *grads = net->grads + graph->n_frozen + tensor->at;
                if (mfl_grad_host_take(&net->host, sink, t, 0, tensor->count, grads, 1.0f) && sink->ready)
                        sink->ready(sink->user, t);
        }
        return 0;
}

static void round_floats(const struct mfl_net *net, const struct mfl_grad_rounding *how, uint64_t first,
        uint64_t n, const float *grads, bool set, int64_t *sum)
{
        mfl_grad_host_round(&net->host, how, first, n, grads, set, sum);
}

static int squares(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        double *ret_squares, struct mfl_error *err)
{
        const struct mfl_grad_host host = host_of(net);
        mfl_grad_host_squares(&host, total, opt, ret_squares);
        return 0;
}

static int apply(struct mfl_net *net, const struct mfl_grad_total *total, const struct mfl_optimizer *opt,
        const struct mfl_rate *rate, float factor, struct mfl_error *err)
{
        const struct mfl_grad_host host = host_of(net);
        mfl_grad_host_apply(&host, total, opt, rate, factor);
        return 0;
}

static int statistics(struct mfl_net *net, const float *of_grain, struct mfl_error *err)
{
        const struct mfl_grad_host host = host_of(net);
        mfl_grad_host_statistics(&host, of_grain);
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
        .round = round_floats,
        .squares = squares,
        .apply = apply,
        .statistics = statistics,
        .lend = lend,
        .flatten = flatten,
};
