/* SPDX-License-Identifier: Apache-2.0 */
/* What clients' states cost the server: bench_states [--clients N] [--floats N] [--cohort N] FILE, which is overwritten and left
 * behind.
 *
 * Each client has one turn, in rounds of `cohort` clients, as with `strategy: scaffold`. Printed are the time of a client's new row and
 * of what is added to its gradients, the time to open the file, what memory grew by, and the file's blocks beside the rows. */
#include <stdio.h>
#include <sys/stat.h>

#include "server/runtime/states.h"

static void must(int r, const struct mfl_error *err)
{
        if (!r)
                return;
        fprintf(stderr, "bench_states: %s\n", err->text);
        exit(1);
}

static double resident_mb(void)
{
        unsigned long long pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        if (!f || fscanf(f, "%*u %llu", &pages) != 1)
                pages = 0;
        if (f)
                fclose(f);
        return (double)pages * 4096 / 1e6;
}

/* As the store keeps them. */
static void commit(struct mfl_states *states, uint32_t round, struct mfl_store_states *rows)
{
        uint32_t lost;
        const struct mfl_store_states *batch = mfl_states_batch(states, round, &lost);
        for (uint32_t i = 0; i < batch->n; i++)
                rows->v[rows->n++] = batch->v[i];
        mfl_states_committed(states, round);
}

static void measure(const char *path, uint32_t clients, uint32_t n, uint32_t cohort)
{
        struct mfl_error err;
        struct mfl_job job = {.aggregation = {.strategy = MFL_STRATEGY_SCAFFOLD, .option = MFL_SCAFFOLD_II},
                .training.lr = 0.1f};
        const struct mfl_fixed_parts none = {0};
        struct mfl_store_states rows = {.v = mfl_calloc(clients, sizeof *rows.v)};
        struct mfl_states_options options = {.path = path,
                .spec = &job,
                .statistics = &none,
                .n = n,
                .population = clients,
                .known = &rows};
        float *delta = mfl_calloc(n, sizeof *delta);
        struct mfl_states *states;
        uint64_t put_ns = 0, correct_ns = 0, apply_ns = 0, start;
        const double *mean;
        struct stat st;
        mfl_assert(rows.v && delta);
        remove(path);
        double before = resident_mb();
        must(mfl_states_open(&options, &states, &err), &err);
        for (uint32_t k = 0, round = 1; k < clients; round++) {
                mfl_states_round_open(states, round);
                for (uint32_t end = MFL_MIN(clients, k + cohort); k < end; k++) {
                        start = mfl_now_ns();
                        must(mfl_states_correction(states, k, delta, delta, &err), &err);
                        correct_ns += mfl_now_ns() - start;
                        for (uint32_t i = 0; i < n; i++)
                                delta[i] = (float)((i + k) % 17) * 1e-3f;
                        start = mfl_now_ns();
                        must(mfl_states_put(states, k, 5, delta, &err), &err);
                        mfl_states_keep(states);
                        put_ns += mfl_now_ns() - start;
                }
                start = mfl_now_ns();
                for (uint32_t first = 0; first < n; first += MFL_STATES_RANGE)
                        must(mfl_states_advance(
                                     states, first, MFL_MIN(n - first, MFL_STATES_RANGE), &mean, &err),
                                &err);
                must(mfl_states_apply(states, &err), &err);
                must(mfl_states_sync(states, &err), &err);
                apply_ns += mfl_now_ns() - start;
                commit(states, round, &rows);
        }
        double grown = resident_mb() - before;
        stat(path, &st);
        printf("%u clients of %u floats: a row %.0f us, a correction %.0f us, a round's sums and sync %.1f "
               "ms\n",
                clients, n, (double)put_ns / clients / 1e3, (double)correct_ns / clients / 1e3,
                (double)apply_ns / ((clients + cohort - 1) / cohort) / 1e6);
        printf("memory +%.1f MB, disk %.1f MB for %.1f MB of states (%+.1f%%)\n", grown,
                (double)st.st_blocks * 512 / 1e6, 4.0 * n * clients / 1e6,
                ((double)st.st_blocks * 512 / (4.0 * n * clients) - 1) * 100);
        mfl_states_close(states);
        start = mfl_now_ns();
        must(mfl_states_open(&options, &states, &err), &err);
        printf("open, with every row read: %.2f s, %u lost\n", (double)(mfl_now_ns() - start) / 1e9,
                mfl_states_lost(states));
        mfl_states_close(states);
        free(rows.v);
        free(delta);
}

int main(int argc, char **argv)
{
        uint32_t clients = 10000, floats = 44426, cohort = 100;
        int i = 1;
        for (; i + 2 < argc; i += 2) {
                uint32_t *value = !strcmp(argv[i], "--clients")  ? &clients
                                  : !strcmp(argv[i], "--floats") ? &floats
                                  : !strcmp(argv[i], "--cohort") ? &cohort
                                                                 : NULL;
                if (!value || sscanf(argv[i + 1], "%u", value) != 1 || !*value)
                        break;
        }
        if (i + 1 != argc) {
                fprintf(stderr, "usage: bench_states [--clients N] [--floats N] [--cohort N] FILE\n");
                return 2;
        }
        measure(argv[i], clients, floats, cohort);
        return 0;
}
