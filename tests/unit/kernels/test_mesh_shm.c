/* SPDX-License-Identifier: Apache-2.0 */
/* Shared-memory meshes between processes: ranks that are killed or stopped anywhere, that never come, and what is left. */
#include "tests/lib/test.h"
#include "kernels/mesh/mesh_shm.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3u
#define ELEMENTS 50000u
#define OPEN_MS 2000
#define STOP_MS 800    /* what an operation may take before a rank that was stopped counts as late */
#define DEATH_MS 30000 /* ... before one that was killed does: the others know long before */
#define PAUSE_US 3000
#define TRIES 4

static char prefix[64];
static uint32_t epoch;

static struct mfl_mesh_shm_options options_of(uint32_t rank, uint32_t deadline_ms)
{
        return (struct mfl_mesh_shm_options){.prefix = prefix,
                .team = 0x1234,
                .epoch = epoch,
                .rank = rank,
                .n_ranks = RANKS,
                .bytes = MFL_MESH_SHM_BYTES_MIN,
                .deadline_ms = deadline_ms};
}

static unsigned n_files(void)
{
        unsigned n = 0;
        DIR *dir = opendir(MFL_MESH_SHM_DIR);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
                n += !strncmp(entry->d_name, prefix, strlen(prefix));
        closedir(dir);
        return n;
}

/* Steps until the mesh breaks; the text goes to the pipe. Exits with 0 if it broke and every sum before was right. */
static void worker(uint32_t rank, uint32_t open_ms, uint32_t op_ms, int to)
{
        struct mfl_mesh_shm_options options = options_of(rank, open_ms);
        struct mfl_mesh *mesh = NULL;
        struct mfl_error err = {""};
        int64_t *x = mfl_calloc(ELEMENTS, sizeof(*x));
        int r = mfl_mesh_shm_open(&options, &mesh, &err);
        bool wrong = !x;
        for (uint32_t step = 0; !r && !wrong; step++) {
                for (uint64_t i = 0; i < ELEMENTS; i++)
                        x[i] = (int64_t)(i * (rank + 1) + step);
                struct mfl_mesh_op op = {
                        .kind = MFL_MESH_ALL_REDUCE, .step = step, .in = x, .out = x, .n = ELEMENTS};
                r = mfl_mesh_run(mesh, &op, op_ms, NULL, &err);
                for (uint64_t i = 0; !r && i < ELEMENTS; i++)
                        wrong |= x[i] != (int64_t)(i * (RANKS * (RANKS + 1) / 2) + RANKS * step);
        }
        mfl_mesh_close(mesh);
        free(x);
        ssize_t written = write(to, err.text, strlen(err.text));
        _exit(wrong || r != MFL_MESH_BROKEN || written < 0);
}

struct process {
        pid_t pid;
        int from;
        char text[600];
        int status;
};

static void start(struct process *process, uint32_t rank, uint32_t open_ms, uint32_t op_ms)
{
        int ends[2];
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        *process = (struct process){.pid = fork(), .from = ends[0]};
        if (!process->pid) {
                alarm(60);
                worker(rank, open_ms, op_ms, ends[1]);
        }
        close(ends[1]);
        assert_true(process->pid > 0);
}

static void finish(struct process *process)
{
        size_t n = 0;
        for (ssize_t got; (got = read(process->from, process->text + n, sizeof(process->text) - 1 - n)) > 0;)
                n += (size_t)got;
        process->text[n] = 0;
        close(process->from);
        assert_int_equal(waitpid(process->pid, &process->status, 0), process->pid);
}

/* One rank gets the signal after so many microseconds; the others must find the mesh broken. Whether both say by whom:
 * on a machine that stands still for a moment another rank is late, too. */
static bool hit(int signal, uint32_t victim, long after_us)
{
        struct process ranks[RANKS];
        char name[16];
        bool named = true;
        epoch++;
        for (uint32_t r = 0; r < RANKS; r++)
                start(&ranks[r], r, OPEN_MS, signal == SIGSTOP ? STOP_MS : DEATH_MS);
        nanosleep(&(struct timespec){.tv_nsec = after_us * 1000}, NULL);
        kill(ranks[victim].pid, signal);
        /* The last words: of who came too late, or has died. */
        snprintf(name, sizeof(name), "rank %u ", victim);
        for (uint32_t r = 0; r < RANKS; r++)
                if (r != victim) {
                        finish(&ranks[r]);
                        assert_int_equal(ranks[r].status, 0);
                        assert_non_null(strstr(ranks[r].text, "rank "));
                        if (!strstr(ranks[r].text, name)) {
                                print_message("rank %u: %s\n", r, ranks[r].text);
                                named = false;
                        }
                }
        if (signal == SIGSTOP) { /* it wakes when the others have gone: nothing is taken from it any more */
                kill(ranks[victim].pid, SIGCONT);
                finish(&ranks[victim]);
                assert_int_equal(ranks[victim].status, 0);
        } else {
                finish(&ranks[victim]);
        }
        assert_int_equal(n_files(), 0);
        return named;
}

static void who_dies_or_stops_is_named_and_nothing_is_left(void **state)
{
        unsigned seed = 17;
        for (int i = 0; i < 24; i++) {
                int tries = 0;
                while (!hit(i % 4 ? SIGKILL : SIGSTOP, (uint32_t)i % RANKS, PAUSE_US + rand_r(&seed) % 40000))
                        assert_true(++tries < TRIES);
        }
}

static void who_never_comes_is_named(void **state)
{
        struct process ranks[RANKS];
        epoch++;
        for (uint32_t r = 0; r < RANKS - 1; r++)
                start(&ranks[r], r, 50, DEATH_MS);
        for (uint32_t r = 0; r < RANKS - 1; r++) {
                finish(&ranks[r]);
                assert_int_equal(ranks[r].status, 0);
        }
        assert_true(strstr(ranks[0].text, "rank 2 of the team did not come within 50 ms") ||
                    strstr(ranks[1].text, "rank 2 of the team did not come within 50 ms"));
        assert_int_equal(n_files(), 0);
}

static void cancelling_ends_the_opening(void **state)
{
        atomic_bool cancel = true;
        struct mfl_mesh *mesh = NULL;
        struct mfl_error err = {""};
        struct mfl_mesh_shm_options options = options_of(0, 60000);
        options.cancel = &cancel;
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), MFL_MESH_BROKEN);
        assert_non_null(strstr(err.text, "cancelled"));
        assert_int_equal(n_files(), 0);
}

static void leave_file(const char *name, const char *text)
{
        int dir = open(MFL_MESH_SHM_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int fd = openat(dir, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
        close(fd);
        close(dir);
}

/* A file of a process that died, even with the own name, is in nobody's way; one of a living process is an error. */
static void what_the_dead_left_is_removed(void **state)
{
        struct mfl_mesh *mesh = NULL;
        struct mfl_error err = {""};
        char name[128];
        epoch++;
        struct mfl_mesh_shm_options options = options_of(0, 1000);
        options.n_ranks = 1;
        snprintf(name, sizeof(name), "%s%016x-%08x.0", prefix, 0x1234, epoch);
        leave_file(name, "half");
        snprintf(name, sizeof(name), "%s%016x-%08x.1", prefix, 0x99, 7);
        leave_file(name, "other team");
        assert_int_equal(n_files(), 2);
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), 0);
        assert_int_equal(n_files(), 0);
        mfl_mesh_close(mesh);

        struct process rank;
        epoch++;
        start(&rank, 0, 30000, DEATH_MS);
        while (!n_files())
                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        options = options_of(0, 10);
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "another process is rank 0"));
        assert_int_equal(n_files(), 1);
        kill(rank.pid, SIGKILL);
        finish(&rank);
        options = options_of(0, 10);
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), MFL_MESH_BROKEN);
        assert_int_equal(n_files(), 0);
}

static void a_directory_that_is_none_is_an_error(void **state)
{
        struct mfl_mesh *mesh = NULL;
        struct mfl_error err = {""};
        struct mfl_mesh_shm_options options = options_of(0, 10);
        options.dir = "/dev/null";
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "/dev/null"));
}

static void *abort_soon(void *arg)
{
        struct mfl_mesh *mesh = arg;
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        mesh->ops->abort(mesh, "the client was given up");
        return NULL;
}

static void another_thread_aborts(void **state)
{
        struct process ranks[RANKS];
        struct mfl_mesh *mesh = NULL;
        struct mfl_error err = {""};
        pthread_t thread;
        epoch++;
        for (uint32_t r = 1; r < RANKS; r++)
                start(&ranks[r], r, DEATH_MS, DEATH_MS);
        struct mfl_mesh_shm_options options = options_of(0, DEATH_MS);
        assert_int_equal(mfl_mesh_shm_open(&options, &mesh, &err), 0);
        int64_t *x = mfl_calloc(ELEMENTS, sizeof(*x));
        assert_non_null(x);
        for (uint64_t i = 0; i < ELEMENTS; i++)
                x[i] = (int64_t)i;
        struct mfl_mesh_op op = {.kind = MFL_MESH_ALL_REDUCE, .in = x, .out = x, .n = ELEMENTS};
        assert_int_equal(mfl_mesh_run(mesh, &op, DEATH_MS, NULL, &err), 0);
        /* From here on it does nothing, so that the others wait for it until the abort. */
        assert_int_equal(pthread_create(&thread, NULL, abort_soon, mesh), 0);
        pthread_join(thread, NULL);
        free(x);
        op.step = 1;
        assert_int_equal(mfl_mesh_run(mesh, &op, DEATH_MS, NULL, &err), MFL_MESH_BROKEN);
        mfl_mesh_close(mesh);
        for (uint32_t r = 1; r < RANKS; r++) {
                finish(&ranks[r]);
                assert_non_null(strstr(ranks[r].text, "the client was given up"));
        }
        assert_int_equal(n_files(), 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(who_dies_or_stops_is_named_and_nothing_is_left),
                cmocka_unit_test(who_never_comes_is_named),
                cmocka_unit_test(cancelling_ends_the_opening),
                cmocka_unit_test(what_the_dead_left_is_removed),
                cmocka_unit_test(a_directory_that_is_none_is_an_error),
                cmocka_unit_test(another_thread_aborts),
        };
        snprintf(prefix, sizeof(prefix), "mfl-mesh-test-%d-", (int)getpid());
        return cmocka_run_group_tests(tests, NULL, NULL);
}
