/* SPDX-License-Identifier: Apache-2.0 */
/* A job's memory and arithmetic: slots, exact sums, params in flight, the budget. */
#include "tests/unit/server/fixture.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/crc32c.h"
#include "common/base/digest.h"
#include "server/runtime/spill.h"

#define SIDE 60 /* 36,010 parameters: more than two ranges of apply */

static void apply_ok(struct mfl_runtime *rt, uint64_t weight, uint8_t digest[MFL_DIGEST_BYTES])
{
        struct mfl_error err = {{0}};
        if (mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = weight}, digest,
                    (double[MFL_METHOD_STATES_MAX]){0}, &err))
                fail_msg("%s", err.text);
}

/* Client k with weight k + 1, k in 0..4, one by one in the given order. */
static void digest_of_order(const struct fixture *f, const int order[5], uint8_t digest[MFL_DIGEST_BYTES])
{
        struct mfl_runtime *rt = fixture_open(f, 2, NULL);
        mfl_runtime_round_open(rt, 1);
        for (int i = 0; i < 5; i++)
                fixture_add_f32(f, rt, (uint64_t)order[i], 1, (uint64_t)order[i] + 1);
        apply_ok(rt, 15, digest);
        mfl_runtime_close(rt);
}

/* The same clients, 0..2 added beforehand by somebody else, in chunks from the end, some twice. */
static void digest_of_groups(const struct fixture *f, uint8_t digest[MFL_DIGEST_BYTES])
{
        struct mfl_runtime *rt = fixture_open(f, 2, NULL);
        struct mfl_error err = {{0}};
        int64_t *sum = calloc(f->n, sizeof *sum);
        float *delta = malloc(f->n * sizeof *delta);
        for (uint64_t k = 0; k < 3; k++) {
                for (uint64_t i = 0; i < f->n; i++)
                        delta[i] = fixture_delta(k, 1, i);
                assert_int_equal(mfl_fixed_add_f32(&f->fixed, k + 1, delta, f->n, sum, &err), 0);
        }
        mfl_runtime_round_open(rt, 1);
        fixture_add_f32(f, rt, 4, 1, 5);
        uint64_t bytes = f->n * sizeof *sum, chunk = 8 * 1000;
        fixture_slot(rt, 1, MFL_ENCODING_I64, 6, 0);
        for (uint64_t i = (bytes + chunk - 1) / chunk; i-- > 0;) {
                fixture_put(rt, 1, sum, i * chunk, MFL_MIN(chunk, bytes - i * chunk));
                if (i % 5 == 1)
                        fixture_put(rt, 1, sum, i * chunk, MFL_MIN(chunk, bytes - i * chunk));
        }
        struct mfl_range missing[MFL_RANGES_MAX];
        assert_int_equal(mfl_slot_missing(rt, 1, missing), 0);
        assert_int_equal(mfl_slot_add(rt, 1, &err), 0);
        mfl_slot_free(rt, 1);
        fixture_add_f32(f, rt, 3, 1, 4);
        apply_ok(rt, 15, digest);
        mfl_runtime_close(rt);
        free(sum);
        free(delta);
}

static void check_order_independence(enum mfl_strategy_kind kind)
{
        struct fixture f;
        uint8_t a[MFL_DIGEST_BYTES], b[MFL_DIGEST_BYTES], c[MFL_DIGEST_BYTES];
        fixture_init(&f, kind, SIDE);
        digest_of_order(&f, (const int[]){0, 1, 2, 3, 4}, a);
        digest_of_order(&f, (const int[]){3, 0, 4, 2, 1}, b);
        assert_memory_equal(a, b, sizeof a);
        if (!mfl_job_is_robust(&f.spec)) {
                digest_of_groups(&f, c);
                assert_memory_equal(a, c, sizeof a);
        }
        fixture_deinit(&f);
}

static void order_and_grouping_of_updates_do_not_matter(void **state)
{
        check_order_independence(MFL_STRATEGY_FEDAVG);
        check_order_independence(MFL_STRATEGY_FEDYOGI);
        check_order_independence(MFL_STRATEGY_MEDIAN);
        check_order_independence(MFL_STRATEGY_KRUM);
        check_order_independence(MFL_STRATEGY_RFA);
        check_order_independence(MFL_STRATEGY_CENTERED_CLIP);
}

/* Against sums in long double: fixed point is exact to 2^-s. */
static void the_mean_is_applied_to_every_parameter(void **state)
{
        struct fixture f;
        uint8_t digest[MFL_DIGEST_BYTES], again[MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        struct mfl_params *old = mfl_runtime_params(rt, NULL);
        mfl_runtime_round_open(rt, 1);
        for (uint64_t k = 0; k < 3; k++)
                fixture_add_f32(&f, rt, k, 1, k + 1);
        apply_ok(rt, 6, digest);
        struct mfl_params *new = mfl_runtime_params(rt, digest);
        assert_non_null(new);
        for (uint64_t i = 0; i < f.n; i++) {
                double mean = 0;
                for (uint64_t k = 0; k < 3; k++)
                        mean += (double)(k + 1) * (double)fixture_delta(k, 1, i) / 6;
                double want = (double)old->v[i] + mean;
                assert_true(fabs((double)new->v[i] - want) <= fabs(want) * 0x1p-24 + 1e-12);
        }
        mfl_sha256(new->v, f.n * sizeof(float), again, NULL);
        assert_memory_equal(again, new->digest, sizeof again);
        assert_int_equal(mfl_params_crc(new, 0),
                mfl_crc32c(0, new->v, MFL_MIN(f.n * sizeof(float), MFL_PARAMS_CHUNK_BYTES)));
        assert_int_equal(mfl_params_crc(new, 0), mfl_params_crc(new, 0));
        mfl_params_unref(old);
        mfl_params_unref(new);
        mfl_runtime_close(rt);
        fixture_deinit(&f);
}

static void slots_know_what_is_missing(void **state)
{
        struct fixture f;
        struct mfl_error err;
        struct mfl_slot_write write;
        struct mfl_range ranges[MFL_RANGES_MAX];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        uint64_t bytes = f.n * 8;
        char *zeros = calloc(1, bytes);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, 8, &write, &err), MFL_NOT_FOUND);
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), 1);
        assert_int_equal(ranges[0].bytes, bytes);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 4, 8, &write, &err), MFL_INVALID);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, 12, &write, &err), MFL_INVALID);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, 0, &write, &err), MFL_INVALID);
        assert_int_equal(mfl_slot_write_begin(rt, 0, bytes - 8, 16, &write, &err), MFL_INVALID);
        assert_int_equal(mfl_slot_write_begin(rt, 0, UINT64_MAX - 7, 16, &write, &err), MFL_INVALID);
        fixture_put(rt, 0, zeros, 64, 64);
        fixture_put(rt, 0, zeros, 256, 64);
        fixture_put(rt, 0, zeros, 96, 96);  /* overlaps the first */
        fixture_put(rt, 0, zeros, 320, 64); /* touches the second */
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), 3);
        assert_int_equal(ranges[0].offset, 0);
        assert_int_equal(ranges[0].bytes, 64);
        assert_int_equal(ranges[1].offset, 192);
        assert_int_equal(ranges[1].bytes, 64);
        assert_int_equal(ranges[2].offset, 384);
        assert_int_equal(ranges[2].bytes, bytes - 384);
        /* A broken connection's chunk does not count. */
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, 64, &write, &err), 0);
        assert_false(mfl_slot_write_end(rt, &write, false));
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), 3);
        /* Every second 8 bytes: more pieces than a grant has ranges. */
        for (uint64_t i = 0; i < 3000; i++)
                fixture_put(rt, 0, zeros, 4096 + 16 * i, 8);
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), MFL_RANGES_MAX);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, bytes, &write, &err), 0);
        assert_true(mfl_slot_write_end(rt, &write, true));
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), 0);
        /* Complete: nothing more is taken, so that what is checked is what is added. */
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, 8, &write, &err), MFL_NOT_FOUND);
        /* Opened anew: forgotten. A write from before does not count in it. */
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        assert_int_equal(mfl_slot_write_begin(rt, 0, 0, bytes, &write, &err), 0);
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        assert_false(mfl_slot_write_end(rt, &write, true));
        assert_int_equal(mfl_slot_missing(rt, 0, ranges), 1);
        free(zeros);
        mfl_runtime_close(rt);
        fixture_deinit(&f);
}

static void bad_updates_change_nothing(void **state)
{
        struct fixture f;
        struct mfl_error err;
        uint8_t a[MFL_DIGEST_BYTES], b[MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        float *delta = calloc(f.n, sizeof *delta);
        const float bad[] = {NAN, INFINITY, 16.5f, -17.0f};
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL), *clean = fixture_open(&f, 1, NULL);
        mfl_runtime_round_open(rt, 1);
        mfl_runtime_round_open(clean, 1);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                delta[f.n - 1] = bad[i];
                fixture_slot(rt, 0, MFL_ENCODING_F32, 1, 0);
                fixture_put(rt, 0, delta, 0, f.n * 4);
                assert_int_equal(mfl_slot_add(rt, 0, &err), MFL_INVALID);
        }
        /* Good numbers, but more weight than the round's limit of 1024. */
        delta[f.n - 1] = 0;
        fixture_slot(rt, 0, MFL_ENCODING_F32, 1025, 0);
        fixture_put(rt, 0, delta, 0, f.n * 4);
        assert_int_equal(mfl_slot_add(rt, 0, &err), MFL_INVALID);
        mfl_slot_free(rt, 0);
        assert_int_equal(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 0}, a,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &err),
                MFL_INVALID);
        fixture_add_f32(&f, rt, 1, 1, 3);
        fixture_add_f32(&f, clean, 1, 1, 3);
        assert_int_equal(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 4}, a,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &err),
                MFL_INVALID);
        apply_ok(rt, 3, a);
        apply_ok(clean, 3, b);
        assert_memory_equal(a, b, sizeof a);
        free(delta);
        mfl_runtime_close(rt);
        mfl_runtime_close(clean);
        fixture_deinit(&f);
}

static void open_with_budget(const struct fixture *f, struct mfl_budget *budget, uint32_t n_slots, int want,
        struct mfl_runtime **ret_rt)
{
        struct mfl_runtime_options options = {.job = "j-000001",
                .spec = &f->spec,
                .graph = f->graph,
                .fixed = f->fixed,
                .n_slots = n_slots,
                .cohort = 8,
                .state_dir = f->dir,
                .budget = budget};
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_runtime_open(&options, ret_rt, &err), want);
        if (want)
                assert_non_null(strstr(err.text, "j-000001"));
}

static void memory_is_a_few_copies_and_comes_back(void **state)
{
        struct fixture f;
        struct mfl_budget budget;
        struct mfl_runtime *rt;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        uint64_t copy = f.n * sizeof(float);
        assert_int_equal(mfl_runtime_bytes(&f.spec, f.n, 1), 6 * copy);
        f.spec.aggregation.strategy = MFL_STRATEGY_MEDIAN;
        assert_int_equal(mfl_runtime_bytes(&f.spec, f.n, 2), 3 * copy);
        f.spec.aggregation.strategy = MFL_STRATEGY_FEDAVG;
        f.spec.data.partition = MFL_PARTITION_LOCAL; /* a node's daemons add their clients' updates */
        assert_int_equal(mfl_runtime_bytes(&f.spec, f.n, 2), 8 * copy);
        mfl_budget_init(&budget, 8 * copy);
        open_with_budget(&f, &budget, 2, 0, &rt);
        assert_int_equal(mfl_budget_used(&budget), 8 * copy);
        assert_int_equal(mfl_runtime_slots(rt), 2);
        mfl_runtime_close(rt);
        assert_int_equal(mfl_budget_used(&budget), 0);
        open_with_budget(&f, &budget, 8, 0, &rt); /* fewer slots than asked for */
        assert_int_equal(mfl_runtime_slots(rt), 2);
        struct mfl_params *params = mfl_runtime_params(rt, NULL);
        mfl_runtime_close(rt);
        assert_int_equal(mfl_budget_used(&budget), 2 * copy); /* params, in their block, outlive the job */
        assert_true(isfinite(params->v[f.n - 1]));
        mfl_params_unref(params);
        assert_int_equal(mfl_budget_used(&budget), 0);
        mfl_budget_init(&budget, 6 * copy - 1);
        open_with_budget(&f, &budget, 2, MFL_RUNTIME_MEMORY, &rt);
        assert_int_equal(mfl_budget_used(&budget), 0);
        fixture_deinit(&f);
}

static void old_params_stay_while_they_are_sent(void **state)
{
        struct fixture f;
        struct mfl_budget budget;
        struct mfl_runtime *rt;
        struct mfl_error err;
        uint8_t d1[MFL_DIGEST_BYTES], d2[MFL_DIGEST_BYTES], d0[MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        mfl_budget_init(&budget, 0);
        open_with_budget(&f, &budget, 1, 0, &rt);
        uint64_t base = mfl_budget_used(&budget);
        struct mfl_params *p0 = mfl_runtime_params(rt, NULL);
        memcpy(d0, p0->digest, sizeof d0);
        float first = p0->v[0];
        mfl_runtime_round_open(rt, 1);
        fixture_add_f32(&f, rt, 1, 1, 1);
        apply_ok(rt, 1, d1);
        struct mfl_params *again = mfl_runtime_params(rt, d0);
        assert_ptr_equal(again, p0);
        mfl_params_unref(again);
        assert_false(atomic_load(&p0->retired));
        mfl_runtime_round_open(rt, 2);
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        assert_int_equal(mfl_budget_used(&budget), base + f.n * 8); /* a spare block */
        mfl_slot_free(rt, 0);
        assert_int_equal(mfl_budget_used(&budget), base);
        fixture_add_f32(&f, rt, 2, 2, 1);
        apply_ok(rt, 1, d2);
        assert_true(atomic_load(&p0->retired));
        assert_null(mfl_runtime_params(rt, d0));
        assert_null(mfl_runtime_params(rt, d1)); /* nobody held those */
        assert_true(p0->v[0] == first);
        mfl_params_unref(p0);
        assert_int_equal(mfl_budget_used(&budget), base);
        /* A slot freed in the middle of a chunk: memory stays until the chunk ends, then the spare goes. */
        struct mfl_slot_write writes[4];
        for (int i = 0; i < 3; i++) {
                fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
                assert_int_equal(mfl_slot_write_begin(rt, 0, 0, f.n * 8, &writes[i], &err), 0);
                memset(writes[i].dst, i, f.n * 8);
                mfl_slot_free(rt, 0);
        }
        assert_false(fixture_try_slot(rt, 0, MFL_ENCODING_I64, 1, 0));
        for (int i = 0; i < 3; i++)
                assert_false(mfl_slot_write_end(rt, &writes[i], true));
        assert_int_equal(mfl_budget_used(&budget), base);
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        mfl_runtime_close(rt);
        assert_int_equal(mfl_budget_used(&budget), 0);
        fixture_deinit(&f);
}

static void median_takes_single_updates_only(void **state)
{
        struct fixture f;
        uint8_t digest[MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_MEDIAN, SIDE);
        struct mfl_runtime *rt = fixture_open(&f, 2, NULL);
        struct mfl_params *old = mfl_runtime_params(rt, NULL);
        for (uint64_t round = 1; round <= 2; round++) { /* the second round finds the file empty */
                mfl_runtime_round_open(rt, (uint32_t)round);
                for (uint64_t k = 0; k < 3; k++)
                        fixture_add_f32(&f, rt, k, round, 100 * (k + 1));
                apply_ok(rt, 600, digest);
                struct mfl_params *new = mfl_runtime_params(rt, NULL);
                for (uint64_t i = 0; i < f.n; i++) {
                        float a = fixture_delta(0, round, i), b = fixture_delta(1, round, i),
                              c = fixture_delta(2, round, i);
                        float middle = fmaxf(fminf(a, b), fminf(fmaxf(a, b), c));
                        assert_true(new->v[i] == (float)((double)old->v[i] + (double)middle));
                }
                mfl_params_unref(old);
                old = new;
        }
        mfl_params_unref(old);
        mfl_runtime_close(rt);
        fixture_deinit(&f);
}

/* Four clients are one bucket: the row is the sum of integers over the number of clients, whoever arrives first. */
static void a_bucket_is_an_exact_mean(void **state)
{
        struct fixture f;
        uint8_t digest[2][MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_MEDIAN, SIDE);
        f.spec.aggregation.robust.unit = MFL_ROWS_BUCKET;
        f.spec.aggregation.robust.bucket = 4;
        for (int turn = 0; turn < 2; turn++) {
                struct mfl_runtime *rt = fixture_open(&f, 2, NULL);
                struct mfl_params *old = mfl_runtime_params(rt, NULL);
                mfl_runtime_round_open(rt, 1);
                for (uint64_t k = 0; k < 4; k++)
                        fixture_add_f32(&f, rt, turn ? 3 - k : k, 1, 1);
                apply_ok(rt, 4, digest[turn]);
                struct mfl_params *new = mfl_runtime_params(rt, NULL);
                for (uint64_t i = 0; i < f.n; i++) {
                        int64_t sum = 0;
                        for (uint64_t k = 0; k < 4; k++)
                                sum += llrint(ldexp((double)fixture_delta(k, 1, i), f.fixed.scale_bits));
                        float row = (float)ldexp((double)sum / 4, -f.fixed.scale_bits);
                        assert_true(new->v[i] == (float)((double)old->v[i] + (double)row));
                }
                assert_int_equal(mfl_runtime_report(rt)->n_rows, 1);
                mfl_params_unref(old);
                mfl_params_unref(new);
                mfl_runtime_close(rt);
        }
        assert_memory_equal(digest[0], digest[1], sizeof digest[0]);
        fixture_deinit(&f);
}

/* Several ranges, so that threads meet; and the guess of centered clipping comes from a checkpoint's vector. */
static void any_number_of_threads_gives_the_same_bits(void **state)
{
        struct fixture f;
        uint8_t first[MFL_DIGEST_BYTES], digest[MFL_DIGEST_BYTES];
        fixture_init(&f, MFL_STRATEGY_CENTERED_CLIP, 90);
        assert_true(f.n > 4 * 16384);
        for (uint32_t n = 1; n <= 4; n++) {
                f.n_threads = n;
                struct mfl_runtime *rt = fixture_open(&f, 2, NULL);
                for (uint64_t round = 1; round <= 2; round++) {
                        mfl_runtime_round_open(rt, (uint32_t)round);
                        for (uint64_t k = 0; k < 7; k++)
                                fixture_add_f32(&f, rt, k, round, 1);
                        apply_ok(rt, 7, digest);
                        assert_int_equal(mfl_runtime_report(rt)->n_rows, 7);
                }
                if (n == 1)
                        memcpy(first, digest, sizeof first);
                assert_memory_equal(first, digest, sizeof first);
                mfl_runtime_close(rt);
        }
        fixture_deinit(&f);
}

/* Whoever asks for params by their digest while a round is applied gets those, or none. */
struct asker {
        struct mfl_runtime *rt;
        uint64_t n;
        uint8_t digest[MFL_DIGEST_BYTES];
        atomic_bool stop;
        uint32_t n_wrong;
};

static void *ask_for_params(void *user)
{
        struct asker *asker = user;
        uint8_t found[MFL_DIGEST_BYTES];
        while (!atomic_load(&asker->stop)) {
                struct mfl_params *params = mfl_runtime_params(asker->rt, asker->digest);
                if (!params)
                        continue;
                mfl_sha256(params->v, asker->n * sizeof(float), found, NULL);
                asker->n_wrong += memcmp(found, asker->digest, sizeof found) != 0;
                mfl_params_unref(params);
        }
        return NULL;
}

static void regions_are_found_by_what_they_are(void **state)
{
        struct fixture f;
        uint8_t digest[MFL_DIGEST_BYTES];
        pthread_t thread;
        fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
        f.spec.edges = (struct mfl_edges){.count = 8, .rounds = 100};
        struct mfl_runtime *rt = fixture_open(&f, 2, NULL);
        struct asker asker = {.rt = rt, .n = f.n};
        for (uint32_t round = 1; round <= 20; round++) {
                mfl_runtime_round_open(rt, round);
                for (uint64_t k = 0; k < 8; k++)
                        fixture_add_f32(&f, rt, k, round, 1);
                memcpy(asker.digest, mfl_runtime_digests(rt)[7], sizeof asker.digest);
                atomic_store(&asker.stop, false);
                assert_int_equal(pthread_create(&thread, NULL, ask_for_params, &asker), 0);
                apply_ok(rt, 8, digest);
                atomic_store(&asker.stop, true);
                pthread_join(thread, NULL);
                assert_int_equal(asker.n_wrong, 0);
        }
        for (uint32_t e = 0; e < 8; e++) {
                struct mfl_params *params = mfl_runtime_params(rt, mfl_runtime_digests(rt)[e]);
                assert_non_null(params);
                mfl_sha256(params->v, f.n * sizeof(float), digest, NULL);
                assert_memory_equal(digest, mfl_runtime_digests(rt)[e], sizeof digest);
                mfl_params_unref(params);
        }
        mfl_runtime_close(rt);
        fixture_deinit(&f);
}

/* Region 0 has clients 0 to 3, region 1 the others. */
static int region_round(
        const struct fixture *f, struct mfl_runtime *rt, uint32_t round, uint8_t digest[MFL_DIGEST_BYTES])
{
        struct mfl_error err;
        mfl_runtime_round_open(rt, round);
        fixture_add_f32(f, rt, 0, round, 1);
        fixture_add_f32(f, rt, 7, round, 2);
        return mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 3}, digest,
                (double[MFL_METHOD_STATES_MAX]){0}, &err);
}

/* A download that does not end holds the params that it began with; copies are charged to the budget, and a round waits for room. */
static void regions_that_are_sent_are_copied(void **state)
{
        uint8_t want[MFL_DIGEST_BYTES], digest[MFL_DIGEST_BYTES];
        for (int turn = 0; turn < 3; turn++) { /* nobody downloads; there is room for a copy; there is none */
                struct fixture f;
                struct mfl_budget budget;
                struct mfl_runtime *rt;
                fixture_init(&f, MFL_STRATEGY_FEDAVG, SIDE);
                f.spec.edges = (struct mfl_edges){.count = 2, .rounds = 100};
                uint64_t copy = f.n * sizeof(float), all = mfl_runtime_bytes(&f.spec, f.n, 1);
                mfl_budget_init(&budget, all + (turn == 1 ? copy : 0));
                open_with_budget(&f, &budget, 1, 0, &rt);
                assert_int_equal(region_round(&f, rt, 1, digest), 0);
                struct mfl_params *held = turn ? mfl_runtime_params(rt, mfl_runtime_digests(rt)[0]) : NULL;
                int r = region_round(&f, rt, 2, digest);
                assert_int_equal(r, turn == 2 ? MFL_BUSY : 0);
                assert_int_equal(mfl_budget_used(&budget), all + (turn == 1 ? copy : 0));
                if (held) {
                        mfl_sha256(held->v, copy, digest, NULL);
                        assert_memory_equal(digest, held->digest, sizeof digest);
                        assert_true(held->retired);
                }
                mfl_params_unref(held);
                assert_int_equal(mfl_budget_used(&budget), all);
                if (turn == 2)
                        assert_int_equal(
                                mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = 3}, digest,
                                        (double[MFL_METHOD_STATES_MAX]){0}, &(struct mfl_error){{0}}),
                                0);
                assert_int_equal(region_round(&f, rt, 3, turn ? digest : want), 0);
                if (turn)
                        assert_memory_equal(digest, want, sizeof want);
                held = mfl_runtime_params(rt, mfl_runtime_digests(rt)[0]);
                assert_false(held->retired);
                mfl_runtime_close(rt);
                assert_int_equal(mfl_budget_used(&budget), copy);
                mfl_params_unref(held);
                assert_int_equal(mfl_budget_used(&budget), 0);
                fixture_deinit(&f);
        }
}

/* Also in a round whose only clients are left out (selection.without): the server's momentum goes on. */
static void one_region_is_no_region(void **state)
{
        uint8_t want[3][MFL_DIGEST_BYTES], digest[MFL_DIGEST_BYTES];
        for (uint32_t rounds = 0; rounds <= 2; rounds++) { /* 0: without regions */
                struct fixture f;
                fixture_init(&f, MFL_STRATEGY_FEDAVGM, SIDE);
                f.spec.selection.n_without = 1;
                f.spec.edges = (struct mfl_edges){.count = rounds ? 1 : 0, .rounds = rounds};
                struct mfl_runtime *rt = fixture_open(&f, 2, NULL);
                for (uint32_t round = 1; round <= 3; round++) {
                        mfl_runtime_round_open(rt, round);
                        if (round != 2)
                                fixture_add_f32(&f, rt, 1, round, 5);
                        apply_ok(rt, round == 2 ? 0 : 5, rounds ? digest : want[round - 1]);
                        if (rounds)
                                assert_memory_equal(digest, want[round - 1], sizeof digest);
                }
                mfl_runtime_close(rt);
                fixture_deinit(&f);
        }
        assert_memory_not_equal(want[0], want[1], sizeof want[0]);
}

/* Of which no checkpoint could be written. */
static void too_many_regions_are_refused(void **state)
{
        enum { LAYERS = 450 };
        struct fixture f;
        struct mfl_error err;
        struct mfl_runtime *rt = NULL;
        struct mfl_layer *layers = calloc(LAYERS, sizeof *layers);
        fixture_init(&f, MFL_STRATEGY_FEDADAM, 4);
        layers[0] = (struct mfl_layer){.op = MFL_OP_INPUT, .input = -1, .out = {1, {4}}};
        for (int i = 1; i < LAYERS; i++)
                layers[i] = (struct mfl_layer){
                        .op = MFL_OP_DENSE, .input = i - 1, .out_channels = 4, .bias = true};
        mfl_graph_free(f.graph);
        assert_int_equal(mfl_graph_build("deep", layers, LAYERS, 4, &f.graph, &err), 0);
        struct mfl_runtime_options options = {.job = "j-000001",
                .spec = &f.spec,
                .graph = f.graph,
                .fixed = f.fixed,
                .cohort = 8,
                .state_dir = f.dir};
        for (uint32_t count = 64; count >= 8; count /= 8) {
                f.spec.edges = (struct mfl_edges){.count = count, .rounds = 5};
                assert_int_equal(mfl_runtime_open(&options, &rt, &err), count == 64 ? MFL_INVALID : 0);
                if (count == 64)
                        assert_string_equal(err.text, "edges.count: 64 regions of a model with 898 tensors "
                                                      "that move are too many for a "
                                                      "checkpoint: write a smaller number");
        }
        mfl_runtime_close(rt);
        free(layers);
        fixture_deinit(&f);
}

static void spill_replaces_orders_and_bounds_rows(void **state)
{
        struct fixture f;
        struct mfl_error err;
        struct mfl_spill *spill;
        const float *rows[2];
        float data[3000];
        fixture_init(&f, MFL_STRATEGY_MEDIAN, 4);
        assert_int_equal(mfl_spill_new(f.dir, "j-000001", 2, 3000, &spill, &err), 0);
        const uint64_t items[] = {9, 3, 9};
        for (int i = 0; i < 3; i++) {
                for (int e = 0; e < 3000; e++)
                        data[e] = (float)(10000 * i + e);
                assert_int_equal(mfl_spill_put(spill, items[i], 1, data, &err), 0);
        }
        assert_int_equal(mfl_spill_put(spill, 4, 1, data, &err), MFL_INVALID);
        assert_int_equal(mfl_spill_rows(spill), 2);
        mfl_spill_release(spill, 0, 3000);
        mfl_spill_range(spill, 1500, rows);
        assert_true(rows[0][0] == 11500.0f && rows[1][1499] == 22999.0f);
        mfl_spill_clear(spill);
        assert_int_equal(mfl_spill_rows(spill), 0);
        mfl_spill_free(spill);
        /* 2^40 floats for each of 2^20 clients: no disk has that. */
        assert_int_equal(
                mfl_spill_new(f.dir, "j-000001", 1u << 20, (uint64_t)1 << 40, &spill, &err), MFL_INVALID);
        fixture_deinit(&f);
}

static void open_survives_every_failed_allocation(void **state)
{
        const struct {
                enum mfl_strategy_kind kind;
                struct mfl_edges edges;
        } cases[] = {{MFL_STRATEGY_FEDADAM, {0}}, {MFL_STRATEGY_MEDIAN, {0}},
                {MFL_STRATEGY_FEDADAM, {.count = 3, .rounds = 2}},
                {MFL_STRATEGY_MEDIAN, {.count = 3, .rounds = 1}}, {MFL_STRATEGY_MEDIAN, {0}}};
        for (size_t k = 0; k < MFL_ARRAY_SIZE(cases); k++) {
                struct fixture f;
                struct mfl_budget budget;
                fixture_init(&f, cases[k].kind, 4);
                f.spec.edges = cases[k].edges;
                if (k == 3) {
                        f.spec.aggregation.robust.unit = MFL_ROWS_SERVER;
                        f.spec.simulation.servers.attack = MFL_SERVER_DELAYED;
                        f.spec.simulation.servers.share = 0.4;
                }
                if (k == 4) {
                        f.spec.aggregation.robust.unit = MFL_ROWS_BUCKET;
                        f.spec.aggregation.robust.bucket = 3;
                        f.spec.secure.bits = 64;
                }
                mfl_budget_init(&budget, 0);
                struct mfl_runtime_options options = {.job = "j-000001",
                        .spec = &f.spec,
                        .graph = f.graph,
                        .fixed = f.fixed,
                        .cohort = 3,
                        .state_dir = f.dir,
                        .budget = &budget};
                for (long n = 0;; n++) {
                        struct mfl_runtime *rt = NULL;
                        struct mfl_error err;
                        mfl_alloc_fail_at(n);
                        int r = mfl_runtime_open(&options, &rt, &err);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        assert_int_equal(r, struck ? -ENOMEM : 0);
                        mfl_runtime_close(rt);
                        assert_int_equal(mfl_budget_used(&budget), 0);
                        if (!struck)
                                break;
                        assert_true(n < 100);
                }
                fixture_deinit(&f);
        }
}

static void initial_params_must_fit(void **state)
{
        struct fixture f;
        struct mfl_error err = {{0}};
        struct mfl_runtime *rt = NULL;
        char path[128];
        fixture_init(&f, MFL_STRATEGY_FEDAVG, 4);
        snprintf(path, sizeof path, "%s/initial.f32", f.dir);
        float *v = calloc(f.n, sizeof *v);
        v[3] = 2.5f;
        struct mfl_runtime_options options = {
                .job = "j-000001", .spec = &f.spec, .graph = f.graph, .fixed = f.fixed, .initial_path = path};
        for (int round = 0; round < 3; round++) {
                FILE *file = fopen(path, "w");
                v[0] = round == 1 ? NAN : 0;
                fwrite(v, sizeof *v, f.n - (round == 0), file);
                fclose(file);
                assert_int_equal(mfl_runtime_open(&options, &rt, &err), round < 2 ? MFL_INVALID : 0);
        }
        struct mfl_params *params = mfl_runtime_params(rt, NULL);
        assert_memory_equal(params->v, v, f.n * sizeof *v);
        mfl_params_unref(params);
        mfl_runtime_close(rt);
        free(v);
        fixture_deinit(&f);
}

static void is_whole(
        const struct mfl_runtime *rt, const struct fixture *f, const float *start, const uint8_t *digest)
{
        struct mfl_checkpoint c;
        uint8_t want[MFL_DIGEST_BYTES];
        float *all = malloc(f->graph->n * sizeof *all);
        mfl_runtime_checkpoint((struct mfl_runtime *)(uintptr_t)rt, &c);
        assert_memory_equal(c.frozen, start, f->graph->n_frozen * sizeof *all);
        memcpy(all, c.frozen, f->graph->n_frozen * sizeof *all);
        memcpy(all + f->graph->n_frozen, c.params, f->n * sizeof *all);
        assert_int_equal(mfl_sha256(all, f->graph->n * sizeof *all, want, NULL), 0);
        assert_memory_equal(digest, want, sizeof want);
        free(all);
}

/* What is frozen has memory, a digest and a way down of its own; everything else is of what moves. */
static void frozen_params_have_no_part_in_rounds(void **state)
{
        struct fixture f;
        struct mfl_error err;
        struct mfl_budget budget;
        struct mfl_runtime *rt = NULL;
        struct mfl_slot_write write;
        uint8_t digest[MFL_DIGEST_BYTES], frozen_digest[MFL_DIGEST_BYTES];
        const struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .out = {1, {40}}},
                {.op = MFL_OP_DENSE, .out_channels = 30, .bias = true},
                {.op = MFL_OP_DENSE, .input = 1, .out_channels = 20, .bias = true, .frozen = true},
                {.op = MFL_OP_DENSE, .input = 2, .out_channels = 10}};
        fixture_init(&f, MFL_STRATEGY_FEDAVGM, SIDE);
        mfl_graph_free(f.graph);
        assert_int_equal(mfl_graph_build("g", layers, 4, 10, &f.graph, &err), 0);
        f.n = f.graph->n_moving;
        assert_int_equal(f.graph->n_frozen, 20 * 30 + 20);
        float *start = malloc(f.graph->n * sizeof *start);
        mfl_graph_init_params(f.graph, f.spec.seed, start);
        mfl_budget_init(&budget, 0);
        open_with_budget(&f, &budget, 1, 0, &rt);
        assert_int_equal(
                mfl_budget_used(&budget), f.graph->n_frozen * 4 + mfl_runtime_bytes(&f.spec, f.n, 1));
        assert_int_equal(mfl_runtime_n(rt), f.n);
        assert_int_equal(mfl_sha256(start, f.graph->n_frozen * sizeof *start, frozen_digest, &err), 0);
        struct mfl_params *frozen = mfl_runtime_params(rt, frozen_digest),
                          *params = mfl_runtime_params(rt, NULL);
        assert_ptr_equal(frozen, mfl_runtime_frozen(rt));
        assert_true(frozen->n == f.graph->n_frozen && params->n == f.n);
        assert_memory_equal(params->v, start + f.graph->n_frozen, f.n * sizeof *start);
        is_whole(rt, &f, start, params->digest);
        mfl_params_unref(params);
        mfl_runtime_round_open(rt, 1);
        /* Beyond the part that moves. */
        fixture_slot(rt, 0, MFL_ENCODING_I64, 1, 0);
        assert_int_equal(mfl_slot_write_begin(rt, 0, f.n * 8, 8, &write, &err), MFL_INVALID);
        assert_int_equal(mfl_slot_write_begin(rt, 0, f.n * 8 - 8, 16, &write, &err), MFL_INVALID);
        mfl_slot_free(rt, 0);
        fixture_add_f32(&f, rt, 1, 1, 3);
        apply_ok(rt, 3, digest);
        is_whole(rt, &f, start, digest);
        params = mfl_runtime_params(rt, NULL);
        for (uint64_t i = 0; i < f.n; i++)
                assert_true(params->v[i] != start[f.graph->n_frozen + i]);
        mfl_params_unref(params);
        mfl_runtime_close(rt);
        assert_int_equal(mfl_budget_used(&budget), f.graph->n_frozen * 4); /* a download holds them */
        mfl_params_unref(frozen);
        assert_int_equal(mfl_budget_used(&budget), 0);
        free(start);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(order_and_grouping_of_updates_do_not_matter),
                cmocka_unit_test(the_mean_is_applied_to_every_parameter),
                cmocka_unit_test(slots_know_what_is_missing),
                cmocka_unit_test(bad_updates_change_nothing),
                cmocka_unit_test(memory_is_a_few_copies_and_comes_back),
                cmocka_unit_test(old_params_stay_while_they_are_sent),
                cmocka_unit_test(median_takes_single_updates_only),
                cmocka_unit_test(a_bucket_is_an_exact_mean),
                cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
                cmocka_unit_test(regions_are_found_by_what_they_are),
                cmocka_unit_test(regions_that_are_sent_are_copied),
                cmocka_unit_test(one_region_is_no_region),
                cmocka_unit_test(too_many_regions_are_refused),
                cmocka_unit_test(spill_replaces_orders_and_bounds_rows),
                cmocka_unit_test(open_survives_every_failed_allocation),
                cmocka_unit_test(initial_params_must_fit),
                cmocka_unit_test(frozen_params_have_no_part_in_rounds),
        };
        return cmocka_run_group_tests_name("server_runtime", tests, NULL, NULL);
}
