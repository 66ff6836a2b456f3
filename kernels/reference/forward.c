/* SPDX-License-Identifier: Apache-2.0 */
/* Each layer's forward in the reference backend. */
#include "kernels/reference/layer.h"

float *mfl_ref_act(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].act);
}

float *mfl_ref_grad(const struct mfl_net *net, int i)
{
        return (float *)(net->arena + net->plan->layers[i].grad);
}

uint64_t mfl_ref_aux_bytes(const struct mfl_graph *graph, int i, int batch)
{
        const struct mfl_layer *layer = &graph->layers[i];
        int64_t rows = batch, positions = layer->out.dim[0], hidden = layer->out.dim[1];
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                return (uint64_t)vectors_of(&layer->out, rows) * 2 * sizeof(double);
        case MFL_OP_ATTENTION:
                return ((uint64_t)(rows * layer->heads * positions * positions) + (uint64_t)positions) *
                       sizeof(float);
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
                return (uint64_t)(hidden *
                                  (rows * positions * MFL_REF_RECURRENT_KEPT + MFL_REF_RECURRENT_SCRATCH)) *
                       sizeof(float);
        case MFL_OP_DENSE: /* A x, and its gradient */
                return (uint64_t)(2 * vectors_of(&layer->out, rows) * layer->lora_rank) * sizeof(float);
        default:
                return 0;
        }
}

static void dropout_forward(const struct pass *pass, int i, int64_t n, const float *x, float *y)
{
        if (!pass->dropout) {
                memcpy(y, x, (size_t)n * sizeof(float));
                return;
        }
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        for (int64_t e = 0; e < n; e++)
                y[e] = x[e] * dropout_at(pass, key, i, e);
}

static void norm_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_graph *graph = pass->net->graph;
        const struct mfl_layer *layer = &graph->layers[i];
        struct mfl_norm v = norm_of(pass, i);
        mfl_ref_norm_forward(&v, pass->rows, x, param_of(pass->net, pass->params, layer->param_weight),
                param_of(pass->net, pass->params, layer->param_bias), y);
        if (pass->dropout && pass->running && layer->param_mean >= 0)
                mfl_ref_norm_running(&v, pass->rows, x, layer->momentum,
                        pass->running + graph->params[layer->param_mean].offset,
                        pass->running + graph->params[layer->param_var].offset);
}

static float activation(const struct mfl_layer *layer, float x)
{
        switch (layer->op) {
        case MFL_OP_RELU:
                return mfl_relu(x);
        case MFL_OP_RELU6:
                return mfl_relu6(x);
        case MFL_OP_TANH:
                return tanhf(x);
        case MFL_OP_SIGMOID:
                return mfl_sigmoid(x);
        case MFL_OP_GELU:
                return layer->approximate ? mfl_gelu_tanh(x) : mfl_gelu(x);
        case MFL_OP_SILU:
                return mfl_silu(x);
        case MFL_OP_LEAKY_RELU:
                return mfl_leaky_relu(x, layer->alpha);
        case MFL_OP_ELU:
                return mfl_elu(x, layer->alpha);
        case MFL_OP_HARDSIGMOID:
                return mfl_hardsigmoid(x);
        case MFL_OP_HARDSWISH:
                return mfl_hardswish(x);
        case MFL_OP_SOFTPLUS:
                return mfl_softplus(x);
        default: /* flatten, reshape */
                return x;
        }
}

/* y = W x + b, with LoRA + alpha / rank * B (A x); A x is kept. */
static void dense_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = vectors_of(&layer->out, pass->rows), n_out = layer->out_channels, rank = layer->lora_rank;
        int64_t n_in = net->graph->params[layer->param_weight].fan_in;
        mfl_ref_dense_forward(n_in, n_out, n, x, param_of(net, pass->params, layer->param_weight),
                param_of(net, pass->params, layer->param_bias), y);
        if (!rank)
                return;
        float *low = aux_of(net, i), scale = layer->lora_alpha / (float)rank;
        const float *b = param_of(net, pass->params, layer->param_bias2);
        mfl_ref_dense_forward(n_in, rank, n, x, param_of(net, pass->params, layer->param_weight2), NULL, low);
        for (int64_t r = 0; r < n; r++)
                for (int64_t o = 0; o < n_out; o++) {
                        double sum = 0;
                        for (int64_t k = 0; k < rank; k++)
                                sum += (double)low[r * rank + k] * (double)b[o * rank + k];
                        y[r * n_out + o] += (float)(sum * (double)scale);
                }
}

static void sequence_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *w = param_of(net, pass->params, layer->param_weight);
        struct mfl_rng_key key;
        struct mfl_ref_rownorm norm;
        struct mfl_ref_matmul product;
        struct mfl_ref_attention attention;
        struct mfl_ref_recurrent recurrent;
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                norm = rownorm_of(pass, i);
                mfl_ref_rownorm_forward(
                        &norm, x, w, param_of(net, pass->params, layer->param_bias), aux_of(net, i), y);
                break;
        case MFL_OP_SOFTMAX:
                mfl_ref_softmax_forward(
                        vectors_of(&layer->out, pass->rows), layer->out.dim[layer->out.rank - 1], x, y);
                break;
        case MFL_OP_MATMUL:
                product = matmul_of(pass, i);
                mfl_ref_matmul_forward(&product, x, mfl_ref_act(net, layer->input2), y);
                break;
        case MFL_OP_EMBEDDING:
                mfl_ref_embedding_forward(
                        pass->rows * layer->out.dim[0], layer->out_channels, layer->vocabulary, x, w, y);
                break;
        case MFL_OP_ATTENTION:
                attention = attention_of(pass, i, &key);
                mfl_ref_attention_forward(&attention, x, aux_of(net, i), y);
                break;
        default: /* LSTM, GRU */
                recurrent = recurrent_of(pass, i);
                mfl_ref_recurrent_forward(&recurrent, x, aux_of(net, i), y);
        }
}

static void shape_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = layer->input < 0 ? NULL : in_shape(net, i);
        struct mfl_ref_axis axis;
        struct mfl_ref_join join;
        int64_t first, second;
        switch (layer->op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
                join = join_of(net, i);
                mfl_ref_join_forward(&join, pass->rows, layer->op == MFL_OP_MULTIPLY, x,
                        mfl_ref_act(net, layer->input2), y);
                break;
        case MFL_OP_CONCAT:
                axis = mfl_ref_axis_of(&layer->out, layer->axis, pass->rows);
                first = in->dim[layer->axis];
                second = axis.n - first;
                mfl_ref_part_copy(&axis, 0, first, false, false, x, y);
                mfl_ref_part_copy(&axis, first, second, false, false, mfl_ref_act(net, layer->input2), y);
                break;
        case MFL_OP_SLICE:
                axis = mfl_ref_axis_of(in, layer->axis, pass->rows);
                mfl_ref_part_copy(&axis, layer->start, layer->end - layer->start, true, false, x, y);
                break;
        case MFL_OP_TRANSPOSE:
                mfl_ref_transpose(in, layer->order, pass->rows, false, false, x, y);
                break;
        case MFL_OP_MEAN:
                axis = mfl_ref_axis_of(in, layer->axis, pass->rows);
                mfl_ref_mean_forward(&axis, x, y);
                break;
        default: /* weight */
                for (int64_t r = 0, n = net->plan->layers[i].out_count; r < pass->rows; r++)
                        memcpy(y + r * n, param_of(net, pass->params, layer->param_weight),
                                (size_t)n * sizeof *y);
        }
}

static void window_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        const float *w = param_of(net, pass->params, layer->param_weight);
        const float *b = param_of(net, pass->params, layer->param_bias);
        int64_t planes = pass->rows * layer->out.dim[0];
        struct mfl_window window = mfl_window_of(net->graph, i);
        switch (layer->op) {
        case MFL_OP_CONV2D:
                mfl_ref_conv_forward(&window, pass->rows, x, w, b, y);
                break;
        case MFL_OP_CONVTRANSPOSE2D:
                mfl_ref_convtranspose_forward(&window, pass->rows, x, w, b, y);
                break;
        case MFL_OP_MAXPOOL2D:
                mfl_ref_maxpool_forward(&window, pass->rows, x, y);
                break;
        case MFL_OP_AVGPOOL2D:
                mfl_ref_avgpool_forward(&window, pass->rows, x, y);
                break;
        case MFL_OP_GLOBAL_MAXPOOL2D:
                mfl_ref_global_maxpool_forward(planes, plan->in_count / plan->out_count, x, y);
                break;
        default: /* global average */
                mfl_ref_global_avgpool_forward(planes, plan->in_count / plan->out_count, x, y);
        }
}

void mfl_ref_layer_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = layer->input < 0 ? NULL : mfl_ref_act(net, layer->input);
        float *y = mfl_ref_act(net, i);
        int64_t n = pass->rows * net->plan->layers[i].out_count;
        switch ((enum family)families[layer->op]) {
        case FAMILY_WINDOW:
                window_forward(pass, i, x, y);
                break;
        case FAMILY_NORM:
                norm_forward(pass, i, x, y);
                break;
        case FAMILY_DENSE:
                dense_forward(pass, i, x, y);
                break;
        case FAMILY_SEQUENCE:
                sequence_forward(pass, i, x, y);
                break;
        case FAMILY_SHAPE:
                shape_forward(pass, i, x, y);
                break;
        case FAMILY_ELEMENTWISE:
                if (layer->op == MFL_OP_DROPOUT)
                        dropout_forward(pass, i, n, x, y);
                else
                        for (int64_t e = 0; e < n; e++)
                                y[e] = activation(layer, x[e]);
        }
}

void mfl_ref_forward(const struct pass *pass)
{
        for (int i = 1; i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        mfl_ref_layer_forward(pass, i);
}
