/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP on a loop: listeners, answers, and the sweep that looks at each connection about once a second. */
#include "serve/http/http.h"

#include <netdb.h>
#include <stdio.h>
#include <time.h>

#include "proto/stream.h"
#include "serve/http/http_conn.h"

#define BACKLOG 4096
#define SWEEP_MS 1000     /* each connection is looked at so often */
#define SWEEP_CONNS 2048u /* at once: requests of others wait for no more */

/* A listener whose connection was not taken hears of no other one, so it must be taken at some time. */
static void take_waiting(struct mfl_http *http)
{
        const bool waits = http->waits;
        http->waits = false;
        for (uint32_t i = 0; waits && !http->closing && i < http->n_listeners; i++)
                mfl_http_conn_accept(http, (uv_stream_t *)&http->listeners[i]);
}

static void on_sweep(uv_timer_t *timer)
{
        struct mfl_http *http = timer->data;
        struct mfl_http_conn *conn = http->sweep_next ? http->sweep_next : http->first;
        mfl_reply_date((int64_t)time(NULL), http->date);
        for (uint32_t i = 0; conn && i < SWEEP_CONNS; i++) {
                struct mfl_http_conn *next = conn->next;
                mfl_http_conn_sweep(conn, uv_now(http->loop));
                conn = next;
        }
        http->sweep_next = conn;
        take_waiting(http);
        mfl_http_flush(http);
        uv_timer_start(timer, on_sweep, SWEEP_MS * SWEEP_CONNS / MFL_MAX(http->n_conns, SWEEP_CONNS), 0);
}

int mfl_http_open(
        struct mfl_http *http, uv_loop_t *loop, const struct mfl_http_config *config, struct mfl_error *err)
{
        *http = (struct mfl_http){.loop = loop, .config = *config};
        http->in = mfl_malloc(MFL_HTTP_READ_BYTES);
        http->plain = config->tls ? mfl_malloc(MFL_TLS_RECORD_BYTES) : NULL;
        if (!http->in || (config->tls && !http->plain))
                return mfl_fail_memory(err, MFL_HTTP_READ_BYTES, "the read buffer");
        mfl_http_set_head_max(config->limits.head_bytes_max);
        mfl_reply_date((int64_t)time(NULL), http->date);
        uv_timer_init(loop, &http->sweep);
        http->sweep.data = http;
        uv_timer_start(&http->sweep, on_sweep, SWEEP_MS, 0);
        return 0;
}

/* ---- listening ---- */

static void on_connection(uv_stream_t *listener, int status)
{
        if (!status)
                mfl_http_conn_accept(listener->data, listener);
}

static void describe_address(const struct sockaddr_storage *address, char *buf, size_t bytes)
{
        char host[64] = "?";
        const bool v6 = address->ss_family == AF_INET6;
        const int port = ntohs(v6 ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                                  : ((const struct sockaddr_in *)(const void *)address)->sin_port);
        uv_ip_name((const struct sockaddr *)(const void *)address, host, sizeof host);
        snprintf(buf, bytes, v6 ? "[%s]:%d" : "%s:%d", host, port);
}

static int start_listener(uv_tcp_t *listener, const char *what, bool loopback, char *ret_address,
        size_t bytes, struct mfl_error *err)
{
        struct sockaddr_storage address = {0};
        int n = sizeof address;
        int r = uv_tcp_getsockname(listener, (struct sockaddr *)&address, &n);
        if (!r && loopback && !mfl_address_is_loopback((struct sockaddr *)&address))
                return mfl_fail(err, MFL_HTTP_ABROAD, "%s is not a loopback address", what);
        if (!r)
                r = uv_listen((uv_stream_t *)listener, BACKLOG, on_connection);
        if (!r)
                r = uv_tcp_getsockname(listener, (struct sockaddr *)&address, &n);
        if (r)
                return mfl_fail(err, -1, "listen on %s: %s", what, uv_strerror(r));
        describe_address(&address, ret_address, bytes);
        return 0;
}

static uv_tcp_t *add_listener(struct mfl_http *http)
{
        mfl_assert(http->n_listeners < MFL_HTTP_LISTENERS_MAX);
        uv_tcp_t *listener = &http->listeners[http->n_listeners++];
        uv_tcp_init(http->loop, listener);
        listener->data = http;
        return listener;
}

int mfl_http_listen_on(
        struct mfl_http *http, int fd, bool loopback, char *ret_address, size_t bytes, struct mfl_error *err)
{
        uv_tcp_t *listener = add_listener(http);
        const int r = uv_tcp_open(listener, fd);
        if (r)
                return mfl_fail(
                        err, -1, "take over socket %d of the service manager: %s", fd, uv_strerror(r));
        return start_listener(listener, "a socket of the service manager", loopback, ret_address, bytes, err);
}

int mfl_http_listen(struct mfl_http *http, const char *address, bool loopback, char *ret_address,
        size_t bytes, struct mfl_error *err)
{
        char host[256], port[32];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
        int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        r = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_INVALID, "listen: %s: %s", address, gai_strerror(r));
        uv_tcp_t *listener = add_listener(http);
        r = uv_tcp_bind(listener, info->ai_addr, 0);
        freeaddrinfo(info);
        if (r)
                return mfl_fail(err, -1, "listen on %s: %s", address, uv_strerror(r));
        return start_listener(listener, address, loopback, ret_address, bytes, err);
}

void mfl_http_set_tls(struct mfl_http *http, struct mfl_tls_context *tls)
{
        mfl_assert(http->config.tls && tls);
        mfl_tls_context_unref(http->config.tls);
        http->config.tls = tls;
}

/* ---- answers ---- */

void mfl_http_answer(
        struct mfl_http *http, struct mfl_http_exchange *x, int status, const char *type, const char *more)
{
        mfl_assert(!x->done);
        http->counts.by_class[status / 100 % 6]++;
        if (!x->conn) {
                mfl_reply_deinit(&x->reply);
                free(x);
                return;
        }
        const struct mfl_reply_head head = {.status = status,
                .type = type,
                .more = more,
                .date = http->date,
                .close = !x->keep_alive || http->closing,
                .stay = x->old,
                .no_body = x->head_only};
        if (!mfl_reply_finish(&x->reply, &head)) {
                struct mfl_http_conn *conn = x->conn;
                x->done = true;
                mfl_http_conn_close(conn);
                return;
        }
        x->done = true;
        x->conn->last |= head.close;
        if (x->conn->oldest == x)
                mfl_http_conn_mark(x->conn);
}

void mfl_http_flush(struct mfl_http *http)
{
        while (http->dirty) {
                struct mfl_http_conn *conn = http->dirty;
                http->dirty = conn->next_dirty;
                mfl_http_conn_flush(conn);
        }
}

/* ---- ending ---- */

static void on_listener_closed(uv_handle_t *handle)
{
}

void mfl_http_stop_listening(struct mfl_http *http)
{
        if (http->closing)
                return;
        http->closing = true;
        for (uint32_t i = 0; i < http->n_listeners; i++)
                uv_close((uv_handle_t *)&http->listeners[i], on_listener_closed);
        for (struct mfl_http_conn *conn = http->first; conn; conn = conn->next)
                mfl_http_conn_finish(conn);
        mfl_http_flush(http);
}

void mfl_http_close(struct mfl_http *http)
{
        if (!http->loop)
                return;
        mfl_http_stop_listening(http);
        uv_close((uv_handle_t *)&http->sweep, NULL);
        for (struct mfl_http_conn *conn = http->first; conn; conn = conn->next)
                mfl_http_conn_close(conn);
}

void mfl_http_deinit(struct mfl_http *http)
{
        mfl_tls_context_unref(http->config.tls);
        free(http->in);
        free(http->plain);
}
