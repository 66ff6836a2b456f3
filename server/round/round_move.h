/* SPDX-License-Identifier: Apache-2.0 */
/* Moving clients within a round, from daemons with much work left to idle ones.
 *
 * Recall asks a daemon for clients that it has not begun. Returned names what it gives back; only that is
 * dealt again. So each client is trained once, and as sums are exact, the digest does not depend on who
 * trained it. The number of clients that move would let all daemons end at the same time (round_share.h) by
 * measured speeds. The cost of params and of one more update for new daemons is included, by the speed of
 * their last upload. Nothing moves unless the phase ends sooner by at least 200 ms and a twentieth of the
 * time left. A task may be asked until it answers that it has begun more than it was to keep. A daemon with
 * two results to upload gets nothing more. Nothing moves
 *   - in `local` jobs, whose items belong to their daemons;
 *   - with selection.assign: modulo, where the number of a client decides who trains it;
 *   - in evaluations, which are short;
 *   - from daemons that speak a protocol before MFL_PROTOCOL_RECALL.
 *
 * Groups. A member that is asked has not announced yet; its task gets shorter, and its group goes on. The
 * daemon that gets the clients has them in a new task, outside all existing groups: each member has exactly
 * one task in a group. Daemons of a node that get clients at the same time form a group of their own.
 */
#ifndef MFL_SERVER_ROUND_ROUND_MOVE_H
#define MFL_SERVER_ROUND_ROUND_MOVE_H

#include "server/state/state.h"

/* Clients may move in the job's phase. */
bool mfl_round_moves(const struct core_job *job);
/* Asks for clients if that pays: for the job's own daemons that are done, and for n idle ones. */
void mfl_round_move(struct mfl_core *core, struct core_job *job, struct core_daemon *const *idle, uint32_t n);
/* The task keeps its first `kept` items. */
void mfl_round_returned(
        struct mfl_core *core, struct core_daemon *daemon, struct core_task *task, uint32_t kept);
/* Some daemon was asked and has not answered. */
bool mfl_round_moving(const struct mfl_core *core, const struct core_job *job);

#endif
