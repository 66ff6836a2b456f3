/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises layer and RMS normalisation that is written out: mean, difference, square, mean, plus eps, root,
 * quotient, scale, shift. */
#include <math.h>

#include "cli/onnx/internal.h"

static int pend(struct onnx *o, enum onnx_pending pending, const struct onnx_value *base,
        const struct onnx_shape *shape, struct onnx_value **ret_value)
{
        struct onnx_value *v;
        int r = mfl_onnx_new_value(o, shape, &v);
        if (r)
                return r;
        v->pending = pending;
        v->base = base;
        v->centered = true;
        *ret_value = v;
        return 0;
}

static int give(struct onnx *o, enum onnx_pending pending, const struct onnx_value *from,
        const struct onnx_shape *shape)
{
        struct onnx_value *v;
        int r = pend(o, pending, from->base, shape, &v);
        if (r)
                return r;
        v->eps = from->eps;
        v->centered = from->centered;
        return mfl_onnx_output(o, 0, v);
}

static bool over_last(struct onnx *o, const struct onnx_value *x, int *ret_code)
{
        const int64_t *axes;
        int n;
        *ret_code = mfl_onnx_ints(o, "axes", 1, &axes, &n);
        return !*ret_code && n == 1 && (axes[0] == -1 || axes[0] == x->shape.rank - 1);
}

static bool is_square(const struct onnx_value *v)
{
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double x = mfl_onnx_sample_at(i);
                if (!v->samples || !(fabs(v->samples[i] - x * x) <= 1e-9 * (1 + x * x)))
                        return false;
        }
        return true;
}

/* The value whose square x is, by the node that made x; NULL: it is no square. */
static struct onnx_value *root_of(struct onnx *o, const struct onnx_value *x)
{
        int node = o->node;
        struct onnx_value *a = NULL, *b;
        double c;
        if (x->node < 0 || x->pending != ONNX_NONE)
                return NULL;
        o->node = x->node;
        a = mfl_onnx_input(o, 0);
        b = mfl_onnx_input(o, 1);
        const char *op = mfl_onnx_node(o)->op_type;
        bool square =
                (!strcmp(op, "Mul") && a == b) || (!strcmp(op, "Pow") && mfl_onnx_scalar(b, &c) && c == 2);
        o->node = node;
        return square && a && !a->tensor ? a : NULL;
}

static int reduce_step(struct onnx *o, struct onnx_value *x, bool *ret_taken)
{
        int code;
        struct onnx_shape shape = x->shape;
        struct onnx_value *view, *v;
        if (!over_last(o, x, &code) || !mfl_onnx_int(o, "keepdims", 1) || x->shape.rank < 2)
                return code;
        shape.dim[shape.rank - 1] = 1;
        *ret_taken = true;
        if (x->pending == ONNX_SQUARED)
                return give(o, ONNX_VARIANCE, x, &shape);
        if (x->pending == ONNX_NONE && is_square(x)) {
                int r = mfl_onnx_view(o, x, &x->shape, NULL, &view);
                if (!r)
                        r = pend(o, ONNX_VARIANCE, view, &shape, &v);
                if (r)
                        return r;
                view->samples = NULL;
                v->centered = false;
                return mfl_onnx_output(o, 0, v);
        }
        struct onnx_value *root = root_of(o, x);
        int r = mfl_onnx_resolve(o, root ? root : x, &view);
        if (!r)
                r = pend(o, root ? ONNX_VARIANCE : ONNX_MEAN, view, &shape, &v);
        if (r)
                return r;
        v->centered = !root;
        return mfl_onnx_output(o, 0, v);
}

/* Whether a norm's tensor can keep its name: mfl's are called weight and bias. A scale of another name stays a layer of its own. */
static bool keeps_name(const struct onnx *o, const struct onnx_tensor *t, const char *name)
{
        const char *origin = t->origin, *dot = origin ? strrchr(origin, '.') : NULL;
        return !origin || !t->param || mfl_onnx_is_generated(o, origin) ||
               !strcmp(dot ? dot + 1 : origin, name);
}

static int binary_step(struct onnx *o, struct onnx_value *a, struct onnx_value *b, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        enum onnx_pending pa = a->tensor ? ONNX_NONE : a->pending, pb = b->tensor ? ONNX_NONE : b->pending;
        const struct onnx_value *constant = a->tensor ? a : b, *x = a->tensor ? b : a;
        double c;
        bool scalar = mfl_onnx_scalar(constant, &c);
        *ret_taken = true;
        if (!strcmp(op, "Sub") && pb == ONNX_MEAN && !a->tensor) {
                struct onnx_value *view;
                int r = mfl_onnx_resolve(o, a, &view);
                if (!r && mfl_onnx_same_view(view, b->base))
                        return give(o, ONNX_CENTERED, b, &a->shape);
                *ret_taken = false;
                return r;
        }
        if (pa == ONNX_CENTERED &&
                ((!strcmp(op, "Pow") && scalar && c == 2) || (!strcmp(op, "Mul") && a == b)))
                return give(o, ONNX_SQUARED, a, &a->shape);
        if (!strcmp(op, "Add") && x->pending == ONNX_VARIANCE && scalar && x->eps == 0) {
                struct onnx_value *v;
                int r = pend(o, ONNX_VARIANCE, x->base, &x->shape, &v);
                if (r)
                        return r;
                v->eps = (float)c;
                v->centered = x->centered;
                return mfl_onnx_output(o, 0, v);
        }
        if (!strcmp(op, "Div") && pa == ONNX_CENTERED && pb == ONNX_DEVIATION && a->base == b->base)
                return give(o, ONNX_NORMED, b, &a->shape);
        if (!strcmp(op, "Div") && a->tensor && scalar && c == 1 && pb == ONNX_DEVIATION)
                return give(o, ONNX_INVERSE, b, &b->shape);
        bool divides = !strcmp(op, "Div") && pb == ONNX_DEVIATION && !b->centered;
        struct onnx_value *inverse = divides || pb == ONNX_INVERSE ? b : a, *other = inverse == b ? a : b;
        bool by_inverse = divides || (!strcmp(op, "Mul") && inverse->pending == ONNX_INVERSE);
        if (by_inverse && !other->tensor && other->samples && !inverse->centered) {
                int r = mfl_onnx_resolve(o, other, &other);
                if (r)
                        return r;
        }
        if (by_inverse && !other->tensor &&
                ((inverse->centered && other->pending == ONNX_CENTERED && other->base == inverse->base) ||
                        (!inverse->centered && other->pending == ONNX_NONE && !other->samples &&
                                mfl_onnx_same_view(other, inverse->base))))
                return give(o, ONNX_NORMED, inverse, &other->shape);
        int64_t width = x->shape.rank ? x->shape.dim[x->shape.rank - 1] : 0;
        bool vector = constant->tensor && constant->tensor->f && constant->tensor->count == width &&
                      constant->shape.rank && constant->shape.dim[constant->shape.rank - 1] == width &&
                      constant->shape.rank <= x->shape.rank && keeps_name(o, constant->tensor, "weight");
        if (!strcmp(op, "Mul") && x->pending == ONNX_NORMED && vector) {
                struct onnx_value *v;
                int r = pend(o, ONNX_SCALED_NORM, x->base, &x->shape, &v);
                if (r)
                        return r;
                v->eps = x->eps;
                v->centered = x->centered;
                v->weight = constant->tensor;
                return mfl_onnx_output(o, 0, v);
        }
        *ret_taken = false;
        return 0;
}

static int add_step(struct onnx *o, struct onnx_value *a, struct onnx_value *b, bool *ret_taken)
{
        struct onnx_value *norm = a->tensor ? b : a, *constant = a->tensor ? a : b, *v;
        if (norm->tensor || !constant->tensor || norm->pending != ONNX_SCALED_NORM || norm->uses != 1 ||
                !norm->centered || constant->tensor->count != norm->weight->count || !constant->tensor->f ||
                !keeps_name(o, constant->tensor, "bias"))
                return 0;
        *ret_taken = true;
        int r = mfl_onnx_make_scaled_norm(o, norm, constant->tensor, &v);
        return r ? r : mfl_onnx_output(o, 0, v);
}

/* `.to(dtype)` before the scale, as transformers' RMS norms have it. */
static bool is_copy(struct onnx *o, const struct onnx_value *a)
{
        const char *op = mfl_onnx_node(o)->op_type;
        return a && !a->tensor && a->pending >= ONNX_MEAN && a->pending <= ONNX_SCALED_NORM &&
               (!strncmp(op, "Cast", 4) || !strcmp(op, "Identity")) && mfl_onnx_stays_float(o);
}

int mfl_onnx_norm_step(struct onnx *o, bool *ret_taken)
{
        const char *op = mfl_onnx_node(o)->op_type;
        struct onnx_value *a = mfl_onnx_input(o, 0), *b = mfl_onnx_input(o, 1), *v;
        *ret_taken = false;
        if (is_copy(o, a)) {
                *ret_taken = true;
                int r = mfl_onnx_copy_pending(o, a, &v);
                return r ? r : mfl_onnx_output(o, 0, v);
        }
        if (!a || a->tensor) {
                if (!a || !b || b->tensor)
                        return 0;
        } else if (!strcmp(op, "ReduceMean")) {
                return reduce_step(o, a, ret_taken);
        } else if (a->pending == ONNX_VARIANCE && !strcmp(op, "Sqrt")) {
                *ret_taken = true;
                return give(o, ONNX_DEVIATION, a, &a->shape);
        } else if (a->pending == ONNX_DEVIATION && !strcmp(op, "Reciprocal")) {
                *ret_taken = true;
                return give(o, ONNX_INVERSE, a, &a->shape);
        }
        bool known = !strcmp(op, "Sub") || !strcmp(op, "Pow") || !strcmp(op, "Mul") || !strcmp(op, "Div") ||
                     !strcmp(op, "Add");
        if (!known || !a || !b)
                return 0;
        if (!strcmp(op, "Add")) {
                int r = add_step(o, a, b, ret_taken);
                if (r || *ret_taken)
                        return r;
        }
        return binary_step(o, a, b, ret_taken);
}

/* ---- batch norm of rows ---- */

int mfl_onnx_norm_of_rows(struct onnx *o, struct mfl_layer *l, const struct onnx_tensor *const *t,
        struct onnx_value *x, struct onnx_value **ret_view)
{
        int64_t rows = x->shape.dim[0], features = x->shape.dim[1];
        struct onnx_shape turned = {3, {1, features, rows}};
        struct onnx_value *view, *v;
        int32_t *map = mfl_onnx_alloc(o, (size_t)(rows * features) + 1, sizeof *map),
                *back = mfl_onnx_alloc(o, (size_t)(rows * features) + 1, sizeof *back);
        int layer, r = map && back ? mfl_onnx_resolve(o, x, &view) : onnx_memory(o);
        if (r)
                return r;
        for (int64_t i = 0; i < rows * features; i++) {
                map[i] = (int32_t)(i % rows * features + i / rows);
                back[i] = (int32_t)(i % features * rows + i / features);
        }
        l->out = (struct mfl_shape){3, {features, 1, rows}};
        if ((r = mfl_onnx_view(o, view, &turned, map, &view)) ||
                (r = mfl_onnx_view_layer(o, view, &l->out, &l->input)) ||
                (r = mfl_onnx_add_layer(o, l, t, o->node, &layer)) ||
                (r = mfl_onnx_layer_value(o, layer, &turned, &v)) ||
                (r = mfl_onnx_view(o, v, &x->shape, back, &v)))
                return r;
        *ret_view = v;
        return 0;
}
