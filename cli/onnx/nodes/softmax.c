/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and LogSoftmax over any dimension of a sample. */
#include "cli/onnx/internal.h"

static bool is_output(const struct onnx *o)
{
        for (size_t i = 0; i < o->graph->n_output; i++)
                if (o->graph->output[i]->name &&
                        !strcmp(o->graph->output[i]->name, mfl_onnx_node(o)->output[0]))
                        return true;
        return false;
}

/* The layer's numbers under a function without settings. */
static int apply(struct onnx *o, enum mfl_op op, const struct onnx_value *of, struct onnx_value **ret_view)
{
        struct mfl_layer l = {.op = op, .input = of->layer, .out = *mfl_onnx_layer_shape(o, of->layer)};
        int layer, r = mfl_onnx_derive(o, &l, o->node, &layer);
        if (r || (r = mfl_onnx_view(o, of, &of->shape, NULL, ret_view)))
                return r;
        (*ret_view)->layer = layer;
        return 0;
}

/* a - b, both {rows, ..}. */
static int subtract(
        struct onnx *o, struct onnx_value *a, const struct onnx_value *b, struct onnx_value **ret_view)
{
        struct onnx_value *negative;
        int r = apply(o, MFL_OP_NEG, b, &negative);
        return r ? r : mfl_onnx_combine(o, MFL_OP_ADD, a, negative, ret_view);
}

/* z - log(sum(exp(z))) over the last dimension, where z is x less its maximum: no exponential overflows, and no logarithm
 * is of 0. The maximum's own gradient cancels. */
static int log_softmax(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view)
{
        int64_t n = x->shape.dim[x->shape.rank - 1], count = mfl_onnx_count(&x->shape);
        struct onnx_shape rows = {3, {1, count / n, n}}, each = {3, {1, count / n, 1}};
        struct mfl_layer most = {.op = MFL_OP_GLOBAL_MAXPOOL2D, .out = {3, {count / n, 1, 1}}};
        struct mfl_shape in = {3, {count / n, 1, n}};
        struct onnx_value *z, *v;
        bool done;
        int layer, r;
        if ((r = mfl_onnx_view(o, x, &rows, NULL, &z)) || (r = mfl_onnx_view_layer(o, z, &in, &most.input)) ||
                (r = mfl_onnx_add_layer(o, &most, NULL, o->node, &layer)) ||
                (r = mfl_onnx_layer_value(o, layer, &each, &v)) || (r = subtract(o, z, v, &z)) ||
                (r = apply(o, MFL_OP_EXP, z, &v)) || (r = mfl_onnx_add_sum(o, v, 4, false, &layer, &done)) ||
                (r = mfl_onnx_layer_value(o, layer, &each, &v)) || (r = apply(o, MFL_OP_LOG, v, &v)) ||
                (r = subtract(o, z, v, &v)))
                return r;
        return mfl_onnx_view(o, v, &x->shape, NULL, ret_view);
}

static int softmax(struct onnx *o, struct onnx_value *x, struct onnx_value **ret_view)
{
        struct mfl_layer l = {.op = MFL_OP_SOFTMAX};
        int layer, r;
        mfl_onnx_rows_shape(x, &l.out);
        if ((r = mfl_onnx_layer_of(o, x, &l.out, &l.input)) ||
                (r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, &x->shape, ret_view);
}

int mfl_onnx_softmax(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *view, *v;
        int64_t axis = mfl_onnx_int(o, "axis", o->opset < 13 ? 1 : -1);
        bool log = !strcmp(mfl_onnx_node(o)->op_type, "LogSoftmax");
        int r = mfl_onnx_resolve(o, x, &view);
        if (r)
                return r;
        axis += axis < 0 ? x->shape.rank : 0;
        if (axis < 0 || axis >= x->shape.rank || (axis == 0 && x->shape.rank > 1 && x->shape.dim[0] == 1))
                return mfl_onnx_fail(o, "is over the batch; choose a dimension of the sample (dim=-1)");
        bool last = axis == x->shape.rank - 1;
        if (log && is_output(o) && last) {
                mfl_onnx_note(o, "the LogSoftmax at the end was removed: the loss takes logits, as "
                                 "CrossEntropyLoss does");
                r = mfl_onnx_view(o, view, &view->shape, NULL, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (!last && (r = mfl_onnx_axis_last(o, view, (int)axis, &view)))
                return r;
        if ((r = log ? log_softmax(o, view, &v) : softmax(o, view, &v)) ||
                (!last && (r = mfl_onnx_axis_back(o, v, (int)axis, &x->shape, &v))))
                return r;
        return mfl_onnx_output(o, 0, v);
}
