/* SPDX-License-Identifier: Apache-2.0 */
/* The store: jobs, rounds, retention, resume, log lines, locking. */
#include "tests/unit/server/fixture.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/model/safetensors.h"
#include "server/store/store_internal.h"

static struct mfl_store *open_store(const char *dir)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        if (mfl_store_open(dir, &store, &err))
                fail_msg("%s", err.text);
        return store;
}

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static bool has_file(const struct mfl_store *store, const char *id, const char *file)
{
        char path[MFL_STORE_PATH_BYTES];
        struct stat st;
        return !stat(mfl_store_path(store, id, file, path), &st);
}

/* A round of two clients, checkpointed and committed. */
static void commit_round(const struct fixture *f, struct mfl_store *store, const char *id,
        struct mfl_runtime *rt, uint32_t number, double accuracy, uint32_t keep)
{
        struct mfl_error err = {{0}};
        struct mfl_store_round round = {.bytes_up = 5, .bytes_down = 6};
        const struct mfl_store_nodes nodes = {0};
        struct mfl_checkpoint checkpoint;
        round.record = (struct mfl_round_record){.round = number,
                .attempt = 1,
                .evaluated = accuracy >= 0,
                .accuracy = accuracy,
                .loss = 1 - accuracy,
                .train_loss = NAN,
                .clients = 2,
                .weight = 3};
        mfl_runtime_round_open(rt, number);
        fixture_add_f32(f, rt, 1, number, 1);
        fixture_add_f32(f, rt, 2, number, 2);
        ok(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 3}, round.record.digest,
                   (double[MFL_METHOD_STATES_MAX]){0}, &err),
                &err);
        mfl_runtime_checkpoint(rt, &checkpoint);
        ok(mfl_store_checkpoint(store, id, number, &checkpoint, &round.file, &round.frozen, &err), &err);
        ok(mfl_store_commit(store, id, &round, &nodes, keep, &err), &err);
        assert_true(round.kept && round.committed_ms > 0);
}

static void jobs_are_stored_and_listed(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_job job;
        struct mfl_store_jobs jobs;
        char a[MFL_JOB_ID_BYTES], b[MFL_JOB_ID_BYTES], c[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        uint32_t boot = mfl_store_boot(store);
        assert_true(boot > 1700000000); /* a directory that is new begins no series again */
        ok(mfl_store_job_add(store, "one", "text 1", "token", "ann", NULL, a, &err), &err);
        ok(mfl_store_job_add(store, "two", "text 2", "", "ann", NULL, b, &err), &err);
        ok(mfl_store_job_add(store, "three", "text 3", "", "ann", NULL, c, &err),
                &err); /* empty tokens are no tokens */
        assert_string_equal(a, "j-000001");
        assert_string_equal(b, "j-000002");
        assert_int_equal(
                mfl_store_job_add(store, "one", "text 1", "token", "ann", NULL, c, &err), MFL_EXISTS);
        assert_string_equal(c, "j-000001");
        const struct mfl_data_info data = {.name = "mnist",
                .shape = {3, {1, 28, 28}},
                .classes = 10,
                .train_samples = 60000,
                .test_samples = 10000,
                .fingerprint = 0xfedcba9876543210u,
                .meaning = 0xc0ffee0123456789u};
        ok(mfl_store_job_prepared(store, a, &data, "site-a", 7850, 50, &err), &err);
        ok(mfl_store_job_stop_after(store, a, 12, &err), &err);
        ok(mfl_store_job_set_state(store, a, MFL_JOB_RUNNING, "", &err), &err);
        ok(mfl_store_job_set_state(store, b, MFL_JOB_FAILED, "no luck", &err), &err);
        ok(mfl_store_job_archive(store, b, 1764000000123, &err), &err);
        assert_int_equal(mfl_store_job_archive(store, "j-000009", 1, &err), MFL_NOT_FOUND);
        assert_int_equal(mfl_store_job_set_state(store, "j-000009", MFL_JOB_DONE, "", &err), MFL_NOT_FOUND);
        mfl_store_close(store);

        store = open_store(f.dir);
        assert_true(mfl_store_boot(store) > boot);
        ok(mfl_store_job_get(store, a, &job, &err), &err);
        assert_string_equal(job.text, "text 1");
        assert_int_equal(job.state, MFL_JOB_RUNNING);
        assert_true(mfl_shape_equal(&job.data.shape, &data.shape));
        assert_true(job.data.fingerprint == data.fingerprint && job.n_params == 7850 && job.n_frozen == 50 &&
                    !job.finished_ms);
        assert_true(job.data.meaning == data.meaning && job.stop_after == 12);
        assert_string_equal(job.data_from, "site-a");
        mfl_store_job_deinit(&job);
        assert_int_equal(mfl_store_job_get(store, "j-000009", &job, &err), MFL_NOT_FOUND);
        ok(mfl_store_job_list(store, true, &jobs, &err), &err);
        assert_int_equal(jobs.n, 2);
        mfl_store_jobs_deinit(&jobs);
        ok(mfl_store_job_list(store, false, &jobs, &err), &err);
        assert_int_equal(jobs.n, 3);
        assert_string_equal(jobs.v[1].reason, "no luck");
        assert_true(jobs.v[1].finished_ms > 0 && !jobs.v[1].text);
        assert_true(!jobs.v[0].archived_ms && jobs.v[1].archived_ms == 1764000000123);
        mfl_store_jobs_deinit(&jobs);
        ok(mfl_store_job_archive(store, b, 0, &err), &err);
        ok(mfl_store_job_get(store, b, &job, &err), &err);
        assert_true(!job.archived_ms && job.finished_ms);
        mfl_store_job_deinit(&job);
        assert_int_equal(mfl_store_job_delete(store, a, &err), MFL_BUSY);
        ok(mfl_store_job_delete(store, b, &err), &err);
        assert_int_equal(mfl_store_job_delete(store, b, &err), MFL_NOT_FOUND);
        assert_false(has_file(store, b, ""));
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void initial_params_travel_with_their_job(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_upload *upload;
        struct mfl_store_resume resume;
        const float v[4] = {1, 2, 3, 4};
        char id[MFL_JOB_ID_BYTES], copy[MFL_JOB_ID_BYTES], *text;
        size_t bytes;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        assert_int_equal(mfl_store_upload_begin(store, 0, &upload, &err), MFL_INVALID);
        ok(mfl_store_upload_begin(store, 4, &upload, &err), &err);
        ok(mfl_store_upload_write(upload, v, 12, &err), &err);
        assert_int_equal(mfl_store_job_add(store, "a", "t", "", "ann", upload, id, &err), MFL_INVALID);
        assert_int_equal(mfl_store_upload_write(upload, v, 8, &err), MFL_INVALID);
        ok(mfl_store_upload_write(upload, v + 3, 4, &err), &err);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", upload, id, &err), &err);
        ok(mfl_store_job_clone(store, id, "again", "bob", copy, &err), &err);
        assert_int_equal(mfl_store_job_clone(store, id, "again", "bob", copy, &err), MFL_EXISTS);
        assert_int_equal(mfl_store_job_clone(store, "j-7", "", "bob", id, &err), MFL_NOT_FOUND);
        ok(mfl_store_job_set_state(store, id, MFL_JOB_DONE, "", &err), &err);
        ok(mfl_store_job_delete(store, id, &err), &err);
        ok(mfl_store_resume(store, copy, &resume, &err), &err);
        assert_int_equal(resume.round, 0);
        assert_string_equal(resume.checkpoint_path, "");
        ok(mfl_fs_read(resume.initial_path, 100, &text, &bytes, &err), &err);
        assert_int_equal(bytes, sizeof v);
        assert_memory_equal(text, v, sizeof v);
        free(text);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void a_job_goes_on_with_the_same_bits(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_round straight, resumed;
        struct mfl_store_resume resume;
        char id[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDYOGI, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        for (uint32_t r = 1; r <= 4; r++)
                commit_round(&f, store, id, rt, r, 0.5, 1);
        ok(mfl_store_round_get(store, id, 4, false, &straight, &err), &err);
        mfl_runtime_close(rt);

        char other[MFL_JOB_ID_BYTES];
        ok(mfl_store_job_add(store, "b", "t", "", "ann", NULL, other, &err), &err);
        rt = fixture_open(&f, 1, NULL);
        for (uint32_t r = 1; r <= 4; r++) {
                commit_round(&f, store, other, rt, r, 0.5, 1);
                mfl_runtime_close(rt);
                mfl_store_close(store);
                store = open_store(f.dir);
                ok(mfl_store_resume(store, other, &resume, &err), &err);
                assert_int_equal(resume.round, r);
                rt = fixture_open(&f, 1, &resume);
                struct mfl_params *params = mfl_runtime_params(rt, resume.digest);
                assert_non_null(params);
                mfl_params_unref(params);
        }
        mfl_runtime_close(rt);
        ok(mfl_store_round_get(store, other, MFL_STORE_NEWEST, true, &resumed, &err), &err);
        assert_memory_equal(straight.record.digest, resumed.record.digest, MFL_DIGEST_BYTES);
        assert_true(
                isnan(resumed.record.train_loss) && resumed.record.weight == 3 && resumed.bytes_down == 6);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void retention_keeps_newest_best_and_more(void **state)
{
        const double accuracy[] = {0.1, 0.9, 0.3, 0.9, -1, 0.2, 0.8};
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_rounds rounds;
        struct mfl_store_round round;
        char id[MFL_JOB_ID_BYTES], name[64];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        for (uint32_t r = 1; r <= MFL_ARRAY_SIZE(accuracy); r++)
                commit_round(&f, store, id, rt, r, accuracy[r - 1], 1);
        mfl_runtime_close(rt);
        ok(mfl_store_round_list(store, id, 0, 0, &rounds, &err), &err);
        assert_int_equal(rounds.n, 7);
        for (uint32_t r = 1; r <= 7; r++) {
                bool want = r == 7 || r == 4 || r == 6; /* newest, best (the later of two), one more */
                snprintf(name, sizeof name, "round-%06u.safetensors", r);
                assert_int_equal(rounds.v[r - 1].record.round, r);
                assert_int_equal(rounds.v[r - 1].kept, want);
                assert_int_equal(has_file(store, id, name), want);
        }
        mfl_store_rounds_deinit(&rounds);
        ok(mfl_store_round_list(store, id, 2, 3, &rounds, &err), &err);
        assert_int_equal(rounds.n, 3);
        assert_int_equal(rounds.v[0].record.round, 5);
        mfl_store_rounds_deinit(&rounds);
        ok(mfl_store_round_get(store, id, MFL_STORE_BEST, true, &round, &err), &err);
        assert_int_equal(round.record.round, 4);
        ok(mfl_store_round_get(store, id, MFL_STORE_NEWEST, false, &round, &err), &err);
        assert_int_equal(round.record.round, 7);
        assert_int_equal(mfl_store_round_get(store, id, 3, true, &round, &err), MFL_NOT_FOUND);
        ok(mfl_store_round_get(store, id, 3, false, &round, &err), &err);
        assert_int_equal(mfl_store_round_get(store, id, 8, false, &round, &err), MFL_NOT_FOUND);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void damage(const struct mfl_store *store, const char *id, const char *file)
{
        char path[MFL_STORE_PATH_BYTES], byte;
        int fd = open(mfl_store_path(store, id, file, path), O_RDWR);
        assert_true(fd >= 0);
        assert_int_equal(pread(fd, &byte, 1, 600), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 600), 1);
        close(fd);
}

static void damaged_checkpoints_are_passed_over(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_resume resume;
        struct mfl_store_round round;
        struct mfl_store_lines lines;
        char id[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        for (uint32_t r = 1; r <= 4; r++)
                commit_round(&f, store, id, rt, r, 0.1 * r, 3);
        mfl_runtime_close(rt);
        damage(store, id, "round-000004.safetensors");
        char path[MFL_STORE_PATH_BYTES];
        unlink(mfl_store_path(store, id, "round-000003.safetensors", path));
        ok(mfl_store_resume(store, id, &resume, &err), &err);
        assert_int_equal(resume.round, 2);
        assert_int_equal(resume.passed_over, 2);
        assert_int_equal(mfl_store_round_get(store, id, 3, false, &round, &err), MFL_NOT_FOUND);
        ok(mfl_store_log_list(store, id, 0, 100, &lines, &err), &err);
        assert_int_equal(lines.n, 2);
        assert_non_null(strstr(lines.v[0].text, "DAMAGED CHECKPOINT: round 4"));
        mfl_store_lines_deinit(&lines);
        /* Done again, rounds exist again. */
        rt = fixture_open(&f, 1, &resume);
        commit_round(&f, store, id, rt, 3, 0.5, 3);
        mfl_runtime_close(rt);
        ok(mfl_store_resume(store, id, &resume, &err), &err);
        assert_int_equal(resume.round, 3);
        assert_int_equal(resume.passed_over, 0);
        mfl_store_close(store);
        fixture_deinit(&f);
}

/* Floats of a tensor of a file; 0: it has no such one. */
static uint64_t count_of(const struct mfl_store *store, const char *id, const char *file, const char *tensor)
{
        struct mfl_st_file *st;
        struct mfl_error err = {{0}};
        char path[MFL_STORE_PATH_BYTES];
        ok(mfl_st_open(mfl_store_path(store, id, file, path), &st, &err), &err);
        const struct mfl_st_tensor *found = mfl_st_find(st, tensor);
        uint64_t count = found ? found->count : 0;
        mfl_st_close(st);
        return count;
}

/* They are written once; a round's file has what moves, and the state of that. */
static void frozen_params_lie_in_a_file_of_their_own(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_round first, last;
        struct mfl_store_resume resume;
        struct stat st, then;
        char id[MFL_JOB_ID_BYTES], path[MFL_STORE_PATH_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDYOGI, 4);
        fixture_freeze(&f);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        assert_false(has_file(store, id, "frozen.safetensors"));
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        commit_round(&f, store, id, rt, 1, 0.5, 0);
        assert_int_equal(stat(mfl_store_path(store, id, "frozen.safetensors", path), &then), 0);
        for (uint32_t r = 2; r <= 3; r++) {
                ok(mfl_store_round_get(store, id, MFL_STORE_NEWEST, true, &first, &err), &err);
                commit_round(&f, store, id, rt, r, 0.5, 0);
                mfl_runtime_close(rt);
                mfl_store_close(store);
                store = open_store(f.dir);
                ok(mfl_store_resume(store, id, &resume, &err), &err);
                assert_int_equal(resume.round, r);
                rt = fixture_open(&f, 1, &resume);
                struct mfl_params *params = mfl_runtime_params(rt, resume.digest);
                assert_non_null(params);
                mfl_params_unref(params);
        }
        ok(mfl_store_round_get(store, id, MFL_STORE_NEWEST, true, &last, &err), &err);
        assert_string_equal(last.frozen.name, "frozen.safetensors");
        assert_memory_equal(&last.frozen, &first.frozen, sizeof last.frozen);
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_ino == then.st_ino && (uint64_t)st.st_size == last.frozen.bytes);
        assert_int_equal(count_of(store, id, "frozen.safetensors", "dense1.weight"), 16 * 12);
        assert_int_equal(count_of(store, id, "frozen.safetensors", "dense2.weight"), 0);
        assert_int_equal(count_of(store, id, last.file.name, "dense1.weight"), 0);
        assert_int_equal(count_of(store, id, last.file.name, "dense2.weight"), 12 * 10);
        assert_int_equal(count_of(store, id, last.file.name, "strategy/variance/dense2.weight"), 12 * 10);
        assert_false(has_file(store, id, "round-000002.safetensors"));
        /* Without it no round is whole: the job begins anew, and writes it again. */
        damage(store, id, "frozen.safetensors");
        mfl_runtime_close(rt);
        ok(mfl_store_resume(store, id, &resume, &err), &err);
        assert_int_equal(resume.round, 0);
        assert_int_equal(resume.passed_over, 1);
        rt = fixture_open(&f, 1, &resume);
        for (uint32_t r = 1; r <= 3; r++)
                commit_round(&f, store, id, rt, r, 0.5, 0);
        ok(mfl_store_resume(store, id, &resume, &err), &err);
        assert_int_equal(resume.round, 3);
        assert_memory_equal(resume.digest, last.record.digest, MFL_DIGEST_BYTES);
        mfl_runtime_close(rt);
        ok(mfl_store_job_set_state(store, id, MFL_JOB_DONE, "", &err), &err);
        ok(mfl_store_job_delete(store, id, &err), &err);
        assert_int_equal(stat(path, &st), -1);
        mfl_store_close(store);
        fixture_deinit(&f);
}

/* A token is its operator's, and names one request. */
static void tokens_belong_to_their_operator(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char ann[MFL_JOB_ID_BYTES], bob[MFL_JOB_ID_BYTES], id[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "text 1", "nightly", "ann", NULL, ann, &err), &err);
        ok(mfl_store_job_add(store, "a", "text 1", "nightly", "bob", NULL, bob, &err), &err);
        assert_string_not_equal(ann, bob);
        ok(mfl_store_job_add(store, "a", "text 1", "nightly", "local", NULL, id, &err), &err);
        assert_int_equal(
                mfl_store_job_add(store, "a", "text 1", "nightly", "anybody", NULL, id, &err), MFL_EXISTS);
        assert_string_equal(id, "j-000003");      /* who shows no certificate is one operator */
        for (int again = 0; again < 2; again++) { /* a restart changes nothing */
                assert_int_equal(mfl_store_job_add(store, "a", "text 1", "nightly", "bob", NULL, id, &err),
                        MFL_EXISTS);
                assert_string_equal(id, bob);
                assert_int_equal(mfl_store_job_add(store, "a", "text 2", "nightly", "ann", NULL, id, &err),
                        MFL_STORE_TOKEN_TAKEN);
                assert_non_null(strstr(err.text, ann));
                /* To clone is another request than to submit, and of another job another one. */
                assert_int_equal(
                        mfl_store_job_clone(store, ann, "nightly", "ann", id, &err), MFL_STORE_TOKEN_TAKEN);
                mfl_store_close(store);
                store = open_store(f.dir);
        }
        ok(mfl_store_job_clone(store, ann, "copy", "ann", id, &err), &err);
        assert_int_equal(mfl_store_job_clone(store, ann, "copy", "ann", bob, &err), MFL_EXISTS);
        assert_string_equal(bob, id);
        assert_int_equal(
                mfl_store_job_clone(store, "j-000002", "copy", "ann", bob, &err), MFL_STORE_TOKEN_TAKEN);
        assert_int_equal(mfl_store_job_add(store, "a", "text 1", "copy", "ann", NULL, bob, &err),
                MFL_STORE_TOKEN_TAKEN);
        /* With its job the token is free again. */
        ok(mfl_store_job_set_state(store, ann, MFL_JOB_DONE, "", &err), &err);
        ok(mfl_store_job_delete(store, ann, &err), &err);
        ok(mfl_store_job_add(store, "a", "text 2", "nightly", "ann", NULL, id, &err), &err);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void a_token_means_the_initial_params_too(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_upload *upload;
        char id[MFL_JOB_ID_BYTES], path[MFL_STORE_PATH_BYTES];
        const struct {
                float first;
                int want;
        } cases[] = {{1, 0}, {1, MFL_EXISTS}, {2, MFL_STORE_TOKEN_TAKEN}};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const float v[4] = {cases[i].first};
                ok(mfl_store_upload_begin(store, 4, &upload, &err), &err);
                ok(mfl_store_upload_write(upload, v, sizeof v, &err), &err);
                assert_int_equal(
                        mfl_store_job_add(store, "a", "t", "token", "ann", upload, id, &err), cases[i].want);
                assert_string_equal(id, "j-000001");
                if (cases[i].want)
                        mfl_store_upload_discard(upload);
        }
        ok(mfl_store_initial_check(store, id, &err), &err);
        int fd = open(mfl_store_path(store, id, "initial.f32", path), O_WRONLY);
        assert_int_equal(pwrite(fd, "\1", 1, 5), 1);
        close(fd);
        assert_int_equal(mfl_store_initial_check(store, id, &err), MFL_INVALID);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void only_leftovers_go_at_the_start(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_checkpoint checkpoint;
        struct mfl_store_file file, frozen;
        struct mfl_store_upload *upload;
        char id[MFL_JOB_ID_BYTES], path[MFL_STORE_PATH_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        commit_round(&f, store, id, rt, 1, 0.5, 0);
        mfl_runtime_checkpoint(rt, &checkpoint);
        ok(mfl_store_checkpoint(store, id, 2, &checkpoint, &file, &frozen, &err), &err); /* never committed */
        mfl_runtime_close(rt);
        close(open(
                mfl_store_path(store, id, "round-000003.safetensors.tmp", path), O_CREAT | O_WRONLY, 0600));
        assert_int_equal(mkdir(mfl_store_path(store, "j-000077", "", path), 0700), 0);
        close(open(mfl_store_path(store, "j-000077", "initial.f32", path), O_CREAT | O_WRONLY, 0600));
        ok(mfl_store_upload_begin(store, 4, &upload, &err), &err);
        mfl_store_close(store);
        store = open_store(f.dir);
        assert_true(has_file(store, id, "round-000001.safetensors"));
        assert_true(has_file(store, id, "round-000002.safetensors")); /* the job goes on with that round */
        assert_null(mfl_store_warning(store, 0));
        ok(mfl_store_job_set_state(store, id, MFL_JOB_STOPPED, "", &err), &err);
        assert_false(has_file(store, id, "round-000002.safetensors"));
        assert_false(has_file(store, id, "round-000003.safetensors.tmp"));
        assert_false(has_file(store, "j-000077", ""));
        snprintf(path, sizeof path, "%s/uploads/1.tmp", f.dir);
        assert_int_equal(access(path, F_OK), -1);
        mfl_store_upload_discard(upload);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void log_lines_are_ordered_and_capped(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_lines lines;
        uint64_t first, seq = 0;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        mfl_store_log(store, "j-000001", "one", &first);
        mfl_store_log(store, "", "server", NULL);
        mfl_store_log(store, "j-000001", "two", &seq);
        assert_true(seq > first);
        mfl_store_close(store); /* flushes */
        store = open_store(f.dir);
        ok(mfl_store_log_list(store, "j-000001", 0, 100, &lines, &err), &err);
        assert_int_equal(lines.n, 2);
        assert_string_equal(lines.v[1].text, "two");
        assert_true(lines.v[1].seq == seq);
        mfl_store_lines_deinit(&lines);
        ok(mfl_store_log_list(store, "j-000001", first, 100, &lines, &err), &err);
        assert_int_equal(lines.n, 1);
        mfl_store_lines_deinit(&lines);
        uint64_t after = seq;
        for (int i = 0; i < MFL_STORE_LOG_LINES_MAX + 50; i++) {
                mfl_store_log(store, "j-000002", "many", &seq);
                if (i % 4000 == 3999)
                        ok(mfl_store_flush(store, &err), &err);
        }
        assert_true(seq > after);
        ok(mfl_store_log_list(store, "j-000002", 0, 1u << 20, &lines, &err), &err);
        assert_int_equal(lines.n, MFL_STORE_LOG_LINES_MAX);
        assert_true(lines.v[lines.n - 1].seq == seq);
        mfl_store_lines_deinit(&lines);
        for (int i = 0; i < 5000; i++)
                mfl_store_log(store, "j-000003", "too many", NULL);
        ok(mfl_store_flush(store, &err), &err);
        ok(mfl_store_log_list(store, "", 0, 100, &lines, &err), &err);
        assert_string_equal(lines.v[lines.n - 1].text, "904 log lines were lost: too many at once");
        mfl_store_lines_deinit(&lines);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void one_server_per_directory(void **state)
{
        struct fixture f;
        struct mfl_store *other = NULL;
        struct mfl_error err = {{0}};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        assert_int_equal(mfl_store_open(f.dir, &other, &err), MFL_STORE_LOCKED);
        assert_non_null(strstr(err.text, "in use by another mfl-server"));
        mfl_store_close(store);
        store = open_store(f.dir);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void corrupt_databases_are_refused(void **state)
{
        struct fixture f;
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        char path[128], garbage[8192];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        snprintf(path, sizeof path, "%s/mfl.db", f.dir);
        FILE *file = fopen(path, "w");
        memset(garbage, 'x', sizeof garbage);
        fwrite(garbage, 1, sizeof garbage, file);
        fclose(file);
        assert_int_equal(mfl_store_open(f.dir, &store, &err), MFL_STORE_DAMAGED);
        assert_non_null(strstr(err.text, "restore a back-up"));
        fixture_deinit(&f);
}

static void jobs_have_owners(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_job job;
        char id[MFL_JOB_ID_BYTES], copy[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        ok(mfl_store_job_clone(store, id, "", "bob", copy, &err), &err);
        mfl_store_close(store);
        store = open_store(f.dir);
        ok(mfl_store_job_get(store, id, &job, &err), &err);
        assert_string_equal(job.owner, "ann");
        assert_string_equal(job.text, "t");
        mfl_store_job_deinit(&job);
        ok(mfl_store_job_get(store, copy, &job, &err), &err);
        assert_string_equal(job.owner, "bob");
        mfl_store_job_deinit(&job);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void the_audit_keeps_its_order(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_audits list;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_store *store = open_store(f.dir);
        ok(mfl_store_audit_list(store, 5, &list, &err), &err);
        assert_int_equal(list.n, 0);
        free(list.v);
        for (int i = 0; i < 9; i++) {
                struct mfl_store_audit e = {
                        .who = "ann", .address = "1.2.3.4:5", .action = "stop", .result = "done"};
                snprintf(e.object, sizeof e.object, "j-%06d", i);
                strcpy(e.text, "cut \xc3"); /* half a character must not make the whole list unreadable */
                ok(mfl_store_audit_add(store, &e, &err), &err);
        }
        mfl_store_close(store);
        store = open_store(f.dir);
        ok(mfl_store_audit_list(store, 5, &list, &err), &err);
        assert_int_equal(list.n, 5);
        for (uint32_t i = 0; i < 5; i++) {
                char object[16];
                snprintf(object, sizeof object, "j-%06u", i + 4);
                assert_string_equal(list.v[i].object, object);
                assert_string_equal(list.v[i].text, "cut ?");
                assert_true(list.v[i].seq == i + 5 && list.v[i].time_ms > 1700000000000u);
        }
        free(list.v);
        mfl_store_close(store);
        fixture_deinit(&f);
}

/* ---- statements of the database ---- */

#define TEXTS 100u /* more than the database keeps */
#define DEPTH 10u  /* of queries within queries; more than texts of one hash have places */

struct nest {
        struct mfl_db *db;
        uint32_t first, depth;
        uint64_t rows;
};

static int on_nested(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct nest *nest = user;
        const int64_t text = mfl_db_int(row, 0), depth = mfl_db_int(row, 1);
        const uint32_t next = (nest->first + nest->depth / 2) % TEXTS; /* each of them twice */
        char sql[96];
        int r = 0;
        nest->rows++;
        if (nest->depth < DEPTH) {
                snprintf(sql, sizeof sql, "SELECT %u, ?1 UNION ALL SELECT %u, ?1", next, next);
                nest->depth++;
                r = mfl_db_query(nest->db, on_nested, nest, err, sql, "i", (int64_t)nest->depth);
                nest->depth--;
        }
        /* What others have done meanwhile, this row is still there. */
        assert_int_equal(mfl_db_int(row, 0), text);
        assert_int_equal(mfl_db_int(row, 1), depth);
        assert_int_equal(depth, nest->depth);
        return r;
}

static void statements_are_used_within_others(void **state)
{
        (void)state;
        struct fixture f;
        struct mfl_error err = {{0}};
        struct nest nest = {.db = NULL};
        char path[160];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        snprintf(path, sizeof path, "%s/mfl.db", f.dir);
        assert_int_equal(mfl_db_open(path, &nest.db, &err), 0);
        for (nest.first = 0; nest.first < TEXTS; nest.first++)
                assert_int_equal(mfl_db_query(nest.db, on_nested, &nest, &err, "SELECT 7, 0", ""), 0);
        assert_int_equal(nest.rows, TEXTS * ((2u << DEPTH) - 1));
        mfl_db_close(nest.db);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(jobs_have_owners),
                cmocka_unit_test(the_audit_keeps_its_order),
                cmocka_unit_test(jobs_are_stored_and_listed),
                cmocka_unit_test(initial_params_travel_with_their_job),
                cmocka_unit_test(a_job_goes_on_with_the_same_bits),
                cmocka_unit_test(retention_keeps_newest_best_and_more),
                cmocka_unit_test(damaged_checkpoints_are_passed_over),
                cmocka_unit_test(frozen_params_lie_in_a_file_of_their_own),
                cmocka_unit_test(tokens_belong_to_their_operator),
                cmocka_unit_test(a_token_means_the_initial_params_too),
                cmocka_unit_test(only_leftovers_go_at_the_start),
                cmocka_unit_test(log_lines_are_ordered_and_capped),
                cmocka_unit_test(one_server_per_directory),
                cmocka_unit_test(corrupt_databases_are_refused),
                cmocka_unit_test(statements_are_used_within_others),
        };
        return cmocka_run_group_tests_name("server_store", tests, NULL, NULL);
}
