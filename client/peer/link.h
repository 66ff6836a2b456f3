/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of frames between two ranks, with or without TLS. It never blocks: whoever has it waits with poll(2), for
 * writing only while `mfl_peer_link_busy`. One thread at a time.
 *
 * Errors: PEER_OVER: the connection is at its end, with the reason; it can only be freed. Negative: memory. */
#ifndef MFL_CLIENT_PEER_LINK_H
#define MFL_CLIENT_PEER_LINK_H

#include "proto/frame.h"
#include "proto/tls/tls.h"
#include "proto/wire.h"

enum { PEER_OVER = 20 };

#define PEER_ENVELOPE_MAX 1024u
#define PEER_CIPHER_BYTES 65536u

enum peer_part {
        PEER_HEADER,
        PEER_ENVELOPE,
        PEER_WAITS, /* the envelope is there, and its payload has no place yet */
        PEER_PAYLOAD,
        PEER_WHOLE, /* all of the frame is there */
};

struct peer_link {
        int fd;
        struct mfl_tls *tls; /* NULL: plain */
        uint8_t *cipher;     /* PEER_CIPHER_BYTES received, with TLS */
        size_t sealed_at;    /* bytes of the TLS output that are sent */
        bool open;           /* the TLS handshake is over, or there is none */
        struct {
                uint8_t head[MFL_FRAME_HEADER_BYTES + PEER_ENVELOPE_MAX];
                size_t head_bytes, at, all; /* at: sent, or sealed, of all */
                const uint8_t *payload;
        } out;
        struct {
                enum peer_part part;
                size_t have; /* bytes of the part */
                struct mfl_frame frame;
                uint8_t header[MFL_FRAME_HEADER_BYTES], bytes[PEER_ENVELOPE_MAX];
                Mfl__Envelope *envelope; /* from PEER_WAITS on */
                uint8_t *payload;
                uint32_t crc;
                uint32_t payload_max;
        } in;
};

/* Takes the socket, also after a failure. context NULL: plain. */
int mfl_peer_link_new(
        int fd, struct mfl_tls_context *context, struct peer_link **ret_link, struct mfl_error *err);
void mfl_peer_link_free(struct peer_link *link); /* NULL is fine */

/* A frame begins; the last one must be out. The payload stays where it is until it is. */
int mfl_peer_link_begin(struct peer_link *link, const Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, struct mfl_error *err);
bool mfl_peer_link_busy(const struct peer_link *link);
/* Sends what can be sent. Sets *moved if that is something. */
int mfl_peer_link_push(struct peer_link *link, bool *moved, struct mfl_error *err);
/* Receives what is there, up to PEER_WAITS or PEER_WHOLE. */
int mfl_peer_link_pull(struct peer_link *link, bool *moved, struct mfl_error *err);
/* The place of the payload, if it waits for one. */
void mfl_peer_link_place(struct peer_link *link, void *payload);
/* Done with the frame that is whole. */
void mfl_peer_link_next(struct peer_link *link);

#endif
