/* SPDX-License-Identifier: Apache-2.0 */
/* A version on several networks at once: each request gets its own rows, and ends once, however it is divided, and when the program stops meanwhile. */
#include "tests/lib/test.h"

#include "serve/engine/lane.h"

#define NETWORKS 3
#define ELEMENTS 4
#define QUERIES 200

struct question {
        struct mfl_query query;
        enum mfl_query_end end;
        uint32_t n_ended;
        float *x;
};

struct bed {
        uv_loop_t loop;
        struct mfl_worker worker[NETWORKS];
        struct mfl_lane *lane;
        struct question question[QUERIES];
};

static void set_up(struct bed *bed)
{
        const struct mfl_version_options options = {
                .name = "m", .source = "identity:4", .n_instances = NETWORKS, .rows_max = 8};
        const struct mfl_batcher_config config = {.rows_max = 8, .queue_max = 1 << 20};
        const struct mfl_lane_workers workers = {
                .v = bed->worker, .n = NETWORKS, .first = 1, .n_used = NETWORKS};
        struct mfl_staged staged;
        struct mfl_version *version;
        struct mfl_error err;
        memset(bed, 0, sizeof *bed);
        assert_int_equal(uv_loop_init(&bed->loop), 0);
        for (int i = 0; i < NETWORKS; i++)
                assert_int_equal(mfl_worker_start(&bed->worker[i], &bed->loop, "engine", 64, &err), 0);
        assert_int_equal(mfl_version_stage(options.source, &options, &staged, &err), 0);
        assert_int_equal(mfl_version_open(&staged, &options, &version, &err), 0);
        assert_int_equal(mfl_lane_open(version, &workers, &config, &bed->lane, &err), 0);
}

static void stop(struct bed *bed)
{
        for (int i = 0; i < NETWORKS; i++)
                mfl_worker_close(&bed->worker[i], NULL);
        uv_run(&bed->loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&bed->loop), 0);
}

static void on_ended(struct mfl_query *query, enum mfl_query_end end)
{
        struct question *q = MFL_CONTAINER_OF(query, struct question, query);
        q->end = end;
        q->n_ended++;
}

static void ask(struct bed *bed, int i, uint32_t rows)
{
        struct question *q = &bed->question[i];
        const size_t n = (size_t)rows * ELEMENTS;
        q->x = mfl_malloc(n * sizeof *q->x);
        q->query = (struct mfl_query){
                .item.rows = rows, .x = q->x, .y = mfl_calloc(n, sizeof(float)), .ended = on_ended};
        assert_non_null(q->x);
        assert_non_null(q->query.y);
        for (size_t k = 0; k < n; k++)
                q->x[k] = (float)(i * 1000) + (float)k;
        assert_int_equal(mfl_lane_offer(bed->lane, &q->query, 1), 0);
}

static void forget(struct question *q)
{
        free(q->x);
        free(q->query.y);
}

static void each_request_gets_its_own_rows(void **state)
{
        static struct bed bed;
        struct mfl_error err;
        uint64_t rows = 0;
        set_up(&bed);
        for (int i = 0; i < QUERIES; i++) {
                ask(&bed, i, 1 + (uint32_t)i * 7 % 41);
                rows += 1 + (uint32_t)i * 7 % 41;
                if (i % 5 == 0)
                        assert_int_equal(mfl_lane_pump(bed.lane, 1, &err), 0);
                if (i % 9 == 0)
                        uv_run(&bed.loop, UV_RUN_NOWAIT);
        }
        while (bed.lane->n_busy || bed.lane->batcher.n_items) {
                assert_int_equal(mfl_lane_pump(bed.lane, 1, &err), 0);
                uv_run(&bed.loop, UV_RUN_ONCE);
        }
        assert_int_equal(bed.lane->counts.rows, rows);
        assert_int_equal(bed.lane->counts.failed, 0);
        for (int i = 0; i < QUERIES; i++) {
                struct question *q = &bed.question[i];
                assert_int_equal(q->n_ended, 1);
                assert_int_equal(q->end, MFL_QUERY_ANSWERED);
                assert_memory_equal(q->x, q->query.y, q->query.item.rows * ELEMENTS * sizeof(float));
                forget(q);
        }
        mfl_lane_unref(bed.lane);
        stop(&bed);
}

/* 100 rows: 24 are with the networks, and 76 wait. */
static void end_begun(bool computed)
{
        static struct bed bed;
        struct mfl_error err;
        set_up(&bed);
        ask(&bed, 0, 100);
        ask(&bed, 1, 1);
        assert_int_equal(mfl_lane_pump(bed.lane, 1, &err), 0);
        assert_int_equal(bed.lane->n_busy, NETWORKS);
        while (computed && bed.lane->n_busy)
                uv_run(&bed.loop, UV_RUN_ONCE);
        assert_int_equal(bed.question[0].n_ended, 0);
        mfl_lane_clear(bed.lane);
        assert_int_equal(bed.lane->batcher.n_rows, 0);
        assert_int_equal(bed.question[0].n_ended, computed);
        assert_int_equal(bed.question[1].n_ended, 1);
        mfl_lane_unref(bed.lane);
        stop(&bed);
        for (int i = 0; i < 2; i++) {
                assert_int_equal(bed.question[i].n_ended, 1);
                assert_int_equal(bed.question[i].end, MFL_QUERY_FAILED);
                forget(&bed.question[i]);
        }
}

static void a_stop_ends_a_request_of_which_a_part_is_computed(void **state)
{
        end_begun(false);
        end_begun(true);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(each_request_gets_its_own_rows),
                cmocka_unit_test(a_stop_ends_a_request_of_which_a_part_is_computed),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
