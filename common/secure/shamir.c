/* SPDX-License-Identifier: Apache-2.0 */
/* GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1, without tables. */
#include "common/secure/shamir.h"

static uint8_t multiply(uint8_t a, uint8_t b)
{
        uint8_t product = 0;
        for (int i = 0; i < 8; i++) {
                product ^= (uint8_t)(a & (0 - (b >> i & 1)));
                a = (uint8_t)((a << 1) ^ (0x1b & (0 - (a >> 7))));
        }
        return product;
}

/* a^254, which is 1 / a for a != 0. */
static uint8_t invert(uint8_t a)
{
        uint8_t power = a, result = 1;
        for (int i = 1; i < 8; i++) {
                power = multiply(power, power);
                result = multiply(result, power);
        }
        return result;
}

void mfl_shamir_share(const struct mfl_secure_key *secret, uint32_t t, const uint8_t *random, uint8_t x,
        struct mfl_secure_key *ret_share)
{
        mfl_assert(x && t >= 1 && t <= MFL_SHAMIR_SHARES_MAX);
        for (uint32_t i = 0; i < MFL_SECURE_KEY_BYTES; i++) {
                uint8_t sum = 0;
                for (uint32_t d = t - 1; d-- > 0;)
                        sum = multiply((uint8_t)(sum ^ random[d * MFL_SECURE_KEY_BYTES + i]), x);
                ret_share->v[i] = sum ^ secret->v[i];
        }
}

/* Lagrange's formula at 0. */
void mfl_shamir_join(
        uint32_t t, const uint8_t *x, const struct mfl_secure_key *shares, struct mfl_secure_key *ret_secret)
{
        struct mfl_secure_key secret = {{0}};
        for (uint32_t i = 0; i < t; i++) {
                uint8_t above = 1, below = 1;
                for (uint32_t j = 0; j < t; j++) {
                        if (j == i)
                                continue;
                        mfl_assert(x[i] && x[i] != x[j]);
                        above = multiply(above, x[j]);
                        below = multiply(below, x[j] ^ x[i]);
                }
                uint8_t factor = multiply(above, invert(below));
                for (uint32_t b = 0; b < MFL_SECURE_KEY_BYTES; b++)
                        secret.v[b] ^= multiply(shares[i].v[b], factor);
        }
        *ret_secret = secret;
}
