/* SPDX-License-Identifier: Apache-2.0 */
/* ScatterND with constant indices (`x[:, 2:4] = 0`, `x[:, 0] = y`): 0 where something is written and the data elsewhere, plus
 * what is written. */
#include "cli/onnx/internal.h"

/* The data under op with the tensor, which is no parameter. */
static int combine(struct onnx *o, enum mfl_op op, struct onnx_value *x, struct onnx_tensor *t,
        struct onnx_value **ret_view)
{
        struct onnx_value *constant, *lifted;
        int r = mfl_onnx_new_value(o, &t->shape, &constant);
        if (r)
                return r;
        constant->tensor = t;
        r = mfl_onnx_lift(o, constant, &lifted);
        return r ? r : mfl_onnx_combine(o, op, x, lifted, ret_view);
}

/* Computed updates where they are written, and 0 elsewhere: a view of them behind a gate. */
static int spread(struct onnx *o, const struct onnx_shape *shape, const struct onnx_tensor *kept,
        struct onnx_value **ret_view)
{
        struct onnx_value *updates = mfl_onnx_input(o, 2), *u, *v, before;
        struct onnx_tensor *numbers, *at, *written;
        int r = mfl_onnx_resolve(o, updates, &u);
        if (r || (r = mfl_onnx_fold_new(o, &updates->shape, true, &numbers)))
                return r;
        for (int64_t i = 0; i < numbers->count; i++)
                mfl_onnx_fold_put(numbers, i, (double)i);
        before = *updates;
        updates->tensor = numbers; /* which of them is written where */
        r = mfl_onnx_fold_scattered(o, shape, 0, NULL, &at);
        *updates = before;
        if (r || (r = mfl_onnx_fold_new(o, shape, true, &written)))
                return r;
        int32_t *map = mfl_onnx_alloc(o, (size_t)at->count + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < at->count; i++) {
                map[i] = (int32_t)at->f[i];
                mfl_onnx_fold_put(written, i, 1 - (double)kept->f[i]);
        }
        r = mfl_onnx_view(o, u, shape, map, &v);
        return r ? r : combine(o, MFL_OP_GATE, v, written, ret_view);
}

int mfl_onnx_scatter(struct onnx *o)
{
        static const float zero = 0;
        struct onnx_value *x = mfl_onnx_input(o, 0), *index = mfl_onnx_input(o, 1),
                          *updates = mfl_onnx_input(o, 2), *v, *own;
        struct onnx_tensor *kept, *put;
        bool any = false;
        if (!x || !index || !index->tensor || !updates || (x->tensor && !x->tensor->f) ||
                (updates->tensor && updates->tensor->param))
                return mfl_onnx_fail(
                        o, "writes at computed places, or a parameter; join the parts with torch.cat");
        int r = x->tensor ? mfl_onnx_lift(o, x, &x) : mfl_onnx_resolve(o, x, &x);
        if (r || (r = mfl_onnx_fold_scattered(o, &x->shape, 1, &zero, &kept)) ||
                (r = combine(o, MFL_OP_GATE, x, kept, &v)))
                return r;
        if (!updates->tensor) {
                if ((r = spread(o, &x->shape, kept, &own)) ||
                        (r = mfl_onnx_combine(o, MFL_OP_ADD, v, own, &v)))
                        return r;
                return mfl_onnx_output(o, 0, v);
        }
        if ((r = mfl_onnx_fold_scattered(o, &x->shape, 0, NULL, &put)))
                return r;
        for (int64_t i = 0; i < put->count; i++)
                any = any || put->f[i] != 0;
        if (any && (r = combine(o, MFL_OP_ADD, v, put, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* Computed values at constant places: a view of them. */
static int gather_view(struct onnx *o, struct onnx_value *data)
{
        struct onnx_value *view, *out, *v, before;
        struct onnx_tensor *numbers;
        int r = mfl_onnx_resolve(o, data, &view);
        if (r || (r = mfl_onnx_fold_new(o, &data->shape, true, &numbers)))
                return r;
        for (int64_t i = 0; i < numbers->count; i++)
                mfl_onnx_fold_put(numbers, i, (double)i);
        before = *data;
        data->tensor = numbers; /* which of them is where */
        r = mfl_onnx_fold_gather_elements(o);
        *data = before;
        out = r ? NULL : mfl_onnx_find(o, mfl_onnx_node(o)->output[0]);
        if (!out)
                return r;
        int uses = out->uses;
        int32_t *map = mfl_onnx_alloc(o, (size_t)out->tensor->count + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < out->tensor->count; i++)
                map[i] = (int32_t)mfl_onnx_number(out->tensor, i);
        if ((r = mfl_onnx_view(o, view, &out->shape, map, &v)))
                return r;
        *out = *v;
        out->uses = uses;
        out->node = o->node;
        return 0;
}

/* Equal numbers, whatever the indices: the token types of Hugging Face's models. */
int mfl_onnx_gather_elements(struct onnx *o)
{
        struct onnx_value *data = mfl_onnx_input(o, 0), *at = mfl_onnx_input(o, 1);
        struct onnx_tensor *t;
        bool same = true;
        if (!data->tensor && at && at->tensor && at->tensor->i)
                return gather_view(o, data);
        for (int64_t i = 1; data->tensor && i < data->tensor->count; i++)
                same = same && mfl_onnx_number(data->tensor, i) == mfl_onnx_number(data->tensor, 0);
        if (!same || !data->tensor || data->tensor->count < 1 || data->tensor->param || !at)
                return mfl_onnx_fail(o, "is supported with constant indices; mfl_export.save writes computed "
                                        "ones of up to 256 "
                                        "places; else select rows with nn.Embedding");
        int r = mfl_onnx_fold_new(o, &at->shape, data->tensor->f, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, mfl_onnx_number(data->tensor, 0));
        return r ? r : mfl_onnx_fold_output(o, t);
}
