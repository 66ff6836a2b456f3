/* SPDX-License-Identifier: Apache-2.0 */
/* Where a file's fixed batch is, in values where it is not first: behind a recurrent node, which has it behind the positions. There
 * a shape of the file has the batch's number, and mfl's shape a 1. */
#include "cli/onnx/internal.h"

/* The file's dimensions: of them, -1 follows from the others, and 0 is that of the value. */
static bool full_shape(const struct onnx *o, const struct onnx_value *in, const int64_t *dims, int n,
        bool allow_zero, struct onnx_shape *ret_shape)
{
        int64_t have = mfl_onnx_count(&in->shape), known = 1;
        int open = -1;
        struct onnx_shape s = {.rank = n};
        if (__builtin_mul_overflow(have, o->batch, &have))
                return false;
        for (int d = 0; d < n; d++) {
                int64_t v = dims[d];
                if (v == 0 && !allow_zero)
                        v = d >= in->shape.rank ? -2 : d + 1 == in->batch_at ? o->batch : in->shape.dim[d];
                if (v < -1 || v == 0 || (v == -1 && open >= 0))
                        return false;
                if (v == -1)
                        open = d;
                else if (__builtin_mul_overflow(known, v, &known))
                        return false;
                s.dim[d] = v;
        }
        if (open >= 0 ? have % known : have != known)
                return false;
        if (open >= 0)
                s.dim[open] = have / known;
        *ret_shape = s;
        return true;
}

/* The batch stays a dimension of its own where as many numbers lie before it as did. */
bool mfl_onnx_batch_reshape(const struct onnx *o, const struct onnx_value *in, const int64_t *dims, int n,
        bool allow_zero, struct onnx_shape *ret_shape, int *ret_batch_at)
{
        struct onnx_shape s;
        int64_t before = 1, passed = 1;
        int d = 0;
        if (!full_shape(o, in, dims, n, allow_zero, &s))
                return false;
        for (int k = 0; k + 1 < in->batch_at; k++)
                before *= in->shape.dim[k];
        while (d < n && (passed < before || (passed == before && s.dim[d] == 1)))
                passed *= s.dim[d++];
        if (d == n || passed != before || s.dim[d] != o->batch)
                return false;
        s.dim[d] = 1;
        *ret_shape = s;
        *ret_batch_at = d + 1;
        return true;
}

int mfl_onnx_batch_transpose(const struct onnx *o, const struct onnx_value *in)
{
        const Onnx__AttributeProto *perm = mfl_onnx_attribute(o, "perm");
        for (int d = 0; d < in->shape.rank && in->batch_at; d++)
                if ((perm ? perm->ints[d] : in->shape.rank - 1 - d) == in->batch_at - 1)
                        return d + 1;
        return 0;
}

int mfl_onnx_batch_squeeze(const struct onnx_value *in, const struct onnx_shape *out, unsigned axes, bool un)
{
        int at = 0, rank = un ? out->rank : in->shape.rank;
        for (int d = 0, a = 0, b = 0; d < rank && in->batch_at; d++) {
                bool marked = axes >> d & 1;
                if (!(un && marked) && a + 1 == in->batch_at)
                        at = marked ? 0 : b + 1;
                a += !(un && marked);
                b += un || !marked;
        }
        return at;
}
