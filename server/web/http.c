/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP port: libmicrohttpd on its own thread. The loop's side is http_loop.c.
 *
 *   - a request is checked (method, host, body, path) and answered from assets, health or the cache;
 *   - otherwise its connection is suspended and its path wanted; the loop makes wanted pages in batches;
 *   - an answer goes into the cache and resumes all requests that wait for it.
 * Ways to fail: a wrong address, no memory for a request (its connection is closed), slow or too many peers
 * (theirs are closed). There is no lock order: libmicrohttpd has locks of its own and is never called under
 * ours.
 */
#include "server/web/http_internal.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/stream.h"

#define CONNECTIONS_CROWDED 56
#define REQUEST_BYTES_MAX (16 * 1024)
#define SILENCE_SECONDS 10
#define BACKLOG 511
#define NICENESS 10
#define HTTP_PATIENT_MAX 8

const unsigned mfl_http_statuses[MFL_HTTP_STATUSES - 1] = {200, 304, 400, 403, 404, 405, 503};

/* ---- answers (HTTP thread) ---- */

/* FNV-1a: an ETag only has to tell changes. */
static void set_etag(struct mfl_http_page *page)
{
        uint64_t hash = 0xcbf29ce484222325u;
        for (size_t i = 0; i < page->n; i++)
                hash = (hash ^ (unsigned char)page->body[i]) * 0x100000001b3u;
        snprintf(page->etag, sizeof page->etag, "\"%016llx\"", (unsigned long long)hash);
}

static void count(struct mfl_http *http, unsigned status)
{
        int i = 0;
        while (i < MFL_HTTP_STATUSES - 1 && mfl_http_statuses[i] != status)
                i++;
        atomic_fetch_add_explicit(&http->counts[i], 1, memory_order_relaxed);
}

void mfl_http_counts(struct mfl_http *http, uint64_t ret_counts[MFL_HTTP_STATUSES])
{
        for (int i = 0; i < MFL_HTTP_STATUSES; i++)
                ret_counts[i] = atomic_load_explicit(&http->counts[i], memory_order_relaxed);
}

/* Takes the response; NULL: memory ran out. Scripts, styles and data may come from here only, nobody may
 * frame the page, and nothing is stored. */
static enum MHD_Result send_response(struct mfl_http *http, struct MHD_Connection *connection,
        unsigned status, const char *type, const char *etag, struct MHD_Response *response)
{
        static const char *const headers[][2] = {
                {"Connection", "close"},
                {"Cache-Control", "no-cache"},
                {"Content-Security-Policy",
                        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                {"Cross-Origin-Resource-Policy", "same-origin"},
                {"Referrer-Policy", "no-referrer"},
                {"X-Content-Type-Options", "nosniff"},
                {"X-Frame-Options", "DENY"},
        };
        if (!response)
                return MHD_NO;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(headers); i++)
                MHD_add_response_header(response, headers[i][0], headers[i][1]);
        MHD_add_response_header(response, "Content-Type", type);
        if (etag && *etag)
                MHD_add_response_header(response, "ETag", etag);
        if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
                MHD_add_response_header(response, "Allow", "GET, HEAD");
        count(http, status);
        enum MHD_Result r = MHD_queue_response(connection, status, response);
        MHD_destroy_response(response);
        return r;
}

static enum MHD_Result send_line(
        struct mfl_http *http, struct MHD_Connection *connection, unsigned status, const char *line)
{
        char text[300];
        int n = snprintf(text, sizeof text, "%s\n", line);
        return send_response(http, connection, status, "text/plain; charset=utf-8", NULL,
                MHD_create_response_from_buffer(
                        (size_t)MFL_MIN(n, (int)sizeof text - 1), text, MHD_RESPMEM_MUST_COPY));
}

/* A connection that loads a file may last longer, and few may. */
static bool take_patience(struct mfl_http *http, struct MHD_Connection *connection)
{
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        struct mfl_http_peer *peer = info ? info->socket_context : NULL;
        if (!peer || http->n_patient == HTTP_PATIENT_MAX)
                return false;
        pthread_mutex_lock(&http->lock);
        peer->patient = true;
        pthread_mutex_unlock(&http->lock);
        http->n_patient++;
        return true;
}

/* What is for one asker alone. Takes the reference. */
static enum MHD_Result send_alone(
        struct mfl_http *http, struct MHD_Connection *connection, struct mfl_http_page *page)
{
        char name[120];
        if (page->fd >= 0 && !take_patience(http, connection)) {
                mfl_http_page_unref(page);
                return send_line(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                        "too many files are being loaded; try again");
        }
        struct MHD_Response *response =
                page->fd >= 0 ? MHD_create_response_from_fd64(page->n, page->fd)
                              : MHD_create_response_from_buffer(page->n, page->body, MHD_RESPMEM_MUST_COPY);
        if (response) {
                page->fd = -1;
                MHD_add_response_header(response, "Cache-Control", "no-store");
                if (*page->cookie)
                        MHD_add_response_header(response, "Set-Cookie", page->cookie);
                snprintf(name, sizeof name, "attachment; filename=\"%s\"", page->file_name);
                if (*page->file_name)
                        MHD_add_response_header(response, "Content-Disposition", name);
        }
        unsigned status = page->status;
        const char *type = page->type;
        mfl_http_page_unref(page);
        return send_response(http, connection, status, type, NULL, response);
}

/* Takes the reference. */
static enum MHD_Result send_page(
        struct mfl_http *http, struct MHD_Connection *connection, struct mfl_http_page *page)
{
        if (page->alone)
                return send_alone(http, connection, page);
        if (!*page->etag)
                set_etag(page);
        const char *known = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "If-None-Match");
        if (page->status == MHD_HTTP_OK && known && strstr(known, page->etag)) {
                enum MHD_Result r = send_response(http, connection, MHD_HTTP_NOT_MODIFIED, page->type,
                        page->etag, MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT));
                mfl_http_page_unref(page);
                return r;
        }
        struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback_cls(
                page->n, page->body, mfl_http_page_unref, page);
        if (!response) {
                mfl_http_page_unref(page);
                return MHD_NO;
        }
        return send_response(http, connection, page->status, page->type, page->etag, response);
}

static enum MHD_Result send_health(
        struct mfl_http *http, struct MHD_Connection *connection, const char *(*judge)(struct mfl_http *))
{
        char why[256];
        pthread_mutex_lock(&http->lock);
        mfl_strcpy(why, sizeof why, judge(http));
        pthread_mutex_unlock(&http->lock);
        return send_line(
                http, connection, *why ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, *why ? why : "ok");
}

/* Under the lock. */
static bool is_stuck(const struct mfl_http *http)
{
        return http->beat_ms && mfl_now_ms() - http->beat_ms > http->options.stale_ms;
}

static const char *judge_health(struct mfl_http *http)
{
        return is_stuck(http) ? "the server's event loop has been stuck for several seconds" : http->unwell;
}

static const char *judge_ready(struct mfl_http *http)
{
        return is_stuck(http) ? "the server's event loop has been stuck for several seconds" : http->unready;
}

/* ---- requests (HTTP thread) ---- */

/* An address is no name, so nobody can rebind it. */
static bool host_is_ours(const char *host)
{
        char name[80];
        unsigned char address[16];
        size_t n = *host == '[' ? strcspn(host, "]") : strcspn(host, ":");
        const char *from = *host == '[' ? host + 1 : host;
        n -= *host == '[' && n;
        if (n >= sizeof name)
                return false;
        memcpy(name, from, n);
        name[n] = '\0';
        return !strcasecmp(name, "localhost") || inet_pton(AF_INET, name, address) == 1 ||
               inet_pton(AF_INET6, name, address) == 1;
}

static bool has_body(struct MHD_Connection *connection)
{
        const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
        return (length && strcmp(length, "0")) ||
               MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Transfer-Encoding");
}

/* Of a name, or an address in brackets, without the port. */
static size_t name_length(const char *host)
{
        size_t n = *host == '[' ? strcspn(host, "]") : 0;
        return n + strcspn(host + n, ":");
}

/* Whatever the port: browsers leave out that of the scheme, and nginx's $host has none. */
static bool host_is_named(const struct mfl_http *http, const char *host)
{
        const char *name = http->options.host;
        size_t n = name ? name_length(name) : 0;
        return n && name_length(host) == n && !strncasecmp(name, host, n);
}

/* Begins a request; a refusal is answered at once, without reading the rest. */
static enum MHD_Result begin(struct mfl_http *http, struct MHD_Connection *connection, const char *path,
        const char *method, void **con_cls)
{
        const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host"), *why;
        bool post = !strcmp(method, "POST") && http->options.acts;
        unsigned status;
        if (!post && strcmp(method, "GET") && strcmp(method, "HEAD"))
                return send_line(http, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
        if (!post && has_body(connection))
                return send_line(http, connection, MHD_HTTP_BAD_REQUEST, "a request must not have a body");
        if (http->loopback && host && !host_is_ours(host) && !host_is_named(http, host))
                return send_line(http, connection, MHD_HTTP_FORBIDDEN,
                        "this port can be reached as localhost or by an address, not by another name");
        struct mfl_tls_identity visitor = {0};
        bool known = http->tls && mfl_http_visitor(http, connection, &visitor);
        if (http->tls && http->options.certificates && !known && strcmp(path, "/healthz") &&
                strcmp(path, "/readyz"))
                return send_line(http, connection, MHD_HTTP_FORBIDDEN,
                        "this port shows nothing without a certificate of a viewer, an operator or an admin");
        if (post && (why = mfl_http_judge_post(http, connection, path, &status)))
                return send_line(http, connection, status, why);
        struct mfl_http_ask *ask = mfl_calloc(1, sizeof *ask);
        if (!ask)
                return MHD_NO;
        ask->connection = connection;
        ask->state = post ? ASK_BODY : ASK_BEGUN;
        *con_cls = ask;
        if (!http->options.acts || !http->options.acts(path, post))
                return MHD_YES;
        if (!mfl_http_begin_act(http, ask, path, post))
                return MHD_NO;
        if (known) {
                mfl_strcpy(ask->act->visitor, sizeof ask->act->visitor, visitor.name);
                ask->act->roles = visitor.roles;
        }
        return MHD_YES;
}

static const struct mfl_asset *find_asset(const struct mfl_http *http, const char *path)
{
        for (size_t i = 0; i < http->options.n_assets; i++)
                if (!strcmp(http->options.assets[i].path, path))
                        return &http->options.assets[i];
        return NULL;
}

static enum MHD_Result send_asset(
        struct mfl_http *http, struct MHD_Connection *connection, const struct mfl_asset *asset)
{
        return send_response(http, connection, MHD_HTTP_OK, asset->type, NULL,
                MHD_create_response_from_buffer(
                        asset->n, (void *)(uintptr_t)asset->bytes, MHD_RESPMEM_PERSISTENT));
}

/* Answers with a fresh page, or parks the request until there is one. It is suspended before the loop sees
 * it, because the loop may resume it at once. */
static enum MHD_Result fetch(struct mfl_http *http, struct mfl_http_ask *ask)
{
        struct mfl_http_page *page = mfl_http_fresh_page(http, ask->path);
        pthread_mutex_lock(&http->lock);
        bool stuck = is_stuck(http);
        pthread_mutex_unlock(&http->lock);
        if (page)
                return send_page(http, ask->connection, page);
        if (stuck)
                return send_line(http, ask->connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                        "the server's event loop has been stuck for several seconds");
        mfl_assert(ask->state == ASK_BEGUN && !ask->page);
        ask->state = ASK_PARKED;
        MHD_suspend_connection(ask->connection);
        pthread_mutex_lock(&http->lock);
        bool closing = http->closing;
        if (!closing) {
                ask->next = http->wanted;
                http->wanted = ask;
                uv_async_send(&http->wakeup); /* under the lock: it can't be closed before */
        }
        pthread_mutex_unlock(&http->lock);
        if (closing)
                MHD_resume_connection(ask->connection);
        return MHD_YES;
}

static enum MHD_Result route(struct mfl_http *http, struct mfl_http_ask *ask, const char *path)
{
        const struct mfl_asset *asset = find_asset(http, path);
        if (asset)
                return send_asset(http, ask->connection, asset);
        if (!strcmp(path, "/healthz"))
                return send_health(http, ask->connection, judge_health);
        if (!strcmp(path, "/readyz"))
                return send_health(http, ask->connection, judge_ready);
        if (!mfl_strcpy(ask->path, sizeof ask->path, path) || !http->options.knows(path))
                return send_line(http, ask->connection, MHD_HTTP_NOT_FOUND, "there is no such page");
        return fetch(http, ask);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *url,
        const char *method, const char *version, const char *data, size_t *data_bytes, void **con_cls)
{
        struct mfl_http *http = arg;
        struct mfl_http_ask *ask = *con_cls;
        if (!ask)
                return begin(http, connection, url, method, con_cls);
        if (ask->state == ASK_BODY && *data_bytes) {
                size_t n = *data_bytes;
                *data_bytes = 0;
                return mfl_http_add_body(ask, data, n) ? MHD_YES : MHD_NO;
        }
        if (ask->act && ask->state != ASK_PARKED) {
                mfl_http_park_act(http, ask);
                return MHD_YES;
        }
        if (ask->state == ASK_BEGUN)
                return route(http, ask, url);
        struct mfl_http_page *page = ask->page;
        ask->page = NULL;
        if (ask->act)
                mfl_http_acting(http, connection, false);
        if (!page)
                return send_line(http, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                        "the page could not be made; try again");
        return send_page(http, connection, page);
}

static void on_completed(
        void *arg, struct MHD_Connection *connection, void **con_cls, enum MHD_RequestTerminationCode code)
{
        struct mfl_http_ask *ask = *con_cls;
        if (ask) {
                mfl_http_page_unref(ask->page);
                mfl_http_act_free(arg, ask->act);
        }
        free(ask);
        *con_cls = NULL;
}

/* ---- connections (HTTP thread) ---- */

/* The oldest makes room, so that a peer with many connections can't keep others out for long. Under the lock.
 */
static void make_room(struct mfl_http *http)
{
        struct mfl_http_peer *oldest = NULL;
        if (http->n_peers <= CONNECTIONS_CROWDED)
                return;
        for (struct mfl_http_peer *peer = http->peers; peer; peer = peer->next)
                if (!peer->sent_away && !peer->patient && !peer->acting)
                        oldest = peer;
        if (oldest)
                mfl_http_send_away(oldest);
}

static void peer_started(struct mfl_http *http, struct MHD_Connection *connection, void **socket_context)
{
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct mfl_http_peer *peer = mfl_calloc(1, sizeof *peer);
        if (!peer) /* then only libmicrohttpd's own limits apply */
                return;
        peer->fd = info ? fcntl(info->connect_fd, F_DUPFD_CLOEXEC, 0) : -1;
        peer->since_ms = mfl_now_ms();
        *socket_context = peer;
        pthread_mutex_lock(&http->lock);
        peer->next = http->peers;
        peer->prev_next = &http->peers;
        if (peer->next)
                peer->next->prev_next = &peer->next;
        http->peers = peer;
        http->n_peers++;
        make_room(http);
        pthread_mutex_unlock(&http->lock);
}

static void peer_closed(struct mfl_http *http, struct mfl_http_peer *peer)
{
        pthread_mutex_lock(&http->lock);
        *peer->prev_next = peer->next;
        if (peer->next)
                peer->next->prev_next = peer->prev_next;
        http->n_peers--;
        http->n_patient -= peer->patient;
        pthread_mutex_unlock(&http->lock);
        if (peer->fd >= 0)
                close(peer->fd);
        free(peer);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **socket_context,
        enum MHD_ConnectionNotificationCode code)
{
        static _Thread_local bool nice_already;
        struct mfl_http *http = arg;
        if (!nice_already) /* on Linux each thread has its own niceness */
                setpriority(PRIO_PROCESS, (id_t)gettid(), NICENESS);
        nice_already = true;
        if (code == MHD_CONNECTION_NOTIFY_STARTED)
                peer_started(http, connection, socket_context);
        else if (*socket_context)
                peer_closed(http, *socket_context);
}

void mfl_http_resume(struct mfl_http_ask *ask)
{
        while (ask) {
                struct mfl_http_ask *next = ask->next; /* the request may end as soon as it is resumed */
                MHD_resume_connection(ask->connection);
                ask = next;
        }
}

/* ---- open and close ---- */

static int open_socket(struct mfl_http *http, int *ret_fd, struct mfl_error *err)
{
        char host[256], port[32];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
        const char *address = http->options.address;
        int one = 1, r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        r = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_INVALID, "http: %s: %s", address, gai_strerror(r));
        http->loopback = mfl_address_is_loopback(info->ai_addr);
        if (!http->loopback && !http->options.anywhere) {
                freeaddrinfo(info);
                return mfl_fail(err, MFL_INVALID,
                        "http: %s is not a loopback address: anyone who can reach the port could see the "
                        "state of daemons, and jobs with their files and logs; use 127.0.0.1 with a proxy "
                        "before it, or set "
                        "insecure_http (--insecure-http) on a network that you trust",
                        address);
        }
        int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct sockaddr_storage bound = {0};
        socklen_t len = sizeof bound;
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
                bind(fd, info->ai_addr, info->ai_addrlen) || listen(fd, BACKLOG) ||
                getsockname(fd, (struct sockaddr *)&bound, &len)) {
                r = mfl_fail_errno(err, "http: listen on %s", address);
                if (fd >= 0)
                        close(fd);
                freeaddrinfo(info);
                return r;
        }
        freeaddrinfo(info);
        int n = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
        snprintf(http->address, sizeof http->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, n);
        *ret_fd = fd;
        return 0;
}

/* Signals are for the loop thread: the new thread inherits a mask that blocks them all. Closes the socket
 * when it fails. */
static int start_daemon(struct mfl_http *http, int fd, struct mfl_error *err)
{
        sigset_t all, old;
        struct MHD_OptionItem tls[3];
        mfl_http_tls_options(http->tls, tls);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        http->daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME |
                                                MHD_USE_ITC | (http->tls ? MHD_USE_TLS : 0u),
                0, NULL, NULL, on_request, http, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
                MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS_MAX,
                MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                (unsigned)SILENCE_SECONDS, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED,
                on_completed, http, MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_ARRAY, tls,
                MHD_OPTION_END);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (http->daemon)
                return 0;
        close(fd);
        return mfl_fail(err, -EIO, "http: libmicrohttpd did not start on %s", http->address);
}

static void free_http(struct mfl_http *http)
{
        mfl_assert(!http->peers && !http->wanted && !http->parked && !http->to_do && !http->doing);
        for (size_t i = 0; i < HTTP_CACHE_PAGES; i++)
                mfl_http_page_unref(http->cache[i].page);
        mfl_http_tls_free(http->tls);
        pthread_mutex_destroy(&http->lock);
        free(http);
}

int mfl_http_open(const struct mfl_http_options *options, struct mfl_http **ret_http, struct mfl_error *err)
{
        int fd = -1;
        struct mfl_http *http = mfl_calloc(1, sizeof *http);
        if (!http)
                return mfl_fail_memory(err, sizeof *http, "the HTTP port");
        http->options = *options;
        http->options.stale_ms = options->stale_ms ? options->stale_ms : 5000;
        http->options.fresh_ms = options->fresh_ms ? options->fresh_ms : 1000;
        mfl_strcpy(http->unready, sizeof http->unready, "starting");
        pthread_mutex_init(&http->lock, NULL);
        int r = options->tls ? mfl_http_tls_read(options->tls, NULL, &http->tls, err) : 0;
        http->options.tls = NULL;
        if (!r)
                r = open_socket(http, &fd, err);
        if (r) {
                free_http(http);
                return r;
        }
        r = uv_async_init(options->loop, &http->wakeup, mfl_http_on_wakeup);
        if (r) {
                close(fd);
                free_http(http);
                return mfl_fail(err, r, "http: %s", uv_strerror(r));
        }
        uv_timer_init(options->loop, &http->batch);
        http->wakeup.data = http->batch.data = http;
        http->handles = 2;
        r = start_daemon(http, fd, err);
        if (r) {
                mfl_http_close(http);
                return r;
        }
        *ret_http = http;
        return 0;
}

const char *mfl_http_address(const struct mfl_http *http)
{
        return http->address;
}

int mfl_http_renew(struct mfl_http *http, const struct mfl_tls_files *files, struct mfl_error *err)
{
        return http->tls ? mfl_http_tls_read(files, http->tls, &http->tls, err) : 0;
}

bool mfl_http_is_loopback(const struct mfl_http *http)
{
        return http->loopback;
}

static void on_closed(uv_handle_t *handle)
{
        struct mfl_http *http = handle->data;
        if (--http->handles == 0)
                free_http(http);
}

void mfl_http_close(struct mfl_http *http)
{
        if (!http)
                return;
        pthread_mutex_lock(&http->lock);
        http->closing = true;
        struct mfl_http_ask *wanted = mfl_http_take_asks(&http->wanted, NULL),
                            *parked = mfl_http_take_asks(&http->parked, NULL),
                            *to_do = mfl_http_take_asks(&http->to_do, NULL),
                            *doing = mfl_http_take_asks(&http->doing, NULL);
        pthread_mutex_unlock(&http->lock);
        mfl_http_resume(wanted);
        mfl_http_resume(parked);
        mfl_http_resume(to_do);
        mfl_http_resume(doing);
        if (http->daemon)
                MHD_stop_daemon(http->daemon);
        uv_close((uv_handle_t *)&http->wakeup, on_closed);
        uv_close((uv_handle_t *)&http->batch, on_closed);
}
