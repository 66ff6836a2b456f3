/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one variable, dropout, and layers that only change the shape, in the reference backend. */
#include "kernels/reference/layer.h"

static void unary_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        const mfl_real a = layer->alpha, b = layer->beta;
        int64_t n = pass->rows * pass->net->plan->layers[i].out_count;
        switch (mfl_curve_of(layer)) {
#define UNARY(symbol, body, stem, reads, n_params, ...)                                                      \
        case MFL_CURVE_##symbol:                                                                             \
                for (int64_t e = 0; e < n; e++)                                                              \
                        y[e] = MFL_REAL_BODY(body)(x[e] MFL_UNARY_ARGS_##n_params(a, b));                    \
                break;
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                for (int64_t e = 0; e < n; e++)                                                              \
                        y[e] = MFL_REAL_BODY(body)(x[e]);                                                    \
                break;
#include "common/model/unary.def"
        case MFL_CURVE_COUNT_:
                mfl_assert(false);
        }
}

/* Only the activation that the function's entry says it reads: the memory of the other may already be reused. */
static void unary_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const mfl_real a = layer->alpha, b = layer->beta;
        bool of_output = mfl_op_info(layer->op)->reads & MFL_READS_OUTPUT;
        const mfl_real *v = mfl_ref_act(net, of_output ? i : layer->input);
        int64_t n = g->dx ? pass->rows * net->plan->layers[i].out_count : 0;
        switch (mfl_curve_of(layer)) {
#define UNARY(symbol, body, stem, reads, n_params, ...)                                                      \
        case MFL_CURVE_##symbol:                                                                             \
                for (int64_t e = 0; e < n; e++)                                                              \
                        g->dx[e] = (g->add ? g->dx[e] : 0.0f) +                                              \
                                   MFL_REAL_BODY(body##_grad)(v[e], dy[e] MFL_UNARY_ARGS_##n_params(a, b));  \
                break;
#define UNARY_VARIANT(symbol, variant, body, ...)                                                            \
        case MFL_CURVE_##variant:                                                                            \
                for (int64_t e = 0; e < n; e++)                                                              \
                        g->dx[e] = (g->add ? g->dx[e] : 0.0f) + MFL_REAL_BODY(body##_grad)(v[e], dy[e]);     \
                break;
#include "common/model/unary.def"
        case MFL_CURVE_COUNT_:
                mfl_assert(false);
        }
}

static mfl_real dropout_at(const struct pass *pass, struct mfl_rng_key key, int i, int64_t e)
{
        uint64_t first = (uint64_t)(pass->first_row * pass->net->plan->layers[i].out_count);
        return mfl_dropout_at(key, first + (uint64_t)e, pass->net->graph->layers[i].rate);
}

static void dropout_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        int64_t n = pass->rows * pass->net->plan->layers[i].out_count;
        if (!pass->dropout) {
                memcpy(y, x, (size_t)n * sizeof(mfl_real));
                return;
        }
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; e < n; e++)
                y[e] = x[e] * dropout_at(pass, key, i, e);
}

static void copy_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        memcpy(y, x, (size_t)(pass->rows * pass->net->plan->layers[i].out_count) * sizeof *y);
}

/* Dropout, and layers that only change the shape. */
static void copy_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        int64_t n = pass->rows * net->plan->layers[i].out_count;
        struct mfl_rng_key key = {0};
        bool drops = net->graph->layers[i].op == MFL_OP_DROPOUT && pass->dropout;
        if (drops)
                key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; g->dx && e < n; e++) {
                mfl_real d = drops ? dy[e] * dropout_at(pass, key, i, e) : dy[e];
                g->dx[e] = (g->add ? g->dx[e] : 0.0f) + d;
        }
}

const struct mfl_ref_op mfl_ref_op_unary = {unary_forward, unary_backward};
const struct mfl_ref_op mfl_ref_op_dropout = {dropout_forward, copy_backward};
const struct mfl_ref_op mfl_ref_op_flatten = {copy_forward, copy_backward};
const struct mfl_ref_op mfl_ref_op_reshape = {copy_forward, copy_backward};
