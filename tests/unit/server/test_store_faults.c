/* SPDX-License-Identifier: Apache-2.0 */
/* The store killed at every step of a commit, and failing at every step: the old round or the new one is
 * there, whole, and never anything between. */
#include "tests/unit/server/fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/store/store.h"

#define JOB "j-000001"

/* What the job is, and where round 1 is from, which it has when the round under test begins. */
enum start {
        WHOLE, /* nothing is frozen */
        FROZEN,
        FROZEN_LATER, /* an earlier release, which wrote all params into each round's file */
};

/* Strikes at passage number `at` (from 0) of any point: code 0 ends the process, else it is the failure. */
struct fault {
        int at, seen, code;
        bool on, struck;
        char point[64];
};

static int on_fault(void *user, const char *point, const char *path)
{
        struct fault *fault = user;
        if (!fault->on || fault->seen++ != fault->at)
                return 0;
        fault->struck = true;
        mfl_strcpy(fault->point, sizeof fault->point, point);
        if (!fault->code)
                _exit(strcmp(point, "after-db-commit") && !strstr(point, "unlink") ? 10 : 11);
        return fault->code;
}

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

static void compute_round(
        const struct fixture *f, struct mfl_runtime *rt, struct mfl_store_round *round, uint32_t number)
{
        struct mfl_error err = {{0}};
        *round = (struct mfl_store_round){
                .record = {.round = number, .evaluated = true, .accuracy = 0.1 * number}};
        mfl_runtime_round_open(rt, number);
        fixture_add_f32(f, rt, 1, number, 1);
        ok(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 1}, round->record.digest,
                   (double[MFL_METHOD_STATES_MAX]){0}, &err),
                &err);
}

static int store_round(
        struct mfl_store *store, struct mfl_runtime *rt, struct mfl_store_round *round, struct mfl_error *err)
{
        struct mfl_checkpoint checkpoint;
        struct mfl_store_node node = {.node = "n", .daemons = 1, .up = round->record.round};
        const struct mfl_store_nodes nodes = {1, &node};
        mfl_runtime_checkpoint(rt, &checkpoint);
        int r = mfl_store_checkpoint(
                store, JOB, round->record.round, &checkpoint, &round->file, &round->frozen, err);
        return r ? r : mfl_store_commit(store, JOB, round, &nodes, 0, err);
}

/* A directory with round 1 committed. */
static void prepare_as(struct fixture *f, enum start start)
{
        struct mfl_error err = {{0}};
        struct mfl_store_round round;
        char id[MFL_JOB_ID_BYTES];
        fixture_init(f, MFL_STRATEGY_FEDADAM, 4);
        if (start != WHOLE)
                fixture_freeze(f);
        struct mfl_store *store = open_store(f->dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        assert_string_equal(id, JOB);
        if (start == FROZEN_LATER) { /* the order stays, since what is frozen is the first layer */
                assert_int_equal(mfl_graph_by_layers(f->graph, &err), 0);
                f->n = f->graph->n;
        }
        struct mfl_runtime *rt = fixture_open(f, 1, NULL);
        compute_round(f, rt, &round, 1);
        ok(store_round(store, rt, &round, &err), &err);
        assert_int_equal(round.frozen.name[0] != 0, start == FROZEN);
        mfl_runtime_close(rt);
        mfl_store_close(store);
        if (start == FROZEN_LATER)
                fixture_freeze(f);
}

static void prepare(struct fixture *f)
{
        prepare_as(f, WHOLE);
}

/* Does round 2 with keep 0, so that round 1's file goes; ends in fault or with status 0. */
static void die_in_round_2(const struct fixture *f, int at)
{
        static struct fault fault;
        struct mfl_error err;
        struct mfl_store_resume resume;
        struct mfl_store_round round;
        fault = (struct fault){.at = at};
        mfl_fs_set_fault_hook(on_fault, &fault);
        struct mfl_store *store = open_store(f->dir);
        if (mfl_store_resume(store, JOB, &resume, &err))
                _exit(3);
        struct mfl_runtime *rt = fixture_open(f, 1, &resume);
        compute_round(f, rt, &round, 2);
        fault.on = true;
        _exit(store_round(store, rt, &round, &err) ? 4 : 0);
}

/* Nothing half-written is there. */
static unsigned count_files(const char *dir)
{
        char path[MFL_STORE_PATH_BYTES];
        unsigned n = 0;
        snprintf(path, sizeof path, "%s/jobs/" JOB, dir);
        DIR *d = opendir(path);
        assert_non_null(d);
        for (struct dirent *entry; (entry = readdir(d));)
                if (entry->d_name[0] != '.') {
                        assert_null(strstr(entry->d_name, ".tmp"));
                        n++;
                }
        closedir(d);
        return n;
}

/* Reopens, and returns the digest after round 2, done now if it was lost. */
static uint32_t recover_as(const struct fixture *f, enum start start, uint8_t digest[MFL_DIGEST_BYTES])
{
        struct mfl_error err = {{0}};
        struct mfl_store_resume resume;
        struct mfl_store_round round;
        struct mfl_store *store = open_store(f->dir);
        ok(mfl_store_resume(store, JOB, &resume, &err), &err);
        bool split = start == FROZEN || (start == FROZEN_LATER && resume.round == 2);
        assert_int_equal(resume.frozen_path[0] != 0, split);
        /* What round 2 has written before it died stays until it is done again. */
        assert_in_range(count_files(f->dir), 1u + split, resume.round == 2 ? 1u + split : 3);
        assert_int_equal(resume.passed_over, 0);
        struct mfl_runtime *rt = fixture_open(f, 1, &resume);
        struct mfl_params *params = mfl_runtime_params(rt, resume.digest);
        assert_non_null(params); /* what the files hold is what the row says */
        mfl_params_unref(params);
        if (resume.round == 1) {
                compute_round(f, rt, &round, 2);
                ok(store_round(store, rt, &round, &err), &err);
        }
        ok(mfl_store_round_get(store, JOB, MFL_STORE_NEWEST, true, &round, &err), &err);
        assert_int_equal(round.record.round, 2);
        memcpy(digest, round.record.digest, MFL_DIGEST_BYTES);
        struct mfl_store_nodes nodes;
        ok(mfl_store_node_list(store, JOB, 1000, &nodes, &err), &err);
        assert_int_equal(nodes.n, 2); /* one of each round */
        assert_int_equal(nodes.v[1].up, 2);
        mfl_store_nodes_deinit(&nodes);
        assert_int_equal(count_files(f->dir), start == WHOLE ? 1 : 2);
        assert_null(mfl_store_warning(store, 0));
        mfl_runtime_close(rt);
        mfl_store_close(store);
        return resume.round;
}

static uint32_t recover(const struct fixture *f, uint8_t digest[MFL_DIGEST_BYTES])
{
        return recover_as(f, WHOLE, digest);
}

/* n_before: points before the database's commit; n_behind: from its end on. */
static void kill_at_every_step(enum start start, int n_before, int n_behind)
{
        uint8_t digest[MFL_DIGEST_BYTES], expected[MFL_DIGEST_BYTES];
        int n_old = 0, n_new = 0, status = -1;
        for (int at = 0; status != 0; at++) {
                struct fixture f;
                prepare_as(&f, start);
                pid_t pid = fork();
                if (!pid)
                        die_in_round_2(&f, at);
                assert_int_equal(waitpid(pid, &status, 0), pid);
                assert_true(WIFEXITED(status));
                int code = WEXITSTATUS(status);
                assert_true(code == 0 || code == 10 || code == 11);
                uint32_t round = recover_as(&f, start, digest);
                /* Before the database's commit the old round, from its end on the new one. */
                assert_int_equal(round, code == 10 ? 1 : 2);
                n_old += round == 1;
                n_new += round == 2;
                if (at)
                        assert_memory_equal(digest, expected, sizeof digest);
                memcpy(expected, digest, sizeof digest);
                fixture_deinit(&f);
        }
        assert_int_equal(n_old, n_before);
        assert_int_equal(n_new, n_behind);
}

/* Five steps of a file, before and after each, and before-db-commit; then after it, unlink twice, and all
 * done. The file of the frozen params is written once. */
static void killed_at_every_step_of_a_commit(void **state)
{
        kill_at_every_step(WHOLE, 11, 4);
        kill_at_every_step(FROZEN, 11, 4);
        kill_at_every_step(FROZEN_LATER, 21, 4);
}

static void failing_steps_are_tried_again(void **state)
{
        const struct {
                int code, want;
        } cases[] = {{-ENOSPC, MFL_STORE_FULL}, {-EDQUOT, MFL_STORE_FULL}, {-EIO, MFL_STORE_AGAIN},
                {-ENOMEM, -ENOMEM}};
        for (size_t c = 0; c < MFL_ARRAY_SIZE(cases); c++) {
                struct fault fault = {.struck = true};
                for (int at = 0; fault.struck; at++) {
                        struct fixture f;
                        struct mfl_error err = {{0}};
                        struct mfl_store_resume resume;
                        struct mfl_store_round round;
                        uint8_t digest[MFL_DIGEST_BYTES];
                        prepare(&f);
                        struct mfl_store *store = open_store(f.dir);
                        ok(mfl_store_resume(store, JOB, &resume, &err), &err);
                        struct mfl_runtime *rt = fixture_open(&f, 1, &resume);
                        compute_round(&f, rt, &round, 2);
                        mfl_store_log(store, JOB, "a line that goes with the commit", NULL);
                        fault = (struct fault){.at = at, .code = cases[c].code, .on = true};
                        mfl_fs_set_fault_hook(on_fault, &fault);
                        int r = store_round(store, rt, &round, &err);
                        mfl_fs_set_fault_hook(NULL, NULL);
                        bool fatal =
                                fault.struck && !strstr(fault.point, "unlink"); /* that one is only logged */
                        assert_int_equal(r, fatal ? cases[c].want : 0);
                        if (r)
                                ok(store_round(store, rt, &round, &err), &err);
                        mfl_runtime_close(rt);
                        mfl_store_close(store);
                        assert_int_equal(recover(&f, digest), 2);
                        fixture_deinit(&f);
                }
        }
}

/* Memory that runs out is reported, leaves the old state, and nothing behind that stops the next try. */
static void failed_allocations_leave_the_old_round(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_resume resume;
        struct mfl_store_round round;
        bool struck = true;
        prepare(&f);
        for (long n = 0; struck; n++) {
                struct mfl_store *store = NULL;
                mfl_alloc_fail_at(n);
                int r = mfl_store_open(f.dir, &store, &err);
                if (!r)
                        r = mfl_store_resume(store, JOB, &resume, &err);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                mfl_store_close(store);
                assert_true(n < 200);
        }
        struct mfl_store *store = open_store(f.dir);
        struct mfl_runtime *rt = fixture_open(&f, 1, &resume);
        compute_round(&f, rt, &round, 2);
        struck = true;
        for (long n = 0; struck; n++) {
                mfl_alloc_fail_at(n);
                int r = store_round(store, rt, &round, &err);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                assert_true(n < 200);
        }
        mfl_runtime_close(rt);
        mfl_store_close(store);
        uint8_t digest[MFL_DIGEST_BYTES];
        assert_int_equal(recover(&f, digest), 2);
        fixture_deinit(&f);
}

static int submit(struct mfl_store *store, const float *v, char id[MFL_JOB_ID_BYTES], struct mfl_error *err)
{
        struct mfl_store_upload *upload;
        int r = mfl_store_upload_begin(store, 4, &upload, err);
        if (r)
                return r;
        r = mfl_store_upload_write(upload, v, 4 * sizeof *v, err);
        if (!r)
                r = mfl_store_job_add(store, "a", "t", "token", "ann", upload, id, err);
        if (r)
                mfl_store_upload_discard(upload);
        return r;
}

/* A job with initial params: there with them, or not at all. */
static void killed_at_every_step_of_a_submission(void **state)
{
        const float v[4] = {1, 2, 3, 4};
        int status = -1, n_there = 0, n_not = 0;
        for (int at = 0; status != 0; at++) {
                struct fixture f;
                struct mfl_error err = {{0}};
                struct mfl_store_jobs jobs;
                char id[MFL_JOB_ID_BYTES];
                fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
                pid_t pid = fork();
                if (!pid) {
                        static struct fault fault;
                        fault = (struct fault){.at = at};
                        mfl_fs_set_fault_hook(on_fault, &fault);
                        struct mfl_store *store = open_store(f.dir);
                        fault.on = true;
                        _exit(submit(store, v, id, &err) ? 4 : 0);
                }
                assert_int_equal(waitpid(pid, &status, 0), pid);
                assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 4);
                struct mfl_store *store = open_store(f.dir);
                ok(mfl_store_job_list(store, true, &jobs, &err), &err);
                n_there += jobs.n == 1;
                n_not += jobs.n == 0;
                bool there = jobs.n == 1;
                mfl_store_jobs_deinit(&jobs);
                assert_int_equal(submit(store, v, id, &err), there ? MFL_EXISTS : 0);
                assert_string_equal(id, JOB);
                assert_int_equal(count_files(f.dir), 1);
                mfl_store_close(store);
                fixture_deinit(&f);
        }
        assert_true(n_not >= 5);
        assert_int_equal(n_there, 2); /* after-db-commit, and all done */
}

static int on_commit(void *user, const char *point, const char *path)
{
        (void)path;
        return *(bool *)user && !strcmp(point, "before-db-commit") ? -ENOSPC : 0;
}

/* On a full disk the log can be read: what is on the disk, then what waits for room, and nothing twice. */
static void test_log_on_a_full_disk(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_lines lines;
        static bool full;
        (void)state;
        prepare(&f);
        full = false;
        mfl_fs_set_fault_hook(on_commit, &full);
        struct mfl_store *store = open_store(f.dir);
        mfl_store_log(store, JOB, "one", NULL);
        ok(mfl_store_flush(store, &err), &err);
        full = true;
        mfl_store_log(store, JOB, "two", NULL);
        mfl_store_log(store, "j-000002", "another's", NULL);
        mfl_store_log(store, JOB, "three", NULL);
        assert_int_equal(mfl_store_flush(store, &err), MFL_STORE_FULL);
        for (int i = 0; i < 2; i++) {
                ok(mfl_store_log_list(store, JOB, 0, 100, &lines, &err), &err);
                assert_true(lines.n >= 3);
                assert_string_equal(lines.v[lines.n - 3].text, "one");
                assert_string_equal(lines.v[lines.n - 2].text, "two");
                assert_string_equal(lines.v[lines.n - 1].text, "three");
                uint64_t two = lines.v[lines.n - 2].seq;
                mfl_store_lines_deinit(&lines);
                ok(mfl_store_log_list(store, JOB, two, 100, &lines, &err), &err);
                assert_int_equal(lines.n, 1);
                mfl_store_lines_deinit(&lines);
                ok(mfl_store_log_list(store, JOB, two - 1, 1, &lines, &err), &err);
                assert_int_equal(lines.n, 1);
                assert_string_equal(lines.v[0].text, "two");
                mfl_store_lines_deinit(&lines);
                full = false; /* the second time from the disk */
        }
        mfl_store_close(store);
        mfl_fs_set_fault_hook(NULL, NULL);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_log_on_a_full_disk),
                cmocka_unit_test(killed_at_every_step_of_a_commit),
                cmocka_unit_test(failing_steps_are_tried_again),
                cmocka_unit_test(failed_allocations_leave_the_old_round),
                cmocka_unit_test(killed_at_every_step_of_a_submission),
        };
        return cmocka_run_group_tests_name("server_store_faults", tests, NULL, NULL);
}
