/* SPDX-License-Identifier: Apache-2.0 */
/* The table of what a round costs each node: sums, daemons told apart, its bound, reuse, and memory that runs
 * out. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "server/jobs/node_cost.h"

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static const struct mfl_store_node *row_of(const struct mfl_node_costs *costs, const char *node)
{
        for (uint32_t i = 0; i < costs->nodes.n; i++)
                if (!strcmp(costs->nodes.v[i].node, node))
                        return &costs->nodes.v[i];
        fail_msg("no row of '%s'", node);
        return NULL;
}

static void check(const struct mfl_store_node *row, uint32_t daemons, uint64_t up, uint64_t down,
        uint64_t up_alone, uint64_t down_alone)
{
        assert_int_equal(row->daemons, daemons);
        assert_int_equal(row->up, up);
        assert_int_equal(row->down, down);
        assert_int_equal(row->up_alone, up_alone);
        assert_int_equal(row->down_alone, down_alone);
}

static void rows_are_sums(void **state)
{
        struct mfl_node_costs costs = {0};
        struct mfl_error err;
        mfl_node_costs_reset(&costs, 7);
        ok(mfl_node_costs_alone(&costs, "n1", "a", 0, 40, &err), &err);
        ok(mfl_node_costs_alone(&costs, "n1", "b", 0, 40, &err), &err);
        ok(mfl_node_costs_alone(&costs, "n2", "a", 0, 40, &err), &err); /* the name counts at each node */
        ok(mfl_node_costs_bytes(&costs, "n1", 0, 40, &err), &err);
        ok(mfl_node_costs_bytes(&costs, "n1", 80, 0, &err), &err);
        ok(mfl_node_costs_alone(&costs, "n1", "a", 80, 0, &err), &err);
        ok(mfl_node_costs_alone(&costs, "n1", "b", 80, 0, &err), &err);
        ok(mfl_node_costs_bytes(&costs, "", 1, 2, &err), &err); /* a daemon that the core has let go of */
        assert_int_equal(costs.nodes.n, 3);
        check(row_of(&costs, "n1"), 2, 80, 40, 160, 80);
        check(row_of(&costs, "n2"), 1, 0, 0, 0, 40);
        check(row_of(&costs, ""), 0, 1, 2, 0, 0);
        assert_int_equal(row_of(&costs, "n2")->round, 7);
        struct mfl_store_node sum = mfl_node_costs_sum(&costs);
        check(&sum, 3, 81, 42, 160, 120);

        mfl_node_costs_reset(&costs, 8);
        assert_int_equal(costs.nodes.n, 0);
        ok(mfl_node_costs_alone(&costs, "n1", "a", 1, 0, &err), &err);
        check(row_of(&costs, "n1"), 1, 0, 0, 1, 0);
        assert_int_equal(costs.nodes.v[0].round, 8);
        mfl_node_costs_deinit(&costs);
}

static void too_many_nodes_share_a_row(void **state)
{
        enum { N = MFL_NODE_COST_ROWS_MAX + 500 };
        struct mfl_node_costs costs = {0};
        struct mfl_store_nodes copy;
        struct mfl_error err;
        char node[MFL_NODE_BYTES], daemon[MFL_NAME_BYTES];
        for (int pass = 0; pass < 2; pass++)
                for (uint32_t i = 0; i < N; i++) {
                        snprintf(node, sizeof node, "node-%u", i);
                        snprintf(daemon, sizeof daemon, "d%u", i);
                        ok(mfl_node_costs_alone(&costs, node, daemon, 2, 1, &err), &err);
                        ok(mfl_node_costs_bytes(&costs, node, i, 0, &err), &err);
                }
        assert_int_equal(costs.nodes.n, MFL_NODE_COST_ROWS_MAX);
        check(row_of(&costs, "node-998"), 1, 2 * 998, 0, 4, 2);
        uint64_t rest = 0;
        for (uint32_t i = MFL_NODE_COST_ROWS_MAX - 1; i < N; i++)
                rest += 2 * i;
        check(row_of(&costs, MFL_NODE_COST_OTHERS), 501, rest, 0, 4 * 501, 2 * 501);
        struct mfl_store_node sum = mfl_node_costs_sum(&costs);
        check(&sum, N, (uint64_t)N * (N - 1), 0, 4 * N, 2 * N);
        ok(mfl_node_costs_copy(&costs, &copy, &err), &err);
        assert_int_equal(copy.n, costs.nodes.n);
        assert_memory_equal(copy.v, costs.nodes.v, copy.n * sizeof *copy.v);
        mfl_store_nodes_deinit(&copy);
        mfl_node_costs_deinit(&costs);
}

static void daemons_are_told_apart_up_to_a_limit(void **state)
{
        struct mfl_node_costs costs = {0};
        struct mfl_error err;
        char daemon[MFL_NAME_BYTES];
        for (uint32_t i = 0; i < MFL_NODE_COST_DAEMONS_MAX + 10; i++) {
                snprintf(daemon, sizeof daemon, "d%u", i);
                ok(mfl_node_costs_alone(&costs, "n", daemon, 1, 0, &err), &err);
        }
        check(row_of(&costs, "n"), MFL_NODE_COST_DAEMONS_MAX, 0, 0, MFL_NODE_COST_DAEMONS_MAX + 10, 0);
        mfl_node_costs_deinit(&costs);
}

/* What failed for want of memory has counted nothing of a daemon twice, and goes through the next time. */
static void memory_runs_out(void **state)
{
        bool struck = true;
        for (long n = 0; struck; n++) {
                struct mfl_node_costs costs = {0};
                struct mfl_store_nodes copy = {0};
                struct mfl_error err;
                char node[16];
                int r = 0;
                mfl_alloc_fail_at(n);
                for (int i = 0; i < 40 && !r; i++) {
                        snprintf(node, sizeof node, "n%d", i);
                        r = mfl_node_costs_alone(&costs, node, "d", 1, 1, &err);
                }
                if (!r)
                        r = mfl_node_costs_copy(&costs, &copy, &err);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                assert_int_equal(copy.n, struck ? 0 : 40);
                mfl_store_nodes_deinit(&copy);
                mfl_node_costs_deinit(&costs);
                assert_true(n < 100);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(rows_are_sums),
                cmocka_unit_test(too_many_nodes_share_a_row),
                cmocka_unit_test(daemons_are_told_apart_up_to_a_limit),
                cmocka_unit_test(memory_runs_out),
        };
        return cmocka_run_group_tests_name("server_node_cost", tests, NULL, NULL);
}
