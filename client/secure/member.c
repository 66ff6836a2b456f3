/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a member, its checks, and its shares. */
#include "client/secure/member.h"

#include "common/base/states.h"
#include "common/secure/shamir.h"
#include "common/secure/shares.h"

enum stage { KEYED, SHARED, MASKING, MASKED, SIGNED, OPENED, REFUSED, STAGES };

#define TO(state) MFL_TO(state)
static const struct mfl_states stages = {.thing = "secure sum",
        .n = STAGES,
        .v = {
                [KEYED] = {"KEYED", TO(SHARED) | TO(REFUSED)},
                [SHARED] = {"SHARED", TO(MASKING) | TO(REFUSED)},
                [MASKING] = {"MASKING", TO(MASKED) | TO(REFUSED)},
                [MASKED] = {"MASKED", TO(SIGNED) | TO(REFUSED)},
                [SIGNED] = {"SIGNED", TO(OPENED) | TO(REFUSED)},
                [OPENED] = {"OPENED", TO(REFUSED)},
                [REFUSED] = {"REFUSED", TO(REFUSED)},
        }};
#undef TO

/* What a member shares with each holder. */
struct shares {
        struct mfl_secure_key seed, mask;
};

struct peer {
        struct mfl_secure_keys keys; /* in member->peers */
        struct mfl_secure_identity identity;
        struct shares shares; /* that this member holds */
};

struct mfl_secure_member {
        enum stage stage;
        uint8_t context[MFL_SHA256_BYTES], update[MFL_SHA256_BYTES], transcript[MFL_SHA256_BYTES];
        struct mfl_secure_spec spec;
        uint32_t least, members, self, n;
        const struct mfl_secure_trust *trust;
        struct mfl_secure_book *book;
        int (*keep)(void *user, const uint8_t *update, const uint8_t *with, struct mfl_error *err);
        struct mfl_secure_key channel, mask, seed, channel_public, mask_public;
        uint8_t own[MFL_SECURE_KEYS_MAX];
        uint32_t n_own;
        struct mfl_secure_graph graph;
        struct mfl_secure_msg peers;
        struct peer *peer;
        struct mfl_secure_set set; /* who has shared; then who survives */
        struct mfl_secure_set shared;
        bool knows; /* update is set */
};

static void move(struct mfl_secure_member *m, enum stage to)
{
        m->stage = mfl_states_move(&stages, m->stage, to);
}

/* ---- keys ---- */

static int make_keys(
        struct mfl_secure_member *m, const uint64_t who[MFL_SECURE_WHO_WORDS], struct mfl_error *err)
{
        uint8_t statement[MFL_SECURE_KEYS_STATEMENT], signature[MFL_SECURE_SIGNATURE_MAX];
        struct mfl_secure_keys keys = {.chain = m->trust->chain, .n_chain = m->trust->n_chain};
        int r = mfl_secure_random(&m->channel, sizeof m->channel, err);
        if (!r)
                r = mfl_secure_random(&m->mask, sizeof m->mask, err);
        if (!r)
                r = mfl_secure_random(&m->seed, sizeof m->seed, err);
        if (!r)
                r = mfl_secure_public(&m->channel, &m->channel_public, err);
        if (!r)
                r = mfl_secure_public(&m->mask, &m->mask_public, err);
        if (r)
                return r;
        keys.channel = m->channel_public;
        keys.mask = m->mask_public;
        memcpy(keys.who, who, sizeof keys.who);
        mfl_secure_keys_statement(m->context, &keys, statement);
        r = m->trust->sign(m->trust->user, statement, sizeof statement, signature, &keys.n_signature, err);
        if (r)
                return r;
        keys.signature = signature;
        m->n_own = mfl_secure_keys_write(&keys, m->own);
        return m->n_own ? 0
                        : mfl_fail(err, MFL_INVALID,
                                  "this daemon's certificates are too long for a secure sum");
}

int mfl_secure_member_new(const struct mfl_secure_member_options *options,
        struct mfl_secure_member **ret_member, struct mfl_error *err)
{
        struct mfl_secure_member *m = mfl_calloc(1, sizeof *m);
        if (!m)
                return mfl_fail_memory(err, sizeof *m, "a secure sum");
        m->spec = options->spec;
        m->least = MFL_MAX(options->least, MFL_SECURE_LEAST);
        m->members = options->members;
        m->trust = options->trust;
        m->book = options->book;
        m->keep = options->keep;
        int r = mfl_secure_context(
                options->job, options->round, options->params, options->text, m->context, err);
        if (!r)
                r = make_keys(m, options->who, err);
        if (r)
                mfl_secure_member_free(m);
        else
                *ret_member = m;
        return r;
}

void mfl_secure_member_free(struct mfl_secure_member *m)
{
        if (!m)
                return;
        if (m->peer)
                mfl_secure_wipe(m->peer, m->n * sizeof *m->peer);
        free(m->peer);
        mfl_secure_msg_deinit(&m->peers);
        mfl_secure_wipe(m, sizeof *m);
        free(m);
}

int mfl_secure_member_keys(
        const struct mfl_secure_member *m, struct mfl_secure_msg *ret_msg, struct mfl_error *err)
{
        struct mfl_secure_msg msg = {.step = MFL_SECURE_KEYS};
        if (mfl_secure_msg_add(&msg, 0, m->own, m->n_own)) {
                mfl_secure_msg_deinit(&msg);
                return mfl_fail_memory(err, m->n_own, "keys");
        }
        *ret_msg = msg;
        return 0;
}

int mfl_secure_member_honest(const struct mfl_secure_member *m, uint32_t *ret_honest, struct mfl_error *err)
{
        mfl_assert(m->stage >= SHARED && m->stage < REFUSED);
        return mfl_secure_honest(&m->spec, m->n, ret_honest, err);
}

uint32_t mfl_secure_member_count(const struct mfl_secure_member *m)
{
        return m->stage < MASKED ? m->n : mfl_secure_count(&m->set);
}

bool mfl_secure_member_masks(const struct mfl_secure_member *m)
{
        return m->stage == MASKING;
}

/* ---- PEERS ---- */

static int copy_peers(struct mfl_secure_member *m, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        for (uint32_t i = 0; i < msg->n_parts; i++)
                if (mfl_secure_msg_add(
                            &m->peers, msg->parts[i].member, msg->bytes + msg->parts[i].at, msg->parts[i].n))
                        return mfl_fail_memory(err, msg->n_bytes, "keys");
        m->n = msg->n_parts;
        m->peer = mfl_calloc(MFL_MAX(m->n, 1u), sizeof *m->peer);
        return m->peer ? 0 : mfl_fail_memory(err, m->n * sizeof *m->peer, "members");
}

static int check_peer(struct mfl_secure_member *m, uint32_t i, struct mfl_error *err)
{
        struct peer *peer = &m->peer[i];
        const struct mfl_secure_part *part = &m->peers.parts[i];
        uint8_t statement[MFL_SECURE_KEYS_STATEMENT];
        int r = mfl_secure_keys_read(m->peers.bytes + part->at, part->n, &peer->keys, err);
        if (r)
                return r;
        mfl_secure_keys_statement(m->context, &peer->keys, statement);
        return m->trust->check(m->trust->user, peer->keys.chain, peer->keys.n_chain, statement,
                sizeof statement, peer->keys.signature, peer->keys.n_signature, &peer->identity, err);
}

/* Two members with one certificate would be one party that holds two shares of everything. The name counts, too: a certificate that
 * was renewed is another, and whoever has one that is signed by ECDSA can write it in a second way (s, or the order less s), with
 * another fingerprint. */
static int check_parties(const struct mfl_secure_member *m, struct mfl_error *err)
{
        for (uint32_t i = 0; i < m->n; i++)
                for (uint32_t j = 0; j < i; j++)
                        if (!strcmp(m->peer[i].identity.fingerprint, m->peer[j].identity.fingerprint) ||
                                !strcmp(m->peer[i].identity.name, m->peer[j].identity.name))
                                return mfl_fail(err, MFL_INVALID,
                                        "two of the %u participants have the certificate of '%s'", m->n,
                                        m->peer[i].identity.name);
        if (m->n < m->least)
                return mfl_fail(err, MFL_INVALID, "%u participants, and this site wants %u", m->n, m->least);
        if (m->n < m->members)
                return mfl_fail(err, MFL_INVALID, "a bucket of %u participants, and the job's has %u", m->n,
                        m->members);
        uint32_t honest;
        return m->spec.least > 0 ? mfl_secure_honest(&m->spec, m->n, &honest, err) : 0;
}

static int find_self(struct mfl_secure_member *m, struct mfl_error *err)
{
        for (m->self = 0; m->self < m->n; m->self++)
                if (m->peers.parts[m->self].n == m->n_own &&
                        !memcmp(m->peers.bytes + m->peers.parts[m->self].at, m->own, m->n_own))
                        return 0;
        return mfl_fail(err, MFL_INVALID, "this daemon's own keys are not among the participants'");
}

static int seal_shares(struct mfl_secure_member *m, uint32_t to, const uint8_t *random, uint32_t n_random,
        struct mfl_secure_msg *answer, struct mfl_error *err)
{
        struct mfl_secure_key key;
        struct shares shares;
        uint8_t sealed[sizeof shares + MFL_SECURE_SEAL_BYTES];
        uint8_t number = (uint8_t)mfl_secure_share_number(&m->graph, m->self, to);
        mfl_shamir_share(&m->seed, m->graph.t, random, number, &shares.seed);
        mfl_shamir_share(&m->mask, m->graph.t, random + n_random, number, &shares.mask);
        int r = 0;
        if (to == m->self) {
                m->peer[to].shares = shares;
        } else {
                r = mfl_secure_share_key(
                        &m->channel, &m->peer[to].keys.channel, m->transcript, m->self, to, &key, err);
                if (!r)
                        r = mfl_secure_seal(&key, &shares, sizeof shares, sealed, err);
                if (!r && mfl_secure_msg_add(answer, to, sealed, sizeof sealed))
                        r = mfl_fail_memory(err, sizeof sealed, "shares");
        }
        mfl_secure_wipe(&shares, sizeof shares);
        mfl_secure_wipe(&key, sizeof key);
        return r;
}

static int share(struct mfl_secure_member *m, struct mfl_secure_msg *answer, struct mfl_error *err)
{
        uint32_t n_random = (m->graph.t - 1) * MFL_SECURE_KEY_BYTES;
        uint8_t *random = mfl_malloc(2 * (size_t)n_random);
        if (!random)
                return mfl_fail_memory(err, 2 * (size_t)n_random, "shares");
        int r = mfl_secure_random(random, 2 * (size_t)n_random, err);
        for (uint32_t i = 0; i < m->n && !r; i++)
                if (mfl_secure_share_number(&m->graph, m->self, i))
                        r = seal_shares(m, i, random, n_random, answer, err);
        mfl_secure_wipe(random, 2 * (size_t)n_random);
        free(random);
        answer->step = MFL_SECURE_SHARES;
        return r;
}

static int on_peers(struct mfl_secure_member *m, const struct mfl_secure_msg *msg,
        struct mfl_secure_msg *answer, struct mfl_error *err)
{
        int r = copy_peers(m, msg, err);
        if (!r)
                r = find_self(m, err);
        if (!r)
                r = mfl_secure_transcript(&m->spec, &m->peers, &m->graph, m->transcript, err);
        for (uint32_t i = 0; i < m->n && !r; i++) {
                struct mfl_error why;
                r = check_peer(m, i, &why);
                if (r)
                        r = mfl_fail(err, r, "the keys of participant %u: %.300s", i, why.text);
        }
        if (!r)
                r = check_parties(m, err);
        if (!r)
                r = share(m, answer, err);
        if (!r)
                move(m, SHARED);
        return r;
}

/* ---- sets ---- */

/* Holders of this member's shares that are in the set. */
static uint32_t count_holders(const struct mfl_secure_member *m, const struct mfl_secure_set *set)
{
        uint32_t n = 0;
        for (uint32_t i = 0; i < m->n; i++)
                n += mfl_secure_has(set, i) && mfl_secure_share_number(&m->graph, m->self, i);
        return n;
}

static int check_set(const struct mfl_secure_member *m, const struct mfl_secure_set *set,
        const struct mfl_secure_set *within, struct mfl_error *err)
{
        uint32_t n = 0, holders = count_holders(m, set);
        uint32_t least = MFL_MAX(m->least, mfl_secure_survivors(&m->spec, m->n));
        for (uint32_t i = 0; i < MFL_SECURE_MEMBERS_MAX; i++) {
                if (!mfl_secure_has(set, i))
                        continue;
                if (i >= m->n || (within && !mfl_secure_has(within, i)))
                        return mfl_fail(
                                err, MFL_INVALID, "a set with participant %u, who was not there before", i);
                n++;
        }
        if (!mfl_secure_has(set, m->self))
                return mfl_fail(err, MFL_INVALID, "a set without this daemon");
        if (n < least)
                return mfl_fail(
                        err, MFL_INVALID, "a set of %u participants, and at least %u are wanted", n, least);
        if (holders < m->graph.t)
                return mfl_fail(err, MFL_INVALID,
                        "a set with %u holders of this daemon's shares; at least %u are needed", holders,
                        m->graph.t);
        return 0;
}

/* ---- MASK ---- */

static int unseal_shares(
        struct mfl_secure_member *m, const struct mfl_secure_msg *msg, uint32_t from, struct mfl_error *err)
{
        const struct mfl_secure_part *part = mfl_secure_msg_find(msg, from);
        struct mfl_secure_key key;
        if (!part || part->n != sizeof(struct shares) + MFL_SECURE_SEAL_BYTES)
                return mfl_fail(err, MFL_INVALID, "no shares of participant %u", from);
        int r = mfl_secure_share_key(
                &m->channel, &m->peer[from].keys.channel, m->transcript, from, m->self, &key, err);
        if (!r)
                r = mfl_secure_unseal(&key, msg->bytes + part->at, part->n, &m->peer[from].shares, err);
        mfl_secure_wipe(&key, sizeof key);
        if (r > 0)
                return mfl_fail(err, MFL_INVALID,
                        "the shares of '%s' are not what it has sealed for this daemon",
                        m->peer[from].identity.name);
        return r;
}

static int on_mask(struct mfl_secure_member *m, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        int r = check_set(m, &msg->set, NULL, err);
        for (uint32_t i = 0; i < m->n && !r; i++)
                if (i != m->self && mfl_secure_has(&msg->set, i) &&
                        mfl_secure_share_number(&m->graph, i, m->self))
                        r = unseal_shares(m, msg, i, err);
        if (r)
                return r;
        m->set = m->shared = msg->set;
        move(m, MASKING);
        return 0;
}

static int add_mask(const struct mfl_secure_key *key, bool subtract, uint64_t *v, uint64_t n,
        uint64_t figures[MFL_SECURE_FIGURES], struct mfl_error *err)
{
        int r = mfl_secure_mask(key, subtract, 0, v, n, err);
        return r ? r : mfl_secure_mask(key, subtract, n, figures, MFL_SECURE_FIGURES, err);
}

int mfl_secure_member_knows(struct mfl_secure_member *m, const uint64_t *v, uint64_t n, struct mfl_error *err)
{
        int r = mfl_sha256(v, n * sizeof *v, m->update, err);
        m->knows = !r;
        return r;
}

const uint8_t *mfl_secure_member_update(const struct mfl_secure_member *m)
{
        mfl_assert(m->knows);
        return m->update;
}

int mfl_secure_member_mask(struct mfl_secure_member *m, uint64_t *v, uint64_t n,
        uint64_t figures[MFL_SECURE_FIGURES], struct mfl_error *err)
{
        struct mfl_secure_key key;
        mfl_assert(m->stage == MASKING);
        int r = m->knows ? 0 : mfl_secure_member_knows(m, v, n, err);
        if (!r)
                r = mfl_secure_self_mask(&m->seed, m->transcript, m->self, &key, err);
        if (!r)
                r = add_mask(&key, false, v, n, figures, err);
        for (uint32_t i = 0; i < m->n && !r; i++) {
                if (i == m->self || !mfl_secure_has(&m->set, i) ||
                        !mfl_secure_are_neighbours(&m->graph, m->self, i))
                        continue;
                r = mfl_secure_pair_mask(
                        &m->mask, &m->peer[i].keys.mask, m->transcript, m->self, i, &key, err);
                if (!r)
                        r = add_mask(&key, m->self > i, v, n, figures, err);
        }
        mfl_secure_wipe(&key, sizeof key);
        move(m, r ? REFUSED : MASKED);
        return r;
}

/* ---- SURVIVORS ---- */

struct survivor {
        char print[72]; /* no hole behind it: all of it is hashed */
        uint64_t who[MFL_SECURE_WHO_WORDS];
};

static int compare_survivors(const void *a, const void *b)
{
        const struct survivor *x = a, *y = b;
        return memcmp(x->print, y->print, sizeof x->print);
}

/* A digest of who they are, and of what they bring, whatever their numbers in this sum. */
static int name_survivors(const struct mfl_secure_member *m, const struct mfl_secure_set *set, bool brings,
        uint8_t ret_name[MFL_SHA256_BYTES], struct mfl_error *err)
{
        uint32_t n = 0;
        struct survivor *v = mfl_calloc(m->n, sizeof *v);
        if (!v)
                return mfl_fail_memory(err, m->n * sizeof *v, "survivors");
        for (uint32_t i = 0; i < m->n; i++) {
                if (!mfl_secure_has(set, i))
                        continue;
                memcpy(v[n].print, m->peer[i].identity.fingerprint, MFL_SECURE_PRINT_BYTES);
                if (brings)
                        memcpy(v[n].who, m->peer[i].keys.who, sizeof v->who);
                n++;
        }
        qsort(v, n, sizeof *v, compare_survivors);
        int r = mfl_sha256(v, n * sizeof *v, ret_name, err);
        free(v);
        return r;
}

int mfl_secure_member_group(
        const struct mfl_secure_member *m, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err)
{
        mfl_assert(m->stage == MASKING);
        return name_survivors(m, &m->set, true, ret_digest, err);
}

/* The update may be summed with these, and is from here on. */
static int enter(struct mfl_secure_member *m, const uint8_t with[MFL_SHA256_BYTES], struct mfl_error *err)
{
        const uint8_t *before = mfl_secure_book_find(m->book, m->update);
        if (before && !memcmp(before, with, MFL_SHA256_BYTES))
                return 0;
        if (before)
                return mfl_fail(err, MFL_INVALID,
                        "this update was summed with other participants before: the difference of the two "
                        "sums would show it. A new job needs another seed");
        int r = mfl_secure_book_room(m->book, err);
        if (!r && m->keep)
                r = m->keep(m->trust->user, m->update, with, err);
        if (!r)
                mfl_secure_book_put(m->book, m->update, with);
        return r;
}

static int on_survivors(struct mfl_secure_member *m, const struct mfl_secure_msg *msg,
        struct mfl_secure_msg *answer, struct mfl_error *err)
{
        uint8_t statement[MFL_SECURE_SET_STATEMENT], signature[MFL_SECURE_SIGNATURE_MAX],
                with[MFL_SHA256_BYTES];
        uint32_t n_signature = 0;
        int r = check_set(m, &msg->set, &m->set, err);
        if (!r)
                r = name_survivors(m, &msg->set, m->spec.least == 0, with, err);
        if (!r)
                r = enter(m, with, err);
        if (r)
                return r;
        uint32_t n = mfl_secure_set_statement(m->transcript, &msg->set, m->n, statement);
        r = m->trust->sign(m->trust->user, statement, n, signature, &n_signature, err);
        if (!r && mfl_secure_msg_add(answer, m->self, signature, n_signature))
                r = mfl_fail_memory(err, n_signature, "a signature");
        if (r)
                return r;
        answer->step = MFL_SECURE_SIGNED;
        m->set = msg->set;
        move(m, SIGNED);
        return 0;
}

/* ---- OPEN ---- */

static int check_signature(const struct mfl_secure_member *m, const struct mfl_secure_msg *msg,
        const struct mfl_secure_part *part, struct mfl_error *err)
{
        uint8_t statement[MFL_SECURE_SET_STATEMENT];
        struct mfl_secure_identity identity;
        const struct peer *peer = &m->peer[part->member];
        uint32_t n = mfl_secure_set_statement(m->transcript, &m->set, m->n, statement);
        int r = m->trust->check(m->trust->user, peer->keys.chain, peer->keys.n_chain, statement, n,
                msg->bytes + part->at, part->n, &identity, err);
        return r > 0 ? mfl_fail(err, MFL_INVALID,
                               "'%s' has not signed the survivors that this daemon was told",
                               peer->identity.name)
                     : r;
}

/* t holders of this member's shares say that they survive together. */
static int check_signatures(
        const struct mfl_secure_member *m, const struct mfl_secure_msg *msg, struct mfl_error *err)
{
        uint32_t n = 0;
        struct mfl_secure_set seen = {{0}};
        for (uint32_t i = 0; i < msg->n_parts; i++) {
                uint32_t member = msg->parts[i].member;
                if (member >= m->n || !mfl_secure_has(&m->set, member) || mfl_secure_has(&seen, member) ||
                        !mfl_secure_share_number(&m->graph, m->self, member))
                        continue;
                int r = check_signature(m, msg, &msg->parts[i], err);
                if (r)
                        return r;
                mfl_secure_put(&seen, member);
                n++;
        }
        if (n < m->graph.t)
                return mfl_fail(err, MFL_INVALID,
                        "%u signatures on the survivors, and at least %u are needed", n, m->graph.t);
        return 0;
}

static int on_open(struct mfl_secure_member *m, const struct mfl_secure_msg *msg,
        struct mfl_secure_msg *answer, struct mfl_error *err)
{
        int r = check_signatures(m, msg, err);
        for (uint32_t i = 0; i < m->n && !r; i++) {
                const struct shares *shares = &m->peer[i].shares;
                if (!mfl_secure_has(&m->shared, i) || !mfl_secure_share_number(&m->graph, i, m->self))
                        continue;
                const struct mfl_secure_key *key = mfl_secure_has(&m->set, i) ? &shares->seed : &shares->mask;
                if (mfl_secure_msg_add(answer, i, key, sizeof *key))
                        r = mfl_fail_memory(err, sizeof *key, "shares");
        }
        if (r)
                return r;
        answer->step = MFL_SECURE_OPENED;
        move(m, OPENED);
        return 0;
}

static int take(struct mfl_secure_member *m, const struct mfl_secure_msg *msg, struct mfl_secure_msg *answer,
        struct mfl_error *err)
{
        static const enum mfl_secure_step expected[STAGES] = {[KEYED] = MFL_SECURE_PEERS,
                [SHARED] = MFL_SECURE_MASK,
                [MASKED] = MFL_SECURE_SURVIVORS,
                [SIGNED] = MFL_SECURE_OPEN};
        if (msg->step != expected[m->stage])
                return mfl_fail(err, MFL_INVALID, "step %d of a secure sum comes when it is %s",
                        (int)msg->step, stages.v[m->stage].name);
        switch (m->stage) {
        case KEYED:
                return on_peers(m, msg, answer, err);
        case SHARED:
                return on_mask(m, msg, err);
        case MASKED:
                return on_survivors(m, msg, answer, err);
        default:
                return on_open(m, msg, answer, err);
        }
}

int mfl_secure_member_take(struct mfl_secure_member *m, const struct mfl_secure_msg *msg,
        struct mfl_secure_msg *ret_answer, struct mfl_error *err)
{
        struct mfl_secure_msg answer = {.task = msg->task};
        int r = take(m, msg, &answer, err);
        if (!r) {
                *ret_answer = answer;
                return 0;
        }
        mfl_secure_msg_deinit(&answer);
        move(m, REFUSED);
        return r;
}
