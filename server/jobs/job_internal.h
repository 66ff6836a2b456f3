/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a job share among themselves. */
#ifndef MFL_SERVER_JOBS_JOB_INTERNAL_H
#define MFL_SERVER_JOBS_JOB_INTERNAL_H

#include "server/jobs/job.h"
#include "server/jobs/job_operation.h"

static inline void job_fatal(struct mfl_server_job *job, int code, const struct mfl_error *err)
{
        mfl_loop_fatal(job->jobs->loop, code, err);
}

static inline bool job_is_per_token(const struct mfl_graph *graph)
{
        return graph->vocabulary && graph->positions > 1;
}

/* job_stage.c */
/* The only place that changes job->stage. */
void mfl_server_job_move(struct mfl_server_job *job, enum mfl_job_stage next);

/* job_state.c */
void mfl_server_job_set_state(struct mfl_server_job *job, const struct mfl_core_action *action);

/* job_choice.c: job->choice, from what a robust rule made of a round's updates. */
void mfl_job_choice_describe(struct mfl_server_job *job, const struct mfl_rows_report *report);

/* job_prepare.c, job_round.c, job_slot.c */
void mfl_server_job_prepare(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_set_data(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_round_open(struct mfl_server_job *job, uint32_t round);
void mfl_server_job_apply(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_checkpoint(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_commit(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_grant(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_slot_add(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_slot_free(struct mfl_server_job *job, uint32_t slot);

/* job_measure.c. True: op waits until the job's normalisation is measured. */
bool mfl_server_job_measures(struct mfl_server_job *job, struct job_operation *op);
/* At the end of the process. */
void mfl_server_job_measure_end(struct mfl_server_job *job);
/* On the worker: the job's text, if it was changed. */
int mfl_server_job_measure_store(struct mfl_server_job *job, struct mfl_error *err);

/* job_private.c, worker. Nothing to do for a job without privacy. MFL_INVALID: the model or the budget does not allow it. */
int mfl_job_private_prepare(struct mfl_server_job *job, const struct mfl_fixed *fixed, uint64_t n,
        struct job_private *ret_private, struct mfl_error *err);
/* Before the round is applied: writes the release down, sets the noise, and event->epsilon. MFL_INVALID with event->spent: the budget
 * is; MFL_BUSY: the disk is full, again later. */
int mfl_job_private_release(struct mfl_server_job *job, uint32_t round, const struct mfl_round_totals *totals,
        struct mfl_core_event *event, struct mfl_error *err);

/* job_secure.c. prepare, worker: whether an opening of the round after the last committed one was written down. */
void mfl_server_job_secure_note(struct mfl_server_job *job, const struct mfl_core_action *action);
void mfl_server_job_unmask(struct mfl_server_job *job, const struct mfl_core_action *action);
int mfl_job_secure_prepare(struct mfl_server_job *job, bool *ret_opened, struct mfl_error *err);

/* job_cost.c: what a round costs on the network. */
/* A round begins, or another attempt at it. */
void mfl_server_job_cost_open(struct mfl_server_job *job, uint32_t round);
void mfl_server_job_cost(struct mfl_server_job *job, const struct mfl_core_action *action);
/* The bytes of round->record.round, and its rows, a copy that the caller frees. -ENOMEM. */
int mfl_server_job_cost_take(struct mfl_server_job *job, struct mfl_store_round *round,
        struct mfl_store_nodes *ret_nodes, struct mfl_error *err);
void mfl_server_job_cost_free(struct mfl_server_job *job);

#endif
