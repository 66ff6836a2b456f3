/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators on the emulated NCCL: exact sums, and what happens to all ranks when one cancels, comes too
 * late, dies, or gets an error, in each phase. Ranks are threads of this program with a card each, and
 * processes where one has to die. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/nccl/comm.h"
#include "tests/emu/emu.h"

extern const struct mfl_backend_ops mfl_backend_module;
static const struct mfl_backend_ops *const ops = &mfl_backend_module;

#define RANKS_MAX 8
#define RANGE 16      /* elements */
#define LONG_MS 20000 /* nobody waits this long, unless something is wrong */
#define SHORT_MS 120  /* for those who wait in vain */

/* Wraps around when added. */
static int64_t value_of(uint32_t rank, uint64_t i, uint32_t round)
{
        return (int64_t)((i + 1) * 0x9e3779b97f4a7c15u * (rank + 3) + round);
}

static int64_t total_of(uint32_t n_ranks, uint64_t i, uint32_t round)
{
        uint64_t total = 0;
        for (uint32_t r = 0; r < n_ranks; r++)
                total += (uint64_t)value_of(r, i, round);
        return (int64_t)total;
}

struct world;
struct member {
        struct world *world;
        uint32_t rank;
        pthread_t thread;
        struct mfl_device *device;
        struct mfl_sum *sum;
        struct mfl_comm *comm;
        struct mfl_comm_control control;
        uint32_t deadline_ms;
        int64_t *out, *host;
        int rc;
        struct mfl_error err;
};
struct world {
        uint32_t n_ranks, root, round;
        uint64_t n;
        uint8_t id[MFL_COMM_ID_BYTES];
        struct member members[RANKS_MAX];
};

/* Without the other work of opening. */
static struct mfl_device *make_device(int ordinal)
{
        struct mfl_device *device = mfl_calloc(1, sizeof *device);
        mfl_assert(device);
        device->ordinal = ordinal;
        mfl_strcpy(device->info.uuid, sizeof device->info.uuid, "GPU-00000000");
        return device;
}

static void fill(struct member *m, uint32_t round)
{
        for (uint64_t i = 0; i < m->sum->n; i++)
                m->host[i] = value_of(m->rank, i, round);
        assert_int_equal(cudaSetDevice(m->device->ordinal), cudaSuccess);
        assert_int_equal(cudaMemcpy(m->sum->memory, m->host, (size_t)m->sum->n * sizeof *m->host,
                                 cudaMemcpyHostToDevice),
                cudaSuccess);
}

static void world_init(struct world *w, uint32_t n_ranks, uint64_t n)
{
        *w = (struct world){.n_ranks = n_ranks, .n = n};
        mfl_emu_set_devices(RANKS_MAX);
        mfl_cuda_nccl_tune(RANGE, 5000, 60);
        for (uint32_t r = 0; r < n_ranks; r++) {
                struct member *m = &w->members[r];
                *m = (struct member){.world = w, .rank = r, .deadline_ms = LONG_MS};
                m->device = make_device((int)r);
                assert_int_equal(ops->sum_new(m->device, n, &m->sum, NULL), 0);
                m->out = mfl_malloc((size_t)(n + 1) * sizeof *m->out);
                m->host = mfl_malloc((size_t)(n + 1) * sizeof *m->host);
                assert_true(m->out && m->host);
                fill(m, 0);
        }
        assert_int_equal(ops->comm->id(w->members[0].device, w->id, NULL), 0);
}

static void each(struct world *w, void *(*run)(void *member))
{
        for (uint32_t r = 0; r < w->n_ranks; r++)
                assert_int_equal(pthread_create(&w->members[r].thread, NULL, run, &w->members[r]), 0);
        for (uint32_t r = 0; r < w->n_ranks; r++)
                pthread_join(w->members[r].thread, NULL);
}

static void *do_open(void *arg)
{
        struct member *m = arg;
        if (m->deadline_ms)
                m->rc = ops->comm->open(m->device, m->world->id, m->rank, m->world->n_ranks, m->deadline_ms,
                        &m->control, &m->comm, &m->err);
        return NULL;
}

static void *do_reduce(void *arg)
{
        struct member *m = arg;
        struct world *w = m->world;
        m->control.ready = 0;
        memset(m->out, 0x55, (size_t)w->n * sizeof *m->out);
        if (m->deadline_ms)
                m->rc = ops->comm->reduce(m->comm, m->sum, w->root, m->rank == w->root ? m->out : NULL,
                        m->deadline_ms, &m->control, &m->err);
        return NULL;
}

static void *do_close(void *arg)
{
        struct member *m = arg;
        ops->comm->close(m->comm);
        m->comm = NULL;
        return NULL;
}

static void assert_all(const struct world *w, int rc)
{
        for (uint32_t r = 0; r < w->n_ranks; r++) {
                if (w->members[r].rc != rc)
                        print_message("rank %u: %d: %s\n", r, w->members[r].rc, w->members[r].err.text);
                assert_int_equal(w->members[r].rc, rc);
        }
}

static void assert_total(const struct world *w, uint32_t round)
{
        const struct member *root = &w->members[w->root];
        assert_int_equal(root->control.ready, w->n);
        for (uint64_t i = 0; i < w->n; i++)
                assert_int_equal(root->out[i], total_of(w->n_ranks, i, round));
}

static void assert_own(const struct world *w, uint32_t round)
{
        for (uint32_t r = 0; r < w->n_ranks; r++) {
                struct member *m = (struct member *)&w->members[r];
                assert_int_equal(ops->sum_read(m->sum, m->host, NULL, NULL), 0);
                for (uint64_t i = 0; i < w->n; i++)
                        assert_int_equal(m->host[i], value_of(r, i, round));
        }
}

/* Nothing is left: no communicator, no buffer, no work in a stream, no device memory. */
static void world_deinit(struct world *w)
{
        each(w, do_close);
        assert_int_equal(mfl_emu_nccl_open(), 0);
        assert_int_equal(mfl_emu_pending(), 0);
        for (uint32_t r = 0; r < w->n_ranks; r++) {
                ops->sum_free(w->members[r].sum);
                free(w->members[r].device);
                free(w->members[r].out);
                free(w->members[r].host);
        }
        assert_int_equal(mfl_emu_memory_used(), 0);
}

static void open_world(struct world *w, uint32_t n_ranks, uint64_t n)
{
        world_init(w, n_ranks, n);
        each(w, do_open);
        assert_all(w, 0);
}

/* ---- processes: before any thread exists ---- */

struct table {
        uint8_t id[MFL_COMM_ID_BYTES];
        atomic_bool made;
        _Atomic uint32_t n_open, n_broken;
};
enum fate { LIVES, KILLED_BEFORE_REDUCE, KILLED_IN_REDUCE };
struct child {
        int card;
        const char *host;
        enum fate fate;
};

static void *kill_soon(void *arg)
{
        struct timespec nap = {.tv_nsec = 50000000};
        nanosleep(&nap, NULL);
        kill(getpid(), SIGKILL);
        return NULL;
}

static void set_number(const char *name, int number)
{
        char text[16];
        snprintf(text, sizeof text, "%d", number);
        setenv(name, text, 1);
}

/* Exit status: 0 the right sum, or no root; 1 refused or broken while opening; 2 broken in the reduction. */
static int child_main(
        struct table *table, const struct child *child, uint32_t rank, uint32_t n_ranks, uint32_t deadline_ms)
{
        const uint64_t n = 5 * RANGE + 3;
        struct timespec nap = {.tv_nsec = 1000000};
        struct member m = {.rank = rank};
        struct mfl_comm_control control = {0};
        pthread_t killer;
        int64_t out[5 * RANGE + 3];
        set_number("MFL_EMU_FIRST", child->card);
        if (child->host)
                setenv("NCCL_HOSTID", child->host, 1);
        mfl_cuda_nccl_tune(RANGE, 5000, 60);
        m.device = make_device(0);
        if (ops->sum_new(m.device, n, &m.sum, NULL))
                return 9;
        m.host = out;
        fill(&m, 0);
        if (rank == 0) {
                if (ops->comm->id(m.device, table->id, NULL))
                        return 9;
                atomic_store(&table->made, true);
        }
        while (!atomic_load(&table->made))
                nanosleep(&nap, NULL);
        if (ops->comm->open(m.device, table->id, rank, n_ranks, LONG_MS, &control, &m.comm, NULL))
                return 1;
        if (child->fate == KILLED_BEFORE_REDUCE)
                kill(getpid(), SIGKILL);
        if (child->fate == KILLED_IN_REDUCE) /* rank 1 does not come: this one waits in vain, and dies */
                pthread_create(&killer, NULL, kill_soon, NULL);
        int rc = ops->comm->reduce(m.comm, m.sum, 0, rank == 0 ? out : NULL,
                child->fate == KILLED_IN_REDUCE ? LONG_MS : deadline_ms, &control, NULL);
        for (uint64_t i = 0; !rc && rank == 0 && i < n; i++)
                if (out[i] != total_of(n_ranks, i, 0))
                        return 9;
        ops->comm->close(m.comm);
        ops->sum_free(m.sum);
        free(m.device);
        return rc ? 2 : 0;
}

static void run_children(const struct child *children, uint32_t n, int *status)
{
        pid_t pids[RANKS_MAX];
        struct table *table =
                mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(table, MAP_FAILED);
        uint32_t deadline_ms = LONG_MS; /* short where the others wait for one that is dead */
        for (uint32_t r = 0; r < n; r++)
                deadline_ms = children[r].fate == LIVES ? deadline_ms : 300;
        for (uint32_t r = 0; r < n; r++) {
                pids[r] = fork();
                assert_true(pids[r] >= 0);
                if (pids[r] == 0)
                        _exit(child_main(table, &children[r], r, n, deadline_ms));
        }
        for (uint32_t r = 0; r < n; r++)
                assert_int_equal(waitpid(pids[r], &status[r], 0), pids[r]);
        munmap(table, sizeof *table);
}

static void assert_exits(const int *status, uint32_t n, int code)
{
        for (uint32_t r = 0; r < n; r++) {
                assert_true(WIFEXITED(status[r]));
                assert_int_equal(WEXITSTATUS(status[r]), code);
        }
}

static void processes_add(void **state)
{
        const struct child children[] = {{0, NULL, LIVES}, {1, NULL, LIVES}, {2, NULL, LIVES}};
        int status[3];
        run_children(children, 3, status);
        assert_exits(status, 3, 0);
}

static void processes_on_one_card(void **state)
{
        const struct child same[] = {{0, NULL, LIVES}, {0, NULL, LIVES}};
        const struct child trick[] = {{0, "a", LIVES}, {0, "b", LIVES}};
        int status[2];
        run_children(same, 2, status);
        assert_exits(status, 2, 1);
        run_children(trick, 2, status);
        assert_exits(status, 2, 0);
}

static void killed_process(void **state)
{
        for (int when = KILLED_BEFORE_REDUCE; when <= KILLED_IN_REDUCE; when++) {
                const struct child children[] = {
                        {0, NULL, LIVES}, {1, NULL, KILLED_BEFORE_REDUCE}, {2, NULL, (enum fate)when}};
                int status[3];
                run_children(children, 3, status);
                assert_exits(status, 1, 2);
                assert_true(WIFSIGNALED(status[1]) && WIFSIGNALED(status[2]));
        }
}

/* ---- sums ---- */

static void exact_sums(void **state)
{
        static const uint32_t n_ranks[] = {1, 2, 3, 8};
        static const uint64_t sizes[] = {0, 1, RANGE, RANGE + 1, 9 * RANGE + 5};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(n_ranks); k++)
                for (size_t s = 0; s < MFL_ARRAY_SIZE(sizes); s++) {
                        struct world w;
                        open_world(&w, n_ranks[k], sizes[s]);
                        w.root = (uint32_t)s % n_ranks[k];
                        each(&w, do_reduce);
                        assert_all(&w, 0);
                        assert_total(&w, 0);
                        assert_own(&w, 0);
                        world_deinit(&w);
                }
}

static void many_rounds_on_one_communicator(void **state)
{
        struct world w;
        open_world(&w, 3, 5 * RANGE + 1);
        for (uint32_t round = 1; round <= 12; round++) {
                for (uint32_t r = 0; r < w.n_ranks; r++)
                        fill(&w.members[r], round);
                w.root = round % w.n_ranks;
                each(&w, do_reduce);
                assert_all(&w, 0);
                assert_total(&w, round);
                assert_own(&w, round);
        }
        /* A sum and a ring for each, once. */
        assert_int_equal(mfl_emu_nccl_registered(), 6);
        world_deinit(&w);
}

struct watcher {
        struct world *world;
        atomic_bool stop;
        uint64_t n_seen, n_wrong, cancel_at;
};

/* What control->ready has promised is there. */
static void *watch(void *arg)
{
        struct watcher *v = arg;
        struct member *root = &v->world->members[v->world->root];
        struct timespec nap = {.tv_nsec = 20000};
        uint64_t checked = 0;
        while (!atomic_load(&v->stop)) {
                uint64_t ready = atomic_load(&root->control.ready);
                v->n_wrong += ready < checked || ready > v->world->n;
                for (; checked < ready; checked++)
                        v->n_wrong += root->out[checked] != total_of(v->world->n_ranks, checked, 0);
                nanosleep(&nap, NULL);
        }
        return NULL;
}

/* On the root's own thread, so that it comes between two ranges, however busy the machine is. */
static void note_range(void *arg)
{
        struct watcher *v = arg;
        struct member *root = &v->world->members[v->world->root];
        uint64_t ready = atomic_load(&root->control.ready);
        v->n_seen += ready > 0 && ready < v->world->n;
        if (v->cancel_at && ready >= v->cancel_at)
                atomic_store(&root->control.cancel, true);
}

static void reduce_watched(struct world *w, struct watcher *v)
{
        pthread_t thread;
        w->members[w->root].control.advanced = note_range;
        w->members[w->root].control.user = v;
        assert_int_equal(pthread_create(&thread, NULL, watch, v), 0);
        each(w, do_reduce);
        atomic_store(&v->stop, true);
        pthread_join(thread, NULL);
        w->members[w->root].control.advanced = NULL;
        assert_int_equal(v->n_wrong, 0);
}

static void ranges_are_final_when_said(void **state)
{
        struct world w;
        open_world(&w, 2, 200 * RANGE);
        struct watcher v = {.world = &w};
        reduce_watched(&w, &v);
        assert_all(&w, 0);
        assert_true(v.n_seen > 0);
        world_deinit(&w);
}

/* ---- opening that fails ---- */

static void assert_broken(const struct member *m, const char *text)
{
        assert_int_equal(m->rc, MFL_COMM_BROKEN);
        if (!strstr(m->err.text, text))
                fail_msg("'%s' is not in '%s'", text, m->err.text);
}

static void a_rank_never_opens(void **state)
{
        struct world w;
        world_init(&w, 3, RANGE);
        w.members[0].deadline_ms = w.members[1].deadline_ms = SHORT_MS;
        w.members[2].deadline_ms = 0;
        each(&w, do_open);
        assert_broken(&w.members[0], "open a communicator: not done within 120 ms");
        assert_broken(&w.members[1], "open a communicator: not done within 120 ms");
        assert_null(w.members[0].comm);
        assert_int_equal(mfl_emu_nccl_open(), 0);
        world_deinit(&w);
}

static void *cancel_soon(void *arg)
{
        struct member *m = arg;
        struct timespec nap = {.tv_nsec = 30000000};
        nanosleep(&nap, NULL);
        atomic_store(&m->control.cancel, true);
        return NULL;
}

static void opening_is_cancelled(void **state)
{
        struct world w;
        pthread_t thread;
        world_init(&w, 2, RANGE);
        w.members[1].deadline_ms = 0;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &w.members[0]), 0);
        each(&w, do_open);
        pthread_join(thread, NULL);
        assert_broken(&w.members[0], "open a communicator: cancelled");
        world_deinit(&w);
}

static void two_ranks_on_one_card(void **state)
{
        struct world w;
        world_init(&w, 2, RANGE);
        w.members[1].device->ordinal = 0;
        each(&w, do_open);
        assert_broken(&w.members[0], "invalid usage: Duplicate GPU detected : rank 0 and rank 1");
        assert_broken(&w.members[1], "invalid usage: Duplicate GPU detected : rank 1 and rank 0");
        world_deinit(&w);
}

static void an_error_while_opening(void **state)
{
        struct world w;
        world_init(&w, 2, RANGE);
        w.members[0].deadline_ms = SHORT_MS;
        mfl_emu_nccl_async(1, 6, 2);
        each(&w, do_open);
        mfl_emu_nccl_async(1, 0, 0);
        assert_int_equal(w.members[0].rc, MFL_COMM_BROKEN);
        assert_broken(&w.members[1], "open a communicator: remote process exited");
        assert_broken(&w.members[1], "an error that was asked for");
        world_deinit(&w);
}

/* ---- reductions that fail ---- */

/* After a failure a communicator is useless, and a new one over the same sums adds them. */
static void assert_recovers(struct world *w)
{
        struct member *m = &w->members[0];
        if (m->rc) {
                do_reduce(m);
                assert_broken(m, "the communicator was aborted");
        }
        each(w, do_close);
        assert_int_equal(mfl_emu_nccl_open(), 0);
        for (uint32_t r = 0; r < w->n_ranks; r++) {
                w->members[r].deadline_ms = LONG_MS;
                w->members[r].control.cancel = false;
        }
        mfl_cuda_nccl_tune(
                64 * RANGE, 5000, 60); /* as many ranges as before would take long on a busy machine */
        assert_int_equal(ops->comm->id(m->device, w->id, NULL), 0);
        each(w, do_open);
        assert_all(w, 0);
        each(w, do_reduce);
        assert_all(w, 0);
        assert_total(w, 0);
        assert_own(w, 0);
        world_deinit(w);
}

/* Rank `dead` is gone, and nobody tells the others. */
static void a_rank_does_not_reduce(void **state)
{
        for (uint32_t dead = 0; dead < 3; dead++) {
                struct world w;
                open_world(&w, 3, 9 * RANGE);
                w.root = 1;
                for (uint32_t r = 0; r < 3; r++)
                        w.members[r].deadline_ms = r == dead ? 0 : SHORT_MS;
                each(&w, do_reduce);
                for (uint32_t r = 0; r < 3; r++)
                        if (r != dead)
                                assert_broken(&w.members[r], "reduce: not done within 120 ms");
                assert_int_equal(mfl_emu_pending(), 0);
                assert_own(&w, 0);
                assert_recovers(&w);
        }
}

static void a_reduction_is_cancelled_midway(void **state)
{
        struct world w;
        open_world(&w, 2, 4000 * RANGE);
        struct watcher v = {.world = &w, .cancel_at = 10 * RANGE};
        w.members[1].deadline_ms = 700;
        reduce_watched(&w, &v);
        assert_broken(&w.members[0], "reduce: cancelled");
        assert_true(w.members[0].control.ready >= 10 * RANGE && w.members[0].control.ready < w.n);
        assert_int_equal(w.members[1].rc, MFL_COMM_BROKEN);
        assert_recovers(&w);
}

static void a_reduction_is_cancelled_before(void **state)
{
        struct world w;
        open_world(&w, 2, 5 * RANGE);
        w.members[0].control.cancel = true;
        w.members[1].deadline_ms = SHORT_MS;
        each(&w, do_reduce);
        assert_broken(&w.members[0], "reduce: cancelled");
        assert_int_equal(w.members[0].control.ready, 0);
        assert_broken(&w.members[1], "not done within");
        assert_recovers(&w);
}

static void an_error_while_reducing(void **state)
{
        for (int looks = 0; looks < 12; looks += 3) {
                struct world w;
                open_world(&w, 2, 9 * RANGE);
                w.members[0].deadline_ms = SHORT_MS;
                mfl_emu_nccl_async(1, 6, looks);
                each(&w, do_reduce);
                mfl_emu_nccl_async(1, 0, 0);
                assert_broken(&w.members[0], "reduce");
                assert_broken(&w.members[1], "an error that was asked for");
                assert_recovers(&w);
        }
}

/* ---- registration ---- */

static void sums_come_and_go(void **state)
{
        struct world w;
        open_world(&w, 2, 3 * RANGE);
        for (int round = 0; round < 3; round++) {
                each(&w, do_reduce);
                assert_all(&w, 0);
                assert_total(&w, 0);
                assert_int_equal(mfl_emu_nccl_registered(), 3); /* and the root's ring */
                for (uint32_t r = 0; r < 2; r++) {
                        ops->sum_free(w.members[r].sum);
                        assert_int_equal(ops->sum_new(w.members[r].device, w.n, &w.members[r].sum, NULL), 0);
                        assert_int_equal(ops->sum_read(w.members[r].sum, w.members[r].host, NULL, NULL), 0);
                        for (uint64_t i = 0; i < w.n; i++)
                                assert_int_equal(w.members[r].host[i], 0);
                        fill(&w.members[r], 0);
                }
                assert_int_equal(mfl_emu_nccl_registered(), 1);
        }
        world_deinit(&w);
}

/* ---- every call and every allocation fails once ---- */

static int one_alone(struct world *w)
{
        struct member *m = &w->members[0];
        int rc = ops->comm->id(m->device, w->id, &m->err);
        if (rc)
                return rc;
        do_open(m);
        if (!m->rc)
                do_reduce(m);
        return m->rc;
}

static void calls_fail(void **state)
{
        long n = 1;
        for (bool struck = true; struck; n++) {
                struct world w;
                world_init(&w, 1, 3 * RANGE);
                w.members[0].deadline_ms = 2000;
                mfl_emu_fail_at("*", n);
                int rc = one_alone(&w);
                struck = mfl_emu_failed();
                mfl_emu_fail_at("*", 0);
                if (struck) {
                        assert_true(rc == 0 || rc == MFL_COMM_BROKEN || rc < 0);
                        assert_true(rc == 0 || *w.members[0].err.text);
                }
                assert_true(rc >= 0 || struck);
                if (cudaDeviceSynchronize() != cudaSuccess) { /* the device is broken, which stays */
                        do_close(&w.members[0]);
                        assert_int_equal(mfl_emu_nccl_open(), 0);
                        ops->sum_free(w.members[0].sum);
                        cudaDeviceReset();
                        free(w.members[0].device);
                        free(w.members[0].out);
                        free(w.members[0].host);
                        continue;
                }
                if (rc == 0)
                        assert_total(&w, 0);
                world_deinit(&w);
        }
        assert_true(n > 30);
}

static void allocations_fail(void **state)
{
        bool struck = true;
        for (long n = 0; struck; n++) {
                struct world w;
                world_init(&w, 1, 3 * RANGE);
                mfl_alloc_fail_at(n);
                int rc = one_alone(&w);
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(rc, struck ? -ENOMEM : 0);
                world_deinit(&w);
        }
}

static void no_room(void **state)
{
        struct world w;
        struct mfl_sum *sum;
        struct mfl_error err;
        world_init(&w, 1, RANGE);
        mfl_emu_set_memory(1 << 20);
        assert_int_equal(ops->sum_new(w.members[0].device, 1 << 20, &sum, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "8388608 bytes wanted"));
        mfl_emu_set_memory((uint64_t)8 << 30);
        world_deinit(&w);
}

/* ---- where there is none ---- */

static void versions(void **state)
{
        struct mfl_device *device = make_device(0);
        struct mfl_error err;
        char text[64];
        uint32_t version = 0;
        assert_int_equal(ops->comm->version(device, text, &version, &err), 0);
        assert_int_equal(strncmp(text, "NCCL 2.", 7), 0);
        assert_true(version >= 21900);
        setenv("MFL_EMU_NCCL", "22703", 1);
        assert_int_equal(ops->comm->version(device, text, &version, &err), 0);
        assert_string_equal(text, "NCCL 2.27.3");
        assert_int_equal(version, 22703);
        setenv("MFL_EMU_NCCL", "absent", 1);
        assert_int_equal(ops->comm->version(device, text, &version, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "not there"));
        unsetenv("MFL_EMU_NCCL");
        memcpy(device->info.uuid, "MIG", 3);
        assert_int_equal(ops->comm->version(device, text, &version, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "MIG instance"));
        free(device);
}

/* The last test: afterwards this process can have no communicators. */
static void an_abort_that_hangs(void **state)
{
        struct world w;
        char text[64];
        uint32_t version;
        struct timespec nap = {.tv_nsec = 5000000};
        open_world(&w, 2, 3 * RANGE);
        mfl_cuda_nccl_tune(RANGE, 100, 100);
        w.members[0].deadline_ms = SHORT_MS;
        w.members[1].deadline_ms = 0;
        mfl_emu_nccl_hang_abort(true);
        each(&w, do_reduce);
        assert_broken(&w.members[0], "not done within");
        assert_int_equal(
                ops->comm->version(w.members[0].device, text, &version, &w.members[0].err), MFL_INVALID);
        assert_non_null(strstr(w.members[0].err.text, "could not be aborted"));
        assert_int_equal(ops->comm->open(w.members[0].device, w.id, 0, 1, LONG_MS, &w.members[0].control,
                                 &w.members[0].comm, &w.members[0].err),
                MFL_INVALID);
        each(&w, do_close); /* comes back */
        uint64_t used = mfl_emu_memory_used();
        for (uint32_t r = 0; r < 2; r++)
                ops->sum_free(w.members[r].sum);
        assert_int_equal(mfl_emu_memory_used(), used); /* somebody may still write there */
        mfl_emu_nccl_hang_abort(false);
        while (mfl_emu_nccl_open())
                nanosleep(&nap, NULL);
        cudaDeviceReset();
        for (uint32_t r = 0; r < 2; r++) {
                free(w.members[r].device);
                free(w.members[r].out);
                free(w.members[r].host);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(processes_add),
                cmocka_unit_test(processes_on_one_card),
                cmocka_unit_test(killed_process),
                cmocka_unit_test(exact_sums),
                cmocka_unit_test(many_rounds_on_one_communicator),
                cmocka_unit_test(ranges_are_final_when_said),
                cmocka_unit_test(a_rank_never_opens),
                cmocka_unit_test(opening_is_cancelled),
                cmocka_unit_test(two_ranks_on_one_card),
                cmocka_unit_test(an_error_while_opening),
                cmocka_unit_test(a_rank_does_not_reduce),
                cmocka_unit_test(a_reduction_is_cancelled_midway),
                cmocka_unit_test(a_reduction_is_cancelled_before),
                cmocka_unit_test(an_error_while_reducing),
                cmocka_unit_test(sums_come_and_go),
                cmocka_unit_test(calls_fail),
                cmocka_unit_test(allocations_fail),
                cmocka_unit_test(no_room),
                cmocka_unit_test(versions),
                cmocka_unit_test(an_abort_that_hangs),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
