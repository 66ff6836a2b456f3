/* SPDX-License-Identifier: Apache-2.0 */
/* Greetings between ranks.
 *
 *     client                          other side
 *     PeerHello(nonce)        ----->
 *                             <-----  PeerHello(nonce, proof)   or Bye
 *     PeerProof               ----->                            or Bye
 *
 * A proof covers both certificates, so that whoever stands between two members has to show his own, and is found out. */
#include "client/peer/greeting.h"

#include <endian.h>
#include <stdio.h>
#include <sys/random.h>

#include "common/base/digest.h"

#define LABEL "mfl peer"

int mfl_peer_greeting_init(
        struct peer_greeting *greeting, const struct mfl_tls_context *context, struct mfl_error *err)
{
        uint8_t *nonce = greeting->nonce[!greeting->dials];
        if (getrandom(nonce, MFL_PEER_NONCE_BYTES, 0) != MFL_PEER_NONCE_BYTES)
                return mfl_fail_errno(err, "getrandom");
        if (context)
                memcpy(greeting->own_print, mfl_tls_context_identity(context)->fingerprint,
                        sizeof greeting->own_print);
        return 0;
}

/* What is hashed; every part has a fixed size. */
struct proof_text {
        uint8_t key[MFL_TEAM_KEY_BYTES];
        char label[8];
        uint64_t team;
        uint32_t side, epoch, client, other, n_ranks, zero;
        uint8_t nonce[2][MFL_PEER_NONCE_BYTES];
        char print[2][64];
};

static int prove(const struct peer_greeting *g, bool of_client, uint8_t ret_proof[MFL_SHA256_BYTES],
        struct mfl_error *err)
{
        struct proof_text text = {.label = LABEL,
                .team = htole64(g->team),
                .side = htole32(of_client ? 0 : 1),
                .epoch = htole32(g->epoch),
                .client = htole32(g->dials ? g->rank : g->other),
                .other = htole32(g->dials ? g->other : g->rank),
                .n_ranks = htole32(g->n_ranks)};
        memcpy(text.key, g->key, sizeof text.key);
        memcpy(text.nonce, g->nonce, sizeof text.nonce);
        memcpy(text.print, g->print, sizeof text.print);
        return mfl_sha256(&text, sizeof text, ret_proof, err);
}

/* Takes as long whatever is wrong. */
static bool same(const uint8_t *a, const ProtobufCBinaryData *b)
{
        uint8_t differs = 0;
        for (size_t i = 0; b->len == MFL_SHA256_BYTES && i < MFL_SHA256_BYTES; i++)
                differs |= a[i] ^ b->data[i];
        return b->len == MFL_SHA256_BYTES && !differs;
}

static int check_proof(const struct peer_greeting *g, const ProtobufCBinaryData *proof, struct mfl_error *err)
{
        uint8_t expected[MFL_SHA256_BYTES];
        int r = prove(g, !g->dials, expected, err);
        if (r || same(expected, proof))
                return r;
        return mfl_fail(err, PEER_REFUSED, "it does not have the team's key");
}

/* ---- certificates ---- */

static int note_certificates(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        if (!link->tls)
                return 0;
        const struct mfl_tls_identity *peer = mfl_tls_peer(link->tls);
        char roles[64];
        memcpy(g->print[!g->dials], g->own_print, sizeof g->own_print);
        memcpy(g->print[g->dials], peer->fingerprint, sizeof g->own_print);
        if (peer->roles & MFL_TLS_ROLE_DAEMON)
                return 0;
        return mfl_fail(err, PEER_REFUSED, "the certificate of '%s' has the role %s, expected daemon",
                peer->name, mfl_tls_roles_text(peer->roles, roles, sizeof roles));
}

/* ---- messages ---- */

static int say_hello(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        uint8_t proof[MFL_SHA256_BYTES];
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__PeerHello hello = MFL__PEER_HELLO__INIT;
        hello.team = g->team;
        hello.epoch = g->epoch;
        hello.rank = g->rank;
        hello.to = g->other;
        hello.n_ranks = g->n_ranks;
        hello.nonce = (ProtobufCBinaryData){MFL_PEER_NONCE_BYTES, g->nonce[!g->dials]};
        if (!g->dials) {
                int r = prove(g, false, proof, err);
                if (r)
                        return r;
                hello.proof = (ProtobufCBinaryData){MFL_SHA256_BYTES, proof};
        }
        e.body_case = MFL__ENVELOPE__BODY_PEER_HELLO;
        e.peer_hello = &hello;
        return mfl_peer_link_begin(link, &e, NULL, 0, err);
}

static int say_proof(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        uint8_t proof[MFL_SHA256_BYTES];
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__PeerProof message = MFL__PEER_PROOF__INIT;
        int r = prove(g, true, proof, err);
        message.proof = (ProtobufCBinaryData){MFL_SHA256_BYTES, proof};
        e.body_case = MFL__ENVELOPE__BODY_PEER_PROOF;
        e.peer_proof = &message;
        return r ? r : mfl_peer_link_begin(link, &e, NULL, 0, err);
}

/* Best effort. */
static int say_bye(struct peer_link *link, bool retry, const char *reason, struct mfl_error *err)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Bye bye = MFL__BYE__INIT;
        struct mfl_error ignored;
        bool moved;
        bye.reason = (char *)(uintptr_t)reason;
        bye.retry = retry;
        e.body_case = MFL__ENVELOPE__BODY_BYE;
        e.bye = &bye;
        if (!mfl_peer_link_begin(link, &e, NULL, 0, &ignored))
                (void)mfl_peer_link_push(link, &moved, &ignored);
        return mfl_fail(err, retry ? PEER_LATER : PEER_REFUSED, "%s", reason);
}

/* ---- what comes ---- */

static int hear_hello(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        const Mfl__PeerHello *hello = link->in.envelope->peer_hello;
        memcpy(g->nonce[g->dials], hello->nonce.data, MFL_PEER_NONCE_BYTES);
        if (g->dials) {
                if (hello->team != g->team || hello->epoch != g->epoch || hello->rank != g->other ||
                        hello->to != g->rank || hello->n_ranks != g->n_ranks)
                        return mfl_fail(err, PEER_REFUSED, "it answers as another rank");
                int r = check_proof(g, &hello->proof, err);
                if (!r)
                        r = say_proof(g, link, err);
                g->state = GREETS_LAST;
                return r;
        }
        g->team = hello->team;
        g->epoch = hello->epoch;
        g->rank = hello->to;
        g->other = hello->rank;
        g->n_ranks = hello->n_ranks;
        if (g->other <= g->rank || !g->knows(g->user, g))
                return say_bye(link, true, "no such team meets here now", err);
        g->state = GREETS_PROOF;
        return say_hello(g, link, err);
}

static int hear(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        const Mfl__Envelope *e = link->in.envelope;
        if (link->in.part == PEER_WAITS)
                return mfl_fail(err, PEER_REFUSED, "it sends a payload instead of a greeting");
        if (e->body_case == MFL__ENVELOPE__BODY_BYE)
                return mfl_fail(
                        err, e->bye->retry ? PEER_LATER : PEER_REFUSED, "it says: %s", e->bye->reason);
        if (g->state == GREETS_HELLO && e->body_case == MFL__ENVELOPE__BODY_PEER_HELLO)
                return hear_hello(g, link, err);
        if (g->state != GREETS_PROOF || e->body_case != MFL__ENVELOPE__BODY_PEER_PROOF)
                return mfl_fail(err, PEER_REFUSED, "it sends something else than a greeting");
        int r = check_proof(g, &e->peer_proof->proof, err);
        if (r == PEER_REFUSED)
                return say_bye(link, false, "that is not the team's key", err);
        g->state = GREETS_LAST;
        return r;
}

static int begin(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        int r = note_certificates(g, link, err);
        g->state = GREETS_HELLO;
        return r || !g->dials ? r : say_hello(g, link, err);
}

int mfl_peer_greet(struct peer_greeting *g, struct peer_link *link, struct mfl_error *err)
{
        for (;;) {
                bool moved = false;
                int r = mfl_peer_link_push(link, &moved, err);
                if (!r && g->state != GREETS_LAST)
                        r = mfl_peer_link_pull(link, &moved, err);
                if (!r && g->state == GREETS_OPENING && link->open)
                        r = begin(g, link, err);
                /* What comes too early waits until the own last word is out. */
                bool hears = !r && !mfl_peer_link_busy(link) && g->state != GREETS_LAST &&
                             (link->in.part == PEER_WAITS || link->in.part == PEER_WHOLE);
                if (hears)
                        r = hear(g, link, err);
                if (r)
                        return r;
                if (hears) {
                        mfl_peer_link_next(link);
                        moved = true;
                }
                if (g->state == GREETS_LAST && !mfl_peer_link_busy(link)) {
                        g->state = GREETS_DONE;
                        return 0;
                }
                if (!moved)
                        return MFL_BUSY;
        }
}
