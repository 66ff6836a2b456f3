/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a state directory or a back-up without changing it.
 *   - the database: SQLite's own check of every page and index, references between rows, the schema's number;
 *   - each file that a row names: size and SHA-256.
 * A server may be at work: a file that is gone is no finding when its row has dropped it meanwhile.
 */
#include <stdio.h>
#include <sys/stat.h>

#include "server/store_backup.h"
#include "server/store_internal.h"

#define FINDINGS_OF_DATABASE 20

struct check {
        const char *state_dir;
        struct mfl_db *db;
        mfl_store_on_finding *on_finding;
        void *user;
        struct mfl_store_summary *summary;
};

MFL_PRINTF(2, 3) static void find(struct check *check, const char *fmt, ...)
{
        char text[1200];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        check->summary->findings++;
        check->on_finding(check->user, text);
}

static int on_integrity(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        const char *text = mfl_db_text(row, 0);
        if (strcmp(text, "ok") != 0)
                find(user, "DATABASE: %s", text);
        return 0;
}

static int on_foreign_key(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        find(user, "DATABASE: a row of %s belongs to no job", mfl_db_text(row, 0));
        return 0;
}

/* https://www.sqlite.org/pragma.html#pragma_integrity_check; it does not look at foreign keys. */
static int check_database(struct check *check, struct mfl_error *err)
{
        char sql[64];
        snprintf(sql, sizeof sql, "PRAGMA integrity_check(%d)", FINDINGS_OF_DATABASE);
        int r = mfl_db_query(check->db, on_integrity, check, err, sql, "");
        return r ? r : mfl_db_query(check->db, on_foreign_key, check, err, "PRAGMA foreign_key_check", "");
}

static int on_there(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = true;
        return 0;
}

/* Whether the row still is as it was read. */
static int is_still_named(
        struct check *check, const struct mfl_store_named *named, bool *ret_named, struct mfl_error *err)
{
        *ret_named = false;
        if (!named->round)
                return mfl_db_query(check->db, on_there, ret_named, err,
                        "SELECT 1 FROM jobs WHERE id = ?1 AND has_initial", "t", named->job);
        return mfl_db_query(check->db, on_there, ret_named, err,
                check->summary->schema < MFL_STORE_SCHEMA_FROZEN
                        ? "SELECT 1 FROM rounds WHERE job = ?1 AND round = ?2 AND kept = 1 AND superseded = "
                          "0 "
                          "AND file_sha256 = ?3"
                        : "SELECT 1 FROM rounds WHERE job = ?1 AND round = ?2 AND kept = 1 AND superseded = "
                          "0 "
                          "AND ?3 IN (file_sha256, frozen_sha256)",
                "tib", named->job, (int64_t)named->round, (const void *)named->file.sha256,
                sizeof named->file.sha256);
}

static int check_file(struct check *check, const struct mfl_store_named *named, struct mfl_error *err)
{
        char path[MFL_STORE_PATH_BYTES];
        uint8_t sha256[32];
        uint64_t bytes;
        struct mfl_error why = {{0}};
        int r = mfl_store_sha256_file(
                mfl_store_named_path(check->state_dir, named, path), sha256, &bytes, &why);
        if (r == -ENOMEM)
                return mfl_fail(err, r, "%s", why.text);
        const char *fault = r ? why.text : mfl_store_named_fault(named, bytes, sha256);
        if (!fault) {
                check->summary->files++;
                check->summary->bytes += bytes;
                return 0;
        }
        bool still = false;
        r = is_still_named(check, named, &still, err);
        if (!r && still)
                find(check, "%s: %s", path, fault);
        return r;
}

int mfl_store_check(const char *state_dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err)
{
        struct mfl_store_summary summary = {0};
        struct mfl_store_inventory inventory = {0};
        struct check check = {state_dir, NULL, on_finding, user, &summary};
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db", state_dir);
        struct stat st;
        if (!path)
                return mfl_fail_memory(err, strlen(state_dir), "a file name");
        if (stat(path, &st))
                return errno == ENOENT || errno == ENOTDIR
                               ? mfl_fail(err, MFL_INVALID,
                                         "%s: there is no mfl.db, so it is no state directory", state_dir)
                               : mfl_store_code(mfl_fail_errno(err, "%s", path));
        int r = mfl_db_open_reading(path, &check.db, err);
        if (!r)
                r = mfl_store_inventory_read(check.db, state_dir, &inventory, &summary, err);
        if (!r)
                r = check_database(&check, err);
        for (uint32_t i = 0; i < inventory.n && !r; i++)
                r = check_file(&check, &inventory.v[i], err);
        mfl_store_inventory_deinit(&inventory);
        mfl_db_close(check.db);
        if (!r)
                *ret_summary = summary;
        return r == -EIO ? MFL_STORE_DAMAGED : r;
}
