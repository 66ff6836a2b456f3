/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons may take part: rules, whom they match, and a list of those that were refused lately. Pure: no
 * I/O, no clock.
 *
 * A daemon that matches a rule that denies may not take part; where there is a rule that allows, neither may
 * one that matches none of those. So neither the order of rules nor that of their making matters. A rule that
 * denies may have an end; from then on it is as if it was not there.
 *
 * Patterns (mfl.proto, Access): "NAME" of Hello.name, "cn:NAME" of the certificate's CN, with '*' and '?' in
 * both; "sha256:HEX", the certificate's fingerprint.
 */
#ifndef MFL_SERVER_ACCESS_H
#define MFL_SERVER_ACCESS_H

#include "server/store.h"

/* Who asks. cn and fingerprint are "" without TLS, and match nothing then, not even "cn:*". */
struct mfl_access_peer {
        const char *name, *cn, *fingerprint;
};

bool mfl_access_matches(const char *pattern, const struct mfl_access_peer *peer);

enum mfl_access {
        MFL_ACCESS_OK,
        MFL_ACCESS_DENIED,
        MFL_ACCESS_NOT_ALLOWED, /* there are rules that allow, and it matches none */
        MFL_ACCESS_COUNT_,
};
/* ret_reason: for the daemon and for people, the same text for the same rules; untouched by OK. now_ms: Unix
 * time. */
enum mfl_access mfl_access_check(const struct mfl_store_rules *rules, const struct mfl_access_peer *peer,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES]);
/* As above, but only rules that deny by name, for a daemon that is not connected: its certificate is not
 * known.
 */
enum mfl_access mfl_access_check_absent(const struct mfl_store_rules *rules, const char *name,
        uint64_t now_ms, char ret_reason[MFL_REASON_BYTES]);

/* ---- rules in memory ---- */
/* Puts a copy in, in the place of one with the same pattern and verdict; sorted by pattern, then verdict.
 * -ENOMEM leaves everything as it was. */
int mfl_access_put(struct mfl_store_rules *rules, const struct mfl_store_rule *rule);
/* False: there is none. */
bool mfl_access_remove(struct mfl_store_rules *rules, const char *pattern, enum mfl_verdict verdict);
/* Rules whose end has come. */
void mfl_access_expire(struct mfl_store_rules *rules, uint64_t now_ms);

/* ---- who was refused lately ---- */

#define MFL_REFUSED_MAX 256
#define MFL_REFUSED_KEPT_MS 600000u /* since its last try */

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

/* Notes a try; the one whose last try is the longest ago makes room. True: it is news (another name, or
 * another reason than before), and worth a line. */
bool mfl_refused_note(struct mfl_refused_list *list, const struct mfl_refused_daemon *refused);
/* Forgets those whose last try is too long ago, and those whom the rules let in now. */
void mfl_refused_trim(struct mfl_refused_list *list, const struct mfl_store_rules *rules, uint64_t now_ms);
/* It has come in. */
void mfl_refused_forget(struct mfl_refused_list *list, const char *name);
const struct mfl_refused_daemon *mfl_refused_find(const struct mfl_refused_list *list, const char *name);

#endif
