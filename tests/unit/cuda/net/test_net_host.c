/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers between the host and the device, as the emulated device counts them: params and sums go only
 * through pinned memory, a piece is under way while another is added, and a client's start clears only the
 * moments that its optimizer keeps. */
#include "tests/unit/cuda/net/net_test.h"

#include "tests/emu/emu.h"

#define PIECE ((uint64_t)1 << 20) /* bytes: kernels/cuda/base/pipe.h */

struct watch {
        struct mfl_comm_control control;
        uint64_t n, told, last;
        unsigned pending_least;
};

static struct mfl_graph *large_graph(void)
{
        const struct mfl_layer layers[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {1, {500}}},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 700, .bias = true},
                {.op = MFL_OP_DENSE, .input = 1, .out_channels = 3, .bias = true},
        };
        struct mfl_graph *graph;
        struct mfl_error err;
        if (mfl_graph_build("large", layers, MFL_ARRAY_SIZE(layers), 3, &graph, &err))
                fail_msg("%s", err.text);
        return graph;
}

static void on_advanced(void *user)
{
        struct watch *watch = user;
        uint64_t ready = atomic_load(&watch->control.ready);
        assert_true(ready > watch->last && ready <= watch->n);
        /* The next piece is in the stream already. */
        if (ready < watch->n)
                watch->pending_least = MFL_MIN(watch->pending_least, mfl_emu_pending());
        watch->last = ready;
        watch->told++;
}

static struct watch watch_of(uint64_t n)
{
        return (struct watch){.n = n, .pending_least = 1000};
}

static void expect_traffic(uint64_t to_device, uint64_t to_host, uint64_t fills)
{
        struct mfl_emu_traffic t = mfl_emu_traffic_take();
        assert_int_equal(t.to_device[0], 0);
        assert_int_equal(t.to_device[1], to_device);
        assert_int_equal(t.to_host[0], 0);
        assert_int_equal(t.to_host[1], to_host);
        assert_int_equal(t.fills, fills);
}

static struct mfl_net *new_net(const struct mfl_graph *graph, enum mfl_moments moments)
{
        const struct mfl_net_options options = {.batch = 1,
                .groups = 2,
                .threads = 1,
                .training = true,
                .shared_start = true,
                .moments = moments};
        struct mfl_net *net;
        struct mfl_error err;
        if (mfl_backend_module.net_new(net_device(), graph, &options, &net, &err))
                fail_msg("%s", err.text);
        return net;
}

static void params_and_sums_go_through_pinned_memory(void **state)
{
        const struct mfl_backend_ops *ops = &mfl_backend_module;
        struct mfl_graph *graph = large_graph();
        struct mfl_net *net = new_net(graph, MFL_MOMENTS_NONE);
        struct mfl_fixed fixed = {.scale_bits = 30, .delta_max = 1024, .weight_max = 64};
        struct mfl_sum *held;
        uint64_t n = graph->n, weight[] = {1, 2}, n_bad[2], pieces = (n * 8 + PIECE - 1) / PIECE;
        float *base = mfl_malloc(n * sizeof(float)), *got = mfl_malloc(n * sizeof(float));
        int64_t *sum = mfl_malloc(n * sizeof *sum), *read = mfl_malloc(n * sizeof *read);
        mfl_graph_init_params(graph, 1, base);
        assert_true(pieces == 3);
        (void)mfl_emu_traffic_take();
        assert_int_equal(ops->params_base(net, NULL, base, NULL), 0);
        memset(got, 0xff, n * sizeof(float));
        expect_traffic(n * 4, 0, 0);
        for (int g = 0; g < 2; g++)
                assert_int_equal(ops->params_set(net, g, NULL, NULL, NULL), 0);
        expect_traffic(0, 0, 0);
        assert_int_equal(ops->params_get(net, 1, 0, got, NULL), 0);
        assert_memory_equal(got, base, n * sizeof(float));
        expect_traffic(0, n * 4, 0);
        /* A start other than the base: group 0's deltas are all different. */
        for (uint64_t i = 0; i < n; i++)
                got[i] = (float)i / 1024;
        assert_int_equal(ops->params_base(net, NULL, got, NULL), 0);
        assert_int_equal(ops->params_set(net, 1, NULL, NULL, NULL), 0);
        memset(got, 0, n * sizeof(float)); /* the pipe has read it */
        assert_int_equal(ops->params_base(net, NULL, got, NULL), 0);
        assert_int_equal(ops->params_set(net, 0, NULL, NULL, NULL), 0);
        (void)mfl_emu_traffic_take();
        /* Twice what group 1 has moved away from the base: i / 1024 * 2^31. */
        assert_int_equal(ops->sum_add(net, &fixed, weight, n_bad, NULL), 0);
        assert_int_equal(n_bad[0] + n_bad[1], 0);
        (void)mfl_emu_traffic_take();
        struct watch watch = watch_of(n);
        watch.control.advanced = on_advanced;
        watch.control.user = &watch;
        memset(sum, 0x55, n * sizeof *sum);
        assert_int_equal(ops->sum_take(net, sum, false, &watch.control, NULL), 0);
        assert_int_equal(watch.told, pieces);
        assert_int_equal(watch.last, n);
        assert_true(watch.pending_least > 0 && watch.pending_least < 1000);
        for (uint64_t i = 0; i < n; i++)
                assert_true(sum[i] == (int64_t)i << 21);
        expect_traffic(0, n * 8, 1);
        /* The same through a sum that outlives the network's; the network's is 0 afterwards. */
        assert_int_equal(ops->sum_add(net, &fixed, weight, n_bad, NULL), 0);
        assert_int_equal(ops->sum_take(net, sum, true, NULL, NULL), 0);
        assert_true(sum[n - 1] == (int64_t)(n - 1) << 22);
        assert_int_equal(ops->sum_add(net, &fixed, weight, n_bad, NULL), 0);
        assert_int_equal(ops->sum_new(net_device(), n, &held, NULL), 0);
        assert_int_equal(ops->sum_move(net, held, NULL), 0);
        (void)mfl_emu_traffic_take();
        watch = watch_of(n);
        watch.control.advanced = on_advanced;
        watch.control.user = &watch;
        assert_int_equal(ops->sum_read(held, read, &watch.control, NULL), 0);
        assert_int_equal(watch.told, pieces);
        assert_true(watch.pending_least > 0 && watch.pending_least < 1000);
        for (uint64_t i = 0; i < n; i++)
                assert_true(read[i] == (int64_t)i << 21);
        expect_traffic(0, n * 8, 0);
        ops->sum_free(held);
        ops->net_free(net);
        mfl_graph_free(graph);
        free(base);
        free(got);
        free(sum);
        free(read);
}

/* Staged ranges cross to the device once, when they arrive; the start of a training copies them there. */
static void staged_params_are_on_the_device_already(void **state)
{
        const struct mfl_backend_ops *ops = &mfl_backend_module;
        struct mfl_graph *graph = large_graph();
        struct mfl_net *net = new_net(graph, MFL_MOMENTS_NONE);
        struct mfl_stage *stage;
        uint64_t n = graph->n, half = n / 2 + 1;
        float *base = mfl_malloc(n * sizeof(float)), *got = mfl_malloc(n * sizeof(float));
        mfl_graph_init_params(graph, 1, base);
        (void)mfl_emu_traffic_take();
        assert_int_equal(ops->stage_bytes(n), n * 4);
        assert_int_equal(ops->stage_new(net_device(), n, &stage, NULL), 0);
        memcpy(got, base, half * sizeof(float));
        assert_int_equal(ops->stage_put(stage, 0, got, half, NULL), 0);
        memset(got, 0xff, n * sizeof(float)); /* it has read them */
        expect_traffic(half * 4, 0, 0);
        memset(got, 0, n * sizeof(float));
        assert_int_equal(ops->stage_put(stage, half, base + half, n - half, NULL), 0);
        expect_traffic((n - half) * 4, 0, 0);
        const struct mfl_params_part none = {0}, moving = {.host = base, .stage = stage};
        assert_int_equal(ops->params_staged(net, -1, &none, &moving, NULL), 0);
        assert_int_equal(ops->params_set(net, 1, NULL, NULL, NULL), 0);
        expect_traffic(0, 0, 0);
        /* It may be filled again: the base is a copy. */
        assert_int_equal(ops->stage_put(stage, 0, got, n, NULL), 0);
        assert_int_equal(ops->params_set(net, 0, NULL, NULL, NULL), 0);
        for (int g = 0; g < 2; g++) {
                assert_int_equal(ops->params_get(net, g, 0, got, NULL), 0);
                assert_memory_equal(got, base, n * sizeof(float));
        }
        ops->stage_free(stage);
        ops->stage_free(NULL);
        ops->net_free(net);
        mfl_graph_free(graph);
        free(base);
        free(got);
}

static void a_start_clears_what_the_optimizer_keeps(void **state)
{
        static const struct {
                struct mfl_optimizer opt;
                uint64_t fills;
        } cases[] = {{{.kind = MFL_OPTIMIZER_SGD}, 0}, {{.kind = MFL_OPTIMIZER_SGD, .momentum = 0.5f}, 1},
                {{.kind = MFL_OPTIMIZER_ADAGRAD}, 1}, {{.kind = MFL_OPTIMIZER_ADAM}, 2}};
        struct net_case c;
        net_case_init(&c, NET_DENSE);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_net *net = new_net(c.graph, mfl_optimizer_moments(&cases[i].opt));
                assert_int_equal(mfl_backend_module.params_base(net, NULL, c.first, NULL), 0);
                (void)mfl_emu_traffic_take();
                assert_int_equal(mfl_backend_module.params_set(net, 1, NULL, NULL, NULL), 0);
                expect_traffic(0, 0, cases[i].fills);
                mfl_backend_module.net_free(net);
        }
        net_case_deinit(&c);
}

/* A network with room only for its optimizer computes the same as one with room for any. */
static void moments_do_not_change_bits(void **state)
{
        static const struct mfl_optimizer opts[] = {{.kind = MFL_OPTIMIZER_SGD, .lr = 0.1f},
                {.kind = MFL_OPTIMIZER_SGD, .lr = 0.1f, .momentum = 0.9f, .nesterov = true},
                {.kind = MFL_OPTIMIZER_ADAGRAD, .lr = 0.05f, .eps = 1e-3f}};
        const struct mfl_backend_ops *backends[] = {&mfl_backend_module, &mfl_backend_reference};
        struct net_case c;
        net_case_init(&c, NET_RESIDUAL);
        for (size_t b = 0; b < MFL_ARRAY_SIZE(backends); b++) {
                struct mfl_device *device = c.device;
                if (b)
                        assert_int_equal(backends[b]->device_open(&device, NULL), 0);
                for (size_t i = 0; i < MFL_ARRAY_SIZE(opts); i++) {
                        struct net_run any = net_run_of(MFL_PRECISION_FP32, NET_GROUPS, 0), own = any;
                        any.opt = own.opt = opts[i];
                        own.options.moments = mfl_optimizer_moments(&opts[i]);
                        net_train(backends[b], device, &c, &any);
                        net_train(backends[b], device, &c, &own);
                        for (int g = 0; g < NET_GROUPS; g++)
                                net_assert_same(&c, &any, g, &own, g);
                        net_run_deinit(&any);
                        net_run_deinit(&own);
                }
                if (b)
                        backends[b]->device_close(device);
        }
        net_case_deinit(&c);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(params_and_sums_go_through_pinned_memory),
                cmocka_unit_test(staged_params_are_on_the_device_already),
                cmocka_unit_test(a_start_clears_what_the_optimizer_keeps),
                cmocka_unit_test(moments_do_not_change_bits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
