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
                o->log_softmax = true;
                mfl_onnx_note(o, "the LogSoftmax at the end was removed: the loss takes logits, as "
                                 "CrossEntropyLoss does");
                r = mfl_onnx_view(o, view, &view->shape, NULL, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (!last && (r = mfl_onnx_axis_last(o, view, (int)axis, &view)))
                return r;
        if ((r = log ? mfl_onnx_log_softmax(o, view, &v) : softmax(o, view, &v)) ||
                (!last && (r = mfl_onnx_axis_back(o, v, (int)axis, &x->shape, &v))))
                return r;
        return mfl_onnx_output(o, 0, v);
}
