/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous jobs in real time (common/cohort/calendar.h): each round makes a version.
 *
 *   - a round has all clients under way; it closes when as many updates count as its buffer takes. Which ones those are, and in which
 *     order they came, is recorded with APPLY, before the sums are used. A round that has a record has just those clients;
 *   - a client whose update does not count in this round is under way in the next one, too: its daemon goes on, and is given the same
 *     work under another number, with which it answers. Between the two its messages mean nothing.
 */
#ifndef MFL_SERVER_LIVE_LIVE_H
#define MFL_SERVER_LIVE_LIVE_H

#include "server/state/state.h"

/* After JOB_READY: what is recorded. -ENOMEM. */
int mfl_live_recall(struct core_job *job, const struct mfl_core_event *event);
/* Sets the items of a round. MFL_INVALID: the record is impossible. -ENOMEM. */
int mfl_live_items(struct core_job *job, struct mfl_error *err);
/* The buffer is full. */
bool mfl_live_is_full(const struct core_job *job);
/* The training ends: what counts has left its place; measures of it. */
void mfl_live_close(struct core_job *job);
/* The task's daemon goes on with it. False: it may not. */
bool mfl_live_keep(struct mfl_core *core, struct core_job *job, const struct core_task *task);
/* The daemon that works on the open item; NULL: none that may get it now. */
struct core_daemon *mfl_live_owner(const struct mfl_core *core, const struct core_job *job, uint32_t i);
/* After items were dealt: takes back what has become another daemon's, or nobody's. */
void mfl_live_settle(struct mfl_core *core, struct core_job *job);
/* The job is over: takes back all of it. */
void mfl_live_end(struct mfl_core *core, struct core_job *job, const char *reason);
void mfl_live_free(struct core_job *job);

#endif
