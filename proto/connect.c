/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting a stream: resolve (on libuv's thread pool), then one address after the other.
 *
 * Happy path: uv_getaddrinfo -> uv_tcp_connect -> [TLS handshake] -> on_connected(0).
 * Failures: the name is unknown; every address refuses (the last one's error is told); the stream is closed
 * meanwhile. A resolver can not always be stopped, so what it needs is a heap object of its own, which
 * outlives a closed stream.
 */
#include <stdio.h>

#include "proto/stream.h"
#include "proto/stream_internal.h"

struct mfl_stream_dial {
        struct mfl_stream *stream; /* NULL: closed meanwhile */
        uv_getaddrinfo_t resolver;
        uv_connect_t connect;
        bool connecting;
        struct addrinfo *list, *next;
        char address[320];
};

static void free_dial(struct mfl_stream_dial *d)
{
        if (d->stream)
                d->stream->dial = NULL;
        uv_freeaddrinfo(d->list);
        free(d);
}

static void finish(struct mfl_stream_dial *d, int status, const char *what)
{
        struct mfl_stream *s = d->stream;
        char text[480];
        snprintf(
                text, sizeof text, "%s %s: %s", what, d->address, status ? uv_strerror(status) : "connected");
        free_dial(d);
        if (s->ops->on_connected)
                s->ops->on_connected(s, status, text);
        if (status)
                mfl_stream_abort(s, text);
}

static void try_next(struct mfl_stream_dial *d);

/* A socket that failed to connect is of no more use: the handle is closed and made anew. */
static void on_retry_closed(uv_handle_t *handle)
{
        struct mfl_stream *s = handle->data;
        s->retrying = false;
        if (s->closing) {
                mfl_stream_handle_closed(s);
                return;
        }
        int r = uv_tcp_init(handle->loop, &s->tcp);
        mfl_assert(!r); /* without a socket there is nothing that can fail */
        s->tcp.data = s;
        try_next(s->dial);
}

static void on_connect(uv_connect_t *req, int status)
{
        struct mfl_stream_dial *d = MFL_CONTAINER_OF(req, struct mfl_stream_dial, connect);
        struct mfl_stream *s = d->stream;
        d->connecting = false;
        if (!s) {
                free_dial(d);
                return;
        }
        if (!status)
                status = mfl_stream_begin(s);
        if (!status && s->tls)
                return; /* the handshake ends in mfl_stream_dial_done, or the stream closes */
        if (status && d->next) {
                s->retrying = true;
                uv_close((uv_handle_t *)&s->tcp, on_retry_closed);
                return;
        }
        finish(d, status, "connect to");
}

static void try_next(struct mfl_stream_dial *d)
{
        struct mfl_stream *s = d->stream;
        struct addrinfo *a = d->next;
        d->next = a->ai_next;
        int r = uv_tcp_connect(&d->connect, &s->tcp, a->ai_addr, on_connect);
        d->connecting = !r;
        if (!r)
                return;
        if (d->next) {
                s->retrying = true;
                uv_close((uv_handle_t *)&s->tcp, on_retry_closed);
                return;
        }
        finish(d, r, "connect to");
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
        struct mfl_stream_dial *d = MFL_CONTAINER_OF(req, struct mfl_stream_dial, resolver);
        d->list = d->next = list;
        if (!d->stream)
                free_dial(d);
        else if (status || !list)
                finish(d, status ? status : UV_EAI_NONAME, "resolve");
        else
                try_next(d);
}

int mfl_stream_connect(struct mfl_stream *s, const char *address, struct mfl_error *err)
{
        char host[256], port[8];
        struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        mfl_assert(!s->dial && !s->connected);
        struct mfl_stream_dial *d = mfl_calloc(1, sizeof *d);
        if (!d)
                return mfl_fail_memory(err, sizeof *d, "a connection");
        d->stream = s;
        mfl_strcpy(d->address, sizeof d->address, address);
        r = uv_getaddrinfo(s->tcp.loop, &d->resolver, on_resolved, *host ? host : "localhost", port, &hints);
        if (r) {
                free(d);
                return mfl_fail(err, r == UV_ENOMEM ? -ENOMEM : MFL_INVALID, "resolve %s: %s", address,
                        uv_strerror(r));
        }
        s->dial = d;
        if (s->tls)
                mfl_stream_tls_host(s, *host ? host : "localhost");
        return 0;
}

void mfl_stream_dial_done(struct mfl_stream *s)
{
        if (s->dial)
                finish(s->dial, 0, "connect to");
}

/* on_connected comes when the handles are closed: it may not come from inside mfl_stream_close. */
void mfl_stream_dial_cancel(struct mfl_stream *s)
{
        struct mfl_stream_dial *d = s->dial;
        if (!d)
                return;
        s->dial = NULL;
        s->cancelled = true;
        d->stream = NULL;
        if (d->connecting)
                return; /* closing the handle calls on_connect, with UV_ECANCELED */
        if (d->list)
                free_dial(d); /* between two addresses: no request is out */
        else
                uv_cancel(
                        (uv_req_t *)&d->resolver); /* where it is too late, on_resolved comes when it comes */
}
