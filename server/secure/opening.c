/* SPDX-License-Identifier: Apache-2.0 */
/* Which masks are left in the sum: each survivor's own, and those that survivors share with members who are gone. */
#include "common/secure/shamir.h"
#include "server/secure/leader_internal.h"

static int push(struct mfl_leader_opening *opening, const struct mfl_secure_key *key, bool subtract,
        struct mfl_error *err)
{
        if (opening->n == opening->room) {
                uint32_t room = opening->room ? 2 * opening->room : 64;
                struct mfl_leader_mask *v = mfl_realloc(opening->v, room * sizeof *v);
                if (!v)
                        return mfl_fail_memory(err, room * sizeof *v, "masks");
                opening->v = v;
                opening->room = room;
        }
        opening->v[opening->n++] = (struct mfl_leader_mask){*key, subtract};
        return 0;
}

/* From the first t shares that were opened. */
static int join(const struct mfl_leader *leader, uint32_t owner, struct mfl_secure_key *ret_secret,
        struct mfl_error *err)
{
        uint8_t number[MFL_SHAMIR_SHARES_MAX];
        struct mfl_secure_key share[MFL_SHAMIR_SHARES_MAX];
        uint32_t n = 0, t = leader->graph.t;
        for (uint32_t i = 0; i < leader->n && n < t; i++) {
                uint32_t x = mfl_secure_share_number(&leader->graph, owner, i);
                const struct mfl_secure_msg *opened = &leader->v[i].opened;
                const struct mfl_secure_part *part =
                        x && opened->n_parts ? mfl_secure_msg_find(opened, owner) : NULL;
                if (!part)
                        continue;
                number[n] = (uint8_t)x;
                memcpy(share[n++].v, opened->bytes + part->at, MFL_SECURE_KEY_BYTES);
        }
        if (n < t)
                return mfl_fail(
                        err, MFL_INVALID, "%u shares of a participant's secret, and %u are needed", n, t);
        mfl_shamir_join(t, number, share, ret_secret);
        mfl_secure_wipe(share, sizeof share);
        return 0;
}

static int open_survivor(const struct mfl_leader *leader, uint32_t i, struct mfl_leader_opening *opening,
        struct mfl_error *err)
{
        struct mfl_secure_key seed, key;
        int r = join(leader, i, &seed, err);
        if (!r)
                r = mfl_secure_self_mask(&seed, leader->transcript, i, &key, err);
        if (!r)
                r = push(opening, &key, true, err);
        for (int f = 0; f < MFL_SECURE_FIGURES; f++)
                opening->figures[f] += leader->v[i].figures[f];
        mfl_secure_wipe(&seed, sizeof seed);
        mfl_secure_wipe(&key, sizeof key);
        return r;
}

/* A survivor has added the pair's mask if it is the lower one. */
static int open_lost(const struct mfl_leader *leader, uint32_t lost, struct mfl_leader_opening *opening,
        struct mfl_error *err)
{
        struct mfl_secure_key secret, public, key;
        int r = join(leader, lost, &secret, err);
        if (!r)
                r = mfl_secure_public(&secret, &public, err);
        if (!r && memcmp(public.v, leader->v[lost].mask.v, sizeof public.v))
                r = mfl_fail(err, MFL_INVALID, "the shares of a lost participant's key don't give that key");
        for (uint32_t i = 0; i < leader->n && !r; i++) {
                if (!mfl_secure_has(&leader->survivors, i) ||
                        !mfl_secure_are_neighbours(&leader->graph, lost, i))
                        continue;
                r = mfl_secure_pair_mask(&secret, &leader->v[i].mask, leader->transcript, lost, i, &key, err);
                if (!r)
                        r = push(opening, &key, i < lost, err);
        }
        mfl_secure_wipe(&secret, sizeof secret);
        mfl_secure_wipe(&key, sizeof key);
        return r;
}

int mfl_leader_open(
        const struct mfl_leader *leader, struct mfl_leader_opening *ret_opening, struct mfl_error *err)
{
        struct mfl_leader_opening opening = {0};
        int r = 0;
        mfl_assert(leader->stage == MFL_LEADER_WHOLE);
        for (uint32_t i = 0; i < leader->n && !r; i++) {
                if (mfl_secure_has(&leader->survivors, i))
                        r = open_survivor(leader, i, &opening, err);
                else if (mfl_secure_has(&leader->shared, i))
                        r = open_lost(leader, i, &opening, err);
        }
        if (r)
                mfl_leader_opening_deinit(&opening);
        else
                *ret_opening = opening;
        return r;
}

void mfl_leader_opening_deinit(struct mfl_leader_opening *opening)
{
        if (opening->v)
                mfl_secure_wipe(opening->v, opening->room * sizeof *opening->v);
        free(opening->v);
        *opening = (struct mfl_leader_opening){0};
}

int mfl_leader_unmask(const struct mfl_leader_opening *opening, uint64_t first, uint64_t *v, size_t n,
        struct mfl_error *err)
{
        int r = 0;
        for (uint32_t i = 0; i < opening->n && !r; i++)
                r = mfl_secure_mask(&opening->v[i].key, opening->v[i].subtract, first, v, n, err);
        return r;
}
