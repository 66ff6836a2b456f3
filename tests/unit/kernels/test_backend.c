/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "kernels/backend.h"
#include "kernels/bodies.h"

#include <math.h>

static const char *const names[] = {"reference", "cpu"};

/* Calls test for every backend that opens here; the reference always does. */
static void each_backend(void (*test)(const struct mfl_backend_ops *ops, struct mfl_device *device))
{
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                const struct mfl_backend_ops *ops = NULL;
                struct mfl_device *device = NULL;
                if (mfl_backend_open(names[i], &ops, NULL)) {
                        assert_int_not_equal(i, 0);
                        continue;
                }
                assert_int_equal(ops->device_open(&device, NULL), 0);
                test(ops, device);
                ops->device_close(device);
        }
}

static void unknown_names_are_told(void **state)
{
        const struct mfl_backend_ops *ops = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_backend_open("gpu", &ops, &err), MFL_NOT_FOUND);
        assert_non_null(strstr(err.text, "reference"));
        assert_null(ops);
}

static void auto_always_opens_something(void **state)
{
        const struct mfl_backend_ops *ops = NULL;
        assert_int_equal(mfl_backend_open("auto", &ops, NULL), 0);
        assert_int_equal(ops->abi, MFL_BACKEND_ABI);
}

static void check_info(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_device_info info;
        ops->device_info(device, &info);
        assert_string_equal(info.backend, ops->name);
        assert_true(info.cores >= 1);
        assert_true(info.memory_bytes > 1 << 20);
        assert_true(info.name[0] && info.library[0]);
}

static void devices_describe_themselves(void **state)
{
        each_backend(check_info);
}

static struct mfl_graph *preset(const char *name)
{
        struct mfl_graph *graph = NULL;
        struct mfl_shape shape = {3, {1, 12, 12}};
        assert_int_equal(mfl_graph_preset(name, &shape, 10, &graph, NULL), 0);
        return graph;
}

static void check_params(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        static const char *const presets[] = {
                "logistic", "mlp", "lenet5", "fedavg-cnn", "pfl-cnn", "resnet20", "resnet20-gn"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(presets); i++) {
                struct mfl_graph *graph = preset(presets[i]);
                struct mfl_net_options options = {.batch = 3, .groups = 2, .threads = 1, .training = true};
                struct mfl_net *net = NULL;
                size_t n = (size_t)graph->n;
                float *p = malloc(n * sizeof *p), *q = malloc(n * sizeof *q);
                assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
                for (int g = 0; g < 2; g++) {
                        mfl_graph_init_params(graph, (uint64_t)g, p);
                        assert_int_equal(mfl_backend_set(ops, net, graph, g, p, NULL), 0);
                }
                mfl_graph_init_params(graph, 0, p);
                assert_int_equal(ops->params_get(net, 0, 0, q, NULL), 0);
                assert_memory_equal(p, q, n * sizeof *p);
                ops->net_free(net);
                free(p);
                free(q);
                mfl_graph_free(graph);
        }
}

static void params_come_back_as_they_went_in(void **state)
{
        each_backend(check_params);
}

static void check_memory(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_graph *graph = preset("lenet5");
        struct mfl_net_options options = {.batch = 3, .groups = 2, .threads = 1, .training = true};
        for (long n = 0;; n++) {
                struct mfl_net *net = NULL;
                struct mfl_error err = {""};
                mfl_alloc_fail_at(n);
                int rc = ops->net_new(device, graph, &options, &net, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(rc, 0);
                        ops->net_free(net);
                        break;
                }
                assert_int_equal(rc, -ENOMEM);
                assert_true(err.text[0]);
                assert_null(net);
        }
        mfl_graph_free(graph);
}

static void memory_may_run_out(void **state)
{
        each_backend(check_memory);
}

static void check_refusal(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_graph *graph = preset("mlp");
        struct mfl_net_options options = {.batch = 0, .groups = 1, .threads = 1};
        struct mfl_net *net = NULL;
        struct mfl_error err;
        assert_int_equal(ops->net_new(device, graph, &options, &net, &err), MFL_INVALID);
        assert_null(net);
        options.batch = 1;
        options.precision = MFL_PRECISION_FP16;
        assert_int_equal(ops->net_new(device, graph, &options, &net, &err), MFL_INVALID);
        assert_string_equal(err.text, "precision fp16 needs the cuda backend");
        assert_null(net);
        mfl_graph_free(graph);
}

static void senseless_options_are_refused(void **state)
{
        each_backend(check_refusal);
}

/* One sample, one class of two, all params 0: softmax gives 1/2 each, so loss ln 2 and gradient (-1/2, 1/2) *
 * x. */
static void check_known_step(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_shape shape = {1, {2}};
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        uint8_t pixels[] = {0, 255, 10, 20};
        int32_t labels[] = {1, 0};
        struct mfl_dataset set = {
                .shape = shape, .classes = 2, .scale = {1}, .train = {2, MFL_U8, pixels, labels}};
        struct mfl_net_options options = {.batch = 4, .groups = 1, .threads = 1, .training = true};
        struct mfl_optimizer opt = {.lr = 0.5f};
        uint32_t index[] = {1, 99, 99, 99}, count[] = {1};
        struct mfl_group_steps steps = {.index = index, .count = count, .score = {.loss_sum = 5}};
        float params[6] = {0};
        assert_int_equal(mfl_graph_preset("logistic", &shape, 2, &graph, NULL), 0);
        assert_int_equal(graph->n, 6);
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        assert_int_equal(mfl_backend_set(ops, net, graph, 0, params, NULL), 0);
        assert_int_equal(ops->step(net, data, &steps, 1, &opt, NULL), 0);
        assert_int_equal(ops->params_get(net, 0, 0, params, NULL), 0);
        assert_int_equal(steps.n_samples, 1);
        assert_int_equal(steps.score.n_correct, 1); /* the first of equal logits */
        assert_int_equal(steps.score.loss_sum, 5 + mfl_fixed_loss(logf(2.0f)));
        const float want[] = {2.5f, 5.0f, -2.5f, -5.0f, 0.25f, -0.25f};
        assert_memory_equal(params, want, sizeof want);
        ops->data_free(data);
        ops->net_free(net);
        mfl_graph_free(graph);
}

static void a_step_by_hand(void **state)
{
        each_backend(check_known_step);
}

static void check_misfit(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_graph *graph = preset("mlp");
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        uint8_t pixels[3] = {0};
        int32_t labels[1] = {0};
        struct mfl_dataset set = {
                .name = "tiny", .shape = {1, {3}}, .classes = 2, .train = {1, MFL_U8, pixels, labels}};
        struct mfl_net_options options = {.batch = 1, .groups = 1, .threads = 1};
        uint32_t index[] = {0};
        struct mfl_score score = {.loss_sum = 7};
        struct mfl_error err;
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        assert_int_equal(ops->eval(net, 0, data, index, 1, &score, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "tiny"));
        assert_int_equal(score.loss_sum, 7);
        ops->data_free(data);
        ops->net_free(net);
        mfl_graph_free(graph);
}

static void data_of_another_shape_are_refused(void **state)
{
        each_backend(check_misfit);
}

static void assert_near(float got, double want)
{
        assert_true(fabs((double)got - want) <= 1e-6 * fabs(want));
}

/* A batch norm of two features. Two rows: means 5 and 137.5, unbiased variances 50 and 27612.5; then the
 * second row alone: its values, and variance 0. Decay and the proximal term would move the running statistics
 * if they were applied to them. */
static void check_running(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {2}}},
                {.op = MFL_OP_BATCHNORM, .input = 0, .momentum = 0.5f},
                {.op = MFL_OP_DENSE, .input = 1, .out_channels = 2, .bias = true}};
        uint8_t pixels[] = {0, 20, 10, 255};
        int32_t labels[] = {1, 0};
        struct mfl_dataset set = {
                .shape = {1, {2}}, .classes = 2, .scale = {1}, .train = {2, MFL_U8, pixels, labels}};
        struct mfl_net_options options = {.batch = 3, .groups = 1, .threads = 1, .training = true};
        struct mfl_optimizer opt = {.lr = 0.5f, .momentum = 0.9f, .weight_decay = 0.25f, .prox_mu = 0.5f};
        uint32_t index[] = {0, 1, 9, 1, 9, 9}, count[] = {2, 1};
        struct mfl_group_steps steps = {.index = index, .count = count};
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        float params[14];
        struct mfl_score score = {0};
        assert_int_equal(mfl_graph_build("m", layers, 3, 2, &graph, NULL), 0);
        assert_int_equal(graph->n, 14);
        mfl_graph_init_params(graph, 1, params);
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        assert_int_equal(mfl_backend_set(ops, net, graph, 0, params, NULL), 0);
        assert_int_equal(ops->step(net, data, &steps, 2, &opt, NULL), 0);
        assert_int_equal(ops->eval(net, 0, data, index, 2, &score, NULL), 0);
        assert_int_equal(ops->params_get(net, 0, 0, params, NULL), 0);
        const float *mean = params + graph->params[graph->layers[1].param_mean].offset;
        const float *var = params + graph->params[graph->layers[1].param_var].offset;
        assert_near(mean[0], (0.5 * 5) * 0.5 + 0.5 * 10);
        assert_near(mean[1], (0.5 * 137.5) * 0.5 + 0.5 * 255);
        assert_near(var[0], (0.5 + 0.5 * 50) * 0.5);
        assert_near(var[1], (0.5 + 0.5 * 27612.5) * 0.5);
        ops->data_free(data);
        ops->net_free(net);
        mfl_graph_free(graph);
}

static void running_statistics_by_hand(void **state)
{
        each_backend(check_running);
}

/* With all params 0, a step with lr 2 on one sample leaves the sample itself in its label's row of weights.
 */
static void check_augmentation(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        enum { C = 2, H = 4, W = 5, N = C * H * W };
        uint8_t pixels[N];
        int32_t labels[] = {1};
        struct mfl_dataset set = {.shape = {3, {C, H, W}},
                .classes = 2,
                .scale = {1, 0.5f},
                .shift = {-3, 7},
                .train = {1, MFL_U8, pixels, labels}};
        struct mfl_net_options options = {.batch = 1,
                .groups = 1,
                .threads = 1,
                .training = true,
                .augment = {.crop = 2, .flip = true}};
        struct mfl_optimizer opt = {.lr = 2};
        uint32_t index[] = {0}, count[] = {1};
        struct mfl_group_steps steps = {
                .index = index, .count = count, .augment = mfl_rng_derive(3, MFL_RNG_AUGMENT, 4, 5)};
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_device_data *data = NULL;
        int n_flipped = 0, n_moved = 0;
        for (int i = 0; i < N; i++)
                pixels[i] = (uint8_t)(3 * i + 1);
        assert_int_equal(mfl_graph_preset("logistic", &set.shape, 2, &graph, NULL), 0);
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        for (uint32_t t = 0; t < 20; t++) {
                float params[2 * N + 2] = {0};
                struct mfl_augment_choice choice =
                        mfl_augment_pick(mfl_rng_augment_key(steps.augment, t), 0, &options.augment);
                n_flipped += choice.flip;
                n_moved += choice.dx != 0 && choice.dy != 0;
                steps.step_first = t;
                assert_int_equal(mfl_backend_set(ops, net, graph, 0, params, NULL), 0);
                assert_int_equal(ops->step(net, data, &steps, 1, &opt, NULL), 0);
                assert_int_equal(ops->params_get(net, 0, 0, params, NULL), 0);
                for (int i = 0; i < N; i++) {
                        int c = i / (H * W), y = i / W % H + choice.dy, at = i % W;
                        int x = (choice.flip ? W - 1 - at : at) + choice.dx;
                        bool inside = y >= 0 && y < H && x >= 0 && x < W;
                        float v = inside ? (float)pixels[c * H * W + y * W + x] : 0.0f;
                        assert_true(params[N + i] == v * set.scale[c] + set.shift[c]);
                }
        }
        assert_in_range(n_flipped, 1, 19);
        assert_in_range(n_moved, 1, 20);
        ops->data_free(data);
        ops->net_free(net);
        mfl_graph_free(graph);
}

static void augmentation_by_hand(void **state)
{
        each_backend(check_augmentation);
}

static void check_flat(const struct mfl_backend_ops *ops, struct mfl_device *device)
{
        uint8_t pixels[4] = {1, 2, 3, 4};
        int32_t labels[] = {0};
        struct mfl_dataset set = {.name = "flat",
                .shape = {1, {4}},
                .classes = 2,
                .scale = {1},
                .train = {1, MFL_U8, pixels, labels}};
        struct mfl_net_options options = {
                .batch = 1, .groups = 1, .threads = 1, .training = true, .augment = {.flip = true}};
        struct mfl_optimizer opt = {.lr = 1};
        uint32_t index[] = {0}, count[] = {1};
        struct mfl_group_steps steps = {.index = index, .count = count};
        for (int image = 0; image < 2; image++) {
                struct mfl_shape shape = image ? (struct mfl_shape){3, {1, 2, 2}} : set.shape;
                struct mfl_graph *graph = NULL;
                struct mfl_net *net = NULL;
                struct mfl_device_data *data = NULL;
                struct mfl_error err;
                assert_int_equal(mfl_graph_preset("logistic", &shape, 2, &graph, NULL), 0);
                assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
                assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
                int rc = ops->step(net, data, &steps, 1, &opt, &err);
                assert_int_equal(rc, image ? 0 : MFL_INVALID);
                if (!image)
                        assert_string_equal(err.text,
                                "data set flat: augmentation needs images (channels x height "
                                "x width); give model.input");
                ops->data_free(data);
                ops->net_free(net);
                mfl_graph_free(graph);
        }
}

static void flat_samples_are_augmented_as_the_models_images(void **state)
{
        each_backend(check_flat);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(unknown_names_are_told),
                cmocka_unit_test(auto_always_opens_something),
                cmocka_unit_test(devices_describe_themselves),
                cmocka_unit_test(params_come_back_as_they_went_in),
                cmocka_unit_test(memory_may_run_out),
                cmocka_unit_test(senseless_options_are_refused),
                cmocka_unit_test(a_step_by_hand),
                cmocka_unit_test(data_of_another_shape_are_refused),
                cmocka_unit_test(running_statistics_by_hand),
                cmocka_unit_test(augmentation_by_hand),
                cmocka_unit_test(flat_samples_are_augmented_as_the_models_images),
        };
        return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
