/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers. Those of vectors that train their weights run in loops that take the step while the gradient
 * is in registers (loops.h). Those of sequences, with LoRA, or with frozen weights are matrix products. */
#include <math.h>

#include "kernels/cpu/op.h"

static struct mfl_dense dense_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_dense){.n_in = net->layers[layer->input].layout.count,
                .n_out = layer->out_channels,
                .rows = net->rows,
                .relu = net->layers[i].relu,
                .threads = net->options.threads};
}

/* rows x inputs -> outputs; y = x w^T with w [outputs][inputs]. */
struct product {
        int64_t rows, n_in, n_out;
        bool turned; /* w [inputs][outputs] */
};

static struct product product_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct product){.rows = mfl_cpu_vectors(net, &layer->out),
                .n_in = mfl_graph_features(net->graph, i),
                .n_out = layer->out_channels,
                .turned = layer->turned};
}

static void forward(const struct mfl_net *net, const struct product *v, const float *x, const float *w,
        const float *bias, bool add, float *y)
{
        struct mfl_gemm g = {.m = v->rows,
                .n = v->n_out,
                .k = v->n_in,
                .a = x,
                .a_i = v->n_in,
                .a_k = 1,
                .b = w,
                .b_k = v->turned ? v->n_out : 1,
                .b_j = v->turned ? 1 : v->n_in,
                .c = y,
                .ldc = v->n_out,
                .bias = bias,
                .add = add};
        mfl_cpu_gemm(net, &g);
}

static void backward_data(const struct mfl_net *net, const struct product *v, const float *dy, const float *w,
        bool add, float *dx)
{
        struct mfl_gemm g = {.m = v->rows,
                .n = v->n_in,
                .k = v->n_out,
                .a = dy,
                .a_i = v->n_out,
                .a_k = 1,
                .b = w,
                .b_k = v->turned ? 1 : v->n_in,
                .b_j = v->turned ? v->n_out : 1,
                .c = dx,
                .ldc = v->n_in,
                .add = add};
        mfl_cpu_gemm(net, &g);
}

static void backward_weights(
        const struct mfl_net *net, const struct product *v, const float *x, const float *dy, float *dw)
{
        int64_t n_a = v->turned ? v->n_in : v->n_out, n_b = v->turned ? v->n_out : v->n_in;
        struct mfl_gemm g = {.m = n_a,
                .n = n_b,
                .k = v->rows,
                .a = v->turned ? x : dy,
                .a_i = 1,
                .a_k = n_a,
                .b = v->turned ? dy : x,
                .b_k = n_b,
                .b_j = 1,
                .c = dw,
                .ldc = n_b};
        mfl_cpu_gemm(net, &g);
}

/* alpha / rank * A x, kept for backward, and room for its gradient. */
static uint64_t dense_aux_bytes(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (uint64_t)(2 * mfl_cpu_vectors(net, &layer->out) * layer->lora_rank) * sizeof(float);
}

static void lora_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct product into = product_of(net, i), out = into;
        float *low = mfl_cpu_aux(net, i);
        into.n_out = out.n_in = layer->lora_rank;
        into.turned = out.turned = false;
        forward(net, &into, x, mfl_cpu_param(pass, layer->param_weight2), NULL, false, low);
        net->device->loops->scale(
                into.rows * layer->lora_rank, layer->lora_alpha / (float)layer->lora_rank, low);
        forward(net, &out, low, mfl_cpu_param(pass, layer->param_bias2), NULL, true, y);
}

static int dense_forward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *w = mfl_cpu_param(pass, layer->param_weight),
                    *b = mfl_cpu_param(pass, layer->param_bias);
        float *y = mfl_cpu_act(net, i);
        if (!net->layers[i].gemm) {
                struct mfl_dense dense = dense_of(net, i);
                loops->dense_forward(&dense, mfl_cpu_act(net, layer->input), w, b, y);
                return 0;
        }
        struct product v = product_of(net, i);
        const float *x = mfl_cpu_plain(net, layer->input, 0);
        forward(net, &v, x, w, b, false, y);
        if (layer->lora_rank)
                lora_forward(pass, i, x, y);
        if (net->layers[i].relu)
                loops->curve(MFL_CURVE_RELU, 0, 0, mfl_cpu_floats(net, i), y, y, net->options.threads);
        return 0;
}

/* dx +=; NULL: not wanted. */
static void lora_backward(const struct pass *pass, int i, const float *x, float *dx)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct product into = product_of(net, i), out = into;
        int64_t n = into.rows * layer->lora_rank;
        const float *dy = mfl_cpu_grad(net, i), *a = mfl_cpu_param(pass, layer->param_weight2);
        float *low = mfl_cpu_aux(net, i), *dlow = low + n;
        float *da = mfl_cpu_param_grad(pass, i, layer->param_weight2),
              *db = mfl_cpu_param_grad(pass, i, layer->param_bias2);
        into.n_out = out.n_in = layer->lora_rank;
        into.turned = out.turned = false;
        backward_data(net, &out, dy, mfl_cpu_param(pass, layer->param_bias2), false, dlow);
        net->device->loops->scale(n, layer->lora_alpha / (float)layer->lora_rank, dlow);
        if (dx)
                backward_data(net, &into, dlow, a, true, dx);
        if (da)
                backward_weights(net, &into, x, dlow, da);
        if (db)
                backward_weights(net, &out, low, dy, db);
        mfl_cpu_take_grad(pass, i, layer->param_weight2);
        mfl_cpu_take_grad(pass, i, layer->param_bias2);
}

static void gemm_backward(const struct pass *pass, int i, float *dx)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i), *x = mfl_cpu_plain(net, layer->input, 0);
        float *dw = mfl_cpu_param_grad(pass, i, layer->param_weight),
              *db = mfl_cpu_param_grad(pass, i, layer->param_bias);
        struct product v = product_of(net, i);
        if (dx)
                backward_data(net, &v, dy, mfl_cpu_param(pass, layer->param_weight), false, dx);
        if (layer->lora_rank)
                lora_backward(pass, i, x, dx);
        if (dw)
                backward_weights(net, &v, x, dy, dw);
        if (db)
                net->device->loops->column_sums(v.rows, v.n_out, v.n_out, dy, db);
        mfl_cpu_take_grad(pass, i, layer->param_weight);
        mfl_cpu_take_grad(pass, i, layer->param_bias);
}

/* What the sink does not want of the weights' gradient now. */
static const struct mfl_grad_deferred *deferred_of(const struct pass *pass, int param)
{
        const struct mfl_grad_deferred *all = pass->sink ? pass->sink->deferred : NULL;
        int tensor = pass->net->wide[param].tensor;
        return all && tensor >= 0 && all[tensor].operands ? &all[tensor] : NULL;
}

/* The operands are left, and the elements before and after those that are deferred are given. */
static void leave_operands(
        const struct pass *pass, int i, const struct mfl_dense *dense, const struct mfl_grad_deferred *to)
{
        const struct mfl_net *net = pass->net;
        int param = net->graph->layers[i].param_weight;
        const struct mfl_cpu_param *wide = &net->wide[param];
        uint64_t end = wide->at + wide->count;
        float *room = pass->grads + wide->grad;
        size_t n_x = (size_t)(dense->rows * dense->n_in), n_dy = (size_t)(dense->rows * dense->n_out);
        struct mfl_dense_products before = {.end = (int64_t)(to->first - wide->at),
                                          .n_grains = 1,
                                          .operands = to->operands,
                                          .out = room},
                                  after = before;
        after.first = (int64_t)(to->end - wide->at);
        after.end = (int64_t)wide->count;
        after.out = room + after.first;
        memcpy(to->operands, mfl_cpu_act(net, net->graph->layers[i].input), n_x * sizeof(float));
        memcpy(to->operands + n_x, mfl_cpu_grad(net, i), n_dy * sizeof(float));
        net->device->loops->dense_products(dense, &before);
        net->device->loops->dense_products(dense, &after);
        mfl_cpu_give(pass, param, wide->at, to->first);
        mfl_cpu_give(pass, param, to->end, end);
        mfl_cpu_tell_ready(pass, param);
}

/* Only where one thread has the layer, since sums are added in its cache. */
uint64_t mfl_cpu_operands(const struct mfl_graph *graph, const struct mfl_net_options *options, int param)
{
        int i = graph->params[param].layer;
        const struct mfl_layer *layer = &graph->layers[i];
        if (options->threads > 1 || layer->op != MFL_OP_DENSE || layer->param_weight != param ||
                !graph->params[param].trained || mfl_cpu_is_product(graph, i))
                return 0;
        return (uint64_t)layer->out_channels + mfl_cpu_tensor_most(graph, layer->input);
}

void mfl_cpu_products(const struct mfl_net *net, const struct mfl_grad_products *how)
{
        const struct mfl_grad_tensor *tensor = &net->tensors[how->tensor];
        struct mfl_dense dense = dense_of(net, net->graph->params[tensor->param].layer);
        int bits = how->rounding.bits[how->tensor];
        struct mfl_dense_products v = {.first = (int64_t)(how->first - tensor->at),
                .end = (int64_t)(how->first + how->n - tensor->at),
                .n_grains = how->n_grains,
                .stride = (int64_t)how->stride,
                .operands = how->operands,
                .factor = ldexp(1.0, bits),
                .inverse = ldexp(1.0, -bits),
                .largest = &how->rounding.largest[how->tensor],
                .out = how->total};
        net->device->loops->dense_products(&dense, &v);
}

static int dense_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i);
        if (net->layers[i].gemm) {
                gemm_backward(pass, i, dx);
                return 0;
        }
        struct mfl_dense dense = dense_of(net, i);
        const struct mfl_grad_deferred *deferred = deferred_of(pass, layer->param_weight);
        struct mfl_apply apply = mfl_cpu_apply(pass, layer->param_weight);
        bool aimed = !deferred && mfl_cpu_aim(pass, layer->param_weight, &apply);
        if (dx || !deferred)
                loops->dense_backward(&dense, dy, mfl_cpu_act(net, layer->input),
                        mfl_cpu_param(pass, layer->param_weight), dx, deferred ? NULL : &apply);
        if (deferred)
                leave_operands(pass, i, &dense, deferred);
        else if (aimed)
                mfl_cpu_tell_ready(pass, layer->param_weight);
        else if (apply.grad)
                mfl_cpu_take_grad(pass, i, layer->param_weight);
        if (layer->param_bias < 0)
                return 0;
        apply = mfl_cpu_apply(pass, layer->param_bias);
        loops->dense_backward_bias(&dense, dy, &apply);
        if (apply.grad)
                mfl_cpu_take_grad(pass, i, layer->param_bias);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_dense = {MFL_CPU_YIELDS, dense_forward, dense_backward, dense_aux_bytes};
