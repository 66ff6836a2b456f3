/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions, pools and batch norm of several images of each sample, {images, channels, height, width}: the frames of a video behind
 * x.flatten(0, 1). Pools see images side by side as channels. For the others the images stand one above the other in one image; between
 * them a convolution has as many rows of zeros as its padding, and more until its stride begins each image anew. */
#include "cli/onnx/internal.h"

/* How the rows of images become rows of what the node makes. */
struct stack {
        int64_t images, channels, rows, columns; /* of the input */
        int64_t each, made;                      /* rows that an image takes; that the node makes of it */
        int64_t step;                            /* between the first rows of two images there */
};

static int64_t number(struct onnx *o, const char *name, size_t i, int64_t otherwise)
{
        const int64_t *v;
        int n;
        return mfl_onnx_ints(o, name, SIZE_MAX, &v, &n) || n <= (int)i ? otherwise : v[i];
}

static int measure(struct onnx *o, const struct onnx_value *x, bool convolves, struct stack *ret)
{
        const struct onnx_value *w = mfl_onnx_input(o, 1);
        struct stack s = {x->shape.dim[0], x->shape.dim[1], x->shape.dim[2], x->shape.dim[3], 0, 0, 0};
        s.each = s.made = s.step = s.rows;
        if (convolves) {
                int64_t stride = number(o, "strides", 0, 1), first = number(o, "pads", 0, 0),
                        last = number(o, "pads", 2, 0), dilation = number(o, "dilations", 0, 1);
                bool fits = w && w->shape.rank == 4 && stride > 0 && first >= 0 && last >= 0 &&
                            dilation > 0 && stride <= 65536 && first <= 65536 && last <= 65536 &&
                            dilation <= 65536 && mfl_onnx_string_is(o, "auto_pad", "NOTSET", "NOTSET");
                int64_t room = fits ? s.rows + first + last - dilation * (w->shape.dim[2] - 1) - 1 : -1;
                if (room < 0)
                        return mfl_onnx_fail(o, "of several images of a sample needs a kernel that fits, and "
                                                "its padding in numbers");
                s.each = (s.rows + MFL_MAX(first, last) + stride - 1) / stride * stride;
                s.made = room / stride + 1;
                s.step = s.each / stride;
        }
        *ret = s;
        return 0;
}

/* {channels, images, rows, columns} of the view, with rows of zeros behind each image. */
static int pile(
        struct onnx *o, const struct onnx_value *view, const struct stack *s, struct onnx_value **ret_value)
{
        struct onnx_shape turned = {4, {s->channels, s->images, s->rows, s->columns}},
                          image = {4, {1, s->channels, s->images * s->each, s->columns}};
        struct mfl_shape in = {3, {s->channels * s->images, s->rows, s->columns}};
        struct onnx_value *v;
        int64_t n = mfl_onnx_count(&turned), area = s->rows * s->columns;
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++) {
                int64_t plane = i / area, channel = plane / s->images, frame = plane % s->images;
                map[i] = (int32_t)((frame * s->channels + channel) * area + i % area);
        }
        struct mfl_layer l = {.op = MFL_OP_MAP,
                .map = {.kind = MFL_MAP_PAD, .after = {0, (int)(s->each - s->rows), 0}},
                .out = {3, {in.dim[0], s->each, s->columns}}};
        int layer = 0, r = mfl_onnx_view(o, view, &turned, map, &v);
        if (!r)
                r = mfl_onnx_view_layer(o, v, &in, &layer);
        l.input = layer;
        if (!r && s->each > s->rows)
                r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer);
        return r ? r : mfl_onnx_layer_value(o, layer, &image, ret_value);
}

/* The node's output becomes a view of it. */
static int replace(
        struct onnx *o, const struct onnx_value *made, const struct onnx_shape *shape, const int32_t *map)
{
        struct onnx_value *out = mfl_onnx_find(o, mfl_onnx_node(o)->output[0]), *v;
        int uses = out->uses, r = mfl_onnx_view(o, made, shape, map, &v);
        if (r)
                return r;
        *out = *v;
        out->uses = uses;
        out->node = o->node;
        return 0;
}

/* The node's output, of one image, as that of all images. */
static int take_apart(struct onnx *o, const struct stack *s, int rank)
{
        struct onnx_value *out = mfl_onnx_find(o, mfl_onnx_node(o)->output[0]), *v;
        int r = mfl_onnx_resolve(o, out, &v);
        if (r)
                return r;
        int64_t channels = v->shape.dim[1], rows = v->shape.dim[2], columns = v->shape.dim[3];
        struct onnx_shape shape = {rank, {s->images, channels, s->made, columns}};
        int64_t n = mfl_onnx_count(&shape);
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++) {
                int64_t row = i / columns, plane = row / s->made;
                int64_t at = plane / channels * s->step + row % s->made;
                map[i] = (int32_t)((plane % channels * rows + at) * columns + i % columns);
        }
        return replace(o, v, &shape, map);
}

/* The node with another value as its first input. */
static int convert_with(struct onnx *o, struct onnx_value *x, const struct onnx_value *instead)
{
        struct onnx_value before = *x;
        bool known;
        *x = *instead;
        x->uses = before.uses;
        int r = mfl_onnx_operator(o, &known);
        *x = before;
        return r;
}

static int pool(struct onnx *o, struct onnx_value *x, struct onnx_value *view)
{
        struct onnx_shape side = {
                4, {1, x->shape.dim[0] * x->shape.dim[1], x->shape.dim[2], x->shape.dim[3]}};
        struct onnx_value *v;
        int r = mfl_onnx_view(o, view, &side, NULL, &v);
        if (r || (r = convert_with(o, x, v)) ||
                (r = mfl_onnx_resolve(o, mfl_onnx_find(o, mfl_onnx_node(o)->output[0]), &v)))
                return r;
        struct onnx_shape out = {4, {x->shape.dim[0], x->shape.dim[1], v->shape.dim[2], v->shape.dim[3]}};
        return replace(o, v, &out, NULL);
}

int mfl_onnx_frames_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *view, *piled;
        const char *op = mfl_onnx_node(o)->op_type;
        bool convolves = !strcmp(op, "Conv"), norm = !strcmp(op, "BatchNormalization"),
             pools = !strcmp(op, "MaxPool") || !strcmp(op, "AveragePool") || !strncmp(op, "Global", 6);
        struct stack s = {0};
        bool rows = x && norm && x->shape.rank == 3; /* of positions: as images of one column */
        if (!x || x->tensor || (x->shape.rank != 4 && !rows) || x->shape.dim[0] < 2 ||
                !(convolves || norm || pools))
                return 0;
        *ret_taken = true;
        struct onnx_value images = *x;
        if (rows)
                images.shape = (struct onnx_shape){4, {x->shape.dim[0], x->shape.dim[1], x->shape.dim[2], 1}};
        int r = mfl_onnx_resolve(o, x, &view);
        if (r || pools)
                return r ? r : pool(o, x, view);
        if ((r = measure(o, &images, convolves, &s)) || (r = pile(o, view, &s, &piled)) ||
                (r = convert_with(o, x, piled)))
                return r;
        return take_apart(o, &s, x->shape.rank);
}
