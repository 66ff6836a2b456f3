/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "kernels/plan.h"

#define BATCH 3

/* With the gradient of the input every layer has a backward. */
static const struct mfl_net_options evaluation = {.batch = BATCH},
                                    training = {.batch = BATCH, .training = true},
                                    whole = {.batch = BATCH, .training = true, .input_grad = true};

static struct mfl_graph *preset(const char *name, int64_t side)
{
        struct mfl_graph *graph = NULL;
        struct mfl_shape shape = {3, {1, side, side}};
        assert_int_equal(mfl_graph_preset(name, &shape, 10, &graph, NULL), 0);
        return graph;
}

/* One tensor as the test sees it: where, from when, until when. */
struct tensor {
        uint64_t at, bytes;
        int first, last;
};

static bool reads(const struct mfl_graph *graph, int j, int i)
{
        return graph->layers[j].input == i || graph->layers[j].input2 == i;
}

/* An activation lives from its layer to the last one that reads it, forward or backward; a gradient from the
 * last reader's backward (for the last layer: from the loss) to that of its own layer. */
static int tensors_of(const struct mfl_graph *graph, const struct mfl_plan_need *needs,
        const struct mfl_plan *plan, struct tensor *out)
{
        int n = graph->n_layers, n_out = 0;
        for (int i = 0; i < n; i++) {
                int last = i == n - 1 ? n : i, grad_first = i == n - 1 ? n : 2 * n;
                for (int j = i + 1; j < n; j++) {
                        if (!reads(graph, j, i))
                                continue;
                        last = MFL_MAX(last, j);
                        grad_first = MFL_MIN(grad_first, 2 * n - j);
                        if (graph->layers[j].input == i && needs[j].uses_input)
                                last = MFL_MAX(last, 2 * n - j);
                }
                if (needs[i].uses_output)
                        last = MFL_MAX(last, 2 * n - i);
                out[n_out++] = (struct tensor){plan->layers[i].act, needs[i].act_bytes, i, last};
                out[n_out++] =
                        (struct tensor){plan->layers[i].grad, needs[i].act_bytes, grad_first, 2 * n - i};
        }
        return n_out;
}

static void tensors_alive_together_lie_apart(void **state)
{
        static const char *const names[] = {
                "fedavg-cnn", "lenet5", "pfl-cnn", "mlp", "logistic", "resnet20", "resnet18-gn"};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(names); k++) {
                struct mfl_graph *graph = preset(names[k], 28);
                struct mfl_plan_need needs[96];
                struct tensor tensors[192];
                struct mfl_plan *plan = NULL;
                mfl_plan_plain_needs(graph, BATCH, needs);
                assert_int_equal(mfl_plan_new(graph, &whole, needs, &plan, NULL), 0);
                int n = tensors_of(graph, needs, plan, tensors);
                for (int i = 0; i < n; i++) {
                        const struct tensor *a = &tensors[i];
                        assert_int_equal(a->at % MFL_PLAN_ALIGN, 0);
                        assert_true(a->at + a->bytes <= plan->arena_bytes);
                        for (int j = 0; j < i; j++) {
                                const struct tensor *b = &tensors[j];
                                bool together = a->first <= b->last && b->first <= a->last;
                                bool apart = a->at + a->bytes <= b->at || b->at + b->bytes <= a->at;
                                assert_true(apart || !together);
                        }
                }
                mfl_plan_free(plan);
                mfl_graph_free(graph);
        }
}

static void memory_is_reused(void **state)
{
        struct mfl_graph *graph = preset("fedavg-cnn", 28);
        struct mfl_plan_need needs[32];
        struct mfl_plan *plan = NULL;
        uint64_t sum = 0, most = 0;
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, &evaluation, needs, &plan, NULL), 0);
        for (int i = 0; i < graph->n_layers; i++) {
                sum += needs[i].act_bytes;
                most = MFL_MAX(most, needs[i].act_bytes);
        }
        /* Inference keeps two neighbours at a time: conv1 and relu1 are the largest. */
        assert_int_equal(plan->arena_bytes, 2 * most);
        assert_true(plan->arena_bytes < sum);
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

static void an_alias_shares_memory(void **state)
{
        struct mfl_graph *graph = preset("mlp", 28);
        struct mfl_plan_need needs[32];
        struct mfl_plan *plan = NULL;
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(graph->layers[2].op, MFL_OP_RELU);
        assert_int_equal(mfl_plan_readers(graph, 1), 1);
        needs[2].alias = 1;
        assert_int_equal(mfl_plan_new(graph, &whole, needs, &plan, NULL), 0);
        assert_int_equal(plan->layers[2].act, plan->layers[1].act);
        assert_int_equal(plan->layers[2].grad, plan->layers[1].grad);
        assert_int_not_equal(plan->layers[2].act, plan->layers[2].grad);
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

static void gradients_are_wanted_behind_params_only(void **state)
{
        struct mfl_graph *graph = preset("fedavg-cnn", 28);
        struct mfl_plan_need needs[32];
        struct mfl_plan *plan = NULL;
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, &training, needs, &plan, NULL), 0);
        assert_false(plan->layers[0].wants_grad);
        for (int i = 1; i < graph->n_layers; i++) {
                assert_true(plan->layers[i].wants_grad);
                assert_true(plan->layers[i].live);
                assert_true(plan->layers[i].writes_grad);
        }
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

/* Exactly one reader of a tensor writes its gradient: the first in backward order. */
static void the_last_reader_writes_the_gradient(void **state)
{
        struct mfl_graph *graph = preset("resnet20", 8);
        struct mfl_plan_need needs[96];
        struct mfl_plan *plan = NULL;
        int n_shared = 0;
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, &whole, needs, &plan, NULL), 0);
        for (int i = 0; i < graph->n_layers; i++) {
                int n_readers = 0, n_writers = 0, writer = -1, last = -1;
                for (int j = i + 1; j < graph->n_layers; j++) {
                        bool first = graph->layers[j].input == i, second = graph->layers[j].input2 == i;
                        n_readers += first || second;
                        last = first || second ? j : last;
                        if ((first && plan->layers[j].writes_grad) ||
                                (second && plan->layers[j].writes_grad2)) {
                                n_writers++;
                                writer = j;
                        }
                }
                assert_int_equal(n_readers, mfl_plan_readers(graph, i));
                assert_int_equal(n_readers, plan->layers[i].n_readers);
                assert_true(plan->layers[i].live);
                assert_true(graph->layers[i].input2 >= 0 || !plan->layers[i].writes_grad2);
                assert_int_equal(writer, last);
                assert_int_equal(n_writers, i < graph->n_layers - 1);
                n_shared += n_readers > 1;
        }
        assert_int_equal(n_shared, 9); /* what enters each of the nine blocks */
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

/* A layer without params that follows another branch's wants no gradient. */
static void gradients_flow_through_both_inputs(void **state)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {6}}},
                {.op = MFL_OP_RELU, .input = 0}, {.op = MFL_OP_DENSE, .input = 0, .out_channels = 6},
                {.op = MFL_OP_TANH, .input = 1}, {.op = MFL_OP_ADD, .input = 3, .input2 = 2}};
        struct mfl_graph *graph = NULL;
        struct mfl_plan_need needs[5];
        struct mfl_plan *plan = NULL;
        assert_int_equal(mfl_graph_build("m", layers, 5, 6, &graph, NULL), 0);
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, &training, needs, &plan, NULL), 0);
        assert_false(plan->layers[1].wants_grad || plan->layers[3].wants_grad);
        assert_true(plan->layers[2].wants_grad && plan->layers[4].wants_grad);
        assert_true(plan->layers[4].writes_grad && plan->layers[4].writes_grad2);
        assert_true(plan->layers[2].writes_grad);  /* the input's gradient: layer 2 comes before layer 1 */
        assert_false(plan->layers[1].writes_grad); /* which adds */
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

/* ---- segments: a step runs on memory that forgets a tensor when another is written over it ---- */

enum { ACT, GRAD, AUX, KINDS };

struct machine {
        const struct mfl_graph *graph;
        const struct mfl_plan_need *needs;
        const struct mfl_plan *plan;
        int state[KINDS][256]; /* by root (of AUX by layer): the layer that wrote last; -1: none */
};

static int root_of(const struct machine *m, int i)
{
        while (m->needs[i].alias >= 0)
                i = m->needs[i].alias;
        return i;
}

static uint64_t place_of(const struct machine *m, int kind, int i, uint64_t *ret_bytes)
{
        *ret_bytes = kind == AUX ? m->needs[i].aux_bytes : m->needs[i].act_bytes;
        return kind == ACT    ? m->plan->layers[i].act
               : kind == GRAD ? m->plan->layers[i].grad
                              : m->plan->layers[i].aux;
}

static void write_tensor(struct machine *m, int kind, int i)
{
        uint64_t bytes, other_bytes, at = place_of(m, kind, i, &bytes);
        int r = kind == AUX ? i : root_of(m, i);
        assert_true(at + bytes <= m->plan->arena_bytes && at % MFL_PLAN_ALIGN == 0);
        for (int k = 0; k < KINDS; k++)
                for (int j = 0; j < m->graph->n_layers; j++) {
                        uint64_t other = place_of(m, k, j, &other_bytes);
                        if (at < other + other_bytes && other < at + bytes)
                                m->state[k][j] = -1;
                }
        m->state[kind][r] = i;
}

/* The layer whose output lies in i's memory after forward. */
static int end_of(const struct machine *m, int i)
{
        int end = i;
        for (int j = i + 1; j < m->graph->n_layers; j++)
                if (root_of(m, j) == root_of(m, i))
                        end = j;
        return end;
}

static void run_forward(struct machine *m, int i)
{
        const int inputs[] = {m->graph->layers[i].input, m->graph->layers[i].input2};
        for (int k = 0; k < 2; k++)
                if (inputs[k] >= 0)
                        assert_int_equal(m->state[ACT][root_of(m, inputs[k])], inputs[k]);
        if (m->needs[i].aux_bytes)
                write_tensor(m, AUX, i);
        write_tensor(m, ACT, i);
}

static void run_backward(struct machine *m, int i)
{
        const int inputs[] = {m->graph->layers[i].input, m->graph->layers[i].input2};
        const bool uses[] = {m->needs[i].uses_input, m->needs[i].uses_input2};
        assert_int_not_equal(m->state[GRAD][root_of(m, i)], -1);
        if (m->needs[i].uses_output)
                assert_int_equal(m->state[ACT][root_of(m, i)], end_of(m, i));
        if (m->needs[i].aux_bytes)
                assert_int_equal(m->state[AUX][i], i);
        for (int k = 0; k < 2; k++) {
                if (inputs[k] < 0)
                        continue;
                bool writes = k ? m->plan->layers[i].writes_grad2 : m->plan->layers[i].writes_grad;
                int r = root_of(m, inputs[k]);
                if (uses[k])
                        assert_int_equal(m->state[ACT][r], end_of(m, inputs[k]));
                if (r == root_of(m, i) || !m->plan->layers[inputs[k]].wants_grad)
                        continue; /* in place, or not wanted */
                if (!writes)
                        assert_int_not_equal(m->state[GRAD][r], -1);
                else
                        write_tensor(m, GRAD, inputs[k]);
        }
}

/* Returns how many layers are computed again. */
static int run_step(
        const struct mfl_graph *graph, const struct mfl_plan_need *needs, const struct mfl_plan *plan)
{
        struct machine m = {.graph = graph, .needs = needs, .plan = plan};
        int n = graph->n_layers, next = n - 1, n_again = 0;
        memset(m.state, 0xff, sizeof m.state);
        write_tensor(&m, ACT, 0);
        for (int i = 1; i < n; i++)
                run_forward(&m, i);
        assert_int_equal(m.state[ACT][root_of(&m, n - 1)], n - 1);
        write_tensor(&m, GRAD, n - 1);
        for (int k = 0; k < plan->n_backward; k++) {
                int i = plan->backward[k].layer;
                if (plan->backward[k].again) {
                        assert_true(plan->layers[i].again && plan->layers[i].wants_grad && i <= next);
                        run_forward(&m, i);
                        n_again++;
                        continue;
                }
                while (next > 0 && !plan->layers[next].wants_grad)
                        next--;
                assert_int_equal(i, next--);
                run_backward(&m, i);
        }
        for (; next > 0; next--)
                assert_false(plan->layers[next].wants_grad);
        if (plan->layers[0].wants_grad)
                assert_int_not_equal(m.state[GRAD][0], -1);
        return n_again;
}

static void check_segments(const struct mfl_graph *graph, const struct mfl_plan_need *needs,
        const struct mfl_net_options *base, int segments, uint64_t *ret_bytes)
{
        struct mfl_net_options options = *base;
        struct mfl_plan *plan = NULL;
        options.segments = segments;
        assert_int_equal(mfl_plan_new(graph, &options, needs, &plan, NULL), 0);
        int n_again = run_step(graph, needs, plan);
        assert_in_range(plan->n_segments, 1, segments > 1 ? segments : MFL_SEGMENTS_MAX);
        assert_true(segments != 0 || (plan->n_segments == 1 && n_again == 0));
        for (int i = 0; i < graph->n_layers; i++) {
                int before = i ? plan->layers[i - 1].segment : 0;
                assert_in_range(plan->layers[i].segment, before, before + 1);
                if (needs[i].alias >= 0)
                        assert_int_equal(plan->layers[i].segment, plan->layers[needs[i].alias].segment);
                /* The last segment is never computed again. */
                assert_false(plan->layers[i].again && plan->layers[i].segment == plan->n_segments - 1);
        }
        *ret_bytes = plan->arena_bytes;
        mfl_plan_free(plan);
}

static void presets_take_less_in_segments(void **state)
{
        static const struct {
                const char *name;
                struct mfl_shape shape;
                double share; /* the largest share that auto may leave */
        } cases[] = {{"resnet20", {3, {3, 16, 16}}, 0.5}, {"fedavg-cnn", {3, {1, 28, 28}}, 1},
                {"mobilenet-v2", {3, {3, 16, 16}}, 0.35}, {"vit-tiny", {3, {3, 16, 16}}, 0.2},
                {"char-gpt", {1, {16}}, 0.35}, {"mlp", {1, {50}}, 1}};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(cases); k++) {
                struct mfl_graph *graph = NULL;
                struct mfl_plan_need needs[256];
                uint64_t all, least, bytes;
                assert_int_equal(mfl_graph_preset(cases[k].name, &cases[k].shape, 10, &graph, NULL), 0);
                assert_true(graph->n_layers <= 256);
                mfl_plan_plain_needs(graph, BATCH, needs);
                for (int i = 1; i < graph->n_layers; i++) {
                        enum mfl_op op = graph->layers[i].op;
                        needs[i].aux_bytes = op == MFL_OP_BATCHNORM || op == MFL_OP_ATTENTION ? 100 : 0;
                        if (op == MFL_OP_RELU && mfl_plan_readers(graph, i - 1) == 1)
                                needs[i].alias = i - 1;
                }
                check_segments(graph, needs, &training, 0, &all);
                check_segments(graph, needs, &training, MFL_SEGMENTS_AUTO, &least);
                assert_true((double)least <= cases[k].share * (double)all);
                for (int segments = 2; segments <= MFL_SEGMENTS_MAX; segments += 5)
                        check_segments(graph, needs, &training, segments, &bytes);
                mfl_graph_free(graph);
        }
}

/* A layer reads the one before it, and sums one more. Some have params, most of them frozen. */
static struct mfl_graph *random_graph(struct mfl_rng *rng, int n)
{
        struct mfl_layer layers[64] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {4}}}};
        struct mfl_graph *graph = NULL;
        for (int i = 1; i < n; i++) {
                layers[i] = (struct mfl_layer){.op = MFL_OP_TANH, .input = i - 1, .out_channels = 4};
                layers[i].frozen = mfl_rng_below(rng, 4) > 0;
                if (mfl_rng_below(rng, 4) == 0)
                        layers[i].op = MFL_OP_DENSE;
                else if (i > 1 && mfl_rng_below(rng, 3) == 0) {
                        layers[i].op = MFL_OP_ADD;
                        layers[i].input2 = (int)mfl_rng_below(rng, (uint32_t)i - 1);
                }
        }
        assert_int_equal(mfl_graph_build("m", layers, n, 4, &graph, NULL), 0);
        return graph;
}

static void any_step_finds_what_it_reads(void **state)
{
        struct mfl_rng rng = mfl_rng_new(3, MFL_RNG_TEST, 0, 0);
        for (int t = 0; t < 300; t++) {
                int n = 3 + (int)mfl_rng_below(&rng, 40);
                struct mfl_graph *graph = random_graph(&rng, n);
                struct mfl_plan_need needs[64] = {{.act_bytes = 640, .alias = -1}};
                uint64_t bytes;
                for (int i = 1; i < n; i++) {
                        bool alias = mfl_plan_readers(graph, i - 1) == 1 && mfl_rng_below(&rng, 3) == 0;
                        needs[i] = (struct mfl_plan_need){.act_bytes = 64 * (1 + mfl_rng_below(&rng, 20)),
                                .aux_bytes = mfl_rng_below(&rng, 3) ? 0 : 64 * (1 + mfl_rng_below(&rng, 9)),
                                .alias = alias ? i - 1 : -1,
                                .uses_input = mfl_rng_below(&rng, 2) && !alias,
                                .uses_input2 = mfl_rng_below(&rng, 2) && graph->layers[i].input2 >= 0,
                                .uses_output = mfl_rng_below(&rng, 2)};
                        if (alias) /* layers that share memory have one size */
                                needs[i].act_bytes = needs[i - 1].act_bytes;
                }
                const struct mfl_net_options *options = t % 3 ? &training : &whole;
                int segments = 2 + (int)mfl_rng_below(&rng, MFL_SEGMENTS_MAX - 1);
                check_segments(graph, needs, options, MFL_SEGMENTS_AUTO, &bytes);
                check_segments(graph, needs, options, segments, &bytes);
                mfl_graph_free(graph);
        }
}

/* Backward has nothing of the frozen layers in front, however the graph is cut: when it begins, only what the
 * trained layer reads, the output, and the gradients of both exist. */
static void a_frozen_prefix_costs_nothing(void **state)
{
        struct mfl_layer layers[9] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {16}}}};
        struct mfl_graph *graph = NULL;
        struct mfl_plan_need needs[9];
        for (int i = 1; i < 9; i++)
                layers[i] = (struct mfl_layer){.op = i % 2 ? MFL_OP_DENSE : MFL_OP_TANH,
                        .input = i - 1,
                        .out_channels = 16,
                        .frozen = i < 7};
        assert_int_equal(mfl_graph_build("m", layers, 9, 16, &graph, NULL), 0);
        mfl_plan_plain_needs(graph, BATCH, needs);
        for (int segments = 0; segments < 4; segments++) {
                struct mfl_net_options options = training;
                struct mfl_plan *plan = NULL;
                uint64_t bytes;
                options.segments = segments;
                check_segments(graph, needs, &options, segments, &bytes);
                assert_int_equal(
                        bytes, 4 * 16 * BATCH * sizeof(float)); /* 6, 7 (8 is no longer in it), 8, 8' */
                assert_int_equal(mfl_plan_new(graph, &options, needs, &plan, NULL), 0);
                assert_int_equal(plan->n_backward, 2);
                mfl_plan_free(plan);
        }
        mfl_graph_free(graph);
}

/* A layer that shares memory with a frozen one is included, since a backend may do both at once. */
static void who_shares_memory_wants_alike(void **state)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .input = -1, .out = {1, {6}}},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 6},
                {.op = MFL_OP_DENSE, .input = 0, .out_channels = 6, .frozen = true},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 6, .frozen = true},
                {.op = MFL_OP_ADD, .input = 3, .input2 = 1}};
        struct mfl_graph *graph = NULL;
        struct mfl_plan_need needs[5];
        struct mfl_plan *plan = NULL;
        assert_int_equal(mfl_graph_build("m", layers, 5, 6, &graph, NULL), 0);
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, &training, needs, &plan, NULL), 0);
        assert_int_equal(plan->n_backward, 2); /* 4, 1 */
        assert_false(plan->layers[3].wants_grad);
        mfl_plan_free(plan);
        needs[4].alias = 3;
        assert_int_equal(mfl_plan_new(graph, &training, needs, &plan, NULL), 0);
        assert_int_equal(plan->n_backward, 3); /* 4, 3, 1 */
        assert_true(plan->layers[3].wants_grad);
        assert_false(plan->layers[2].wants_grad);
        assert_int_equal(plan->layers[3].grad, plan->layers[4].grad);
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

/* Estimates follow the plan; for evaluation it does not matter. */
static void estimates_follow_segments(void **state)
{
        struct mfl_graph *graph = preset("resnet20", 16);
        struct mfl_net_options options = {.batch = 64, .groups = 1, .threads = 1, .training = true};
        uint64_t all = mfl_backend_reference.net_bytes(graph, &options);
        options.segments = MFL_SEGMENTS_AUTO;
        uint64_t least = mfl_backend_reference.net_bytes(graph, &options);
        assert_true(least < all * 3 / 4);
        options.training = false;
        uint64_t alone = mfl_backend_reference.net_bytes(graph, &options);
        options.segments = 0;
        assert_int_equal(mfl_backend_reference.net_bytes(graph, &options), alone);
        mfl_graph_free(graph);
}

static void memory_may_run_out(void **state)
{
        struct mfl_graph *graph = preset("lenet5", 28);
        struct mfl_plan_need needs[32];
        struct mfl_net_options options = training;
        options.segments = MFL_SEGMENTS_AUTO;
        mfl_plan_plain_needs(graph, BATCH, needs);
        for (long n = 0;; n++) {
                struct mfl_plan *plan = NULL;
                mfl_alloc_fail_at(n);
                int rc = mfl_plan_new(graph, &options, needs, &plan, NULL);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(rc, 0);
                        mfl_plan_free(plan);
                        break;
                }
                assert_int_equal(rc, -ENOMEM);
                assert_null(plan);
        }
        mfl_graph_free(graph);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(tensors_alive_together_lie_apart),
                cmocka_unit_test(memory_is_reused),
                cmocka_unit_test(an_alias_shares_memory),
                cmocka_unit_test(gradients_are_wanted_behind_params_only),
                cmocka_unit_test(the_last_reader_writes_the_gradient),
                cmocka_unit_test(gradients_flow_through_both_inputs),
                cmocka_unit_test(presets_take_less_in_segments),
                cmocka_unit_test(any_step_finds_what_it_reads),
                cmocka_unit_test(a_frozen_prefix_costs_nothing),
                cmocka_unit_test(who_shares_memory_wants_alike),
                cmocka_unit_test(estimates_follow_segments),
                cmocka_unit_test(memory_may_run_out),
        };
        return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
