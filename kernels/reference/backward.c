/* SPDX-License-Identifier: Apache-2.0 */
/* Each layer's backward in the reference backend. */
#include "kernels/reference/layer.h"

/* The gradients that a layer is to give: NULL where it is not wanted. */
struct wanted {
        float *dx, *dx2;
        bool add, add2;
        float *dw, *db, *dw2, *db2;
};

static float activation_grad(const struct mfl_layer *layer, float x, float y, float dy)
{
        switch (layer->op) {
        case MFL_OP_RELU:
                return mfl_relu_grad(y, dy);
        case MFL_OP_RELU6:
                return mfl_relu6_grad(y, dy);
        case MFL_OP_TANH:
                return mfl_tanh_grad(y, dy);
        case MFL_OP_SIGMOID:
                return mfl_sigmoid_grad(y, dy);
        case MFL_OP_GELU:
                return layer->approximate ? mfl_gelu_tanh_grad(x, dy) : mfl_gelu_grad(x, dy);
        case MFL_OP_SILU:
                return mfl_silu_grad(x, dy);
        case MFL_OP_LEAKY_RELU:
                return mfl_leaky_relu_grad(y, dy, layer->alpha);
        case MFL_OP_ELU:
                return mfl_elu_grad(y, dy, layer->alpha);
        case MFL_OP_HARDSIGMOID:
                return mfl_hardsigmoid_grad(y, dy);
        case MFL_OP_HARDSWISH:
                return mfl_hardswish_grad(x, dy);
        case MFL_OP_SOFTPLUS:
                return mfl_softplus_grad(x, dy);
        default:
                return dy;
        }
}

/* Only the activations that the operator's plan says are read: the others' memory may be in other use. */
static void elementwise_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = pass->rows * net->plan->layers[i].out_count;
        const float *x = mfl_ref_act(net, layer->input), *y = mfl_ref_act(net, i);
        struct mfl_rng_key key = {0};
        bool drops = layer->op == MFL_OP_DROPOUT && pass->dropout;
        if (drops)
                key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; g->dx && e < n; e++) {
                float d = drops ? dy[e] * dropout_at(pass, key, i, e)
                                : activation_grad(layer, x[e], y[e], dy[e]);
                g->dx[e] = (g->add ? g->dx[e] : 0.0f) + d;
        }
}

static void window_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        const float *x = mfl_ref_act(net, layer->input),
                    *w = param_of(net, pass->params, layer->param_weight);
        int64_t planes = pass->rows * layer->out.dim[0], plane = plan->in_count / layer->out.dim[0];
        struct mfl_window window = mfl_window_of(net->graph, i);
        bool transposed = layer->op == MFL_OP_CONVTRANSPOSE2D;
        if (g->dw || g->db)
                (transposed ? mfl_ref_convtranspose_backward_params : mfl_ref_conv_backward_params)(
                        &window, pass->rows, x, dy, g->dw, g->db);
        if (!g->dx)
                return;
        switch (layer->op) {
        case MFL_OP_CONV2D:
                mfl_ref_conv_backward_data(&window, pass->rows, dy, w, g->add, g->dx);
                break;
        case MFL_OP_CONVTRANSPOSE2D:
                mfl_ref_convtranspose_backward_data(&window, pass->rows, dy, w, g->add, g->dx);
                break;
        case MFL_OP_MAXPOOL2D:
                mfl_ref_maxpool_backward(&window, pass->rows, x, dy, g->add, g->dx);
                break;
        case MFL_OP_AVGPOOL2D:
                mfl_ref_avgpool_backward(&window, pass->rows, dy, g->add, g->dx);
                break;
        case MFL_OP_GLOBAL_MAXPOOL2D:
                mfl_ref_global_maxpool_backward(planes, plane, x, dy, g->add, g->dx);
                break;
        default:
                mfl_ref_global_avgpool_backward(planes, plane, dy, g->add, g->dx);
        }
}

/* grad += scale * product. */
static void lora_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels, rank = layer->lora_rank;
        int64_t n_in = net->graph->params[layer->param_weight].fan_in;
        float *low = aux_of(net, i), *dlow = low + n * rank, scale = layer->lora_alpha / (float)rank;
        const float *x = mfl_ref_act(net, layer->input);
        const float *a = param_of(net, pass->params, layer->param_weight2);
        const float *b = param_of(net, pass->params, layer->param_bias2);
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

static void dense_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels;
        int64_t n_in = net->graph->params[layer->param_weight].fan_in;
        if (g->dw || g->db)
                mfl_ref_dense_backward_params(
                        n_in, n_out, n, mfl_ref_act(net, layer->input), dy, g->dw, g->db);
        if (g->dx)
                mfl_ref_dense_backward_data(
                        n_in, n_out, n, dy, param_of(net, pass->params, layer->param_weight), g->add, g->dx);
        if (layer->lora_rank)
                lora_backward(pass, i, dy, g);
}

static void norm_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_norm norm = norm_of(pass, i);
        const float *x = mfl_ref_act(pass->net, layer->input);
        if (g->dx)
                mfl_ref_norm_backward(&norm, pass->rows, x, dy,
                        param_of(pass->net, pass->params, layer->param_weight), g->add, g->dx, NULL, NULL);
        if (g->dw)
                mfl_ref_norm_backward(&norm, pass->rows, x, dy, NULL, false, NULL, g->dw, g->db);
}

static void matmul_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_matmul product = matmul_of(pass, i);
        if (g->dx)
                mfl_ref_matmul_backward(&product, mfl_ref_act(pass->net, layer->input2), dy, g->add, g->dx);
        if (g->dx2)
                mfl_ref_matmul_backward2(&product, mfl_ref_act(pass->net, layer->input), dy, g->add2, g->dx2);
}

static void sequence_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = mfl_ref_act(net, layer->input), *y = mfl_ref_act(net, i);
        int64_t n = pass->rows * layer->out.dim[0];
        struct mfl_rng_key key;
        struct mfl_ref_rownorm norm;
        struct mfl_ref_attention attention;
        struct mfl_ref_recurrent recurrent;
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                norm = rownorm_of(pass, i);
                mfl_ref_rownorm_backward(&norm, x, aux_of(net, i), dy,
                        param_of(net, pass->params, layer->param_weight), g->add, g->dx, g->dw, g->db);
                break;
        case MFL_OP_SOFTMAX:
                if (g->dx)
                        mfl_ref_softmax_backward(vectors_of(&layer->out, pass->rows),
                                layer->out.dim[layer->out.rank - 1], y, dy, g->add, g->dx);
                break;
        case MFL_OP_MATMUL:
                matmul_backward(pass, i, dy, g);
                break;
        case MFL_OP_EMBEDDING:
                if (g->dw)
                        mfl_ref_embedding_backward(n, layer->out_channels, layer->vocabulary, x, dy, g->dw);
                if (g->dx && !g->add)
                        memset(g->dx, 0, (size_t)n * sizeof *g->dx);
                break;
        case MFL_OP_ATTENTION:
                attention = attention_of(pass, i, &key);
                if (g->dx)
                        mfl_ref_attention_backward(&attention, x, aux_of(net, i), dy, g->add, g->dx);
                break;
        default:
                recurrent = recurrent_of(pass, i);
                mfl_ref_recurrent_backward(
                        &recurrent, x, y, aux_of(net, i), dy, g->add, g->dx, g->dw, g->dw2, g->db, g->db2);
        }
}

static void join_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_ref_join join = join_of(net, i);
        bool multiplies = layer->op == MFL_OP_MULTIPLY;
        const float *x = multiplies ? mfl_ref_act(net, layer->input) : NULL;
        const float *x2 = multiplies ? mfl_ref_act(net, layer->input2) : NULL;
        if (g->dx)
                mfl_ref_join_backward(&join, pass->rows, x2, dy, g->add, g->dx);
        if (g->dx2)
                mfl_ref_join_backward2(&join, pass->rows, x, dy, g->add2, g->dx2);
}

/* A slice gives zeros to what it left out. */
static void slice_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_axis axis = mfl_ref_axis_of(in_shape(pass->net, i), layer->axis, pass->rows);
        if (!g->dx)
                return;
        if (!g->add)
                memset(g->dx, 0, (size_t)(axis.outer * axis.n * axis.inner) * sizeof *g->dx);
        mfl_ref_part_copy(&axis, layer->start, layer->end - layer->start, false, true, dy, g->dx);
}

static void weight_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        int64_t n = pass->net->plan->layers[i].out_count;
        for (int64_t k = 0; g->dw && k < n; k++) {
                double sum = 0;
                for (int64_t r = 0; r < pass->rows; r++)
                        sum += (double)dy[r * n + k];
                g->dw[k] = (float)sum;
        }
}

static void shape_backward(const struct pass *pass, int i, const float *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = layer->input < 0 ? NULL : in_shape(net, i);
        struct mfl_ref_axis axis;
        switch (layer->op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
                join_backward(pass, i, dy, g);
                break;
        case MFL_OP_CONCAT:
                axis = mfl_ref_axis_of(&layer->out, layer->axis, pass->rows);
                if (g->dx)
                        mfl_ref_part_copy(&axis, 0, in->dim[layer->axis], true, g->add, dy, g->dx);
                if (g->dx2)
                        mfl_ref_part_copy(&axis, in->dim[layer->axis], axis.n - in->dim[layer->axis], true,
                                g->add2, dy, g->dx2);
                break;
        case MFL_OP_SLICE:
                slice_backward(pass, i, dy, g);
                break;
        case MFL_OP_TRANSPOSE:
                if (g->dx)
                        mfl_ref_transpose(in, layer->order, pass->rows, true, g->add, dy, g->dx);
                break;
        case MFL_OP_MEAN:
                axis = mfl_ref_axis_of(in, layer->axis, pass->rows);
                if (g->dx)
                        mfl_ref_mean_backward(&axis, dy, g->add, g->dx);
                break;
        default:
                weight_backward(pass, i, dy, g);
        }
}

static struct wanted wanted_of(const struct pass *pass, int i, float *grads)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = net->plan->layers;
        struct wanted g = {.add = !plan[i].writes_grad,
                .add2 = !plan[i].writes_grad2,
                .dw = grad_param(net, grads, layer->param_weight),
                .db = grad_param(net, grads, layer->param_bias),
                .dw2 = grad_param(net, grads, layer->param_weight2),
                .db2 = grad_param(net, grads, layer->param_bias2)};
        if (layer->input >= 0 && plan[layer->input].wants_grad)
                g.dx = mfl_ref_grad(net, layer->input);
        if (layer->input2 >= 0 && plan[layer->input2].wants_grad)
                g.dx2 = mfl_ref_grad(net, layer->input2);
        return g;
}

void mfl_ref_backward(const struct pass *pass, float *grads)
{
        static void (*const backward[])(
                const struct pass *pass, int i, const float *dy, const struct wanted *g) = {
                [FAMILY_ELEMENTWISE] = elementwise_backward,
                [FAMILY_WINDOW] = window_backward,
                [FAMILY_NORM] = norm_backward,
                [FAMILY_DENSE] = dense_backward,
                [FAMILY_SEQUENCE] = sequence_backward,
                [FAMILY_SHAPE] = shape_backward,
        };
        const struct mfl_net *net = pass->net;
        struct pass again = *pass;
        again.running = NULL;
        memset(grads, 0, (size_t)net->graph->n * sizeof(float));
        for (int k = 0; k < net->plan->n_backward; k++) {
                int i = net->plan->backward[k].layer;
                if (net->plan->backward[k].again) {
                        mfl_ref_layer_forward(&again, i);
                        continue;
                }
                struct wanted g = wanted_of(pass, i, grads);
                backward[families[net->graph->layers[i].op]](pass, i, mfl_ref_grad(net, i), &g);
        }
}
