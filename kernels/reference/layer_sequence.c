/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of sequences, in the reference backend. */
#include "kernels/reference/layer.h"

static struct mfl_ref_rownorm rownorm_of(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        return (struct mfl_ref_rownorm){.n = vectors_of(&layer->out, pass->rows),
                .width = layer->out.dim[layer->out.rank - 1],
                .eps = layer->eps,
                .centred = layer->op == MFL_OP_LAYERNORM};
}

static uint64_t rownorm_aux_bytes(const struct mfl_layer *layer, int64_t rows)
{
        return (uint64_t)vectors_of(&layer->out, rows) * 2 * sizeof(double);
}

static void rownorm_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_rownorm norm = rownorm_of(pass, i);
        mfl_ref_rownorm_forward(&norm, x, param_of(pass->net, pass->params, layer->param_weight),
                param_of(pass->net, pass->params, layer->param_bias), aux_of(pass->net, i), y);
}

static void rownorm_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_rownorm norm = rownorm_of(pass, i);
        mfl_ref_rownorm_backward(&norm, input_of(pass, i), aux_of(pass->net, i), dy,
                param_of(pass->net, pass->params, layer->param_weight), g->add, g->dx, g->dw, g->db);
}

static void softmax_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_shape *out = &pass->net->graph->layers[i].out;
        mfl_ref_softmax_forward(vectors_of(out, pass->rows), out->dim[out->rank - 1], x, y);
}

static void softmax_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_shape *out = &pass->net->graph->layers[i].out;
        if (g->dx)
                mfl_ref_softmax_backward(vectors_of(out, pass->rows), out->dim[out->rank - 1],
                        mfl_ref_act(pass->net, i), dy, g->add, g->dx);
}

static struct mfl_ref_matmul matmul_of(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        const struct mfl_shape *in = in_shape(pass->net, i), *out = &layer->out;
        int n = out->rank;
        return (struct mfl_ref_matmul){.n = pass->rows * (n == 3 ? out->dim[0] : 1),
                .m = out->dim[n - 2],
                .k = in->dim[n - 1],
                .width = out->dim[n - 1],
                .transposed = layer->transposed};
}

static void matmul_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_ref_matmul product = matmul_of(pass, i);
        mfl_ref_matmul_forward(&product, x, mfl_ref_act(pass->net, pass->net->graph->layers[i].input2), y);
}

static void matmul_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_matmul product = matmul_of(pass, i);
        if (g->dx)
                mfl_ref_matmul_backward(&product, mfl_ref_act(pass->net, layer->input2), dy, g->add, g->dx);
        if (g->dx2)
                mfl_ref_matmul_backward2(&product, mfl_ref_act(pass->net, layer->input), dy, g->add2, g->dx2);
}

static void embedding_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        mfl_ref_embedding_forward(pass->rows * layer->out.dim[0], layer->out_channels, layer->vocabulary, x,
                param_of(pass->net, pass->params, layer->param_weight), y);
}

static void embedding_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        int64_t n = pass->rows * layer->out.dim[0];
        if (g->dw)
                mfl_ref_embedding_backward(n, layer->out_channels, layer->vocabulary,
                        layer->has_padding ? layer->padding_idx : -1, input_of(pass, i), dy, g->dw);
        if (g->dx && !g->add)
                memset(g->dx, 0, (size_t)n * sizeof *g->dx);
}

static void mask_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        for (int64_t k = 0, n = pass->rows * layer->out.dim[0]; k < n; k++)
                y[k] = mfl_masked_at(x[k], layer->padding_idx);
}

static void mask_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        int64_t n = pass->rows * pass->net->graph->layers[i].out.dim[0];
        if (g->dx && !g->add)
                memset(g->dx, 0, (size_t)n * sizeof *g->dx);
}

static uint64_t attention_aux_bytes(const struct mfl_layer *layer, int64_t rows)
{
        int64_t positions = layer->out.dim[0];
        return ((uint64_t)(rows * layer->heads * positions * positions) + (uint64_t)positions) *
               sizeof(mfl_real);
}

/* key: where the layer's dropout key is put. */
static struct mfl_ref_attention attention_of(const struct pass *pass, int i, struct mfl_rng_key *key)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_attention v = {.rows = pass->rows,
                .first_row = pass->first_row,
                .positions = layer->out.dim[0],
                .width = layer->out.dim[1],
                .heads = layer->heads,
                .causal = layer->causal,
                .mask = layer->input2 < 0 ? NULL : mfl_ref_act(pass->net, layer->input2),
                .rate = layer->rate};
        if (pass->dropout && layer->rate > 0) {
                *key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
                v.dropout = key;
        }
        return v;
}

static void attention_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_rng_key key;
        struct mfl_ref_attention attention = attention_of(pass, i, &key);
        mfl_ref_attention_forward(&attention, x, aux_of(pass->net, i), y);
}

static void attention_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        struct mfl_rng_key key;
        struct mfl_ref_attention attention = attention_of(pass, i, &key);
        if (g->dx)
                mfl_ref_attention_backward(
                        &attention, input_of(pass, i), aux_of(pass->net, i), dy, g->add, g->dx);
        if (g->dx2 && !g->add2) /* a mask has no gradient */
                memset(g->dx2, 0, (size_t)(pass->rows * attention.positions) * sizeof *g->dx2);
}

static uint64_t recurrent_aux_bytes(const struct mfl_layer *layer, int64_t rows)
{
        int64_t kept = rows * layer->out.dim[0] * MFL_REF_RECURRENT_KEPT;
        return (uint64_t)(layer->out.dim[1] * (kept + MFL_REF_RECURRENT_SCRATCH)) * sizeof(mfl_real);
}

static struct mfl_ref_recurrent recurrent_of(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_ref_recurrent){.rows = pass->rows,
                .positions = layer->out.dim[0],
                .features = in_shape(net, i)->dim[1],
                .hidden = layer->out.dim[1],
                .cell = mfl_cell_of(layer),
                .last_cell = layer->last_cell,
                .weight_ih = param_of(net, pass->params, layer->param_weight),
                .weight_hh = param_of(net, pass->params, layer->param_weight2),
                .bias_ih = param_of(net, pass->params, layer->param_bias),
                .bias_hh = param_of(net, pass->params, layer->param_bias2)};
}

static void recurrent_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_ref_recurrent recurrent = recurrent_of(pass, i);
        mfl_ref_recurrent_forward(&recurrent, x, aux_of(pass->net, i), y);
}

static void recurrent_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        struct mfl_ref_recurrent recurrent = recurrent_of(pass, i);
        mfl_ref_recurrent_backward(&recurrent, input_of(pass, i), mfl_ref_act(pass->net, i),
                aux_of(pass->net, i), dy, g->add, g->dx, g->dw, g->dw2, g->db, g->db2);
}

const struct mfl_ref_op mfl_ref_op_layernorm = {rownorm_forward, rownorm_backward, rownorm_aux_bytes};
const struct mfl_ref_op mfl_ref_op_rmsnorm = {rownorm_forward, rownorm_backward, rownorm_aux_bytes};
const struct mfl_ref_op mfl_ref_op_softmax = {softmax_forward, softmax_backward};
const struct mfl_ref_op mfl_ref_op_matmul = {matmul_forward, matmul_backward};
const struct mfl_ref_op mfl_ref_op_embedding = {embedding_forward, embedding_backward};
const struct mfl_ref_op mfl_ref_op_attention = {attention_forward, attention_backward, attention_aux_bytes};
const struct mfl_ref_op mfl_ref_op_padding_mask = {mask_forward, mask_backward};
const struct mfl_ref_op mfl_ref_op_lstm = {recurrent_forward, recurrent_backward, recurrent_aux_bytes};
const struct mfl_ref_op mfl_ref_op_gru = {recurrent_forward, recurrent_backward, recurrent_aux_bytes};
const struct mfl_ref_op mfl_ref_op_rnn = {recurrent_forward, recurrent_backward, recurrent_aux_bytes};
