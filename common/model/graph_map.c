/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the descriptions of sparse linear maps, and infers their output shapes. */
#include "common/model/graph_map_internal.h"

static bool needs_image(const struct mfl_layer *layer)
{
        enum mfl_map_kind kind = layer->map.kind;
        return kind == MFL_MAP_RESIZE || kind == MFL_MAP_AVGPOOL2D || kind == MFL_MAP_ADAPTIVE_AVGPOOL2D;
}

static int fail(const struct mfl_layer *layer, struct mfl_error *err, const char *why)
{
        return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s", layer->name, mfl_layer_kind(layer), why);
}

static int fail_input(
        const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err, const char *what)
{
        char text[96];
        return mfl_fail(err, MFL_INVALID, "layer %s (%s): needs %s; its input is %s", layer->name,
                mfl_layer_kind(layer), what, mfl_shape_text(in, text, sizeof text));
}

/* ---- view, gather ---- */

/* The least and the largest element that the digits reach stay inside the input. */
static int check_view(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        int64_t least = v->offset, most = v->offset, total = mfl_shape_count(in);
        uint64_t count = 1;
        char text[96];
        if (v->n_digits < 1 || v->n_digits > MFL_MAP_DIGITS_MAX)
                return fail(layer, err, "sizes and strides are lists of 1 to 8 numbers");
        if (v->offset < 0 || v->offset >= total)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (view): offset %lld is outside its input, which has %lld numbers",
                        layer->name, (long long)v->offset, (long long)total);
        for (int d = 0; d < v->n_digits; d++) {
                if (v->size[d] < 1 || v->size[d] > INT32_MAX || v->stride[d] > total ||
                        v->stride[d] < -total || v->shift[d] <= -v->size[d] || v->shift[d] >= v->size[d])
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (view): digit %d has size %lld, stride %lld and shift %lld; a size "
                                "is at "
                                "least 1, a stride at most the input's %lld numbers, a shift less than the "
                                "size",
                                layer->name, d, (long long)v->size[d], (long long)v->stride[d],
                                (long long)v->shift[d], (long long)total);
                int64_t reach = (v->size[d] - 1) * v->stride[d];
                least += MFL_MAX(MFL_MIN(reach, 0), -total); /* beyond that it is outside in any case */
                most += MFL_MIN(MFL_MAX(reach, 0), total);
                count = mfl_graph_multiply(count, (uint64_t)v->size[d]);
        }
        if (count != (uint64_t)mfl_shape_count(&layer->shape))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (view): its sizes give %llu numbers, its shape %s has %lld", layer->name,
                        (unsigned long long)count, mfl_shape_text(&layer->shape, text, sizeof text),
                        (long long)mfl_shape_count(&layer->shape));
        if (least < 0 || most >= total)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (view): reads elements %lld to %lld; its input %s has elements 0 to %lld",
                        layer->name, (long long)least, (long long)most, mfl_shape_text(in, text, sizeof text),
                        (long long)(total - 1));
        return 0;
}

static int check_gather(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        int64_t total = mfl_shape_count(in);
        char text[96];
        if (!v->index || v->n_index < 1 || v->n_index > MFL_MAP_GATHER_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (gather): needs 1 to %d indices", layer->name,
                        MFL_MAP_GATHER_MAX);
        if (v->n_index != mfl_shape_count(&layer->shape))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (gather): %d indices; its shape %s has %lld numbers", layer->name,
                        v->n_index, mfl_shape_text(&layer->shape, text, sizeof text),
                        (long long)mfl_shape_count(&layer->shape));
        for (int e = 0; e < v->n_index; e++)
                if (v->index[e] < 0 || v->index[e] >= total)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (gather): index %d; its input %s has elements 0 to %lld",
                                layer->name, v->index[e], mfl_shape_text(in, text, sizeof text),
                                (long long)(total - 1));
        return 0;
}

/* ---- dimension by dimension ---- */

static int check_pad(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        static const char *const rules[] = {[MFL_MAP_REFLECT] = "reflect adds less than the dimension has",
                [MFL_MAP_CIRCULAR] = "circular adds at most what the dimension has"};
        if (v->mode > MFL_MAP_CIRCULAR || !(v->value >= -3e38f && v->value <= 3e38f))
                return fail(layer, err,
                        "the mode is not one of constant, reflect, replicate, circular, or the value is "
                        "not finite");
        for (int d = 0; d < 3; d++) {
                int least = MFL_MIN(v->before[d], v->after[d]), most = MFL_MAX(v->before[d], v->after[d]);
                int64_t n = d < in->rank ? in->dim[d] : 0;
                int64_t limit = v->mode == MFL_MAP_REFLECT    ? n - 1
                                : v->mode == MFL_MAP_CIRCULAR ? n
                                                              : MFL_GRAPH_SIZE_MAX;
                if (d >= in->rank && (least || most))
                        return fail_input(layer, in, err, "as many paddings as its input has dimensions");
                if (least < 0)
                        return fail(layer, err, "a padding is at least 0; slice removes elements");
                if (d < in->rank && most > limit)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (pad): adds %d to dimension %d, which has %lld: %s", layer->name,
                                most, d, (long long)n,
                                rules[v->mode] ? rules[v->mode] : "at most 65536 are possible");
        }
        return 0;
}

static int check_resize(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        const struct mfl_map_spec *v = &layer->map;
        bool interpolates = v->mode == MFL_MAP_BILINEAR || v->mode == MFL_MAP_BICUBIC;
        if (v->mode < MFL_MAP_NEAREST || v->mode > MFL_MAP_BICUBIC)
                return fail(layer, err, "the mode is not one of nearest, nearest-exact, bilinear, bicubic");
        if (v->align_corners && !interpolates)
                return fail(layer, err, "only bilinear and bicubic have align_corners");
        for (int k = 0; k < 2; k++) {
                int64_t to = mfl_map_size(layer, in, 1 + k);
                if (!(v->scale_factor[k] >= 0 && v->scale_factor[k] <= 65536) ||
                        (!v->to[k] && v->scale_factor[k] == 0))
                        return fail(layer, err, "needs a size, or a scale_factor above 0 and at most 65536");
                if (to < 1 || to > MFL_GRAPH_SIZE_MAX)
                        return mfl_fail(err, MFL_INVALID, "layer %s (resize): %lld %s; 1 to %d are possible",
                                layer->name, (long long)to, k ? "columns" : "rows", MFL_GRAPH_SIZE_MAX);
        }
        return 0;
}

static int check_axes(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        unsigned axes = layer->map.axes;
        if (axes && !(axes >> in->rank))
                return layer->map.kind == MFL_MAP_CUMSUM && (axes & (axes - 1))
                               ? fail(layer, err, "cumsum adds along one dimension")
                               : 0;
        return mfl_fail(err, MFL_INVALID,
                "layer %s (%s): its input has dimensions 0 to %d (the batch does not count)", layer->name,
                mfl_layer_kind(layer), in->rank - 1);
}

/* PyTorch's average pools have no dilation. */
static int check_avgpool(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        int r = mfl_graph_infer_pool(layer, in, err);
        return r || (layer->dilation[0] == 1 && layer->dilation[1] == 1)
                       ? r
                       : fail(layer, err, "count_include_pad: false needs dilation 1");
}

static int check_adaptive(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        for (int k = 0; k < 2; k++)
                if (layer->map.to[k] < 1 || layer->map.to[k] > MFL_GRAPH_SIZE_MAX)
                        return fail(layer, err, "a size is 1 to 65536 rows and columns");
        return 0;
}

static void infer_dims(struct mfl_layer *layer, const struct mfl_shape *in)
{
        bool drops =
                (layer->map.kind == MFL_MAP_SUM || layer->map.kind == MFL_MAP_MEAN) && !layer->map.keepdim;
        struct mfl_shape out = {0};
        for (int d = 0; d < in->rank; d++)
                if (!drops || !(layer->map.axes >> d & 1))
                        out.dim[out.rank++] = mfl_map_size(layer, in, d);
        if (!out.rank) /* a sum over everything */
                out = (struct mfl_shape){1, {1}};
        layer->out = out;
}

static int check_kind(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        switch (layer->map.kind) {
        case MFL_MAP_VIEW:
                return check_view(layer, in, err);
        case MFL_MAP_GATHER:
                return check_gather(layer, in, err);
        case MFL_MAP_PAD:
                return check_pad(layer, in, err);
        case MFL_MAP_RESIZE:
                return check_resize(layer, in, err);
        case MFL_MAP_AVGPOOL2D:
                return check_avgpool(layer, in, err);
        case MFL_MAP_ADAPTIVE_AVGPOOL2D:
                return check_adaptive(layer, in, err);
        default:
                return check_axes(layer, in, err);
        }
}

int mfl_graph_infer_map(struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        bool shaped = layer->map.kind == MFL_MAP_VIEW || layer->map.kind == MFL_MAP_GATHER;
        if ((unsigned)layer->map.kind >= MFL_MAP_COUNT_)
                return fail(layer, err, "there is no such map");
        int r = shaped ? mfl_graph_check_shape(layer, err) : 0;
        if (!r && needs_image(layer) && in->rank != 3)
                r = fail_input(layer, in, err, "an image (channels x height x width)");
        if (!r && mfl_shape_count(in) > INT32_MAX)
                r = fail_input(layer, in, err, "less than 2^31 numbers");
        if (!r)
                r = check_kind(layer, in, err);
        if (r)
                return r;
        if (shaped)
                layer->out = layer->shape;
        else
                infer_dims(layer, in);
        if (mfl_map_terms(layer, in) <= MFL_MAP_TERMS_MAX)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "layer %s (%s): its table has %llu entries; at most %lld are supported", layer->name,
                mfl_layer_kind(layer), (unsigned long long)mfl_map_terms(layer, in),
                (long long)MFL_MAP_TERMS_MAX);
}
