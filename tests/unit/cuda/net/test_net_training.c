/* SPDX-License-Identifier: Apache-2.0 */
/* Losses, optimizers and steps of several batches on the emulated device: local trainings near the
 * reference's, single clients with the bits of clients together, streamed data with the bits of resident
 * data. */
#include "tests/unit/cuda/net/net_test.h"

#include <math.h>

#define GROUPS 3
#define BATCH 3
#define STEPS 5
#define SAMPLES 23
#define PARTS_MAX 3

enum data_kind {
        IMAGES,    /* class labels */
        TOKENS,    /* a label at each position, some ignored */
        TARGETS01, /* numbers in [0, 1] */
};

struct train_case {
        const char *name;
        enum data_kind data;
        struct mfl_optimizer opt;
        struct mfl_loss loss;
        int accumulate, classes;
        bool rates, augment;
};

/* The bias of keys has no gradient except from rounding: eps is far above that. */
#define ADAM .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-2f
static const struct train_case cases[] = {
        {"sgd with rates", IMAGES, {.lr = 0.1f, .momentum = 0.9f}, {0}, 1, 4, true, false},
        {"sgd clipped", IMAGES, {.lr = 0.1f, .nesterov = true, .momentum = 0.5f, .clip_norm = 0.05f}, {0}, 1,
                4, false, false},
        {"adam", IMAGES, {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .weight_decay = 0.01f, ADAM}, {0}, 1, 4,
                true, true},
        {"adamw of parts", IMAGES,
                {.kind = MFL_OPTIMIZER_ADAMW, .lr = 0.01f, .weight_decay = 0.1f, .prox_mu = 0.1f, ADAM},
                {.smoothing = 0.1f}, PARTS_MAX, 4, false, true},
        {"adagrad", IMAGES, {.kind = MFL_OPTIMIZER_ADAGRAD, .lr = 0.05f, .eps = 1e-3f, .clip_norm = 1.0f},
                {0}, 2, 4, true, false},
        {"tokens", TOKENS, {.lr = 0.2f, .momentum = 0.9f}, {0}, 1, 7, false, false},
        {"tokens of parts", TOKENS, {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .clip_norm = 0.5f, ADAM},
                {.smoothing = 0.2f}, 2, 7, true, false},
        {"tokens of many classes", TOKENS, {.lr = 0.2f}, {.smoothing = 0.2f}, 1, 90, false, false},
        {"binary", TARGETS01, {.lr = 0.1f}, {.kind = MFL_LOSS_BINARY}, 1, 3, false, false},
        {"squared of parts", TARGETS01, {.lr = 0.1f}, {.kind = MFL_LOSS_SQUARED}, 2, 3, true, false},
};

static struct mfl_graph *graph_of(const struct train_case *c)
{
        const struct mfl_layer image[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {3, {2, 5, 4}}},
                {.op = MFL_OP_CONV2D, .out_channels = 5, .kernel = {3, 3}, .padding = {1, 1}, .bias = true},
                {.op = MFL_OP_SILU, .input = 1},
                {.op = MFL_OP_DROPOUT, .input = 2, .rate = 0.25f},
                {.op = MFL_OP_GLOBAL_AVGPOOL2D, .input = 3},
                {.op = MFL_OP_DENSE, .input = 4, .out_channels = 9, .bias = true},
                {.op = MFL_OP_TANH, .input = 5},
                {.op = MFL_OP_DENSE, .input = 6, .out_channels = c->classes, .bias = true},
        };
        const struct mfl_layer tokens[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {1, {6}}},
                {.op = MFL_OP_EMBEDDING, .vocabulary = 9, .out_channels = 8},
                {.op = MFL_OP_WEIGHT, .shape = {2, {6, 8}}},
                {.op = MFL_OP_ADD, .input = 1, .input2 = 2},
                {.op = MFL_OP_DROPOUT, .input = 3, .rate = 0.1f},
                {.op = MFL_OP_LAYERNORM, .input = 4, .bias = true},
                {.op = MFL_OP_DENSE, .input = 5, .out_channels = 24, .bias = true},
                {.op = MFL_OP_ATTENTION, .input = 6, .heads = 2, .causal = true, .rate = 0.25f},
                {.op = MFL_OP_ADD, .input = 4, .input2 = 7},
                {.op = MFL_OP_GRU, .input = 8, .out_channels = 6, .bias = true},
                {.op = MFL_OP_DENSE, .input = 9, .out_channels = 16, .bias = true},
                {.op = MFL_OP_GELU, .input = 10},
                {.op = MFL_OP_DENSE, .input = 11, .out_channels = c->classes, .bias = true},
        };
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        int rc = c->data == TOKENS
                         ? mfl_graph_build(c->name, tokens, MFL_ARRAY_SIZE(tokens), c->classes, &graph, &err)
                         : mfl_graph_build(c->name, image, MFL_ARRAY_SIZE(image), c->classes, &graph, &err);
        if (rc)
                fail_msg("%s: %s", c->name, err.text);
        return graph;
}

struct data {
        struct mfl_dataset set;
        uint32_t index[GROUPS][STEPS * BATCH * PARTS_MAX], count[GROUPS][STEPS];
        float scale[STEPS];
        float *first; /* [GROUPS][n] */
};

static void make_samples(const struct train_case *c, const struct mfl_graph *graph, struct data *d)
{
        struct mfl_rng rng = mfl_rng_new(41, MFL_RNG_TEST, 0, 0);
        size_t count = (size_t)mfl_shape_count(&graph->input), answers = c->data == TOKENS ? 6 : 1;
        struct mfl_split *split = &d->set.train;
        *split = (struct mfl_split){.n = SAMPLES, .dtype = c->data == TOKENS ? MFL_I32 : MFL_U8};
        d->set.shape = graph->input;
        d->set.classes = c->data == TARGETS01 ? 0 : c->classes;
        d->set.vocabulary = c->data == TOKENS ? 9 : 0;
        d->set.labels_per_sample = c->data == TOKENS ? 6 : 0;
        d->set.n_targets = c->data == TARGETS01 ? c->classes : 0;
        for (int k = 0; k < MFL_CHANNELS_MAX; k++) {
                d->set.scale[k] = 1.0f / 100.0f;
                d->set.shift[k] = -1.0f;
        }
        split->samples = mfl_malloc(SAMPLES * count * 4);
        split->labels = mfl_malloc(SAMPLES * answers * sizeof(int32_t));
        split->targets = mfl_malloc(SAMPLES * (size_t)c->classes * sizeof(float));
        assert_true(split->samples && split->labels && split->targets);
        for (size_t i = 0; i < SAMPLES * count; i++)
                if (c->data == TOKENS)
                        ((int32_t *)split->samples)[i] = (int32_t)mfl_rng_below(&rng, 9);
                else
                        ((uint8_t *)split->samples)[i] = (uint8_t)mfl_rng_below(&rng, 256);
        for (size_t i = 0; i < SAMPLES * answers; i++) {
                bool ignored = c->data == TOKENS && mfl_rng_below(&rng, 3) == 0;
                split->labels[i] = ignored ? -1 : (int32_t)mfl_rng_below(&rng, (uint32_t)c->classes);
        }
        for (size_t i = 0; i < SAMPLES * (size_t)c->classes; i++)
                split->targets[i] = (float)mfl_rng_below(&rng, 5) / 4.0f;
}

static void data_init(const struct train_case *c, const struct mfl_graph *graph, struct data *d)
{
        struct mfl_rng rng = mfl_rng_new(42, MFL_RNG_TEST, 0, 0);
        uint32_t most = BATCH * (uint32_t)c->accumulate;
        *d = (struct data){0};
        make_samples(c, graph, d);
        d->first = mfl_malloc(GROUPS * (size_t)graph->n * sizeof(float));
        assert_non_null(d->first);
        for (uint32_t g = 0; g < GROUPS; g++) {
                mfl_graph_init_params(graph, g, d->first + g * graph->n);
                for (uint32_t t = 0; t < STEPS; t++)
                        d->count[g][t] = (t + g) % 4 == 2   ? 0
                                         : (t + g) % 3 == 1 ? 1 + (2 * g + t) % most
                                                            : most;
                for (uint32_t i = 0; i < STEPS * BATCH * PARTS_MAX; i++)
                        d->index[g][i] = mfl_rng_below(&rng, SAMPLES);
        }
        for (uint32_t t = 0; t < STEPS; t++)
                d->scale[t] = 1.0f / (1.0f + (float)t);
}

static void data_deinit(struct data *d)
{
        free(d->set.train.samples);
        free(d->set.train.labels);
        free(d->set.train.targets);
        free(d->first);
}

struct result {
        float *params;
        struct mfl_score score[GROUPS], eval;
        uint64_t n_samples[GROUPS];
};

static void must(int rc, const struct mfl_error *err, const char *what)
{
        if (rc)
                fail_msg("%s: %d: %s", what, rc, err->text);
}

struct how {
        const struct mfl_backend_ops *ops;
        struct mfl_device *device;
        enum mfl_precision precision;
        int first, groups;
        bool streamed;
        uint32_t chunk; /* steps of a call */
};

static void run_steps(const struct how *how, const struct train_case *c, const struct data *d,
        struct mfl_net *net, struct mfl_device_data *data, struct result *r)
{
        struct mfl_error err = {""};
        for (uint32_t at = 0, n; at < STEPS; at += n) {
                struct mfl_group_steps steps[GROUPS];
                n = MFL_MIN(how->chunk, STEPS - at);
                for (int g = 0; g < how->groups; g++) {
                        uint32_t who = (uint32_t)(how->first + g);
                        steps[g] = (struct mfl_group_steps){
                                .index = d->index[who] + at * BATCH * (uint32_t)c->accumulate,
                                .count = d->count[who] + at,
                                .dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, who, 3),
                                .augment = mfl_rng_derive(21, MFL_RNG_AUGMENT, who, 3),
                                .step_first = at,
                                .lr_scale = c->rates ? d->scale + at : NULL,
                                .score = r->score[g],
                                .n_samples = r->n_samples[g]};
                }
                must(how->ops->step(net, data, steps, n, &c->opt, &err), &err, c->name);
                for (int g = 0; g < how->groups; g++) {
                        r->score[g] = steps[g].score;
                        r->n_samples[g] = steps[g].n_samples;
                }
        }
}

static struct result train(const struct how *how, const struct train_case *c, const struct mfl_graph *graph,
        const struct data *d)
{
        struct mfl_net_options options = {.batch = BATCH,
                .groups = how->groups,
                .threads = 1,
                .training = true,
                .precision = how->precision,
                .streamed = how->streamed,
                .loss = c->loss,
                .accumulate = c->accumulate};
        struct mfl_error err = {""};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct result r = {.params = mfl_malloc((size_t)how->groups * (size_t)graph->n * sizeof(float))};
        uint32_t all[SAMPLES];
        assert_non_null(r.params);
        if (c->augment)
                options.augment = (struct mfl_augment){.crop = 1, .flip = true};
        must(how->ops->net_new(how->device, graph, &options, &net, &err), &err, c->name);
        must(how->ops->data_new(how->device, &d->set, &d->set.train, !how->streamed, &data, &err), &err,
                c->name);
        for (int g = 0; g < how->groups; g++)
                must(mfl_backend_set(
                             how->ops, net, graph, g, d->first + (size_t)(how->first + g) * graph->n, &err),
                        &err, c->name);
        run_steps(how, c, d, net, data, &r);
        for (uint32_t i = 0; i < SAMPLES; i++)
                all[i] = SAMPLES - 1 - i;
        for (int g = 0; g < how->groups; g++)
                must(how->ops->params_get(net, g, 0, r.params + (size_t)g * graph->n, &err), &err, c->name);
        must(how->ops->eval(net, 0, data, all, SAMPLES, &r.eval, &err), &err, c->name);
        how->ops->data_free(data);
        how->ops->net_free(net);
        return r;
}

/* Largest difference over the largest move. */
static double distance(const float *a, const float *b, const float *first, size_t n)
{
        double most = 0, moved = 1e-30;
        for (size_t i = 0; i < n; i++) {
                double d = fabs((double)a[i] - (double)b[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)b[i] - (double)first[i]));
        }
        return most / moved;
}

static void assert_loss_near(const char *name, int64_t a, int64_t b, double bound)
{
        double x = mfl_fixed_loss_to_double(a), y = mfl_fixed_loss_to_double(b);
        if (!(fabs(x - y) <= bound * y))
                fail_msg("%s: loss %g, not %g", name, x, y);
}

static void trainings_are_near_the_references(void **state)
{
        /* fp32: the rounding of a few steps. The bounds of smaller formats only show that it is the same
         * training; fp16 skips steps while its scale settles. */
        static const double bounds[MFL_PRECISION_COUNT_] = {2e-4, 0.1, 0.5, INFINITY};
        struct mfl_device *reference = NULL;
        assert_int_equal(mfl_backend_reference.device_open(&reference, NULL), 0);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const struct train_case *c = &cases[i];
                struct mfl_graph *graph = graph_of(c);
                struct data d;
                data_init(c, graph, &d);
                struct how how = {
                        &mfl_backend_reference, reference, MFL_PRECISION_FP32, 0, GROUPS, false, STEPS};
                struct result want = train(&how, c, graph, &d);
                for (int p = 0; p < MFL_PRECISION_FP16; p++) {
                        how = (struct how){&mfl_backend_module, net_device(), (enum mfl_precision)p, 0,
                                GROUPS, false, STEPS};
                        struct result got = train(&how, c, graph, &d);
                        double far = distance(got.params, want.params, d.first, GROUPS * (size_t)graph->n);
                        if (!(far < bounds[p]))
                                fail_msg("%s: precision %d: %g, bound %g", c->name, p, far, bounds[p]);
                        for (int g = 0; g < GROUPS; g++) {
                                assert_loss_near(
                                        c->name, got.score[g].loss_sum, want.score[g].loss_sum, bounds[p]);
                                assert_int_equal(got.score[g].n_scored, want.score[g].n_scored);
                                assert_int_equal(got.n_samples[g], want.n_samples[g]);
                                if (p == MFL_PRECISION_FP32)
                                        assert_int_equal(got.score[g].n_correct, want.score[g].n_correct);
                        }
                        assert_loss_near(c->name, got.eval.loss_sum, want.eval.loss_sum, bounds[p]);
                        assert_int_equal(got.eval.n_scored, want.eval.n_scored);
                        free(got.params);
                }
                free(want.params);
                data_deinit(&d);
                mfl_graph_free(graph);
        }
        mfl_backend_reference.device_close(reference);
}

/* Alone, in calls of two steps, from the host's memory. */
static void circumstances_do_not_matter(void **state)
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const struct train_case *c = &cases[i];
                struct mfl_graph *graph = graph_of(c);
                struct data d;
                data_init(c, graph, &d);
                enum mfl_precision precision = i % 2 ? MFL_PRECISION_FP16 : MFL_PRECISION_FP32;
                struct how how = {&mfl_backend_module, net_device(), precision, 0, GROUPS, false, STEPS};
                struct result all = train(&how, c, graph, &d);
                how = (struct how){&mfl_backend_module, net_device(), precision, 1, 1, true, 2};
                struct result one = train(&how, c, graph, &d);
                assert_memory_equal(one.params, all.params + graph->n, (size_t)graph->n * sizeof(float));
                assert_int_equal(one.score[0].loss_sum, all.score[1].loss_sum);
                assert_int_equal(one.score[0].n_correct, all.score[1].n_correct);
                assert_int_equal(one.score[0].n_scored, all.score[1].n_scored);
                assert_memory_not_equal(one.params, d.first + graph->n, (size_t)graph->n * sizeof(float));
                free(all.params);
                free(one.params);
                data_deinit(&d);
                mfl_graph_free(graph);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(trainings_are_near_the_references),
                cmocka_unit_test(circumstances_do_not_matter),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
