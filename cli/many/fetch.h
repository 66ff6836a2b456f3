/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches jobs and prints them side by side: the end of compare and of sweep --watch. */
#ifndef MFL_CLI_MANY_FETCH_H
#define MFL_CLI_MANY_FETCH_H

#include "cli/base/client.h"
#include "cli/many/compare.h"

/* Ids of jobs, each once, in the order in which they were added. */
struct mfl_job_ids {
        char id[MFL_COMPARE_MAX][MFL_JOB_ID_BYTES];
        size_t n;
};

/* Adds the job that ref names, or all jobs whose names match, if it is a pattern. MFL_NOT_FOUND, MFL_CLI_CONFLICT,
 * MFL_CLI_LIMIT: more than MFL_COMPARE_MAX. */
int mfl_job_ids_add(
        struct mfl_job_ids *ids, struct mfl_client *client, const char *ref, struct mfl_error *err);

/* As a table and a plot, or as JSON. */
int mfl_compare_print(struct mfl_client *client, const struct mfl_job_ids *ids, struct mfl_error *err);

#endif
