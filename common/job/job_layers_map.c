/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of layers that are sparse linear maps: view, gather, pad, resize, sums and means over dimensions. */
#include "common/job/job.h"
#include "common/job/job_layers.h"

/* A list of up to `max` whole numbers; a single number is a list of one. */
static int read_numbers(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        const struct mfl_yaml_field *field, int max, int64_t *v, int *ret_n, struct mfl_error *err)
{
        int n = 0;
        bool list = node->type == MFL_YAML_SEQUENCE;
        if (list && (node->n_children < 1 || node->n_children > (unsigned)max))
                return mfl_yaml_fail(doc, node, err, "expected a list of 1 to %d whole numbers", max);
        for (const struct mfl_yaml_node *at = list ? node->first : node; at; at = list ? at->next : NULL) {
                int r = mfl_yaml_read_value(doc, at, field, &v[n], err);
                if (r)
                        return r;
                n++;
        }
        *ret_n = n;
        return 0;
}

static const struct mfl_yaml_field any_field = {
        .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = -(double)INT32_MAX, .max = INT32_MAX};
static const struct mfl_yaml_field size_field = {
        .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 1, .max = INT32_MAX};
static const struct mfl_yaml_field count_field = {
        .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 0, .max = 65536};
static const struct mfl_yaml_field axis_field = {
        .kind = MFL_YAML_I64, .size = sizeof(int64_t), .min = 0, .max = MFL_SHAPE_RANK_MAX - 1};

/* ---- view, gather ---- */

static int read_sizes(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_layer_reader *reader = value;
        struct mfl_map_spec *map = &reader->layer.map;
        return read_numbers(doc, node, &size_field, MFL_MAP_DIGITS_MAX, map->size, &map->n_digits, err);
}

static int read_strides(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_layer_reader *reader = value;
        return read_numbers(
                doc, node, &any_field, MFL_MAP_DIGITS_MAX, reader->layer.map.stride, &reader->n_strides, err);
}

static int read_shifts(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_layer_reader *reader = value;
        return read_numbers(
                doc, node, &any_field, MFL_MAP_DIGITS_MAX, reader->layer.map.shift, &reader->n_shifts, err);
}

static int read_indices(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_map_spec *map = &((struct mfl_layer_reader *)value)->layer.map;
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_U32, .size = sizeof(uint32_t), .max = INT32_MAX - 1};
        if (node->type != MFL_YAML_SEQUENCE || node->n_children < 1 || node->n_children > MFL_MAP_GATHER_MAX)
                return mfl_yaml_fail(doc, node, err, "expected a list of 1 to %d elements of the input",
                        MFL_MAP_GATHER_MAX);
        int32_t *index = mfl_malloc(node->n_children * sizeof *index);
        if (!index)
                return mfl_fail_memory(err, node->n_children * sizeof *index, "a layer's indices");
        map->index = index; /* freed with the job's layers */
        for (const struct mfl_yaml_node *at = node->first; at; at = at->next) {
                uint32_t v;
                int r = mfl_yaml_read_value(doc, at, &field, &v, err);
                if (r)
                        return r;
                index[map->n_index++] = (int32_t)v;
        }
        return 0;
}

/* ---- pad, resize ---- */

static int read_counts(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        int64_t v[3];
        int n = 0, *to = value;
        int r = read_numbers(doc, node, &count_field, 3, v, &n, err);
        for (int d = 0; !r && d < n; d++)
                to[d] = (int)v[d];
        return r;
}

static int read_factors(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        static const struct mfl_yaml_field field = {
                .kind = MFL_YAML_F64, .size = sizeof(double), .min = 0, .min_open = true, .max = 65536};
        const struct mfl_yaml_node *first = node, *second = node;
        double *to = value;
        if (node->type == MFL_YAML_SEQUENCE) {
                if (node->n_children != 2)
                        return mfl_yaml_fail(doc, node, err, "expected one number or [height, width]");
                first = node->first;
                second = first->next;
        }
        int r = mfl_yaml_read_value(doc, first, &field, &to[0], err);
        return r ? r : mfl_yaml_read_value(doc, second, &field, &to[1], err);
}

/* ---- sums ---- */

static int read_axes(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err)
{
        struct mfl_layer *layer = &((struct mfl_layer_reader *)value)->layer;
        int64_t v[MFL_SHAPE_RANK_MAX];
        int n = 0;
        int r = read_numbers(doc, node, &axis_field, MFL_SHAPE_RANK_MAX, v, &n, err);
        for (int d = 0; !r && d < n; d++) {
                if (layer->map.axes >> v[d] & 1)
                        return mfl_yaml_fail(
                                doc, node, err, "dimension %lld is given twice", (long long)v[d]);
                layer->map.axes |= 1u << v[d];
                layer->axis = (int)v[d];
        }
        return r;
}

static const char *const pad_modes[] = {"constant", "reflect", "replicate", "circular", NULL};
static const char *const resize_modes[] = {"nearest", "nearest-exact", "bilinear", "bicubic", NULL};

#define CALL(read_) .kind = MFL_YAML_CALL, .read = read_
#define SHAPE                                                                                                \
        {                                                                                                    \
                .key = "shape", CALL_AT(layer.shape, mfl_job_read_shape), .required = true                   \
        }
#define AXES                                                                                                 \
        {                                                                                                    \
                .key = "axis", CALL(read_axes), .required = true                                             \
        }
#define KEEPDIM                                                                                              \
        {                                                                                                    \
                .key = "keepdim", AT(BOOL, layer.map.keepdim)                                                \
        }

/* The second is a key that the layer requires, if there is one. */
static const struct mfl_yaml_field view_fields[] = {NAME, SHAPE,
        {.key = "sizes", CALL(read_sizes), .required = true},
        {.key = "strides", CALL(read_strides), .required = true},
        {.key = "offset", AT(I64, layer.map.offset), .min = 0, .max = INT32_MAX},
        {.key = "shifts", CALL(read_shifts)}, INPUT, {0}};
static const struct mfl_yaml_field gather_fields[] = {
        NAME, SHAPE, {.key = "index", CALL(read_indices), .required = true}, INPUT, {0}};
static const struct mfl_yaml_field pad_fields[] = {NAME,
        {.key = "before", CALL_AT(layer.map.before, read_counts), .required = true},
        {.key = "after", CALL_AT(layer.map.after, read_counts), .required = true},
        {.key = "mode", AT(ENUM, map_mode), .names = pad_modes},
        {.key = "value", AT(F32, layer.map.value), .min = -1e30, .max = 1e30}, INPUT, {0}};
static const struct mfl_yaml_field resize_fields[] = {NAME,
        {.key = "size", CALL_AT(layer.map.to, mfl_job_read_window)},
        {.key = "scale_factor", CALL_AT(layer.map.scale_factor, read_factors)},
        {.key = "mode", AT(ENUM, map_mode), .names = resize_modes},
        {.key = "align_corners", AT(BOOL, layer.map.align_corners)}, INPUT, {0}};
static const struct mfl_yaml_field adaptive_fields[] = {
        NAME, {.key = "size", CALL_AT(layer.map.to, mfl_job_read_window), .required = true}, INPUT, {0}};
static const struct mfl_yaml_field cumsum_fields[] = {NAME, AXES, INPUT, {0}};
const struct mfl_yaml_field mfl_job_mean_fields[] = {NAME, AXES, KEEPDIM, INPUT, {0}};

const struct mfl_yaml_field *const mfl_job_map_fields[MFL_MAP_COUNT_] = {
        [MFL_MAP_VIEW] = view_fields,
        [MFL_MAP_GATHER] = gather_fields,
        [MFL_MAP_PAD] = pad_fields,
        [MFL_MAP_RESIZE] = resize_fields,
        [MFL_MAP_SUM] = mfl_job_mean_fields,
        [MFL_MAP_CUMSUM] = cumsum_fields,
        [MFL_MAP_ADAPTIVE_AVGPOOL2D] = adaptive_fields,
};

static void take_kind(struct mfl_layer *layer, enum mfl_map_kind kind)
{
        layer->op = MFL_OP_MAP;
        layer->map.kind = kind;
}

int mfl_job_finish_map(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_layer_reader *reader, struct mfl_error *err)
{
        struct mfl_layer *layer = &reader->layer;
        struct mfl_map_spec *map = &layer->map;
        bool several = map->axes & (map->axes - 1);
        if (layer->op == MFL_OP_AVGPOOL2D && layer->ceil_mode && reader->count_include_pad)
                return mfl_yaml_fail(doc, node, err, "ceil_mode of avgpool2d needs count_include_pad: false");
        if (layer->op == MFL_OP_AVGPOOL2D && !reader->count_include_pad &&
                (layer->padding[0] || layer->padding[1] || layer->ceil_mode))
                take_kind(layer, MFL_MAP_AVGPOOL2D);
        else if (layer->op == MFL_OP_MEAN && (several || map->keepdim))
                take_kind(layer, MFL_MAP_MEAN);
        if (layer->op != MFL_OP_MAP)
                return 0;
        if (map->kind == MFL_MAP_VIEW && (reader->n_strides != map->n_digits ||
                                                 (reader->n_shifts && reader->n_shifts != map->n_digits)))
                return mfl_yaml_fail(doc, node, err, "sizes, strides and shifts must have one length");
        if (map->kind == MFL_MAP_PAD) {
                map->mode = (enum mfl_map_mode)(MFL_MAP_CONSTANT + reader->map_mode);
                if (map->value != 0 && map->mode != MFL_MAP_CONSTANT)
                        return mfl_yaml_fail(doc, node, err, "only mode constant has a value");
        } else if (map->kind == MFL_MAP_RESIZE) {
                map->mode = (enum mfl_map_mode)(MFL_MAP_NEAREST + reader->map_mode);
                if (!map->to[0] == (map->scale_factor[0] == 0))
                        return mfl_yaml_fail(doc, node, err, "give one of size and scale_factor");
        }
        return 0;
}
