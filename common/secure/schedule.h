/* SPDX-License-Identifier: Apache-2.0 */
/* What is signed in a secure sum, and which keys follow from what. Numbers are little-endian; labels end with a zero byte.
 *
 *   context     SHA-256 of "mfl secure sum", the job's number in 24 bytes, the round (4 bytes), the digest of the params that it starts
 *               from, and the SHA-256 of the job file: two daemons with different jobs never agree on a key
 *   who         whose updates a member brings: for each daemon of its node that it sums for, itself included, the SHA-256 of
 *               "mfl secure who" and the daemon's name, as four words of 64 bits, added up modulo 2^64
 *   keys        signed: "mfl secure keys", context, channel key, mask key, who
 *   transcript  SHA-256 of "mfl secure peers", n, k, t (4 bytes each), and the SHA-256 of each member's keys as they travelled, in the
 *               order of members, which is that of their mask keys; by the signatures in them it is of one context
 *   share key   HKDF(X25519(channel, channel), transcript, "share", from, to)
 *   pair mask   HKDF(X25519(mask, mask), transcript, "pair", lower, higher); the lower member adds it, the higher one subtracts it
 *   self mask   HKDF(seed, transcript, "self", member, 0)
 *   survivors   signed: "mfl secure set", transcript, the set's (n + 7) / 8 bytes
 *
 * Any thread; errors as in crypto.h. */
#ifndef MFL_COMMON_SECURE_SCHEDULE_H
#define MFL_COMMON_SECURE_SCHEDULE_H

#include "common/base/digest.h"
#include "common/secure/crypto.h"
#include "common/secure/graph.h"

#define MFL_SECURE_JOB_BYTES 24u

int mfl_secure_context(const char *job, uint32_t round, const uint8_t params[MFL_SHA256_BYTES],
        const char *text, uint8_t ret_context[MFL_SHA256_BYTES], struct mfl_error *err);

/* Of one daemon. */
int mfl_secure_who(const char *name, uint64_t ret_who[MFL_SECURE_WHO_WORDS], struct mfl_error *err);

/* One member's keys as they travel: channel key, mask key, who, u16 and signature, then certificates (DER), its own first. */
struct mfl_secure_keys {
        struct mfl_secure_key channel, mask;
        uint64_t who[MFL_SECURE_WHO_WORDS];
        const uint8_t *signature, *chain; /* in the bytes that were read */
        uint32_t n_signature, n_chain;
};
/* Returns the length in ret_bytes, which has room for MFL_SECURE_KEYS_MAX; 0: too long. */
uint32_t mfl_secure_keys_write(const struct mfl_secure_keys *keys, uint8_t *ret_bytes);
/* MFL_INVALID */
int mfl_secure_keys_read(
        const uint8_t *bytes, uint32_t n, struct mfl_secure_keys *ret_keys, struct mfl_error *err);

#define MFL_SECURE_KEYS_STATEMENT 144u
/* Of the keys alone, which need no signature yet. */
void mfl_secure_keys_statement(const uint8_t context[MFL_SHA256_BYTES], const struct mfl_secure_keys *keys,
        uint8_t ret_statement[MFL_SECURE_KEYS_STATEMENT]);

#define MFL_SECURE_SET_STATEMENT (47u + MFL_SECURE_MEMBERS_MAX / 8)
/* Returns its length. */
uint32_t mfl_secure_set_statement(const uint8_t transcript[MFL_SHA256_BYTES],
        const struct mfl_secure_set *set, uint32_t n, uint8_t ret_statement[MFL_SECURE_SET_STATEMENT]);

/* peers: a part for each member, 0 to n - 1 in order. Also makes the graph. MFL_INVALID: their order is wrong, or their number. */
int mfl_secure_transcript(const struct mfl_secure_spec *spec, const struct mfl_secure_msg *peers,
        struct mfl_secure_graph *ret_graph, uint8_t ret_transcript[MFL_SHA256_BYTES], struct mfl_error *err);

int mfl_secure_share_key(const struct mfl_secure_key *own, const struct mfl_secure_key *peer,
        const uint8_t transcript[MFL_SHA256_BYTES], uint32_t from, uint32_t to,
        struct mfl_secure_key *ret_key, struct mfl_error *err);
int mfl_secure_pair_mask(const struct mfl_secure_key *own, const struct mfl_secure_key *peer,
        const uint8_t transcript[MFL_SHA256_BYTES], uint32_t a, uint32_t b, struct mfl_secure_key *ret_key,
        struct mfl_error *err);
int mfl_secure_self_mask(const struct mfl_secure_key *seed, const uint8_t transcript[MFL_SHA256_BYTES],
        uint32_t member, struct mfl_secure_key *ret_key, struct mfl_error *err);

#endif
