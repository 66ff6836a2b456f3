/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one variable, followed by their values at sample points until a layer is needed; sums and
 * products of two values; and of a value with a tensor of params. */
#include <math.h>

#include "cli/onnx/internal.h"

/* No number that any of the functions treats in a special way. */
static double sample_at(int i)
{
        return (i - ONNX_SAMPLES / 2) * 0.5 + 0.0371;
}

static double gelu_tanh(double x)
{
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static double apply(enum mfl_op op, bool approximate, double x)
{
        switch (op) {
        case MFL_OP_RELU:
                return fmax(x, 0);
        case MFL_OP_RELU6:
                return fmin(fmax(x, 0), 6);
        case MFL_OP_TANH:
                return tanh(x);
        case MFL_OP_SIGMOID:
                return 1 / (1 + exp(-x));
        case MFL_OP_SILU:
                return x / (1 + exp(-x));
        default:
                return approximate ? gelu_tanh(x) : x * 0.5 * (1 + erf(x * 0.70710678118654752440));
        }
}

static const struct {
        enum mfl_op op;
        bool approximate;
} functions[] = {{MFL_OP_RELU, false}, {MFL_OP_RELU6, false}, {MFL_OP_TANH, false}, {MFL_OP_SIGMOID, false},
        {MFL_OP_SILU, false}, {MFL_OP_GELU, false}, {MFL_OP_GELU, true}};

static double unary(const char *op, double x)
{
        if (!strcmp(op, "Relu"))
                return fmax(x, 0);
        if (!strcmp(op, "Tanh"))
                return tanh(x);
        if (!strcmp(op, "Sigmoid"))
                return 1 / (1 + exp(-x));
        if (!strcmp(op, "Erf"))
                return erf(x);
        if (!strcmp(op, "Neg"))
                return -x;
        if (!strcmp(op, "Exp"))
                return exp(x);
        if (!strcmp(op, "Sqrt"))
                return sqrt(x);
        if (!strcmp(op, "Reciprocal"))
                return 1 / x;
        if (!strcmp(op, "Softplus"))
                return log1p(exp(x));
        return NAN;
}

static double binary(char code, double x, double y)
{
        return code == 'A'   ? x + y
               : code == 'S' ? x - y
               : code == 'M' ? x * y
               : code == 'D' ? x / y
                             : pow(x, y);
}

static const char *const unaries[] = {"Relu", "Tanh", "Sigmoid", "Erf", "Neg", "Exp", "Sqrt", "Reciprocal",
        "Softplus", "Gelu", "Clip", NULL};
static const char *const binaries[] = {"Add", "Sub", "Mul", "Div", "Pow", NULL};

static bool is_among(const char *const *list, const char *op)
{
        for (; *list; list++)
                if (!strcmp(*list, op))
                        return true;
        return false;
}

bool onnx_is_elementwise(const struct onnx *o)
{
        return is_among(unaries, onnx_node(o)->op_type) || is_among(binaries, onnx_node(o)->op_type);
}

static double at(const struct onnx_value *v, int i)
{
        return v->samples ? v->samples[i] : sample_at(i);
}

/* A view of the same elements under a function; f is filled by the caller. */
static int new_function(
        struct onnx *o, const struct onnx_value *of, double **ret_f, struct onnx_value **ret_value)
{
        double *f = onnx_alloc(o, ONNX_SAMPLES, sizeof *f);
        int r = f ? onnx_view(o, of, &of->shape, NULL, ret_value) : onnx_memory(o);
        if (r)
                return r;
        (*ret_value)->samples = f;
        *ret_f = f;
        return 0;
}

static int read_bound(struct onnx *o, const char *attribute, size_t input, double otherwise, double *ret_v)
{
        const Onnx__AttributeProto *a = onnx_attribute(o, attribute);
        *ret_v = a && a->has_f ? (double)a->f : otherwise;
        if (onnx_input(o, input) && !onnx_scalar(onnx_input(o, input), ret_v))
                return onnx_fail(o, "a bound that is no constant");
        return 0;
}

static int one_variable(struct onnx *o, struct onnx_value *x)
{
        const char *op = onnx_node(o)->op_type;
        struct onnx_value *view, *v;
        double *f, low = -INFINITY, high = INFINITY;
        int r = onnx_settle(o, x, &view);
        if (!r && !strcmp(op, "Clip"))
                r = (r = read_bound(o, "min", 1, -INFINITY, &low)) ? r
                                                                   : read_bound(o, "max", 2, INFINITY, &high);
        if (!r)
                r = new_function(o, view, &f, &v);
        if (r)
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double s = at(view, i);
                f[i] = !strcmp(op, "Clip") ? fmin(fmax(s, low), high)
                       : !strcmp(op, "Gelu")
                               ? apply(MFL_OP_GELU, onnx_string_is(o, "approximate", "none", "tanh"), s)
                               : unary(op, s);
        }
        return onnx_output(o, 0, v);
}

static int with_scalar(struct onnx *o, struct onnx_value *x, double c, bool scalar_first)
{
        char code = onnx_node(o)->op_type[0];
        struct onnx_value *view, *v;
        double *f;
        int r = onnx_settle(o, x, &view);
        if (!r)
                r = new_function(o, view, &f, &v);
        if (r)
                return r;
        code = !strcmp(onnx_node(o)->op_type, "Pow") ? '^' : code;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = scalar_first ? binary(code, c, at(view, i)) : binary(code, at(view, i), c);
        return onnx_output(o, 0, v);
}

/* ---- layers ---- */

static int add_unary(struct onnx *o, const struct onnx_value *v, enum mfl_op op, bool approximate,
        struct onnx_value **ret_view)
{
        int layer;
        struct mfl_layer l = {.op = op,
                .input = v->layer,
                .approximate = approximate,
                .out = *onnx_layer_shape(o, v->layer)};
        struct onnx_value *view;
        int r = onnx_derive(o, &l, v->node, &layer);
        if (!r)
                r = onnx_view(o, v, &v->shape, NULL, &view);
        if (r)
                return r;
        view->layer = layer;
        view->samples = NULL;
        *ret_view = view;
        return 0;
}

/* x times or plus a number, which is no parameter: a weight that is frozen. */
static int add_constant(
        struct onnx *o, const struct onnx_value *v, enum mfl_op op, float c, struct onnx_value **ret_view)
{
        const struct mfl_shape out = *onnx_layer_shape(o, v->layer);
        struct mfl_layer weight = {.op = MFL_OP_WEIGHT, .frozen = true, .shape = {.rank = out.rank}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {NULL};
        int constant, layer, r;
        for (int d = 0; d < out.rank; d++)
                weight.shape.dim[d] = 1;
        weight.out = weight.shape;
        if ((r = onnx_ones(o, 1, c, &tensors[0])) ||
                (r = onnx_add_layer(o, &weight, tensors, v->node, &constant)))
                return r;
        struct mfl_layer join = {.op = op, .input = v->layer, .input2 = constant, .out = out};
        if ((r = onnx_add_layer(o, &join, NULL, v->node, &layer)) ||
                (r = onnx_view(o, v, &v->shape, NULL, ret_view)))
                return r;
        (*ret_view)->layer = layer;
        (*ret_view)->samples = NULL;
        return 0;
}

static bool is_affine(const struct onnx_value *v, double *ret_scale, double *ret_offset)
{
        int last = ONNX_SAMPLES - 1;
        double a = (at(v, last) - at(v, 0)) / (sample_at(last) - sample_at(0)),
               b = at(v, 0) - a * sample_at(0);
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!(fabs(at(v, i) - (a * sample_at(i) + b)) <= 1e-9 * (1 + fabs(at(v, i)))))
                        return false;
        *ret_scale = a;
        *ret_offset = fabs(b) <= 1e-9 * (1 + fabs(a)) ? 0 : b;
        return true;
}

bool onnx_linear(const struct onnx_value *v, double *ret_scale)
{
        double scale, offset;
        if (!is_affine(v, &scale, &offset) || offset != 0)
                return false;
        *ret_scale = scale;
        return true;
}

static int make_affine(
        struct onnx *o, struct onnx_value *v, double scale, double offset, struct onnx_value **ret_view)
{
        struct onnx_value *view;
        int r = onnx_view(o, v, &v->shape, NULL, &view);
        if (!r)
                view->samples = NULL;
        if (!r && fabs(scale - 1) > 1e-12)
                r = add_constant(o, view, MFL_OP_MULTIPLY, (float)scale, &view);
        if (!r && offset != 0)
                r = add_constant(o, view, MFL_OP_ADD, (float)offset, &view);
        if (!r)
                *ret_view = view;
        return r;
}

/* The constants of an exporter are floats, hence the tolerance; GELU's two forms differ by 5e-4. */
static bool is_function(const struct onnx_value *v, enum mfl_op op, bool approximate)
{
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double want = apply(op, approximate, sample_at(i));
                if (!(fabs(at(v, i) - want) <= 2e-6 * (1 + fabs(want))))
                        return false;
        }
        return true;
}

static int join_views(
        struct onnx *o, struct onnx_value *a, struct onnx_value *b, struct onnx_value **ret_view);

/* No function of the table as a whole: the last step by itself. */
static int make_step(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        const char *op = onnx_node(o)->op_type;
        struct onnx_value *a = onnx_input(o, 0), *b = onnx_input(o, 1);
        double c;
        bool known = !is_among(unaries, op) || !strcmp(op, "Relu") || !strcmp(op, "Tanh") ||
                     !strcmp(op, "Sigmoid");
        if (is_among(binaries, op) && a && b && !a->tensor && !b->tensor)
                return join_views(o, a, b, ret_view);
        struct onnx_value *x = a && !a->tensor ? a : b, *view;
        if (!known || !x || !x->samples)
                return onnx_fail(o,
                        "is not supported as a function of one value; supported are Relu, Clip(0, 6), Tanh, "
                        "Sigmoid, SiLU, GELU, and sums and products with constants");
        int r = onnx_resolve(o, x, &view);
        if (r)
                return r;
        if (is_among(unaries, op))
                return add_unary(o, view,
                        op[0] == 'R'   ? MFL_OP_RELU
                        : op[0] == 'T' ? MFL_OP_TANH
                                       : MFL_OP_SIGMOID,
                        false, ret_view);
        if (!onnx_scalar(x == a ? b : a, &c) || !strcmp(op, "Pow") || (op[0] == 'D' && x == b))
                return onnx_fail(o, "this combination of elementwise operators is not supported");
        bool minus = op[0] == 'S' && x == b;
        double scale = op[0] == 'M' ? c : op[0] == 'D' ? 1 / c : minus ? -1 : 1;
        double offset = op[0] == 'A' || minus ? c : op[0] == 'S' ? -c : 0;
        return make_affine(o, view, scale, offset, ret_view);
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
        double scale, offset;
        int r = cut_out(o, v);
        if (r)
                return r;
        if (is_affine(v, &scale, &offset))
                return make_affine(o, v, scale, offset, ret_view);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(functions); i++)
                if (is_function(v, functions[i].op, functions[i].approximate))
                        return add_unary(o, v, functions[i].op, functions[i].approximate, ret_view);
        return make_step(o, v, ret_view);
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
        if (op[0] == 'S' && ((r = add_constant(o, vb, MFL_OP_MULTIPLY, -1, &vb))))
                return r;
        if ((r = onnx_layer_of(o, va, &sa, &la)) || (r = onnx_layer_of(o, vb, &sb, &lb)))
                return r;
        return join(o, op[0] == 'M' ? MFL_OP_MULTIPLY : MFL_OP_ADD, la, lb, &sa, &sb, &out, ret_view);
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
        bool same_shape =
                va->shape.rank == vb->shape.rank &&
                !memcmp(va->shape.dim, vb->shape.dim, (size_t)va->shape.rank * sizeof va->shape.dim[0]);
        if (!same_shape || !onnx_same_view(va, vb))
                return (r = join_views(o, va, vb, &v)) ? r : onnx_output(o, 0, v);
        if ((r = new_function(o, va, &f, &v)))
                return r;
        char code = !strcmp(onnx_node(o)->op_type, "Pow") ? '^' : onnx_node(o)->op_type[0];
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = binary(code, at(va, i), at(vb, i));
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
        if (!constant->tensor->f || !strcmp(op, "Pow") || (turned && constant_first))
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
        if (is_among(unaries, onnx_node(o)->op_type))
                return a ? one_variable(o, a) : onnx_fail(o, "input 0 is missing");
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
