/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluates nodes whose inputs are all constants: the arithmetic of shapes, masks and weights. */
#include <math.h>

#include "cli/onnx/internal.h"

enum arity { UNARY = 1, BINARY = 2, OTHER = 0 };
enum result { SAME, FLOAT_ONLY, TRUTH };

/* By the codes '1' to '9' below. */
static const enum mfl_curve functions[] = {MFL_CURVE_TAN, MFL_CURVE_ASIN, MFL_CURVE_ACOS, MFL_CURVE_ATAN,
        MFL_CURVE_SINH, MFL_CURVE_COSH, MFL_CURVE_ASINH, MFL_CURVE_ACOSH, MFL_CURVE_ATANH};

static double fold_unary(char code, double x)
{
        switch (code) {
        case 's':
                return sqrt(x);
        case 'n':
                return -x;
        case 'f':
                return floor(x);
        case 'c':
                return ceil(x);
        case 'e':
                return exp(x);
        case 'l':
                return log(x);
        case 'a':
                return fabs(x);
        case 'r':
                return 1 / x;
        case 'o':
                return x == 0;
        case 'S':
                return sin(x);
        case 'C':
                return cos(x);
        case 'g':
                return (x > 0) - (x < 0);
        case 'R':
                return nearbyint(x);
        case 't':
                return tanh(x);
        case 'i':
                return isnan(x);
        default:
                return mfl_curve_value(functions[code - '1'], x, 0, 0);
        }
}

static double fold_binary(char code, double x, double y)
{
        switch (code) {
        case '+':
                return x + y;
        case '-':
                return x - y;
        case '*':
                return x * y;
        case '/':
                return x / y;
        case '^':
                return pow(x, y);
        case '=':
                return x == y;
        case '<':
                return x < y;
        case '>':
                return x > y;
        case 'l':
                return x <= y;
        case 'g':
                return x >= y;
        case '&':
                return x != 0 && y != 0;
        case 'x':
                return (x != 0) != (y != 0);
        case 'M':
                return x > y ? x : y;
        case 'm':
                return x < y ? x : y;
        case '%':
                return x - floor(x / y) * y;
        case 'F':
                return fmod(x, y);
        default:
                return x != 0 || y != 0;
        }
}

/* Whole numbers wrap on overflow, as in other runtimes; division by zero gives 0. A modulo has the sign of
 * the divisor. */
static int64_t fold_whole(char code, int64_t x, int64_t y)
{
        switch (code) {
        case '+':
                return (int64_t)((uint64_t)x + (uint64_t)y);
        case '-':
                return (int64_t)((uint64_t)x - (uint64_t)y);
        case '*':
                return (int64_t)((uint64_t)x * (uint64_t)y);
        case '/':
                return y == 0 || y == -1 ? (y ? (int64_t)(0 - (uint64_t)x) : 0) : x / y;
        case 'F':
                return y == 0 || y == -1 ? 0 : x % y;
        case '%': {
                int64_t m = y == 0 || y == -1 ? 0 : x % y;
                return m && (m < 0) != (y < 0) ? m + y : m;
        }
        case '=':
                return x == y;
        case '<':
                return x < y;
        case '>':
                return x > y;
        case 'l':
                return x <= y;
        case 'g':
                return x >= y;
        default:
                return (int64_t)fold_binary(code, (double)x, (double)y);
        }
}

static const struct {
        const char *op;
        enum arity arity;
        char code;
        enum result result;
} folds[] = {{"Sqrt", UNARY, 's', FLOAT_ONLY}, {"Neg", UNARY, 'n', SAME}, {"Floor", UNARY, 'f', SAME},
        {"Ceil", UNARY, 'c', SAME}, {"Exp", UNARY, 'e', FLOAT_ONLY}, {"Log", UNARY, 'l', FLOAT_ONLY},
        {"Abs", UNARY, 'a', SAME}, {"Reciprocal", UNARY, 'r', FLOAT_ONLY}, {"Not", UNARY, 'o', TRUTH},
        {"IsNaN", UNARY, 'i', TRUTH}, {"Add", BINARY, '+', SAME}, {"Sub", BINARY, '-', SAME},
        {"Mul", BINARY, '*', SAME}, {"Div", BINARY, '/', SAME}, {"Mod", BINARY, '%', SAME},
        {"Pow", BINARY, '^', SAME}, {"Equal", BINARY, '=', TRUTH}, {"Less", BINARY, '<', TRUTH},
        {"Greater", BINARY, '>', TRUTH}, {"LessOrEqual", BINARY, 'l', TRUTH},
        {"GreaterOrEqual", BINARY, 'g', TRUTH}, {"And", BINARY, '&', TRUTH}, {"Or", BINARY, '|', TRUTH},
        {"Cast", OTHER, 0, SAME}, {"CastLike", OTHER, 0, SAME}, {"Shape", OTHER, 0, SAME},
        {"Size", OTHER, 0, SAME}, {"Concat", OTHER, 0, SAME}, {"ConstantOfShape", OTHER, 0, SAME},
        {"Range", OTHER, 0, SAME}, {"Where", OTHER, 0, SAME}, {"Constant", OTHER, 0, SAME},
        {"Trilu", OTHER, 0, SAME}, {"Sin", UNARY, 'S', FLOAT_ONLY}, {"Cos", UNARY, 'C', FLOAT_ONLY},
        {"Sign", UNARY, 'g', SAME}, {"Round", UNARY, 'R', SAME}, {"Tanh", UNARY, 't', FLOAT_ONLY},
        {"Max", BINARY, 'M', SAME}, {"Min", BINARY, 'm', SAME}, {"Xor", BINARY, 'x', TRUTH},
        {"CumSum", OTHER, 0, SAME}, {"GatherND", OTHER, 0, SAME}, {"GatherElements", OTHER, 0, SAME},
        {"ScatterND", OTHER, 0, SAME}, {"ReduceSum", OTHER, 0, SAME}, {"ReduceMean", OTHER, 0, SAME},
        {"ReduceMax", OTHER, 0, SAME}, {"ReduceMin", OTHER, 0, SAME}, {"ReduceProd", OTHER, 0, SAME},
        {"NonZero", OTHER, 0, SAME}, {"Pad", OTHER, 0, SAME}, {"Tan", UNARY, '1', FLOAT_ONLY},
        {"Asin", UNARY, '2', FLOAT_ONLY}, {"Acos", UNARY, '3', FLOAT_ONLY}, {"Atan", UNARY, '4', FLOAT_ONLY},
        {"Sinh", UNARY, '5', FLOAT_ONLY}, {"Cosh", UNARY, '6', FLOAT_ONLY}, {"Asinh", UNARY, '7', FLOAT_ONLY},
        {"Acosh", UNARY, '8', FLOAT_ONLY}, {"Atanh", UNARY, '9', FLOAT_ONLY}};

static int fold_of(const struct onnx *o)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(folds); i++)
                if (!strcmp(folds[i].op, mfl_onnx_node(o)->op_type))
                        return (int)i;
        return -1;
}

bool mfl_onnx_is_fold(const struct onnx *o)
{
        const Onnx__NodeProto *node = mfl_onnx_node(o);
        if (!strcmp(node->op_type, "Shape") || !strcmp(node->op_type, "Size"))
                return true;
        if (!strcmp(node->op_type, "Pad") && mfl_onnx_pads_nothing(o))
                return false; /* stays what it is, also a parameter */
        /* Only the type of CastLike's second input counts. */
        size_t n = strcmp(node->op_type, "CastLike") ? node->n_input : MFL_MIN(node->n_input, (size_t)1);
        for (size_t i = 0; i < n; i++) {
                const struct onnx_value *v = mfl_onnx_input(o, i);
                if (v && !v->tensor)
                        return false;
        }
        return fold_of(o) >= 0;
}

int mfl_onnx_fold_new(
        struct onnx *o, const struct onnx_shape *shape, bool is_float, struct onnx_tensor **ret_tensor)
{
        struct onnx_tensor *t = mfl_onnx_alloc(o, 1, sizeof *t);
        int64_t n = mfl_onnx_count(shape);
        void *data = t ? mfl_onnx_alloc(o, (size_t)n + 1, is_float ? sizeof(float) : sizeof(int64_t)) : NULL;
        if (!data)
                return onnx_memory(o);
        *t = (struct onnx_tensor){
                .shape = *shape, .count = n, .f = is_float ? data : NULL, .i = is_float ? NULL : data};
        *ret_tensor = t;
        return 0;
}

void mfl_onnx_fold_put(struct onnx_tensor *t, int64_t i, double v)
{
        if (t->f)
                ((float *)(uintptr_t)t->f)[i] = (float)v;
        else
                ((int64_t *)(uintptr_t)t->i)[i] = isnan(v)       ? 0
                                                  : v >= 9.2e18  ? INT64_MAX
                                                  : v <= -9.2e18 ? INT64_MIN
                                                                 : (int64_t)v;
}

static void put_whole(struct onnx_tensor *t, int64_t i, int64_t v)
{
        ((int64_t *)(uintptr_t)t->i)[i] = v;
}

int mfl_onnx_fold_output(struct onnx *o, struct onnx_tensor *t)
{
        struct onnx_value *v;
        int r = mfl_onnx_new_value(o, &t->shape, &v);
        if (r)
                return r;
        v->tensor = t;
        return mfl_onnx_output(o, 0, v);
}

static int need(struct onnx *o, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (!mfl_onnx_input(o, i))
                        return mfl_onnx_fail(o, "input %zu is missing", i);
        return 0;
}

static int fold_elements(struct onnx *o, int which)
{
        bool binary = folds[which].arity == BINARY;
        struct onnx_tensor *t;
        struct onnx_shape shape;
        const char *op = mfl_onnx_node(o)->op_type;
        const bool alone = mfl_onnx_node(o)->n_input == 1 && (!strcmp(op, "Max") || !strcmp(op, "Min"));
        int r = need(o, binary && !alone ? 2 : 1);
        if (!r && alone)
                return mfl_onnx_fold_output(o, (struct onnx_tensor *)(uintptr_t)mfl_onnx_input(o, 0)->tensor);
        if (!r && binary && mfl_onnx_node(o)->n_input != 2)
                r = mfl_onnx_fail(o, "has %zu inputs; two are supported", mfl_onnx_node(o)->n_input);
        if (r)
                return r;
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor,
                                 *b = binary ? mfl_onnx_input(o, 1)->tensor : a;
        if ((r = mfl_onnx_broadcast(o, &a->shape, &b->shape, &shape)))
                return r;
        enum result kind = folds[which].result;
        char code = folds[which].code == '%' && mfl_onnx_int(o, "fmod", 0) ? 'F' : folds[which].code;
        bool is_float = kind == FLOAT_ONLY || (kind == SAME && (a->f || b->f));
        if ((r = mfl_onnx_fold_new(o, &shape, is_float, &t)))
                return r;
        t->is_bool = kind == TRUTH;
        for (int64_t i = 0; i < t->count; i++) {
                int64_t ia = mfl_onnx_broadcast_at(&shape, i, &a->shape),
                        ib = mfl_onnx_broadcast_at(&shape, i, &b->shape);
                if (binary && a->i && b->i)
                        put_whole(t, i, fold_whole(code, a->i[ia], b->i[ib]));
                else if (binary)
                        mfl_onnx_fold_put(
                                t, i, fold_binary(code, mfl_onnx_number(a, ia), mfl_onnx_number(b, ib)));
                else
                        mfl_onnx_fold_put(t, i, fold_unary(code, mfl_onnx_number(a, ia)));
        }
        return mfl_onnx_fold_output(o, t);
}

static int fold_cast(struct onnx *o)
{
        enum onnx_kind kind;
        struct onnx_tensor *t;
        int r = need(o, 1);
        if (!r)
                r = mfl_onnx_cast_kind(o, &kind);
        if (r)
                return r;
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        bool is_float = kind == ONNX_KIND_FLOAT, truth = kind == ONNX_KIND_BOOL;
        if (kind == ONNX_KIND_OTHER)
                return mfl_onnx_fail(
                        o, "the element type %lld is not supported", (long long)mfl_onnx_int(o, "to", 0));
        if (is_float && a->f)
                return mfl_onnx_fold_output(o, (struct onnx_tensor *)(uintptr_t)a);
        if ((r = mfl_onnx_fold_new(o, &a->shape, is_float, &t)))
                return r;
        t->is_bool = truth;
        for (int64_t i = 0; i < a->count; i++) {
                if (!is_float && a->i)
                        put_whole(t, i, truth ? a->i[i] != 0 : a->i[i]);
                else
                        mfl_onnx_fold_put(t, i, truth ? mfl_onnx_number(a, i) != 0 : mfl_onnx_number(a, i));
        }
        return mfl_onnx_fold_output(o, t);
}

static int fold_shape(struct onnx *o, bool size)
{
        struct onnx_tensor *t;
        int r = need(o, 1);
        if (r)
                return r;
        const struct onnx_shape *s = &mfl_onnx_input(o, 0)->shape;
        int64_t start = mfl_onnx_int(o, "start", 0), end = mfl_onnx_int(o, "end", s->rank);
        start = start < 0 ? MFL_MAX(start + s->rank, 0) : MFL_MIN(start, s->rank);
        end = end < 0 ? end + s->rank : MFL_MIN(end, s->rank);
        int64_t n = size ? 1 : MFL_MAX(end - start, 0);
        struct onnx_shape shape = {size ? 0 : 1, {n}};
        if ((r = mfl_onnx_fold_new(o, &shape, false, &t)))
                return r;
        for (int64_t i = 0; i < n; i++)
                put_whole(t, i, size ? mfl_onnx_count(s) : s->dim[start + i]);
        return mfl_onnx_fold_output(o, t);
}

/* If one of the inputs is a parameter, the result's elements are told one by one. */
static int start_ids(struct onnx *o, struct onnx_tensor *t, int64_t **ret_ids)
{
        for (size_t k = 0; k < mfl_onnx_node(o)->n_input; k++) {
                const struct onnx_tensor *a = mfl_onnx_input(o, k)->tensor;
                t->param = t->param || a->param;
                t->generated = t->generated || a->generated;
        }
        if (t->param)
                t->generated = false;
        else if (!t->generated)
                return 0;
        t->ids = *ret_ids = mfl_onnx_alloc(o, (size_t)t->count + 1, sizeof **ret_ids);
        return *ret_ids ? 0 : onnx_memory(o);
}

static int fold_concat(struct onnx *o)
{
        size_t n = mfl_onnx_node(o)->n_input;
        struct onnx_tensor *t;
        int64_t *ids = NULL;
        int r = n ? need(o, n) : mfl_onnx_fail(o, "has no inputs");
        if (r)
                return r;
        const struct onnx_tensor *first = mfl_onnx_input(o, 0)->tensor;
        struct onnx_shape shape = first->shape;
        int64_t axis = mfl_onnx_int(o, "axis", 0), outer = 1, inner = 1, at = 0;
        axis += axis < 0 ? shape.rank : 0;
        if (axis < 0 || axis >= shape.rank)
                return mfl_onnx_fail(o, "axis %lld: the constant has no such dimension", (long long)axis);
        for (size_t k = 1; k < n; k++) {
                const struct onnx_tensor *a = mfl_onnx_input(o, k)->tensor;
                bool fits = a->shape.rank == shape.rank && !a->f == !first->f;
                for (int d = 0; fits && d < shape.rank; d++)
                        fits = d == axis || a->shape.dim[d] == shape.dim[d];
                if (!fits)
                        return mfl_onnx_fail(o, "the constants differ in shape or type");
                shape.dim[axis] += a->shape.dim[axis];
        }
        for (int d = 0; d < shape.rank; d++) {
                outer *= d < axis ? shape.dim[d] : 1;
                inner *= d > axis ? shape.dim[d] : 1;
        }
        if ((r = mfl_onnx_fold_new(o, &shape, first->f, &t)) || (r = start_ids(o, t, &ids)))
                return r;
        for (int64_t out = 0; out < outer; out++) {
                for (size_t k = 0; k < n; k++) {
                        const struct onnx_tensor *a = mfl_onnx_input(o, k)->tensor;
                        int64_t run = a->shape.dim[axis] * inner;
                        for (int64_t i = 0; i < run; i++, at++) {
                                a->f ? mfl_onnx_fold_put(t, at, (double)a->f[out * run + i])
                                     : put_whole(t, at, a->i[out * run + i]);
                                if (ids)
                                        ids[at] = mfl_onnx_element(a, out * run + i);
                        }
                        t->origin = t->origin ? t->origin : a->origin;
                }
        }
        return mfl_onnx_fold_output(o, t);
}

static int fold_constant_of_shape(struct onnx *o)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "value");
        struct onnx_tensor *value = NULL, *t;
        struct onnx_shape shape = {0};
        const int64_t *dims;
        int n, r = mfl_onnx_ints(o, NULL, 0, &dims, &n);
        if (!r && a && a->t)
                r = mfl_onnx_read_tensor(o, a->t, &value);
        if (r)
                return r;
        if (n < 0 || n > ONNX_RANK_MAX || (value && value->count != 1))
                return mfl_onnx_fail(o, "needs a shape and one value");
        int64_t count = 1;
        for (int d = 0; d < n; d++) {
                if (dims[d] < 0 || dims[d] > ONNX_ELEMENTS_MAX || (count *= dims[d]) > ONNX_ELEMENTS_MAX)
                        return mfl_onnx_fail(o, "dimension %d is %lld", d, (long long)dims[d]);
                shape.dim[shape.rank++] = dims[d];
        }
        if ((r = mfl_onnx_fold_new(o, &shape, !value || value->f, &t)))
                return r;
        for (int64_t i = 0; value && i < t->count; i++)
                mfl_onnx_fold_put(t, i, mfl_onnx_number(value, 0));
        return mfl_onnx_fold_output(o, t);
}

static int fold_range(struct onnx *o)
{
        double start, end, step;
        struct onnx_tensor *t;
        if (!mfl_onnx_scalar(mfl_onnx_input(o, 0), &start) || !mfl_onnx_scalar(mfl_onnx_input(o, 1), &end) ||
                !mfl_onnx_scalar(mfl_onnx_input(o, 2), &step))
                return mfl_onnx_fail(o, "needs three constants");
        double n = ceil((end - start) / step);
        if (!(n < (double)ONNX_ELEMENTS_MAX))
                return mfl_onnx_fail(o, "the range is too long");
        struct onnx_shape shape = {1, {n > 0 ? (int64_t)n : 0}};
        int r = mfl_onnx_fold_new(o, &shape, mfl_onnx_input(o, 0)->tensor->f, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, start + (double)i * step);
        return r ? r : mfl_onnx_fold_output(o, t);
}

static int fold_where(struct onnx *o)
{
        struct onnx_shape shape;
        struct onnx_tensor *t;
        int r = need(o, 3);
        if (r)
                return r;
        const struct onnx_tensor *c = mfl_onnx_input(o, 0)->tensor, *a = mfl_onnx_input(o, 1)->tensor,
                                 *b = mfl_onnx_input(o, 2)->tensor;
        if ((r = mfl_onnx_broadcast(o, &a->shape, &b->shape, &shape)) ||
                (r = mfl_onnx_broadcast(o, &shape, &c->shape, &shape)) ||
                (r = mfl_onnx_fold_new(o, &shape, a->f || b->f, &t)))
                return r;
        for (int64_t i = 0; i < t->count; i++) {
                bool first = mfl_onnx_number(c, mfl_onnx_broadcast_at(&shape, i, &c->shape)) != 0;
                const struct onnx_tensor *from = first ? a : b;
                mfl_onnx_fold_put(
                        t, i, mfl_onnx_number(from, mfl_onnx_broadcast_at(&shape, i, &from->shape)));
        }
        return mfl_onnx_fold_output(o, t);
}

static int fold_constant(struct onnx *o)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, "value");
        struct onnx_tensor *t = NULL;
        int r;
        if (a && a->t)
                return (r = mfl_onnx_read_tensor(o, a->t, &t)) ? r : mfl_onnx_fold_output(o, t);
        const Onnx__AttributeProto *vi = mfl_onnx_attribute(o, "value_int"),
                                   *vf = mfl_onnx_attribute(o, "value_float"),
                                   *vis = mfl_onnx_attribute(o, "value_ints"),
                                   *vfs = mfl_onnx_attribute(o, "value_floats");
        if (!vi && !vf && !vis && !vfs)
                return mfl_onnx_fail(o, "this kind of constant is not supported");
        size_t n = vis ? vis->n_ints : vfs ? vfs->n_floats : 1;
        struct onnx_shape shape = {vis || vfs ? 1 : 0, {(int64_t)n}};
        if ((r = mfl_onnx_fold_new(o, &shape, vf || vfs, &t)))
                return r;
        for (size_t i = 0; i < n; i++)
                t->f ? mfl_onnx_fold_put(t, (int64_t)i, (double)(vf ? vf->f : vfs->floats[i]))
                     : put_whole(t, (int64_t)i, vi ? vi->i : vis->ints[i]);
        return mfl_onnx_fold_output(o, t);
}

static int fold_trilu(struct onnx *o)
{
        double k = 0;
        struct onnx_tensor *t;
        int r = need(o, 1);
        if (r)
                return r;
        const struct onnx_tensor *a = mfl_onnx_input(o, 0)->tensor;
        bool upper = mfl_onnx_int(o, "upper", 1) != 0;
        if (a->shape.rank < 2 || (mfl_onnx_input(o, 1) && !mfl_onnx_scalar(mfl_onnx_input(o, 1), &k)))
                return mfl_onnx_fail(o, "needs a matrix and a number");
        if ((r = mfl_onnx_fold_new(o, &a->shape, a->f, &t)))
                return r;
        int64_t rows = a->shape.dim[a->shape.rank - 2], columns = a->shape.dim[a->shape.rank - 1];
        for (int64_t i = 0; i < a->count; i++) {
                double off = (double)(i % columns - i / columns % rows);
                mfl_onnx_fold_put(t, i, (upper ? off >= k : off <= k) ? mfl_onnx_number(a, i) : 0);
        }
        return mfl_onnx_fold_output(o, t);
}

int mfl_onnx_fold(struct onnx *o)
{
        int which = fold_of(o);
        const char *op = folds[which].op;
        if (folds[which].arity != OTHER)
                return fold_elements(o, which);
        if (!strncmp(op, "Cast", 4))
                return fold_cast(o);
        if (!strcmp(op, "Shape") || !strcmp(op, "Size"))
                return fold_shape(o, op[1] == 'i');
        if (!strcmp(op, "Concat"))
                return fold_concat(o);
        if (!strcmp(op, "ConstantOfShape"))
                return fold_constant_of_shape(o);
        if (!strcmp(op, "Range"))
                return fold_range(o);
        if (!strcmp(op, "Where"))
                return fold_where(o);
        if (!strcmp(op, "Trilu"))
                return fold_trilu(o);
        if (!strcmp(op, "Constant"))
                return fold_constant(o);
        if (!strcmp(op, "Pad"))
                return mfl_onnx_fold_pad(o);
        bool scatter = !strcmp(op, "ScatterND");
        int r = need(o, scatter ? 3 : !strncmp(op, "Reduce", 6) || !strcmp(op, "NonZero") ? 1 : 2);
        if (r)
                return r;
        if (!strcmp(op, "NonZero"))
                return mfl_onnx_fold_non_zero(o);
        if (scatter)
                return mfl_onnx_fold_scatter_nd(o);
        if (!strcmp(op, "CumSum"))
                return mfl_onnx_fold_cumsum(o);
        if (!strcmp(op, "GatherND"))
                return mfl_onnx_fold_gather_nd(o);
        return !strcmp(op, "GatherElements") ? mfl_onnx_fold_gather_elements(o) : mfl_onnx_fold_reduce(o);
}
