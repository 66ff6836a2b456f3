/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "common/job/job.h"
#include "common/job/job_layers.h"
#include "common/job/job_model.h"

#include <dirent.h>
#include <stdio.h>

static const struct mfl_shape image28 = {3, {1, 28, 28}};

/* A document around the part that a test is about; NULL leaves the usual one. Five lines, then rest. */
static const char *document(const char *model, const char *data, const char *training, const char *rest)
{
        static char text[4096];
        snprintf(text, sizeof text, "name: t\nrounds: 2\nmodel: %s\ndata: %s\ntraining: %s\n%s",
                model ? model : "mlp", data ? data : "{name: d, partition: iid, clients: 10}",
                training ? training : "{lr: 0.1}", rest ? rest : "");
        return text;
}

static struct mfl_job *parse(const char *text)
{
        struct mfl_job *job = NULL;
        struct mfl_error err = {""};
        if (mfl_job_parse(text, strlen(text), "j.yaml", &job, &err))
                fail_msg("%s", err.text);
        return job;
}

static void assert_refused(const char *text, const char *want)
{
        struct mfl_job *job = NULL;
        struct mfl_error err = {""};
        int r = mfl_job_parse(text, strlen(text), "j.yaml", &job, &err);
        assert_string_equal(err.text, want);
        assert_int_equal(r, MFL_INVALID);
        assert_null(job);
}

static void a_short_job_gets_the_documented_defaults(void **state)
{
        struct mfl_job *job = parse(document(NULL, "{name: d}", NULL, NULL));
        assert_string_equal(job->name, "t");
        assert_int_equal(job->seed, 0);
        assert_string_equal(job->model.preset, "mlp");
        assert_int_equal(job->model.init, -1);
        assert_int_equal(job->data.partition, MFL_PARTITION_LOCAL);
        assert_int_equal(job->data.clients, 0);
        assert_int_equal(job->training.epochs, 1);
        assert_int_equal(job->training.steps, 0);
        assert_int_equal(job->training.batch, 32);
        assert_int_equal(job->training.threads, 1);
        assert_string_equal(job->training.backend, "auto");
        assert_int_equal(job->training.optimizer, 0);
        assert_int_equal(job->training.accumulate, 1);
        assert_int_equal(job->training.loss, 0);
        assert_true(job->training.weight_decay == 0 && job->training.clip_norm == 0);
        assert_false(mfl_job_has_schedule(job));
        assert_int_equal(job->aggregation.strategy, MFL_STRATEGY_FEDAVG);
        assert_int_equal(job->aggregation.weighting, MFL_WEIGHT_SAMPLES);
        assert_true(job->aggregation.server_lr == 1);
        assert_true(job->aggregation.delta_max == 16);
        assert_int_equal(job->selection.clients, 0);
        assert_int_equal(job->selection.daemons_min, 1);
        assert_int_equal(job->selection.assign, MFL_ASSIGN_SPEED);
        assert_int_equal(job->limits.deadline_ms, 3600000);
        assert_true(job->limits.quorum == 1);
        assert_int_equal(job->limits.retries, 3);
        assert_int_equal(job->evaluation.every, 1);
        assert_int_equal(job->evaluation.batch, 50);
        assert_int_equal(job->checkpoints.keep, 3);
        assert_int_equal(mfl_job_cohort_size(job, 7), 7);
        assert_false(mfl_job_needs_single_updates(job));
        mfl_job_free(job);
}

static void every_value_arrives(void **state)
{
        struct mfl_job *job =
                parse("name: a-1\nseed: 18446744073709551615\nrounds: 9\n"
                      "model: {preset: lenet5, init: he, input: [1, 28, 28], classes: 12, initial: w.st}\n"
                      "data: {name: d, partition: dirichlet, clients: 40, alpha: 0.3, min_samples: 5}\n"
                      "training: {optimizer: sgd, lr: 0.5, momentum: 0.25, nesterov: true, weight_decay: "
                      "0.125, steps: 7,\n"
                      "  batch: 8, threads: 2, backend: reference}\n"
                      "aggregation: {strategy: fedyogi, weighting: uniform, server_lr: 0.5, beta1: 0.5, "
                      "beta2: 0.25,\n"
                      "  tau: 0.125, delta_max: 4}\n"
                      "selection: {clients: 8, daemons: {min: 2, max: 3}, assign: modulo}\n"
                      "limits: {deadline: 90s, quorum: 0.5, retries: 0}\n"
                      "evaluation: {every: 0, batch: 10}\ncheckpoints: {keep: 0}\n");
        assert_true(job->seed == UINT64_MAX);
        assert_int_equal(job->model.init, MFL_INIT_HE);
        assert_true(mfl_shape_equal(&job->model.input, &image28));
        assert_int_equal(job->model.classes, 12);
        assert_string_equal(job->model.initial, "w.st");
        assert_true(job->data.alpha == 0.3);
        assert_int_equal(job->data.min_samples, 5);
        assert_true(job->training.nesterov && job->training.momentum == 0.25f);
        assert_true(job->training.weight_decay == 0.125f);
        assert_int_equal(job->training.epochs, 0);
        assert_int_equal(job->training.steps, 7);
        assert_int_equal(job->training.threads, 2);
        assert_string_equal(job->training.backend, "reference");
        assert_string_equal(mfl_strategy_name(job->aggregation.strategy), "fedyogi");
        assert_int_equal(job->aggregation.weighting, MFL_WEIGHT_UNIFORM);
        assert_true(job->aggregation.tau == 0.125f && job->aggregation.delta_max == 4);
        assert_int_equal(mfl_job_cohort_size(job, 40), 8);
        assert_int_equal(job->selection.daemons_max, 3);
        assert_int_equal(job->selection.assign, MFL_ASSIGN_MODULO);
        assert_int_equal(job->limits.deadline_ms, 90000);
        assert_int_equal(job->limits.retries, 0);
        mfl_job_free(job);
}

static void server_lr_depends_on_the_strategy(void **state)
{
        static const struct {
                const char *rest;
                float server_lr, beta1;
        } cases[] = {{"aggregation: {strategy: fedavgm}", 1, 0.9f},
                {"aggregation: {strategy: fedprox}", 1, 0.9f},
                {"aggregation: {strategy: fedadagrad}", 0.1f, 0},
                {"aggregation: {strategy: fedadam}", 0.01f, 0.9f},
                {"aggregation: {strategy: fedyogi}", 0.01f, 0.9f},
                {"aggregation: {strategy: fedadam, server_lr: 1}", 1, 0.9f},
                {"aggregation: {strategy: fedadagrad, beta1: 0.5}", 0.1f, 0.5f}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job *job = parse(document(NULL, NULL, NULL, cases[i].rest));
                assert_true(job->aggregation.server_lr == cases[i].server_lr);
                assert_true(job->aggregation.beta1 == cases[i].beta1);
                mfl_job_free(job);
        }
        struct mfl_job *job = parse(document(NULL, NULL, NULL, "aggregation: {strategy: median}"));
        assert_true(mfl_job_needs_single_updates(job));
        mfl_job_free(job);
}

static void keys_that_have_no_effect_are_refused(void **state)
{
        assert_refused(document(NULL, NULL, NULL, "aggregation: {beta1: 0.9}"),
                "j.yaml:6: aggregation.beta1: is not used by fedavg; remove it");
        assert_refused(document(NULL, NULL, NULL, "aggregation:\n  strategy: fedadagrad\n  beta2: 0.9"),
                "j.yaml:8: aggregation.beta2: is not used by fedadagrad; remove it");
        assert_refused(document(NULL, NULL, NULL, "aggregation: {strategy: median, weighting: samples}"),
                "j.yaml:6: aggregation.weighting: is not used by median; remove it");
        assert_refused(document(NULL, NULL, NULL, "aggregation: {strategy: fedadam, mu: 1}"),
                "j.yaml:6: aggregation.mu: is not used by fedadam; remove it");
        assert_refused(document(NULL, "{name: d, clients: 3}", NULL, NULL),
                "j.yaml:4: data.clients: is not used by local; remove it");
        assert_refused(document(NULL, "{name: d, partition: iid, clients: 3, alpha: 1}", NULL, NULL),
                "j.yaml:4: data.alpha: is not used by iid; remove it");
        assert_refused(document(NULL, "{name: d, partition: dirichlet, clients: 3, alpha: 1e-7}", NULL, NULL),
                "j.yaml:4: data.alpha: expected a number from 1e-06 to 1000000, got '1e-7'");
        assert_refused(document(NULL, "{name: d, partition: dirichlet, alpha: 1, clients: 3, shards: 2}",
                               NULL, NULL),
                "j.yaml:4: data.shards: is not used by dirichlet; remove it");
}

static void partitions_take_lists(void **state)
{
        struct mfl_job *job =
                parse(document(NULL, "{name: d, partition: size, sizes: [5, 7, 9]}", NULL, NULL));
        assert_int_equal(job->data.clients, 3);
        assert_true(job->data.n_sizes == 3 && job->data.sizes[2] == 9);
        mfl_job_free(job);
        job = parse(document(
                NULL, "{name: d, partition: inner-dirichlet, alpha: 1, sizes: 40, clients: 3}", NULL, NULL));
        assert_true(job->data.clients == 3 && job->data.n_sizes == 1 && job->data.sizes[0] == 40);
        mfl_job_free(job);
        job = parse(document(NULL,
                "{name: d, partition: distribution, clients: 4, distribution: [[1, 2.5], [3, 4]]}", NULL,
                NULL));
        assert_true(job->data.distribution_rows == 2 && job->data.distribution_columns == 2);
        assert_true(job->data.distribution[1] == 2.5 && job->data.distribution[2] == 3 && job->data.rescale);
        mfl_job_free(job);
        assert_refused(document(NULL, "{name: d, partition: size, clients: 3}", NULL, NULL),
                "j.yaml:4: data: partition size needs sizes: one number of samples, or a list with one for "
                "each "
                "client");
        assert_refused(document(NULL, "{name: d, partition: size, clients: 3, sizes: [1, 2]}", NULL, NULL),
                "j.yaml:4: data.sizes: 2 sizes for 3 clients; give one size per client, or one size for all");
        assert_refused(document(NULL, "{name: d, partition: size, clients: 3, sizes: []}", NULL, NULL),
                "j.yaml:4: data.sizes: is empty; give one size per client, or one size for all");
        assert_refused(document(NULL, "{name: d, partition: size, sizes: [1, 0]}", NULL, NULL),
                "j.yaml:4: data.sizes[1]: expected a whole number from 1 to 2147483647, got '0'");
        assert_refused(
                document(NULL, "{name: d, partition: distribution, clients: 4, distribution: [[1, 2], [3]]}",
                        NULL, NULL),
                "j.yaml:4: data.distribution[1]: expected a row of 2 numbers, like the first row");
        assert_refused(
                document(NULL, "{name: d, partition: distribution, clients: 4, rescale: false}", NULL, NULL),
                "j.yaml:4: data.rescale: false needs a distribution of sample counts, without "
                "preassigned_samples");
        assert_refused(document(NULL, "{name: d, partition: shards, clients: 4, shards: 2, shard_size: 9}",
                               NULL, NULL),
                "j.yaml:4: data.shard_size: shards is given too; keep one");
        assert_refused(
                document(NULL, "{name: d, partition: natural-id, clients: 4, class_assignment: random}", NULL,
                        NULL),
                "j.yaml:4: data.class_assignment: is not used by natural-id; remove it");
}

static void keys_that_contradict_are_refused(void **state)
{
        assert_refused(document(NULL, "{name: d, partition: iid}", NULL, NULL),
                "j.yaml:4: data: partition iid needs clients, the size of the population");
        assert_refused(document(NULL, "{name: d, partition: dirichlet, clients: 3}", NULL, NULL),
                "j.yaml:4: data: partition dirichlet needs alpha, for example 0.5");
        assert_refused(document(NULL, NULL, "{lr: 1, epochs: 1, steps: 2}", NULL),
                "j.yaml:5: training.steps: epochs is given too; keep one");
        assert_refused(document(NULL, NULL, "{lr: 1, nesterov: true}", NULL),
                "j.yaml:5: training.nesterov: needs momentum above 0, for example 0.9");
        assert_refused(document(NULL, NULL, "{lr: 1, backend: cpu, precision: fp16}", NULL),
                "j.yaml:5: training.precision: backend cpu computes in fp32 or bf16; fp16 needs backend "
                "cuda");
        assert_refused(document(NULL, NULL, "{lr: 1, backend: reference, precision: bf16}", NULL),
                "j.yaml:5: training.precision: backend reference computes in fp32; bf16 needs backend cuda "
                "or "
                "cpu");
        mfl_job_free(parse(document(NULL, NULL, "{lr: 1, backend: cpu, precision: bf16}", NULL)));
        assert_refused(document(NULL, NULL, NULL, "selection: {clients: 11}"),
                "j.yaml:6: selection.clients: 11 clients per round, but the population has 10 "
                "(data.clients)");
        assert_refused(document(NULL, NULL, NULL, "selection: {kind: separated}"),
                "j.yaml:6: selection.kind: separated needs separation, the rounds from one turn of a client "
                "to "
                "its next");
        assert_refused(document(NULL, NULL, NULL, "selection: {separation: 2}"),
                "j.yaml:6: selection.separation: is not used by uniform; remove it");
        assert_refused(document(NULL, NULL, NULL, "selection: {kind: separated, separation: 11}"),
                "j.yaml:6: selection.separation: 11 rounds need as many clients, but the population has 10 "
                "(data.clients)");
        assert_refused(document(NULL, NULL, NULL, "selection: {kind: separated, separation: 3, clients: 4}"),
                "j.yaml:6: selection.clients: 4 clients per round, but 10 clients divided among 3 rounds are "
                "3; "
                "lower it, or separation");
        assert_refused(document(NULL, "{name: d}", NULL, "selection: {kind: separated, separation: 3}"),
                "j.yaml:6: selection.kind: separated needs a population that is known beforehand; with "
                "partition local, write uniform");
        assert_refused(document(NULL, NULL, NULL, "selection: {kind: poisson}"),
                "j.yaml:6: selection.kind: poisson needs rate, the probability of each client");
        assert_refused(document(NULL, NULL, NULL, "selection: {kind: poisson, rate: 0.1, clients: 3}"),
                "j.yaml:6: selection.clients: is not used by poisson; remove it");
        assert_refused(document(NULL, NULL, NULL, "selection: {rate: 0.1}"),
                "j.yaml:6: selection.rate: is not used by uniform; remove it");
        struct mfl_job *each = parse(document(NULL, NULL, NULL, "selection: {kind: poisson, rate: 0.01}"));
        assert_int_equal(mfl_job_cohort_size(each, 10), 10);
        assert_int_equal(mfl_job_cohort_size(each, 10000), 100 + 100 + 40); /* deviation 9.95 */
        assert_int_equal(mfl_job_cohort_least(each, 10000), 0);
        mfl_job_free(each);
        struct mfl_job *turns =
                parse(document(NULL, NULL, NULL, "selection: {kind: separated, separation: 3}"));
        assert_int_equal(mfl_job_cohort_size(turns, 10), 4);
        assert_int_equal(mfl_job_cohort_least(turns, 10), 3);
        mfl_job_free(turns);
        assert_refused(document(NULL, NULL, NULL, "selection: {daemons: {min: 3, max: 2}}"),
                "j.yaml:6: selection.daemons.max: 2 is below min, which is 3");
        assert_refused(document("{init: he}", NULL, NULL, NULL),
                "j.yaml:3: model: give one of preset, layers and "
                "onnx, or, with training.program, only initial");
        assert_refused(document("net.onnx", NULL, NULL, NULL),
                "j.yaml:3: model: an ONNX file is written {onnx: net.onnx}");
        assert_refused(document("net.pt", NULL, NULL, NULL),
                "j.yaml:3: model: a PyTorch file is not read: export the module with mfl_export.save(net, "
                "example, \"model.onnx\"), and write {onnx: model.onnx}");
        assert_refused(document("w.safetensors", NULL, NULL, NULL),
                "j.yaml:3: model: a file of weights has no layers: write {preset: ..., initial: "
                "w.safetensors}, or layers or onnx in place of preset");
        assert_refused(document("{preset: mlp, layers: [relu]}", NULL, NULL, NULL),
                "j.yaml:3: model: give one of preset, layers and onnx, or, with training.program, only "
                "initial");
}

static void impossible_values_are_refused(void **state)
{
        assert_refused("[1]", "j.yaml:1: a job must be a mapping of keys and values");
        assert_refused("name: a/b\n", "j.yaml:1: name: must be letters, digits, '-', '_' and '.', and start "
                                      "with a letter or digit");
        assert_refused("name: .a\n", "j.yaml:1: name: must be letters, digits, '-', '_' and '.', and start "
                                     "with a letter or digit");
        assert_refused(document("{preset: mlp, input: [1, 2, 3, 4]}", NULL, NULL, NULL),
                "j.yaml:3: model.input: expected [features], [tokens], [positions, features] or [channels, "
                "height, width]");
        assert_refused(document("{layers: []}", NULL, NULL, NULL),
                "j.yaml:3: model.layers: expected a list of 1 to 4095 layers");
        assert_refused(document("{layers: [rleu]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: there is no layer 'rleu'; did you mean 'relu'?");
        assert_refused(document("{layers: [capsule]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: there is no layer 'capsule'; `mfl help job` lists the layers");
        assert_refused(document("{layers: [hardwish]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: there is no layer 'hardwish'; did you mean 'hardswish'?");
        assert_refused(document("{layers: [relu, dense]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[1]: dense needs settings: {dense: {units: ...}}");
        assert_refused(document("{layers: [dropout]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: dropout needs settings: {dropout: {rate: ...}}");
        assert_refused(document("{layers: [{relu: {}, tanh: {}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: a layer is a name, or one name with its settings");
        assert_refused(document("{layers: [{conv2d: {filters: 1, kernel: [1, 2, 3]}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].conv2d.kernel: expected one whole number or [height, width], got "
                "a list "
                "of 3");
        assert_refused(document("{layers: [relu, add]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[1]: add needs settings: {add: {inputs: ...}}");
        assert_refused(document("{layers: [groupnorm]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: groupnorm needs settings: {groupnorm: {norm_groups: ...}}");
        assert_refused(document("{layers: [relu, {add: {inputs: [input]}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[1].add.inputs: expected the names of two layers: [a, b]");
        assert_refused(document("{layers: [relu, {tanh: {input: a}}, {relu: {name: a}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[1]: input: no layer before this one has the name 'a'; name the "
                "layer that should be read");
        assert_refused(document("{layers: [{relu: {name: input}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: the name input is reserved for the model's input");
        assert_refused(document("{layers: [{batchnorm: {eps: 0}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].batchnorm.eps: expected a number above 0 and at most 1, got '0'");
        assert_refused(document("{layers: [{leaky_relu: {negative_slope: 0}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].leaky_relu.negative_slope: expected a number above 0 and at most "
                "1000, got '0'");
        assert_refused(document("{layers: [{leaky_relu: {negative_slope: .inf}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].leaky_relu.negative_slope: expected a number above 0 and at most "
                "1000, got '.inf'");
        assert_refused(document("{layers: [{elu: {alpha: .nan}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].elu.alpha: expected a number above 0 and at most 1000, got "
                "'.nan'");
        assert_refused(document(NULL, NULL, "{qqqq: 1}", NULL),
                "j.yaml:5: training.qqqq: unknown key; the keys are program, config, optimizer, lr, "
                "momentum, "
                "nesterov, beta1, beta2, eps, weight_decay, clip_norm, schedule, loss, label_smoothing, "
                "class_weights, pos_weight, ignore_index, focal_gamma, huber_delta, smooth_l1_beta, "
                "auxiliary, "
                "epochs, steps, batch, drop_last, accumulate, threads, backend, precision, fast, fuse, "
                "checkpointing");
        assert_refused(document("{layers: [{hardswish: {alpha: 1}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0].hardswish.alpha: unknown key; the keys are name, input");
        assert_refused(document("{layers: [{avgpool2d: {kernel: 2, ceil_mode: true}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[0]: ceil_mode of avgpool2d needs count_include_pad: false");
        assert_refused(document("{layers: [{relu: {name: a}}, {tanh: {name: a}}]}", NULL, NULL, NULL),
                "j.yaml:3: model.layers[1]: layers[0] already has the name a");
}

/* Limits, unknown keys and types are the YAML tables' work and tested there; here: that each key has them. */
static void values_outside_of_their_limits_are_refused(void **state)
{
        static const char *const bad[] = {"rounds: 0", "sed: 1", "selection: {clients: 0}",
                "limits: {quorum: 0}", "limits: {quorum: 1.5}", "limits: {deadline: 10}",
                "limits: {deadline: 1ms}", "evaluation: {batch: 0}", "checkpoints: {keep: -1}",
                "aggregation: {strategy: fedavgg}", "aggregation: {server_lr: 0}",
                "aggregation: {delta_max: 0}", "aggregation: {strategy: fedadam, beta2: 1}",
                "aggregation: {strategy: fedadam, tau: 0}", "selection: {daemons: {min: 0}}",
                "selection: {assign: fast}"};
        static const char *const training[] = {"{}", "{lr: 0}", "{lr: .inf}", "{lr: 1, momentum: 1}",
                "{lr: 1, batch: 0}", "{lr: 1, epochs: 0}", "{lr: 1, epochs: 65536}", "{lr: 1, threads: 0}",
                "{lr: 1, backend: gpu}", "{lr: 1, optimizer: rmsprop}", "{lr: 1, weight_decay: -1}"};
        struct mfl_job *job = NULL;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                const char *text = document(NULL, NULL, NULL, bad[i]);
                if (mfl_job_parse(text, strlen(text), "j", &job, NULL) != MFL_INVALID)
                        fail_msg("accepted: %s", bad[i]);
        }
        for (size_t i = 0; i < MFL_ARRAY_SIZE(training); i++) {
                const char *text = document(NULL, NULL, training[i], NULL);
                if (mfl_job_parse(text, strlen(text), "j", &job, NULL) != MFL_INVALID)
                        fail_msg("accepted: %s", training[i]);
        }
        assert_null(job);
}

static void shape_errors_carry_the_layers_line(void **state)
{
        assert_refused(document("\n  input: [1, 28, 28]\n  classes: 10\n  layers:\n    - conv2d: {filters: "
                                "4, kernel: 5}\n"
                                "    - maxpool2d: {kernel: 2}\n    - conv2d: {filters: 4, kernel: 13}\n    - "
                                "flatten\n"
                                "    - dense: {units: 10}",
                               NULL, NULL, NULL),
                "j.yaml:9: model.layers[2]: layer conv2 (conv2d): the height of its input 4x12x12 with "
                "padding 0 is 12, "
                "less than the kernel's reach of 13; use a smaller kernel or padding of at least 1");
        assert_refused(
                document("\n  input: [4]\n  classes: 10\n  layers:\n    - relu\n    - dense: {units: 9}",
                        NULL, NULL, NULL),
                "j.yaml:8: model.layers[1]: layer dense1 (dense): the last layer gives 9; it must give one "
                "number for "
                "each of the 10 classes");
        assert_refused(
                document("\n  input: [4, 6, 6]\n  layers:\n    - conv2d: {name: a, filters: 4, "
                         "kernel: 3}\n    - relu\n    - add: {inputs: [a, input]}\n    - dense: {units: "
                         "10}",
                        NULL, NULL, NULL),
                "j.yaml:8: model.layers[2]: layer add1 (add): its inputs must have one shape, or the second "
                "has 1 in dimensions where it is repeated; they are 4x4x4 and 4x6x6 (layers a and input)");
        assert_refused(document("\n  input: [4]\n  layers:\n    - relu\n    - tanh: {input: input}\n    - "
                                "dense: {units: 10}",
                               NULL, NULL, NULL),
                "j.yaml:6: model.layers[0]: layer relu1 (relu) is not read by any other layer; every layer "
                "except the last must be read");
        assert_refused(document("\n  preset: lenet5\n  input: [784]", NULL, NULL, NULL),
                "j.yaml:5: model.input: preset lenet5 needs an image (channels x height x width); the input "
                "is 784");
}

static void layers_become_a_graph(void **state)
{
        struct mfl_job *job =
                parse(document("{init: he, layers: [{conv2d: {filters: 2, kernel: [3, 5], padding: [1, 2]}}, "
                               "relu, {maxpool2d: {kernel: 2}}, {dense: {name: out, units: 10, bias: no, "
                               "init: zero}}]}",
                        NULL, NULL, NULL));
        struct mfl_graph *graph;
        assert_int_equal(mfl_job_graph(job, &image28, 10, &graph, NULL), 0);
        assert_int_equal(graph->n_layers, 5);
        assert_true(mfl_shape_equal(&graph->layers[1].out, &(struct mfl_shape){3, {2, 28, 28}}));
        assert_true(mfl_shape_equal(&graph->layers[3].out, &(struct mfl_shape){3, {2, 14, 14}}));
        assert_int_equal(graph->layers[1].init, MFL_INIT_HE);
        assert_int_equal(graph->layers[4].init, MFL_INIT_ZERO);
        assert_string_equal(graph->params[2].name, "out.weight");
        assert_int_equal(graph->n_params, 3);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void layers_may_branch_and_join(void **state)
{
        struct mfl_job *job = parse(document("{layers: [{conv2d: {name: stem, filters: 8, kernel: 3, "
                                             "padding: 1}}, {batchnorm: {name: n, eps: "
                                             "0.001, momentum: 0.2}}, {conv2d: {name: side, filters: 8, "
                                             "kernel: 1, input: stem}}, {groupnorm: "
                                             "{norm_groups: 4}}, {tanh: {name: t}}, {add: {inputs: [n, t]}}, "
                                             "global_avgpool2d, {dense: {units: "
                                             "10}}]}",
                NULL, NULL, NULL));
        struct mfl_graph *graph;
        assert_int_equal(mfl_job_graph(job, &image28, 10, &graph, NULL), 0);
        const struct mfl_layer *l = graph->layers;
        assert_true(l[2].eps == 0.001f && l[2].momentum == 0.2f);
        assert_int_equal(l[3].input, 1);
        assert_int_equal(l[3].input2, -1);
        assert_int_equal(l[4].norm_groups, 4);
        assert_int_equal(l[6].input, 2);
        assert_int_equal(l[6].input2, 5);
        assert_int_equal(l[7].input, 6);
        assert_true(mfl_shape_equal(&l[7].out, &(struct mfl_shape){3, {8, 1, 1}}));
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void assert_no_graph(const char *model, const struct mfl_shape *input, int classes, const char *want)
{
        struct mfl_job *job = parse(document(model, NULL, NULL, NULL));
        struct mfl_graph *graph;
        struct mfl_error err;
        assert_int_equal(mfl_job_graph(job, input, classes, &graph, &err), MFL_INVALID);
        assert_string_equal(err.text, want);
        mfl_job_free(job);
}

static void data_and_model_must_agree(void **state)
{
        struct mfl_shape image32 = {3, {3, 32, 32}}, flat = {1, {784}};
        struct mfl_graph *graph;
        assert_no_graph("{preset: mlp, input: [1, 28, 28]}", &image32, 10,
                "job t: model.input is 1x28x28, the samples of data set d are 3x32x32");
        assert_no_graph("{preset: mlp, classes: 9}", &image28, 10,
                "job t: model.classes is 9, data set d has 10 classes");
        assert_no_graph("{layers: [relu]}", &(struct mfl_shape){1, {10}}, 10,
                "job t: the model has no parameters to train");
        assert_no_graph("lenet5", &flat, 10,
                "job t: preset lenet5 needs an image (channels x height x width); the input is 784");
        struct mfl_job *job =
                parse(document("{preset: lenet5, input: [1, 28, 28], init: zero}", NULL, NULL, NULL));
        assert_int_equal(mfl_job_graph(job, &flat, 10, &graph, NULL), 0);
        assert_int_equal(graph->n, 61706);
        assert_int_equal(graph->layers[1].init, MFL_INIT_ZERO);
        mfl_graph_free(graph);
        mfl_job_free(job);
}

static void allocation_failures_leave_nothing_behind(void **state)
{
        const char *text =
                document("{input: [4], initial: a, layers: [{dense: {units: 2}}]}", NULL, NULL, NULL);
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

/* The source tree's examples folder; the caller frees a file's text. */
static const char *examples_path(const char *name, char path[512])
{
        const char *root = getenv("MFL_SOURCE_ROOT");
        snprintf(path, 512, "%s/examples/%s", root ? root : ".", name);
        return path;
}

static char *read_example(const char *name)
{
        char path[512];
        FILE *f = fopen(examples_path(name, path), "r");
        assert_non_null(f);
        char *text = calloc(1, MFL_JOB_TEXT_MAX);
        assert_non_null(text);
        size_t n = fread(text, 1, MFL_JOB_TEXT_MAX - 1, f);
        assert_true(n > 0);
        fclose(f);
        return text;
}

static void every_example_is_valid(void **state)
{
        char path[512];
        DIR *dir = opendir(examples_path("", path));
        int n = 0;
        assert_non_null(dir);
        for (struct dirent *d; (d = readdir(dir));) {
                size_t len = strlen(d->d_name);
                if (len < 5 || strcmp(d->d_name + len - 5, ".yaml"))
                        continue;
                char *text = read_example(d->d_name);
                /* Of a graph the command line makes layers before this parser sees it
                 * (tests/e2e/test_onnx.py). */
                if (!strstr(text, "onnx: "))
                        mfl_job_free(parse(text));
                free(text);
                n++;
        }
        closedir(dir);
        assert_true(n >= 5);
}

static void assert_keys_in(const char *text, const struct mfl_yaml_field *const *tables)
{
        char key[80];
        for (; *tables; tables++) {
                for (const struct mfl_yaml_field *field = *tables; field->key; field++) {
                        snprintf(key, sizeof key, "%s:", field->key);
                        if (!strstr(text, key))
                                fail_msg("reference.yaml lacks the key %s", field->key);
                        for (int i = 0; field->names && field->names[i]; i++) {
                                if (!strstr(text, field->names[i]))
                                        fail_msg("reference.yaml lacks %s: %s", field->key, field->names[i]);
                        }
                }
        }
}

static void the_reference_names_every_key_and_choice(void **state)
{
        char *text = read_example("reference.yaml");
        assert_keys_in(text, mfl_job_tables);
        assert_keys_in(text, mfl_job_model_tables);
        assert_keys_in(text, mfl_job_layer_tables);
        for (int kind = 0; kind < MFL_MAP_COUNT_; kind++) {
                const struct mfl_yaml_field *const tables[] = {mfl_job_map_fields[kind], NULL};
                assert_keys_in(text, tables);
                assert_non_null(strstr(text, mfl_map_name((enum mfl_map_kind)kind)));
        }
        for (int i = 0; mfl_presets[i].name; i++)
                assert_non_null(strstr(text, mfl_presets[i].name));
        for (int op = MFL_OP_INPUT + 1; op < MFL_OP_COUNT_; op++) /* map: its kinds, above */
                assert_true(op == MFL_OP_MAP || strstr(text, mfl_op_name(op)));
        free(text);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_short_job_gets_the_documented_defaults),
                cmocka_unit_test(every_value_arrives),
                cmocka_unit_test(server_lr_depends_on_the_strategy),
                cmocka_unit_test(keys_that_have_no_effect_are_refused),
                cmocka_unit_test(partitions_take_lists),
                cmocka_unit_test(keys_that_contradict_are_refused),
                cmocka_unit_test(impossible_values_are_refused),
                cmocka_unit_test(values_outside_of_their_limits_are_refused),
                cmocka_unit_test(shape_errors_carry_the_layers_line),
                cmocka_unit_test(layers_become_a_graph),
                cmocka_unit_test(layers_may_branch_and_join),
                cmocka_unit_test(data_and_model_must_agree),
                cmocka_unit_test(allocation_failures_leave_nothing_behind),
                cmocka_unit_test(every_example_is_valid),
                cmocka_unit_test(the_reference_names_every_key_and_choice),
        };
        return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
