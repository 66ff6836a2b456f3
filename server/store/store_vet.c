/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that a state directory is what was committed, before a server uses it; and decides what happens to files
 * that no row names.
 *   - the number of transactions and the log (store_evidence.h);
 *   - the pages and indexes (SQLite's own check), the rows and the schema (store_sums.h);
 *   - jobs/ (store_strays.h).
 * Refuses a damaged directory with MFL_STORE_DAMAGED and changes nothing; a repair reports the same and continues.
 */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "server/store/store_internal.h"
#include "server/store/store_sums.h"

#define DELETED_AT_ONCE 64

static int refuse(struct mfl_store *store, const char *what, struct mfl_error *err)
{
        if (store->on_repair) {
                mfl_store_warn(store, "%s", what);
                return 0;
        }
        return mfl_fail(err, MFL_STORE_DAMAGED,
                "state directory %.100s: %.220s. Nothing was changed. Restore a back-up (docs/admin.md, "
                "Restore), or continue without the lost data: mfl-server --repair",
                store->dir, what);
}

static int on_int(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

/* For a repair: keeps the log as it was, because SQLite overwrites what it does not accept. */
static int keep_log(struct mfl_store *store, struct mfl_error *err)
{
        char from[MFL_STORE_PATH_BYTES], to[MFL_STORE_PATH_BYTES];
        char *data = NULL;
        size_t bytes;
        struct mfl_fs_file file = {.fd = -1};
        snprintf(from, sizeof from, "%.3900s/mfl.db-wal", store->dir);
        snprintf(to, sizeof to, "%.3900s/mfl.db-wal.damaged", store->dir);
        int r = mfl_fs_read(from, SIZE_MAX, &data, &bytes, err);
        if (r == MFL_NOT_FOUND)
                return 0;
        if (!r)
                r = mfl_fs_begin(&file, to, err);
        if (!r)
                r = mfl_fs_write(&file, data, bytes, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        free(data);
        if (!r)
                mfl_store_warn(store, "the log of the database is kept as mfl.db-wal.damaged");
        return mfl_store_code(r);
}

static int vet_transactions(struct mfl_store *store, int64_t version, struct mfl_error *err)
{
        char text[400];
        int64_t commits = 0;
        int r = version < (int64_t)MFL_STORE_SCHEMA_SUMS
                        ? 0
                        : mfl_db_query(store->db, on_int, &commits, err,
                                  "SELECT value FROM meta WHERE key = 'commits'", "");
        if (r)
                return r;
        if (mfl_store_evidence_judge(&store->evidence, version, (uint64_t)commits, text, sizeof text)) {
                r = refuse(store, text, err);
                return r ? r : keep_log(store, err);
        }
        if (*text)
                mfl_store_warn(store, "state directory %s: %s", store->dir, text);
        if (store->evidence.count.there && !store->evidence.count.good)
                mfl_store_warn(store,
                        "state directory %s: the file `commits` was damaged, and has been created again; run "
                        "mfl-server --check-state",
                        store->dir);
        return 0;
}

static int on_page(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const char *text = mfl_db_text(row, 0);
        return strcmp(text, "ok") ? mfl_fail(err, -EIO, "the database has damaged pages: %.200s", text) : 0;
}

static int on_row(void *user, const struct mfl_store_damaged_row *row, struct mfl_error *err)
{
        struct mfl_store *store = user;
        char text[300];
        mfl_snprintf(text, sizeof text, "a row of the database was changed on the disk: %s%s%s", row->table,
                *row->key ? ": " : "", row->key);
        if (row->decides)
                return refuse(store, text, err);
        mfl_store_warn(store, "%s; mfl-server --repair removes it", text);
        return 0;
}

static int vet_jobs(struct mfl_store *store, const struct mfl_store_survey *survey, struct mfl_error *err)
{
        char text[900];
        return mfl_store_survey_refuses(survey, text, sizeof text) ? refuse(store, text, err) : 0;
}

int mfl_store_vet(
        struct mfl_store *store, int64_t version, struct mfl_store_survey *ret_survey, struct mfl_error *err)
{
        struct mfl_store_survey survey = {0};
        int r = vet_transactions(store, version, err);
        if (!r && version)
                r = mfl_db_query(store->db, on_page, NULL, err, "PRAGMA integrity_check(1)", "");
        if (!r && version >= (int64_t)MFL_STORE_SCHEMA_SUMS)
                r = mfl_store_sums_check(store->db, on_row, store, err);
        if (!r)
                r = mfl_store_survey_read(store->db, version, store->dir, &survey, err);
        if (!r)
                r = vet_jobs(store, &survey, err);
        if (r)
                mfl_store_survey_deinit(&survey);
        else
                *ret_survey = survey;
        return r;
}

int mfl_store_mend_rows(struct mfl_store *store, struct mfl_error *err)
{
        int r = mfl_store_sums_drop_damaged(store->db, err);
        if (!r)
                r = mfl_db_run(store->db, err,
                        "INSERT OR IGNORE INTO meta (key, value) VALUES ('boot', 0), ('commits', 0)", "");
        return r ? r : mfl_store_sums_seal_schema(store->db, err);
}

/* ---- what no row names ---- */

static int tidy_one(struct mfl_store *store, const struct mfl_store_stray *stray, struct mfl_error *err)
{
        char text[640], to[600];
        switch (stray->kind) {
        case MFL_STRAY_DROPPED:
                mfl_store_logf(store, "", "removing jobs/%s%s%s, which belongs to no %s", stray->job,
                        *stray->file ? "/" : "", stray->file, *stray->file ? "committed round" : "job");
                if (*stray->file)
                        mfl_store_unlink(store, stray->job, stray->file);
                else
                        mfl_store_remove_job_dir(store, stray->job);
                return 0;
        case MFL_STRAY_ORPHAN:
        case MFL_STRAY_PROOF:
                mfl_store_stray_text(stray, text, sizeof text);
                int r = mfl_store_stray_aside(store->dir, stray, to, err);
                if (!r)
                        mfl_store_warn(store, "%s: moved to %s/%s", text, store->dir, to);
                return r;
        case MFL_STRAY_REDONE:
        case MFL_STRAY_FOREIGN:
                break;
        }
        return 0;
}

struct deleted {
        uint32_t n;
        char id[DELETED_AT_ONCE][MFL_JOB_ID_BYTES];
};

static int on_deleted(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        struct deleted *deleted = user;
        if (deleted->n < DELETED_AT_ONCE)
                mfl_strcpy(deleted->id[deleted->n++], MFL_JOB_ID_BYTES, mfl_db_text(row, 0));
        return 0;
}

/* Jobs whose files are gone no longer need a mark. */
static int forget_deleted(struct mfl_store *store, struct mfl_error *err)
{
        struct deleted deleted = {0};
        char path[MFL_STORE_PATH_BYTES];
        int r = mfl_db_query(store->db, on_deleted, &deleted, err, "SELECT job FROM deleted", "");
        if (r || !deleted.n)
                return r;
        r = mfl_store_begin(store, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < deleted.n && !r; i++)
                if (access(mfl_store_path(store, deleted.id[i], "", path), F_OK))
                        r = mfl_db_run(
                                store->db, err, "DELETE FROM deleted WHERE job = ?1", "t", deleted.id[i]);
        return mfl_store_end(store, r, err);
}

int mfl_store_tidy(struct mfl_store *store, const struct mfl_store_survey *survey, struct mfl_error *err)
{
        int r = 0;
        mfl_store_clean_uploads(store);
        for (uint32_t i = 0; i < survey->n && !r; i++)
                r = tidy_one(store, &survey->v[i], err);
        uint32_t n = mfl_store_orphans_count(store->dir);
        if (!r && n && !store->on_repair)
                mfl_store_warn(store,
                        "%s/orphans holds %u folder%s with checkpoints that no row of the database names: "
                        "see docs/admin.md (Orphans), and remove those that nobody needs",
                        store->dir, n, n == 1 ? "" : "s");
        return r ? r : forget_deleted(store, err);
}
