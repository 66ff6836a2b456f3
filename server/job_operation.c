/* SPDX-License-Identifier: Apache-2.0 */
/* An operation of a job on a worker: begun on the loop, ended there in exactly one event. */
#include "server/job_internal.h"

struct job_operation *job_operation_new(struct mfl_server_job *job, enum mfl_core_event_kind ends_in,
        void (*run)(struct mfl_work *), void (*done)(struct mfl_work *))
{
        struct mfl_error err;
        struct job_operation *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                job_fatal(job, mfl_fail_memory(&err, sizeof *op, "an operation"), &err);
                return NULL;
        }
        op->job = job;
        op->event.kind = ends_in;
        mfl_strcpy(op->event.job, sizeof op->event.job, job->id);
        op->work.run = run;
        op->work.done = done;
        return op;
}

void job_operation_start(struct job_operation *op, struct mfl_worker *worker)
{
        struct mfl_error err;
        op->job->operations++;
        if (mfl_worker_submit(worker, &op->work)) {
                mfl_fail(&err, -EAGAIN, "%s: the worker's queue is full", op->job->id);
                job_fatal(op->job, -EAGAIN, &err);
                op->job->operations--;
                free(op);
        }
}

void job_operation_end(struct job_operation *op)
{
        struct mfl_server_job *job = op->job;
        if (!op->work.cancelled) {
                if (op->status < 0) {
                        job_fatal(job, op->status, &op->err);
                } else {
                        op->event.ok = op->status == 0;
                        if (op->status)
                                mfl_strcpy(op->event.reason, sizeof op->event.reason, op->err.text);
                        if (op->event.kind != MFL_EV_TICK)
                                mfl_server_feed(job->server, &op->event);
                }
        }
        free(op);
        mfl_server_job_operation_done(job);
}

void job_operation_finish(struct mfl_work *work)
{
        job_operation_end(job_operation_of(work));
}
