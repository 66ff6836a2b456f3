/* SPDX-License-Identifier: Apache-2.0 */
/* Masks that the model computes from its tokens, such as `ids == padding`: a comparison with a constant is a padding_mask
 * layer, its exponential is 0 for that token and 1 for all others, and conditions and numbers that follow from it are
 * pairs (flags.c). */
#include <math.h>

#include "cli/onnx/internal.h"

/* What an attention adds to the score of what it hides, where no padding_mask says it. */
#define HIDDEN (-1e4)

static bool is(const struct onnx *o, const char *op)
{
        return !strcmp(mfl_onnx_node(o)->op_type, op);
}

/* A constant whose elements are all the same number. */
static bool is_uniform(const struct onnx_value *v, double *ret_c)
{
        if (!v || !v->tensor || !v->tensor->count)
                return false;
        *ret_c = mfl_onnx_number(v->tensor, 0);
        for (int64_t i = 1; i < v->tensor->count; i++)
                if (mfl_onnx_number(v->tensor, i) != *ret_c)
                        return false;
        return true;
}

/* The same elements in a wider shape. */
static int widen(
        struct onnx *o, struct onnx_value *v, const struct onnx_shape *shape, struct onnx_value **ret_view)
{
        int64_t n = mfl_onnx_count(shape);
        *ret_view = v;
        if (shape->rank == v->shape.rank && n == mfl_onnx_count(&v->shape))
                return 0;
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)mfl_onnx_broadcast_at(shape, i, &v->shape);
        return mfl_onnx_view(o, v, shape, map, ret_view);
}

static int give(struct onnx *o, const struct onnx_value *of, double at_token, double otherwise)
{
        const double pair[2] = {at_token, otherwise};
        struct onnx_value *v;
        int r = mfl_onnx_new_pair(o, of, pair, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* ---- comparisons of tokens ---- */

/* The input that the value's elements are of, all of them; NULL: none. */
static const struct onnx_input *input_of(const struct onnx *o, const struct onnx_value *v)
{
        if (!v || v->tensor || v->pending != ONNX_NONE || v->samples || v->layer != 0 ||
                onnx_kind_of(o, v) != ONNX_KIND_WHOLE)
                return NULL;
        for (int k = 0; k < o->n_inputs; k++) {
                const struct onnx_input *in = &o->inputs[k];
                int64_t n = mfl_onnx_count(&v->shape), i = 0;
                while (i < n && (v->map ? v->map[i] : i) >= in->offset &&
                        (v->map ? v->map[i] : i) < in->offset + in->count)
                        i++;
                if (i == n)
                        return in;
        }
        return NULL;
}

/* A view of the layer that is 0 where the token is `token`, else 1, in the order of v. */
static int compare(struct onnx *o, const struct onnx_value *v, const struct onnx_input *in, int token,
        struct onnx_value **ret_view)
{
        struct mfl_layer slice = {.op = MFL_OP_SLICE,
                .start = (int)in->offset,
                .end = (int)(in->offset + in->count),
                .out = {1, {in->count}}};
        struct mfl_layer mask = {.op = MFL_OP_PADDING_MASK, .padding_idx = token, .out = slice.out};
        struct mfl_layer seen = {.op = MFL_OP_EXP, .out = slice.out};
        int64_t n = mfl_onnx_count(&v->shape);
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        int layer = 0, r = map ? 0 : onnx_memory(o);
        if (!r && o->n_inputs > 1)
                r = mfl_onnx_derive(o, &slice, o->node, &layer);
        mask.input = layer;
        if (!r && !(r = mfl_onnx_derive(o, &mask, o->node, &layer))) {
                seen.input = layer;
                r = mfl_onnx_derive(o, &seen, o->node, &layer);
        }
        if (r)
                return r;
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)((v->map ? v->map[i] : i) - in->offset);
        o->layers[layer].flag = true;
        struct onnx_value whole = {.shape = {1, {in->count}}, .layer = layer};
        return mfl_onnx_view(o, &whole, &v->shape, map, ret_view);
}

/* Of a comparison of tokens with c: which token it tells from the others, and whether it holds for that one. */
static bool read_comparison(const struct onnx *o, double c, bool first, double *ret_token, bool *ret_holds)
{
        const char *op = mfl_onnx_node(o)->op_type;
        bool above = !strncmp(op, first ? "Greater" : "Less", first ? 7 : 4),
             below = !strncmp(op, first ? "Less" : "Greater", first ? 4 : 7);
        bool or_equal = strlen(op) > 7;
        *ret_token = c;
        *ret_holds = true;
        if (!strcmp(op, "Equal"))
                return true;
        *ret_token = 0; /* tokens are not negative: above 0, from 1 on, below 1, up to 0 */
        *ret_holds = below;
        return (above || below) && c == ((above && !or_equal) || (below && or_equal) ? 0 : 1);
}

/* Equal, and comparisons that single out token 0; a cast to truth values does, too. */
static int compare_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        enum onnx_kind to = ONNX_KIND_FLOAT;
        const struct onnx_input *in = input_of(o, a);
        bool first = in, holds = false;
        double c = 0, token = 0;
        int r;
        if (is(o, "Cast") || is(o, "CastLike")) {
                if (!in || mfl_onnx_cast_kind(o, &to) || (to != ONNX_KIND_BOOL && to != ONNX_KIND_FLOAT))
                        return 0;
                if (to == ONNX_KIND_FLOAT) { /* whole numbers are held as floats */
                        *ret_taken = true;
                        r = mfl_onnx_view(o, a, &a->shape, NULL, &v);
                        return r ? r : mfl_onnx_output(o, 0, v);
                }
        } else {
                in = in ? in : input_of(o, b);
                if (!in || !is_uniform(first ? b : a, &c) || !read_comparison(o, c, first, &token, &holds))
                        return 0;
        }
        *ret_taken = true;
        if (!(token >= 0 && token < MFL_WIDTH_MAX && token == floor(token)))
                return mfl_onnx_fail(o, "compares tokens with %g; a token is a whole number from 0 to %d",
                        token, MFL_WIDTH_MAX - 1);
        if ((r = compare(o, first ? a : b, in, (int)token, &v)))
                return r;
        return give(o, v, holds, !holds);
}

/* ---- what follows from them ---- */

static double apply(const char *op, double x, double y)
{
        static const char *const names[] = {"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal",
                "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Min", "Max", NULL};
        int k = 0;
        while (names[k] && strcmp(names[k], op))
                k++;
        const double values[] = {x + y, x - y, x * y, x / y, pow(x, y), x != 0 && y != 0, x != 0 || y != 0,
                (x != 0) != (y != 0), x == y, x > y, x >= y, x < y, x <= y, fmin(x, y), fmax(x, y), NAN};
        return values[k];
}

static bool is_logical(const char *op)
{
        return !strcmp(op, "And") || !strcmp(op, "Or") || !strcmp(op, "Xor");
}

/* Two conditions on different elements, one of which holds alone: the square of a difference of 0s and 1s. */
static int part_conditions(
        struct onnx *o, struct onnx_value *a, const double pa[2], struct onnx_value *b, const double pb[2])
{
        const double ca[2] = {pa[0] != 0, pa[1] != 0}, cb[2] = {-(double)(pb[0] != 0), -(double)(pb[1] != 0)};
        struct onnx_value *va, *vb, *v;
        int r = mfl_onnx_new_pair(o, a, ca, &va);
        if (r || (r = mfl_onnx_new_pair(o, b, cb, &vb)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, va, vb, &v)) ||
                (r = mfl_onnx_make_power(o, v, 2, 1, &v)))
                return r;
        o->layers[v->layer].flag = true;
        return give(o, v, 0, 1);
}

/* Two conditions on different elements: a product of 0s and 1s; of an Or, what neither has. */
static int join_conditions(
        struct onnx *o, struct onnx_value *a, const double pa[2], struct onnx_value *b, const double pb[2])
{
        if (is(o, "Xor"))
                return part_conditions(o, a, pa, b, pb);
        bool both = is(o, "And");
        const double ca[2] = {(pa[0] != 0) == both, (pa[1] != 0) == both},
                     cb[2] = {(pb[0] != 0) == both, (pb[1] != 0) == both};
        struct onnx_value *va, *vb, *v;
        int r = mfl_onnx_new_pair(o, a, ca, &va);
        if (r || (r = mfl_onnx_new_pair(o, b, cb, &vb)) ||
                (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, va, vb, &v)))
                return r;
        o->layers[v->layer].flag = true;
        return give(o, v, !both, both);
}

/* A mask that is a constant, such as a causal one, plus one of tokens: no layer has an infinite number. */
static int sum_masks(struct onnx *o, struct onnx_value *flag, const struct onnx_value *mask, bool *ret_taken)
{
        struct onnx_value *finite, *lifted, *v;
        struct onnx_tensor *t;
        double p[2];
        if (mask->tensor->param || !mfl_onnx_pair(o, flag, p) || (p[0] != 0 && p[0] > HIDDEN) ||
                (p[1] != 0 && p[1] > HIDDEN))
                return 0;
        for (int64_t i = 0; i < mask->tensor->count; i++)
                if (mfl_onnx_number(mask->tensor, i) != 0 && !(mfl_onnx_number(mask->tensor, i) <= HIDDEN))
                        return 0;
        *ret_taken = true;
        int r = mfl_onnx_fold_new(o, &mask->shape, true, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, fmax(mfl_onnx_number(mask->tensor, i), -1e9));
        if (r || (r = mfl_onnx_new_value(o, &mask->shape, &finite)))
                return r;
        finite->tensor = t;
        if ((r = mfl_onnx_lift(o, finite, &lifted)) ||
                (r = mfl_onnx_combine(o, MFL_OP_ADD, flag, lifted, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* A condition that is a constant, such as a causal mask, as a layer of 0s and 1s. */
static int constant_flag(struct onnx *o, const struct onnx_value *mask, struct onnx_value **ret_flag)
{
        struct onnx_value *v;
        struct onnx_tensor *t;
        int r = mfl_onnx_fold_new(o, &mask->shape, true, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, mfl_onnx_number(mask->tensor, i) != 0);
        if (r || (r = mfl_onnx_new_value(o, &mask->shape, &v)))
                return r;
        v->tensor = t;
        if (!(r = mfl_onnx_lift(o, v, ret_flag)))
                o->layers[(*ret_flag)->layer].flag = true;
        return r;
}

static int binary_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        struct onnx_shape shape;
        double pa[2], pb[2], c;
        bool has_a = mfl_onnx_pair(o, a, pa), has_b = mfl_onnx_pair(o, b, pb);
        if (isnan(apply(op, 1, 1)) || !(has_a || has_b))
                return 0;
        if (!has_a && is_uniform(a, &c))
                pa[0] = pa[1] = c;
        else if (!has_b && is_uniform(b, &c))
                pb[0] = pb[1] = c;
        else if (is(o, "Add") && has_a != has_b && (has_a ? b : a) && (has_a ? b : a)->tensor)
                return sum_masks(o, has_a ? a : b, has_a ? b : a, ret_taken);
        else if (is_logical(op) && has_a != has_b && (has_a ? b : a) && (has_a ? b : a)->tensor &&
                 !(has_a ? b : a)->tensor->param) {
                *ret_taken = true;
                int r = constant_flag(o, has_a ? b : a, &v);
                const double own[2] = {0, 1};
                return r ? r : join_conditions(o, has_a ? a : b, has_a ? pa : pb, v, own);
        } else if (!has_a || !has_b)
                return 0;
        int r = mfl_onnx_broadcast(o, &a->shape, &b->shape, &shape);
        bool alike =
                !r &&
                (!has_a || !has_b ||
                        (mfl_onnx_same_view(a, b) && mfl_onnx_count(&a->shape) == mfl_onnx_count(&shape)));
        if (r || (!alike && !is_logical(op)))
                return r;
        *ret_taken = true;
        if (!alike)
                return join_conditions(o, a, pa, b, pb);
        r = widen(o, has_a ? a : b, &shape, &v);
        return r ? r : give(o, v, apply(op, pa[0], pb[0]), apply(op, pa[1], pb[1]));
}

/* ---- Where ---- */

static int hide_scores(
        struct onnx *o, const struct onnx_value *scores, struct onnx_value *flag, const double hidden[2])
{
        const double pair[2] = {
                hidden[0] != 0 ? hidden[1] != 0 ? HIDDEN : -1e9 : 0, hidden[1] != 0 ? HIDDEN : 0};
        struct onnx_value *added, *v;
        struct onnx_shape shape;
        int r = mfl_onnx_broadcast(o, &scores->shape, &flag->shape, &shape);
        if (!r && mfl_onnx_count(&shape) != mfl_onnx_count(&scores->shape))
                r = mfl_onnx_fail(o, "the mask is larger than the scores");
        if (r || (r = mfl_onnx_new_pair(o, flag, pair, &added)) ||
                (scores->added && (r = mfl_onnx_combine(o, MFL_OP_ADD,
                                           (struct onnx_value *)(uintptr_t)scores->added, added, &added))) ||
                (r = mfl_onnx_resolve(o, added, &added)) || (r = mfl_onnx_new_value(o, &scores->shape, &v)))
                return r;
        int uses = v->uses;
        *v = *scores;
        v->uses = uses;
        v->made = NULL;
        v->added = added;
        return mfl_onnx_output(o, 0, v);
}

/* c where the condition holds, else v; or the other way round. */
static int replace(
        struct onnx *o, struct onnx_value *flag, const double holds[2], struct onnx_value *v, double c)
{
        const double kept[2] = {holds[0] == 0, holds[1] == 0},
                     put[2] = {holds[0] != 0 ? c : 0, holds[1] != 0 ? c : 0};
        struct onnx_value *k, *p, *made;
        int r = mfl_onnx_new_pair(o, flag, kept, &k);
        if (!r)
                r = mfl_onnx_combine(o, MFL_OP_GATE, v, k, &made);
        if (!r && c != 0 && !(r = mfl_onnx_new_pair(o, flag, put, &p)))
                r = mfl_onnx_combine(o, MFL_OP_ADD, made, p, &made);
        return r ? r : mfl_onnx_output(o, 0, made);
}

static int where_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *flag = mfl_onnx_input(o, 0), *a = mfl_onnx_input(o, 1), *b = mfl_onnx_input(o, 2),
                          *v;
        double p[2], c, d;
        struct onnx_shape shape, whole;
        if (!a || !b || !mfl_onnx_pair(o, flag, p))
                return 0;
        bool has_a = is_uniform(a, &c), has_b = is_uniform(b, &d);
        if (!has_a && !has_b)
                return 0;
        *ret_taken = true;
        if (has_a && has_b) {
                int r = mfl_onnx_broadcast(o, &flag->shape, &a->shape, &shape);
                if (!r && !(r = mfl_onnx_broadcast(o, &shape, &b->shape, &whole)))
                        r = widen(o, flag, &whole, &v);
                return r ? r : give(o, v, p[0] != 0 ? c : d, p[1] != 0 ? c : d);
        }
        const double holds[2] = {(p[0] != 0) == has_a, (p[1] != 0) == has_a};
        struct onnx_value *other = has_a ? b : a;
        c = has_a ? c : d;
        if (other->tensor) {
                int r = mfl_onnx_make_choice(o, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        return other->pending == ONNX_SCORES && c <= HIDDEN ? hide_scores(o, other, flag, holds)
                                                            : replace(o, flag, holds, other, c);
}

/* Scores of an attention, and a pair that is added to them. */
static int add_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        double p[2];
        bool late = mfl_onnx_pair(o, a, p);
        struct onnx_value *scores = late ? b : a, *flag = late ? a : b;
        if (!scores || scores->tensor || scores->pending != ONNX_SCORES || !mfl_onnx_pair(o, flag, p) ||
                !(p[0] == 0 || p[0] <= HIDDEN) || !(p[1] == 0 || p[1] <= HIDDEN))
                return 0;
        *ret_taken = true;
        return hide_scores(o, scores, flag, p);
}

/* Whole numbers that were computed from conditions stay what they are. */
static int cast_step(struct onnx *o, struct onnx_value *x, bool *ret_taken)
{
        enum onnx_kind to = ONNX_KIND_FLOAT;
        struct onnx_value *view;
        if (!x || x->tensor || x->pending != ONNX_NONE || !x->layer || !mfl_onnx_counts_padding(o, x->layer))
                return 0;
        int r = mfl_onnx_cast_kind(o, &to);
        if (r || to != ONNX_KIND_WHOLE || (r = mfl_onnx_resolve(o, x, &view)) ||
                !mfl_onnx_counts_padding(o, view->layer))
                return r;
        *ret_taken = true;
        return mfl_onnx_output(o, 0, view);
}

int mfl_onnx_tokens_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *x = mfl_onnx_input(o, 0);
        enum onnx_kind to = ONNX_KIND_FLOAT;
        double p[2];
        int r = compare_step(o, ret_taken);
        if (r || *ret_taken)
                return r;
        if (is(o, "Where"))
                return where_step(o, ret_taken);
        if (is(o, "Add") && ((r = add_step(o, ret_taken)) || *ret_taken))
                return r;
        bool cast = is(o, "Cast") || is(o, "CastLike");
        if (cast && !mfl_onnx_pair(o, x, p))
                return cast_step(o, x, ret_taken);
        if (!cast && (!mfl_onnx_pair(o, x, p) || mfl_onnx_node(o)->n_input > 1))
                return binary_step(o, ret_taken);
        if (!cast && !is(o, "Not") && !is(o, "Neg") && !is(o, "Identity"))
                return 0;
        *ret_taken = true;
        if (is(o, "Not"))
                return give(o, x, p[0] == 0, p[1] == 0);
        if (is(o, "Neg"))
                return give(o, x, -p[0], -p[1]);
        r = cast ? mfl_onnx_cast_kind(o, &to) : 0;
        if (!r && to == ONNX_KIND_BOOL)
                return give(o, x, p[0] != 0, p[1] != 0);
        if (!r && to == ONNX_KIND_WHOLE)
                return give(o, x, trunc(p[0]), trunc(p[1]));
        return r ? r : give(o, x, p[0], p[1]);
}
