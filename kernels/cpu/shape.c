/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that move or join tensors, in plain order but for a product of two tensors of one layout. */
#include "kernels/cpu/pass.h"

static struct mfl_axis axis_of(const struct mfl_net *net, const struct mfl_shape *shape, int axis)
{
        struct mfl_axis v = {.outer = net->options.batch, .n = shape->dim[axis], .inner = 1};
        for (int d = 0; d < axis; d++)
                v.outer *= shape->dim[d];
        for (int d = axis + 1; d < shape->rank; d++)
                v.inner *= shape->dim[d];
        return v;
}

/* Two tensors of one shape and layout are joined as they lie. */
static struct mfl_join join_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *x = &layer->out, *x2 = &net->graph->layers[layer->input2].out;
        struct mfl_join v = {.rows = net->options.batch, .dim = {1, 1, 1}, .dim2 = {1, 1, 1}};
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

/* What layer i reads of its input, as it is joined. */
static const float *joined(const struct mfl_net *net, int i, int which)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        int input = which ? layer->input2 : layer->input;
        return net->layers[i].plain ? mfl_cpu_plain(net, input, which) : mfl_cpu_act(net, input);
}

/* Indices [first, first + n) of an axis: out of the whole tensor, or into it. */
static void copy_part(
        const struct mfl_axis *whole, int64_t first, int64_t n, bool out, const float *from, float *to)
{
        size_t bytes = (size_t)(n * whole->inner) * sizeof *to;
        for (int64_t o = 0; o < whole->outer; o++) {
                int64_t large = (o * whole->n + first) * whole->inner, small = o * n * whole->inner;
                memcpy(to + (out ? small : large), from + (out ? large : small), bytes);
        }
}

/* Lines along the output's last dimension, whose elements lie `step` apart in the input. */
static void transpose(
        const struct mfl_net *net, int i, bool back, const float *restrict from, float *restrict to)
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
        for (int64_t r = 0; r < net->options.batch; r++)
                for (int64_t a = 0; a < dim[0]; a++)
                        for (int64_t b = 0; b < dim[1]; b++, e += dim[2]) {
                                int64_t line = r * count + a * stride[0] + b * stride[1], step = stride[2];
                                for (int64_t c = 0; !back && c < dim[2]; c++)
                                        to[e + c] = from[line + c * step];
                                for (int64_t c = 0; back && c < dim[2]; c++)
                                        to[line + c * step] = from[e + c];
                        }
}

void mfl_cpu_shape_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = layer->input < 0 ? NULL : &net->graph->layers[layer->input].out;
        int64_t first, n = net->layers[i].layout.count;
        float *y = mfl_cpu_act(net, i);
        struct mfl_axis axis;
        struct mfl_join join;
        switch (layer->op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
                join = join_of(net, i);
                net->device->loops->join(
                        &join, layer->op == MFL_OP_MULTIPLY, joined(net, i, 0), joined(net, i, 1), y);
                break;
        case MFL_OP_CONCAT:
                axis = axis_of(net, &layer->out, layer->axis);
                first = in->dim[layer->axis];
                copy_part(&axis, 0, first, false, mfl_cpu_plain(net, layer->input, 0), y);
                copy_part(&axis, first, axis.n - first, false, mfl_cpu_plain(net, layer->input2, 1), y);
                break;
        case MFL_OP_SLICE:
                axis = axis_of(net, in, layer->axis);
                copy_part(&axis, layer->start, layer->end - layer->start, true,
                        mfl_cpu_plain(net, layer->input, 0), y);
                break;
        case MFL_OP_TRANSPOSE:
                transpose(net, i, false, mfl_cpu_plain(net, layer->input, 0), y);
                break;
        case MFL_OP_MEAN:
                axis = axis_of(net, in, layer->axis);
                net->device->loops->mean(&axis, mfl_cpu_plain(net, layer->input, 0), y);
                break;
        default: /* weight */
                for (int64_t r = 0; r < net->options.batch; r++)
                        memcpy(y + r * n, mfl_cpu_param(pass, layer->param_weight), (size_t)n * sizeof *y);
        }
}

static void join_backward(const struct mfl_net *net, int i, const float *dy, float *dx, float *dx2)
{
        const struct mfl_loops *loops = net->device->loops;
        struct mfl_join join = join_of(net, i);
        bool multiplies = net->graph->layers[i].op == MFL_OP_MULTIPLY;
        size_t bytes = (size_t)mfl_cpu_floats(net, i) * sizeof *dx;
        if (dx2)
                loops->join_grad2(&join, multiplies ? joined(net, i, 0) : NULL, dy, dx2);
        if (dx && multiplies)
                loops->join(&join, true, dy, joined(net, i, 1), dx);
        else if (dx && dx != dy)
                memcpy(dx, dy, bytes);
}

static void concat_backward(const struct mfl_net *net, int i, const float *dy, float *dx, float *dx2)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_axis axis = axis_of(net, &layer->out, layer->axis);
        int64_t first = net->graph->layers[layer->input].out.dim[layer->axis];
        if (dx)
                copy_part(&axis, 0, first, true, dy, dx);
        if (dx2)
                copy_part(&axis, first, axis.n - first, true, dy, dx2);
}

void mfl_cpu_shape_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i);
        int64_t n = net->layers[i].layout.count;
        float *dw = mfl_cpu_param_grad(pass, layer->param_weight);
        struct mfl_axis axis;
        if (layer->op == MFL_OP_WEIGHT) {
                if (dw)
                        net->device->loops->column_sums(net->options.batch, n, n, dy, dw);
                mfl_cpu_take_grad(pass, layer->param_weight);
        } else if (layer->op == MFL_OP_ADD || layer->op == MFL_OP_MULTIPLY) {
                join_backward(net, i, dy, dx, dx2);
        } else if (layer->op == MFL_OP_CONCAT) {
                concat_backward(net, i, dy, dx, dx2);
        } else if (!dx) {
                return;
        } else if (layer->op == MFL_OP_TRANSPOSE) {
                transpose(net, i, true, dy, dx);
        } else if (layer->op == MFL_OP_MEAN) {
                axis = axis_of(net, &net->graph->layers[layer->input].out, layer->axis);
                net->device->loops->mean_grad(&axis, dy, dx);
        } else { /* slice: zeros for what it left out */
                axis = axis_of(net, &net->graph->layers[layer->input].out, layer->axis);
                memset(dx, 0, (size_t)(axis.outer * axis.n * axis.inner) * sizeof *dx);
                copy_part(&axis, layer->start, layer->end - layer->start, false, dy, dx);
        }
}
