/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite behind a few functions; its result codes become the store's. */
#include "server/store_db.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#include "common/fs.h"
#include "server/store.h"

struct mfl_db {
        sqlite3 *sqlite;
        char *path;
};
struct mfl_db_row {
        sqlite3_stmt *stmt;
};

int mfl_store_code(int r)
{
        if (r >= 0 || r == -ENOMEM)
                return r;
        return r == -ENOSPC || r == -EDQUOT ? MFL_STORE_FULL : MFL_STORE_AGAIN;
}

/* Result codes: https://www.sqlite.org/rescode.html. */
static int code_of(int rc)
{
        if (rc == SQLITE_IOERR_NOMEM)
                return -ENOMEM;
        switch (rc & 0xff) {
        case SQLITE_FULL:
                return MFL_STORE_FULL;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
        case SQLITE_IOERR:
        case SQLITE_CANTOPEN:
        case SQLITE_READONLY:
        case SQLITE_PROTOCOL:
                return MFL_STORE_AGAIN;
        default:
                return -EIO; /* corrupt, not a database, or a statement that cannot be right */
        }
}

static int fail(struct mfl_db *db, int rc, const char *sql, struct mfl_error *err)
{
        return mfl_fail(err, code_of(rc), "database %s: %s (%d) in \"%.60s\"", db->path,
                sqlite3_errmsg(db->sqlite), sqlite3_extended_errcode(db->sqlite), sql);
}

int mfl_db_open(const char *path, struct mfl_db **ret_db, struct mfl_error *err)
{
        struct mfl_db *db = mfl_calloc(1, sizeof *db);
        if (!db || !(db->path = mfl_strdup(path))) {
                free(db);
                return mfl_fail_memory(err, sizeof *db, "the database");
        }
        int rc = sqlite3_open_v2(
                path, &db->sqlite, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
        int r;
        if (rc)
                r = fail(db, rc, "open", err);
        else
                r = mfl_db_exec(db,
                        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; "
                        "PRAGMA busy_timeout=2000",
                        err);
        if (r) {
                mfl_db_close(db);
                return r;
        }
        *ret_db = db;
        return 0;
}

int mfl_db_open_reading(const char *path, struct mfl_db **ret_db, struct mfl_error *err)
{
        struct mfl_db *db = mfl_calloc(1, sizeof *db);
        if (!db || !(db->path = mfl_strdup(path))) {
                free(db);
                return mfl_fail_memory(err, sizeof *db, "the database");
        }
        int rc = sqlite3_open_v2(path, &db->sqlite, SQLITE_OPEN_READONLY | SQLITE_OPEN_FULLMUTEX, NULL);
        int r = rc ? fail(db, rc, "open", err) : mfl_db_exec(db, "PRAGMA busy_timeout=2000", err);
        if (r) {
                mfl_db_close(db);
                return r;
        }
        *ret_db = db;
        return 0;
}

static int copy_pages(struct mfl_db *db, struct mfl_db *to, struct mfl_error *err)
{
        sqlite3_backup *backup = sqlite3_backup_init(to->sqlite, "main", db->sqlite, "main");
        if (!backup)
                return fail(to, sqlite3_errcode(to->sqlite), "backup", err);
        int rc = sqlite3_backup_step(backup, -1);
        int rc_end = sqlite3_backup_finish(backup);
        if (rc == SQLITE_DONE)
                return rc_end ? fail(to, rc_end, "backup", err) : 0;
        return mfl_fail(
                err, code_of(rc), "database %s: copy to %s: %s", db->path, to->path, sqlite3_errstr(rc));
}

int mfl_db_save(struct mfl_db *db, const char *path, struct mfl_error *err)
{
        struct mfl_db to = {.path = (char *)(uintptr_t)path};
        int rc = sqlite3_open_v2(path, &to.sqlite,
                SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_EXCLUSIVE | SQLITE_OPEN_FULLMUTEX,
                NULL);
        int r = rc ? fail(&to, rc, "create", err) : copy_pages(db, &to, err);
        /* The copy says WAL in its header, and would need two more files to be read. */
        if (!r)
                r = mfl_db_exec(&to, "PRAGMA journal_mode=DELETE", err);
        sqlite3_close_v2(to.sqlite);
        if (r)
                unlink(path);
        return r;
}

void mfl_db_close(struct mfl_db *db)
{
        if (!db)
                return;
        sqlite3_close_v2(db->sqlite);
        free(db->path);
        free(db);
}

int mfl_db_exec(struct mfl_db *db, const char *sql, struct mfl_error *err)
{
        int rc = sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL);
        return rc ? fail(db, rc, sql, err) : 0;
}

static int bind(sqlite3_stmt *stmt, const char *fmt, va_list ap)
{
        int rc = SQLITE_OK;
        for (int i = 1; *fmt && !rc; i++, fmt++) {
                switch (*fmt) {
                case 'i':
                        rc = sqlite3_bind_int64(stmt, i, va_arg(ap, int64_t));
                        break;
                case 't':
                        rc = sqlite3_bind_text(stmt, i, va_arg(ap, const char *), -1, SQLITE_TRANSIENT);
                        break;
                case 'd':
                        rc = sqlite3_bind_double(stmt, i, va_arg(ap, double));
                        break;
                case 'b': {
                        const void *blob = va_arg(ap, const void *);
                        size_t bytes = va_arg(ap, size_t);
                        rc = sqlite3_bind_blob64(stmt, i, blob, bytes, SQLITE_TRANSIENT);
                        break;
                }
                default:
                        mfl_assert(!"a known letter");
                }
        }
        return rc;
}

static int query(struct mfl_db *db, mfl_db_on_row *on_row, void *user, struct mfl_error *err, const char *sql,
        const char *fmt, va_list ap)
{
        sqlite3_stmt *stmt = NULL;
        int rc = sqlite3_prepare_v2(db->sqlite, sql, -1, &stmt, NULL), r = 0;
        if (!rc)
                rc = bind(stmt, fmt, ap);
        while (!rc && !r) {
                rc = sqlite3_step(stmt);
                if (rc != SQLITE_ROW)
                        break;
                rc = SQLITE_OK;
                struct mfl_db_row row = {stmt};
                if (on_row)
                        r = on_row(&row, user, err);
        }
        if (rc && rc != SQLITE_DONE)
                r = fail(db, rc, sql, err);
        sqlite3_finalize(stmt);
        return r;
}

int mfl_db_run(struct mfl_db *db, struct mfl_error *err, const char *sql, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int r = query(db, NULL, NULL, err, sql, fmt, ap);
        va_end(ap);
        return r;
}

int mfl_db_query(struct mfl_db *db, mfl_db_on_row *on_row, void *user, struct mfl_error *err, const char *sql,
        const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int r = query(db, on_row, user, err, sql, fmt, ap);
        va_end(ap);
        return r;
}

int64_t mfl_db_last_id(const struct mfl_db *db)
{
        return sqlite3_last_insert_rowid(db->sqlite);
}

int64_t mfl_db_int(struct mfl_db_row *row, int column)
{
        return sqlite3_column_int64(row->stmt, column);
}

double mfl_db_double(struct mfl_db_row *row, int column)
{
        if (sqlite3_column_type(row->stmt, column) == SQLITE_NULL)
                return (double)NAN;
        return sqlite3_column_double(row->stmt, column);
}

const char *mfl_db_text(struct mfl_db_row *row, int column)
{
        const unsigned char *text = sqlite3_column_text(row->stmt, column);
        return text ? (const char *)text : "";
}

size_t mfl_db_bytes(struct mfl_db_row *row, int column)
{
        return (size_t)sqlite3_column_bytes(row->stmt, column);
}

void mfl_db_blob(struct mfl_db_row *row, int column, void *ret_blob, size_t bytes)
{
        const void *blob = sqlite3_column_blob(row->stmt, column);
        if (blob && (size_t)sqlite3_column_bytes(row->stmt, column) == bytes)
                memcpy(ret_blob, blob, bytes);
        else
                memset(ret_blob, 0, bytes);
}

int mfl_db_begin(struct mfl_db *db, struct mfl_error *err)
{
        return mfl_db_exec(db, "BEGIN IMMEDIATE", err);
}

int mfl_db_commit(struct mfl_db *db, struct mfl_error *err)
{
        int r = mfl_fs_fault("before-db-commit", db->path);
        if (r)
                r = mfl_fail(err, mfl_store_code(r), "database %s: commit: %s", db->path, strerror(-r));
        else
                r = mfl_db_exec(db, "COMMIT", err);
        if (r) {
                mfl_db_rollback(db);
                return r;
        }
        r = mfl_fs_fault("after-db-commit", db->path);
        return r ? mfl_fail(err, mfl_store_code(r), "database %s: commit: %s", db->path, strerror(-r)) : 0;
}

void mfl_db_rollback(struct mfl_db *db)
{
        /* Some failures have rolled back by themselves. */
        if (!sqlite3_get_autocommit(db->sqlite))
                sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
}
