/* SPDX-License-Identifier: Apache-2.0 */
/* One job's rounds: which clients, who trains them, when a round is over, and what follows. Part of the
 * server core (core_internal.h); no I/O.
 *
 * The cohort of (round, attempt), attempt counting from 0: the first n of a partial Fisher-Yates over 0 ..
 * population - 1 with stream (seed, MFL_RNG_SELECT, round, attempt), sorted ascending. When the cohort is the
 * population nothing is drawn.
 */
#ifndef MFL_SERVER_ROUND_H
#define MFL_SERVER_ROUND_H

#include "server/core_internal.h"

void mfl_round_job_add(struct mfl_core *core, const struct mfl_core_event *event);
void mfl_round_job_ready(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
void mfl_round_job_fail(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *reason);
void mfl_round_job_stop(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
/* It has reached the round that it was to stop after, and is over. */
bool mfl_round_stops(struct mfl_core *core, struct core_job *job);
/* RUNNING, with what there is to say of it. */
void mfl_round_running(struct mfl_core *core, struct core_job *job);
void mfl_round_applied(
        struct mfl_core *core, struct core_job *job, bool ok, const char *reason, const uint8_t *digest);
void mfl_round_checkpointed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason);
void mfl_round_committed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason);
void mfl_round_eval_result(struct mfl_core *core, struct core_daemon *daemon, struct core_task *task,
        const struct mfl_eval_item *items, uint32_t n_items);

/* Takes every decision that is due. */
void mfl_round_progress(struct mfl_core *core, struct core_job *job);
void mfl_round_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms);

/* The scheduler's side. wants: has work that no daemon has. begin: the daemons are leased, go. deal: open
 * items to the leased daemons. */
bool mfl_round_wants(const struct mfl_core *core, const struct core_job *job);
bool mfl_round_waits(const struct core_job *job); /* for daemons to begin a phase with */
uint32_t mfl_round_size(
        const struct core_job *job); /* items that a phase to begin will have, or that are open */
void mfl_round_begin(struct mfl_core *core, struct core_job *job);
void mfl_round_deal(struct mfl_core *core, struct core_job *job);
/* It waits for daemons, and every one that is up has said that it can't do this job. */
void mfl_round_hopeless(struct mfl_core *core, struct core_job *job);
/* What the job waits for, shown to people; empty: nothing. */
void mfl_round_reason(struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *fmt,
        ...) MFL_PRINTF(4, 5);
void mfl_round_free(struct mfl_core *core, struct core_job *job);

#endif
