/* SPDX-License-Identifier: Apache-2.0 */
/* A job's teams, as a message of mfl.proto. */
#ifndef MFL_SERVER_VIEWS_TEAMS_VIEW_H
#define MFL_SERVER_VIEWS_TEAMS_VIEW_H

#include "proto/wire.h"
#include "server/jobs/job.h"

/* One block that the caller frees, with names that live as long as no event comes. NULL: out of memory. */
struct mfl_teams;
struct mfl_teams *mfl_teams_new(const struct mfl_server_job *job);
/* NULL: the job has no `parallel`. */
Mfl__JobTeams *mfl_teams_wire(struct mfl_teams *teams);

#endif
