/* SPDX-License-Identifier: Apache-2.0 */
/* Forward of each layer. */
#include "kernels/cpu/pass.h"

/* A global pool is one window over the whole plane. */
static struct mfl_window window_of(const struct mfl_net *net, int i)
{
        struct mfl_window window = mfl_window_of(net->graph, i);
        if (net->graph->layers[i].op == MFL_OP_GLOBAL_AVGPOOL2D ||
                net->graph->layers[i].op == MFL_OP_GLOBAL_MAXPOOL2D) {
                window.k[0] = window.s[0] = window.h;
                window.k[1] = window.s[1] = window.w;
        }
        return window;
}

struct mfl_pool mfl_cpu_pool_of(const struct mfl_net *net, int i)
{
        return (struct mfl_pool){.window = window_of(net, i),
                .in = net->layers[net->graph->layers[i].input].layout,
                .out = net->layers[i].layout,
                .rows = net->options.batch,
                .threads = net->options.threads};
}

/* Factors are numbered in NCHW order over the batch; in a blocked layout they move to their element's place,
 * plane by plane: `k` is the number of the first one, counted over the batch. */
static void place_factors(const struct mfl_layout *l, int64_t k, int64_t n, const float *from, float *mask)
{
        int64_t plane = l->h * l->w, c = k / plane, i = k % plane;
        while (n > 0) {
                int64_t run = MFL_MIN(n, plane - i), row = c / l->c, channel = c % l->c, block = l->block;
                float *to = mask + row * l->count + channel / block * l->stride_block + channel % block +
                            i * block;
                for (int64_t j = 0; j < run; j++)
                        to[j * block] = from[j];
                from += run;
                n -= run;
                i = 0;
                c++;
        }
}

/* Rows are numbered over the step, so that the first factor's number need not be a multiple of the stream's
 * four. */
static void make_mask(const struct pass *pass, int i, float *mask)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layout *l = &net->layers[i].layout;
        float rate = net->graph->layers[i].rate, part[1024 + 4];
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        int64_t n = l->logical * net->options.batch;
        uint64_t first = (uint64_t)(l->logical * pass->first_row), ahead = first % 4;
        if (l->identity && !ahead) {
                net->device->loops->dropout(key, first, n, rate, mask);
                return;
        }
        mfl_layout_clear_padding(l, net->options.batch, mask);
        for (int64_t e = 0; e < n; e += 1024) {
                int64_t count = MFL_MIN(1024, n - e);
                net->device->loops->dropout(
                        key, first + (uint64_t)e - ahead, count + (int64_t)ahead, rate, part);
                if (l->identity)
                        memcpy(mask + e, part + ahead, (size_t)count * sizeof *mask);
                else
                        place_factors(l, e, count, part + ahead, mask);
        }
}

static void elementwise_forward(const struct pass *pass, int i, const float *x, float *y)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        int64_t n = mfl_cpu_floats(net, i);
        int threads = net->options.threads;
        switch (net->graph->layers[i].op) {
        case MFL_OP_RELU:
                if (!net->layers[i].done)
                        loops->relu(n, x, y, threads);
                break;
        case MFL_OP_TANH:
                loops->tanh(n, x, y, threads);
                break;
        case MFL_OP_SIGMOID:
                loops->sigmoid(n, x, y, threads);
                mfl_layout_clear_padding(&net->layers[i].layout, net->options.batch, y);
                break;
        case MFL_OP_DROPOUT:
                if (pass->dropout) {
                        make_mask(pass, i, mfl_cpu_aux(net, i));
                        loops->multiply(n, x, mfl_cpu_aux(net, i), y, threads);
                } else if (x != y) {
                        memcpy(y, x, (size_t)n * sizeof *y);
                }
                break;
        default:
                loops->activation(&net->graph->layers[i], n, x, y, threads);
                if (net->graph->layers[i].op == MFL_OP_HARDSIGMOID ||
                        net->graph->layers[i].op == MFL_OP_SOFTPLUS) /* of 0 not 0 */
                        mfl_layout_clear_padding(&net->layers[i].layout, net->options.batch, y);
        }
}

bool mfl_cpu_moves(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.identity != net->layers[net->graph->layers[i].input].layout.identity;
}

static void flatten_forward(const struct mfl_net *net, int i, const float *x, float *y)
{
        if (mfl_cpu_moves(net, i))
                mfl_layout_to_plain(
                        &net->layers[net->graph->layers[i].input].layout, net->options.batch, x, y);
        else
                memcpy(y, x, (size_t)mfl_cpu_floats(net, i) * sizeof *y);
}

int mfl_cpu_layer_forward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = layer->input < 0 ? NULL : mfl_cpu_act(net, layer->input);
        float *y = mfl_cpu_act(net, i);
        struct mfl_pool pool;
        switch (layer->op) {
        case MFL_OP_CONV2D:
        case MFL_OP_CONVTRANSPOSE2D:
                return mfl_cpu_conv_run_forward(&net->layers[i].conv, net->stream,
                        mfl_cpu_param(pass, layer->param_weight), mfl_cpu_param(pass, layer->param_bias),
                        pass->err);
        case MFL_OP_DENSE:
                mfl_cpu_dense_forward(pass, i);
                return 0;
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_GLOBAL_MAXPOOL2D:
                pool = mfl_cpu_pool_of(net, i);
                loops->maxpool_forward(&pool, x, y, net->options.training ? mfl_cpu_aux(net, i) : NULL);
                return 0;
        case MFL_OP_AVGPOOL2D:
        case MFL_OP_GLOBAL_AVGPOOL2D:
                pool = mfl_cpu_pool_of(net, i);
                loops->avgpool_forward(&pool, x, y);
                return 0;
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                mfl_cpu_norm_forward(net, i, pass->rows, pass->dropout != NULL, pass->running,
                        mfl_cpu_group_params(net, pass->group));
                return 0;
        case MFL_OP_FLATTEN:
        case MFL_OP_RESHAPE:
                if (x != y)
                        flatten_forward(net, i, x, y);
                return 0;
        case MFL_OP_ADD:
                if (net->layers[i].plain)
                        mfl_cpu_shape_forward(pass, i);
                else
                        mfl_cpu_add_forward(net, i);
                return 0;
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
                mfl_cpu_recurrent_forward(pass, i);
                return 0;
        default:
                if (mfl_cpu_is_sequence(layer->op))
                        mfl_cpu_sequence_forward(pass, i);
                else if (mfl_cpu_is_shape(layer->op))
                        mfl_cpu_shape_forward(pass, i);
                else
                        elementwise_forward(pass, i, x, y);
                return 0;
        }
}

int mfl_cpu_run_forward(const struct pass *pass)
{
        int rc = 0;
        for (int i = 1; !rc && i < pass->net->graph->n_layers; i++)
                if (pass->net->plan->layers[i].live)
                        rc = mfl_cpu_layer_forward(pass, i);
        return rc;
}
