/* SPDX-License-Identifier: Apache-2.0 */
/* Training by the CPU backend against the reference: optimizers, clipping, schedules, losses, accumulation,
 * with short batches and steps in which a group rests; single groups against three. */
#include "tests/unit/kernels/cpu_beside.h"

#define BATCH 4
#define STEPS 5
#define SAMPLES 23
#define PARTS_MAX 3

struct train_case {
        const char *name;
        struct mfl_shape input;
        int classes, vocabulary, n_targets, parts;
        bool ignores; /* labels of -1 */
        struct mfl_optimizer opt;
        struct mfl_loss loss;
        bool schedule;
        struct mfl_layer layers[LAYERS_MAX];
};

#define HEAD(from, n)                                                                                        \
        {                                                                                                    \
                .op = MFL_OP_DENSE, .input = from, .out_channels = n, .bias = true                           \
        }
#define ADAM .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-3f
#define MLP                                                                                                  \
        {                                                                                                    \
                HEAD(0, 17), {.op = MFL_OP_TANH, .input = 1}, HEAD(2, 5)                                     \
        }
#define LANGUAGE                                                                                             \
        {                                                                                                    \
                {.op = MFL_OP_EMBEDDING, .input = 0, .out_channels = 12, .vocabulary = 9},                   \
                        {.op = MFL_OP_WEIGHT, .input = -1, .shape = {2, {7, 12}}},                           \
                        {.op = MFL_OP_ADD, .input = 1, .input2 = 2},                                         \
                        {.op = MFL_OP_DROPOUT, .input = 3, .rate = 0.2f}, HEAD(4, 36),                       \
                        {.op = MFL_OP_ATTENTION, .input = 5, .heads = 2, .causal = true, .rate = 0.1f},      \
                        {.op = MFL_OP_LAYERNORM, .input = 6, .bias = true}, HEAD(7, 9)                       \
        }

static const struct train_case train_cases[] = {
        {.name = "Adam",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .weight_decay = 0.1f, ADAM}},
        {.name = "AdamW, proximal",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.kind = MFL_OPTIMIZER_ADAMW,
                        .lr = 0.01f,
                        .weight_decay = 0.1f,
                        .prox_mu = 0.1f,
                        ADAM}},
        {.name = "Adagrad",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.kind = MFL_OPTIMIZER_ADAGRAD, .lr = 0.05f, .eps = 1e-3f}},
        {.name = "SGD, clipped, scheduled",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.lr = 0.1f, .momentum = 0.9f, .clip_norm = 0.3f}},
        {.name = "SGD, scheduled",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .schedule = true,
                .opt = {.lr = 0.1f, .weight_decay = 0.1f}},
        {.name = "accumulated",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .parts = 3,
                .opt = {.lr = 0.1f, .momentum = 0.5f}},
        {.name = "Adam, accumulated and clipped",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .parts = 2,
                .opt = {.kind = MFL_OPTIMIZER_ADAM, .lr = 0.01f, .clip_norm = 0.2f, ADAM}},
        {.name = "smoothing",
                .input = IN1(13),
                .classes = 5,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.smoothing = 0.1f}},
        {.name = "binary",
                .input = IN1(13),
                .classes = 5,
                .n_targets = 5,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.kind = MFL_LOSS_BINARY}},
        {.name = "squared, accumulated",
                .input = IN1(13),
                .classes = 5,
                .n_targets = 5,
                .parts = 3,
                .layers = MLP,
                .opt = {.lr = 0.1f},
                .loss = {.kind = MFL_LOSS_SQUARED}},
        {.name = "language",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .ignores = true,
                .layers = LANGUAGE,
                .opt = {.lr = 0.1f}},
        {.name = "language, momentum",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .layers = LANGUAGE,
                .opt = {.lr = 0.1f, .momentum = 0.9f}},
        {.name = "language, AdamW, accumulated",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .ignores = true,
                .parts = 3,
                .layers = LANGUAGE,
                .opt = {.kind = MFL_OPTIMIZER_ADAMW,
                        .lr = 0.01f,
                        .weight_decay = 0.01f,
                        .clip_norm = 1,
                        ADAM}},
        {.name = "large vocabulary",
                .input = IN1(3),
                .classes = 1100,
                .vocabulary = 1100,
                .ignores = true,
                .opt = {.lr = 0.5f},
                .loss = {.smoothing = 0.1f},
                .layers = {{.op = MFL_OP_EMBEDDING, .input = 0, .out_channels = 6, .vocabulary = 1100},
                        HEAD(1, 1100)}},
        {.name = "LSTM",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .opt = {.lr = 0.5f},
                .layers = {{.op = MFL_OP_EMBEDDING, .input = 0, .out_channels = 5, .vocabulary = 9},
                        {.op = MFL_OP_LSTM, .input = 1, .out_channels = 11, .bias = true}, HEAD(2, 9)}},
        {.name = "LoRA on a frozen model",
                .input = IN1(7),
                .classes = 9,
                .vocabulary = 9,
                .opt = {.lr = 0.5f},
                .layers = {{.op = MFL_OP_EMBEDDING,
                                   .input = 0,
                                   .out_channels = 5,
                                   .vocabulary = 9,
                                   .frozen = true},
                        {.op = MFL_OP_DENSE, .input = 1, .out_channels = 8, .lora_rank = 2},
                        {.op = MFL_OP_GELU, .input = 2}, HEAD(3, 9)}},
        {.name = "depthwise, accumulated",
                .input = IN3(3, 5, 5),
                .classes = 4,
                .parts = 2,
                .opt = {.lr = 0.1f},
                .layers = {CONV(0, 16),
                        {.op = MFL_OP_CONV2D,
                                .input = 1,
                                .out_channels = 16,
                                .kernel = {3, 3},
                                .conv_groups = 16},
                        {.op = MFL_OP_DROPOUT, .input = 2, .rate = 0.3f}, {.op = MFL_OP_SILU, .input = 3},
                        {.op = MFL_OP_FLATTEN, .input = 4}, HEAD(5, 4)}},
};

/* A data set, what each group does with it, and the results. */
struct training {
        struct mfl_graph *graph;
        struct mfl_dataset set;
        uint32_t index[GROUPS][STEPS * BATCH * PARTS_MAX], count[GROUPS][STEPS];
        float lr_scale[STEPS], *first, *params;
        struct mfl_score score[GROUPS], eval;
};

static void make_set(struct training *t, const struct train_case *kase)
{
        size_t count = (size_t)mfl_shape_count(&kase->input), labels = (size_t)t->graph->positions;
        struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_TEST, 0, 0);
        float *targets = new_floats(SAMPLES * 8);
        int32_t *label = calloc(SAMPLES * labels, sizeof *label), *tokens = calloc(SAMPLES * count, 4);
        float *x = (float *)tokens;
        assert_true(label && tokens);
        t->set = (struct mfl_dataset){.name = "random",
                .shape = kase->input,
                .classes = kase->n_targets ? 0 : kase->classes,
                .vocabulary = kase->vocabulary,
                .n_targets = kase->n_targets,
                .labels_per_sample = (int)labels};
        for (int c = 0; c < MFL_CHANNELS_MAX; c++)
                t->set.scale[c] = 1;
        fill(x, SAMPLES * count, 4);
        for (size_t i = 0; kase->vocabulary && i < SAMPLES * count; i++)
                tokens[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)kase->vocabulary);
        for (size_t i = 0; i < SAMPLES * labels; i++)
                label[i] = (int32_t)mfl_rng_below(&rng, (uint32_t)kase->classes) -
                           (kase->ignores && i % 3 == 1 ? kase->classes : 0);
        for (size_t i = 0; i < SAMPLES * 8; i++)
                targets[i] = (float)mfl_rng_below(&rng, 2);
        t->set.train = (struct mfl_split){.n = SAMPLES,
                .dtype = kase->vocabulary ? MFL_I32 : MFL_F32,
                .samples = tokens,
                .labels = label,
                .targets = targets};
}

static void training_new(struct training *t, const struct train_case *kase)
{
        struct mfl_rng rng = mfl_rng_new(12, MFL_RNG_TEST, 0, 0);
        uint32_t rows = BATCH * (uint32_t)MFL_MAX(kase->parts, 1);
        *t = (struct training){
                .graph = graph_of(&kase->input, kase->layers, count_layers(kase->layers), kase->classes)};
        make_set(t, kase);
        for (uint32_t g = 0; g < GROUPS; g++)
                for (uint32_t s = 0; s < STEPS; s++) {
                        t->count[g][s] = (s + g) % 4 == 2 ? 0 : (s + g) % 2 ? rows : rows - 1 - g;
                        for (uint32_t i = 0; i < rows; i++)
                                t->index[g][s * rows + i] = mfl_rng_below(&rng, SAMPLES);
                }
        for (int s = 0; s < STEPS; s++)
                t->lr_scale[s] = 1.0f / (float)(1 + s);
        t->first = new_floats(GROUPS * t->graph->n);
        t->params = new_floats(GROUPS * t->graph->n);
        for (uint64_t g = 0; g < GROUPS; g++)
                mfl_graph_init_params(t->graph, g, t->first + g * t->graph->n);
}

static void training_free(struct training *t)
{
        free(t->set.train.samples);
        free(t->set.train.labels);
        free(t->set.train.targets);
        free(t->first);
        free(t->params);
        mfl_graph_free(t->graph);
}

/* Groups [first, first + groups), in two calls; then group `first` is scored. */
static void train(const struct mfl_backend_ops *ops, struct mfl_device *device, struct training *t,
        const struct train_case *kase, size_t first, int groups)
{
        struct mfl_net_options options = {.batch = BATCH,
                .groups = groups,
                .threads = 1,
                .training = true,
                .loss = kase->loss,
                .accumulate = kase->parts};
        struct mfl_group_steps steps[GROUPS] = {0};
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        struct mfl_error err = {""};
        uint32_t all[SAMPLES], rows = BATCH * (uint32_t)MFL_MAX(kase->parts, 1);
        if (ops->net_new(device, t->graph, &options, &net, &err) ||
                ops->data_new(device, &t->set, &t->set.train, true, &data, &err))
                fail_msg("%s", err.text);
        for (size_t g = 0; g < (size_t)groups; g++)
                assert_int_equal(mfl_backend_set(ops, net, t->graph, (int)g,
                                         t->first + (first + g) * t->graph->n, &err),
                        0);
        for (uint32_t s = 0; s < STEPS; s += 2) {
                for (size_t g = 0; g < (size_t)groups; g++) {
                        steps[g].index = t->index[first + g] + s * rows;
                        steps[g].count = t->count[first + g] + s;
                        steps[g].dropout = mfl_rng_derive(21, MFL_RNG_DROPOUT, first + g, 3);
                        steps[g].step_first = s;
                        steps[g].lr_scale = kase->schedule ? t->lr_scale + s : NULL;
                }
                if (ops->step(net, data, steps, MFL_MIN(2, STEPS - s), &kase->opt, &err))
                        fail_msg("%s: %s", kase->name, err.text);
        }
        for (size_t g = 0; g < (size_t)groups; g++) {
                t->score[first + g] = steps[g].score;
                assert_int_equal(
                        ops->params_get(net, (int)g, 0, t->params + (first + g) * t->graph->n, &err), 0);
        }
        for (uint32_t i = 0; i < SAMPLES; i++)
                all[i] = i;
        assert_int_equal(ops->eval(net, 0, data, all, SAMPLES, &t->eval, &err), 0);
        ops->data_free(data);
        ops->net_free(net);
}

/* Over the largest move that training made. */
static double move_distance(const struct training *a, const struct training *b)
{
        double most = 0, moved = 1e-30;
        for (size_t i = 0; i < GROUPS * b->graph->n; i++) {
                double d = fabs((double)a->params[i] - (double)b->params[i]);
                most = isfinite(d) ? fmax(most, d) : INFINITY;
                moved = fmax(moved, fabs((double)b->params[i] - (double)b->first[i]));
        }
        return most / moved;
}

static double loss_distance(const struct mfl_score *a, const struct mfl_score *b)
{
        return fabs(mfl_fixed_loss_to_double(a->loss_sum) - mfl_fixed_loss_to_double(b->loss_sum)) /
               (1e-30 + mfl_fixed_loss_to_double(b->loss_sum));
}

/* The rounding of a step, some 1e-6 of the largest gradient, grows a little over five steps. Adam divides by
 * a deviation, and so its eps is no smaller here. */
static void test_training(const struct train_case *kase)
{
        struct training want, three, one;
        training_new(&want, kase);
        training_new(&three, kase);
        training_new(&one, kase);
        train(&mfl_backend_reference, reference_device, &want, kase, 0, GROUPS);
        train(cpu, cpu_device, &three, kase, 0, GROUPS);
        for (size_t g = GROUPS; g-- > 0;)
                train(cpu, cpu_device, &one, kase, g, 1);
        double params = move_distance(&three, &want), eval = loss_distance(&three.eval, &want.eval);
        if (!(params < 1e-4 && eval < 1e-5))
                fail_msg("%s: params %.1e eval %.1e", kase->name, params, eval);
        for (int g = 0; g < GROUPS; g++) {
                assert_true(loss_distance(&three.score[g], &want.score[g]) < 1e-5);
                assert_int_equal(three.score[g].n_correct, want.score[g].n_correct);
                assert_int_equal(three.score[g].n_scored, want.score[g].n_scored);
        }
        assert_memory_equal(one.params, three.params, GROUPS * want.graph->n * sizeof(float));
        assert_memory_equal(one.score, three.score, sizeof one.score);
        training_free(&want);
        training_free(&three);
        training_free(&one);
}

static void training_agrees(void **state)
{
        if (!cpu)
                skip_for("this build has no CPU backend (Debian: libdnnl-dev)");
        for (size_t i = 0; i < MFL_ARRAY_SIZE(train_cases); i++)
                test_training(&train_cases[i]);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(training_agrees),
        };
        return cmocka_run_group_tests_name("cpu_training", tests, open_devices, close_devices);
}
