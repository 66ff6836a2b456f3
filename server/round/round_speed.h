/* SPDX-License-Identifier: Apache-2.0 */
/* How long a client takes on a daemon, learned from its tasks.
 *
 * The measure is the time from sending a task to the announce of its last update, divided by its clients.
 * It uses only the server's clock and the server's count, so it includes workers, fused clients, the way
 * of the params and everything else that a daemon does for a task, and no daemon can claim to be fast.
 * (Announce.train_us is no such measure: it is summed over clients that ran side by side.) It counts
 * clients and not samples, because the server doesn't know a client's samples before it deals, and because
 * the same clients, if they come again, come to a daemon whose cost was measured with them. A fixed cost
 * per task makes small pieces look slow. Dealing in proportion to 1 / cost still converges to tasks of
 * equal time, since there n / (time / n) is in proportion to n.
 *
 * For each daemon and job, and for training and evaluation separately, a running mean is kept in which each
 * new measurement weighs one half: a daemon that becomes ten times slower has lost most of its share two
 * rounds later. 10 ms are added to each measurement, so that tasks of a few milliseconds, whose times are
 * mostly the network's, make no daemon look fast or slow. Not measured are tasks whose connection broke, that
 * were taken away, or that are answered with a result from an earlier start of the server.
 *
 * A daemon too slow to get any client would never be measured again. So its cost counts for less with each
 * round in which it gets no client: after k rounds for 32 / (32 + k) of the measured one. A daemon that is r
 * times slower than the round allows gets a client again after about 32 r rounds, which costs those rounds at
 * most 1/32 of their time.
 */
#ifndef MFL_SERVER_ROUND_ROUND_SPEED_H
#define MFL_SERVER_ROUND_ROUND_SPEED_H

#include "server/state/state.h"

struct mfl_share;

/* Sets cost, probe, and at the beginning of a training fixed and n, of each daemon for the phase at hand. The
 * cost of a daemon that was never measured is judged by the items that it has done by now. Otherwise it is
 * the median, per worker, of daemons with the same backend and device, or of all. If none was measured, the
 * cost is 1 / workers. -ENOMEM. */
int mfl_round_costs(const struct mfl_core *core, const struct core_job *job,
        struct core_daemon *const *daemons, uint32_t n, bool begins, struct mfl_share *ret_shares);
/* A phase has begun with these shares: the measurements of daemons that got nothing grow older. */
void mfl_round_age(const struct core_job *job, struct core_daemon *const *daemons, uint32_t n,
        const struct mfl_share *shares);

#endif
