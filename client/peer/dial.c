/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to a daemon's port: resolve -> connect, one address after the other -> TLS -> greeting.
 *
 * Fails by: no such host; every address refuses, or is silent for CONNECT_MS, as behind a firewall; whoever listens there says
 * nothing for GREET_MS, closes, or is not who it should be. */
#include "client/peer/dial.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/stream.h"

#define CONNECT_MS 8000u
#define GREET_MS 10000u
#define TURN_MS 20
#define SILENT_MS 30000u /* data that is not acknowledged for so long ends a connection */

void mfl_peer_set_socket(int fd)
{
        const int on = 1;
        const unsigned silent_ms = SILENT_MS;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
}

/* 0: there are events; MFL_NOT_FOUND: none until then; MFL_BUSY: cancelled. */
static int wait_for(int fd, short events, uint64_t until_ms, const atomic_bool *cancel)
{
        for (;;) {
                struct pollfd one = {fd, events, 0};
                if (poll(&one, 1, TURN_MS) > 0)
                        return 0;
                if (cancel && atomic_load(cancel))
                        return MFL_BUSY;
                if (mfl_now_ms() >= until_ms)
                        return MFL_NOT_FOUND;
        }
}

static int connect_one(
        const struct addrinfo *info, const atomic_bool *cancel, int *ret_fd, struct mfl_error *err)
{
        int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), number = 0;
        socklen_t bytes = sizeof number;
        if (fd < 0)
                return mfl_fail_errno(err, "a socket");
        mfl_peer_set_socket(fd);
        if (connect(fd, info->ai_addr, info->ai_addrlen) && errno != EINPROGRESS)
                number = errno;
        int r = number ? 0 : wait_for(fd, POLLOUT, mfl_now_ms() + CONNECT_MS, cancel);
        if (!r && !number)
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &bytes);
        if (!r && !number) {
                *ret_fd = fd;
                return 0;
        }
        close(fd);
        if (r == MFL_BUSY)
                return r;
        return r ? mfl_fail(err, PEER_OVER, "no answer within %u s; is there a firewall?", CONNECT_MS / 1000)
                 : mfl_fail(err, PEER_OVER, "%s", strerror(number));
}

static int connect_any(const char *address, const atomic_bool *cancel, int *ret_fd, struct mfl_error *err)
{
        char host[256], port[16];
        struct addrinfo *all, hints = {.ai_socktype = SOCK_STREAM};
        int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return PEER_OVER;
        r = getaddrinfo(host, port, &hints, &all);
        if (r)
                return mfl_fail(err, PEER_OVER, "%s", gai_strerror(r));
        r = PEER_OVER;
        for (const struct addrinfo *info = all; info && r == PEER_OVER; info = info->ai_next)
                r = connect_one(info, cancel, ret_fd, err);
        freeaddrinfo(all);
        return r;
}

static int greet(struct peer_greeting *greeting, struct peer_link *link, const atomic_bool *cancel,
        struct mfl_error *err)
{
        uint64_t until_ms = mfl_now_ms() + GREET_MS;
        for (;;) {
                int r = mfl_peer_greet(greeting, link, err);
                if (r != MFL_BUSY)
                        return r;
                r = wait_for(link->fd, (short)(POLLIN | (mfl_peer_link_busy(link) ? POLLOUT : 0)), until_ms,
                        cancel);
                if (r == MFL_NOT_FOUND)
                        return mfl_fail(err, PEER_OVER, "no greeting within %u s", GREET_MS / 1000);
                if (r)
                        return r;
        }
}

int mfl_peer_dial(const char *address, struct mfl_tls_context *context, struct peer_greeting *greeting,
        const atomic_bool *cancel, struct peer_link **ret_link, struct mfl_error *err)
{
        struct peer_link *link;
        int fd, r = mfl_peer_greeting_init(greeting, context, err);
        if (!r)
                r = connect_any(address, cancel, &fd, err);
        if (!r)
                r = mfl_peer_link_new(fd, context, &link, err);
        if (r)
                return r;
        r = greet(greeting, link, cancel, err);
        if (r)
                mfl_peer_link_free(link);
        else
                *ret_link = link;
        return r;
}
