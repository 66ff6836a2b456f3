/* SPDX-License-Identifier: Apache-2.0 */
/* State directories for tests of what a disk does to them: as kill -9 leaves one, and as a stop does. */
#include "tests/unit/server/state_bed.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/models/models.h"
#include "server/store/store_backup.h"

void state_ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static void train(struct fixture *f, struct mfl_store *store, const char *id)
{
        struct mfl_error err = {{0}};
        struct mfl_store_node node = {.node = "rack-7", .daemons = 1, .up = 12345};
        const struct mfl_store_nodes nodes = {1, &node};
        struct mfl_runtime *rt = fixture_open(f, 1, NULL);
        for (uint32_t number = 1; number <= ROUNDS; number++) {
                struct mfl_store_round round = {
                        .record = {.round = number, .evaluated = true, .accuracy = 0.1 * number, .loss = 1}};
                struct mfl_store_state own = {.client = 5, .round = number};
                const struct mfl_store_states states = {1, &own};
                struct mfl_checkpoint checkpoint;
                round.states = &states;
                mfl_runtime_round_open(rt, number);
                fixture_add_f32(f, rt, 1, number, 1);
                state_ok(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 1}, round.record.digest,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &err),
                        &err);
                mfl_runtime_checkpoint(rt, &checkpoint);
                state_ok(mfl_store_checkpoint(
                                 store, id, number, &checkpoint, &round.file, &round.frozen, &err),
                        &err);
                state_ok(mfl_store_commit(store, id, &round, &nodes, 1, &err), &err);
        }
        mfl_runtime_close(rt);
}

/* A job that is done, one that goes on, one with initial params, and a row in every other table. */
static struct mfl_store *prepare(struct fixture *f)
{
        struct mfl_error err = {{0}};
        struct mfl_store *store = NULL;
        struct mfl_store_upload *upload;
        const float initial[4] = {1, 2, 3, 4};
        const struct mfl_store_rule rule = {
                .pattern = "site-b*", .verdict = MFL_VERDICT_DENY, .who = "ann", .reason = "bad numbers"};
        const struct mfl_store_audit entry = {.who = "ann",
                .address = "10.0.0.1",
                .action = "disable",
                .object = "site-b*",
                .result = "done"};
        const struct mfl_store_inquiry report = {.kind = 1, .body = "told", .bytes = 4};
        char id[MFL_JOB_ID_BYTES];
        uint32_t version;
        uint64_t number;
        fixture_init(f, MFL_STRATEGY_FEDADAM, 4);
        state_ok(mfl_store_open(f->dir, &store, &err), &err);
        state_ok(mfl_store_job_add(store, "one", "training: {lr: 0.05}", "token", "ann", NULL, id, &err),
                &err);
        train(f, store, id);
        state_ok(mfl_store_job_set_state(store, id, MFL_JOB_DONE, "", &err), &err);
        state_ok(mfl_store_job_add(store, "two", "training: {lr: 0.07}", "", "ann", NULL, id, &err), &err);
        train(f, store, id);
        state_ok(mfl_store_upload_begin(store, 4, &upload, &err), &err);
        state_ok(mfl_store_upload_write(upload, initial, sizeof initial, &err), &err);
        state_ok(
                mfl_store_job_add(store, "three", "training: {lr: 0.09}", "", "bob", upload, id, &err), &err);
        assert_string_equal(id, FRESH);
        state_ok(mfl_store_rule_put(store, &rule, &err), &err);
        state_ok(mfl_store_drain(store, "site-a", true, &err), &err);
        state_ok(mfl_store_audit_add(store, &entry, &err), &err);
        state_ok(mfl_store_partition_put(store, GOING, "", "sizes", 5, &err), &err);
        state_ok(mfl_store_version_add(store, "model", GOING, MFL_STORE_NEWEST, "bob", &version, &err), &err);
        state_ok(mfl_store_alias_set(store, "model", "champion", version, "bob", &err), &err);
        state_ok(mfl_store_inquiry_add(store, &report, &number, &err), &err);
        mfl_store_log(store, GOING, "the first line", NULL);
        state_ok(mfl_store_flush(store, &err), &err);
        return store;
}
/* ---- copies ---- */

void state_path(const char *dir, const char *file, char path[400])
{
        snprintf(path, 400, "%s/%s", dir, file);
}

void state_remove(const char *dir, const char *file)
{
        char path[400];
        state_path(dir, file, path);
        assert_int_equal(unlink(path), 0);
}

void state_copy(const char *from, const char *to)
{
        struct mfl_error err = {{0}};
        assert_int_equal(mkdir(to, 0700), 0);
        DIR *dir = opendir(from);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));) {
                char a[600], b[600], *data;
                struct stat st;
                size_t bytes;
                if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                        continue;
                snprintf(a, sizeof a, "%.300s/%.255s", from, entry->d_name);
                snprintf(b, sizeof b, "%.300s/%.255s", to, entry->d_name);
                assert_int_equal(stat(a, &st), 0);
                if (S_ISDIR(st.st_mode)) {
                        state_copy(a, b);
                        continue;
                }
                state_ok(mfl_fs_read(a, SIZE_MAX, &data, &bytes, &err), &err);
                int fd = open(b, O_WRONLY | O_CREAT | O_EXCL, 0600);
                assert_true(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
                close(fd);
                free(data);
        }
        closedir(dir);
}

off_t state_size(const char *dir, const char *file)
{
        char path[400];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, file);
        return stat(path, &st) ? 0 : st.st_size;
}

void state_flip(const char *dir, const char *file, off_t byte, int bit)
{
        char path[400];
        uint8_t c = 0;
        snprintf(path, sizeof path, "%s/%s", dir, file);
        int fd = open(path, O_RDWR);
        assert_true(fd >= 0 && pread(fd, &c, 1, byte) == 1);
        c ^= (uint8_t)(1 << bit);
        assert_int_equal(pwrite(fd, &c, 1, byte), 1);
        close(fd);
}

/* Checkpoints below a directory, wherever they lie. */
unsigned state_checkpoints(const char *path)
{
        unsigned n = 0;
        DIR *dir = opendir(path);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
                char below[600];
                if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
                        continue;
                snprintf(below, sizeof below, "%.300s/%.255s", path, entry->d_name);
                if (entry->d_type == DT_DIR)
                        n += state_checkpoints(below);
                else
                        n += strstr(entry->d_name, ".safetensors") != NULL;
        }
        if (dir)
                closedir(dir);
        return n;
}
/* ---- the bed ---- */

void state_bed_init(struct state_bed *bed)
{
        *bed = (struct state_bed){.crashed = ""};
        struct mfl_store *store = prepare(&bed->f);
        snprintf(bed->crashed, sizeof bed->crashed, "%s.crashed", bed->f.dir);
        snprintf(bed->stopped, sizeof bed->stopped, "%s.stopped", bed->f.dir);
        state_copy(bed->f.dir, bed->crashed);
        mfl_store_close(store);
        state_copy(bed->f.dir, bed->stopped);
        assert_int_equal(
                state_checkpoints(bed->crashed), STATE_CHECKPOINTS); /* of each job the newest and one more */
}

void state_bed_deinit(struct state_bed *bed)
{
        fixture_remove(bed->crashed);
        fixture_remove(bed->stopped);
        fixture_deinit(&bed->f);
}

static void ignore(void *user, const char *text)
{
}

bool state_check_finds(const char *dir)
{
        struct mfl_store_summary summary = {0};
        struct mfl_error err = {{0}};
        return mfl_store_check(dir, ignore, NULL, &summary, &err) || summary.findings;
}
