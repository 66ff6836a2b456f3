/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on the disk worker, and answers. */
#include "server/admin/request.h"

#include "server/jobs/partition.h"
#include "server/jobs/scores.h"

struct mfl_admin *mfl_admin_of(const struct mfl_session *session)
{
        return session->all->role[MFL__ROLE__ROLE_OPERATOR].owner;
}

struct mfl_operator_peer *mfl_operator_of(const struct mfl_session *session)
{
        mfl_assert(session->role == MFL__ROLE__ROLE_OPERATOR && session->peer);
        return session->peer;
}

/* ---- answers ---- */

Mfl__FailureCode mfl_operator_failure_code(int status)
{
        switch (status) {
        case MFL_NOT_FOUND:
                return MFL__FAILURE_CODE__FAILURE_NOT_FOUND;
        case MFL_EXISTS:
        case MFL_BUSY:
        case MFL_STORE_TOKEN_TAKEN:
                return MFL__FAILURE_CODE__FAILURE_CONFLICT;
        case MFL_INVALID:
                return MFL__FAILURE_CODE__FAILURE_INVALID;
        default:
                return MFL__FAILURE_CODE__FAILURE_LIMIT;
        }
}

void mfl_operator_done(struct mfl_session *session, uint64_t request, const char *text)
{
        Mfl__Done done = MFL__DONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        done.text = (char *)text;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_DONE;
        envelope.done = &done;
        mfl_session_send(session, &envelope);
}

struct mfl_server_job *mfl_operator_job(struct mfl_session *session, uint64_t request, const char *id)
{
        struct mfl_server_job *job = mfl_server_job_find(mfl_admin_of(session)->jobs, id);
        if (!job)
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND,
                        "there is no job '%s'; 'mfl list' shows the jobs", id);
        return job;
}

void mfl_operator_no_memory(struct mfl_session *session, size_t bytes, const char *what)
{
        mfl_loop_no_memory(session->all->loop, bytes, what);
}

/* ---- requests that the disk worker does ---- */

struct mfl_request *mfl_request_of(struct mfl_work *work)
{
        return MFL_CONTAINER_OF(work, struct mfl_request, work);
}

void mfl_request_free(struct mfl_request *op)
{
        mfl_store_upload_discard(op->upload);
        mfl_store_rounds_deinit(&op->rounds);
        mfl_store_nodes_deinit(&op->nodes);
        free(op->audits.v);
        mfl_store_spents_deinit(&op->spents);
        mfl_job_partition_free(op->partition);
        mfl_job_scores_free(op->scores);
        mfl_store_job_deinit(&op->row);
        mfl_graph_free(op->graph);
        mfl_params_unref(op->params);
        free(op->text);
        free(op->contract);
        free(op->changes);
        if (op->own)
                op->own_free(op->own);
        free(op);
}

static void done_request(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_sessions *sessions = op->admin->sessions;
        struct mfl_session *session = mfl_session_find(sessions, op->conn);
        mfl_session_worked(sessions, op->conn);
        bool failed = op->status > 0 && op->status != MFL_EXISTS;
        if (op->status < 0 && !work->cancelled)
                mfl_loop_fatal(op->admin->loop, op->status, &op->err);
        else if (failed && session)
                mfl_session_fail(
                        session, op->request, mfl_operator_failure_code(op->status), "%s", op->err.text);
        else if (op->status >= 0 && !failed && !work->cancelled)
                op->answer(op, session);
        mfl_request_free(op);
}

/* On the disk worker. A row that can't be written changes nothing about what was done: then the log has it.
 */
static void run_request(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        struct mfl_store_audit *e = &op->audit;
        struct mfl_error err;
        op->run(work);
        if (!*e->action)
                return;
        if (!*e->object)
                mfl_strcpy(e->object, sizeof e->object, op->new_job);
        mfl_strcpy(e->result, sizeof e->result, op->status && op->status != MFL_EXISTS ? "failed" : "done");
        if (op->status)
                mfl_strcpy(e->text, sizeof e->text, op->err.text);
        int r = mfl_book_write(op->admin->store, e, &err);
        if (r < 0 && op->status >= 0) {
                op->status = r;
                op->err = err;
        }
}

void mfl_request_audit(struct mfl_request *op, const char *action, const char *object)
{
        mfl_assert(*action && !*op->audit.action);
        mfl_strcpy(op->audit.action, sizeof op->audit.action, action);
        mfl_strcpy(op->audit.object, sizeof op->audit.object, object);
}

struct mfl_request *mfl_request_new(struct mfl_session *session, uint64_t request, const char *job,
        void (*run)(struct mfl_work *), void (*answer)(struct mfl_request *, struct mfl_session *))
{
        struct mfl_request *op = mfl_calloc(1, sizeof *op);
        if (!op) {
                mfl_operator_no_memory(session, sizeof *op, "a request");
                return NULL;
        }
        mfl_assert(run && answer);
        op->admin = mfl_admin_of(session);
        op->conn = session->conn;
        op->request = request;
        mfl_strcpy(op->job, sizeof op->job, job);
        op->run = run;
        mfl_strcpy(op->audit.who, sizeof op->audit.who, session->who);
        mfl_strcpy(op->audit.address, sizeof op->audit.address, session->address);
        op->work.run = run_request;
        op->work.done = done_request;
        op->answer = answer;
        return op;
}

void mfl_request_start(struct mfl_request *op, struct mfl_session *session)
{
        mfl_assert(op->conn == session->conn);
        if (mfl_session_submit(session, &op->work))
                return;
        mfl_session_fail(session, op->request, MFL__FAILURE_CODE__FAILURE_LIMIT, "the server is too busy");
        mfl_request_free(op);
}
