/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping, archiving and deleting jobs. */
#include <stdio.h>

#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/transfer/params_down.h"

/* Runs after the job's new state was written, so that the answer means what it says. */
static void run_after_stop(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_flush(op->admin->store, &op->err);
        if (op->status > 0)
                op->status = 0;
}

static void answer_stop(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        char text[64];
        if (session && job && !mfl_server_job_has_ended(job)) { /* `which` is the round that it ends after */
                snprintf(text, sizeof text, "stops after round %u", (uint32_t)op->which);
                mfl_operator_done(session, op->request, text);
        } else if (session)
                mfl_operator_done(session, op->request,
                        job && job->state_unwritten ? "stopped; the disk has not taken the new state yet, "
                                                      "and the server keeps trying"
                                                    : "stopped");
}

void mfl_operator_stop(struct mfl_session *session, uint64_t request, const char *id, bool after_round)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, id);
        if (!job)
                return;
        if (!mfl_operator_may_touch(session, request, job, "stop"))
                return;
        if (mfl_server_job_has_ended(job)) {
                mfl_operator_done(session, request, "it had already ended");
                return;
        }
        struct mfl_core_event event = {.kind = MFL_EV_JOB_STOP, .after_round = after_round};
        mfl_strcpy(event.job, sizeof event.job, job->id);
        mfl_snprintf(event.reason, sizeof event.reason,
                strcmp(session->who, "local") ? "stopped by %s" : "stopped by an operator", session->who);
        mfl_loop_feed(session->all->loop, &event);
        struct mfl_request *op = mfl_request_new(session, request, id, run_after_stop, answer_stop);
        if (!op)
                return;
        op->which = job->stop_after;
        mfl_request_audit(op, "stop", id);
        if (after_round)
                mfl_strcpy(op->audit.text, sizeof op->audit.text, "after the current round");
        mfl_request_start(op, session);
}

bool mfl_operator_at_rest(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job)
{
        const bool ended = mfl_server_job_has_ended(job);
        if (ended && !mfl_server_job_in_core(job) && !job->operations)
                return true;
        if (ended)
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "%s has ended, but a read or write of it is not finished yet; try again in a moment",
                        job->id);
        else
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "%s is still running; stop it first (mfl stop %s)", job->id, job->id);
        return false;
}

static void run_delete(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_store *store = op->admin->store;
        op->status = op->which ? mfl_store_job_delete_unread(store, op->job, &op->err)
                               : mfl_store_job_delete(store, op->job, &op->err);
}

static void answer_delete(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        if (job && !job->operations) {
                mfl_transfer_stop_job(op->admin->sessions, job);
                mfl_server_job_free(job);
        }
        if (session)
                mfl_operator_done(session, op->request, "deleted");
}

void mfl_operator_delete(struct mfl_session *session, uint64_t request, const char *id)
{
        struct mfl_server_job *job = mfl_operator_job(session, request, id);
        if (!job)
                return;
        if (!mfl_operator_may_touch(session, request, job, "delete"))
                return;
        if (!mfl_operator_at_rest(session, request, job))
                return;
        struct mfl_request *op = mfl_request_new(session, request, job->id, run_delete, answer_delete);
        if (!op)
                return;
        op->which = job->unread;
        mfl_request_audit(op, "delete", id);
        mfl_request_start(op, session);
}

static void run_archive(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_job_archive(op->admin->store, op->job, (uint64_t)op->which, &op->err);
}

static void answer_archive(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server_job *job = mfl_server_job_find(op->admin->jobs, op->job);
        if (job) {
                job->archived_unix_ms = (uint64_t)op->which;
                mfl_server_job_changed(job);
        }
        if (session)
                mfl_operator_done(session, op->request, op->which ? "archived" : "no longer archived");
}

void mfl_operator_archive(struct mfl_session *session, uint64_t request, const Mfl__ArchiveJob *ask)
{
        const char *verb = ask->undo ? "unarchive" : "archive";
        struct mfl_server_job *job = mfl_operator_job(session, request, ask->job);
        if (!job || !mfl_operator_may_touch(session, request, job, verb))
                return;
        bool goes_on = job->unread && !job->finished_unix_ms; /* under a release that can read it */
        if (!mfl_server_job_has_ended(job) || job->state_unwritten || goes_on) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "%s has not ended: only jobs that have ended are archived", job->id);
                return;
        }
        if ((job->archived_unix_ms == 0) == (ask->undo != 0)) {
                mfl_operator_done(
                        session, request, ask->undo ? "it was not archived" : "it was archived already");
                return;
        }
        struct mfl_request *op = mfl_request_new(session, request, job->id, run_archive, answer_archive);
        if (!op)
                return;
        op->which = ask->undo ? 0 : (int64_t)mfl_unix_ms();
        mfl_request_audit(op, verb, job->id);
        mfl_request_start(op, session);
}
