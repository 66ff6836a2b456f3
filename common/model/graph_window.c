/* SPDX-License-Identifier: Apache-2.0 */
/* Output shapes of convolutions and pools: what a sliding window gives. */
#include "common/model/graph_internal.h"

static int check_pair(
        const struct mfl_layer *layer, const char *what, const int pair[2], int min, struct mfl_error *err)
{
        if (pair[0] < min || pair[1] < min || pair[0] > MFL_GRAPH_SIZE_MAX || pair[1] > MFL_GRAPH_SIZE_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %dx%d is outside %d to %d", layer->name,
                        mfl_layer_kind(layer), what, pair[0], pair[1], min, MFL_GRAPH_SIZE_MAX);
        return 0;
}

/* With dilation a window that starts in the padding may step over the whole input; its largest value would
 * be undefined. Windows that start inside always contain a value, and none starts in the far padding, because the
 * padding is at most half of the kernel. */
static bool has_empty_window(const struct mfl_layer *layer, int axis, int64_t size, int64_t out)
{
        for (int64_t o = 0; o < out; o++) {
                int64_t start = o * layer->stride[axis] - layer->padding[axis];
                if (start >= 0)
                        return false;
                int64_t skipped = (-start + layer->dilation[axis] - 1) / layer->dilation[axis];
                if (skipped >= layer->kernel[axis] || start + skipped * layer->dilation[axis] >= size)
                        return true;
        }
        return false;
}

static int check_pool(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        for (int axis = 0; axis < 2; axis++) {
                if (layer->padding[axis] > layer->kernel[axis] / 2)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): padding %dx%d is more than half of the kernel %dx%d",
                                layer->name, mfl_layer_kind(layer), layer->padding[0], layer->padding[1],
                                layer->kernel[0], layer->kernel[1]);
                if (layer->op == MFL_OP_MAXPOOL2D &&
                        has_empty_window(layer, axis, in->dim[1 + axis], layer->out.dim[1 + axis]))
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): a window of dilation %dx%d contains only padding; use a "
                                "smaller dilation",
                                layer->name, mfl_layer_kind(layer), layer->dilation[0], layer->dilation[1]);
        }
        return 0;
}

static int check_window(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        char text[96];
        int r;
        for (int axis = 0; axis < 2; axis++) {
                layer->stride[axis] += layer->stride[axis] == 0;
                layer->dilation[axis] += layer->dilation[axis] == 0;
        }
        if ((r = check_pair(layer, "kernel", layer->kernel, 1, err)) ||
                (r = check_pair(layer, "stride", layer->stride, 1, err)) ||
                (r = check_pair(layer, "dilation", layer->dilation, 1, err)) ||
                (r = check_pair(layer, "padding", layer->padding, 0, err)))
                return r;
        if (in->rank != 3)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): needs an image (channels x height x width); its input is %s",
                        layer->name, mfl_layer_kind(layer), mfl_shape_text(in, text, sizeof text));
        return 0;
}

/* Output height and width of a convolution or pool: floor((in + 2p - d(k - 1) - 1) / s) + 1, with ceil_mode one more
 * if there is a remainder and the next window starts before the image ends, as in PyTorch. */
static int infer_window(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        char text[96];
        int r = check_window(layer, in, err);
        if (r)
                return r;
        layer->out = (struct mfl_shape){.rank = 3, .dim = {in->dim[0]}};
        for (int axis = 0; axis < 2; axis++) {
                int64_t reach = (int64_t)layer->dilation[axis] * (layer->kernel[axis] - 1) + 1;
                int64_t padded = in->dim[1 + axis] + 2 * (int64_t)layer->padding[axis];
                if (reach > padded)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): the %s of its input %s with padding %d is %lld, less than "
                                "the "
                                "kernel's reach of %lld; use a smaller kernel or padding of at least %lld",
                                layer->name, mfl_layer_kind(layer), axis ? "width" : "height",
                                mfl_shape_text(in, text, sizeof text), layer->padding[axis],
                                (long long)padded, (long long)reach,
                                (long long)(reach - in->dim[1 + axis] + 1) / 2);
                int64_t next = (padded - reach) / layer->stride[axis] + 1, left = padded - reach;
                bool more = layer->ceil_mode && left % layer->stride[axis] != 0 &&
                            next * layer->stride[axis] - layer->padding[axis] < in->dim[1 + axis];
                layer->out.dim[1 + axis] = next + more;
        }
        return 0;
}

/* The other way: (in - 1) s - 2p + d(k - 1) + output_padding + 1. */
static int infer_transposed(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        int r = check_window(layer, in, err);
        if (r)
                return r;
        layer->out = (struct mfl_shape){.rank = 3, .dim = {layer->out_channels}};
        for (int axis = 0; axis < 2; axis++) {
                int most = MFL_MAX(layer->stride[axis], layer->dilation[axis]) - 1,
                    more = layer->output_padding[axis];
                if (more < 0 || more > most)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): output_padding %d is outside 0 to %d, less than the stride "
                                "or dilation",
                                layer->name, mfl_layer_kind(layer), more, most);
                int64_t out = (in->dim[1 + axis] - 1) * layer->stride[axis] -
                              2 * (int64_t)layer->padding[axis] +
                              (int64_t)layer->dilation[axis] * (layer->kernel[axis] - 1) + more + 1;
                if (out < 1)
                        return mfl_fail(err, MFL_INVALID, "layer %s (%s): padding %dx%d leaves no output",
                                layer->name, mfl_layer_kind(layer), layer->padding[0], layer->padding[1]);
                layer->out.dim[1 + axis] = out;
        }
        return 0;
}

static int check_groups(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        layer->conv_groups += layer->conv_groups == 0;
        if (layer->conv_groups < 1 || in->dim[0] % layer->conv_groups ||
                layer->out_channels % layer->conv_groups)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): groups %d does not divide both its %lld channels and its %d filters",
                        layer->name, mfl_layer_kind(layer), layer->conv_groups, (long long)in->dim[0],
                        layer->out_channels);
        return 0;
}

int mfl_graph_infer_conv(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        int r = mfl_graph_check_outputs(layer, "filters", err);
        if (!r)
                r = layer->op == MFL_OP_CONV2D ? infer_window(layer, in, err)
                                               : infer_transposed(layer, in, err);
        if (!r)
                r = check_groups(layer, in, err);
        layer->out.dim[0] = layer->out_channels;
        return r;
}

int mfl_graph_infer_pool(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        int r = infer_window(layer, in, err);
        if (!r && layer->ceil_mode && layer->op == MFL_OP_AVGPOOL2D)
                r = mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): maxpool2d has ceil_mode, and avgpool2d with count_include_pad: false",
                        layer->name, mfl_layer_kind(layer));
        return r ? r : check_pool(layer, in, err);
}
