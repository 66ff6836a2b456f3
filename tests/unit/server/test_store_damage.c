/* SPDX-License-Identifier: Apache-2.0 */
/* A state directory that has lost a file, rows or letters of rows: what is refused, what is moved aside, and
 * what a repair makes of it. No checkpoint is ever lost. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_internal.h"
#include "tests/unit/server/state_bed.h"

static bool is_there(const char *dir, const char *file)
{
        char path[400];
        state_path(dir, file, path);
        return !access(path, F_OK);
}

static void run_sql(const char *dir, const char *sql)
{
        struct mfl_error err = {{0}};
        struct mfl_db *db;
        char path[400];
        state_path(dir, "mfl.db", path);
        state_ok(mfl_db_open(path, &db, &err), &err);
        state_ok(mfl_db_exec(db, sql, &err), &err);
        mfl_db_close(db);
}

static void expect_refusal(const char *dir, unsigned n_checkpoints, const char *text)
{
        struct mfl_store *store;
        struct mfl_error err = {{0}};
        for (int i = 0; i < 2; i++) { /* the first try changes nothing about the second */
                assert_int_equal(mfl_store_open(dir, &store, &err), MFL_STORE_DAMAGED);
                if (!strstr(err.text, text) || !strstr(err.text, "--repair"))
                        fail_msg("%s", err.text);
                assert_int_equal(state_checkpoints(dir), n_checkpoints);
        }
}

static void count_line(void *user, const char *text)
{
        *(int *)user += 1;
}

/* After a repair a server starts without a word but about orphans/, and every checkpoint is there. */
static struct mfl_store *repair(const char *dir, unsigned n_checkpoints)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        int n = 0;
        state_ok(mfl_store_repair(dir, count_line, &n, &err), &err);
        assert_true(n > 0);
        assert_int_equal(state_checkpoints(dir), n_checkpoints);
        assert_false(state_check_finds(dir));
        state_ok(mfl_store_open(dir, &store, &err), &err);
        assert_null(mfl_store_warning(store, 1));
        return store;
}
static void a_lost_database_is_refused(void **state)
{
        struct state_bed bed;
        struct mfl_store_jobs jobs;
        struct mfl_error err = {{0}};
        state_bed_init(&bed);
        state_remove(bed.stopped, "mfl.db");
        expect_refusal(bed.stopped, 4, "transactions");
        state_remove(bed.stopped, "commits");
        expect_refusal(bed.stopped, 4, "has no jobs");
        struct mfl_store *store = repair(bed.stopped, 4);
        state_ok(mfl_store_job_list(store, false, &jobs, &err), &err);
        assert_int_equal(jobs.n, 0);
        assert_int_equal(state_checkpoints(bed.stopped), 4);
        assert_false(is_there(bed.stopped, "jobs/" DONE));
        assert_non_null(strstr(mfl_store_warning(store, 0), "2 folders"));
        mfl_store_close(store);
        state_bed_deinit(&bed);
}

/* An older database than what jobs/ has. */
static void lost_rows_are_noticed(void **state)
{
        struct state_bed bed;
        struct mfl_store_resume resume;
        struct mfl_error err = {{0}};
        state_bed_init(&bed);
        run_sql(bed.stopped, "DELETE FROM rounds WHERE job = '" GOING "' AND round >= 2");
        assert_true(state_check_finds(bed.stopped));
        expect_refusal(bed.stopped, 4, "jobs/" GOING "/round-000003.safetensors");
        struct mfl_store *store = repair(bed.stopped, 4);
        state_ok(mfl_store_resume(store, GOING, &resume, &err), &err);
        assert_int_equal(resume.round, 0);
        mfl_store_close(store);
        state_bed_deinit(&bed);
}

/* A job without its row, beside others that have theirs: the server starts, and says so at every start. */
static void orphans_are_moved_aside(void **state)
{
        struct state_bed bed;
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        state_bed_init(&bed);
        run_sql(bed.stopped,
                "DELETE FROM rounds WHERE job = '" DONE "'; DELETE FROM jobs WHERE id = '" DONE "'");
        assert_true(state_check_finds(bed.stopped));
        for (int i = 0; i < 2; i++) {
                state_ok(mfl_store_open(bed.stopped, &store, &err), &err);
                assert_non_null(strstr(mfl_store_warning(store, 0), "orphans"));
                assert_int_equal(state_checkpoints(bed.stopped), 4);
                assert_false(is_there(bed.stopped, "jobs/" DONE));
                mfl_store_close(store);
        }
        /* At most so many folders, and then nothing is removed either. */
        char path[400];
        for (int i = 1; i < MFL_STORE_ORPHANS_MAX; i++) {
                snprintf(path, sizeof path, "%s/orphans/%d", bed.stopped, i);
                assert_int_equal(mkdir(path, 0700), 0);
        }
        run_sql(bed.stopped, "DELETE FROM rounds WHERE job = '" GOING
                             "'; DELETE FROM job_partitions; DELETE FROM jobs WHERE id = '" GOING "'");
        assert_int_equal(mfl_store_open(bed.stopped, &store, &err), MFL_STORE_ORPHANS_FULL);
        assert_int_equal(state_checkpoints(bed.stopped), 4);
        state_bed_deinit(&bed);
}

static int die_before_unlink(void *user, const char *point, const char *path)
{
        return !strcmp(point, "before-unlink") ? -EIO : 0;
}

/* What was deleted on purpose is no orphan, whenever the server died. */
static void deleted_jobs_are_no_orphans(void **state)
{
        struct state_bed bed;
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        state_bed_init(&bed);
        state_ok(mfl_store_open(bed.stopped, &store, &err), &err);
        mfl_fs_set_fault_hook(die_before_unlink, NULL);
        state_ok(mfl_store_job_delete(store, DONE, &err), &err);
        mfl_fs_set_fault_hook(NULL, NULL);
        mfl_store_close(store);
        assert_int_equal(state_checkpoints(bed.stopped), 4);
        assert_false(state_check_finds(bed.stopped));
        for (int i = 0; i < 2; i++) {
                state_ok(mfl_store_open(bed.stopped, &store, &err), &err);
                assert_null(mfl_store_warning(store, 0));
                assert_int_equal(state_checkpoints(bed.stopped), 2);
                mfl_store_close(store);
        }
        state_bed_deinit(&bed);
}

/* One letter of what is trained, and of all else that decides; then a repair. */
static void changed_rows_are_refused(void **state)
{
        static const char *const changes[] = {
                "UPDATE jobs SET text = replace(text, '0.05', '0.95') WHERE id = '" DONE "'",
                "UPDATE jobs SET data_fingerprint = data_fingerprint + 1 WHERE id = '" GOING "'",
                "UPDATE jobs SET stop_after = 2 WHERE id = '" GOING "'",
                "UPDATE jobs SET state = 1 WHERE id = '" DONE "'",
                "UPDATE rounds SET accuracy = 0.99 WHERE job = '" DONE "' AND round = 2",
                "UPDATE rounds SET superseded = 1 WHERE job = '" GOING "' AND round = 3",
                "UPDATE daemon_rules SET pattern = 'site-c*'",
                "UPDATE drained SET daemon = 'site-x'",
                "UPDATE tokens SET token = 'tokem'",
                "UPDATE meta SET value = 7 WHERE key = 'boot'",
                "CREATE TRIGGER odd AFTER INSERT ON lines BEGIN DELETE FROM rounds; END",
        };
        struct state_bed bed;
        struct mfl_error err = {{0}};
        struct mfl_store_job job;
        char dir[100];
        state_bed_init(&bed);
        snprintf(dir, sizeof dir, "%s.try", bed.f.dir);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(changes); i++) {
                state_copy(bed.stopped, dir);
                run_sql(dir, changes[i]);
                if (!state_check_finds(dir))
                        fail_msg("not found: %s", changes[i]);
                expect_refusal(dir, 4, "changed on the disk");
                struct mfl_store *store = repair(dir, 4);
                state_ok(mfl_store_job_get(store, GOING, &job, &err), &err);
                assert_int_equal(job.state, i == 1 || i == 2 ? MFL_JOB_FAILED : MFL_JOB_WAITING);
                mfl_store_job_deinit(&job);
                mfl_store_close(store);
                fixture_remove(dir);
        }
        state_bed_deinit(&bed);
}

static void what_only_tells_is_a_warning(void **state)
{
        static const char *const changes[] = {
                "UPDATE audit SET who = 'bob'",
                "UPDATE round_nodes SET up = 1 WHERE round = 2",
                "UPDATE client_states SET slot = 4 WHERE client = 5",
                "UPDATE job_partitions SET body = x'00'",
        };
        struct state_bed bed;
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        char dir[100];
        state_bed_init(&bed);
        snprintf(dir, sizeof dir, "%s.try", bed.f.dir);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(changes); i++) {
                state_copy(bed.stopped, dir);
                run_sql(dir, changes[i]);
                assert_true(state_check_finds(dir));
                state_ok(mfl_store_open(dir, &store, &err), &err);
                assert_non_null(strstr(mfl_store_warning(store, 0), "changed on the disk"));
                mfl_store_close(store);
                mfl_store_close(repair(dir, 4));
                fixture_remove(dir);
        }
        /* A log line says so itself. */
        struct mfl_store_lines lines;
        run_sql(bed.stopped, "UPDATE lines SET text = 'another line' WHERE text = 'the first line'");
        assert_true(state_check_finds(bed.stopped));
        state_ok(mfl_store_open(bed.stopped, &store, &err), &err);
        state_ok(mfl_store_log_list(store, GOING, 0, 100, &lines, &err), &err);
        assert_string_equal(lines.v[0].text, "(this line was changed on the disk) another line");
        mfl_store_lines_deinit(&lines);
        mfl_store_close(store);
        state_bed_deinit(&bed);
}

static int on_table(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int *)user += 1;
        assert_true(mfl_db_int(row, 1) == 1);
        return 0;
}

/* So that nobody adds one without. */
static void every_table_has_checksums(void **state)
{
        struct state_bed bed;
        struct mfl_error err = {{0}};
        struct mfl_db *db;
        char path[400];
        int n = 0;
        state_bed_init(&bed);
        state_path(bed.stopped, "mfl.db", path);
        state_ok(mfl_db_open(path, &db, &err), &err);
        state_ok(mfl_db_query(db, on_table, &n, &err,
                         "SELECT name, (SELECT count(*) FROM pragma_table_info(m.name) WHERE name = 'sum') "
                         "FROM sqlite_master m WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
                         ""),
                &err);
        assert_int_equal(n, 23);
        mfl_db_close(db);
        state_bed_deinit(&bed);
}
int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_lost_database_is_refused),
                cmocka_unit_test(lost_rows_are_noticed),
                cmocka_unit_test(orphans_are_moved_aside),
                cmocka_unit_test(deleted_jobs_are_no_orphans),
                cmocka_unit_test(changed_rows_are_refused),
                cmocka_unit_test(what_only_tells_is_a_warning),
                cmocka_unit_test(every_table_has_checksums),
        };
        return cmocka_run_group_tests_name("server_store_damage", tests, NULL, NULL);
}
