/* SPDX-License-Identifier: Apache-2.0 */
/* Logarithms of sums of exponentials, in layers that do not overflow. */
#include "cli/onnx/internal.h"

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

/* Over the last dimension: z is x less its maximum, and log(sum(exp(z))), with which no exponential overflows, and no
 * logarithm is of 0. The maximum's own gradient cancels. z: {1, rows, n}; the others: {1, rows, 1}. */
static int log_sums(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_z,
        struct onnx_value **ret_most, struct onnx_value **ret_log)
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
                (r = mfl_onnx_layer_value(o, layer, &each, ret_most)) ||
                (r = subtract(o, z, *ret_most, &z)) || (r = apply(o, MFL_OP_EXP, z, &v)) ||
                (r = mfl_onnx_add_sum(o, v, 4, false, &layer, &done)) ||
                (r = mfl_onnx_layer_value(o, layer, &each, &v)) || (r = apply(o, MFL_OP_LOG, v, ret_log)))
                return r;
        *ret_z = z;
        return 0;
}

int mfl_onnx_log_softmax(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view)
{
        struct onnx_value *z, *most, *log, *v;
        int r = log_sums(o, x, &z, &most, &log);
        if (r || (r = subtract(o, z, log, &v)))
                return r;
        return mfl_onnx_view(o, v, &x->shape, NULL, ret_view);
}

int mfl_onnx_log_sum_exp(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view)
{
        struct onnx_value *z, *most, *log;
        int r = log_sums(o, x, &z, &most, &log);
        return r ? r : mfl_onnx_combine(o, MFL_OP_ADD, most, log, ret_view);
}
