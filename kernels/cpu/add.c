/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of two layers. Both nearly always have the same layout; where they do not, elements are found one
 * by one. */
#include "kernels/cpu/net.h"

static bool same_layout(const struct mfl_layout *a, const struct mfl_layout *b)
{
        bool both_plain = a->identity && b->identity && a->logical == b->logical;
        return both_plain || (a->tag == b->tag && a->count == b->count && a->c == b->c && a->w == b->w);
}

/* to (+)= from, each in its own layout. */
static void add_mixed(const struct mfl_layout *from_layout, const struct mfl_layout *to_layout, int64_t rows,
        bool sum, const float *from, float *to)
{
        if (!sum)
                mfl_layout_clear_padding(to_layout, rows, to);
        for (int64_t r = 0; r < rows; r++, from += from_layout->count, to += to_layout->count)
                for (int64_t k = 0; k < to_layout->logical; k++) {
                        float *at = to + mfl_layout_at(to_layout, k);
                        *at = (sum ? *at : 0.0f) + from[mfl_layout_at(from_layout, k)];
                }
}

void mfl_cpu_add_forward(struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_layout *l = &net->layers[i].layout, *l2 = &net->layers[layer->input2].layout;
        const float *x = mfl_cpu_act(net, layer->input), *x2 = mfl_cpu_act(net, layer->input2);
        int64_t n = l->count * net->rows;
        float *y = mfl_cpu_act(net, i);
        if (same_layout(l, l2)) {
                net->device->loops->add(n, x, x2, net->layers[i].relu, y, net->options.threads);
                return;
        }
        if (x != y)
                memcpy(y, x, (size_t)n * sizeof *y);
        add_mixed(l2, l, net->rows, true, x2, y);
        if (net->layers[i].relu)
                net->device->loops->curve(MFL_CURVE_RELU, 0, 0, n, y, y, net->options.threads);
}

/* The gradient of one input. */
static void pass_gradient(struct mfl_net *net, int i, int input, bool sum)
{
        const struct mfl_layout *l = &net->layers[i].layout, *of_input = &net->layers[input].layout;
        const float *dy = mfl_cpu_grad(net, i);
        float *dx = mfl_cpu_grad(net, input);
        int64_t n = l->count * net->rows;
        if (dx == dy)
                return;
        if (!same_layout(l, of_input))
                add_mixed(l, of_input, net->rows, sum, dy, dx);
        else if (sum)
                net->device->loops->add(n, dx, dy, false, dx, net->options.threads);
        else
                memcpy(dx, dy, (size_t)n * sizeof *dx);
}

void mfl_cpu_add_backward(struct mfl_net *net, int i, bool first, bool second)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_plan_layer *plan = &net->plan->layers[i];
        const struct mfl_layout *l = &net->layers[i].layout;
        int64_t n = l->count * net->rows;
        int threads = net->options.threads;
        float *dy = mfl_cpu_grad(net, i);
        if (net->layers[i].masked && second && same_layout(l, &net->layers[layer->input2].layout)) {
                net->device->loops->join_grad(n, mfl_cpu_act(net, i), dy, dy,
                        mfl_cpu_grad(net, layer->input2), !plan->writes_grad2, threads);
                second = false;
        } else if (net->layers[i].masked) {
                net->device->loops->curve_grad(MFL_CURVE_RELU, 0, 0, n, mfl_cpu_act(net, i), dy, dy, threads);
        }
        if (first)
                pass_gradient(net, i, layer->input, !plan->writes_grad);
        if (second)
                pass_gradient(net, i, layer->input2, !plan->writes_grad2);
}
