/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon says about how a job's data are divided (Partition in mfl.proto): handed to the core, which
 * holds daemons to it, and kept in the store for people who look (server/jobs/partition.h). */
#ifndef MFL_SERVER_DAEMONS_PARTITION_TAKE_H
#define MFL_SERVER_DAEMONS_PARTITION_TAKE_H

#include "server/jobs/partition.h"
#include "server/session/session.h"

/* Valid by the wire's rules. What does not fit the job (another number of clients, or a job that is unknown
 * or over) is dropped with a line in the log. For a population, the first statement that the core does not
 * contradict is kept; for a site, the newest. */
void mfl_job_partition_take(struct mfl_jobs *jobs, struct mfl_session *session, const char *daemon,
        const char *site, const Mfl__Partition *partition);
/* The daemon was found to lie: the next statement about the job replaces its statement. */
void mfl_job_partition_distrust(struct mfl_server_job *job, const char *daemon);

#endif
