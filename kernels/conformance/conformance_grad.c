/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's gradients against central differences, in double and in float: for the samples, and for each tensor of params
 * alone. The table's operators all have a case, or the run fails.
 *
 * For a direction v of -1s and 1s over a tensor, e(h) = (f(p + h v) - f(p - h v) - slope along it) / 2h,
 * where f is sum y dy, summed in double. For smooth f, e is the third derivative's h^2 and higher orders; (4
 * e(h / 2) - e(h)) / 3 leaves only h^4 (Richardson 1911).
 *
 * Where a kink (ReLU, max, a step) lies behind parameters, no points keep away from it. So that is computed only in double
 * (kernels/double.h), with an h so small that a kink lies between two points by a rare accident only, which the cases' seeds avoid.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "common/model/unary.h"
#include "kernels/conformance/conformance.h"
#include "kernels/double.h"

struct gradient {
        const struct mfl_backend_ops *ops;
        const struct mfl_graph *graph;
        struct mfl_net *net;
        bool inference, in_double;
        struct mfl_rng_key key;
        size_t in, out;
        float *x, *params, *dy, *y, *dx, *dparams;
        double size; /* length of the vector of y dy: the unit for the rounding of y */
};

/* One tensor: x, or a part of params. */
struct tensor {
        float **whole;
        size_t at, n;
        const float *grad;
};

static double objective(struct gradient *g)
{
        struct mfl_error err;
        double sum = 0;
        g->size = 0;
        mfl_conf_must(mfl_backend_set(g->ops, g->net, g->graph, 0, g->params, &err), &err);
        mfl_conf_must(g->ops->forward(g->net, g->x, g->inference ? NULL : &g->key, g->y, &err), &err);
        for (size_t i = 0; i < g->out; i++) {
                double v = (double)g->y[i] * g->dy[i];
                sum += v;
                g->size += v * v;
        }
        g->size = sqrt(g->size);
        return g->in_double ? mfl_double_dot(g->net, g->dy) : sum;
}

/* Puts p + side v in place of the tensor; `base` has p. */
static void move(const struct tensor *t, const float *base, const float *way, float side)
{
        for (size_t i = 0; i < t->n; i++)
                (*t->whole)[t->at + i] = base[i] + (way[i] < 0 ? -side : side);
}

/* e(h) from the head of this file. The slope is that between the points as they are after rounding. */
static double error_at(
        struct gradient *g, const struct tensor *t, const float *base, const float *way, float h)
{
        double slope = 0;
        move(t, base, way, h);
        for (size_t i = 0; i < t->n; i++)
                slope += (double)t->grad[i] * (*t->whole)[t->at + i];
        double change = objective(g);
        move(t, base, way, -h);
        for (size_t i = 0; i < t->n; i++)
                slope -= (double)t->grad[i] * (*t->whole)[t->at + i];
        change -= objective(g);
        return (change - slope) / (2 * (double)h);
}

static double length_of(const float *v, size_t n)
{
        double sum = 0;
        for (size_t i = 0; i < n; i++)
                sum += (double)v[i] * v[i];
        return sqrt(sum);
}

/* The derivative's error along one direction, divided by the allowed error. Allowed are 4 units of y dy over
 * h for rounding, more behind several layers, since each of them rounds; and a 4000th of the gradient for
 * curvature, which the fourth power leaves with h of 1/64 and tens of terms in each sum. */
static double tensor_error(struct gradient *g, const struct tensor *t, uint64_t which, float h)
{
        float *base = mfl_conf_alloc(t->n * sizeof *base), *way = mfl_conf_alloc(t->n * sizeof *way);
        memcpy(base, *t->whole + t->at, t->n * sizeof *base);
        mfl_conf_fill(way, t->n, 2, which, false);
        double wide = error_at(g, t, base, way, h), narrow = error_at(g, t, base, way, h / 2);
        double layers = g->graph->n_layers > 2 ? 4 : 1, unit = g->in_double ? 1e-12 : (double)FLT_EPSILON;
        double bound = 4 * layers * unit / (double)h * g->size + length_of(t->grad, t->n) / 4000;
        memcpy(*t->whole + t->at, base, t->n * sizeof *base);
        free(base);
        free(way);
        double error = g->in_double ? fabs(narrow) : fabs(4 * narrow - wide) / 3;
        return error / (bound + 1e-30);
}

static bool all_zero(const float *v, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (v[i] != 0)
                        return false;
        return true;
}

/* Kinks (ReLU, max) must not lie between the two points: samples are distinct multiples of 2 / n. */
static void spread(float *x, size_t n, float range)
{
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, n, 0);
        for (size_t i = 0; i < n; i++)
                x[i] = (((float)i + 0.5f) * 2.0f / (float)n - 1.0f) * range;
        for (size_t i = n; i > 1; i--) {
                uint32_t j = mfl_rng_below(&rng, (uint32_t)i);
                float t = x[i - 1];
                x[i - 1] = x[j];
                x[j] = t;
        }
}

static void gradient_init(struct gradient *g, const struct conf_backend *b, const struct conf_case *kase,
        const struct mfl_graph *graph, int batch)
{
        struct mfl_error err;
        struct mfl_net_options options = {
                .batch = batch, .groups = 1, .threads = 1, .training = true, .input_grad = true};
        const struct mfl_shape *out = &graph->layers[graph->n_layers - 1].out;
        *g = (struct gradient){.ops = b->ops,
                .graph = graph,
                .inference = kase->inference,
                .in_double = b->ops == &mfl_backend_double,
                .key = mfl_rng_derive(5, MFL_RNG_DROPOUT, 0, 1),
                .in = (size_t)mfl_shape_count(&graph->input) * (size_t)batch,
                .out = (size_t)mfl_shape_count(out) * (size_t)batch};
        size_t n = (size_t)graph->n;
        g->x = mfl_conf_alloc(g->in * sizeof(float));
        g->dx = mfl_conf_alloc(g->in * sizeof(float));
        g->y = mfl_conf_alloc(g->out * sizeof(float));
        g->dy = mfl_conf_alloc(g->out * sizeof(float));
        g->params = mfl_conf_alloc(n * sizeof(float));
        g->dparams = mfl_conf_alloc(n * sizeof(float));
        mfl_conf_make_inputs(kase, graph, 1, (size_t)batch, g->x, g->params, g->dy);
        mfl_conf_must(b->ops->net_new(b->device, graph, &options, &g->net, &err), &err);
}

static void gradient_deinit(struct gradient *g)
{
        g->ops->net_free(g->net);
        free(g->x);
        free(g->dx);
        free(g->y);
        free(g->dy);
        free(g->params);
        free(g->dparams);
}

/* The row of padding has no gradient, whatever it changes. */
static double param_error(
        struct gradient *g, const struct mfl_param *p, const struct tensor *t, uint64_t stream, float h)
{
        const struct mfl_layer *layer = &g->graph->layers[p->layer];
        size_t width = (size_t)layer->out_channels, row = (size_t)layer->padding_idx * width;
        if (layer->op != MFL_OP_EMBEDDING || !layer->has_padding)
                return tensor_error(g, t, stream, h);
        if (!all_zero(t->grad + row, width))
                return INFINITY;
        struct tensor below = *t, above = *t;
        below.n = row;
        above.at += row + width;
        above.grad += row + width;
        above.n -= row + width;
        double a = below.n ? tensor_error(g, &below, stream, h) : 0;
        double b = above.n ? tensor_error(g, &above, stream, h) : 0;
        return a > b ? a : b;
}

/* The worst of all tensors. What is not trained must have no gradient, and tokens have none. */
static double worst_error(struct gradient *g, float h, const char **ret_name)
{
        const struct mfl_graph *graph = g->graph;
        struct tensor x = {&g->x, 0, g->in, g->dx};
        double worst = mfl_conf_vocabulary(graph) ? (all_zero(g->dx, g->in) ? 0 : INFINITY)
                                                  : tensor_error(g, &x, 1, h);
        *ret_name = "x";
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *p = &graph->params[i];
                struct tensor t = {&g->params, (size_t)p->offset, (size_t)p->count, g->dparams + p->offset};
                double error = p->trained              ? param_error(g, p, &t, 2 + (uint64_t)i, h)
                               : all_zero(t.grad, t.n) ? 0
                                                       : INFINITY;
                if (error > worst) {
                        worst = error;
                        *ret_name = p->name;
                }
        }
        return worst;
}

static void test_gradient(const struct conf_backend *b, const struct conf_case *kase)
{
        struct mfl_error err;
        struct mfl_graph *graph = mfl_conf_graph_new(kase);
        struct gradient g;
        const char *name;
        /* A batch norm of two vectors keeps only signs. */
        gradient_init(&g, b, kase, graph, kase->batch ? MFL_MIN(kase->batch, 7) : 2);
        float h = 1.0f / 64;
        if (g.in_double) {
                h = 0x1p-18f;
        } else if (graph->n_params == 0) {
                float range = kase->range ? kase->range : 1.0f;
                spread(g.x, g.in, range);
                mfl_conf_move_samples(kase, g.x, g.in);
                range = kase->low < kase->high ? (kase->high - kase->low) / 2 : range;
                h = MFL_MIN(h, 0.25f * range / (float)g.in);
        }
        objective(&g);
        mfl_conf_must(b->ops->backward(g.net, g.dy, g.dx, g.dparams, &err), &err);
        double worst = worst_error(&g, h, &name);
        mfl_conf_report(worst <= 1, "%s: %s: central differences: %.2f of the bound at %s", b->ops->name,
                kase->name, worst, name);
        gradient_deinit(&g);
        mfl_graph_free(graph);
}

static bool has_kink(const struct mfl_layer *layer)
{
        enum mfl_curve curve = mfl_curve_of(layer);
        return curve < MFL_CURVE_COUNT_
                       ? mfl_unaries[curve].kinked
                       : layer->op == MFL_OP_MAXPOOL2D || layer->op == MFL_OP_GLOBAL_MAXPOOL2D || layer->relu;
}

/* Whether it has no kinks. Not tested: detach, which differences pass through and gradients do not; and columns of tokens beside
 * other ones. */
static bool is_smooth(const struct conf_case *kase, bool *ret_tested)
{
        bool kinks = false;
        *ret_tested = true;
        for (int j = 0; j < CONF_LAYERS_MAX; j++) {
                kinks |= has_kink(&kase->layers[j]);
                const struct mfl_layer *l = &kase->layers[j];
                *ret_tested &= l->op != MFL_OP_DETACH && !(l->op == MFL_OP_PADDING_MASK && l->input > 0);
        }
        return !kinks;
}

/* Every operator of the table stands in a case: of those that are compared with the reference, and of those whose gradients are. */
static void test_table(void)
{
        bool compared[MFL_OP_COUNT_] = {false}, differences[MFL_OP_COUNT_] = {[MFL_OP_DETACH] = true};
        const struct conf_case *kase;
        bool tested;
        for (int i = 0; (kase = mfl_conf_case_at(i)); i++) {
                is_smooth(kase, &tested);
                for (int j = 0; j < CONF_LAYERS_MAX; j++) {
                        compared[kase->layers[j].op] = true;
                        differences[kase->layers[j].op] |= tested && !kase->ties;
                }
        }
        for (int op = MFL_OP_INPUT + 1; op < MFL_OP_COUNT_; op++)
                if (mfl_conf_begin("table: %s", mfl_op_name((enum mfl_op)op)))
                        mfl_conf_report(compared[op] && differences[op], "table: %s has a case%s",
                                mfl_op_name((enum mfl_op)op), compared[op] ? " of gradients" : "");
}

void mfl_conf_test_gradients(const char *filter)
{
        struct conf_backend b = mfl_conf_reference(),
                            in_double = {.ops = &mfl_backend_double, .label = "double"};
        const struct conf_case *kase;
        struct mfl_error err;
        if (!*filter)
                test_table();
        mfl_conf_must(in_double.ops->device_open(&in_double.device, &err), &err);
        for (int i = 0; (kase = mfl_conf_case_at(i)); i++) {
                bool tested, smooth = is_smooth(kase, &tested);
                struct mfl_graph *graph = mfl_conf_graph_new(kase);
                bool params = graph->n_params > 0;
                mfl_graph_free(graph);
                if (!strstr(kase->name, filter) || kase->ties || !tested)
                        continue;
                if (mfl_conf_begin("gradients of %s in double", kase->name))
                        test_gradient(&in_double, kase);
                if ((smooth || !params) && mfl_conf_begin("gradients of %s", kase->name))
                        test_gradient(&b, kase);
        }
        in_double.ops->device_close(in_double.device);
        b.ops->device_close(b.device);
}
