/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and products: of a function with a number, of two values, and of a value with a tensor of params. */
#include <math.h>

#include "cli/onnx/internal.h"

static double binary(char code, double x, double y)
{
        return code == 'A'   ? x + y
               : code == 'S' ? x - y
               : code == 'M' ? x * y
               : code == 'D' ? x / y
               : code == 'G' ? x > y /* equal numbers are no samples */
               : code == 'L' ? x < y
                             : pow(x, y);
}

static const char *const binaries[] = {
        "Add", "Sub", "Mul", "Div", "Pow", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", NULL};

static bool is_binary(const char *op)
{
        for (int i = 0; binaries[i]; i++)
                if (!strcmp(binaries[i], op))
                        return true;
        return false;
}

/* With a layer of its own: sums and products. */
static bool is_arithmetic(const char *op)
{
        return is_binary(op) && strchr("ASMD", op[0]);
}

/* Where with a condition on the samples, not a constant mask. */
static bool is_choice(const struct onnx *o)
{
        const struct onnx_value *c = onnx_input(o, 0);
        return !strcmp(onnx_node(o)->op_type, "Where") && c && !c->tensor;
}

bool onnx_is_elementwise(const struct onnx *o)
{
        return onnx_is_unary(onnx_node(o)->op_type) || is_binary(onnx_node(o)->op_type) || is_choice(o);
}

static int with_scalar(struct onnx *o, struct onnx_value *x, double c, bool scalar_first)
{
        char code = onnx_node(o)->op_type[0];
        struct onnx_value *view, *v;
        double *f;
        int r = onnx_settle(o, x, &view);
        if (!r)
                r = onnx_new_function(o, view, &f, &v);
        if (r)
                return r;
        code = !strcmp(onnx_node(o)->op_type, "Pow") ? '^' : code;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = scalar_first ? binary(code, c, onnx_value_at(view, i))
                                    : binary(code, onnx_value_at(view, i), c);
        return onnx_output(o, 0, v);
}

static int join_views(
        struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view);

/* No function of the table as a whole: the last step by itself. */
static int make_step(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        const char *op = onnx_node(o)->op_type;
        struct onnx_value *a = onnx_input(o, 0), *b = onnx_input(o, 1);
        double c;
        if (is_binary(op) && a && b && !a->tensor && !b->tensor)
                return join_views(o, a, b, ret_view);
        struct onnx_value *x = a && !a->tensor ? a : b, *view;
        if (!x || !x->samples || is_choice(o))
                return onnx_fail(o, ONNX_NOT_KNOWN);
        int r = onnx_resolve(o, x, &view);
        if (r)
                return r;
        if (onnx_is_unary(op))
                return onnx_make_unary(o, view, ret_view);
        if (!onnx_scalar(x == a ? b : a, &c) || !is_arithmetic(op) || (op[0] == 'D' && x == b))
                return onnx_fail(o, "this combination of elementwise operators is not supported");
        bool minus = op[0] == 'S' && x == b;
        double scale = op[0] == 'M' ? c : op[0] == 'D' ? 1 / c : minus ? -1 : 1;
        double offset = op[0] == 'A' || minus ? c : op[0] == 'S' ? -c : 0;
        return onnx_make_affine(o, view, scale, offset, ret_view);
}

/* A part of a layer's output is cut out before the function, which would else be computed of the whole. */
static int cut_out(struct onnx *o, struct onnx_value *v)
{
        struct mfl_shape shape;
        struct onnx_value plain = *v;
        int layer, r;
        if (!v->map || onnx_count(&v->shape) >= mfl_shape_count(onnx_layer_shape(o, v->layer)))
                return 0;
        plain.samples = NULL;
        plain.pending = ONNX_NONE;
        if ((r = onnx_sample_shape(o, v, &shape)) || (r = onnx_layer_of(o, &plain, &shape, &layer)))
                return r;
        v->layer = layer;
        v->map = NULL;
        return 0;
}

int onnx_make_function(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        struct onnx_value *made = NULL;
        int r = cut_out(o, v);
        if (!r)
                r = onnx_make_known(o, v, &made);
        if (!r && !made)
                r = make_step(o, v, &made);
        if (!r)
                *ret_view = made;
        return r;
}

/* ---- two values ---- */

/* The dimension of the batch, which both leave out: 1 in both. */
static int batch_axis(const struct onnx_shape *shape)
{
        for (int d = 0; d < shape->rank && shape->rank > 1; d++)
                if (shape->dim[d] == 1)
                        return d;
        return -1;
}

static int without(
        struct onnx *o, const struct onnx_shape *shape, int rank, int axis, struct mfl_shape *ret_shape)
{
        struct mfl_shape s = {0};
        int pad = rank - shape->rank;
        if (rank - (axis >= 0) > 3)
                return onnx_fail(o, "values of %d dimensions; mfl has at most 3 besides the batch", rank);
        for (int d = 0; d < rank; d++) {
                int64_t dim = d < pad ? 1 : shape->dim[d - pad];
                if (d != axis)
                        s.dim[s.rank++] = dim;
                else if (dim != 1)
                        return onnx_fail(o, "the batch is not where it is expected");
        }
        *ret_shape = s;
        return 0;
}

static bool spreads(const struct mfl_shape *small, const struct mfl_shape *large)
{
        bool fits = small->rank == large->rank;
        for (int d = 0; fits && d < small->rank; d++)
                fits = small->dim[d] == large->dim[d] || small->dim[d] == 1;
        return fits;
}

static int join(struct onnx *o, enum mfl_op op, int a, int b, const struct mfl_shape *sa,
        const struct mfl_shape *sb, const struct onnx_shape *shape, struct onnx_value **ret_view)
{
        struct mfl_layer l = {.op = op, .input = a, .input2 = b, .out = *sa};
        int layer, r;
        if (!spreads(sb, sa)) {
                if (!spreads(sa, sb))
                        return onnx_fail(o, "both inputs would have to be repeated; mfl repeats one");
                l.input = b;
                l.input2 = a;
                l.out = *sb;
        }
        if (l.input == l.input2)
                return onnx_fail(o, "joins a value with itself");
        if ((r = onnx_add_layer(o, &l, NULL, o->node, &layer)))
                return r;
        return onnx_layer_value(o, layer, shape, ret_view);
}

static int join_views(
        struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view)
{
        const char *op = onnx_node(o)->op_type;
        struct onnx_value *va, *vb;
        struct mfl_shape sa, sb;
        struct onnx_shape out;
        int la, lb, r;
        if (strcmp(op, "Add") && strcmp(op, "Sub") && strcmp(op, "Mul"))
                return onnx_fail(o, "of two values is not supported; Add, Sub and Mul are");
        if ((r = onnx_resolve(o, a, &va)) || (r = onnx_resolve(o, b, &vb)) ||
                (r = onnx_broadcast(o, &va->shape, &vb->shape, &out)))
                return r;
        int axis = batch_axis(&out);
        if ((r = without(o, &va->shape, out.rank, axis, &sa)) ||
                (r = without(o, &vb->shape, out.rank, axis, &sb)))
                return r;
        if (op[0] == 'S' && ((r = onnx_add_constant(o, vb, MFL_OP_MULTIPLY, -1, &vb))))
                return r;
        if ((r = onnx_layer_of(o, va, &sa, &la)) || (r = onnx_layer_of(o, vb, &sb, &lb)))
                return r;
        return join(o, op[0] == 'M' ? MFL_OP_MULTIPLY : MFL_OP_ADD, la, lb, &sa, &sb, &out, ret_view);
}

/* Functions of the same elements in the same shape. */
static bool are_of_one(const struct onnx_value *a, const struct onnx_value *b)
{
        return a->shape.rank == b->shape.rank &&
               !memcmp(a->shape.dim, b->shape.dim, (size_t)a->shape.rank * sizeof a->shape.dim[0]) &&
               onnx_same_view(a, b);
}

static int two_variables(struct onnx *o, struct onnx_value *a, struct onnx_value *b)
{
        struct onnx_value *va, *vb, *v;
        double *f;
        int r = onnx_settle(o, a, &va);
        if (!r)
                r = onnx_settle(o, b, &vb);
        if (r)
                return r;
        if (!are_of_one(va, vb))
                return (r = join_views(o, va, vb, &v)) ? r : onnx_output(o, 0, v);
        if ((r = onnx_new_function(o, va, &f, &v)))
                return r;
        char code = !strcmp(onnx_node(o)->op_type, "Pow") ? '^' : onnx_node(o)->op_type[0];
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = binary(code, onnx_value_at(va, i), onnx_value_at(vb, i));
        return onnx_output(o, 0, v);
}

/* One function where another is above a bound, and a third elsewhere: all of one value. */
static int choose(struct onnx *o)
{
        struct onnx_value *in[3], *view[3] = {NULL}, *v;
        double *f, c[3];
        bool fits = true;
        int r = 0;
        for (size_t k = 0; !r && k < 3; k++) {
                in[k] = onnx_input(o, k);
                if (!in[k])
                        return onnx_fail(o, "input %zu is missing", k);
                if (!in[k]->tensor)
                        r = onnx_settle(o, in[k], &view[k]);
                fits = fits && !r && (view[k] ? are_of_one(view[k], view[0]) : onnx_scalar(in[k], &c[k]));
        }
        if (!r && !fits)
                r = onnx_fail(o, "is supported as a choice between functions of one value");
        if (!r)
                r = onnx_new_function(o, view[0], &f, &v);
        if (r)
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                int k = onnx_value_at(view[0], i) != 0 ? 1 : 2;
                f[i] = view[k] ? onnx_value_at(view[k], i) : c[k];
        }
        return onnx_output(o, 0, v);
}

/* ---- a value and a tensor of params ---- */

static int negated(
        struct onnx *o, const struct onnx_tensor *t, bool inverse, const struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *n = onnx_alloc(o, 1, sizeof *n);
        float *f = n ? onnx_alloc(o, (size_t)t->count + 1, sizeof *f) : NULL;
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

static int with_tensor(struct onnx *o, struct onnx_value *x, struct onnx_value *constant, bool constant_first)
{
        const char *op = onnx_node(o)->op_type;
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {constant->tensor};
        struct onnx_value *view, *v;
        struct mfl_shape sx, sw;
        struct onnx_shape out;
        int layer, weight, r;
        bool turned = op[0] == 'S' || op[0] == 'D';
        if (!constant->tensor->f || !is_arithmetic(op) || (turned && constant_first))
                return onnx_fail(o, "with this constant is not supported");
        if (turned && (r = negated(o, constant->tensor, op[0] == 'D', &tensors[0])))
                return r;
        if ((r = onnx_resolve(o, x, &view)) || (r = onnx_broadcast(o, &view->shape, &constant->shape, &out)))
                return r;
        int axis = batch_axis(&out);
        if ((r = without(o, &view->shape, out.rank, axis, &sx)) ||
                (r = without(o, &constant->shape, out.rank, axis, &sw)))
                return r;
        struct mfl_layer l = {.op = MFL_OP_WEIGHT, .shape = sw, .out = sw, .frozen = !tensors[0]->origin};
        onnx_name(o, &l, tensors[0], "");
        if ((r = onnx_layer_of(o, view, &sx, &layer)) ||
                (r = onnx_add_layer(o, &l, tensors, onnx_place_of(o, constant), &weight)) ||
                (r = join(o, op[0] == 'M' || op[0] == 'D' ? MFL_OP_MULTIPLY : MFL_OP_ADD, layer, weight, &sx,
                         &sw, &out, &v)))
                return r;
        return onnx_output(o, 0, v);
}

int onnx_elementwise(struct onnx *o)
{
        struct onnx_value *a = onnx_input(o, 0), *b = onnx_input(o, 1);
        double c;
        if (onnx_is_unary(onnx_node(o)->op_type))
                return a ? onnx_unary(o, a) : onnx_fail(o, "input 0 is missing");
        if (is_choice(o))
                return choose(o);
        if (!a || !b || (a->tensor && b->tensor))
                return onnx_fail(o, "needs two inputs");
        if (!a->tensor && !b->tensor)
                return two_variables(o, a, b);
        struct onnx_value *x = a->tensor ? b : a, *constant = a->tensor ? a : b;
        bool follows_product = x->pending == ONNX_PRODUCT && !strcmp(onnx_node(o)->op_type, "Add");
        if (follows_product && constant->tensor->f && x->uses == 1 &&
                constant->tensor->count == x->shape.dim[x->shape.rank - 1] &&
                constant->shape.dim[constant->shape.rank - 1] == constant->tensor->count) {
                struct onnx_value *v;
                int r = onnx_make_product(o, x, constant->tensor, &v);
                return r ? r : onnx_output(o, 0, v);
        }
        bool param = constant->tensor->origin && constant->shape.rank > 0 &&
                     strncmp(constant->tensor->origin, "val_", 4);
        if (onnx_scalar(constant, &c) && !param)
                return with_scalar(o, x, c, x == b);
        return with_tensor(o, x, constant, x == b);
}
