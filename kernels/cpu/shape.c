/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move or join tensors, in plain order except for a product of two tensors with one layout. */
#include "kernels/cpu/op.h"

static struct mfl_axis axis_of(const struct mfl_net *net, const struct mfl_shape *shape, int axis)
{
        struct mfl_axis v = {.outer = net->rows, .n = shape->dim[axis], .inner = 1};
        for (int d = 0; d < axis; d++)
                v.outer *= shape->dim[d];
        for (int d = axis + 1; d < shape->rank; d++)
                v.inner *= shape->dim[d];
        return v;
}

/* Joins two tensors of one shape and layout as they lie. */
static struct mfl_join join_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *x = &layer->out, *x2 = &net->graph->layers[layer->input2].out;
        struct mfl_join v = {.rows = net->rows, .dim = {1, 1, 1}, .dim2 = {1, 1, 1}};
        if (!net->layers[i].plain) {
                v.dim[2] = v.dim2[2] = net->layers[i].layout.count;
                return v;
        }
        for (int d = 0, shift = 3 - x->rank; d < x->rank; d++) {
                v.dim[shift + d] = x->dim[d];
                v.dim2[shift + d] = x2->dim[d];
        }
        return v;
}

/* What layer i reads of its input, as the join or concatenation sees it. */
static const float *joined(const struct mfl_net *net, int i, int which)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        int input = which ? layer->input2 : layer->input;
        return net->layers[i].plain ? mfl_cpu_plain(net, input, which) : mfl_cpu_act(net, input);
}

/* Indices [first, first + n) of an axis: copies them out of the whole tensor, or into it. */
static void copy_part(
        const struct mfl_axis *whole, int64_t first, int64_t n, bool out, const float *from, float *to)
{
        size_t bytes = (size_t)(n * whole->inner) * sizeof *to;
        for (int64_t o = 0; o < whole->outer; o++) {
                int64_t large = (o * whole->n + first) * whole->inner, small = o * n * whole->inner;
                memcpy(to + (out ? small : large), from + (out ? large : small), bytes);
        }
}

/* Lines along the output's last dimension; their elements lie `step` apart in the input. */
static void turn(const struct mfl_net *net, int i, bool back, const float *restrict from, float *restrict to)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = &net->graph->layers[layer->input].out;
        int64_t dim[3] = {1, 1, 1}, stride[3] = {0, 0, 0}, strides_in[3] = {0}, e = 0;
        int64_t count = mfl_shape_count(in);
        for (int64_t d = in->rank - 1, s = 1; d >= 0; s *= in->dim[d], d--)
                strides_in[d] = s;
        for (int d = 0, shift = 3 - in->rank; d < in->rank; d++) {
                dim[shift + d] = in->dim[layer->order[d]];
                stride[shift + d] = strides_in[layer->order[d]];
        }
        for (int64_t r = 0; r < net->rows; r++)
                for (int64_t a = 0; a < dim[0]; a++)
                        for (int64_t b = 0; b < dim[1]; b++, e += dim[2]) {
                                int64_t line = r * count + a * stride[0] + b * stride[1], step = stride[2];
                                for (int64_t c = 0; !back && c < dim[2]; c++)
                                        to[e + c] = from[line + c * step];
                                for (int64_t c = 0; back && c < dim[2]; c++)
                                        to[line + c * step] = from[e + c];
                        }
}

static int join_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        if (layer->op == MFL_OP_ADD && !net->layers[i].plain) {
                mfl_cpu_add_forward(pass->net, i);
                return 0;
        }
        struct mfl_join join = join_of(net, i);
        net->device->loops->join(&join, layer->op, joined(net, i, 0), joined(net, i, 1), mfl_cpu_act(net, i));
        return 0;
}

static int join_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const float *dy = mfl_cpu_grad(net, i);
        const struct mfl_loops *loops = net->device->loops;
        struct mfl_join join = join_of(net, i);
        enum mfl_op op = net->graph->layers[i].op;
        bool gates = op == MFL_OP_GATE, multiplies = op == MFL_OP_MULTIPLY;
        size_t bytes = (size_t)mfl_cpu_floats(net, i) * sizeof *dx;
        if (dx2 && gates)
                memset(dx2, 0,
                        (size_t)(join.rows * join.dim2[0] * join.dim2[1] * join.dim2[2]) * sizeof *dx2);
        else if (dx2)
                loops->join_grad2(&join, multiplies ? joined(net, i, 0) : NULL, dy, dx2);
        if (dx && (multiplies || gates))
                loops->join(&join, op, dy, joined(net, i, 1), dx);
        else if (dx && dx != dy)
                memcpy(dx, dy, bytes);
        return 0;
}

/* Channels behind each other stay behind each other in blocks, where no block holds channels of both. */
bool mfl_cpu_concat_keeps_layout(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_layout *in = &net->layers[layer->input].layout,
                                *in2 = &net->layers[layer->input2].layout;
        if (layer->out.rank != 3 || layer->axis != 0 || in->tag != in2->tag || in->tag == dnnl_nchw)
                return false;
        return in->tag == dnnl_nhwc || in->c % in->block == 0;
}

/* The concatenated tensor from its axis, and the part of the first input. */
static struct mfl_axis concat_axis(const struct mfl_net *net, int i, int64_t *ret_first)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_layout *l = &net->layers[i].layout, *in = &net->layers[layer->input].layout;
        if (net->layers[i].plain) {
                *ret_first = net->graph->layers[layer->input].out.dim[layer->axis];
                return axis_of(net, &layer->out, layer->axis);
        }
        if (l->tag == dnnl_nhwc) {
                *ret_first = in->c;
                return (struct mfl_axis){.outer = net->rows * l->h * l->w, .n = l->c, .inner = 1};
        }
        *ret_first = in->n_blocks;
        return (struct mfl_axis){.outer = net->rows, .n = l->n_blocks, .inner = l->stride_block};
}

static int concat_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        int64_t first;
        struct mfl_axis axis = concat_axis(net, i, &first);
        float *y = mfl_cpu_act(net, i);
        copy_part(&axis, 0, first, false, joined(net, i, 0), y);
        copy_part(&axis, first, axis.n - first, false, joined(net, i, 1), y);
        return 0;
}

static int concat_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const float *dy = mfl_cpu_grad(net, i);
        int64_t first;
        struct mfl_axis axis = concat_axis(net, i, &first);
        if (dx)
                copy_part(&axis, 0, first, true, dy, dx);
        if (dx2)
                copy_part(&axis, first, axis.n - first, true, dy, dx2);
        return 0;
}

static struct mfl_axis axis_of_input(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return axis_of(net, &net->graph->layers[layer->input].out, layer->axis);
}

static int slice_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_axis axis = axis_of_input(net, i);
        copy_part(&axis, layer->start, layer->end - layer->start, true, mfl_cpu_plain(net, layer->input, 0),
                mfl_cpu_act(net, i));
        return 0;
}

/* Zeros for what it left out. */
static int slice_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_axis axis = axis_of_input(net, i);
        if (!dx)
                return 0;
        memset(dx, 0, (size_t)(axis.outer * axis.n * axis.inner) * sizeof *dx);
        copy_part(&axis, layer->start, layer->end - layer->start, false, mfl_cpu_grad(net, i), dx);
        return 0;
}

static int transpose_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        turn(net, i, false, mfl_cpu_plain(net, net->graph->layers[i].input, 0), mfl_cpu_act(net, i));
        return 0;
}

static int transpose_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        if (dx)
                turn(pass->net, i, true, mfl_cpu_grad(pass->net, i), dx);
        return 0;
}

static int mean_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        struct mfl_axis axis = axis_of_input(net, i);
        net->device->loops->mean(
                &axis, mfl_cpu_plain(net, net->graph->layers[i].input, 0), mfl_cpu_act(net, i));
        return 0;
}

static int mean_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        struct mfl_axis axis = axis_of_input(pass->net, i);
        if (dx)
                pass->net->device->loops->mean_grad(&axis, mfl_cpu_grad(pass->net, i), dx);
        return 0;
}

static int weight_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const float *w = mfl_cpu_param(pass, net->graph->layers[i].param_weight);
        int64_t n = net->layers[i].layout.count;
        float *y = mfl_cpu_act(net, i);
        for (int64_t r = 0; r < net->rows; r++)
                memcpy(y + r * n, w, (size_t)n * sizeof *y);
        return 0;
}

static int weight_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        int param = net->graph->layers[i].param_weight;
        int64_t n = net->layers[i].layout.count;
        float *dw = mfl_cpu_param_grad(pass, i, param);
        if (dw)
                net->device->loops->column_sums(net->rows, n, n, mfl_cpu_grad(net, i), dw);
        mfl_cpu_take_grad(pass, i, param);
        return 0;
}

const struct mfl_cpu_op mfl_cpu_op_add = {MFL_CPU_PLAIN | MFL_CPU_YIELDS, join_forward, join_backward};
const struct mfl_cpu_op mfl_cpu_op_multiply = {MFL_CPU_PLAIN | MFL_CPU_YIELDS, join_forward, join_backward};
const struct mfl_cpu_op mfl_cpu_op_gate = {MFL_CPU_PLAIN | MFL_CPU_YIELDS, join_forward, join_backward};
const struct mfl_cpu_op mfl_cpu_op_concat = {MFL_CPU_PLAIN, concat_forward, concat_backward};
const struct mfl_cpu_op mfl_cpu_op_slice = {MFL_CPU_PLAIN, slice_forward, slice_backward};
const struct mfl_cpu_op mfl_cpu_op_transpose = {MFL_CPU_PLAIN, transpose_forward, transpose_backward};
const struct mfl_cpu_op mfl_cpu_op_mean = {MFL_CPU_PLAIN, mean_forward, mean_backward};
const struct mfl_cpu_op mfl_cpu_op_weight = {MFL_CPU_PLAIN | MFL_CPU_YIELDS, weight_forward, weight_backward};
