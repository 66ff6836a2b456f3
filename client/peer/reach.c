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

/* -1: it can't be reached. */
static int begin(const char *text)
{
        char host[256], port[16];
        struct addrinfo *all, hints = {.ai_socktype = SOCK_STREAM};
        struct mfl_error err;
        if (mfl_address_parse(text, host, sizeof host, port, sizeof port, &err) ||
                getaddrinfo(host, port, &hints, &all))
                return -1;
        int fd = socket(all->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, all->ai_addr, all->ai_addrlen) && errno != EINPROGRESS) {
                close(fd);
                fd = -1;
        }
        freeaddrinfo(all);
        return fd;
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
        struct pollfd fds[MFL_MESH_RANKS_MAX];
        uint32_t tried = 0, found = n, open = 0;
        mfl_assert(n <= MFL_MESH_RANKS_MAX);
        for (uint32_t i = 0; i < n; i++) {
                bool wanted = is_wanted(address, i, without);
                tried += wanted;
                fds[i] = (struct pollfd){.fd = wanted ? begin(address[i]) : -1, .events = POLLOUT};
                open += fds[i].fd >= 0;
        }
        uint64_t end_ms = mfl_now_ms() + REACH_MS;
        while (open && found == n && mfl_now_ms() < end_ms && !(cancel && atomic_load(cancel))) {
                poll(fds, n, TURN_MS);
                open = 0;
                for (uint32_t i = n; i-- > 0;) {
                        found = has_connected(&fds[i]) ? i : found;
                        open += fds[i].fd >= 0;
                }
        }
        for (uint32_t i = 0; i < n; i++)
                if (fds[i].fd >= 0)
                        close(fds[i].fd);
        *ret_tried = tried;
        return found;
}
