/* SPDX-License-Identifier: Apache-2.0 */
/* Open-loop load for an HTTP server: requests arrive by a Poisson process of a given rate, whether or not earlier ones were answered, and the
 * latency of each is measured from its planned arrival. So a server that stalls is charged for all who would have come meanwhile
 * ("coordinated omission" is what closed-loop generators such as wrk have instead).
 *
 *     arrivals HOST:PORT PATH --rate 2000 --seconds 10 [--warm 1] [--connections 64] [--seed 1] [--body FILE] [--json-bytes N] [--bearer KEY]
 *
 * HTTP/1.1 with keep-alive, one request at a time per connection; an arrival with no free connection waits for one, which counts. --json-bytes: the
 * header of Triton's binary tensors. Prints one line of JSON; exits 1 if the server can't be reached.
 */
#include <math.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "common/base/base.h"
#include "common/base/fs.h"

#define CONNECTIONS_MAX 4096
#define READ_BYTES (1u << 16)
#define GRACE_NS 5000000000ull /* for answers, after the last arrival */

struct connection {
        uv_tcp_t tcp;
        uint64_t planned_ns; /* of the request under way */
        char head[2048];
        size_t head_bytes, body_left;
        bool in_body, busy, open, fine;
};

static struct {
        uv_loop_t loop;
        struct sockaddr_storage address;
        struct connection *connections;
        uint32_t n_connections, n_free, n_open;
        uint32_t free[CONNECTIONS_MAX];
        uv_poll_t clock;
        int clock_fd;
        double rate;
        uint64_t begin_ns, warm_ns, end_ns, next_ns, state;
        uint64_t *waiting; /* planned arrivals without a connection: a ring */
        size_t ring, first, n_waiting;
        char *request, in[READ_BYTES];
        size_t request_bytes;
        uint64_t *latency_ns; /* of those after the warm-up */
        size_t n, room, planned, failed, other, last_answered;
        bool stopping;
} g;

static void fail(const char *what, int r)
{
        fprintf(stderr, "arrivals: %s: %s\n", what, r < 0 ? uv_strerror(r) : "failed");
        exit(1);
}

/* ---- arrivals ---- */

/* An exponential interval, in nanoseconds; SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t draw(void)
{
        uint64_t z = g.state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        const double u = ((double)((z ^ (z >> 31)) >> 11) + 0.5) * 0x1p-53;
        return (uint64_t)(-log(u) / g.rate * 1e9);
}

static void arm(uint64_t at_ns)
{
        const struct itimerspec when = {
                .it_value = {.tv_sec = (time_t)(at_ns / 1000000000), .tv_nsec = (long)(at_ns % 1000000000)}};
        timerfd_settime(g.clock_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void begin_request(struct connection *c, uint64_t planned_ns);

static void serve_waiting(void)
{
        while (g.n_waiting && g.n_free) {
                const uint64_t planned = g.waiting[g.first];
                g.first = (g.first + 1) % g.ring;
                g.n_waiting--;
                begin_request(&g.connections[g.free[--g.n_free]], planned);
        }
}

static void arrive(uint64_t planned_ns)
{
        g.planned += planned_ns >= g.warm_ns;
        if (g.n_waiting == g.ring)
                fail("more arrivals wait than memory was set aside for", 1);
        g.waiting[(g.first + g.n_waiting++) % g.ring] = planned_ns;
        serve_waiting();
}

static void on_clock(uv_poll_t *poll, int status, int events)
{
        uint64_t expired;
        const uint64_t now = mfl_now_ns();
        if (read(g.clock_fd, &expired, sizeof expired) < 0)
                return;
        while (g.next_ns <= now && g.next_ns < g.end_ns) {
                arrive(g.next_ns);
                g.next_ns += draw();
        }
        if (g.next_ns < g.end_ns)
                arm(g.next_ns);
        else if (!g.stopping && now < g.end_ns)
                arm(g.end_ns);
        else if (now >= g.end_ns + GRACE_NS || (now >= g.end_ns && !g.n_waiting && g.n_free == g.n_open))
                uv_stop(&g.loop);
        else
                arm(now + 10000000);
}

/* ---- answers ---- */

static void note(struct connection *c)
{
        if (c->planned_ns < g.warm_ns)
                return;
        g.failed += !c->fine;
        if (c->fine && g.n < g.room)
                g.latency_ns[g.n++] = mfl_now_ns() - c->planned_ns;
        g.last_answered = mfl_now_ns();
}

static void finish(struct connection *c)
{
        note(c);
        c->busy = c->in_body = false;
        c->head_bytes = 0;
        g.free[g.n_free++] = (uint32_t)(c - g.connections);
        serve_waiting();
}

static size_t take_head(struct connection *c, const char *bytes, size_t n)
{
        const size_t before = c->head_bytes, some = MFL_MIN(n, sizeof c->head - 1 - before);
        memcpy(c->head + before, bytes, some);
        c->head_bytes += some;
        c->head[c->head_bytes] = '\0';
        char *end = memmem(c->head, c->head_bytes, "\r\n\r\n", 4);
        if (!end) {
                if (c->head_bytes == sizeof c->head - 1)
                        fail("an answer's head is too long", 1);
                return some;
        }
        const size_t used = (size_t)(end + 4 - c->head) - before;
        end[2] = '\0';
        const char *length = strcasestr(c->head, "\r\ncontent-length:");
        c->fine = !strncmp(c->head, "HTTP/1.1 200", 12);
        c->body_left = length ? strtoull(length + 17, NULL, 10) : 0;
        c->in_body = true;
        return used;
}

static void on_closed(uv_handle_t *handle)
{
}

static void forget_free(const struct connection *c)
{
        for (uint32_t i = 0; i < g.n_free; i++)
                if (&g.connections[g.free[i]] == c) {
                        g.free[i] = g.free[--g.n_free];
                        return;
                }
}

static void lose(struct connection *c)
{
        if (c->busy) {
                c->fine = false;
                note(c);
        } else {
                forget_free(c);
        }
        c->busy = c->open = false;
        g.n_open--;
        g.other++;
        uv_close((uv_handle_t *)&c->tcp, on_closed);
        if (!g.n_open)
                uv_stop(&g.loop);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
        *buf = uv_buf_init(g.in, sizeof g.in);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct connection *c = stream->data;
        const char *at = buf->base;
        if (n < 0) {
                lose(c);
                return;
        }
        while (n > 0 && c->busy) {
                size_t used;
                if (c->in_body) {
                        used = MFL_MIN((size_t)n, c->body_left);
                        c->body_left -= used;
                } else {
                        used = take_head(c, at, (size_t)n);
                }
                at += used;
                n -= (ssize_t)used;
                if (c->in_body && !c->body_left)
                        finish(c);
        }
}

/* ---- requests ---- */

static void begin_request(struct connection *c, uint64_t planned_ns)
{
        uv_buf_t buf = uv_buf_init(g.request, (unsigned)g.request_bytes);
        c->planned_ns = planned_ns;
        c->busy = true;
        /* A request fits into a socket's buffer, and the one before was answered. */
        const int sent = uv_try_write((uv_stream_t *)&c->tcp, &buf, 1);
        if (sent < 0)
                lose(c);
        else if ((size_t)sent != g.request_bytes)
                fail("a request is larger than the socket's buffer", 1);
}

static void on_connected(uv_connect_t *connect, int status)
{
        struct connection *c = connect->data;
        free(connect);
        if (status)
                fail("connect", status);
        c->open = true;
        uv_tcp_nodelay(&c->tcp, 1);
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
        g.free[g.n_free++] = (uint32_t)(c - g.connections);
        if (++g.n_open < g.n_connections)
                return;
        const uint64_t length = g.end_ns, warm = g.warm_ns;
        g.begin_ns = mfl_now_ns();
        g.warm_ns = g.begin_ns + warm;
        g.end_ns = g.begin_ns + length;
        g.next_ns = g.begin_ns + draw();
        arm(g.next_ns);
}

static void connect_all(void)
{
        for (uint32_t i = 0; i < g.n_connections; i++) {
                struct connection *c = &g.connections[i];
                uv_connect_t *connect = mfl_calloc(1, sizeof *connect);
                uv_tcp_init(&g.loop, &c->tcp);
                c->tcp.data = connect->data = c;
                const int r = uv_tcp_connect(connect, &c->tcp, (struct sockaddr *)&g.address, on_connected);
                if (r)
                        fail("connect", r);
        }
}

/* ---- options and the report ---- */

static const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
        for (int i = 3; i + 1 < argc; i += 2)
                if (!strcmp(argv[i] + 2, name))
                        return argv[i + 1];
        return otherwise;
}

static void make_request(int argc, char **argv)
{
        const char *file = option(argc, argv, "body", ""), *json = option(argc, argv, "json-bytes", ""),
                   *bearer = option(argc, argv, "bearer", "");
        char *body = NULL, *head;
        size_t bytes = 0;
        struct mfl_error err;
        if (*file && mfl_fs_read(file, 64u << 20, &body, &bytes, &err)) {
                fprintf(stderr, "arrivals: %s\n", err.text);
                exit(1);
        }
        head = mfl_asprintf("%s %s HTTP/1.1\r\nHost: %s\r\n%s%s%s%s%s%sContent-Type: "
                            "application/json\r\nContent-Length: %zu\r\n\r\n",
                *file ? "POST" : "GET", argv[2], argv[1], *json ? "Inference-Header-Content-Length: " : "",
                json, *json ? "\r\n" : "", *bearer ? "Authorization: Bearer " : "", bearer,
                *bearer ? "\r\n" : "", bytes);
        const size_t n = strlen(head);
        g.request = mfl_malloc(n + bytes);
        memcpy(g.request, head, n);
        if (bytes)
                memcpy(g.request + n, body, bytes);
        g.request_bytes = n + bytes;
        free(head);
        free(body);
}

static int compare(const void *a, const void *b)
{
        const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static double quantile_ms(double share)
{
        return g.n ? (double)g.latency_ns[MFL_MIN((size_t)(share * (double)g.n), g.n - 1)] / 1e6 : NAN;
}

static void report(void)
{
        qsort(g.latency_ns, g.n, sizeof *g.latency_ns, compare);
        const double seconds = (double)(MFL_MAX((uint64_t)g.last_answered, g.end_ns) - g.warm_ns) / 1e9;
        printf("{\"rate\": %.1f, \"planned\": %zu, \"answered\": %zu, \"failed\": %zu, \"lost\": %zu, "
               "\"answers_per_second\": %.1f",
                g.rate, g.planned, g.n, g.failed, g.other, (double)g.n / seconds);
        if (g.n)
                printf(", \"p50_ms\": %.3f, \"p90_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f, "
                       "\"max_ms\": %.3f",
                        quantile_ms(0.5), quantile_ms(0.9), quantile_ms(0.99), quantile_ms(0.999),
                        quantile_ms(1));
        puts("}");
}

int main(int argc, char **argv)
{
        char host[256];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM};
        const char *colon = argc > 2 ? strrchr(argv[1], ':') : NULL;
        if (!colon || (argc - 3) % 2) {
                fprintf(stderr, "usage: arrivals HOST:PORT PATH --rate R --seconds S [--warm S] "
                                "[--connections N] [--seed N] [--body FILE] "
                                "[--json-bytes N] [--bearer KEY]\n");
                return 2;
        }
        g.rate = strtod(option(argc, argv, "rate", "1000"), NULL);
        const double seconds = strtod(option(argc, argv, "seconds", "5"), NULL),
                     warm = strtod(option(argc, argv, "warm", "1"), NULL);
        g.n_connections = MFL_MIN((uint32_t)atoi(option(argc, argv, "connections", "64")), CONNECTIONS_MAX);
        g.state = strtoull(option(argc, argv, "seed", "1"), NULL, 10);
        g.warm_ns = (uint64_t)(warm * 1e9);
        g.end_ns = (uint64_t)((warm + seconds) * 1e9);
        g.room = g.ring = (size_t)(g.rate * (warm + seconds) * 1.5) + 1000;
        g.latency_ns = mfl_calloc(g.room, sizeof *g.latency_ns);
        g.waiting = mfl_calloc(g.ring, sizeof *g.waiting);
        g.connections = mfl_calloc(g.n_connections, sizeof *g.connections);
        make_request(argc, argv);
        mfl_snprintf(host, sizeof host, "%.*s", (int)(colon - argv[1]), argv[1]);
        if (getaddrinfo(host, colon + 1, &hints, &info))
                fail(argv[1], 1);
        memcpy(&g.address, info->ai_addr, info->ai_addrlen);
        freeaddrinfo(info);
        uv_loop_init(&g.loop);
        g.clock_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        uv_poll_init(&g.loop, &g.clock, g.clock_fd);
        uv_poll_start(&g.clock, UV_READABLE, on_clock);
        connect_all();
        uv_run(&g.loop, UV_RUN_DEFAULT);
        report();
        return g.n ? 0 : 1;
}
