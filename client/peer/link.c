/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over a socket that never blocks.
 *
 * Happy path: [TLS handshake] -> header -> envelope -> payload, straight into its place, its checksum taken while it is in
 * the caches. Out: the header and the envelope from the link's own bytes, the payload from where it is.
 * Fails by: end of file, reset; a frame that is damaged or breaks the rules of mfl.proto; a certificate that is refused. */
#include "client/peer/link.h"

#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/crc32c.h"

#define SEALED_BYTES ((size_t)128 * 1024) /* as in proto/stream_tls.c */

int mfl_peer_link_new(
        int fd, struct mfl_tls_context *context, struct peer_link **ret_link, struct mfl_error *err)
{
        struct peer_link *link = mfl_calloc(1, sizeof *link);
        uint8_t *cipher = context ? mfl_malloc(PEER_CIPHER_BYTES) : NULL;
        int r = 0;
        if (!link || (context && !cipher))
                r = mfl_fail_memory(err, sizeof *link + PEER_CIPHER_BYTES, "a connection");
        else if (context)
                r = mfl_tls_new(context, "", &link->tls, err);
        if (r) {
                free(cipher);
                free(link);
                close(fd);
                return r > 0 ? PEER_OVER : r;
        }
        link->fd = fd;
        link->cipher = cipher;
        link->open = !context;
        *ret_link = link;
        return 0;
}

void mfl_peer_link_free(struct peer_link *link)
{
        if (!link)
                return;
        mfl_tls_free(link->tls);
        mfl_wire_free(link->in.envelope);
        close(link->fd);
        free(link->cipher);
        free(link);
}

static int over(struct mfl_error *err, int number, const char *what)
{
        return mfl_fail(err, PEER_OVER, "%s: %s", what, strerror(number));
}

/* ---- out ---- */

int mfl_peer_link_begin(struct peer_link *link, const Mfl__Envelope *envelope, const void *payload,
        size_t payload_bytes, struct mfl_error *err)
{
        MFL_CLEANUP_FREE uint8_t *bytes = NULL;
        size_t n;
        mfl_assert(link->out.at == link->out.all);
        int r = mfl_wire_pack(envelope, &bytes, &n, err);
        if (r)
                return r > 0 ? PEER_OVER : r;
        mfl_assert(n <= PEER_ENVELOPE_MAX && payload_bytes <= MFL_PAYLOAD_MAX);
        const struct mfl_frame frame = {.version = MFL_FRAME_VERSION,
                .envelope_bytes = (uint32_t)n,
                .payload_bytes = (uint32_t)payload_bytes,
                .envelope_crc = mfl_crc32c(0, bytes, n),
                .payload_crc = mfl_crc32c(0, payload, payload_bytes)};
        mfl_frame_encode(&frame, link->out.head);
        memcpy(link->out.head + MFL_FRAME_HEADER_BYTES, bytes, n);
        link->out.head_bytes = MFL_FRAME_HEADER_BYTES + n;
        link->out.payload = payload;
        link->out.at = 0;
        link->out.all = link->out.head_bytes + payload_bytes;
        return 0;
}

bool mfl_peer_link_busy(const struct peer_link *link)
{
        return link->out.at < link->out.all || (link->tls && mfl_tls_output(link->tls)->n > link->sealed_at);
}

static const uint8_t *rest_of(const struct peer_link *link, size_t *ret_n)
{
        bool head = link->out.at < link->out.head_bytes;
        *ret_n = (head ? link->out.head_bytes : link->out.all) - link->out.at;
        return head ? link->out.head + link->out.at
                    : link->out.payload + (link->out.at - link->out.head_bytes);
}

static int send_plain(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        while (link->out.at < link->out.all) {
                struct iovec v[2];
                size_t n;
                v[0].iov_base = (void *)(uintptr_t)rest_of(link, &n);
                v[0].iov_len = n;
                v[1].iov_base = (void *)(uintptr_t)link->out.payload;
                v[1].iov_len = link->out.all - link->out.at - n;
                struct msghdr message = {.msg_iov = v, .msg_iovlen = v[1].iov_len ? 2 : 1};
                ssize_t sent = sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
                if (sent < 0 && errno == EINTR)
                        continue;
                if (sent < 0)
                        return errno == EAGAIN ? 0 : over(err, errno, "send");
                link->out.at += (size_t)sent;
                *moved = true;
        }
        return 0;
}

static int send_sealed(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        struct mfl_tls_out *sealed = mfl_tls_output(link->tls);
        while (sealed->n > link->sealed_at) {
                ssize_t sent = send(link->fd, sealed->data + link->sealed_at, sealed->n - link->sealed_at,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
                if (sent < 0 && errno == EINTR)
                        continue;
                if (sent < 0)
                        return errno == EAGAIN ? 0 : over(err, errno, "send");
                link->sealed_at += (size_t)sent;
                *moved = true;
        }
        sealed->n = link->sealed_at = 0;
        return 0;
}

static int fail_tls(int r, struct mfl_error *err)
{
        return r > 0 ? PEER_OVER : r;
}

static int push_sealed(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        struct mfl_tls_out *sealed = mfl_tls_output(link->tls);
        for (;;) {
                int r = send_sealed(link, moved, err);
                if (r || sealed->n || !link->open || link->out.at == link->out.all)
                        return r;
                while (link->out.at < link->out.all && sealed->n < SEALED_BYTES) {
                        size_t n;
                        const uint8_t *from = rest_of(link, &n);
                        n = MFL_MIN(n, (size_t)MFL_TLS_RECORD_BYTES);
                        r = mfl_tls_write(link->tls, from, n, err);
                        if (r)
                                return fail_tls(r, err);
                        link->out.at += n;
                }
        }
}

int mfl_peer_link_push(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        return link->tls ? push_sealed(link, moved, err) : send_plain(link, moved, err);
}

/* ---- in ---- */

/* *ret_n: 0 where there is nothing. */
static int receive(struct peer_link *link, void *to, size_t n, size_t *ret_n, struct mfl_error *err)
{
        ssize_t got;
        do
                got = recv(link->fd, to, n, MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        if (!got)
                return mfl_fail(err, PEER_OVER, "the connection was closed");
        if (got < 0 && errno != EAGAIN)
                return over(err, errno, "receive");
        *ret_n = got > 0 ? (size_t)got : 0;
        return 0;
}

/* More for TLS to work on. */
static int feed(struct peer_link *link, bool *ret_more, struct mfl_error *err)
{
        size_t n = 0;
        int r = receive(link, link->cipher, PEER_CIPHER_BYTES, &n, err);
        if (!r && n)
                mfl_tls_feed(link->tls, link->cipher, n);
        *ret_more = n > 0;
        return r;
}

static int shake_hands(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        for (;;) {
                struct mfl_error why;
                bool more;
                int r = mfl_tls_handshake(link->tls, &why), sent = send_sealed(link, moved, err);
                if (r && r != MFL_TLS_MORE)
                        return mfl_fail(err, fail_tls(r, err), "%s", why.text);
                link->open = !r;
                if (sent || link->open)
                        return sent;
                r = feed(link, &more, err);
                if (r || !more)
                        return r;
                *moved = true;
        }
}

/* 1 to n bytes, or *ret_n = 0. */
static int get(struct peer_link *link, void *to, size_t n, size_t *ret_n, struct mfl_error *err)
{
        if (!link->tls)
                return receive(link, to, n, ret_n, err);
        for (;;) {
                bool more;
                int r = mfl_tls_read(link->tls, to, n, ret_n, err);
                if (r == MFL_TLS_END)
                        return mfl_fail(err, PEER_OVER, "the connection was closed");
                if (r != MFL_TLS_MORE)
                        return r ? fail_tls(r, err) : 0;
                *ret_n = 0;
                r = feed(link, &more, err);
                if (r || !more)
                        return r;
        }
}

static int end_header(struct peer_link *link, struct mfl_error *err)
{
        int r = mfl_frame_decode(
                link->in.header, PEER_ENVELOPE_MAX, link->in.payload_max, &link->in.frame, err);
        link->in.part = PEER_ENVELOPE;
        return r ? PEER_OVER : 0;
}

static int end_envelope(struct peer_link *link, struct mfl_error *err)
{
        const struct mfl_frame *frame = &link->in.frame;
        if (mfl_crc32c(0, link->in.bytes, frame->envelope_bytes) != frame->envelope_crc)
                return mfl_fail(err, PEER_OVER, "frame: the envelope's checksum is wrong");
        int r = mfl_wire_unpack(link->in.bytes, frame->envelope_bytes, &link->in.envelope, err);
        if (!r)
                r = mfl_wire_check_payload(link->in.envelope, frame->payload_bytes, err);
        link->in.crc = 0;
        link->in.part = frame->payload_bytes ? PEER_WAITS : PEER_WHOLE;
        return r > 0 ? PEER_OVER : r;
}

static int end_part(struct peer_link *link, struct mfl_error *err)
{
        link->in.have = 0;
        if (link->in.part == PEER_HEADER)
                return end_header(link, err);
        if (link->in.part == PEER_ENVELOPE)
                return end_envelope(link, err);
        link->in.part = PEER_WHOLE;
        return link->in.crc == link->in.frame.payload_crc
                       ? 0
                       : mfl_fail(err, PEER_OVER, "frame: the payload's checksum is wrong");
}

static uint8_t *place_of(struct peer_link *link, size_t *ret_n)
{
        switch (link->in.part) {
        case PEER_HEADER:
                *ret_n = MFL_FRAME_HEADER_BYTES;
                return link->in.header;
        case PEER_ENVELOPE:
                *ret_n = link->in.frame.envelope_bytes;
                return link->in.bytes;
        default:
                *ret_n = link->in.frame.payload_bytes;
                return link->in.payload;
        }
}

int mfl_peer_link_pull(struct peer_link *link, bool *moved, struct mfl_error *err)
{
        int r = link->open ? 0 : shake_hands(link, moved, err);
        while (!r && link->open && link->in.part != PEER_WAITS && link->in.part != PEER_WHOLE) {
                size_t all, n = 0;
                uint8_t *to = place_of(link, &all) + link->in.have;
                r = get(link, to, all - link->in.have, &n, err);
                if (r || !n)
                        break;
                *moved = true;
                if (link->in.part == PEER_PAYLOAD)
                        link->in.crc = mfl_crc32c(link->in.crc, to, n);
                link->in.have += n;
                if (link->in.have == all)
                        r = end_part(link, err);
        }
        return r;
}

void mfl_peer_link_place(struct peer_link *link, void *payload)
{
        mfl_assert(link->in.part == PEER_WAITS);
        link->in.payload = payload;
        link->in.part = PEER_PAYLOAD;
}

void mfl_peer_link_next(struct peer_link *link)
{
        mfl_assert(link->in.part == PEER_WHOLE);
        mfl_wire_free(link->in.envelope);
        link->in.envelope = NULL;
        link->in.part = PEER_HEADER;
}
