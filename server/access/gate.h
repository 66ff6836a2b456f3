/* SPDX-License-Identifier: Apache-2.0 */
/* The rules about daemons (access.h) on a running server: lets daemons in, sends daemons away when a rule
 * changes, and remembers recent refusals. A refusal makes one line in the log and one row in the audit, not
 * one for each attempt. Loop thread only. */
#ifndef MFL_SERVER_ACCESS_GATE_H
#define MFL_SERVER_ACCESS_GATE_H

#include "server/access/access.h"
#include "server/access/book.h"
#include "server/session/session.h"

struct mfl_gate {
        struct mfl_sessions *sessions;
        struct mfl_loop *loop;
        struct mfl_book *book;
        struct mfl_store_rules rules;
        struct mfl_refused_list refused;
        struct mfl_store_names drained;        /* of daemons, or MFL_GATE_ALL */
        uint64_t n_refused[MFL_ACCESS_COUNT_]; /* since the start; [MFL_ACCESS_OK]: by their certificate */
};

/* In the list of drained names: every daemon, also those to come. No daemon can have that name. */
#define MFL_GATE_ALL "*"

/* Reads rules and drained names. Codes of store.h. */
int mfl_gate_open(struct mfl_gate *gate, struct mfl_store *store, struct mfl_error *err);
void mfl_gate_close(struct mfl_gate *gate);

/* Whether the rules let this daemon in. False: it got the reason, and the session is closing. */
bool mfl_gate_admit(struct mfl_gate *gate, struct mfl_session *session, const Mfl__Hello *hello);
/* Its certificate does not allow what its Hello says. */
void mfl_gate_denied(
        struct mfl_gate *gate, struct mfl_session *session, const Mfl__Hello *hello, const char *text);
/* A daemon said what can't be true, and the core sends it away: for the log, the audit and the counters. */
void mfl_gate_accuse(struct mfl_gate *gate, const struct mfl_core_action *action);
/* Puts the rule in, or takes it out, and sends away the daemons that may no longer take part. -ENOMEM. */
int mfl_gate_change(
        struct mfl_gate *gate, const struct mfl_store_rule *rule, bool remove, uint32_t *ret_n_sent_away);
/* Drops rules that have ended, and refusals that are too old or no longer true. */
void mfl_gate_trim(struct mfl_gate *gate);

/* Daemons that the pattern matches: adds those that are connected to n[i] of pattern[i]. */
void mfl_gate_count_connected(
        const struct mfl_gate *gate, const char *const *pattern, uint32_t *n, uint32_t n_patterns);
uint32_t mfl_gate_count_refused(const struct mfl_gate *gate, const char *pattern);
/* How many refused daemons mfl_gate_trim would keep. */
uint32_t mfl_gate_refused(const struct mfl_gate *gate);

/* By its name or with all others. */
bool mfl_gate_is_drained(const struct mfl_gate *gate, const char *daemon);
bool mfl_gate_is_drained_by_name(const struct mfl_gate *gate, const char *name);
/* Keeps the list in memory as the database will have it. -ENOMEM. */
int mfl_gate_note_drained(struct mfl_gate *gate, const char *daemon, bool on);

#endif
