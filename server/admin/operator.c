/* SPDX-License-Identifier: Apache-2.0 */
/* Operators' sessions: which file answers which message. */
#include "proto/version.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"
#include "server/admin/watch.h"
#include "server/transfer/params_down.h"

/* Requests that are about a job's rows in the database, or its events. */
static bool job_request(struct mfl_session *session, const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_SUBMIT:
                mfl_operator_submit(session, e->request, e->submit);
                return true;
        case MFL__ENVELOPE__BODY_LIST_JOBS:
                mfl_operator_list(session, e->request, e->list_jobs);
                return true;
        case MFL__ENVELOPE__BODY_SHOW_JOB:
                mfl_operator_show(session, e->request, e->show_job->job);
                return true;
        case MFL__ENVELOPE__BODY_LIST_MODELS:
                mfl_operator_models(session, e->request, e->list_models->job);
                return true;
        case MFL__ENVELOPE__BODY_GET_PARTITION:
                mfl_operator_partition(session, e->request, e->get_partition->job);
                return true;
        case MFL__ENVELOPE__BODY_WATCH:
                mfl_watch_start(session, e->request, e->watch);
                return true;
        case MFL__ENVELOPE__BODY_STOP_JOB:
                mfl_operator_stop(session, e->request, e->stop_job->job, false);
                return true;
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                mfl_operator_stop(session, e->request, e->stop_after_round->job, true);
                return true;
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                mfl_operator_delete(session, e->request, e->delete_job->job);
                return true;
        case MFL__ENVELOPE__BODY_ARCHIVE_JOB:
                mfl_operator_archive(session, e->request, e->archive_job);
                return true;
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                if (e->clone_job->forget)
                        mfl_operator_forget(session, e->request, e->clone_job);
                else if (e->clone_job->replay)
                        mfl_operator_replay(session, e->request, e->clone_job);
                else
                        mfl_operator_clone(session, e->request, e->clone_job);
                return true;
        case MFL__ENVELOPE__BODY_MOVE:
                mfl_operator_move(session, e->request, e->move);
                return true;
        case MFL__ENVELOPE__BODY_PULL:
                mfl_operator_pull(session, e->request, e->pull);
                return true;
        default:
                return false;
        }
}

static bool daemon_request(struct mfl_session *session, const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_LIST_DAEMONS:
                mfl_operator_daemons(session, e->request, e->list_daemons);
                return true;
        case MFL__ENVELOPE__BODY_DRAIN:
                mfl_operator_drain(session, e->request, e->drain);
                return true;
        case MFL__ENVELOPE__BODY_ACCESS:
                mfl_operator_access(session, e->request, e->access);
                return true;
        case MFL__ENVELOPE__BODY_LIST_ACCESS:
                mfl_operator_access_list(session, e->request);
                return true;
        case MFL__ENVELOPE__BODY_LIST_SPENT:
                mfl_operator_spent(session, e->request);
                return true;
        case MFL__ENVELOPE__BODY_INQUIRE:
                mfl_operator_inquire(session, e->request, e->inquire);
                return true;
        case MFL__ENVELOPE__BODY_LIST_INQUIRIES:
                mfl_operator_inquiries(session, e->request, e->list_inquiries);
                return true;
        case MFL__ENVELOPE__BODY_CHANGE_MODEL:
                mfl_operator_change_model(session, e->request, e->change_model);
                return true;
        case MFL__ENVELOPE__BODY_LIST_REGISTRY:
                mfl_operator_registry(session, e->request, e->list_registry);
                return true;
        case MFL__ENVELOPE__BODY_WATCH_MODEL:
                mfl_operator_watch_model(session, e->request, e->watch_model);
                return true;
        case MFL__ENVELOPE__BODY_SERVING:
                mfl_operator_serving(session, e->serving);
                return true;
        case MFL__ENVELOPE__BODY_LIST_SERVING:
                mfl_operator_serving_list(session, e->request);
                return true;
        case MFL__ENVELOPE__BODY_ISSUE_LOGIN:
                mfl_operator_login(session, e->request, e->issue_login);
                return true;
        case MFL__ENVELOPE__BODY_LIST_AUDIT:
                mfl_operator_audit(session, e->request, e->list_audit);
                return true;
        default:
                return false;
        }
}

static void answer_ping(struct mfl_session *session, const Mfl__Ping *ping)
{
        Mfl__Pong pong = MFL__PONG__INIT;
        Mfl__Envelope answer = MFL__ENVELOPE__INIT;
        pong.cookie = ping->cookie;
        answer.body_case = MFL__ENVELOPE__BODY_PONG;
        answer.pong = &pong;
        mfl_session_send(session, &answer);
}

static int on_frame(
        struct mfl_session *session, const Mfl__Envelope *e, size_t payload_bytes, struct mfl_error *err)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_PING:
                answer_ping(session, e->ping);
                return 0;
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        case MFL__ENVELOPE__BODY_INITIAL:
                return mfl_operator_initial_done(session, payload_bytes, err);
        case MFL__ENVELOPE__BODY__NOT_SET: /* with a request's number: of a newer `mfl` (mfl.proto, VERSIONS) */
                mfl_session_fail(session, e->request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "this server (mfl-server " MFL_VERSION
                        ") does not know that request: upgrade the server");
                return 0;
        default:
                break;
        }
        if (!mfl_operator_may_change(session, e) || job_request(session, e) || daemon_request(session, e))
                return 0;
        return mfl_fail(err, MFL_INVALID, "an operator may not send this message");
}

static int on_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        if (envelope->body_case != MFL__ENVELOPE__BODY_INITIAL)
                return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
        return mfl_operator_initial_begin(session, envelope->initial, payload_bytes, ret_dst, err);
}

/* ---- from Hello to the end ---- */

static void on_denied(struct mfl_session *session, const Mfl__Envelope *hello, const char *text)
{
        if (text)
                mfl_gate_denied(mfl_admin_of(session)->gate, session, hello->hello, text);
}

static int on_greeted(struct mfl_session *session, const Mfl__Envelope *hello, struct mfl_error *err)
{
        const struct mfl_server_config *config = session->all->config;
        Mfl__Welcome body = MFL__WELCOME__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        session->peer = mfl_calloc(1, sizeof(struct mfl_operator_peer));
        if (!session->peer)
                return mfl_fail_memory(err, sizeof(struct mfl_operator_peer), "an operator's connection");
        mfl_admin_of(session)->n_operators++;
        body.protocol = session->protocol;
        body.software = "mfl-server " MFL_VERSION;
        body.heartbeat_ms = (uint32_t)config->heartbeat_ms;
        body.dead_ms = (uint32_t)config->dead_ms;
        envelope.body_case = MFL__ENVELOPE__BODY_WELCOME;
        envelope.welcome = &body;
        mfl_session_welcomed(session);
        mfl_session_send(session, &envelope);
        return 0;
}

static void on_closed(struct mfl_session *session, const char *reason)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        mfl_transfer_stop(session);
        mfl_submission_free(session);
        mfl_operator_asking_free(session);
        mfl_watch_forget(session);
        mfl_operator_serving_forget(session);
        mfl_assert(admin->n_operators > 0);
        admin->n_operators--;
        free(session->peer);
        session->peer = NULL;
}

static const struct mfl_session_ops ops = {
        .denied = on_denied,
        .greeted = on_greeted,
        .payload = on_payload,
        .frame = on_frame,
        .closed = on_closed,
};

void mfl_admin_open(struct mfl_admin *admin)
{
        mfl_sessions_register(admin->sessions, MFL__ROLE__ROLE_OPERATOR, &ops, admin);
}

void mfl_admin_beat(struct mfl_admin *admin)
{
        if (admin->n_operators)
                mfl_watch_flush(admin);
        mfl_operator_check_drains(admin);
}

void mfl_admin_round(struct mfl_admin *admin, const struct mfl_server_job *job)
{
        mfl_watch_round(admin, job);
}

void mfl_admin_log(
        struct mfl_admin *admin, const char *job, uint64_t seq, uint64_t time_unix_ms, const char *text)
{
        if (admin->n_log_watchers)
                mfl_watch_log(admin, job, seq, time_unix_ms, text);
}
