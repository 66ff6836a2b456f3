/* SPDX-License-Identifier: Apache-2.0 */
/* The secure sum of a round (server/secure/leader.h): when it begins, who takes part, and what comes of it.
 *
 * Daemons train as in any other job, and announce. Their updates are HELD, and their keys come. When nothing is left to train, or the
 * round would close otherwise, those that are held are the participants: one for each daemon, or for each node whose daemons
 * add their updates first (server/work/core_group.h). Nothing is dealt from here on, and
 * clients of daemons that are lost are missing. A daemon that loses its connection is out of the sum, unless its update is in it.
 *
 *   gathers --> leader's stages --> WHOLE: the round is counted
 *     |            |      +-------> SKIP: the opening failed. The round has no clients, and is never tried again
 *     +------------+--------------> RETRY: the round is tried again, like one below its quorum
 *
 * With a robust strategy (unit: bucket) the participants are drawn into buckets by (seed, round), as those of a plain job are, and each bucket
 * has a sum of its own, with its own keys, graph, threshold and survivors (server/sum/core_sum.h). They share the note of the opening, and the end:
 * a bucket that has failed, before or after that, has no row, and its clients are missing. Nobody is in two of them: a daemon answers the
 * keys of one sum only, and its book refuses the same update in another.
 *
 * Before SURVIVORS is sent, the worker writes down that the opening begins (SECURE_NOTE): a server that dies after that skips the round.
 * The quorum is looked at before that. After limits.retries rounds in a row that were skipped, one more fails the job. */
#ifndef MFL_SERVER_ROUND_ROUND_SECURE_H
#define MFL_SERVER_ROUND_ROUND_SECURE_H

#include "server/state/state.h"

enum round_secure {
        ROUND_SECURE_NONE, /* the job has no secure sums */
        ROUND_SECURE_RETRY,
        ROUND_SECURE_SKIP,
        ROUND_SECURE_WHOLE,
};

/* TRAIN: why the round closes; NULL: it goes on. over: why it would close without a secure sum; NULL: it would not. */
const char *mfl_round_secure_progress(struct mfl_core *core, struct core_job *job, const char *over);
void mfl_round_secure_message(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_secure_msg *msg);
/* The task's daemon takes no part any more. False: the task is not of a sum that has begun. */
bool mfl_round_secure_left(struct mfl_core *core, struct core_task *task, const char *reason);
/* SECURE_NOTED, UNMASKED */
void mfl_round_secure_event(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
/* CLOSING: what came of the sum, which is over. WHOLE: its figures are the round's. */
enum round_secure mfl_round_secure_end(struct mfl_core *core, struct core_job *job);
void mfl_round_secure_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);
void mfl_round_secure_free(struct core_job *job);

#endif
