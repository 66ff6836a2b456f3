/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP connection: private to this room. */
#ifndef MFL_SERVE_HTTP_HTTP_CONN_H
#define MFL_SERVE_HTTP_HTTP_CONN_H

#include "serve/http/http.h"

#define MFL_HTTP_READ_BYTES (64u * 1024)

struct mfl_http_conn {
        /* What the sweep reads of ten thousand connections comes first, and side by side. */
        struct mfl_http *http;
        struct mfl_http_conn *next;
        struct mfl_http_parser *parser; /* NULL: no request has begun */
        struct mfl_tls *tls;            /* NULL: plain */
        /* Requests in order of arrival, from the oldest that is not sent. */
        struct mfl_http_exchange *oldest;
        uint64_t since_ms; /* begin of the request, of the silence, or of the write that nobody takes */
        bool greeted;      /* the TLS handshake is over */
        bool writing, reading, dirty, closing;
        bool last; /* no further request is read: the answers that are owed are the last ones */
        bool shut; /* they are sent, and what still comes is dropped */
        bool end;  /* the peer has sent everything */
        uv_tcp_t tcp;
        struct mfl_http_conn *prev, *next_dirty;
        struct mfl_http_exchange *newest;
        uint32_t n_exchanges;
        char *rest; /* bytes that came while nothing was read from here */
        size_t rest_bytes;
        size_t queued;    /* of the write, when its peer was last seen to take something */
        uint64_t dropped; /* bytes after the last request */
};

/* Takes the pending connection, if there is one; its memory goes when it has closed. Without memory for it http->waits is set. */
void mfl_http_conn_accept(struct mfl_http *http, uv_stream_t *listener);
void mfl_http_conn_close(struct mfl_http_conn *conn);
void mfl_http_conn_mark(struct mfl_http_conn *conn); /* something can be sent */
void mfl_http_conn_flush(struct mfl_http_conn *conn);
/* Closes what took too long; about once a second. */
void mfl_http_conn_sweep(struct mfl_http_conn *conn, uint64_t now_ms);
/* No further requests are read from it. */
void mfl_http_conn_finish(struct mfl_http_conn *conn);

#endif
