/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions, and what every file of the store needs inside and around them.
 *   - writing: begin, the statements, then end: the waiting log lines, the count, commit, the count's file.
 * Fails when the disk is full or broken, and when the database is corrupt.
 */
#include "server/store/store_internal.h"

void mfl_store_lock(struct mfl_store *store)
{
        pthread_mutex_lock(&store->mutex);
}

void mfl_store_unlock(struct mfl_store *store)
{
        pthread_mutex_unlock(&store->mutex);
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
