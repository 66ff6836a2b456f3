/* SPDX-License-Identifier: Apache-2.0 */
/* A round of a job: opens it, applies the strategy, writes the checkpoint, commits the row. */
#include <math.h>

#include "server/jobs/job_internal.h"
#include "server/jobs/scores.h"
#include "server/strategy/metric.h"

static void run_round_open(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        mfl_runtime_round_open(op->job->runtime, op->round);
}

void mfl_server_job_round_open(struct mfl_server_job *job, uint32_t round)
{
        mfl_assert(job->stage == MFL_STAGE_READY && round > job->committed);
        mfl_server_job_cost_open(job, round);
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_NONE, run_round_open, mfl_job_operation_finish);
        if (!op)
                return;
        op->round = round;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

/* Real time: the record comes before what is made of it. */
static int record_arrivals(struct job_operation *op)
{
        if (!op->n_arrivals)
                return 0;
        int r = mfl_store_arrivals_put(
                op->job->jobs->store, op->job->id, op->round, op->arrivals, op->n_arrivals, &op->err);
        return mfl_job_operation_disk(op->job, r, "the order of arrival", &op->err);
}

static void run_apply(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        op->status = record_arrivals(op);
        if (!op->status)
                op->status = mfl_job_private_release(op->job, op->round, &op->totals, &op->event, &op->err);
        if (!op->status)
                op->status = mfl_runtime_apply(
                        op->job->runtime, &op->totals, op->event.digest, op->event.method, &op->err);
        op->report = *mfl_runtime_report(op->job->runtime);
}

static void done_apply(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        if (!op->status) {
                mfl_job_choice_describe(op->job, &op->report);
                if (mfl_job_has_regions(op->job->spec))
                        op->event.bases = mfl_runtime_digests(op->job->runtime);
        }
        /* A download still holds the block and ends soon, or the disk is full: try again. */
        if (op->status == MFL_BUSY && !work->cancelled && !mfl_loop_is_stopping(op->job->jobs->loop)) {
                if (mfl_job_operation_again(op, &op->job->jobs->loop->compute))
                        return;
        }
        mfl_job_operation_end(op);
}

void mfl_server_job_apply(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        mfl_assert(job->stage == MFL_STAGE_READY);
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_APPLIED, run_apply, done_apply);
        if (!op)
                return;
        job->written = 0;
        op->totals = action->totals;
        op->arrivals = action->arrivals;
        op->n_arrivals = action->n_arrivals;
        op->round = action->round;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

static void run_checkpoint(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_checkpoint checkpoint;
        struct mfl_states *states = mfl_runtime_states(op->job->runtime);
        op->status = states ? mfl_states_sync(states, &op->err) : 0;
        if (op->status)
                return;
        mfl_runtime_checkpoint(op->job->runtime, &checkpoint);
        checkpoint.memory = op->memory;
        checkpoint.n_memory = op->n_memory;
        op->status = mfl_store_checkpoint(
                op->job->jobs->store, op->job->id, op->round, &checkpoint, &op->file, &op->frozen, &op->err);
        if (!op->status)
                op->status = mfl_store_states_copy(op->job->jobs->store, op->job->id, &op->states, &op->err);
}

static void end_checkpoint(struct job_operation *op)
{
        if (!op->status) {
                mfl_assert(op->round > op->job->committed);
                op->job->checkpointed = op->round;
                op->job->written = 0;
                op->job->frozen_given = true;
        }
        mfl_job_operation_end(op);
}

/* ---- in a cluster: to the other servers, on a worker that waits for them alone ---- */

static void run_give(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        const struct mfl_store_file *files[] = {&op->frozen, &op->file, &op->states};
        op->status = 0;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(files) && !op->status; i++)
                op->status = mfl_store_given(op->job->jobs->store, op->job->id, files[i], &op->err);
}

static void done_give(struct mfl_work *work)
{
        end_checkpoint(job_operation_of(work));
}

static void give(struct job_operation *op)
{
        op->work.run = run_give;
        op->work.done = done_give;
        if (op->job->frozen_given)
                op->frozen.name[0] = '\0';
        if (mfl_job_operation_again(op, &op->job->jobs->loop->copies))
                return;
        op->status = mfl_fail(&op->err, MFL_BUSY, "too many checkpoints wait for other servers");
        end_checkpoint(op);
}

static void done_checkpoint(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (!op->status && !work->cancelled) {
                job->file = op->file;
                job->frozen_file = op->frozen;
                job->states_file = op->states;
                job->written = op->round;
        }
        if (!op->status && !work->cancelled && job->jobs->loop->has_copies)
                give(op);
        else
                end_checkpoint(op);
}

/* Written before, and not given: repeated after other servers were away. */
static bool is_written(const struct mfl_server_job *job, uint32_t round)
{
        return job->jobs->loop->has_copies && job->written == round;
}

void mfl_server_job_checkpoint(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        const bool written = is_written(job, action->round);
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_CHECKPOINTED,
                written ? run_give : run_checkpoint, written ? done_give : done_checkpoint);
        if (!op)
                return;
        op->round = action->round;
        op->memory = action->memory.v;
        op->n_memory = action->memory.n;
        if (written) {
                op->file = job->file;
                op->states = job->states_file;
                if (!job->frozen_given)
                        op->frozen = job->frozen_file;
        }
        mfl_job_operation_start(op, written ? &job->jobs->loop->copies : &job->jobs->loop->disk);
}

/* The core's next step takes its own away. */
static int keep_sums(struct job_operation *op, const struct mfl_round_scores *scores)
{
        size_t bytes = scores->n_sums * sizeof *scores->sums;
        op->sums = mfl_malloc(bytes);
        if (!op->sums)
                return mfl_fail_memory(&op->err, bytes, "what an evaluation has counted");
        memcpy(op->sums, scores->sums, bytes);
        op->answers = scores->answers;
        return 0;
}

/* A job whose metrics crash goes on without them. */
static void measure_metrics(struct job_operation *op)
{
        struct mfl_server_job *job = op->job;
        struct mfl_store *store = job->jobs->store;
        char path[MFL_STORE_PATH_BYTES];
        struct mfl_error err;
        if (!op->sums || job->metrics_off)
                return;
        const char *mark = mfl_store_path(store, job->id, MFL_STORE_METRIC_FILE, path);
        if (!mfl_metrics_measure(
                    job->spec, mark, &op->commit.record, op->sums, op->answers, &op->commit.metrics, &err))
                return;
        job->metrics_off = true;
        MFL_CLEANUP_FREE char *line =
                mfl_asprintf("evaluation.metrics: %s; the job goes on without them", err.text);
        if (line)
                mfl_store_log(store, job->id, line, NULL);
}

static void run_commit(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        struct mfl_store *store = job->jobs->store;
        if (!job->prepared_stored)
                op->status = mfl_store_job_prepared(
                        store, job->id, &job->data, job->data_from, job->n_params, job->n_frozen, &op->err);
        if (op->status)
                return;
        job->prepared_stored = true;
        measure_metrics(op);
        op->commit.scores = op->scores;
        op->commit.scores_bytes = op->scores_bytes;
        struct mfl_states *states = mfl_runtime_states(job->runtime);
        if (states)
                op->commit.states =
                        mfl_states_batch(states, op->commit.record.round, &op->commit.states_lost);
        uint32_t keep = job->spec->checkpoints.keep;
        if (mfl_job_is_async(job->spec)) /* also from the round before, if the newest file rots */
                keep = MFL_MAX(keep, mfl_job_versions(job->spec) + 1);
        op->status = mfl_store_commit(store, job->id, &op->commit, &op->nodes, keep, &op->err);
        op->commit.states = NULL;
        if (states && !op->status)
                mfl_states_committed(states, op->commit.record.round);
        op->commit.scores = NULL;
}

static bool is_better(const struct mfl_round_record *a, const struct mfl_round_record *b)
{
        if (isnan(a->accuracy) || isnan(b->accuracy)) /* the loss has none */
                return a->loss <= b->loss;
        return a->accuracy > b->accuracy || (a->accuracy == b->accuracy && a->loss <= b->loss);
}

static void done_commit(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (!op->status && !work->cancelled) {
                mfl_assert(op->commit.record.round > job->committed);
                job->last = op->commit;
                job->has_last = true;
                job->committed = op->commit.record.round;
                if (op->commit.record.evaluated) {
                        job->evaluated = op->commit;
                        job->has_evaluated = true;
                }
                if (op->commit.record.evaluated &&
                        (!job->has_best || is_better(&op->commit.record, &job->best.record))) {
                        job->best = op->commit;
                        job->has_best = true;
                }
                mfl_server_job_changed(job);
                job->jobs->ops->committed(job->jobs->user, job);
        }
        mfl_store_nodes_deinit(&op->nodes);
        free(op->scores);
        free(op->sums);
        mfl_job_operation_end(op);
}

void mfl_server_job_commit(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_COMMITTED, run_commit, done_commit);
        if (!op)
                return;
        mfl_assert(job->checkpointed == action->record.round);
        op->commit.record = action->record;
        op->commit.file = job->file;
        op->commit.frozen = job->frozen_file;
        op->commit.states_file = job->states_file;
        mfl_strcpy(op->commit.choice, sizeof op->commit.choice, job->choice);
        if (action->scores && (action->scores->n || action->scores->classes))
                op->status = mfl_job_scores_pack(action->scores, &op->scores, &op->scores_bytes, &op->err);
        if (!op->status && action->scores && job->spec->evaluation.n_metrics)
                op->status = keep_sums(op, action->scores);
        if (!op->status)
                op->status = mfl_server_job_cost_take(job, &op->commit, &op->nodes, &op->err);
        if (op->status) {
                free(op->scores);
                free(op->sums);
                job_fatal(job, op->status, &op->err);
                mfl_job_operation_free(op);
                return;
        }
        mfl_job_operation_start(op, &job->jobs->loop->disk);
}
