/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one variable: their values at sample points, and the layers that they are recognised as. */
#include <math.h>

#include "cli/onnx/internal.h"

/* No number that any of the functions treats in a special way; the outer ones are far away, where a bound
 * that is not near 0 shows. In ascending order. */
double onnx_sample_at(int i)
{
        static const double far[] = {21.0371, 311.0371};
        int from_end = ONNX_SAMPLES - 1 - i;
        if (i < 2)
                return -far[1 - i];
        return from_end < 2 ? far[1 - from_end] : (i - ONNX_SAMPLES / 2) * 0.5 + 0.0371;
}

static double gelu_tanh(double x)
{
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* Misra 2019; as layers a product. */
static double mish(double x)
{
        return x * tanh(log1p(exp(x)));
}

static double apply(const struct mfl_layer *f, double x)
{
        double alpha = (double)f->alpha;
        switch (f->op) {
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
        case MFL_OP_LEAKY_RELU:
                return x > 0 ? x : alpha * x;
        case MFL_OP_ELU:
                return x > 0 ? x : alpha * expm1(x);
        case MFL_OP_HARDSIGMOID:
                return fmin(fmax(x + 3, 0), 6) / 6;
        case MFL_OP_HARDSWISH:
                return x * fmin(fmax(x + 3, 0), 6) / 6;
        case MFL_OP_SOFTPLUS:
                return log1p(exp(x));
        default:
                return f->approximate ? gelu_tanh(x) : x * 0.5 * (1 + erf(x * 0.70710678118654752440));
        }
}

/* Those of an alpha get it from the samples. */
static const struct mfl_layer functions[] = {{.op = MFL_OP_RELU}, {.op = MFL_OP_RELU6}, {.op = MFL_OP_TANH},
        {.op = MFL_OP_SIGMOID}, {.op = MFL_OP_SILU}, {.op = MFL_OP_GELU},
        {.op = MFL_OP_GELU, .approximate = true}, {.op = MFL_OP_HARDSIGMOID}, {.op = MFL_OP_HARDSWISH},
        {.op = MFL_OP_SOFTPLUS}, {.op = MFL_OP_LEAKY_RELU}, {.op = MFL_OP_ELU}};

/* What a node of one variable does. */
struct unary {
        const char *op;
        double low, high;    /* Clip */
        double alpha, gamma; /* LeakyRelu, Elu, Selu; HardSigmoid: slope and offset */
        bool approximate;    /* Gelu */
};

static double unary(const struct unary *u, double x)
{
        const char *op = u->op;
        if (!strcmp(op, "Clip"))
                return fmin(fmax(x, u->low), u->high);
        if (!strcmp(op, "Gelu"))
                return apply(&(struct mfl_layer){.op = MFL_OP_GELU, .approximate = u->approximate}, x);
        if (!strcmp(op, "LeakyRelu"))
                return x > 0 ? x : u->alpha * x;
        if (!strcmp(op, "Elu") || !strcmp(op, "Selu"))
                return u->gamma * (x > 0 ? x : u->alpha * expm1(x));
        if (!strcmp(op, "HardSigmoid"))
                return fmin(fmax(u->alpha * x + u->gamma, 0), 1);
        if (!strcmp(op, "HardSwish"))
                return apply(&(struct mfl_layer){.op = MFL_OP_HARDSWISH}, x);
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
        if (!strcmp(op, "Mish"))
                return mish(x);
        return NAN;
}

static const char *const unaries[] = {"Relu", "Tanh", "Sigmoid", "Erf", "Neg", "Exp", "Sqrt", "Reciprocal",
        "Softplus", "Gelu", "Clip", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "HardSwish", "Mish", NULL};

bool onnx_is_unary(const char *op)
{
        for (int i = 0; unaries[i]; i++)
                if (!strcmp(unaries[i], op))
                        return true;
        return false;
}

double onnx_value_at(const struct onnx_value *v, int i)
{
        return v->samples ? v->samples[i] : onnx_sample_at(i);
}

int onnx_new_function(
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

/* An attribute that must be a number. */
static int read_number(struct onnx *o, const char *name, float otherwise, double *ret_v)
{
        *ret_v = (double)onnx_float(o, name, otherwise);
        return isfinite(*ret_v) ? 0 : onnx_fail(o, "%s is %g; a finite number is expected", name, *ret_v);
}

/* Defaults as in https://onnx.ai/onnx/operators */
static int read_unary(struct onnx *o, struct unary *ret_unary)
{
        struct unary u = {.op = onnx_node(o)->op_type, .gamma = 1};
        int r = 0;
        if (!strcmp(u.op, "Clip")) {
                r = read_bound(o, "min", 1, -INFINITY, &u.low);
                if (!r)
                        r = read_bound(o, "max", 2, INFINITY, &u.high);
        } else if (!strcmp(u.op, "LeakyRelu")) {
                r = read_number(o, "alpha", 0.01f, &u.alpha);
        } else if (!strcmp(u.op, "Elu")) {
                r = read_number(o, "alpha", 1.0f, &u.alpha);
        } else if (!strcmp(u.op, "Selu") || !strcmp(u.op, "HardSigmoid")) {
                bool selu = u.op[0] == 'S';
                r = read_number(o, "alpha", selu ? 1.67326319217681884765625f : 0.2f, &u.alpha);
                if (!r)
                        r = read_number(o, selu ? "gamma" : "beta", selu ? 1.05070102214813232421875f : 0.5f,
                                &u.gamma);
        } else if (!strcmp(u.op, "Gelu")) {
                u.approximate = onnx_string_is(o, "approximate", "none", "tanh");
        }
        if (!r)
                *ret_unary = u;
        return r;
}

int onnx_unary(struct onnx *o, struct onnx_value *x)
{
        struct onnx_value *view, *v;
        struct unary u;
        double *f;
        int r = onnx_settle(o, x, &view);
        if (!r)
                r = read_unary(o, &u);
        if (!r)
                r = onnx_new_function(o, view, &f, &v);
        if (r)
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = unary(&u, onnx_value_at(view, i));
        return onnx_output(o, 0, v);
}

/* ---- layers ---- */

static int add_unary(struct onnx *o, const struct onnx_value *v, const struct mfl_layer *function,
        struct onnx_value **ret_view)
{
        int layer;
        struct mfl_layer l = *function;
        struct onnx_value *view;
        l.input = v->layer;
        l.out = *onnx_layer_shape(o, v->layer);
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

int onnx_add_scalar(struct onnx *o, const struct onnx_value *v, float c, int *ret_layer)
{
        int rank = onnx_layer_shape(o, v->layer)->rank;
        struct mfl_layer weight = {.op = MFL_OP_WEIGHT, .frozen = true, .shape = {.rank = rank}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {NULL};
        for (int d = 0; d < rank; d++)
                weight.shape.dim[d] = 1;
        weight.out = weight.shape;
        int r = onnx_ones(o, 1, c, &tensors[0]);
        return r ? r : onnx_add_layer(o, &weight, tensors, v->node, ret_layer);
}

int onnx_add_constant(
        struct onnx *o, const struct onnx_value *v, enum mfl_op op, float c, struct onnx_value **ret_view)
{
        int constant, layer, r = onnx_add_scalar(o, v, c, &constant);
        if (r)
                return r;
        struct mfl_layer join = {
                .op = op, .input = v->layer, .input2 = constant, .out = *onnx_layer_shape(o, v->layer)};
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
        double a = (onnx_value_at(v, last) - onnx_value_at(v, 0)) /
                   (onnx_sample_at(last) - onnx_sample_at(0)),
               b = onnx_value_at(v, 0) - a * onnx_sample_at(0);
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!(fabs(onnx_value_at(v, i) - (a * onnx_sample_at(i) + b)) <=
                            1e-9 * (1 + fabs(onnx_value_at(v, i)))))
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

int onnx_make_affine(
        struct onnx *o, struct onnx_value *v, double scale, double offset, struct onnx_value **ret_view)
{
        struct onnx_value *view;
        int r = onnx_view(o, v, &v->shape, NULL, &view);
        if (!r)
                view->samples = NULL;
        if (!r && fabs(scale - 1) > 1e-12)
                r = onnx_add_constant(o, view, MFL_OP_MULTIPLY, (float)scale, &view);
        if (!r && offset != 0)
                r = onnx_add_constant(o, view, MFL_OP_ADD, (float)offset, &view);
        if (!r)
                *ret_view = view;
        return r;
}

/* The constants of an exporter are floats, hence the tolerance; GELU's two forms differ by 5e-4. */
static bool is_close(double v, double want)
{
        return fabs(v - want) <= 2e-6 * (1 + fabs(want));
}

/* v = scale * f; of functions with an alpha the far ends tell both numbers. */
static bool is_function(const struct onnx_value *v, struct mfl_layer *f, double *ret_scale)
{
        int last = ONNX_SAMPLES - 1;
        double scale = 1, low = onnx_value_at(v, 0), high = onnx_value_at(v, last);
        bool leaky = f->op == MFL_OP_LEAKY_RELU;
        if (leaky || f->op == MFL_OP_ELU) {
                scale = high / onnx_sample_at(last);
                scale = fabs(scale - 1) < 1e-6 ? 1 : scale;
                double alpha = leaky ? low / onnx_sample_at(0) / scale : -low / scale;
                if (!(scale > 0 && alpha > 0 && alpha <= MFL_GRAPH_ALPHA_MAX))
                        return false;
                f->alpha = (float)alpha;
        }
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!is_close(onnx_value_at(v, i), scale * apply(f, onnx_sample_at(i))))
                        return false;
        *ret_scale = scale;
        return true;
}

/* a x + b between two bounds, of which the samples show two points in between: any Hardtanh is a hardsigmoid
 * of other scales. */
static bool is_clamp(const struct onnx_value *v, double *ret_a, double *ret_b)
{
        double low = onnx_value_at(v, 0), high = onnx_value_at(v, ONNX_SAMPLES - 1), a = 0, b = 0;
        for (int i = 1; i + 2 < ONNX_SAMPLES && a == 0; i++) {
                double y = onnx_value_at(v, i), next = onnx_value_at(v, i + 1),
                       width = onnx_sample_at(i + 1) - onnx_sample_at(i);
                if (fmin(low, high) < fmin(y, next) && fmax(y, next) < fmax(low, high))
                        a = (next - y) / width;
                b = y - a * onnx_sample_at(i);
        }
        if (!isfinite(low) || !isfinite(high) || a == 0)
                return false;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!is_close(onnx_value_at(v, i),
                            fmin(fmax(a * onnx_sample_at(i) + b, fmin(low, high)), fmax(low, high))))
                        return false;
        *ret_a = a;
        *ret_b = b;
        return true;
}

static bool is_mish(const struct onnx_value *v)
{
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!is_close(onnx_value_at(v, i), mish(onnx_sample_at(i))))
                        return false;
        return true;
}

static int make_mish(struct onnx *o, const struct onnx_value *v, struct onnx_value **ret_view)
{
        static const struct mfl_layer softplus = {.op = MFL_OP_SOFTPLUS}, hyperbolic = {.op = MFL_OP_TANH};
        struct onnx_value *gate;
        int layer, r = add_unary(o, v, &softplus, &gate);
        if (!r)
                r = add_unary(o, gate, &hyperbolic, &gate);
        if (r)
                return r;
        struct mfl_layer join = {.op = MFL_OP_MULTIPLY,
                .input = v->layer,
                .input2 = gate->layer,
                .out = *onnx_layer_shape(o, v->layer)};
        if ((r = onnx_add_layer(o, &join, NULL, v->node, &layer)))
                return r;
        gate->layer = layer;
        *ret_view = gate;
        return 0;
}

/* One layer, or one between changes of scale; *ret_view is not set where there is none. */
int onnx_make_known(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        static const struct mfl_layer hardsigmoid = {.op = MFL_OP_HARDSIGMOID};
        double scale, offset, low = onnx_value_at(v, 0), range = onnx_value_at(v, ONNX_SAMPLES - 1) - low;
        struct onnx_value *view;
        int r;
        if (is_affine(v, &scale, &offset))
                return onnx_make_affine(o, v, scale, offset, ret_view);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(functions); i++) {
                struct mfl_layer f = functions[i];
                if (!is_function(v, &f, &scale))
                        continue;
                r = add_unary(o, v, &f, &view);
                return r ? r : onnx_make_affine(o, view, scale, 0, ret_view);
        }
        if (is_mish(v))
                return make_mish(o, v, ret_view);
        if (!is_clamp(v, &scale, &offset))
                return 0;
        r = onnx_make_affine(o, v, 6 * scale / range, 6 * (offset - low) / range - 3, &view);
        if (!r)
                r = add_unary(o, view, &hardsigmoid, &view);
        return r ? r : onnx_make_affine(o, view, range, low, ret_view);
}

int onnx_make_unary(struct onnx *o, struct onnx_value *of, struct onnx_value **ret_view)
{
        struct onnx_value *v, *made = NULL;
        struct unary u;
        double *f;
        int r = read_unary(o, &u);
        if (!r)
                r = onnx_new_function(o, of, &f, &v);
        for (int i = 0; !r && i < ONNX_SAMPLES; i++)
                f[i] = unary(&u, onnx_sample_at(i));
        if (!r)
                r = onnx_make_known(o, v, &made);
        if (!r && !made)
                r = onnx_fail(o, ONNX_NOT_KNOWN);
        if (!r)
                *ret_view = made;
        return r;
}
