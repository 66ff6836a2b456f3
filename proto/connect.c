/* SPDX-License-Identifier: Apache-2.0 */
/* Connecting a stream: address -> dial -> [TLS handshake] -> on_connected. */
#include <stdio.h>

#include "proto/dial.h"
#include "proto/stream.h"
#include "proto/stream_internal.h"

static void on_dialled(void *owner, int status, const char *text)
{
        struct mfl_stream *s = owner;
        char begun[160];
        if (s->reopening) { /* the stream closed meanwhile: now its handle is closed, too */
                s->reopening = false;
                mfl_stream_handle_closed(s);
                return;
        }
        s->dial = NULL;
        if (!status && (status = mfl_stream_begin(s))) {
                snprintf(begun, sizeof begun, "connect: %s", uv_strerror(status));
                text = begun;
        }
        if (status || !s->tls) /* with TLS the end of the handshake reports it, or the stream closes */
                mfl_stream_connect_end(s, status, text);
}

int mfl_stream_connect(struct mfl_stream *s, const char *address, struct mfl_error *err)
{
        char host[256], port[8];
        int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        if (!*host)
                mfl_strcpy(host, sizeof host, "localhost");
        mfl_assert(!s->connecting && !s->connected);
        r = mfl_dial_start(&s->tcp, host, port, address, on_dialled, s, &s->dial, err);
        if (r)
                return r;
        s->connecting = true;
        if (s->tls)
                mfl_stream_tls_host(s, host);
        return 0;
}

void mfl_stream_accept(struct mfl_stream *s, uv_stream_t *listener)
{
        char text[128];
        int r = uv_accept(listener, (uv_stream_t *)&s->tcp);
        if (!r)
                r = mfl_stream_begin(s);
        if (!r)
                return;
        snprintf(text, sizeof text, "accept: %s", uv_strerror(r));
        mfl_stream_abort(s, text);
}
