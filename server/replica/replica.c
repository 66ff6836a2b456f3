/* SPDX-License-Identifier: Apache-2.0 */
/* A follower's state directory. See replica.h.
 *   - open: the lock, the database as it is, the number of its last entry;
 *   - apply: one transaction per entry, or the whole database in its place (rename);
 *   - files: those that rows name, for the cluster to bring; and those that no row names go.
 * Fails when the disk is full or broken, when the database is another one's, or newer. */
#include "server/replica/replica.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_internal.h"
#include "server/store/store_sums.h"

struct mfl_replica {
        struct mfl_store *store;
        uint64_t seq;
        char db_path[MFL_STORE_PATH_BYTES];
};

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

static int read_schema(struct mfl_db *db, int64_t *ret_schema, struct mfl_error *err)
{
        return mfl_db_query(db, on_int, ret_schema, err, "PRAGMA user_version", "");
}

static int refuse_newer(const char *what, int64_t schema, struct mfl_error *err)
{
        return mfl_fail(err, MFL_STORE_NEWER,
                "%.200s has schema %lld; this is mfl-server %s, which supports schemas up to %d: upgrade "
                "this server, too",
                what, (long long)schema, MFL_VERSION, mfl_store_schema_newest());
}

/* join: of any server that has an installation, also one that was in a cluster: its etcd is lost, or it is a restored back-up. Else
 * the directory must be in a cluster, or be empty. */
static int open_database(struct mfl_replica *replica, bool join, struct mfl_error *err)
{
        struct mfl_store *store = replica->store;
        int64_t schema = 0, seq;
        snprintf(replica->db_path, sizeof replica->db_path, "%.3900s/mfl.db", store->dir);
        int r = mfl_db_open(replica->db_path, &store->db, err);
        if (!r)
                r = read_schema(store->db, &schema, err);
        if (!r)
                r = mfl_store_cluster_seq(store->db, schema, &seq, err);
        if (r == -EIO)
                return mfl_fail(err, MFL_STORE_DAMAGED,
                        "the database %.300s is damaged: remove the directory, and the server brings it from "
                        "the cluster again",
                        replica->db_path);
        if (r)
                return r;
        if (schema > mfl_store_schema_newest())
                return refuse_newer(replica->db_path, schema, err);
        if (join && schema != mfl_store_schema_newest())
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s is empty, or an older release's: start mfl-server on it once "
                        "without 'cluster'",
                        store->dir);
        if (!join && schema && seq < 0)
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s is of a server of its own: take it into the cluster with "
                        "mfl-server "
                        "--join-cluster, or name another state_dir",
                        store->dir);
        replica->seq = seq > 0 ? (uint64_t)seq : 0;
        return 0;
}

static int open_replica(
        const char *state_dir, bool join, struct mfl_replica **ret_replica, struct mfl_error *err)
{
        struct mfl_replica *replica = mfl_calloc(1, sizeof *replica);
        if (!replica)
                return mfl_fail_memory(err, sizeof *replica, "a state directory");
        int r = mfl_store_claim(state_dir, &replica->store, err);
        if (!r)
                r = open_database(replica, join, err);
        if (r) {
                mfl_replica_close(replica);
                return r;
        }
        *ret_replica = replica;
        return 0;
}

int mfl_replica_open(const char *state_dir, struct mfl_replica **ret_replica, struct mfl_error *err)
{
        return open_replica(state_dir, false, ret_replica, err);
}

void mfl_replica_close(struct mfl_replica *replica)
{
        if (!replica)
                return;
        mfl_store_close(replica->store);
        free(replica);
}

uint64_t mfl_replica_seq(const struct mfl_replica *replica)
{
        return replica->seq;
}

/* ---- entries ---- */

static int apply_changes(
        struct mfl_replica *replica, const struct mfl_store_change *change, struct mfl_error *err)
{
        struct mfl_db *db = replica->store->db;
        int64_t seq = -1;
        int r = mfl_db_begin(db, err);
        if (r)
                return r;
        r = mfl_changes_apply(db, change->bytes, change->n, err);
        if (!r)
                r = mfl_store_cluster_seq(db, 1, &seq, err);
        if (!r && (uint64_t)seq != change->seq)
                r = mfl_fail(err, MFL_INVALID, "it is the entry %lld", (long long)seq);
        if (!r)
                return mfl_db_commit(db, err);
        mfl_db_rollback(db);
        if (r != MFL_INVALID && r != -EIO)
                return r;
        char why[sizeof err->text];
        mfl_strcpy(why, sizeof why, err->text);
        return mfl_fail(err, MFL_STORE_DAMAGED,
                "entry %llu of the cluster's log does not fit %.200s (%.200s): remove the state directory, "
                "and the server brings it "
                "from the cluster again",
                (unsigned long long)change->seq, replica->db_path, why);
}

/* The old database goes only when the new one is durable; its log would belong to no database. */
static int replace_database(struct mfl_replica *replica, const char *whole, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES + 8];
        mfl_db_close(replica->store->db);
        replica->store->db = NULL;
        snprintf(path, sizeof path, "%s-wal", replica->db_path);
        unlink(path);
        snprintf(path, sizeof path, "%s-shm", replica->db_path);
        unlink(path);
        if (rename(whole, replica->db_path))
                return mfl_store_code(mfl_fail_errno(err, "rename %s to %s", whole, replica->db_path));
        int r = mfl_store_code(mfl_fs_sync_dir(replica->store->dir, err));
        return r ? r : open_database(replica, false, err);
}

int mfl_replica_apply(
        struct mfl_replica *replica, const struct mfl_store_change *change, struct mfl_error *err)
{
        if (change->schema > (uint32_t)mfl_store_schema_newest())
                return refuse_newer("the cluster's log", change->schema, err);
        if (!replica->store->db) /* the last replacement failed half-way */
                return mfl_fail(err, MFL_STORE_AGAIN, "%s is not open", replica->db_path);
        mfl_assert(change->whole || change->seq == replica->seq + 1);
        int r = change->whole ? replace_database(replica, change->whole, err)
                              : apply_changes(replica, change, err);
        if (!r)
                replica->seq = change->seq;
        return r;
}

/* ---- files ---- */

struct files {
        struct mfl_replica *replica;
        mfl_replica_on_file *on_file;
        void *user;
};

static int on_row(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct files *files = user;
        char path[MFL_STORE_PATH_BYTES], id[MFL_JOB_ID_BYTES];
        uint8_t sha256[32];
        mfl_strcpy(id, sizeof id, mfl_db_text(row, 0));
        int r = mfl_store_code(mfl_fs_mkdirs(mfl_store_path(files->replica->store, id, "", path), 0700, err));
        if (r || !*mfl_db_text(row, 1) || !mfl_db_bytes(row, 2))
                return r;
        mfl_db_blob(row, 2, sha256, sizeof sha256);
        mfl_store_path(files->replica->store, id, mfl_db_text(row, 1), path);
        return files->on_file(files->user, path, sha256, (uint64_t)mfl_db_int(row, 3), err);
}

#define KEPT "FROM rounds WHERE kept = 1 AND superseded = 0"

int mfl_replica_files(
        struct mfl_replica *replica, mfl_replica_on_file *on_file, void *user, struct mfl_error *err)
{
        struct files files = {replica, on_file, user};
        if (!replica->seq)
                return 0;
        return mfl_db_query(replica->store->db, on_row, &files, err,
                "SELECT id, 'initial.f32', CASE WHEN has_initial THEN initial_sha256 END, 4 * n_params FROM "
                "jobs UNION "
                "SELECT job, file, file_sha256, file_bytes " KEPT " UNION "
                "SELECT job, frozen_file, frozen_sha256, frozen_bytes " KEPT " AND frozen_file <> '' UNION "
                "SELECT job, '" MFL_STORE_STATES_FILE "', sha256, bytes FROM state_files",
                "");
}

int mfl_replica_look(const char *state_dir, mfl_replica_on_file *on_file, void *user, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_store store = {.dir = (char *)(uintptr_t)state_dir};
        struct mfl_replica replica = {.store = &store, .seq = 1};
        snprintf(path, sizeof path, "%.3900s/mfl.db", state_dir);
        int r = mfl_db_open_reading(path, &store.db, err);
        if (!r)
                r = mfl_replica_files(&replica, on_file, user, err);
        mfl_db_close(store.db);
        return r;
}

struct named {
        bool is;
};

static int on_named(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        ((struct named *)user)->is = true;
        return 0;
}

/* Whether the file may stay: rows name it, or it is none of a checkpoint's. */
static bool is_wanted(struct mfl_replica *replica, const char *id, const char *file)
{
        struct named named = {false};
        struct mfl_error err;
        if (strncmp(file, "round-", 6) != 0)
                return true;
        int r = mfl_db_query(replica->store->db, on_named, &named, &err,
                "SELECT 1 " KEPT " AND job = ?1 AND file = ?2", "tt", id, file);
        return r || named.is;
}

static void prune_job(struct mfl_replica *replica, const char *id)
{
        struct named named = {false};
        struct mfl_error err;
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_db_query(
                replica->store->db, on_named, &named, &err, "SELECT 1 FROM jobs WHERE id = ?1", "t", id);
        if (!r && !named.is)
                mfl_store_remove_job_dir(replica->store, id);
        DIR *dir = r || !named.is ? NULL : opendir(mfl_store_path(replica->store, id, "", path));
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                if (entry->d_name[0] != '.' && !is_wanted(replica, id, entry->d_name))
                        mfl_store_unlink(replica->store, id, entry->d_name);
        if (dir)
                closedir(dir);
}

void mfl_replica_prune(struct mfl_replica *replica)
{
        char path[MFL_STORE_PATH_BYTES];
        DIR *dir = replica->seq ? opendir(mfl_store_path(replica->store, "", "", path)) : NULL;
        struct dirent *entry;
        while (dir && (entry = readdir(dir)))
                if (!strncmp(entry->d_name, "j-", 2))
                        prune_job(replica, entry->d_name);
        if (dir)
                closedir(dir);
}

/* ---- joining and leaving ---- */

static int mark(struct mfl_replica *replica, struct mfl_error *err)
{
        int r = mfl_store_sums_watch(replica->store->db, err);
        return r ? r
                 : mfl_db_run(replica->store->db, err,
                           "INSERT OR REPLACE INTO meta (key, value) VALUES ('cluster_seq', 1)", "");
}

/* A server of its own keeps no row of the file of clients' states, and a leader's file is ahead of its row. */
static int on_states(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct mfl_store *store = user;
        char id[MFL_JOB_ID_BYTES], path[MFL_STORE_PATH_BYTES];
        mfl_strcpy(id, sizeof id, mfl_db_text(row, 0));
        if (access(mfl_store_path(store, id, MFL_STORE_STATES_FILE, path), F_OK)) /* a start says so, too */
                return mfl_db_run(store->db, err, "DELETE FROM state_files WHERE job = ?1", "t", id);
        return mfl_store_give_states(store, id, err);
}

int mfl_replica_join(const char *state_dir, const char *path, struct mfl_replica **ret_replica,
        struct mfl_store_change *ret_change, struct mfl_error *err)
{
        struct mfl_replica *replica = NULL;
        struct mfl_store_change change = {.seq = 1, .schema = (uint32_t)mfl_store_schema_newest()};
        int r = open_replica(state_dir, true, &replica, err);
        if (r)
                return r;
        r = mfl_db_begin(replica->store->db, err);
        if (!r)
                r = mark(replica, err);
        if (!r)
                r = mfl_db_query(replica->store->db, on_states, replica->store, err,
                        "SELECT job FROM client_states UNION SELECT job FROM state_files", "");
        if (!r)
                r = mfl_store_whole(replica->store->db, path, &change, err);
        if (r) {
                mfl_db_rollback(replica->store->db);
                mfl_replica_close(replica);
                return r;
        }
        replica->seq = 1;
        *ret_replica = replica;
        *ret_change = change;
        return 0;
}

int mfl_replica_joined(struct mfl_replica *replica, struct mfl_error *err)
{
        return mfl_db_commit(replica->store->db, err);
}

int mfl_replica_leave(struct mfl_replica *replica, struct mfl_error *err)
{
        int r = mfl_db_begin(replica->store->db, err);
        if (r)
                return r;
        r = mfl_db_run(replica->store->db, err, "DELETE FROM meta WHERE key = 'cluster_seq'", "");
        if (!r)
                return mfl_db_commit(replica->store->db, err);
        mfl_db_rollback(replica->store->db);
        return r;
}
