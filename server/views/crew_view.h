/* SPDX-License-Identifier: Apache-2.0 */
/* Who works for a job, as a message of mfl.proto. */
#ifndef MFL_SERVER_VIEWS_CREW_VIEW_H
#define MFL_SERVER_VIEWS_CREW_VIEW_H

#include "proto/wire.h"
#include "server/jobs/job.h"
#include "server/session/session.h"

/* The daemons that work for a job, sorted by name, as one block that the caller frees. NULL: out of memory.
 */
struct mfl_crew;
struct mfl_crew *mfl_crew_new(const struct mfl_server_job *job, const struct mfl_sessions *sessions);
Mfl__Crew *mfl_crew_wire(struct mfl_crew *crew);

#endif
