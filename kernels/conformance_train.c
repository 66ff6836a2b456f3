/* SPDX-License-Identifier: Apache-2.0 */
/* Training: optimizer steps of small networks with partial batches and step masks against the reference;
 * groups against single runs; evaluation; exact updates. */
#include "kernels/conformance.h"

#include <math.h>
#include <stdio.h>

#define SAMPLES 61
#define STEPS 5
#define BATCH 7
#define GROUPS_MAX 7

struct train_case {
        const char *name, *preset; /* preset NULL: the residual network below */
        struct mfl_shape input;
        int classes;
        struct mfl_optimizer opt;
        struct mfl_augment augment;
        uint32_t rows_min; /* of a partial batch. A batch norm divides by the deviation of what it sees, and
                              of a single row's few values that is next to nothing */
        bool deep;         /* so many ReLUs that some decide within rounding of a tie; see train_bounds_of */
};

/* Both norms, both kinds of shortcut, pools and an add before an add, without anything that decides: tanh in
 * the place of ReLU. So rounding stays rounding, however many layers there are. */
static const struct mfl_layer smooth_layers[] = {{.op = MFL_OP_INPUT, .input = -1},
        {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 20, .kernel = {3, 3}, .padding = {1, 1}},
        {.op = MFL_OP_BATCHNORM, .input = 1}, {.op = MFL_OP_TANH, .input = 2},
        {.op = MFL_OP_CONV2D, .input = 3, .out_channels = 20, .kernel = {3, 3}, .padding = {1, 1}},
        {.op = MFL_OP_BATCHNORM, .input = 4, .momentum = 0.3f}, {.op = MFL_OP_ADD, .input = 5, .input2 = 3},
        {.op = MFL_OP_TANH, .input = 6},
        {.op = MFL_OP_CONV2D,
                .input = 7,
                .out_channels = 32,
                .kernel = {3, 3},
                .stride = {2, 2},
                .padding = {1, 1}},
        {.op = MFL_OP_GROUPNORM, .input = 8, .norm_groups = 8},
        {.op = MFL_OP_CONV2D,
                .input = 7,
                .out_channels = 32,
                .kernel = {1, 1},
                .stride = {2, 2},
                .bias = true},
        {.op = MFL_OP_AVGPOOL2D, .input = 9, .kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}},
        {.op = MFL_OP_ADD, .input = 10, .input2 = 9}, {.op = MFL_OP_ADD, .input = 11, .input2 = 12},
        {.op = MFL_OP_BATCHNORM, .input = 13}, {.op = MFL_OP_DROPOUT, .input = 14, .rate = 0.2f},
        {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 15},
        {.op = MFL_OP_DENSE, .input = 16, .out_channels = 16, .bias = true},
        {.op = MFL_OP_BATCHNORM, .input = 17}, {.op = MFL_OP_TANH, .input = 18},
        {.op = MFL_OP_DENSE, .input = 19, .out_channels = 10, .bias = true}};

static const struct train_case train_cases[] = {
        {"logistic opt", "logistic", {1, {30}}, 5, {.lr = 0.1f}},
        {"mlp opt", "mlp", {1, {20}}, 10, {.lr = 0.05f}},
        {"mlp momentum", "mlp", {3, {1, 5, 5}}, 10, {.lr = 0.05f, .momentum = 0.9f}},
        {"lenet5 opt", "lenet5", {3, {1, 14, 14}}, 10, {.lr = 0.1f}},
        {"lenet5 nesterov decay", "lenet5", {3, {3, 12, 12}}, 10,
                {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true}},
        {"lenet5 prox", "lenet5", {3, {1, 12, 12}}, 10, {.lr = 0.05f, .prox_mu = 0.1f}},
        {"fedavg-cnn opt", "fedavg-cnn", {3, {1, 8, 8}}, 10, {.lr = 0.05f}},
        {"pfl-cnn momentum prox", "pfl-cnn", {3, {3, 8, 8}}, 10,
                {.lr = 0.02f, .momentum = 0.5f, .prox_mu = 0.01f}},
        {"mlp augmented", "mlp", {3, {3, 6, 5}}, 10, {.lr = 0.05f}, {.crop = 2, .flip = true}},
        {"lenet5 cropped", "lenet5", {3, {1, 14, 14}}, 10, {.lr = 0.1f}, {.crop = 4}},
        {"lenet5 flipped", "lenet5", {3, {2, 12, 12}}, 10, {.lr = 0.1f}, {.flip = true}},
        {"resnet20 momentum prox decay", "resnet20", {3, {3, 8, 8}}, 10,
                {.lr = 0.01f, .momentum = 0.5f, .weight_decay = 0.001f, .prox_mu = 0.01f}, .rows_min = 3,
                .deep = true},
        {"resnet20-gn opt", "resnet20-gn", {3, {3, 6, 6}}, 10, {.lr = 0.01f}, {.crop = 1, .flip = true},
                .deep = true},
        {"residual opt", NULL, {3, {3, 8, 7}}, 10, {.lr = 0.05f}, .rows_min = 4},
        {"residual momentum prox decay", NULL, {3, {3, 7, 7}}, 10,
                {.lr = 0.02f, .momentum = 0.5f, .weight_decay = 0.01f, .prox_mu = 0.01f},
                {.crop = 2, .flip = true}, .rows_min = 4},
};

/* A local training of up to GROUPS_MAX groups: inputs and results. */
struct training {
        struct mfl_dataset set;
        struct mfl_graph *graph;
        int threads; /* 0: one */
        uint32_t index[GROUPS_MAX][STEPS * BATCH], count[GROUPS_MAX][STEPS];
        float *first;  /* G * n */
        float *params; /* G * n, after the steps */
        int64_t *acc;  /* n: the exact sum of all groups' updates */
        struct mfl_group_steps groups[GROUPS_MAX];
        struct mfl_score eval;
        bool moved; /* see moves_agree */
};

static void make_data(struct mfl_dataset *set, const struct train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_TEST, 0, 0);
        size_t count = (size_t)mfl_shape_count(&kase->input);
        *set = (struct mfl_dataset){.shape = kase->input, .classes = kase->classes};
        uint8_t *pixels = conf_alloc(SAMPLES * count);
        int32_t *labels = conf_alloc(SAMPLES * sizeof *labels);
        for (size_t i = 0; i < SAMPLES * count; i++)
                pixels[i] = (uint8_t)mfl_rng_below(&rng, 256);
        for (size_t i = 0; i < SAMPLES; i++)
                labels[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)kase->classes);
        for (int c = 0; c < MFL_CHANNELS_MAX; c++) {
                set->scale[c] = 1.0f / (64.0f + (float)c);
                set->shift[c] = -1.5f + 0.25f * (float)c;
        }
        set->train = (struct mfl_split){SAMPLES, MFL_U8, pixels, labels};
}

/* Different amounts of data: every group has its own partial batches, and steps in which it rests. */
static void make_groups(struct training *t, const struct train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(12, MFL_RNG_TEST, 0, 0);
        for (uint32_t g = 0; g < GROUPS_MAX; g++) {
                uint32_t partial = MFL_MAX(kase->rows_min, 1 + g % BATCH);
                for (uint32_t s = 0; s < STEPS; s++)
                        t->count[g][s] = (s + g) % 4 == 2 ? 0 : (s + g) % 3 == 1 ? partial : BATCH;
                for (uint32_t i = 0; i < STEPS * BATCH; i++)
                        t->index[g][i] = mfl_rng_below(&rng, SAMPLES);
        }
}

static void make_graph(struct training *t, const struct train_case *kase)
{
        struct mfl_error err;
        struct mfl_layer layers[MFL_ARRAY_SIZE(smooth_layers)];
        if (kase->preset) {
                conf_must(mfl_graph_preset(kase->preset, &kase->input, kase->classes, &t->graph, &err), &err);
                return;
        }
        memcpy(layers, smooth_layers, sizeof layers);
        layers[0].out = kase->input;
        conf_must(mfl_graph_build(kase->name, layers, MFL_ARRAY_SIZE(layers), kase->classes, &t->graph, &err),
                &err);
}

static void training_init(struct training *t, const struct train_case *kase)
{
        *t = (struct training){0};
        make_data(&t->set, kase);
        make_groups(t, kase);
        make_graph(t, kase);
        size_t n = (size_t)t->graph->n;
        t->first = conf_alloc(GROUPS_MAX * n * sizeof(float));
        t->params = conf_alloc(GROUPS_MAX * n * sizeof(float));
        t->acc = conf_alloc(n * sizeof *t->acc);
        for (uint64_t g = 0; g < GROUPS_MAX; g++)
                mfl_graph_init_params(t->graph, g, t->first + g * n);
}

static void training_deinit(struct training *t)
{
        free(t->set.train.samples);
        free(t->set.train.labels);
        free(t->first);
        free(t->params);
        free(t->acc);
        mfl_graph_free(t->graph);
}

static void results_init(struct training *t, size_t first, size_t groups)
{
        memset(t->acc, 0, (size_t)t->graph->n * sizeof *t->acc);
        for (size_t g = 0; g < groups; g++)
                t->groups[g] = (struct mfl_group_steps){.index = t->index[first + g],
                        .count = t->count[first + g],
                        .dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, first + g, 3),
                        .augment = mfl_rng_derive(21, MFL_RNG_AUGMENT, first + g, 3),
                        .step_first = 4};
}

/* A sum that outlives the network's gets, each time it is moved there, what sum_take gave; and the network's
 * is 0 then. */
static bool moves_agree(const struct conf_backend *b, struct mfl_net *net, const struct mfl_fixed *fixed,
        const uint64_t *weight, const int64_t *acc, size_t n)
{
        struct mfl_error err;
        struct mfl_sum *sum = NULL;
        uint64_t n_bad[GROUPS_MAX];
        bool same = true;
        if (!b->ops->sum_new)
                return true;
        MFL_CLEANUP_FREE int64_t *got = mfl_calloc(n, sizeof *got);
        mfl_assert(got);
        conf_must(b->ops->sum_new(b->device, n, &sum, &err), &err);
        for (int64_t times = 1; times <= 3; times++) {
                if (times == 3)
                        conf_must(b->ops->sum_clear(sum, &err), &err);
                conf_must(b->ops->sum_add(net, fixed, weight, n_bad, &err), &err);
                conf_must(b->ops->sum_move(net, sum, &err), &err);
                conf_must(b->ops->sum_read(sum, got, &err), &err);
                for (size_t i = 0; i < n; i++)
                        same = same && got[i] == (times == 2 ? 2 : 1) * acc[i];
        }
        memset(got, 0, n * sizeof *got);
        conf_must(b->ops->sum_take(net, got, &err), &err);
        for (size_t i = 0; i < n; i++)
                same = same && got[i] == 0;
        b->ops->sum_free(sum);
        return same && b->ops->sum_bytes(n) >= n * sizeof *got;
}

/* Trains groups [first, first + groups); results of group first + g are at place g. */
static void train(const struct conf_backend *b, struct training *t, const struct train_case *kase,
        size_t first, size_t groups)
{
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_net_options options = {.batch = BATCH,
                .groups = (int)groups,
                .threads = MFL_MAX(1, t->threads),
                .training = true,
                .augment = kase->augment,
                .precision = b->precision};
        struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 64};
        uint32_t all[SAMPLES];
        uint64_t weight[GROUPS_MAX], n_bad[GROUPS_MAX];
        size_t n = (size_t)t->graph->n;
        results_init(t, first, groups);
        conf_must(b->ops->net_new(b->device, t->graph, &options, &net, &err), &err);
        conf_must(b->ops->data_new(b->device, &t->set, &t->set.train, true, &data, &err), &err);
        for (size_t g = 0; g < groups; g++)
                conf_must(b->ops->params_set(net, (int)g, t->first + (first + g) * n, &err), &err);
        conf_must(b->ops->step(net, data, t->groups, STEPS, &kase->opt, &err), &err);
        for (size_t g = 0; g < groups; g++) {
                conf_must(b->ops->params_get(net, (int)g, t->params + g * n, &err), &err);
                weight[g] = g + 1;
        }
        if (b->ops->sum_add) {
                conf_must(b->ops->sum_add(net, &fixed, weight, n_bad, &err), &err);
                conf_must(b->ops->sum_take(net, t->acc, &err), &err);
                t->moved = moves_agree(b, net, &fixed, weight, t->acc, n);
        }
        for (uint32_t i = 0; i < SAMPLES; i++)
                all[i] = SAMPLES - 1 - i;
        conf_must(b->ops->eval(net, 0, data, all, SAMPLES, &t->eval, &err), &err);
        b->ops->data_free(data);
        b->ops->net_free(net);
}

/* Largest |a - b| over the largest move that training made. */
static double params_distance(const struct training *a, const struct training *b, size_t n)
{
        double most = 0, moved = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)a->params[i] - b->params[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)b->params[i] - b->first[i]));
        }
        return most / moved;
}

static double loss_distance(int64_t a, int64_t b)
{
        return fabs(mfl_fixed_loss_to_double(a) - mfl_fixed_loss_to_double(b)) /
               (1e-30 + mfl_fixed_loss_to_double(b));
}

/* What may lie between a backend and the reference after STEPS steps. */
struct train_bounds {
        double params, loss, eval; /* params: over the largest move */
        uint64_t hits;             /* that may be counted otherwise */
};

/* fp32: rounding of one step (about 1e-6 of the largest gradient) grows a little over a few steps; ReLU and
 * max may choose otherwise where two values are within rounding, which the fixed samples of the table do not
 * meet but in deep networks: one turned decision moves a weight by up to a percent of the largest move.
 * Smaller formats turn decisions everywhere; their bounds say that it is the same training, operators are
 * compared closely elsewhere. */
static struct train_bounds train_bounds_of(const struct conf_backend *b, const struct train_case *kase)
{
        double unit = conf_unit(b->precision);
        if (b->precision != MFL_PRECISION_FP32 && kase->deep)
                return (struct train_bounds){2, 0.1, 0.5, SAMPLES};
        if (b->precision != MFL_PRECISION_FP32)
                return (struct train_bounds){4 * sqrt(unit), 8 * unit, sqrt(unit), SAMPLES};
        if (kase->deep)
                return (struct train_bounds){0.1, 1e-3, 1e-2, 2};
        return (struct train_bounds){1e-4, 1e-5, 1e-5, 0};
}

static uint64_t apart(uint64_t a, uint64_t b)
{
        return a > b ? a - b : b - a;
}

static void compare_with_reference(
        const struct conf_backend *b, const struct train_case *kase, struct training *got)
{
        struct conf_backend reference = conf_reference();
        struct train_bounds bounds = train_bounds_of(b, kase);
        struct training want;
        bool counts = true;
        double loss = 0;
        training_init(&want, kase);
        train(&reference, &want, kase, 0, GROUPS_MAX);
        for (int g = 0; g < GROUPS_MAX; g++) {
                counts &=
                        got->groups[g].n_samples == want.groups[g].n_samples &&
                        apart(got->groups[g].score.n_correct, want.groups[g].score.n_correct) <= bounds.hits;
                loss = fmax(
                        loss, loss_distance(got->groups[g].score.loss_sum, want.groups[g].score.loss_sum));
        }
        double params = params_distance(got, &want, GROUPS_MAX * (size_t)got->graph->n);
        double eval = loss_distance(got->eval.loss_sum, want.eval.loss_sum);
        conf_report(counts && params < bounds.params && loss < bounds.loss && eval < bounds.eval &&
                            apart(got->eval.n_correct, want.eval.n_correct) <= bounds.hits,
                "%s: train %s: params %.1e (bound %.0e) loss %.1e (%.0e) eval %.1e (%.0e)", b->label,
                kase->name, params, bounds.params, loss, bounds.loss, eval, bounds.eval);
        training_deinit(&want);
        reference.ops->device_close(reference.device);
}

/* fp16 leaves out steps that overflow, which is no business of the reference's: its results are finite, and
 * there are some. */
static void check_moved(
        const struct conf_backend *b, const struct train_case *kase, const struct training *got)
{
        size_t n = (size_t)got->graph->n;
        double least = INFINITY;
        for (size_t g = 0; g < GROUPS_MAX; g++) {
                double most = 0;
                for (size_t i = g * n; i < (g + 1) * n; i++) {
                        double d = fabs((double)got->params[i] - got->first[i]);
                        most = isfinite(d) ? fmax(most, d) : INFINITY;
                }
                least = isfinite(most) ? fmin(least, most) : 0;
        }
        conf_report(least > 0, "%s: train %s: moves, and stays finite: %.1e", b->label, kase->name, least);
}

static bool single_agrees(
        const struct conf_backend *b, const struct train_case *kase, const struct training *seven, size_t g)
{
        struct training one;
        size_t n = (size_t)seven->graph->n;
        training_init(&one, kase);
        train(b, &one, kase, g, 1);
        bool ok = !memcmp(one.params, seven->params + g * n, n * sizeof(float)) &&
                  one.groups[0].score.loss_sum == seven->groups[g].score.loss_sum &&
                  one.groups[0].score.n_correct == seven->groups[g].score.n_correct;
        training_deinit(&one);
        return ok;
}

/* Two threads: near the results of one, and the same at each run. */
static void test_threads(
        const struct conf_backend *b, const struct train_case *kase, const struct training *one)
{
        struct training first, second;
        training_init(&first, kase);
        training_init(&second, kase);
        first.threads = second.threads = 2;
        train(b, &first, kase, 0, GROUPS_MAX);
        train(b, &second, kase, 0, GROUPS_MAX);
        size_t n = GROUPS_MAX * (size_t)one->graph->n;
        double params = params_distance(&first, one, n);
        double bound = train_bounds_of(b, kase).params;
        conf_report(params < bound && !memcmp(first.params, second.params, n * sizeof(float)),
                "%s: train %s: two threads repeat, and are near one: %.1e (bound %.0e)", b->label, kase->name,
                params, bound);
        training_deinit(&first);
        training_deinit(&second);
}

/* The exact sum equals that of the params before and after. */
static bool update_agrees(const struct conf_backend *b, const struct training *t)
{
        struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 64};
        struct mfl_error err;
        size_t n = (size_t)t->graph->n;
        if (!b->ops->sum_add)
                return true;
        MFL_CLEANUP_FREE int64_t *want = mfl_calloc(n, sizeof *want);
        mfl_assert(want);
        for (size_t g = 0; g < GROUPS_MAX; g++)
                conf_must(mfl_fixed_add_delta(
                                  &fixed, g + 1, t->params + g * n, t->first + g * n, n, want, &err),
                        &err);
        return !memcmp(want, t->acc, n * sizeof *want);
}

static void test_training(const struct conf_backend *b, const struct train_case *kase)
{
        struct training seven;
        training_init(&seven, kase);
        train(b, &seven, kase, 0, GROUPS_MAX);
        if (b->precision == MFL_PRECISION_FP16)
                check_moved(b, kase, &seven);
        else if (strcmp(b->ops->name, "reference"))
                compare_with_reference(b, kase, &seven);
        if (!strcmp(b->ops->name, "cpu"))
                test_threads(b, kase, &seven);
        conf_report(single_agrees(b, kase, &seven, 0) && single_agrees(b, kase, &seven, 5),
                "%s: train %s: groups of 1 equal those of 7", b->label, kase->name);
        conf_report(update_agrees(b, &seven), "%s: train %s: update is exact", b->label, kase->name);
        if (b->ops->sum_new)
                conf_report(seven.moved, "%s: train %s: a sum that is moved is the sum that is taken",
                        b->label, kase->name);
        training_deinit(&seven);
}

void conf_test_training(const struct conf_backend *backend, const char *filter)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(train_cases); i++)
                if (strstr(train_cases[i].name, filter) && !(conf_quick && train_cases[i].deep))
                        test_training(backend, &train_cases[i]);
}
