/* SPDX-License-Identifier: Apache-2.0 */
/* Writes sparse linear maps as ONNX nodes: those with a node of their own as that; others as a Gather, and a sum where
 * elements have several terms. */
#include "cli/onnx/write.h"

#define NODE(w, op, output, ...)                                                                             \
        mfl_onnx_writer_node(w, op, output, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),   \
                (const char *[]){__VA_ARGS__})

static const char *reshape_to(struct onnx_writer *w, const char *in, const char *output, const char *what,
        const int64_t *dims, int n)
{
        return NODE(w, "Reshape", output, in, mfl_onnx_writer_whole(w, what, dims, n));
}

static void write_reduction(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const struct mfl_shape *shape = &w->graph->layers[l->input].out;
        int64_t axes[MFL_SHAPE_RANK_MAX];
        int n = 0;
        for (int d = 0; d < shape->rank; d++)
                if (l->map.axes >> d & 1)
                        axes[n++] = d + 1;
        bool all = n == shape->rank && !l->map.keepdim, sum = l->map.kind == MFL_MAP_SUM;
        const char *made = all ? mfl_onnx_writer_name(w, "reduced") : out;
        if (sum)
                NODE(w, "ReduceSum", made, in, mfl_onnx_writer_whole(w, "axes", axes, n));
        else
                NODE(w, "ReduceMean", made, in);
        if (!sum)
                mfl_onnx_writer_ints(w, "axes", axes, n);
        mfl_onnx_writer_int(w, "keepdims", l->map.keepdim);
        if (all) /* one number is {1} here, and {} in ONNX */
                reshape_to(w, made, out, "shape", (const int64_t[]){-1, 1}, 2);
}

static void write_pad(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        static const char *const modes[] = {
                [MFL_MAP_CONSTANT] = "constant", [MFL_MAP_REFLECT] = "reflect", [MFL_MAP_REPLICATE] = "edge"};
        int rank = l->out.rank;
        int64_t pads[2 * (MFL_SHAPE_RANK_MAX + 1)] = {0};
        for (int d = 0; d < rank; d++) {
                pads[1 + d] = l->map.before[d];
                pads[rank + 2 + d] = l->map.after[d];
        }
        const char *amounts = mfl_onnx_writer_whole(w, "pads", pads, 2 * (rank + 1));
        if (l->map.mode == MFL_MAP_CONSTANT)
                NODE(w, "Pad", out, in, amounts, mfl_onnx_writer_scalar(w, "value", l->map.value));
        else
                NODE(w, "Pad", out, in, amounts);
        mfl_onnx_writer_string(w, "mode", modes[l->map.mode]);
}

static void write_resize(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        static const char *const modes[] = {[MFL_MAP_NEAREST] = "nearest",
                [MFL_MAP_NEAREST_EXACT] = "nearest",
                [MFL_MAP_BILINEAR] = "linear",
                [MFL_MAP_BICUBIC] = "cubic"};
        bool nearest = l->map.mode == MFL_MAP_NEAREST;
        if (l->map.to[0]) { /* the batch keeps its size */
                const int64_t to[] = {l->out.dim[1], l->out.dim[2]};
                const char *all = NODE(w, "Shape", mfl_onnx_writer_name(w, "all"), in);
                const char *kept = NODE(w, "Slice", mfl_onnx_writer_name(w, "kept"), all,
                        mfl_onnx_writer_whole(w, "from", (const int64_t[]){0}, 1),
                        mfl_onnx_writer_whole(w, "until", (const int64_t[]){2}, 1));
                const char *sizes = NODE(w, "Concat", mfl_onnx_writer_name(w, "sizes"), kept,
                        mfl_onnx_writer_whole(w, "to", to, 2));
                mfl_onnx_writer_int(w, "axis", 0);
                NODE(w, "Resize", out, in, "", "", sizes);
        } else {
                const float scales[] = {1, 1, (float)l->map.scale_factor[0], (float)l->map.scale_factor[1]};
                NODE(w, "Resize", out, in, "",
                        mfl_onnx_writer_numbers(w, "scales", scales, (const int64_t[]){4}, 1));
        }
        mfl_onnx_writer_string(w, "mode", modes[l->map.mode]);
        mfl_onnx_writer_string(w, "coordinate_transformation_mode",
                nearest                ? "asymmetric"
                : l->map.align_corners ? "align_corners"
                                       : "half_pixel");
        if (nearest || l->map.mode == MFL_MAP_NEAREST_EXACT)
                mfl_onnx_writer_string(w, "nearest_mode", nearest ? "floor" : "round_prefer_ceil");
        if (l->map.mode == MFL_MAP_BICUBIC)
                mfl_onnx_writer_float(w, "cubic_coeff_a", -0.75f);
}

static void write_cumsum(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int axis = 0;
        while (!(l->map.axes >> axis & 1))
                axis++;
        const int64_t at = axis + 1;
        NODE(w, "CumSum", out, in, mfl_onnx_writer_whole(w, "axis", &at, -1));
}

static void write_avgpool(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const int *p = l->padding;
        NODE(w, "AveragePool", out, in);
        mfl_onnx_writer_ints(w, "kernel_shape", (const int64_t[]){l->kernel[0], l->kernel[1]}, 2);
        mfl_onnx_writer_ints(w, "strides", (const int64_t[]){l->stride[0], l->stride[1]}, 2);
        mfl_onnx_writer_ints(w, "pads", (const int64_t[]){p[0], p[1], p[0], p[1]}, 4);
        mfl_onnx_writer_int(w, "count_include_pad", 0);
        if (l->ceil_mode)
                mfl_onnx_writer_int(w, "ceil_mode", 1);
}

/* Rows of k terms each; what a row lacks has weight 0. */
static void write_terms(struct onnx_writer *w, const struct mfl_map *map, const char *in, const char *out,
        const struct mfl_shape *shape)
{
        const struct mfl_map_rows *rows = &map->y;
        int64_t k = 1, whole[MFL_SHAPE_RANK_MAX + 1] = {-1};
        for (int64_t r = 0; rows->first && r < rows->n; r++)
                k = MFL_MAX(k, rows->first[r + 1] - rows->first[r]);
        int64_t *index = mfl_onnx_writer_alloc(w, (size_t)(rows->n * k), sizeof *index);
        float *weight = mfl_onnx_writer_alloc(w, (size_t)(rows->n * k), sizeof *weight);
        if (!index || !weight)
                return;
        memset(index, 0, (size_t)(rows->n * k) * sizeof *index);
        memset(weight, 0, (size_t)(rows->n * k) * sizeof *weight);
        for (int64_t r = 0; r < rows->n; r++) {
                int64_t from = rows->first ? rows->first[r] : r,
                        end = rows->first ? rows->first[r + 1] : r + 1;
                for (int64_t t = from; t < end; t++) {
                        index[r * k + t - from] = rows->index[t];
                        weight[r * k + t - from] = rows->weight ? rows->weight[t] : 1;
                }
        }
        memcpy(whole + 1, shape->dim, sizeof shape->dim);
        const char *v = reshape_to(w, in, mfl_onnx_writer_name(w, "blocks"), "split",
                (const int64_t[]){-1, map->outer, map->n_in, map->inner}, 4);
        v = NODE(w, "Gather", mfl_onnx_writer_name(w, "taken"), v,
                mfl_onnx_writer_indices(w, "index", index, (const int64_t[]){rows->n, k}, k > 1 ? 2 : 1));
        mfl_onnx_writer_int(w, "axis", 2);
        if (k > 1 || rows->weight) {
                v = NODE(w, "Mul", mfl_onnx_writer_name(w, "weighted"), v,
                        mfl_onnx_writer_numbers(w, "weights", weight, (const int64_t[]){rows->n, k, 1}, 3));
                v = NODE(w, "ReduceSum", mfl_onnx_writer_name(w, "sums"), v,
                        mfl_onnx_writer_whole(w, "axes", (const int64_t[]){3}, 1));
                mfl_onnx_writer_int(w, "keepdims", 0);
        }
        reshape_to(w, v, out, "shape", whole, shape->rank + 1);
}

int mfl_onnx_write_map(struct onnx_writer *w, int i, const char *in, const char *out, struct mfl_error *err)
{
        const struct mfl_layer *l = &w->graph->layers[i];
        struct mfl_map *map = NULL;
        int r = 0;
        switch (l->map.kind) {
        case MFL_MAP_SUM:
        case MFL_MAP_MEAN:
                write_reduction(w, l, in, out);
                return 0;
        case MFL_MAP_RESIZE:
                write_resize(w, l, in, out);
                return 0;
        case MFL_MAP_CUMSUM:
                write_cumsum(w, l, in, out);
                return 0;
        case MFL_MAP_AVGPOOL2D:
                write_avgpool(w, l, in, out);
                return 0;
        default:
                if (l->map.kind == MFL_MAP_PAD && l->map.mode != MFL_MAP_CIRCULAR) {
                        write_pad(w, l, in, out);
                        return 0;
                }
                r = mfl_map_new(w->graph, i, &map, err);
                if (!r)
                        write_terms(w, map, in, out, &l->out);
                mfl_map_free(map);
                return r;
        }
}
