/* SPDX-License-Identifier: Apache-2.0 */
/* How much longer work will take, from measured speeds and the tasks at hand. Times are milliseconds.
 *
 * A daemon that is overdue is expected to take as long again as it is late. If nothing is known about a
 * daemon, it is expected to take as long again as it has taken.
 */
#ifndef MFL_SERVER_ROUND_ROUND_LEFT_H
#define MFL_SERVER_ROUND_ROUND_LEFT_H

#include "server/state/state.h"

/* The time of an item on the daemon, from what was measured and from the task at hand; 0: not known. */
double mfl_round_cost(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job);
/* Items of the task that should be done by now, or are known to be. */
uint32_t mfl_round_done(const struct mfl_core *core, const struct core_task *task);
/* Items that the daemon still has to do, including those that it has begun. */
uint32_t mfl_round_load(const struct mfl_core *core, const struct core_daemon *daemon);
/* Until the daemon, or the whole phase, is done. */
uint64_t mfl_round_left_of(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job);
uint64_t mfl_round_left(const struct mfl_core *core, const struct core_job *job);
/* The duration of a phase that begins now, from earlier ones; 1 s for the first one. */
uint64_t mfl_round_expected(const struct core_job *job);

#endif
