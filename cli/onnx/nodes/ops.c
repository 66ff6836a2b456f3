/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that have a native layer of their own. */
#include <math.h>

#include "cli/onnx/internal.h"

static int image(struct onnx *o, struct onnx_value *x, int *ret_layer, struct mfl_shape *ret_shape)
{
        if (!x || x->tensor || x->shape.rank != 4 || x->shape.dim[0] != 1)
                return mfl_onnx_fail(o, "needs images, {batch, channels, height, width}");
        *ret_shape = (struct mfl_shape){3, {x->shape.dim[1], x->shape.dim[2], x->shape.dim[3]}};
        return mfl_onnx_layer_of(o, x, ret_shape, ret_layer);
}

static int add(struct onnx *o, const struct mfl_layer *l, const struct onnx_tensor *const *tensors,
        const struct onnx_shape *shape)
{
        int layer, r = mfl_onnx_add_layer(o, l, tensors, o->node, &layer);
        struct onnx_value *v;
        if (!r)
                r = mfl_onnx_layer_value(o, layer, shape, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

static int add_image(struct onnx *o, const struct mfl_layer *l, const struct onnx_tensor *const *tensors)
{
        struct onnx_shape shape = {4, {1, l->out.dim[0], l->out.dim[1], l->out.dim[2]}};
        return add(o, l, tensors, &shape);
}

static int pair(struct onnx *o, const char *name, int otherwise, int ret_pair[2])
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, name);
        for (int d = 0; d < 2; d++)
                ret_pair[d] = otherwise;
        if (!a)
                return 0;
        for (size_t d = 0; d < 2; d++) {
                if (a->n_ints != 2 || a->ints[d] < 0 || a->ints[d] > 65536)
                        return mfl_onnx_fail(
                                o, "%s: expected two numbers from 0 to 65536 (two dimensions)", name);
                ret_pair[d] = (int)a->ints[d];
        }
        return 0;
}

/* The padding, which must be equal at both ends. */
static int padding(struct onnx *o, int ret_pair[2])
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "pads");
        ret_pair[0] = ret_pair[1] = 0;
        if (!mfl_onnx_string_is(o, "auto_pad", "NOTSET", "NOTSET") &&
                !mfl_onnx_string_is(o, "auto_pad", "NOTSET", "VALID"))
                return mfl_onnx_fail(o, "auto_pad is not supported; use explicit pads");
        if (!a)
                return 0;
        if (a->n_ints != 4)
                return mfl_onnx_fail(o, "pads: expected four numbers (two dimensions)");
        for (int d = 0; d < 2; d++) {
                if (a->ints[d] != a->ints[d + 2] || a->ints[d] < 0 || a->ints[d] > 65536)
                        return mfl_onnx_fail(o, "pads must be equal at both ends");
                ret_pair[d] = (int)a->ints[d];
        }
        return 0;
}

static int window(struct onnx *o, struct mfl_layer *l, const struct onnx_tensor *weight)
{
        int r = pair(o, "kernel_shape", 0, l->kernel);
        if (!r)
                r = pair(o, "strides", 1, l->stride);
        if (!r)
                r = pair(o, "dilations", 1, l->dilation);
        if (!r)
                r = padding(o, l->padding);
        for (int d = 0; !r && d < 2; d++) {
                if (weight && !l->kernel[d])
                        l->kernel[d] = (int)weight->shape.dim[2 + d];
                if (l->kernel[d] < 1 || l->stride[d] < 1 || l->dilation[d] < 1)
                        return mfl_onnx_fail(o, "kernel_shape, strides and dilations must be at least 1");
        }
        return r;
}

static int64_t windows(const struct mfl_layer *l, int d, int64_t size)
{
        int64_t room = size + 2 * (int64_t)l->padding[d] - (int64_t)l->dilation[d] * (l->kernel[d] - 1) - 1;
        return room < 0 ? 0 : room / l->stride[d] + 1;
}

static int weight_of(struct onnx *o, size_t i, int rank, const struct onnx_tensor **ret_tensor)
{
        const struct onnx_value *v = mfl_onnx_input(o, i);
        if (!v || !v->tensor || !v->tensor->f || v->shape.rank != rank)
                return mfl_onnx_fail(o, "input %zu must be an initializer with %d dimensions", i, rank);
        *ret_tensor = v->tensor;
        return 0;
}

static int convert_conv(struct onnx *o)
{
        bool transposed = !strcmp(mfl_onnx_node(o)->op_type, "ConvTranspose");
        struct mfl_layer l = {
                .op = transposed ? MFL_OP_CONVTRANSPOSE2D : MFL_OP_CONV2D, .bias = mfl_onnx_input(o, 2)};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct mfl_shape in;
        int64_t groups = mfl_onnx_int(o, "group", 1);
        int r = weight_of(o, 1, 4, &t[0]);
        if (!r && l.bias)
                r = weight_of(o, 2, 1, &t[1]);
        if (!r)
                r = image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (!r)
                r = window(o, &l, t[0]);
        if (!r && transposed)
                r = pair(o, "output_padding", 0, l.output_padding);
        if (r)
                return r;
        int64_t outputs = transposed ? t[0]->shape.dim[1] * groups : t[0]->shape.dim[0];
        if (groups < 1 || groups > 65536 || outputs < 1 || outputs > 65536 ||
                l.kernel[0] != t[0]->shape.dim[2] || l.kernel[1] != t[0]->shape.dim[3])
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
        return add_image(o, &l, t);
}

static int convert_pool(struct onnx *o)
{
        bool average = mfl_onnx_node(o)->op_type[0] == 'A';
        struct mfl_layer l = {.op = average ? MFL_OP_AVGPOOL2D : MFL_OP_MAXPOOL2D};
        struct mfl_shape in;
        int r = image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (!r)
                r = window(o, &l, NULL);
        if (r)
                return r;
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
        int r = image(o, mfl_onnx_input(o, 0), &l.input, &in);
        if (r)
                return r;
        l.out = (struct mfl_shape){3, {in.dim[0], 1, 1}};
        return add_image(o, &l, NULL);
}

/* Of a norm without scale and shift, exporters write ones and zeros, as constants or under a name of their own. */
static bool is_made_up(const struct onnx_tensor *t, float v)
{
        if (!t->origin)
                return true;
        for (int64_t i = 0; i < t->count; i++)
                if (t->f[i] != v)
                        return false;
        return mfl_onnx_is_generated(t->origin);
}

static int convert_batchnorm(struct onnx *o)
{
        struct mfl_layer l = {.op = MFL_OP_BATCHNORM,
                .eps = mfl_onnx_float(o, "epsilon", 1e-5f),
                .momentum = 1 - mfl_onnx_float(o, "momentum", 0.9f)};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct onnx_value *x = mfl_onnx_input(o, 0);
        static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
        int r = 0;
        for (int i = 0; !r && i < 4; i++) {
                r = weight_of(o, (size_t)i + 1, 1, &t[i]);
                if (!r)
                        mfl_onnx_name(o, &l, t[i], names[i]);
        }
        if (r)
                return r;
        l.frozen = is_made_up(t[0], 1) && is_made_up(t[1], 0);
        /* 1 - 0.9 in floats is not 0.1. */
        l.momentum = (float)(round((double)l.momentum * 1e6) / 1e6);
        if (!x || x->tensor)
                return mfl_onnx_fail(o, "input 0 is missing");
        if (x->shape.rank == 2 && x->shape.dim[0] == 1)
                l.out = (struct mfl_shape){1, {x->shape.dim[1]}};
        else if (x->shape.rank == 4 && x->shape.dim[0] == 1)
                l.out = (struct mfl_shape){3, {x->shape.dim[1], x->shape.dim[2], x->shape.dim[3]}};
        else
                return mfl_onnx_fail(o, "needs images or vectors");
        r = mfl_onnx_layer_of(o, x, &l.out, &l.input);
        return r ? r : add(o, &l, t, &x->shape);
}

static int convert_layernorm(struct onnx *o)
{
        struct mfl_layer l = {.op = MFL_OP_LAYERNORM,
                .eps = mfl_onnx_float(o, "epsilon", 1e-5f),
                .bias = mfl_onnx_input(o, 2)};
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {NULL};
        struct onnx_value *x = mfl_onnx_input(o, 0);
        int64_t axis = mfl_onnx_int(o, "axis", -1);
        int r = weight_of(o, 1, 1, &t[0]);
        if (!r && l.bias)
                r = weight_of(o, 2, 1, &t[1]);
        if (r)
                return r;
        if (!x || x->tensor || (axis != -1 && axis != x->shape.rank - 1))
                return mfl_onnx_fail(o, "is supported over the last dimension");
        l.frozen = !t[0]->origin && !(t[1] && t[1]->origin);
        mfl_onnx_name(o, &l, t[0], "weight");
        mfl_onnx_name(o, &l, t[1], "bias");
        mfl_onnx_rows_shape(x, &l.out);
        r = mfl_onnx_layer_of(o, x, &l.out, &l.input);
        return r ? r : add(o, &l, t, &x->shape);
}

/* ---- dense ---- */

static int pend_product(struct onnx *o, struct onnx_value *x, const struct onnx_tensor *w, bool transposed,
        struct onnx_value **ret_value)
{
        struct onnx_shape shape;
        struct onnx_value *base;
        if (!x || x->tensor)
                return mfl_onnx_fail(o, "needs data of the samples as its first input");
        int r = mfl_onnx_resolve(o, x, &base);
        if (r)
                return r;
        shape = base->shape;
        if (!w->f || w->shape.rank != 2 || shape.rank < 1 ||
                shape.dim[shape.rank - 1] != w->shape.dim[transposed ? 0 : 1])
                return mfl_onnx_fail(o, "the weights don't fit their input");
        shape.dim[shape.rank - 1] = w->shape.dim[transposed ? 1 : 0];
        if ((r = mfl_onnx_new_value(o, &shape, ret_value)))
                return r;
        (*ret_value)->pending = ONNX_PRODUCT;
        (*ret_value)->base = base;
        (*ret_value)->weight = w;
        (*ret_value)->transposed = transposed;
        return 0;
}

static int convert_matmul(struct onnx *o)
{
        const struct onnx_value *b = mfl_onnx_input(o, 1);
        struct onnx_value *v;
        if (!b || !b->tensor)
                return mfl_onnx_fail(o, "needs weights as its second input");
        int r = pend_product(o, mfl_onnx_input(o, 0), b->tensor, true, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

static int convert_gemm(struct onnx *o)
{
        const struct onnx_tensor *w = NULL, *bias = NULL;
        struct onnx_value *v, *made;
        float alpha = mfl_onnx_float(o, "alpha", 1), beta = mfl_onnx_float(o, "beta", 1);
        int r = weight_of(o, 1, 2, &w);
        if (!r && mfl_onnx_input(o, 2))
                r = weight_of(o, 2, 1, &bias);
        if (r)
                return r;
        bool turned = mfl_onnx_int(o, "transB", 0) == 0;
        if (alpha != 1 || (bias && beta != 1) || mfl_onnx_int(o, "transA", 0))
                return mfl_onnx_fail(o, "only alpha 1, beta 1 and transA 0 are supported");
        if (bias && bias->count != w->shape.dim[turned ? 1 : 0])
                return mfl_onnx_fail(o, "the bias doesn't fit the weights");
        r = pend_product(o, mfl_onnx_input(o, 0), w, turned, &v);
        if (!r)
                r = mfl_onnx_make_product(o, v, bias, &made);
        return r ? r : mfl_onnx_output(o, 0, made);
}

/* ---- others ---- */

int mfl_onnx_weight_view(struct onnx *o, const struct onnx_value *constant, struct onnx_value **ret_view)
{
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {constant->tensor};
        const struct onnx_shape *all = &constant->shape;
        struct mfl_layer l = {.op = MFL_OP_WEIGHT, .frozen = !constant->tensor->origin};
        int layer, batch = all->rank == 4 && all->dim[0] == 1;
        if (all->rank < 1 || all->rank - batch > 3)
                return mfl_onnx_fail(o, "%d-dimensional constants are not supported", all->rank);
        for (int d = batch; d < all->rank; d++)
                l.shape.dim[l.shape.rank++] = all->dim[d];
        l.out = l.shape;
        mfl_onnx_name(o, &l, tensors[0], "");
        int r = mfl_onnx_add_layer(o, &l, tensors, mfl_onnx_place_of(o, constant), &layer);
        return r ? r : mfl_onnx_layer_value(o, layer, all, ret_view);
}

static int convert_dropout(struct onnx *o)
{
        double rate = (double)mfl_onnx_float(o, "ratio", 0.5f);
        struct onnx_value *x = mfl_onnx_input(o, 0), *view, *v;
        int layer, r;
        if (mfl_onnx_input(o, 1) && !mfl_onnx_scalar(mfl_onnx_input(o, 1), &rate))
                return mfl_onnx_fail(o, "the rate is not a constant");
        if (x->tensor && !(rate > 0 && x->tensor->f))
                return mfl_onnx_output(o, 0, x);
        r = x->tensor ? mfl_onnx_weight_view(o, x, &view) : mfl_onnx_resolve(o, x, &view);
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

static int convert_softmax(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0), *view, *v;
        int64_t axis = mfl_onnx_int(o, "axis", o->opset < 13 ? 1 : -1);
        if (axis != -1 && axis != x->shape.rank - 1)
                return mfl_onnx_fail(o, "is supported over the last dimension");
        if (!strcmp(mfl_onnx_node(o)->op_type, "LogSoftmax")) {
                int r = mfl_onnx_resolve(o, x, &view);
                if (!r)
                        r = mfl_onnx_view(o, view, &view->shape, NULL, &v);
                mfl_onnx_note(o, "the LogSoftmax at the end was removed: the loss takes logits");
                for (size_t i = 0; i < o->graph->n_output; i++)
                        if (!r && o->graph->output[i]->name &&
                                !strcmp(o->graph->output[i]->name, mfl_onnx_node(o)->output[0]))
                                return mfl_onnx_output(o, 0, v);
                return r ? r : mfl_onnx_fail(o, "is supported only as the last node");
        }
        struct mfl_layer l = {.op = MFL_OP_SOFTMAX};
        mfl_onnx_rows_shape(x, &l.out);
        int r = mfl_onnx_layer_of(o, x, &l.out, &l.input);
        return r ? r : add(o, &l, NULL, &x->shape);
}

static int mean_over(struct onnx *o, struct onnx_value *x, int axis, const struct onnx_shape *shape)
{
        struct mfl_shape in;
        struct mfl_layer l = {.op = MFL_OP_MEAN};
        int r = mfl_onnx_sample_shape(o, x, &in);
        if (!r)
                r = mfl_onnx_layer_of(o, x, &in, &l.input);
        if (r)
                return r;
        l.axis = axis;
        if (axis < 0 || axis >= in.rank || in.rank < 2)
                return mfl_onnx_fail(o, "the mean over the batch, or over a vector, is not supported");
        l.out.rank = 0;
        for (int d = 0; d < in.rank; d++)
                if (d != axis)
                        l.out.dim[l.out.rank++] = in.dim[d];
        return add(o, &l, NULL, shape);
}

static int convert_mean(struct onnx *o)
{
        struct onnx_value *x = mfl_onnx_input(o, 0);
        const int64_t *axes;
        int n, r = mfl_onnx_ints(o, "axes", 1, &axes, &n);
        struct onnx_shape shape = {0};
        unsigned over = 0;
        if (r)
                return r;
        int rank = x->shape.rank, batch = 0;
        for (int i = 0; i < n; i++) {
                int64_t a = axes[i] < 0 ? axes[i] + rank : axes[i];
                if (a < 0 || a >= rank)
                        return mfl_onnx_fail(
                                o, "axis %lld; there are %d dimensions", (long long)axes[i], rank);
                over |= 1u << a;
        }
        for (int d = 0; d < rank; d++) {
                if (!(over >> d & 1))
                        shape.dim[shape.rank++] = x->shape.dim[d];
                else if (mfl_onnx_int(o, "keepdims", 1))
                        shape.dim[shape.rank++] = 1;
        }
        if (rank == 4 && over == 12) {
                struct mfl_layer l = {.op = MFL_OP_GLOBAL_AVGPOOL2D};
                struct mfl_shape in;
                if ((r = image(o, x, &l.input, &in)))
                        return r;
                l.out = (struct mfl_shape){3, {in.dim[0], 1, 1}};
                return add(o, &l, NULL, &shape);
        }
        while (batch < rank && x->shape.dim[batch] != 1)
                batch++;
        for (int d = 0; d < rank; d++)
                if (over == 1u << d && d != batch)
                        return mean_over(o, x, d - (d > batch), &shape);
        return mfl_onnx_convert_reduce(o);
}

static int convert_concat(struct onnx *o)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        struct onnx_value *first = mfl_onnx_input(o, 0), *joined = NULL;
        int64_t axis = mfl_onnx_int(o, "axis", 0);
        struct mfl_shape s, total;
        int layer = -1, r = 0, at, batch = 0;
        if (!first)
                return mfl_onnx_fail(o, "input 0 is missing");
        struct onnx_shape shape = first->shape;
        axis += axis < 0 ? shape.rank : 0;
        while (batch < shape.rank && (shape.dim[batch] != 1 || batch == axis))
                batch++;
        if (axis < 0 || axis >= shape.rank || batch == shape.rank || shape.rank > 4)
                return mfl_onnx_fail(o,
                        "is not supported along this axis; export the model with a batch of 1 or "
                        "with dynamic_axes");
        at = (int)(axis - (axis > batch));
        for (size_t i = 0; i < node->n_input; i++) {
                struct onnx_value *x = mfl_onnx_input(o, i);
                int from;
                if (!x || x->shape.rank != shape.rank || x->shape.dim[batch] != 1)
                        return mfl_onnx_fail(o, "the inputs differ in shape");
                s = (struct mfl_shape){0};
                for (int d = 0; d < shape.rank; d++)
                        if (d != batch)
                                s.dim[s.rank++] = x->shape.dim[d];
                if (x->tensor) {
                        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {x->tensor};
                        struct mfl_layer w = {
                                .op = MFL_OP_WEIGHT, .shape = s, .out = s, .frozen = !x->tensor->origin};
                        mfl_onnx_name(o, &w, x->tensor, "");
                        r = mfl_onnx_add_layer(o, &w, t, mfl_onnx_place_of(o, x), &from);
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
                if (layer == from)
                        return mfl_onnx_fail(o, "joins a value with itself");
                if ((r = mfl_onnx_derive(o, &l, o->node, &layer))) /* growing lists share their beginnings */
                        return r;
                total = l.out;
                shape.dim[axis] = total.dim[at];
        }
        r = mfl_onnx_layer_value(o, layer, &shape, &joined);
        return r ? r : mfl_onnx_output(o, 0, joined);
}

/* The layer that an embedding reads: the input, or the slice of it that the value is. -1: neither. */
static int layer_of_tokens(struct onnx *o, const struct onnx_value *tokens, int *ret_layer, int64_t *ret_n)
{
        int64_t n = mfl_onnx_count(&tokens->shape);
        *ret_layer = -1;
        if (tokens->tensor || tokens->layer != 0 || tokens->samples || tokens->pending ||
                mfl_onnx_layer_shape(o, 0)->rank != 1)
                return 0;
        *ret_n = n;
        if (!tokens->map) {
                *ret_layer = 0;
                return 0;
        }
        for (int64_t k = 1; k < n; k++)
                if (tokens->map[k] != tokens->map[0] + k)
                        return 0;
        struct mfl_layer l = {.op = MFL_OP_SLICE,
                .input = 0,
                .start = tokens->map[0],
                .end = (int)(tokens->map[0] + n),
                .out = {1, {n}}};
        return mfl_onnx_derive(o, &l, o->node, ret_layer);
}

static int convert_gather(struct onnx *o)
{
        const struct onnx_value *table = mfl_onnx_input(o, 0), *tokens = mfl_onnx_input(o, 1);
        if (!table || !table->tensor || !table->tensor->f || table->shape.rank != 2 || !tokens ||
                mfl_onnx_int(o, "axis", 0))
                return mfl_onnx_fail(o,
                        "is supported only with constant indices, or as an embedding (rows of a "
                        "matrix by tokens)");
        int from;
        int64_t t = 0;
        int r = layer_of_tokens(o, tokens, &from, &t);
        if (r)
                return r;
        if (from < 0)
                return mfl_onnx_fail(o, "an embedding must read the model's input, tokens of {batch, "
                                        "positions}, or neighbouring columns "
                                        "of an input of {batch, features}");
        int64_t n = table->shape.dim[0], features = table->shape.dim[1];
        if (n < 1 || n > 65536 || features < 1 || features > 65536)
                return mfl_onnx_fail(o, "the embedding is %lld x %lld; the limit is 65536 each", (long long)n,
                        (long long)features);
        struct mfl_layer l = {.op = MFL_OP_EMBEDDING,
                .input = from,
                .vocabulary = (int)n,
                .out_channels = (int)features,
                .out = {2, {t, features}}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {table->tensor};
        struct onnx_shape shape = tokens->shape;
        mfl_onnx_name(o, &l, table->tensor, "weight");
        shape.dim[shape.rank++] = features;
        return add(o, &l, tensors, &shape);
}

enum first_input { ANY, GIVEN, OF_SAMPLES };

static const struct {
        const char *op;
        int (*convert)(struct onnx *o);
        enum first_input first; /* the least that the first input must be for this conversion */
} operators[] = {{"Conv", convert_conv, ANY}, {"ConvTranspose", convert_conv, ANY},
        {"MaxPool", convert_pool, ANY}, {"AveragePool", convert_pool, ANY},
        {"GlobalAveragePool", convert_global_pool, ANY}, {"GlobalMaxPool", convert_global_pool, ANY},
        {"Gemm", convert_gemm, ANY}, {"MatMul", convert_matmul, ANY},
        {"BatchNormalization", convert_batchnorm, ANY}, {"LayerNormalization", convert_layernorm, ANY},
        {"Concat", convert_concat, ANY}, {"Gather", convert_gather, ANY}, {"LSTM", mfl_onnx_recurrent, ANY},
        {"GRU", mfl_onnx_recurrent, ANY}, {"Dropout", convert_dropout, GIVEN},
        {"Softmax", convert_softmax, OF_SAMPLES}, {"LogSoftmax", convert_softmax, OF_SAMPLES},
        {"ReduceMean", convert_mean, OF_SAMPLES}, {"ReduceSum", mfl_onnx_convert_reduce, OF_SAMPLES},
        {"ReduceMax", mfl_onnx_convert_reduce, OF_SAMPLES}, {"CumSum", mfl_onnx_convert_cumsum, OF_SAMPLES},
        {"Pad", mfl_onnx_convert_pad, OF_SAMPLES}, {"Resize", mfl_onnx_convert_resize, OF_SAMPLES},
        {"Upsample", mfl_onnx_convert_resize, OF_SAMPLES}};

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
