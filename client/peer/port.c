/* SPDX-License-Identifier: Apache-2.0 */
/* The port where daemons reach this one.
 *
 * Happy path: accept -> greet (greeting.h), beside the others, never blocking -> the meeting that waits for that rank.
 * Fails by: whoever is no rank of a team that meets here, says nothing for GREET_MS, or is the oldest of too many at a time.
 * Their connections are closed, and a line in the log says why, at most one a second. */
#include "client/peer/port.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/peer/greeting.h"
#include "common/base/log.h"
#include "proto/stream.h"

#define BACKLOG 256
#define GUESTS_MAX 64u
#define GREET_MS 10000u
#define LOG_MS 1000u

/* Who has connected, and is not greeted yet. */
struct guest {
        struct peer_link *link;
        struct peer_greeting greeting;
        uint64_t since_ms;
        char address[80];
};

struct mfl_peer_port {
        int fd, wake;
        char address[MFL_PEER_BYTES];
        char ca[1024], cert[1024], key[1024];
        bool tls;
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t came;
        /* Under the lock. */
        bool stop;
        struct mfl_tls_context *context; /* of the server's side; NULL: plain */
        struct peer_meeting *meetings;
        /* Of the thread alone. */
        struct guest guest[GUESTS_MAX];
        uint32_t n_guests;
        uint64_t logged_ms;
};

/* ---- meetings ---- */

static struct mfl_tls_files files_of(const struct mfl_peer_port *port)
{
        return (struct mfl_tls_files){.ca = port->ca, .cert = port->cert, .key = port->key};
}

void mfl_peer_port_expect(struct mfl_peer_port *port, struct peer_meeting *meeting)
{
        const struct mfl_tls_files files = files_of(port);
        struct mfl_tls_context *context = NULL;
        struct mfl_error err;
        if (port->tls && mfl_tls_context_new_peer(&files, true, &context, &err))
                mfl_log(MFL_LOG_WARN, "peers: %s", err.text);
        pthread_mutex_lock(&port->lock);
        if (context) {
                mfl_tls_context_unref(port->context);
                port->context = context;
        }
        meeting->next = port->meetings;
        port->meetings = meeting;
        pthread_mutex_unlock(&port->lock);
}

void mfl_peer_port_leave(struct mfl_peer_port *port, struct peer_meeting *meeting)
{
        pthread_mutex_lock(&port->lock);
        struct peer_meeting **at = &port->meetings;
        while (*at && *at != meeting)
                at = &(*at)->next;
        if (*at)
                *at = meeting->next;
        pthread_mutex_unlock(&port->lock);
        for (uint32_t r = 0; r < MFL_MESH_RANKS_MAX; r++) {
                mfl_peer_link_free(meeting->link[r]);
                meeting->link[r] = NULL;
        }
}

struct peer_link *mfl_peer_port_take(
        struct mfl_peer_port *port, struct peer_meeting *meeting, uint32_t rank, uint32_t wait_ms)
{
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)wait_ms * 1000000;
        until.tv_sec += (time_t)(ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
        pthread_mutex_lock(&port->lock);
        while (!meeting->link[rank] && !pthread_cond_timedwait(&port->came, &port->lock, &until))
                ;
        struct peer_link *link = meeting->link[rank];
        meeting->link[rank] = NULL;
        pthread_mutex_unlock(&port->lock);
        return link;
}

static struct peer_meeting *find(
        const struct mfl_peer_port *port, uint64_t team, uint32_t epoch, uint32_t rank)
{
        struct peer_meeting *m = port->meetings;
        while (m && (m->team != team || m->epoch != epoch || m->rank != rank))
                m = m->next;
        return m;
}

/* Whether the link found its meeting, which owns it then. */
static bool place(struct mfl_peer_port *port, uint64_t team, uint32_t epoch, uint32_t to, uint32_t from,
        struct peer_link *link)
{
        pthread_mutex_lock(&port->lock);
        struct peer_meeting *meeting = find(port, team, epoch, to);
        bool fits = meeting && from < meeting->n_ranks && !meeting->link[from];
        if (fits) {
                meeting->link[from] = link;
                pthread_cond_broadcast(&port->came);
        }
        pthread_mutex_unlock(&port->lock);
        return fits;
}

int mfl_peer_port_bring(struct mfl_peer_port *port, const struct peer_meeting *own, uint32_t to, int fd,
        struct mfl_error *err)
{
        struct peer_link *link;
        int r = mfl_peer_link_new(fd, NULL, &link, err);
        if (r || place(port, own->team, own->epoch, to, own->rank, link))
                return r;
        mfl_peer_link_free(link);
        return MFL_BUSY;
}

int mfl_peer_port_client_tls(
        struct mfl_peer_port *port, struct mfl_tls_context **ret_context, struct mfl_error *err)
{
        const struct mfl_tls_files files = files_of(port);
        *ret_context = NULL;
        return port->tls ? mfl_tls_context_new_peer(&files, false, ret_context, err) : 0;
}

/* ---- guests ---- */

static bool is_expected(void *user, struct peer_greeting *greeting)
{
        struct mfl_peer_port *port = user;
        pthread_mutex_lock(&port->lock);
        const struct peer_meeting *m = find(port, greeting->team, greeting->epoch, greeting->rank);
        bool fits = m && m->n_ranks == greeting->n_ranks && greeting->other < m->n_ranks &&
                    !m->link[greeting->other];
        if (fits)
                memcpy(greeting->key, m->key, sizeof greeting->key);
        pthread_mutex_unlock(&port->lock);
        return fits;
}

static void say(struct mfl_peer_port *port, const struct guest *guest, const char *why)
{
        uint64_t now_ms = mfl_now_ms();
        if (now_ms - port->logged_ms < LOG_MS)
                return;
        port->logged_ms = now_ms;
        mfl_log(MFL_LOG_WARN, "peers: %s is turned away: %s", guest->address, why);
}

static void drop(struct mfl_peer_port *port, uint32_t i)
{
        mfl_peer_link_free(port->guest[i].link);
        port->guest[i] = port->guest[--port->n_guests];
}

static void drop_oldest(struct mfl_peer_port *port)
{
        uint32_t oldest = 0;
        for (uint32_t i = 1; i < port->n_guests; i++)
                if (port->guest[i].since_ms < port->guest[oldest].since_ms)
                        oldest = i;
        say(port, &port->guest[oldest], "too many connections at a time");
        drop(port, oldest);
}

static void welcome(struct mfl_peer_port *port, int fd, const struct sockaddr_storage *from)
{
        if (port->n_guests == GUESTS_MAX)
                drop_oldest(port);
        struct guest *guest = &port->guest[port->n_guests];
        struct mfl_error err;
        *guest = (struct guest){.since_ms = mfl_now_ms(), .greeting = {.knows = is_expected, .user = port}};
        char host[64] = "?", number[16] = "?";
        getnameinfo((const struct sockaddr *)from, sizeof *from, host, sizeof host, number, sizeof number,
                NI_NUMERICHOST | NI_NUMERICSERV);
        snprintf(
                guest->address, sizeof guest->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, number);
        pthread_mutex_lock(&port->lock);
        struct mfl_tls_context *context = port->context ? mfl_tls_context_ref(port->context) : NULL;
        pthread_mutex_unlock(&port->lock);
        int r = mfl_peer_greeting_init(&guest->greeting, context, &err);
        if (r)
                close(fd);
        else
                r = mfl_peer_link_new(fd, context, &guest->link, &err);
        mfl_tls_context_unref(context);
        if (r)
                say(port, guest, err.text);
        else
                port->n_guests++;
}

static void accept_all(struct mfl_peer_port *port)
{
        for (;;) {
                struct sockaddr_storage from = {0};
                socklen_t n = sizeof from;
                int fd = accept4(port->fd, (struct sockaddr *)&from, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (fd < 0)
                        return;
                welcome(port, fd, &from);
        }
}

/* Whether the guest is still one. */
static bool greet(struct mfl_peer_port *port, struct guest *guest)
{
        struct mfl_error err;
        const struct peer_greeting *g = &guest->greeting;
        int r = mfl_peer_greet(&guest->greeting, guest->link, &err);
        if (r == MFL_BUSY && mfl_now_ms() - guest->since_ms < GREET_MS)
                return true;
        if (!r && place(port, g->team, g->epoch, g->rank, g->other, guest->link))
                guest->link = NULL;
        else if (r != PEER_LATER) /* that is usual: it comes again */
                say(port, guest,
                        r == MFL_BUSY ? "no greeting within 10 s"
                        : r           ? err.text
                                      : "its team has gone");
        return false;
}

static void *attend(void *arg)
{
        struct mfl_peer_port *port = arg;
        for (;;) {
                struct pollfd fds[2 + GUESTS_MAX] = {{port->wake, POLLIN, 0}, {port->fd, POLLIN, 0}};
                uint32_t n = port->n_guests;
                for (uint32_t i = 0; i < n; i++)
                        fds[2 + i] = (struct pollfd){port->guest[i].link->fd,
                                (short)(POLLIN | (mfl_peer_link_busy(port->guest[i].link) ? POLLOUT : 0)), 0};
                poll(fds, 2 + n, n ? 100 : -1);
                pthread_mutex_lock(&port->lock);
                bool stop = port->stop;
                pthread_mutex_unlock(&port->lock);
                if (stop)
                        return NULL;
                for (uint32_t i = n; i-- > 0;)
                        if (!greet(port, &port->guest[i]))
                                drop(port, i);
                if (fds[1].revents)
                        accept_all(port);
        }
}

/* ---- opening ---- */

static bool is_wildcard(const struct sockaddr *address)
{
        if (address->sa_family == AF_INET)
                return !((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr;
        return address->sa_family == AF_INET6 &&
               IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
}

static int check_address(
        const struct mfl_peer_port_options *o, const struct sockaddr *address, struct mfl_error *err)
{
        if (!o->tls.ca && !mfl_address_is_loopback(address))
                return mfl_fail(err, MFL_INVALID,
                        "peer_listen: %s is not a loopback address, and no TLS is configured: anyone who can "
                        "reach the port could read gradients; set tls_ca, tls_cert and tls_key, or listen on "
                        "127.0.0.1",
                        o->listen);
        if (is_wildcard(address) && (!o->address || !*o->address))
                return mfl_fail(err, MFL_INVALID,
                        "peer_listen: %s is every address of this host; say in peer_address by which of them "
                        "others reach it, such as node7.example.org",
                        o->listen);
        return 0;
}

/* peer_address, or the listening host, with the port that is listened on unless the former has one. */
static int name_port(struct mfl_peer_port *port, const struct mfl_peer_port_options *o, const char *host,
        struct mfl_error *err)
{
        struct sockaddr_storage bound = {0};
        socklen_t n = sizeof bound;
        char name[256], number[16], own[16];
        if (getsockname(port->fd, (struct sockaddr *)&bound, &n))
                return mfl_fail_errno(err, "peer_listen: %s", o->listen);
        snprintf(own, sizeof own, "%u",
                ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)(void *)&bound)->sin_port));
        mfl_strcpy(name, sizeof name, host);
        mfl_strcpy(number, sizeof number, own);
        if (o->address && *o->address) {
                int r = mfl_address_parse(o->address, name, sizeof name, number, sizeof number, err);
                if (r)
                        return r;
                const char *after = strrchr(o->address, ']');
                if (!strchr(after ? after : o->address, ':'))
                        mfl_strcpy(number, sizeof number, own);
        }
        int length = snprintf(
                port->address, sizeof port->address, strchr(name, ':') ? "[%s]:%s" : "%s:%s", name, number);
        if ((size_t)length >= sizeof port->address)
                return mfl_fail(
                        err, MFL_INVALID, "peer_address: more than %zu characters", sizeof port->address - 1);
        return 0;
}

static int listen_at(struct mfl_peer_port *port, const struct mfl_peer_port_options *o, struct mfl_error *err)
{
        char host[256], number[16];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
        int r = mfl_address_parse(o->listen, host, sizeof host, number, sizeof number, err), on = 1;
        if (r)
                return r;
        r = getaddrinfo(*host ? host : NULL, number, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_INVALID, "peer_listen: %s: %s", o->listen, gai_strerror(r));
        r = check_address(o, info->ai_addr, err);
        if (!r) {
                port->fd = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
                if (port->fd < 0)
                        r = mfl_fail_errno(err, "peer_listen: a socket");
                else {
                        setsockopt(port->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
                        if (bind(port->fd, info->ai_addr, info->ai_addrlen) || listen(port->fd, BACKLOG))
                                r = mfl_fail(err, MFL_INVALID, "peer_listen: %s: %s%s", o->listen,
                                        strerror(errno),
                                        errno == EADDRINUSE
                                                ? "; each daemon of a host needs a port of its own, or "
                                                  "port 0, any free one"
                                                : "");
                }
        }
        freeaddrinfo(info);
        return r ? r : name_port(port, o, host, err);
}

static int open_tls(struct mfl_peer_port *port, const struct mfl_peer_port_options *o, struct mfl_error *err)
{
        if (!o->tls.ca)
                return 0;
        port->tls = true;
        mfl_strcpy(port->ca, sizeof port->ca, o->tls.ca);
        mfl_strcpy(port->cert, sizeof port->cert, o->tls.cert);
        mfl_strcpy(port->key, sizeof port->key, o->tls.key);
        return mfl_tls_context_new_peer(&o->tls, true, &port->context, err);
}

static int start(struct mfl_peer_port *port, struct mfl_error *err)
{
        pthread_condattr_t monotonic;
        port->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (port->wake < 0)
                return mfl_fail_errno(err, "peer_listen: eventfd");
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&port->lock, NULL);
        pthread_cond_init(&port->came, &monotonic);
        pthread_condattr_destroy(&monotonic);
        int r = pthread_create(&port->thread, NULL, attend, port);
        if (!r)
                return 0;
        pthread_mutex_destroy(&port->lock);
        pthread_cond_destroy(&port->came);
        return mfl_fail(err, -r, "peer_listen: a thread: %s", strerror(r));
}

static void release(struct mfl_peer_port *port)
{
        mfl_tls_context_unref(port->context);
        if (port->fd >= 0)
                close(port->fd);
        if (port->wake >= 0)
                close(port->wake);
        free(port);
}

int mfl_peer_port_open(
        const struct mfl_peer_port_options *options, struct mfl_peer_port **ret_port, struct mfl_error *err)
{
        struct mfl_peer_port *port = mfl_calloc(1, sizeof *port);
        if (!port)
                return mfl_fail_memory(err, sizeof *port, "the port of peers");
        port->fd = port->wake = -1;
        int r = open_tls(port, options, err);
        if (!r)
                r = listen_at(port, options, err);
        if (!r)
                r = start(port, err);
        if (r)
                release(port);
        else
                *ret_port = port;
        return r;
}

const char *mfl_peer_port_address(const struct mfl_peer_port *port)
{
        return port->address;
}

void mfl_peer_port_close(struct mfl_peer_port *port)
{
        if (!port)
                return;
        pthread_mutex_lock(&port->lock);
        mfl_assert(!port->meetings);
        port->stop = true;
        pthread_mutex_unlock(&port->lock);
        const uint64_t one = 1;
        while (write(port->wake, &one, sizeof one) < 0 && errno == EINTR)
                ;
        pthread_join(port->thread, NULL);
        while (port->n_guests)
                drop(port, 0);
        pthread_mutex_destroy(&port->lock);
        pthread_cond_destroy(&port->came);
        release(port);
}
