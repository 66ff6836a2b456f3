/* SPDX-License-Identifier: Apache-2.0 */
/* What no server can beat on this machine: plain TCP over loopback, and additions as fast as memory gives. */
#include "bench/aggregate.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void bench_check(bool ok, const char *what)
{
        if (ok)
                return;
        fprintf(stderr, "bench_aggregate: %s failed\n", what);
        exit(1);
}

void *bench_touched(size_t bytes)
{
        void *p = mfl_alloc_aligned(bytes);
        bench_check(p != NULL, "allocation");
        memset(p, 0, bytes);
        return p;
}

static _Noreturn void write_updates(const struct sockaddr_in *addr, size_t bytes, size_t chunk, int uploads)
{
        const char *update = bench_touched(bytes);
        int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
        bench_check(!connect(fd, (const struct sockaddr *)addr, sizeof *addr), "connect");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        for (int i = 0; i < uploads; i++)
                for (size_t at = 0; at < bytes;) {
                        ssize_t n = write(fd, update + at, MFL_MIN(chunk, bytes - at));
                        bench_check(n > 0, "write");
                        at += (size_t)n;
                }
        _exit(0);
}

double bench_floor_tcp(size_t bytes, size_t chunk, int uploads)
{
        struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof addr;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        bench_check(!bind(listener, (struct sockaddr *)&addr, sizeof addr) && !listen(listener, 1) &&
                            !getsockname(listener, (struct sockaddr *)&addr, &length),
                "listen");
        pid_t pid = fork();
        bench_check(pid >= 0, "fork");
        if (!pid)
                write_updates(&addr, bytes, chunk, 1 + uploads);
        /* After the fork: its pages are not to be copied when they are written. */
        char *slot = bench_touched(bytes);
        int fd = accept(listener, NULL, NULL);
        uint64_t start = 0;
        for (int i = 0; i <= uploads; i++) {
                start = i == 1 ? mfl_now_ns() : start; /* the first one warms up */
                for (size_t at = 0; at < bytes;) {
                        ssize_t n = read(fd, slot + at, MFL_MIN(chunk, bytes - at));
                        bench_check(n > 0, "read");
                        at += (size_t)n;
                }
        }
        uint64_t end = mfl_now_ns();
        waitpid(pid, NULL, 0);
        close(fd);
        close(listener);
        free(slot);
        return (double)bytes * uploads / (double)(end - start);
}

/* 1.5 * 2^52 rounds to an integer that stays in the low bits. Right for |x| <= 2^51, which is what the
 * numbers here keep to. */
MFL_CLONES static void add_rounded(const float *restrict x, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++) {
                double rounded = (double)x[i] * 0x1p20 + 0x1.8p52;
                uint64_t bits;
                memcpy(&bits, &rounded, sizeof bits);
                acc[i] += bits - 0x4338000000000000u;
        }
}

MFL_CLONES static void add_integers(const uint64_t *restrict x, size_t n, uint64_t *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += x[i];
}

MFL_CLONES static void add_floats(const float *restrict x, size_t n, double *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += (double)x[i];
}

MFL_CLONES static void add_doubles(const double *restrict x, size_t n, double *restrict acc)
{
        for (size_t i = 0; i < n; i++)
                acc[i] += x[i];
}

struct bench_adds bench_floor_adds(size_t n, bool f32, int uploads)
{
        size_t bytes = n * (f32 ? sizeof(float) : sizeof(int64_t));
        void *x = bench_touched(bytes), *acc = bench_touched(n * 8);
        uint64_t start = 0, middle, end;
        for (int i = 0; i <= uploads; i++) {
                start = i == 1 ? mfl_now_ns() : start;
                if (f32)
                        add_rounded(x, n, acc);
                else
                        add_integers(x, n, acc);
                __asm__ volatile("" ::: "memory");
        }
        middle = mfl_now_ns();
        for (int i = 0; i < uploads; i++) {
                if (f32)
                        add_floats(x, n, acc);
                else
                        add_doubles(x, n, acc);
                __asm__ volatile("" ::: "memory");
        }
        end = mfl_now_ns();
        free(x);
        free(acc);
        double total = (double)bytes * uploads;
        return (struct bench_adds){total / (double)(middle - start), total / (double)(end - middle)};
}
