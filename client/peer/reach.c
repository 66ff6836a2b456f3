/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to several daemons' ports at the same time, to learn whether they can be reached at all.
 *
 * An address that can't be resolved, refuses, or is silent for REACH_MS is one that can't be reached. */
#include "client/peer/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/mesh/mesh.h"
#include "proto/stream.h"

#define REACH_MS 3000u
#define TURN_MS 20
#define EACH_MAX 4u /* addresses of one name */

bool mfl_peer_same_host(const char *a, const char *b)
{
        char host[2][256], port[16];
        struct mfl_error err;
        if (!a || !b || mfl_address_parse(a, host[0], sizeof host[0], port, sizeof port, &err) ||
                mfl_address_parse(b, host[1], sizeof host[1], port, sizeof port, &err))
                return false;
        return *host[0] && !strcmp(host[0], host[1]);
}

static int begin_one(const struct addrinfo *info)
{
        int fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, info->ai_addr, info->ai_addrlen) && errno != EINPROGRESS) {
                close(fd);
                fd = -1;
        }
        return fd;
}

/* To all addresses that a name has. */
static void begin(const char *text, struct pollfd *fds)
{
        char host[256], port[16];
        struct addrinfo *all, hints = {.ai_socktype = SOCK_STREAM};
        struct mfl_error err;
        uint32_t n = 0;
        if (mfl_address_parse(text, host, sizeof host, port, sizeof port, &err) ||
                getaddrinfo(host, port, &hints, &all))
                return;
        for (const struct addrinfo *info = all; info && n < EACH_MAX; info = info->ai_next)
                fds[n++].fd = begin_one(info);
        freeaddrinfo(all);
}

static bool is_wanted(const char *const *address, uint32_t i, const char *without)
{
        if (!address[i] || !*address[i] || !strcmp(address[i], without))
                return false;
        for (uint32_t k = 0; k < i; k++)
                if (address[k] && !strcmp(address[k], address[i]))
                        return false;
        return true;
}

/* Whether it is at another host than `without`, and than those before it: ports of one host say the same of it, and all of them are closed
 * while it restarts. */
static bool is_other_host(const char *const *address, uint32_t i, const char *without)
{
        if (mfl_peer_same_host(address[i], without))
                return false;
        for (uint32_t k = 0; k < i; k++)
                if (address[k] && *address[k] && mfl_peer_same_host(address[k], address[i]))
                        return false;
        return true;
}

/* Whether a connection was made; closed with its end. */
static bool has_connected(struct pollfd *one)
{
        int number = 0;
        socklen_t bytes = sizeof number;
        if (one->fd < 0 || !one->revents)
                return false;
        getsockopt(one->fd, SOL_SOCKET, SO_ERROR, &number, &bytes);
        if (!number && one->revents & POLLOUT)
                return true;
        close(one->fd);
        one->fd = -1;
        return false;
}

uint32_t mfl_peer_reach(const char *const *address, uint32_t n, const char *without,
        const atomic_bool *cancel, uint32_t *ret_tried)
{
        struct pollfd fds[EACH_MAX * MFL_MESH_RANKS_MAX];
        uint32_t tried = 0, found = n, open = 0, n_fds = EACH_MAX * n;
        mfl_assert(n <= MFL_MESH_RANKS_MAX);
        for (uint32_t i = 0; i < n_fds; i++)
                fds[i] = (struct pollfd){.fd = -1, .events = POLLOUT};
        for (uint32_t i = 0; i < n; i++) {
                if (!is_wanted(address, i, without))
                        continue;
                tried += is_other_host(address, i, without);
                begin(address[i], &fds[EACH_MAX * i]);
        }
        for (uint32_t i = 0; i < n_fds; i++)
                open += fds[i].fd >= 0;
        uint64_t end_ms = mfl_now_ms() + REACH_MS;
        while (open && found == n && mfl_now_ms() < end_ms && !(cancel && atomic_load(cancel))) {
                poll(fds, n_fds, TURN_MS);
                open = 0;
                for (uint32_t i = n_fds; i-- > 0;) {
                        found = has_connected(&fds[i]) ? i / EACH_MAX : found;
                        open += fds[i].fd >= 0;
                }
        }
        for (uint32_t i = 0; i < n_fds; i++)
                if (fds[i].fd >= 0)
                        close(fds[i].fd);
        *ret_tried = tried;
        return found;
}
