/* SPDX-License-Identifier: Apache-2.0 */
/* What rounds cost each node, in the store: rows with their round, their bounds, and a database of before. */
#include "tests/unit/server/fixture.h"

#include <stdio.h>
#include <sys/stat.h>

#include "server/store/store.h"
#include "server/store/store_db.h"

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static struct mfl_store *open_store(const char *dir)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        ok(mfl_store_open(dir, &store, &err), &err);
        return store;
}

/* A round whose file nobody looks at. */
static void commit(
        struct mfl_store *store, const char *id, uint32_t number, const struct mfl_store_nodes *nodes)
{
        struct mfl_error err = {{0}};
        struct mfl_store_round round = {.record = {.round = number},
                .bytes_up = 10 * number,
                .bytes_down = 11 * number,
                .bytes_up_alone = 20 * number,
                .bytes_down_alone = 22 * number,
                .file = {.name = "none"}};
        ok(mfl_store_commit(store, id, &round, nodes, 2000, &err), &err);
}

static struct mfl_store_nodes list(struct mfl_store *store, const char *id, uint32_t limit)
{
        struct mfl_store_nodes nodes;
        struct mfl_error err = {{0}};
        ok(mfl_store_node_list(store, id, limit, &nodes, &err), &err);
        return nodes;
}

static void rows_go_with_their_round(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_rounds rounds;
        char id[MFL_JOB_ID_BYTES], other[MFL_JOB_ID_BYTES];
        struct mfl_store_node v[] = {
                {.node = "b", .daemons = 3, .up = 1, .down = 2, .up_alone = 3, .down_alone = 4},
                {.node = "a/d1", .daemons = 1, .up = 1ull << 62, .down = 6, .up_alone = 7, .down_alone = 8}};
        const struct mfl_store_nodes two = {2, v}, one = {1, v}, none = {0};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        ok(mfl_store_job_add(store, "b", "t", "", "ann", NULL, other, &err), &err);
        commit(store, id, 1, &two);
        commit(store, id, 1, &two); /* once more, as after an error */
        commit(store, id, 2, &none);
        commit(store, id, 3, &one);
        commit(store, other, 1, &one);
        mfl_store_close(store);
        store = open_store(f.dir);
        struct mfl_store_nodes nodes = list(store, id, 1000);
        assert_int_equal(nodes.n, 3);
        v[0].round = v[1].round = 1;
        assert_memory_equal(&nodes.v[0], &v[1], sizeof v[1]);
        assert_memory_equal(&nodes.v[1], &v[0], sizeof v[0]);
        assert_int_equal(nodes.v[2].round, 3);
        mfl_store_nodes_deinit(&nodes);
        ok(mfl_store_round_list(store, id, 0, 0, &rounds, &err), &err);
        assert_int_equal(rounds.v[2].bytes_up, 30);
        assert_int_equal(rounds.v[2].bytes_down, 33);
        assert_int_equal(rounds.v[2].bytes_up_alone, 60);
        assert_int_equal(rounds.v[2].bytes_down_alone, 66);
        mfl_store_rounds_deinit(&rounds);
        /* Whole rounds only, the newest first. */
        nodes = list(store, id, 2);
        assert_int_equal(nodes.n, 1);
        assert_int_equal(nodes.v[0].round, 3);
        mfl_store_nodes_deinit(&nodes);
        nodes = list(store, id, 0);
        assert_int_equal(nodes.n, 0);
        mfl_store_nodes_deinit(&nodes);
        ok(mfl_store_job_set_state(store, id, MFL_JOB_DONE, "", &err), &err);
        ok(mfl_store_job_delete(store, id, &err), &err);
        assert_int_equal(mfl_store_node_list(store, id, 9, &nodes, &err), MFL_NOT_FOUND);
        nodes = list(store, other, 1000);
        assert_int_equal(nodes.n, 1);
        mfl_store_nodes_deinit(&nodes);
        mfl_store_close(store);
        fixture_deinit(&f);
}

/* Counts what is in the table, whoever it belongs to. */
static int on_count(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int64_t count_rows(const struct fixture *f)
{
        char path[160];
        int64_t n = -1;
        struct mfl_db *db;
        struct mfl_error err = {{0}};
        snprintf(path, sizeof path, "%s/mfl.db", f->dir);
        ok(mfl_db_open(path, &db, &err), &err);
        ok(mfl_db_query(db, on_count, &n, &err, "SELECT count(*) FROM round_nodes", ""), &err);
        mfl_db_close(db);
        return n;
}

static void only_new_rounds_keep_theirs(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_resume resume;
        char id[MFL_JOB_ID_BYTES];
        struct mfl_store_node v[] = {{.node = "a"}, {.node = "b"}};
        const struct mfl_store_nodes two = {2, v};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        for (uint32_t r = 1; r <= MFL_STORE_NODE_ROUNDS_MAX + 5; r++)
                commit(store, id, r, &two);
        struct mfl_store_nodes nodes = list(store, id, 1000);
        assert_int_equal(nodes.n, 2 * MFL_STORE_NODE_ROUNDS_MAX);
        assert_int_equal(nodes.v[0].round, 6);
        mfl_store_nodes_deinit(&nodes);
        mfl_store_close(store);
        assert_int_equal(count_rows(&f), 2 * MFL_STORE_NODE_ROUNDS_MAX);
        /* There is no checkpoint: every round is struck, and its rows with it. */
        store = open_store(f.dir);
        ok(mfl_store_resume(store, id, &resume, &err), &err);
        assert_int_equal(resume.round, 0);
        mfl_store_close(store);
        assert_int_equal(count_rows(&f), 0);
        fixture_deinit(&f);
}

/* The schema of version 1, as released, with a finished job of one round. */
static const char version_1[] =
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO meta VALUES ('boot', 3);"
        "CREATE TABLE jobs (n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, name TEXT NOT NULL,"
        " state INTEGER NOT NULL, reason TEXT NOT NULL, token TEXT UNIQUE, created_ms INTEGER NOT NULL,"
        " finished_ms INTEGER NOT NULL, has_initial INTEGER NOT NULL, text TEXT NOT NULL,"
        " data_name TEXT NOT NULL DEFAULT '', data_rank INTEGER NOT NULL DEFAULT 0, data_dims BLOB,"
        " data_classes INTEGER NOT NULL DEFAULT 0, data_train INTEGER NOT NULL DEFAULT 0,"
        " data_test INTEGER NOT NULL DEFAULT 0, data_fingerprint INTEGER NOT NULL DEFAULT 0,"
        " n_params INTEGER NOT NULL DEFAULT 0);"
        "CREATE TABLE rounds (job TEXT NOT NULL REFERENCES jobs(id) ON DELETE CASCADE, round INTEGER NOT "
        "NULL,"
        " attempt INTEGER, evaluated INTEGER, loss REAL, accuracy REAL, train_loss REAL, train_accuracy REAL,"
        " eval_samples INTEGER, samples INTEGER, weight INTEGER, clients INTEGER, clients_rejected INTEGER,"
        " daemons INTEGER, started_ms INTEGER, ended_ms INTEGER, digest BLOB NOT NULL, bytes_up INTEGER,"
        " bytes_down INTEGER, committed_ms INTEGER NOT NULL, file TEXT NOT NULL, file_sha256 BLOB NOT NULL,"
        " file_bytes INTEGER NOT NULL, kept INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0,"
        " PRIMARY KEY (job, round)) WITHOUT ROWID;"
        "CREATE TABLE drained (daemon TEXT PRIMARY KEY) WITHOUT ROWID;"
        "CREATE TABLE lines (seq INTEGER PRIMARY KEY, job TEXT NOT NULL, time_ms INTEGER NOT NULL,"
        " text TEXT NOT NULL);"
        "CREATE INDEX lines_of_job ON lines (job, seq);"
        "PRAGMA user_version = 1;"
        "INSERT INTO jobs (id, name, state, reason, created_ms, finished_ms, has_initial, text)"
        " VALUES ('j-000001', 'old', 3, '', 5, 6, 0, 'name: old');"
        "INSERT INTO rounds (job, round, accuracy, evaluated, digest, bytes_up, bytes_down, committed_ms, "
        "file,"
        " file_sha256, file_bytes, kept) VALUES ('j-000001', 1, 0.5, 1, x'00', 700, 300, 9, 'f', x'00', 1, "
        "1);";

static void exec_at(const struct fixture *f, const char *sql)
{
        char path[160];
        struct mfl_db *db;
        struct mfl_error err = {{0}};
        snprintf(path, sizeof path, "%s/mfl.db", f->dir);
        ok(mfl_db_open(path, &db, &err), &err);
        ok(mfl_db_exec(db, sql, &err), &err);
        mfl_db_close(db);
}

static void check_old_job(struct mfl_store *store)
{
        struct mfl_error err = {{0}};
        struct mfl_store_job job;
        struct mfl_store_round round;
        ok(mfl_store_job_get(store, "j-000001", &job, &err), &err);
        assert_string_equal(job.text, "name: old");
        assert_int_equal(job.committed, 1);
        mfl_store_job_deinit(&job);
        ok(mfl_store_round_get(store, "j-000001", 1, false, &round, &err), &err);
        assert_true(round.record.accuracy == 0.5 && round.kept);
        assert_int_equal(round.bytes_up, 700);
        assert_int_equal(round.bytes_up_alone, 700); /* nobody shared a node then */
        assert_int_equal(round.bytes_down_alone, 300);
        struct mfl_store_nodes nodes = list(store, "j-000001", 1000);
        assert_int_equal(nodes.n, 0);
        mfl_store_nodes_deinit(&nodes);
}

static void the_version_before_is_taken_over(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char id[MFL_JOB_ID_BYTES];
        struct mfl_store_node v[] = {{.node = "a", .up = 5}};
        const struct mfl_store_nodes one = {1, v};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        exec_at(&f, version_1);
        for (uint32_t i = 0, boot = 3; i < 2; i++) { /* with and without a step to take */
                struct mfl_store *store = open_store(f.dir);
                assert_true(mfl_store_boot(store) > boot);
                boot = mfl_store_boot(store);
                check_old_job(store);
                ok(mfl_store_job_add(store, "new", "t", "", "ann", NULL, id, &err), &err);
                commit(store, id, 1, &one);
                struct mfl_store_nodes nodes = list(store, id, 1000);
                assert_int_equal(nodes.n, 1);
                assert_int_equal(nodes.v[0].up, 5);
                mfl_store_nodes_deinit(&nodes);
                mfl_store_close(store);
        }
        assert_string_equal(id, "j-000003");
        fixture_deinit(&f);
}

/* A step that fails leaves the old database, whole. */
static void a_failed_step_changes_nothing(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        exec_at(&f, version_1);
        exec_at(&f, "CREATE TABLE round_nodes (x)"); /* in the way */
        assert_true(mfl_store_open(f.dir, &store, &err) != 0);
        assert_null(store);
        exec_at(&f, "DROP TABLE round_nodes");
        store = open_store(f.dir);
        assert_true(mfl_store_boot(store) > 4);
        check_old_job(store);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void a_newer_version_is_left_alone(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        exec_at(&f, "PRAGMA user_version = 1000");
        assert_int_equal(mfl_store_open(f.dir, &store, &err), MFL_STORE_NEWER);
        assert_non_null(strstr(err.text, "schema 1000, written by "));
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(rows_go_with_their_round),
                cmocka_unit_test(only_new_rounds_keep_theirs),
                cmocka_unit_test(the_version_before_is_taken_over),
                cmocka_unit_test(a_failed_step_changes_nothing),
                cmocka_unit_test(a_newer_version_is_left_alone),
        };
        return cmocka_run_group_tests_name("server_store_nodes", tests, NULL, NULL);
}
