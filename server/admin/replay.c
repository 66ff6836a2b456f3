/* SPDX-License-Identifier: Apache-2.0 */
/* A job's committed rounds once more: a new job with the same file, initial params and seed, which stops after as many rounds. Of an
 * asynchronous job in real time it has the record of arrivals, too. Whether the models are the same is for the asker to see. */
#include <stdio.h>

#include "server/admin/answers.h"
#include "server/admin/permit.h"

static void run_replay(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_job_replay(op->admin->store, op->job, (uint32_t)op->which, op->token,
                op->audit.who, op->new_job, &op->err);
        if (!op->status)
                op->status = mfl_store_job_get(op->admin->store, op->new_job, &op->row, &op->err);
}

void mfl_operator_replay(struct mfl_session *session, uint64_t request, const Mfl__CloneJob *clone)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, clone->job);
        if (!job || !mfl_operator_may_touch(session, request, job, "replay") ||
                !mfl_operator_may_copy(session, request, job))
                return;
        if (!job->committed || job->spec->privacy.kind) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        job->committed
                                ? "%s has noise of a secret key, and another run would have other noise"
                                : "%s has no committed round yet",
                        job->id);
                return;
        }
        struct mfl_request *op = mfl_request_new(session, request, job->id, run_replay, mfl_submit_answer);
        if (!op)
                return;
        op->which = job->committed;
        mfl_strcpy(op->token, sizeof op->token, clone->token);
        mfl_request_audit(op, "replay", job->id);
        mfl_snprintf(op->audit.text, sizeof op->audit.text, "%u rounds", job->committed);
        mfl_request_start(op, session);
}
