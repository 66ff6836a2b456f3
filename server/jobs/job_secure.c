/* SPDX-License-Identifier: Apache-2.0 */
/* What the worker does for a secure sum: writes down that its opening begins, and takes the masks off.
 *
 * The opening is a row in the table of releases, like that of a noisy sum: durable before a daemon is told who survives. A server that
 * finds a row of a round that was not committed skips that round. */
#include <unistd.h>

#include "common/base/log.h"
#include "server/jobs/job_internal.h"
#include "server/secure/leader.h"

#define DISK_WAIT_US 200000

static void run_note(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_server_job *job = op->job;
        uint64_t n;
        op->status = mfl_store_release(job->jobs->store, job->id, op->round,
                mfl_leader_name(op->secure.leader), UINT64_MAX, &n, &op->err);
        if (op->status != MFL_STORE_FULL && op->status != MFL_STORE_AGAIN)
                return;
        mfl_log_job(MFL_LOG_WARN, job->id, "%s: an opening can't be written down, retried: %s", job->id,
                op->err.text);
        usleep(DISK_WAIT_US);
}

static void done_note(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        bool full = op->status == MFL_STORE_FULL || op->status == MFL_STORE_AGAIN;
        if (full && !work->cancelled && !mfl_loop_is_stopping(op->job->jobs->loop) &&
                mfl_job_operation_again(op, &op->job->jobs->loop->disk))
                return;
        mfl_job_operation_end(op);
}

void mfl_server_job_secure_note(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct job_operation *op = mfl_job_operation_new(job, MFL_EV_SECURE_NOTED, run_note, done_note);
        if (!op)
                return;
        op->secure.leader = action->secure.leader;
        op->round = action->round;
        mfl_job_operation_start(op, &job->jobs->loop->disk);
}

static void run_unmask(struct mfl_work *work)
{
        struct job_operation *op = job_operation_of(work);
        struct mfl_leader_opening opening = {0};
        op->status = mfl_leader_open(op->secure.leader, &opening, &op->err);
        if (!op->status && mfl_job_sums_buckets(op->job->spec))
                op->status = mfl_runtime_unmask_bucket(op->job->runtime, &opening, op->secure.bucket,
                        op->secure.clients, op->secure.n_clients, &op->err);
        else if (!op->status)
                op->status = mfl_runtime_unmask(op->job->runtime, &opening, &op->err);
        memcpy(op->event.figures, opening.figures, sizeof op->event.figures);
        mfl_leader_opening_deinit(&opening);
}

void mfl_server_job_unmask(struct mfl_server_job *job, const struct mfl_core_action *action)
{
        struct job_operation *op =
                mfl_job_operation_new(job, MFL_EV_UNMASKED, run_unmask, mfl_job_operation_finish);
        if (!op)
                return;
        op->secure.leader = action->secure.leader;
        op->secure.bucket = action->secure.bucket;
        op->secure.clients = action->secure.clients;
        op->secure.n_clients = action->secure.n_clients;
        mfl_job_operation_start(op, &job->jobs->loop->compute);
}

int mfl_job_secure_prepare(struct mfl_server_job *job, bool *ret_opened, struct mfl_error *err)
{
        struct mfl_store_released released = {0};
        *ret_opened = false;
        if (!job->spec->secure.bits)
                return 0;
        int r = mfl_store_released(job->jobs->store, job->id, job->committed, &released, err);
        *ret_opened = released.beyond > 0;
        return r;
}
