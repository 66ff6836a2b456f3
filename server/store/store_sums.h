/* SPDX-License-Identifier: Apache-2.0 */
/* A checksum in each row (column `sum`): row_sum(TABLE, all other columns). Pages of a database have no checksum, so
 * one changed letter in a job file would train another model without a sign. Triggers of the connection (TEMP) keep
 * the column right, whatever statement writes; the file has only the number. A new table needs a column `sum INTEGER`
 * and a line in the table of store_sums.c. The schema itself has a checksum, too (meta, "schema_sum"). */
#ifndef MFL_SERVER_STORE_STORE_SUMS_H
#define MFL_SERVER_STORE_STORE_SUMS_H

#include "server/store/store_db.h"

/* Creates the triggers. For the newest schema. */
int mfl_store_sums_watch(struct mfl_db *db, struct mfl_error *err);
/* Computes all sums again, after the schema has changed. */
int mfl_store_sums_seal(struct mfl_db *db, struct mfl_error *err);
int mfl_store_sums_seal_schema(struct mfl_db *db, struct mfl_error *err);

/* Called for one damaged row, or the schema (key ""). A result other than 0 ends the check and is returned. */
struct mfl_store_damaged_row {
        const char *table, *key; /* as text for people: "j-000001, round 12" */
        bool decides; /* decides what is trained, or who may do it: jobs, rounds, tokens, rules; false: audit, log
                         lines */
};
typedef int mfl_store_on_row(void *user, const struct mfl_store_damaged_row *row, struct mfl_error *err);
/* Compares all rows. For schemas with sums. */
int mfl_store_sums_check(struct mfl_db *db, mfl_store_on_row *on_row, void *user, struct mfl_error *err);
/* MFL_STORE_DAMAGED if the job's row is damaged. */
int mfl_store_sums_check_job(struct mfl_db *db, const char *id, struct mfl_error *err);
/* Deletes damaged rows. Rows of jobs stay, with that reason; an unfinished job has then failed. */
int mfl_store_sums_drop_damaged(struct mfl_db *db, struct mfl_error *err);

#endif
