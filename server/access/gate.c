/* SPDX-License-Identifier: Apache-2.0 */
/* Lets daemons in, sends them away, and remembers recent refusals. */
#include "server/access/gate.h"

#include "common/base/log.h"
#include "server/session/admission.h"

int mfl_gate_open(struct mfl_gate *gate, struct mfl_store *store, struct mfl_error *err)
{
        int r = mfl_store_drained(store, &gate->drained, err);
        return r ? r : mfl_store_rules(store, &gate->rules, err);
}

void mfl_gate_close(struct mfl_gate *gate)
{
        mfl_store_names_deinit(&gate->drained);
        mfl_store_rules_deinit(&gate->rules);
}

static struct mfl_access_peer peer_of(const struct mfl_session *session, const char *name)
{
        const struct mfl_tls_identity *id = session ? mfl_stream_identity(&session->stream) : NULL;
        if (session && session->carrier)
                return (struct mfl_access_peer){name, session->cn, session->fingerprint};
        return (struct mfl_access_peer){name, id ? id->name : "", id ? id->fingerprint : ""};
}

/* ---- daemons that connect ---- */

static void fill_refused(
        const struct mfl_session *session, const char *reason, struct mfl_refused_daemon *refused)
{
        struct mfl_access_peer peer = peer_of(session, refused->name);
        mfl_strcpy(refused->cn, sizeof refused->cn, peer.cn);
        mfl_strcpy(refused->fingerprint, sizeof refused->fingerprint, peer.fingerprint);
        mfl_strcpy(refused->address, sizeof refused->address, session ? session->address : "");
        mfl_strcpy(refused->reason, sizeof refused->reason, reason);
        refused->last_ms = mfl_unix_ms();
}

bool mfl_gate_admit(struct mfl_gate *gate, struct mfl_session *session, const Mfl__Hello *hello)
{
        struct mfl_access_peer peer = peer_of(session, hello->name);
        char reason[MFL_REASON_BYTES];
        mfl_assert(hello->role == MFL__ROLE__ROLE_DAEMON && session->state == MFL_SESSION_STRANGER);
        enum mfl_access access = mfl_access_check(&gate->rules, &peer, mfl_unix_ms(), reason);
        if (access == MFL_ACCESS_OK) {
                mfl_refused_forget(&gate->refused, hello->name);
                return true;
        }
        gate->n_refused[access]++;
        struct mfl_refused_daemon refused = {.workers = hello->workers};
        mfl_strcpy(refused.name, sizeof refused.name, hello->name);
        mfl_strcpy(refused.node, sizeof refused.node, hello->node);
        mfl_strcpy(refused.backend, sizeof refused.backend, hello->backend);
        mfl_strcpy(refused.device, sizeof refused.device, hello->device);
        mfl_strcpy(refused.software, sizeof refused.software, hello->software);
        fill_refused(session, reason, &refused);
        if (mfl_refused_note(&gate->refused, &refused)) {
                mfl_admission_warn(gate->sessions,
                        "%s: daemon %s is refused: %s; repeated attempts are not logged", session->address,
                        hello->name, reason);
                mfl_book_note(gate->book, session, "connect", hello->name, "refused", reason);
        }
        mfl_session_refuse(session, reason);
        return false;
}

void mfl_gate_denied(
        struct mfl_gate *gate, struct mfl_session *session, const Mfl__Hello *hello, const char *text)
{
        gate->n_refused[MFL_ACCESS_OK] += hello->role == MFL__ROLE__ROLE_DAEMON;
        mfl_book_note(gate->book, session, "connect", hello->name, "refused", text);
}

/* The core no longer lists the daemon, or will not for long. */
void mfl_gate_accuse(struct mfl_gate *gate, const struct mfl_core_action *action)
{
        struct mfl_session *session = mfl_session_find(gate->sessions, action->conn);
        char reason[MFL_REASON_BYTES];
        const char *job = action->job[0] ? action->job : "no job";
        mfl_assert(action->kind == MFL_ACT_ACCUSE && *action->accused);
        mfl_snprintf(reason, sizeof reason, "sent away: %.200s (%s)", action->reason, job);
        mfl_log(MFL_LOG_WARN, "daemon %s (%s) is sent away because of what it said: %s (%s)", action->accused,
                session ? session->address : "its connection is closed", action->reason, job);
        mfl_book_note(gate->book, session, "expel", action->accused, "refused", reason);
        gate->n_refused[MFL_ACCESS_LIED]++;
}

/* ---- daemons that are connected ---- */

struct expelled {
        char name[MFL_NAME_BYTES], reason[MFL_REASON_BYTES];
};

static enum mfl_access check_view(
        struct mfl_gate *gate, const struct mfl_core_daemon_view *view, char reason[MFL_REASON_BYTES])
{
        struct mfl_session *session = view->conn ? mfl_session_find(gate->sessions, view->conn) : NULL;
        struct mfl_access_peer peer = peer_of(session, view->info->name);
        return session ? mfl_access_check(&gate->rules, &peer, mfl_unix_ms(), reason)
                       : mfl_access_check_absent(&gate->rules, view->info->name, mfl_unix_ms(), reason);
}

static void keep_refused(struct mfl_gate *gate, const struct mfl_core_daemon_view *view, const char *reason)
{
        struct mfl_refused_daemon refused = {.workers = view->info->workers};
        mfl_strcpy(refused.name, sizeof refused.name, view->info->name);
        mfl_strcpy(refused.node, sizeof refused.node, view->info->node);
        mfl_strcpy(refused.backend, sizeof refused.backend, view->info->backend);
        mfl_strcpy(refused.device, sizeof refused.device, view->info->device);
        mfl_strcpy(refused.software, sizeof refused.software, view->info->software);
        fill_refused(mfl_session_find(gate->sessions, view->conn), reason, &refused);
        mfl_refused_note(&gate->refused, &refused);
}

static void feed_expel(struct mfl_gate *gate, const struct expelled *expelled)
{
        struct mfl_core_event event = {.kind = MFL_EV_EXPEL};
        mfl_log(MFL_LOG_INFO, "daemon %s is sent away: %s", expelled->name, expelled->reason);
        mfl_strcpy(event.drain.name, sizeof event.drain.name, expelled->name);
        mfl_strcpy(event.reason, sizeof event.reason, expelled->reason);
        mfl_loop_feed(gate->loop, &event);
}

/* Names are collected first: an event may take a daemon out of the core's list. */
static int expel(struct mfl_gate *gate, uint32_t *ret_n)
{
        const struct mfl_core *core = gate->loop->core;
        uint32_t n = mfl_core_daemon_count(core), n_out = 0;
        MFL_CLEANUP_FREE struct expelled *out = mfl_calloc(n, sizeof *out);
        if (!out)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(core, i, &view);
                enum mfl_access access = check_view(gate, &view, out[n_out].reason);
                if (access == MFL_ACCESS_OK)
                        continue;
                mfl_strcpy(out[n_out].name, sizeof out[n_out].name, view.info->name);
                *ret_n += view.conn != 0;
                if (view.conn) {
                        gate->n_refused[access]++;
                        keep_refused(gate, &view, out[n_out].reason);
                }
                n_out++;
        }
        for (uint32_t i = 0; i < n_out; i++)
                feed_expel(gate, &out[i]);
        return 0;
}

int mfl_gate_change(
        struct mfl_gate *gate, const struct mfl_store_rule *rule, bool remove, uint32_t *ret_n_sent_away)
{
        int r = 0;
        mfl_assert(*rule->pattern);
        *ret_n_sent_away = 0;
        mfl_access_expire(&gate->rules, mfl_unix_ms());
        if (remove)
                mfl_access_remove(&gate->rules, rule->pattern, rule->verdict);
        else
                r = mfl_access_put(&gate->rules, rule);
        if (!r)
                r = expel(gate, ret_n_sent_away);
        mfl_gate_trim(gate);
        return r;
}

void mfl_gate_trim(struct mfl_gate *gate)
{
        uint64_t now = mfl_unix_ms();
        mfl_access_expire(&gate->rules, now);
        mfl_refused_trim(&gate->refused, &gate->rules, now);
}

/* ---- which daemons a pattern matches ---- */

/* Views are taken once: a view of a daemon costs more than a comparison. */
void mfl_gate_count_connected(
        const struct mfl_gate *gate, const char *const *pattern, uint32_t *n, uint32_t n_patterns)
{
        uint32_t n_daemons = mfl_core_daemon_count(gate->loop->core);
        for (uint32_t i = 0; i < n_daemons; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(gate->loop->core, i, &view);
                struct mfl_session *session = view.conn ? mfl_session_find(gate->sessions, view.conn) : NULL;
                struct mfl_access_peer peer = peer_of(session, view.info->name);
                for (uint32_t k = 0; session && k < n_patterns; k++)
                        n[k] += mfl_access_matches(pattern[k], &peer);
        }
}

uint32_t mfl_gate_count_refused(const struct mfl_gate *gate, const char *pattern)
{
        uint32_t n_match = 0;
        for (uint32_t i = 0; i < gate->refused.n; i++) {
                const struct mfl_refused_daemon *r = &gate->refused.v[i];
                struct mfl_access_peer peer = {r->name, r->cn, r->fingerprint};
                n_match += mfl_access_matches(pattern, &peer);
        }
        return n_match;
}

uint32_t mfl_gate_refused(const struct mfl_gate *gate)
{
        return mfl_refused_count(&gate->refused, &gate->rules, mfl_unix_ms());
}

/* ---- drained daemons ---- */

static char *drained_name(const struct mfl_gate *gate, const char *name)
{
        for (uint32_t i = 0; i < gate->drained.n; i++)
                if (!strcmp(gate->drained.v[i], name))
                        return gate->drained.v[i];
        return NULL;
}

bool mfl_gate_is_drained_by_name(const struct mfl_gate *gate, const char *name)
{
        return drained_name(gate, name) != NULL;
}

bool mfl_gate_is_drained(const struct mfl_gate *gate, const char *daemon)
{
        return drained_name(gate, daemon) || drained_name(gate, MFL_GATE_ALL);
}

int mfl_gate_note_drained(struct mfl_gate *gate, const char *daemon, bool on)
{
        struct mfl_store_names *names = &gate->drained;
        mfl_assert(*daemon);
        char *known = drained_name(gate, daemon);
        if (on && !known) {
                void *v = mfl_realloc(names->v, (names->n + 1) * sizeof *names->v);
                if (!v)
                        return -ENOMEM;
                names->v = v;
                mfl_strcpy(names->v[names->n++], MFL_NAME_BYTES, daemon);
        } else if (!on && known) {
                memmove(known, names->v[--names->n], MFL_NAME_BYTES);
        }
        return 0;
}
