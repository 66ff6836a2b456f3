/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger of data sets, as operators list it. */
#include "server/admin/answers.h"

static void run_list(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_spent_list(op->admin->store, "", &op->spents, &op->err);
}

static void answer_list(struct mfl_request *op, struct mfl_session *session)
{
        static const struct mfl_privacy_limits none;
        const struct mfl_privacy_limits *limits = op->admin->jobs->limits ? op->admin->jobs->limits : &none;
        uint32_t n = op->spents.n;
        MFL_CLEANUP_FREE Mfl__Spent *rows = mfl_calloc(n, sizeof *rows);
        MFL_CLEANUP_FREE Mfl__Spent **pointers = mfl_calloc(n, sizeof *pointers);
        Mfl__SpentLimit of[MFL_PRIVACY_LIMITS_MAX], *limit_pointers[MFL_PRIVACY_LIMITS_MAX];
        Mfl__SpentList list = MFL__SPENT_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!session)
                return;
        if (n && (!rows || !pointers)) {
                mfl_operator_no_memory(session, n * sizeof *rows, "the ledger");
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                mfl__spent__init(&rows[i]);
                rows[i].data = op->spents.v[i].data;
                rows[i].job = op->spents.v[i].job;
                rows[i].sigma = op->spents.v[i].sigma;
                rows[i].rate = op->spents.v[i].rate;
                rows[i].releases = op->spents.v[i].releases;
                pointers[i] = &rows[i];
        }
        for (uint32_t i = 0; i < limits->n; i++) {
                mfl__spent_limit__init(&of[i]);
                of[i].data = (char *)(uintptr_t)limits->v[i].data;
                of[i].epsilon = limits->v[i].epsilon;
                of[i].delta = limits->v[i].delta;
                limit_pointers[i] = &of[i];
        }
        list.n_rows = n;
        list.rows = pointers;
        list.n_limits = limits->n;
        list.limits = limit_pointers;
        if (mfl__spent_list__get_packed_size(&list) > MFL_LIST_BYTES_MAX) {
                mfl_session_fail(session, op->request, MFL__FAILURE_CODE__FAILURE_INVALID,
                        "the ledger has %u rows, too many for an answer", n);
                return;
        }
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_SPENT_LIST;
        envelope.spent_list = &list;
        mfl_session_send(session, &envelope);
}

void mfl_operator_spent(struct mfl_session *session, uint64_t request)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_list, answer_list);
        if (op)
                mfl_request_start(op, session);
}
