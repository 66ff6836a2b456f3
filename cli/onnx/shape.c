/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes: element counts, and NumPy broadcasting of two shapes. */
#include "cli/onnx/internal.h"

int64_t mfl_onnx_count(const struct onnx_shape *shape)
{
        int64_t n = 1;
        for (int d = 0; d < shape->rank; d++)
                n *= shape->dim[d];
        return n;
}

int mfl_onnx_broadcast(
        struct onnx *o, const struct onnx_shape *a, const struct onnx_shape *b, struct onnx_shape *ret)
{
        struct onnx_shape s = {.rank = MFL_MAX(a->rank, b->rank)};
        int64_t n = 1;
        for (int d = 0; d < s.rank; d++) {
                int da = d - (s.rank - a->rank), db = d - (s.rank - b->rank);
                int64_t x = da < 0 ? 1 : a->dim[da], y = db < 0 ? 1 : b->dim[db];
                if (x != y && x != 1 && y != 1)
                        return mfl_onnx_fail(o,
                                "dimensions %lld and %lld don't match; export the model with a batch of 1, "
                                "with dynamic_axes, or by mfl_export.save(net, example, file)",
                                (long long)x, (long long)y);
                s.dim[d] = x == 1 ? y : x;
                if ((n *= s.dim[d]) > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "the result is too large");
        }
        *ret = s;
        return 0;
}

int64_t mfl_onnx_broadcast_at(const struct onnx_shape *out, int64_t i, const struct onnx_shape *in)
{
        int64_t at = 0, stride = 1;
        for (int d = out->rank - 1, k = in->rank - 1; k >= 0; d--, k--) {
                at += in->dim[k] == 1 ? 0 : i % out->dim[d] * stride;
                stride *= in->dim[k];
                i /= out->dim[d];
        }
        return at;
}
