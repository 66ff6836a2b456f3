/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon says about a job's input (Partition.contract in mfl.proto). The first contract of a job is kept; sites whose
 * scaling differs from it are added by name. */
#ifndef MFL_SERVER_DAEMONS_CONTRACT_TAKE_H
#define MFL_SERVER_DAEMONS_CONTRACT_TAKE_H

#include "server/jobs/job.h"
#include "server/session/session.h"

/* A text that is no contract is dropped with a line in the log. site: a name. */
void mfl_job_contract_take(
        struct mfl_session *session, struct mfl_server_job *job, const char *site, const char *text);

#endif
