/* SPDX-License-Identifier: Apache-2.0 */
/* Large frozen models on the CPU backend: products of few rows with large weights have the bits of other products,
 * and a network that is kept takes other frozen params, which stay the caller's. */
#include "tests/unit/kernels/cpu_beside.h"

#define POSITIONS 20
#define FEATURES 300
#define OUTPUTS 1003 /* times FEATURES: more than a cache keeps, and no whole number of tiles */
#define BATCH_MOST 7 /* 140 rows: too many to be few */

static struct mfl_net *new_net(const struct mfl_graph *graph, int batch)
{
        struct mfl_net_options options = {.batch = batch,
                .groups = 1,
                .threads = 1,
                .training = true,
                .input_grad = true,
                .shared_start = true};
        struct mfl_net *net = NULL;
        struct mfl_error err = {""};
        if (cpu->net_new(cpu_device, graph, &options, &net, &err))
                fail_msg("%s", err.text);
        return net;
}

static void start(struct mfl_net *net, const struct mfl_graph *graph, const float *params)
{
        assert_int_equal(cpu->params_base(net, params, params + graph->n_frozen, NULL), 0);
        assert_int_equal(cpu->params_set(net, 0, NULL, NULL, NULL), 0);
}

static void large_products_have_the_bits_of_small_ones(void **state)
{
        const struct mfl_shape input = IN2(POSITIONS, FEATURES);
        static const struct mfl_layer layers[] = {
                {.op = MFL_OP_DENSE, .out_channels = OUTPUTS, .bias = true}};
        if (!cpu)
                skip();
        struct mfl_graph *graph = graph_of(&input, layers, 1, 0);
        size_t in = POSITIONS * FEATURES, out = POSITIONS * OUTPUTS;
        float *params = new_floats(graph->n), *x = new_floats(in * BATCH_MOST);
        float *want = new_floats(out * BATCH_MOST), *y = new_floats(out * BATCH_MOST);
        fill(params, graph->n, 1);
        fill(x, in * BATCH_MOST, 2);
        struct mfl_net *net = new_net(graph, 1);
        start(net, graph, params);
        for (size_t i = 0; i < BATCH_MOST; i++)
                assert_int_equal(cpu->forward(net, x + i * in, NULL, want + i * out, NULL), 0);
        cpu->net_free(net);
        for (int batch = 2; batch <= BATCH_MOST; batch++) {
                net = new_net(graph, batch);
                start(net, graph, params);
                assert_int_equal(cpu->forward(net, x, NULL, y, NULL), 0);
                assert_memory_equal(y, want, (size_t)batch * out * sizeof *y);
                cpu->net_free(net);
        }
        mfl_graph_free(graph);
        free(params);
        free(x);
        free(want);
        free(y);
}

struct outcome {
        float y[5 * 4], dx[4 * 3 * 5 * 5], dparams[1200];
};

static void run_once(
        struct mfl_net *net, const struct mfl_graph *graph, const float *params, struct outcome *ret)
{
        float x[4 * 3 * 5 * 5], dy[5 * 4];
        struct mfl_rng_key key = mfl_rng_derive(3, MFL_RNG_DROPOUT, 0, 0);
        assert_true(graph->n <= 1200);
        memset(ret, 0, sizeof *ret);
        fill(x, sizeof x / sizeof *x, 5);
        fill(dy, sizeof dy / sizeof *dy, 6);
        start(net, graph, params);
        assert_int_equal(cpu->forward(net, x, &key, ret->y, NULL), 0);
        assert_int_equal(cpu->backward(net, dy, ret->dx, ret->dparams, NULL), 0);
}

/* Tensors of each home: convolutions' weights and padded norms, which are copied; vectors and products' weights. */
static void a_kept_network_takes_other_frozen_params(void **state)
{
        const struct mfl_shape input = IN3(3, 5, 5);
        static const struct mfl_layer layers[] = {
                {.op = MFL_OP_CONV2D, .out_channels = 7, .kernel = {3, 3}, .bias = true, .frozen = true},
                {.op = MFL_OP_BATCHNORM, .input = 1, .frozen = true}, {.op = MFL_OP_FLATTEN, .input = 2},
                {.op = MFL_OP_DENSE,
                        .input = 3,
                        .out_channels = 9,
                        .bias = true,
                        .frozen = true,
                        .lora_rank = 2},
                {.op = MFL_OP_DENSE, .input = 4, .out_channels = 5, .bias = true}};
        if (!cpu)
                skip();
        struct mfl_graph *graph = graph_of(&input, layers, 5, 5);
        float *params[2], *before = new_floats(graph->n);
        struct outcome *fresh = calloc(3, sizeof *fresh), *kept = fresh + 2;
        assert_non_null(fresh);
        assert_in_range(graph->n_frozen, 1, graph->n - 1);
        for (int i = 0; i < 2; i++) {
                params[i] = new_floats(graph->n);
                fill(params[i], graph->n, 10 + (uint64_t)i);
                struct mfl_net *net = new_net(graph, 4);
                run_once(net, graph, params[i], &fresh[i]);
                cpu->net_free(net);
        }
        assert_memory_not_equal(fresh[0].y, fresh[1].y, sizeof fresh[0].y);
        struct mfl_net *net = new_net(graph, 4), *second = new_net(graph, 4);
        for (int i = 0; i < 5; i++) {
                memcpy(before, params[i % 2], (size_t)graph->n * sizeof *before);
                run_once(i == 3 ? second : net, graph, params[i % 2], kept);
                assert_memory_equal(kept, &fresh[i % 2], sizeof *kept);
                assert_memory_equal(params[i % 2], before, (size_t)graph->n * sizeof *before);
        }
        /* Frozen params are found where they are, those that moved in the network. */
        assert_int_equal(cpu->params_get(net, 0, 0, before, NULL), 0);
        assert_memory_equal(before, params[0], (size_t)graph->n_frozen * sizeof *before);
        cpu->net_free(net);
        cpu->net_free(second);
        mfl_graph_free(graph);
        free(params[0]);
        free(params[1]);
        free(before);
        free(fresh);
}

/* A network has memory for what moves, not for what is frozen. */
static void frozen_params_take_no_memory_of_a_network(void **state)
{
        const struct mfl_shape input = IN2(2, 64);
        struct mfl_layer layers[] = {{.op = MFL_OP_DENSE, .out_channels = 65536, .frozen = true},
                {.op = MFL_OP_DENSE, .input = 1, .out_channels = 64, .frozen = true},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 2}};
        struct mfl_net_options options = {.batch = 1, .groups = 4, .threads = 1, .training = true};
        if (!cpu)
                skip();
        struct mfl_graph *frozen = graph_of(&input, layers, 3, 0);
        layers[0].frozen = layers[1].frozen = false;
        struct mfl_graph *trained = graph_of(&input, layers, 3, 0);
        uint64_t bytes = frozen->n * sizeof(float);
        assert_true(cpu->net_bytes(frozen, &options) < bytes);
        assert_true(cpu->net_bytes(trained, &options) > 4 * bytes);
        mfl_graph_free(frozen);
        mfl_graph_free(trained);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(large_products_have_the_bits_of_small_ones),
                cmocka_unit_test(a_kept_network_takes_other_frozen_params),
                cmocka_unit_test(frozen_params_take_no_memory_of_a_network),
        };
        return cmocka_run_group_tests_name("cpu_large", tests, open_devices, close_devices);
}
