/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/1.1 connections on a libuv loop: keep-alive, pipelining with answers in order, TLS, and limits.
 *
 *   - bytes are read into one buffer of the loop and parsed there (parse.h); a connection without a request holds no buffer;
 *   - each whole request becomes an exchange, which on_request answers at once or later (mfl_http_answer), in any order;
 *   - answers go out in the requests' order, those of one turn of the loop in one write (mfl_http_flush);
 *   - a connection with too many unanswered requests, or whose answers nobody takes, is not read from;
 *   - about once a second, some connections at a time: what took too long is closed: 408 for half a request; silence for idle connections.
 * After a request that can't be understood the answer names the reason and the connection closes; what the client still
 * sends is dropped for a moment, so that a reset does not overtake the answer.
 *
 * Loop thread only. An exchange whose connection is gone stays valid until it is answered.
 */
#ifndef MFL_SERVE_HTTP_HTTP_H
#define MFL_SERVE_HTTP_HTTP_H

#include <uv.h>

#include "proto/tls/tls.h"
#include "serve/http/parse.h"
#include "serve/http/reply.h"

#define MFL_HTTP_LISTENERS_MAX 4

struct mfl_http_conn;
struct mfl_http_exchange {
        struct mfl_http_exchange *next;
        struct mfl_http_conn *conn; /* NULL: the connection is gone */
        struct mfl_reply reply;
        uint64_t began_us; /* when the request was whole */
        bool done, keep_alive, head_only;
        bool old; /* HTTP/1.0: without a word the connection would end */
};

struct mfl_http_config {
        struct mfl_http_limits limits;
        uint32_t connections_max, pipeline_max;
        uint64_t idle_ms,
                request_ms; /* a connection without a request; from a request's first byte to its last */
        struct mfl_tls_context *tls; /* NULL: plain */
        /* Answers the exchange, now or later. The request is valid during the call. */
        void (*on_request)(
                void *user, struct mfl_http_exchange *exchange, const struct mfl_http_request *request);
        /* Makes the body of an answer to what could not be understood; NULL: plain text. */
        void (*on_error)(void *user, struct mfl_reply *reply, const char *error);
        const char *error_type; /* the type of that body */
        void *user;
};

struct mfl_http_counts {
        uint64_t connections, refused, requests, bad_requests, timeouts, bytes_in, bytes_out;
        uint64_t by_class[6]; /* answers by the first digit of their status */
};

struct mfl_http {
        uv_loop_t *loop;
        struct mfl_http_config config;
        struct mfl_http_counts counts;
        uint32_t n_conns;
        char date[MFL_REPLY_DATE_BYTES];
        /* Private. */
        uv_tcp_t listeners[MFL_HTTP_LISTENERS_MAX];
        uint32_t n_listeners;
        bool waits; /* a connection could not be taken: the next sweep tries again */
        uv_timer_t sweep;
        struct mfl_http_conn *first, *dirty;
        struct mfl_http_conn *sweep_next; /* the sweep goes on here; NULL: it begins again */
        char *in, *plain;                 /* the loop's read buffer, and decrypted bytes */
        bool closing;
};

int mfl_http_open(
        struct mfl_http *http, uv_loop_t *loop, const struct mfl_http_config *config, struct mfl_error *err);
/* Listens on an address that is bound here, or on a socket that the service manager has opened. Returns the address.
 * MFL_INVALID: it is no address; MFL_HTTP_ABROAD: it is not loopback, and only `loopback` is allowed. */
enum {
        MFL_HTTP_ABROAD = 18,
};
int mfl_http_listen(struct mfl_http *http, const char *address, bool loopback, char *ret_address,
        size_t bytes, struct mfl_error *err);
int mfl_http_listen_on(
        struct mfl_http *http, int fd, bool loopback, char *ret_address, size_t bytes, struct mfl_error *err);
/* Other certificates for connections from now on; takes the caller's reference. */
void mfl_http_set_tls(struct mfl_http *http, struct mfl_tls_context *tls);
/* Answers once: exchange->reply has the body. type and more: as in struct mfl_reply_head. The exchange is no longer the caller's. */
void mfl_http_answer(struct mfl_http *http, struct mfl_http_exchange *exchange, int status, const char *type,
        const char *more);
/* Sends what was answered in this turn of the loop. */
void mfl_http_flush(struct mfl_http *http);
/* No new connections; and later, after the last answers, no old ones either. The memory must stay until the loop has ended. */
void mfl_http_stop_listening(struct mfl_http *http);
void mfl_http_close(struct mfl_http *http);
void mfl_http_deinit(struct mfl_http *http);

#endif
