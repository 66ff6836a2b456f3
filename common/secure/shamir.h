/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of a secret of 32 bytes: any t of them give it, t - 1 tell nothing (Shamir: "How to share a secret", 1979). Each byte is
 * the constant of a random polynomial of degree t - 1 over GF(2^8), the field of AES. No branch and no address depends on a
 * secret. Pure; any thread. */
#ifndef MFL_COMMON_SECURE_SHAMIR_H
#define MFL_COMMON_SECURE_SHAMIR_H

#include "common/secure/crypto.h"

#define MFL_SHAMIR_SHARES_MAX 255u

/* random: (t - 1) * 32 secret random bytes, used once. The share with the number x, 1 to 255. */
void mfl_shamir_share(const struct mfl_secure_key *secret, uint32_t t, const uint8_t *random, uint8_t x,
        struct mfl_secure_key *ret_share);
/* From t shares; their numbers differ and are not 0. */
void mfl_shamir_join(
        uint32_t t, const uint8_t *x, const struct mfl_secure_key *shares, struct mfl_secure_key *ret_secret);

#endif
