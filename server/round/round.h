/* SPDX-License-Identifier: Apache-2.0 */
/* One job's rounds: takes every decision that is due. */
#ifndef MFL_SERVER_ROUND_ROUND_H
#define MFL_SERVER_ROUND_ROUND_H

#include "server/state/state.h"

void mfl_round_job_ready(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
/* Takes every decision that is due; the last one may be that the job is released. */
void mfl_round_progress(struct mfl_core *core, struct core_job *job);
void mfl_round_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);

#endif
