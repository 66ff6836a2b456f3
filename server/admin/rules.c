/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about daemons, changed and listed. The database changes first, so that the answer means what it says;
 * then the rules in memory, which sends away the daemons that may no longer take part. When the request fails
 * (the disk, too many rules) nothing has changed. */
#include <stdio.h>

#include "common/base/log.h"
#include "server/admin/answers.h"
#include "server/admin/permit.h"

static void run_access(struct mfl_work *work)
{
        struct mfl_request *op = mfl_request_of(work);
        op->status = op->remove ? mfl_store_rule_remove(
                                          op->admin->store, op->rule.pattern, op->rule.verdict, &op->err)
                                : mfl_store_rule_put(op->admin->store, &op->rule, &op->err);
}

/* What else keeps out the daemon that the pattern should let in. */
static void add_obstacle(const struct mfl_gate *gate, const char *pattern, char *text, size_t bytes)
{
        char reason[MFL_REASON_BYTES];
        struct mfl_access_peer peer = {pattern, "", ""};
        size_t n = strlen(text);
        if (strpbrk(pattern, "*?:") ||
                mfl_access_check(&gate->rules, &peer, mfl_unix_ms(), reason) == MFL_ACCESS_OK)
                return;
        snprintf(text + n, bytes - n, "; but it still may not take part: %s", reason);
}

static void answer_text(struct mfl_request *op, uint32_t n_known, uint32_t n_out, char *text, size_t bytes)
{
        bool deny = op->rule.verdict == MFL_VERDICT_DENY, lets_in = op->remove ? deny : !deny;
        const char *done = op->remove ? deny ? "enabled" : "no longer allowed"
                           : deny     ? "disabled"
                                      : "allowed";
        size_t n = (size_t)snprintf(text, bytes, "%s", done);
        if (n_out)
                n += (size_t)snprintf(text + n, bytes - n, "; %u connected daemon%s sent away", n_out,
                        n_out == 1 ? " is" : "s are");
        if (!op->remove && !n_known)
                snprintf(text + n, bytes - n,
                        "; warning: no daemon that is connected or was recently refused matches it");
        if (lets_in)
                add_obstacle(op->admin->gate, op->rule.pattern, text, bytes);
}

static void answer_access(struct mfl_request *op, struct mfl_session *session)
{
        struct mfl_gate *gate = op->admin->gate;
        const struct mfl_store_rule *rule = &op->rule;
        const char *pattern = rule->pattern;
        char text[600];
        uint32_t n_out, n_known = mfl_gate_count_refused(gate, pattern);
        mfl_gate_count_connected(gate, &pattern, &n_known, 1);
        if (mfl_gate_change(gate, rule, op->remove, &n_out)) {
                mfl_loop_no_memory(op->admin->loop, sizeof *rule, "rules about daemons");
                return;
        }
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
        op->remove = access->remove;
        mfl_request_audit(op, mfl_operator_access_verb(access), access->pattern);
        mfl_strcpy(op->audit.text, sizeof op->audit.text, access->reason);
        mfl_request_start(op, session);
}

void mfl_operator_access_list(struct mfl_session *session, uint64_t request)
{
        struct mfl_gate *gate = mfl_admin_of(session)->gate;
        mfl_gate_trim(gate);
        uint32_t n = gate->rules.n;
        MFL_CLEANUP_FREE Mfl__AccessRule *rules = mfl_calloc(n, sizeof *rules);
        MFL_CLEANUP_FREE Mfl__AccessRule **pointers = mfl_calloc(n, sizeof *pointers);
        MFL_CLEANUP_FREE const char **patterns = mfl_calloc(n, sizeof *patterns);
        MFL_CLEANUP_FREE uint32_t *connected = mfl_calloc(n, sizeof *connected);
        Mfl__AccessList list = MFL__ACCESS_LIST__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (!rules || !pointers || !patterns || !connected) {
                mfl_operator_no_memory(session, n * sizeof *rules, "rules about daemons");
                return;
        }
        for (uint32_t i = 0; i < n; i++)
                patterns[i] = gate->rules.v[i].pattern;
        mfl_gate_count_connected(gate, patterns, connected, n);
        for (uint32_t i = 0; i < n; i++) {
                struct mfl_store_rule *rule = &gate->rules.v[i];
                mfl__access_rule__init(&rules[i]);
                rules[i].pattern = rule->pattern;
                rules[i].verdict = (Mfl__Verdict)rule->verdict;
                rules[i].who = rule->who;
                rules[i].time_ms = rule->time_ms;
                rules[i].until_ms = rule->until_ms;
                rules[i].reason = rule->reason;
                rules[i].connected = connected[i];
                rules[i].refused = mfl_gate_count_refused(gate, rule->pattern);
                pointers[i] = &rules[i];
        }
        list.n_rules = n;
        list.rules = pointers;
        envelope.request = request;
        envelope.body_case = MFL__ENVELOPE__BODY_ACCESS_LIST;
        envelope.access_list = &list;
        mfl_session_send(session, &envelope);
}
