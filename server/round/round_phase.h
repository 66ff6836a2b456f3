/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a round: train, close, apply, evaluate; the deadline's clock and the quorum.
 *
 * If the deadline passes with at least ceil(quorum * cohort) clients counted, the round closes without the
 * rest. The clock stands still while no daemon could work. A round in which every missing client was
 * rejected, or can be placed nowhere, closes without waiting if it has its quorum. Otherwise it is retried
 * up to limits.retries times (attempt + 1, with other clients if the population is larger than the
 * cohort); then the job fails with the reason.
 */
#ifndef MFL_SERVER_ROUND_ROUND_PHASE_H
#define MFL_SERVER_ROUND_ROUND_PHASE_H

#include "server/state/state.h"

/* The scheduler has leased the daemons of a job that waits for them. */
void mfl_round_begin(struct mfl_core *core, struct core_job *job);
/* Runs the deadline's clock while a daemon could work. */
void mfl_round_watch_clock(struct mfl_core *core, struct core_job *job);
/* The round is decided: updates that are not here are refused from now on; sums under way end first. */
void mfl_round_close_train(struct mfl_core *core, struct core_job *job, const char *why);
/* CLOSING, and no sum is under way any longer. */
void mfl_round_finish_train(struct mfl_core *core, struct core_job *job);
void mfl_round_applied(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
void mfl_round_finish_eval(struct mfl_core *core, struct core_job *job);
/* The samples of each client are known, or this daemon will not tell them. */
void mfl_round_finish_census(struct mfl_core *core, struct core_job *job);
/* The job waits for daemons, and each connected one has said that it can't do the job. */
void mfl_round_hopeless(struct mfl_core *core, struct core_job *job);

#endif
