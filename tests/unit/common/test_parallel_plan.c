/* SPDX-License-Identifier: Apache-2.0 */
/* What teams take and which plan is chosen: the table of docs/nodes.md, and jobs that gain something or nothing. */
#include "tests/lib/test.h"

#include "common/parallel/plan.h"

#define N ((uint64_t)1 << 28) /* so that blocks and buckets are nothing beside it */

static struct mfl_parallel_facts adamw(uint32_t grains)
{
        return (struct mfl_parallel_facts){.shape = {.n = N,
                                                   .n_tensors = 64,
                                                   .largest = 1 << 16,
                                                   .kept = 2,
                                                   .size = 8,
                                                   .grains = grains,
                                                   .bucket = 1 << 16},
                .moving = N,
                .n_buckets = 64};
}

/* Bytes per param of a member, without the params at the start and without the network. */
static void bytes_are_those_of_the_table(void **state)
{
        static const struct {
                uint32_t members, zero, grains; /* of each member */
                double bytes, traffic;
        } table[] = {{1, 0, 2, 20, 0}, {2, 0, 2, 20, 8}, {2, 1, 2, 16, 6}, {2, 2, 2, 12, 6}, {2, 3, 2, 10, 4},
                {4, 0, 2, 20, 12}, {4, 1, 2, 14, 9}, {4, 2, 2, 8, 9}, {4, 3, 2, 5, 6}, {8, 1, 2, 13, 10.5},
                {8, 2, 2, 6, 10.5}, {8, 3, 2, 2.5, 7},
                /* Floats travel where a member has one grain. */
                {2, 0, 1, 20, 8}, {2, 1, 1, 16, 4}, {4, 1, 1, 12, 6}, {8, 1, 1, 10, 7}, {8, 3, 1, 2.5, 3.5}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++) {
                struct mfl_parallel_facts facts = adamw(table[i].grains * table[i].members);
                struct mfl_parallel_plan plan;
                mfl_parallel_estimate(&facts, table[i].members, table[i].zero, &plan);
                assert_float_equal((double)plan.member / N, table[i].bytes, 0.03);
                assert_float_equal((double)plan.traffic / N, table[i].traffic, 0.001);
        }
}

/* Of deferred tensors params or totals travel, and operands once, whatever the stage; the rest is as ever. */
static void operands_travel_in_place_of_sums(void **state)
{
        static const struct {
                uint32_t members, zero, grains;
                double traffic;
        } table[] = {
                /* of sums, params and totals: a quarter of the elements as above, the others 4 bytes or, in stage 3, none */
                {2, 0, 2, 3.5}, {2, 1, 2, 1 + 2}, {2, 2, 2, 1 + 2}, {2, 3, 2, 1}, {4, 0, 2, 5.25},
                {2, 1, 1, 0.5 + 2}, {8, 3, 1, 0.875}, {1, 0, 2, 0}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++) {
                struct mfl_parallel_facts facts = adamw(table[i].grains * table[i].members), plain = facts;
                struct mfl_parallel_plan plan, without;
                double others = 1 - 1.0 / table[i].members;
                facts.shape.deferred = N / 4 * 3;
                facts.shape.n_deferred = 3;
                facts.shape.operands = N / 64;
                mfl_parallel_estimate(&facts, table[i].members, table[i].zero, &plan);
                mfl_parallel_estimate(&plain, table[i].members, table[i].zero, &without);
                assert_float_equal((double)plan.traffic / N, table[i].traffic + others / 16, 0.001);
                assert_float_equal((double)(plan.member - without.member) / N, 1.0 / 16, 0.01);
        }
}

/* Own and kept shards of params and two moments, twice; of one rank alone, and of whole states, none. */
static void snapshots_are_counted(void **state)
{
        struct mfl_parallel_facts with = adamw(8), without = adamw(8);
        struct mfl_parallel_plan plan, plain;
        with.shape.snapshot = 2 * 2 * 12;
        for (uint32_t zero = 0; zero < MFL_PARALLEL_STAGES; zero++)
                for (uint32_t members = 1; members <= 8; members *= 2) {
                        mfl_parallel_estimate(&with, members, zero, &plan);
                        mfl_parallel_estimate(&without, members, zero, &plain);
                        assert_float_equal((double)(plan.member - plain.member) / N,
                                zero && members > 1 ? 48.0 / members : 0, 0.05);
                }
}

/* Every shard is kept by a rank of another process, and no rank keeps more than was said. */
static void a_keeper_is_in_another_process(void **state)
{
        for (uint32_t a = 1; a < 7; a++)
                for (uint32_t b = 1; b < 7; b++)
                        for (uint32_t c = 0; c < 7; c++) {
                                const uint32_t width[] = {a, b, c};
                                uint32_t n = a + b + c, kept[21] = {0};
                                uint8_t keeper[21];
                                mfl_parallel_keepers(width, c ? 3 : 2, keeper);
                                for (uint32_t r = 0; r < n; r++) {
                                        uint32_t k = keeper[r];
                                        assert_true(k < n);
                                        assert_true((r >= a) + (r >= a + b) != (k >= a) + (k >= a + b));
                                        assert_true(++kept[k] <=
                                                    mfl_parallel_keeps(MFL_MAX(a, MFL_MAX(b, c)), n));
                                }
                        }
}

/* The params at the start come on top, and the update, which a team's leader makes in place. */
static void a_leader_makes_its_update_in_place(void **state)
{
        struct mfl_parallel_facts facts = adamw(8);
        struct mfl_parallel_plan plan;
        mfl_parallel_estimate(&facts, 1, 0, &plan);
        assert_float_equal((double)plan.leader / N, 28, 0.03);
        mfl_parallel_estimate(&facts, 4, 3, &plan);
        assert_float_equal((double)plan.leader / N, 9, 0.03);
        mfl_parallel_estimate(&facts, 8, 3, &plan); /* the update is more than the training */
        assert_float_equal((double)plan.leader / N, 8, 0.03);
}

static void assert_chosen(const struct mfl_parallel_facts *facts, uint32_t most, int zero, bool fits,
        uint32_t members, uint32_t stage)
{
        struct mfl_parallel_plan plan;
        assert_int_equal(mfl_parallel_choose(facts, most, zero, &plan), fits);
        assert_int_equal(plan.members, members);
        assert_int_equal(plan.zero, stage);
}

static void memory_decides_without_times(void **state)
{
        struct mfl_parallel_facts facts = adamw(8);
        assert_chosen(&facts, 8, -1, true, 1, 0);
        facts.memory = 27 * N;
        assert_chosen(&facts, 8, -1, true, 2, 1);
        assert_chosen(&facts, 8, 0, true, 2, 0);
        facts.memory = 21 * N;
        assert_chosen(&facts, 8, -1, true, 2, 1);
        facts.memory = 17 * N;
        assert_chosen(&facts, 8, -1, true, 2, 2);
        facts.memory = 10 * N;
        assert_chosen(&facts, 8, -1, true, 4, 3);
        assert_chosen(&facts, 8, 2, false, 8, 2);
        assert_chosen(&facts, 3, -1, false, 3, 3);
        facts.memory = 7 * N;
        assert_chosen(&facts, 8, -1, false, 6, 3);
}

static void what_gains_nothing_stays_on_one_worker(void **state)
{
        struct mfl_parallel_facts facts = adamw(4);
        facts.bytes_per_s = 4e9;
        facts.wait_s = 1e-5;
        facts.apply_s = 0.1;
        facts.grain_s = 0.01; /* traffic of a second against 0.04 of computing */
        assert_chosen(&facts, 4, -1, true, 1, 0);
        facts.grain_s = 10;
        assert_chosen(&facts, 4, -1, true, 4, 1);
        assert_chosen(&facts, 4, 0, true, 4, 0);
        assert_chosen(&facts, 3, -1, true, 2, 1); /* three members have two grains to wait for, too */
        facts.shape.grains = 1;
        assert_chosen(&facts, 4, -1, true, 1, 0);
}

static void overlap_hides_traffic(void **state)
{
        struct mfl_parallel_facts facts = adamw(2);
        struct mfl_parallel_plan plain, overlapped;
        facts.grain_s = 3;
        facts.bytes_per_s = (double)N; /* 4 s, 2 of them gradients as floats */
        mfl_parallel_estimate(&facts, 2, 1, &plain);
        facts.overlap = true;
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(plain.seconds, 7, 0.01);
        assert_float_equal(overlapped.seconds, 5, 0.01); /* behind two thirds of a grain */
        facts.cores = 3;                                 /* one for the traffic of two */
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(overlapped.seconds, 6, 0.01);
        facts.cores = 2;
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(overlapped.seconds, 7, 0.01);
        facts.beside_s = 4; /* of a grain, where two compute */
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(overlapped.seconds, 8, 0.01);
        facts.sync_s[1] = 0.5; /* members wait for each other */
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(overlapped.seconds, 8.5, 0.01);
        facts.sync_s[1] = -100; /* no step takes less than its grains */
        mfl_parallel_estimate(&facts, 2, 1, &overlapped);
        assert_float_equal(overlapped.seconds, 4, 0.01);
        mfl_parallel_estimate(&facts, 1, 0, &plain);
        assert_float_equal(plain.seconds, 6, 0.01);
}

/* Members with fewer grains wait for each other at fewer operations; where each sends once, there are as many. */
static void waiting_follows_the_operations(void **state)
{
        struct mfl_parallel_facts facts = adamw(8);
        facts.grain_s = 1;
        facts.bytes_per_s = 1e30;
        facts.n_buckets = 4;
        for (uint32_t zero = 1; zero < 4; zero++) {
                struct mfl_parallel_plan two, four;
                facts.sync_s[zero] = 1;
                mfl_parallel_estimate(&facts, 2, zero, &two);
                mfl_parallel_estimate(&facts, 4, zero, &four);
                assert_float_equal(two.seconds, 4 + 1, 1e-6);
                double share = zero == 1 ? 1 : zero == 2 ? 14.0 / 22 : 10.0 / 18;
                assert_float_equal(four.seconds, 2 + share, 1e-6);
        }
}

/* Of a step of eight grains by four ranks. */
static void assert_pays(
        uint64_t compute, uint64_t exchange, uint64_t apply, bool whole, uint32_t most, uint32_t ranks)
{
        const struct mfl_parallel_took took = {.ranks = 4,
                .grains = 8,
                .whole = whole,
                .compute = compute,
                .exchange = exchange,
                .apply = apply};
        assert_int_equal(mfl_parallel_width(&took, most), ranks);
}

static void a_width_follows_from_times(void **state)
{
        assert_pays(1000, 0, 0, false, 4, 4);
        assert_pays(1000, 0, 0, false, 64, 8); /* a rank without a grain would only wait */
        assert_pays(1000, 0, 0, false, 3, 3);
        assert_pays(1000, 4500, 0, false, 4, 1); /* 4000 alone; 2000 + 3000 by two, 1000 + 4500 by four */
        assert_pays(1000, 2000, 0, false, 4, 4); /* 4000; 3333; 3000 */
        assert_pays(1000, 2500, 0, false, 4,
                2); /* 4000; 3667; 3500: less than a twentieth less, by twice as many */
        assert_pays(100, 0, 1000, false, 4, 4);
        assert_pays(1, 0, 1000, true, 4, 1); /* everybody does all of it */
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(bytes_are_those_of_the_table),
                cmocka_unit_test(operands_travel_in_place_of_sums),
                cmocka_unit_test(snapshots_are_counted),
                cmocka_unit_test(a_keeper_is_in_another_process),
                cmocka_unit_test(a_leader_makes_its_update_in_place),
                cmocka_unit_test(memory_decides_without_times),
                cmocka_unit_test(what_gains_nothing_stays_on_one_worker),
                cmocka_unit_test(overlap_hides_traffic),
                cmocka_unit_test(waiting_follows_the_operations),
                cmocka_unit_test(a_width_follows_from_times),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
