/* SPDX-License-Identifier: Apache-2.0 */
/* The audit, as admins and operators list it. */
#include "server/admin/answers.h"

#define LIST_DEFAULT 100u

static void run_list(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_audit_list(op->admin->store, (uint32_t)op->which, &op->audits, &op->err);
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
