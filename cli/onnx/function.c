/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of one variable: their values at sample points, and the layers that they are recognised as. */
#include <math.h>

#include "cli/onnx/internal.h"

#define GRID 129 /* eighths from -8 to 8, a bit beside them */
#define NEAR 10  /* on either side of 0, each half as far: steep functions look like jumps from afar */
_Static_assert(ONNX_SAMPLES == GRID + 2 * NEAR + 4, "samples");

/* No sample is a number that a function treats specially. The outer ones are far away, so that a bound that
 * is not near 0 shows. In ascending order. */
double mfl_onnx_sample_at(int i)
{
        static const double far[] = {21.0371, 311.0371}, beside = 0.0371;
        int from_end = ONNX_SAMPLES - 1 - i, at = i - 2;
        if (i < 2)
                return -far[1 - i];
        if (from_end < 2)
                return far[1 - from_end];
        if (at < GRID / 2)
                return (at - GRID / 2) * 0.125 + beside;
        if (at < GRID / 2 + NEAR)
                return -ldexp(beside, GRID / 2 - at);
        if (at < GRID / 2 + 2 * NEAR)
                return ldexp(beside, at - GRID / 2 - 2 * NEAR);
        return (at - GRID / 2 - 2 * NEAR) * 0.125 + beside;
}

/* A node of one variable with its attributes. */
struct unary {
        const char *op;
        enum mfl_curve curve; /* MFL_CURVE_COUNT_: one of the others below */
        double low, high;     /* Clip; Shrink: lambd and bias */
        double alpha, gamma;  /* a curve's parameter; Selu; HardSigmoid: slope and offset */
};

/* Nodes that are an entry of unary.def for some values of their attributes only, or for none. */
static const char *const others[] = {
        "Clip", "Gelu", "HardSigmoid", "Mish", "Selu", "Shrink", "ThresholdedRelu", NULL};

/* From the steps on, unary.def has functions that are never recognised by their values: their nodes are layers at once
 * (condition.c). */
static bool is_named(int curve)
{
        return curve >= MFL_CURVE_SIGN && curve < MFL_CURVE_COUNT_;
}

/* The function that unary.def writes as this node alone; MFL_CURVE_COUNT_ if there is none. */
static enum mfl_curve curve_of_node(const char *op)
{
        size_t n = strlen(op);
        for (int i = 0; others[i]; i++)
                if (!strcmp(others[i], op))
                        return MFL_CURVE_COUNT_;
        for (int i = 0; i < MFL_CURVE_COUNT_; i++) {
                const char *node = mfl_unaries[i].onnx + 2; /* "x Name", "x Name:alpha=a" */
                if (!is_named(i) && !strncmp(node, op, n) && (node[n] == 0 || node[n] == ':'))
                        return (enum mfl_curve)i;
        }
        return MFL_CURVE_COUNT_;
}

#define ENDLESS 1e38 /* no number of a network is larger */

static bool is_pytorchs(const struct unary *hardsigmoid)
{
        return fabs(hardsigmoid->alpha - 1 / 6.0) < 1e-7 && hardsigmoid->gamma == 0.5;
}

static double unary(const struct unary *u, double x)
{
        const char *op = u->op;
        if (u->curve < MFL_CURVE_COUNT_)
                return mfl_curve_value(u->curve, x, u->alpha, 0);
        if (!strcmp(op, "Clip"))
                return fmin(fmax(x, u->low), u->high);
        if (!strcmp(op, "Selu"))
                return u->gamma * (x > 0 ? x : u->alpha * expm1(x));
        if (!strcmp(op, "Shrink"))
                return x < -u->low ? x + u->high : x > u->low ? x - u->high : 0;
        if (!strcmp(op, "ThresholdedRelu"))
                return x > u->alpha ? x : 0;
        return fmin(fmax(u->alpha * x + u->gamma, 0), 1);
}

bool mfl_onnx_is_unary(const char *op)
{
        for (int i = 0; others[i]; i++)
                if (!strcmp(others[i], op))
                        return true;
        return curve_of_node(op) < MFL_CURVE_COUNT_;
}

double mfl_onnx_value_at(const struct onnx_value *v, int i)
{
        return v->samples ? v->samples[i] : mfl_onnx_sample_at(i);
}

int mfl_onnx_new_function(
        struct onnx *o, const struct onnx_value *of, double **ret_f, struct onnx_value **ret_value)
{
        double *f = mfl_onnx_alloc(o, ONNX_SAMPLES, sizeof *f);
        int r = f ? mfl_onnx_view(o, of, &of->shape, NULL, ret_value) : onnx_memory(o);
        if (r)
                return r;
        (*ret_value)->samples = f;
        (*ret_value)->unmoved = NULL;
        (*ret_value)->function = NULL;
        (*ret_value)->cut = NULL;
        *ret_f = f;
        return 0;
}

static int read_bound(struct onnx *o, const char *attribute, size_t input, double otherwise, double *ret_v)
{
        const Onnx__AttributeProto *a = mfl_onnx_attribute(o, attribute);
        *ret_v = a && a->has_f ? (double)a->f : otherwise;
        if (mfl_onnx_input(o, input) && !mfl_onnx_scalar(mfl_onnx_input(o, input), ret_v))
                return mfl_onnx_fail(o, "a bound is not a constant");
        return 0;
}

/* An attribute that must be a number. */
static int read_number(struct onnx *o, const char *name, float otherwise, double *ret_v)
{
        *ret_v = (double)mfl_onnx_float(o, name, otherwise);
        return isfinite(*ret_v) ? 0 : mfl_onnx_fail(o, "%s is %g; expected a finite number", name, *ret_v);
}

/* Defaults as in https://onnx.ai/onnx/operators; those of entries of unary.def are the same as there. */
static int read_unary(struct onnx *o, struct unary *ret_unary)
{
        struct unary u = {.op = mfl_onnx_node(o)->op_type, .gamma = 1};
        int r = 0;
        u.curve = curve_of_node(u.op);
        if (u.curve < MFL_CURVE_COUNT_) {
                const struct mfl_unary *f = &mfl_unaries[u.curve];
                if (f->n_params) /* all have the attribute alpha */
                        r = read_number(o, "alpha", f->params[0].otherwise, &u.alpha);
        } else if (!strcmp(u.op, "Clip")) {
                r = read_bound(o, "min", 1, -INFINITY, &u.low);
                if (!r)
                        r = read_bound(o, "max", 2, INFINITY, &u.high);
                if (!r && !(u.low < u.high))
                        r = mfl_onnx_fail(o, "has the bounds %g and %g; expected a lower and a higher one",
                                u.low, u.high);
        } else if (!strcmp(u.op, "Selu") || !strcmp(u.op, "HardSigmoid")) {
                bool selu = u.op[0] == 'S';
                r = read_number(o, "alpha", selu ? 1.67326319217681884765625f : 0.2f, &u.alpha);
                if (!r)
                        r = read_number(o, selu ? "gamma" : "beta", selu ? 1.05070102214813232421875f : 0.5f,
                                &u.gamma);
        } else if (!strcmp(u.op, "Gelu")) {
                u.curve = mfl_onnx_string_is(o, "approximate", "none", "tanh") ? MFL_CURVE_GELU_TANH
                                                                               : MFL_CURVE_GELU;
        } else if (!strcmp(u.op, "Mish")) {
                u.curve = MFL_CURVE_MISH;
        } else if (!strcmp(u.op, "Shrink")) {
                r = read_number(o, "lambd", 0.5f, &u.low);
                if (!r)
                        r = read_number(o, "bias", 0, &u.high);
        } else {
                r = read_number(o, "alpha", 1, &u.alpha);
        }
        if (!r)
                *ret_unary = u;
        return r;
}

/* A HardSigmoid of other numbers than PyTorch's, of an identity: a line between the bounds 0 and 1. */
static int by_bounds(
        struct onnx *o, const struct unary *u, const struct onnx_value *of, double *f, struct onnx_value *v)
{
        struct onnx_value *line, plain = *of;
        int r = mfl_onnx_make_affine(o, &plain, u->alpha, u->gamma, &line);
        if (r)
                return r;
        v->layer = line->layer;
        v->map = line->map;
        v->parent = line->parent;
        v->step = line->step;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = fmin(fmax(mfl_onnx_sample_at(i), 0), 1);
        return 0;
}

/* The layer of a node whose samples do not tell what it is: one that jumps, or has bounds that may lie beyond all
 * samples. false: they do tell. */
static bool find_named(const struct unary *u, struct mfl_layer *ret_f)
{
        float a = (float)u->low, b = (float)u->high;
        if (!strcmp(u->op, "Shrink") && u->low > 0 && (u->high == 0 || u->high == u->low))
                *ret_f = (struct mfl_layer){
                        .op = u->high == 0 ? MFL_OP_HARDSHRINK : MFL_OP_SOFTSHRINK, .alpha = a};
        else if (u->curve < MFL_CURVE_COUNT_ && mfl_unaries[u->curve].n_params == 1 && u->alpha > 0 &&
                 u->alpha <= MFL_GRAPH_ALPHA_MAX)
                *ret_f = (struct mfl_layer){.op = mfl_unaries[u->curve].op, .alpha = (float)u->alpha};
        else if (!strcmp(u->op, "ThresholdedRelu"))
                *ret_f = (struct mfl_layer){.op = MFL_OP_THRESHOLD, .alpha = (float)u->alpha};
        else if (!strcmp(u->op, "HardSigmoid") && !is_pytorchs(u))
                *ret_f = (struct mfl_layer){.op = MFL_OP_HARDTANH, .beta = 1};
        else if (!strcmp(u->op, "Clip") && (u->low != 0 || (u->high != 6 && u->high < ENDLESS)) &&
                 (u->low > -ENDLESS || u->high < ENDLESS))
                *ret_f = (struct mfl_layer){.op = MFL_OP_HARDTANH,
                        .alpha = u->low > -ENDLESS ? a : -1e38f,
                        .beta = u->high < ENDLESS ? b : 1e38f};
        else
                return false;
        return true;
}

/* Whether the samples do not show what the node does to their values: they lie on one side of a bound, or where the node
 * is a line. */
static bool is_hidden(const struct unary *u, const struct onnx_value *of, const double *f)
{
        double low = INFINITY, high = -INFINITY, f_low = 0, f_high = 0;
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double y = mfl_onnx_value_at(of, i);
                if (isfinite(y) && y < low) {
                        low = y;
                        f_low = f[i];
                }
                if (isfinite(y) && y > high) {
                        high = y;
                        f_high = f[i];
                }
        }
        if (u->curve == MFL_CURVE_NEG)
                return false;
        if (!(low < high))
                return true;
        if (!strcmp(u->op, "Clip") &&
                ((u->low > -ENDLESS && low >= u->low) || (u->high < ENDLESS && high <= u->high)))
                return true;
        double slope = (f_high - f_low) / (high - low);
        for (int i = 0; i < ONNX_SAMPLES; i++) {
                double y = mfl_onnx_value_at(of, i), line = f_low + slope * (y - low);
                if (isfinite(y) &&
                        !(fabs(f[i] - line) <= 1e-7 * (fabs(f[i]) + fabs(slope) * (high - low) * 1e-3)))
                        return false;
        }
        return true;
}

int mfl_onnx_sample_unary(
        struct onnx *o, const struct onnx_value *of, double *f, struct onnx_value *v, bool *ret_hidden)
{
        struct unary u;
        struct mfl_layer named, *own;
        int r = read_unary(o, &u);
        if (r)
                return r;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                f[i] = unary(&u, mfl_onnx_value_at(of, i));
        *ret_hidden = of->samples && is_hidden(&u, of, f);
        if (of->samples || !find_named(&u, &named))
                return 0;
        if (!(own = mfl_onnx_alloc(o, 1, sizeof *own)))
                return onnx_memory(o);
        *own = named;
        v->function = own;
        return strcmp(u.op, "HardSigmoid") ? 0 : by_bounds(o, &u, of, f, v);
}

int mfl_onnx_fold_unary(struct onnx *o, const struct onnx_value *constant)
{
        struct unary u;
        struct onnx_tensor *t;
        const struct onnx_tensor *x = constant->tensor;
        int r = read_unary(o, &u);
        if (!r)
                r = mfl_onnx_fold_new(o, &constant->shape, x->f, &t);
        for (int64_t i = 0; !r && i < t->count; i++)
                mfl_onnx_fold_put(t, i, unary(&u, mfl_onnx_number(x, i)));
        return r ? r : mfl_onnx_fold_output(o, t);
}

/* ---- layers ---- */

int mfl_onnx_add_unary(struct onnx *o, const struct onnx_value *v, const struct mfl_layer *function,
        struct onnx_value **ret_view)
{
        int layer;
        struct mfl_layer l = *function;
        struct onnx_value *view;
        l.input = v->layer;
        l.out = *mfl_onnx_layer_shape(o, v->layer);
        int r = mfl_onnx_derive(o, &l, v->node, &layer);
        if (!r)
                r = mfl_onnx_view(o, v, &v->shape, NULL, &view);
        if (r)
                return r;
        view->layer = layer;
        view->samples = NULL;
        view->function = NULL;
        view->cut = NULL;
        *ret_view = view;
        return 0;
}

int mfl_onnx_add_scalar(struct onnx *o, const struct onnx_value *v, float c, int *ret_layer)
{
        int rank = mfl_onnx_layer_shape(o, v->layer)->rank;
        struct mfl_layer weight = {.op = MFL_OP_WEIGHT, .frozen = true, .shape = {.rank = rank}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {NULL};
        for (int d = 0; d < rank; d++)
                weight.shape.dim[d] = 1;
        weight.out = weight.shape;
        int r = mfl_onnx_ones(o, 1, c, &tensors[0]);
        return r ? r : mfl_onnx_add_layer(o, &weight, tensors, v->node, ret_layer);
}

int mfl_onnx_add_constant(
        struct onnx *o, const struct onnx_value *v, enum mfl_op op, float c, struct onnx_value **ret_view)
{
        int constant, layer, r = mfl_onnx_add_scalar(o, v, c, &constant);
        if (r)
                return r;
        struct mfl_layer join = {
                .op = op, .input = v->layer, .input2 = constant, .out = *mfl_onnx_layer_shape(o, v->layer)};
        if ((r = mfl_onnx_add_layer(o, &join, NULL, v->node, &layer)) ||
                (r = mfl_onnx_view(o, v, &v->shape, NULL, ret_view)))
                return r;
        (*ret_view)->layer = layer;
        (*ret_view)->samples = NULL;
        return 0;
}

static double largest_of(const struct onnx_value *v)
{
        double largest = 0;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                largest = fmax(largest, fabs(mfl_onnx_value_at(v, i)));
        return largest;
}

static bool is_affine(const struct onnx_value *v, double *ret_scale, double *ret_offset)
{
        int last = ONNX_SAMPLES - 1, middle = ONNX_SAMPLES / 2; /* the sample next to 0 */
        double a = (mfl_onnx_value_at(v, last) - mfl_onnx_value_at(v, 0)) /
                   (mfl_onnx_sample_at(last) - mfl_onnx_sample_at(0)),
               b = mfl_onnx_value_at(v, middle) - a * mfl_onnx_sample_at(middle),
               rounding = 1e-12 * largest_of(v);
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!(fabs(mfl_onnx_value_at(v, i) - (a * mfl_onnx_sample_at(i) + b)) <=
                            1e-9 * fabs(mfl_onnx_value_at(v, i)) + rounding))
                        return false;
        *ret_scale = a;
        *ret_offset = fabs(b) <= 1e-9 * fabs(a) ? 0 : b;
        return true;
}

bool mfl_onnx_linear(const struct onnx_value *v, double *ret_scale)
{
        double scale, offset;
        if (!is_affine(v, &scale, &offset) || offset != 0)
                return false;
        *ret_scale = scale;
        return true;
}

int mfl_onnx_make_affine(
        struct onnx *o, struct onnx_value *v, double scale, double offset, struct onnx_value **ret_view)
{
        static const struct mfl_layer negation = {.op = MFL_OP_NEG};
        struct onnx_value *view;
        int r = mfl_onnx_view(o, v, &v->shape, NULL, &view);
        if (!r)
                view->samples = NULL;
        if (!r && scale == -1)
                r = mfl_onnx_add_unary(o, view, &negation, &view);
        else if (!r && fabs(scale - 1) > 1e-12)
                r = mfl_onnx_add_constant(o, view, MFL_OP_MULTIPLY, (float)scale, &view);
        if (!r && offset != 0)
                r = mfl_onnx_add_constant(o, view, MFL_OP_ADD, (float)offset, &view);
        if (!r)
                *ret_view = view;
        return r;
}

/* Exporters' constants are floats, hence the tolerance; the two forms of GELU differ by 5e-4. A function that is
 * not defined for a sample gives the same there. */
static bool is_near(double v, double want, double tolerance)
{
        return isfinite(want) ? fabs(v - want) <= tolerance : isnan(want) ? isnan(v) : v == want;
}

static bool is_close(double v, double want)
{
        return is_near(v, want, 2e-6 * (1 + fabs(want)));
}

/* The same for number i of those wanted. Where they are small the next ones show how small a difference counts: a bound of 1e-6 is
 * not one of 0. */
static bool is_close_at(const struct onnx_value *v, const double *want, int i)
{
        double near = fabs(want[i]);
        for (int k = i - 1; k <= i + 1; k++)
                if (k >= 0 && k < ONNX_SAMPLES && isfinite(want[k]))
                        near = fmax(near, fmin(fabs(want[k]), 1));
        return is_near(mfl_onnx_value_at(v, i), want[i], 2e-6 * near + 1e-13 * fmin(1, largest_of(v)));
}

/* A bound that no sample reaches is none: beyond all values of a network. */
static float bound_of(double v, double at)
{
        return is_close(v, at) ? (at < 0 ? -1e38f : 1e38f) : (float)v;
}

/* Whether two samples lie between the bounds: a clamp of 1.02 x between 0.3 and 0.31 has none there, and looks like one of x. */
static bool is_shown(double low, double high)
{
        int inside = 0;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                inside += mfl_onnx_sample_at(i) > low && mfl_onnx_sample_at(i) < high;
        return inside >= 2;
}

/* Gets the parameters, and the scale of functions that go on to the right as scale * x, from the samples. */
static bool fit(const struct onnx_value *v, struct mfl_layer *f, double *ret_scale)
{
        int last = ONNX_SAMPLES - 1;
        double low = mfl_onnx_value_at(v, 0), high = mfl_onnx_value_at(v, last);
        double left = mfl_onnx_sample_at(0), right = mfl_onnx_sample_at(last), alpha = 1, scale = 1;
        switch (f->op) {
        case MFL_OP_LEAKY_RELU:
        case MFL_OP_ELU:
                scale = high / right;
                scale = fabs(scale - 1) < 1e-6 ? 1 : scale;
                alpha = f->op == MFL_OP_ELU ? -low / scale : low / left / scale;
                break;
        case MFL_OP_CELU:
                alpha = -low;
                break;
        case MFL_OP_SOFTSHRINK:
                alpha = right - high;
                break;
        case MFL_OP_HARDTANH: /* one sample at a bound may be that of a smooth step */
                f->alpha = bound_of(low, left);
                f->beta = bound_of(high, right);
                if ((f->alpha > -1e37f && mfl_onnx_value_at(v, 1) != low) ||
                        (f->beta < 1e37f && mfl_onnx_value_at(v, last - 1) != high))
                        return false;
                *ret_scale = 1;
                return is_shown((double)f->alpha, (double)f->beta);
        case MFL_OP_POW:
                alpha = log(high / mfl_onnx_value_at(v, last - 1)) /
                        log(right / mfl_onnx_sample_at(last - 1));
                f->alpha = (float)(fabs(alpha - round(alpha)) < 1e-9 ? round(alpha) : alpha);
                *ret_scale = 1;
                return isfinite(alpha) && fabs(alpha) <= MFL_GRAPH_ALPHA_MAX;
        default: /* functions that jump: their node says where */
                return false;
        }
        f->alpha = (float)alpha;
        *ret_scale = scale;
        return scale > 0 && alpha > 0 && alpha <= MFL_GRAPH_ALPHA_MAX;
}

/* Whether v = scale * f. */
static bool is_function(
        const struct onnx_value *v, enum mfl_curve curve, struct mfl_layer *ret_f, double *ret_scale)
{
        struct mfl_layer f = {.op = mfl_unaries[curve].op, .approximate = mfl_unaries[curve].approximate};
        double scale = 1, want[ONNX_SAMPLES];
        if (mfl_unaries[curve].n_params && !fit(v, &f, &scale))
                return false;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                want[i] = scale *
                          mfl_curve_value(curve, mfl_onnx_sample_at(i), (double)f.alpha, (double)f.beta);
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!is_close_at(v, want, i))
                        return false;
        *ret_f = f;
        *ret_scale = scale;
        return true;
}

/* Those without parameters first: a function with one may be the same for some value of it. */
static bool find_function(const struct onnx_value *v, struct mfl_layer *ret_f, double *ret_scale)
{
        for (int params = 0; params <= MFL_UNARY_PARAMS_MAX; params++)
                for (int i = 0; i < MFL_CURVE_COUNT_; i++)
                        if (mfl_unaries[i].n_params == params && !is_named(i) &&
                                is_function(v, (enum mfl_curve)i, ret_f, ret_scale))
                                return true;
        return false;
}

/* Clearly between two bounds. A smooth step, such as tanh(20 x), comes as near to its bounds as to no number between them. */
static bool is_between(double v, double low, double high)
{
        return v - low > 1e-6 * (high - low) && high - v > 1e-6 * (high - low);
}

/* Whether v is a x + b between two bounds, with three samples in between: a steeper one is made by the layers of its nodes, since
 * samples do not tell what it is. So any Hardtanh is a hardsigmoid with other scales. */
static bool is_clamp(const struct onnx_value *v, double *ret_a, double *ret_b)
{
        double first = mfl_onnx_value_at(v, 0), last = mfl_onnx_value_at(v, ONNX_SAMPLES - 1), a = 0, b = 0;
        double low = fmin(first, last), high = fmax(first, last);
        int inside = 0;
        if (!isfinite(low) || !isfinite(high))
                return false;
        for (int i = 1; i + 1 < ONNX_SAMPLES; i++) {
                double y = mfl_onnx_value_at(v, i), next = mfl_onnx_value_at(v, i + 1),
                       width = mfl_onnx_sample_at(i + 1) - mfl_onnx_sample_at(i);
                inside += is_between(y, low, high);
                if (is_between(y, low, high) && is_between(next, low, high) && (a == 0 || width > 0.1)) {
                        a = (next - y) / width;
                        b = y - a * mfl_onnx_sample_at(i);
                }
        }
        if (inside < 3 || a == 0 || mfl_onnx_value_at(v, 1) != first ||
                mfl_onnx_value_at(v, ONNX_SAMPLES - 2) != last)
                return false;
        /* The line reaches an end, as that of relu(x - 1) does: it goes on beyond the samples, and has no bound there. */
        if (is_near(first, a * mfl_onnx_sample_at(0) + b, 1e-3 * (high - low)) ||
                is_near(last, a * mfl_onnx_sample_at(ONNX_SAMPLES - 1) + b, 1e-3 * (high - low)))
                return false;
        for (int i = 0; i < ONNX_SAMPLES; i++)
                if (!is_near(mfl_onnx_value_at(v, i), fmin(fmax(a * mfl_onnx_sample_at(i) + b, low), high),
                            2e-6 * (high - low)))
                        return false;
        *ret_a = a;
        *ret_b = b;
        return true;
}

bool mfl_onnx_joins_steps(const struct onnx_value *v)
{
        struct mfl_layer f;
        double scale, offset;
        return !v->function &&
               (is_affine(v, &scale, &offset) || (find_function(v, &f, &scale) && scale != 1));
}

/* v's function as one layer, or as one layer between changes of scale. *ret_view is not set if there is no
 * such layer. */
int mfl_onnx_make_known(struct onnx *o, struct onnx_value *v, struct onnx_value **ret_view)
{
        static const struct mfl_layer hardsigmoid = {.op = MFL_OP_HARDSIGMOID};
        double scale, offset, low = mfl_onnx_value_at(v, 0),
                              range = mfl_onnx_value_at(v, ONNX_SAMPLES - 1) - low;
        struct onnx_value *view;
        struct mfl_layer f;
        int r;
        if (v->function)
                return mfl_onnx_add_unary(o, v, v->function, ret_view);
        if (is_affine(v, &scale, &offset))
                return mfl_onnx_make_affine(o, v, scale, offset, ret_view);
        if (find_function(v, &f, &scale)) {
                r = mfl_onnx_add_unary(o, v, &f, &view);
                return r ? r : mfl_onnx_make_affine(o, view, scale, 0, ret_view);
        }
        if (!is_clamp(v, &scale, &offset))
                return 0;
        r = mfl_onnx_make_affine(o, v, 6 * scale / range, 6 * (offset - low) / range - 3, &view);
        if (!r)
                r = mfl_onnx_add_unary(o, view, &hardsigmoid, &view);
        return r ? r : mfl_onnx_make_affine(o, view, range, low, ret_view);
}

int mfl_onnx_make_unary(struct onnx *o, struct onnx_value *of, struct onnx_value **ret_view)
{
        struct onnx_value *v, *made = NULL;
        double *f;
        bool hidden;
        int r = mfl_onnx_new_function(o, of, &f, &v);
        if (!r)
                r = mfl_onnx_sample_unary(o, of, f, v, &hidden);
        if (!r)
                r = mfl_onnx_make_known(o, v, &made);
        if (!r && !made)
                r = mfl_onnx_fail(o, ONNX_NOT_KNOWN);
        if (!r)
                *ret_view = made;
        return r;
}

int mfl_onnx_make_power(
        struct onnx *o, struct onnx_value *of, double exponent, double scale, struct onnx_value **ret_view)
{
        struct onnx_value *v, *made = NULL;
        double *f;
        int r = mfl_onnx_new_function(o, of, &f, &v);
        for (int i = 0; !r && i < ONNX_SAMPLES; i++)
                f[i] = pow(mfl_onnx_sample_at(i), exponent);
        if (!r)
                r = mfl_onnx_make_known(o, v, &made);
        if (!r && !made)
                r = mfl_onnx_fail(o, "of a power above %d is not supported", MFL_GRAPH_ALPHA_MAX);
        return r ? r : mfl_onnx_make_affine(o, made, scale, 0, ret_view);
}
