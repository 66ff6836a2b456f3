/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the leader of a node adds its members' sums over shared memory, beside what memory gives.
 *     mfl-bench-collective [repetitions] [million parameters ...]
 *
 * Members are processes: each publishes its sum and waits. The leader is this process, with the daemons' own
 * code. `floor` is a loop of the same traffic, k vectors read and one written, over this process's own memory
 * with as many threads, each with a contiguous part; the better of plain stores and of stores past the
 * caches. Floor and sums take turns, the table is medians. `GB/s` is (k + 1) * 8 n bytes over the time. A
 * kept map is every round but a daemon's first; `first` has nothing mapped before, so it takes page faults
 * for all that it reads, and `unmap` is what it costs to let all of it go.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/node/collective.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MEMBERS_MAX 8
#define REPETITIONS_MAX 99
#define THREADS_MAX 256
#define GROUP 1
#define DEADLINE_MS 600000

static void check(bool ok, const char *what)
{
        if (ok)
                return;
        fprintf(stderr, "mfl-bench-collective: %s failed\n", what);
        exit(1);
}

/* ---- the members ---- */

struct members {
        pid_t pids[MEMBERS_MAX];
        int end; /* closed, it ends them */
        struct mfl_group group;
};

static uint64_t instance_of(uint32_t rank)
{
        return ((uint64_t)getpid() << 16) + rank + 1;
}

static void fill(int64_t *sum, uint64_t n, uint64_t rank)
{
        for (uint64_t i = 0; i < n; i++)
                sum[i] = (int64_t)(i * 0x9e3779b97f4a7c15u + rank);
}

static struct mfl_share *open_share(uint64_t instance)
{
        struct mfl_error err = {""};
        struct mfl_share_options options = {.instance = instance};
        struct mfl_share *share = NULL;
        check(!mfl_share_open(&options, &share, &err), err.text);
        return share;
}

static _Noreturn void run_member(uint32_t rank, uint64_t instance, uint64_t n, int tell, int end)
{
        struct mfl_error err = {""};
        struct mfl_share *share = open_share(instance);
        struct mfl_share_buffer *buffer = NULL;
        uint8_t key[MFL_SHARE_KEY_BYTES];
        char c = 0;
        mfl_collective_key(GROUP, key);
        check(!mfl_share_buffer_new(share, n * 8, &buffer, &err), err.text);
        fill(mfl_share_buffer_data(buffer), n, rank);
        check(!mfl_share_publish(buffer, key, &err), err.text);
        check(write(tell, &c, 1) == 1 && read(end, &c, 1) == 0, "wait for the leader");
        mfl_share_buffer_free(buffer);
        mfl_share_close(share);
        _exit(0);
}

/* Rank 0 is the leader, this process. */
static void start_members(struct members *members, uint32_t k, uint64_t n)
{
        int tell[2], end[2];
        char c;
        check(!pipe(tell) && !pipe(end), "pipe");
        *members = (struct members){.end = end[1]};
        members->group = (struct mfl_group){.group = GROUP, .collective = MFL_COLLECTIVE_SHM, .n_members = k};
        for (uint32_t rank = 0; rank < k; rank++) {
                uint64_t instance = members->group.members[rank] = instance_of(rank);
                if (rank == 0)
                        continue;
                pid_t pid = members->pids[rank] = fork();
                check(pid >= 0, "fork");
                if (!pid) {
                        close(end[1]);
                        close(tell[0]);
                        run_member(rank, instance, n, tell[1], end[0]);
                }
        }
        close(tell[1]);
        close(end[0]);
        for (uint32_t rank = 1; rank < k; rank++)
                check(read(tell[0], &c, 1) == 1, "start the members");
        close(tell[0]);
}

static void end_members(struct members *members)
{
        close(members->end);
        for (uint32_t rank = 1; rank < members->group.n_members; rank++)
                waitpid(members->pids[rank], NULL, 0);
}

/* ---- the floor ---- */

#define LINE 8 /* elements */
#define STEP 32

static inline void load_ahead(const uint64_t *x)
{
        for (size_t e = 0; e < STEP; e += LINE)
                __builtin_prefetch(x + e + 2 * STEP);
}

static inline void add_step(const uint64_t *const *in, uint32_t k, size_t i, uint64_t sum[STEP])
{
        load_ahead(in[0] + i);
        memcpy(sum, in[0] + i, STEP * 8);
        for (uint32_t j = 1; j < k; j++) {
                load_ahead(in[j] + i);
                for (size_t e = 0; e < STEP; e++)
                        sum[e] += in[j][i + e];
        }
}

MFL_CLONES static void add_plain(const uint64_t *const *in, uint32_t k, size_t from, size_t to, uint64_t *out)
{
        for (size_t i = from; i < to; i += STEP) {
                uint64_t sum[STEP];
                add_step(in, k, i, sum);
                memcpy(out + i, sum, sizeof sum);
        }
}

MFL_CLONES static void add_past(const uint64_t *const *in, uint32_t k, size_t from, size_t to, uint64_t *out)
{
        for (size_t i = from; i < to; i += STEP) {
                uint64_t sum[STEP];
                add_step(in, k, i, sum);
#if defined(__x86_64__)
                for (size_t e = 0; e < STEP; e += 2)
                        _mm_stream_si128((__m128i *)(void *)(out + i + e),
                                _mm_set_epi64x((long long)sum[e + 1], (long long)sum[e]));
#else
                memcpy(out + i, sum, sizeof sum);
#endif
        }
#if defined(__x86_64__)
        _mm_sfence();
#endif
}

/* Vectors of this process, a whole number of steps and some room behind them. */
struct floor {
        uint64_t *in[MEMBERS_MAX], *out;
        uint64_t n;
        uint32_t k, threads;
        bool past;
        pthread_barrier_t start, end;
        bool stop;
};

struct floor_thread {
        struct floor *floor;
        uint32_t i;
        pthread_t thread;
};

static void add_part(struct floor *f, uint32_t i)
{
        uint64_t steps = f->n / STEP;
        uint64_t from = steps * i / f->threads * STEP, to = steps * (i + 1) / f->threads * STEP;
        (f->past ? add_past : add_plain)((const uint64_t *const *)f->in, f->k, from, to, f->out);
}

static void *run_part(void *arg)
{
        struct floor_thread *t = arg;
        for (;;) {
                pthread_barrier_wait(&t->floor->start);
                if (t->floor->stop)
                        return NULL;
                add_part(t->floor, t->i);
                pthread_barrier_wait(&t->floor->end);
        }
}

static double seconds_since(uint64_t start)
{
        return (double)(mfl_now_ns() - start) * 1e-9;
}

static double floor_seconds(struct floor *f, bool past)
{
        f->past = past;
        uint64_t start = mfl_now_ns();
        pthread_barrier_wait(&f->start);
        add_part(f, 0);
        pthread_barrier_wait(&f->end);
        return seconds_since(start);
}

static void floor_start(struct floor *f, struct floor_thread *threads)
{
        pthread_barrier_init(&f->start, NULL, f->threads);
        pthread_barrier_init(&f->end, NULL, f->threads);
        f->stop = false;
        for (uint32_t i = 1; i < f->threads; i++) {
                threads[i] = (struct floor_thread){.floor = f, .i = i};
                check(!pthread_create(&threads[i].thread, NULL, run_part, &threads[i]), "start a thread");
        }
}

static void floor_stop(struct floor *f, struct floor_thread *threads)
{
        f->stop = true;
        pthread_barrier_wait(&f->start);
        for (uint32_t i = 1; i < f->threads; i++)
                pthread_join(threads[i].thread, NULL);
        pthread_barrier_destroy(&f->start);
        pthread_barrier_destroy(&f->end);
}

/* ---- the table ---- */

static int compare(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

static double median(double *v, int n)
{
        qsort(v, (size_t)n, sizeof *v, compare);
        return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int64_t *touched(uint64_t n)
{
        int64_t *p = mfl_alloc_aligned(n * 8);
        check(p != NULL, "allocation");
        fill(p, n, 0);
        return p;
}

struct leader {
        struct mfl_share *share;
        struct mfl_collective *collective;
        struct mfl_combine order;
};

static double combine_seconds(struct leader *leader)
{
        struct mfl_error err = {""};
        struct mfl_comm_control control = {0};
        leader->order.control = &control;
        uint64_t start = mfl_now_ns();
        int r = leader->collective->ops->combine(leader->collective, &leader->order, &err);
        check(!r, err.text);
        return seconds_since(start);
}

/* Giving up a buffer lets all maps go. */
static double unmap_seconds(struct leader *leader)
{
        struct mfl_error err = {""};
        struct mfl_share_buffer *buffer = NULL;
        check(!mfl_share_buffer_new(leader->share, 8, &buffer, &err), err.text);
        uint64_t start = mfl_now_ns();
        mfl_share_buffer_free(buffer);
        return seconds_since(start);
}

static void check_sum(const struct leader *leader)
{
        uint64_t k = leader->order.group->n_members;
        for (uint64_t i = 0; i < leader->order.n; i++)
                check((uint64_t)leader->order.out[i] == k * (i * 0x9e3779b97f4a7c15u) + k * (k - 1) / 2,
                        "the sum");
}

static void measure(struct leader *leader, struct floor *f, int repetitions)
{
        enum { SUM, FIRST, UNMAP, PLAIN, PAST, COLUMNS };
        double v[COLUMNS][REPETITIONS_MAX], m[COLUMNS];
        struct floor_thread threads[THREADS_MAX];
        struct mfl_error err = {""};
        check(!mfl_collective_shm_new(leader->share, f->threads, &leader->collective, &err), err.text);
        floor_start(f, threads);
        combine_seconds(leader);
        check_sum(leader);
        for (int i = 0; i < repetitions; i++) {
                v[PLAIN][i] = floor_seconds(f, false);
                v[SUM][i] = combine_seconds(leader);
                v[PAST][i] = floor_seconds(f, true);
                v[UNMAP][i] = unmap_seconds(leader);
                v[FIRST][i] = combine_seconds(leader);
        }
        floor_stop(f, threads);
        mfl_collective_close(leader->collective);
        for (int c = 0; c < COLUMNS; c++)
                m[c] = median(v[c], repetitions);
        double floor_best = MFL_MIN(m[PLAIN], m[PAST]), gb = (double)(f->k + 1) * 8e-9 * (double)f->n;
        printf("%8.2f %7u %7u %9.2f %7.2f %7.2f %7.2f %7.2f %9.2f %9.2f %7.2f\n", (double)f->n * 1e-6, f->k,
                f->threads, m[SUM] * 1e3, gb / m[SUM], gb / floor_best, gb / m[PLAIN], floor_best / m[SUM],
                m[FIRST] * 1e3, m[UNMAP] * 1e3, floor_best / m[FIRST]);
        fflush(stdout);
}

/* Members first, and threads and memory of this process later: a child has neither. */
static void measure_size(uint64_t n, uint32_t k, uint32_t cores, int repetitions)
{
        struct members members;
        start_members(&members, k, n);
        struct leader leader = {.share = open_share(members.group.members[0])};
        struct floor f = {.n = n, .k = k};
        for (uint32_t j = 0; j < k; j++)
                f.in[j] = (uint64_t *)touched(n + STEP);
        f.out = (uint64_t *)touched(n + STEP);
        leader.order = (struct mfl_combine){.group = &members.group,
                .ranks = ((uint64_t)1 << k) - 1,
                .n = n,
                .own = (int64_t *)f.in[0],
                .out = touched(n),
                .deadline_ms = DEADLINE_MS};
        f.threads = 1;
        measure(&leader, &f, repetitions);
        f.threads = cores;
        if (cores > 1)
                measure(&leader, &f, repetitions);
        for (uint32_t j = 0; j < k; j++)
                free(f.in[j]);
        free(f.out);
        free(leader.order.out);
        mfl_share_close(leader.share);
        end_members(&members);
}

int main(int argc, char **argv)
{
        static char *const sizes_default[] = {"1.66", "25"};
        int repetitions = argc > 1 ? atoi(argv[1]) : 15;
        char *const *sizes = argc > 2 ? argv + 2 : sizes_default;
        int n_sizes = argc > 2 ? argc - 2 : (int)MFL_ARRAY_SIZE(sizes_default);
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        check(repetitions > 0 && repetitions <= REPETITIONS_MAX && cores > 0 && cores <= THREADS_MAX,
                "arguments: [repetitions, 1 to 99] [million parameters ...]");
        printf("sums over shared memory, medians of %d; ratio: time of the floor over time of the sum\n",
                repetitions);
        printf("%8s %7s %7s %9s %7s %7s %7s %7s %9s %9s %7s\n", "million", "members", "threads", "sum ms",
                "GB/s", "floor", "(plain)", "ratio", "first ms", "unmap ms", "ratio");
        for (int i = 0; i < n_sizes; i++) {
                uint64_t n = (uint64_t)(atof(sizes[i]) * 1e6);
                check(n > 0 && n < (uint64_t)1 << 40, "a size");
                for (uint32_t k = 2; k <= MEMBERS_MAX; k *= 2)
                        measure_size(n, k, (uint32_t)cores, repetitions);
        }
        return 0;
}
