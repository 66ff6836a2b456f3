/* SPDX-License-Identifier: Apache-2.0 */
/* How a job's data are divided among its clients, for people who look: told by daemons (Partition in
 * mfl.proto), kept by the store, shown by `mfl show --partition` and the dashboard. Decides nothing.
 */
#ifndef MFL_SERVER_PARTITION_H
#define MFL_SERVER_PARTITION_H

#include "server/server.h"

/* A daemon's word on a job, valid by the wire's rules. Loop thread. What doesn't fit the job (another number
 * of clients, a job that is unknown or over) is dropped with a line in the log; of a population the first
 * word is kept, of a site the newest. */
void mfl_job_partition_take(struct mfl_session *session, const Mfl__Partition *partition);

/* What is known of a job, read from the store: on the disk worker. *ret_partition NULL: nothing yet. Codes of
 * store.h. Freed with mfl_job_partition_free, which takes NULL. */
int mfl_job_partition_read(
        struct mfl_store *store, const char *id, Mfl__Partition **ret_partition, struct mfl_error *err);
void mfl_job_partition_free(Mfl__Partition *partition);

/* Whether the job's clients are the daemons' own data. */
bool mfl_job_partition_is_local(const struct mfl_server_job *job);

#endif
