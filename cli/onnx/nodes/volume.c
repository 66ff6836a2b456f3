/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes, {batch, channels, depth, height, width}, by layers of fewer dimensions that compute the same:
 *
 *     convolution     each window as a row of its numbers, by a view, and a dense layer over rows: its weights are the
 *                     convolution's in the same order. So are convolutions of images and rows of positions whose weights are
 *                     computed from parameters, with a product in place of the dense layer
 *                     or, with groups, one for each group
 *     transposed      of equal kernel and stride: a dense layer over the places, whose outputs are the blocks' numbers; else
 *                     a convolution, whose kernel is read backward, of the volume with zeros between its places
 *     maximum, mean   over the windows of each slice, then over the depth; the first of equal maxima stays the first
 *     batch norm      over images whose height is depth times height
 */
#include "cli/onnx/internal.h"

enum { C = 1, D, H, W, RANK };

/* Of the three dimensions D, H and W; an image has one slice, and a row of positions is an image of one row. */
struct window {
        int64_t in[3], out[3], kernel[3], stride[3], before[3], after[3], dilation[3];
        int64_t start[3]; /* of the first window, in the padded volume */
        bool backward;    /* the kernel's last number reads the window's first */
};

/* The numbers of the dimensions that x has, or of both ends of each; the others have `otherwise`. */
static int read_three(struct onnx *o, const struct onnx_value *x, const char *name, int64_t otherwise,
        int ends, int64_t *ret_v)
{
        const int64_t *v;
        int dims = x->shape.rank - D, count, r = mfl_onnx_ints(o, name, SIZE_MAX, &v, &count);
        if (r)
                return r;
        if (count >= 0 && count != dims * ends)
                return mfl_onnx_fail(o, "%s has %d numbers, not %d", name, count, dims * ends);
        for (int i = 0; i < 3 * ends; i++)
                ret_v[i] = otherwise;
        for (int i = 0; i < count; i++) {
                if (v[i] < (otherwise ? 1 : 0) || v[i] > 65536)
                        return mfl_onnx_fail(o, "%s has the number %lld", name, (long long)v[i]);
                ret_v[i / dims * 3 + 3 - dims + i % dims] = v[i];
        }
        return 0;
}

static int read_window(
        struct onnx *o, const struct onnx_value *x, const int64_t *kernel, struct window *ret_window)
{
        struct window v = {.backward = false};
        int64_t pads[6];
        int r = 0, missing = RANK - x->shape.rank;
        if (!mfl_onnx_string_is(o, "auto_pad", "NOTSET", "NOTSET") &&
                !mfl_onnx_string_is(o, "auto_pad", "NOTSET", "VALID"))
                return mfl_onnx_fail(o, "auto_pad is not supported here; give the padding in numbers");
        if ((r = read_three(o, x, "strides", 1, 1, v.stride)) ||
                (r = read_three(o, x, "dilations", 1, 1, v.dilation)) ||
                (r = read_three(o, x, "pads", 0, 2, pads)) ||
                (r = read_three(o, x, "kernel_shape", 1, 1, v.kernel)))
                return r;
        for (int d = 0; d < 3; d++) {
                if (kernel)
                        v.kernel[d] = d < missing ? 1 : kernel[d - missing];
                v.in[d] = d < missing ? 1 : x->shape.dim[D + d - missing];
                v.before[d] = pads[d];
                v.after[d] = pads[3 + d];
                int64_t room = v.in[d] + v.before[d] + v.after[d] - v.dilation[d] * (v.kernel[d] - 1) - 1;
                v.out[d] = room < 0 ? 0 : room / v.stride[d] + 1;
                if (!v.out[d])
                        return mfl_onnx_fail(o, "its window is larger than the volume");
        }
        *ret_window = v;
        return 0;
}

/* ---- convolution ---- */

/* The node's bias, as a layer behind it. */
static int add_bias(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_value)
{
        struct onnx_value *b = mfl_onnx_input(o, 2), *bias;
        struct onnx_shape channels = {v->shape.rank, {1, v->shape.dim[C], 1, 1, 1}};
        int r;
        *ret_value = v;
        if (!b)
                return 0;
        if (mfl_onnx_count(&b->shape) != v->shape.dim[C])
                return mfl_onnx_fail(o, "the bias doesn't fit the weights");
        if ((b->tensor && (r = mfl_onnx_lift(o, b, &b))) || (r = mfl_onnx_resolve(o, b, &b)) ||
                (r = mfl_onnx_view(o, b, &channels, NULL, &bias)))
                return r;
        return mfl_onnx_combine(o, MFL_OP_ADD, v, bias, ret_value);
}

/* Adds zeros around dimension `first` and those after it, of a layer in the shape `in`. */
static int pad(
        struct onnx *o, const int64_t *before, const int64_t *after, int n, struct mfl_shape *in, int *layer)
{
        struct mfl_layer l = {.op = MFL_OP_MAP, .input = *layer, .map.kind = MFL_MAP_PAD, .out = *in};
        bool any = false;
        for (int k = 0; k < n; k++) {
                l.map.before[3 - n + k] = (int)before[k];
                l.map.after[3 - n + k] = (int)after[k];
                l.out.dim[3 - n + k] += before[k] + after[k];
                any = any || before[k] || after[k];
        }
        *in = l.out;
        return any ? mfl_onnx_add_layer(o, &l, NULL, o->node, layer) : 0;
}

static int reshape(struct onnx *o, const struct mfl_shape *shape, int *layer)
{
        struct mfl_layer l = {.op = MFL_OP_RESHAPE, .input = *layer, .shape = *shape, .out = *shape};
        return mfl_shape_equal(mfl_onnx_layer_shape(o, *layer), shape)
                       ? 0
                       : mfl_onnx_derive(o, &l, o->node, layer);
}

/* {positions, numbers of a window}: of each channel, then depth, row and column, as the weights are. */
static int add_windows(struct onnx *o, const struct window *w, int64_t channels, int *layer)
{
        int64_t in[3], rows = w->out[0] * w->out[1] * w->out[2],
                       each = channels * w->kernel[0] * w->kernel[1] * w->kernel[2];
        for (int d = 0; d < 3; d++)
                in[d] = w->in[d] + w->before[d] + w->after[d];
        const int64_t step[3] = {in[1] * in[2], in[2], 1};
        struct mfl_layer l = {
                .op = MFL_OP_MAP, .input = *layer, .shape = {2, {rows, each}}, .out = {2, {rows, each}}};
        l.map.kind = MFL_MAP_VIEW;
        l.map.n_digits = 7;
        for (int d = 0; d < 3; d++) {
                l.map.size[d] = w->out[d];
                l.map.stride[d] = w->stride[d] * step[d];
                l.map.size[4 + d] = w->kernel[d];
                l.map.stride[4 + d] = w->dilation[d] * step[d] * (w->backward ? -1 : 1);
                l.map.offset +=
                        (w->start[d] + (w->backward ? w->dilation[d] * (w->kernel[d] - 1) : 0)) * step[d];
        }
        l.map.size[3] = channels;
        l.map.stride[3] = in[0] * step[0];
        if (rows > MFL_MAP_TERMS_MAX / each)
                return mfl_onnx_fail(o, "its windows have %lld x %lld numbers together; the limit is %lld",
                        (long long)rows, (long long)each, (long long)MFL_MAP_TERMS_MAX);
        return mfl_onnx_add_layer(o, &l, NULL, o->node, layer);
}

/* {positions, channels} as {1, channels, depth, height, width}, or the last of these that x has; with the node's bias, if
 * it is no tensor of the layer. */
static int give(struct onnx *o, const struct onnx_value *rows, const struct onnx_value *x,
        const struct window *w, int64_t channels, bool bias)
{
        struct onnx_shape shape = {x->shape.rank, {1, channels}};
        struct onnx_value *v;
        int64_t places = w->out[0] * w->out[1] * w->out[2];
        int32_t *map = mfl_onnx_alloc(o, (size_t)(places * channels) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int d = D; d < shape.rank; d++)
                shape.dim[d] = w->out[d - D + RANK - shape.rank];
        for (int64_t i = 0; i < places * channels; i++)
                map[i] = (int32_t)(i % places * channels + i / places);
        int r = mfl_onnx_view(o, rows, &shape, map, &v);
        if (!r && bias)
                r = add_bias(o, v, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* The columns of each group's channels, by the group's rows of the matrix {outputs, numbers of a group's window}. */
static int multiply_groups(struct onnx *o, const struct onnx_value *windows, const struct onnx_value *matrix,
        int64_t groups, struct onnx_value **ret_value)
{
        int64_t rows = windows->shape.dim[1], each = matrix->shape.dim[1], outputs = matrix->shape.dim[0],
                own = outputs / groups, columns = each * groups;
        struct onnx_shape left = {3, {groups, rows, each}}, right = {3, {groups, each, own}},
                          out = {2, {rows, outputs}};
        struct onnx_value *a, *b, *v;
        int32_t *at = mfl_onnx_alloc(o, (size_t)(rows * columns) + 1, sizeof *at),
                *of = mfl_onnx_alloc(o, (size_t)(outputs * each) + 1, sizeof *of),
                *back = mfl_onnx_alloc(o, (size_t)(rows * outputs) + 1, sizeof *back);
        if (!at || !of || !back)
                return onnx_memory(o);
        for (int64_t i = 0; i < rows * columns; i++)
                at[i] = (int32_t)(i / each % rows * columns + i / (each * rows) * each + i % each);
        for (int64_t i = 0; i < outputs * each; i++)
                of[i] = (int32_t)((i / (each * own) * own + i % own) * each + i / own % each);
        for (int64_t i = 0; i < rows * outputs; i++)
                back[i] = (int32_t)((i % outputs / own * rows + i / outputs) * own + i % own);
        int r = mfl_onnx_view(o, windows, &left, at, &a);
        if (r || (r = mfl_onnx_view(o, matrix, &right, of, &b)) || (r = mfl_onnx_weigh(o, a, b, &v)))
                return r;
        return mfl_onnx_view(o, v, &out, back, ret_value);
}

/* The rows of the windows, by weights {outputs, numbers of a group's window} that are a layer's output. */
static int multiply_windows(struct onnx *o, int layer, const struct mfl_shape *rows,
        struct onnx_value *weights, int64_t groups, struct onnx_value **ret_value)
{
        struct onnx_shape matrix = {2, {weights->shape.dim[0], rows->dim[1] / groups}};
        struct onnx_value windows = {.shape = {3, {1, rows->dim[0], rows->dim[1]}}, .layer = layer}, *w;
        int r = mfl_onnx_resolve(o, weights, &w);
        if (!r && groups > 1 && mfl_onnx_count(&w->shape) > MFL_ONNX_COMPUTED_MAX)
                r = mfl_onnx_fail(o,
                        "has %lld weights in groups, which each sample of a batch has a copy of; the limit "
                        "is "
                        "%lld",
                        (long long)mfl_onnx_count(&w->shape), (long long)MFL_ONNX_COMPUTED_MAX);
        if (!r)
                r = mfl_onnx_view(o, w, &matrix, NULL, &w);
        if (r)
                return r;
        return groups > 1 ? multiply_groups(o, &windows, w, groups, ret_value)
                          : mfl_onnx_product_with_computed(o, &windows, w, false, ret_value);
}

/* The windows of a layer {channels, depth, height, width} as rows, padded. */
static int take_windows(struct onnx *o, const struct window *w, int64_t channels, int *layer)
{
        struct mfl_shape image = {3, {channels * w->in[0], w->in[1], w->in[2]}};
        int r = reshape(o, &image, layer);
        if (r || (r = pad(o, w->before + 1, w->after + 1, 2, &image, layer)))
                return r;
        struct mfl_shape deep = {3, {channels, w->in[0], image.dim[1] * image.dim[2]}};
        const int64_t before[2] = {w->before[0], 0}, after[2] = {w->after[0], 0};
        if ((w->before[0] || w->after[0]) &&
                ((r = reshape(o, &deep, layer)) || (r = pad(o, before, after, 2, &deep, layer))))
                return r;
        return add_windows(o, w, channels, layer);
}

static int convert_conv(struct onnx *o, struct onnx_value *x)
{
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct onnx_value *weights = mfl_onnx_input(o, 1), *v;
        int64_t channels = x->shape.dim[C], groups = mfl_onnx_int(o, "group", 1);
        struct window w;
        int layer, r;
        if (!weights || weights->shape.rank != x->shape.rank || groups < 1 || channels % groups ||
                weights->shape.dim[0] % groups || weights->shape.dim[C] != channels / groups)
                return mfl_onnx_fail(o, "the weights don't fit the channels");
        bool own = weights->tensor && groups == 1;
        if (own && ((r = mfl_onnx_weight_of(o, 1, RANK, &t[0])) ||
                           (mfl_onnx_input(o, 2) && (r = mfl_onnx_weight_of(o, 2, 1, &t[1])))))
                return r;
        if ((r = read_window(o, x, weights->shape.dim + D, &w)))
                return r;
        struct mfl_shape image = {3, {channels * w.in[0], w.in[1], w.in[2]}};
        struct mfl_layer l = {.op = MFL_OP_DENSE, .out_channels = (int)weights->shape.dim[0], .bias = t[1]};
        if (l.out_channels < 1 || l.out_channels > MFL_WIDTH_MAX)
                return mfl_onnx_fail(o, "has more than %d channels", MFL_WIDTH_MAX);
        if ((r = mfl_onnx_layer_of(o, x, &image, &layer)) || (r = take_windows(o, &w, channels, &layer)))
                return r;
        struct mfl_shape rows = *mfl_onnx_layer_shape(o, layer);
        if (!own) {
                if (weights->tensor && (r = mfl_onnx_lift(o, weights, &weights)))
                        return r;
                r = multiply_windows(o, layer, &rows, weights, groups, &v);
                return r ? r : give(o, v, x, &w, l.out_channels, true);
        }
        l.input = layer;
        l.out = (struct mfl_shape){2, {rows.dim[0], l.out_channels}};
        mfl_onnx_name(o, &l, t[0], "weight");
        mfl_onnx_name(o, &l, t[1], "bias");
        r = mfl_onnx_add_layer(o, &l, t, o->node, &layer);
        struct onnx_value whole = {.layer = layer};
        return r ? r : give(o, &whole, x, &w, l.out_channels, false);
}

/* ---- transposed convolution ---- */

/* {places, channels x block} as the volume of blocks. */
static int give_blocks(struct onnx *o, const struct onnx_value *rows, const struct window *w,
        const struct onnx_shape *shape, struct onnx_value **ret_view)
{
        int64_t count = mfl_onnx_count(shape), each = w->kernel[0] * w->kernel[1] * w->kernel[2];
        int32_t *map = mfl_onnx_alloc(o, (size_t)count + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < count; i++) {
                int64_t left = i, place = 0, within = 0, step_place = 1, step_within = 1;
                for (int d = 2; d >= 0; d--) {
                        int64_t at = left % shape->dim[D + d];
                        left /= shape->dim[D + d];
                        place += at / w->kernel[d] * step_place;
                        within += at % w->kernel[d] * step_within;
                        step_place *= w->in[d];
                        step_within *= w->kernel[d];
                }
                map[i] = (int32_t)((place * shape->dim[C] + left) * each + within);
        }
        return mfl_onnx_view(o, rows, shape, map, ret_view);
}

/* {1, places, channels}. */
static int take_places(struct onnx *o, const struct onnx_value *x, struct onnx_value **ret_view)
{
        int64_t channels = x->shape.dim[C], places = mfl_onnx_count(&x->shape) / channels;
        struct onnx_shape shape = {3, {1, places, channels}};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(places * channels) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < places * channels; i++)
                map[i] = (int32_t)(i % channels * places + i / channels);
        return mfl_onnx_view(o, x, &shape, map, ret_view);
}

static int read_transposed(struct onnx *o, const struct onnx_value *x, const struct onnx_value *weights,
        int64_t groups, struct window *w, bool *ret_blocks)
{
        int64_t pads[6], more[3];
        int r = read_three(o, x, "strides", 1, 1, w->stride);
        if (!r)
                r = read_three(o, x, "dilations", 1, 1, w->dilation);
        if (!r)
                r = read_three(o, x, "pads", 0, 2, pads);
        if (!r)
                r = read_three(o, x, "output_padding", 0, 1, more);
        if (!r && (!mfl_onnx_string_is(o, "auto_pad", "NOTSET", "NOTSET") ||
                          mfl_onnx_attribute(o, "output_shape")))
                r = mfl_onnx_fail(
                        o, "auto_pad and output_shape are not supported; give the padding in numbers");
        *ret_blocks = groups == 1;
        for (int d = 0; !r && d < 3; d++) {
                w->kernel[d] = weights->shape.dim[D + d];
                w->in[d] = x->shape.dim[D + d];
                *ret_blocks = *ret_blocks && w->kernel[d] == w->stride[d] &&
                              (w->dilation[d] == 1 || w->kernel[d] == 1) && !pads[d] && !pads[3 + d] &&
                              !more[d];
                int64_t reach = w->dilation[d] * (w->kernel[d] - 1);
                w->out[d] = (w->in[d] - 1) * w->stride[d] - pads[d] - pads[3 + d] + reach + more[d] + 1;
                w->before[d] = reach - pads[d];
                w->after[d] = w->out[d] + reach - w->before[d] - w->in[d] * w->stride[d];
                if (w->out[d] < 1)
                        return mfl_onnx_fail(o, "gives a tensor without elements");
        }
        return r;
}

/* Zeros behind each place, as many as the stride leaves between two. */
static int spread(struct onnx *o, const struct window *w, int64_t channels, int *layer)
{
        int64_t outer = channels * w->in[0] * w->in[1] * w->in[2], inner = 1;
        static const int64_t none[2] = {0, 0};
        for (int d = 2; d >= 0; d--) {
                struct mfl_shape s = {3, {outer, 1, inner}};
                const int64_t after[2] = {w->stride[d] - 1, 0};
                int r = after[0] ? reshape(o, &s, layer) : 0;
                if (r || (after[0] && (r = pad(o, none, after, 2, &s, layer))))
                        return r;
                outer /= w->in[d];
                inner *= w->in[d] * w->stride[d];
        }
        return 0;
}

/* {inputs, a group's outputs, kernel} as {outputs, a group's inputs x kernel}. */
static int turn_weights(
        struct onnx *o, struct onnx_value *weights, int64_t groups, struct onnx_value **ret_matrix)
{
        struct onnx_value *lifted = weights;
        int64_t inputs = weights->shape.dim[0] / groups, own = weights->shape.dim[C],
                kernel = mfl_onnx_count(&weights->shape) / (weights->shape.dim[0] * own),
                each = inputs * kernel;
        struct onnx_shape shape = {2, {own * groups, each}};
        int r = weights->tensor ? mfl_onnx_lift(o, weights, &lifted) : mfl_onnx_resolve(o, weights, &lifted);
        int32_t *map = r ? NULL : mfl_onnx_alloc(o, (size_t)(own * groups * each) + 1, sizeof *map);
        if (!map)
                return r ? r : onnx_memory(o);
        for (int64_t i = 0; i < own * groups * each; i++) {
                int64_t output = i / each, input = output / own * inputs + i % each / kernel;
                map[i] = (int32_t)((input * own + output % own) * kernel + i % kernel);
        }
        return mfl_onnx_view(o, lifted, &shape, map, ret_matrix);
}

/* A transposed convolution of any kind. */
static int convert_spread(
        struct onnx *o, struct onnx_value *x, struct onnx_value *weights, int64_t groups, struct window *w)
{
        int64_t channels = x->shape.dim[C];
        struct mfl_shape image = {3, {channels * w->in[0], w->in[1], w->in[2]}};
        struct onnx_value *matrix, *v;
        int layer, r = mfl_onnx_layer_of(o, x, &image, &layer);
        if (r || (r = spread(o, w, channels, &layer)))
                return r;
        for (int d = 0; d < 3; d++) { /* less than nothing is left out */
                w->in[d] *= w->stride[d];
                w->stride[d] = 1;
                w->start[d] = MFL_MAX(-w->before[d], (int64_t)0);
                w->before[d] = MFL_MAX(w->before[d], (int64_t)0);
                w->after[d] = MFL_MAX(w->after[d], (int64_t)0);
        }
        w->backward = true;
        if ((r = take_windows(o, w, channels, &layer)) || (r = turn_weights(o, weights, groups, &matrix)))
                return r;
        struct mfl_shape rows = *mfl_onnx_layer_shape(o, layer);
        r = multiply_windows(o, layer, &rows, matrix, groups, &v);
        return r ? r : give(o, v, x, w, matrix->shape.dim[0], true);
}

static int convert_transposed(struct onnx *o, struct onnx_value *x)
{
        const struct onnx_tensor *t;
        struct onnx_value *base, *v, *weights = mfl_onnx_input(o, 1);
        struct window w = {.backward = false};
        int64_t groups = mfl_onnx_int(o, "group", 1);
        bool blocks;
        if (!weights || weights->shape.rank != RANK || groups < 1 || x->shape.dim[C] % groups ||
                weights->shape.dim[0] != x->shape.dim[C])
                return mfl_onnx_fail(o, "the weights don't fit the channels");
        int r = read_transposed(o, x, weights, groups, &w, &blocks);
        if (r)
                return r;
        if (!blocks || !weights->tensor)
                return convert_spread(o, x, weights, groups, &w);
        if ((r = mfl_onnx_weight_of(o, 1, RANK, &t)) || (r = take_places(o, x, &base)))
                return r;
        struct onnx_shape shape = {RANK, {1, t->shape.dim[1]}};
        for (int d = 0; d < 3; d++) {
                w.in[d] = x->shape.dim[D + d];
                shape.dim[D + d] = w.in[d] * w.kernel[d];
        }
        struct onnx_tensor matrix = *t; /* {inputs, outputs x block} */
        matrix.shape = (struct onnx_shape){2, {t->shape.dim[0], t->count / t->shape.dim[0]}};
        struct onnx_value product = {.shape = {3, {1, base->shape.dim[1], matrix.shape.dim[1]}},
                .pending = ONNX_PRODUCT,
                .base = base,
                .weight = &matrix,
                .transposed = true};
        if ((r = mfl_onnx_make_product(o, &product, NULL, &v)) || (r = give_blocks(o, v, &w, &shape, &v)))
                return r;
        if ((r = add_bias(o, v, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* ---- pools ---- */

/* Over dimensions a and b of the window, of an image {channels, w->in[a], w->in[b]}; b below 0: the last dimension stays. */
static int pool(struct onnx *o, const struct window *w, int a, int b, const struct mfl_shape *in, int *layer)
{
        bool average = mfl_onnx_node(o)->op_type[0] == 'A';
        struct mfl_layer l = {.op = average ? MFL_OP_AVGPOOL2D : MFL_OP_MAXPOOL2D, .input = *layer};
        const int of[2] = {a, b};
        bool padded = false, any = false;
        l.out = *in;
        for (int d = 0; d < 2; d++) {
                l.kernel[d] = l.stride[d] = l.dilation[d] = 1;
                if (of[d] < 0)
                        continue;
                l.kernel[d] = (int)w->kernel[of[d]];
                l.stride[d] = (int)w->stride[of[d]];
                l.dilation[d] = (int)w->dilation[of[d]];
                l.padding[d] = (int)w->before[of[d]];
                l.out.dim[1 + d] = w->out[of[d]];
                padded = padded || l.padding[d];
                any = any || l.kernel[d] > 1 || l.stride[d] > 1 || l.padding[d];
        }
        if (average && padded && !mfl_onnx_int(o, "count_include_pad", 0)) {
                l.op = MFL_OP_MAP;
                l.map.kind = MFL_MAP_AVGPOOL2D;
        }
        return any ? mfl_onnx_add_layer(o, &l, NULL, o->node, layer) : 0;
}

static int convert_pool(struct onnx *o, struct onnx_value *x)
{
        int64_t channels = x->shape.dim[C];
        struct onnx_value *v;
        struct window w;
        int layer, r = read_window(o, x, NULL, &w);
        for (int d = 0; !r && d < 3; d++)
                if (w.before[d] != w.after[d] || mfl_onnx_int(o, "ceil_mode", 0))
                        r = mfl_onnx_fail(
                                o, "pools of volumes have the same padding on both sides, and no ceil_mode");
        struct mfl_shape image = {3, {channels * w.in[0], w.in[1], w.in[2]}};
        if (r || (r = mfl_onnx_layer_of(o, x, &image, &layer)) || (r = pool(o, &w, 1, 2, &image, &layer)))
                return r;
        struct mfl_shape deep = {3, {channels, w.in[0], w.out[1] * w.out[2]}};
        struct onnx_shape shape = {RANK, {1, channels, w.out[0], w.out[1], w.out[2]}};
        if ((r = reshape(o, &deep, &layer)) || (r = pool(o, &w, 0, -1, &deep, &layer)) ||
                (r = mfl_onnx_layer_value(o, layer, &shape, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* ---- what treats a volume as an image ---- */

static int as_image(struct onnx *o, struct onnx_value *x)
{
        struct onnx_shape shape = x->shape,
                          image = {4, {1, shape.dim[C], shape.dim[D] * shape.dim[H], shape.dim[W]}};
        bool known, pools = mfl_onnx_node(o)->op_type[0] == 'G';
        x->shape = image;
        int r = mfl_onnx_operator(o, &known);
        x->shape = shape;
        struct onnx_value *v = r ? NULL : mfl_onnx_find(o, mfl_onnx_node(o)->output[0]);
        for (int d = D; v && pools && d < RANK; d++)
                shape.dim[d] = 1;
        if (v)
                v->shape = shape;
        return r;
}

/* A convolution of an image or of a row of positions whose weights are computed from parameters. */
static int is_computed(struct onnx *o, const struct onnx_value *x, bool *ret_computed)
{
        struct onnx_value *w = mfl_onnx_input(o, 1);
        const struct onnx_tensor *t = NULL;
        double scale;
        *ret_computed = false;
        if (!x || x->tensor || !w || w->tensor || strcmp(mfl_onnx_node(o)->op_type, "Conv") != 0 ||
                (x->shape.rank != 3 && x->shape.rank != 4) || !mfl_onnx_of_params(o, w) ||
                mfl_onnx_count(&w->shape) > MFL_ONNX_COMPUTED_MAX)
                return 0;
        int r = mfl_onnx_scaled_weight(
                o, w, &t, &scale); /* a number times the weights is a layer behind it */
        *ret_computed = !r && !t;
        return r;
}

int mfl_onnx_volume_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *view;
        const char *op = mfl_onnx_node(o)->op_type;
        bool conv = !strcmp(op, "Conv"), transposed = !strcmp(op, "ConvTranspose"),
             pools = !strcmp(op, "MaxPool") || !strcmp(op, "AveragePool"),
             image = !strcmp(op, "BatchNormalization") || !strcmp(op, "GlobalAveragePool") ||
                     !strcmp(op, "GlobalMaxPool");
        bool computed;
        int r = is_computed(o, x, &computed);
        if (r || !x || x->tensor || x->shape.dim[0] != 1 ||
                !(computed || (x->shape.rank == RANK && (conv || transposed || pools || image))))
                return r;
        *ret_taken = true;
        int uses = x->uses;
        r = mfl_onnx_resolve(o, x, &view);
        if (r)
                return r;
        *x = *view; /* what it was resolved to */
        x->uses = uses;
        return conv         ? convert_conv(o, x)
               : transposed ? convert_transposed(o, x)
               : pools      ? convert_pool(o, x)
                            : as_image(o, x);
}
