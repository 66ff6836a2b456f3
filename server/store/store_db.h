/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that knows SQLite: statements with bound arguments, rows by callback, transactions. Private
 * to server/store/. One thread at a time. Codes are the store's (store.h, Errors).
 *
 * Arguments follow a format of one letter each: i (int64_t), t (const char *), d (double; NaN is stored as
 * NULL), b (const void *, size_t). Narrower integers must be cast by the caller.
 */
#ifndef MFL_SERVER_STORE_STORE_DB_H
#define MFL_SERVER_STORE_STORE_DB_H

#include "common/base/base.h"

struct mfl_db;
struct mfl_db_row;

int mfl_db_open(const char *path, struct mfl_db **ret_db, struct mfl_error *err);
/* Whether closing the last connection may move the log (mfl.db-wal) into the database and remove it (the default).
 * False: both files stay as they are. */
void mfl_db_close_moves_log(struct mfl_db *db, bool on);
/* An existing database, for reading only; a server may have it open. */
int mfl_db_open_reading(const char *path, struct mfl_db **ret_db, struct mfl_error *err);
void mfl_db_close(struct mfl_db *db);
/* Writes the whole database as it is now, or as the open transaction sees it, to a new file, with SQLite's backup
 * API: https://www.sqlite.org/backup.html. The result is one file without a log, and is not synced. Others may write
 * to the database meanwhile. On failure the file is removed. */
int mfl_db_save(struct mfl_db *db, const char *path, struct mfl_error *err);

/* Statements may call row_sum(...) with any arguments: a 64-bit checksum of their types and values, the first
 * bytes of a SHA-256 (store_sums.h). */

/* Runs statements without results and arguments. */
int mfl_db_exec(struct mfl_db *db, const char *sql, struct mfl_error *err);
/* One statement. */
int mfl_db_run(struct mfl_db *db, struct mfl_error *err, const char *sql, const char *fmt, ...);
/* Calls on_row for each row; stops at a result other than 0 and returns it. */
typedef int mfl_db_on_row(struct mfl_db_row *row, void *user, struct mfl_error *err);
int mfl_db_query(struct mfl_db *db, mfl_db_on_row *on_row, void *user, struct mfl_error *err, const char *sql,
        const char *fmt, ...);
int64_t mfl_db_last_id(const struct mfl_db *db);

/* Columns from 0. text: valid during the callback, never NULL. blob: exactly `bytes`, zeros when it has
 * another size. double: NaN for NULL. */
int64_t mfl_db_int(struct mfl_db_row *row, int column);
bool mfl_db_is_null(struct mfl_db_row *row, int column);
double mfl_db_double(struct mfl_db_row *row, int column);
const char *mfl_db_text(struct mfl_db_row *row, int column);
size_t mfl_db_bytes(struct mfl_db_row *row, int column); /* of a blob */
void mfl_db_blob(struct mfl_db_row *row, int column, void *ret_blob, size_t bytes);

/* A row whose columns are not known beforehand. bytes of a text or a blob are valid during the callback. */
struct mfl_db_value {
        enum mfl_db_kind {
                MFL_DB_NULL,
                MFL_DB_INT,
                MFL_DB_REAL,
                MFL_DB_TEXT,
                MFL_DB_BLOB,
                MFL_DB_KINDS_
        } kind;
        int64_t integer;
        double real;
        const void *bytes;
        size_t n;
};
int mfl_db_columns(struct mfl_db_row *row);
const char *mfl_db_column(struct mfl_db_row *row, int column); /* its name */
struct mfl_db_value mfl_db_value(struct mfl_db_row *row, int column);
/* One statement, with ?1, ?2, ... from v. MFL_INVALID: the table does not take such a row. */
int mfl_db_run_values(
        struct mfl_db *db, const char *sql, const struct mfl_db_value *v, int n, struct mfl_error *err);

/* Commit passes the fault points "before-db-commit" and "after-db-commit". A commit that fails has rolled back,
 * unless the failure was injected after it. */
int mfl_db_begin(struct mfl_db *db, struct mfl_error *err);
int mfl_db_commit(struct mfl_db *db, struct mfl_error *err);
void mfl_db_rollback(struct mfl_db *db);

/* The store's code for the -errno of a file operation; the error's text stays as it is. */
int mfl_store_code(int r);

/* What a transaction changes, as bytes that can be applied to another database (SQLite's session extension,
 * https://www.sqlite.org/sessionintro.html). Every table has a primary key, so every row is recorded. */
struct mfl_changes;
/* Records all changes from now on. */
int mfl_changes_begin(struct mfl_db *db, struct mfl_changes **ret_changes, struct mfl_error *err);
/* Those so far: bytes on SQLite's heap, valid until the end. */
int mfl_changes_get(
        struct mfl_changes *changes, const void **ret_bytes, size_t *ret_n, struct mfl_error *err);
void mfl_changes_end(struct mfl_changes *changes); /* NULL is fine */
/* Writes the whole database, as the open transaction has made it, to a file, durably. (SQLite's backup API refuses a database that its
 * own connection is writing to.) It is in memory meanwhile. */
int mfl_changes_whole(struct mfl_db *db, const char *path, uint8_t ret_sha256[32], uint64_t *ret_bytes,
        struct mfl_error *err);
/* Within a transaction. MFL_INVALID: rows differ from what they were where the changes were made. */
int mfl_changes_apply(struct mfl_db *db, const void *bytes, size_t n, struct mfl_error *err);

#endif
