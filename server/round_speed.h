/* SPDX-License-Identifier: Apache-2.0 */
/* How long a client takes on a daemon, learned from its tasks.
 *
 * The measure is the time from sending a task to the announce of its last update, divided by its clients. It
 * is the server's own clock and the server's own count, so that several workers, fused clients, the params'
 * way and whatever else a daemon does for a task are all in it, and no daemon can claim to be fast.
 * (Announce.train_us is neither: it is summed over clients that ran side by side.) Clients are counted and
 * not their samples, because the server does not know a client's samples before it deals, and because the
 * same clients, if they come again, then come to a daemon whose cost was measured with them. A fixed cost per
 * task makes small pieces look slow; dealing in proportion to 1 / cost all the same ends where all tasks take
 * equally long, since that is where n / (time / n) is in proportion to n.
 *
 * Of each daemon and job, and of training and evaluation apart, the mean of the last measurements is kept,
 * each new one weighing one half: a daemon that becomes ten times slower has lost most of its share two
 * rounds later. CORE_SPEED_FLOOR_MS is added to each, so that tasks of a few milliseconds, whose times are
 * the network's, do not make anyone look fast or slow. Not measured: tasks whose connection broke, that were
 * taken away, or that are answered with what the daemon held of an earlier start of the server.
 *
 * A daemon too slow to get any client would never be measured again. Its cost counts for less with each round
 * that passes it by, by 1/32 of the measured one in the first: one that is r times slower than the round
 * allows gets a client again after about 32 r rounds, which costs those rounds a thirty-second of their time
 * at most.
 */
#ifndef MFL_SERVER_ROUND_SPEED_H
#define MFL_SERVER_ROUND_SPEED_H

#include "server/core_internal.h"

#define CORE_SPEED_FLOOR_MS 10
#define CORE_SPEED_AGE 32

/* Its daemon has just said the last of what is to be said of the task. */
void mfl_round_measure(struct mfl_core *core, struct core_task *task);
/* Its time says nothing: see above. */
void mfl_round_unmeasure(struct core_task *task);
/* An announce of a result that was made for an earlier start of the server, and will be wanted. */
void mfl_round_held(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job,
        const struct mfl_announce *announce);

struct mfl_share;
/* cost, probe, and (at the beginning of a training) fixed and n, of each daemon for the phase at hand. A
 * daemon that was never measured is taken to be as fast per worker as the median of those with the same
 * backend and device, or of all; when none was measured, as fast as it has workers. */
int mfl_round_costs(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n, bool begins,
        struct mfl_share *ret_shares);
/* What a phase began with: who got nothing grows older. */
void mfl_round_age(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n,
        const struct mfl_share *shares);

#endif
