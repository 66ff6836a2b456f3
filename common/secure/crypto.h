/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives of secure sums, from OpenSSL: X25519 (RFC 7748), HKDF-SHA-256 (RFC 5869), AES-256 in counter mode (NIST SP
 * 800-38A) for masks, AES-256-GCM (NIST SP 800-38D) for shares, and the kernel-seeded generator.
 *
 * Any thread. Negative: OpenSSL is broken, or memory is out. MFL_INVALID: what came from a peer is wrong. */
#ifndef MFL_COMMON_SECURE_CRYPTO_H
#define MFL_COMMON_SECURE_CRYPTO_H

#include "common/secure/packet.h"

struct mfl_secure_key {
        uint8_t v[MFL_SECURE_KEY_BYTES];
};

int mfl_secure_random(void *ret_bytes, size_t n, struct mfl_error *err);
void mfl_secure_wipe(void *bytes, size_t n);

/* The public key of a private one. */
int mfl_secure_public(
        const struct mfl_secure_key *private, struct mfl_secure_key *ret_public, struct mfl_error *err);
/* The secret that both sides share. MFL_INVALID: the peer's key is of low order, so that the secret would be known. */
int mfl_secure_agree(const struct mfl_secure_key *private, const struct mfl_secure_key *peer,
        struct mfl_secure_key *ret_secret, struct mfl_error *err);
/* HKDF: 32 bytes from a secret, a salt of 32 bytes, and what they are for. */
int mfl_secure_derive(const struct mfl_secure_key *secret, const uint8_t salt[MFL_SECURE_KEY_BYTES],
        const void *info, size_t n_info, struct mfl_secure_key *ret_key, struct mfl_error *err);

/* v[i] += or -= word first + i of the key's stream, modulo 2^64; words are little-endian, from counter 0 on. */
int mfl_secure_mask(const struct mfl_secure_key *key, bool subtract, uint64_t first, uint64_t *v, size_t n,
        struct mfl_error *err);

/* One message per key: the nonce is 0. sealed: n + MFL_SECURE_SEAL_BYTES bytes. */
int mfl_secure_seal(const struct mfl_secure_key *key, const void *plain, uint32_t n, uint8_t *ret_sealed,
        struct mfl_error *err);
/* MFL_INVALID: it was not sealed with that key. */
int mfl_secure_unseal(const struct mfl_secure_key *key, const uint8_t *sealed, uint32_t n_sealed,
        void *ret_plain, struct mfl_error *err);

#endif
