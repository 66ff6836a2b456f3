/* SPDX-License-Identifier: Apache-2.0 */
/* The server's ledger: what jobs with noise have released of each data set, over all jobs, clones, resumes and warm starts, those that are
 * deleted included; held against `privacy_limits` of server.yaml. Blocking; not on the loop. */
#ifndef MFL_SERVER_JOBS_SPENT_H
#define MFL_SERVER_JOBS_SPENT_H

#include "common/job/job.h"
#include "common/privacy/limits.h"
#include "server/store/store.h"

struct mfl_spent_ask {
        struct mfl_store *store;
        const struct mfl_privacy_limits *limits; /* NULL: none */
        const struct mfl_job *spec;
        const char *job; /* "": new */
        /* All rows of the ledger, where the store can't be asked; NULL: it is asked. */
        const struct mfl_store_spents *known;
};

/* Whether the job may have made so many releases, beside those of all other jobs. MFL_INVALID: the data set's limit does not allow it.
 * Data sets without a limit allow everything. */
int mfl_spent_check(const struct mfl_spent_ask *ask, uint64_t releases, struct mfl_error *err);
/* The same for all rounds that the job's file and budget allow, before the first. A job without privacy, of a data set that has a
 * limit, is refused. */
int mfl_spent_check_plan(const struct mfl_spent_ask *ask, struct mfl_error *err);
/* Writes down that the job has made so many. */
int mfl_spent_add(const struct mfl_spent_ask *ask, uint64_t releases, struct mfl_error *err);

#endif
