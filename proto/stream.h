/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of frames on a libuv loop: used by the server, the daemon and the command line.
 *
 *   - reads the header and checks it (frame.h); reads the envelope, checks its CRC, unpacks and validates it (wire.h);
 *   - asks the owner for the payload's destination (on_payload) and reads the payload straight there, in slices of
 *     512 KiB, computing its CRC while a slice is hot in cache; while a payload arrives fast, the socket wakes the loop
 *     once per slice (stream_mark.c);
 *   - passes on the whole frame (on_frame); the envelope is valid only during the call.
 * Memory of an idle connection: the struct and no buffer; the streams of a loop share one 64 KiB read buffer.
 *
 * Every failure ends in exactly one on_closed with a reason: end of file, reset, a bad frame (after a Bye, best effort),
 * a Bye of the peer (after its on_frame), the owner's own mfl_stream_close, a write queue over its limit. Loop thread
 * only. After on_closed no other callback comes; before it, pending sends get their sent callback with a negative
 * status. The memory may be freed in on_closed.
 *
 * With TLS (mfl_stream_tls) the bytes of the socket are decrypted straight into the same destinations, and frames are
 * encrypted into output buffers of 128 KiB, at most four per stream. A thread's streams share 64 MiB of them, and get
 * room for one record each beyond that. A connection that has sent and received everything holds none.
 *
 * The shared read buffer is thread-local: a thread has one loop, and a stream passes on no part of the buffer beyond one
 * read callback, so it need not be passed around.
 */
#ifndef MFL_PROTO_STREAM_H
#define MFL_PROTO_STREAM_H

#include <uv.h>

#include "common/base/base.h"
#include "proto/frame.h"
#include "proto/tls/tls.h"
#include "proto/wire.h"

struct mfl_stream;

struct mfl_stream_ops {
        /* A frame with payload begins. Sets *ret_dst to payload_bytes of memory that stays valid until
         * on_frame or on_closed. NULL: read and drop it. MFL_INVALID: protocol error, the stream closes. */
        int (*on_payload)(struct mfl_stream *stream, const Mfl__Envelope *envelope, size_t payload_bytes,
                void **ret_dst, struct mfl_error *err);
        /* A whole frame, checksums right. MFL_INVALID closes the stream with that text, as Bye too. Negative:
         * fatal for the process; the owner keeps the code for main, the stream closes as well. */
        int (*on_frame)(struct mfl_stream *stream, const Mfl__Envelope *envelope, void *payload,
                size_t payload_bytes, struct mfl_error *err);
        void (*on_closed)(struct mfl_stream *stream, const char *reason);
        /* Client side only: the result of mfl_stream_connect; 0, or a negative status and text for people,
         * and then the stream closes by itself. Also called, with UV_ECANCELED, when it is closed while it
         * connects. */
        void (*on_connected)(struct mfl_stream *stream, int status, const char *text);
};

/* A queued frame went out (status 0) or never will (negative). */
typedef void (*mfl_stream_sent_cb)(struct mfl_stream *stream, int status, void *arg);

struct mfl_stream {
        uv_tcp_t tcp;
        const struct mfl_stream_ops *ops;
        void *owner;
        uint32_t envelope_max, payload_max; /* raise after Welcome */
        uint64_t bytes_in, bytes_out;       /* since start, headers included */
        uint64_t heard_ms, sent_ms;         /* uv_now of the last byte read, last frame queued */
        size_t queued_bytes;                /* waiting to be written */
        size_t unread_bytes; /* the part of them that the stream itself holds: everything except payloads, which
                                belong to the owner */
        struct mfl_stream_in {
                uint8_t header[MFL_FRAME_HEADER_BYTES];
                size_t have; /* bytes of the current part: header, envelope or payload */
                int part;
                struct mfl_frame frame;
                uint8_t *envelope_bytes;
                Mfl__Envelope *envelope;
                uint8_t *payload;
                uint32_t crc;
        } in;
        bool connected, closing;
        size_t queue_max;      /* of queued_bytes; 256 MiB from mfl_stream_init; the owner may set it */
        uint64_t handshake_ms; /* limit of a TLS handshake; 10 s from mfl_stream_init; the owner may set it */
        bool paused;           /* mfl_carry_pause */
        bool broken;           /* the peer has sent what the protocol does not allow */
        bool connecting; /* private from here on: mfl_stream_connect has begun, on_connected has not come */
        bool reopening;  /* the dial is closing the TCP handle */
        bool cancelled;  /* closed while connecting: on_connected comes with UV_ECANCELED */
        bool bulk;
        uint8_t handles;            /* tcp and timer, not closed yet */
        char reason[256];           /* what on_closed will say */
        uv_timer_t flush;           /* bounds the time that a Bye may take; before that, watches the mark */
        size_t mark;                /* bytes that must have arrived before a read; 0 and 1: any */
        uv_shutdown_t shutdown;     /* after the Bye */
        struct mfl_dial *dial;      /* until TCP is connected */
        struct mfl_stream_tls *tls; /* NULL: plain */
        struct mfl_stream *carrier; /* carry.h; NULL: it has a socket of its own */
        uint32_t via;               /* on the carrier */
        uint64_t term;              /* the owner may set it: Envelope.term of all that is sent; 0: none */
        const char *leader; /* the owner may set it, before a close: Bye.leader; borrowed; NULL: none */
};

/* After success a stream ends only with on_closed, so a stream that is no longer needed must be closed, too. */
int mfl_stream_init(struct mfl_stream *stream, uv_loop_t *loop, const struct mfl_stream_ops *ops, void *owner,
        struct mfl_error *err);
/* Makes it a TLS stream (tls.h); before accept or connect. Takes a reference to the context, whose side must
 * be the stream's. The handshake is part of connecting: on_connected comes after it, within 10 s, and a
 * server's frames begin after it. Everything else is as without TLS; bytes_in and bytes_out count the decrypted
 * bytes. A close without close_notify counts as end of file: frames carry their lengths, and Bye announces the end.
 * -ENOMEM. */
int mfl_stream_tls(struct mfl_stream *stream, struct mfl_tls_context *context, struct mfl_error *err);
/* The peer's identity. NULL: no TLS, or the handshake is not over. Valid until on_closed. */
const struct mfl_tls_identity *mfl_stream_identity(const struct mfl_stream *stream);
/* Server side: takes the pending connection of the listener and starts reading. A failure still ends in
 * on_closed. */
void mfl_stream_accept(struct mfl_stream *stream, uv_stream_t *listener);
/* "host:port" or "[v6]:port"; resolves and connects; on_connected once. MFL_INVALID (nothing called) for a
 * bad address. */
int mfl_stream_connect(struct mfl_stream *stream, const char *address, struct mfl_error *err);

/* Queues a frame. The envelope is packed at once; the payload is not copied and must live until sent (may be
 * NULL with 0 bytes; sent may be NULL). payload_crc: the payload's CRC, or NULL to compute it here. After a result
 * other than 0, sent is not called: MFL_BUSY when closing, not connected yet, or when the write queue is over its
 * limit, which also closes; MFL_INVALID for an envelope that breaks a rule of mfl.proto; -ENOMEM. sent is never
 * called from inside. */
int mfl_stream_send(struct mfl_stream *stream, const Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, const uint32_t *payload_crc, mfl_stream_sent_cb sent, void *arg,
        struct mfl_error *err);
int mfl_stream_send_msg(struct mfl_stream *stream, const struct mfl_msg *msg,
        const struct mfl_wire_extra *extra, struct mfl_error *err);

/* Closes; with a Bye first when bye is not NULL and the stream is connected (flushed for at most 200 ms).
 * Idempotent. on_closed comes later, never from inside. */
void mfl_stream_close(struct mfl_stream *stream, const char *bye, bool retry);
/* Peer's address as text. */
const char *mfl_stream_peer(const struct mfl_stream *stream, char *buf, size_t buf_bytes);

/* Parses "host:port", "[::1]:port", ":port" (empty host) and "host" (default port). The port is a number. */
#define MFL_PORT_DEFAULT 7433
int mfl_address_parse(const char *text, char *ret_host, size_t host_bytes, char *ret_port, size_t port_bytes,
        struct mfl_error *err);
bool mfl_address_is_loopback(const struct sockaddr *addr);

#endif
