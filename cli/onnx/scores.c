/* SPDX-License-Identifier: Apache-2.0 */
/* Products of two values, and the attention that no single layer computes: other scales and masks, a learned bias, queries
 * and keys of different lengths. Layers of their own: matmul, a scale, a mask that is added, softmax, dropout. */
#include "cli/onnx/internal.h"

/* In place of -inf, in the range of every precision: exp makes it 0. */
#define HIDDEN (-1e4f)

bool mfl_onnx_heads(const struct onnx_shape *s, int64_t *heads, int64_t *rows, int64_t *columns)
{
        if (s->rank < 2)
                return false;
        *rows = s->dim[s->rank - 2];
        *columns = s->dim[s->rank - 1];
        *heads = 1;
        for (int d = 0; d < s->rank - 2; d++)
                *heads *= s->dim[d];
        return *rows > 0 && *columns > 0 && *heads > 0;
}

/* The layer of {heads, rows, columns}; with `turned` of {heads, columns, rows}. A scale of v was taken into that of the
 * scores. */
static int layer_of(
        struct onnx *o, const struct onnx_value *v, bool turned, struct mfl_shape *ret_shape, int *ret_layer)
{
        int64_t h, rows, columns, n;
        struct onnx_shape shape = v->shape;
        struct onnx_value *view;
        int32_t *map = NULL;
        if (!mfl_onnx_heads(&v->shape, &h, &rows, &columns))
                return mfl_onnx_fail(o, "multiplies a vector; two matrices are supported");
        *ret_shape = (struct mfl_shape){3, {h, turned ? columns : rows, turned ? rows : columns}};
        n = rows * columns;
        if (turned) {
                shape = (struct onnx_shape){3, {h, columns, rows}};
                map = mfl_onnx_alloc(o, (size_t)(h * n) + 1, sizeof *map);
                if (!map)
                        return onnx_memory(o);
        }
        for (int64_t i = 0; turned && i < h * n; i++)
                map[i] = (int32_t)(i / n * n + i % rows * columns + i % n / rows);
        int r = mfl_onnx_view(o, v, &shape, map, &view);
        if (r)
                return r;
        view->samples = NULL;
        return mfl_onnx_view_layer(o, view, ret_shape, ret_layer);
}

int mfl_onnx_copy_layer(struct onnx *o, int layer, int *ret_layer)
{
        const struct mfl_shape *s = mfl_onnx_layer_shape(o, layer);
        struct mfl_layer l = {.op = MFL_OP_RESHAPE, .input = layer, .shape = *s, .out = *s};
        return mfl_onnx_add_layer(o, &l, NULL, o->node, ret_layer);
}

/* ---- numbers of matrices ---- */

/* The dimensions before the matrix. */
static struct onnx_shape lead_of(const struct onnx_shape *s)
{
        struct onnx_shape lead = *s;
        lead.rank = MFL_MAX(lead.rank - 2, 0);
        return lead;
}

bool mfl_onnx_same_lead(const struct onnx_shape *a, const struct onnx_shape *b)
{
        for (int d = 3; d <= MFL_MAX(a->rank, b->rank); d++)
                if ((d <= a->rank ? a->dim[a->rank - d] : 1) != (d <= b->rank ? b->dim[b->rank - d] : 1))
                        return false;
        return true;
}

/* One matrix of v for each of `lead`. */
static int expand(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *lead,
        const struct onnx_value **ret_value)
{
        struct onnx_shape own = lead_of(&v->shape), shape = *lead;
        int64_t n = v->shape.dim[v->shape.rank - 2] * v->shape.dim[v->shape.rank - 1];
        int64_t all = mfl_onnx_count(lead) * n;
        for (int d = v->shape.rank - 2; d < v->shape.rank; d++)
                shape.dim[shape.rank++] = v->shape.dim[d];
        int32_t *map = NULL;
        struct onnx_value *view;
        if (mfl_onnx_count(lead) != mfl_onnx_count(&own)) {
                if (!(map = mfl_onnx_alloc(o, (size_t)all + 1, sizeof *map)))
                        return onnx_memory(o);
                for (int64_t i = 0; i < all; i++)
                        map[i] = (int32_t)(mfl_onnx_broadcast_at(lead, i / n, &own) * n + i % n);
        }
        int r = mfl_onnx_view(o, v, &shape, map, &view);
        if (!r)
                *ret_value = view;
        return r;
}

int mfl_onnx_as_many(struct onnx *o, const struct onnx_value **a, const struct onnx_value **b)
{
        struct onnx_shape la = lead_of(&(*a)->shape), lb = lead_of(&(*b)->shape), lead;
        if ((*a)->shape.rank < 2 || (*b)->shape.rank < 2 ||
                (la.rank == lb.rank && mfl_onnx_same_lead(&(*a)->shape, &(*b)->shape)))
                return 0;
        int r = mfl_onnx_broadcast(o, &la, &lb, &lead);
        if (r || (r = expand(o, *a, &lead, a)))
                return r;
        return expand(o, *b, &lead, b);
}

/* a b, or a (b turned)^T, which is the same. */
static int multiply(struct onnx *o, const struct onnx_value *a, const struct onnx_value *b, bool turned,
        struct onnx_value **ret_value)
{
        struct mfl_layer l = {.op = MFL_OP_MATMUL, .transposed = turned};
        struct mfl_shape sa, sb;
        struct onnx_shape shape = a->shape;
        int layer, r = layer_of(o, a, false, &sa, &l.input);
        if (!r)
                r = layer_of(o, b, turned, &sb, &l.input2);
        if (r)
                return r;
        if (l.input == l.input2 && (r = mfl_onnx_copy_layer(o, l.input, &l.input2)))
                return r;
        shape.dim[shape.rank - 1] = b->shape.dim[b->shape.rank - 1];
        l.out = (struct mfl_shape){3, {sa.dim[0], sa.dim[1], shape.dim[shape.rank - 1]}};
        if ((r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)))
                return r;
        return mfl_onnx_layer_value(o, layer, &shape, ret_value);
}

/* The mask as a constant that is added, the same for all heads or one for each. A row in which nothing may be seen has no
 * softmax. */
static int add_mask(struct onnx *o, const struct onnx_value *scores, const struct onnx_value *mask,
        struct onnx_value **ret_value)
{
        int64_t h = 1, t = 1, columns = 1, heads = 1, rows, mask_columns;
        mfl_onnx_heads(&scores->shape, &h, &t, &columns);
        bool alike = !mfl_onnx_heads(&mask->shape, &heads, &rows, &mask_columns) || heads == 1;
        struct onnx_shape whole = scores->shape, shape = {3, {alike ? 1 : h, t, columns}};
        struct mfl_shape sm = {3, {shape.dim[0], t, columns}}, ss = {3, {h, t, columns}};
        struct onnx_value *constant;
        struct onnx_tensor *tensor;
        int from, layer, r = mfl_onnx_fold_new(o, &shape, true, &tensor);
        for (int64_t i = 0; !r && i < tensor->count; i += columns) {
                bool any = false;
                for (int64_t k = i; k < i + columns; k++) {
                        int64_t at = mfl_onnx_broadcast_at(&whole, k, &mask->shape);
                        bool hidden = mfl_onnx_number(mask->tensor, at) <= (double)HIDDEN;
                        mfl_onnx_fold_put(tensor, k, hidden ? (double)HIDDEN : 0);
                        any = any || !hidden;
                }
                if (!any)
                        r = mfl_onnx_fail(o, "its mask hides everything from a position");
        }
        if (r || (r = mfl_onnx_new_value(o, &shape, &constant)))
                return r;
        constant->tensor = tensor;
        if ((r = mfl_onnx_weight_layer(o, constant, &sm, &layer)) ||
                (r = layer_of(o, scores, false, &ss, &from)))
                return r;
        return mfl_onnx_join(o, MFL_OP_ADD, from, layer, &ss, &sm, &whole, ret_value);
}

/* A view that is added, of as few elements as say it: of each head, query and key, or of keys alone. */
static int add_view(struct onnx *o, const struct onnx_value *scores, const struct onnx_value *added,
        struct onnx_value **ret_value)
{
        int64_t h = 1, t = 1, columns = 1;
        mfl_onnx_heads(&scores->shape, &h, &t, &columns);
        struct onnx_shape whole = scores->shape;
        struct mfl_shape ss = {3, {h, t, columns}}, sm = {3, {1, 1, columns}};
        int32_t *at = mfl_onnx_alloc(o, (size_t)(h * t * columns) + 1, sizeof *at);
        int from, layer, r;
        if (!at)
                return onnx_memory(o);
        for (int64_t i = 0; i < h * t * columns; i++) {
                at[i] = (int32_t)mfl_onnx_broadcast_at(&whole, i, &added->shape);
                if (at[i] != at[i % columns] && i < t * columns)
                        sm.dim[1] = t;
                else if (at[i] != at[i % (t * columns)])
                        sm.dim[0] = h;
        }
        if (sm.dim[0] > 1)
                sm.dim[1] = t;
        struct onnx_shape shape = {3, {sm.dim[0], sm.dim[1], columns}};
        struct onnx_value *view;
        if ((r = mfl_onnx_view(o, added, &shape, at, &view)) ||
                (r = mfl_onnx_view_layer(o, view, &sm, &layer)) ||
                (r = layer_of(o, scores, false, &ss, &from)))
                return r;
        return mfl_onnx_join(o, MFL_OP_ADD, from, layer, &ss, &sm, &whole, ret_value);
}

int mfl_onnx_make_scores(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *s;
        int r = multiply(o, v->base, v->other, true, &s);
        if (!r && v->scale != 1)
                r = mfl_onnx_make_affine(o, s, v->scale, 0, &s);
        if (!r && v->mask)
                r = add_mask(o, s, v->mask, &s);
        if (!r && v->added)
                r = add_view(o, s, v->added, &s);
        if (!r)
                *ret_view = s;
        return r;
}

int mfl_onnx_make_weights(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        struct mfl_layer soft = {.op = MFL_OP_SOFTMAX}, drop = {.op = MFL_OP_DROPOUT, .rate = v->rate};
        struct onnx_value *s;
        int layer, r = mfl_onnx_make_scores(o, v, &s);
        if (!r)
                r = layer_of(o, s, false, &soft.out, &soft.input);
        if (!r)
                r = mfl_onnx_add_layer(o, &soft, NULL, o->node, &layer);
        if (!r && v->rate > 0) {
                drop.input = layer;
                drop.out = soft.out;
                r = mfl_onnx_add_layer(o, &drop, NULL, o->node, &layer);
        }
        return r ? r : mfl_onnx_layer_value(o, layer, &v->shape, ret_view);
}

int mfl_onnx_weigh(struct onnx *o, const struct onnx_value *weights, const struct onnx_value *values,
        struct onnx_value **ret_value)
{
        int64_t h = 0, t = 0, tk = 0, hv = 0, tv = 0, dv = 0;
        int r = mfl_onnx_as_many(o, &weights, &values);
        if (r)
                return r;
        if (!mfl_onnx_heads(&weights->shape, &h, &t, &tk) || !mfl_onnx_heads(&values->shape, &hv, &tv, &dv) ||
                h != hv || tk != tv)
                return mfl_onnx_fail(o,
                        "multiplies %lld matrices of %lld x %lld by %lld of %lld x %lld; they must be as "
                        "many, "
                        "and fit",
                        (long long)h, (long long)t, (long long)tk, (long long)hv, (long long)tv,
                        (long long)dv);
        return multiply(o, weights, values, false, ret_value);
}
