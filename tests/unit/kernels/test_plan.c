/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"
#include "kernels/plan.h"

#define BATCH 3

static struct mfl_graph *preset(const char *name, int64_t side)
{
        struct mfl_graph *graph = NULL;
        struct mfl_shape shape = {3, {1, side, side}};
        assert_int_equal(mfl_graph_preset(name, &shape, 10, &graph, NULL), 0);
        return graph;
}

/* One tensor as the test sees it: where, and from when to when. */
struct tensor {
        uint64_t at, bytes;
        int first, last;
};

static bool reads(const struct mfl_graph *graph, int j, int i)
{
        return graph->layers[j].input == i || graph->layers[j].input2 == i;
}

/* An activation lives from its layer to the last that reads it, forward or backward; a gradient from the last
 * reader's backward (the loss for the last layer) to its own layer's. */
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
                assert_int_equal(mfl_plan_new(graph, true, needs, &plan, NULL), 0);
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
        assert_int_equal(mfl_plan_new(graph, false, needs, &plan, NULL), 0);
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
        assert_int_equal(mfl_plan_new(graph, true, needs, &plan, NULL), 0);
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
        assert_int_equal(mfl_plan_new(graph, true, needs, &plan, NULL), 0);
        assert_false(plan->layers[0].wants_grad);
        for (int i = 1; i < graph->n_layers; i++) {
                assert_true(plan->layers[i].wants_grad);
                assert_true(plan->layers[i].live);
                assert_true(plan->layers[i].writes_grad);
        }
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

/* Of the readers of a tensor exactly one writes its gradient, and it is the first in backward order. */
static void the_last_reader_writes_the_gradient(void **state)
{
        struct mfl_graph *graph = preset("resnet20", 8);
        struct mfl_plan_need needs[96];
        struct mfl_plan *plan = NULL;
        int n_shared = 0;
        mfl_plan_plain_needs(graph, BATCH, needs);
        assert_int_equal(mfl_plan_new(graph, true, needs, &plan, NULL), 0);
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

/* A layer without params behind another branch's wants no gradient. */
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
        assert_int_equal(mfl_plan_new(graph, true, needs, &plan, NULL), 0);
        assert_false(plan->layers[1].wants_grad || plan->layers[3].wants_grad);
        assert_true(plan->layers[2].wants_grad && plan->layers[4].wants_grad);
        assert_true(plan->layers[4].writes_grad && plan->layers[4].writes_grad2);
        assert_true(plan->layers[2].writes_grad);  /* the input's gradient: layer 2 comes before layer 1 */
        assert_false(plan->layers[1].writes_grad); /* which adds */
        mfl_plan_free(plan);
        mfl_graph_free(graph);
}

static void memory_may_run_out(void **state)
{
        struct mfl_graph *graph = preset("lenet5", 28);
        struct mfl_plan_need needs[32];
        mfl_plan_plain_needs(graph, BATCH, needs);
        for (long n = 0;; n++) {
                struct mfl_plan *plan = NULL;
                mfl_alloc_fail_at(n);
                int rc = mfl_plan_new(graph, true, needs, &plan, NULL);
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
                cmocka_unit_test(memory_may_run_out),
        };
        return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
