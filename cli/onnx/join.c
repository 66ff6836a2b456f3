/* SPDX-License-Identifier: Apache-2.0 */
/* Joins two layers by a sum or a product; the smaller input may be repeated. */
#include "cli/onnx/internal.h"

static const char *const binaries[] = {
        "Add", "Sub", "Mul", "Div", "Pow", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", NULL};

bool mfl_onnx_is_binary(const char *op)
{
        for (int i = 0; binaries[i]; i++)
                if (!strcmp(binaries[i], op))
                        return true;
        return false;
}

/* Operators with a layer of their own: sums and products. */
bool mfl_onnx_is_arithmetic(const char *op)
{
        return mfl_onnx_is_binary(op) && strchr("ASMD", op[0]);
}

/* Where with a condition on the samples, not a constant mask. */
bool mfl_onnx_is_choice(const struct onnx *o)
{
        const struct onnx_value *c = mfl_onnx_input(o, 0);
        return !strcmp(mfl_onnx_node(o)->op_type, "Where") && c && !c->tensor;
}

/* The batch dimension, which both leave out: 1 in both. */
int mfl_onnx_batch_axis(const struct onnx_shape *shape)
{
        for (int d = 0; d < shape->rank && shape->rank > 1; d++)
                if (shape->dim[d] == 1)
                        return d;
        return -1;
}

int mfl_onnx_without(
        struct onnx *o, const struct onnx_shape *shape, int rank, int axis, struct mfl_shape *ret_shape)
{
        struct mfl_shape s = {0};
        int pad = rank - shape->rank;
        if (rank - (axis >= 0) > 3)
                return mfl_onnx_fail(o,
                        "%d-dimensional values are not supported; the limit is 3 dimensions and the batch",
                        rank);
        for (int d = 0; d < rank; d++) {
                int64_t dim = d < pad ? 1 : shape->dim[d - pad];
                if (d != axis)
                        s.dim[s.rank++] = dim;
                else if (dim != 1)
                        return mfl_onnx_fail(o, "the batch dimension is in an unexpected position");
        }
        *ret_shape = s.rank ? s : (struct mfl_shape){1, {1}}; /* a single number */
        return 0;
}

bool mfl_onnx_spreads(const struct mfl_shape *small, const struct mfl_shape *large)
{
        bool fits = small->rank == large->rank;
        for (int d = 0; fits && d < small->rank; d++)
                fits = small->dim[d] == large->dim[d] || small->dim[d] == 1;
        return fits;
}

bool mfl_onnx_repeats_one(const struct mfl_shape *a, const struct mfl_shape *b)
{
        bool first = false, second = false;
        for (int d = 0; d < a->rank; d++) {
                first = first || a->dim[d] < b->dim[d];
                second = second || b->dim[d] < a->dim[d];
        }
        return !first || !second;
}

int mfl_onnx_join(struct onnx *o, enum mfl_op op, int a, int b, const struct mfl_shape *sa,
        const struct mfl_shape *sb, const struct onnx_shape *shape, struct onnx_value **ret_view)
{
        struct mfl_layer l = {.op = op, .input = a, .input2 = b, .out = *sa};
        int layer, r;
        if (!mfl_onnx_spreads(sb, sa)) {
                if (!mfl_onnx_spreads(sa, sb))
                        return mfl_onnx_fail(
                                o, "both inputs would have to be repeated; mfl can repeat only one");
                mfl_assert(op != MFL_OP_GATE);
                l.input = b;
                l.input2 = a;
                l.out = *sb;
        }
        if (l.input == l.input2)
                return mfl_onnx_fail(o, "joins a value with itself");
        if ((r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, shape, ret_view);
}
