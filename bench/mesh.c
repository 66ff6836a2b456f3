/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a team's meshes, printed as nccl-tests does, beside what memory or loopback TCP gives.
 *
 *     mfl-bench-mesh [RANKS [RING_KIB [BYTES_MAX]]]
 *     mfl-bench-mesh tcp [RANKS [BYTES_MAX]]
 *
 * Ranks are processes. `algbw` is the vector's bytes over the time of one operation, `busbw` that times 2(W - 1)/W for an
 * all-reduce and (W - 1)/W for the others. `floor` is the bandwidth that the operation would have if each rank only
 * read its inputs and wrote its output once: W(n + n) bytes for an all-reduce and an all-gather, W(n + n/W) for a
 * reduce-scatter, at the speed at which all ranks at once copy vectors of that size (memcpy, in private memory), in the
 * same run. Over TCP the floor is what it would
 * have if each rank only exchanged its bytes with each other one, both ways at once and without looking at them, as fast as
 * plain sockets over loopback do that in the same run. Times are the best of ROUNDS means; floor and operation take turns. */
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/peer/peer.h"
#include "kernels/mesh/mesh_shm.h"

#define ROUNDS 15
#define BYTES_MIN 4096u
#define BYTES_MAX 200000000u
#define BYTES_A_ROUND 100000000u
#define RAW_BYTES ((uint64_t)512 << 10) /* of a call, as the mesh's pieces */
#define DEADLINE_MS 60000

/* What the processes of a run over TCP share. */
struct common {
        _Atomic uint32_t n_ready;
        char address[MFL_MESH_RANKS_MAX][MFL_PEER_BYTES];
};

struct bench {
        struct mfl_mesh *mesh;
        const int *raw; /* over TCP: a plain connection to each other rank, for the floor */
        char *in, *out;
        uint32_t sequence;
};

static void must(int rc, const struct mfl_error *err)
{
        if (!rc)
                return;
        fprintf(stderr, "mfl-bench-mesh: %s\n", err->text);
        exit(1);
}

static void run(struct bench *bench, struct mfl_mesh_op op)
{
        struct mfl_error err;
        op.sequence = bench->sequence++;
        must(mfl_mesh_run(bench->mesh, &op, DEADLINE_MS, NULL, &err), &err);
}

/* As many bytes to each other rank as from it, on all connections at once. */
static void exchange(const struct bench *bench, uint64_t bytes)
{
        uint64_t sent[MFL_MESH_RANKS_MAX] = {0}, got[MFL_MESH_RANKS_MAX] = {0};
        uint32_t open;
        do {
                struct pollfd fds[MFL_MESH_RANKS_MAX];
                bool moved = false;
                open = 0;
                for (uint32_t r = 0; r < bench->mesh->n_ranks; r++) {
                        if (r == bench->mesh->rank)
                                continue;
                        uint64_t in = MFL_MIN(bytes - got[r], RAW_BYTES),
                                 out = MFL_MIN(bytes - sent[r], RAW_BYTES);
                        ssize_t a = in ? recv(bench->raw[r], bench->out, in, MSG_DONTWAIT) : 0;
                        ssize_t b = out ? send(bench->raw[r], bench->in + sent[r], out, MSG_DONTWAIT) : 0;
                        got[r] += a > 0 ? (uint64_t)a : 0;
                        sent[r] += b > 0 ? (uint64_t)b : 0;
                        moved |= a > 0 || b > 0;
                        if (got[r] < bytes || sent[r] < bytes)
                                fds[open++] = (struct pollfd){bench->raw[r],
                                        (short)((got[r] < bytes ? POLLIN : 0) |
                                                (sent[r] < bytes ? POLLOUT : 0)),
                                        0};
                }
                if (!moved && open)
                        poll(fds, open, 1000);
        } while (open);
}

/* Seconds of one. */
static double time_of(struct bench *bench, const struct mfl_mesh_op *op, uint64_t bytes, uint32_t times)
{
        run(bench, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        uint64_t start_ns = mfl_now_ns();
        for (uint32_t i = 0; i < times; i++)
                if (op) {
                        run(bench, *op);
                } else if (bench->raw) {
                        exchange(bench, bytes);
                } else {
                        memcpy(bench->out, bench->in, bytes);
                        __asm__ volatile("" ::: "memory");
                }
        run(bench, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        return (double)(mfl_now_ns() - start_ns) * 1e-9 / times;
}

static void measure(struct bench *bench, enum mfl_mesh_kind kind, enum mfl_mesh_type type, uint64_t bytes)
{
        static const char *const kinds[] = {[MFL_MESH_ALL_REDUCE] = "all_reduce",
                [MFL_MESH_REDUCE_SCATTER] = "reduce_scatter",
                [MFL_MESH_ALL_GATHER] = "all_gather"};
        double ranks = bench->mesh->n_ranks, best = 1e9, copy = 1e9;
        uint64_t n = bytes / mfl_mesh_type_bytes(type);
        uint32_t times = (uint32_t)MFL_MIN(100, MFL_MAX(2, BYTES_A_ROUND / bytes));
        struct mfl_mesh_op op = {.kind = kind, .type = type, .in = bench->in, .out = bench->out, .n = n};
        uint64_t each = bytes / bench->mesh->n_ranks * (kind == MFL_MESH_ALL_REDUCE ? 2 : 1);
        time_of(bench, &op, bytes, 1 + times / 10);
        for (int i = 0; i < ROUNDS; i++) {
                double s = time_of(bench, &op, bytes, times),
                       floor_s = time_of(bench, NULL, bench->raw ? each : bytes, times);
                best = MFL_MIN(best, s);
                copy = MFL_MIN(copy, floor_s);
        }
        if (bench->mesh->rank)
                return;
        double algbw = (double)bytes / best * 1e-9,
               busbw = algbw * (kind == MFL_MESH_ALL_REDUCE ? 2 : 1) * (ranks - 1) / ranks;
        double floor_bw = 2 * (double)bytes / copy * 1e-9 /
                          (kind == MFL_MESH_REDUCE_SCATTER && !bench->raw ? 1 + 1 / ranks : 2);
        printf("%-15s %-4s %11llu %11.1f %8.2f %8.2f %8.2f %6.2f\n", kinds[kind],
                type == MFL_MESH_I64 ? "i64" : "f32", (unsigned long long)bytes, best * 1e6, algbw, busbw,
                floor_bw, algbw / floor_bw);
        fflush(stdout);
}

static void open_tcp(
        struct bench *bench, uint32_t rank, uint32_t n_ranks, uint64_t team, struct common *common)
{
        const struct mfl_peer_port_options listen = {.listen = "127.0.0.1:0"};
        const char *address[MFL_MESH_RANKS_MAX];
        struct mfl_mesh_tcp_options options = {.team = team,
                .rank = rank,
                .n_ranks = n_ranks,
                .local_first = rank,
                .n_local = 1,
                .address = address,
                .deadline_ms = DEADLINE_MS};
        struct mfl_error err;
        must(mfl_peer_port_open(&listen, &options.port, &err), &err);
        mfl_strcpy(common->address[rank], MFL_PEER_BYTES, mfl_peer_port_address(options.port));
        atomic_fetch_add(&common->n_ready, 1);
        while (atomic_load(&common->n_ready) < n_ranks)
                usleep(1000);
        for (uint32_t r = 0; r < n_ranks; r++)
                address[r] = common->address[r];
        must(mfl_mesh_tcp_open(&options, &bench->mesh, &err), &err);
}

/* Connections between all processes to be, raw[rank][other]. */
static int connect_all(uint32_t n, int (*raw)[MFL_MESH_RANKS_MAX])
{
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof to;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&to, bytes) || listen(fd, 1) ||
                getsockname(fd, (struct sockaddr *)&to, &bytes))
                return -1;
        for (uint32_t a = 0; a < n; a++)
                for (uint32_t b = 0; b < a; b++) {
                        raw[a][b] = socket(AF_INET, SOCK_STREAM, 0);
                        if (connect(raw[a][b], (struct sockaddr *)&to, bytes))
                                return -1;
                        raw[b][a] = accept(fd, NULL, NULL);
                }
        return close(fd);
}

/* raw NULL: over shared memory. */
static void work(uint32_t rank, uint32_t n_ranks, uint64_t ring, uint64_t bytes_max, uint64_t team,
        const int *raw, struct common *common)
{
        static const enum mfl_mesh_kind kinds[] = {
                MFL_MESH_ALL_REDUCE, MFL_MESH_REDUCE_SCATTER, MFL_MESH_ALL_GATHER};
        static const uint64_t sizes[] = {BYTES_MIN, 65536, 1000000, 4000000, 25000000, 100000000, BYTES_MAX};
        struct mfl_mesh_shm_options options = {
                .team = team, .rank = rank, .n_ranks = n_ranks, .bytes = ring, .deadline_ms = DEADLINE_MS};
        struct mfl_error err;
        struct bench bench = {.in = mfl_alloc_aligned(BYTES_MAX), .out = mfl_alloc_aligned(BYTES_MAX)};
        if (!bench.in || !bench.out)
                must(mfl_fail_memory(&err, BYTES_MAX, "vectors"), &err);
        memset(bench.in, 0, BYTES_MAX);
        memset(bench.out, 0, BYTES_MAX);
        bench.raw = raw;
        if (raw)
                open_tcp(&bench, rank, n_ranks, team, common);
        else
                must(mfl_mesh_shm_open(&options, &bench.mesh, &err), &err);
        if (!rank)
                printf("%-15s %-4s %11s %11s %8s %8s %8s %6s\n", "# operation", "type", "bytes", "us",
                        "algbw", "busbw", "floor", "ratio");
        for (size_t k = 0; k < MFL_ARRAY_SIZE(kinds); k++)
                for (int f = 0; f < 2; f++)
                        for (size_t s = 0; s < MFL_ARRAY_SIZE(sizes); s++)
                                if (sizes[s] <= bytes_max)
                                        measure(&bench, kinds[k], f ? MFL_MESH_F32 : MFL_MESH_I64, sizes[s]);
        mfl_mesh_close(bench.mesh);
        free(bench.in);
        free(bench.out);
}

int main(int argc, char **argv)
{
        static int raw[MFL_MESH_RANKS_MAX][MFL_MESH_RANKS_MAX];
        bool tcp = argc > 1 && !strcmp(argv[1], "tcp");
        int last = tcp ? 2 : 3, failed = 0, status;
        argc -= tcp, argv += tcp;
        uint32_t n_ranks = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
        uint64_t ring = argc > 2 && !tcp ? (uint64_t)atoi(argv[2]) << 10 : 0;
        uint64_t bytes_max = argc > last ? (uint64_t)atoll(argv[last]) : BYTES_MAX, team = (uint64_t)getpid();
        if (n_ranks < 1 || n_ranks > MFL_MESH_RANKS_MAX || ring % MFL_MESH_SHM_BYTES_MIN ||
                ring > MFL_MESH_SHM_BYTES_MAX) {
                fprintf(stderr,
                        "usage: mfl-bench-mesh [RANKS [RING_KIB [BYTES_MAX]]]; RING_KIB in steps of 64\n"
                        "       mfl-bench-mesh tcp [RANKS [BYTES_MAX]]\n");
                return 2;
        }
        struct common *common =
                mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (common == MAP_FAILED || (tcp && connect_all(n_ranks, raw))) {
                perror("mfl-bench-mesh");
                return 1;
        }
        for (uint32_t r = 1; r < n_ranks; r++) {
                pid_t pid = fork();
                if (pid < 0)
                        return 1;
                if (!pid) {
                        work(r, n_ranks, ring, bytes_max, team, tcp ? raw[r] : NULL, common);
                        _exit(0);
                }
        }
        work(0, n_ranks, ring, bytes_max, team, tcp ? raw[0] : NULL, common);
        while (wait(&status) > 0)
                failed |= status;
        return failed != 0;
}
