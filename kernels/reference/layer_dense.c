/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers, batch and group norms, in the reference backend. */
#include "kernels/reference/layer.h"

/* A x of LoRA, and its gradient. */
static uint64_t dense_aux_bytes(const struct mfl_layer *layer, int64_t rows)
{
        return (uint64_t)(2 * vectors_of(&layer->out, rows) * layer->lora_rank) * sizeof(mfl_real);
}

/* y = W x + b, with LoRA + alpha / rank * B (A x); A x is kept. */
static void dense_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels, rank = layer->lora_rank;
        int64_t n_in = mfl_graph_features(net->graph, i);
        mfl_ref_dense_forward(
                n_in, n_out, n, x, dense_weight(pass, i), param_of(net, pass->params, layer->param_bias), y);
        if (!rank)
                return;
        mfl_real *low = aux_of(net, i), scale = layer->lora_alpha / (mfl_real)rank;
        const mfl_real *b = param_of(net, pass->params, layer->param_bias2);
        mfl_ref_dense_forward(n_in, rank, n, x, param_of(net, pass->params, layer->param_weight2), NULL, low);
        for (int64_t r = 0; r < n; r++)
                for (int64_t o = 0; o < n_out; o++) {
                        double sum = 0;
                        for (int64_t k = 0; k < rank; k++)
                                sum += (double)low[r * rank + k] * (double)b[o * rank + k];
                        y[r * n_out + o] += (mfl_real)(sum * (double)scale);
                }
}

/* grad += scale * product. */
static void lora_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels, rank = layer->lora_rank;
        int64_t n_in = mfl_graph_features(net->graph, i);
        mfl_real *low = aux_of(net, i), *dlow = low + n * rank, scale = layer->lora_alpha / (mfl_real)rank;
        const mfl_real *x = mfl_ref_act(net, layer->input);
        const mfl_real *a = param_of(net, pass->params, layer->param_weight2);
        const mfl_real *b = param_of(net, pass->params, layer->param_bias2);
        mfl_ref_dense_backward_data(rank, n_out, n, dy, b, false, dlow);
        for (int64_t e = 0; e < n * rank; e++)
                dlow[e] *= scale;
        if (g->dw2)
                mfl_ref_dense_backward_params(n_in, rank, n, x, dlow, g->dw2, NULL);
        if (g->db2)
                mfl_ref_dense_backward_params(rank, n_out, n, low, dy, g->db2, NULL);
        for (int64_t e = 0; g->db2 && e < n_out * rank; e++)
                g->db2[e] *= scale;
        if (g->dx)
                mfl_ref_dense_backward_data(n_in, rank, n, dlow, a, true, g->dx);
}

static void dense_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels;
        int64_t n_in = mfl_graph_features(net->graph, i);
        const mfl_real *x = mfl_ref_act(net, layer->input);
        if (g->dw && layer->turned) /* x and dy change places */
                mfl_ref_dense_backward_params(n_out, n_in, n, dy, x, g->dw, NULL);
        if ((g->dw && !layer->turned) || g->db)
                mfl_ref_dense_backward_params(n_in, n_out, n, x, dy, layer->turned ? NULL : g->dw, g->db);
        if (g->dx)
                mfl_ref_dense_backward_data(n_in, n_out, n, dy, dense_weight(pass, i), g->add, g->dx);
        if (layer->lora_rank)
                lora_backward(pass, i, dy, g);
}

static void norm_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_graph *graph = pass->net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        struct mfl_norm v = norm_of(pass, i);
        mfl_ref_norm_forward(&v, pass->rows, x, param_of(pass->net, pass->params, layer->param_weight),
                param_of(pass->net, pass->params, layer->param_bias), y);
        if (pass->dropout && pass->running && layer->param_mean >= 0 &&
                !mfl_param_stays(&graph->params[layer->param_mean], pass->moves))
                mfl_ref_norm_running(&v, pass->rows, x, layer->momentum,
                        pass->running + graph->params[layer->param_mean].offset,
                        pass->running + graph->params[layer->param_var].offset);
        if (pass->dropout && pass->statistics && layer->param_mean >= 0) {
                mfl_real *kept = pass->statistics + mfl_grad_host_statistics_at(graph, i);
                mfl_ref_norm_running(
                        &v, pass->rows, x, 1.0f, kept, kept + graph->params[layer->param_mean].count);
        }
}

static void norm_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_norm norm = norm_of(pass, i);
        const mfl_real *x = mfl_ref_act(pass->net, layer->input);
        if (g->dx)
                mfl_ref_norm_backward(&norm, pass->rows, x, dy,
                        param_of(pass->net, pass->params, layer->param_weight), g->add, g->dx, NULL, NULL);
        if (g->dw)
                mfl_ref_norm_backward(&norm, pass->rows, x, dy, NULL, false, NULL, g->dw, g->db);
}

const struct mfl_ref_op mfl_ref_op_dense = {dense_forward, dense_backward, dense_aux_bytes};
const struct mfl_ref_op mfl_ref_op_batchnorm = {norm_forward, norm_backward};
const struct mfl_ref_op mfl_ref_op_groupnorm = {norm_forward, norm_backward};
