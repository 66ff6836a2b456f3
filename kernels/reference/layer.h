/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of an operator's forward and backward, in the reference backend. */
#ifndef MFL_KERNELS_REFERENCE_LAYER_H
#define MFL_KERNELS_REFERENCE_LAYER_H

#include "kernels/bodies.h"
#include "kernels/operators.h"
#include "kernels/reference/net.h"
#include "kernels/reference/ops.h"
#include "kernels/reference/sequence.h"
#include "kernels/reference/shape.h"

/* The gradients that a layer has to give; NULL: not wanted. add: the tensor already has one. */
struct wanted {
        mfl_real *dx, *dx2;
        bool add, add2;
        mfl_real *dw, *db, *dw2, *db2;
};

/* An operator's functions; x: the activation of its first input, NULL without one. */
struct mfl_ref_op {
        void (*forward)(const struct pass *pass, int i, const mfl_real *x, mfl_real *y);
        void (*backward)(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g);
        /* What a layer keeps from its forward to its backward. NULL: nothing. */
        uint64_t (*aux_bytes)(const struct mfl_layer *layer, int64_t rows);
};

/* The operators of layer_*.c: mfl_ref_op_<name>. Functions of one variable are mfl_ref_op_unary. */
#define MFL_REF_DECLARE(symbol, name) extern const struct mfl_ref_op mfl_ref_op_##name;
MFL_OPERATORS(MFL_REF_DECLARE)
extern const struct mfl_ref_op mfl_ref_op_unary;

/* table.c; NULL for MFL_OP_INPUT, and for an operator that this backend does not have. */
extern const struct mfl_ref_op *const mfl_ref_ops[MFL_OP_COUNT_];

static inline void *aux_of(const struct mfl_net *net, int i)
{
        return net->arena + net->plan->layers[i].aux;
}

/* The tensor's place in a flat vector, NULL for none. */
static inline const mfl_real *param_of(const struct mfl_net *net, const mfl_real *flat, int param)
{
        return param < 0 ? NULL : flat + net->graph->params[param].offset;
}

/* The same for a gradient: NULL too where the tensor is not trained. */
static inline mfl_real *grad_param(const struct mfl_net *net, mfl_real *grads, int param)
{
        return param < 0 || !net->graph->params[param].trained ? NULL
                                                               : grads + net->graph->params[param].offset;
}

/* The weight of dense layer i as [out][in]: the tensor, or a transposed copy of it. */
static inline const mfl_real *dense_weight(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const mfl_real *w = param_of(net, pass->params, layer->param_weight);
        int64_t n_in = mfl_graph_features(net->graph, i), n_out = layer->out_channels;
        for (int64_t o = 0; layer->turned && o < n_out; o++)
                for (int64_t k = 0; k < n_in; k++)
                        net->turned[o * n_in + k] = w[k * n_out + o];
        return layer->turned ? net->turned : w;
}

static inline const struct mfl_shape *in_shape(const struct mfl_net *net, int i)
{
        return &net->graph->layers[net->graph->layers[i].input].out;
}

/* The activation of the layer's first input. */
static inline const mfl_real *input_of(const struct pass *pass, int i)
{
        return mfl_ref_act(pass->net, pass->net->graph->layers[i].input);
}

/* How many vectors of the last dimension are in `rows` samples. */
static inline int64_t vectors_of(const struct mfl_shape *shape, int64_t rows)
{
        return rows * mfl_shape_count(shape) / shape->dim[shape->rank - 1];
}

/* Batch and group norm; inference uses the running statistics. */
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

#endif
