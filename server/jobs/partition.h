/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided among its clients, for people who look: read from the store, where
 * server/daemons/partition_take.h puts what daemons say (Partition in mfl.proto). */
#ifndef MFL_SERVER_JOBS_PARTITION_H
#define MFL_SERVER_JOBS_PARTITION_H

#include "proto/wire.h"
#include "server/jobs/job.h"

/* What is known of a job, read from the store on the disk worker. *ret_partition NULL: nothing yet. Codes of
 * store.h. Free it with mfl_job_partition_free, which accepts NULL. */
int mfl_job_partition_read(
        struct mfl_store *store, const char *id, Mfl__Partition **ret_partition, struct mfl_error *err);
void mfl_job_partition_free(Mfl__Partition *partition);

/* Whether the job's clients are the daemons' own data. */
bool mfl_job_partition_is_local(const struct mfl_server_job *job);

#endif
