/* SPDX-License-Identifier: Apache-2.0 */
/* What daemons and the server say to each other in a secure sum, as plain data (mfl.proto, SECURE SUMS).
 *
 *   daemon                              server
 *   KEYS: two public keys, signed  -->  (all, or the deadline)
 *                                  <--  PEERS: everybody's keys
 *   SHARES: sealed, one per holder -->  U1: who has sent them
 *                                  <--  MASK: U1, and the shares for the receiver
 *   MASKED: figures; then the vector, as any other update
 *                                  -->  U2: whose vector is added
 *                                  <--  SURVIVORS: U2
 *   SIGNED: a signature on U2      -->
 *                                  <--  OPEN: the signatures
 *   OPENED: one share per member   -->  the sum
 *
 * Ownership: a message owns parts and bytes. Any thread. */
#ifndef MFL_COMMON_SECURE_PACKET_H
#define MFL_COMMON_SECURE_PACKET_H

#include "common/base/base.h"

#define MFL_SECURE_MEMBERS_MAX 1024u
#define MFL_SECURE_LEAST 3u /* participants: a sum of two tells each the other's */
#define MFL_SECURE_KEY_BYTES 32u
#define MFL_SECURE_SEAL_BYTES 16u
#define MFL_SECURE_SIGNATURE_MAX 512u
#define MFL_SECURE_KEYS_MAX 8192u /* bytes of one member's keys, with its certificates */
/* What travels under the mask beside the vector, in this order; unused ones are 0. */
enum mfl_secure_figure {
        MFL_FIGURE_WEIGHT,
        MFL_FIGURE_SAMPLES,
        MFL_FIGURE_LOSS,
        MFL_FIGURE_CORRECT,
        MFL_FIGURE_CLAMPED,
        MFL_FIGURE_SCALAR, /* four of them */
        MFL_SECURE_FIGURES = MFL_FIGURE_SCALAR + 4
};

/* What stands behind a daemon's sum where the others of its node read it: the figures, and who it is (schedule.h, "who"). */
#define MFL_SECURE_WHO_WORDS 4u
#define MFL_SECURE_TAIL (MFL_SECURE_FIGURES + MFL_SECURE_WHO_WORDS)

enum mfl_secure_step {
        MFL_SECURE_KEYS = 1,
        MFL_SECURE_PEERS,
        MFL_SECURE_SHARES,
        MFL_SECURE_MASK,
        MFL_SECURE_MASKED,
        MFL_SECURE_SURVIVORS,
        MFL_SECURE_SIGNED,
        MFL_SECURE_OPEN,
        MFL_SECURE_OPENED,
};

/* A set of members: bit m of byte m / 8. */
struct mfl_secure_set {
        uint8_t bits[MFL_SECURE_MEMBERS_MAX / 8];
};
static inline bool mfl_secure_has(const struct mfl_secure_set *set, uint32_t m)
{
        return set->bits[m / 8] >> m % 8 & 1;
}
static inline void mfl_secure_put(struct mfl_secure_set *set, uint32_t m)
{
        set->bits[m / 8] |= (uint8_t)(1u << m % 8);
}
static inline uint32_t mfl_secure_count(const struct mfl_secure_set *set)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < sizeof set->bits; i++)
                n += (uint32_t)__builtin_popcount(set->bits[i]);
        return n;
}

struct mfl_secure_part {
        uint32_t member, at, n; /* bytes [at, at + n) of the message's */
};

struct mfl_secure_msg {
        uint64_t task;
        enum mfl_secure_step step;
        uint32_t n_parts, n_bytes;
        struct mfl_secure_part *parts;
        uint8_t *bytes;
        struct mfl_secure_set set;            /* MASK, SURVIVORS */
        bool has_figures;                     /* MASKED */
        uint64_t figures[MFL_SECURE_FIGURES]; /* under the mask */
};

/* Adds a part with a copy of the data. -ENOMEM. */
int mfl_secure_msg_add(struct mfl_secure_msg *msg, uint32_t member, const void *data, uint32_t n);
void mfl_secure_msg_deinit(struct mfl_secure_msg *msg); /* a zeroed one is fine */
/* The part of that member; NULL: there is none. */
const struct mfl_secure_part *mfl_secure_msg_find(const struct mfl_secure_msg *msg, uint32_t member);

#endif
