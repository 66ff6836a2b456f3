/* SPDX-License-Identifier: Apache-2.0 */
/* How two ranks find out that they belong to one team: each proves to have the team's key (mfl.proto, PeerHello). No I/O but
 * the link's; the caller waits. */
#ifndef MFL_CLIENT_PEER_GREETING_H
#define MFL_CLIENT_PEER_GREETING_H

#include "client/peer/link.h"

enum {
        PEER_LATER = 21,   /* the other side does not know the team, or not yet */
        PEER_REFUSED = 22, /* the other side is not who it should be */
};

enum peer_greeting_state { GREETS_OPENING, GREETS_HELLO, GREETS_PROOF, GREETS_LAST, GREETS_DONE };

struct peer_greeting {
        bool dials; /* this side is the client */
        enum peer_greeting_state state;
        uint64_t team;
        uint32_t epoch, rank, other, n_ranks;
        uint8_t key[MFL_TEAM_KEY_BYTES];
        uint8_t nonce[2][MFL_PEER_NONCE_BYTES]; /* 0: the client's */
        char print[2][64];                      /* of the certificates */
        char own_print[64];                     /* zeros without TLS */
        /* The side that accepts: fills in key if it waits for that rank of that team; else false. */
        bool (*knows)(void *user, struct peer_greeting *greeting);
        void *user;
};

/* Fills in what is this side's own: the nonce and its certificate, if there is one. Negative: no random numbers. */
int mfl_peer_greeting_init(
        struct peer_greeting *greeting, const struct mfl_tls_context *context, struct mfl_error *err);
/* As far as it goes. 0: the other side is who it should be. MFL_BUSY: it must come again when the link is ready. PEER_OVER,
 * PEER_LATER, PEER_REFUSED; negative: memory. */
int mfl_peer_greet(struct peer_greeting *greeting, struct peer_link *link, struct mfl_error *err);

#endif
