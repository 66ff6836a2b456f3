/* SPDX-License-Identifier: Apache-2.0 */
/* What a site keeps of its decisions, in policy.dir: the administrator's answers (NAME.answers), which survive restarts,
 * and the audit log (NAME.audit.jsonl), which only grows. Both are 0600. Written on the loop thread: a few hundred bytes,
 * for a decision that no task waits for twice. */
#ifndef MFL_CLIENT_POLICY_RECORD_H
#define MFL_CLIENT_POLICY_RECORD_H

#include "common/base/digest.h"
#include "proto/message.h"

struct mfl_answer {
        uint8_t digest[MFL_SHA256_BYTES]; /* of the server's address, the job's id, its owner and its text */
        bool approved;
};

struct mfl_policy_record {
        char *answers_path;
        int audit; /* -1: none */
        uint32_t n, capacity;
        struct mfl_answer *v;
};

/* Makes the directory (0700) if it is missing. MFL_INVALID for answers that can't be read; negative for files that can't
 * be opened. */
int mfl_policy_record_open(
        struct mfl_policy_record *record, const char *dir, const char *name, struct mfl_error *err);
void mfl_policy_record_close(struct mfl_policy_record *record); /* fine on a zeroed one */

/* NULL: none. */
const struct mfl_answer *mfl_policy_answer_find(
        const struct mfl_policy_record *record, const uint8_t digest[MFL_SHA256_BYTES]);
/* On disk when it returns 0. */
int mfl_policy_answer_put(
        struct mfl_policy_record *record, const struct mfl_answer *answer, struct mfl_error *err);

struct mfl_audit_line {
        const char *daemon, *server, *job, *owner;
        const char *decision; /* "takes", "refuses", "asks", "approved", "denied" */
        const char *rule;     /* the key of the policy; "": none */
        const char *reason;
        const uint8_t *text_digest; /* SHA-256 of the job file */
};
/* One JSON object and a line's end, in one write. */
int mfl_policy_audit(
        struct mfl_policy_record *record, const struct mfl_audit_line *line, struct mfl_error *err);

#endif
