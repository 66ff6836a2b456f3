/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of frames on a libuv loop.
 *
 * Reading:  header -> envelope -> on_payload -> payload -> on_frame -> header ...
 *     The header and the envelope go through the thread's shared buffer, the payload goes straight to its destination.
 * Closing:  stop (no more callbacks for frames) -> [Bye, shutdown, at most 200 ms] -> uv_close of both handles
 *     -> on_closed
 *     While it waits it keeps reading and dropping bytes: closing a socket with unread bytes sends a reset, which would
 *     keep the Bye from the peer.
 * Failures: end of file, or an error while reading or writing (no Bye); a frame that breaks a rule (Bye); a callback of
 *     the owner that is not 0 (Bye); no memory (no Bye); the write queue over its limit (no Bye: it would wait behind).
 */
#include "proto/stream.h"

#include <stdio.h>

#include "common/base/crc32c.h"
#include "proto/dial.h"
#include "proto/stream_internal.h"

#define SHARED_BYTES (64 * 1024)
/* Bytes of a payload that are read at a time: the checksum then finds them in the core's own cache, and a GB takes
 * 2,000 calls. */
#define SLICE_BYTES (512 * 1024)
/* After a frame with payload the next read is short: the header and envelope of the next chunk fit, and little of its
 * payload goes through the shared buffer. */
#define SHORT_BYTES 512
#define FLUSH_MS 200
#define HANDSHAKE_WITHIN_MS 10000
#define QUEUE_MAX ((size_t)256 << 20)

enum part {
        PART_HEADER,
        PART_ENVELOPE,
        PART_PAYLOAD,
};

static _Thread_local uint8_t shared[SHARED_BYTES];

static void reset_in(struct mfl_stream *s)
{
        mfl_wire_free(s->in.envelope);
        free(s->in.envelope_bytes);
        memset(&s->in, 0, sizeof s->in);
}

void mfl_stream_handle_closed(struct mfl_stream *s)
{
        mfl_assert(s->handles > 0);
        if (--s->handles)
                return;
        reset_in(s);
        if (s->tls)
                mfl_stream_tls_closed(s);
        if (s->cancelled && s->ops->on_connected)
                s->ops->on_connected(s, UV_ECANCELED, s->reason);
        s->ops->on_closed(s, s->reason);
}

static void on_handle_closed(uv_handle_t *handle)
{
        mfl_stream_handle_closed(handle->data);
}

static void close_handles(struct mfl_stream *s)
{
        if (!uv_is_closing((uv_handle_t *)&s->flush))
                uv_close((uv_handle_t *)&s->flush, on_handle_closed);
        /* Between two addresses the dial closes the TCP handle; connect.c then counts it. */
        if (!s->reopening && !uv_is_closing((uv_handle_t *)&s->tcp))
                uv_close((uv_handle_t *)&s->tcp, on_handle_closed);
}

/* From now on no frame is delivered or accepted. False if the stream was stopped already. */
static bool stop(struct mfl_stream *s, const char *reason)
{
        if (s->closing)
                return false;
        s->closing = true;
        mfl_stream_drop_payload(s);
        mfl_strcpy(s->reason, sizeof s->reason, reason);
        if (!s->connecting)
                return true;
        /* on_connected comes when the handles are closed: it may not come from inside mfl_stream_close. */
        s->connecting = false;
        s->cancelled = true;
        if (s->dial)
                s->reopening = mfl_dial_cancel(s->dial);
        s->dial = NULL;
        return true;
}

void mfl_stream_connect_end(struct mfl_stream *s, int status, const char *text)
{
        if (!s->connecting)
                return;
        s->connecting = false;
        if (s->ops->on_connected)
                s->ops->on_connected(s, status, text);
        if (status)
                mfl_stream_abort(s, text);
}

void mfl_stream_abort(struct mfl_stream *s, const char *reason)
{
        stop(s, reason);
        close_handles(s);
}

void mfl_stream_send_done(struct mfl_stream_send *send, int status)
{
        struct mfl_stream *s = send->stream;
        mfl_stream_sent_cb sent = send->sent;
        void *arg = send->arg;
        s->queued_bytes -= send->bytes;
        s->unread_bytes -= sizeof send->header + send->envelope_bytes;
        if (!status)
                s->bytes_out += send->bytes;
        free(send->envelope);
        free(send);
        if (sent)
                sent(s, status, arg);
}

static void on_sent(uv_write_t *req, int status)
{
        struct mfl_stream_send *send = req->data;
        char text[128];
        if (status && status != UV_ECANCELED) {
                snprintf(text, sizeof text, "write: %s", uv_strerror(status));
                mfl_stream_abort(send->stream, text);
        }
        mfl_stream_send_done(send, status);
}

/* Writes a frame without a callback at once, as far as the socket accepts it: libuv's own queue costs an allocation
 * and a call of epoll_ctl for each write, even if it never waits. Returns how many bytes went out; the following
 * write meets and reports any error again. */
static size_t write_now(struct mfl_stream *s, const struct mfl_stream_send *send, uv_buf_t *bufs, unsigned n)
{
        int r = send->sent ? 0 : uv_try_write((uv_stream_t *)&s->tcp, bufs, n);
        return r > 0 ? (size_t)r : 0;
}

static int send_plain(struct mfl_stream *s, struct mfl_stream_send *send, struct mfl_error *err)
{
        size_t payload_bytes = send->bytes - send->envelope_bytes - sizeof send->header;
        uv_buf_t all[3] = {
                uv_buf_init((char *)send->header, sizeof send->header),
                uv_buf_init((char *)send->envelope, (unsigned)send->envelope_bytes),
                uv_buf_init((char *)(uintptr_t)send->payload, (unsigned)payload_bytes),
        };
        uv_buf_t *bufs = all;
        unsigned n = payload_bytes ? 3 : 2;
        size_t out = write_now(s, send, bufs, n);
        if (out == send->bytes) {
                mfl_stream_send_done(send, 0);
                return 0;
        }
        for (; out >= bufs->len; bufs++, n--)
                out -= bufs->len;
        bufs->base += out;
        bufs->len -= out;
        send->req.data = send;
        /* If nothing waits, libuv writes at once what the socket accepts; the callback comes later in any case.
         */
        int r = uv_write(&send->req, (uv_stream_t *)&s->tcp, bufs, n, on_sent);
        if (!r)
                return 0;
        free(send->envelope);
        free(send);
        mfl_fail(err, MFL_BUSY, "write: %s", uv_strerror(r));
        mfl_stream_abort(s, err ? err->text : "write failed");
        return r == UV_ENOMEM ? -ENOMEM : MFL_BUSY;
}

/* Takes over the packed envelope in any case. plain: without TLS, even on a TLS stream. */
static int send_packed(struct mfl_stream *s, bool plain, uint8_t *envelope, size_t envelope_bytes,
        const void *payload, size_t payload_bytes, const uint32_t *payload_crc, mfl_stream_sent_cb sent,
        void *arg, struct mfl_error *err)
{
        if (s->carrier) {
                if (mfl_wire_mark(s->via, &envelope, &envelope_bytes, err))
                        return -ENOMEM;
                s = s->carrier;
        }
        if (s->term && mfl_wire_mark_term(s->term, &envelope, &envelope_bytes, err))
                return -ENOMEM;
        struct mfl_stream_send *send = mfl_malloc(sizeof *send);
        if (!send) {
                free(envelope);
                return mfl_fail_memory(err, sizeof *send, "a frame to send");
        }
        struct mfl_frame frame = {
                .version = MFL_FRAME_VERSION,
                .envelope_bytes = (uint32_t)envelope_bytes,
                .payload_bytes = (uint32_t)payload_bytes,
                .envelope_crc = mfl_crc32c(0, envelope, envelope_bytes),
                .payload_crc = !payload_bytes ? 0
                               : payload_crc  ? *payload_crc
                                              : mfl_crc32c(0, payload, payload_bytes),
        };
        *send = (struct mfl_stream_send){.stream = s,
                .sent = sent,
                .arg = arg,
                .envelope = envelope,
                .envelope_bytes = envelope_bytes,
                .payload = payload,
                .bytes = sizeof send->header + envelope_bytes + payload_bytes};
        mfl_frame_encode(&frame, send->header);
        size_t own = sizeof send->header + envelope_bytes;
        s->queued_bytes += send->bytes;
        s->unread_bytes += own;
        s->sent_ms = uv_now(s->tcp.loop);
        if (s->tls && !plain) {
                mfl_stream_tls_send(s, send);
                return 0;
        }
        size_t bytes = send->bytes;
        int r = send_plain(s, send, err);
        if (r) {
                s->queued_bytes -= bytes;
                s->unread_bytes -= own;
        }
        return r;
}

static int check_sendable(struct mfl_stream *s, struct mfl_error *err)
{
        if (s->carrier && !s->closing)
                s = s->carrier;
        if (s->closing || !s->connected)
                return mfl_fail(
                        err, MFL_BUSY, "the connection is %s", s->closing ? "closing" : "not made yet");
        if (s->queued_bytes <= s->queue_max)
                return 0;
        mfl_fail(err, MFL_BUSY, "%zu bytes wait to be sent; the limit is %zu", s->queued_bytes, s->queue_max);
        mfl_stream_abort(s, err ? err->text : "more bytes wait to be sent than the limit");
        return MFL_BUSY;
}

int mfl_stream_send(struct mfl_stream *s, const Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, const uint32_t *payload_crc, mfl_stream_sent_cb sent, void *arg,
        struct mfl_error *err)
{
        struct mfl_error local;
        uint8_t *bytes;
        size_t n;
        err = err ? err : &local;
        int r = check_sendable(s, err);
        if (r)
                return r;
        mfl_assert(payload_bytes <= MFL_PAYLOAD_MAX);
        r = mfl_wire_pack(envelope, &bytes, &n, err);
        if (r)
                return r;
        r = mfl_wire_check_payload(envelope, payload_bytes, err);
        if (r) {
                free(bytes);
                return r;
        }
        return send_packed(s, false, bytes, n, payload, payload_bytes, payload_crc, sent, arg, err);
}

int mfl_stream_send_msg(struct mfl_stream *s, const struct mfl_msg *msg, const struct mfl_wire_extra *extra,
        struct mfl_error *err)
{
        struct mfl_error local;
        uint8_t *bytes;
        size_t n;
        err = err ? err : &local;
        int r = check_sendable(s, err);
        if (!r)
                r = mfl_wire_pack_msg(msg, extra, &bytes, &n, err);
        return r ? r : send_packed(s, false, bytes, n, NULL, 0, NULL, NULL, NULL, err);
}

static void on_flush_over(uv_timer_t *timer)
{
        close_handles(timer->data);
}

/* The Bye is out: the peer reads it and closes, which ends the wait, or the timer does. */
static void on_shutdown(uv_shutdown_t *req, int status)
{
        struct mfl_stream *s = req->data;
        if (status && status != UV_ECANCELED)
                close_handles(s);
}

static int queue_bye(struct mfl_stream *s, const char *text, bool retry, bool plain)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Bye bye = MFL__BYE__INIT;
        char reason[MFL_REASON_BYTES];
        uint8_t *bytes;
        size_t n;
        mfl_strcpy(reason, sizeof reason, text);
        for (char *c = reason; *c; c++) /* may contain text from a peer, cut anywhere */
                if ((uint8_t)*c >= 0x80 || (uint8_t)*c < ' ')
                        *c = '?';
        bye.reason = reason;
        bye.retry = retry;
        bye.leader = s->leader ? (char *)(uintptr_t)s->leader : bye.leader;
        e.body_case = MFL__ENVELOPE__BODY_BYE;
        e.bye = &bye;
        int r = mfl_wire_pack(&e, &bytes, &n, NULL);
        return r ? r : send_packed(s, plain, bytes, n, NULL, 0, NULL, NULL, NULL, NULL);
}

void mfl_stream_linger(struct mfl_stream *s)
{
        s->shutdown.data = s;
        if (uv_shutdown(&s->shutdown, (uv_stream_t *)&s->tcp, on_shutdown))
                close_handles(s);
}

/* Makes sure that closing ends. */
static void limit_flush(struct mfl_stream *s)
{
        mfl_stream_mark_clear(s);
        if (uv_timer_start(&s->flush, on_flush_over, FLUSH_MS, 0))
                close_handles(s);
}

void mfl_stream_close(struct mfl_stream *s, const char *bye, bool retry)
{
        if (!stop(s, bye ? bye : "closed"))
                return;
        if (s->carrier && !s->carrier->closing)
                queue_bye(s, bye ? bye : "closed", !bye || retry, false);
        if (s->carrier || !bye || !s->connected || queue_bye(s, bye, retry, false)) {
                close_handles(s);
                return;
        }
        limit_flush(s);
        s->tls ? mfl_stream_tls_finish(s) : mfl_stream_linger(s);
}

void mfl_stream_fail(struct mfl_stream *s, const char *reason, bool plain_bye)
{
        if (!stop(s, reason))
                return;
        if (plain_bye && queue_bye(s, reason, false, true)) {
                close_handles(s);
                return;
        }
        limit_flush(s);
        mfl_stream_linger(s);
}

void mfl_stream_refuse(struct mfl_stream *s, int r, const struct mfl_error *err)
{
        s->broken = r > 0;
        if (r < 0)
                mfl_stream_close(s, r == -ENOMEM ? "out of memory" : "internal error", true);
        else
                mfl_stream_close(s, err->text, false);
}

void mfl_stream_dispatch(
        struct mfl_stream *s, const Mfl__Envelope *envelope, void *payload, size_t payload_bytes)
{
        struct mfl_error err = {"refused"};
        char text[MFL_REASON_BYTES];
        int r = s->ops->on_frame(s, envelope, payload, payload_bytes, &err);
        if (r)
                mfl_stream_refuse(s, r, &err);
        /* One for a stream that this one carries ends that alone. */
        if (envelope->body_case == MFL__ENVELOPE__BODY_BYE && envelope->via == s->via && !s->closing) {
                snprintf(text, sizeof text, "the peer says: %.200s", envelope->bye->reason);
                mfl_stream_close(s, NULL, false);
                memcpy(s->reason, text, sizeof text);
        }
}

static void deliver(struct mfl_stream *s)
{
        Mfl__Envelope *envelope = s->in.envelope;
        void *payload = s->in.payload;
        size_t payload_bytes = s->in.frame.payload_bytes;
        /* Resets the state first, so that the owner's callback finds the stream between two frames. */
        s->in.envelope = NULL;
        reset_in(s);
        mfl_stream_dispatch(s, envelope, payload, payload_bytes);
        mfl_wire_free(envelope);
}

/* The header is complete. */
static int begin_envelope(struct mfl_stream *s, struct mfl_error *err)
{
        int r = mfl_frame_decode(
                s->in.header, s->envelope_max + MFL_TERM_BYTES, s->payload_max, &s->in.frame, err);
        if (r)
                return r;
        s->in.part = PART_ENVELOPE;
        s->in.have = 0;
        return 0;
}

/* The envelope's bytes are complete. */
static int take_envelope(struct mfl_stream *s, const uint8_t *bytes, struct mfl_error *err)
{
        const struct mfl_frame *f = &s->in.frame;
        void *dst = NULL;
        uint32_t crc = mfl_crc32c(0, bytes, f->envelope_bytes);
        if (crc != f->envelope_crc)
                return mfl_fail(err, MFL_INVALID, "frame: checksum of the envelope is %08x, expected %08x",
                        crc, f->envelope_crc);
        int r = mfl_wire_unpack(bytes, f->envelope_bytes, &s->in.envelope, err);
        if (!r)
                r = mfl_wire_check_payload(s->in.envelope, f->payload_bytes, err);
        if (r)
                return r;
        free(s->in.envelope_bytes);
        s->in.envelope_bytes = NULL;
        if (!f->payload_bytes) {
                deliver(s);
                return 0;
        }
        if (s->ops->on_payload) {
                r = s->ops->on_payload(s, s->in.envelope, f->payload_bytes, &dst, err);
                if (r || s->closing)
                        return r;
        }
        s->in.payload = dst;
        s->in.part = PART_PAYLOAD;
        s->in.have = 0;
        s->in.crc = 0;
        return 0;
}

/* Takes n more bytes of the payload from data, which is already their destination, or the shared buffer. */
static int take_payload(struct mfl_stream *s, const uint8_t *data, size_t n, struct mfl_error *err)
{
        s->in.crc = mfl_crc32c(s->in.crc, data, n);
        if (s->in.payload && data != s->in.payload + s->in.have)
                memcpy(s->in.payload + s->in.have, data, n);
        s->in.have += n;
        if (s->in.have < s->in.frame.payload_bytes)
                return 0;
        if (s->in.crc != s->in.frame.payload_crc)
                return mfl_fail(err, MFL_INVALID, "frame: checksum of the payload is %08x, expected %08x",
                        s->in.crc, s->in.frame.payload_crc);
        deliver(s);
        return 0;
}

/* Reads an envelope in place if it is complete in the shared buffer; otherwise gathers its pieces. */
static int feed_envelope(
        struct mfl_stream *s, const uint8_t *data, size_t n, size_t *ret_used, struct mfl_error *err)
{
        size_t want = s->in.frame.envelope_bytes, take = MFL_MIN(n, want - s->in.have);
        *ret_used = take;
        if (!s->in.have && take == want)
                return take_envelope(s, data, err);
        if (!s->in.envelope_bytes) {
                s->in.envelope_bytes = mfl_malloc(want);
                if (!s->in.envelope_bytes)
                        return mfl_fail_memory(err, want, "an envelope");
        }
        memcpy(s->in.envelope_bytes + s->in.have, data, take);
        s->in.have += take;
        return s->in.have < want ? 0 : take_envelope(s, s->in.envelope_bytes, err);
}

static int feed_header(
        struct mfl_stream *s, const uint8_t *data, size_t n, size_t *ret_used, struct mfl_error *err)
{
        size_t before = s->in.have, take = MFL_MIN(n, sizeof s->in.header - before);
        memcpy(s->in.header + before, data, take);
        s->in.have += take;
        *ret_used = take;
        if (s->in.have == sizeof s->in.header)
                return begin_envelope(s, err);
        return before < 4 && s->in.have >= 4 ? mfl_frame_check_magic(s->in.header, err) : 0;
}

static void feed(struct mfl_stream *s, const uint8_t *data, size_t n)
{
        struct mfl_error err = {"refused"};
        int r = 0;
        while (!r && n && !s->closing) {
                size_t used = 0;
                if (s->in.part == PART_HEADER)
                        r = feed_header(s, data, n, &used, &err);
                else if (s->in.part == PART_ENVELOPE)
                        r = feed_envelope(s, data, n, &used, &err);
                else {
                        used = MFL_MIN(n, s->in.frame.payload_bytes - s->in.have);
                        r = take_payload(s, data, used, &err);
                }
                data += used;
                n -= used;
        }
        if (r)
                mfl_stream_refuse(s, r, &err);
}

uint8_t *mfl_stream_next(struct mfl_stream *s, size_t *ret_room)
{
        if (!s->closing && s->in.part == PART_PAYLOAD) {
                size_t room = s->in.payload ? SLICE_BYTES : SHARED_BYTES;
                *ret_room = MFL_MIN(s->in.frame.payload_bytes - s->in.have, room);
                return s->in.payload ? s->in.payload + s->in.have : shared;
        }
        *ret_room = s->bulk ? SHORT_BYTES : SHARED_BYTES;
        return shared;
}

void mfl_stream_take(struct mfl_stream *s, const uint8_t *data, size_t n, size_t room)
{
        s->bytes_in += n;
        if (s->closing)
                return;
        feed(s, data, n);
        if (s->in.part != PART_HEADER)
                s->bulk = s->in.frame.payload_bytes > SHARED_BYTES;
        else if (n == room)
                s->bulk = false; /* many small frames wait */
}

void mfl_stream_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret_buf)
{
        struct mfl_stream *s = handle->data;
        size_t room;
        if (s->tls) {
                mfl_stream_tls_alloc(ret_buf);
                return;
        }
        uint8_t *p = mfl_stream_next(s, &room);
        *ret_buf = uv_buf_init((char *)p, (unsigned)room);
}

void mfl_stream_read_end(struct mfl_stream *s, int status)
{
        static const char *const part[] = {"header", "envelope", "payload"};
        static const char *const peer = "the peer closed the connection";
        char text[160];
        if (status != UV_EOF)
                snprintf(text, sizeof text, "read: %s", uv_strerror(status));
        else if (s->tls && !s->connected)
                snprintf(text, sizeof text, "%s during the TLS handshake", peer);
        else if (s->in.part == PART_HEADER && !s->in.have)
                snprintf(text, sizeof text, "%s", peer);
        else
                snprintf(text, sizeof text, "%s in the middle of a frame's %s", peer, part[s->in.part]);
        mfl_stream_abort(s, text);
}

void mfl_stream_on_read(uv_stream_t *tcp, ssize_t n, const uv_buf_t *buf)
{
        struct mfl_stream *s = tcp->data;
        if (n < 0) {
                mfl_stream_read_end(s, (int)n);
                return;
        }
        s->heard_ms = uv_now(tcp->loop);
        if (s->tls && !s->closing)
                mfl_stream_tls_read(s, (const uint8_t *)buf->base, (size_t)n);
        else
                mfl_stream_take(s, (const uint8_t *)buf->base, (size_t)n, buf->len);
        size_t left = s->in.part == PART_PAYLOAD ? s->in.frame.payload_bytes - s->in.have : 0;
        mfl_stream_mark(s, (size_t)n, (size_t)n < buf->len, left);
}

int mfl_stream_begin(struct mfl_stream *s)
{
        uv_tcp_nodelay(&s->tcp, 1);
        s->heard_ms = s->sent_ms = uv_now(s->tcp.loop);
        s->connected = !s->tls;
        int r = uv_read_start((uv_stream_t *)&s->tcp, mfl_stream_on_alloc, mfl_stream_on_read);
        return r || !s->tls ? r : mfl_stream_tls_begin(s);
}

int mfl_stream_init(struct mfl_stream *s, uv_loop_t *loop, const struct mfl_stream_ops *ops, void *owner,
        struct mfl_error *err)
{
        memset(s, 0, sizeof *s);
        int r = uv_tcp_init(loop, &s->tcp);
        if (r)
                return mfl_fail(err, r, "uv_tcp_init: %s", uv_strerror(r));
        uv_timer_init(loop, &s->flush);
        s->tcp.data = s->flush.data = s;
        s->handles = 2;
        s->ops = ops;
        s->owner = owner;
        s->envelope_max = MFL_ENVELOPE_MAX_EARLY;
        s->payload_max = 0;
        s->queue_max = QUEUE_MAX;
        s->handshake_ms = HANDSHAKE_WITHIN_MS;
        return 0;
}
