/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a secure sum at the server. */
#include "server/secure/leader_internal.h"

#include "common/base/states.h"
#include "common/secure/shares.h"

#define TO(state) MFL_TO(MFL_LEADER_##state)
static const struct mfl_states stages = {.thing = "leader of a secure sum",
        .n = MFL_LEADER_STAGES_,
        .v = {
                [MFL_LEADER_SHARES] = {"SHARES", TO(UPLOAD) | TO(FAILED)},
                [MFL_LEADER_UPLOAD] = {"UPLOAD", TO(SIGN) | TO(FAILED)},
                [MFL_LEADER_SIGN] = {"SIGN", TO(OPEN) | TO(FAILED)},
                [MFL_LEADER_OPEN] = {"OPEN", TO(WHOLE) | TO(FAILED)},
                [MFL_LEADER_WHOLE] = {"WHOLE", 0},
                [MFL_LEADER_FAILED] = {"FAILED", 0},
        }};
#undef TO

static int compare_members(const void *a, const void *b)
{
        const struct leader_member *x = a, *y = b;
        return memcmp(x->mask.v, y->mask.v, sizeof x->mask.v);
}

static int sort_members(struct mfl_leader *leader, const struct mfl_secure_msg *keys, struct mfl_error *err)
{
        for (uint32_t i = 0; i < leader->n; i++) {
                const struct mfl_secure_part *part = &keys->parts[i];
                struct mfl_secure_keys read;
                int r = mfl_secure_keys_read(keys->bytes + part->at, part->n, &read, err);
                if (r)
                        return r;
                leader->v[i] = (struct leader_member){.caller = part->member, .mask = read.mask, .in = true};
        }
        qsort(leader->v, leader->n, sizeof *leader->v, compare_members);
        for (uint32_t i = 0; i < leader->n; i++) {
                const struct mfl_secure_part *part = mfl_secure_msg_find(keys, leader->v[i].caller);
                if (mfl_secure_msg_add(&leader->peers, i, keys->bytes + part->at, part->n))
                        return mfl_fail_memory(err, part->n, "keys");
        }
        return 0;
}

int mfl_leader_new(const struct mfl_secure_spec *spec, const struct mfl_secure_msg *keys,
        struct mfl_leader **ret_leader, struct mfl_error *err)
{
        uint32_t k, t, honest;
        int r = mfl_secure_degree(spec, keys->n_parts, &k, &t, err);
        if (!r && spec->least > 0)
                r = mfl_secure_honest(spec, keys->n_parts, &honest, err);
        if (r)
                return r;
        struct mfl_leader *leader = mfl_calloc(1, sizeof *leader);
        if (!leader)
                return mfl_fail_memory(err, sizeof *leader, "a secure sum");
        leader->n = keys->n_parts;
        leader->least = mfl_secure_survivors(spec, leader->n);
        leader->v = mfl_calloc(leader->n, sizeof *leader->v);
        r = leader->v ? sort_members(leader, keys, err) : mfl_fail_memory(err, leader->n, "members");
        if (!r)
                r = mfl_secure_transcript(spec, &leader->peers, &leader->graph, leader->transcript, err);
        if (r)
                mfl_leader_free(leader);
        else
                *ret_leader = leader;
        return r;
}

void mfl_leader_free(struct mfl_leader *leader)
{
        if (!leader)
                return;
        for (uint32_t i = 0; i < leader->n && leader->v; i++) {
                mfl_secure_msg_deinit(&leader->v[i].shares);
                mfl_secure_msg_deinit(&leader->v[i].signature);
                mfl_secure_msg_deinit(&leader->v[i].opened);
        }
        free(leader->v);
        mfl_secure_msg_deinit(&leader->peers);
        free(leader);
}

enum mfl_leader_stage mfl_leader_stage(const struct mfl_leader *leader)
{
        return leader->stage;
}

const uint8_t *mfl_leader_name(const struct mfl_leader *leader)
{
        return leader->transcript;
}

uint32_t mfl_leader_count(const struct mfl_leader *leader)
{
        return leader->n;
}

uint32_t mfl_leader_caller(const struct mfl_leader *leader, uint32_t i)
{
        return leader->v[i].caller;
}

bool mfl_leader_takes(const struct mfl_leader *leader, uint32_t i)
{
        return leader->v[i].in;
}

bool mfl_leader_opens(const struct mfl_leader *leader)
{
        return leader->opens;
}

bool mfl_leader_survives(const struct mfl_leader *leader, uint32_t i)
{
        return leader->stage == MFL_LEADER_UPLOAD ? leader->v[i].added
                                                  : mfl_secure_has(&leader->survivors, i);
}

/* ---- messages ---- */

static int relay_shares(const struct mfl_leader *leader, uint32_t to, struct mfl_secure_msg *msg)
{
        for (uint32_t from = 0; from < leader->n; from++) {
                const struct mfl_secure_msg *shares = &leader->v[from].shares;
                const struct mfl_secure_part *part =
                        mfl_secure_has(&leader->shared, from) ? mfl_secure_msg_find(shares, to) : NULL;
                if (part && mfl_secure_msg_add(msg, from, shares->bytes + part->at, part->n))
                        return -ENOMEM;
        }
        return 0;
}

static int relay_signatures(const struct mfl_leader *leader, uint32_t to, struct mfl_secure_msg *msg)
{
        for (uint32_t from = 0; from < leader->n; from++) {
                const struct mfl_secure_msg *signature = &leader->v[from].signature;
                if (signature->n_parts && mfl_secure_share_number(&leader->graph, to, from) &&
                        mfl_secure_msg_add(msg, from, signature->bytes, signature->n_bytes))
                        return -ENOMEM;
        }
        return 0;
}

static int relay_keys(const struct mfl_leader *leader, struct mfl_secure_msg *msg)
{
        for (uint32_t i = 0; i < leader->n; i++) {
                const struct mfl_secure_part *part = &leader->peers.parts[i];
                if (mfl_secure_msg_add(msg, i, leader->peers.bytes + part->at, part->n))
                        return -ENOMEM;
        }
        return 0;
}

int mfl_leader_message(const struct mfl_leader *leader, uint32_t i, struct mfl_secure_msg *ret_msg)
{
        static const enum mfl_secure_step steps[MFL_LEADER_STAGES_] = {[MFL_LEADER_SHARES] = MFL_SECURE_PEERS,
                [MFL_LEADER_UPLOAD] = MFL_SECURE_MASK,
                [MFL_LEADER_SIGN] = MFL_SECURE_SURVIVORS,
                [MFL_LEADER_OPEN] = MFL_SECURE_OPEN};
        struct mfl_secure_msg msg = {.step = steps[leader->stage]};
        int r = 0;
        mfl_assert(leader->stage < MFL_LEADER_WHOLE && leader->v[i].in);
        if (leader->stage == MFL_LEADER_SHARES) {
                r = relay_keys(leader, &msg);
        } else if (leader->stage == MFL_LEADER_UPLOAD) {
                msg.set = leader->shared;
                r = relay_shares(leader, i, &msg);
        } else if (leader->stage == MFL_LEADER_SIGN) {
                msg.set = leader->survivors;
        } else {
                r = relay_signatures(leader, i, &msg);
        }
        if (r)
                mfl_secure_msg_deinit(&msg);
        else
                *ret_msg = msg;
        return r;
}

/* ---- answers ---- */

static int copy(const struct mfl_secure_msg *msg, struct mfl_secure_msg *ret_copy, struct mfl_error *err)
{
        struct mfl_secure_msg own = {.step = msg->step};
        for (uint32_t i = 0; i < msg->n_parts; i++)
                if (mfl_secure_msg_add(
                            &own, msg->parts[i].member, msg->bytes + msg->parts[i].at, msg->parts[i].n)) {
                        mfl_secure_msg_deinit(&own);
                        return mfl_fail_memory(err, msg->n_bytes, "an answer");
                }
        *ret_copy = own;
        return 0;
}

/* For each of its holders, and nobody else, n bytes. */
static int check_parts(const struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg,
        uint32_t n_bytes, struct mfl_error *err)
{
        uint32_t last = 0;
        for (uint32_t p = 0; p < msg->n_parts; p++) {
                uint32_t member = msg->parts[p].member;
                if (member >= leader->n || (p && member <= last) || msg->parts[p].n != n_bytes ||
                        !mfl_secure_share_number(&leader->graph, i, member))
                        return mfl_fail(
                                err, MFL_INVALID, "shares for participants that are not its neighbours");
                last = member;
        }
        return 0;
}

static int take_shares(
        struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        int r = check_parts(leader, i, msg, 2 * MFL_SECURE_KEY_BYTES + MFL_SECURE_SEAL_BYTES, err);
        if (!r && msg->n_parts != leader->graph.k)
                r = mfl_fail(err, MFL_INVALID, "shares for %u of its %u neighbours", msg->n_parts,
                        leader->graph.k);
        return r ? r : copy(msg, &leader->v[i].shares, err);
}

static int take_signature(
        struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        if (msg->n_parts != 1 || msg->parts[0].member != i || msg->n_bytes > MFL_SECURE_SIGNATURE_MAX)
                return mfl_fail(err, MFL_INVALID, "a signature that is not its own");
        return copy(msg, &leader->v[i].signature, err);
}

static int take_opened(
        struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        int r = check_parts(leader, i, msg, MFL_SECURE_KEY_BYTES, err);
        return r ? r : copy(msg, &leader->v[i].opened, err);
}

int mfl_leader_take(
        struct mfl_leader *leader, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        static const enum mfl_secure_step steps[MFL_LEADER_STAGES_] = {
                [MFL_LEADER_SHARES] = MFL_SECURE_SHARES,
                [MFL_LEADER_UPLOAD] = MFL_SECURE_MASKED,
                [MFL_LEADER_SIGN] = MFL_SECURE_SIGNED,
                [MFL_LEADER_OPEN] = MFL_SECURE_OPENED};
        struct leader_member *member = &leader->v[i];
        if (!member->in || member->answered || msg->step != steps[leader->stage])
                return 0;
        int r = 0;
        if (leader->stage == MFL_LEADER_SHARES)
                r = take_shares(leader, i, msg, err);
        else if (leader->stage == MFL_LEADER_UPLOAD)
                r = msg->has_figures ? 0 : mfl_fail(err, MFL_INVALID, "a masked update without figures");
        else if (leader->stage == MFL_LEADER_SIGN)
                r = take_signature(leader, i, msg, err);
        else
                r = take_opened(leader, i, msg, err);
        if (r)
                return r;
        if (leader->stage == MFL_LEADER_UPLOAD)
                memcpy(member->figures, msg->figures, sizeof member->figures);
        member->answered = true;
        return 0;
}

bool mfl_leader_masked(const struct mfl_leader *leader, uint32_t i)
{
        return leader->stage == MFL_LEADER_UPLOAD && leader->v[i].answered;
}

void mfl_leader_added(struct mfl_leader *leader, uint32_t i)
{
        mfl_assert(leader->stage == MFL_LEADER_UPLOAD && leader->v[i].answered);
        leader->v[i].added = true;
}

void mfl_leader_lose(struct mfl_leader *leader, uint32_t i)
{
        leader->v[i].in = false;
}

/* ---- stages ---- */

/* What the stage wants of it is here. A vector in the sum counts, whoever is lost since. */
static bool done(const struct mfl_leader *leader, uint32_t i)
{
        const struct leader_member *member = &leader->v[i];
        return leader->stage == MFL_LEADER_UPLOAD ? member->added : member->in && member->answered;
}

bool mfl_leader_ready(const struct mfl_leader *leader)
{
        if (leader->stage >= MFL_LEADER_WHOLE)
                return false;
        for (uint32_t i = 0; i < leader->n; i++)
                if (leader->v[i].in && !done(leader, i))
                        return false;
        return true;
}

static uint32_t holders_in(const struct mfl_leader *leader, uint32_t owner, const struct mfl_secure_set *set)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < leader->n; i++)
                n += mfl_secure_has(set, i) && mfl_secure_share_number(&leader->graph, owner, i);
        return n;
}

/* Whether each member's secrets can still be opened by those who have answered. */
static bool enough(const struct mfl_leader *leader, const struct mfl_secure_set *answered)
{
        bool settled =
                leader->stage > MFL_LEADER_UPLOAD; /* of a set that is large enough, each helps to open it */
        if (mfl_secure_count(answered) < (settled ? MFL_SECURE_LEAST : leader->least))
                return false;
        for (uint32_t i = 0; i < leader->n; i++)
                if ((leader->stage == MFL_LEADER_SHARES ? mfl_secure_has(answered, i)
                                                        : mfl_secure_has(&leader->shared, i)) &&
                        holders_in(leader, i, answered) < leader->graph.t)
                        return false;
        return true;
}

void mfl_leader_advance(struct mfl_leader *leader, char *ret_why, size_t n_why)
{
        static const char *const what[] = {
                "sent shares", "sent updates", "signed the survivors", "opened shares"};
        struct mfl_secure_set answered = {{0}};
        mfl_assert(leader->stage < MFL_LEADER_WHOLE);
        for (uint32_t i = 0; i < leader->n; i++)
                if (done(leader, i))
                        mfl_secure_put(&answered, i);
        if (!enough(leader, &answered)) {
                mfl_snprintf(ret_why, n_why, "%u of %u participants %s, and %u are needed",
                        mfl_secure_count(&answered), leader->n, what[leader->stage],
                        MFL_MAX(leader->graph.t, leader->least));
                leader->stage = mfl_states_move(&stages, leader->stage, MFL_LEADER_FAILED);
                return;
        }
        if (leader->stage == MFL_LEADER_SHARES)
                leader->shared = answered;
        if (leader->stage == MFL_LEADER_UPLOAD) {
                leader->survivors = answered;
                leader->opens = true;
        }
        for (uint32_t i = 0; i < leader->n; i++) {
                leader->v[i].in &= mfl_secure_has(&answered, i);
                leader->v[i].answered = false;
        }
        leader->stage = mfl_states_move(&stages, leader->stage, leader->stage + 1);
}
