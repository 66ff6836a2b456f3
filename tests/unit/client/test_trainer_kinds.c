/* SPDX-License-Identifier: Apache-2.0 */
/* What a job may ask of the trainer: optimizers, schedules, accumulation, losses, tokens, target values. On
 * the reference backend; the same bits for any number of threads and of clients trained at once. */
#include "tests/lib/test.h"

#include <math.h>
#include <stdio.h>

#include "client/noise/site.h"
#include "client/train/trainer.h"
#include "common/job/job.h"
#include "common/partition/partition.h"

#define N_TRAIN 61
#define N_TEST 13
#define LENGTH 6 /* tokens */
#define VOCABULARY 5
#define NAME "test-daemon"

/* One data set, as a daemon has it, and the params that tasks start from. */
struct world {
        struct mfl_dataset set;
        struct mfl_device *device;
        struct mfl_graph *graph;
        float *params;
        struct mfl_fixed fixed;
};

static void fill_split(struct world *w, struct mfl_split *split, uint32_t n, uint64_t stream)
{
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, stream, 0);
        bool tokens = w->set.vocabulary > 0;
        size_t each = (size_t)mfl_shape_count(&w->set.shape);
        size_t labels = mfl_dataset_labels_per_sample(&w->set), targets = (size_t)w->set.n_targets;
        *split = (struct mfl_split){.n = n, .dtype = tokens ? MFL_I32 : MFL_F32};
        split->samples = mfl_malloc(n * each * 4);
        for (size_t i = 0; i < n * each; i++) {
                if (tokens)
                        ((int32_t *)split->samples)[i] = (int32_t)mfl_rng_below(&rng, VOCABULARY);
                else
                        ((float *)split->samples)[i] = (float)mfl_rng_below(&rng, 17) / 8 - 1;
        }
        split->labels = targets ? NULL : mfl_malloc(n * labels * sizeof(int32_t));
        for (size_t i = 0; split->labels && i < n * labels; i++) /* of tokens every seventh is not scored */
                split->labels[i] = tokens && i % 7 == 3 ? -1 : (int32_t)mfl_rng_below(&rng, VOCABULARY);
        split->targets = targets ? mfl_malloc(n * targets * sizeof(float)) : NULL;
        for (size_t i = 0; i < n * targets; i++)
                split->targets[i] = (float)mfl_rng_below(&rng, 2);
}

/* text is the job whose graph the params are of. */
static void open_world(struct world *w, const struct mfl_dataset *set, const char *text)
{
        struct mfl_error err = {""};
        struct mfl_job *job;
        *w = (struct world){.set = *set};
        mfl_strcpy(w->set.name, sizeof w->set.name, "toy");
        w->set.scale[0] = 1;
        fill_split(w, &w->set.train, N_TRAIN, 1);
        fill_split(w, &w->set.test, N_TEST, 2);
        assert_int_equal(mfl_backend_reference.device_open(&w->device, &err), 0);
        if (mfl_job_parse(text, strlen(text), "t", &job, &err) ||
                mfl_job_graph(
                        job, &w->set.shape, set->n_targets ? set->n_targets : set->classes, &w->graph, &err))
                fail_msg("%s", err.text);
        w->params = mfl_malloc(w->graph->n * sizeof(float));
        mfl_graph_init_params(w->graph, 3, w->params);
        assert_int_equal(mfl_fixed_choose(16, 256, &w->fixed, &err), 0);
        mfl_job_free(job);
}

static void close_world(struct world *w)
{
        struct mfl_split *splits[] = {&w->set.train, &w->set.test};
        for (int i = 0; i < 2; i++) {
                free(splits[i]->samples);
                free(splits[i]->labels);
                free(splits[i]->targets);
        }
        free(w->params);
        mfl_graph_free(w->graph);
        mfl_backend_reference.device_close(w->device);
}

static const struct mfl_site_privacy *privacy; /* of trainers to come */

static struct mfl_trainer *new_trainer_of(
        struct world *w, const struct mfl_backend_ops *ops, uint32_t workers, struct mfl_activity *activity)
{
        struct mfl_error err;
        const struct mfl_dataset *data_sets[] = {&w->set};
        uint64_t fingerprint = 77;
        struct mfl_trainer_options options = {.ops = ops,
                .device = w->device,
                .workers = workers,
                .name = NAME,
                .n_data_sets = 1,
                .data_sets = data_sets,
                .fingerprints = &fingerprint,
                .privacy = privacy,
                .activity = activity};
        struct mfl_trainer *trainer;
        assert_int_equal(mfl_trainer_new(&options, &trainer, &err), 0);
        return trainer;
}

static struct mfl_trainer *new_trainer(struct world *w, uint32_t workers)
{
        return new_trainer_of(w, &mfl_backend_reference, workers, NULL);
}

static int run_kind(struct world *w, struct mfl_trainer *trainer, const char *text, enum mfl_task_kind kind,
        uint64_t *items, uint32_t n, struct mfl_train_result **ret_result, struct mfl_error *err)
{
        struct mfl_task task = {.task = 1,
                .job = "j-000001",
                .round = 2,
                .kind = kind,
                .n_items = n,
                .items = items,
                .n_params = w->graph->n,
                .fixed = w->fixed};
        struct mfl_train_control control = {0};
        struct mfl_train_request request = {
                .task = &task, .job_text = text, .params = w->params, .control = &control};
        return mfl_trainer_run(trainer, &request, ret_result, err);
}

static struct mfl_train_result *train(
        struct world *w, struct mfl_trainer *trainer, const char *text, uint64_t *items, uint32_t n)
{
        struct mfl_error err = {""};
        struct mfl_train_result *result;
        if (run_kind(w, trainer, text, MFL_TASK_TRAIN, items, n, &result, &err))
                fail_msg("%s", err.text);
        assert_int_equal(result->n_updates, 1);
        assert_int_equal(result->updates[0].n_rejected, 0);
        return result;
}

/* Four clients on `workers` threads, `fuse` at once, against `want` (taken over where it is NULL). */
static void check_bits(struct world *w, const char *form, uint32_t workers, int fuse,
        struct mfl_announce *total, int64_t **want)
{
        char text[1024];
        uint64_t items[] = {0, 1, 2, 3};
        snprintf(text, sizeof text, form, fuse);
        struct mfl_trainer *trainer = new_trainer(w, workers);
        struct mfl_train_result *result = train(w, trainer, text, items, 4);
        size_t bytes = w->graph->n * sizeof(int64_t);
        if (*want) {
                assert_memory_equal(result->data[0], *want, bytes);
                assert_int_equal(result->updates[0].loss_sum, total->loss_sum);
                assert_int_equal(result->updates[0].samples, total->samples);
        } else {
                *want = mfl_malloc(bytes);
                memcpy(*want, result->data[0], bytes);
                *total = result->updates[0];
        }
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void check_any_cut(struct world *w, const char *form, struct mfl_announce *total)
{
        int64_t *want = NULL;
        check_bits(w, form, 1, 1, total, &want);
        check_bits(w, form, 2, 1, total, &want);
        check_bits(w, form, 1, 3, total, &want);
        check_bits(w, form, 2, 2, total, &want);
        free(want);
}

/* ---- class labels ---- */

static const struct mfl_dataset labelled = {.shape = {1, {4}}, .classes = VOCABULARY};
#define LABELLED                                                                                             \
        "name: t\nrounds: 3\nseed: 11\nmodel: {layers: [{dense: {units: 7}}, tanh, {dense: {units: 5}}]}\n"
static const char local_adam[] = LABELLED
        "data: {name: toy, partition: local}\n"
        "training: {optimizer: adamw, lr: 0.05, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.1,\n"
        "  clip_norm: 0.5, batch: 4, accumulate: 3, epochs: 2, label_smoothing: 0.1,\n"
        "  schedule: {kind: cosine, per: step, warmup: 3}}\n";

/* The specification of a local training, written out: the backend called one step at a time. */
static void a_client_is_trained_as_the_job_says(void **state)
{
        struct world w;
        struct mfl_error err;
        uint64_t item;
        open_world(&w, &labelled, local_adam);
        struct mfl_trainer *trainer = new_trainer(&w, 1);
        assert_int_equal(mfl_partition_site_client("", NAME, &item, &err), 0);
        struct mfl_train_result *result = train(&w, trainer, local_adam, &item, 1);

        const struct mfl_backend_ops *ops = &mfl_backend_reference;
        struct mfl_net_options options = {.batch = 4,
                .groups = 1,
                .threads = 1,
                .training = true,
                .accumulate = 3,
                .loss = {MFL_LOSS_CROSS_ENTROPY, 0.1f}};
        struct mfl_optimizer opt = {.kind = MFL_OPTIMIZER_ADAMW,
                .lr = 0.05f,
                .beta1 = 0.8f,
                .beta2 = 0.95f,
                .eps = 1e-6f,
                .weight_decay = 0.1f,
                .clip_norm = 0.5f};
        struct mfl_net *net;
        struct mfl_device_data *data;
        struct mfl_job *job;
        assert_int_equal(mfl_job_parse(local_adam, strlen(local_adam), "t", &job, &err), 0);
        assert_int_equal(ops->net_new(w.device, w.graph, &options, &net, &err), 0);
        assert_int_equal(ops->data_new(w.device, &w.set, &w.set.train, true, &data, &err), 0);
        assert_int_equal(mfl_backend_set(ops, net, w.graph, 0, w.params, &err), 0);
        struct mfl_group_steps group = {.dropout = mfl_rng_derive(11, MFL_RNG_DROPOUT, item, 2)};
        uint32_t order[N_TRAIN], step = 0, n_steps = 2 * ((N_TRAIN + 11) / 12);
        for (uint32_t epoch = 0; epoch < 2; epoch++) {
                for (uint32_t i = 0; i < N_TRAIN; i++)
                        order[i] = i;
                struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_SHUFFLE, item, 2 * 65536 + epoch);
                mfl_rng_shuffle(&rng, order, N_TRAIN);
                for (uint32_t at = 0; at < N_TRAIN; at += 12, step++) {
                        uint32_t count = MFL_MIN(12u, N_TRAIN - at);
                        float scale = mfl_job_lr_scale(job, 2, step, n_steps);
                        group.index = order + at;
                        group.count = &count;
                        group.lr_scale = &scale;
                        group.step_first = step;
                        assert_int_equal(ops->step(net, data, &group, 1, &opt, &err), 0);
                }
        }
        float *after = mfl_malloc(w.graph->n * sizeof(float));
        assert_int_equal(ops->params_get(net, 0, 0, after, &err), 0);
        for (uint64_t i = 0; i < w.graph->n; i++)
                assert_true(((float *)result->data[0])[i] == after[i] - w.params[i]);
        assert_int_equal(result->updates[0].loss_sum, group.score.loss_sum);
        assert_int_equal(step, n_steps);
        free(after);
        mfl_job_free(job);
        ops->data_free(data);
        ops->net_free(net);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
        close_world(&w);
}

/* Clients of unlike sizes, each with as many steps, and so its own schedule. */
static void schedules_do_not_depend_on_lanes(void **state)
{
        static const char *const forms[] = {
                "optimizer: adam, schedule: {kind: cosine, per: step, warmup: 2}",
                "optimizer: adagrad, clip_norm: 0.3, schedule: {kind: linear, per: step, min: 0.1}",
                "momentum: 0.9, accumulate: 2, schedule: {kind: step, every: 1, factor: 0.5}",
        };
        struct world w;
        struct mfl_announce first = {0}, total;
        open_world(&w, &labelled, local_adam);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(forms); i++) {
                char form[1024];
                snprintf(form, sizeof form,
                        LABELLED "data: {name: toy, partition: size, sizes: [5, 30, 9, 17]}\n"
                                 "training: {lr: 0.1, epochs: 2, batch: 4, fuse: %%d, %s}\n",
                        forms[i]);
                check_any_cut(&w, form, &total);
                assert_int_equal(total.samples, 2 * N_TRAIN);
                assert_true(total.loss_sum != first.loss_sum);
                first = total;
        }
        close_world(&w);
}

/* ---- tokens ---- */

static const struct mfl_dataset tokens = {
        .shape = {1, {LENGTH}}, .classes = VOCABULARY, .vocabulary = VOCABULARY, .labels_per_sample = LENGTH};
#define TOKENS(data, more)                                                                                   \
        "name: t\nrounds: 3\nseed: 11\nmodel: {layers: [{embedding: {features: 3, vocabulary: 8}},\n"        \
        "  {lstm: {units: 4}}, {dense: {units: 5}}]}\ndata: {name: toy, " data "}\n"                         \
        "training: {lr: 0.1, batch: 4" more "}\nevaluation: {batch: 5}\n"

static uint64_t n_scored(const struct mfl_split *split)
{
        uint64_t n = 0;
        for (size_t i = 0; i < (size_t)split->n * LENGTH; i++)
                n += split->labels[i] >= 0;
        return n;
}

/* What counts as a sample in metrics is a prediction; weights are samples, that is rows. */
static void tokens_are_scored_one_by_one(void **state)
{
        struct world w;
        struct mfl_error err = {""};
        struct mfl_announce total;
        struct mfl_train_result *result;
        uint64_t shards[] = {0, 1, 2};
        open_world(&w, &tokens, TOKENS("partition: local", ""));
        check_any_cut(&w, TOKENS("partition: iid, clients: 4", ", fuse: %d"), &total);
        assert_int_equal(total.samples, n_scored(&w.set.train));
        assert_int_equal(total.weight, N_TRAIN);
        assert_in_range(total.correct, 1, total.samples);
        struct mfl_trainer *trainer = new_trainer(&w, 2);
        if (run_kind(&w, trainer, TOKENS("partition: iid, clients: 4", ""), MFL_TASK_EVAL, shards, 3, &result,
                    &err))
                fail_msg("%s", err.text);
        uint64_t samples = 0;
        for (uint32_t i = 0; i < result->n_eval; i++)
                samples += result->eval[i].samples;
        assert_int_equal(samples, n_scored(&w.set.test));
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
        close_world(&w);
}

/* ---- target values ---- */

static const struct mfl_dataset valued = {.shape = {1, {4}}, .n_targets = 2};
#define VALUED(data, more)                                                                                   \
        "name: t\nrounds: 3\nseed: 11\nmodel: {layers: [{dense: {units: 2}}]}\n"                             \
        "data: {name: toy, " data "}\ntraining: {lr: 0.1, batch: 4" more "}\n"

static void targets_are_met_by_either_loss(void **state)
{
        struct world w;
        struct mfl_error err = {""};
        struct mfl_announce total;
        struct mfl_train_result *result;
        uint64_t shard = 0, units = 0;
        open_world(&w, &valued, VALUED("partition: local", ", loss: squared"));
        check_any_cut(&w, VALUED("partition: iid, clients: 4", ", loss: squared, fuse: %d"), &total);
        assert_int_equal(total.samples, 2 * N_TRAIN);
        assert_int_equal(total.correct, 0);
        check_any_cut(&w, VALUED("partition: iid, clients: 4", ", loss: binary, fuse: %d"), &total);
        assert_int_equal(total.samples, 2 * N_TRAIN);
        assert_in_range(total.correct, 1, total.samples - 1);
        /* A model of zeros is as far from each target as the target is large: 0 or 1. */
        memset(w.params, 0, w.graph->n * sizeof(float));
        struct mfl_trainer *trainer = new_trainer(&w, 1);
        if (run_kind(&w, trainer, VALUED("partition: iid, clients: 4", ", loss: squared"), MFL_TASK_EVAL,
                    &shard, 1, &result, &err))
                fail_msg("%s", err.text);
        for (uint32_t i = 0; i < 2 * N_TEST; i++)
                units += w.set.test.targets[i] > 0.5f;
        assert_int_equal(result->eval[0].samples, 2 * N_TEST);
        assert_int_equal(result->eval[0].loss_sum, (int64_t)units << 32);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
        close_world(&w);
}

/* ---- refusals ---- */

static void assert_refused(struct world *w, const char *text, const char *want)
{
        struct mfl_error err = {""};
        struct mfl_train_result *result;
        uint64_t item = 0;
        struct mfl_trainer *trainer = new_trainer(w, 1);
        int r = run_kind(w, trainer, text, MFL_TASK_TRAIN, &item, 1, &result, &err);
        assert_string_equal(err.text, want);
        assert_int_equal(r, MFL_INVALID);
        mfl_trainer_free(trainer);
}

static void what_does_not_go_together_is_refused(void **state)
{
        struct world w;
        open_world(&w, &valued, VALUED("partition: local", ", loss: squared"));
        assert_refused(&w, VALUED("partition: iid, clients: 4", ""),
                "data set toy has 2 target values per sample and no labels: training.loss must be one "
                "of binary, squared, huber, smooth-l1 and l1");
        close_world(&w);
        open_world(&w, &labelled, local_adam);
        assert_refused(&w,
                LABELLED "data: {name: toy, partition: iid, clients: 4}\ntraining: {lr: 1, loss: binary}\n",
                "data set toy has labels and no target values: training.loss must be one of "
                "cross-entropy and focal");
        assert_refused(&w,
                LABELLED
                "data: {name: toy, partition: iid, clients: 4}\ntraining: {lr: 1, precision: bf16}\n",
                "backend reference: precision bf16 needs the cuda backend, or cpu on a processor with "
                "avx512_bf16 or amx_bf16");
        close_world(&w);
        open_world(&w, &tokens, TOKENS("partition: local", ""));
        assert_refused(&w,
                "name: t\nrounds: 3\nmodel: {layers: [{embedding: {features: 3, vocabulary: 4}},\n"
                "  {lstm: {units: 4}}, {dense: {units: 5}}]}\ndata: {name: toy, partition: iid, clients: 4}\n"
                "training: {lr: 0.1}\n",
                "data set toy has a vocabulary of 5 tokens, but model t expects 4 (0: no tokens)");
        close_world(&w);
}

/* Noise in shares has the units of a grid that comes from the server: one that has no room for it is refused, and breaks nothing. */
static void a_grid_has_room_for_noise(void **state)
{
        static const struct mfl_secret secret = {{1}};
        static const struct mfl_site_privacy site = {.secret = &secret};
        static const char text[] = LABELLED
                "data: {name: toy, partition: iid, clients: 4}\ntraining: {lr: 0.1}\nevaluation: {every: 0}\n"
                "secure_sum: {bits: 64}\n"
                "privacy: {kind: distributed, clip: 1, noise: 2, epsilon_max: 8, delta: 1e-5}\n";
        static const struct mfl_fixed bad[] = {{60, 0x1p-20f, 4, 0, 0, 0}, {24, 16, 4, 0, 0, 0},
                {20, 0.5f, 4, 0, 0, 0}, {5, 16, 4, 0, 0, 0}, {-120, 16, 4, 0, 0, 0}};
        struct world w;
        struct mfl_error err;
        struct mfl_train_result *result;
        privacy = &site;
        open_world(&w, &labelled, text);
        struct mfl_trainer *trainer = new_trainer(&w, 1);
        w.fixed.scale_bits = 20;
        uint64_t items[] = {0, 1, 2, 3};
        mfl_trainer_result_free(trainer, train(&w, trainer, text, items, 4));
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                w.fixed = bad[i];
                assert_int_equal(
                        run_kind(&w, trainer, text, MFL_TASK_TRAIN, items, 4, &result, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, i < 3 ? "the server's grid has no room" : "privacy"));
        }
        mfl_trainer_free(trainer);
        close_world(&w);
        privacy = NULL;
}

/* ---- where the time goes ---- */

/* Everybody is idle after a task, however it ended; what was trained is counted, and no time is lost. */
static struct mfl_activity_figures check_idle(struct mfl_activity *activity, uint64_t begin_ns)
{
        struct mfl_activity_figures f;
        uint64_t now_ns = mfl_now_ns(), sum_us = 0;
        mfl_activity_read(activity, now_ns, &f);
        assert_int_equal(activity->n[MFL_ACTIVITY_IDLE], f.workers);
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++)
                sum_us += f.total_us[s];
        uint64_t all_us = f.workers * (now_ns - begin_ns) / 1000;
        assert_in_range(sum_us, all_us - MFL_ACTIVITY_STATES, all_us);
        return f;
}

static void time_is_accounted_for(void **state)
{
#define TIMED(training)                                                                                      \
        LABELLED "data: {name: toy, partition: iid, clients: 4}\ntraining: {lr: 0.1, batch: 4" training "}"  \
                 "\n"
        struct world w;
        struct mfl_error err;
        struct mfl_activity activity;
        struct mfl_train_result *result;
        uint64_t items[] = {0, 1, 2, 3}, begin_ns = mfl_now_ns(), nowhere = 99;
        open_world(&w, &labelled, local_adam);
        assert_int_equal(mfl_activity_init(&activity, 5, begin_ns, &err), 0);
        struct mfl_trainer *trainer = new_trainer_of(&w, &mfl_backend_reference, 5, &activity);
        result = train(&w, trainer, TIMED(", epochs: 3"), items, 4);
        struct mfl_activity_figures first = check_idle(&activity, begin_ns);
        assert_int_equal(first.samples, result->updates[0].samples);
        assert_int_equal(first.samples, 3 * N_TRAIN);
        assert_true(first.total_us[MFL_ACTIVITY_COMPUTE] > 0 && first.total_us[MFL_ACTIVITY_DATA] > 0);
        assert_int_equal(first.total_us[MFL_ACTIVITY_NETWORK], 0);
        mfl_trainer_result_free(trainer, result);
        /* Of the same job, and of one whose networks take three of the workers each. */
        assert_int_equal(
                run_kind(&w, trainer, TIMED(", epochs: 3"), MFL_TASK_EVAL, items, 1, &result, &err), 0);
        mfl_trainer_result_free(trainer, result);
        struct mfl_activity_figures f = check_idle(&activity, begin_ns);
        assert_int_equal(f.samples, first.samples);
        assert_true(f.total_us[MFL_ACTIVITY_COMPUTE] > first.total_us[MFL_ACTIVITY_COMPUTE]);
        mfl_trainer_result_free(trainer, train(&w, trainer, TIMED(", threads: 3"), items, 4));
        assert_int_equal(check_idle(&activity, begin_ns).samples, 4 * N_TRAIN);
        /* It fails before and after its job is there. */
        assert_int_equal(
                run_kind(&w, trainer, TIMED(", precision: bf16"), MFL_TASK_TRAIN, items, 4, &result, &err),
                MFL_INVALID);
        check_idle(&activity, begin_ns);
        assert_int_equal(
                run_kind(&w, trainer, TIMED(""), MFL_TASK_TRAIN, &nowhere, 1, &result, &err), MFL_INVALID);
        check_idle(&activity, begin_ns);
        assert_int_equal(
                run_kind(&w, trainer, "nonsense", MFL_TASK_TRAIN, items, 4, &result, &err), MFL_INVALID);
        check_idle(&activity, begin_ns);
        mfl_trainer_free(trainer);
        mfl_activity_deinit(&activity);
        close_world(&w);
}

/* A backend that says of every call that it was an hour of gathering: so nothing computed is left when it is
 * asked again, for totals stand still in between. */
static struct {
        struct mfl_activity activity;
        uint64_t said_ns, most_left_ns;
        uint32_t n_asked;
} hours;

static uint64_t say_an_hour(struct mfl_net *net)
{
        if (hours.n_asked++)
                hours.most_left_ns =
                        MFL_MAX(hours.most_left_ns, hours.activity.total_ns[MFL_ACTIVITY_COMPUTE]);
        return hours.said_ns += 3600 * 1000000000ull;
}

static void gathering_is_data(void **state)
{
        struct world w;
        struct mfl_error err;
        struct mfl_train_result *result;
        uint64_t items[] = {0, 1, 2, 3};
        struct mfl_backend_ops ops = mfl_backend_reference;
        ops.gather_ns = say_an_hour;
        open_world(&w, &labelled, local_adam);
        assert_int_equal(mfl_activity_init(&hours.activity, 1, mfl_now_ns(), &err), 0);
        struct mfl_trainer *trainer = new_trainer_of(&w, &ops, 1, &hours.activity);
        mfl_trainer_result_free(trainer, train(&w, trainer, TIMED(", epochs: 3"), items, 4));
        assert_true(hours.n_asked >= 4);
        assert_int_equal(hours.most_left_ns, 0);
        hours.n_asked = 0; /* what the ends of a task took stays computed, until a unit is counted */
        assert_int_equal(
                run_kind(&w, trainer, TIMED(", epochs: 3"), MFL_TASK_EVAL, items, 1, &result, &err), 0);
        assert_int_equal(hours.n_asked, 1);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
        mfl_activity_deinit(&hours.activity);
        close_world(&w);
}

/* ---- phases ---- */

/* A state: what a client's own model is, or how far its own layers are from the job's. */
static int own_state(void *user, uint64_t client, uint64_t n, float *to, struct mfl_error *err)
{
        const struct world *w = user;
        assert_int_equal(n, w->graph->n);
        for (uint64_t i = 0; i < n; i++)
                to[i] = 0.01f * (float)(i % 7) + 0.001f * (float)client;
        return 0;
}

/* Of four clients with 61 samples together, what progress and updates count: not the phases that leave no update. */
static void check_counts(struct world *w, const char *more, int fuse, uint64_t rows, uint32_t vectors)
{
        char text[1024];
        uint64_t items[] = {0, 1, 2, 3}, samples = 0;
        struct mfl_error err = {""};
        struct mfl_train_result *result;
        struct mfl_train_control control = {0};
        struct mfl_task task = {.task = 1,
                .job = "j-000001",
                .round = 2,
                .kind = MFL_TASK_TRAIN,
                .n_items = 4,
                .items = items,
                .single_updates = true,
                .n_params = w->graph->n,
                .fixed = w->fixed};
        struct mfl_train_request request = {.task = &task,
                .job_text = text,
                .params = w->params,
                .control = &control,
                .correct = own_state,
                .correct_user = w};
        snprintf(text, sizeof text,
                LABELLED "data: {name: toy, partition: iid, clients: 4}\nevaluation: {every: 0}\n"
                         "training: {lr: 0.05, batch: 5, epochs: 2, fuse: %d}\n%s\n",
                fuse, more);
        struct mfl_trainer *trainer = new_trainer(w, 1);
        if (mfl_trainer_run(trainer, &request, &result, &err))
                fail_msg("%s", err.text);
        assert_int_equal(result->n_updates, 4);
        for (int i = 0; i < 4; i++) {
                samples += result->updates[i].samples;
                assert_int_equal(result->updates[i].n_rejected, 0);
                assert_int_equal(result->updates[i].bytes, w->graph->n * vectors * sizeof(float));
        }
        assert_int_equal(samples, rows);
        assert_int_equal(atomic_load(&control.samples_done), rows);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void phases_count_what_the_server_gets(void **state)
{
        struct world w;
        open_world(&w, &labelled, local_adam);
        for (int fuse = 1; fuse <= 3; fuse += 2) {
                check_counts(&w, "personal: {layers: [dense2]}", fuse, 2 * N_TRAIN, 1);
                check_counts(&w, "personal: {layers: [dense2], epochs: 3}", fuse, 2 * N_TRAIN, 1);
                check_counts(&w, "aggregation: {strategy: ditto}", fuse, 2 * N_TRAIN, 2);
                check_counts(&w, "aggregation: {strategy: pfedme, inner_steps: 4}", fuse, 8 * N_TRAIN, 2);
        }
        close_world(&w);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_client_is_trained_as_the_job_says),
                cmocka_unit_test(schedules_do_not_depend_on_lanes),
                cmocka_unit_test(tokens_are_scored_one_by_one),
                cmocka_unit_test(targets_are_met_by_either_loss),
                cmocka_unit_test(what_does_not_go_together_is_refused),
                cmocka_unit_test(a_grid_has_room_for_noise),
                cmocka_unit_test(time_is_accounted_for),
                cmocka_unit_test(gathering_is_data),
                cmocka_unit_test(phases_count_what_the_server_gets),
        };
        return cmocka_run_group_tests_name("trainer kinds", tests, NULL, NULL);
}
