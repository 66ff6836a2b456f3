/* SPDX-License-Identifier: Apache-2.0 */
/* How a job says what is trained and how: optimizers, schedules, losses, frozen layers, adapters. */
#include "tests/lib/test.h"
#include "common/job/job.h"
#include "kernels/backend.h"

#include <math.h>
#include <stdio.h>

/* Four lines around the model and the training. */
static const char *document(const char *model, const char *training)
{
        static char text[4096];
        snprintf(text, sizeof text,
                "name: t\nrounds: 10\ndata: {name: d, partition: iid, clients: 4}\nmodel: %s\ntraining: %s\n",
                model ? model : "mlp", training ? training : "{lr: 0.1}");
        return text;
}

static struct mfl_job *parse(const char *model, const char *training)
{
        const char *text = document(model, training);
        struct mfl_job *job = NULL;
        struct mfl_error err = {""};
        if (mfl_job_parse(text, strlen(text), "j.yaml", &job, &err))
                fail_msg("%s", err.text);
        return job;
}

static void assert_refused(const char *model, const char *training, const char *want)
{
        const char *text = document(model, training);
        struct mfl_job *job = NULL;
        struct mfl_error err = {""};
        int r = mfl_job_parse(text, strlen(text), "j.yaml", &job, &err);
        assert_string_equal(err.text, want);
        assert_int_equal(r, MFL_INVALID);
        assert_null(job);
}

static void optimizers_have_pytorchs_defaults(void **state)
{
        static const struct {
                const char *text;
                enum mfl_optimizer_kind kind;
                float weight_decay, eps;
        } cases[] = {{"{lr: 1, optimizer: sgd}", MFL_OPTIMIZER_SGD, 0, 1e-8f},
                {"{lr: 1, optimizer: adam}", MFL_OPTIMIZER_ADAM, 0, 1e-8f},
                {"{lr: 1, optimizer: adamw}", MFL_OPTIMIZER_ADAMW, 0.01f, 1e-8f},
                {"{lr: 1, optimizer: adamw, weight_decay: 0, eps: 0.5}", MFL_OPTIMIZER_ADAMW, 0, 0.5f},
                {"{lr: 1, optimizer: adagrad}", MFL_OPTIMIZER_ADAGRAD, 0, 1e-10f}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job *job = parse(NULL, cases[i].text);
                assert_int_equal(job->training.optimizer, cases[i].kind);
                assert_true(job->training.weight_decay == cases[i].weight_decay);
                assert_true(job->training.eps == cases[i].eps);
                assert_true(job->training.beta1 == 0.9f && job->training.beta2 == 0.999f);
                mfl_job_free(job);
        }
}

static void every_value_arrives(void **state)
{
        struct mfl_job *job = parse("{preset: mlp, freeze: [fc1, fc2.*]}",
                "{lr: 1, optimizer: adam, beta1: 0.5, beta2: 0.25, eps: 0.125, clip_norm: 2, accumulate: 3, "
                "checkpointing: 5,\n"
                "  loss: binary, schedule: {kind: linear, per: step, warmup: 2, over: 9, min: 0.5}}");
        assert_true(job->training.beta1 == 0.5f && job->training.beta2 == 0.25f);
        assert_true(job->training.eps == 0.125f && job->training.clip_norm == 2);
        assert_int_equal(job->training.accumulate, 3);
        assert_int_equal(job->training.checkpointing, 5);
        assert_int_equal(job->training.loss, MFL_LOSS_BINARY);
        assert_int_equal(job->training.schedule.kind, MFL_SCHEDULE_LINEAR);
        assert_int_equal(job->training.schedule.per, MFL_SCHEDULE_PER_STEP);
        assert_int_equal(job->training.schedule.warmup, 2);
        assert_int_equal(job->training.schedule.over, 9);
        assert_true(job->training.schedule.min == 0.5);
        assert_int_equal(job->model.freeze.n, 2);
        assert_string_equal(job->model.freeze.v[1], "fc2.*");
        mfl_job_free(job);
        job = parse("{preset: mlp, lora: {rank: 4, alpha: 8, layers: ['fc*'], train: [fc2]}}",
                "{lr: 1, loss: squared, checkpointing: auto}");
        assert_int_equal(job->training.checkpointing, MFL_SEGMENTS_AUTO);
        assert_int_equal(job->training.loss, MFL_LOSS_SQUARED);
        assert_true(job->model.lora.rank == 4 && job->model.lora.alpha == 8);
        assert_string_equal(job->model.lora.layers.v[0], "fc*");
        assert_string_equal(job->model.lora.train.v[0], "fc2");
        mfl_job_free(job);
        job = parse(NULL, "{lr: 1, checkpointing: off, label_smoothing: 0.125, schedule: {kind: step, every: "
                          "3, factor: 0.5}}");
        assert_int_equal(job->training.checkpointing, 0);
        assert_true(job->training.label_smoothing == 0.125f);
        assert_true(job->training.schedule.every == 3 && job->training.schedule.factor == 0.5);
        mfl_job_free(job);
        job = parse(NULL,
                "{lr: 1, class_weights: [1, 0.5, 0], ignore_index: 0, auxiliary: [0.25], drop_last: true}");
        assert_true(job->training.class_weights.n == 3 && job->training.class_weights.v[1] == 0.5f);
        assert_true(
                job->training.has_ignore_index && job->training.ignore_index == 0 && job->training.drop_last);
        assert_true(job->training.auxiliary.n == 1 && job->training.auxiliary.v[0] == 0.25f);
        mfl_job_free(job);
        job = parse(NULL, "{lr: 1, loss: focal}");
        assert_true(job->training.loss == MFL_LOSS_FOCAL && job->training.focal_gamma == 2);
        assert_false(job->training.has_ignore_index || job->training.drop_last);
        mfl_job_free(job);
        job = parse(NULL, "{lr: 1, loss: binary, pos_weight: 3}");
        assert_true(job->training.class_weights.n == 1 && job->training.class_weights.v[0] == 3);
        mfl_job_free(job);
        job = parse(NULL, "{lr: 1, loss: huber, huber_delta: 0.5}");
        assert_true(job->training.loss == MFL_LOSS_HUBER && job->training.huber_delta == 0.5f);
        mfl_job_free(job);
}

static void losses_need_a_fitting_model(void **state)
{
        static const struct {
                const char *training, *text;
        } cases[] = {{"{lr: 1, class_weights: [1, 2, 3]}", "job t: training.class_weights has 3 numbers, but "
                                                           "the model has 10 classes: write one "
                                                           "number for each, in their order"},
                {"{lr: 1, loss: binary, pos_weight: [1, 2]}",
                        "job t: training.pos_weight has 2 numbers, but "
                        "the model has 10 outputs: write one number for each, "
                        "or one number for all"},
                {"{lr: 1, auxiliary: [0.3]}",
                        "job t: training.auxiliary has 1 number, so the model needs 2 outputs of equal size, "
                        "one "
                        "after another: {2 times the labels per sample, classes}; it gives {1, 10}"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job *job = parse(NULL, cases[i].training);
                struct mfl_graph *graph = NULL;
                struct mfl_error err;
                struct mfl_shape input = {1, {20}};
                assert_int_equal(mfl_job_graph(job, &input, 10, &graph, &err), MFL_INVALID);
                assert_string_equal(err.text, cases[i].text);
                mfl_job_free(job);
        }
}

static void keys_that_have_no_effect_are_refused(void **state)
{
        assert_refused(
                NULL, "{lr: 1, beta1: 0.9}", "j.yaml:5: training.beta1: is not used by sgd; remove it");
        assert_refused(NULL, "{lr: 1, eps: 0.9}", "j.yaml:5: training.eps: is not used by sgd; remove it");
        assert_refused(NULL, "{lr: 1, optimizer: adam, momentum: 0.9}",
                "j.yaml:5: training.momentum: is not used by adam; remove it");
        assert_refused(NULL, "{lr: 1, optimizer: adagrad, beta2: 0.9}",
                "j.yaml:5: training.beta2: is not used by adagrad; remove it");
        assert_refused(NULL, "{lr: 1, loss: squared, label_smoothing: 0.1}",
                "j.yaml:5: training.label_smoothing: is not used by squared; remove it");
        assert_refused(NULL, "{lr: 1, loss: binary, ignore_index: 3}",
                "j.yaml:5: training.ignore_index: is not used by binary; remove it");
        assert_refused(NULL, "{lr: 1, loss: l1, class_weights: [1, 2]}",
                "j.yaml:5: training.class_weights: is not used by l1; remove it");
        assert_refused(NULL, "{lr: 1, focal_gamma: 2}",
                "j.yaml:5: training.focal_gamma: is not used by cross-entropy; remove it");
        assert_refused(NULL, "{lr: 1, class_weights: [0, 0]}",
                "j.yaml:5: training.class_weights: all weights are 0: nothing would be trained");
        assert_refused(NULL, "{lr: 1, class_weights: [1, -1]}",
                "j.yaml:5: training.class_weights[1]: expected a number from 0 to 1000000, got "
                "'-1'");
        assert_refused(NULL, "{lr: 1, class_weights: 1}",
                "j.yaml:5: training.class_weights: expected a list of 1 to 1048576 numbers");
        assert_refused(NULL, "{lr: 1, schedule: {over: 3}}",
                "j.yaml:5: training.schedule.over: is not used by constant; remove it");
        assert_refused(NULL, "{lr: 1, schedule: {kind: cosine, every: 3}}",
                "j.yaml:5: training.schedule.every: is not used by cosine; remove it");
        assert_refused("{preset: mlp, freeze: [fc1], lora: {rank: 2}}", NULL,
                "j.yaml:4: model.freeze: lora freezes everything except the adapters and lora.train; remove "
                "freeze");
}

static void impossible_values_are_refused(void **state)
{
        assert_refused(NULL, "{lr: 1, optimizer: adamx}",
                "j.yaml:5: training.optimizer: expected one of 'sgd', 'adam', 'adamw', 'adagrad', got "
                "'adamx'; "
                "did you mean 'adam'?");
        assert_refused(NULL, "{lr: 1, loss: MSE}", "j.yaml:5: training.loss: 'MSE': write 'squared'");
        assert_refused(NULL, "{lr: 1, loss: ctc}",
                "j.yaml:5: training.loss: 'ctc': is not supported, since a sample would have as many labels "
                "as "
                "its text: label each position (`cross-entropy`, with ignore_index where there is none), or "
                "let "
                "a training program compute it (`training: {program: ...}`, docs/programs.md)");
        assert_refused(NULL, "{lr: 1}\naggregation: {strategy: fedfoo}",
                "j.yaml:6: aggregation.strategy: expected one of 'fedavg', 'fedavgm', 'fedadagrad', "
                "'fedadam', 'fedyogi', 'fedprox', 'median', 'fednova', 'qfedavg', 'scaffold', 'feddyn', "
                "'trimmed-mean', 'mean-around-median', 'krum', 'multi-krum', 'bulyan', 'rfa', "
                "'centered-clip', 'norm-filter', 'dnc', 'signguard', 'flame', 'fedbuff', 'fedasync', "
                "'ditto', 'pfedme', 'foolsgold', 'fltrust', 'plugin', 'mimelite', 'mime', 'apfl', got "
                "'fedfoo'; did you mean 'fedavg'?");
        assert_refused(NULL, "{lr: 1, schedule: {kind: step}}",
                "j.yaml:5: training.schedule: step needs every, the number of rounds after which the rate "
                "is multiplied by factor");
        assert_refused(NULL, "{lr: 1, schedule: {kind: cosine, warmup: 10}}",
                "j.yaml:5: training.schedule.warmup: 10 is not less than the 10 rounds of the whole "
                "schedule");
        assert_refused(NULL, "{lr: 1, steps: 5, schedule: {kind: linear, per: step, warmup: 6}}",
                "j.yaml:5: training.schedule.warmup: 6 is not less than the 5 steps of the whole schedule");
        assert_refused(NULL, "{lr: 1, batch: 65536, accumulate: 17}",
                "j.yaml:5: training.accumulate: 17 batches of 65536 samples are more than 1048576 samples "
                "per step");
        assert_refused("{preset: mlp, freeze: fc1}", NULL,
                "j.yaml:4: model.freeze: expected a list of 1 to 256 layer names, such as "
                "[embed, 'block*']");
        assert_refused("{lora: {rank: 2}, layers: [{dense: {units: 2, lora_rank: 2}}]}", NULL,
                "j.yaml:4: model.lora: layers[0] has a lora_rank of its own; keep one of the two");
        assert_refused(NULL, "{lr: 1, checkpointing: 1}",
                "j.yaml:5: training.checkpointing: expected 'off', 'auto', or 2 to 64 segments, got '1'");
        assert_refused(NULL, "{lr: 1, checkpointing: [2]}",
                "j.yaml:5: training.checkpointing: expected 'off', 'auto', or 2 to 64 segments");
        static const char *const bad[] = {"{lr: 1, checkpointing: 65}", "{lr: 1, checkpointing: -1}",
                "{lr: 1, checkpointing: on}", "{lr: 1, clip_norm: 0}", "{lr: 1, accumulate: 0}",
                "{lr: 1, label_smoothing: 1}", "{lr: 1, optimizer: adam, beta2: 1}",
                "{lr: 1, optimizer: adam, eps: 0}", "{lr: 1, schedule: {kind: cosine, min: 1}}",
                "{lr: 1, schedule: {kind: step, every: 2, factor: 1}}", "{lr: 1, schedule: {warmup: 0}}",
                "{lr: 1, schedule: cosine}", "{lr: 1, loss: mse}"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                struct mfl_job *job = NULL;
                const char *text = document(NULL, bad[i]);
                if (mfl_job_parse(text, strlen(text), "j", &job, NULL) != MFL_INVALID)
                        fail_msg("accepted: %s", bad[i]);
        }
}

/* The first ten rates of PyTorch 1.13 (torch.optim.lr_scheduler) at lr 1; "warm": SequentialLR of LinearLR(1
 * / w, total_iters=w - 1) and the other, milestones=[w]. Printed with nine digits; a scale is a float, so
 * half a unit of 2^-24 and of the ninth digit. */
static void schedules_are_those_of_pytorch(void **state)
{
        static const struct {
                const char *schedule;
                double rate[10];
        } cases[] = {
                /* StepLR(o, 3, 0.5) */
                {"kind: step, every: 3, factor: 0.5", {1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125}},
                /* warm StepLR(o, 2, 0.1), w = 4 */
                {"kind: step, every: 2, warmup: 4", {0.25, 0.5, 0.75, 1, 1, 1, 0.1, 0.1, 0.01, 0.01}},
                /* CosineAnnealingLR(o, 10, 0.05) */
                {"kind: cosine, min: 0.05", {1, 0.976751845, 0.909283072, 0.804197995, 0.671783072, 0.525,
                                                    0.378216928, 0.245802005, 0.140716928, 0.0732481548}},
                /* warm CosineAnnealingLR(o, 7), w = 3 */
                {"kind: cosine, warmup: 3", {0.333333333, 0.666666667, 1, 1, 0.950484434, 0.811744901,
                                                    0.611260467, 0.388739533, 0.188255099, 0.049515566}},
                /* LinearLR(o, 1, 0.25, 8) */
                {"kind: linear, min: 0.25, over: 8",
                        {1, 0.90625, 0.8125, 0.71875, 0.625, 0.53125, 0.4375, 0.34375, 0.25, 0.25}},
        };
        char text[256];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++)
                for (int per_step = 0; per_step < 2; per_step++) {
                        snprintf(text, sizeof text, "{lr: 0.1, schedule: {%s%s}}", cases[i].schedule,
                                per_step ? ", per: step" : "");
                        struct mfl_job *job = parse(NULL, text);
                        assert_true(mfl_job_has_schedule(job));
                        for (uint32_t t = 0; t < 10; t++) {
                                float scale = per_step ? mfl_job_lr_scale(job, 7, t, 10)
                                                       : mfl_job_lr_scale(job, t + 1, 3, 99);
                                if (fabs((double)scale - cases[i].rate[t]) > 0x1p-25 + 5e-10)
                                        fail_msg("%s: t %u: %.9g", text, t, (double)scale);
                        }
                        mfl_job_free(job);
                }
}

/* Beyond its end a schedule stays at its least; the cosine has all the bits that a float holds. */
static void a_schedule_ends_where_it_says(void **state)
{
        struct mfl_job *job = parse(NULL, "{lr: 0.1, schedule: {kind: cosine, over: 4, min: 0.25}}");
        assert_true(mfl_job_lr_scale(job, 5, 0, 1) == 0.25f && mfl_job_lr_scale(job, 1000000, 0, 1) == 0.25f);
        mfl_job_free(job);
        job = parse(NULL, "{lr: 0.1, schedule: {kind: cosine, per: step}}");
        for (uint32_t t = 0; t <= 1000; t++)
                assert_true(fabs((double)mfl_job_lr_scale(job, 1, t, 1000) -
                                    (1 + cos(3.14159265358979323846 * t / 1000)) / 2) <= 0x1p-25);
        mfl_job_free(job);
        job = parse(NULL, "{lr: 0.1}");
        assert_false(mfl_job_has_schedule(job));
        assert_true(mfl_job_lr_scale(job, 3, 5, 7) == 1);
        mfl_job_free(job);
}

static struct mfl_graph *graph_of(const char *model)
{
        struct mfl_job *job = parse(model, NULL);
        struct mfl_graph *graph = NULL;
        struct mfl_error err = {""};
        if (mfl_job_graph(job, &(struct mfl_shape){3, {1, 8, 8}}, 4, &graph, &err))
                fail_msg("%s", err.text);
        mfl_job_free(job);
        return graph;
}

static void assert_trained(const struct mfl_graph *graph, const char *want)
{
        char names[1024] = "";
        for (int t = 0; t < graph->n_params; t++)
                if (graph->params[t].trained) {
                        strcat(names, *names ? " " : "");
                        strcat(names, graph->params[t].name);
                }
        assert_string_equal(names, want);
}

static void layers_are_frozen_by_name(void **state)
{
        const char *layers =
                "layers: [flatten, {dense: {name: a, units: 6}}, relu, {dense: {name: head, units: 4}}]";
        char model[512];
        static const struct {
                const char *key, *trained;
        } cases[] = {{"freeze: [a]", "head.weight head.bias"}, {"freeze: ['a.*']", "head.weight head.bias"},
                {"freeze: ['hea?']", "a.weight a.bias"},
                {"lora: {rank: 2}", "a.lora_A a.lora_B head.lora_A head.lora_B"},
                {"lora: {rank: 2, layers: ['?']}", "a.lora_A a.lora_B"},
                {"lora: {rank: 2, train: [head]}", "a.lora_A a.lora_B head.weight head.bias"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                snprintf(model, sizeof model, "{%s, %s}", cases[i].key, layers);
                struct mfl_graph *graph = graph_of(model);
                assert_trained(graph, cases[i].trained);
                mfl_graph_free(graph);
        }
        struct mfl_graph *graph = graph_of("{preset: mlp, lora: {rank: 3, alpha: 6}}");
        for (int i = 1; i < graph->n_layers; i++)
                if (graph->layers[i].op == MFL_OP_DENSE)
                        assert_true(graph->layers[i].lora_rank == 3 && graph->layers[i].lora_alpha == 6 &&
                                    !graph->layers[i].frozen);
        mfl_graph_free(graph);
}

static void names_that_match_nothing_are_refused(void **state)
{
        static const struct {
                const char *model, *want;
        } cases[] = {
                {"{preset: mlp, freeze: [fc9]}", "job t: model.freeze: 'fc9' is not a layer of this model; "
                                                 "`mfl presets NAME` lists the layers of a preset"},
                {"{preset: mlp, lora: {rank: 2, layers: [fcx]}}",
                        "job t: model.lora.layers: 'fcx' is not a layer of this model; `mfl presets NAME` "
                        "lists the layers of a preset"},
                {"{preset: mlp, freeze: [fc1.bias]}", "job t: model.freeze: selects fc1.bias but not "
                                                      "fc1.weight; a layer is trained or frozen as a whole"},
                {"{preset: mlp, lora: {rank: 2, layers: ['r*']}}",
                        "job t: model.lora.layers: selects no dense layer"},
                {"{preset: mlp, freeze: ['*']}", "job t: model.freeze: nothing is left to train"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job *job = parse(cases[i].model, NULL);
                struct mfl_graph *graph = NULL;
                struct mfl_error err = {""};
                assert_int_equal(
                        mfl_job_graph(job, &(struct mfl_shape){1, {8}}, 4, &graph, &err), MFL_INVALID);
                assert_string_equal(err.text, cases[i].want);
                mfl_job_free(job);
        }
}

static void allocation_failures_leave_nothing_behind(void **state)
{
        const char *text = document("{input: [4], lora: {rank: 2, layers: [a], train: [b]}, layers: [{dense: "
                                    "{name: a, units: 2}}, {dense: {name: b, units: 2}}]}",
                "{lr: 1, schedule: {kind: cosine}}");
        bool struck = true;
        for (int n = 0; struck; n++) {
                struct mfl_job *job = NULL;
                struct mfl_graph *graph = NULL;
                mfl_alloc_fail_at(n);
                int r = mfl_job_parse(text, strlen(text), "j", &job, NULL);
                if (!r)
                        r = mfl_job_graph(job, &(struct mfl_shape){1, {4}}, 2, &graph, NULL);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_graph_free(graph);
                mfl_job_free(job);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(optimizers_have_pytorchs_defaults),
                cmocka_unit_test(every_value_arrives),
                cmocka_unit_test(losses_need_a_fitting_model),
                cmocka_unit_test(keys_that_have_no_effect_are_refused),
                cmocka_unit_test(impossible_values_are_refused),
                cmocka_unit_test(schedules_are_those_of_pytorch),
                cmocka_unit_test(a_schedule_ends_where_it_says),
                cmocka_unit_test(layers_are_frozen_by_name),
                cmocka_unit_test(names_that_match_nothing_are_refused),
                cmocka_unit_test(allocation_failures_leave_nothing_behind),
        };
        return cmocka_run_group_tests_name("job training", tests, NULL, NULL);
}
