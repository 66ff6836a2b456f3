/* SPDX-License-Identifier: Apache-2.0 */
/* Requests for their askers alone, on the HTTP thread: their headers and bodies, and their way to the loop.
 *
 *   - a POST is judged by its headers before its body is read;
 *   - the body grows as it comes, to what Content-Length says at most;
 *   - the connection is suspended and the act given to the loop, as pages are.
 * Ways to fail: another site's page sends it; no X-MFL-CSRF; no length, or a body over the limit; too many bodies. */
#include "server/web/http_internal.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <stdio.h>
#include <sys/socket.h>

#define BODIES_MAX 8u
#define SLOW_BODY_MS 2000u

static const char *header_of(struct MHD_Connection *connection, const char *name)
{
        const char *value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
        return value ? value : "";
}

/* -1: there is none, or it is no number. */
static long long length_of(struct MHD_Connection *connection)
{
        const char *text = header_of(connection, "Content-Length");
        char *end;
        long long n = strtoll(text, &end, 10);
        return end == text || *end ? -1 : n;
}

static struct mfl_http_peer *peer_of(struct MHD_Connection *connection)
{
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        return info ? info->socket_context : NULL;
}

void mfl_http_send_away(struct mfl_http_peer *peer)
{
        peer->sent_away = true;
        shutdown(peer->fd, SHUT_RDWR);
}

/* The oldest body that comes slowly makes room: anybody can begin one. */
static void drop_slow_body(struct mfl_http *http)
{
        struct mfl_http_peer *oldest = NULL;
        uint64_t now = mfl_now_ms();
        pthread_mutex_lock(&http->lock);
        for (struct mfl_http_peer *peer = http->peers; peer; peer = peer->next)
                if (peer->posting && !peer->sent_away && now - peer->since_ms > SLOW_BODY_MS)
                        oldest = peer;
        if (oldest)
                mfl_http_send_away(oldest);
        pthread_mutex_unlock(&http->lock);
}

const char *mfl_http_judge_post(
        struct mfl_http *http, struct MHD_Connection *connection, const char *path, unsigned *ret_status)
{
        const char *site = header_of(connection, "Sec-Fetch-Site");
        long long n = length_of(connection);
        *ret_status = MHD_HTTP_FORBIDDEN;
        if (!http->options.acts(path, true)) {
                *ret_status = MHD_HTTP_METHOD_NOT_ALLOWED;
                return "only GET and HEAD";
        }
        if (*site && strcmp(site, "same-origin") != 0)
                return "a page of another site has sent this request";
        if (!*header_of(connection, "X-MFL-CSRF"))
                return "the request has no X-MFL-CSRF header: GET /api/login tells its value to who is "
                       "logged in";
        if (n < 0 || *header_of(connection, "Transfer-Encoding")) {
                *ret_status = MHD_HTTP_LENGTH_REQUIRED;
                return "the request must say how long its body is (Content-Length)";
        }
        if (n > MFL_HTTP_BODY_MAX) {
                *ret_status = MHD_HTTP_CONTENT_TOO_LARGE;
                return "the body has more than 256 KiB, which is the most that a job file may have";
        }
        if (strlen(header_of(connection, "X-MFL-Token")) >= sizeof(((struct mfl_http_act *)0)->token)) {
                *ret_status = MHD_HTTP_BAD_REQUEST;
                return "X-MFL-Token has more than 63 bytes";
        }
        if (http->n_bodies >= BODIES_MAX) {
                drop_slow_body(http);
                *ret_status = MHD_HTTP_SERVICE_UNAVAILABLE;
                return "too many requests at once; try again";
        }
        return NULL;
}

static void take_address(struct MHD_Connection *connection, char *text, size_t bytes)
{
        const union MHD_ConnectionInfo *info =
                MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
        const struct sockaddr *addr = info ? info->client_addr : NULL;
        char host[INET6_ADDRSTRLEN] = "";
        if (addr && addr->sa_family == AF_INET)
                inet_ntop(AF_INET, &((const struct sockaddr_in *)addr)->sin_addr, host, sizeof host);
        else if (addr && addr->sa_family == AF_INET6)
                inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)addr)->sin6_addr, host, sizeof host);
        mfl_snprintf(text, bytes, "http %s", host);
}

/* A value that does not fit is none. */
static void take_value(char *to, size_t bytes, const char *value)
{
        if (!mfl_strcpy(to, bytes, value))
                *to = '\0';
}

bool mfl_http_begin_act(struct mfl_http *http, struct mfl_http_ask *ask, const char *path, bool post)
{
        struct mfl_http_act *act = mfl_calloc(1, sizeof *act);
        const char *cookie =
                MHD_lookup_connection_value(ask->connection, MHD_COOKIE_KIND, http->options.cookie);
        if (!act)
                return false;
        ask->act = act;
        act->post = post;
        act->id = ++http->last_act;
        http->n_bodies += post;
        struct mfl_http_peer *peer = peer_of(ask->connection);
        if (peer) /* this thread's */
                peer->posting = post;
        take_value(act->path, sizeof act->path, path);
        take_value(act->cookie, sizeof act->cookie, cookie ? cookie : "");
        take_value(act->csrf, sizeof act->csrf, header_of(ask->connection, "X-MFL-CSRF"));
        take_value(act->token, sizeof act->token, header_of(ask->connection, "X-MFL-Token"));
        take_address(ask->connection, act->address, sizeof act->address);
        long long n = post ? length_of(ask->connection) : 0;
        if (n <= 0)
                return true;
        ask->capacity = (size_t)n;
        act->body = mfl_calloc(ask->capacity + 1, 1);
        return act->body != NULL;
}

bool mfl_http_add_body(struct mfl_http_ask *ask, const char *bytes, size_t n)
{
        struct mfl_http_act *act = ask->act;
        if (n > ask->capacity - act->n)
                return false;
        memcpy(act->body + act->n, bytes, n);
        act->n += n;
        return true;
}

void mfl_http_acting(struct mfl_http *http, struct MHD_Connection *connection, bool acting)
{
        struct mfl_http_peer *peer = peer_of(connection);
        if (!peer)
                return;
        peer->posting = false;
        pthread_mutex_lock(&http->lock);
        peer->acting = acting;
        peer->since_ms = mfl_now_ms();
        pthread_mutex_unlock(&http->lock);
}

void mfl_http_park_act(struct mfl_http *http, struct mfl_http_ask *ask)
{
        ask->state = ASK_PARKED;
        mfl_http_acting(http, ask->connection, true);
        MHD_suspend_connection(ask->connection);
        pthread_mutex_lock(&http->lock);
        bool closing = http->closing;
        if (!closing) {
                ask->next = http->to_do;
                http->to_do = ask;
                uv_async_send(&http->wakeup); /* under the lock: it can't be closed before */
        }
        pthread_mutex_unlock(&http->lock);
        if (closing)
                MHD_resume_connection(ask->connection);
}

void mfl_http_act_free(struct mfl_http *http, struct mfl_http_act *act)
{
        if (!act)
                return;
        http->n_bodies -= act->post;
        free(act->body);
        free(act);
}
