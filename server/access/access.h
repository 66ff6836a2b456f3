/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons may take part: rules, the daemons that they match, and a list of recently refused daemons.
 * Pure: no I/O, no clock.
 *
 * A daemon that matches a deny rule may not take part. If there are allow rules, a daemon that matches none
 * of them may not take part either. So the order of rules does not matter. A deny rule may have an end, after
 * which it has no effect.
 *
 * Patterns (mfl.proto, Access): "NAME" of Hello.name, "cn:NAME" of the certificate's CN, with '*' and '?' in
 * both; "sha256:HEX", the certificate's fingerprint.
 */
#ifndef MFL_SERVER_ADMIN_ACCESS_H
#define MFL_SERVER_ADMIN_ACCESS_H

#include "server/store/store.h"

/* A daemon. Without TLS, cn and fingerprint are "" and match nothing, not even "cn:*". */
struct mfl_access_peer {
        const char *name, *cn, *fingerprint;
};

bool mfl_access_matches(const char *pattern, const struct mfl_access_peer *peer);

enum mfl_access {
        MFL_ACCESS_OK,
        MFL_ACCESS_DENIED,
        MFL_ACCESS_NOT_ALLOWED, /* there are allow rules, and it matches none */
        MFL_ACCESS_LIED,        /* no rule: it said what can't be true */
        MFL_ACCESS_COUNT_,
};
/* ret_reason: for the daemon and for people; the same rules give the same text; not written for OK. now_ms:
 * Unix time. */
enum mfl_access mfl_access_check(const struct mfl_store_rules *rules, const struct mfl_access_peer *peer,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES]);
/* As above, but only by deny rules for names: for a daemon that is not connected, so that its certificate is
 * not known. */
enum mfl_access mfl_access_check_absent(const struct mfl_store_rules *rules, const char *name,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES]);

/* ---- rules in memory ---- */
/* Inserts a copy, which replaces a rule with the same pattern and verdict; sorted by pattern, then verdict.
 * -ENOMEM: nothing has changed. */
int mfl_access_put(struct mfl_store_rules *rules, const struct mfl_store_rule *rule);
/* False: there is none. */
bool mfl_access_remove(struct mfl_store_rules *rules, const char *pattern, enum mfl_verdict verdict);
/* Removes rules that have ended. */
void mfl_access_expire(struct mfl_store_rules *rules, uint64_t now_ms);

/* ---- recently refused daemons ---- */

#define MFL_REFUSED_MAX 256
#define MFL_REFUSED_KEPT_MS 600000u /* since its last attempt */

struct mfl_refused_daemon {
        char name[MFL_NAME_BYTES], node[MFL_NAME_BYTES], backend[MFL_BACKEND_BYTES], device[MFL_DEVICE_BYTES],
                software[MFL_NAME_BYTES], address[80];
        char cn[64], fingerprint[65];
        uint32_t workers;
        uint64_t last_ms; /* Unix time */
        char reason[MFL_REASON_BYTES];
};
struct mfl_refused_list {
        uint32_t n;
        struct mfl_refused_daemon v[MFL_REFUSED_MAX];
};

/* Notes an attempt; in a full list, the daemon with the oldest attempt makes room. True: worth a line in the
 * log, because the name or the reason is new. */
bool mfl_refused_note(struct mfl_refused_list *list, const struct mfl_refused_daemon *refused);
/* Forgets daemons whose last attempt is too old, and those that the rules let in now. */
void mfl_refused_trim(struct mfl_refused_list *list, const struct mfl_store_rules *rules, uint64_t now_ms);
/* How many of them mfl_refused_trim would keep. */
uint32_t mfl_refused_count(
        const struct mfl_refused_list *list, const struct mfl_store_rules *rules, uint64_t now_ms);
/* The daemon was let in. */
void mfl_refused_forget(struct mfl_refused_list *list, const char *name);
const struct mfl_refused_daemon *mfl_refused_find(const struct mfl_refused_list *list, const char *name);

#endif
