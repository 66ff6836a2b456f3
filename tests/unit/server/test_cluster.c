/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a cluster, without etcd: a follower's directory gets what the leader's store commits; entries and base64 from anybody;
 * a list of servers. */
#include "tests/unit/server/fixture.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "proto/servers.h"
#include "server/cluster/base64.h"
#include "server/cluster/blobs.h"
#include "server/cluster/commit_core.h"
#include "server/cluster/copies.h"
#include "server/cluster/entry.h"
#include "server/cluster/lead_core.h"
#include "server/replica/replica.h"

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

/* A log in memory: the leader's commits are applied to a follower at once, or not at all. */
struct log {
        char dir[300], follower[300];
        struct mfl_replica *replica;
        uint32_t entries, whole, blobs, refused;
        int answer, answer_whole;
        uint8_t last[20000]; /* changes */
        size_t last_bytes;
        struct mfl_store_cluster ops;
};

static int on_blob(void *user, const char *path, const uint8_t sha256[32], uint64_t bytes, bool waits,
        struct mfl_error *err)
{
        struct log *log = user;
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, bytes);
        log->blobs++;
        return 0;
}

static int on_commit(void *user, const struct mfl_store_change *change, struct mfl_error *err)
{
        struct log *log = user;
        char path[400], command[900];
        struct mfl_store_change copy = *change;
        if (log->answer)
                return mfl_fail(err, log->answer, "not now");
        if (change->whole && log->answer_whole) {
                log->refused++;
                return mfl_fail(err, log->answer_whole, "no room for the database");
        }
        assert_int_equal(change->seq, log->entries + 1);
        log->entries++;
        if (!change->whole && change->n <= sizeof log->last) {
                memcpy(log->last, change->bytes, change->n);
                log->last_bytes = change->n;
        }
        log->whole += change->whole != NULL;
        snprintf(path, sizeof path, "%s/whole", log->dir);
        snprintf(command, sizeof command, "cp %s %s", change->whole ? change->whole : "", path);
        if (change->whole) {
                assert_int_equal(system(command), 0);
                copy.whole = path;
        }
        ok(mfl_replica_apply(log->replica, &copy, err), err);
        assert_int_equal(mfl_replica_seq(log->replica), log->entries);
        return 0;
}

static void open_log(struct log *log, const char *dir)
{
        struct mfl_error err = {{0}};
        *log = (struct log){.replica = NULL};
        snprintf(log->dir, sizeof log->dir, "%s", dir);
        snprintf(log->follower, sizeof log->follower, "%s/follower", dir);
        log->ops = (struct mfl_store_cluster){on_blob, on_commit, log};
        ok(mfl_replica_open(log->follower, &log->replica, &err), &err);
}

static struct mfl_store *open_leader(struct log *log)
{
        struct mfl_store *store = NULL;
        struct mfl_error err = {{0}};
        char dir[320];
        snprintf(dir, sizeof dir, "%s/leader", log->dir);
        ok(mfl_store_open_in(dir, &log->ops, &store, &err), &err);
        return store;
}

static void commit_round(struct mfl_store *store, const char *id, uint32_t number)
{
        struct mfl_error err = {{0}};
        const struct mfl_store_nodes none = {0};
        struct mfl_store_round round = {
                .record = {.round = number, .digest = {(uint8_t)number}}, .file = {.name = "none"}};
        ok(mfl_store_commit(store, id, &round, &none, 2000, &err), &err);
}

static void follower_has_what_was_committed(void **state)
{
        struct fixture f;
        struct log log;
        struct mfl_error err = {{0}};
        struct mfl_store_rounds rounds;
        struct mfl_store_job job;
        char id[MFL_JOB_ID_BYTES], gone[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        open_log(&log, f.dir);
        struct mfl_store *store = open_leader(&log);
        assert_true(log.entries > 0 && log.whole == 1); /* the schema */
        ok(mfl_store_job_add(store, "a", "text a", "token", "ann", NULL, id, &err), &err);
        ok(mfl_store_job_add(store, "b", "text b", "", "ann", NULL, gone, &err), &err);
        commit_round(store, id, 1);
        commit_round(store, gone, 1);
        commit_round(store, id, 2);
        ok(mfl_store_job_set_state(store, gone, MFL_JOB_STOPPED, "enough", &err), &err);
        ok(mfl_store_job_delete(store, gone, &err), &err); /* cascades */
        mfl_store_close(store);
        mfl_replica_close(log.replica);
        log.replica = NULL;
        /* The follower leads. */
        struct mfl_store_cluster ops = log.ops;
        struct log second = {.entries = log.entries};
        snprintf(second.dir, sizeof second.dir, "%s/second", f.dir);
        assert_int_equal(mfl_store_open(log.follower, &store, &err), MFL_EXISTS);
        ops.user = &second;
        ok(mfl_replica_open(second.dir, &second.replica, &err), &err);
        second.answer = MFL_STORE_AGAIN;
        assert_int_equal(mfl_store_open_in(log.follower, &ops, &store, &err), MFL_STORE_AGAIN);
        mfl_replica_close(second.replica);
        ok(mfl_replica_open(log.follower, &log.replica, &err), &err);
        assert_int_equal(mfl_replica_seq(log.replica), log.entries);
        ok(mfl_replica_leave(log.replica, &err), &err);
        mfl_replica_close(log.replica);
        ok(mfl_store_open(log.follower, &store, &err), &err);
        ok(mfl_store_job_get(store, id, &job, &err), &err);
        assert_string_equal(job.text, "text a");
        assert_int_equal(mfl_store_job_get(store, gone, &job, &err), MFL_NOT_FOUND);
        ok(mfl_store_round_list(store, id, 0, 0, &rounds, &err), &err);
        assert_int_equal(rounds.n, 2);
        assert_int_equal(rounds.v[1].record.digest[0], 2);
        mfl_store_rounds_deinit(&rounds);
        mfl_store_job_deinit(&job);
        mfl_store_close(store);
        fixture_deinit(&f);
}

static void refused_commit_changes_nothing(void **state)
{
        struct fixture f;
        struct log log;
        struct mfl_error err = {{0}};
        struct mfl_store_jobs jobs;
        char id[MFL_JOB_ID_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        open_log(&log, f.dir);
        struct mfl_store *store = open_leader(&log);
        log.answer = MFL_STORE_AGAIN;
        assert_int_equal(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), MFL_STORE_AGAIN);
        assert_string_equal(err.text, "not now");
        ok(mfl_store_job_list(store, false, &jobs, &err), &err);
        assert_int_equal(jobs.n, 0);
        mfl_store_jobs_deinit(&jobs);
        log.answer = 0;
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        mfl_store_close(store);
        /* Changes of another database are refused: these were applied before. */
        struct mfl_store_change change = {
                .seq = log.entries + 1, .schema = 10, .bytes = log.last, .n = log.last_bytes};
        assert_int_equal(mfl_replica_apply(log.replica, &change, &err), MFL_STORE_DAMAGED);
        assert_int_equal(mfl_replica_seq(log.replica), log.entries);
        change.schema = 1000;
        assert_int_equal(mfl_replica_apply(log.replica, &change, &err), MFL_STORE_NEWER);
        mfl_replica_close(log.replica);
        fixture_deinit(&f);
}

/* A whole database that the others can't take keeps nothing from being committed, and is tried again later. */
static void log_goes_on_without_a_whole_database(void **state)
{
        struct fixture f;
        struct log log;
        struct mfl_error err = {{0}};
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        open_log(&log, f.dir);
        struct mfl_store *store = open_leader(&log);
        const uint32_t before = log.whole;
        char id[MFL_JOB_ID_BYTES];
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        log.answer_whole = MFL_STORE_AGAIN;
        for (uint32_t n = 1; log.entries < MFL_STORE_WHOLE_EVERY + 200; n++)
                commit_round(store, id, n);
        assert_int_equal(log.whole, before);
        assert_int_equal(log.refused, 4); /* when it is due, and 64, 128 and 192 entries later */
        log.answer_whole = 0;
        const uint32_t from = log.entries;
        for (uint32_t n = from; log.whole == before; n++) {
                commit_round(store, id, n);
                assert_true(log.entries < from + 65);
        }
        for (uint32_t n = log.entries + 1, until = log.entries + 100; log.entries < until; n++)
                commit_round(store, id, n);
        assert_int_equal(log.whole, before + 1);
        assert_int_equal(log.refused, 4);
        mfl_store_close(store);
        mfl_replica_close(log.replica);
        fixture_deinit(&f);
}

/* Of a job that ends before the others have its checkpoint, the copy of its clients' states goes, which may be as large as they are. */
static void no_copy_of_states_outlives_its_job(void **state)
{
        struct fixture f;
        struct log log;
        struct mfl_error err = {{0}};
        struct mfl_store_file file;
        char id[MFL_JOB_ID_BYTES], path[MFL_STORE_PATH_BYTES];
        fixture_init(&f, MFL_STRATEGY_SCAFFOLD, 4);
        open_log(&log, f.dir);
        struct mfl_store *store = open_leader(&log);
        ok(mfl_store_job_add(store, "a", "t", "", "ann", NULL, id, &err), &err);
        FILE *states = fopen(mfl_store_path(store, id, MFL_STORE_STATES_FILE, path), "w");
        assert_non_null(states);
        fputs("states", states);
        fclose(states);
        ok(mfl_store_states_copy(store, id, &file, &err), &err);
        assert_int_equal(file.bytes, 6);
        snprintf(path, sizeof path, "%s/leader/uploads/states-%s", f.dir, id);
        assert_int_equal(access(path, F_OK), 0);
        ok(mfl_store_job_set_state(store, id, MFL_JOB_STOPPED, "enough", &err), &err);
        assert_int_equal(access(path, F_OK), -1);
        mfl_store_close(store);
        mfl_replica_close(log.replica);
        fixture_deinit(&f);
}

static bool never(void *user)
{
        (*(uint32_t *)user)++;
        return false;
}

/* A server that has won and can't bring a file lets another one try, a few leases later. */
static void who_cannot_catch_up_gives_up(void **state)
{
        struct mfl_lead lead;
        mfl_lead_init(&lead, &(struct mfl_lead_options){3000, 250});
        struct mfl_lead_event e = {.kind = MFL_LEAD_EV_TICK, .now_ms = 1000};
        assert_int_equal(mfl_lead_step(&lead, &e), MFL_LEAD_ACT_READ);
        e = (struct mfl_lead_event){.kind = MFL_LEAD_EV_READ, .now_ms = 1001, .ok = true};
        assert_int_equal(mfl_lead_step(&lead, &e), MFL_LEAD_ACT_GRANT);
        e = (struct mfl_lead_event){.kind = MFL_LEAD_EV_GRANTED,
                .now_ms = 1002,
                .sent_ms = 1001,
                .ok = true,
                .lease = 7,
                .ttl_ms = 3000};
        assert_int_equal(mfl_lead_step(&lead, &e), MFL_LEAD_ACT_CAMPAIGN);
        e = (struct mfl_lead_event){.kind = MFL_LEAD_EV_CAMPAIGN, .now_ms = 1003, .ok = true, .term = 9};
        enum mfl_lead_action_kind action = mfl_lead_step(&lead, &e);
        uint32_t n_failed = 0;
        for (uint64_t now = 1003; lead.state == MFL_LEAD_CATCH_UP && now < 60000; now += 250) {
                e = (struct mfl_lead_event){.kind = MFL_LEAD_EV_TICK, .now_ms = now, .sent_ms = now};
                if (action == MFL_LEAD_ACT_KEEP) {
                        e.kind = MFL_LEAD_EV_KEPT;
                        e.ok = true;
                        e.ttl_ms = 3000;
                } else if (action == MFL_LEAD_ACT_READ) { /* it fails */
                        e.kind = MFL_LEAD_EV_READ;
                        n_failed++;
                }
                action = mfl_lead_step(&lead, &e);
        }
        assert_true(n_failed > 3);
        assert_int_equal(lead.state, MFL_LEAD_FOLLOW);
        assert_int_equal(action, MFL_LEAD_ACT_REVOKE);
        assert_int_equal(lead.old_lease, 7);
        assert_true(lead.read_ms > 1003 + 9000);
}

/* The few leases count from the first failure in a row: one that has caught up for long, and fails then, is not at their end. */
static void patience_begins_with_the_failure(void **state)
{
        struct mfl_lead lead;
        mfl_lead_init(&lead, &(struct mfl_lead_options){3000, 250});
        lead.state = MFL_LEAD_CATCH_UP;
        lead.lease = 7;
        struct mfl_lead_event e = {.kind = MFL_LEAD_EV_CAMPAIGN, .now_ms = 1000, .ok = true, .term = 9};
        lead.until_ms = lead.keep_ms = UINT64_MAX; /* its thread keeps the lease meanwhile */
        assert_int_equal(mfl_lead_step(&lead, &e), MFL_LEAD_ACT_READ);
        for (uint64_t now = 20000, from = 0; now < 60000; now += 500) {
                const bool fails = now < 25000 || now >= 30000;
                e = (struct mfl_lead_event){
                        .kind = MFL_LEAD_EV_READ, .now_ms = now, .ok = !fails, .behind = !fails};
                mfl_lead_step(&lead, &e);
                from = now == 20000 || now == 30000 ? now : from;
                assert_int_equal(
                        lead.state, fails && now >= from + 9000 ? MFL_LEAD_FOLLOW : MFL_LEAD_CATCH_UP);
                if (lead.state == MFL_LEAD_FOLLOW)
                        return;
        }
        fail();
}

/* Of a file whose size no row says: a size that no file has is a lie, one that this disk has no room for is not. */
static void a_full_disk_is_nobody_s_lie(void **state)
{
        struct mfl_copy_fetch fetch = {0}, known = {.bytes = 100};
        struct mfl_copy_fetch_event e = {.kind = MFL_COPY_FETCH_EV_PIECE, .bytes = 100, .n = 10, .room = 99};
        assert_int_equal(mfl_copy_fetch_step(&fetch, &e), MFL_COPY_FETCH_FULL);
        e.bytes = (uint64_t)1 << 60;
        assert_int_equal(mfl_copy_fetch_step(&fetch, &e), MFL_COPY_FETCH_OTHER);
        assert_int_equal(mfl_copy_fetch_step(&known, &e), MFL_COPY_FETCH_OTHER);
        e.bytes = e.room = 100;
        assert_int_equal(mfl_copy_fetch_step(&fetch, &e), MFL_COPY_FETCH_WRITE);
        assert_int_equal(fetch.bytes, 100);
        e.room = 0; /* looked at once */
        e.bytes = 101;
        assert_int_equal(mfl_copy_fetch_step(&fetch, &e), MFL_COPY_FETCH_OTHER);
        e.bytes = 100;
        assert_int_equal(mfl_copy_fetch_step(&fetch, &e), MFL_COPY_FETCH_WRITE);
}

/* One that has all of a file, and never says that it is durable, is not asked for ever. */
static void a_copy_that_never_counts_ends(void **state)
{
        for (uint64_t bytes = 0; bytes <= 10; bytes += 5) { /* in no piece, in one, and in several */
                struct mfl_copy_give give;
                enum mfl_copy_give_action action = MFL_COPY_GIVE_PIECE;
                mfl_copy_give_init(&give, bytes, 5);
                for (int i = 0; i < 10 && action == MFL_COPY_GIVE_PIECE; i++)
                        action = mfl_copy_give_step(&give, bytes, false);
                assert_int_equal(action, MFL_COPY_GIVE_STUCK);
        }
}

/* Nobody is there: the put says who lacks the file and why, at once; and it ends when its caller does not want to wait. */
static void copies_say_who_lacks_a_file(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char path[400];
        uint8_t sha256[32];
        uint32_t asked = 0;
        struct mfl_copies *copies;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        const struct mfl_copies_options options = {
                .own = "s1", .servers = "s1=127.0.0.1:9,s2=127.0.0.1:1,s3=127.0.0.1:1"};
        snprintf(path, sizeof path, "%s/file", f.dir);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("hello", file);
        fclose(file);
        ok(mfl_sha256("hello", 5, sha256, &err), &err);
        ok(mfl_copies_open(&options, &copies, &err), &err);
        const struct mfl_copies_wait wait = {.patience_ms = 60000},
                                     none = {.patience_ms = 60000, .goes_on = never, .user = &asked};
        for (int i = 0; i < 2; i++) { /* a failure is not remembered */
                assert_int_equal(mfl_copies_put(copies, path, sha256, 5, &wait, &err), MFL_BUSY);
                assert_non_null(strstr(err.text, "1 of 3 servers have the file, and 2 are needed: s"));
                assert_non_null(strstr(err.text, "connection refused"));
        }
        assert_int_equal(mfl_copies_put(copies, path, sha256, 5, &none, &err), MFL_BUSY);
        assert_true(asked <= 1);
        mfl_copies_close(copies);
        fixture_deinit(&f);
}

static void base64_is_exact(void **state)
{
        uint8_t bytes[300], back[304];
        char text[500];
        size_t n;
        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t)(i * 37 + i / 256);
        for (size_t length = 0; length <= sizeof bytes; length++) {
                mfl_base64_write(bytes, length, text);
                assert_true(strlen(text) + 1 == mfl_base64_room(length));
                assert_true(mfl_base64_read(text, strlen(text), back, &n));
                assert_true(n == length && !memcmp(bytes, back, n));
        }
        mfl_base64_write("foob", 4, text);
        assert_string_equal(text, "Zm9vYg==");
        assert_false(mfl_base64_read("Zm9", 3, back, &n));
        assert_false(mfl_base64_read("Zm9*", 4, back, &n));
        assert_false(mfl_base64_read("Z=9v", 4, back, &n));
}

static void entries_are_checked(void **state)
{
        struct mfl_error err = {{0}};
        struct mfl_entry entry = {.kind = MFL_ENTRY_CHANGES,
                                 .schema = 10,
                                 .term = 7,
                                 .id = 9,
                                 .payload = "abc",
                                 .n = 3},
                         back;
        uint8_t *bytes;
        size_t n;
        ok(mfl_entry_write(&entry, &bytes, &n, &err), &err);
        ok(mfl_entry_read(bytes, n, &back, &err), &err);
        assert_true(back.term == 7 && back.id == 9 && back.n == 3 && !memcmp(back.payload, "abc", 3));
        for (size_t cut = 0; cut < n; cut++)
                assert_int_equal(mfl_entry_read(bytes, cut, &back, &err), MFL_INVALID);
        bytes[4] = 77; /* a kind of a later release */
        assert_int_equal(mfl_entry_read(bytes, n, &back, &err), MFL_INVALID);
        free(bytes);
}

static void blobs_are_checked(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        char path[400], to[400];
        uint8_t sha256[32];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        struct mfl_blobs blobs = {.name = "s1"};
        snprintf(blobs.dir, sizeof blobs.dir, "%s", f.dir);
        snprintf(path, sizeof path, "%s/file", f.dir);
        snprintf(to, sizeof to, "%s/copy", f.dir);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs("hello", file);
        fclose(file);
        ok(mfl_sha256("hello", 5, sha256, &err), &err);
        assert_int_equal(mfl_blobs_get(&blobs, sha256, 5, to, &err), MFL_NOT_FOUND);
        ok(mfl_blobs_put(&blobs, path, sha256, 5, &err), &err);
        ok(mfl_blobs_put(&blobs, path, sha256, 5, &err), &err);
        ok(mfl_blobs_get(&blobs, sha256, 5, to, &err), &err);
        assert_true(mfl_blobs_is(&blobs, to, sha256, 5));
        assert_int_equal(mfl_blobs_get(&blobs, sha256, 4, to, &err), MFL_INVALID);
        sha256[0] ^= 1;
        assert_int_equal(mfl_blobs_put(&blobs, path, sha256, 5, &err), MFL_INVALID);
        assert_false(mfl_blobs_is(&blobs, to, sha256, 5));
        fixture_deinit(&f);
}

static void servers_take_turns(void **state)
{
        struct mfl_servers servers;
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_servers_init(&servers, "a:1,b:x", &err), MFL_INVALID);
        ok(mfl_servers_init(&servers, "a:1, b:1,c:1", &err), &err);
        assert_string_equal(mfl_servers_current(&servers), "a:1");
        assert_true(mfl_servers_next(&servers, "c:1"));
        assert_string_equal(mfl_servers_current(&servers), "c:1");
        assert_true(mfl_servers_next(&servers, "evil:1")); /* not in the list */
        assert_string_equal(mfl_servers_current(&servers), "a:1");
        assert_false(mfl_servers_next(&servers, ""));
        assert_string_equal(mfl_servers_current(&servers), "b:1");
        ok(mfl_servers_hear(&servers, 7, &err), &err);
        ok(mfl_servers_hear(&servers, 0, &err), &err);
        assert_int_equal(mfl_servers_hear(&servers, 6, &err), MFL_INVALID);
        ok(mfl_servers_hear(&servers, 8, &err), &err);
}

static void lists_of_servers_are_checked(void **state)
{
        static const char *const bad[] = {"s1=a:7433,s2", "s1=a:7433,=b:7433",
                "s1=a:7433,s2=", "s1=a:7433,s2=:7433", "s1=a:7433,s2=b:99999",
                "s1=a:7433,s2=b:7433,s2=c:7433", "s1=a:7433,s1=b:7433", ""};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                const struct mfl_copies_options options = {.own = "s1", .servers = bad[i]};
                struct mfl_copies *copies = NULL;
                struct mfl_error err = {{0}};
                assert_int_equal(mfl_copies_open(&options, &copies, &err), MFL_INVALID);
                assert_null(copies);
                assert_non_null(strstr(err.text, "cluster: servers: "));
        }
}

/* What the header's picture says, and nothing else. */
static void commits_end(void **state)
{
        struct mfl_commit commit = {.seq = 3, .term = 5, .id = 9};
        const struct {
                struct mfl_commit_event event;
                enum mfl_commit_result result;
        } looks[] = {{{MFL_COMMIT_EV_LOOK, false, true, 5, 9}, MFL_COMMIT_DONE},
                {{MFL_COMMIT_EV_LOOK, false, true, 6, 9},
                        MFL_COMMIT_DONE}, /* it was written before the other one led */
                {{MFL_COMMIT_EV_LOOK, false, true, 5, 8}, MFL_COMMIT_LOST},
                {{MFL_COMMIT_EV_LOOK, false, true, 6, 0}, MFL_COMMIT_LOST},
                {{MFL_COMMIT_EV_LOOK, false, true, 0, 0}, MFL_COMMIT_LOST},
                {{MFL_COMMIT_EV_LOOK, false, true, 5, 0}, MFL_COMMIT_WAIT},
                {{MFL_COMMIT_EV_LOOK, false, false, 5, 9}, MFL_COMMIT_WAIT}};
        assert_int_equal(mfl_commit_step(&commit, &(struct mfl_commit_event){MFL_COMMIT_EV_BEGIN}),
                MFL_COMMIT_ACT_TXN);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(looks); i++) {
                struct mfl_commit_event refused = {MFL_COMMIT_EV_TXN, false, true, 0, 0};
                assert_int_equal(mfl_commit_step(&commit, &refused), MFL_COMMIT_ACT_LOOK);
                assert_int_equal(mfl_commit_step(&commit, &looks[i].event), MFL_COMMIT_ACT_END);
                assert_int_equal(commit.result, looks[i].result);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(follower_has_what_was_committed),
                cmocka_unit_test(refused_commit_changes_nothing),
                cmocka_unit_test(log_goes_on_without_a_whole_database),
                cmocka_unit_test(no_copy_of_states_outlives_its_job),
                cmocka_unit_test(who_cannot_catch_up_gives_up),
                cmocka_unit_test(patience_begins_with_the_failure),
                cmocka_unit_test(a_full_disk_is_nobody_s_lie),
                cmocka_unit_test(a_copy_that_never_counts_ends),
                cmocka_unit_test(copies_say_who_lacks_a_file),
                cmocka_unit_test(base64_is_exact),
                cmocka_unit_test(entries_are_checked),
                cmocka_unit_test(blobs_are_checked),
                cmocka_unit_test(servers_take_turns),
                cmocka_unit_test(lists_of_servers_are_checked),
                cmocka_unit_test(commits_end),
        };
        return cmocka_run_group_tests_name("server_cluster", tests, NULL, NULL);
}
