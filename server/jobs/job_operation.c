/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a job, and its stages: memory that operations use goes with the last of them. */
#include <unistd.h>

#include "common/base/log.h"
#include "server/jobs/job_internal.h"
#include "server/loop/states.h"

#define DISK_WAIT_US 200000

static const unsigned edges[] = {
        [OPERATION_NEW] = MFL_TO(OPERATION_QUEUED) | MFL_TO(OPERATION_ENDED),
        [OPERATION_QUEUED] = MFL_TO(OPERATION_QUEUED) | MFL_TO(OPERATION_ENDED),
        [OPERATION_ENDED] = 0,
};

static const unsigned stage_edges[] = {
        [MFL_STAGE_STORED] = MFL_TO(MFL_STAGE_ADDED),
        [MFL_STAGE_ADDED] = MFL_TO(MFL_STAGE_READY) | MFL_TO(MFL_STAGE_RELEASING),
        [MFL_STAGE_READY] = MFL_TO(MFL_STAGE_RELEASING),
        [MFL_STAGE_RELEASING] = MFL_TO(MFL_STAGE_STORED),
};

void mfl_server_job_move(struct mfl_server_job *job, enum mfl_job_stage next)
{
        mfl_state_move(job->stage, stage_edges, next);
        mfl_assert((next == MFL_STAGE_READY) <= (job->runtime != NULL));
}

/* ---- operations ---- */

struct job_operation *mfl_job_operation_new(struct mfl_server_job *job, enum mfl_core_event_kind ends_in,
        void (*run)(struct mfl_work *), void (*done)(struct mfl_work *))
{
        struct job_operation *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                mfl_loop_no_memory(job->jobs->loop, sizeof *op, "an operation");
                return NULL;
        }
        mfl_assert(run && done);
        op->job = job;
        op->state = OPERATION_NEW;
        op->event.kind = ends_in;
        mfl_strcpy(op->event.job, sizeof op->event.job, job->id);
        op->work.run = run;
        op->work.done = done;
        return op;
}

void mfl_job_operation_free(struct job_operation *op)
{
        mfl_assert(op->state != OPERATION_QUEUED);
        free(op);
}

void mfl_job_operation_start(struct job_operation *op, struct mfl_worker *worker)
{
        struct mfl_server_job *job = op->job;
        struct mfl_error err;
        if (mfl_worker_submit(worker, &op->work)) {
                mfl_fail(&err, -EAGAIN, "%s: the worker's queue is full", job->id);
                job_fatal(job, -EAGAIN, &err);
                mfl_job_operation_free(op);
                return;
        }
        mfl_state_move(op->state, edges, OPERATION_QUEUED);
        mfl_server_job_use(job);
        op->computes = worker == &job->jobs->loop->compute;
        job->computing += op->computes;
}

bool mfl_job_operation_again(struct job_operation *op, struct mfl_worker *worker)
{
        if (mfl_worker_submit(worker, &op->work))
                return false;
        mfl_state_move(op->state, edges, OPERATION_QUEUED);
        return true;
}

int mfl_job_operation_disk(
        const struct mfl_server_job *job, int r, const char *what, const struct mfl_error *err)
{
        if (r != MFL_STORE_FULL && r != MFL_STORE_AGAIN)
                return r;
        mfl_log_job(
                MFL_LOG_WARN, job->id, "%s: %s can't be written down, retried: %s", job->id, what, err->text);
        usleep(DISK_WAIT_US);
        return MFL_BUSY;
}

void mfl_job_operation_run(struct job_operation *op)
{
        mfl_assert(op->state == OPERATION_NEW);
        mfl_server_job_use(op->job);
        op->work.run(&op->work);
        op->work.done(&op->work);
}

static void tell_core(struct job_operation *op)
{
        struct mfl_server_job *job = op->job;
        if (op->status < 0) {
                job_fatal(job, op->status, &op->err);
                return;
        }
        op->event.ok = op->status == 0;
        if (op->status)
                mfl_strcpy(op->event.reason, sizeof op->event.reason, op->err.text);
        if (op->event.kind != MFL_EV_NONE)
                mfl_loop_feed(job->jobs->loop, &op->event);
}

void mfl_job_operation_end(struct job_operation *op)
{
        struct mfl_server_job *job = op->job;
        mfl_state_move(op->state, edges, OPERATION_ENDED);
        mfl_assert(job->computing >= op->computes);
        job->computing -= op->computes;
        if (!op->work.cancelled)
                tell_core(op);
        mfl_job_operation_free(op);
        mfl_server_job_unuse(job);
}

void mfl_job_operation_finish(struct mfl_work *work)
{
        mfl_job_operation_end(job_operation_of(work));
}

/* ---- the memory that they use ---- */

static void run_close(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        mfl_runtime_close(op->prepare.runtime);
        mfl_graph_free(op->prepare.graph);
}

/* Giving back gigabytes takes time: the worker does it. */
static void free_memory(struct mfl_server_job *job)
{
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_NONE, run_close, mfl_job_operation_finish);
        if (!op)
                return;
        mfl_assert(job->stage == MFL_STAGE_STORED && !job->operations && !job->computing);
        op->prepare.runtime = job->runtime;
        op->prepare.graph = job->graph;
        job->runtime = NULL;
        job->graph = NULL;
        mfl_server_job_cost_free(job);
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

void mfl_server_job_use(struct mfl_server_job *job)
{
        job->operations++;
}

void mfl_server_job_unuse(struct mfl_server_job *job)
{
        mfl_assert(job->operations > 0);
        job->operations--;
        if (job->stage != MFL_STAGE_RELEASING || job->operations || mfl_loop_is_stopping(job->jobs->loop))
                return;
        mfl_server_job_move(job, MFL_STAGE_STORED);
        if (job->runtime)
                free_memory(job);
}
