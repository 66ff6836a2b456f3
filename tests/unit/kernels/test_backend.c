/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "kernels/backend.h"

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
        static const char *const presets[] = {"logistic", "mlp", "lenet5", "fedavg-cnn", "pfl-cnn"};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(presets); i++) {
                struct mfl_graph *graph = preset(presets[i]);
                struct mfl_net_options options = {.batch = 3, .groups = 2, .threads = 1, .training = true};
                struct mfl_net *net = NULL;
                size_t n = (size_t)graph->n;
                float *p = malloc(n * sizeof *p), *q = malloc(n * sizeof *q);
                assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
                for (int g = 0; g < 2; g++) {
                        mfl_graph_init_params(graph, (uint64_t)g, p);
                        assert_int_equal(ops->params_set(net, g, p, NULL), 0);
                }
                mfl_graph_init_params(graph, 0, p);
                assert_int_equal(ops->params_get(net, 0, q, NULL), 0);
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
        struct mfl_sgd sgd = {.lr = 0.5f};
        uint32_t index[] = {1, 99, 99, 99}, count[] = {1};
        struct mfl_group_steps steps = {.index = index, .count = count, .loss_sum = 5};
        float params[6] = {0};
        assert_int_equal(mfl_graph_preset("logistic", &shape, 2, &graph, NULL), 0);
        assert_int_equal(graph->n, 6);
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        assert_int_equal(ops->params_set(net, 0, params, NULL), 0);
        assert_int_equal(ops->step(net, data, &steps, 1, &sgd, NULL), 0);
        assert_int_equal(ops->params_get(net, 0, params, NULL), 0);
        assert_int_equal(steps.n_samples, 1);
        assert_int_equal(steps.n_correct, 1); /* the first of equal logits */
        assert_int_equal(steps.loss_sum, 5 + mfl_fixed_loss(logf(2.0f)));
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
        int64_t loss = 7;
        uint64_t correct = 7;
        struct mfl_error err;
        assert_int_equal(ops->net_new(device, graph, &options, &net, NULL), 0);
        assert_int_equal(ops->data_new(device, &set, &set.train, true, &data, NULL), 0);
        assert_int_equal(ops->eval(net, 0, data, index, 1, &loss, &correct, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "tiny"));
        assert_int_equal(loss, 7);
        ops->data_free(data);
        ops->net_free(net);
        mfl_graph_free(graph);
}

static void data_of_another_shape_are_refused(void **state)
{
        each_backend(check_misfit);
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
        };
        return cmocka_run_group_tests_name("backend", tests, NULL, NULL);
}
