/* SPDX-License-Identifier: Apache-2.0 */
/* A job's rows as a file, for another server's database (move.h). The other side may be anybody: a reader takes the tables and the
 * columns that it knows, and nothing else.
 *
 *     "mflrows1", schema (4 bytes); then tables: 'T', name, number of columns, their names; rows: 'R', values; last: 'E'
 *     name: length (2 bytes), bytes. value: kind (1 byte), then 8 bytes, or length (4 bytes) and bytes. Little-endian. */
#ifndef MFL_SERVER_MOVE_ROWS_H
#define MFL_SERVER_MOVE_ROWS_H

#include "server/store/store_db.h"

int mfl_rows_write(struct mfl_db *db, const char *id, const char *path, struct mfl_error *err);
/* What becomes another value in the new database. */
struct mfl_rows_new {
        const char *id, *owner; /* owner "": as it was */
        int64_t n, now_ms, state;
        uint64_t (*line)(void *user); /* the next number of a log line */
        void *user;
};
/* Within a transaction. MFL_INVALID: no such file, or one of another release. */
int mfl_rows_read(struct mfl_db *db, const char *path, const struct mfl_rows_new *new, struct mfl_error *err);

#endif
