/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of indices as one layer: a strided view, or a gather where there are no strides. */
#include "cli/onnx/internal.h"

#define GATHER_MAX 16384 /* indices: a job's text has at most 256 KiB */

/* How often the first `block` elements repeat, each time shifted by `stride`. */
static int64_t count_blocks(const int32_t *map, int64_t n, int64_t block, int64_t stride)
{
        int64_t count = 1;
        for (; (count + 1) * block <= n; count++)
                for (int64_t i = 0; i < block; i++)
                        if (map[count * block + i] != map[i] + count * stride)
                                return count;
        return count;
}

/* Takes the longest run each time, from the innermost digit on. Where a run goes on beyond its digit, the next digit
 * would have continued it too. */
static bool find_digits(const int32_t *map, int64_t n, struct mfl_map_spec *ret_view)
{
        struct mfl_map_spec v = {.kind = MFL_MAP_VIEW, .offset = map[0]};
        int64_t block = 1;
        for (int64_t count; block < n || !v.n_digits; block *= count) {
                int64_t stride = block < n ? (int64_t)map[block] - map[0] : 1;
                count = count_blocks(map, n, block, stride);
                if (v.n_digits == MFL_MAP_DIGITS_MAX || n % (block * count))
                        return false;
                memmove(v.size + 1, v.size, (MFL_MAP_DIGITS_MAX - 1) * sizeof v.size[0]);
                memmove(v.stride + 1, v.stride, (MFL_MAP_DIGITS_MAX - 1) * sizeof v.stride[0]);
                v.size[0] = count;
                v.stride[0] = stride;
                v.n_digits++;
                if (block == n)
                        break;
        }
        *ret_view = v;
        return true;
}

int mfl_onnx_make_strided(
        struct onnx *o, const struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer)
{
        int64_t n = mfl_shape_count(shape);
        struct mfl_layer l = {.op = MFL_OP_MAP, .input = v->layer, .shape = *shape, .out = *shape};
        if (n < 1)
                return mfl_onnx_fail(o, "gives a tensor without elements");
        if (!find_digits(v->map, n, &l.map)) {
                if (n > GATHER_MAX)
                        return mfl_onnx_fail(o,
                                "reads %lld elements of an earlier layer in an order without a pattern; the "
                                "limit is "
                                "%d elements",
                                (long long)n, GATHER_MAX);
                l.map = (struct mfl_map_spec){.kind = MFL_MAP_GATHER, .index = v->map, .n_index = (int)n};
        }
        return mfl_onnx_derive(o, &l, o->node, ret_layer);
}
