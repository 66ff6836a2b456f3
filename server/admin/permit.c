/* SPDX-License-Identifier: Apache-2.0 */
/* Who may change what. */
#include "server/admin/permit.h"

const char *mfl_operator_access_verb(const Mfl__Access *access)
{
        if (access->verdict == MFL__VERDICT__VERDICT_DENY)
                return access->remove ? "enable" : "disable";
        return access->remove ? "disallow" : "allow";
}

const char *mfl_operator_model_verb(Mfl__ModelVerb verb)
{
        static const char *const names[] = {[MFL__MODEL_VERB__MODEL_REGISTER] = "register",
                [MFL__MODEL_VERB__MODEL_ALIAS] = "alias",
                [MFL__MODEL_VERB__MODEL_PROMOTE] = "promote",
                [MFL__MODEL_VERB__MODEL_ROLLBACK] = "rollback",
                [MFL__MODEL_VERB__MODEL_REMOVE] = "unregister"};
        return names[verb];
}

/* The name of what a request changes; NULL when it only looks. */
static const char *action_of(const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_SUBMIT:
                return "submit";
        case MFL__ENVELOPE__BODY_STOP_JOB:
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                return "stop";
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                return "delete";
        case MFL__ENVELOPE__BODY_ARCHIVE_JOB:
                return e->archive_job->undo ? "unarchive" : "archive";
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                return e->clone_job->forget ? "forget" : e->clone_job->replay ? "replay" : "clone";
        case MFL__ENVELOPE__BODY_MOVE:
                return "move";
        case MFL__ENVELOPE__BODY_DRAIN:
                return e->drain->undo ? "undrain" : "drain";
        case MFL__ENVELOPE__BODY_ACCESS:
                return mfl_operator_access_verb(e->access);
        case MFL__ENVELOPE__BODY_INQUIRE: /* changes nothing, but makes sites work and tell */
                return "inquire";
        case MFL__ENVELOPE__BODY_LIST_INQUIRIES: /* changes nothing, but has what sites told those who may ask */
                return "inquiries";
        case MFL__ENVELOPE__BODY_CHANGE_MODEL:
                return mfl_operator_model_verb(e->change_model->verb);
        case MFL__ENVELOPE__BODY_LIST_AUDIT: /* changes nothing, but is not for everybody */
                return "audit";
        default:
                return NULL;
        }
}

static const char *object_of(const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_STOP_JOB:
                return e->stop_job->job;
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                return e->stop_after_round->job;
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                return e->delete_job->job;
        case MFL__ENVELOPE__BODY_ARCHIVE_JOB:
                return e->archive_job->job;
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                return e->clone_job->job;
        case MFL__ENVELOPE__BODY_MOVE:
                return e->move->job;
        case MFL__ENVELOPE__BODY_DRAIN:
                return e->drain->daemon;
        case MFL__ENVELOPE__BODY_ACCESS:
                return e->access->pattern;
        case MFL__ENVELOPE__BODY_INQUIRE:
                return *e->inquire->job     ? e->inquire->job
                       : *e->inquire->model ? e->inquire->model
                                            : e->inquire->data;
        case MFL__ENVELOPE__BODY_CHANGE_MODEL:
                return e->change_model->name;
        default:
                return "";
        }
}

static void refuse(struct mfl_session *session, uint64_t request, const char *action, const char *object,
        const char *text)
{
        mfl_book_note(mfl_admin_of(session)->book, session, action, object, "refused", text);
        mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_DENIED, "%s", text);
}

/* What a mfl-serve needs. */
static bool is_for_serve(const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_PULL:
                return !e->pull->change;
        case MFL__ENVELOPE__BODY_WATCH:
                return !e->watch->logs && !e->watch->crew;
        case MFL__ENVELOPE__BODY_WATCH_MODEL:
        case MFL__ENVELOPE__BODY_SERVING:
                return true;
        default:
                return false;
        }
}

bool mfl_operator_may_change(struct mfl_session *session, const Mfl__Envelope *e)
{
        const char *action = action_of(e);
        char roles[64], text[256];
        uint32_t needed = MFL_TLS_ROLE_ADMIN;
        const bool person =
                session->roles & (MFL_TLS_ROLE_VIEWER | MFL_TLS_ROLE_OPERATOR | MFL_TLS_ROLE_ADMIN);
        if (!person && !is_for_serve(e)) {
                mfl_snprintf(text, sizeof text,
                        "'%s' may only load models and follow them: the certificate says serve",
                        session->who);
                refuse(session, e->request, action ? action : "look", object_of(e), text);
                return false;
        }
        if (e->body_case != MFL__ENVELOPE__BODY_ACCESS)
                needed |= MFL_TLS_ROLE_OPERATOR;
        if (!action || session->roles & needed)
                return true;
        if (session->roles & MFL_TLS_ROLE_OPERATOR) {
                mfl_snprintf(text, sizeof text,
                        "only OU=admin may change which daemons take part, and the certificate of '%s' "
                        "says %s",
                        session->who, mfl_tls_roles_text(session->roles, roles, sizeof roles));
                refuse(session, e->request, action, object_of(e), text);
                return false;
        }
        mfl_snprintf(text, sizeof text, "'%s' may only look: the certificate says %s, and %s needs OU=%s",
                session->who, mfl_tls_roles_text(session->roles, roles, sizeof roles), action,
                needed & MFL_TLS_ROLE_OPERATOR ? "operator" : "admin");
        refuse(session, e->request, action, object_of(e), text);
        return false;
}

/* "local" and "anybody" are never owners, not even when a certificate has such a name. */
static bool owns(const struct mfl_session *session, const struct mfl_server_job *job)
{
        return *job->owner && strcmp(job->owner, "local") && strcmp(job->owner, "anybody") &&
               !strcmp(job->owner, session->who);
}

bool mfl_operator_may_touch(
        struct mfl_session *session, uint64_t request, const struct mfl_server_job *job, const char *action)
{
        char text[256];
        if (session->roles & MFL_TLS_ROLE_ADMIN || owns(session, job))
                return true;
        mfl_snprintf(text, sizeof text,
                "%s belongs to '%s', not to '%s': only its owner or OU=admin may %s it", job->id,
                *job->owner ? job->owner : "nobody", session->who, action);
        refuse(session, request, action, job->id, text);
        return false;
}

bool mfl_operator_may_copy(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job)
{
        if (job->unread)
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_CONFLICT,
                        "this release can't read the job file of %s", job->id);
        return !job->unread;
}

bool mfl_operator_may_carry(struct mfl_session *session, uint64_t request, const struct mfl_server_job *job)
{
        char text[300];
        if (!mfl_operator_may_copy(session, request, job)) /* nobody knows whether it keeps states */
                return false;
        if (session->roles & MFL_TLS_ROLE_ADMIN || !mfl_job_keeps_state(job->spec) ||
                job->spec->client_state != MFL_CLIENT_STATE_SERVER)
                return true;
        mfl_snprintf(text, sizeof text,
                "%s keeps a state of each client on this server, which would pass through your hands: only "
                "OU=admin "
                "may move it",
                job->id);
        refuse(session, request, "move", job->id, text);
        return false;
}
