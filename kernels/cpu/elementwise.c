/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one variable, dropout, and layers that only change the shape. */
#include <math.h>

#include "kernels/cpu/op.h"

/* Padding is 0. A function makes something else of it where f(0) is not 0. */
static int unary_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        enum mfl_curve curve = mfl_curve_of(layer);
        float *y = mfl_cpu_act(net, i);
        if (net->layers[i].done) /* fused */
                return 0;
        net->device->loops->curve(curve, layer->alpha, layer->beta, mfl_cpu_floats(net, i),
                mfl_cpu_act(net, layer->input), y, net->options.threads);
        if (mfl_curve_value(curve, 0, (double)layer->alpha, (double)layer->beta) != 0)
                mfl_layout_clear_padding(&net->layers[i].layout, net->rows, y);
        return 0;
}

/* A derivative that is infinite at 0 makes NaN of the gradient of padding, which is 0. */
static int unary_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        enum mfl_curve curve = mfl_curve_of(layer);
        bool of_output = mfl_unaries[curve].reads & MFL_READS_OUTPUT;
        if (!dx || net->layers[i].masked)
                return 0;
        net->device->loops->curve_grad(curve, layer->alpha, layer->beta, mfl_cpu_floats(net, i),
                mfl_cpu_act(net, of_output ? i : layer->input), mfl_cpu_grad(net, i), dx,
                net->options.threads);
        if (isnan(mfl_curve_grad(curve, 0, 0, (double)layer->alpha, (double)layer->beta)))
                mfl_layout_clear_padding(&net->layers[i].layout, net->rows, dx);
        return 0;
}

/* Factors are numbered in NCHW order over the batch. In a blocked layout they are moved to their element's
 * place, plane by plane; `k` is the number of the plane's first factor in the batch. */
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

/* Rows are numbered over the step, so the first factor's number need not be a multiple of 4, the stream's
 * block. */
static void make_mask(const struct pass *pass, int i, float *mask)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layout *l = &net->layers[i].layout;
        float rate = net->graph->layers[i].rate, part[1024 + 4];
        struct mfl_rng_key key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
        int64_t n = l->logical * net->rows;
        uint64_t first = (uint64_t)(l->logical * pass->first_row), ahead = first % 4;
        if (l->identity && !ahead) {
                net->device->loops->dropout(key, first, n, rate, mask);
                return;
        }
        mfl_layout_clear_padding(l, net->rows, mask);
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

static int dropout_forward(const struct pass *pass, int i)
{
        struct mfl_net *net = pass->net;
        int64_t n = mfl_cpu_floats(net, i);
        const float *x = mfl_cpu_act(net, net->graph->layers[i].input);
        float *y = mfl_cpu_act(net, i);
        if (pass->dropout) {
                make_mask(pass, i, mfl_cpu_aux(net, i));
                net->device->loops->multiply(n, x, mfl_cpu_aux(net, i), y, net->options.threads);
        } else if (x != y) {
                memcpy(y, x, (size_t)n * sizeof *y);
        }
        return 0;
}

static int dropout_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const float *dy = mfl_cpu_grad(net, i);
        int64_t n = mfl_cpu_floats(net, i);
        if (dx && pass->dropout)
                net->device->loops->multiply(n, dy, mfl_cpu_aux(net, i), dx, net->options.threads);
        else if (dx && dx != dy)
                memcpy(dx, dy, (size_t)n * sizeof *dx);
        return 0;
}

/* The mask. */
static uint64_t dropout_aux_bytes(const struct mfl_net *net, int i)
{
        return net->options.training ? (uint64_t)mfl_cpu_floats(net, i) * sizeof(float) : 0;
}

bool mfl_cpu_moves(const struct mfl_net *net, int i)
{
        return net->layers[i].layout.identity != net->layers[net->graph->layers[i].input].layout.identity;
}

static int flatten_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        int input = net->graph->layers[i].input;
        const float *x = mfl_cpu_act(net, input);
        float *y = mfl_cpu_act(net, i);
        if (x != y && mfl_cpu_moves(net, i))
                mfl_layout_to_plain(&net->layers[input].layout, net->rows, x, y);
        else if (x != y)
                memcpy(y, x, (size_t)mfl_cpu_floats(net, i) * sizeof *y);
        return 0;
}

static int flatten_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const float *dy = mfl_cpu_grad(net, i);
        if (dx && mfl_cpu_moves(net, i))
                mfl_layout_from_plain(&net->layers[net->graph->layers[i].input].layout, net->rows, dy, dx);
        else if (dx && dx != dy)
                memcpy(dx, dy, (size_t)mfl_cpu_floats(net, i) * sizeof *dx);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_unary = {MFL_CPU_IN_PLACE, unary_forward, unary_backward};
const struct mfl_cpu_op mfl_cpu_op_dropout = {
        MFL_CPU_IN_PLACE, dropout_forward, dropout_backward, dropout_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_flatten = {0, flatten_forward, flatten_backward};
const struct mfl_cpu_op mfl_cpu_op_reshape = {0, flatten_forward, flatten_backward};
