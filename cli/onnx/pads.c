/* SPDX-License-Identifier: Apache-2.0 */
/* What a Pad node says. */
#include "cli/onnx/internal.h"

/* pads[d]: before and after dimension d. */
int mfl_onnx_read_pads(struct onnx *o, int rank, int64_t pads[ONNX_RANK_MAX][2])
{
        const int64_t *v, *axes;
        int n, n_axes, r = mfl_onnx_ints(o, "pads", 1, &v, &n);
        if (!r)
                r = mfl_onnx_ints(o, NULL, 3, &axes, &n_axes);
        if (r)
                return r;
        int count = n_axes < 0 ? rank : n_axes;
        memset(pads, 0, ONNX_RANK_MAX * sizeof *pads);
        if (n != 2 * count || count > rank)
                return mfl_onnx_fail(o, "%d pads for %d dimensions", n, count);
        for (int k = 0; k < count; k++) {
                int64_t d = n_axes < 0 ? k : axes[k] < 0 ? axes[k] + rank : axes[k];
                if (d < 0 || d >= rank)
                        return mfl_onnx_fail(o, "axis %lld; there are %d dimensions", (long long)d, rank);
                pads[d][0] = v[k];
                pads[d][1] = v[k + count];
        }
        return 0;
}

bool mfl_onnx_pads_nothing(const struct onnx *o)
{
        const struct onnx_value *pads = mfl_onnx_input(o, 1);
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "pads");
        if (a) {
                for (size_t i = 0; i < a->n_ints; i++)
                        if (a->ints[i])
                                return false;
                return true;
        }
        if (!pads || !pads->tensor || !pads->tensor->i)
                return false;
        for (int64_t i = 0; i < pads->tensor->count; i++)
                if (pads->tensor->i[i])
                        return false;
        return true;
}

int mfl_onnx_pad_mode(struct onnx *o, enum mfl_map_mode *ret_mode)
{
        static const char *const names[] = {[MFL_MAP_CONSTANT] = "constant",
                [MFL_MAP_REFLECT] = "reflect",
                [MFL_MAP_REPLICATE] = "edge",
                [MFL_MAP_CIRCULAR] = "wrap"};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(names); k++)
                if (mfl_onnx_string_is(o, "mode", "constant", names[k])) {
                        *ret_mode = (enum mfl_map_mode)k;
                        return 0;
                }
        return mfl_onnx_fail(o, "the mode is not one of constant, reflect, edge, wrap");
}
