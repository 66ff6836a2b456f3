/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the state of a job to disk, and tries again until the disk takes it. */
#include "common/base/log.h"
#include "server/jobs/job_internal.h"

static void run_state(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        op->status = mfl_store_job_set_state(
                op->job->jobs->store, op->job->id, op->kept.state, op->event.reason, &op->err);
        if (!op->status && op->kept.stop_after)
                op->status = mfl_store_job_stop_after(
                        op->job->jobs->store, op->job->id, op->kept.stop_after, &op->err);
}

/* The disk may be full: the state stays in memory, and is written as soon as the disk takes it. */
static void done_state(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        if (!work->cancelled)
                mfl_disk_note(job->jobs->disk, MFL_DISK_STATE, op->status <= 0, op->err.text,
                        mfl_loop_now(job->jobs->loop));
        if (op->status > 0) {
                if (!job->state_unwritten)
                        mfl_log_job(MFL_LOG_WARN, job->id,
                                "%s: its state could not be written, and the server keeps trying: %s",
                                job->id, op->err.text);
                job->state_unwritten = true;
                op->status = 0;
        } else if (!op->status && op->kept.state == job->state) {
                job->state_unwritten = false;
        }
        mfl_job_operation_end(op);
}

static void write_state(struct mfl_server_job *job)
{
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_NONE, run_state, done_state);
        if (!op)
                return;
        op->kept.state = job->state;
        op->kept.stop_after = job->stop_after;
        mfl_strcpy(op->event.reason, sizeof op->event.reason, job->reason);
        mfl_job_operation_start(op, &job->jobs->loop->disk);
}

void mfl_server_job_retry_state(struct mfl_server_job *job)
{
        if (job->state_unwritten && !job->operations)
                write_state(job);
}

static const char *state_name(enum mfl_job_state state)
{
        static const char *const names[] = {"", "waiting", "running", "done", "failed", "stopped"};
        mfl_assert(state > 0 && (size_t)state < MFL_ARRAY_SIZE(names));
        return names[state];
}

void mfl_server_job_set_state(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        enum mfl_job_state state = action->job_state.state;
        if (state != job->state || strcmp(job->reason, action->reason))
                mfl_log_job(state == MFL_JOB_FAILED ? MFL_LOG_WARN : MFL_LOG_INFO, job->id, "%s (%s): %s%s%s",
                        job->id, job->spec->name, state_name(state), action->reason[0] ? ": " : "",
                        action->reason);
        job->state = state;
        job->stop_after = action->job_state.stop_after;
        mfl_strcpy(job->reason, sizeof job->reason, action->reason);
        if (mfl_server_job_has_ended(job) && !job->finished_unix_ms) {
                job->finished_unix_ms = mfl_unix_ms();
                job->jobs->ended[state]++;
                job->jobs->ops->ended(job->jobs->user, job);
        }
        write_state(job);
}
