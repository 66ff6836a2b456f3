/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that are sparse linear maps: Pad, Resize and Upsample, CumSum, and sums and means over dimensions. */
#include <math.h>

#include "cli/onnx/internal.h"

/* Dimensions of the node, with neighbours that are treated alike joined, as a layer sees them. */
struct groups {
        struct mfl_shape shape;
        unsigned over; /* bit d: shape's dimension d is one of the selected */
};

/* false: there are more than three. */
static bool group_dims(const struct onnx_shape *in, unsigned over, struct groups *ret_groups)
{
        struct groups g = {0};
        bool last = false;
        for (int d = 0; d < in->rank; d++) {
                bool selected = over >> d & 1;
                if (in->dim[d] == 1)
                        continue;
                if (g.shape.rank && selected == last) {
                        g.shape.dim[g.shape.rank - 1] *= in->dim[d];
                        continue;
                }
                if (g.shape.rank == 3)
                        return false;
                g.over |= selected ? 1u << g.shape.rank : 0;
                g.shape.dim[g.shape.rank++] = in->dim[d];
                last = selected;
        }
        if (!g.shape.rank)
                g.shape = (struct mfl_shape){1, {1}};
        *ret_groups = g;
        return true;
}

static int add_map(struct onnx *o, const struct mfl_layer *l, const struct onnx_shape *shape)
{
        struct onnx_value *v = NULL;
        int layer, r = mfl_onnx_add_layer(o, l, NULL, o->node, &layer);
        if (!r)
                r = mfl_onnx_layer_value(o, layer, shape, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

static struct mfl_shape reduced(const struct groups *g)
{
        struct mfl_shape s = {0};
        for (int d = 0; d < g->shape.rank; d++)
                if (!(g->over >> d & 1))
                        s.dim[s.rank++] = g->shape.dim[d];
        return s.rank ? s : (struct mfl_shape){1, {1}};
}

int mfl_onnx_add_sum(
        struct onnx *o, struct onnx_value *x, unsigned over, bool mean, int *ret_layer, bool *ret_done)
{
        struct groups g;
        *ret_done = group_dims(&x->shape, over, &g);
        if (!*ret_done)
                return 0;
        struct mfl_layer l = {.op = MFL_OP_MAP,
                .map = {.kind = mean ? MFL_MAP_MEAN : MFL_MAP_SUM, .axes = g.over},
                .out = reduced(&g)};
        l.map.keepdim = g.shape.rank == 1;                          /* {n} to {1} */
        if (mean && g.shape.rank > 1 && !(g.over & (g.over - 1))) { /* one dimension */
                l.op = MFL_OP_MEAN;
                while (!(g.over >> l.axis & 1))
                        l.axis++;
        }
        int r = mfl_onnx_layer_of(o, x, &g.shape, &l.input);
        return r ? r : mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
}

int mfl_onnx_convert_cumsum(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0);
        double axis = 0;
        struct groups g;
        if (!mfl_onnx_input(o, 1) || !mfl_onnx_scalar(mfl_onnx_input(o, 1), &axis) || axis < -x->shape.rank ||
                axis >= x->shape.rank)
                return mfl_onnx_fail(o, "the axis is not a constant");
        if (mfl_onnx_int(o, "exclusive", 0) || mfl_onnx_int(o, "reverse", 0))
                return mfl_onnx_fail(o, "exclusive and reverse are not supported");
        int at = (int)axis + (axis < 0 ? x->shape.rank : 0), r;
        if ((r = mfl_onnx_check_batch(o, x, at)))
                return r;
        group_dims(&x->shape, 1u << at, &g); /* one dimension gives at most three groups */
        struct mfl_layer l = {
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_CUMSUM, .axes = g.over}, .out = g.shape};
        if (!g.over)
                return mfl_onnx_output(o, 0, x);
        r = mfl_onnx_layer_of(o, x, &g.shape, &l.input);
        return r ? r : add_map(o, &l, &x->shape);
}

/* ---- padding ---- */

/* Negative pads cut off; what is left of the pads is positive. *x becomes what is left of the value. */
static int crop(struct onnx *o, int64_t pads[ONNX_RANK_MAX][2], struct onnx_value **x)
{
        struct onnx_shape from = (*x)->shape, to = from;
        int64_t start[ONNX_RANK_MAX];
        struct onnx_value *view;
        for (int d = 0; d < from.rank; d++) {
                start[d] = MFL_MAX(-pads[d][0], (int64_t)0);
                to.dim[d] -= start[d] + MFL_MAX(-pads[d][1], (int64_t)0);
                if (to.dim[d] < 1)
                        return mfl_onnx_fail(o, "the negative padding leaves nothing of dimension %d", d);
                pads[d][0] = MFL_MAX(pads[d][0], (int64_t)0);
                pads[d][1] = MFL_MAX(pads[d][1], (int64_t)0);
        }
        int64_t n = mfl_onnx_count(&to);
        if (n == mfl_onnx_count(&from))
                return 0;
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++) {
                int64_t at = 0, step = 1, left = i;
                for (int d = from.rank - 1; d >= 0; d--) {
                        at += (left % to.dim[d] + start[d]) * step;
                        step *= from.dim[d];
                        left /= to.dim[d];
                }
                map[i] = (int32_t)at;
        }
        int r = mfl_onnx_resolve(o, *x, &view);
        return r ? r : mfl_onnx_view(o, view, &to, map, x);
}

/* Zeros beside a triangle: a product with ones and zeros. */
int mfl_onnx_convert_trilu(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *k = mfl_onnx_input(o, 1), *view, *v;
        struct onnx_tensor *t;
        double from = 0;
        bool upper = mfl_onnx_int(o, "upper", 1) != 0;
        if (x->shape.rank < 2 || (k && !mfl_onnx_scalar(k, &from)))
                return mfl_onnx_fail(o, "needs a matrix and a number");
        int64_t rows = x->shape.dim[x->shape.rank - 2], columns = x->shape.dim[x->shape.rank - 1];
        struct onnx_shape shape = {2, {rows, columns}};
        int r = mfl_onnx_fold_new(o, &shape, true, &t);
        for (int64_t i = 0; !r && i < t->count; i++) {
                double off = (double)(i % columns - i / columns);
                mfl_onnx_fold_put(t, i, (upper ? off >= from : off <= from) ? 1 : 0);
        }
        if (r || (r = mfl_onnx_new_value(o, &shape, &v)))
                return r;
        v->tensor = t;
        if ((r = mfl_onnx_lift(o, v, &v)) || (r = mfl_onnx_resolve(o, x, &view)) ||
                (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, view, v, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* A parameter has no batch. Neighbouring dimensions that are not padded are one. */
static int pad_param(
        struct onnx *o, struct onnx_value *x, const int64_t pads[ONNX_RANK_MAX][2], struct mfl_layer *l)
{
        struct onnx_shape shape = x->shape;
        struct mfl_shape in = {0};
        bool joins = false;
        for (int d = 0; d < shape.rank; d++) {
                bool plain = !pads[d][0] && !pads[d][1];
                if (pads[d][0] < 0 || pads[d][1] < 0 || pads[d][0] > 65536 || pads[d][1] > 65536)
                        return mfl_onnx_fail(
                                o, "pads a parameter by negative or large numbers; use slices and torch.cat");
                if (!plain || !joins) {
                        if (in.rank == MFL_SHAPE_RANK_MAX)
                                return mfl_onnx_fail(
                                        o, "pads too many dimensions of a parameter; pad two at a time");
                        in.dim[in.rank] = l->out.dim[in.rank] = 1;
                        l->map.before[in.rank] = (int)pads[d][0];
                        l->map.after[in.rank++] = (int)pads[d][1];
                }
                joins = plain;
                in.dim[in.rank - 1] *= shape.dim[d];
                shape.dim[d] += pads[d][0] + pads[d][1];
                l->out.dim[in.rank - 1] *= shape.dim[d];
        }
        l->out.rank = in.rank;
        int r = mfl_onnx_layer_of(o, x, &in, &l->input);
        return r ? r : add_map(o, l, &shape);
}

int mfl_onnx_convert_pad(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0);
        struct onnx_shape shape = x->shape;
        struct mfl_layer l = {.op = MFL_OP_MAP, .map.kind = MFL_MAP_PAD};
        struct mfl_shape in;
        int64_t pads[ONNX_RANK_MAX][2];
        double value = (double)mfl_onnx_float(o, "value", 0);
        int batch = 0, to = 0, r = mfl_onnx_read_pads(o, shape.rank, pads);
        if (!r)
                r = mfl_onnx_pad_mode(o, &l.map.mode);
        if (!r && mfl_onnx_of_params(o, x) && l.map.mode == MFL_MAP_CONSTANT && value == 0 &&
                !mfl_onnx_input(o, 2))
                return pad_param(o, x, pads, &l);
        if (!r && l.map.mode == MFL_MAP_CONSTANT && !(r = crop(o, pads, &x)))
                shape = x->shape;
        if (!r)
                r = mfl_onnx_sample_shape(o, x, &in);
        if (r)
                return r;
        if (mfl_onnx_input(o, 2) && !mfl_onnx_scalar(mfl_onnx_input(o, 2), &value))
                return mfl_onnx_fail(o, "the value of the padding is not a constant");
        if (!(fabs(value) <= 1e30))
                return mfl_onnx_fail(o, "pads with %g; values up to 1e30 are supported", value);
        while (batch < shape.rank && shape.dim[batch] != 1)
                batch++;
        batch = shape.rank > 1 ? batch : shape.rank;
        for (int d = 0; d < shape.rank; d++) {
                if (pads[d][0] < 0 || pads[d][1] < 0 || pads[d][0] > 65536 || pads[d][1] > 65536)
                        return mfl_onnx_fail(o,
                                "pads by %lld and %lld; 0 to 65536 are supported, and negative numbers with "
                                "mode 'constant'",
                                (long long)pads[d][0], (long long)pads[d][1]);
                if (d == batch && (pads[d][0] || pads[d][1]))
                        return mfl_onnx_fail(o, "pads the batch");
                shape.dim[d] += pads[d][0] + pads[d][1];
                if (d == batch)
                        continue;
                l.map.before[to] = (int)pads[d][0];
                l.map.after[to] = (int)pads[d][1];
                l.out.dim[to++] = shape.dim[d];
        }
        l.out.rank = to;
        l.map.value = l.map.mode == MFL_MAP_CONSTANT ? (float)value : 0;
        r = mfl_onnx_layer_of(o, x, &in, &l.input);
        return r ? r : add_map(o, &l, &shape);
}

/* ---- interpolation ---- */

/* The coordinates that PyTorch writes; others are refused by name. */
static int read_mode(struct onnx *o, struct mfl_map_spec *map)
{
        bool upsample = !strcmp(mfl_onnx_node(o)->op_type, "Upsample");
        bool nearest = mfl_onnx_string_is(o, "mode", "nearest", "nearest");
        const char *otherwise = upsample ? "asymmetric" : "half_pixel";
        bool corners = mfl_onnx_string_is(o, "coordinate_transformation_mode", otherwise, "align_corners");
        bool half = mfl_onnx_string_is(o, "coordinate_transformation_mode", otherwise, "half_pixel") ||
                    mfl_onnx_string_is(o, "coordinate_transformation_mode", otherwise, "pytorch_half_pixel");
        bool plain = mfl_onnx_string_is(o, "coordinate_transformation_mode", otherwise, "asymmetric");
        if (mfl_onnx_int(o, "antialias", 0) || mfl_onnx_int(o, "exclude_outside", 0))
                return mfl_onnx_fail(o, "antialias and exclude_outside are not supported: leave them out");
        map->align_corners = corners;
        if (nearest) {
                bool lower = upsample || mfl_onnx_string_is(o, "nearest_mode", "round_prefer_floor", "floor");
                map->mode = lower ? MFL_MAP_NEAREST : MFL_MAP_NEAREST_EXACT;
                if ((plain && lower) || (half && mfl_onnx_string_is(o, "nearest_mode", "round_prefer_floor",
                                                         "round_prefer_ceil")))
                        return 0;
                return mfl_onnx_fail(o,
                        "nearest neighbours are supported as PyTorch's mode 'nearest' (asymmetric, "
                        "floor) and 'nearest-exact'");
        }
        if (!half && !corners)
                return mfl_onnx_fail(o,
                        "is supported with the coordinates half_pixel, pytorch_half_pixel and "
                        "align_corners");
        if (mfl_onnx_string_is(o, "mode", "nearest", "linear"))
                map->mode = MFL_MAP_BILINEAR;
        else if (mfl_onnx_string_is(o, "mode", "nearest", "cubic") &&
                 mfl_onnx_float(o, "cubic_coeff_a", -0.75f) == -0.75f)
                map->mode = MFL_MAP_BICUBIC;
        else
                return mfl_onnx_fail(
                        o, "is supported in the modes nearest, linear, and cubic with coefficient -0.75");
        return 0;
}

/* One dimension: factor 0 if the sizes say it all. */
struct stretch {
        int64_t from, to;
        double factor;
};

/* Of all dimensions; the batch and the channels stay. */
static int read_sizes(struct onnx *o, const struct onnx_shape *in, struct stretch to[ONNX_RANK_MAX])
{
        bool upsample = !strcmp(mfl_onnx_node(o)->op_type, "Upsample");
        const struct onnx_value *scales = mfl_onnx_input(o, upsample || o->opset < 11 ? 1 : 2),
                                *sizes = mfl_onnx_input(o, 3);
        bool sized = sizes && sizes->tensor && sizes->tensor->i && sizes->tensor->count == in->rank;
        bool scaled = scales && scales->tensor && scales->tensor->f && scales->tensor->count == in->rank;
        if (!sized && !scaled)
                return mfl_onnx_fail(o,
                        "needs constant sizes or scales for all dimensions; export the model with fixed "
                        "sizes of images");
        bool center = mfl_onnx_string_is(o, "coordinate_transformation_mode", "", "pytorch_half_pixel");
        for (int d = 0; d < in->rank; d++) {
                double factor = sized ? 1 : (double)scales->tensor->f[d];
                if (!sized && !(factor > 0 && factor <= 65536))
                        return mfl_onnx_fail(o, "a scale of %g", factor);
                int64_t n = sized ? sizes->tensor->i[d] : (int64_t)floor((double)in->dim[d] * factor);
                if (d < 2 ? n != in->dim[d] && !(sized && d == 0) : n < 1 || n > 65536)
                        return mfl_onnx_fail(o, "dimension %d becomes %lld", d, (long long)n);
                if (d >= 2 && center && n == 1 && in->dim[d] > 1)
                        return mfl_onnx_fail(o,
                                "makes a single row or column, for which ONNX and PyTorch differ: use "
                                "an average pool");
                /* A whole factor says no more than the size. */
                to[d] = (struct stretch){in->dim[d], d ? n : in->dim[d],
                        d < 2 || sized || factor == floor(factor) ? 0 : factor};
        }
        return 0;
}

/* Rows and columns of an image {n, a.from, b.from}, in the mode of `map`. */
static int add_resize(struct onnx *o, const struct mfl_map_spec *map, int64_t n, struct stretch a,
        struct stretch b, int *layer)
{
        const struct stretch of[2] = {a, b};
        struct mfl_layer l = {.op = MFL_OP_MAP, .input = *layer, .map = *map, .out = {3, {n, a.to, b.to}}};
        bool factors = a.factor > 0 || b.factor > 0; /* then both have one */
        if (a.from == a.to && b.from == b.to && !factors)
                return 0;
        for (int k = 0; k < 2; k++) {
                double factor = of[k].factor > 0 ? of[k].factor : (double)of[k].to / (double)of[k].from;
                l.map.to[k] = factors ? 0 : (int)of[k].to;
                l.map.scale_factor[k] = factors ? factor : 0;
        }
        return mfl_onnx_add_layer(o, &l, NULL, o->node, layer);
}

/* A row of positions is an image of one row; in a volume, its slices are resized, then the columns of slices. */
int mfl_onnx_convert_resize(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *v;
        struct onnx_shape shape = x->shape;
        struct mfl_map_spec map = {.kind = MFL_MAP_RESIZE};
        struct stretch to[ONNX_RANK_MAX], one = {1, 1, 0};
        if (shape.rank < 3 || shape.rank > 5 || shape.dim[0] != 1)
                return mfl_onnx_fail(o, "is supported for {channels, positions}, images and volumes");
        int layer, last = shape.rank - 1, r = read_mode(o, &map);
        if (!r)
                r = read_sizes(o, &shape, to);
        if (r)
                return r;
        if (shape.rank != 4 && map.mode == MFL_MAP_BICUBIC)
                return mfl_onnx_fail(o, "cubic interpolation is supported for images");
        bool line = shape.rank == 3, volume = shape.rank == 5;
        int64_t n = shape.dim[1] * (volume ? shape.dim[2] : 1);
        struct mfl_shape in = {3, {n, line ? 1 : shape.dim[last - 1], shape.dim[last]}};
        r = mfl_onnx_layer_of(o, x, &in, &layer);
        if (!r)
                r = add_resize(o, &map, n, line ? one : to[last - 1], to[last], &layer);
        if (!r && volume) {
                int64_t pixels = to[3].to * to[4].to;
                struct mfl_layer l = {.op = MFL_OP_RESHAPE,
                        .input = layer,
                        .shape = {3, {shape.dim[1], shape.dim[2], pixels}},
                        .out = {3, {shape.dim[1], shape.dim[2], pixels}}};
                r = mfl_onnx_derive(o, &l, o->node, &layer);
                if (!r)
                        r = add_resize(
                                o, &map, shape.dim[1], to[2], (struct stretch){pixels, pixels, 0}, &layer);
        }
        for (int d = 0; d < shape.rank; d++)
                shape.dim[d] = to[d].to;
        if (!r)
                r = mfl_onnx_layer_value(o, layer, &shape, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}
