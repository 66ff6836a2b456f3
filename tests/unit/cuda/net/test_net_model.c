/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a network without a device: which layer does what for which, and where params lie. */
#include "tests/lib/test.h"

#include "kernels/cuda/net/net.h"

#define IMAGE(c, h, w)                                                                                       \
        {                                                                                                    \
                3,                                                                                           \
                {                                                                                            \
                        c, h, w                                                                              \
                }                                                                                            \
        }

static const struct mfl_layer block[] = {
        {.op = MFL_OP_INPUT, .input = -1, .out = IMAGE(2, 4, 4)},                                  /* 0 */
        {.op = MFL_OP_CONV2D, .input = 0, .out_channels = 4, .kernel = {3, 3}, .padding = {1, 1}}, /* 1 */
        {.op = MFL_OP_RELU, .input = 1},                                                           /* 2 */
        {.op = MFL_OP_CONV2D, .input = 2, .out_channels = 4, .kernel = {3, 3}, .padding = {1, 1}}, /* 3 */
        {.op = MFL_OP_BATCHNORM, .input = 3},                                                      /* 4 */
        {.op = MFL_OP_ADD, .input = 4, .input2 = 2},                                               /* 5 */
        {.op = MFL_OP_RELU, .input = 5},                                                           /* 6 */
        {.op = MFL_OP_MAXPOOL2D, .input = 6, .kernel = {2, 2}, .stride = {2, 2}},                  /* 7 */
        {.op = MFL_OP_FLATTEN, .input = 7},                                                        /* 8 */
        {.op = MFL_OP_DENSE, .input = 8, .out_channels = 5, .bias = true},                         /* 9 */
        {.op = MFL_OP_TANH, .input = 9},                                                           /* 10 */
        {.op = MFL_OP_DENSE, .input = 10, .out_channels = 3, .bias = true},                        /* 11 */
};

static struct mfl_graph *build(const struct mfl_layer *layers, int n)
{
        struct mfl_graph *graph = NULL;
        struct mfl_error err;
        int rc = mfl_graph_build("model", layers, n, 3, &graph, &err);
        if (rc)
                fail_msg("%s", err.text);
        return graph;
}

static void model_of(struct mfl_cuda_model *model, const struct mfl_graph *graph, int groups)
{
        struct mfl_net_options options = {.batch = 4, .groups = groups, .threads = 1, .training = true};
        struct mfl_error err;
        if (mfl_cuda_model_init(model, graph, &options, &err))
                fail_msg("%s", err.text);
}

static void a_residual_block_is_fused(void **state)
{
        struct mfl_graph *graph = build(block, MFL_ARRAY_SIZE(block));
        struct mfl_cuda_model model;
        model_of(&model, graph, 2);
        const struct mfl_cuda_layer *l = model.layers;
        /* The norm adds the shortcut and applies the ReLU, both forward and backward. */
        assert_int_equal(l[4].residual, 2);
        assert_int_equal(l[4].act, MFL_CUDA_ACT_RELU);
        assert_true(l[5].carried && l[5].folded && l[6].carried && l[6].folded);
        assert_int_equal(model.plan->layers[4].act, model.plan->layers[6].act);
        assert_int_equal(model.plan->layers[4].grad, model.plan->layers[6].grad);
        /* The first ReLU's output is read twice. The norm writes its gradient; the second convolution adds to
         * it, completes it and applies the ReLU's own. */
        assert_true(l[2].carried && l[2].folded && !l[4].add2 && l[3].add);
        assert_int_equal(l[1].act, MFL_CUDA_ACT_RELU);
        assert_int_equal(l[3].in_act, MFL_CUDA_ACT_RELU);
        /* A flattened image is the image; tanh goes with its dense layer. */
        assert_true(l[8].carried && l[8].folded);
        assert_int_equal(l[9].act, MFL_CUDA_ACT_TANH);
        assert_int_equal(l[11].in_act, MFL_CUDA_ACT_TANH);
        assert_true(l[10].folded);
        assert_int_equal(l[7].in_act, MFL_CUDA_ACT_NONE); /* the norm does it */
        mfl_cuda_model_deinit(&model);
        mfl_graph_free(graph);
}

static void params_have_one_place_each(void **state)
{
        struct mfl_graph *graph = build(block, MFL_ARRAY_SIZE(block));
        struct mfl_cuda_model model;
        model_of(&model, graph, 1);
        uint32_t *place = mfl_calloc((size_t)graph->n, sizeof *place);
        bool *taken = mfl_calloc((size_t)model.stride, sizeof *taken);
        assert_true(place && taken);
        mfl_cuda_model_permutation(&model, place);
        for (int p = 0; p < graph->n_params; p++) {
                const struct mfl_param *param = &graph->params[p];
                assert_int_equal(model.at[p] % 64, 0);
                for (uint64_t e = param->offset; e < param->offset + param->count; e++) {
                        assert_in_range(place[e], 0, model.stride - 1);
                        assert_false(taken[place[e]]);
                        taken[place[e]] = true;
                        /* Running statistics lie after the trained params. */
                        assert_int_equal(place[e] < model.n_trained, param->trained);
                }
        }
        /* Filter 1, channel 1, row 0, column 2 of the first convolution, [k][r][s][c]. */
        const struct mfl_param *w = &graph->params[graph->layers[1].param_weight];
        assert_int_equal(place[w->offset + 1 * 18 + 1 * 9 + 2], 1 * 18 + 2 * 2 + 1);
        /* Output 1, channel 3, pixel (1, 0) of the dense layer after 4x2x2: column (1 * 2 + 0) * 4 + 3. */
        const struct mfl_param *d = &graph->params[graph->layers[9].param_weight];
        uint64_t at = model.at[graph->layers[9].param_weight];
        assert_int_equal(place[d->offset + 16 + 3 * 4 + 2], at + 16 + 11);
        free(place);
        free(taken);
        mfl_cuda_model_deinit(&model);
        mfl_graph_free(graph);
}

static void groups_cost_their_share(void **state)
{
        struct mfl_graph *graph = build(block, MFL_ARRAY_SIZE(block));
        struct mfl_net_options options = {.batch = 4, .groups = 1, .threads = 1, .training = true};
        uint64_t last = 0;
        for (int g = 1; g <= 64; g *= 2) {
                options.groups = g;
                uint64_t bytes = mfl_cuda_net_bytes(graph, &options);
                assert_true(bytes > last);
                last = bytes;
        }
        options.shared_start = true;
        uint64_t shared = mfl_cuda_net_bytes(graph, &options);
        assert_true(shared < last);
        options.training = false;
        assert_true(mfl_cuda_net_bytes(graph, &options) < shared);
        mfl_graph_free(graph);
}

/* Memory of [groups][stride] floats for each of the moments that the optimizer keeps. */
static void an_optimizer_takes_what_it_keeps(void **state)
{
        struct mfl_graph *graph = build(block, MFL_ARRAY_SIZE(block));
        struct mfl_net_options options = {.batch = 4, .groups = 5, .threads = 1, .training = true};
        struct mfl_cuda_model model;
        struct mfl_error err;
        assert_int_equal(mfl_cuda_model_init(&model, graph, &options, &err), 0);
        uint64_t each = mfl_cuda_round_up(5 * model.stride * sizeof(float)), round = 512;
        mfl_cuda_model_deinit(&model);
        static const struct {
                struct mfl_optimizer opt;
                uint64_t moments;
        } cases[] = {{{.kind = MFL_OPTIMIZER_ADAM}, 2}, {{.kind = MFL_OPTIMIZER_ADAMW}, 2},
                {{.kind = MFL_OPTIMIZER_ADAGRAD}, 1}, {{.kind = MFL_OPTIMIZER_SGD, .momentum = 0.9f}, 1},
                {{.kind = MFL_OPTIMIZER_SGD}, 0}};
        uint64_t any = mfl_cuda_net_bytes(graph, &options);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                options.moments = mfl_optimizer_moments(&cases[i].opt);
                uint64_t bytes = mfl_cuda_net_bytes(graph, &options), less = (2 - cases[i].moments) * each;
                assert_true(bytes + less <= any + round && any <= bytes + less + round);
        }
        mfl_graph_free(graph);
}

static uint64_t bytes_of_attention(int positions, int heads, bool training)
{
        const struct mfl_layer layers[] = {
                {.op = MFL_OP_INPUT, .input = -1, .out = {2, {positions, 8}}},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 3 * 144},
                {.op = MFL_OP_ATTENTION, .input = 1, .heads = heads},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 3},
        };
        struct mfl_graph *graph = build(layers, MFL_ARRAY_SIZE(layers));
        struct mfl_net_options options = {.batch = 4, .groups = 2, .threads = 1, .training = training};
        uint64_t bytes = mfl_cuda_net_bytes(graph, &options);
        mfl_graph_free(graph);
        return bytes;
}

/* Twice the positions cost at most twice the bytes. Only for heads that are too large for tiles the weights,
 * once kept and once in the workspace, cost 2 * 2 * 4 * T * T floats. */
static void attention_keeps_no_weights(void **state)
{
        for (int training = 0; training < 2; training++)
                for (int heads = 2; heads < 20; heads *= 4)
                        assert_true(bytes_of_attention(4096, heads, training) <=
                                    2 * bytes_of_attention(2048, heads, training));
        assert_true(bytes_of_attention(4096, 1, true) > (uint64_t)2 * 2 * 4 * 4096 * 4096 * sizeof(float));
}

static void no_memory_is_an_error(void **state)
{
        struct mfl_graph *graph = build(block, MFL_ARRAY_SIZE(block));
        struct mfl_net_options options = {.batch = 4, .groups = 1, .threads = 1, .training = true};
        for (long n = 0;; n++) {
                struct mfl_cuda_model model;
                mfl_alloc_fail_at(n);
                int rc = mfl_cuda_model_init(&model, graph, &options, NULL);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(rc, struck ? -ENOMEM : 0);
                if (!struck) {
                        mfl_cuda_model_deinit(&model);
                        break;
                }
        }
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_residual_block_is_fused),
                cmocka_unit_test(params_have_one_place_each),
                cmocka_unit_test(groups_cost_their_share),
                cmocka_unit_test(an_optimizer_takes_what_it_keeps),
                cmocka_unit_test(attention_keeps_no_weights),
                cmocka_unit_test(no_memory_is_an_error),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
