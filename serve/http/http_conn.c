/* SPDX-License-Identifier: Apache-2.0 */
/* One HTTP connection: from readable bytes to exchanges, and from answers to written bytes.
 *
 *   read -> (decrypt) -> parse -> exchange -> on_request ... answer -> flush: one write of all answers that are next
 *
 * How it ends: the peer closes and nothing is owed; a request says "Connection: close"; a request can't be understood
 * (answered, then closed); a deadline (sweep); a write fails. A peer that closes only its sending side still gets its answers.
 */
#include "serve/http/http_conn.h"

#include "common/base/log.h"

#define WRITE_BUFS_MAX 32
#define DROP_BYTES_MAX (8u << 20) /* of what comes after the last request */
#define DROP_MS 2000
#define STALL_MS 30000 /* nobody takes the answers: not even so many bytes of them */
#define STALL_BYTES (64u << 10)

struct write {
        uv_write_t req;
        struct mfl_http_conn *conn;
        struct mfl_http_exchange *first; /* whose answers are written */
        uint8_t *sealed;                 /* or the records of TLS */
};

static void take(struct mfl_http_conn *conn, const char *bytes, size_t n);

static void free_exchange(struct mfl_http_exchange *x)
{
        mfl_reply_deinit(&x->reply);
        free(x);
}

static void free_exchanges(struct mfl_http_exchange *x)
{
        while (x) {
                struct mfl_http_exchange *next = x->next;
                free_exchange(x);
                x = next;
        }
}

/* ---- closing ---- */

static void on_closed(uv_handle_t *handle)
{
        struct mfl_http_conn *conn = handle->data;
        struct mfl_http *http = conn->http;
        if (conn->prev)
                conn->prev->next = conn->next;
        else
                http->first = conn->next;
        if (conn->next)
                conn->next->prev = conn->prev;
        http->n_conns--;
        if (http->sweep_next == conn)
                http->sweep_next = conn->next;
        for (struct mfl_http_conn **at = &http->dirty; conn->dirty && *at; at = &(*at)->next_dirty)
                if (*at == conn) {
                        *at = conn->next_dirty;
                        break;
                }
        free(conn);
}

static void drop_parser(struct mfl_http_conn *conn)
{
        if (conn->parser)
                mfl_http_parser_deinit(conn->parser);
        free(conn->parser);
        conn->parser = NULL;
}

void mfl_http_conn_close(struct mfl_http_conn *conn)
{
        if (conn->closing)
                return;
        conn->closing = true;
        drop_parser(conn);
        free(conn->rest);
        conn->rest = NULL;
        for (struct mfl_http_exchange *x = conn->oldest, *next; x; x = next) {
                next = x->next;
                x->conn = NULL;
                if (x->done)
                        free_exchange(x);
        }
        conn->oldest = conn->newest = NULL;
        mfl_tls_free(conn->tls);
        conn->tls = NULL;
        uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        struct mfl_http_conn *conn = handle->data;
        *buf = uv_buf_init(conn->http->in, MFL_HTTP_READ_BYTES);
}

static struct mfl_http_exchange *add_exchange(struct mfl_http_conn *conn)
{
        struct mfl_http_exchange *x = mfl_calloc(1, sizeof *x);
        if (!x)
                return NULL;
        x->conn = conn;
        x->began_us = mfl_now_ns() / 1000;
        if (conn->newest)
                conn->newest->next = x;
        else
                conn->oldest = x;
        conn->newest = x;
        conn->n_exchanges++;
        return x;
}

/* Answers what can't be understood, as the last answer of this connection. */
static void refuse(struct mfl_http_conn *conn, int status, const char *error)
{
        struct mfl_http *http = conn->http;
        struct mfl_http_exchange *x = add_exchange(conn);
        conn->last = true;
        http->counts.bad_requests++;
        drop_parser(conn);
        if (!x) {
                mfl_http_conn_close(conn);
                return;
        }
        if (http->config.on_error)
                http->config.on_error(http->config.user, &x->reply, error);
        else
                mfl_reply_put(&x->reply, error);
        mfl_http_answer(
                http, x, status, http->config.on_error ? http->config.error_type : "text/plain", NULL);
}

static void begin_exchange(struct mfl_http_conn *conn)
{
        struct mfl_http *http = conn->http;
        const struct mfl_http_request *request = &conn->parser->request;
        struct mfl_http_exchange *x = add_exchange(conn);
        if (!x) {
                mfl_http_conn_close(conn);
                return;
        }
        x->keep_alive = request->keep_alive;
        x->head_only = request->method == MFL_HTTP_HEAD;
        x->old = request->old;
        conn->last |= !request->keep_alive;
        http->counts.requests++;
        http->config.on_request(http->config.user, x, request);
}

/* Whether more requests may be taken now. */
static bool has_room(const struct mfl_http_conn *conn)
{
        return conn->n_exchanges < conn->http->config.pipeline_max;
}

static bool make_parser(struct mfl_http_conn *conn)
{
        if (conn->parser)
                return true;
        conn->parser = mfl_malloc(sizeof *conn->parser);
        if (!conn->parser) {
                mfl_http_conn_close(conn);
                return false;
        }
        mfl_http_parser_init(conn->parser, &conn->http->config.limits);
        conn->since_ms = uv_now(conn->http->loop);
        return true;
}

static void keep_rest(struct mfl_http_conn *conn, const char *bytes, size_t n)
{
        char *grown = mfl_realloc(conn->rest, conn->rest_bytes + n);
        if (!grown) {
                mfl_http_conn_close(conn);
                return;
        }
        memcpy(grown + conn->rest_bytes, bytes, n);
        conn->rest = grown;
        conn->rest_bytes += n;
}

/* One request, or as much of it as there is. */
static size_t parse_some(struct mfl_http_conn *conn, const char *bytes, size_t n)
{
        size_t used = n;
        if (!make_parser(conn))
                return n;
        const bool fresh = !conn->parser->in_head && !conn->parser->in_body;
        const int r = mfl_http_parse(conn->parser, bytes, n, &used);
        if (fresh)
                conn->since_ms = uv_now(conn->http->loop);
        if (r == MFL_HTTP_BAD) {
                refuse(conn, conn->parser->status, conn->parser->error);
                return n;
        }
        if (r == MFL_HTTP_REQUEST) {
                begin_exchange(conn);
                if (!conn->closing)
                        mfl_http_parser_next(conn->parser);
        } else if (conn->parser->continues) {
                mfl_http_conn_mark(conn);
        }
        return used;
}

static void take(struct mfl_http_conn *conn, const char *bytes, size_t n)
{
        while (n && !conn->closing && !conn->last) {
                if (!has_room(conn)) {
                        keep_rest(conn, bytes, n);
                        break;
                }
                const size_t used = parse_some(conn, bytes, n);
                bytes += used;
                n -= used;
        }
        if (conn->last && !conn->closing)
                drop_parser(conn);
        if (conn->parser && !conn->parser->in_head && !conn->parser->in_body) {
                drop_parser(conn); /* an idle connection holds none */
                conn->since_ms = uv_now(conn->http->loop);
        }
}

static void give_up_tls(struct mfl_http_conn *conn, const struct mfl_error *err)
{
        char peer[64] = "?";
        struct sockaddr_storage address;
        int bytes = sizeof address;
        if (!uv_tcp_getpeername(&conn->tcp, (struct sockaddr *)&address, &bytes))
                uv_ip_name((struct sockaddr *)&address, peer, sizeof peer);
        mfl_log(MFL_LOG_DEBUG, "%s: %s", peer, err->text);
        conn->http->counts.bad_requests++;
        mfl_http_conn_mark(conn); /* the alert */
        conn->last = true;
}

/* Decrypts everything that has come. */
static void take_sealed(struct mfl_http_conn *conn, const char *bytes, size_t n)
{
        struct mfl_error err = {{0}};
        int r = 0;
        mfl_tls_feed(conn->tls, bytes, n);
        if (!conn->greeted) {
                r = mfl_tls_handshake(conn->tls, &err);
                conn->greeted = !r;
                mfl_http_conn_mark(conn);
        }
        while (!r && !conn->closing) {
                size_t got = 0;
                r = mfl_tls_read(conn->tls, conn->http->plain, MFL_TLS_RECORD_BYTES, &got, &err);
                if (!r && !conn->last)
                        take(conn, conn->http->plain, got);
        }
        if (r == MFL_TLS_END) {
                conn->end = true;
                mfl_http_conn_mark(conn);
        } else if (r && r != MFL_TLS_MORE && !conn->closing)
                give_up_tls(conn, &err);
        if (!conn->closing && conn->tls && mfl_tls_output(conn->tls)->n)
                mfl_http_conn_mark(conn);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct mfl_http_conn *conn = stream->data;
        if (n == 0 || conn->closing)
                return;
        if (n < 0) {
                conn->end = true;
                uv_read_stop(stream);
                conn->reading = false;
                if (n != UV_EOF)
                        mfl_http_conn_close(conn);
                else
                        mfl_http_conn_mark(conn);
                return;
        }
        conn->http->counts.bytes_in += (uint64_t)n;
        if (conn->shut || (conn->last && !conn->tls)) {
                conn->dropped += (uint64_t)n;
                if (conn->dropped > DROP_BYTES_MAX)
                        mfl_http_conn_close(conn);
                return;
        }
        if (conn->tls)
                take_sealed(conn, buf->base, (size_t)n);
        else
                take(conn, buf->base, (size_t)n);
        if (!conn->closing && conn->reading && !has_room(conn)) {
                uv_read_stop(stream);
                conn->reading = false;
        }
}

static void resume(struct mfl_http_conn *conn)
{
        if (conn->closing || !has_room(conn))
                return;
        if (conn->rest) {
                char *rest = conn->rest;
                const size_t n = conn->rest_bytes;
                conn->rest = NULL;
                conn->rest_bytes = 0;
                take(conn, rest, n);
                free(rest);
        }
        if (!conn->closing && !conn->reading && !conn->end && has_room(conn)) {
                const int r = uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
                conn->reading = !r;
                if (r)
                        mfl_http_conn_close(conn);
        }
}

/* ---- writing ---- */

void mfl_http_conn_mark(struct mfl_http_conn *conn)
{
        if (conn->dirty || conn->closing)
                return;
        conn->dirty = true;
        conn->next_dirty = conn->http->dirty;
        conn->http->dirty = conn;
}

/* Takes the answers that are next from the queue: a list. */
static struct mfl_http_exchange *take_answers(
        struct mfl_http_conn *conn, uv_buf_t *bufs, unsigned *ret_n, size_t *ret_bytes)
{
        struct mfl_http_exchange *first = conn->oldest, *x = first, *end = NULL;
        unsigned n = 0;
        size_t bytes = 0;
        for (; x && x->done && n < WRITE_BUFS_MAX; x = x->next) {
                bufs[n] = uv_buf_init(x->reply.v + x->reply.begin, (unsigned)(x->reply.n - x->reply.begin));
                bytes += bufs[n++].len;
                end = x;
        }
        *ret_n = n;
        *ret_bytes = bytes;
        if (!end)
                return NULL;
        conn->oldest = x;
        if (!x)
                conn->newest = NULL;
        end->next = NULL;
        conn->n_exchanges -= n;
        return first;
}

static void on_written(uv_write_t *req, int status)
{
        struct write *w = MFL_CONTAINER_OF(req, struct write, req);
        struct mfl_http_conn *conn = w->conn;
        conn->writing = false;
        free_exchanges(w->first);
        free(w->sealed);
        free(w);
        if (conn->closing)
                return;
        if (status)
                mfl_http_conn_close(conn);
        else
                mfl_http_conn_mark(conn);
}

static void write_rest(struct mfl_http_conn *conn, struct mfl_http_exchange *first, uint8_t *sealed,
        uv_buf_t *bufs, unsigned n, size_t sent)
{
        struct write *w = mfl_calloc(1, sizeof *w);
        unsigned i = 0;
        while (i < n && sent >= bufs[i].len)
                sent -= bufs[i++].len;
        if (w && i < n) {
                bufs[i].base += sent;
                bufs[i].len -= sent;
                *w = (struct write){.conn = conn, .first = first, .sealed = sealed};
                if (!uv_write(&w->req, (uv_stream_t *)&conn->tcp, bufs + i, n - i, on_written)) {
                        conn->writing = true;
                        conn->since_ms = uv_now(conn->http->loop);
                        return;
                }
        }
        free(w);
        free_exchanges(first);
        free(sealed);
        mfl_http_conn_close(conn);
}

/* Writes at once what the socket takes, and the rest when it can. */
static void send_bufs(struct mfl_http_conn *conn, struct mfl_http_exchange *first, uint8_t *sealed,
        uv_buf_t *bufs, unsigned n, size_t bytes)
{
        const int sent = uv_try_write((uv_stream_t *)&conn->tcp, bufs, n);
        conn->http->counts.bytes_out += bytes;
        if (sent >= 0 && (size_t)sent == bytes) {
                free_exchanges(first);
                free(sealed);
                conn->since_ms = uv_now(conn->http->loop);
        } else if (sent >= 0 || sent == UV_EAGAIN) {
                write_rest(conn, first, sealed, bufs, n, sent > 0 ? (size_t)sent : 0);
        } else {
                free_exchanges(first);
                free(sealed);
                mfl_http_conn_close(conn);
        }
}

static bool seal(struct mfl_http_conn *conn, const uv_buf_t *bufs, unsigned n)
{
        struct mfl_error err;
        for (unsigned i = 0; i < n; i++)
                for (size_t k = 0; k < bufs[i].len; k += MFL_TLS_RECORD_BYTES)
                        if (mfl_tls_write(conn->tls, bufs[i].base + k,
                                    MFL_MIN(bufs[i].len - k, MFL_TLS_RECORD_BYTES), &err))
                                return false;
        return true;
}

/* What TLS has to say, without its buffer: it goes with the write. */
static void send_sealed(struct mfl_http_conn *conn)
{
        struct mfl_tls_out *out = mfl_tls_output(conn->tls);
        uint8_t *sealed = out->data;
        uv_buf_t buf = uv_buf_init((char *)sealed, (unsigned)out->n);
        *out = (struct mfl_tls_out){0};
        if (buf.len)
                send_bufs(conn, NULL, sealed, &buf, 1, buf.len);
        else
                free(sealed);
}

static void send_answers(struct mfl_http_conn *conn)
{
        uv_buf_t bufs[WRITE_BUFS_MAX];
        unsigned n = 0;
        size_t bytes = 0;
        while (!conn->closing && !conn->writing) {
                struct mfl_http_exchange *first = take_answers(conn, bufs, &n, &bytes);
                if (!first)
                        return;
                if (!conn->tls) {
                        send_bufs(conn, first, NULL, bufs, n, bytes);
                        continue;
                }
                const bool sealed = seal(conn, bufs, n);
                free_exchanges(first);
                if (!sealed)
                        mfl_http_conn_close(conn);
                else
                        send_sealed(conn);
        }
}

static void send_continue(struct mfl_http_conn *conn)
{
        static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        if (conn->closing || conn->writing || conn->oldest || !conn->parser || !conn->parser->continues)
                return;
        conn->parser->continues = false;
        char *copy = mfl_strdup(text);
        if (!copy)
                return; /* the client sends its body after a while anyway */
        uv_buf_t buf = uv_buf_init(copy, sizeof text - 1);
        if (!conn->tls) {
                send_bufs(conn, NULL, (uint8_t *)copy, &buf, 1, buf.len);
                return;
        }
        if (seal(conn, &buf, 1))
                send_sealed(conn);
        free(copy);
}

static void on_shut(uv_shutdown_t *req, int status)
{
        free(req);
}

/* The last answer is out. What the client still sends is read and dropped: closing now would reset the connection, and
 * the answer might be lost on the way. */
static void shut(struct mfl_http_conn *conn)
{
        uv_shutdown_t *req = conn->end ? NULL : mfl_malloc(sizeof *req);
        if (conn->tls && conn->greeted) {
                mfl_tls_finish(conn->tls);
                send_sealed(conn);
        }
        conn->shut = true;
        conn->since_ms = uv_now(conn->http->loop);
        if (conn->closing || !req || uv_shutdown(req, (uv_stream_t *)&conn->tcp, on_shut)) {
                free(req);
                mfl_http_conn_close(conn);
                return;
        }
        if (!conn->reading) {
                conn->reading = !uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read);
                if (!conn->reading)
                        mfl_http_conn_close(conn);
        }
}

void mfl_http_conn_flush(struct mfl_http_conn *conn)
{
        conn->dirty = false;
        if (conn->closing || conn->writing)
                return;
        if (conn->tls)
                send_sealed(conn);
        send_answers(conn);
        if (conn->closing || conn->writing)
                return;
        resume(conn);
        send_continue(conn);
        if (conn->closing || conn->writing || conn->oldest || conn->rest)
                return;
        if (conn->end)
                mfl_http_conn_close(conn);
        else if (conn->last && !conn->shut)
                shut(conn);
}

/* ---- time ---- */

void mfl_http_conn_finish(struct mfl_http_conn *conn)
{
        if (!conn->oldest && !conn->parser && !conn->rest && !conn->writing)
                mfl_http_conn_close(conn);
        else if (!conn->parser)
                conn->last = true;
}

void mfl_http_conn_sweep(struct mfl_http_conn *conn, uint64_t now_ms)
{
        const struct mfl_http_config *config = &conn->http->config;
        if (conn->closing)
                return;
        const size_t queued = conn->writing ? uv_stream_get_write_queue_size((uv_stream_t *)&conn->tcp) : 0;
        if (conn->writing && (queued > conn->queued || conn->queued - queued >= STALL_BYTES)) {
                conn->queued = queued;
                conn->since_ms = now_ms;
        }
        const uint64_t ms = now_ms - MFL_MIN(conn->since_ms, now_ms);
        if (conn->writing ? ms > STALL_MS : conn->shut && ms > DROP_MS) {
                mfl_http_conn_close(conn);
        } else if (conn->writing || conn->shut || conn->oldest) {
                return;
        } else if (conn->parser && ms > config->request_ms) {
                conn->http->counts.timeouts++;
                refuse(conn, 408, "the request did not arrive in time");
        } else if (!conn->parser &&
                   ms > (conn->tls && !conn->greeted ? config->request_ms : config->idle_ms)) {
                conn->http->counts.timeouts++;
                mfl_http_conn_close(conn);
        }
}

/* ---- accepting ---- */

void mfl_http_conn_accept(struct mfl_http *http, uv_stream_t *listener)
{
        struct mfl_http_conn *conn = mfl_calloc(1, sizeof *conn);
        struct mfl_error err;
        if (!conn) {
                http->waits = true;
                return;
        }
        conn->http = http;
        conn->tcp.data = conn;
        conn->since_ms = uv_now(http->loop);
        if (uv_tcp_init(http->loop, &conn->tcp)) {
                free(conn);
                return;
        }
        conn->next = http->first;
        if (conn->next)
                conn->next->prev = conn;
        http->first = conn;
        http->n_conns++;
        if (uv_accept(listener, (uv_stream_t *)&conn->tcp)) {
                mfl_http_conn_close(conn);
                return;
        }
        http->counts.connections++;
        if (http->config.tls && mfl_tls_new(http->config.tls, NULL, &conn->tls, &err)) {
                mfl_http_conn_close(conn);
                return;
        }
        if (http->n_conns > http->config.connections_max || http->closing) {
                http->counts.refused++;
                mfl_http_conn_close(conn);
                return;
        }
        uv_tcp_nodelay(&conn->tcp, 1);
        resume(conn);
}
