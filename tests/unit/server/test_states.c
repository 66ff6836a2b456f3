/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' states: the exact sum, rows that only a commit makes the clients', damage, disk space. */
#include "tests/unit/server/fixture.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "server/runtime/states.h"

#define N 40000u /* more than one range */

struct bed {
        struct fixture f;
        char path[100];
        struct mfl_store_states rows; /* those of the last commit, as the database has them */
        struct mfl_states *states;
        uint32_t population, lost;
        uint64_t edges[2];
        struct mfl_fixed_parts statistics;
};

static void ok(int r, const struct mfl_error *err)
{
        if (r)
                fail_msg("%d: %s", r, err->text);
}

static void open_states(struct bed *b)
{
        struct mfl_error err = {{0}};
        const struct mfl_states_options options = {.path = b->path,
                .spec = &b->f.spec,
                .statistics = &b->statistics,
                .n = N,
                .population = b->population,
                .known = &b->rows};
        ok(mfl_states_open(&options, &b->states, &err), &err);
}

static void begin(struct bed *b, enum mfl_strategy_kind strategy, uint32_t population)
{
        *b = (struct bed){.population = population, .edges = {100, 200}};
        b->statistics = (struct mfl_fixed_parts){b->edges, 2};
        fixture_init(&b->f, strategy, 4);
        b->f.spec.training.lr = 0.5f;
        b->f.spec.aggregation.alpha = 0.25;
        b->f.spec.aggregation.option = MFL_SCAFFOLD_II;
        snprintf(b->path, sizeof b->path, "%s/clients.f32", b->f.dir);
        open_states(b);
}

static void end(struct bed *b)
{
        mfl_states_close(b->states);
        mfl_store_states_deinit(&b->rows);
        fixture_deinit(&b->f);
}

static void put(struct bed *b, uint64_t client, uint32_t round, uint64_t steps)
{
        struct mfl_error err = {{0}};
        float *delta = malloc(N * sizeof *delta);
        for (uint64_t i = 0; i < N; i++)
                delta[i] = fixture_delta(client, round, i);
        ok(mfl_states_put(b->states, client, steps, delta, &err), &err);
        mfl_states_keep(b->states);
        free(delta);
}

static void apply(struct bed *b)
{
        struct mfl_error err = {{0}};
        const double *mean;
        for (uint64_t first = 0; first < N; first += MFL_STATES_RANGE)
                ok(mfl_states_advance(
                           b->states, first, MFL_MIN(N - first, (uint64_t)MFL_STATES_RANGE), &mean, &err),
                        &err);
        ok(mfl_states_apply(b->states, &err), &err);
        ok(mfl_states_sync(b->states, &err), &err);
}

/* As the store would. */
static void take_row(struct bed *b, const struct mfl_store_state *row)
{
        uint32_t i = 0;
        while (i < b->rows.n && b->rows.v[i].client != row->client)
                i++;
        if (i == b->rows.n) {
                b->rows.v = realloc(b->rows.v, ++b->rows.n * sizeof *row);
                b->rows.v[i].client = row->client;
        }
        b->rows.v[i] = *row;
        if (row->slot == MFL_STORE_STATE_LOST)
                b->rows.v[i] = b->rows.v[--b->rows.n];
}

static void commit(struct bed *b, uint32_t round)
{
        const struct mfl_store_states *batch = mfl_states_batch(b->states, round, &b->lost);
        assert_non_null(batch);
        for (uint32_t i = 0; i < batch->n; i++)
                take_row(b, &batch->v[i]);
        mfl_states_committed(b->states, round);
}

static void reopen(struct bed *b)
{
        mfl_states_close(b->states);
        open_states(b);
}

/* A client's row, as the database and the file have it. */
static void read_row(const struct bed *b, uint32_t i, float *row)
{
        int fd = open(b->path, O_RDONLY);
        ssize_t got = pread(fd, row, N * sizeof *row, (off_t)(b->rows.v[i].slot * mfl_method_row_bytes(N)));
        close(fd);
        assert_int_equal(got, N * sizeof *row);
        assert_int_equal(mfl_crc32c(0, row, N * sizeof *row), b->rows.v[i].crc);
}

/* The sum over all clients is that of the committed rows, as integers. */
static void check_sum(const struct bed *b)
{
        float *row = malloc(N * sizeof *row);
        int64_t *sum = calloc(N, sizeof *sum);
        for (uint32_t k = 0; k < b->rows.n; k++) {
                read_row(b, k, row);
                for (uint64_t i = 0; i < N; i++)
                        sum[i] += mfl_states_units(b->states, row[i]);
                for (uint64_t i = b->edges[0]; i < b->edges[1]; i++)
                        assert_true(row[i] == 0); /* running statistics are no gradients */
        }
        for (uint64_t i = 0; i < N; i++)
                if (sum[i] != mfl_states_sum(b->states, i))
                        fail_msg("element %llu", (unsigned long long)i);
        free(row);
        free(sum);
}

static void one_round(struct bed *b, uint32_t round, uint64_t first, uint64_t n)
{
        mfl_states_round_open(b->states, round);
        for (uint64_t k = first; k < first + n; k++)
                put(b, k, round, 1 + k % 3);
        apply(b);
        commit(b, round);
}

static void the_sum_is_that_of_all_rows(void **state)
{
        struct bed b;
        begin(&b, MFL_STRATEGY_SCAFFOLD, 20);
        for (uint32_t r = 1; r <= 4; r++) {
                one_round(&b, r, r, 6);
                check_sum(&b);
        }
        assert_int_equal(b.rows.n, 9);
        int64_t before = mfl_states_sum(b.states, 7);
        reopen(&b);
        assert_int_equal(mfl_states_lost(b.states), 0);
        assert_int_equal(mfl_states_sum(b.states, 7), before);
        check_sum(&b);
        end(&b);
}

/* Client 1's second state by the paper, and what its third training is corrected by. */
static void states_are_the_papers(void **state)
{
        struct bed b;
        struct mfl_error err = {{0}};
        float *row = malloc(N * sizeof *row), *added = malloc(N * sizeof *added);
        begin(&b, MFL_STRATEGY_SCAFFOLD, 8);
        one_round(&b, 1, 1, 1);
        one_round(&b, 2, 1, 1);
        double first = -(double)fixture_delta(1, 1, 5) / (2 * 0.5);
        double c = first / 8, second = first - c - (double)fixture_delta(1, 2, 5) / (2 * 0.5);
        read_row(&b, 0, row);
        assert_true(fabs((double)row[5] - second) < 1e-6);
        ok(mfl_states_correction(b.states, 1, NULL, added, &err), &err);
        assert_true(fabs((double)added[5] - (second / 8 - second)) < 1e-6);
        ok(mfl_states_correction(b.states, 2, NULL, added, &err), &err); /* it never had a turn */
        assert_true(fabs((double)added[5] - second / 8) < 1e-6 && added[150] == 0);
        end(&b);
        begin(&b, MFL_STRATEGY_FEDDYN, 8);
        one_round(&b, 1, 1, 1);
        one_round(&b, 2, 1, 1);
        read_row(&b, 0, row);
        double g = -0.25 * ((double)fixture_delta(1, 1, 5) + (double)fixture_delta(1, 2, 5));
        assert_true(fabs((double)row[5] - g) < 1e-6);
        ok(mfl_states_correction(b.states, 1, NULL, added, &err), &err);
        assert_true(added[5] == -row[5]);
        end(&b);
        free(row);
        free(added);
}

/* Whatever a round that is not committed has written goes with it: it may have been put only, put twice, or applied. */
static void only_a_commit_counts(void **state)
{
        struct bed b;
        begin(&b, MFL_STRATEGY_SCAFFOLD, 8);
        one_round(&b, 1, 0, 4);
        mfl_states_round_open(b.states, 2);
        for (uint64_t k = 2; k < 6; k++)
                put(&b, k, 77, 1);
        put(&b, 3, 78, 1);
        check_sum(&b);
        mfl_states_round_open(b.states, 2); /* it is tried again */
        put(&b, 5, 79, 1);
        check_sum(&b);
        reopen(&b); /* the process has died */
        check_sum(&b);
        mfl_states_round_open(b.states, 2);
        put(&b, 0, 80, 1);
        put(&b, 6, 80, 1);
        apply(&b);
        reopen(&b); /* ... between apply and commit */
        check_sum(&b);
        assert_int_equal(mfl_states_lost(b.states), 0);
        one_round(&b, 2, 3, 3);
        check_sum(&b);
        assert_int_equal(b.rows.n, 6);
        end(&b);
}

/* The next round may begin before the last one is committed. */
static void rounds_may_overlap(void **state)
{
        struct bed b;
        begin(&b, MFL_STRATEGY_FEDDYN, 8);
        mfl_states_round_open(b.states, 1);
        put(&b, 1, 1, 1);
        apply(&b);
        mfl_states_round_open(b.states, 2);
        put(&b, 1, 2, 1);
        put(&b, 2, 2, 1);
        commit(&b, 1);
        apply(&b);
        commit(&b, 2);
        check_sum(&b);
        reopen(&b);
        check_sum(&b);
        assert_int_equal(mfl_states_lost(b.states), 0);
        end(&b);
}

static void damaged_states_begin_anew(void **state)
{
        struct bed b;
        begin(&b, MFL_STRATEGY_SCAFFOLD, 8);
        one_round(&b, 1, 0, 5);
        int fd = open(b.path, O_RDWR);
        assert_int_equal(pwrite(fd, "x", 1, (off_t)(b.rows.v[2].slot * mfl_method_row_bytes(N)) + 70000), 1);
        close(fd);
        b.rows.v[4].slot = MFL_STORE_STATE_LOST; /* its round is superseded */
        reopen(&b);
        assert_int_equal(mfl_states_lost(b.states), 2);
        assert_int_equal(mfl_states_seen(b.states), 3);
        one_round(&b, 2, 6, 1);
        assert_int_equal(b.lost, 2);
        assert_int_equal(b.rows.n, 4);
        check_sum(&b);
        reopen(&b);
        assert_int_equal(mfl_states_lost(b.states), 0);
        unlink(b.path);
        reopen(&b);
        assert_int_equal(mfl_states_lost(b.states), 4);
        end(&b);
}

static void diverging_clients_are_refused(void **state)
{
        struct bed b;
        struct mfl_error err = {{0}};
        begin(&b, MFL_STRATEGY_SCAFFOLD, 8);
        float *delta = calloc(N, sizeof *delta);
        mfl_states_round_open(b.states, 1);
        put(&b, 1, 1, 1);
        for (float v = 1e4f;; v = v < 1e6f ? v * 100 : NAN) {
                delta[30001] = v;
                assert_int_equal(mfl_states_put(b.states, 2, 1, delta, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, "the state of client 2 would have "));
                if (v != v)
                        break;
        }
        apply(&b);
        commit(&b, 1);
        check_sum(&b);
        assert_int_equal(b.rows.n, 1);
        free(delta);
        end(&b);
}

/* Old rows give their blocks back. */
static void disk_is_that_of_the_clients_seen(void **state)
{
        struct bed b;
        struct stat st;
        begin(&b, MFL_STRATEGY_SCAFFOLD, 30);
        for (uint32_t r = 1; r <= 6; r++)
                one_round(&b, r, 0, 20);
        assert_int_equal(stat(b.path, &st), 0);
        double blocks = (double)st.st_blocks * 512, rows = 20.0 * N * sizeof(float);
        if (blocks > 1.05 * rows || blocks < rows)
                fail_msg("%.0f bytes for %.0f of rows", blocks, rows);
        end(&b);
}

static void the_mean_of_sites_is_over_those_seen(void **state)
{
        struct bed b;
        struct mfl_error err = {{0}};
        float *added = malloc(N * sizeof *added);
        begin(&b, MFL_STRATEGY_SCAFFOLD, 0);
        one_round(&b, 1, 0xf000000000000001u, 1);
        one_round(&b, 2, 3, 1);
        ok(mfl_states_correction(b.states, 99, NULL, added, &err), &err);
        double one = mfl_states_sum(b.states, 5) / 2.0;
        double unit = (double)mfl_states_units(b.states, 1);
        assert_true(fabs((double)added[5] - one / unit) < 1e-6);
        check_sum(&b);
        free(added);
        end(&b);
}

/* Clients with a model of their own: the row is what the daemon sent, whatever its size, and nothing is added up. */
static void own_models_are_kept_as_they_are(void **state)
{
        struct bed b;
        struct mfl_error err = {{0}};
        float *update = malloc(2 * N * sizeof *update), *params = malloc(N * sizeof *params),
              *got = malloc(N * sizeof *got);
        begin(&b, MFL_STRATEGY_DITTO, 8);
        assert_int_equal(mfl_states_bytes(&b.f.spec, N), 0);
        for (uint32_t i = 0; i < N; i++) {
                update[i] = 1;
                update[N + i] = (float)i * 1e30f;
                params[i] = (float)i;
        }
        mfl_states_round_open(b.states, 1);
        ok(mfl_states_put(b.states, 3, 1, update, &err), &err);
        mfl_states_keep(b.states);
        ok(mfl_states_correction(b.states, 3, params, got, &err), &err); /* no round was applied yet */
        assert_memory_equal(got, params, N * sizeof *got);
        apply(&b);
        commit(&b, 1);
        reopen(&b);
        ok(mfl_states_correction(b.states, 3, params, got, &err), &err);
        assert_memory_equal(got, update + N, N * sizeof *got);
        ok(mfl_states_correction(b.states, 4, params, got, &err), &err);
        assert_memory_equal(got, params, N * sizeof *got);
        mfl_states_round_open(b.states, 2);
        update[2 * N - 1] = NAN;
        assert_int_equal(mfl_states_put(b.states, 3, 1, update, &err), MFL_INVALID);
        end(&b);
        free(update);
        free(params);
        free(got);
}

/* Layers of clients' own are added to nothing, so a running statistic may move far. */
static void own_statistics_may_be_large(void **state)
{
        struct bed b;
        struct mfl_error err = {{0}};
        uint64_t edges[] = {50, 150};
        char(*globs)[MFL_TENSOR_NAME_BYTES] = calloc(1, sizeof *globs);
        const struct mfl_fixed_parts personal = {edges, 2};
        float *delta = calloc(N, sizeof *delta), *got = malloc(N * sizeof *got);
        b = (struct bed){.population = 8};
        fixture_init(&b.f, MFL_STRATEGY_FEDAVG, 4);
        b.f.spec.personal.layers.v = globs;
        b.f.spec.personal.layers.n = 1;
        snprintf(b.path, sizeof b.path, "%s/clients.f32", b.f.dir);
        const struct mfl_states_options options = {.path = b.path,
                .spec = &b.f.spec,
                .statistics = &b.statistics,
                .personal = &personal,
                .n = N,
                .population = 8,
                .known = &b.rows};
        ok(mfl_states_open(&options, &b.states, &err), &err);
        delta[49] = 1;
        delta[50] = 60000;
        mfl_states_round_open(b.states, 1);
        ok(mfl_states_put(b.states, 0, 1, delta, &err), &err);
        mfl_states_keep(b.states);
        apply(&b);
        ok(mfl_states_correction(b.states, 0, NULL, got, &err), &err);
        assert_true(got[49] == 0 && got[50] == 60000);
        end(&b);
        free(globs);
        free(delta);
        free(got);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_sum_is_that_of_all_rows),
                cmocka_unit_test(states_are_the_papers),
                cmocka_unit_test(only_a_commit_counts),
                cmocka_unit_test(rounds_may_overlap),
                cmocka_unit_test(damaged_states_begin_anew),
                cmocka_unit_test(diverging_clients_are_refused),
                cmocka_unit_test(disk_is_that_of_the_clients_seen),
                cmocka_unit_test(the_mean_of_sites_is_over_those_seen),
                cmocka_unit_test(own_models_are_kept_as_they_are),
                cmocka_unit_test(own_statistics_may_be_large),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
