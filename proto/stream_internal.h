/* SPDX-License-Identifier: Apache-2.0 */
/* What stream.c, stream_mark.c, stream_tls.c and connect.c share. */
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
/* The frame went out, or never will: updates the counts, frees it, calls sent. */
void mfl_stream_send_done(struct mfl_stream_send *send, int status);

/* The destination of the peer's next bytes, and how many fit. */
uint8_t *mfl_stream_next(struct mfl_stream *stream, size_t *ret_room);
/* Takes n bytes of frames from data; room is what mfl_stream_next returned. */
void mfl_stream_take(struct mfl_stream *stream, const uint8_t *data, size_t n, size_t room);
/* The peer sends nothing more: a negative libuv status. */
void mfl_stream_read_end(struct mfl_stream *stream, int status);

/* Closes at once, without a Bye. The first reason is kept. */
void mfl_stream_abort(struct mfl_stream *stream, const char *reason);
/* Gives a whole frame to the owner, and ends the stream if the owner refuses it, or if it is a Bye. */
void mfl_stream_dispatch(
        struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload, size_t payload_bytes);
/* Closes, because the peer (r > 0) or this process (r < 0) failed. */
void mfl_stream_refuse(struct mfl_stream *stream, int r, const struct mfl_error *err);
/* One of the two handles is closed. */
void mfl_stream_handle_closed(struct mfl_stream *stream);
/* The connection is established: sets options, starts reading. Returns a libuv status. */
int mfl_stream_begin(struct mfl_stream *stream);
/* What libuv calls to read. */
void mfl_stream_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf);
void mfl_stream_on_read(uv_stream_t *handle, ssize_t n, const uv_buf_t *buf);
/* Stops with this reason, and closes when the queue has gone out and the peer has read it, or after 200 ms.
 * plain_bye: for a peer that cannot read our TLS. */
void mfl_stream_fail(struct mfl_stream *stream, const char *reason, bool plain_bye);
/* Nothing more will be written: lets the queue go out, then closes. */
void mfl_stream_linger(struct mfl_stream *stream);
/* Ends what mfl_stream_connect began: on_connected, and a failure closes the stream. Does nothing on a stream that is
 * not connecting, such as a server's. */
void mfl_stream_connect_end(struct mfl_stream *stream, int status, const char *text);

/* stream_tls.c; stream->tls is set. */
int mfl_stream_tls_begin(struct mfl_stream *stream); /* a libuv status */
void mfl_stream_tls_host(struct mfl_stream *stream, const char *host);
void mfl_stream_tls_alloc(uv_buf_t *ret_buf);
void mfl_stream_tls_read(struct mfl_stream *stream, const uint8_t *data, size_t n);
/* Takes over the frame; mfl_stream_send_done comes later in any case. */
void mfl_stream_tls_send(struct mfl_stream *stream, struct mfl_stream_send *send);
/* After the last frame. */
void mfl_stream_tls_finish(struct mfl_stream *stream);
/* Both handles are closed: ends unsent frames, frees all memory. */
void mfl_stream_tls_closed(struct mfl_stream *stream);

/* stream_mark.c. After a read of `got` bytes that drained the socket or did not: `left` more bytes of this frame's payload
 * will come. */
void mfl_stream_mark(struct mfl_stream *stream, size_t got, bool drained, size_t left);
/* From now on the socket wakes the loop for every byte. */
void mfl_stream_mark_clear(struct mfl_stream *stream);

/* A stream stops. Its carrier, if it has one, may be in the middle of a payload for it, whose memory goes with it: the rest is read and
 * dropped. */
static inline void mfl_stream_drop_payload(const struct mfl_stream *s)
{
        struct mfl_stream_in *in = s->carrier ? &s->carrier->in : NULL;
        if (in && in->envelope && in->envelope->via == s->via)
                in->payload = NULL;
}

#endif
