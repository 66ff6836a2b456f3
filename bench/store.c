/* SPDX-License-Identifier: Apache-2.0 */
/* What the database of a state directory costs: bench_store [--rounds N] [--lines N] DIR, which must not be
 * there yet and is left behind.
 *
 * Rounds are committed without a checkpoint (their file is named, and not written), each with a row for one
 * node and 4 log lines, as a round of a small job has. Printed are the median time and the processor time of
 * a commit, and the time to open the directory with so many log lines in it.
 */
#include <stdio.h>
#include <sys/resource.h>

#include "server/store/store.h"

#define ROUNDS_MAX 100000
#define LINES_PER_ROUND 4
#define KEEP 2

static void must(int r, const struct mfl_error *err)
{
        if (!r)
                return;
        fprintf(stderr, "bench_store: %s\n", err->text);
        exit(1);
}

static int compare_times(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return x < y ? -1 : x > y;
}

static uint64_t processor_us(void)
{
        struct rusage u;
        getrusage(RUSAGE_SELF, &u);
        return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
               (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void commit(struct mfl_store *store, const char *id, uint32_t number, uint32_t n_lines)
{
        struct mfl_error err;
        struct mfl_store_round round = {.record = {.round = number, .evaluated = true, .accuracy = 0.5}};
        struct mfl_store_node node = {.node = "node-1", .daemons = 2, .up = 1000, .down = 1000};
        const struct mfl_store_nodes nodes = {1, &node};
        snprintf(round.file.name, sizeof round.file.name, "round-%06u.safetensors", number);
        for (uint32_t i = 0; i < n_lines; i++)
                mfl_store_log(
                        store, id, "round 12: daemon site-a-gpu0 has trained client 7 of 100 clients", NULL);
        must(mfl_store_commit(store, id, &round, &nodes, KEEP, &err), &err);
}

static struct mfl_store *open_timed(const char *dir, double *ret_ms)
{
        struct mfl_error err;
        struct mfl_store *store;
        uint64_t start = mfl_now_ns();
        must(mfl_store_open(dir, &store, &err), &err);
        *ret_ms = (double)(mfl_now_ns() - start) / 1e6;
        return store;
}

static void measure(const char *dir, uint32_t rounds, uint32_t lines)
{
        struct mfl_error err;
        char id[MFL_JOB_ID_BYTES];
        double ms;
        uint64_t *times = mfl_malloc(rounds * sizeof *times);
        mfl_assert(times);
        struct mfl_store *store = open_timed(dir, &ms);
        must(mfl_store_job_add(store, "bench", "rounds: 1\n", "", "local", NULL, id, &err), &err);
        uint64_t cpu = processor_us();
        for (uint32_t i = 0; i < rounds; i++) {
                uint64_t start = mfl_now_ns();
                commit(store, id, i + 1, LINES_PER_ROUND);
                times[i] = mfl_now_ns() - start;
        }
        cpu = processor_us() - cpu;
        qsort(times, rounds, sizeof *times, compare_times);
        printf("commit: median %.0f us, 90%% %.0f us, processor %.0f us\n", (double)times[rounds / 2] / 1e3,
                (double)times[rounds / 10 * 9] / 1e3, (double)cpu / rounds);
        for (uint32_t i = 0; i < lines / 1000; i++) /* at most 10000 of each job are kept */
                for (uint32_t j = 0; j < 1000; j++) {
                        char job[MFL_JOB_ID_BYTES];
                        snprintf(job, sizeof job, "j-%u", 100 + i / 10);
                        mfl_store_log(
                                store, job, "round 12: daemon site-a-gpu0 has trained client 7 of 100", NULL);
                        if (j == 999)
                                must(mfl_store_flush(store, &err), &err);
                }
        mfl_store_close(store);
        store = open_timed(dir, &ms);
        printf("open with %u log lines: %.0f ms\n", lines, ms);
        mfl_store_close(store);
        free(times);
}

int main(int argc, char **argv)
{
        uint32_t rounds = 500, lines = 100000;
        int i = 1;
        for (; i + 2 < argc; i += 2) {
                uint32_t *value = !strcmp(argv[i], "--rounds")  ? &rounds
                                  : !strcmp(argv[i], "--lines") ? &lines
                                                                : NULL;
                if (!value || sscanf(argv[i + 1], "%u", value) != 1)
                        break;
        }
        if (i + 1 != argc || !rounds || rounds > ROUNDS_MAX) {
                fprintf(stderr, "usage: bench_store [--rounds N] [--lines N] DIR\n");
                return 2;
        }
        measure(argv[i], rounds, lines);
        return 0;
}
