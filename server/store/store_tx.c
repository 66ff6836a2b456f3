/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions, and what every file of the store needs inside and around them.
 *   - writing: begin, the statements, then end: the waiting log lines, the count, commit, the count's file.
 * Fails when the disk is full or broken, and when the database is corrupt.
 */
#include "server/store/store_internal.h"

#include <stdio.h>
#include <unistd.h>

void mfl_store_lock(struct mfl_store *store)
{
        pthread_mutex_lock(&store->mutex);
}

void mfl_store_unlock(struct mfl_store *store)
{
        pthread_mutex_unlock(&store->mutex);
}

/* ---- several servers ---- */

#define LATE_EVERY 64u /* how many entries later a whole database is tried again */

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

int mfl_store_cluster_seq(struct mfl_db *db, int64_t schema, int64_t *ret_seq, struct mfl_error *err)
{
        *ret_seq = -1;
        return schema ? mfl_db_query(db, on_int, ret_seq, err,
                                "SELECT value FROM meta WHERE key = 'cluster_seq'", "")
                      : 0;
}

int mfl_store_check_cluster(struct mfl_store *store, int64_t schema, struct mfl_error *err)
{
        int64_t seq;
        int r = mfl_store_cluster_seq(store->db, schema, &seq, err);
        if (r)
                return r;
        if (seq >= 0 && !store->cluster && !store->on_repair)
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s belongs to a cluster: give the server its 'cluster' "
                        "(docs/admin.md, Several "
                        "servers), or take the directory out with mfl-server --leave",
                        store->dir);
        if (seq < 0 && schema && store->cluster)
                return mfl_fail(err, MFL_EXISTS,
                        "state directory %.200s is of a server of its own: take it into the cluster with "
                        "mfl-server "
                        "--join-cluster",
                        store->dir);
        store->seq = seq > 0 ? (uint64_t)seq : 0;
        return 0;
}

int mfl_store_give(struct mfl_store *store, const char *path, const uint8_t sha256[32], uint64_t bytes,
        struct mfl_error *err)
{
        return store->cluster ? store->cluster->blob(store->cluster->user, path, sha256, bytes, false, err)
                              : 0;
}

int mfl_store_whole(
        struct mfl_db *db, const char *path, struct mfl_store_change *change, struct mfl_error *err)
{
        int r = mfl_changes_whole(db, path, change->whole_sha256, &change->whole_bytes, err);
        change->whole = path;
        return r;
}

static int commit_whole(struct mfl_store *store, const struct mfl_store_change *as, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_store_change change = *as;
        snprintf(path, sizeof path, "%.3900s/cluster.whole", store->dir);
        int r = mfl_store_whole(store->db, path, &change, err);
        if (!r)
                r = store->cluster->commit(store->cluster->user, &change, err);
        unlink(path);
        if (!r)
                store->late_seq = 0;
        return r;
}

int mfl_store_replicate(struct mfl_store *store, struct mfl_error *err)
{
        struct mfl_store_change change = {
                .seq = store->seq + 1, .schema = store->schema, .first = store->whole};
        int r = mfl_db_run(store->db, err,
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('cluster_seq', ?1)", "i",
                (int64_t)change.seq);
        if (!r && !store->whole) /* changes of the schema can't be recorded */
                r = mfl_changes_get(store->changes, &change.bytes, &change.n, err);
        if (r)
                return r;
        const uint64_t late = store->late_seq ? change.seq - store->late_seq : 0;
        const bool must = store->whole || change.n > MFL_STORE_CHANGE_MAX || late > MFL_STORE_WHOLE_LATE;
        if (must || change.seq % MFL_STORE_WHOLE_EVERY == 0 || (late && late % LATE_EVERY == 0)) {
                r = commit_whole(store, &change, err);
                if (must || (r != MFL_STORE_AGAIN && r != MFL_STORE_FULL))
                        return r;
                if (!store->late_seq)
                        mfl_store_logf(store, "",
                                "the cluster's log grows, because a copy of the database can't be given to "
                                "the other servers: %s",
                                err->text);
                store->late_seq = store->late_seq ? store->late_seq : change.seq;
        }
        return store->cluster->commit(store->cluster->user, &change, err);
}

int mfl_store_begin(struct mfl_store *store, struct mfl_error *err)
{
        mfl_store_lock(store);
        int r = mfl_db_begin(store->db, err);
        if (!r && store->cluster) {
                r = mfl_changes_begin(store->db, &store->changes, err);
                if (r)
                        mfl_db_rollback(store->db);
        }
        if (r)
                mfl_store_unlock(store);
        return r;
}

void mfl_store_write_count(struct mfl_store *store)
{
        int r = mfl_store_count_write(&store->counter, store->commits);
        if (r && !store->count_fails)
                mfl_store_logf(store, "", "cannot write %s/commits: %s", store->dir, strerror(-r));
        store->count_fails = r;
}

int mfl_store_end(struct mfl_store *store, int r, struct mfl_error *err)
{
        if (!r)
                r = mfl_store_log_write(store, err);
        if (!r && store->counts)
                r = mfl_db_run(store->db, err, "UPDATE meta SET value = ?1 WHERE key = 'commits'", "i",
                        (int64_t)store->commits + 1);
        if (!r && store->cluster)
                r = mfl_store_replicate(store, err);
        mfl_changes_end(store->changes);
        store->changes = NULL;
        if (r)
                mfl_db_rollback(store->db);
        else
                r = mfl_db_commit(store->db, err);
        if (!r) {
                store->seq += store->cluster != NULL;
                store->whole = false;
                store->commits += store->counts;
                if (store->counts && store->counter.fd >= 0)
                        mfl_store_write_count(store);
                mfl_store_log_written(store);
        }
        mfl_store_unlock(store);
        return r;
}

void mfl_store_warn(struct mfl_store *store, const char *fmt, ...)
{
        char text[1024];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        if (store->on_repair)
                store->on_repair(store->repair_user, text);
        else if (store->n_warnings < MFL_STORE_WARNINGS_MAX &&
                 (store->warnings[store->n_warnings] = mfl_strdup(text)))
                store->n_warnings++;
}

static int on_id(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        mfl_strcpy(user, MFL_JOB_ID_BYTES, mfl_db_text(row, 0));
        return 0;
}

int mfl_store_check_job(struct mfl_store *store, const char *id, struct mfl_error *err)
{
        char found[MFL_JOB_ID_BYTES] = "";
        int r = mfl_db_query(store->db, on_id, found, err, "SELECT id FROM jobs WHERE id = ?1", "t", id);
        return r || *found ? r : mfl_fail(err, MFL_NOT_FOUND, "there is no job %s", id);
}
