/* SPDX-License-Identifier: Apache-2.0 */
/* A job from its beginning to its end: added, stopped, failed, and what people are told about it. */
#ifndef MFL_SERVER_ROUND_ROUND_JOB_H
#define MFL_SERVER_ROUND_ROUND_JOB_H

#include "server/state/state.h"

void mfl_round_job_add(struct mfl_core *core, const struct mfl_core_event *event);
void mfl_round_job_stop(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event);
void mfl_round_job_fail(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *reason);
void mfl_round_free(struct mfl_core *core, struct core_job *job);
/* If the job has reached the round that it was to stop after, stops it and returns true. */
bool mfl_round_stops(struct mfl_core *core, struct core_job *job);

/* What the job waits for, as people see it; empty: nothing. */
void mfl_round_reason(struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *fmt,
        ...) MFL_PRINTF(4, 5);
/* RUNNING, with the reason that people should see. */
void mfl_round_running(struct mfl_core *core, struct core_job *job);

/* Counts an answer of the worker. False: the job is over, and the answer means nothing. */
bool mfl_round_answered(struct core_job *job);
/* JOB_READY, APPLIED: what clients start from, with job->round and job->digest of the newest params. */
void mfl_round_note_bases(struct core_job *job, const struct mfl_core_event *event);
/* Orders to apply the counted round; no other round may be being stored. */
void mfl_round_apply(struct mfl_core *core, struct core_job *job);
/* Goes on to the round after the newest params. */
void mfl_round_next(struct mfl_core *core, struct core_job *job);

#endif
