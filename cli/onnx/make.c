/* SPDX-License-Identifier: Apache-2.0 */
/* Turns pending values into layers: dense layers, means, and normalisations. */
#include "cli/onnx/internal.h"

static int turn(struct onnx *o, const struct onnx_tensor *t, const struct onnx_tensor **ret_tensor)
{
        int64_t rows = t->shape.dim[0], columns = t->shape.dim[1];
        int32_t *map = mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *map);
        struct onnx_tensor *turned;
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < rows; i++)
                for (int64_t k = 0; k < columns; k++)
                        map[k * rows + i] = (int32_t)(i * columns + k);
        int r = mfl_onnx_take(o, t, map, t->count, &turned);
        if (r)
                return r;
        turned->shape.dim[0] = columns;
        turned->shape.dim[1] = rows;
        turned->turned = !t->turned;
        *ret_tensor = turned;
        return 0;
}

int mfl_onnx_make_product(
        struct onnx *o, struct onnx_value *v, const struct onnx_tensor *bias, struct onnx_value **ret_view)
{
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {v->weight, bias};
        const struct onnx_value *view = v->base;
        struct mfl_layer l = {.op = MFL_OP_DENSE, .bias = bias};
        struct mfl_shape rows, own;
        int layer, r = v->transposed ? turn(o, v->weight, &t[0]) : 0;
        if (r)
                return r;
        int64_t outputs = t[0]->shape.dim[0];
        if (outputs < 1 || outputs > MFL_WIDTH_MAX)
                return mfl_onnx_fail(
                        o, "%lld outputs; the limit is 1 to %d", (long long)outputs, MFL_WIDTH_MAX);
        mfl_onnx_rows_shape(view, &rows);
        own = *mfl_onnx_layer_shape(o, view->layer);
        /* A dense layer flattens an image by itself. */
        if (rows.rank == 1 && !view->map && own.rank == 3)
                rows = own;
        if ((r = mfl_onnx_view_layer(o, view, &rows, &l.input)))
                return r;
        l.out_channels = (int)outputs;
        l.out = rows.rank == 2 ? (struct mfl_shape){2, {rows.dim[0], outputs}}
                               : (struct mfl_shape){1, {outputs}};
        static const char *const suffixes[] = {"weight", "bias"};
        for (int i = 0; i < 2; i++)
                mfl_onnx_name(o, &l, t[i], suffixes[i]);
        if (!l.name[0] && v->weight->origin && strlen(v->weight->origin) > 7 &&
                !strcmp(v->weight->origin + strlen(v->weight->origin) - 7, "_weight")) {
                struct onnx_tensor named = *v->weight;
                char stem[MFL_LAYER_NAME_BYTES + 8];
                mfl_strcpy(stem, sizeof stem, v->weight->origin);
                size_t n = strlen(stem);
                if (n > 7 && n == strlen(v->weight->origin)) {
                        memcpy(stem + n - 7, ".weight", 7);
                        named.origin = stem;
                        mfl_onnx_name(o, &l, &named, "weight");
                }
        }
        if ((r = mfl_onnx_add_layer(o, &l, t, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, &v->shape, ret_view);
}

/* ---- normalisations ---- */

/* In a job file, eps 0 means the default, so it is refused here. */
int mfl_onnx_make_scaled_norm(struct onnx *o, const struct onnx_value *v, const struct onnx_tensor *bias,
        struct onnx_value **ret_view)
{
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {v->weight, bias};
        struct mfl_shape rows;
        int from = 0, layer, r = 0;
        mfl_onnx_rows_shape(v, &rows);
        struct mfl_layer l = {.op = v->centered ? MFL_OP_LAYERNORM : MFL_OP_RMSNORM,
                .eps = v->eps,
                .bias = bias,
                .out = rows};
        if (!(v->eps > 0))
                return mfl_onnx_fail(o, "the normalisation needs an eps above 0");
        mfl_onnx_name(o, &l, v->weight, "weight");
        mfl_onnx_name(o, &l, bias, "bias");
        if (!v->weight)
                r = mfl_onnx_ones(o, rows.dim[rows.rank - 1], 1, &tensors[0]);
        if (!r)
                r = mfl_onnx_view_layer(o, v->base, &rows, &from);
        l.input = from;
        if (!r)
                r = mfl_onnx_add_layer(o, &l, tensors, o->node, &layer);
        return r ? r : mfl_onnx_layer_value(o, layer, &v->shape, ret_view);
}

int mfl_onnx_make_norm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        if (v->pending == ONNX_NORMED || v->pending == ONNX_SCALED_NORM)
                return mfl_onnx_make_scaled_norm(o, v, NULL, ret_view);
        const struct onnx_value *base = v->base;
        struct mfl_shape in;
        int from, layer, r;
        if ((r = mfl_onnx_flat_shape(o, base, &in)) || (r = mfl_onnx_view_layer(o, base, &in, &from)))
                return r;
        struct mfl_layer l = {.op = MFL_OP_MEAN, .input = from, .axis = in.rank - 1, .out = in};
        if (in.rank == 1) { /* {n} to {1} */
                l.op = MFL_OP_MAP;
                l.map = (struct mfl_map_spec){.kind = MFL_MAP_MEAN, .axes = 1, .keepdim = true};
                l.out.dim[0] = 1;
        } else {
                l.out.rank--;
        }
        r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer);
        return r ? r : mfl_onnx_layer_value(o, layer, &v->shape, ret_view);
}

int mfl_onnx_make_scaled_groups(struct onnx *o, const struct onnx_value *v, const struct onnx_tensor *weight,
        const struct onnx_tensor *bias, struct onnx_value **ret_view)
{
        const struct onnx_tensor *t[ONNX_TENSORS_PER_LAYER] = {weight, bias};
        struct mfl_layer l = {.op = MFL_OP_GROUPNORM,
                .eps = v->eps,
                .norm_groups = v->groups,
                .out = {MFL_MIN(v->shape.rank - 1, 3)}};
        int layer, r = 0;
        bool image = v->shape.rank >= 2 && v->shape.rank <= 5;
        if (!image || v->shape.dim[0] != 1 || v->shape.dim[1] % v->groups)
                return mfl_onnx_fail(o, "is supported for groups of the channels of {batch, channels, "
                                        "positions}, of images and of volumes");
        if (!(v->eps > 0))
                return mfl_onnx_fail(o, "the normalisation needs an eps above 0");
        memcpy(l.out.dim, v->shape.dim + 1, (size_t)l.out.rank * sizeof l.out.dim[0]);
        if (v->shape.rank == 5) /* a volume's slices one above the other */
                l.out = (struct mfl_shape){
                        3, {v->shape.dim[1], v->shape.dim[2] * v->shape.dim[3], v->shape.dim[4]}};
        if (l.out.rank == 2) /* a row of positions is an image of height 1 */
                l.out = (struct mfl_shape){3, {v->shape.dim[1], 1, v->shape.dim[2]}};
        mfl_onnx_name(o, &l, weight, "weight");
        mfl_onnx_name(o, &l, bias, "bias");
        if (!weight && ((r = mfl_onnx_ones(o, l.out.dim[0], 1, &t[0])) ||
                               (r = mfl_onnx_ones(o, l.out.dim[0], 0, &t[1]))))
                return r;
        if ((r = mfl_onnx_view_layer(o, v->base, &l.out, &l.input)) ||
                (r = mfl_onnx_add_layer(o, &l, t, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, &v->shape, ret_view);
}

int mfl_onnx_make_groupnorm(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        if (v->pending == ONNX_SCALED_GROUPS)
                return mfl_onnx_fail(o, "expected a shift per channel after the scale of this normalisation");
        return mfl_onnx_make_scaled_groups(o, v, NULL, NULL, ret_view);
}

/* ---- stochastic depth ---- */

bool mfl_onnx_is_of_samples(const struct onnx *o, const struct onnx_shape *shape)
{
        bool fits = shape->rank > 0 && (shape->dim[0] == 1 || shape->dim[0] == o->batch);
        for (int d = 1; d < shape->rank; d++)
                fits = fits && shape->dim[d] == 1;
        return fits;
}

/* The dropout of a 1 that the random numbers are, in the rank of x. What is kept by the same numbers is kept together. */
static int mask_layer(
        struct onnx *o, const struct onnx_value *x, const struct onnx_value *noise, int *ret_layer)
{
        struct onnx_value *drawn = noise->drawn;
        int one, r;
        if (!drawn->layer) {
                if ((r = mfl_onnx_add_scalar(o, x, 1, &one)))
                        return r;
                struct mfl_layer dropout = {.op = MFL_OP_DROPOUT,
                        .input = one,
                        .rate = noise->rate,
                        .out = *mfl_onnx_layer_shape(o, one)};
                if ((r = mfl_onnx_add_layer(o, &dropout, NULL, o->node, &drawn->layer)))
                        return r;
        }
        const struct mfl_layer *made = &o->layers[drawn->layer].layer;
        struct mfl_shape shape = {.rank = mfl_onnx_layer_shape(o, x->layer)->rank};
        for (int d = 0; d < shape.rank; d++)
                shape.dim[d] = 1;
        if (made->rate != noise->rate)
                return mfl_onnx_fail(o, "compares the same random numbers with another share than an earlier "
                                        "node; draw numbers "
                                        "of its own");
        *ret_layer = drawn->layer;
        struct mfl_layer reshape = {
                .op = MFL_OP_RESHAPE, .input = drawn->layer, .shape = shape, .out = shape};
        return mfl_shape_equal(&made->out, &shape) ? 0 : mfl_onnx_derive(o, &reshape, o->node, ret_layer);
}

int mfl_onnx_make_kept(struct onnx *o, struct onnx_value *x, const struct onnx_value *noise, bool divided,
        struct onnx_value **ret_view)
{
        int mask = 0, layer, r;
        if (!mfl_onnx_is_of_samples(o, &noise->shape) || noise->shape.rank != x->shape.rank)
                return mfl_onnx_fail(
                        o, "random numbers other than one per sample are supported only as Dropout");
        if ((r = mask_layer(o, x, noise, &mask)))
                return r;
        struct mfl_layer whole = {.op = MFL_OP_SIGN, .input = mask, .out = *mfl_onnx_layer_shape(o, mask)};
        if (!divided && (r = mfl_onnx_derive(o, &whole, o->node, &mask)))
                return r;
        struct mfl_layer join = {.op = MFL_OP_MULTIPLY,
                .input = x->layer,
                .input2 = mask,
                .out = *mfl_onnx_layer_shape(o, x->layer)};
        if ((r = mfl_onnx_add_layer(o, &join, NULL, o->node, &layer)) ||
                (r = mfl_onnx_view(o, x, &x->shape, NULL, ret_view)))
                return r;
        (*ret_view)->layer = layer;
        (*ret_view)->samples = NULL;
        return 0;
}

/* In evaluation, most take all of x (as the sign of the dropout gives it), and Huang et al. x times the share; a proof tells. */
int mfl_onnx_make_dropped(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        const struct onnx_value noise = {.shape = v->other->shape, .rate = v->rate, .drawn = v->drawn};
        struct onnx_value *x;
        int r = mfl_onnx_view(o, v->base, &v->base->shape, NULL, &x);
        if (r)
                return r;
        if (!o->described)
                return mfl_onnx_fail(o,
                        "leaves samples out at random, and does not divide the others by the share that is "
                        "kept, "
                        "%g: the file does not say what evaluation does then. Divide by it, or export with "
                        "mfl_export.save(net, example, file)",
                        1 - (double)v->rate);
        return mfl_onnx_make_kept(o, x, &noise, false, ret_view);
}
