/* SPDX-License-Identifier: Apache-2.0 */
/* Verifies a state directory or a back-up without changing it.
 *   - the log of the database and the number of its transactions: whether any are lost (store_evidence.h);
 *   - the database: SQLite's own check of every page and index, references between rows, the schema's number,
 *     the checksums of rows and schema;
 *   - each file that a row names: size and SHA-256;
 *   - each file that no row names.
 * A server may be running: a missing file is not a finding if its row has dropped it meanwhile, nor is a file whose
 * row has appeared meanwhile, and a log that looks broken is read again.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "server/store/store_backup.h"
#include "server/store/store_internal.h"
#include "server/store/store_sums.h"

#define FINDINGS_OF_DATABASE 20
#define LIVE_TRIES 20

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

/* SQLite silently opens a file of a later format for reading only:
 * https://www.sqlite.org/fileformat2.html#file_format_version_numbers. */
static int check_header(struct check *check, const char *path, struct mfl_error *err)
{
        uint8_t h[20];
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return mfl_store_code(mfl_fail_errno(err, "open %s", path));
        bool whole = pread(fd, h, sizeof h, 0) == sizeof h;
        close(fd);
        if (whole && (h[18] > 2 || h[19] > 2))
                find(check, "DATABASE: the header of mfl.db is damaged: it marks the file as read-only");
        return 0;
}

static int on_there(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(bool *)user = true;
        return 0;
}

/* Whether the row is still as it was when read. */
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
                          "0 AND file_sha256 = ?3"
                        : "SELECT 1 FROM rounds WHERE job = ?1 AND round = ?2 AND kept = 1 AND superseded = "
                          "0 AND ?3 IN (file_sha256, frozen_sha256)",
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

/* ---- missing files, and files that no row names ---- */

static bool is_running(const char *state_dir)
{
        char path[MFL_STORE_PATH_BYTES];
        snprintf(path, sizeof path, "%.3900s/lock", state_dir);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        bool running = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
        if (fd >= 0)
                close(fd);
        return running;
}

int mfl_store_evidence_read_live(const char *state_dir, bool *ret_running,
        struct mfl_store_evidence *ret_evidence, struct mfl_error *err)
{
        int r = 0;
        *ret_running = is_running(state_dir);
        for (int i = 0; i < LIVE_TRIES; i++) {
                r = mfl_store_evidence_read(state_dir, ret_evidence, err);
                const struct mfl_wal_report *wal = &ret_evidence->wal;
                if (r || !*ret_running || (!wal->bad_header && !wal->broken_frame))
                        break;
                nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        }
        return r;
}

struct rows {
        mfl_store_on_finding *on_finding;
        void *user;
        uint32_t n;
};

static int on_damaged(void *user, const struct mfl_store_damaged_row *row, struct mfl_error *err)
{
        struct rows *rows = user;
        char text[300];
        if (rows->n++ < FINDINGS_OF_DATABASE) {
                mfl_snprintf(text, sizeof text, "DATABASE: a row was changed on the disk: %s%s%s", row->table,
                        *row->key ? ": " : "", row->key);
                rows->on_finding(rows->user, text);
        }
        return 0;
}

static int on_commits(struct mfl_db_row *row, void *user, struct mfl_error *err)
{
        *(int64_t *)user = mfl_db_int(row, 0);
        return 0;
}

int mfl_store_check_rows(struct mfl_db *db, uint32_t schema, const struct mfl_store_evidence *evidence,
        mfl_store_on_finding *on_finding, void *user, uint32_t *ret_n, struct mfl_error *err)
{
        struct rows rows = {on_finding, user, 0};
        char text[400], line[420];
        int64_t commits = 0;
        int r = 0;
        if (schema >= MFL_STORE_SCHEMA_SUMS)
                r = mfl_db_query(
                        db, on_commits, &commits, err, "SELECT value FROM meta WHERE key = 'commits'", "");
        if (!r && mfl_store_evidence_judge(evidence, schema, (uint64_t)commits, text, sizeof text)) {
                snprintf(line, sizeof line, "DATABASE: %s", text);
                on_finding(user, line);
                rows.n++;
        }
        if (!r && evidence->count.there && !evidence->count.good) {
                on_finding(user, "the file `commits` is damaged: the next start creates it again");
                rows.n++;
        }
        if (!r && schema >= MFL_STORE_SCHEMA_SUMS)
                r = mfl_store_sums_check(db, on_damaged, &rows, err);
        *ret_n = rows.n;
        return r;
}

static bool has_stray(const struct mfl_store_survey *survey, const struct mfl_store_stray *stray)
{
        for (uint32_t i = 0; i < survey->n; i++)
                if (survey->v[i].kind >= MFL_STRAY_ORPHAN && !strcmp(survey->v[i].job, stray->job) &&
                        !strcmp(survey->v[i].file, stray->file))
                        return true;
        return false;
}

/* A second look: whatever a running server created between the reading of rows and files is not found again. */
static int check_strays(struct check *check, bool running, struct mfl_error *err)
{
        struct mfl_store_survey survey = {0}, again = {0};
        const int64_t schema = check->summary->schema;
        char text[640];
        int r = mfl_store_survey_read(check->db, schema, check->state_dir, &survey, err);
        if (!r && running && survey.n_orphans)
                r = mfl_store_survey_read(check->db, schema, check->state_dir, &again, err);
        for (uint32_t i = 0; i < survey.n && !r; i++) {
                const struct mfl_store_stray *stray = &survey.v[i];
                if (stray->kind >= MFL_STRAY_ORPHAN && (!running || has_stray(&again, stray)))
                        find(check, "ORPHAN: %s", mfl_store_stray_text(stray, text, sizeof text));
        }
        mfl_store_survey_deinit(&survey);
        mfl_store_survey_deinit(&again);
        return r;
}

static int check_all(
        struct check *check, const struct mfl_store_evidence *evidence, bool running, struct mfl_error *err)
{
        struct mfl_store_inventory inventory = {0};
        uint32_t n = 0;
        int r = mfl_store_inventory_read(check->db, check->state_dir, &inventory, check->summary, err);
        if (!r)
                r = check_database(check, err);
        if (!r)
                r = mfl_store_check_rows(
                        check->db, check->summary->schema, evidence, check->on_finding, check->user, &n, err);
        check->summary->findings += n;
        for (uint32_t i = 0; i < inventory.n && !r; i++)
                r = check_file(check, &inventory.v[i], err);
        if (!r)
                r = check_strays(check, running, err);
        mfl_store_inventory_deinit(&inventory);
        return r;
}

int mfl_store_check(const char *state_dir, mfl_store_on_finding *on_finding, void *user,
        struct mfl_store_summary *ret_summary, struct mfl_error *err)
{
        struct mfl_store_summary summary = {0};
        struct mfl_store_evidence evidence;
        struct check check = {state_dir, NULL, on_finding, user, &summary};
        MFL_CLEANUP_FREE char *path = mfl_asprintf("%s/mfl.db", state_dir);
        struct stat st;
        bool running;
        if (!path)
                return mfl_fail_memory(err, strlen(state_dir), "a file name");
        if (stat(path, &st))
                return errno == ENOENT || errno == ENOTDIR
                               ? mfl_fail(err, MFL_INVALID,
                                         "%s: there is no mfl.db, so it is no state directory", state_dir)
                               : mfl_store_code(mfl_fail_errno(err, "%s", path));
        int r = mfl_store_evidence_read_live(state_dir, &running, &evidence, err);
        if (!r)
                r = mfl_db_open_reading(path, &check.db, err);
        if (!r)
                r = check_all(&check, &evidence, running, err);
        if (!r)
                r = check_header(&check, path, err);
        mfl_db_close(check.db);
        summary.orphans = mfl_store_orphans_count(state_dir);
        if (!r)
                *ret_summary = summary;
        return r == -EIO ? MFL_STORE_DAMAGED : r;
}
