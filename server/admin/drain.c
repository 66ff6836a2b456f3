/* SPDX-License-Identifier: Apache-2.0 */
/* Draining daemons, so that they get no more work, and waiting until they are idle. */
#include <stdio.h>

#include "server/admin/answers.h"

struct mfl_drain_wait {
        struct mfl_drain_wait *next;
        uint32_t conn;
        uint64_t request;
        char daemon[MFL_NAME_BYTES];
};

/* "" when there is no such daemon. */
static const char *daemon_state(struct mfl_admin *admin, const char *name)
{
        uint32_t n = mfl_core_daemon_count(admin->loop->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(admin->loop->core, i, &view);
                if (!strcmp(view.info->name, name))
                        return view.state;
        }
        return "";
}

/* Whether a drain of that name, or of MFL_GATE_ALL, still has to wait. */
static bool is_draining(struct mfl_admin *admin, const char *name)
{
        bool all = !strcmp(name, MFL_GATE_ALL);
        uint32_t n = mfl_core_daemon_count(admin->loop->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(admin->loop->core, i, &view);
                if ((all || !strcmp(view.info->name, name)) && !strcmp(view.state, "draining"))
                        return true;
        }
        return false;
}

static void answer_drained(struct mfl_session *session, uint64_t request, const char *name);

void mfl_operator_check_drains(struct mfl_admin *admin)
{
        struct mfl_drain_wait **at = &admin->drains, *wait;
        while ((wait = *at)) {
                if (is_draining(admin, wait->daemon)) {
                        at = &wait->next;
                        continue;
                }
                struct mfl_session *session = mfl_session_find(admin->sessions, wait->conn);
                if (session)
                        answer_drained(session, wait->request, wait->daemon);
                *at = wait->next;
                free(wait);
        }
}

static void feed_drain(struct mfl_admin *admin, const char *daemon, bool on)
{
        struct mfl_core_event event = {.kind = MFL_EV_DRAIN, .drain = {.on = on}};
        mfl_strcpy(event.drain.name, sizeof event.drain.name, daemon);
        mfl_loop_feed(admin->loop, &event);
}

static void run_drain(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = mfl_store_drain(op->admin->store, op->name, op->drain, &op->err);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon);

/* What the answer to a Drain of all daemons says: how many are connected, drained and working. */
struct drain_count {
        uint32_t n, n_drained, n_at_work;
};

static struct drain_count count_drained(struct mfl_admin *admin)
{
        struct drain_count count = {0};
        uint32_t n = mfl_core_daemon_count(admin->loop->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(admin->loop->core, i, &view);
                count.n += view.conn != 0;
                count.n_drained += !strcmp(view.state, "drained");
                count.n_at_work += !strcmp(view.state, "draining");
        }
        return count;
}

static void answer_all(struct mfl_admin *admin, struct mfl_session *session, uint64_t request)
{
        struct drain_count count = count_drained(admin);
        char text[200];
        if (!mfl_gate_is_drained_by_name(admin->gate, MFL_GATE_ALL))
                snprintf(text, sizeof text, "%u of %u connected daemons take work; %u stay drained by name",
                        count.n - count.n_drained - count.n_at_work, count.n,
                        count.n_drained + count.n_at_work);
        else if (count.n_at_work)
                snprintf(text, sizeof text, "%u of %u connected daemons are still working", count.n_at_work,
                        count.n);
        else
                snprintf(text, sizeof text,
                        "no daemon is working (%u connected): it is safe to restart or upgrade the server "
                        "and daemons",
                        count.n);
        mfl_operator_done(session, request, text);
}

/* The wait is over. */
static void answer_drained(struct mfl_session *session, uint64_t request, const char *name)
{
        if (!strcmp(name, MFL_GATE_ALL))
                answer_all(mfl_admin_of(session), session, request);
        else
                mfl_operator_done(session, request, "drained");
}

static void answer_drain(struct mfl_request *op, struct mfl_session *session)
{
        if (!session)
                return;
        if (op->wait && op->drain && is_draining(op->admin, op->name))
                wait_for_drain(session, op->request, op->name);
        else if (!strcmp(op->name, MFL_GATE_ALL))
                answer_all(op->admin, session, op->request);
        else
                mfl_operator_done(session, op->request, daemon_state(op->admin, op->name));
}

/* Names are collected first: an event may take a daemon out of the core's list. */
static int feed_drain_all(struct mfl_admin *admin)
{
        uint32_t n = mfl_core_daemon_count(admin->loop->core);
        char(*names)[MFL_NAME_BYTES] = mfl_calloc(n, sizeof *names);
        if (!names)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(admin->loop->core, i, &view);
                mfl_strcpy(names[i], sizeof names[i], view.info->name);
        }
        for (uint32_t i = 0; i < n; i++)
                feed_drain(admin, names[i], mfl_gate_is_drained(admin->gate, names[i]));
        free(names);
        return 0;
}

static int carry_out_drain(struct mfl_admin *admin, const char *name, bool on)
{
        int r = mfl_gate_note_drained(admin->gate, name, on);
        if (r)
                return r;
        if (!strcmp(name, MFL_GATE_ALL))
                return feed_drain_all(admin);
        feed_drain(admin, name, mfl_gate_is_drained(admin->gate, name));
        return 0;
}

void mfl_operator_drain(struct mfl_session *session, uint64_t request, const Mfl__Drain *drain)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        const char *name = drain->all ? MFL_GATE_ALL : drain->daemon;
        if (!drain->all && !*daemon_state(admin, name)) {
                mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_NOT_FOUND,
                        "there is no daemon '%s'", name);
                return;
        }
        struct mfl_request *op = mfl_request_new(session, request, "", run_drain, answer_drain);
        if (!op)
                return;
        if (carry_out_drain(admin, name, !drain->undo)) {
                mfl_request_free(op);
                mfl_operator_no_memory(session, MFL_NAME_BYTES, "names of daemons");
                return;
        }
        mfl_strcpy(op->name, sizeof op->name, name);
        op->drain = !drain->undo;
        op->wait = drain->wait;
        mfl_request_audit(op, drain->undo ? "undrain" : "drain", drain->daemon);
        mfl_request_start(op, session);
}

static void wait_for_drain(struct mfl_session *session, uint64_t request, const char *daemon)
{
        struct mfl_admin *admin = mfl_admin_of(session);
        struct mfl_drain_wait *wait = mfl_calloc(1, sizeof *wait);
        if (!wait) {
                mfl_operator_no_memory(session, sizeof *wait, "a request");
                return;
        }
        mfl_assert(*daemon);
        wait->conn = session->conn;
        wait->request = request;
        mfl_strcpy(wait->daemon, sizeof wait->daemon, daemon);
        wait->next = admin->drains;
        admin->drains = wait;
}
