/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of tensors: PyTorch's current exporter writes torch.split as one, and takes its elements by number. */
#include <math.h>

#include "cli/onnx/internal.h"

/* Element i of the list that the current node, a SplitToSequence, makes: [*ret_at, *ret_at + *ret_size) of *ret_axis. */
static int part_of(struct onnx *o, const struct onnx_shape *in, int64_t i, int *ret_axis, int64_t *ret_at,
        int64_t *ret_size)
{
        const int64_t *sizes;
        int64_t axis = mfl_onnx_int(o, "axis", 0), at = 0;
        int n, r = mfl_onnx_ints(o, NULL, 1, &sizes, &n);
        axis += axis < 0 ? in->rank : 0;
        if (r || axis < 0 || axis >= in->rank)
                return r ? r : mfl_onnx_fail(o, "has no dimension %lld", (long long)axis);
        const struct onnx_value *split = mfl_onnx_input(o, 1);
        int64_t length = in->dim[axis], each = n < 0 ? 1 : n ? MFL_MIN(sizes[0], length) : 0;
        bool equal = n < 0 || (split && split->shape.rank == 0);
        int64_t count = equal ? each > 0 ? (length + each - 1) / each : 0 : n;
        i += i < 0 ? count : 0;
        if (i < 0 || i >= count)
                return mfl_onnx_fail(o, "has %lld parts", (long long)count);
        if (equal)
                at = i * each;
        for (int64_t k = 0; !equal && k < i; k++)
                at += sizes[k] < 0 || sizes[k] > length ? length : sizes[k];
        int64_t size = equal ? MFL_MIN(each, length - at) : sizes[i];
        if (size < 1 || at > length - size)
                return mfl_onnx_fail(o, "its parts exceed the dimension of %lld", (long long)length);
        *ret_axis = (int)axis;
        *ret_at = at;
        *ret_size = size;
        return 0;
}

static int split_step(struct onnx *o)
{
        struct onnx_value *in = mfl_onnx_input(o, 0), *v;
        int r = in ? 0 : mfl_onnx_fail(o, "input 0 is missing");
        if (!r && in->tensor)
                r = mfl_onnx_fail(o, "splits a constant");
        if (!r)
                r = mfl_onnx_settle(o, in, &in);
        if (!r)
                r = mfl_onnx_new_value(o, &in->shape, &v);
        if (r)
                return r;
        v->pending = ONNX_LIST;
        v->base = in;
        v->node = o->node;
        return mfl_onnx_output(o, 0, v);
}

static int at_step(struct onnx *o, const struct onnx_value *list)
{
        const struct onnx_value *in = list->base;
        struct onnx_shape shape = in->shape;
        struct onnx_value *v;
        double i;
        int64_t at = 0, size = 0, inner = 1;
        int axis = 0, node = o->node, r;
        if (!mfl_onnx_scalar(mfl_onnx_input(o, 1), &i) || !(fabs(i) <= ONNX_ELEMENTS_MAX))
                return mfl_onnx_fail(o, "needs a constant number");
        o->node = list->node;
        r = part_of(o, &in->shape, (int64_t)i, &axis, &at, &size);
        bool keeps = mfl_onnx_input(o, 1) || mfl_onnx_int(o, "keepdims", 1);
        o->node = node;
        if (r)
                return r;
        shape.dim[axis] = size;
        for (int d = axis + 1; d < shape.rank; d++)
                inner *= shape.dim[d];
        int64_t n = mfl_onnx_count(&shape), run = size * inner, whole = in->shape.dim[axis] * inner;
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t k = 0; k < n; k++)
                map[k] = (int32_t)(k / run * whole + at * inner + k % run);
        if (!keeps) {
                for (int d = axis; d + 1 < shape.rank; d++)
                        shape.dim[d] = shape.dim[d + 1];
                shape.rank--;
        }
        r = mfl_onnx_view(o, in, &shape, map, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

int mfl_onnx_sequence_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        const struct onnx_value *first = mfl_onnx_input(o, 0);
        *ret_taken = true;
        if (!strcmp(op, "SplitToSequence"))
                return split_step(o);
        if (!strcmp(op, "SequenceAt") && first && !first->tensor && first->pending == ONNX_LIST)
                return at_step(o, first);
        *ret_taken = false;
        return 0;
}
