/* SPDX-License-Identifier: Apache-2.0 */
/* Operators: values and gradients against the reference, groups against single runs, guard zones, repeats;
 * and the reference's gradients against central differences. */
#include "kernels/conformance.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define GUARD 64          /* floats on each side of an output */
#define POISON 0x7fc0dead /* a NaN that no operator makes */
#define GROUPS_MAX 7

/* Everything of one run: G groups of inputs and outputs. Outputs lie between guard zones. */
struct run {
        size_t groups, batch, in, out, n; /* in, out: floats of a batch */
        bool inference;
        float *x, *params, *dy, *y, *dx, *dparams, *after; /* after: the params behind the forward */
        struct mfl_rng_key keys[GROUPS_MAX];
};

static float *guarded_new(size_t n)
{
        uint32_t *v = conf_alloc((n + 2 * GUARD) * sizeof *v);
        for (size_t i = 0; i < n + 2 * GUARD; i++)
                v[i] = POISON;
        return (float *)v + GUARD;
}

static void guarded_free(float *v)
{
        if (v)
                free(v - GUARD);
}

static uint32_t bits_of(float f)
{
        uint32_t u;
        memcpy(&u, &f, sizeof u);
        return u;
}

/* All n floats were written and the zones around them were not. */
static bool guarded_ok(const float *v, size_t n)
{
        for (size_t i = 0; i < GUARD; i++)
                if (bits_of(v[-1 - (ptrdiff_t)i]) != POISON || bits_of(v[n + i]) != POISON)
                        return false;
        for (size_t i = 0; i < n; i++)
                if (bits_of(v[i]) == POISON)
                        return false;
        return true;
}

static void outputs_new(struct run *r)
{
        r->y = guarded_new(r->groups * r->out);
        r->dx = guarded_new(r->groups * r->in);
        r->dparams = guarded_new(r->groups * r->n);
        r->after = guarded_new(r->groups * r->n);
}

static void outputs_free(struct run *r)
{
        guarded_free(r->y);
        guarded_free(r->dx);
        guarded_free(r->dparams);
        guarded_free(r->after);
}

static bool outputs_guarded(const struct run *r)
{
        return guarded_ok(r->y, r->groups * r->out) && guarded_ok(r->dx, r->groups * r->in) &&
               guarded_ok(r->dparams, r->groups * r->n) && guarded_ok(r->after, r->groups * r->n);
}

/* Running variances are positive. */
static void make_variances(const struct mfl_graph *graph, float *params)
{
        for (int i = 0; i < graph->n_layers; i++) {
                if (graph->layers[i].param_var < 0)
                        continue;
                const struct mfl_param *var = &graph->params[graph->layers[i].param_var];
                for (uint64_t k = 0; k < var->count; k++)
                        params[var->offset + k] = 0.5f + fabsf(params[var->offset + k]);
        }
}

static void run_init(struct run *r, const struct mfl_graph *graph, const struct conf_case *kase, int batch,
        enum mfl_precision precision)
{
        *r = (struct run){.groups = GROUPS_MAX, .batch = (size_t)batch, .n = (size_t)graph->n};
        r->in = (size_t)mfl_shape_count(&graph->input) * r->batch;
        r->out = (size_t)graph->classes * r->batch;
        r->x = conf_alloc(r->groups * r->in * sizeof(float));
        r->params = conf_alloc(r->groups * r->n * sizeof(float));
        r->dy = conf_alloc(r->groups * r->out * sizeof(float));
        conf_fill(r->x, r->groups * r->in, 1, 1, kase->ties);
        conf_fill(r->params, r->groups * r->n, 1, 2, false);
        conf_fill(r->dy, r->groups * r->out, 1, 3, false);
        r->inference = kase->inference;
        conf_round(r->x, r->groups * r->in, precision);
        conf_round(r->params, r->groups * r->n, precision);
        conf_round(r->dy, r->groups * r->out, precision);
        for (size_t g = 0; g < r->groups; g++)
                make_variances(graph, r->params + g * r->n);
        for (size_t g = 0; g < r->groups; g++)
                r->keys[g] = mfl_rng_derive(5, MFL_RNG_DROPOUT, g, 1);
        outputs_new(r);
}

static void run_deinit(struct run *r)
{
        free(r->x);
        free(r->params);
        free(r->dy);
        outputs_free(r);
}

/* Runs groups [first, first + groups) of `from` as one network into `to`'s outputs, twice when `again`. */
static void execute(const struct conf_backend *b, const struct mfl_graph *graph, const struct run *from,
        size_t first, struct run *to, bool again)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_net_options options = {.batch = (int)from->batch,
                .groups = (int)to->groups,
                .threads = 1,
                .training = true,
                .precision = b->precision};
        conf_must(b->ops->net_new(b->device, graph, &options, &net, &err), &err);
        for (size_t g = 0; g < to->groups; g++)
                conf_must(b->ops->params_set(net, (int)g, from->params + (first + g) * from->n, &err), &err);
        for (int i = 0; i < 1 + again; i++) {
                const struct mfl_rng_key *keys = from->inference ? NULL : from->keys + first;
                conf_must(b->ops->forward(net, from->x + first * from->in, keys, to->y, &err), &err);
                for (size_t g = 0; i == 0 && g < to->groups; g++)
                        conf_must(b->ops->params_get(net, (int)g, to->after + g * from->n, &err), &err);
                conf_must(
                        b->ops->backward(net, from->dy + first * from->out, to->dx, to->dparams, &err), &err);
        }
        b->ops->net_free(net);
}

/* Largest |a - b| over largest |b|; infinite where one is not finite and the other differs. */
static double distance(const float *a, const float *b, size_t n)
{
        double most = 0, scale = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)a[i] - b[i]);
                if (!isfinite(d))
                        return INFINITY;
                most = fmax(most, d);
                scale = fmax(scale, fabs((double)b[i]));
        }
        return n ? most / scale : 0;
}

static bool is_norm(enum mfl_op op)
{
        return op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM;
}

/* The number of terms in the longest sum of a layer, gradients included. */
static double longest_sum_of(const struct mfl_graph *graph, const struct mfl_layer *l, int batch)
{
        double in = l->input < 0 ? 0 : (double)mfl_shape_count(&graph->layers[l->input].out);
        double area = l->out.rank == 3 ? (double)(l->out.dim[1] * l->out.dim[2]) : 1;
        if (is_norm(l->op))
                return fmax(batch * area, l->norm_groups ? in / l->norm_groups : 0);
        if (l->op == MFL_OP_GLOBAL_AVGPOOL2D)
                return in / (double)l->out.dim[0];
        if (l->op != MFL_OP_CONV2D && l->op != MFL_OP_DENSE)
                return 1;
        const struct mfl_param *w = &graph->params[l->param_weight];
        double window = l->op == MFL_OP_CONV2D ? (double)l->kernel[0] * l->kernel[1] : 1;
        double per_output = (double)w->count / (double)l->out_channels;
        double per_input = (double)l->out_channels * window, per_weight = batch * area;
        return fmax(per_output, fmax(per_input, per_weight));
}

static double longest_sum(const struct mfl_graph *graph, int batch)
{
        double most = 1;
        for (int i = 1; i < graph->n_layers; i++)
                most = fmax(most, longest_sum_of(graph, &graph->layers[i], batch));
        return most;
}

/* Behind a norm a gradient is what remains when its mean and its part along the output are subtracted: less
 * than the terms. */
static double norm_factor(const struct mfl_graph *graph)
{
        int n = 0;
        for (int i = 1; i < graph->n_layers; i++)
                n += is_norm(graph->layers[i].op);
        return n ? 4 : 1;
}

/* What float sums may differ by from the reference's sums in double, relative to the largest element:
 * rounding errors of a sum of K terms grow like sqrt(K) eps; every layer passes on and adds to those before
 * it. Copies are exact, but for what is stored in a smaller format. In a smaller format each layer's operands
 * are rounded once more, which is an error of one unit in each term: of the whole sum's size, whatever K. */
static double bound_of(
        const struct conf_case *kase, const struct mfl_graph *graph, int batch, enum mfl_precision precision)
{
        double sums = 4 * FLT_EPSILON * sqrt(longest_sum(graph, batch)) * (graph->n_layers > 3 ? 4 : 1);
        double rounding = precision == MFL_PRECISION_FP32 ? 0 : 4 * conf_unit(precision) * graph->n_layers;
        return kase->exact ? rounding : (sums + rounding) * norm_factor(graph);
}

/* Layers that decide by comparing, behind others that round. */
static bool decides(const struct mfl_graph *graph)
{
        for (int i = 2; i < graph->n_layers; i++)
                if (graph->layers[i].op == MFL_OP_RELU || graph->layers[i].op == MFL_OP_MAXPOOL2D)
                        return graph->n > 0;
        return false;
}

/* Length of the difference over length of b. */
static double distance_of_lengths(const float *a, const float *b, size_t n)
{
        double difference = 0, length = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = (double)a[i] - b[i];
                difference += d * d;
                length += (double)b[i] * b[i];
        }
        return sqrt(difference / length);
}

static void check_values(const struct conf_backend *b, const struct conf_case *kase,
        const struct mfl_graph *graph, const struct run *base, struct run *seven)
{
        struct conf_backend reference = conf_reference();
        struct run want = *base;
        outputs_new(&want);
        execute(&reference, graph, base, 0, &want, false);
        double (*far)(const float *a, const float *b, size_t n) = distance;
        double bound = bound_of(kase, graph, (int)base->batch, b->precision);
        if (b->precision != MFL_PRECISION_FP32 && decides(graph)) {
                /* Rounding turns the decisions that are within a unit of a tie, a share of about 2 units of
                 * all for each layer that decides; what they let through or stop is then all wrong. */
                far = distance_of_lengths;
                bound = fmax(bound, 2 * sqrt(2 * conf_unit(b->precision) * graph->n_layers));
        }
        double y = far(seven->y, want.y, want.groups * want.out);
        double dx = far(seven->dx, want.dx, want.groups * want.in);
        double dp = far(seven->dparams, want.dparams, want.groups * want.n);
        double after = far(seven->after, want.after, want.groups * want.n);
        conf_report(y <= bound && dx <= bound && dp <= bound && after <= bound,
                "%s: %s, batch %zu: y %.1e dx %.1e dparams %.1e running %.1e, bound %.1e", b->label,
                kase->name, base->batch, y, dx, dp, after, bound);
        outputs_free(&want);
        reference.ops->device_close(reference.device);
}

static bool same(const float *a, const float *b, size_t n)
{
        return !n || !memcmp(a, b, n * sizeof *a);
}

/* Groups [first, first + groups) run as a network of their own give the bits that they gave among seven. */
static bool groups_agree(const struct conf_backend *b, const struct mfl_graph *graph, const struct run *base,
        const struct run *seven, size_t first, size_t groups)
{
        struct run part = *base;
        part.groups = groups;
        outputs_new(&part);
        execute(b, graph, base, first, &part, true);
        bool ok = same(part.y, seven->y + first * base->out, groups * base->out) &&
                  same(part.dx, seven->dx + first * base->in, groups * base->in) &&
                  same(part.dparams, seven->dparams + first * base->n, groups * base->n) &&
                  same(part.after, seven->after + first * base->n, groups * base->n) &&
                  outputs_guarded(&part);
        outputs_free(&part);
        return ok;
}

static void test_case(const struct conf_backend *b, const struct conf_case *kase, int batch)
{
        struct mfl_graph *graph = conf_graph_new(kase);
        struct run base, seven;
        run_init(&base, graph, kase, batch, b->precision);
        seven = base;
        outputs_new(&seven);
        execute(b, graph, &base, 0, &seven, false);
        conf_report(outputs_guarded(&seven), "%s: %s, batch %d: writes all of its outputs and nothing else",
                b->label, kase->name, batch);
        if (strcmp(b->ops->name, "reference"))
                check_values(b, kase, graph, &base, &seven);
        bool ok = groups_agree(b, graph, &base, &seven, 0, 1) &&
                  groups_agree(b, graph, &base, &seven, 4, 1) && groups_agree(b, graph, &base, &seven, 5, 2);
        conf_report(ok, "%s: %s, batch %d: groups of 1 and 2 equal those of 7, repeats equal", b->label,
                kase->name, batch);
        outputs_free(&seven);
        run_deinit(&base);
        mfl_graph_free(graph);
}

void conf_test_operators(const struct conf_backend *backend, const char *filter)
{
        static const int batches[] = {1, 2, 7, 32};
        for (int i = 0; i < conf_n_cases; i++) {
                const struct conf_case *kase = &conf_cases[i];
                if (!strstr(kase->name, filter) ||
                        (kase->only_fp32 && backend->precision != MFL_PRECISION_FP32))
                        continue;
                size_t n = MFL_ARRAY_SIZE(batches) - conf_quick;
                for (size_t j = 0; j < (kase->batch ? 1 : n); j++)
                        test_case(backend, kase, kase->batch ? kase->batch : batches[j]);
        }
}

/* sum y * dy, in double */
static double objective(const struct conf_backend *b, struct mfl_net *net, const struct run *r,
        const float *x, const float *params)
{
        struct mfl_error err;
        double sum = 0;
        conf_must(b->ops->params_set(net, 0, params, &err), &err);
        conf_must(b->ops->forward(net, x, r->inference ? NULL : r->keys, r->y, &err), &err);
        for (size_t i = 0; i < r->out; i++)
                sum += (double)r->y[i] * r->dy[i];
        return sum;
}

static bool is_trained(const struct mfl_graph *graph, size_t i)
{
        int t = 0;
        while (graph->params[t].offset + graph->params[t].count <= i)
                t++;
        return graph->params[t].trained;
}

/* The derivative along a direction of -1s and 1s over v (x or trained params), by central differences with
 * step h, minus that by the gradient; over the gradient's length. */
static double derivative_error(const struct conf_backend *b, const struct mfl_graph *graph,
        struct mfl_net *net, struct run *r, bool of_x, float h)
{
        size_t n = of_x ? r->in : r->n;
        float *v = of_x ? r->x : r->params;
        const float *grad = of_x ? r->dx : r->dparams;
        float *ahead = conf_alloc(n * sizeof *ahead), *behind = conf_alloc(n * sizeof *behind);
        float *way = conf_alloc(n * sizeof *way);
        double slope = 0, length = 1e-12;
        conf_fill(way, n, 2, of_x, false);
        for (size_t i = 0; i < n; i++) {
                float side = !of_x && !is_trained(graph, i) ? 0 : way[i] < 0 ? -h : h;
                ahead[i] = v[i] + side;
                behind[i] = v[i] - side;
                slope += (double)grad[i] * ((double)ahead[i] - behind[i]);
                length += (double)grad[i] * grad[i];
        }
        double change =
                of_x ? objective(b, net, r, ahead, r->params) - objective(b, net, r, behind, r->params)
                     : objective(b, net, r, r->x, ahead) - objective(b, net, r, r->x, behind);
        free(ahead);
        free(behind);
        free(way);
        return fabs(change - slope) / (2 * (double)h * sqrt(length));
}

/* Kinks (ReLU, max) must not lie between the two points: samples are distinct multiples of 2 / n. */
static void spread(float *x, size_t n)
{
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, n, 0);
        for (size_t i = 0; i < n; i++)
                x[i] = ((float)i + 0.5f) * 2.0f / (float)n - 1.0f;
        for (size_t i = n; i > 1; i--) {
                uint32_t j = mfl_rng_below(&rng, (uint32_t)i);
                float t = x[i - 1];
                x[i - 1] = x[j];
                x[j] = t;
        }
}

static void test_gradient(const struct conf_backend *b, const struct conf_case *kase)
{
        struct mfl_error err;
        struct mfl_graph *graph = conf_graph_new(kase);
        /* A batch norm of two vectors knows signs only. */
        int batch = kase->batch ? MFL_MIN(kase->batch, 7) : 2;
        struct mfl_net_options options = {.batch = batch, .groups = 1, .threads = 1, .training = true};
        struct mfl_net *net = NULL;
        struct run r;
        /* A layer alone is linear in x and in params: any h is right, and a large one drowns rounding. A
         * chain is curved; kinks need less than half the distance between two samples. */
        float h = kase->layers[2].op == MFL_OP_INPUT && !is_norm(kase->layers[0].op) ? 1.0f / 64 : 1.0f / 512;
        run_init(&r, graph, kase, batch, MFL_PRECISION_FP32);
        if (graph->n_params == 0) {
                spread(r.x, r.in);
                h = 0.25f / (float)r.in;
        }
        conf_must(b->ops->net_new(b->device, graph, &options, &net, &err), &err);
        objective(b, net, &r, r.x, r.params);
        conf_must(b->ops->backward(net, r.dy, r.dx, r.dparams, &err), &err);
        double of_x = derivative_error(b, graph, net, &r, true, h),
               of_p = derivative_error(b, graph, net, &r, false, h);
        /* y is rounded to float: sqrt(out) * eps / h of the length, with a factor of 8 in hand; and h^2 for
         * curves. */
        double bound = 8 * FLT_EPSILON / (double)h + (double)h * (double)h;
        conf_report(of_x <= bound && of_p <= bound,
                "reference: %s: central differences: x %.1e params %.1e, bound %.1e", kase->name, of_x, of_p,
                bound);
        b->ops->net_free(net);
        run_deinit(&r);
        mfl_graph_free(graph);
}

void conf_test_gradients(const char *filter)
{
        struct conf_backend b = conf_reference();
        for (int i = 0; i < conf_n_cases; i++) {
                const struct conf_case *kase = &conf_cases[i];
                bool kinks = false, params = false;
                for (int j = 0; j < CONF_LAYERS_MAX; j++) {
                        enum mfl_op op = kase->layers[j].op;
                        kinks |= op == MFL_OP_RELU || op == MFL_OP_MAXPOOL2D;
                        params |= op == MFL_OP_CONV2D || op == MFL_OP_DENSE || is_norm(op);
                }
                /* Behind a layer with parameters a kink cannot be kept away from. */
                if (strstr(kase->name, filter) && !kase->ties && !(kinks && params))
                        test_gradient(&b, kase);
        }
        b.ops->device_close(b.device);
}
