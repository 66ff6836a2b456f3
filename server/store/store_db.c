/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite behind a few functions, which turn its result codes into the store's. */
#define SQLITE_ENABLE_SESSION
#define SQLITE_ENABLE_PREUPDATE_HOOK
#include "server/store/store_db.h"

#include <limits.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/fs.h"
#include "server/store/store.h"

/* Prepared statements, because triggers make them expensive to prepare. The hash of a text gives a set of places, so that two
 * texts of one set don't displace each other in every round. */
#define STATEMENTS 64
#define PLACES 4 /* of a set */

struct statement {
        sqlite3_stmt *stmt; /* NULL: free */
        uint64_t used;      /* by `prepared` of the database */
};

struct mfl_db {
        sqlite3 *sqlite;
        char *path;
        struct statement statements[STATEMENTS];
        uint64_t prepared; /* how often one was wanted */
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
                return -EIO; /* corrupt, not a database, or a wrong statement */
        }
}

static int fail(struct mfl_db *db, int rc, const char *sql, struct mfl_error *err)
{
        return mfl_fail(err, code_of(rc), "database %s: %s (%d) in \"%.60s\"", db->path,
                sqlite3_errmsg(db->sqlite), sqlite3_extended_errcode(db->sqlite), sql);
}

/* ---- row_sum ---- */

static int sum_value(struct mfl_sha256 *sha, sqlite3_value *value)
{
        struct mfl_error err;
        const int type = sqlite3_value_type(value);
        const void *data = NULL;
        int64_t number = 0;
        double real;
        uint8_t head[9] = {(uint8_t)type};
        if (type == SQLITE_INTEGER) {
                number = sqlite3_value_int64(value);
        } else if (type == SQLITE_FLOAT) {
                real = sqlite3_value_double(value);
                memcpy(&number, &real, sizeof number);
        } else if (type != SQLITE_NULL) {
                data = sqlite3_value_blob(value);
                number = sqlite3_value_bytes(value);
                if (!data && number)
                        return -ENOMEM;
        }
        for (int i = 0; i < 8; i++)
                head[1 + i] = (uint8_t)((uint64_t)number >> 8 * i);
        int r = mfl_sha256_update(sha, head, sizeof head, &err);
        return r || !data ? r : mfl_sha256_update(sha, data, (size_t)number, &err);
}

static void row_sum(sqlite3_context *context, int n, sqlite3_value **values)
{
        struct mfl_sha256 sha = {0};
        struct mfl_error err;
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256_init(&sha, &err);
        for (int i = 0; i < n && !r; i++)
                r = sum_value(&sha, values[i]);
        if (!r)
                r = mfl_sha256_final(&sha, digest, &err);
        mfl_sha256_deinit(&sha);
        if (r)
                sqlite3_result_error_nomem(context);
        else
                sqlite3_result_int64(context, (int64_t)mfl_sha256_number(digest));
}

/* ---- connections ---- */

/* Sets up every connection; sql: what to run after that. */
static int prepare_connection(struct mfl_db *db, const char *sql, struct mfl_error *err)
{
        int rc = sqlite3_create_function_v2(db->sqlite, "row_sum", -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC,
                NULL, row_sum, NULL, NULL, NULL);
        return rc ? fail(db, rc, "row_sum", err) : mfl_db_exec(db, sql, err);
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
                r = prepare_connection(db,
                        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; "
                        "PRAGMA busy_timeout=2000; PRAGMA temp_store=MEMORY",
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
        int r = rc ? fail(db, rc, "open", err) : prepare_connection(db, "PRAGMA busy_timeout=2000", err);
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
        /* The copy's header says WAL, so that reading it would need two more files. */
        if (!r)
                r = mfl_db_exec(&to, "PRAGMA journal_mode=DELETE", err);
        sqlite3_close_v2(to.sqlite);
        if (r)
                unlink(path);
        return r;
}

void mfl_db_close_moves_log(struct mfl_db *db, bool on)
{
        sqlite3_db_config(db->sqlite, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !on, NULL);
}

void mfl_db_close(struct mfl_db *db)
{
        if (!db)
                return;
        for (int i = 0; i < STATEMENTS; i++)
                sqlite3_finalize(db->statements[i].stmt);
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

static uint32_t hash(const char *text)
{
        uint32_t h = 2166136261u;
        for (; *text; text++)
                h = (h ^ (uint8_t)*text) * 16777619u;
        return h;
}

/* The place of this text, or the one that it gets: free, or the longest unused. NULL: a caller further up is still reading the
 * rows of this statement, or of all in the set. */
static struct statement *place_of(struct mfl_db *db, const char *sql)
{
        struct statement *set = &db->statements[hash(sql) % (STATEMENTS / PLACES) * PLACES], *oldest = NULL;
        for (int i = 0; i < PLACES; i++) {
                bool busy = set[i].stmt && sqlite3_stmt_busy(set[i].stmt);
                if (set[i].stmt && !strcmp(sqlite3_sql(set[i].stmt), sql))
                        return busy ? NULL : &set[i];
                if (!busy && (!oldest || set[i].used < oldest->used))
                        oldest = &set[i];
        }
        return oldest;
}

/* ret_kept: the statement stays in the cache; otherwise the caller finalizes it. */
static int prepare(struct mfl_db *db, const char *sql, sqlite3_stmt **ret_stmt, bool *ret_kept)
{
        struct statement *place = place_of(db, sql);
        *ret_kept = place;
        if (place)
                place->used = ++db->prepared;
        if (place && place->stmt && !strcmp(sqlite3_sql(place->stmt), sql)) {
                *ret_stmt = place->stmt;
                return SQLITE_OK;
        }
        int rc = sqlite3_prepare_v3(
                db->sqlite, sql, -1, place ? SQLITE_PREPARE_PERSISTENT : 0, ret_stmt, NULL);
        if (!rc && place) {
                sqlite3_finalize(place->stmt);
                place->stmt = *ret_stmt;
        }
        return rc;
}

static int query(struct mfl_db *db, mfl_db_on_row *on_row, void *user, struct mfl_error *err, const char *sql,
        const char *fmt, va_list ap)
{
        sqlite3_stmt *stmt = NULL;
        bool kept;
        int rc = prepare(db, sql, &stmt, &kept), r = 0;
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
        if (kept && stmt) {
                sqlite3_reset(stmt);
                sqlite3_clear_bindings(stmt);
        } else {
                sqlite3_finalize(stmt);
        }
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

int mfl_db_columns(struct mfl_db_row *row)
{
        return sqlite3_column_count(row->stmt);
}

const char *mfl_db_column(struct mfl_db_row *row, int column)
{
        return sqlite3_column_name(row->stmt, column);
}

struct mfl_db_value mfl_db_value(struct mfl_db_row *row, int column)
{
        struct mfl_db_value value = {.kind = MFL_DB_NULL};
        switch (sqlite3_column_type(row->stmt, column)) {
        case SQLITE_INTEGER:
                value.kind = MFL_DB_INT;
                value.integer = sqlite3_column_int64(row->stmt, column);
                break;
        case SQLITE_FLOAT:
                value.kind = MFL_DB_REAL;
                value.real = sqlite3_column_double(row->stmt, column);
                break;
        case SQLITE_TEXT:
        case SQLITE_BLOB:
                value.kind =
                        sqlite3_column_type(row->stmt, column) == SQLITE_TEXT ? MFL_DB_TEXT : MFL_DB_BLOB;
                value.bytes = sqlite3_column_blob(row->stmt, column);
                value.n = (size_t)sqlite3_column_bytes(row->stmt, column);
                break;
        }
        return value;
}

static int bind_value(sqlite3_stmt *stmt, int i, const struct mfl_db_value *v)
{
        const char *bytes = v->bytes ? v->bytes : "";
        switch (v->kind) {
        case MFL_DB_INT:
                return sqlite3_bind_int64(stmt, i, v->integer);
        case MFL_DB_REAL:
                return sqlite3_bind_double(stmt, i, v->real);
        case MFL_DB_TEXT:
                return sqlite3_bind_text64(stmt, i, bytes, v->n, SQLITE_TRANSIENT, SQLITE_UTF8);
        case MFL_DB_BLOB:
                return sqlite3_bind_blob64(stmt, i, bytes, v->n, SQLITE_TRANSIENT);
        default:
                return sqlite3_bind_null(stmt, i);
        }
}

int mfl_db_run_values(
        struct mfl_db *db, const char *sql, const struct mfl_db_value *v, int n, struct mfl_error *err)
{
        sqlite3_stmt *stmt = NULL;
        int rc = sqlite3_prepare_v2(db->sqlite, sql, -1, &stmt, NULL);
        for (int i = 0; i < n && !rc; i++)
                rc = bind_value(stmt, i + 1, &v[i]);
        if (!rc)
                rc = sqlite3_step(stmt);
        int r = rc && rc != SQLITE_DONE && rc != SQLITE_ROW ? fail(db, rc, sql, err) : 0;
        sqlite3_finalize(stmt);
        const int kind = rc & 0xff;
        return kind == SQLITE_CONSTRAINT || kind == SQLITE_MISMATCH || kind == SQLITE_TOOBIG ? MFL_INVALID
                                                                                             : r;
}

int64_t mfl_db_last_id(const struct mfl_db *db)
{
        return sqlite3_last_insert_rowid(db->sqlite);
}

bool mfl_db_is_null(struct mfl_db_row *row, int column)
{
        return sqlite3_column_type(row->stmt, column) == SQLITE_NULL;
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
        /* After some failures SQLite has rolled back by itself. */
        if (!sqlite3_get_autocommit(db->sqlite))
                sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
}

/* ---- changes ---- */

struct mfl_changes {
        sqlite3_session *session;
        void *bytes;
};

static int fail_changes(int rc, struct mfl_error *err)
{
        if (rc == SQLITE_NOMEM)
                return mfl_fail_memory(err, 1 << 16, "the changes of a transaction");
        return mfl_fail(err, -EIO, "the changes of a transaction: %s", sqlite3_errstr(rc));
}

int mfl_changes_begin(struct mfl_db *db, struct mfl_changes **ret_changes, struct mfl_error *err)
{
        struct mfl_changes *changes = mfl_calloc(1, sizeof *changes);
        if (!changes)
                return mfl_fail_memory(err, sizeof *changes, "the changes of a transaction");
        int rc = sqlite3session_create(db->sqlite, "main", &changes->session);
        if (!rc)
                rc = sqlite3session_attach(changes->session, NULL);
        if (rc) {
                mfl_changes_end(changes);
                return fail_changes(rc, err);
        }
        *ret_changes = changes;
        return 0;
}

int mfl_changes_get(struct mfl_changes *changes, const void **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        int n = 0;
        sqlite3_free(changes->bytes);
        changes->bytes = NULL;
        int rc = sqlite3session_changeset(changes->session, &n, &changes->bytes);
        if (rc)
                return fail_changes(rc, err);
        *ret_bytes = changes->bytes;
        *ret_n = (size_t)n;
        return 0;
}

void mfl_changes_end(struct mfl_changes *changes)
{
        if (!changes)
                return;
        if (changes->session)
                sqlite3session_delete(changes->session);
        sqlite3_free(changes->bytes);
        free(changes);
}

/* The header's bytes 18 and 19 say 2 for a database with a log beside it, and 1 for one that is a single file. */
#define HEADER_BYTES 100
#define VERSION_AT 18

int mfl_changes_whole(struct mfl_db *db, const char *path, uint8_t ret_sha256[32], uint64_t *ret_bytes,
        struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        sqlite3_int64 n = 0;
        unsigned char *bytes = sqlite3_serialize(db->sqlite, "main", &n, 0);
        if (!bytes || n < HEADER_BYTES) {
                sqlite3_free(bytes);
                return mfl_fail_memory(err, (size_t)n, "a copy of the database");
        }
        bytes[VERSION_AT] = bytes[VERSION_AT + 1] = 1;
        int r = mfl_fs_begin(&file, path, err);
        if (!r)
                r = mfl_fs_write(&file, bytes, (size_t)n, err);
        if (!r)
                r = mfl_fs_commit(&file, err);
        mfl_fs_abort(&file);
        if (!r)
                r = mfl_sha256(bytes, (size_t)n, ret_sha256, err);
        *ret_bytes = (uint64_t)n;
        sqlite3_free(bytes);
        return mfl_store_code(r);
}

struct conflict {
        char table[64];
        int kind;
};

/* A row that a cascade has deleted before its own turn is no conflict. */
static int on_conflict(void *user, int kind, sqlite3_changeset_iter *iter)
{
        struct conflict *conflict = user;
        const char *table = "?";
        int columns, operation = 0, indirect;
        if (kind != SQLITE_CHANGESET_FOREIGN_KEY)
                sqlite3changeset_op(iter, &table, &columns, &operation, &indirect);
        if (kind == SQLITE_CHANGESET_NOTFOUND && operation == SQLITE_DELETE)
                return SQLITE_CHANGESET_OMIT;
        mfl_strcpy(conflict->table, sizeof conflict->table, table);
        conflict->kind = kind;
        return SQLITE_CHANGESET_ABORT;
}

int mfl_changes_apply(struct mfl_db *db, const void *bytes, size_t n, struct mfl_error *err)
{
        struct conflict conflict = {""};
        if (n > INT_MAX)
                return mfl_fail(err, MFL_INVALID, "changes of %zu bytes", n);
        int rc = sqlite3changeset_apply(
                db->sqlite, (int)n, (void *)(uintptr_t)bytes, NULL, on_conflict, &conflict);
        if (rc == SQLITE_ABORT)
                return mfl_fail(err, MFL_INVALID,
                        "a row of the table %s is not as it was for the leader (conflict %d)", conflict.table,
                        conflict.kind);
        if (rc == SQLITE_FULL || rc == SQLITE_IOERR)
                return mfl_fail(err, rc == SQLITE_FULL ? MFL_STORE_FULL : MFL_STORE_AGAIN,
                        "apply changes: %s", sqlite3_errstr(rc));
        if (rc == SQLITE_CORRUPT || rc == SQLITE_SCHEMA)
                return mfl_fail(
                        err, MFL_INVALID, "changes that do not fit this database: %s", sqlite3_errstr(rc));
        return rc ? fail_changes(rc, err) : 0;
}
