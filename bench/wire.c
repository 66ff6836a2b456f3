/* SPDX-License-Identifier: Apache-2.0 */
/* GB/s of frames over loopback through the real stream code, checksums made and checked, without TLS and with
 * it, beside plain read and write of the same sizes in the same run. One sender process, one receiver; median
 * of the repetitions. The certificate is made by the `openssl` program; without it the columns of TLS are
 * empty. bench_wire [GiB per repetition] [repetitions]
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/stream.h"

struct run {
        uv_loop_t loop;
        uv_tcp_t listener;
        struct mfl_stream stream;
        size_t chunk, total, moved;
        uint64_t start_ns, end_ns;
        uint8_t *memory;
        unsigned in_flight;
        struct mfl_tls_context *tls; /* NULL: plain */
};
static char cert_dir[] = "/tmp/mfl-bench-wire-XXXXXX";

static void check(int ok, const char *what)
{
        if (ok)
                return;
        fprintf(stderr, "bench_wire: %s failed\n", what);
        exit(1);
}

static uint8_t *touched(size_t n)
{
        uint8_t *p = mfl_alloc_aligned(n);
        check(p != NULL, "memory");
        memset(p, 0x5a, n);
        return p;
}

static int on_payload(
        struct mfl_stream *s, const Mfl__Envelope *e, size_t n, void **ret_dst, struct mfl_error *err)
{
        struct run *r = s->owner;
        if (!r->start_ns)
                r->start_ns = mfl_now_ns();
        *ret_dst = r->memory + r->moved % ((size_t)64 << 20);
        return 0;
}

static int on_frame(
        struct mfl_stream *s, const Mfl__Envelope *e, void *payload, size_t n, struct mfl_error *err)
{
        struct run *r = s->owner;
        r->moved += n;
        if (r->moved >= r->total) {
                r->end_ns = mfl_now_ns();
                mfl_stream_close(s, NULL, false);
        }
        return 0;
}

static void on_closed(struct mfl_stream *s, const char *reason)
{
        struct run *r = s->owner;
        if (r->moved < r->total)
                fprintf(stderr, "bench_wire: closed after %zu bytes: %s\n", r->moved, reason);
}

static void send_some(struct run *r);

static void on_sent(struct mfl_stream *s, int status, void *arg)
{
        struct run *r = arg;
        r->in_flight--;
        if (!status)
                send_some(r);
}

static void send_some(struct run *r)
{
        Mfl__Envelope e = MFL__ENVELOPE__INIT;
        Mfl__Chunk c = MFL__CHUNK__INIT;
        e.body_case = MFL__ENVELOPE__BODY_CHUNK;
        e.chunk = &c;
        unsigned limit = (unsigned)MFL_MAX((size_t)2, ((size_t)4 << 20) / r->chunk);
        while (r->moved < r->total && r->in_flight < limit) {
                const uint8_t *p = r->memory + r->moved % ((size_t)64 << 20);
                c.offset = r->moved;
                if (mfl_stream_send(&r->stream, &e, p, r->chunk, NULL, on_sent, r, NULL))
                        return;
                r->in_flight++;
                r->moved += r->chunk;
        }
}

static void on_connected(struct mfl_stream *s, int status, const char *text)
{
        check(!status, text);
        send_some(s->owner);
}

static const struct mfl_stream_ops ops = {on_payload, on_frame, on_closed, on_connected};

static void on_connection(uv_stream_t *listener, int status)
{
        struct run *r = listener->data;
        check(!mfl_stream_init(&r->stream, &r->loop, &ops, r, NULL), "init");
        r->stream.payload_max = MFL_PAYLOAD_MAX;
        check(!r->tls || !mfl_stream_tls(&r->stream, r->tls, NULL), "TLS");
        mfl_stream_accept(&r->stream, listener);
        uv_close((uv_handle_t *)listener, NULL);
}

/* One certificate serves both sides, and is its own CA. NULL: plain. */
static struct mfl_tls_context *context(bool tls, bool server)
{
        char cert[64], key[64];
        struct mfl_tls_context *c;
        struct mfl_error err;
        if (!tls)
                return NULL;
        snprintf(cert, sizeof cert, "%s/c.pem", cert_dir);
        snprintf(key, sizeof key, "%s/k.pem", cert_dir);
        struct mfl_tls_files files = {.ca = cert, .cert = cert, .key = key};
        check(!mfl_tls_context_new(&files, server, &c, &err), err.text);
        return c;
}

static bool make_cert(void)
{
        char command[512];
        if (!mkdtemp(cert_dir))
                return false;
        snprintf(command, sizeof command,
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout %s/k.pem -out "
                "%s/c.pem "
                "-days 2 -subj /CN=bench -addext subjectAltName=IP:127.0.0.1 >/dev/null 2>&1 && chmod 600 "
                "%s/k.pem",
                cert_dir, cert_dir, cert_dir);
        return !system(command);
}

static void remove_cert(void)
{
        char command[128];
        snprintf(command, sizeof command, "rm -r %s", cert_dir);
        if (system(command))
                fprintf(stderr, "bench_wire: %s was not removed\n", cert_dir);
}

/* What a transfer took: GB a second, and seconds of processor for each GB on either side, which other work on
 * the machine blurs less. */
struct took {
        double rate, send_cpu, receive_cpu;
};

static double cpu_s(int who)
{
        struct rusage u;
        getrusage(who, &u);
        return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static struct took frames(size_t chunk, size_t total, bool tls)
{
        struct run r = {.chunk = chunk, .total = total, .memory = touched((size_t)64 << 20)};
        double send_cpu = cpu_s(RUSAGE_CHILDREN), receive_cpu = cpu_s(RUSAGE_SELF);
        struct sockaddr_in addr;
        int n = sizeof addr;
        char address[32];
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        uv_ip4_addr("127.0.0.1", 0, &addr);
        check(fd >= 0 && !bind(fd, (struct sockaddr *)&addr, sizeof addr) && !listen(fd, 1), "listen");
        getsockname(fd, (struct sockaddr *)&addr, (socklen_t *)&n);
        pid_t pid = fork();
        uv_loop_init(&r.loop);
        if (!pid) {
                snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(addr.sin_port));
                check(!mfl_stream_init(&r.stream, &r.loop, &ops, &r, NULL), "init");
                r.tls = context(tls, false);
                check(!r.tls || !mfl_stream_tls(&r.stream, r.tls, NULL), "TLS");
                check(!mfl_stream_connect(&r.stream, address, NULL), "connect");
                uv_run(&r.loop, UV_RUN_DEFAULT);
                _exit(0);
        }
        uv_tcp_init(&r.loop, &r.listener);
        r.listener.data = &r;
        r.tls = context(tls, true);
        uv_tcp_open(&r.listener, fd);
        check(!uv_listen((uv_stream_t *)&r.listener, 1, on_connection), "listen");
        uv_run(&r.loop, UV_RUN_DEFAULT);
        waitpid(pid, NULL, 0);
        uv_loop_close(&r.loop);
        mfl_tls_context_unref(r.tls);
        free(r.memory);
        check(r.end_ns > r.start_ns, "transfer");
        return (struct took){
                .rate = (double)total / (double)(r.end_ns - r.start_ns),
                .send_cpu = (cpu_s(RUSAGE_CHILDREN) - send_cpu) * 1e9 / (double)total,
                .receive_cpu = (cpu_s(RUSAGE_SELF) - receive_cpu) * 1e9 / (double)total,
        };
}

static double plain(size_t chunk, size_t total)
{
        uint8_t *memory = touched((size_t)64 << 20);
        struct sockaddr_in addr;
        socklen_t n = sizeof addr;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        uv_ip4_addr("127.0.0.1", 0, &addr);
        check(!bind(fd, (struct sockaddr *)&addr, sizeof addr) && !listen(fd, 1), "listen");
        getsockname(fd, (struct sockaddr *)&addr, &n);
        pid_t pid = fork();
        if (!pid) {
                int c = socket(AF_INET, SOCK_STREAM, 0), one = 1;
                check(!connect(c, (struct sockaddr *)&addr, sizeof addr), "connect");
                setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                for (size_t at = 0; at < total;) {
                        ssize_t w = write(c, memory + at % ((size_t)64 << 20), chunk - at % chunk);
                        check(w > 0, "write");
                        at += (size_t)w;
                }
                _exit(0);
        }
        int c = accept(fd, NULL, NULL);
        uint64_t start = 0;
        for (size_t at = 0; at < total;) {
                ssize_t got = read(c, memory + at % ((size_t)64 << 20), chunk - at % chunk);
                check(got > 0, "read");
                start = start ? start : mfl_now_ns();
                at += (size_t)got;
        }
        uint64_t end = mfl_now_ns();
        waitpid(pid, NULL, 0);
        close(c);
        close(fd);
        free(memory);
        return (double)total / (double)(end - start);
}

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

#define RUNS_MAX 99
struct series {
        double rate[RUNS_MAX], send_cpu[RUNS_MAX], receive_cpu[RUNS_MAX];
};

static void note(struct series *s, int i, struct took took)
{
        s->rate[i] = took.rate;
        s->send_cpu[i] = took.send_cpu;
        s->receive_cpu[i] = took.receive_cpu;
}

static double median(double *values, int n)
{
        qsort(values, (size_t)n, sizeof *values, compare);
        return values[n / 2];
}

static void print_series(struct series *s, int n, double of)
{
        double rate = median(s->rate, n);
        printf(" %8.2f %6.2f %5.2f %5.2f", rate, rate / of, median(s->send_cpu, n),
                median(s->receive_cpu, n));
}

int main(int argc, char **argv)
{
        static struct series f, t;
        static double p[RUNS_MAX];
        size_t total = (size_t)(argc > 1 ? atoi(argv[1]) : 2) << 30;
        int n = argc > 2 ? atoi(argv[2]) : 7;
        check(total > 0 && n >= 1 && n <= RUNS_MAX, "arguments: GiB per repetition, repetitions (1 to 99)");
        bool tls = make_cert();
        printf("medians of %d; GB/s; send and receive: processor s/GB\n"
               "%8s %10s %8s %6s %5s %5s %8s %6s %5s %5s\n",
                n, "chunk", "read/write", "frames", "ratio", "send", "recv", "TLS", "ratio", "send", "recv");
        for (size_t chunk = (size_t)1 << 20; chunk <= (size_t)4 << 20; chunk *= 4) {
                for (int i = 0; i < n; i++) {
                        note(&f, i, frames(chunk, total, false));
                        p[i] = plain(chunk, total);
                        if (tls)
                                note(&t, i, frames(chunk, total, true));
                }
                double plain_rate = median(p, n);
                printf("%4zu MiB %10.2f", chunk >> 20, plain_rate);
                print_series(&f, n, plain_rate);
                if (tls)
                        print_series(&t, n, median(f.rate, n));
                putchar('\n');
        }
        remove_cert();
        return 0;
}
