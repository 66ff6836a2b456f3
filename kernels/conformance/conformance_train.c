/* SPDX-License-Identifier: Apache-2.0 */
/* Training: optimizer steps of small networks with partial batches and step masks, against the reference;
 * groups against single runs; evaluation; exact updates. */
#include <math.h>
#include <stdio.h>

#include "kernels/conformance/conformance_train.h"

static void results_init(
        struct conf_training *t, const struct conf_train_case *kase, size_t first, size_t groups)
{
        memset(t->acc, 0, (size_t)t->graph->n * sizeof *t->acc);
        for (size_t g = 0; g < groups; g++)
                t->groups[g] = (struct mfl_group_steps){.index = t->index[first + g],
                        .count = t->count[first + g],
                        .dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, first + g, 3),
                        .augment = mfl_rng_derive(21, MFL_RNG_AUGMENT, first + g, 3),
                        .lr_scale = kase->scheduled ? t->lr_scale[first + g] : NULL,
                        .step_first = 4};
}

static const struct mfl_fixed conf_fixed = {.scale_bits = 30,
        .delta_max = 1024,
        .weight_max = 64,
        .statistics_bits = 20,
        .statistics_max = 65536};

/* A sum that outlives the network: each sum_move gives it what sum_take would give, and leaves the network's
 * at 0. */
static bool moves_agree(const struct conf_backend *b, struct mfl_net *net, const struct mfl_fixed *fixed,
        const uint64_t *weight, const int64_t *acc, size_t n)
{
        struct mfl_error err;
        struct mfl_sum *sum = NULL;
        uint64_t n_bad[CONF_GROUPS];
        bool same = true;
        if (!b->ops->sum_new)
                return true;
        MFL_CLEANUP_FREE int64_t *got = mfl_calloc(n, sizeof *got);
        mfl_assert(got);
        mfl_conf_must(b->ops->sum_new(b->device, n, &sum, &err), &err);
        for (int64_t times = 1; times <= 3; times++) {
                if (times == 3)
                        mfl_conf_must(b->ops->sum_clear(sum, &err), &err);
                mfl_conf_must(b->ops->sum_add(net, fixed, weight, n_bad, &err), &err);
                mfl_conf_must(b->ops->sum_move(net, sum, &err), &err);
                mfl_conf_must(b->ops->sum_read(sum, got, NULL, &err), &err);
                for (size_t i = 0; i < n; i++)
                        same = same && got[i] == (times == 2 ? 2 : 1) * acc[i];
        }
        memset(got, 0, n * sizeof *got);
        mfl_conf_must(b->ops->sum_take(net, got, false, NULL, &err), &err);
        for (size_t i = 0; i < n; i++)
                same = same && got[i] == 0;
        b->ops->sum_free(sum);
        return same && b->ops->sum_bytes(n) >= n * sizeof *got;
}

/* Params, update and evaluation after the steps. */
static void take_results(const struct conf_backend *b, struct conf_training *t, struct mfl_net *net,
        const struct mfl_device_data *data, size_t groups)
{
        struct mfl_error err = {""};
        struct mfl_fixed fixed = conf_fixed;
        uint32_t all[CONF_SAMPLES];
        uint64_t weight[CONF_GROUPS], n_bad[CONF_GROUPS];
        size_t n = (size_t)t->graph->n;
        for (size_t g = 0; g < groups; g++) {
                mfl_conf_must(b->ops->params_get(net, (int)g, 0, t->params + g * n, &err), &err);
                weight[g] = g + 1;
        }
        if (b->ops->sum_add) {
                mfl_conf_must(b->ops->sum_add(net, &fixed, weight, n_bad, &err), &err);
                mfl_conf_must(b->ops->sum_take(net, t->acc, true, NULL, &err), &err);
                t->moved = moves_agree(b, net, &fixed, weight, t->acc, (size_t)t->graph->n_moving);
        }
        for (uint32_t i = 0; i < CONF_SAMPLES; i++)
                all[i] = CONF_SAMPLES - 1 - i;
        memset(t->tally, 0, sizeof t->tally);
        t->eval.tally = t->tally;
        mfl_conf_must(b->ops->eval(net, 0, data, all, CONF_SAMPLES, &t->eval, &err), &err);
}

/* Confusion matrices where they have room, of labels at several positions counts of classes. */
static enum mfl_tally tally_of(const struct conf_train_case *kase)
{
        if (mfl_loss_answers(kase->loss.kind) != MFL_ANSWERS_LABELS || kase->classes > CONF_TALLIED)
                return MFL_TALLY_NONE;
        return kase->accumulate > 1 ? MFL_TALLY_CLASSES : MFL_TALLY_CONFUSION;
}

struct mfl_net_options mfl_conf_train_options(const struct conf_backend *b, const struct conf_training *t,
        const struct conf_train_case *kase, float *weights)
{
        struct mfl_net_options options = {.batch = CONF_BATCH,
                .groups = 1,
                .threads = MFL_MAX(1, t->threads),
                .training = true,
                .augment = kase->augment,
                .loss = kase->loss,
                .tally = tally_of(kase),
                .accumulate = kase->accumulate,
                .segments = t->segments,
                .input_grad = t->input_grad,
                .corrects = kase->corrected,
                .holds = kase->held,
                .precision = b->precision};
        mfl_assert(kase->classes <= CONF_CLASSES_MAX);
        for (int c = 0; c < kase->classes; c++) /* some are 0 */
                weights[c] = (float)(c * 7 % 5) * 0.5f;
        if (kase->weighted) {
                options.loss.weights = weights;
                options.loss.n_weights = kase->classes;
        }
        return options;
}

/* Some number for each element, the running statistics' and the untrained ones' too, which may do nothing. */
static void set_correction(const struct conf_backend *b, const struct conf_training *t, struct mfl_net *net,
        size_t client, int group)
{
        struct mfl_error err;
        size_t n = (size_t)t->graph->n_moving;
        MFL_CLEANUP_FREE float *v = mfl_calloc(n, sizeof *v);
        mfl_assert(v);
        for (size_t i = 0; i < n; i++)
                v[i] = (float)((i + 3 * client) % 11) * 0.02f - 0.1f;
        mfl_conf_must(b->ops->correction_set(net, group, v, &err), &err);
}

void mfl_conf_train(const struct conf_backend *b, struct conf_training *t, const struct conf_train_case *kase,
        size_t first, size_t groups)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        float weights[CONF_CLASSES_MAX];
        struct mfl_net_options options = mfl_conf_train_options(b, t, kase, weights);
        size_t n = (size_t)t->graph->n;
        options.groups = (int)groups;
        results_init(t, kase, first, groups);
        int rc = b->ops->net_new(b->device, t->graph, &options, &net, &err);
        t->refused = rc && mfl_conf_refused(rc, &err, "%s: train %s", b->label, kase->name);
        if (t->refused)
                return;
        b->ops->net_plan(net, &t->plan);
        mfl_conf_must(b->ops->data_new(b->device, &t->set, &t->set.train, true, &data, &err), &err);
        for (size_t g = 0; g < groups; g++)
                mfl_conf_must(
                        mfl_backend_set(b->ops, net, t->graph, (int)g, t->first + (first + g) * n, &err),
                        &err);
        for (size_t g = 0; kase->corrected && first + g + 1 < CONF_GROUPS && g < groups; g++)
                set_correction(b, t, net, first + g, (int)g);
        rc = b->ops->step(net, data, t->groups, CONF_STEPS, &kase->opt, &err);
        t->refused = rc && mfl_conf_refused(rc, &err, "%s: train %s", b->label, kase->name);
        if (!t->refused)
                take_results(b, t, net, data, groups);
        b->ops->data_free(data);
        b->ops->net_free(net);
}

double mfl_conf_params_distance(const float *a, const float *b, const float *first, size_t n)
{
        double most = 0, moved = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)a[i] - b[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)b[i] - first[i]));
        }
        return most / moved;
}

/* Over the largest move that training made. */
static double params_distance(const struct conf_training *a, const struct conf_training *b, size_t n)
{
        return mfl_conf_params_distance(a->params, b->params, b->first, n);
}

static double loss_distance(int64_t a, int64_t b)
{
        return fabs(mfl_fixed_loss_to_double(a) - mfl_fixed_loss_to_double(b)) /
               (1e-30 + mfl_fixed_loss_to_double(b));
}

/* What stays has the bits that it had. */
static bool stays(const struct conf_training *t, const struct conf_train_case *kase)
{
        for (int i = 0; i < t->graph->n_params; i++) {
                const struct mfl_param *param = &t->graph->params[i];
                for (uint64_t g = 0; g < CONF_GROUPS && mfl_param_stays(param, kase->opt.moves); g++) {
                        uint64_t at = g * t->graph->n + param->offset;
                        if (memcmp(t->params + at, t->first + at, (size_t)param->count * sizeof(float)) != 0)
                                return false;
                }
        }
        return true;
}

/* The allowed difference between a backend and the reference after CONF_STEPS steps. */
struct train_bounds {
        double params, loss, eval; /* params: over the largest move */
        uint64_t hits;             /* that may be decided otherwise */
};

/* fp32: the rounding of one step (about 1e-6 of the largest gradient) grows a little over a few steps. ReLU
 * and max may decide otherwise where two values are within rounding. The fixed samples of the table do not
 * meet that case, except in deep networks: one turned decision moves a weight by up to a percent of the
 * largest move. Smaller formats turn decisions everywhere. Their bounds only show that it is the same
 * training; operators are compared closely elsewhere. */
static struct train_bounds train_bounds_of(const struct conf_backend *b, const struct conf_train_case *kase)
{
        double unit = mfl_conf_unit(b->precision);
        if (b->precision != MFL_PRECISION_FP32 && kase->deep)
                return (struct train_bounds){2, 0.1, 0.5, CONF_SAMPLES};
        if (b->precision != MFL_PRECISION_FP32)
                return (struct train_bounds){4 * sqrt(unit), 8 * unit, sqrt(unit), CONF_SAMPLES};
        if (kase->deep)
                return (struct train_bounds){0.1, 1e-3, 1e-2, 2};
        return (struct train_bounds){1e-4, 1e-5, 1e-5, 0};
}

static uint64_t apart(uint64_t a, uint64_t b)
{
        return a > b ? a - b : b - a;
}

static void compare_with_reference(
        const struct conf_backend *b, const struct conf_train_case *kase, struct conf_training *got)
{
        struct conf_backend reference = mfl_conf_reference();
        struct train_bounds bounds = train_bounds_of(b, kase);
        struct conf_training want;
        bool counts = true;
        double loss = 0;
        mfl_conf_training_init(&want, kase);
        mfl_conf_train(&reference, &want, kase, 0, CONF_GROUPS);
        for (int g = 0; g < CONF_GROUPS; g++) {
                counts &=
                        got->groups[g].n_samples == want.groups[g].n_samples &&
                        apart(got->groups[g].score.n_correct, want.groups[g].score.n_correct) <= bounds.hits;
                loss = fmax(
                        loss, loss_distance(got->groups[g].score.loss_sum, want.groups[g].score.loss_sum));
        }
        double params = params_distance(got, &want, CONF_GROUPS * (size_t)got->graph->n);
        double eval = loss_distance(got->eval.loss_sum, want.eval.loss_sum);
        uint64_t moved = 0, tallied = 0;
        for (int i = 0; i < CONF_TALLY; i++) {
                moved += apart(got->tally[i], want.tally[i]);
                tallied += got->tally[i];
        }
        bool none = tally_of(kase) == MFL_TALLY_NONE;
        counts &= none ? tallied == 0 : tallied >= got->eval.n_scored && moved <= 6 * bounds.hits;
        counts &= stays(got, kase) && stays(&want, kase);
        mfl_conf_report(counts && params < bounds.params && loss < bounds.loss && eval < bounds.eval &&
                                apart(got->eval.n_correct, want.eval.n_correct) <= bounds.hits,
                "%s: train %s: params %.1e (bound %.0e) loss %.1e (%.0e) eval %.1e (%.0e)", b->label,
                kase->name, params, bounds.params, loss, bounds.loss, eval, bounds.eval);
        mfl_conf_training_deinit(&want);
        reference.ops->device_close(reference.device);
}

/* fp16 skips steps that overflow, which the reference does not do: params must move and stay finite. */
static void check_moved(
        const struct conf_backend *b, const struct conf_train_case *kase, const struct conf_training *got)
{
        size_t n = (size_t)got->graph->n;
        double least = INFINITY;
        for (size_t g = 0; g < CONF_GROUPS; g++) {
                double most = 0;
                for (size_t i = g * n; i < (g + 1) * n; i++) {
                        double d = fabs((double)got->params[i] - got->first[i]);
                        most = isfinite(d) ? fmax(most, d) : INFINITY;
                }
                least = isfinite(most) ? fmin(least, most) : 0;
        }
        mfl_conf_report(
                least > 0, "%s: train %s: moves, and stays finite: %.1e", b->label, kase->name, least);
}

bool mfl_conf_training_same(
        const struct conf_training *a, const struct conf_training *b, size_t first, size_t groups)
{
        size_t n = (size_t)a->graph->n;
        bool ok = !memcmp(a->params, b->params + first * n, groups * n * sizeof(float));
        for (size_t g = 0; g < groups; g++) {
                const struct mfl_group_steps *x = &a->groups[g], *y = &b->groups[first + g];
                ok = ok && x->score.loss_sum == y->score.loss_sum && x->score.n_correct == y->score.n_correct;
        }
        return ok;
}

static bool single_agrees(const struct conf_backend *b, const struct conf_train_case *kase,
        const struct conf_training *seven, size_t g, int segments)
{
        struct conf_training one;
        mfl_conf_training_init(&one, kase);
        one.segments = segments;
        mfl_conf_train(b, &one, kase, g, 1);
        bool ok = mfl_conf_training_same(&one, seven, g, 1);
        mfl_conf_training_deinit(&one);
        return ok;
}

/* Two threads: near the results of one thread, and the same at each run. */
static void test_threads(
        const struct conf_backend *b, const struct conf_train_case *kase, const struct conf_training *one)
{
        struct conf_training first, second;
        mfl_conf_training_init(&first, kase);
        mfl_conf_training_init(&second, kase);
        first.threads = second.threads = 2;
        mfl_conf_train(b, &first, kase, 0, CONF_GROUPS);
        mfl_conf_train(b, &second, kase, 0, CONF_GROUPS);
        size_t n = CONF_GROUPS * (size_t)one->graph->n;
        double params = params_distance(&first, one, n);
        double bound = train_bounds_of(b, kase).params;
        mfl_conf_report(params < bound && !memcmp(first.params, second.params, n * sizeof(float)),
                "%s: train %s: two threads repeat, and are near one: %.1e (bound %.0e)", b->label, kase->name,
                params, bound);
        mfl_conf_training_deinit(&first);
        mfl_conf_training_deinit(&second);
}

/* The exact sum equals the one computed from the params before and after. */
static bool update_agrees(const struct conf_backend *b, const struct conf_training *t)
{
        struct mfl_fixed fixed = conf_fixed;
        struct mfl_error err;
        size_t n = (size_t)t->graph->n, n_frozen = (size_t)t->graph->n_frozen, n_moving = n - n_frozen;
        if (!b->ops->sum_add)
                return true;
        MFL_CLEANUP_FREE int64_t *want = mfl_calloc(n, sizeof *want);
        mfl_assert(want);
        for (size_t g = 0; g < CONF_GROUPS; g++)
                mfl_conf_must(mfl_fixed_parts_add_delta(&fixed, &t->graph->statistics, 0, g + 1,
                                      t->params + g * n + n_frozen, t->first + g * n + n_frozen, n_moving,
                                      want, &err),
                        &err);
        return !memcmp(want, t->acc, n_moving * sizeof *want);
}

/* What is not trained keeps its bits, except running statistics. */
static bool frozen_stay(const struct conf_training *t)
{
        const struct mfl_graph *graph = t->graph;
        for (int i = 0; i < graph->n_params; i++) {
                const struct mfl_param *p = &graph->params[i];
                const struct mfl_layer *layer = &graph->layers[p->layer];
                if (p->trained || i == layer->param_mean || i == layer->param_var)
                        continue;
                for (size_t g = 0; g < CONF_GROUPS; g++) {
                        size_t at = g * (size_t)graph->n + (size_t)p->offset;
                        if (memcmp(t->params + at, t->first + at, (size_t)p->count * sizeof(float)))
                                return false;
                }
        }
        return true;
}

static void test_training(const struct conf_backend *b, const struct conf_train_case *kase)
{
        struct conf_training seven;
        mfl_conf_training_init(&seven, kase);
        mfl_conf_train(b, &seven, kase, 0, CONF_GROUPS);
        if (seven.refused) {
                mfl_conf_training_deinit(&seven);
                return;
        }
        if (b->precision == MFL_PRECISION_FP16)
                check_moved(b, kase, &seven);
        else if (strcmp(b->ops->name, "reference"))
                compare_with_reference(b, kase, &seven);
        if (!strcmp(b->ops->name, "cpu"))
                test_threads(b, kase, &seven);
        mfl_conf_report(single_agrees(b, kase, &seven, 0, 0), "%s: train %s: groups of 1 equal those of 7",
                b->label, kase->name);
        /* Cuts at every possible place. */
        mfl_conf_report(single_agrees(b, kase, &seven, 5, MFL_SEGMENTS_MAX),
                "%s: train %s: computing again changes no bit", b->label, kase->name);
        mfl_conf_report(update_agrees(b, &seven) && frozen_stay(&seven),
                "%s: train %s: update is exact, and nothing in it is frozen", b->label, kase->name);
        if (b->ops->sum_new)
                mfl_conf_report(seven.moved, "%s: train %s: a sum that is moved is the sum that is taken",
                        b->label, kase->name);
        mfl_conf_training_deinit(&seven);
}

void mfl_conf_test_training(const struct conf_backend *backend, const char *filter)
{
        /* Plain loops are too slow for the deep networks, except where others are compared with them. */
        bool quick = conf_quick || conf_smoke || !strcmp(backend->ops->name, "reference");
        for (int i = 0; i < mfl_conf_n_train_cases; i++) {
                const struct conf_train_case *kase = &mfl_conf_train_cases[i];
                if (strstr(kase->name, filter) && !(quick && kase->deep) &&
                        (!conf_smoke || mfl_conf_is_smoke(kase->name)) &&
                        mfl_conf_begin("%s: train %s", backend->label, kase->name))
                        test_training(backend, kase);
        }
}
