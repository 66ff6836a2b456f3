/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a team's shared-memory mesh, printed as nccl-tests does, beside what memory gives.
 *
 *     mfl-bench-mesh [RANKS [RING_KIB [BYTES_MAX]]]
 *
 * Ranks are processes. `algbw` is the vector's bytes over the time of one operation, `busbw` that times 2(W - 1)/W for an
 * all-reduce and (W - 1)/W for the others. `floor` is the bandwidth that the operation would have if each rank only
 * read its inputs and wrote its output once: W(n + n) bytes for an all-reduce and an all-gather, W(n + n/W) for a
 * reduce-scatter, at the speed at which all ranks at once copy vectors of that size (memcpy, in private memory), in the
 * same run. Times are the best of ROUNDS means; floor and operation take turns. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/mesh/mesh_shm.h"

#define ROUNDS 15
#define BYTES_MIN 4096u
#define BYTES_MAX 200000000u
#define BYTES_A_ROUND 100000000u
#define DEADLINE_MS 60000

struct bench {
        struct mfl_mesh *mesh;
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

/* Seconds of one. */
static double time_of(struct bench *bench, const struct mfl_mesh_op *op, uint64_t bytes, uint32_t times)
{
        run(bench, (struct mfl_mesh_op){.kind = MFL_MESH_BARRIER});
        uint64_t start_ns = mfl_now_ns();
        for (uint32_t i = 0; i < times; i++)
                if (op) {
                        run(bench, *op);
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
        time_of(bench, &op, bytes, 1 + times / 10);
        for (int i = 0; i < ROUNDS; i++) {
                double s = time_of(bench, &op, bytes, times), floor_s = time_of(bench, NULL, bytes, times);
                best = MFL_MIN(best, s);
                copy = MFL_MIN(copy, floor_s);
        }
        if (bench->mesh->rank)
                return;
        double algbw = (double)bytes / best * 1e-9,
               busbw = algbw * (kind == MFL_MESH_ALL_REDUCE ? 2 : 1) * (ranks - 1) / ranks;
        double floor_bw =
                2 * (double)bytes / copy * 1e-9 / (kind == MFL_MESH_REDUCE_SCATTER ? 1 + 1 / ranks : 2);
        printf("%-15s %-4s %11llu %11.1f %8.2f %8.2f %8.2f %6.2f\n", kinds[kind],
                type == MFL_MESH_I64 ? "i64" : "f32", (unsigned long long)bytes, best * 1e6, algbw, busbw,
                floor_bw, algbw / floor_bw);
        fflush(stdout);
}

static void work(uint32_t rank, uint32_t n_ranks, uint64_t ring, uint64_t bytes_max, uint64_t team)
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
        uint32_t n_ranks = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
        uint64_t ring = argc > 2 ? (uint64_t)atoi(argv[2]) << 10 : 0;
        uint64_t bytes_max = argc > 3 ? (uint64_t)atoll(argv[3]) : BYTES_MAX, team = (uint64_t)getpid();
        int failed = 0, status;
        if (n_ranks < 1 || n_ranks > MFL_MESH_RANKS_MAX || ring % MFL_MESH_SHM_BYTES_MIN ||
                ring > MFL_MESH_SHM_BYTES_MAX) {
                fprintf(stderr,
                        "usage: mfl-bench-mesh [RANKS [RING_KIB [BYTES_MAX]]]; RING_KIB in steps of 64\n");
                return 2;
        }
        for (uint32_t r = 1; r < n_ranks; r++) {
                pid_t pid = fork();
                if (pid < 0)
                        return 1;
                if (!pid) {
                        work(r, n_ranks, ring, bytes_max, team);
                        _exit(0);
                }
        }
        work(0, n_ranks, ring, bytes_max, team);
        while (wait(&status) > 0)
                failed |= status;
        return failed != 0;
}
