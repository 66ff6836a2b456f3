/* SPDX-License-Identifier: Apache-2.0 */
/* What stream.c, stream_tls.c and connect.c share. */
#ifndef MFL_PROTO_STREAM_INTERNAL_H
#define MFL_PROTO_STREAM_INTERNAL_H

#include "proto/stream.h"

/* A frame on its way out. */
struct mfl_stream_send {
        uv_write_t req; /* plain */
        struct mfl_stream_send *next;
        struct mfl_stream *stream;
        mfl_stream_sent_cb sent;
        void *arg;
        size_t bytes; /* of all three parts */
        uint8_t *envelope;
        size_t envelope_bytes;
        const uint8_t *payload;
        uint8_t header[MFL_FRAME_HEADER_BYTES];
};
/* It went out or never will: accounts, frees, calls sent. */
void mfl_stream_send_done(struct mfl_stream_send *send, int status);

/* Where the next bytes of the peer shall go, and how many at most. */
uint8_t *mfl_stream_next(struct mfl_stream *stream, size_t *ret_room);
/* n bytes of frames are there; room is what mfl_stream_next gave. */
void mfl_stream_take(struct mfl_stream *stream, const uint8_t *data, size_t n, size_t room);
/* The peer sends no more: a negative libuv status. */
void mfl_stream_read_end(struct mfl_stream *stream, int status);

/* Closes at once, without a Bye; the first reason stays. */
void mfl_stream_abort(struct mfl_stream *stream, const char *reason);
/* One of the two handles is closed for good. */
void mfl_stream_handle_closed(struct mfl_stream *stream);
/* The connection stands: options, reading. Returns a libuv status. */
int mfl_stream_begin(struct mfl_stream *stream);
/* Stops with this reason, and closes when what is queued has gone out and the peer has read it, or after 200
 * ms. plain_bye: for a peer that can't read our TLS. */
void mfl_stream_fail(struct mfl_stream *stream, const char *reason, bool plain_bye);
/* Nothing more will be written: lets it go out, then closes. */
void mfl_stream_linger(struct mfl_stream *stream);
/* The connection stands, with TLS too: the owner of one that connects is told. */
void mfl_stream_dial_done(struct mfl_stream *stream);

/* stream_tls.c; stream->tls is there. */
int mfl_stream_tls_begin(struct mfl_stream *stream); /* a libuv status */
void mfl_stream_tls_host(struct mfl_stream *stream, const char *host);
void mfl_stream_tls_alloc(uv_buf_t *ret_buf);
void mfl_stream_tls_read(struct mfl_stream *stream, const uint8_t *data, size_t n);
/* Takes the frame over; it is done later in any case. */
void mfl_stream_tls_send(struct mfl_stream *stream, struct mfl_stream_send *send);
/* After the last frame. */
void mfl_stream_tls_finish(struct mfl_stream *stream);
/* Both handles are closed: what was not sent is done, all memory goes. */
void mfl_stream_tls_closed(struct mfl_stream *stream);

/* Ends an attempt to connect on behalf of a stream that closes. */
void mfl_stream_dial_cancel(struct mfl_stream *stream);

#endif
