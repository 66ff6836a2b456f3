/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises scaled dot-product attention that is written out: softmax(q k^T * scale + mask) v, with heads by
 * reshapes and transpositions. What differs from that is left to scores.c. */
#include <math.h>

#include "cli/onnx/internal.h"

static int start_scores(struct onnx *o, struct onnx_value *a, struct onnx_value *b)
{
        struct onnx_value *q, *k, *v;
        int64_t h, t, d, hk, dk, tk;
        double sq, sk;
        int r = mfl_onnx_settle(o, a, &q);
        if (!r)
                r = mfl_onnx_settle(o, b, &k);
        if (r)
                return r;
        if (!mfl_onnx_linear(q, &sq)) {
                if ((r = mfl_onnx_resolve(o, q, &q)))
                        return r;
                sq = 1;
        }
        if (!mfl_onnx_linear(k, &sk)) {
                if ((r = mfl_onnx_resolve(o, k, &k)))
                        return r;
                sk = 1;
        }
        const struct onnx_value *one = q, *two = k;
        if ((r = mfl_onnx_as_many(o, &one, &two)))
                return r;
        q = (struct onnx_value *)(uintptr_t)one;
        k = (struct onnx_value *)(uintptr_t)two;
        if (!mfl_onnx_heads(&q->shape, &h, &t, &d) || !mfl_onnx_heads(&k->shape, &hk, &dk, &tk) || h != hk ||
                d != dk)
                return mfl_onnx_fail(o,
                        "the two matrices can't be multiplied: as many of them, and rows as long as the "
                        "other's columns");
        struct onnx_shape shape = q->shape;
        shape.dim[shape.rank - 1] = tk;
        if ((r = mfl_onnx_new_value(o, &shape, &v)))
                return r;
        v->pending = ONNX_SCORES;
        v->base = q;
        v->other = k;
        v->scale = sq * sk;
        return mfl_onnx_output(o, 0, v);
}

int mfl_onnx_copy_pending(struct onnx *o, const struct onnx_value *of, struct onnx_value **ret_value)
{
        int r = mfl_onnx_new_value(o, &of->shape, ret_value);
        if (r)
                return r;
        int uses = (*ret_value)->uses;
        **ret_value = *of;
        (*ret_value)->uses = uses;
        (*ret_value)->made = NULL;
        return 0;
}

/* The sum of the masks so far and of another: 0 where a position may look; elsewhere a number so low that exp makes it
 * 0. */
static int add_mask(
        struct onnx *o, struct onnx_value *scores, const struct onnx_value *mask, bool kept_if_zero)
{
        struct onnx_shape shape = mask->shape;
        struct onnx_value *v;
        struct onnx_tensor *t;
        const struct onnx_value *old = scores->mask;
        int r = old ? mfl_onnx_broadcast(o, &mask->shape, &old->shape, &shape) : 0;
        if (r || (r = mfl_onnx_fold_new(o, &shape, true, &t)) || (r = mfl_onnx_new_value(o, &shape, &v)))
                return r;
        for (int64_t i = 0; i < t->count; i++) {
                double m = mfl_onnx_number(mask->tensor, mfl_onnx_broadcast_at(&shape, i, &mask->shape));
                bool hidden = (m == 0) != kept_if_zero;
                hidden = hidden || (old && mfl_onnx_number(old->tensor,
                                                   mfl_onnx_broadcast_at(&shape, i, &old->shape)) != 0);
                mfl_onnx_fold_put(t, i, hidden ? -INFINITY : 0);
        }
        v->tensor = t;
        scores->mask = v;
        return 0;
}

/* Whether a constant has no dimensions that the scores lack. */
static bool lies_in(const struct onnx_value *constant, const struct onnx_value *scores)
{
        return constant->shape.rank <= scores->shape.rank;
}

/* Whether a constant that is added to scores is a mask. */
static bool is_mask(const struct onnx_value *constant, const struct onnx_value *scores)
{
        for (int64_t i = 0; i < constant->tensor->count; i++) {
                double m = mfl_onnx_number(constant->tensor, i);
                if (m != 0 && !(m <= -1e4))
                        return false;
        }
        return lies_in(constant, scores);
}

static int mask_scores(
        struct onnx *o, const struct onnx_value *scores, const struct onnx_value *mask, bool kept_if_zero)
{
        struct onnx_value *v;
        struct onnx_shape out;
        int r = mfl_onnx_broadcast(o, &scores->shape, &mask->shape, &out);
        if (!r && mfl_onnx_count(&out) != mfl_onnx_count(&scores->shape))
                r = mfl_onnx_fail(o, "the mask is larger than the scores");
        if (!r)
                r = mfl_onnx_copy_pending(o, scores, &v);
        if (!r)
                r = add_mask(o, v, mask, kept_if_zero);
        return r ? r : mfl_onnx_output(o, 0, v);
}

enum looks { LOOKS_ALL, LOOKS_BACK, LOOKS_OTHERWISE };

/* Where positions may look. */
static enum looks looks_of(const struct onnx_value *scores)
{
        const struct onnx_value *mask = scores->mask;
        int64_t t = scores->shape.dim[scores->shape.rank - 1], n = mfl_onnx_count(&scores->shape);
        bool all = true, causal = true;
        for (int64_t i = 0; mask && i < n; i++) {
                int64_t at = mfl_onnx_broadcast_at(&scores->shape, i, &mask->shape);
                bool may = mfl_onnx_number(mask->tensor, at) == 0;
                all = all && may;
                causal = causal && may == (i % t <= i / t % t);
        }
        return all ? LOOKS_ALL : causal ? LOOKS_BACK : LOOKS_OTHERWISE;
}

static int scale_scores(struct onnx *o, const struct onnx_value *scores, double scale)
{
        struct onnx_value *v;
        int r = mfl_onnx_copy_pending(o, scores, &v);
        if (r)
                return r;
        v->scale *= scale;
        return mfl_onnx_output(o, 0, v);
}

/* Of a constant condition and two numbers: which of them, element by element. */
static int choose(struct onnx *o, const struct onnx_shape *shape, const struct onnx_value *mask,
        bool kept_if_true, const struct onnx_tensor *other, struct onnx_value **ret_view)
{
        struct onnx_value *v;
        struct onnx_tensor *t;
        int r = mfl_onnx_fold_new(o, shape, true, &t);
        for (int64_t i = 0; !r && i < t->count; i++) {
                bool is = mfl_onnx_number(mask->tensor, mfl_onnx_broadcast_at(shape, i, &mask->shape)) != 0;
                double c = other ? mfl_onnx_number(other, mfl_onnx_broadcast_at(shape, i, &other->shape)) : 0;
                c = fmax(fmin(c, 1e30), -1e30); /* in place of infinity, which no weight is */
                mfl_onnx_fold_put(t, i, is == kept_if_true ? other ? 0 : 1 : other ? c : 0);
        }
        if (r || (r = mfl_onnx_new_value(o, shape, &v)))
                return r;
        v->tensor = t;
        return mfl_onnx_lift(o, v, ret_view);
}

/* A parameter where the condition says so, else 0. */
static int place_param(struct onnx *o, const struct onnx_value *mask, const struct onnx_tensor *param,
        bool kept_if_true, struct onnx_value **ret_view)
{
        struct onnx_value *own, *where;
        int r = mfl_onnx_lift_tensor(o, param, &param->shape, &own);
        if (r || (r = choose(o, &mask->shape, mask, !kept_if_true, NULL, &where)))
                return r;
        return mfl_onnx_combine(o, MFL_OP_MULTIPLY, where, own, ret_view);
}

/* A constant where the condition says so: the value or 0, and the constant added. */
static int replace(struct onnx *o, const struct onnx_value *mask, struct onnx_value *v,
        const struct onnx_tensor *constant, bool kept_if_true)
{
        struct onnx_shape whole;
        struct onnx_value *kept, *added, *made;
        int r = mfl_onnx_broadcast(o, &mask->shape, &constant->shape, &whole);
        if (r || (r = choose(o, &mask->shape, mask, kept_if_true, NULL, &kept)) ||
                (r = constant->param ? place_param(o, mask, constant, kept_if_true, &added)
                                     : choose(o, &whole, mask, kept_if_true, constant, &added)) ||
                (r = mfl_onnx_combine(o, MFL_OP_GATE, v, kept, &made)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, made, added, &made)))
                return r;
        return mfl_onnx_output(o, 0, made);
}

/* Where(mask, scores, -inf) or Where(mask, -inf, scores). Exporters write the same after the softmax, against
 * rows of NaN; a causal mask has no such rows. */
static int where_step(struct onnx *o, bool *ret_taken)
{
        const struct onnx_value *mask = mfl_onnx_input(o, 0);
        struct onnx_value *a = mfl_onnx_input(o, 1), *b = mfl_onnx_input(o, 2);
        double c;
        if (!mask || !a || !b)
                return 0;
        bool first = !a->tensor;
        struct onnx_value *scores = first ? a : b, *other = first ? b : a;
        if (scores->tensor)
                return 0;
        if (scores->pending == ONNX_WEIGHTS && mask->pending == ONNX_WEIGHTS) {
                struct onnx_value *v;
                *ret_taken = true;
                int r = mfl_onnx_copy_pending(o, scores, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (!mask->tensor || !other->tensor)
                return 0;
        *ret_taken = true;
        if (scores->pending == ONNX_SCORES && lies_in(mask, scores) && mfl_onnx_scalar(other, &c) &&
                c <= -1e4)
                return mask_scores(o, scores, mask, !first);
        return replace(o, mask, scores, other->tensor, first);
}

static int softmax_step(struct onnx *o, const struct onnx_value *scores)
{
        struct onnx_value *v;
        int r = mfl_onnx_copy_pending(o, scores, &v);
        if (r)
                return r;
        v->pending = ONNX_WEIGHTS;
        return mfl_onnx_output(o, 0, v);
}

/* {heads, T, d} as {T, heads * d}, elements of their layer. Keys have the shape {heads, d, T}. */
static int as_rows(struct onnx *o, const struct onnx_value *v, int64_t h, int64_t t, int64_t d, bool turned,
        struct onnx_value **ret_view)
{
        struct onnx_shape shape = {2, {t, h * d}};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(t * h * d) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < t; i++)
                for (int64_t k = 0; k < h; k++)
                        for (int64_t c = 0; c < d; c++)
                                map[(i * h + k) * d + c] =
                                        (int32_t)(turned ? (k * d + c) * t + i : (k * t + i) * d + c);
        int r = mfl_onnx_view(o, v, &shape, map, ret_view);
        if (!r)
                (*ret_view)->samples = NULL; /* a scale, which was already used */
        return r;
}

/* Whether queries, keys and values are already side by side in one layer's rows. */
static bool is_packed(const struct onnx *o, struct onnx_value *const part[3], int64_t t, int64_t width)
{
        const struct mfl_shape *s = mfl_onnx_layer_shape(o, part[0]->layer);
        if (s->rank != 2 || s->dim[0] != t || s->dim[1] != 3 * width)
                return false;
        for (int p = 0; p < 3; p++) {
                if (part[p]->layer != part[0]->layer || !part[p]->map)
                        return false;
                for (int64_t i = 0; i < t * width; i++)
                        if (part[p]->map[i] != i / width * 3 * width + p * width + i % width)
                                return false;
        }
        return true;
}

static int pack(struct onnx *o, struct onnx_value *const part[3], int64_t t, int64_t width, int *ret_layer)
{
        struct mfl_shape rows = {2, {t, width}};
        int from[3], joined, r;
        if (is_packed(o, part, t, width)) {
                *ret_layer = part[0]->layer;
                return 0;
        }
        for (int p = 0; p < 3; p++)
                if ((r = mfl_onnx_layer_of(o, part[p], &rows, &from[p])))
                        return r;
        if ((from[0] == from[1] && (r = mfl_onnx_copy_layer(o, from[1], &from[1]))) ||
                ((from[1] == from[2] || from[0] == from[2]) &&
                        (r = mfl_onnx_copy_layer(o, from[2], &from[2]))))
                return r;
        struct mfl_layer two = {.op = MFL_OP_CONCAT,
                .input = from[0],
                .input2 = from[1],
                .axis = 1,
                .out = {2, {t, 2 * width}}};
        if ((r = mfl_onnx_add_layer(o, &two, NULL, o->node, &joined)))
                return r;
        struct mfl_layer three = {.op = MFL_OP_CONCAT,
                .input = joined,
                .input2 = from[2],
                .axis = 1,
                .out = {2, {t, 3 * width}}};
        return mfl_onnx_add_layer(o, &three, NULL, o->node, ret_layer);
}

static int spread_heads(struct onnx *o, int layer, int64_t h, int64_t t, int64_t d,
        const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value whole = {.layer = layer};
        int32_t *map = mfl_onnx_alloc(o, (size_t)(t * h * d) + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t k = 0; k < h; k++)
                for (int64_t i = 0; i < t; i++)
                        for (int64_t c = 0; c < d; c++)
                                map[(k * t + i) * d + c] = (int32_t)((i * h + k) * d + c);
        return mfl_onnx_view(o, &whole, shape, map, ret_value);
}

/* The padding_mask layer whose numbers are added to the scores of keys, for all heads and queries alike. */
static int padding_of(const struct onnx *o, const struct onnx_value *scores)
{
        const struct onnx_value *v = scores->added;
        int64_t t = scores->shape.dim[scores->shape.rank - 1], n = mfl_onnx_count(&scores->shape);
        int mask = v && o->layers[v->layer].layer.op == MFL_OP_PADDING_MASK ? v->layer : -1;
        if (mask < 0 || mfl_shape_count(mfl_onnx_layer_shape(o, mask)) != t)
                return -1;
        for (int64_t i = 0; i < n; i++) {
                int64_t at = mfl_onnx_broadcast_at(&scores->shape, i, &v->shape);
                if ((v->map ? v->map[at] : at) != i % t)
                        return -1;
        }
        return mask;
}

/* Whether one layer computes it: heads of equal width, scores scaled by 1/sqrt(d), a causal mask or none, and padding
 * or nothing that is hidden. */
static bool is_one_layer(
        const struct onnx *o, const struct onnx_value *weights, const struct onnx_value *v, enum looks looks)
{
        int64_t h = 1, t = 1, d = 1, hv, tv, dv, hk, dk, tk;
        bool fits = mfl_onnx_heads(&weights->base->shape, &h, &t, &d) &&
                    mfl_onnx_heads(&v->shape, &hv, &tv, &dv) &&
                    mfl_onnx_heads(&weights->other->shape, &hk, &dk, &tk);
        fits = fits && (!weights->added || padding_of(o, weights) >= 0);
        fits = fits && mfl_onnx_same_lead(&weights->base->shape, &v->shape) &&
               mfl_onnx_same_lead(&weights->other->shape, &v->shape);
        return fits && hv == h && tv == t && tk == t && dv == d && looks != LOOKS_OTHERWISE &&
               fabs(weights->scale * sqrt((double)d) - 1) <= 1e-5;
}

static int finish(struct onnx *o, struct onnx_value *weights, struct onnx_value *values)
{
        struct onnx_value *v, *part[3], *result;
        enum looks looks = looks_of(weights);
        int64_t h, t, d;
        int packed, layer, r = mfl_onnx_resolve(o, values, &v);
        if (r)
                return r;
        if (!is_one_layer(o, weights, v, looks)) {
                struct onnx_value *settled;
                r = mfl_onnx_resolve(o, weights, &settled);
                if (!r)
                        r = mfl_onnx_weigh(o, settled, v, &result);
                return r ? r : mfl_onnx_output(o, 0, result);
        }
        mfl_onnx_heads(&weights->base->shape, &h, &t, &d);
        if ((r = as_rows(o, weights->base, h, t, d, false, &part[0])) ||
                (r = as_rows(o, weights->other, h, t, d, true, &part[1])) ||
                (r = as_rows(o, v, h, t, d, false, &part[2])) || (r = pack(o, part, t, h * d, &packed)))
                return r;
        struct mfl_layer l = {.op = MFL_OP_ATTENTION,
                .input = packed,
                .input2 = weights->added ? padding_of(o, weights) : -1,
                .heads = (int)h,
                .causal = looks == LOOKS_BACK,
                .rate = weights->rate,
                .out = {2, {t, h * d}}};
        struct onnx_shape shape = v->shape;
        if ((r = mfl_onnx_add_layer(o, &l, NULL, o->node, &layer)) ||
                (r = spread_heads(o, layer, h, t, d, &shape, &result)))
                return r;
        return mfl_onnx_output(o, 0, result);
}

static int drop_step(struct onnx *o, const struct onnx_value *weights)
{
        double rate = (double)mfl_onnx_float(o, "ratio", 0.5f);
        struct onnx_value *v;
        int r;
        if (mfl_onnx_input(o, 1) && !mfl_onnx_scalar(mfl_onnx_input(o, 1), &rate))
                return mfl_onnx_fail(o, "the rate is not a constant");
        if ((r = mfl_onnx_copy_pending(o, weights, &v)))
                return r;
        v->rate = (float)rate;
        return mfl_onnx_output(o, 0, v);
}

/* A mask contains numbers that no training reaches. Anything else under a parameter's name is a learned bias. */
static bool is_learned(struct onnx *o, const struct onnx_tensor *t)
{
        if (!t->param)
                return false;
        for (int64_t i = 0; i < t->count; i++) {
                if (mfl_onnx_number(t, i) <= -1e4) {
                        mfl_onnx_is_buffer(o, t);
                        return t->known;
                }
        }
        return true;
}

static bool is_last(const struct onnx *o, const struct onnx_value *scores)
{
        int64_t axis = mfl_onnx_int(o, "axis", o->opset < 13 ? 1 : -1);
        return axis == -1 || axis == scores->shape.rank - 1;
}

bool mfl_onnx_stays_float(struct onnx *o)
{
        enum onnx_kind kind = ONNX_KIND_FLOAT;
        return mfl_onnx_node(o)->op_type[0] == 'I' ||
               (!mfl_onnx_cast_kind(o, &kind) && kind == ONNX_KIND_FLOAT);
}

int mfl_onnx_attention_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        double c;
        if (!strcmp(op, "Where"))
                return where_step(o, ret_taken);
        if (!a)
                return 0;
        bool scores = !a->tensor && a->pending == ONNX_SCORES,
             weights = !a->tensor && a->pending == ONNX_WEIGHTS;
        bool late = b && a->tensor && !b->tensor && b->pending == ONNX_SCORES;
        *ret_taken = true;
        if (!strcmp(op, "MatMul") && b && weights && !b->tensor)
                return finish(o, a, b);
        if (!strcmp(op, "MatMul") && b && !a->tensor && !b->tensor)
                return start_scores(o, a, b);
        if (!strcmp(op, "Softmax") && scores && is_last(o, a))
                return softmax_step(o, a);
        if ((!strncmp(op, "Cast", 4) || !strcmp(op, "Identity")) && (scores || weights) &&
                mfl_onnx_stays_float(o)) {
                struct onnx_value *v;
                int r = mfl_onnx_copy_pending(o, a, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (!strcmp(op, "Dropout") && weights)
                return drop_step(o, a);
        if (!strcmp(op, "IsNaN") && weights) {
                struct onnx_value *v;
                int r = mfl_onnx_copy_pending(o, a, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if ((!strcmp(op, "Mul") || !strcmp(op, "Div")) && b && (scores || late)) {
                if (mfl_onnx_scalar(scores ? b : a, &c) && (op[0] == 'M' || scores) && c != 0)
                        return scale_scores(o, scores ? a : b, op[0] == 'M' ? c : 1 / c);
        }
        if (!strcmp(op, "Add") && b && (scores || late) && (scores ? b : a)->tensor &&
                !is_learned(o, (scores ? b : a)->tensor) && is_mask(scores ? b : a, scores ? a : b))
                return mask_scores(o, scores ? a : b, scores ? b : a, true);
        *ret_taken = false;
        return 0;
}
