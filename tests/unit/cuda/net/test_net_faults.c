/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of a network on the emulated device: no memory, failing calls of CUDA, unsupported models and
 * data. Nothing crashes, nothing leaks, and the text says what happened. */
#include "tests/unit/cuda/net/net_test.h"

#include "tests/emu/emu.h"
#include "kernels/cuda/net/net.h"

static const struct mfl_backend_ops *const ops = &mfl_backend_module;

struct local {
        struct mfl_net *net;
        struct mfl_device_data *data;
};

static int open_local(
        struct net_case *c, const struct mfl_net_options *options, struct local *l, struct mfl_error *err)
{
        *l = (struct local){NULL, NULL};
        int rc = ops->net_new(c->device, c->graph, options, &l->net, err);
        return rc ? rc : ops->data_new(c->device, &c->set, &c->set.train, true, &l->data, err);
}

static void close_local(struct local *l)
{
        ops->net_free(l->net);
        ops->data_free(l->data);
}

static int use_local(struct net_case *c, struct local *l, struct mfl_error *err)
{
        struct mfl_group_steps steps[2] = {
                {.index = c->index[0], .count = c->count[0]}, {.index = c->index[1], .count = c->count[1]}};
        const struct mfl_optimizer opt = {.lr = 0.1f};
        struct mfl_score score = {0};
        int rc = 0;
        for (int g = 0; !rc && g < 2; g++)
                rc = mfl_backend_set(ops, l->net, c->graph, g, c->first, err);
        if (!rc)
                rc = ops->step(l->net, l->data, steps, NET_STEPS, &opt, err);
        return rc ? rc : ops->eval(l->net, 1, l->data, c->index[0], NET_BATCH, &score, err);
}

/* A broken device stays broken until this call. Nothing of it may be held any longer. */
static bool was_broken(void)
{
        bool broken = cudaDeviceSynchronize() != cudaSuccess;
        if (broken)
                assert_int_equal(cudaDeviceReset(), cudaSuccess);
        return broken;
}

static void too_little_memory_is_told_with_sizes(void **state)
{
        struct net_case c;
        struct local l;
        struct mfl_error err;
        net_case_init(&c, NET_RESIDUAL);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 2, 0);
        uint64_t before = mfl_emu_memory_used();
        mfl_emu_set_memory(before + (32 << 10));
        assert_int_equal(open_local(&c, &run.options, &l, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "bytes wanted"));
        assert_non_null(strstr(err.text, "free of the device's"));
        close_local(&l);
        assert_int_equal(mfl_emu_memory_used(), before);
        mfl_emu_set_memory((uint64_t)8 << 30);
        assert_int_equal(open_local(&c, &run.options, &l, &err), 0);
        close_local(&l);
        net_case_deinit(&c);
}

static void a_failed_launch_names_the_operation(void **state)
{
        struct net_case c;
        struct local l;
        struct mfl_error err;
        net_case_init(&c, NET_DENSE);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 2, 0);
        assert_int_equal(open_local(&c, &run.options, &l, &err), 0);
        mfl_emu_fail_at("cudaGraphLaunch", 1);
        assert_true(use_local(&c, &l, &err) < 0);
        assert_true(mfl_emu_failed());
        assert_non_null(strstr(err.text, "cuda: launch a step of training: cudaError"));
        close_local(&l);
        assert_true(was_broken());
        net_case_deinit(&c);
}

/* Each call of CUDA in turn fails once. Only out of device memory leaves the device intact. Measuring takes
 * the first network's time; the second finds its choices in the tuning file. */
static void every_failing_call_is_an_error(void **state)
{
        struct net_case c;
        struct local l;
        struct mfl_error err;
        net_case_init(&c, NET_DENSE);
        struct net_run run = net_run_of(MFL_PRECISION_FP16, 2, 0);
        assert_int_equal(open_local(&c, &run.options, &l, &err), 0);
        close_local(&l);
        uint64_t before = mfl_emu_memory_used();
        for (long n = 1;; n++) {
                mfl_emu_fail_at("*", n);
                int rc = open_local(&c, &run.options, &l, &err);
                if (!rc)
                        rc = use_local(&c, &l, &err);
                bool struck = mfl_emu_failed();
                mfl_emu_fail_at("*", 0);
                if (struck && rc)
                        assert_true(rc == MFL_INVALID ? strstr(err.text, "wanted") != NULL
                                                      : strstr(err.text, "cuda: ") == err.text);
                close_local(&l);
                if (!was_broken()) { /* only memory was refused */
                        assert_int_equal(mfl_emu_memory_used(), before);
                } else {
                        assert_true(struck && rc < 0);
                }
                if (!struck) {
                        assert_int_equal(rc, 0);
                        assert_true(n > 50);
                        break;
                }
        }
        net_case_deinit(&c);
}

static void no_host_memory_is_an_error(void **state)
{
        struct net_case c;
        struct local l;
        struct mfl_error err;
        net_case_init(&c, NET_RESIDUAL);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 2, 0);
        assert_int_equal(open_local(&c, &run.options, &l, &err), 0);
        close_local(&l);
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                int rc = open_local(&c, &run.options, &l, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                close_local(&l);
                if (!struck) {
                        assert_int_equal(rc, 0);
                        break;
                }
                /* Anything that is only an optimisation, such as a stored choice, may be missing. */
                assert_true(rc == -ENOMEM || rc == 0);
        }
        net_case_deinit(&c);
}

static void data_that_does_not_fit_is_refused(void **state)
{
        struct net_case c, other;
        struct local l;
        struct mfl_error err;
        struct mfl_device_data *streamed = NULL;
        struct mfl_group_steps steps[2] = {{0}};
        const struct mfl_optimizer opt = {.lr = 0.1f};
        net_case_init(&c, NET_DENSE);
        net_case_init(&other, NET_RESIDUAL);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 2, 0);
        assert_int_equal(open_local(&c, &run.options, &l, &err), 0);
        assert_int_equal(ops->data_new(c.device, &c.set, &c.set.train, false, &streamed, &err), 0);
        assert_int_equal(ops->step(l.net, streamed, steps, 1, &opt, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "stream"));
        ops->data_free(streamed);
        assert_int_equal(ops->data_new(c.device, &other.set, &other.set.train, false, &streamed, &err), 0);
        assert_int_equal(ops->step(l.net, streamed, steps, 1, &opt, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "does not fit"));
        ops->data_free(streamed);
        close_local(&l);
        net_case_deinit(&c);
        net_case_deinit(&other);
}

static void models_that_it_has_not_got_name_the_layer(void **state)
{
        const struct mfl_layer layers[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {3, {2, 4, 4}}},
                {.op = MFL_OP_FLATTEN, .input = 0},
                {.op = MFL_OP_GROUPNORM, .input = 1, .norm_groups = 2, .name = "the-norm"},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 3},
        };
        struct mfl_net_options options = {.batch = 2, .groups = 1, .threads = 1};
        struct mfl_graph *graph = NULL;
        struct mfl_net *net = NULL;
        struct mfl_error err;
        assert_int_equal(mfl_graph_build("flat", layers, MFL_ARRAY_SIZE(layers), 3, &graph, &err), 0);
        assert_int_equal(ops->net_new(net_device(), graph, &options, &net, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "the-norm"));
        assert_null(net);
        options.groups = 0;
        assert_int_equal(ops->net_new(net_device(), graph, &options, &net, &err), MFL_INVALID);
        mfl_graph_free(graph);
}

static void fusion_stays_within_memory(void **state)
{
        struct net_case c;
        struct mfl_error err;
        int groups = 0;
        net_case_init(&c, NET_DENSE);
        struct net_run run = net_run_of(MFL_PRECISION_FP32, 1, 0);
        struct mfl_net_options three = run.options;
        three.groups = 3;
        uint64_t one = ops->net_bytes(c.graph, &run.options), bytes = ops->net_bytes(c.graph, &three);
        assert_true(bytes > one);
        assert_int_equal(ops->fuse(c.device, c.graph, &run.options, 8, bytes, &groups, &err), 0);
        assert_in_range(groups, 1, 3);
        assert_int_equal(ops->fuse(c.device, c.graph, &run.options, 1, bytes, &groups, &err), 0);
        assert_int_equal(groups, 1);
        assert_int_equal(ops->fuse(c.device, c.graph, &run.options, 8, one - 1, &groups, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "bytes"));
        net_case_deinit(&c);
}

/* The size for budgets is at least what is taken. */
static void the_budget_covers_the_network(void **state)
{
        struct net_case c;
        struct local l;
        net_case_init(&c, NET_RESIDUAL);
        for (int p = 0; p < MFL_PRECISION_COUNT_; p++) {
                struct net_run run = net_run_of((enum mfl_precision)p, 2, 0);
                run.options.streamed = true;
                uint64_t before = mfl_emu_memory_used();
                assert_int_equal(ops->net_new(c.device, c.graph, &run.options, &l.net, NULL), 0);
                assert_true(mfl_emu_memory_used() - before <= ops->net_bytes(c.graph, &run.options));
                ops->net_free(l.net);
                assert_int_equal(mfl_emu_memory_used(), before);
        }
        net_case_deinit(&c);
}

static void the_device_says_what_it_is(void **state)
{
        struct mfl_device_info info;
        ops->device_info(net_device(), &info);
        assert_string_equal(info.backend, "cuda");
        assert_true(info.own_memory && info.cores > 0 && info.memory_free_bytes <= info.memory_bytes);
        assert_int_equal(strlen(info.uuid), strlen("GPU-00000000-0000-0000-0000-000000000000"));
        assert_memory_equal(info.uuid, "GPU-", 4);
        assert_int_equal(strlen(info.pci), strlen("0000:65:00.0"));
        assert_non_null(strstr(info.library, "cuDNN 9."));
        assert_non_null(strstr(info.library, ", CUDA 13."));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_device_says_what_it_is),
                cmocka_unit_test(too_little_memory_is_told_with_sizes),
                cmocka_unit_test(a_failed_launch_names_the_operation),
                cmocka_unit_test(every_failing_call_is_an_error),
                cmocka_unit_test(no_host_memory_is_an_error),
                cmocka_unit_test(data_that_does_not_fit_is_refused),
                cmocka_unit_test(models_that_it_has_not_got_name_the_layer),
                cmocka_unit_test(fusion_stays_within_memory),
                cmocka_unit_test(the_budget_covers_the_network),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
