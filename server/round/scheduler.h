/* SPDX-License-Identifier: Apache-2.0 */
/* Which job gets which daemons.
 *
 * A daemon is leased to one job for one phase (train or evaluate). Jobs that want daemons are served in the
 * order in which they began to wait. Each job first gets what it needs to begin: daemons_min, or all of its
 * daemons for `local`. The daemons that are then free are dealt one by one, in turn, to all jobs that can use
 * them; the rest takes over clients within a round (round_move.h).
 *
 * Backfill. If only part of the daemons that a job needs is free, it reserves these, so that it doesn't
 * starve. While it has to wait anyway, for daemons that were leased before its claim, a reserved daemon
 * works for other jobs whose phase should end earlier (round_left.h, from measured speeds and durations).
 * Once only daemons are missing that were leased after the claim, nothing is lent any longer. So a claim
 * waits for the phases that were under way when it was made, and then for at most one phase of others,
 * however wrong the estimates were. The other jobs work on, unless their phases are too long for the gap.
 *
 * A daemon that has done its part of a phase, while others still work on it, is free for jobs that have
 * waited longer than its own job will have when its phase ends, and for other jobs that should end before.
 */
#ifndef MFL_SERVER_ROUND_SCHEDULER_H
#define MFL_SERVER_ROUND_SCHEDULER_H

#include "server/state/state.h"

void mfl_scheduler_run(struct mfl_core *core);

#endif
