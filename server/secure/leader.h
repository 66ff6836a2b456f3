/* SPDX-License-Identifier: Apache-2.0 */
/* The server's side of one secure sum: relays keys and shares, settles each set, and collects what opens the masks of the sum
 * (client/secure/member.h has the papers, and what members check).
 *
 *   SHARES --> UPLOAD --> SIGN --> OPEN --> WHOLE
 *      |          |         |        |
 *      +----------+---------+--------+----> FAILED: too few are left
 *
 * In each stage the members that are still in it answer once; then, or when the rest is late, `advance` begins the next stage with
 * those that have. From SIGN on the sum's opening has begun: it ends WHOLE or FAILED, and the round is never tried again.
 *
 * Pure: no randomness, no signatures (members check each other's). One thread. Errors: MFL_INVALID, what a member has done wrong;
 * -ENOMEM. */
#ifndef MFL_SERVER_SECURE_LEADER_H
#define MFL_SERVER_SECURE_LEADER_H

#include "common/secure/schedule.h"

enum mfl_leader_stage {
        MFL_LEADER_SHARES,
        MFL_LEADER_UPLOAD, /* figures, then the vector */
        MFL_LEADER_SIGN,
        MFL_LEADER_OPEN,
        MFL_LEADER_WHOLE,
        MFL_LEADER_FAILED,
        MFL_LEADER_STAGES_,
};

struct mfl_leader;

/* keys: a part for each member, whose `member` is any number of the caller's; the leader sorts them. MFL_INVALID: two have equal keys,
 * or they are too few. */
int mfl_leader_new(const struct mfl_secure_spec *spec, const struct mfl_secure_msg *keys,
        struct mfl_leader **ret_leader, struct mfl_error *err);
void mfl_leader_free(struct mfl_leader *leader); /* NULL is fine */

enum mfl_leader_stage mfl_leader_stage(const struct mfl_leader *leader);
const uint8_t *mfl_leader_name(const struct mfl_leader *leader); /* MFL_SHA256_BYTES, of this sum alone */
uint32_t mfl_leader_count(const struct mfl_leader *leader);      /* members */
uint32_t mfl_leader_caller(const struct mfl_leader *leader, uint32_t i); /* the caller's number of member i */
bool mfl_leader_takes(const struct mfl_leader *leader,
        uint32_t i); /* it is still in the stage: it gets the stage's message */

/* The stage's message for member i: PEERS, MASK, SURVIVORS or OPEN. -ENOMEM. */
int mfl_leader_message(const struct mfl_leader *leader, uint32_t i, struct mfl_secure_msg *ret_msg);
/* Its answer. MFL_INVALID: wrong; the caller then loses it. A repeated one, or one that is late, changes nothing. */
int mfl_leader_take(
        struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_error *err);
/* UPLOAD: its figures are here; its vector is in the sum. Of members that are lost since, too. */
bool mfl_leader_masked(const struct mfl_leader *leader, uint32_t i);
void mfl_leader_added(struct mfl_leader *leader, uint32_t i);
void mfl_leader_lose(struct mfl_leader *leader, uint32_t i); /* it answers no more */
bool mfl_leader_ready(const struct mfl_leader *leader);      /* all that are left have answered */
/* The next stage, or FAILED with why. Its messages are due. */
void mfl_leader_advance(struct mfl_leader *leader, char *ret_why, size_t n_why);
bool mfl_leader_opens(const struct mfl_leader *leader); /* the opening has begun */
/* UPLOAD and later: it is part of the sum. */
bool mfl_leader_survives(const struct mfl_leader *leader, uint32_t i);

/* The masks that are left in the sum, as keys; worker thread. Opening costs time: a key agreement for each lost neighbour of each
 * survivor. */
struct mfl_leader_mask {
        struct mfl_secure_key key;
        bool subtract;
};
struct mfl_leader_opening {
        uint32_t n, room;
        struct mfl_leader_mask *v;
        uint64_t figures[MFL_SECURE_FIGURES]; /* sums of the survivors', under their masks */
};
/* WHOLE. MFL_INVALID: the shares of a member don't fit its key, so that somebody has lied. May run on another thread while nobody
 * else touches the leader. */
int mfl_leader_open(
        const struct mfl_leader *leader, struct mfl_leader_opening *ret_opening, struct mfl_error *err);
void mfl_leader_opening_deinit(struct mfl_leader_opening *opening);
/* Takes the masks from a vector, whose first element is number `first`. */
int mfl_leader_unmask(const struct mfl_leader_opening *opening, uint64_t first, uint64_t *v, size_t n,
        struct mfl_error *err);

#endif
