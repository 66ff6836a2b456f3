/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about which daemons may take part, as they work on a running server.
 *
 *   - a Hello is looked at after its certificate: whoever may not come in gets Bye with the reason, and is
 * kept in a list for those who look;
 *   - a request changes the database first, so that its answer means what it says, then the rules in memory,
 *     and sends away whom they forbid;
 *   - a refusal is one line and one row of the audit, not one for each try.
 * Fails as any request does: the disk, or too many rules. Then nothing has changed.
 */
#include <stdio.h>

#include "common/log.h"
#include "server/operator.h"

/* ---- who comes ---- */

static struct mfl_access_peer peer_of(const struct mfl_session *session, const char *name)
{
        const struct mfl_tls_identity *id = session ? mfl_stream_identity(&session->stream) : NULL;
        return (struct mfl_access_peer){name, id ? id->name : "", id ? id->fingerprint : ""};
}

static void fill_refused(
        const struct mfl_session *session, const char *reason, struct mfl_refused_daemon *refused)
{
        struct mfl_access_peer peer = peer_of(session, refused->name);
        mfl_strcpy(refused->cn, sizeof refused->cn, peer.cn);
        mfl_strcpy(refused->fingerprint, sizeof refused->fingerprint, peer.fingerprint);
        mfl_strcpy(refused->address, sizeof refused->address, session ? session->peer : "");
        mfl_strcpy(refused->reason, sizeof refused->reason, reason);
        refused->last_ms = mfl_unix_ms();
}

bool mfl_operator_admit(struct mfl_session *session, const Mfl__Hello *hello)
{
        struct mfl_server *server = session->server;
        struct mfl_access_peer peer = peer_of(session, hello->name);
        char reason[MFL_REASON_BYTES];
        enum mfl_access access = mfl_access_check(&server->rules, &peer, mfl_unix_ms(), reason);
        if (access == MFL_ACCESS_OK) {
                mfl_refused_forget(&server->refused, hello->name);
                return true;
        }
        server->observed.daemons_refused[access]++;
        struct mfl_refused_daemon refused = {.workers = hello->workers};
        mfl_strcpy(refused.name, sizeof refused.name, hello->name);
        mfl_strcpy(refused.node, sizeof refused.node, hello->node);
        mfl_strcpy(refused.backend, sizeof refused.backend, hello->backend);
        mfl_strcpy(refused.device, sizeof refused.device, hello->device);
        mfl_strcpy(refused.software, sizeof refused.software, hello->software);
        fill_refused(session, reason, &refused);
        if (mfl_refused_note(&server->refused, &refused)) {
                mfl_admission_warn(server, "%s: daemon %s is refused: %s; the same again is not told",
                        session->peer, hello->name, reason);
                mfl_audit_note(server, session, "connect", hello->name, "refused", reason);
        }
        session->refused = true;
        mfl_stream_close(&session->stream, reason, true);
        return false;
}

/* ---- who is there ---- */

struct expelled {
        char name[MFL_NAME_BYTES], reason[MFL_REASON_BYTES];
};

static enum mfl_access check_view(
        struct mfl_server *server, const struct mfl_core_daemon_view *view, char reason[MFL_REASON_BYTES])
{
        struct mfl_session *session = view->conn ? mfl_session_find(server, view->conn) : NULL;
        struct mfl_access_peer peer = peer_of(session, view->info->name);
        return session ? mfl_access_check(&server->rules, &peer, mfl_unix_ms(), reason)
                       : mfl_access_check_absent(&server->rules, view->info->name, mfl_unix_ms(), reason);
}

static void keep_refused(
        struct mfl_server *server, const struct mfl_core_daemon_view *view, const char *reason)
{
        struct mfl_refused_daemon refused = {.workers = view->info->workers};
        mfl_strcpy(refused.name, sizeof refused.name, view->info->name);
        mfl_strcpy(refused.node, sizeof refused.node, view->info->node);
        mfl_strcpy(refused.backend, sizeof refused.backend, view->info->backend);
        mfl_strcpy(refused.device, sizeof refused.device, view->info->device);
        mfl_strcpy(refused.software, sizeof refused.software, view->info->software);
        fill_refused(mfl_session_find(server, view->conn), reason, &refused);
        mfl_refused_note(&server->refused, &refused);
}

/* Their names first: an event may take a daemon out of the core's list. */
static int expel(struct mfl_server *server, uint32_t *ret_n)
{
        uint32_t n = mfl_core_daemon_count(server->core), n_out = 0;
        MFL_CLEANUP_FREE struct expelled *out = mfl_calloc(n, sizeof *out);
        if (!out)
                return -ENOMEM;
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                enum mfl_access access = check_view(server, &view, out[n_out].reason);
                if (access == MFL_ACCESS_OK)
                        continue;
                mfl_strcpy(out[n_out].name, sizeof out[n_out].name, view.info->name);
                *ret_n += view.conn != 0;
                if (view.conn) {
                        server->observed.daemons_refused[access]++;
                        keep_refused(server, &view, out[n_out].reason);
                }
                n_out++;
        }
        for (uint32_t i = 0; i < n_out; i++) {
                struct mfl_core_event event = {.kind = MFL_EV_EXPEL};
                mfl_log(MFL_LOG_INFO, "daemon %s is sent away: %s", out[i].name, out[i].reason);
                mfl_strcpy(event.drain.name, sizeof event.drain.name, out[i].name);
                mfl_strcpy(event.reason, sizeof event.reason, out[i].reason);
                mfl_server_feed(server, &event);
        }
        return 0;
}

/* ---- counting whom a pattern means ---- */

/* Adds to `connected` of each rule. Daemons are looked at once: a view of one costs more than to match it. */
static void count_connected(struct mfl_server *server, Mfl__AccessRule *rules, uint32_t n_rules)
{
        uint32_t n = mfl_core_daemon_count(server->core);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_core_daemon_view view;
                mfl_core_daemon_view(server->core, i, &view);
                struct mfl_session *session = view.conn ? mfl_session_find(server, view.conn) : NULL;
                struct mfl_access_peer peer = peer_of(session, view.info->name);
                for (uint32_t k = 0; session && k < n_rules; k++)
                        rules[k].connected += mfl_access_matches(rules[k].pattern, &peer);
        }
}

static uint32_t count_refused(struct mfl_server *server, const char *pattern)
{
        uint32_t n_match = 0;
        for (uint32_t i = 0; i < server->refused.n; i++) {
                const struct mfl_refused_daemon *r = &server->refused.v[i];
                struct mfl_access_peer peer = {r->name, r->cn, r->fingerprint};
                n_match += mfl_access_matches(pattern, &peer);
        }
        return n_match;
}

/* ---- changes ---- */

const char *mfl_operator_access_verb(const Mfl__Access *access)
{
        if (access->verdict == MFL__VERDICT__VERDICT_DENY)
                return access->remove ? "enable" : "disable";
        return access->remove ? "disallow" : "allow";
}

static void run_access(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = op->which ? mfl_store_rule_remove(
                                         op->server->store, op->rule.pattern, op->rule.verdict, &op->err)
                               : mfl_store_rule_put(op->server->store, &op->rule, &op->err);
}

/* What stands in the way of the daemons that a pattern was to let in. */
static void add_obstacle(struct mfl_server *server, const char *pattern, char *text, size_t bytes)
{
        char reason[MFL_REASON_BYTES];
        struct mfl_access_peer peer = {pattern, "", ""};
        size_t n = strlen(text);
        if (strpbrk(pattern, "*?:") ||
                mfl_access_check(&server->rules, &peer, mfl_unix_ms(), reason) == MFL_ACCESS_OK)
                return;
        snprintf(text + n, bytes - n, "; but it still may not take part: %s", reason);
}

static void answer_text(struct mfl_request *op, uint32_t n_known, uint32_t n_out, char *text, size_t bytes)
{
        bool deny = op->rule.verdict == MFL_VERDICT_DENY, lets_in = op->which ? deny : !deny;
        const char *done = op->which ? deny ? "enabled" : "no longer allowed" : deny ? "disabled" : "allowed";
        size_t n = (size_t)snprintf(text, bytes, "%s", done);
        if (n_out)
                n += (size_t)snprintf(text + n, bytes - n, "; %u connected daemon%s sent away", n_out,
                        n_out == 1 ? " is" : "s are");
        if (!op->which && !n_known)
                snprintf(text + n, bytes - n,
                        "; warning: no daemon that is connected or was refused lately matches it");
        if (lets_in)
                add_obstacle(op->server, op->rule.pattern, text, bytes);
}

static void answer_access(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_server *server = op->server;
        const struct mfl_store_rule *rule = &op->rule;
        char text[600];
        Mfl__AccessRule known = MFL__ACCESS_RULE__INIT;
        known.pattern = op->rule.pattern;
        count_connected(server, &known, 1);
        uint32_t n_out = 0, n_known = known.connected + count_refused(server, rule->pattern);
        int r = 0;
        mfl_access_expire(&server->rules, mfl_unix_ms());
        if (op->which)
                mfl_access_remove(&server->rules, rule->pattern, rule->verdict);
        else
                r = mfl_access_put(&server->rules, rule);
        if (!r)
                r = expel(server, &n_out);
        if (r) {
                struct mfl_error err;
                mfl_server_fatal(server, mfl_fail_memory(&err, sizeof *rule, "rules about daemons"), &err);
                return;
        }
        mfl_refused_trim(&server->refused, &server->rules, mfl_unix_ms());
        answer_text(op, n_known, n_out, text, sizeof text);
        mfl_log(MFL_LOG_INFO, "%s: daemons '%s': %s", op->audit.who, rule->pattern, text);
        if (session)
                mfl_operator_done(session, op->request, text);
}

_Static_assert((int)MFL_VERDICT_DENY == MFL__VERDICT__VERDICT_DENY, "verdicts differ");
_Static_assert((int)MFL_VERDICT_ALLOW == MFL__VERDICT__VERDICT_ALLOW, "verdicts differ");

void mfl_operator_access(struct mfl_session *session, uint64_t request, const Mfl__Access *access)
{
        struct mfl_request *op = mfl_request_new(session, request, "", run_access, answer_access);
        if (!op)
                return;
        op->rule = (struct mfl_store_rule){
                .verdict = (enum mfl_verdict)access->verdict, .time_ms = mfl_unix_ms()};
        op->rule.until_ms = access->seconds ? op->rule.time_ms + 1000ull * access->seconds : 0;
        mfl_strcpy(op->rule.pattern, sizeof op->rule.pattern, access->pattern);
        mfl_strcpy(op->rule.who, sizeof op->rule.who, session->who);
        mfl_strcpy(op->rule.reason, sizeof op->rule.reason, access->reason);
        for (char *c = op->rule.reason; *c; c++) /* it goes to logs and terminals */
                if ((unsigned char)*c < ' ' || *c == 0x7f)
                        *c = ' ';
        op->which = access->remove;
        mfl_request_audit(op, mfl_operator_access_verb(access), access->pattern);
        mfl_strcpy(op->audit.text, sizeof op->audit.text, access->reason);
        mfl_request_start(op, session);
}

/* ---- lists ---- */

void mfl_operator_access_list(struct mfl_session *session, uint64_t request)
{
        struct mfl_server *server = session->server;
        mfl_access_expire(&server->rules, mfl_unix_ms());
        mfl_refused_trim(&server->refused, &server->rules, mfl_unix_ms());
        uint32_t n = server->rules.n;
        MFL_CLEANUP_FREE Mfl__AccessRule *rules = mfl_calloc(n, sizeof *rules);
        MFL_CLEANUP_FREE Mfl__AccessRule **pointers = mfl_calloc(n, sizeof *pointers);
        Mfl__AccessList list = MFL__ACCESS_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!rules || !pointers) {
                mfl_operator_no_memory(session, n * sizeof *rules, "rules about daemons");
                return;
        }
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_store_rule *rule = &server->rules.v[i];
                mfl__access_rule__init(&rules[i]);
                rules[i].pattern = rule->pattern;
                rules[i].verdict = (Mfl__Verdict)rule->verdict;
                rules[i].who = rule->who;
                rules[i].time_ms = rule->time_ms;
                rules[i].until_ms = rule->until_ms;
                rules[i].reason = rule->reason;
                rules[i].refused = count_refused(server, rule->pattern);
                pointers[i] = &rules[i];
        }
        count_connected(server, rules, n);
        list.n_rules = n;
        list.rules = pointers;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_ACCESS_LIST;
        envelope.access_list = &list;
        mfl_session_send(session, &envelope);
}

void mfl_operator_fill_refused(const struct mfl_refused_daemon *refused, Mfl__DaemonInfo *ret_info)
{
        mfl__daemon_info__init(ret_info);
        ret_info->name = (char *)refused->name;
        ret_info->node = (char *)refused->node;
        ret_info->address = (char *)refused->address;
        ret_info->backend = (char *)refused->backend;
        ret_info->device = (char *)refused->device;
        ret_info->software = (char *)refused->software;
        ret_info->workers = refused->workers;
        ret_info->state = "refused";
        ret_info->note = (char *)refused->reason;
        ret_info->connected_ms = refused->last_ms;
}
