/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a moved job's rows, which anybody may have made, are such as mfl-server writes: types, ranges, names of files, and a ledger's
 * row that fits the job's file. What is read back later trusts its own rows. */
#ifndef MFL_SERVER_MOVE_VET_H
#define MFL_SERVER_MOVE_VET_H

#include "common/job/job.h"
#include "server/store/store_db.h"

/* Within the transaction that has added them. MFL_INVALID names the table. */
int mfl_rows_vet(struct mfl_db *db, const char *id, const struct mfl_job *spec, struct mfl_error *err);

#endif
