/* SPDX-License-Identifier: Apache-2.0 */
/* Dividing a phase's open items among the daemons that a job holds.
 *
 * Items are dealt in contiguous pieces, in the order of daemons' names, so large that all daemons should end
 * at the same time (selection.assign: speed; round_speed.h), or round robin by item (modulo). Daemons that
 * hold results of an earlier boot get pieces of the same size again. If only the last size is unknown, it
 * follows from the others, so that the pieces are the very same. Clients of an asynchronous job that start from different versions
 * are in different tasks, because a task names one.
 */
#ifndef MFL_SERVER_ROUND_ROUND_DEAL_H
#define MFL_SERVER_ROUND_ROUND_DEAL_H

#include "server/state/state.h"

/* The job has work that no daemon has. */
bool mfl_round_wants(const struct core_job *job);
/* It waits for daemons to begin a phase. */
bool mfl_round_waits(const struct core_job *job);
/* The number of items that are open, or that a phase to begin will have. */
uint32_t mfl_round_size(const struct core_job *job);
/* A daemon gets items of this phase without others. False: a client is too large for it alone, or the job wants more members. */
bool mfl_round_trains_alone(const struct core_daemon *daemon, const struct core_job *job);
/* Deals the open items to the leased daemons, and sends their tasks. */
void mfl_round_deal(struct mfl_core *core, struct core_job *job);

#endif
