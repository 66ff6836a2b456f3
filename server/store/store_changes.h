/* SPDX-License-Identifier: Apache-2.0 */
/* What a transaction changes, as bytes that can be applied to another database. Private to server/store/. */
#ifndef MFL_SERVER_STORE_STORE_CHANGES_H
#define MFL_SERVER_STORE_STORE_CHANGES_H

#include "server/store/store_db.h"

struct mfl_changes;
/* Records all changes from now on. */
int mfl_changes_begin(struct mfl_db *db, struct mfl_changes **ret_changes, struct mfl_error *err);
/* Those so far: bytes on SQLite's heap, valid until the end. */
int mfl_changes_get(
        struct mfl_changes *changes, const void **ret_bytes, size_t *ret_n, struct mfl_error *err);
void mfl_changes_end(struct mfl_changes *changes); /* NULL is fine */
/* Writes the whole database, as the open transaction has made it, to a file, durably. (SQLite's backup API refuses a database that its
 * own connection is writing to.) It is in memory meanwhile. */
int mfl_changes_whole(struct mfl_db *db, const char *path, struct mfl_error *err);
/* Within a transaction. MFL_INVALID: rows differ from what they were where the changes were made. */
int mfl_changes_apply(struct mfl_db *db, const void *bytes, size_t n, struct mfl_error *err);

#endif
