/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's bytes through TLS.
 *
 * In:  socket -> this thread's 64 KiB -> decrypted straight into the payload's destination, or into the shared buffer
 * Out: frames wait in a queue -> encrypted in records of 16 KiB into an output buffer -> uv_write
 *     The sent callbacks of the frames that end in a buffer come when the buffer has gone out. At most four buffers are
 *     in flight: what waits beyond them is neither copied nor encrypted, so a slow reader costs as little as without TLS.
 * Closing: the queue is encrypted to its end, then close_notify, then as without TLS.
 *
 * Fails by: no handshake within 10 s or 64 KiB; a certificate refused on either side; a peer without TLS (which gets a
 * Bye that it can read); a damaged record; no memory. An alert, if there is one, goes out first.
 */
#include <stdio.h>

#include "proto/stream_internal.h"

#define CIPHER_BYTES (64 * 1024)
/* Size of one buffer. Measured: with 128 KiB the sealed bytes are still in the core's own cache when the kernel takes
 * them, and 2.1 GB/s go out; with 256 KiB 1.6 GB/s, and less with larger buffers. */
#define OUT_BYTES ((size_t)128 * 1024)
#define OUT_UNDER_WAY_MAX 4
#define OUT_LIVE_MAX ((size_t)64 << 20) /* of this thread's streams */
#define CACHE_MAX 8

struct mfl_stream_tls {
        struct mfl_tls_context *context;
        struct mfl_tls *tls; /* from begin */
        char host[256];
        bool open, finishing, finished;
        uint32_t under_way;
        struct mfl_stream_send *first, **last; /* not sealed to their end */
        size_t at;                             /* bytes of the first that are sealed */
        size_t waiting;                        /* bytes of all that are not */
};

/* Sealed bytes in flight, with the frames that end in them. */
struct out {
        uv_write_t req;
        struct mfl_stream *stream;
        struct mfl_stream_send *ended;
        struct mfl_tls_out bytes;
};

static _Thread_local uint8_t cipher[CIPHER_BYTES];
static _Thread_local uint8_t gathered[MFL_TLS_RECORD_BYTES];
/* Unused buffers of OUT_BYTES: fresh ones cost page faults. */
static _Thread_local struct {
        size_t live;
        uint8_t *data[CACHE_MAX];
        int n;
} pool;

/* ---- output buffers ---- */

static void put_buffer(struct mfl_tls_out *out)
{
        pool.live -= out->room;
        if (out->room == OUT_BYTES && pool.n < CACHE_MAX)
                pool.data[pool.n++] = out->data;
        else
                free(out->data);
        *out = (struct mfl_tls_out){0};
}

/* A buffer for the waiting bytes, as many as may be in flight at a time. */
static bool get_buffer(const struct mfl_stream_tls *t, struct mfl_tls_out *ret_out)
{
        size_t records = t->waiting / MFL_TLS_RECORD_BYTES + 1;
        size_t room = t->waiting + records * MFL_TLS_OVERHEAD_BYTES;
        size_t one = MFL_TLS_RECORD_BYTES + MFL_TLS_OVERHEAD_BYTES;
        room = MFL_MIN(room, OUT_BYTES);
        if (pool.live + room > OUT_LIVE_MAX)
                room = MFL_MIN(room, one);
        uint8_t *data = room == OUT_BYTES && pool.n ? pool.data[--pool.n] : mfl_malloc(room);
        if (data)
                *ret_out = (struct mfl_tls_out){.data = data, .room = room};
        return data;
}

static void requeue(struct mfl_stream_tls *t, struct mfl_stream_send *ended)
{
        struct mfl_stream_send **end = &ended;
        while (*end)
                end = &(*end)->next;
        *end = t->first;
        t->first = ended;
        if (!*end)
                t->last = end;
}

static void pump(struct mfl_stream *s);

static void on_written(uv_write_t *req, int status)
{
        struct out *out = req->data;
        struct mfl_stream *s = out->stream;
        char text[128];
        put_buffer(&out->bytes);
        s->tls->under_way--;
        if (status && status != UV_ECANCELED) {
                snprintf(text, sizeof text, "write: %s", uv_strerror(status));
                mfl_stream_abort(s, text);
        }
        for (struct mfl_stream_send *send; (send = out->ended);) {
                out->ended = send->next;
                mfl_stream_send_done(send, status);
        }
        free(out);
        if (!status)
                pump(s);
}

/* Writes the sealed bytes. The frames that end in them get their callback in any case. */
static void write_out(struct mfl_stream *s, struct mfl_stream_send *ended)
{
        struct mfl_stream_tls *t = s->tls;
        struct mfl_tls_out *sealed = mfl_tls_output(t->tls);
        if (!sealed->n)
                return;
        struct out *out = mfl_calloc(1, sizeof *out);
        int r = out ? 0 : UV_ENOMEM;
        if (out) {
                uv_buf_t buf = uv_buf_init((char *)sealed->data, (unsigned)sealed->n);
                out->req.data = out;
                out->stream = s;
                out->ended = ended;
                r = uv_write(&out->req, (uv_stream_t *)&s->tcp, &buf, 1, on_written);
        }
        if (r) {
                char text[128];
                snprintf(text, sizeof text, "write: %s", uv_strerror(r));
                requeue(t, ended); /* the close ends them */
                free(out);
                free(sealed->data);
                *sealed = (struct mfl_tls_out){0};
                mfl_stream_abort(s, text);
                return;
        }
        out->bytes = *sealed;
        *sealed = (struct mfl_tls_out){0};
        pool.live += out->bytes.room;
        t->under_way++;
}

/* ---- sealing ---- */

/* The frame from `at` on, as far as it is contiguous in memory. */
static const uint8_t *piece_at(const struct mfl_stream_send *send, size_t at, size_t *ret_n)
{
        if (at < sizeof send->header) {
                *ret_n = sizeof send->header - at;
                return send->header + at;
        }
        at -= sizeof send->header;
        if (at < send->envelope_bytes) {
                *ret_n = send->envelope_bytes - at;
                return send->envelope + at;
        }
        at -= send->envelope_bytes;
        *ret_n = send->bytes - sizeof send->header - send->envelope_bytes - at;
        return send->payload + at;
}

/* The next n bytes of the queue in one piece: in place, or copied together. Small frames share a record. */
static const uint8_t *gather(const struct mfl_stream_tls *t, size_t n)
{
        const struct mfl_stream_send *send = t->first;
        size_t at = t->at, have = 0, part;
        const uint8_t *piece = piece_at(send, at, &part);
        if (part >= n)
                return piece;
        while (have < n) {
                if (at == send->bytes) {
                        send = send->next;
                        at = 0;
                }
                piece = piece_at(send, at, &part);
                part = MFL_MIN(part, n - have);
                memcpy(gathered + have, piece, part);
                have += part;
                at += part;
        }
        return gathered;
}

/* Moves the frames that end within the next n bytes from the queue to *end. */
static struct mfl_stream_send **advance(struct mfl_stream_tls *t, size_t n, struct mfl_stream_send **end)
{
        t->waiting -= n;
        t->at += n;
        while (t->first && t->at >= t->first->bytes) {
                struct mfl_stream_send *send = t->first;
                t->at -= send->bytes;
                t->first = send->next;
                if (!t->first)
                        t->last = &t->first;
                send->next = NULL;
                *end = send;
                end = &send->next;
        }
        return end;
}

static int fill(struct mfl_stream_tls *t, struct mfl_stream_send **ret_ended, struct mfl_error *err)
{
        struct mfl_tls_out *out = mfl_tls_output(t->tls);
        struct mfl_stream_send **end = ret_ended;
        if (!get_buffer(t, out))
                return mfl_fail_memory(err, OUT_BYTES, "TLS output");
        while (t->first) {
                size_t n = MFL_MIN(t->waiting, (size_t)MFL_TLS_RECORD_BYTES);
                if (out->n && out->room - out->n < n + MFL_TLS_OVERHEAD_BYTES)
                        break;
                int r = mfl_tls_write(t->tls, gather(t, n), n, err);
                if (r)
                        return r;
                end = advance(t, n, end);
        }
        return 0;
}

/* Seals and writes as much as may be in flight. */
static void pump(struct mfl_stream *s)
{
        struct mfl_stream_tls *t = s->tls;
        struct mfl_error err;
        while (t->open && t->first && t->under_way < OUT_UNDER_WAY_MAX &&
                !uv_is_closing((uv_handle_t *)&s->tcp)) {
                struct mfl_stream_send *ended = NULL;
                write_out(s, NULL); /* an answer of TLS itself may wait */
                int r = fill(t, &ended, &err);
                write_out(s, ended);
                if (r)
                        mfl_stream_abort(s, err.text);
        }
        if (!t->finishing || t->finished || t->first || uv_is_closing((uv_handle_t *)&s->tcp))
                return;
        t->finished = true;
        mfl_tls_finish(t->tls);
        write_out(s, NULL);
        if (!uv_is_closing((uv_handle_t *)&s->tcp))
                mfl_stream_linger(s);
}

void mfl_stream_tls_send(struct mfl_stream *s, struct mfl_stream_send *send)
{
        struct mfl_stream_tls *t = s->tls;
        send->next = NULL;
        *t->last = send;
        t->last = &send->next;
        t->waiting += send->bytes;
        pump(s);
}

void mfl_stream_tls_finish(struct mfl_stream *s)
{
        s->tls->finishing = true;
        pump(s);
}

/* ---- opening ---- */

void mfl_stream_tls_alloc(uv_buf_t *ret_buf)
{
        *ret_buf = uv_buf_init((char *)cipher, sizeof cipher);
}

static void fail(struct mfl_stream *s, int r, const struct mfl_error *err)
{
        write_out(s, NULL); /* the alert */
        mfl_stream_fail(s, r < 0 ? "out of memory" : err->text,
                r == MFL_TLS_PLAIN && mfl_tls_context_is_server(s->tls->context));
}

static int shake_hands(struct mfl_stream *s, struct mfl_error *err)
{
        struct mfl_stream_tls *t = s->tls;
        int r = mfl_tls_handshake(t->tls, err);
        if (r)
                return r;
        write_out(s, NULL); /* before the owner's first frame */
        uv_timer_stop(&s->flush);
        t->open = s->connected = true;
        mfl_stream_connect_end(s, 0, "connected");
        return 0;
}

void mfl_stream_tls_read(struct mfl_stream *s, const uint8_t *data, size_t n)
{
        struct mfl_stream_tls *t = s->tls;
        struct mfl_error err;
        int r = 0;
        mfl_tls_feed(t->tls, data, n);
        if (!t->open)
                r = shake_hands(s, &err);
        while (!r && !s->closing) {
                size_t room, got;
                uint8_t *dst = mfl_stream_next(s, &room);
                r = mfl_tls_read(t->tls, dst, room, &got, &err);
                if (!r)
                        mfl_stream_take(s, dst, got, room);
        }
        mfl_tls_feed(t->tls, NULL, 0);
        if (s->closing)
                return;
        if (r == MFL_TLS_END)
                mfl_stream_read_end(s, UV_EOF);
        else if (r != MFL_TLS_MORE)
                fail(s, r, &err);
        else
                write_out(s, NULL);
}

/* ---- life ---- */

static void on_handshake_late(uv_timer_t *timer)
{
        struct mfl_stream *s = timer->data;
        char text[64];
        snprintf(text, sizeof text, "TLS: no handshake within %.3g s", (double)s->handshake_ms / 1000);
        mfl_stream_abort(s, text);
}

int mfl_stream_tls_begin(struct mfl_stream *s)
{
        struct mfl_stream_tls *t = s->tls;
        struct mfl_error err;
        mfl_tls_free(t->tls); /* from the previous address */
        t->tls = NULL;
        int r = mfl_tls_new(t->context, t->host, &t->tls, &err);
        if (!r)
                r = mfl_tls_handshake(t->tls, &err); /* a client's first message */
        if (r != MFL_TLS_MORE)
                return r < 0 ? UV_ENOMEM : UV_EPROTO;
        uv_timer_start(&s->flush, on_handshake_late, s->handshake_ms, 0);
        write_out(s, NULL);
        return 0;
}

void mfl_stream_tls_host(struct mfl_stream *s, const char *host)
{
        mfl_strcpy(s->tls->host, sizeof s->tls->host, host);
}

int mfl_stream_tls(struct mfl_stream *s, struct mfl_tls_context *context, struct mfl_error *err)
{
        mfl_assert(!s->tls && !s->connected && !s->connecting);
        struct mfl_stream_tls *t = mfl_calloc(1, sizeof *t);
        if (!t)
                return mfl_fail_memory(err, sizeof *t, "a TLS stream");
        t->context = mfl_tls_context_ref(context);
        t->last = &t->first;
        s->tls = t;
        return 0;
}

const struct mfl_tls_identity *mfl_stream_identity(const struct mfl_stream *s)
{
        return s->tls && s->tls->open ? mfl_tls_peer(s->tls->tls) : NULL;
}

void mfl_stream_tls_closed(struct mfl_stream *s)
{
        struct mfl_stream_tls *t = s->tls;
        for (struct mfl_stream_send *send; (send = t->first);) {
                t->first = send->next;
                mfl_stream_send_done(send, UV_ECANCELED);
        }
        mfl_tls_free(t->tls);
        mfl_tls_context_unref(t->context);
        free(t);
        s->tls = NULL;
}
