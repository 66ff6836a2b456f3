/* SPDX-License-Identifier: Apache-2.0 */
/* Where a site's policy meets tasks: compares each one, asks the administrator where the policy says so, remembers the
 * answers, and writes the audit log. A decision that can't be written down is a refusal.
 *
 * An answer is about one job file of one owner: a server that changes either under the same number has to ask again.
 *
 * Loop thread only. */
#ifndef MFL_CLIENT_POLICY_GATE_H
#define MFL_CLIENT_POLICY_GATE_H

#include "client/policy/ledger.h"
#include "client/policy/policy.h"
#include "client/policy/record.h"

#define MFL_GATE_JOBS_MAX 64 /* remembered; the one that was met longest ago makes room */

struct mfl_gate;

struct mfl_gate_question {
        const char *job, *owner, *text; /* owner: "" if unknown */
        bool trains;                    /* not an evaluation */
        uint32_t participants;          /* clients of the round; 0: not told */
        uint32_t round;
        uint8_t params_digest[MFL_DIGEST_BYTES], frozen_digest[MFL_DIGEST_BYTES];
        bool preview; /* of a job that does not exist yet: the budget is looked at, and not charged */
};

/* policy outlives the gate. Errors: as mfl_policy_record_open. */
int mfl_gate_open(const struct mfl_policy *policy, const char *daemon, const char *site, const char *server,
        struct mfl_gate **ret_gate, struct mfl_error *err);
void mfl_gate_close(struct mfl_gate *gate); /* NULL is fine */

/* What the site says of this task: never NOTHING. reason: for the job's submitter; "" for TAKES. -ENOMEM. */
int mfl_gate_ask(struct mfl_gate *gate, const struct mfl_gate_question *question,
        enum mfl_site_word *ret_word, char ret_reason[MFL_REASON_BYTES], struct mfl_error *err);

/* What it would say of a new job of this owner, by its file: nothing is charged, written down or remembered. reason: also for ASKS.
 * -ENOMEM. */
int mfl_gate_preview(struct mfl_gate *gate, const char *owner, const char *text, enum mfl_site_word *ret_word,
        char ret_reason[MFL_REASON_BYTES], struct mfl_error *err);

/* Why no site evaluates a model of such a job: the reason of a refusal, and of daemons without a policy. */
#define MFL_GATE_WITHHELD                                                                                    \
        "the model's job keeps losses and accuracies at the sites (privacy.metrics: withheld, the default "  \
        "with local and distributed), which are all of an answer"
struct mfl_gate_inquiry {
        enum mfl_policy_inquiry kind;
        const char *data, *who;
        const char *text; /* the job file of the model; "": none */
};
/* Whether the site answers, and writes that down. reason: for the asker. -ENOMEM. */
int mfl_gate_inquire(struct mfl_gate *gate, const struct mfl_gate_inquiry *inquiry, bool *ret_ok,
        char ret_reason[MFL_REASON_BYTES], struct mfl_error *err);

/* Writes a refusal down that is not about a task: `rule` says what it is about. Negative: it could not be written. */
int mfl_gate_note(struct mfl_gate *gate, const char *job, const char *owner, const char *text,
        const char *rule, const char *reason, struct mfl_error *err);
/* Of the policy's dir; the gate's. */
struct mfl_ledger *mfl_gate_ledger(struct mfl_gate *gate);
/* NULL: the gate is NULL. */
const struct mfl_policy *mfl_gate_policy(const struct mfl_gate *gate);

/* Called when the administrator has decided about a job: TAKES, or REFUSES with the reason. */
void mfl_gate_listen(struct mfl_gate *gate,
        void (*decided)(void *user, const char *job, enum mfl_site_word word, const char *reason),
        void *user);
/* Carries out "approve JOB", "deny JOB", "jobs" or "budget". ret_text: on the heap; "ok: ..." or "error: ...", or the list. -ENOMEM. */
int mfl_gate_command(struct mfl_gate *gate, const char *command, char **ret_text, struct mfl_error *err);

#endif
