/* SPDX-License-Identifier: Apache-2.0 */
/* Sums, products and other elementwise operators: a function with a number, two values, or a value with a
 * tensor of params. */
#include <math.h>

#include "cli/onnx/internal.h"

static double binary(char code, double x, double y)
{
        return code == 'A'   ? x + y
               : code == 'S' ? x - y
               : code == 'M' ? x * y
               : code == 'D' ? x / y
               : code == 'G' ? x > y /* no sample equals a bound */
               : code == 'L' ? x < y
                             : pow(x, y);
}

bool mfl_onnx_is_elementwise(const struct onnx *o)
{
        return mfl_onnx_is_unary(mfl_onnx_node(o)->op_type) ||
               mfl_onnx_is_binary(mfl_onnx_node(o)->op_type) || mfl_onnx_is_choice(o);
}

/* A value whose function the samples tell; any other function becomes a layer. */
static int settle(struct onnx *o, struct onnx_value *x, struct onnx_value **ret_view)
{
        int r = mfl_onnx_settle(o, x, ret_view);
        bool told = r || !((*ret_view)->function || (*ret_view)->cut);
        return told ? r : mfl_onnx_resolve(o, x, ret_view);
}

static int of_one(struct onnx *o, struct onnx_value *x)
{
        struct onnx_value *view, *v;
        double *f;
        bool hidden = false;
        if (x->tensor)
                return mfl_onnx_fold_unary(o, x);
        int r = settle(o, x, &view);
        if (!r && !(r = mfl_onnx_new_function(o, view, &f, &v)))
                r = mfl_onnx_sample_unary(o, view, f, v, &hidden);
        if (!r && hidden && !(r = mfl_onnx_resolve(o, x, &view)) &&
                !(r = mfl_onnx_new_function(o, view, &f, &v)))
                r = mfl_onnx_sample_unary(o, view, f, v, &hidden);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* x > c, c > x, x >= c and so on. */
static struct onnx_cut cut_at(const char *op, double c, bool scalar_first)
{
        bool above = (op[0] == 'G') != scalar_first, or_equal = strstr(op, "OrEqual");
        bool high = above != or_equal; /* x <= c is where x > c is not */
        return (struct onnx_cut){
                .below = high ? -INFINITY : c, .above = high ? c : INFINITY, .between = or_equal};
}

static bool is_absolute(const struct onnx_value *v)
{
        for (int i = 0; v->samples && i < ONNX_SAMPLES; i++)
                if (v->samples[i] != fabs(mfl_onnx_sample_at(i)))
                        return false;
        return v->samples;
}

static int new_cut(struct onnx *o, struct onnx_cut cut, struct onnx_value *v)
{
        struct onnx_cut *own = mfl_onnx_alloc(o, 1, sizeof *own);
        if (!own)
                return onnx_memory(o);
        *own = cut;
        v->cut = own;
        return 0;
}

static int with_scalar(struct onnx *o, struct onnx_value *x, double c, bool scalar_first)
{
        char code = mfl_onnx_node(o)->op_type[0];
        struct onnx_value *view, *v;
        double *f;
        bool compares = code == 'G' || code == 'L', both = false;
        struct onnx_cut cut = cut_at(mfl_onnx_node(o)->op_type, c, scalar_first);
        /* Samples of x + 1e-8 are those of x, but its root at 0 is another. */
        bool tiny = (code == 'A' || (code == 'S' && !scalar_first)) && c != 0 && fabs(c) < 1e-5;
        int r = tiny ? mfl_onnx_resolve(o, x, &view) : settle(o, x, &view);
        if (!r)
                both = compares && is_absolute(view) && isfinite(cut.above) && c > 0;
        if (!r && compares && view->samples && !both) /* samples do not tell where it is c */
                r = mfl_onnx_resolve_exact(o, x, &view);
        if (!r && tiny &&
                !(r = mfl_onnx_add_constant(o, view, MFL_OP_ADD, (float)(code == 'A' ? c : -c), &v)))
                return mfl_onnx_output(o, 0, v);
        if (!r)
                r = mfl_onnx_new_function(o, view, &f, &v);
        if (r)
                return r;
        code = !strcmp(mfl_onnx_node(o)->op_type, "Pow") ? '^' : code;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = scalar_first ? binary(code, c, mfl_onnx_value_at(view, i))
                                    : binary(code, mfl_onnx_value_at(view, i), c);
        cut.below = both ? -cut.above : cut.below;
        if (compares && (r = new_cut(o, cut, v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

/* ---- two values ---- */

/* Whether both are functions of the same elements in the same shape. */
static bool are_of_one(const struct onnx_value *a, const struct onnx_value *b)
{
        return a->shape.rank == b->shape.rank &&
               !memcmp(a->shape.dim, b->shape.dim, (size_t)a->shape.rank * sizeof a->shape.dim[0]) &&
               mfl_onnx_same_view(a, b);
}

/* x to the power y, of values that are both computed: exp(y log(x)). x is at least 1e-37, which powers of 0 come close to; a
 * negative one has no power in PyTorch either. */
static int power(struct onnx *o, struct onnx_value *x, struct onnx_value *y, struct onnx_value **ret_view)
{
        static const struct mfl_layer positive = {.op = MFL_OP_HARDTANH, .alpha = 1e-37f, .beta = 1e38f},
                                      log = {.op = MFL_OP_LOG}, exp = {.op = MFL_OP_EXP};
        struct onnx_value *v;
        int r = mfl_onnx_resolve(o, x, &v);
        if (r || (r = mfl_onnx_add_unary(o, v, &positive, &v)) || (r = mfl_onnx_add_unary(o, v, &log, &v)) ||
                (r = mfl_onnx_combine(o, MFL_OP_MULTIPLY, v, y, &v)))
                return r;
        return mfl_onnx_add_unary(o, v, &exp, ret_view);
}

/* Whether samples i .. k lie on a line. */
static bool is_line(const struct onnx_value *v, int i, int k)
{
        double first = mfl_onnx_value_at(v, i), x = mfl_onnx_sample_at(i),
               slope = (mfl_onnx_value_at(v, k) - first) / (mfl_onnx_sample_at(k) - x), largest = 0;
        for (int j = i; j <= k; j++)
                largest = fmax(largest, fabs(mfl_onnx_value_at(v, j)));
        for (int j = i + 1; j < k; j++)
                if (!(fabs(first + slope * (mfl_onnx_sample_at(j) - x) - mfl_onnx_value_at(v, j)) <=
                            1e-9 * largest))
                        return false;
        return true;
}

/* Whether the function has a bend or a step between samples i and i + 1, and is a line on either side. */
static bool bends_at(const struct onnx_value *v, int i)
{
        int first = MFL_MAX(i - 2, 0), last = MFL_MIN(i + 3, ONNX_SAMPLES - 1);
        return is_line(v, first, i) && is_line(v, i + 1, last) && !is_line(v, first, last);
}

/* Whether both functions bend between the same two samples, other than those around 0: what the samples then show of their sum or
 * product may be that of a function with one bend, or none. relu(x - 0.3) - 2 relu(x - 0.31) + relu(x - 0.32) is 0 at all samples. */
static bool hides_bends(const struct onnx_value *a, const struct onnx_value *b)
{
        if (!a->samples || !b->samples)
                return false;
        for (int i = 0; i + 1 < ONNX_SAMPLES; i++)
                if (mfl_onnx_sample_at(i) * mfl_onnx_sample_at(i + 1) > 0 && bends_at(a, i) && bends_at(b, i))
                        return true;
        return false;
}

static int two_variables(struct onnx *o, struct onnx_value *a, struct onnx_value *b)
{
        struct onnx_value *va, *vb, *v;
        double *f;
        const char *op = mfl_onnx_node(o)->op_type;
        int r = settle(o, a, &va);
        if (!r)
                r = settle(o, b, &vb);
        if (r)
                return r;
        if (!are_of_one(va, vb) || op[0] == 'G' || op[0] == 'L' || hides_bends(va, vb)) {
                r = op[0] == 'G' || op[0] == 'L' ? mfl_onnx_make_comparison(o, &v)
                    : !strcmp(op, "Pow")         ? power(o, va, vb, &v)
                                                 : mfl_onnx_join_views(o, va, vb, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if ((r = mfl_onnx_new_function(o, va, &f, &v)))
                return r;
        char code = !strcmp(op, "Pow") ? '^' : op[0];
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = binary(code, mfl_onnx_value_at(va, i), mfl_onnx_value_at(vb, i));
        return mfl_onnx_output(o, 0, v);
}

/* x beyond the bounds, else a number. */
static int name_jump(struct onnx *o, const struct onnx_cut *cut, double otherwise, struct onnx_value *v)
{
        struct mfl_layer threshold = {.op = MFL_OP_THRESHOLD,
                                 .alpha = (float)cut->above,
                                 .beta = (float)otherwise},
                         shrink = {.op = MFL_OP_HARDSHRINK, .alpha = (float)cut->above};
        bool shrinks = cut->below == -cut->above && cut->above > 0 && otherwise == 0;
        if (!shrinks && (isfinite(cut->below) || !isfinite(cut->above)))
                return 0;
        struct mfl_layer *l = mfl_onnx_alloc(o, 1, sizeof *l);
        if (!l)
                return onnx_memory(o);
        *l = shrinks && isfinite(cut->below) ? shrink : threshold;
        v->function = l;
        return 0;
}

static double branch_at(const struct onnx_value *view, double c, int i)
{
        return view ? mfl_onnx_value_at(view, i) : c;
}

/* Whether both functions have the same value wherever the condition changes, as far as samples can tell. It changes somewhere. */
static bool is_continuous(struct onnx_value *const view[3], const double c[3])
{
        const struct onnx_cut *cut = view[0]->cut;
        bool plain = cut && !(view[1] && view[1]->samples) && !(view[2] && view[2]->samples), changes = false;
        for (int i = 0; i + 1 < ONNX_SAMPLES; i++) {
                if ((mfl_onnx_value_at(view[0], i) != 0) == (mfl_onnx_value_at(view[0], i + 1) != 0))
                        continue;
                changes = true;
                double at = plain && mfl_onnx_sample_at(i) < cut->below ? cut->below : plain ? cut->above : 0;
                for (int k = i; k <= i + 1; k++) {
                        double a = branch_at(view[1], c[1], k), b = branch_at(view[2], c[2], k);
                        a = plain && view[1] ? at : a;
                        b = plain && view[2] ? at : b;
                        if (!(fabs(a - b) <= (plain ? 1e-6 : 1e-3) * (1 + fabs(a))))
                                return false;
                }
        }
        return changes;
}

/* Where: one function where a condition holds, and another elsewhere; all are functions of one value. */
static int choose(struct onnx *o)
{
        struct onnx_value *in[3], *view[3] = {NULL}, *v;
        double *f, c[3];
        bool fits = true;
        int r = 0;
        for (size_t k = 0; !r && k < 3; k++) {
                in[k] = mfl_onnx_input(o, k);
                if (!in[k])
                        return mfl_onnx_fail(o, "input %zu is missing", k);
                if (!in[k]->tensor)
                        r = k ? settle(o, in[k], &view[k]) : mfl_onnx_settle(o, in[k], &view[k]);
                fits = fits && !r && (view[k] ? are_of_one(view[k], view[0]) : mfl_onnx_scalar(in[k], &c[k]));
        }
        if (r)
                return r;
        /* Samples do not tell where a function jumps: a layer may. */
        const struct onnx_cut *cut = fits ? view[0]->cut : NULL;
        int kept = cut && cut->between ? 2 : 1, other = 3 - kept;
        bool named = cut && view[kept] && !view[kept]->samples && !view[other];
        if (!fits || !(is_continuous(view, c) || named))
                return (r = mfl_onnx_make_choice(o, &v)) ? r : mfl_onnx_output(o, 0, v);
        if ((r = mfl_onnx_new_function(o, view[0], &f, &v)))
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                int k = mfl_onnx_value_at(view[0], i) != 0 ? 1 : 2;
                f[i] = view[k] ? mfl_onnx_value_at(view[k], i) : c[k];
        }
        if (named && (r = name_jump(o, cut, c[other], v)))
                return r;
        if (named && !v->function && !is_continuous(view, c))
                return (r = mfl_onnx_make_choice(o, &v)) ? r : mfl_onnx_output(o, 0, v);
        return mfl_onnx_output(o, 0, v);
}

/* ---- a value and a tensor of params ---- */

static int negated(
        struct onnx *o, const struct onnx_tensor *t, bool inverse, const struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *n = mfl_onnx_alloc(o, 1, sizeof *n);
        float *f = n ? mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof *f) : NULL;
        if (!f)
                return onnx_memory(o);
        for (int64_t i = 0; i < t->count; i++)
                f[i] = inverse ? 1 / t->f[i] : -t->f[i];
        *n = *t;
        n->f = f;
        n->origin = NULL;
        *ret_tensor = n;
        return 0;
}

/* Whole numbers, such as the offsets of tables that are one. */
static int as_floats(struct onnx *o, const struct onnx_value *of, struct onnx_value **ret_constant)
{
        struct onnx_tensor *t;
        struct onnx_value *v;
        if (mfl_onnx_node(o)->op_type[0] == 'D')
                return mfl_onnx_fail(
                        o, "divides whole numbers; divide before training, or call float() first");
        int r = mfl_onnx_fold_new(o, &of->shape, true, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, mfl_onnx_number(of->tensor, i));
        if (r || (r = mfl_onnx_new_value(o, &of->shape, &v)))
                return r;
        v->tensor = t;
        *ret_constant = v;
        return 0;
}

static int with_tensor(struct onnx *o, struct onnx_value *x, struct onnx_value *constant, bool constant_first)
{
        const char *op = mfl_onnx_node(o)->op_type;
        const struct onnx_tensor *tensor = constant->tensor;
        struct onnx_value *view, *v;
        struct mfl_shape sx, sw;
        struct onnx_shape out;
        int layer, weight, r;
        bool turned = op[0] == 'S' || op[0] == 'D', trained = constant->tensor->param;
        if (!constant->tensor->f && (r = as_floats(o, constant, &constant)))
                return r;
        tensor = constant->tensor;
        if (!strcmp(op, "Pow") && !trained && !constant_first) /* negative numbers have whole powers */
                return mfl_onnx_fail(o,
                        "raises to several powers at once; write torch.stack([x, x**2, ...], -1), with "
                        "one number for each");
        if (!mfl_onnx_is_arithmetic(op) || (turned && (trained || constant_first))) {
                r = mfl_onnx_lift(o, constant, &view);
                return r ? r : two_variables(o, constant_first ? view : x, constant_first ? x : view);
        }
        if (turned && (r = negated(o, constant->tensor, op[0] == 'D', &tensor)))
                return r;
        if ((r = mfl_onnx_resolve(o, x, &view)) ||
                (r = mfl_onnx_broadcast(o, &view->shape, &constant->shape, &out)))
                return r;
        int axis = mfl_onnx_batch_axis(&out);
        struct onnx_value given = *constant, *lifted;
        given.tensor = (struct onnx_tensor *)(uintptr_t)tensor;
        bool wide = out.rank - (axis >= 0) > 3;
        if (!wide && ((r = mfl_onnx_without(o, &view->shape, out.rank, axis, &sx)) ||
                             (r = mfl_onnx_without(o, &constant->shape, out.rank, axis, &sw))))
                return r;
        if (wide || !mfl_onnx_repeats_one(&sx, &sw)) {
                given.lifted = NULL;
                if (!(r = mfl_onnx_lift(o, &given, &lifted)))
                        r = mfl_onnx_combine(o, op[0] == 'M' || op[0] == 'D' ? MFL_OP_MULTIPLY : MFL_OP_ADD,
                                view, lifted, &v);
                if (r)
                        return r;
                o->layers[v->layer].quotient |= op[0] == 'D';
                return mfl_onnx_output(o, 0, v);
        }
        if ((r = mfl_onnx_view_layer(o, view, &sx, &layer)) ||
                (r = mfl_onnx_weight_layer(o, &given, &sw, &weight)) ||
                (r = mfl_onnx_join(o, op[0] == 'M' || op[0] == 'D' ? MFL_OP_MULTIPLY : MFL_OP_ADD, layer,
                         weight, &sx, &sw, &out, &v)))
                return r;
        o->layers[v->layer].quotient |= op[0] == 'D';
        return mfl_onnx_output(o, 0, v);
}

int mfl_onnx_elementwise(struct onnx *o)
{
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1);
        double c;
        if (mfl_onnx_is_unary(mfl_onnx_node(o)->op_type))
                return a ? of_one(o, a) : mfl_onnx_fail(o, "input 0 is missing");
        if (mfl_onnx_is_choice(o))
                return choose(o);
        if (!a || !b || (a->tensor && b->tensor))
                return mfl_onnx_fail(o, "needs two inputs");
        if (!a->tensor && !b->tensor)
                return two_variables(o, a, b);
        struct onnx_value *x = a->tensor ? b : a, *constant = a->tensor ? a : b;
        bool follows_product = x->pending == ONNX_PRODUCT && !strcmp(mfl_onnx_node(o)->op_type, "Add");
        bool alike = follows_product &&
                     (x->weight->param || x->weight->generated) ==
                             (constant->tensor->param || constant->tensor->generated) &&
                     !mfl_onnx_bias_is_apart(o, constant->tensor, x->weight);
        if (alike && constant->tensor->f && x->uses == 1 &&
                constant->tensor->count == x->shape.dim[x->shape.rank - 1] &&
                constant->shape.dim[constant->shape.rank - 1] == constant->tensor->count) {
                /* The rest of MultiheadAttention's in_proj_bias may belong to queries that are a parameter. */
                struct onnx_value *v, *part;
                int r = mfl_onnx_lifted_part(o, constant, &part);
                if (!r && !part)
                        r = mfl_onnx_make_product(o, x, constant->tensor, &v);
                if (r || !part)
                        return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (mfl_onnx_scalar(constant, &c))
                return with_scalar(o, x, c, x == b);
        return with_tensor(o, x, constant, x == b);
}

/* x == c of computed values: c is not below x, nor above. */
static int equal_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *view, *v;
        double *f, c, pair[2];
        struct onnx_value *x = a && a->tensor ? b : a, *constant = a && a->tensor ? a : b;
        if (!x || x->tensor || !constant || !mfl_onnx_scalar(constant, &c) || mfl_onnx_pair(o, x, pair))
                return 0;
        *ret_taken = true;
        int r = mfl_onnx_resolve_exact(o, x, &view);
        if (r || (r = mfl_onnx_new_function(o, view, &f, &v)) ||
                (r = new_cut(o, (struct onnx_cut){.below = c, .above = c, .between = true}, v)))
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = mfl_onnx_sample_at(i) == c;
        return mfl_onnx_output(o, 0, v);
}

/* A condition that is the same everywhere, as torch.lerp writes it. */
static int settled_step(struct onnx *o, bool *ret_taken)
{
        struct onnx_value *c = mfl_onnx_input(o, 0), *in[2] = {mfl_onnx_input(o, 1), mfl_onnx_input(o, 2)},
                          *v;
        struct onnx_shape out, all;
        if (!c || !c->tensor || !in[0] || !in[1] || !c->tensor->count)
                return 0;
        bool on = mfl_onnx_number(c->tensor, 0) != 0;
        for (int64_t i = 1; i < c->tensor->count; i++)
                if ((mfl_onnx_number(c->tensor, i) != 0) != on)
                        return 0;
        struct onnx_value *chosen = in[on ? 0 : 1];
        int r = mfl_onnx_broadcast(o, &in[0]->shape, &in[1]->shape, &out);
        if (r || (r = mfl_onnx_broadcast(o, &out, &c->shape, &all)))
                return r;
        if (chosen->tensor || mfl_onnx_count(&all) != mfl_onnx_count(&chosen->shape))
                return 0;
        *ret_taken = true;
        if ((r = mfl_onnx_settle(o, chosen, &v)) || (r = mfl_onnx_view(o, v, &all, NULL, &v)))
                return r;
        return mfl_onnx_output(o, 0, v);
}

int mfl_onnx_cut_step(struct onnx *o, bool *ret_taken)
{
        if (!strcmp(mfl_onnx_node(o)->op_type, "Equal"))
                return equal_step(o, ret_taken);
        if (!strcmp(mfl_onnx_node(o)->op_type, "Where"))
                return settled_step(o, ret_taken);
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        bool joins = !strcmp(op, "Or") || !strcmp(op, "And"), turns = !strcmp(op, "Not"),
             keeps = !strncmp(op, "Cast", 4);
        double *f;
        if (!a || a->tensor || !a->cut || !(joins || turns || keeps))
                return 0;
        struct onnx_cut cut = *a->cut;
        bool fits = !joins || (b && !b->tensor && b->cut && are_of_one(a, b) &&
                                      b->cut->between == cut.between && cut.between == !strcmp(op, "And"));
        if (!fits)
                return 0;
        *ret_taken = true;
        if (joins) {
                cut.below = fmax(cut.below, b->cut->below);
                cut.above = fmin(cut.above, b->cut->above);
        }
        cut.between = cut.between != turns;
        int r = mfl_onnx_new_function(o, a, &f, &v);
        if (r || (r = new_cut(o, cut, v)))
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double x = mfl_onnx_sample_at(i);
                f[i] = (x < cut.below || x > cut.above) != cut.between;
        }
        return mfl_onnx_output(o, 0, v);
}
