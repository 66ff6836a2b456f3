/* SPDX-License-Identifier: Apache-2.0 */
/* Operators: values and gradients against the reference, groups against single runs, guard zones, repeats. */
#include "kernels/conformance/conformance.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#define GUARD 64          /* floats on each side of an output */
#define POISON 0x7fc0dead /* a NaN that no operator makes */
#define GROUPS_MAX 7
#define GROUPS_MIN 3 /* for a backend that runs its groups one after another */

/* Inputs and outputs of one run of G groups. Outputs lie between guard zones. */
struct run {
        size_t groups, batch, in, out, n; /* in, out: floats of a batch */
        bool inference;
        float *x, *params, *dy, *y, *dx, *dparams, *after; /* after: the params after the forward */
        struct mfl_rng_key keys[GROUPS_MAX];
};

static float *guarded_new(size_t n)
{
        uint32_t *v = mfl_conf_alloc((n + 2 * GUARD) * sizeof *v);
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

/* Whether all n floats were written and the zones around them were not. */
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

/* Some of the tokens lie outside the vocabulary, on either side. */
static void make_tokens(float *x, size_t n, int vocabulary)
{
        for (size_t i = 0; i < n; i++)
                x[i] = floorf((x[i] + 1.0f) * 0.5f * (float)(vocabulary + 2)) - 1.0f;
}

int mfl_conf_vocabulary(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (graph->layers[i].op == MFL_OP_EMBEDDING)
                        return graph->layers[i].vocabulary;
        return 0;
}

static size_t output_count(const struct mfl_graph *graph)
{
        return (size_t)mfl_shape_count(&graph->layers[graph->n_layers - 1].out);
}

void mfl_conf_make_inputs(const struct conf_case *kase, const struct mfl_graph *graph, size_t groups,
        size_t rows, float *x, float *params, float *dy)
{
        size_t in = groups * rows * (size_t)mfl_shape_count(&graph->input), n = (size_t)graph->n;
        mfl_conf_fill(x, in, 1, 1, kase->ties);
        mfl_conf_fill(params, groups * n, 1, 2, false);
        mfl_conf_fill(dy, groups * rows * output_count(graph), 1, 3, false);
        for (size_t i = 0; kase->range > 0 && i < in; i++)
                x[i] *= kase->range;
        mfl_conf_move_samples(kase, x, in);
        if (mfl_conf_vocabulary(graph))
                make_tokens(x, in, mfl_conf_vocabulary(graph));
        for (size_t g = 0; g < groups; g++)
                make_variances(graph, params + g * n);
}

static void run_init(struct run *r, const struct mfl_graph *graph, const struct conf_case *kase, int batch,
        size_t groups, enum mfl_precision precision)
{
        *r = (struct run){.groups = groups, .batch = (size_t)batch, .n = (size_t)graph->n};
        r->in = (size_t)mfl_shape_count(&graph->input) * r->batch;
        r->out = output_count(graph) * r->batch;
        r->inference = kase->inference;
        r->x = mfl_conf_alloc(r->groups * r->in * sizeof(float));
        r->params = mfl_conf_alloc(r->groups * r->n * sizeof(float));
        r->dy = mfl_conf_alloc(r->groups * r->out * sizeof(float));
        mfl_conf_make_inputs(kase, graph, r->groups, r->batch, r->x, r->params, r->dy);
        mfl_conf_round(r->x, r->groups * r->in, precision);
        mfl_conf_round(r->params, r->groups * r->n, precision);
        mfl_conf_round(r->dy, r->groups * r->out, precision);
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

/* Whether the backend refuses the case; a refusal is reported. */
static bool refuses(const struct conf_backend *b, const struct conf_case *kase, const struct mfl_graph *graph)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .training = true, .precision = b->precision};
        int rc = b->ops->net_new(b->device, graph, &options, &net, &err);
        if (!rc)
                b->ops->net_free(net);
        return rc && mfl_conf_refused(rc, &err, "%s: %s", b->label, kase->name);
}

/* Runs groups [first, first + groups) of `from` as one network into `to`'s outputs, twice when `again`.
 * segments: see mfl_net_options. */
static void execute(const struct conf_backend *b, const struct mfl_graph *graph, const struct run *from,
        size_t first, struct run *to, bool again, int segments)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_net_options options = {.batch = (int)from->batch,
                .groups = (int)to->groups,
                .threads = 1,
                .training = true,
                .input_grad = true,
                .precision = b->precision,
                .segments = segments};
        mfl_conf_must(b->ops->net_new(b->device, graph, &options, &net, &err), &err);
        for (size_t g = 0; g < to->groups; g++)
                mfl_conf_must(mfl_backend_set(
                                      b->ops, net, graph, (int)g, from->params + (first + g) * from->n, &err),
                        &err);
        for (int i = 0; i < 1 + again; i++) {
                const struct mfl_rng_key *keys = from->inference ? NULL : from->keys + first;
                mfl_conf_must(b->ops->forward(net, from->x + first * from->in, keys, to->y, &err), &err);
                for (size_t g = 0; i == 0 && g < to->groups; g++)
                        mfl_conf_must(
                                b->ops->params_get(net, (int)g, 0, to->after + g * from->n, &err), &err);
                mfl_conf_must(
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
        return op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM || op == MFL_OP_LAYERNORM ||
               op == MFL_OP_RMSNORM;
}

static double weights_of(const struct mfl_graph *graph, int param)
{
        return param < 0 ? 0 : (double)graph->params[param].count;
}

/* Terms of a convolution or dense layer: for an output, for an input, for a weight. */
static double longest_product(const struct mfl_graph *graph, const struct mfl_layer *l, int batch)
{
        const struct mfl_shape *in = &graph->layers[l->input].out;
        double groups = l->conv_groups ? l->conv_groups : 1, weights = weights_of(graph, l->param_weight);
        if (l->op == MFL_OP_DENSE) {
                double vectors = l->out.rank == 2 ? (double)l->out.dim[0] : 1;
                return fmax(weights / l->out_channels, fmax(l->out_channels, batch * vectors));
        }
        double window = (double)l->kernel[0] * l->kernel[1], from = weights / (double)l->out.dim[0];
        double to = (double)l->out_channels / groups * window;
        double area = (double)(l->out.dim[1] * l->out.dim[2]);
        if (l->op == MFL_OP_CONVTRANSPOSE2D) {
                from = (double)in->dim[0] / groups * window;
                area = fmax(area, (double)(in->dim[1] * in->dim[2]));
        }
        return fmax(from, fmax(to, batch * area));
}

static double longest_row(const struct mfl_graph *graph, const struct mfl_layer *l)
{
        struct mfl_map *map = NULL;
        double n =
                mfl_map_new(graph, (int)(l - graph->layers), &map, NULL) ? 1 : (double)mfl_map_longest(map);
        mfl_map_free(map);
        return n;
}

/* The number of terms in the longest sum of a layer, gradients included. */
static double longest_sum_of(const struct mfl_graph *graph, const struct mfl_layer *l, int batch)
{
        double in = l->input < 0 ? 0 : (double)mfl_shape_count(&graph->layers[l->input].out);
        double in2 = l->input2 < 0 ? in : (double)mfl_shape_count(&graph->layers[l->input2].out);
        double area = l->out.rank == 3 ? (double)(l->out.dim[1] * l->out.dim[2]) : 1;
        double out = (double)mfl_shape_count(&l->out), last = (double)l->out.dim[l->out.rank - 1];
        switch (l->op) {
        case MFL_OP_BATCHNORM:
        case MFL_OP_GROUPNORM:
                return fmax(batch * area, l->norm_groups ? in / l->norm_groups : 0);
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                return fmax(last, batch * in / last);
        case MFL_OP_GLOBAL_AVGPOOL2D:
                return in / (double)l->out.dim[0];
        case MFL_OP_CONV2D:
        case MFL_OP_CONVTRANSPOSE2D:
        case MFL_OP_DENSE:
                return longest_product(graph, l, batch);
        case MFL_OP_ADD:
        case MFL_OP_GATE:
        case MFL_OP_MULTIPLY: /* terms that multiply a repeated number */
                return in / in2;
        case MFL_OP_MEAN:
                return in / out;
        case MFL_OP_MAP:
                return longest_row(graph, l);
        case MFL_OP_WEIGHT:
                return batch;
        case MFL_OP_EMBEDDING:
                return batch * in;
        case MFL_OP_SOFTMAX:
                return last;
        case MFL_OP_MATMUL:
                return fmax(last, fmax(in, in2) / 2);
        case MFL_OP_ATTENTION:
                return fmax(last / l->heads, (double)l->out.dim[0]);
        case MFL_OP_LSTM: /* gates of all units add up, over all positions, and each rounds what the next
                             reads */
        case MFL_OP_GRU:
        case MFL_OP_RNN:
                return fmax(4 * last, batch) * (double)l->out.dim[0] * (double)l->out.dim[0];
        default:
                return 1;
        }
}

static double longest_sum(const struct mfl_graph *graph, int batch)
{
        double most = 1;
        for (int i = 1; i < graph->n_layers; i++)
                most = fmax(most, longest_sum_of(graph, &graph->layers[i], batch));
        return most;
}

/* Behind a norm, a gradient is what remains after its mean and its part along the output are subtracted: less
 * than the terms. */
static double norm_factor(const struct mfl_graph *graph)
{
        int n = 0;
        for (int i = 1; i < graph->n_layers; i++)
                n += is_norm(graph->layers[i].op);
        return n ? 4 : 1;
}

/* Operations that each round what the next one reads: layers, and every position of an rnn. LSTM and GRU forget, so that
 * a position's errors do not reach the last one in full. */
static int n_steps(const struct mfl_graph *graph)
{
        int n = graph->n_layers;
        for (int i = 1; i < graph->n_layers; i++)
                if (graph->layers[i].op == MFL_OP_RNN)
                        n += (int)graph->layers[i].out.dim[0] - 1;
        return n;
}

/* The allowed difference between float sums and the reference's sums in double, relative to the largest
 * element. Rounding errors of a sum of K terms grow like sqrt(K) eps; every layer passes on those before it
 * and adds its own. Copies are exact, except for what is stored in a smaller format. In a smaller format each
 * layer's operands are rounded once more, an error of one unit in each term, and so of the whole sum's size,
 * whatever K is. */
static double bound_of(
        const struct conf_case *kase, const struct mfl_graph *graph, int batch, enum mfl_precision precision)
{
        double sums = 4 * FLT_EPSILON * sqrt(longest_sum(graph, batch)) * (graph->n_layers > 3 ? 4 : 1);
        double rounding = precision == MFL_PRECISION_FP32 ? 0 : 4 * mfl_conf_unit(precision) * n_steps(graph);
        return kase->exact ? rounding : (sums + rounding) * norm_factor(graph);
}

static bool decides_by(enum mfl_op op)
{
        return op == MFL_OP_RELU || op == MFL_OP_RELU6 || op == MFL_OP_MAXPOOL2D ||
               op == MFL_OP_GLOBAL_MAXPOOL2D;
}

/* Layers that decide by comparing, behind others that round. */
static bool decides(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                if ((i > 1 && decides_by(graph->layers[i].op)) || graph->layers[i].relu)
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
        const struct mfl_graph *graph, const struct run *base, struct run *all)
{
        struct conf_backend reference = mfl_conf_reference();
        struct run want = *base;
        outputs_new(&want);
        execute(&reference, graph, base, 0, &want, false, 0);
        double (*far)(const float *a, const float *b, size_t n) = distance;
        double bound = bound_of(kase, graph, (int)base->batch, b->precision);
        if (b->precision != MFL_PRECISION_FP32 && decides(graph)) {
                /* Rounding turns decisions that are within a unit of a tie: a share of about 2 units of all
                 * decisions, for each layer that decides. What those decisions pass or stop is then entirely
                 * wrong. */
                far = distance_of_lengths;
                bound = fmax(bound, 2 * sqrt(2 * mfl_conf_unit(b->precision) * n_steps(graph)));
        }
        double y = far(all->y, want.y, want.groups * want.out);
        double dx = far(all->dx, want.dx, want.groups * want.in);
        double dp = far(all->dparams, want.dparams, want.groups * want.n);
        double after = far(all->after, want.after, want.groups * want.n);
        mfl_conf_report(y <= bound && dx <= bound && dp <= bound && after <= bound,
                "%s: %s, batch %zu: y %.1e dx %.1e dparams %.1e running %.1e, bound %.1e", b->label,
                kase->name, base->batch, y, dx, dp, after, bound);
        outputs_free(&want);
        reference.ops->device_close(reference.device);
}

static bool same(const float *a, const float *b, size_t n)
{
        return !n || !memcmp(a, b, n * sizeof *a);
}

/* Groups [first, first + groups), run as a network of their own, give the same bits as among all. */
static bool groups_agree(const struct conf_backend *b, const struct mfl_graph *graph, const struct run *base,
        const struct run *all, size_t first, size_t groups, int segments)
{
        struct run part = *base;
        part.groups = groups;
        outputs_new(&part);
        execute(b, graph, base, first, &part, true, segments);
        bool ok = same(part.y, all->y + first * base->out, groups * base->out) &&
                  same(part.dx, all->dx + first * base->in, groups * base->in) &&
                  same(part.dparams, all->dparams + first * base->n, groups * base->n) &&
                  same(part.after, all->after + first * base->n, groups * base->n) && outputs_guarded(&part);
        outputs_free(&part);
        return ok;
}

static void test_case(
        const struct conf_backend *b, const struct conf_case *kase, const struct mfl_graph *graph, int batch)
{
        size_t groups = strcmp(b->ops->name, "cuda") ? GROUPS_MIN : GROUPS_MAX;
        struct run base, all;
        run_init(&base, graph, kase, batch, groups, b->precision);
        all = base;
        outputs_new(&all);
        execute(b, graph, &base, 0, &all, false, 0);
        mfl_conf_report(outputs_guarded(&all), "%s: %s, batch %d: writes all of its outputs and nothing else",
                b->label, kase->name, batch);
        if (strcmp(b->ops->name, "reference"))
                check_values(b, kase, graph, &base, &all);
        bool ok = groups_agree(b, graph, &base, &all, 0, 1, 0) &&
                  groups_agree(b, graph, &base, &all, groups - 2, 2, 0);
        mfl_conf_report(ok, "%s: %s, batch %d: groups of 1 and 2 equal those of %zu, repeats equal", b->label,
                kase->name, batch, groups);
        /* Cuts at every possible place. */
        ok = groups_agree(b, graph, &base, &all, groups - 3, 1, MFL_SEGMENTS_MAX);
        mfl_conf_report(ok, "%s: %s, batch %d: computing again changes no bit", b->label, kase->name, batch);
        outputs_free(&all);
        run_deinit(&base);
}

/* What --quick leaves out on the emulated device: convolutions of few channels with large images. */
static bool left_out(const struct conf_backend *b, const struct conf_case *kase)
{
        return conf_quick && !strcmp(b->ops->name, "cuda") && !strncmp(kase->name, "few channels", 12) &&
               kase->input.dim[1] * kase->input.dim[2] > 64;
}

void mfl_conf_test_operators(const struct conf_backend *backend, const char *filter)
{
        static const int batches[] = {1, 2, 7, 32};
        /* The reference treats every batch alike: it is run with the largest, where others are compared with
         * it. */
        bool quick = conf_quick || conf_smoke || !strcmp(backend->ops->name, "reference");
        const struct conf_case *kase;
        for (int i = 0; (kase = mfl_conf_case_at(i)); i++) {
                if (!strstr(kase->name, filter) || left_out(backend, kase) ||
                        (kase->only_fp32 && backend->precision != MFL_PRECISION_FP32))
                        continue;
                if (conf_smoke && !mfl_conf_is_smoke(kase->name))
                        continue;
                if (!mfl_conf_begin("%s: %s", backend->label, kase->name))
                        continue;
                struct mfl_graph *graph = mfl_conf_graph_new(kase);
                size_t n = kase->batch ? 1 : MFL_ARRAY_SIZE(batches) - quick, first = conf_smoke ? n - 1 : 0;
                bool skipped = refuses(backend, kase, graph);
                for (size_t j = first; !skipped && j < n; j++)
                        test_case(backend, kase, graph, kase->batch ? kase->batch : batches[j]);
                mfl_graph_free(graph);
        }
}
