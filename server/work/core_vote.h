/* SPDX-License-Identifier: Apache-2.0 */
/* How a population is cut into clients, as daemons tell it (Partition in mfl.proto): the samples of each.
 *
 * The server has no data and can't know the cut. All daemons of a job cut the same samples in the same
 * way, so they must tell exactly the same numbers. The cut that most connected daemons tell is valid; if
 * several have equally many votes, the one that was told first. A daemon that tells another cut trains
 * nothing for the job while the vote is tied, and is expelled when two or more daemons outvote it. A job
 * with partition iid needs no vote: its sizes follow from the number of samples. Older releases tell the
 * counts of small populations only. For larger ones they tell the smallest and the largest client, as
 * every daemon does beyond MFL_CUT_CLIENTS_MAX clients.
 *
 * Counts come in pieces, in order. A cut keeps the longest row of counts that one of its daemons has told.
 */
#ifndef MFL_SERVER_WORK_CORE_VOTE_H
#define MFL_SERVER_WORK_CORE_VOTE_H

#include "server/state/state.h"

void mfl_core_vote_told(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job,
        const struct mfl_population *told);
/* Counts the votes again if job->cuts_dirty is set, and decides which cut is valid. */
void mfl_core_votes_settle(struct mfl_core *core, struct core_job *job);

#endif
