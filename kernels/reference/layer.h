/* SPDX-License-Identifier: Apache-2.0 */
/* What forward and backward of a layer tell its operator, in the reference backend. */
#ifndef MFL_KERNELS_REFERENCE_LAYER_H
#define MFL_KERNELS_REFERENCE_LAYER_H

#include "kernels/bodies.h"
#include "kernels/reference/net.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/sequence.h"
#include "kernels/reference/shape.h"

/* Which functions of forward.c and backward.c an operator goes to. */
enum family {
        FAMILY_ELEMENTWISE,
        FAMILY_WINDOW,
        FAMILY_NORM,
        FAMILY_DENSE,
        FAMILY_SEQUENCE,
        FAMILY_SHAPE,
};
static const unsigned char families[MFL_OP_COUNT_] __attribute__((unused)) = {
        [MFL_OP_CONV2D] = FAMILY_WINDOW,
        [MFL_OP_CONVTRANSPOSE2D] = FAMILY_WINDOW,
        [MFL_OP_MAXPOOL2D] = FAMILY_WINDOW,
        [MFL_OP_AVGPOOL2D] = FAMILY_WINDOW,
        [MFL_OP_GLOBAL_AVGPOOL2D] = FAMILY_WINDOW,
        [MFL_OP_GLOBAL_MAXPOOL2D] = FAMILY_WINDOW,
        [MFL_OP_BATCHNORM] = FAMILY_NORM,
        [MFL_OP_GROUPNORM] = FAMILY_NORM,
        [MFL_OP_DENSE] = FAMILY_DENSE,
        [MFL_OP_LAYERNORM] = FAMILY_SEQUENCE,
        [MFL_OP_RMSNORM] = FAMILY_SEQUENCE,
        [MFL_OP_SOFTMAX] = FAMILY_SEQUENCE,
        [MFL_OP_MATMUL] = FAMILY_SEQUENCE,
        [MFL_OP_EMBEDDING] = FAMILY_SEQUENCE,
        [MFL_OP_ATTENTION] = FAMILY_SEQUENCE,
        [MFL_OP_LSTM] = FAMILY_SEQUENCE,
        [MFL_OP_GRU] = FAMILY_SEQUENCE,
        [MFL_OP_ADD] = FAMILY_SHAPE,
        [MFL_OP_MULTIPLY] = FAMILY_SHAPE,
        [MFL_OP_CONCAT] = FAMILY_SHAPE,
        [MFL_OP_SLICE] = FAMILY_SHAPE,
        [MFL_OP_TRANSPOSE] = FAMILY_SHAPE,
        [MFL_OP_MEAN] = FAMILY_SHAPE,
        [MFL_OP_WEIGHT] = FAMILY_SHAPE,
};

static void *aux_of(const struct mfl_net *net, int i)
{
        return net->arena + net->plan->layers[i].aux;
}

/* The tensor's place in a flat vector, NULL for none. */
static inline const float *param_of(const struct mfl_net *net, const float *flat, int param)
{
        return param < 0 ? NULL : flat + net->graph->params[param].offset;
}

/* The same for a gradient: NULL too where the tensor is not trained. */
static inline float *grad_param(const struct mfl_net *net, float *grads, int param)
{
        return param < 0 || !net->graph->params[param].trained ? NULL
                                                               : grads + net->graph->params[param].offset;
}

static inline const struct mfl_shape *in_shape(const struct mfl_net *net, int i)
{
        return &net->graph->layers[net->graph->layers[i].input].out;
}

/* How many vectors of the last dimension `rows` samples hold. */
static inline int64_t vectors_of(const struct mfl_shape *shape, int64_t rows)
{
        return rows * mfl_shape_count(shape) / shape->dim[shape->rank - 1];
}

/* Batch and group norm; in inference the statistics are the running ones. */
static inline struct mfl_norm norm_of(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_norm v = mfl_norm_of(pass->net->graph, i);
        if (!pass->dropout) {
                v.mean = param_of(pass->net, pass->params, layer->param_mean);
                v.var = param_of(pass->net, pass->params, layer->param_var);
        }
        return v;
}

static inline struct mfl_ref_rownorm rownorm_of(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        return (struct mfl_ref_rownorm){.n = vectors_of(&layer->out, pass->rows),
                .width = layer->out.dim[layer->out.rank - 1],
                .eps = layer->eps,
                .centred = layer->op == MFL_OP_LAYERNORM};
}

static inline struct mfl_ref_matmul matmul_of(const struct pass *pass, int i)
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

/* key: where the layer's dropout key is put. */
static inline struct mfl_ref_attention attention_of(const struct pass *pass, int i, struct mfl_rng_key *key)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_attention v = {.rows = pass->rows,
                .first_row = pass->first_row,
                .positions = layer->out.dim[0],
                .width = layer->out.dim[1],
                .heads = layer->heads,
                .causal = layer->causal,
                .rate = layer->rate};
        if (pass->dropout && layer->rate > 0) {
                *key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
                v.dropout = key;
        }
        return v;
}

static inline struct mfl_ref_recurrent recurrent_of(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_ref_recurrent){.rows = pass->rows,
                .positions = layer->out.dim[0],
                .features = in_shape(net, i)->dim[1],
                .hidden = layer->out.dim[1],
                .lstm = layer->op == MFL_OP_LSTM,
                .weight_ih = param_of(net, pass->params, layer->param_weight),
                .weight_hh = param_of(net, pass->params, layer->param_weight2),
                .bias_ih = param_of(net, pass->params, layer->param_bias),
                .bias_hh = param_of(net, pass->params, layer->param_bias2)};
}

static inline struct mfl_ref_join join_of(const struct mfl_net *net, int i)
{
        return mfl_ref_join_of(in_shape(net, i), &net->graph->layers[net->graph->layers[i].input2].out);
}

static inline float dropout_at(const struct pass *pass, struct mfl_rng_key key, int i, int64_t e)
{
        uint64_t first = (uint64_t)(pass->first_row * pass->net->plan->layers[i].out_count);
        return mfl_dropout_at(key, first + (uint64_t)e, pass->net->graph->layers[i].rate);
}

#endif
