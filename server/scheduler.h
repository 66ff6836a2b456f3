/* SPDX-License-Identifier: Apache-2.0 */
/* Which job gets which daemons. Part of the server core; no I/O.
 *
 * A daemon is leased to one job for one phase (train or evaluate). Jobs that want daemons are served in the
 * order of their last turn, the one that waited longest first. Each first gets what it needs to begin
 * (daemons_min; all of its daemons for `local`); a job whose need is met only partly by free daemons keeps
 * these reserved against jobs with a later claim, so that nobody starves. What is free then is dealt one by
 * one, in turn, to all that can use it.
 */
#ifndef MFL_SERVER_SCHEDULER_H
#define MFL_SERVER_SCHEDULER_H

#include "server/core_internal.h"

void mfl_scheduler_run(struct mfl_core *core);

#endif
