/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that have a native layer of their own. */
#include <math.h>

#include "cli/onnx/internal.h"

/* How many dimensions a window has: 1 or 2. */
static int spatial(const struct onnx *o)
{
        const struct onnx_value *x = mfl_onnx_input(o, 0);
        return x && x->shape.rank == 3 ? 1 : 2;
}

static void image_shape(const struct onnx *o, const struct mfl_layer *l, struct onnx_shape *ret_shape)
{
        *ret_shape = spatial(o) == 1
                             ? (struct onnx_shape){3, {1, l->out.dim[0], l->out.dim[2]}}
                             : (struct onnx_shape){4, {1, l->out.dim[0], l->out.dim[1], l->out.dim[2]}};
}

static int add_image(struct onnx *o, const struct mfl_layer *l, const struct onnx_tensor *const *tensors)
{
        struct onnx_shape shape;
        image_shape(o, l, &shape);
        return mfl_onnx_layer_output(o, l, tensors, &shape);
}

/* The numbers of a window's dimensions. A row has `alone` in the other one. */
static int pair(struct onnx *o, const char *name, int otherwise, int alone, int ret_pair[2])
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, name);
        size_t n = (size_t)spatial(o);
        ret_pair[0] = n == 1 ? alone : otherwise;
        ret_pair[1] = otherwise;
        for (size_t d = 0; a && d < n; d++) {
                if (a->n_ints != n || a->ints[d] < 0 || a->ints[d] > 65536)
                        return mfl_onnx_fail(o, "%s: expected %zu numbers from 0 to 65536", name, n);
                ret_pair[2 - n + d] = (int)a->ints[d];
        }
        return 0;
}

/* What `same` pads, as PyTorch and TensorFlow do: the output has a window for each stride, and an odd number is longer at
 * the end (upper) or at the begin. */
static void pad_same(const struct mfl_layer *l, int d, int64_t size, bool lower, int64_t ret_pads[2])
{
        int64_t n = (size + l->stride[d] - 1) / l->stride[d];
        int64_t all = (n - 1) * l->stride[d] + (int64_t)l->dilation[d] * (l->kernel[d] - 1) + 1 - size;
        all = MFL_MAX(all, 0);
        ret_pads[lower] = all / 2;
        ret_pads[!lower] = all - all / 2;
}

/* The padding of both ends, and in `more` what one end has beyond that. */
static int padding(struct onnx *o, struct mfl_layer *l, const struct mfl_shape *in, int more[2][2])
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "pads");
        bool upper = mfl_onnx_string_is(o, "auto_pad", "NOTSET", "SAME_UPPER"),
             lower = mfl_onnx_string_is(o, "auto_pad", "NOTSET", "SAME_LOWER"),
             transposed = l->op == MFL_OP_CONVTRANSPOSE2D;
        int n = spatial(o);
        if (!upper && !lower && !mfl_onnx_string_is(o, "auto_pad", "NOTSET", "NOTSET") &&
                !mfl_onnx_string_is(o, "auto_pad", "NOTSET", "VALID"))
                return mfl_onnx_fail(o, "this auto_pad is not known");
        if ((upper || lower) && transposed)
                return mfl_onnx_fail(o, "auto_pad is not supported; use padding and output_padding");
        if (a && a->n_ints != (size_t)(2 * n))
                return mfl_onnx_fail(o, "pads: expected %d numbers", 2 * n);
        for (int d = 2 - n; d < 2; d++) {
                int64_t pads[2] = {a ? a->ints[d - (2 - n)] : 0, a ? a->ints[d - (2 - n) + n] : 0};
                if (upper || lower)
                        pad_same(l, d, in->dim[1 + d], lower, pads);
                int64_t both = MFL_MIN(pads[0], pads[1]);
                if (both < 0 || pads[0] > 65536 || pads[1] > 65536)
                        return mfl_onnx_fail(o, "pads: expected numbers from 0 to 65536");
                if (pads[0] != pads[1] && l->op != MFL_OP_CONV2D)
                        return mfl_onnx_fail(o, "pads must be equal at both ends");
                l->padding[d] = (int)both;
                more[d][0] = (int)(pads[0] - both);
                more[d][1] = (int)(pads[1] - both);
        }
        return 0;
}

static int window(struct onnx *o, struct mfl_layer *l, const struct onnx_tensor *weight,
        const struct mfl_shape *in, int more[2][2])
{
        int r = pair(o, "kernel_shape", 0, 1, l->kernel);
        if (!r)
                r = pair(o, "strides", 1, 1, l->stride);
        if (!r)
                r = pair(o, "dilations", 1, 1, l->dilation);
        for (int d = 0; !r && d < 2; d++) {
                if (weight && !l->kernel[d])
                        l->kernel[d] = (int)weight->shape.dim[weight->shape.rank - 2 + d];
                if (l->kernel[d] < 1 || l->stride[d] < 1 || l->dilation[d] < 1)
                        return mfl_onnx_fail(o, "kernel_shape, strides and dilations must be at least 1");
        }
        return r ? r : padding(o, l, in, more);
}

/* Zeros that only one end has, as a layer before the convolution. */
static int pad_more(struct onnx *o, struct mfl_layer *l, struct mfl_shape *in, int more[2][2])
{
        struct mfl_layer pad = {
                .op = MFL_OP_MAP, .map = {.kind = MFL_MAP_PAD, .mode = MFL_MAP_CONSTANT}, .input = l->input};
        if (!more[0][0] && !more[0][1] && !more[1][0] && !more[1][1])
                return 0;
        for (int d = 0; d < 2; d++) {
                pad.map.before[1 + d] = more[d][0];
                pad.map.after[1 + d] = more[d][1];
                in->dim[1 + d] += more[d][0] + more[d][1];
        }
        pad.out = *in;
        return mfl_onnx_add_layer(o, &pad, NULL, o->node, &l->input);
}

static int64_t windows(const struct mfl_layer *l, int d, int64_t size)
{
        int64_t room = size + 2 * (int64_t)l->padding[d] - (int64_t)l->dilation[d] * (l->kernel[d] - 1) - 1;
        return room < 0 ? 0 : room / l->stride[d] + 1;
}

/* The weights, and the bias if it is trained like them. */
static int conv_weights(struct onnx *o, const struct onnx_tensor **t, double *ret_scale)
{
        struct onnx_value *w = mfl_onnx_input(o, 1), *b = mfl_onnx_input(o, 2);
        int r = w && !w->tensor ? mfl_onnx_scaled_weight(o, w, &t[0], ret_scale) : 0;
        if (!r && !t[0])
                r = mfl_onnx_weight_of(o, 1, 2 + spatial(o), &t[0]);
        bool own = !r && b && b->tensor && w->tensor &&
                   (w->tensor->param || w->tensor->generated) == (b->tensor->param || b->tensor->generated) &&
                   !mfl_onnx_bias_is_apart(o, b->tensor, w->tensor);
        return own ? mfl_onnx_weight_of(o, 2, 1, &t[1]) : r;
}

/* A scale, and a bias that is no tensor of the convolution, are layers behind it. */
static int finish_conv(struct onnx *o, struct mfl_layer *l, const struct onnx_tensor *const *t, double scale)
{
        struct onnx_shape shape;
        image_shape(o, l, &shape);
        struct onnx_value *b = mfl_onnx_input(o, 2), *v, *bias;
        int layer, r = mfl_onnx_add_layer(o, l, t, o->node, &layer);
        if (!r)
                r = mfl_onnx_layer_value(o, layer, &shape, &v);
        if (!r)
                r = mfl_onnx_make_affine(o, v, scale, 0, &v);
        if (!r && b && !t[1]) {
                struct onnx_shape channels = {shape.rank, {1, l->out.dim[0], 1, 1}};
                if (mfl_onnx_count(&b->shape) != l->out.dim[0])
                        return mfl_onnx_fail(o, "the bias doesn't fit the weights");
                if ((b->tensor && (r = mfl_onnx_lift(o, b, &b))) || (r = mfl_onnx_resolve(o, b, &b)) ||
                        (r = mfl_onnx_view(o, b, &channels, NULL, &bias)) ||
                        (r = mfl_onnx_combine(o, MFL_OP_ADD, v, bias, &v)))
                        return r;
        }
        return r ? r : mfl_onnx_output(o, 0, v);
}

static int convert_conv(struct onnx *o)
{
        bool transposed = !strcmp(mfl_onnx_node(o)->op_type, "ConvTranspose");
        struct mfl_layer l = {.op = transposed ? MFL_OP_CONVTRANSPOSE2D : MFL_OP_CONV2D};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct mfl_shape in;
        int more[2][2] = {{0}};
        int64_t groups = mfl_onnx_int(o, "group", 1);
        double scale = 1;
        int r = conv_weights(o, t, &scale);
        l.bias = t[1];
        if (!r)
                r = mfl_onnx_image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (!r)
                r = window(o, &l, t[0], &in, more);
        if (!r)
                r = pad_more(o, &l, &in, more);
        if (!r && transposed)
                r = pair(o, "output_padding", 0, 0, l.output_padding);
        if (r)
                return r;
        int64_t outputs = transposed ? t[0]->shape.dim[1] * groups : t[0]->shape.dim[0];
        if (groups < 1 || groups > 65536 || outputs < 1 || outputs > MFL_WIDTH_MAX ||
                (spatial(o) == 2 && l.kernel[0] != t[0]->shape.dim[2]) ||
                l.kernel[1] != t[0]->shape.dim[1 + spatial(o)])
                return mfl_onnx_fail(o, "weights, group and kernel_shape don't match");
        l.conv_groups = (int)groups;
        l.out_channels = (int)outputs;
        l.out = (struct mfl_shape){3, {outputs}};
        for (int d = 0; d < 2; d++)
                l.out.dim[1 + d] = transposed
                                           ? (in.dim[1 + d] - 1) * l.stride[d] - 2 * (int64_t)l.padding[d] +
                                                     (int64_t)l.dilation[d] * (l.kernel[d] - 1) +
                                                     l.output_padding[d] + 1
                                           : windows(&l, d, in.dim[1 + d]);
        mfl_onnx_name(o, &l, t[0], "weight");
        mfl_onnx_name(o, &l, t[1], "bias");
        return finish_conv(o, &l, t, scale);
}

static int convert_pool(struct onnx *o)
{
        bool average = mfl_onnx_node(o)->op_type[0] == 'A';
        struct mfl_layer l = {.op = average ? MFL_OP_AVGPOOL2D : MFL_OP_MAXPOOL2D};
        struct mfl_shape in;
        int more[2][2], r = mfl_onnx_image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (!r)
                r = window(o, &l, NULL, &in, more);
        if (r)
                return r;
        /* A window that is cut at the end of the image: with ceil_mode, the mean of what is there. */
        for (int d = 0; d < 2; d++)
                if (mfl_onnx_int(o, "ceil_mode", 0) && !l.padding[d] && l.dilation[d] == 1 &&
                        l.kernel[d] > in.dim[1 + d] && l.kernel[d] - in.dim[1 + d] < l.stride[d])
                        l.kernel[d] = (int)in.dim[1 + d];
        bool padded = l.padding[0] || l.padding[1];
        bool inside = average && padded && !mfl_onnx_int(o, "count_include_pad", 0);
        l.out = (struct mfl_shape){3, {in.dim[0]}};
        for (int d = 0; d < 2; d++) {
                l.out.dim[1 + d] = windows(&l, d, in.dim[1 + d]);
                int64_t room = in.dim[1 + d] + 2 * (int64_t)l.padding[d] -
                               (int64_t)l.dilation[d] * (l.kernel[d] - 1) - 1;
                bool beyond = mfl_onnx_int(o, "ceil_mode", 0) && room % l.stride[d] &&
                              l.out.dim[1 + d] * l.stride[d] - l.padding[d] < in.dim[1 + d];
                if (beyond && average && padded && !inside)
                        return mfl_onnx_fail(o, "ceil_mode with a counted padding is not supported; use "
                                                "AvgPool2d(ceil_mode=False), or count_include_pad=False");
                inside = inside || (beyond && average);
                l.ceil_mode |= beyond;
                l.out.dim[1 + d] += beyond;
        }
        if (inside) {
                l.op = MFL_OP_MAP;
                l.map.kind = MFL_MAP_AVGPOOL2D;
        }
        return add_image(o, &l, NULL);
}

static int convert_global_pool(struct onnx *o)
{
        bool average = !strcmp(mfl_onnx_node(o)->op_type, "GlobalAveragePool");
        struct mfl_layer l = {.op = average ? MFL_OP_GLOBAL_AVGPOOL2D : MFL_OP_GLOBAL_MAXPOOL2D};
        struct mfl_shape in;
        int r = mfl_onnx_image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (r)
                return r;
        l.out = (struct mfl_shape){3, {in.dim[0], 1, 1}};
        return add_image(o, &l, NULL);
}

/* A scale or shift that is no tensor of the norm. */
static int scale_norm(struct onnx *o, size_t i, enum mfl_op op, bool of_channels, struct onnx_value **v)
{
        struct onnx_value *given = mfl_onnx_input(o, i), *view;
        struct onnx_shape channels = {(*v)->shape.rank, {1, (*v)->shape.dim[1], 1, 1, 1}};
        int r = 0;
        if (!given)
                return 0;
        if (given->tensor)
                r = mfl_onnx_lift(o, given, &given);
        if (!r)
                r = mfl_onnx_resolve(o, given, &view);
        if (!r && of_channels)
                r = mfl_onnx_view(o, view, &channels, NULL, &view);
        return r ? r : mfl_onnx_combine(o, op, *v, view, v);
}

int mfl_onnx_scale_channels(struct onnx *o, struct onnx_value **v)
{
        int r = scale_norm(o, 1, MFL_OP_MULTIPLY, true, v);
        return r ? r : scale_norm(o, 2, MFL_OP_ADD, true, v);
}

bool mfl_onnx_scale_is_apart(const struct onnx *o)
{
        const struct onnx_value *scale = mfl_onnx_input(o, 1), *shift = mfl_onnx_input(o, 2);
        return scale && scale->tensor && shift && shift->tensor &&
               mfl_onnx_bias_is_apart(o, shift->tensor, scale->tensor);
}

/* "n.statistics" of "n.running_mean". */
static void name_statistics(struct onnx *o, const struct onnx_tensor *mean, struct mfl_layer *l)
{
        struct onnx_tensor named = *mean;
        char origin[MFL_LAYER_NAME_BYTES * 2];
        const char *end = mean->origin ? strstr(mean->origin, ".running_mean") : NULL;
        if (!end || end - mean->origin >= MFL_LAYER_NAME_BYTES)
                return;
        mfl_snprintf(origin, sizeof origin, "%.*s.statistics", (int)(end - mean->origin), mean->origin);
        named.origin = origin;
        mfl_onnx_name(o, l, &named, "");
}

/* PyTorch's first exporter writes an InstanceNorm with running statistics as a batch norm of all samples' channels, with the
 * statistics once for each sample: of one sample, as a batch norm. */
static bool is_of_instances(const struct onnx *o)
{
        const struct onnx_value *mean = mfl_onnx_input(o, 3);
        return mean && mean->node >= 0 && !strcmp(o->graph->node[mean->node]->op_type, "Tile");
}

static int convert_batchnorm(struct onnx *o)
{
        struct mfl_layer l = {.op = MFL_OP_BATCHNORM,
                .eps = mfl_onnx_float(o, "epsilon", 1e-5f),
                .momentum = 1 - mfl_onnx_float(o, "momentum", 0.9f)};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct onnx_value *x = mfl_onnx_input(o, 0), *v;
        static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
        bool apart = mfl_onnx_scale_is_apart(o);
        int layer, r = 0;
        if (is_of_instances(o))
                return mfl_onnx_fail(
                        o, "is an InstanceNorm with running statistics: use track_running_stats=False");
        for (int i = 0; !r && i < 4; i++) {
                r = mfl_onnx_weight_of(o, (size_t)i + 1, 1, &t[i]);
                if (!r && !apart &&
                        (i < 2 || !o->own)) /* mfl's own "n.running_mean" may be of "n.statistics" */
                        mfl_onnx_name(o, &l, t[i], names[i]);
        }
        if (!r && apart) /* "n.weight" is the layer that scales */
                name_statistics(o, t[2], &l);
        for (int i = 0; !r && apart && i < 2; i++)
                r = mfl_onnx_ones(o, t[2]->count, i ? 0 : 1, &t[i]);
        if (r)
                return r;
        /* 1 - 0.9 in floats is not 0.1. */
        l.momentum = (float)(round((double)l.momentum * 1e6) / 1e6);
        if (!(l.momentum > 0 && l.eps > 0)) /* in a layer, 0 means the default */
                return mfl_onnx_fail(o, "momentum and eps must be above 0; a norm that keeps its running "
                                        "statistics is one in "
                                        "eval mode, which mfl_export.save(net, example, file) writes");
        if (!x || x->tensor)
                return mfl_onnx_fail(o, "input 0 is missing");
        if (x->shape.rank == 2 && x->shape.dim[0] == 1)
                l.out = (struct mfl_shape){1, {x->shape.dim[1]}};
        else if (x->shape.rank == 4 && x->shape.dim[0] == 1)
                l.out = (struct mfl_shape){3, {x->shape.dim[1], x->shape.dim[2], x->shape.dim[3]}};
        else if (x->shape.rank == 3 && x->shape.dim[0] == 1)
                l.out = (struct mfl_shape){3, {x->shape.dim[1], 1, x->shape.dim[2]}};
        else if (x->shape.rank != 2)
                return mfl_onnx_fail(o, "needs {batch, features}, {batch, channels, positions} or images");
        if (!l.out.rank)
                r = mfl_onnx_norm_of_rows(o, &l, t, x, &v);
        else if (!(r = mfl_onnx_layer_of(o, x, &l.out, &l.input)) &&
                 !(r = mfl_onnx_add_layer(o, &l, t, o->node, &layer)))
                r = mfl_onnx_layer_value(o, layer, &x->shape, &v);
        if (!r && apart)
                r = mfl_onnx_scale_channels(o, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

static bool is_trained(const struct onnx_value *v)
{
        return v && v->tensor && v->tensor->param;
}

static int convert_layernorm(struct onnx *o)
{
        struct mfl_layer l = {.op = MFL_OP_LAYERNORM, .eps = mfl_onnx_float(o, "epsilon", 1e-5f)};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct onnx_value *x = mfl_onnx_input(o, 0), *scale = mfl_onnx_input(o, 1),
                          *shift = mfl_onnx_input(o, 2), *v;
        int64_t axis = mfl_onnx_int(o, "axis", -1);
        int layer, r;
        if (!(l.eps > 0)) /* in a layer, 0 means the default */
                return mfl_onnx_fail(o, "the normalisation needs an eps above 0");
        if (!x || x->tensor || !scale)
                return mfl_onnx_fail(o, "needs data of the samples, and a scale");
        axis += axis < 0 ? x->shape.rank : 0;
        if (axis < 1 || axis >= x->shape.rank)
                return mfl_onnx_fail(o, "is supported over dimensions of a sample, not the batch");
        /* Several dimensions are one, without a scale; the scale and the shift of all its elements follow. */
        bool one = axis == x->shape.rank - 1;
        bool own = one && scale->tensor && !mfl_onnx_scale_is_apart(o) &&
                   (!shift || (shift->tensor && is_trained(shift) == is_trained(scale)));
        if (own) {
                r = mfl_onnx_weight_of(o, 1, 1, &t[0]);
                if (!r && shift)
                        r = mfl_onnx_weight_of(o, 2, 1, &t[1]);
        } else {
                int64_t width = 1;
                for (int d = (int)axis; d < x->shape.rank; d++)
                        width *= x->shape.dim[d];
                r = mfl_onnx_ones(o, width, 1, &t[0]);
        }
        if (r)
                return r;
        if (!t[0]->count || mfl_onnx_count(&x->shape) % t[0]->count)
                return mfl_onnx_fail(o, "the scale doesn't fit the input");
        l.bias = t[1];
        mfl_onnx_name(o, &l, t[0], "weight");
        mfl_onnx_name(o, &l, t[1], "bias");
        int64_t rows = mfl_onnx_count(&x->shape) / t[0]->count;
        l.out = rows == 1 && x->shape.rank - axis == x->shape.rank - 1 && x->shape.dim[0] == 1
                        ? (struct mfl_shape){1, {t[0]->count}}
                        : (struct mfl_shape){2, {rows, t[0]->count}};
        if (one)
                mfl_onnx_rows_shape(x, &l.out);
        if ((r = mfl_onnx_layer_of(o, x, &l.out, &l.input)) ||
                (r = mfl_onnx_add_layer(o, &l, t, o->node, &layer)) ||
                (r = mfl_onnx_layer_value(o, layer, &x->shape, &v)))
                return r;
        if (!own && ((r = scale_norm(o, 1, MFL_OP_MULTIPLY, false, &v)) ||
                            (r = scale_norm(o, 2, MFL_OP_ADD, false, &v))))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* ---- others ---- */

static int convert_dropout(struct onnx *o)
{
        double rate = (double)mfl_onnx_float(o, "ratio", 0.5f);
        struct onnx_value *x = mfl_onnx_input(o, 0), *view, *v;
        int layer, r;
        if (mfl_onnx_input(o, 1) && !mfl_onnx_scalar(mfl_onnx_input(o, 1), &rate))
                return mfl_onnx_fail(o, "the rate is not a constant");
        if (x->tensor && !(rate > 0 && x->tensor->f))
                return mfl_onnx_output(o, 0, x);
        r = x->tensor ? mfl_onnx_lift(o, x, &view) : mfl_onnx_resolve(o, x, &view);
        if (r || (r = mfl_onnx_view(o, view, &view->shape, NULL, &v)))
                return r;
        if (rate > 0) {
                struct mfl_layer l = {.op = MFL_OP_DROPOUT,
                        .input = view->layer,
                        .rate = (float)rate,
                        .out = *mfl_onnx_layer_shape(o, view->layer)};
                if ((r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)))
                        return r;
                v->layer = layer;
        }
        return mfl_onnx_output(o, 0, v);
}

/* A layer's output, and once more behind it in a dimension. */
static int twice(struct onnx *o, int layer, const struct mfl_shape *s, int axis, int *ret_layer)
{
        struct mfl_shape out = *s;
        struct onnx_shape shape = {.rank = s->rank};
        struct onnx_value whole = {.layer = layer}, *view;
        int64_t run = 1, n = 2 * mfl_shape_count(s);
        out.dim[axis] *= 2;
        for (int d = 0; d < s->rank; d++) {
                shape.dim[d] = out.dim[d];
                run *= d < axis ? 1 : s->dim[d];
        }
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)(i / (2 * run) * run + i % run);
        int r = mfl_onnx_view(o, &whole, &shape, map, &view);
        return r ? r : mfl_onnx_view_layer(o, view, &out, ret_layer);
}

/* The sample's dimensions; of more than three, those before and after the axis as one each. *ret_axis: the axis among them. */
static void concat_shape(
        const struct onnx_shape *shape, int axis, int batch, struct mfl_shape *ret_shape, int *ret_axis)
{
        struct mfl_shape s = {0};
        bool all = shape->rank <= 4;
        for (int d = 0; d < shape->rank; d++) {
                if (d == batch)
                        continue;
                if (d == axis)
                        *ret_axis = s.rank;
                if (all || d == axis || d == axis + 1 || !s.rank)
                        s.dim[s.rank++] = shape->dim[d];
                else
                        s.dim[s.rank - 1] *= shape->dim[d];
        }
        *ret_shape = s;
}

static int convert_concat(struct onnx *o)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        struct onnx_value *first = mfl_onnx_input(o, 0), *joined = NULL;
        size_t begin = 0;
        while (begin + 1 < node->n_input && first && !mfl_onnx_count(&first->shape))
                first = mfl_onnx_input(o, ++begin);
        int64_t axis = mfl_onnx_int(o, "axis", 0);
        struct mfl_shape s, total;
        int layer = -1, r = 0, at = 0, batch = 0;
        if (!first)
                return mfl_onnx_fail(o, "input 0 is missing");
        struct onnx_shape shape = first->shape;
        axis += axis < 0 ? shape.rank : 0;
        while (batch < shape.rank && (shape.dim[batch] != 1 || batch == axis))
                batch++;
        bool of_params = shape.rank <= 3;
        for (size_t i = 0; i < node->n_input; i++)
                of_params = of_params && mfl_onnx_input(o, i) && mfl_onnx_of_params(o, mfl_onnx_input(o, i));
        if (axis == 0 && batch == shape.rank && !of_params)
                return mfl_onnx_fail(o,
                        "joins along the batch, whose samples are trained apart; give what is joined a "
                        "dimension of its own: torch.stack([...], 1), or for heads view(b, n, heads, "
                        "d).transpose(1, 2)");
        if (axis < 0 || axis >= shape.rank || (batch == shape.rank && (!of_params || shape.rank > 4)))
                return mfl_onnx_fail(o,
                        "is not supported along this axis; export the model with a batch of 1, with "
                        "dynamic_axes, or by mfl_export.save(net, example, file)");
        for (size_t i = begin; i < node->n_input; i++) {
                struct onnx_value *x = mfl_onnx_input(o, i);
                int from;
                if (x && i > begin && !mfl_onnx_count(&x->shape)) /* x[..., n:] of n numbers */
                        continue;
                if (!x || x->shape.rank != shape.rank || (batch < shape.rank && x->shape.dim[batch] != 1))
                        return mfl_onnx_fail(o, "the inputs differ in shape");
                concat_shape(&x->shape, (int)axis, batch, &s, &at);
                if (x->tensor) {
                        r = mfl_onnx_weight_layer(o, x, &s, &from);
                } else {
                        r = mfl_onnx_layer_of(o, x, &s, &from);
                }
                if (r)
                        return r;
                if (layer < 0) {
                        layer = from;
                        total = s;
                        continue;
                }
                struct mfl_layer l = {
                        .op = MFL_OP_CONCAT, .input = layer, .input2 = from, .axis = at, .out = total};
                l.out.dim[at] += s.dim[at];
                /* Growing lists share their beginnings. */
                r = layer == from ? twice(o, layer, &total, at, &layer)
                                  : mfl_onnx_derive(o, &l, o->node, &layer);
                if (r)
                        return r;
                total = l.out;
                shape.dim[axis] = total.dim[at];
        }
        r = mfl_onnx_layer_value(o, layer, &shape, &joined);
        return r ? r : mfl_onnx_output(o, 0, joined);
}

enum first_input { ANY, GIVEN, OF_SAMPLES };

static const struct {
        const char *op;
        int (*convert)(struct onnx *o);
        enum first_input first; /* the least that the first input must be for this conversion */
} operators[] = {{"Conv", convert_conv, ANY}, {"ConvTranspose", convert_conv, ANY},
        {"MaxPool", convert_pool, ANY}, {"AveragePool", convert_pool, ANY},
        {"GlobalAveragePool", convert_global_pool, ANY}, {"GlobalMaxPool", convert_global_pool, ANY},
        {"Gemm", mfl_onnx_gemm, ANY}, {"MatMul", mfl_onnx_matmul, ANY},
        {"BatchNormalization", convert_batchnorm, ANY}, {"LayerNormalization", convert_layernorm, ANY},
        {"Concat", convert_concat, ANY}, {"Gather", mfl_onnx_embedding, ANY},
        {"LSTM", mfl_onnx_recurrent, ANY}, {"GRU", mfl_onnx_recurrent, ANY}, {"RNN", mfl_onnx_recurrent, ANY},
        {"Dropout", convert_dropout, GIVEN}, {"Softmax", mfl_onnx_softmax, OF_SAMPLES},
        {"LogSoftmax", mfl_onnx_softmax, OF_SAMPLES}, {"ReduceMean", mfl_onnx_reduce, OF_SAMPLES},
        {"ReduceSum", mfl_onnx_reduce, OF_SAMPLES}, {"ReduceMax", mfl_onnx_reduce, OF_SAMPLES},
        {"ReduceL2", mfl_onnx_reduce, OF_SAMPLES}, {"ReduceMin", mfl_onnx_reduce, OF_SAMPLES},
        {"ReduceL1", mfl_onnx_reduce, OF_SAMPLES}, {"ReduceLogSumExp", mfl_onnx_reduce, OF_SAMPLES},
        {"ReduceSumSquare", mfl_onnx_reduce, OF_SAMPLES}, {"ReduceProd", mfl_onnx_reduce, OF_SAMPLES},
        {"OneHot", mfl_onnx_one_hot, ANY}, {"TopK", mfl_onnx_top, OF_SAMPLES},
        {"Max", mfl_onnx_extreme, GIVEN}, {"Min", mfl_onnx_extreme, GIVEN},
        {"PRelu", mfl_onnx_prelu, OF_SAMPLES}, {"Einsum", mfl_onnx_einsum, ANY},
        {"CumSum", mfl_onnx_convert_cumsum, OF_SAMPLES}, {"Pad", mfl_onnx_convert_pad, OF_SAMPLES},
        {"Trilu", mfl_onnx_convert_trilu, OF_SAMPLES}, {"Resize", mfl_onnx_convert_resize, OF_SAMPLES},
        {"Upsample", mfl_onnx_convert_resize, OF_SAMPLES}, {"ScatterND", mfl_onnx_scatter, GIVEN},
        {"GatherElements", mfl_onnx_gather_elements, GIVEN}};

int mfl_onnx_operator(struct onnx *o, bool *ret_known)
{
        const struct onnx_value *x = mfl_onnx_input(o, 0);
        enum first_input have = !x ? ANY : x->tensor ? GIVEN : OF_SAMPLES;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(operators); i++) {
                if (!strcmp(mfl_onnx_node(o)->op_type, operators[i].op) && have >= operators[i].first) {
                        *ret_known = true;
                        return operators[i].convert(o);
                }
        }
        *ret_known = false;
        return 0;
}
