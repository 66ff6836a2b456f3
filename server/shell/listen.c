/* SPDX-License-Identifier: Apache-2.0 */
/* Listens: on sockets that the service manager has opened, so that callers wait during a restart instead of
 * being refused; else on the address of the configuration. */
#include "server/shell/listen.h"

#include <netdb.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/systemd.h"
#include "server/session/admission.h"

#define BACKLOG 4096

/* Whether the configuration allows that. text: the address for people. */
static int may_listen(const struct mfl_server *server, const struct sockaddr *address, const char *text,
        struct mfl_error *err)
{
        if (mfl_admission_has_tls(&server->sessions) || mfl_address_is_loopback(address))
                return 0;
        if (!server->config.insecure_listen)
                return mfl_fail(err, MFL_INVALID,
                        "listen: %s is not a loopback address, and no TLS is configured: anyone who can "
                        "reach the "
                        "port could submit jobs and read models; set tls_cert, tls_key and tls_ca, or listen "
                        "on 127.0.0.1 and tunnel, or set insecure_listen (--insecure-listen) on a network "
                        "that "
                        "you trust",
                        text);
        mfl_log(MFL_LOG_WARN, "listening on %s WITHOUT encryption or authentication (insecure_listen)", text);
        return 0;
}

static void describe_address(const struct sockaddr_storage *address, char *buf, size_t bytes)
{
        char host[64] = "?";
        if (address->ss_family == AF_INET6) {
                const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)address;
                uv_ip6_name(in, host, sizeof host);
                snprintf(buf, bytes, "[%s]:%u", host, ntohs(in->sin6_port));
        } else {
                const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;
                uv_ip4_name(in, host, sizeof host);
                snprintf(buf, bytes, "%s:%u", host, ntohs(in->sin_port));
        }
}

static int listen_on(
        struct mfl_server *server, int fd, char *ret_address, size_t bytes, struct mfl_error *err)
{
        struct sockaddr_storage address = {0};
        int n = sizeof address;
        mfl_assert(server->n_listeners < MFL_SERVER_LISTENERS_MAX);
        uv_tcp_t *listener = &server->listeners[server->n_listeners++];
        uv_tcp_init(&server->loop.uv, listener);
        listener->data = &server->sessions;
        int r = uv_tcp_open(listener, fd);
        if (!r)
                r = uv_tcp_getsockname(listener, (struct sockaddr *)&address, &n);
        if (r)
                return mfl_fail(
                        err, -1, "take over socket %d of the service manager: %s", fd, uv_strerror(r));
        describe_address(&address, ret_address, bytes);
        r = may_listen(server, (const struct sockaddr *)&address, ret_address, err);
        if (r)
                return r;
        r = uv_listen((uv_stream_t *)listener, BACKLOG, mfl_session_on_connection);
        return r ? mfl_fail(err, -1, "listen on %s: %s", ret_address, uv_strerror(r)) : 0;
}

/* All sockets of the service manager; *ret_n: how many. */
static int listen_on_given(struct mfl_server *server, uint32_t *ret_n, struct mfl_error *err)
{
        int fds[MFL_SERVER_LISTENERS_MAX];
        uint32_t n;
        int r = mfl_systemd_listeners(fds, MFL_SERVER_LISTENERS_MAX, &n, err);
        for (uint32_t i = 0; !r && i < n; i++) {
                char address[sizeof server->address];
                r = listen_on(server, fds[i], address, sizeof address, err);
                if (r)
                        break;
                mfl_log(MFL_LOG_INFO,
                        "listening on %s through the service manager's socket; listen (%s) of the "
                        "configuration "
                        "is not used",
                        address, server->config.listen);
                if (!i)
                        mfl_strcpy(server->address, sizeof server->address, address);
        }
        if (!r)
                *ret_n = n;
        return r;
}

int mfl_server_listen(struct mfl_server *server, struct mfl_error *err)
{
        uint32_t n_given;
        char host[256], port[32];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
        const char *listen = server->config.listen;
        int r = listen_on_given(server, &n_given, err);
        if (r || n_given)
                return r;
        r = mfl_address_parse(listen, host, sizeof host, port, sizeof port, err);
        if (r)
                return r;
        r = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_INVALID, "listen: %s: %s", listen, gai_strerror(r));
        r = may_listen(server, info->ai_addr, listen, err);
        if (r) {
                freeaddrinfo(info);
                return r;
        }
        mfl_assert(server->n_listeners < MFL_SERVER_LISTENERS_MAX);
        uv_tcp_t *listener = &server->listeners[server->n_listeners++];
        uv_tcp_init(&server->loop.uv, listener);
        listener->data = &server->sessions;
        r = uv_tcp_bind(listener, info->ai_addr, 0);
        freeaddrinfo(info);
        if (!r)
                r = uv_listen((uv_stream_t *)listener, BACKLOG, mfl_session_on_connection);
        if (r == UV_EADDRINUSE)
                return mfl_fail(err, -1,
                        "listen on %s: another program listens there, perhaps another mfl-server ('ss -ltnp' "
                        "shows it); --listen or `listen` takes another address",
                        listen);
        if (r)
                return mfl_fail(err, -1, "listen on %s: %s", listen, uv_strerror(r));
        struct sockaddr_storage addr;
        int len = sizeof addr;
        uv_tcp_getsockname(listener, (struct sockaddr *)&addr, &len);
        int bound = ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                                     : ((struct sockaddr_in *)&addr)->sin_port);
        snprintf(server->address, sizeof server->address, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host,
                bound);
        return 0;
}
