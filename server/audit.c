/* SPDX-License-Identifier: Apache-2.0 */
/* Who may change what, and the book of who did or tried.
 *
 * A viewer looks on. An operator submits, drains, and does as he likes with his own jobs; another's job takes
 * an admin, and so does a rule about which daemons may take part, for it takes work away from everybody's
 * jobs. Whatever a request changes is written down with its result before the answer goes out; refusals are,
 * too, as long as they are not too many: a book that anybody can fill is no book.
 */
#include "common/log.h"
#include "server/operator.h"

#define REFUSALS_PER_MINUTE 100
#define LIST_DEFAULT 100u

struct note {
        struct mfl_work work;
        struct mfl_server *server;
        struct mfl_store_audit entry;
};

static void run_note(struct mfl_work *work)
{
        struct note *note = MFL_CONTAINER_OF(work, struct note, work);
        struct mfl_store_audit *e = &note->entry;
        struct mfl_error err;
        if (mfl_store_audit_add(note->server->store, e, &err)) /* whoever is broken tells so by itself */
                mfl_log(MFL_LOG_WARN, "audit: %s from %s: %s %s: %s (not in the database: %s)", e->who,
                        e->address, e->action, e->object, e->result, err.text);
}

static void done_note(struct mfl_work *work)
{
        free(MFL_CONTAINER_OF(work, struct note, work));
}

static bool within_bound(struct mfl_server *server)
{
        uint64_t now = uv_now(&server->loop);
        if (now - server->refusals_ms >= 60000) {
                server->refusals_ms = now;
                server->n_refusals = 0;
        }
        if (server->n_refusals++ == REFUSALS_PER_MINUTE)
                mfl_log(MFL_LOG_WARN,
                        "audit: more than %d refusals within a minute: the rest of them is not written",
                        REFUSALS_PER_MINUTE);
        return server->n_refusals <= REFUSALS_PER_MINUTE;
}

void mfl_audit_note(struct mfl_server *server, const struct mfl_session *session, const char *action,
        const char *object, const char *result, const char *text)
{
        if (!strcmp(result, "refused") && !within_bound(server))
                return;
        struct note *note = mfl_calloc(1, sizeof *note);
        if (!note)
                return;
        struct mfl_store_audit *e = &note->entry;
        note->server = server;
        note->work.run = run_note;
        note->work.done = done_note;
        mfl_strcpy(e->who, sizeof e->who, session ? session->who : "local");
        mfl_strcpy(e->address, sizeof e->address, session ? session->peer : "");
        mfl_strcpy(e->action, sizeof e->action, action);
        mfl_strcpy(e->object, sizeof e->object, object);
        mfl_strcpy(e->result, sizeof e->result, result);
        mfl_strcpy(e->text, sizeof e->text, text);
        if (mfl_worker_submit(&server->disk, &note->work))
                free(note);
}

/* ---- permission ---- */

const char *mfl_operator_action(const Mfl__Envelope *e)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_SUBMIT:
                return "submit";
        case MFL__ENVELOPE__BODY_STOP_JOB:
        case MFL__ENVELOPE__BODY_STOP_AFTER_ROUND:
                return "stop";
        case MFL__ENVELOPE__BODY_DELETE_JOB:
                return "delete";
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                return "clone";
        case MFL__ENVELOPE__BODY_DRAIN:
                return e->drain->undo ? "undrain" : "drain";
        case MFL__ENVELOPE__BODY_ACCESS:
                return mfl_operator_access_verb(e->access);
        case MFL__ENVELOPE__BODY_LIST_AUDIT: /* it changes nothing, but it is not for everybody */
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
        case MFL__ENVELOPE__BODY_CLONE_JOB:
                return e->clone_job->job;
        case MFL__ENVELOPE__BODY_DRAIN:
                return e->drain->daemon;
        case MFL__ENVELOPE__BODY_ACCESS:
                return e->access->pattern;
        default:
                return "";
        }
}

static void refuse(struct mfl_session *session, uint64_t request, const char *action, const char *object,
        const char *text)
{
        mfl_audit_note(session->server, session, action, object, "refused", text);
        mfl_operator_fail(session, request, MFL__FAILURE_CODE__FAILURE_DENIED, "%s", text);
}

bool mfl_operator_may_change(struct mfl_session *session, const Mfl__Envelope *e)
{
        const char *action = mfl_operator_action(e);
        char roles[64], text[256];
        uint32_t needed = MFL_TLS_ROLE_ADMIN;
        if (e->body_case != MFL__ENVELOPE__BODY_ACCESS)
                needed |= MFL_TLS_ROLE_OPERATOR;
        if (!action || session->roles & needed)
                return true;
        if (session->roles & MFL_TLS_ROLE_OPERATOR) {
                mfl_snprintf(text, sizeof text,
                        "which daemons may take part is for OU=admin to say, and the certificate of '%s' "
                        "says %s",
                        session->who, mfl_tls_roles_text(session->roles, roles, sizeof roles));
                refuse(session, e->request, action, object_of(e), text);
                return false;
        }
        mfl_snprintf(text, sizeof text, "'%s' may look on only: the certificate says %s, and %s needs OU=%s",
                session->who, mfl_tls_roles_text(session->roles, roles, sizeof roles), action,
                needed & MFL_TLS_ROLE_OPERATOR ? "operator" : "admin");
        refuse(session, e->request, action, object_of(e), text);
        return false;
}

/* "local" and "anybody" are not names of a certificate, whoever issues one for them. */
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
                "%s belongs to '%s', not to '%s': to %s it takes its owner or OU=admin", job->id,
                *job->owner ? job->owner : "nobody", session->who, action);
        refuse(session, request, action, job->id, text);
        return false;
}

/* ---- the book ---- */

static void run_list(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_audit_list(op->server->store, (uint32_t)op->which, &op->audits, &op->err);
}

static void answer_list(struct mfl_request *op, struct mfl_session *session)
{
        uint32_t n = op->audits.n;
        MFL_CLEANUP_FREE Mfl__AuditEntry *entries = mfl_calloc(n, sizeof *entries);
        MFL_CLEANUP_FREE Mfl__AuditEntry **pointers = mfl_calloc(n, sizeof *pointers);
        Mfl__AuditList list = MFL__AUDIT_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session)
                return;
        if (!entries || !pointers) {
                mfl_operator_no_memory(session, n * sizeof *entries, "the audit");
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_store_audit *e = &op->audits.v[i];
                mfl__audit_entry__init(&entries[i]);
                entries[i].seq = e->seq;
                entries[i].time_ms = e->time_ms;
                entries[i].who = e->who;
                entries[i].address = e->address;
                entries[i].action = e->action;
                entries[i].object = e->object;
                entries[i].result = e->result;
                entries[i].text = e->text;
                pointers[i] = &entries[i];
        }
        list.n_entries = n;
        list.entries = pointers;
        while (mfl__audit_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX) { /* the oldest are left out */
                size_t n_dropped = list.n_entries / 8 + 1;
                list.entries += n_dropped;
                list.n_entries -= n_dropped;
        }
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_AUDIT_LIST;
        envelope.audit_list = &list;
        mfl_session_send(session, &envelope);
}

void mfl_operator_audit(struct mfl_session *session, uint64_t request, const Mfl__ListAudit *list)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_list, answer_list);
        if (!op)
                return;
        op->which = list->count ? list->count : LIST_DEFAULT;
        mfl_request_start(op, session);
}
