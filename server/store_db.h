/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that knows SQLite: statements with bound arguments, rows by callback, transactions. Private
 * to server/store*. One thread at a time. Codes are the store's (store.h, Errors).
 *
 * Arguments follow a format of one letter each: i (int64_t), t (const char *), d (double; NaN is stored as
 * NULL), b (const void *, size_t). Narrower integers must be cast by the caller.
 */
#ifndef MFL_SERVER_STORE_DB_H
#define MFL_SERVER_STORE_DB_H

#include "common/base.h"

struct mfl_db;
struct mfl_db_row;

int mfl_db_open(const char *path, struct mfl_db **ret_db, struct mfl_error *err);
/* An existing database, for reading only; a server may have it open. */
int mfl_db_open_reading(const char *path, struct mfl_db **ret_db, struct mfl_error *err);
void mfl_db_close(struct mfl_db *db);
/* Writes the whole database as it is now, or as the open transaction sees it, to a file that must not be
 * there yet, by SQLite's backup API: https://www.sqlite.org/backup.html. One file without a log beside it;
 * not synced. Others may write to the database meanwhile. On failure the file is removed. */
int mfl_db_save(struct mfl_db *db, const char *path, struct mfl_error *err);

/* Runs statements without results and arguments. */
int mfl_db_exec(struct mfl_db *db, const char *sql, struct mfl_error *err);
/* One statement. */
int mfl_db_run(struct mfl_db *db, struct mfl_error *err, const char *sql, const char *fmt, ...);
/* Calls on_row for each row; a result other than 0 ends it and is returned. */
typedef int mfl_db_on_row(struct mfl_db_row *row, void *user, struct mfl_error *err);
int mfl_db_query(struct mfl_db *db, mfl_db_on_row *on_row, void *user, struct mfl_error *err, const char *sql,
        const char *fmt, ...);
int64_t mfl_db_last_id(const struct mfl_db *db);

/* Columns from 0. text: valid during the callback, never NULL. blob: exactly `bytes`, zeros when it has
 * another size. double: NaN for NULL. */
int64_t mfl_db_int(struct mfl_db_row *row, int column);
double mfl_db_double(struct mfl_db_row *row, int column);
const char *mfl_db_text(struct mfl_db_row *row, int column);
size_t mfl_db_bytes(struct mfl_db_row *row, int column); /* of a blob */
void mfl_db_blob(struct mfl_db_row *row, int column, void *ret_blob, size_t bytes);

/* Commit passes the fault points "before-db-commit" and "after-db-commit". When it fails it has rolled back,
 * unless the failure was ordered after it. */
int mfl_db_begin(struct mfl_db *db, struct mfl_error *err);
int mfl_db_commit(struct mfl_db *db, struct mfl_error *err);
void mfl_db_rollback(struct mfl_db *db);

/* The store's code for -errno of a file operation: the text stays. */
int mfl_store_code(int r);

#endif
