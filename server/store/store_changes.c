/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of transactions, by SQLite's session extension: https://www.sqlite.org/sessionintro.html. Every table has a primary key,
 * so every row is recorded. */
#define SQLITE_ENABLE_SESSION
#define SQLITE_ENABLE_PREUPDATE_HOOK
#include "server/store/store_changes.h"

#include <limits.h>
#include <sqlite3.h>

#include "common/base/fs.h"
#include "server/store/store.h"

struct mfl_changes {
        sqlite3_session *session;
        void *bytes;
};

static int fail(int rc, struct mfl_error *err)
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
        int rc = sqlite3session_create(mfl_db_sqlite(db), "main", &changes->session);
        if (!rc)
                rc = sqlite3session_attach(changes->session, NULL);
        if (rc) {
                mfl_changes_end(changes);
                return fail(rc, err);
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
                return fail(rc, err);
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

int mfl_changes_whole(struct mfl_db *db, const char *path, struct mfl_error *err)
{
        struct mfl_fs_file file = {.fd = -1};
        sqlite3_int64 n = 0;
        unsigned char *bytes = sqlite3_serialize(mfl_db_sqlite(db), "main", &n, 0);
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
                mfl_db_sqlite(db), (int)n, (void *)(uintptr_t)bytes, NULL, on_conflict, &conflict);
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
        return rc ? fail(rc, err) : 0;
}
