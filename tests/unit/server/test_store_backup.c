/* SPDX-License-Identifier: Apache-2.0 */
/* Back-ups and checks of a state directory: what is found, and what every failure on the way leaves. */
#include "tests/unit/server/fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_backup.h"

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

/* A job with n_rounds checkpoints and one with initial params, and the store still open. */
static struct mfl_store *prepare_as(struct fixture *f, uint32_t n_rounds, bool frozen)
{
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        struct mfl_store_upload *upload;
        const struct mfl_store_nodes nodes = {0};
        const float initial[3] = {1, 2, 3};
        char id[MFL_JOB_ID_BYTES];
        fixture_init(f, MFL_STRATEGY_FEDADAM, 4);
        if (frozen)
                fixture_freeze(f);
        ok(mfl_store_open(f->dir, &store, &err), &err);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        struct mfl_runtime *rt = fixture_open(f, 1, NULL);
        for (uint32_t number = 1; number <= n_rounds; number++) {
                struct mfl_store_round round = {.record = {.round = number}};
                struct mfl_checkpoint checkpoint;
                mfl_runtime_round_open(rt, number);
                fixture_add_f32(f, rt, 1, number, 1);
                ok(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 1}, round.record.digest,
                           (double[MFL_METHOD_STATES_MAX]){0}, &err),
                        &err);
                mfl_runtime_checkpoint(rt, &checkpoint);
                ok(mfl_store_checkpoint(store, id, number, &checkpoint, &round.file, &round.frozen, &err),
                        &err);
                ok(mfl_store_commit(store, id, &round, &nodes, 5, &err), &err);
        }
        mfl_runtime_close(rt);
        ok(mfl_store_upload_begin(store, 3, &upload, &err), &err);
        ok(mfl_store_upload_write(upload, initial, sizeof initial, &err), &err);
        ok(mfl_store_job_add(store, "b", "t", "", "ann", upload, id, &err), &err);
        return store;
}

static struct mfl_store *prepare(struct fixture *f, uint32_t n_rounds)
{
        return prepare_as(f, n_rounds, false);
}

struct findings {
        int n;
        char last[1024];
};

static void on_finding(void *user, const char *text)
{
        struct findings *findings = user;
        findings->n++;
        mfl_strcpy(findings->last, sizeof findings->last, text);
}

/* Beside the state directory, so that fixture_deinit of that one does not meet it. */
static const char *target_of(const struct fixture *f, char buf[128])
{
        snprintf(buf, 128, "%s.saved", f->dir);
        return buf;
}

static bool exists(const char *path, const char *more)
{
        char text[256];
        struct stat st;
        snprintf(text, sizeof text, "%s%s", path, more);
        return !lstat(text, &st);
}

static void flip(const char *dir, const char *file)
{
        char path[256], byte;
        snprintf(path, sizeof path, "%s/jobs/j-000001/%s", dir, file);
        int fd = open(path, O_RDWR);
        assert_int_equal(pread(fd, &byte, 1, 200), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 200), 1);
        close(fd);
}

static void a_back_up_is_a_state_directory(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_summary saved, checked;
        struct findings findings = {0};
        struct mfl_store_resume resume;
        char target[128];
        struct mfl_store *store = prepare(&f, 3);
        ok(mfl_store_backup(f.dir, target_of(&f, target), on_finding, &findings, &saved, &err), &err);
        assert_int_equal(mfl_store_backup(f.dir, target, on_finding, &findings, &saved, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "already exists"));
        char inside[200];
        for (int i = 0; i < 2; i++) {
                snprintf(inside, sizeof inside, "%s/%ssaved", f.dir, i ? "jobs/../jobs/" : "");
                assert_int_equal(
                        mfl_store_backup(f.dir, inside, on_finding, &findings, &saved, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, "is in the state directory"));
        }
        ok(mfl_store_check(target, on_finding, &findings, &checked, &err), &err);
        assert_int_equal(findings.n, 0);
        assert_int_equal(checked.jobs, 2);
        assert_int_equal(checked.jobs_unfinished, 2);
        assert_int_equal(checked.rounds, 3);
        assert_int_equal(checked.files, 4);
        assert_true(checked.bytes == saved.bytes && saved.files == 4);
        assert_string_equal(checked.software, "mfl-server " MFL_VERSION);
        mfl_store_close(store);
        ok(mfl_store_open(target, &store, &err), &err);
        ok(mfl_store_resume(store, "j-000001", &resume, &err), &err);
        assert_int_equal(resume.round, 3);
        mfl_store_close(store);
        fixture_remove(target);
        fixture_deinit(&f);
}

static void damage_is_found_and_copied(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_summary summary;
        struct findings findings = {0};
        char target[128], path[MFL_STORE_PATH_BYTES];
        struct mfl_store *store = prepare(&f, 3);
        flip(f.dir, "round-000002.safetensors");
        ok(mfl_store_backup(f.dir, target_of(&f, target), on_finding, &findings, &summary, &err), &err);
        assert_int_equal(findings.n, 1);
        assert_non_null(strstr(findings.last, "round-000002.safetensors: its SHA-256"));
        assert_int_equal(summary.findings, 1);
        assert_int_equal(summary.files, 3);
        ok(mfl_store_check(target, on_finding, &findings, &summary, &err), &err);
        assert_int_equal(findings.n, 2);
        unlink(mfl_store_path(store, "j-000001", "round-000001.safetensors", path));
        assert_int_equal(truncate(mfl_store_path(store, "j-000002", "initial.f32", path), 10), 0);
        ok(mfl_store_check(f.dir, on_finding, &findings, &summary, &err), &err);
        assert_int_equal(summary.findings, 3);
        mfl_store_close(store);
        fixture_remove(target);
        fixture_deinit(&f);
}

/* What several rounds name is there once. */
static void frozen_params_are_backed_up(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_summary saved, checked;
        struct findings findings = {0};
        struct mfl_store_resume resume;
        char target[128];
        struct mfl_store *store = prepare_as(&f, 3, true);
        ok(mfl_store_backup(f.dir, target_of(&f, target), on_finding, &findings, &saved, &err), &err);
        ok(mfl_store_check(target, on_finding, &findings, &checked, &err), &err);
        assert_int_equal(findings.n, 0);
        assert_int_equal(checked.files, 5);
        assert_true(checked.bytes == saved.bytes && saved.files == 5);
        flip(target, "frozen.safetensors");
        ok(mfl_store_check(target, on_finding, &findings, &checked, &err), &err);
        assert_int_equal(findings.n, 1);
        assert_non_null(strstr(findings.last, "frozen.safetensors: its SHA-256"));
        flip(target, "frozen.safetensors");
        mfl_store_close(store);
        ok(mfl_store_open(target, &store, &err), &err);
        ok(mfl_store_resume(store, "j-000001", &resume, &err), &err);
        assert_int_equal(resume.round, 3);
        assert_non_null(strstr(resume.frozen_path, ".saved/jobs/j-000001/frozen.safetensors"));
        mfl_store_close(store);
        fixture_remove(target);
        fixture_deinit(&f);
}

static void what_is_no_state_is_refused(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_summary summary;
        struct findings findings = {0};
        char target[128];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        target_of(&f, target);
        assert_int_equal(mfl_store_backup(f.dir, target, on_finding, &findings, &summary, &err), MFL_INVALID);
        assert_int_equal(mfl_store_check(f.dir, on_finding, &findings, &summary, &err), MFL_INVALID);
        assert_false(exists(f.dir, "/mfl.db") || exists(target, "") || exists(target, ".tmp"));
        fixture_deinit(&f);
}

/* Either whole or not there, whatever failed; and what was not finished is gone. */
static void check_what_is_left(const char *target)
{
        struct mfl_error err = {{0}};
        struct mfl_store_summary summary;
        struct findings findings = {0};
        assert_false(exists(target, ".tmp"));
        if (!exists(target, ""))
                return;
        ok(mfl_store_check(target, on_finding, &findings, &summary, &err), &err);
        assert_int_equal(findings.n, 0);
        fixture_remove(target);
}

struct fault {
        int at, seen;
};

static int on_fault(void *user, const char *point, const char *path)
{
        struct fault *fault = user;
        return fault->seen++ == fault->at ? -ENOSPC : 0;
}

static void every_full_disk_leaves_no_half(void **state)
{
        struct fixture f;
        struct mfl_store_summary summary;
        struct findings findings = {0};
        char target[128];
        struct mfl_store *store = prepare(&f, 1);
        target_of(&f, target);
        int r = MFL_STORE_FULL, n = 0;
        for (; r == MFL_STORE_FULL; n++) {
                struct mfl_error err = {{0}};
                struct fault fault = {.at = n};
                mfl_fs_set_fault_hook(on_fault, &fault);
                r = mfl_store_backup(f.dir, target, on_finding, &findings, &summary, &err);
                mfl_fs_set_fault_hook(NULL, NULL);
                if (r && r != MFL_STORE_FULL)
                        fail_msg("at %d: %d: %s", n, r, err.text);
                check_what_is_left(target);
        }
        assert_int_equal(r, 0);
        assert_true(n > 15); /* it did strike */
        assert_int_equal(findings.n, 0);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void every_failed_allocation_leaves_no_half(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_store_summary summary;
        struct findings findings = {0};
        char target[128];
        struct mfl_store *store = prepare(&f, 1);
        target_of(&f, target);
        int r = -ENOMEM;
        long n = 0;
        for (; r; n++) {
                mfl_alloc_fail_at(n);
                r = mfl_store_backup(f.dir, target, on_finding, &findings, &summary, &err);
                bool failed = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, failed ? -ENOMEM : 0);
                check_what_is_left(target);
        }
        assert_true(n > 5);
        for (r = -ENOMEM, n = 0; r; n++) {
                mfl_alloc_fail_at(n);
                r = mfl_store_check(f.dir, on_finding, &findings, &summary, &err);
                bool failed = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, failed ? -ENOMEM : 0);
        }
        assert_int_equal(findings.n, 0);
        mfl_store_close(store);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_back_up_is_a_state_directory),
                cmocka_unit_test(damage_is_found_and_copied),
                cmocka_unit_test(frozen_params_are_backed_up),
                cmocka_unit_test(what_is_no_state_is_refused),
                cmocka_unit_test(every_full_disk_leaves_no_half),
                cmocka_unit_test(every_failed_allocation_leaves_no_half),
        };
        return cmocka_run_group_tests_name("store_backup", tests, NULL, NULL);
}
