/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves a value to a view without a pending step or function; makes the layers that it still needs.
 *
 * A function that no single layer computes is made from the inputs of its last node, which are values again.
 * This is the only recursion of the conversion, and this file contains it.
 */
#include <math.h>

#include "cli/onnx/internal.h"

/* The mean over the last dimension, of a view. */
static int mean_of(struct onnx *o, const struct onnx_value *view, struct onnx_value **ret_view)
{
        struct onnx_value v = {.shape = view->shape, .pending = ONNX_MEAN, .base = view};
        v.shape.dim[v.shape.rank - 1] = 1;
        return mfl_onnx_make_norm(o, &v, ret_view);
}

/* A step of a normalisation that has no further ones: the difference from the mean, its square, a variance or a deviation. */
static int make_step_of_norm(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *x, *mean;
        int r = mfl_onnx_view(o, v->base, &v->base->shape, NULL, &x);
        if (!r && v->centered && !(r = mean_of(o, v->base, &mean)) &&
                !(r = mfl_onnx_add_constant(o, mean, MFL_OP_MULTIPLY, -1, &mean)))
                r = mfl_onnx_combine(o, MFL_OP_ADD, x, mean, &x);
        if (!r && v->pending > ONNX_CENTERED)
                r = mfl_onnx_make_power(o, x, 2, 1, &x);
        if (!r && v->pending > ONNX_SQUARED && !(r = mean_of(o, x, &x)) && v->eps > 0)
                r = mfl_onnx_make_affine(o, x, 1, (double)v->eps, &x);
        if (!r && v->pending > ONNX_VARIANCE)
                r = mfl_onnx_make_power(o, x, v->pending == ONNX_INVERSE ? -0.5 : 0.5, 1, &x);
        if (!r)
                *ret_view = x;
        return r;
}

int mfl_onnx_settle(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        int r = 0;
        if (v->tensor)
                return mfl_onnx_fail(o, "needs data of the samples, but gets a constant");
        if (v->pending == ONNX_NONE) {
                *ret_view = v;
                return 0;
        }
        if (!v->made) {
                int node = o->node;
                bool exact = o->exact;
                o->node = v->node;
                o->exact = false; /* sums over many elements have no bits in common anyway */
                if (v->pending == ONNX_PRODUCT)
                        r = mfl_onnx_make_product(o, v, NULL, &v->made);
                else if (v->pending == ONNX_LIST)
                        r = mfl_onnx_fail(o, "makes a list; only the elements of a list can be used");
                else if (v->pending == ONNX_SCORES)
                        r = mfl_onnx_make_scores(o, v, &v->made);
                else if (v->pending == ONNX_WEIGHTS)
                        r = mfl_onnx_make_weights(o, v, &v->made);
                else if (v->pending == ONNX_UNIFORM || v->pending == ONNX_KEPT || v->pending == ONNX_NOISE)
                        r = mfl_onnx_fail(o, ONNX_RANDOM);
                else if (v->pending == ONNX_DROPPED)
                        r = mfl_onnx_make_dropped(o, v, &v->made);
                else if (v->pending == ONNX_GROUPS || v->pending == ONNX_SCALED_GROUPS)
                        r = mfl_onnx_make_groupnorm(o, v, &v->made);
                else if (v->pending >= ONNX_CENTERED && v->pending <= ONNX_INVERSE)
                        r = make_step_of_norm(o, v, &v->made);
                else
                        r = mfl_onnx_make_norm(o, v, &v->made);
                o->node = node;
                o->exact = exact;
        }
        if (!r)
                *ret_view = v->made;
        return r;
}

/* ---- functions ---- */

/* If the value uses only a part of a layer's output, cuts it out before the function, which would otherwise
 * be computed for the whole output. */
static int cut_out(struct onnx *o, struct onnx_value *v)
{
        struct mfl_shape shape;
        struct onnx_value plain = *v;
        int layer, r;
        double pair[2];
        if (!v->map || mfl_onnx_pair(o, v, pair) ||
                mfl_onnx_count(&v->shape) >= mfl_shape_count(mfl_onnx_layer_shape(o, v->layer)))
                return 0;
        plain.samples = NULL;
        plain.pending = ONNX_NONE;
        if ((r = mfl_onnx_flat_shape(o, v, &shape)) || (r = mfl_onnx_view_layer(o, &plain, &shape, &layer)))
                return r;
        v->layer = layer;
        v->map = NULL;
        return 0;
}

/* A node that only moves elements: the function is made before the move. */
static int make_before_move(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        bool same = !v->step || v->parent != mfl_onnx_input(o, 0); /* a reshape keeps the move before it */
        struct onnx_value *from = mfl_onnx_input(o, 0), *view;
        int r = mfl_onnx_resolve(o, from, &view);
        return r ? r : mfl_onnx_view(o, view, &v->shape, same ? NULL : v->step, ret_view);
}

/* A layer of one input behind a view without a function. */
static int add_layer(struct onnx *o, struct onnx_value *of, enum mfl_op op, struct onnx_value **ret_view)
{
        return mfl_onnx_add_unary(o, of, &(struct mfl_layer){.op = op}, ret_view);
}

static int divide(struct onnx *o, struct onnx_value *of, double by, struct onnx_value **ret_view)
{
        const struct mfl_layer quotient = {.op = MFL_OP_DIVIDE, .alpha = (float)fabs(by)};
        int exponent, r = 0;
        if (fabs(frexp(by, &exponent)) == 0.5) /* a power of two */
                return mfl_onnx_make_affine(o, of, 1 / by, 0, ret_view);
        if (by < 0)
                r = add_layer(o, of, MFL_OP_NEG, &of);
        return r ? r : mfl_onnx_add_unary(o, of, &quotient, ret_view);
}

static bool is_comparison(const char *op)
{
        return !strncmp(op, "Greater", 7) || !strncmp(op, "Less", 4);
}

/* If no known function matches the whole, makes the last step by itself. */
static int make_step(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        double c;
        int r;
        bool computes = mfl_onnx_is_unary(op) || mfl_onnx_is_binary(op) || mfl_onnx_is_choice(o);
        if (!computes && a && !a->tensor && a->samples && mfl_onnx_node(o)->n_output == 1)
                return make_before_move(o, v, ret_view);
        if (mfl_onnx_is_choice(o))
                return mfl_onnx_make_choice(o, ret_view);
        if (is_comparison(op))
                return (r = mfl_onnx_make_comparison(o, &a)) ? r : mfl_onnx_make_pair(o, a, ret_view);
        if (mfl_onnx_is_binary(op) && a && b && !a->tensor && !b->tensor)
                return mfl_onnx_join_views(o, a, b, ret_view);
        struct onnx_value *x = a && !a->tensor ? a : b, *view;
        if (!x || (!x->samples && mfl_onnx_is_unary(op)))
                return mfl_onnx_fail(o, ONNX_NOT_KNOWN);
        if ((r = mfl_onnx_resolve(o, x, &view)))
                return r;
        if (mfl_onnx_is_unary(op))
                return mfl_onnx_make_unary(o, view, ret_view);
        bool number = mfl_onnx_scalar(x == a ? b : a, &c);
        if (number && x == a && !strcmp(op, "Pow"))
                return mfl_onnx_make_power(o, view, c, 1, ret_view);
        if (number && x == b && op[0] == 'D')
                return mfl_onnx_make_power(o, view, -1, c, ret_view);
        if (number && x == b && !strcmp(op, "Pow") && c > 0) /* exp(x log(c)) */
                return (r = mfl_onnx_make_affine(o, view, log(c), 0, &view))
                               ? r
                               : add_layer(o, view, MFL_OP_EXP, ret_view);
        if (!number || !mfl_onnx_is_arithmetic(op) || (op[0] == 'D' && x == b))
                return mfl_onnx_fail(o, "this combination of elementwise operators is not supported");
        if (o->exact && op[0] == 'D')
                return divide(o, view, c, ret_view);
        bool minus = op[0] == 'S' && x == b;
        double scale = op[0] == 'M' ? c : op[0] == 'D' ? 1 / c : minus ? -1 : 1;
        double offset = op[0] == 'A' || minus ? c : op[0] == 'S' ? -c : 0;
        return mfl_onnx_make_affine(o, view, scale, offset, ret_view);
}

/* A function that was moved since: the function of the value before, then the moves. */
static int make_unmoved(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *from = v->unmoved, *made, *view;
        const int32_t *map = from->map;
        int layer = from->layer, r = mfl_onnx_resolve(o, from, &made);
        if (r)
                return r;
        bool in_place = layer == v->layer && made->map == map &&
                        mfl_shape_count(mfl_onnx_layer_shape(o, made->layer)) ==
                                mfl_shape_count(mfl_onnx_layer_shape(o, layer));
        if (!in_place)
                return make_step(o, v, ret_view);
        if ((r = mfl_onnx_view(o, v, &v->shape, NULL, &view)))
                return r;
        view->layer = made->layer;
        view->samples = NULL;
        view->cut = NULL;
        view->unmoved = NULL;
        *ret_view = view;
        return 0;
}

static bool by_steps(struct onnx *o, const struct onnx_value *v)
{
        const struct onnx_value *of = mfl_onnx_input(o, 0);
        bool one_step = of && !of->samples && mfl_onnx_is_unary(mfl_onnx_node(o)->op_type);
        return o->exact && !one_step && mfl_onnx_joins_steps(v);
}

static int make_function(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *made = NULL;
        double pair[2];
        if (mfl_onnx_pair(o, v, pair))
                return mfl_onnx_make_pair(o, v, ret_view);
        int r = cut_out(o, v);
        if (!r && !v->cut)
                r = by_steps(o, v) ? 0 : mfl_onnx_make_known(o, v, &made);
        else if (!r && !(r = mfl_onnx_make_cut(o, v, &made)))
                r = mfl_onnx_make_pair(o, made, &made);
        if (!r && !made)
                r = v->unmoved ? make_unmoved(o, v, &made) : make_step(o, v, &made);
        if (!r)
                *ret_view = made;
        return r;
}

/* ---- both ---- */

int mfl_onnx_resolve(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *view = NULL;
        int r = mfl_onnx_settle(o, v, &view);
        if (r)
                return r;
        if (view->samples) {
                int node = o->node;
                o->node = view->node;
                struct onnx_value **made = o->exact ? &view->exact : &view->made;
                if (!*made)
                        r = make_function(o, view, made);
                o->node = node;
                view = *made;
        }
        if (!r)
                *ret_view = view;
        return r;
}

int mfl_onnx_resolve_exact(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        bool before = o->exact;
        o->exact = true;
        int r = mfl_onnx_resolve(o, v, ret_view);
        o->exact = before;
        return r;
}

int mfl_onnx_layer_of(struct onnx *o, struct onnx_value *v, const struct mfl_shape *shape, int *ret_layer)
{
        struct onnx_value *view = NULL;
        int r = mfl_onnx_resolve(o, v, &view);
        return r ? r : mfl_onnx_view_layer(o, view, shape, ret_layer);
}

/* An image, or a row of positions as an image of height 1: {batch, channels, positions}. */
int mfl_onnx_image(struct onnx *o, struct onnx_value *x, int *ret_layer, struct mfl_shape *ret_shape)
{
        if (!x || x->tensor || (x->shape.rank != 4 && x->shape.rank != 3) || x->shape.dim[0] != 1)
                return mfl_onnx_fail(
                        o, "needs {batch, channels, height, width} or {batch, channels, positions}");
        bool row = x->shape.rank == 3;
        *ret_shape = (struct mfl_shape){
                3, {x->shape.dim[1], row ? 1 : x->shape.dim[2], x->shape.dim[row ? 2 : 3]}};
        return mfl_onnx_layer_of(o, x, ret_shape, ret_layer);
}

/* A sum or product repeats its inputs itself. */
static struct onnx_value *narrow(struct onnx *o, struct onnx_value *a, const struct onnx_value *b)
{
        struct onnx_shape wide, same;
        bool fits = a->narrow && !mfl_onnx_broadcast(o, &a->shape, &b->shape, &wide) &&
                    !mfl_onnx_broadcast(o, &a->narrow->shape, &b->shape, &same) && wide.rank == same.rank &&
                    !memcmp(wide.dim, same.dim, (size_t)wide.rank * sizeof wide.dim[0]);
        return fits ? a->narrow : a;
}

/* Joins neighbouring dimensions that both inputs have, or that the same one repeats. */
static void join_dimensions(const struct onnx_shape *out, const struct onnx_shape *a,
        const struct onnx_shape *b, struct mfl_shape *sa, struct mfl_shape *sb)
{
        int last = 0;
        *sa = *sb = (struct mfl_shape){0};
        for (int d = 0; d < out->rank; d++) {
                int da = d - (out->rank - a->rank), db = d - (out->rank - b->rank);
                int64_t na = da < 0 ? 1 : a->dim[da], nb = db < 0 ? 1 : b->dim[db];
                int kind = 1 + (na == out->dim[d]) * 2 + (nb == out->dim[d]);
                if (out->dim[d] == 1)
                        continue;
                if (kind != last && sa->rank == MFL_SHAPE_RANK_MAX) {
                        sa->rank = sb->rank = MFL_SHAPE_RANK_MAX + 1; /* too many */
                        return;
                }
                if (kind != last) {
                        sa->dim[sa->rank++] = 1;
                        sb->dim[sb->rank++] = 1;
                }
                last = kind;
                sa->dim[sa->rank - 1] *= na;
                sb->dim[sb->rank - 1] *= nb;
        }
}

/* The same numbers, repeated by a view. */
static int widen(struct onnx *o, const struct onnx_value *v, const struct onnx_shape *shape,
        struct onnx_value **ret_view)
{
        int64_t n = mfl_onnx_count(shape);
        int32_t *map = mfl_onnx_alloc(o, (size_t)n + 1, sizeof *map);
        if (!map)
                return onnx_memory(o);
        for (int64_t i = 0; i < n; i++)
                map[i] = (int32_t)mfl_onnx_broadcast_at(shape, i, &v->shape);
        return mfl_onnx_view(o, v, shape, map, ret_view);
}

int mfl_onnx_combine(struct onnx *o, enum mfl_op op, struct onnx_value *a, struct onnx_value *b,
        struct onnx_value **ret_view)
{
        struct onnx_value *va, *vb;
        struct mfl_shape sa, sb;
        struct onnx_shape out;
        int la, lb, r;
        a = narrow(o, a, b);
        b = narrow(o, b, a);
        if ((r = mfl_onnx_resolve(o, a, &va)) || (r = mfl_onnx_resolve(o, b, &vb)) ||
                (r = mfl_onnx_broadcast(o, &va->shape, &vb->shape, &out)))
                return r;
        int axis = mfl_onnx_batch_axis(&out);
        if (out.rank - (axis >= 0) > 3)
                join_dimensions(&out, &va->shape, &vb->shape, &sa, &sb);
        if (out.rank - (axis >= 0) <= 3) {
                if ((r = mfl_onnx_without(o, &va->shape, out.rank, axis, &sa)) ||
                        (r = mfl_onnx_without(o, &vb->shape, out.rank, axis, &sb)))
                        return r;
        } else if (sa.rank > 3) { /* repeated by views, element by element */
                if ((r = widen(o, va, &out, &va)) || (r = widen(o, vb, &out, &vb)))
                        return r;
                sa = sb = (struct mfl_shape){1, {mfl_onnx_count(&out)}};
        }
        /* A product repeats either input; a gate keeps the number of its first one. */
        if (op == MFL_OP_GATE ? !mfl_onnx_spreads(&sb, &sa) : !mfl_onnx_repeats_one(&sa, &sb)) {
                if ((r = widen(o, va, &out, &va)))
                        return r;
                for (int d = 0; d < sa.rank; d++)
                        sa.dim[d] = MFL_MAX(sa.dim[d], sb.dim[d]);
        }
        if ((r = mfl_onnx_view_layer(o, va, &sa, &la)) || (r = mfl_onnx_view_layer(o, vb, &sb, &lb)) ||
                (la == lb && (r = mfl_onnx_copy_layer(o, lb, &lb))))
                return r;
        return mfl_onnx_join(o, op, la, lb, &sa, &sb, &out, ret_view);
}

/* A square or a double. */
static int with_itself(struct onnx *o, struct onnx_value *v, bool multiplies, struct onnx_value **ret_view)
{
        struct onnx_value *view;
        int r = mfl_onnx_resolve(o, v, &view);
        if (r)
                return r;
        return multiplies ? mfl_onnx_make_power(o, view, 2, 1, ret_view)
                          : mfl_onnx_make_affine(o, view, 2, 0, ret_view);
}

int mfl_onnx_join_views(
        struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view)
{
        const char *op = mfl_onnx_node(o)->op_type;
        b = narrow(o, b, a);
        struct onnx_value *vb = b;
        int r = 0;
        if (!mfl_onnx_is_arithmetic(op))
                return mfl_onnx_fail(o, "is not supported for two values; only Add, Sub, Mul and Div are");
        if (a == b && (op[0] == 'M' || op[0] == 'A'))
                return with_itself(o, a, op[0] == 'M', ret_view);
        if (op[0] == 'S' && !(r = mfl_onnx_resolve(o, b, &vb)))
                r = mfl_onnx_add_constant(o, vb, MFL_OP_MULTIPLY, -1, &vb);
        if (op[0] == 'D' && !(r = mfl_onnx_resolve(o, b, &vb)))
                r = mfl_onnx_make_power(o, vb, -1, 1, &vb);
        bool multiplies = op[0] == 'M' || op[0] == 'D';
        if (!r)
                r = mfl_onnx_combine(o, multiplies ? MFL_OP_MULTIPLY : MFL_OP_ADD, a, vb, ret_view);
        if (!r && op[0] == 'D')
                o->layers[(*ret_view)->layer].quotient = true;
        return r;
}

/* ---- conditions ----
 *
 * One that is no part of a function of one value becomes a flag, a layer of 0s and 1s: x > c is relu(sign(x - c)). Nothing is
 * trained through it, as in PyTorch. */

/* a - b; either may be a constant. */
static int subtract(struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view)
{
        double c;
        int r;
        if (mfl_onnx_scalar(b, &c))
                return (r = mfl_onnx_resolve_exact(o, a, &a)) ? r
                                                              : mfl_onnx_make_affine(o, a, 1, -c, ret_view);
        if (mfl_onnx_scalar(a, &c))
                return (r = mfl_onnx_resolve_exact(o, b, &b)) ? r
                                                              : mfl_onnx_make_affine(o, b, -1, c, ret_view);
        if ((a->tensor && (r = mfl_onnx_lift(o, a, &a))) || (b->tensor && (r = mfl_onnx_lift(o, b, &b))) ||
                (r = mfl_onnx_resolve(o, b, &b)) || (r = mfl_onnx_make_affine(o, b, -1, 0, &b)))
                return r;
        return mfl_onnx_combine(o, MFL_OP_ADD, a, b, ret_view);
}

int mfl_onnx_make_comparison(struct onnx *o, struct onnx_value **ret_view)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        bool or_equal = strstr(op, "OrEqual"), above = op[0] == 'G';
        static const double holds[2] = {0, 1}, fails[2] = {1, 0};
        if (!a || !b || !is_comparison(mfl_onnx_node(o)->op_type))
                return mfl_onnx_fail(o, "this combination of elementwise operators is not supported");
        /* a <= b is where a > b is not. */
        int r = above != or_equal ? subtract(o, a, b, &v) : subtract(o, b, a, &v);
        if (r || (r = add_layer(o, v, MFL_OP_SIGN, &v)) || (r = add_layer(o, v, MFL_OP_RELU, &v)))
                return r;
        o->layers[v->layer].flag = true;
        return mfl_onnx_new_pair(o, v, or_equal ? fails : holds, ret_view);
}

/* Whether the elements lie beyond one of v's bounds, which are no function of them. */
int mfl_onnx_make_cut(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_flag)
{
        const struct onnx_cut *cut = v->cut;
        const double on[2] = {cut->between, !cut->between};
        struct onnx_value *x, *side[2], *flag = NULL;
        int n = 0, r = mfl_onnx_view(o, v, &v->shape, NULL, &x);
        if (r)
                return r;
        x->samples = NULL;
        x->cut = NULL;
        x->unmoved = NULL;
        if (isfinite(cut->above) && (r = mfl_onnx_make_affine(o, x, 1, -cut->above, &side[n++])))
                return r;
        if (isfinite(cut->below) && (r = mfl_onnx_make_affine(o, x, -1, cut->below, &side[n++])))
                return r;
        for (int k = 0; k < n; k++) {
                if ((r = add_layer(o, side[k], MFL_OP_SIGN, &side[k])) ||
                        (r = add_layer(o, side[k], MFL_OP_RELU, &side[k])) ||
                        (flag && (r = mfl_onnx_combine(o, MFL_OP_ADD, flag, side[k], &side[k]))))
                        return r;
                flag = side[k];
        }
        if (!flag)
                return mfl_onnx_fail(o, "holds for all numbers, or for none");
        o->layers[flag->layer].flag = true;
        return mfl_onnx_new_pair(o, flag, on, ret_flag);
}

/* A value that is whether something holds, as a flag. */
int mfl_onnx_as_flag(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_flag)
{
        double pair[2];
        int r = 0, node = o->node;
        *ret_flag = v;
        if (mfl_onnx_pair(o, v, pair))
                return 0;
        if (v->cut)
                return mfl_onnx_make_cut(o, v, ret_flag);
        o->node = v->node >= 0 ? v->node : node;
        r = v->samples && is_comparison(mfl_onnx_node(o)->op_type) ? mfl_onnx_make_comparison(o, ret_flag)
                                                                   : mfl_onnx_resolve(o, v, ret_flag);
        o->node = node;
        if (r)
                return r;
        return mfl_onnx_pair(o, *ret_flag, pair)
                       ? 0
                       : mfl_onnx_fail(o, "needs a condition, such as x > 0, as its first input");
}

/* a or b where the flag is on; the other one is 0 there. */
static int keep(struct onnx *o, struct onnx_value *flag, const double on[2], struct onnx_value *v,
        struct onnx_value **ret_view)
{
        double c;
        struct onnx_value *k;
        if (mfl_onnx_scalar(v, &c)) {
                const double put[2] = {on[0] != 0 ? c : 0, on[1] != 0 ? c : 0};
                return mfl_onnx_new_pair(o, flag, put, ret_view);
        }
        int r = mfl_onnx_new_pair(o, flag, on, &k);
        if (!r && v->tensor)
                r = mfl_onnx_lift(o, v, &v);
        return r ? r : mfl_onnx_combine(o, MFL_OP_GATE, v, k, ret_view);
}

int mfl_onnx_make_choice(struct onnx *o, struct onnx_value **ret_view)
{
        struct onnx_value *in[3], *part[2], *flag;
        double pair[2], c;
        for (size_t k = 0; k < 3; k++)
                if (!(in[k] = mfl_onnx_input(o, k)))
                        return mfl_onnx_fail(o, "input %zu is missing", k);
        int r = mfl_onnx_as_flag(o, in[0], &flag);
        if (r || !mfl_onnx_pair(o, flag, pair))
                return r;
        const double on[2][2] = {{pair[0] != 0, pair[1] != 0}, {pair[0] == 0, pair[1] == 0}};
        for (int k = 0; k < 2; k++)
                if ((r = keep(o, flag, on[k], in[1 + k], &part[k])))
                        return r;
        for (int k = 0; k < 2; k++)
                if (mfl_onnx_scalar(in[1 + k], &c) && c == 0)
                        return mfl_onnx_resolve(o, part[1 - k], ret_view);
        return mfl_onnx_combine(o, MFL_OP_ADD, part[0], part[1], ret_view);
}
