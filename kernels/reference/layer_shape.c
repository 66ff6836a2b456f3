/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that join, move or average tensors, in the reference backend. */
#include "kernels/reference/layer.h"

static struct mfl_ref_join join_of(const struct mfl_net *net, int i)
{
        return mfl_ref_join_of(in_shape(net, i), &net->graph->layers[net->graph->layers[i].input2].out);
}

static void join_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_join join = join_of(pass->net, i);
        mfl_ref_join_forward(&join, pass->rows, layer->op, x, mfl_ref_act(pass->net, layer->input2), y);
}

static void join_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_ref_join join = join_of(net, i);
        bool gates = layer->op == MFL_OP_GATE, multiplies = layer->op == MFL_OP_MULTIPLY;
        const mfl_real *x = multiplies ? mfl_ref_act(net, layer->input) : NULL;
        const mfl_real *x2 = multiplies || gates ? mfl_ref_act(net, layer->input2) : NULL;
        if (g->dx)
                mfl_ref_join_backward(&join, pass->rows, layer->op, x2, dy, g->add, g->dx);
        if (g->dx2 && gates && !g->add2)
                memset(g->dx2, 0,
                        (size_t)(pass->rows * join.dim2[0] * join.dim2[1] * join.dim2[2]) * sizeof *g->dx2);
        if (g->dx2 && !gates)
                mfl_ref_join_backward2(&join, pass->rows, x, dy, g->add2, g->dx2);
}

static void concat_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_axis axis = mfl_ref_axis_of(&layer->out, layer->axis, pass->rows);
        int64_t first = in_shape(pass->net, i)->dim[layer->axis], second = axis.n - first;
        mfl_ref_part_copy(&axis, 0, first, false, false, x, y);
        mfl_ref_part_copy(&axis, first, second, false, false, mfl_ref_act(pass->net, layer->input2), y);
}

static void concat_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_axis axis = mfl_ref_axis_of(&layer->out, layer->axis, pass->rows);
        int64_t first = in_shape(pass->net, i)->dim[layer->axis];
        if (g->dx)
                mfl_ref_part_copy(&axis, 0, first, true, g->add, dy, g->dx);
        if (g->dx2)
                mfl_ref_part_copy(&axis, first, axis.n - first, true, g->add2, dy, g->dx2);
}

static void slice_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_axis axis = mfl_ref_axis_of(in_shape(pass->net, i), layer->axis, pass->rows);
        mfl_ref_part_copy(&axis, layer->start, layer->end - layer->start, true, false, x, y);
}

/* A slice gives zeros to what it left out. */
static void slice_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        struct mfl_ref_axis axis = mfl_ref_axis_of(in_shape(pass->net, i), layer->axis, pass->rows);
        if (!g->dx)
                return;
        if (!g->add)
                memset(g->dx, 0, (size_t)(axis.outer * axis.n * axis.inner) * sizeof *g->dx);
        mfl_ref_part_copy(&axis, layer->start, layer->end - layer->start, false, true, dy, g->dx);
}

static void transpose_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        mfl_ref_transpose(
                in_shape(pass->net, i), pass->net->graph->layers[i].order, pass->rows, false, false, x, y);
}

static void transpose_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        if (g->dx)
                mfl_ref_transpose(in_shape(pass->net, i), pass->net->graph->layers[i].order, pass->rows, true,
                        g->add, dy, g->dx);
}

static void mean_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        struct mfl_ref_axis axis =
                mfl_ref_axis_of(in_shape(pass->net, i), pass->net->graph->layers[i].axis, pass->rows);
        mfl_ref_mean_forward(&axis, x, y);
}

static void mean_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        struct mfl_ref_axis axis =
                mfl_ref_axis_of(in_shape(pass->net, i), pass->net->graph->layers[i].axis, pass->rows);
        if (g->dx)
                mfl_ref_mean_backward(&axis, dy, g->add, g->dx);
}

static void weight_forward(const struct pass *pass, int i, const mfl_real *x, mfl_real *y)
{
        const struct mfl_net *net = pass->net;
        const mfl_real *w = param_of(net, pass->params, net->graph->layers[i].param_weight);
        for (int64_t r = 0, n = net->plan->layers[i].out_count; r < pass->rows; r++)
                memcpy(y + r * n, w, (size_t)n * sizeof *y);
}

static void weight_backward(const struct pass *pass, int i, const mfl_real *dy, const struct wanted *g)
{
        int64_t n = pass->net->plan->layers[i].out_count;
        for (int64_t k = 0; g->dw && k < n; k++) {
                double sum = 0;
                for (int64_t r = 0; r < pass->rows; r++)
                        sum += (double)dy[r * n + k];
                g->dw[k] = (mfl_real)sum;
        }
}

const struct mfl_ref_op mfl_ref_op_add = {join_forward, join_backward};
const struct mfl_ref_op mfl_ref_op_multiply = {join_forward, join_backward};
const struct mfl_ref_op mfl_ref_op_gate = {join_forward, join_backward};
const struct mfl_ref_op mfl_ref_op_concat = {concat_forward, concat_backward};
const struct mfl_ref_op mfl_ref_op_slice = {slice_forward, slice_backward};
const struct mfl_ref_op mfl_ref_op_transpose = {transpose_forward, transpose_backward};
const struct mfl_ref_op mfl_ref_op_mean = {mean_forward, mean_backward};
const struct mfl_ref_op mfl_ref_op_weight = {weight_forward, weight_backward};
