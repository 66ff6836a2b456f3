/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that are added while the rest of them comes: the same sums, whatever happens to them. */
#include "tests/unit/server/fixture.h"

#include <math.h>
#include <stdio.h>

#define SIDE 400 /* 1,600,010 parameters: three strips of float32, six of int64 */
#define CHUNK ((uint64_t)1 << 20)

struct update {
        enum mfl_encoding encoding;
        uint64_t n, bytes, weight;
        void *v;
};

static struct update update_new(
        const struct fixture *f, enum mfl_encoding encoding, uint64_t client, uint64_t weight)
{
        bool f32 = encoding == MFL_ENCODING_F32;
        struct update u = {.encoding = encoding, .n = f->n, .bytes = f->n * (f32 ? 4 : 8), .weight = weight};
        u.v = malloc(u.bytes);
        assert_non_null(u.v);
        for (uint64_t i = 0; i < f->n; i++) {
                if (f32)
                        ((float *)u.v)[i] = fixture_delta(client, 1, i);
                else
                        ((int64_t *)u.v)[i] = (int64_t)((i % 1000 + 1) * client << 40);
        }
        return u;
}

/* Chunks from `from` to `to`, the worker's part after each. Returns how often it had one. */
static int put_ahead(
        struct mfl_runtime *rt, uint32_t slot, const struct update *u, uint64_t from, uint64_t to)
{
        struct mfl_range missing[MFL_RANGES_MAX];
        int n = 0;
        for (uint64_t at = from; at < to; at += CHUNK) {
                fixture_put(rt, slot, u->v, at, MFL_MIN(CHUNK, to - at));
                if (mfl_slot_missing(rt, slot, missing) && mfl_slot_ahead(rt, slot)) {
                        mfl_slot_add_ahead(rt, slot);
                        n++;
                }
        }
        return n;
}

static void open_slot(struct mfl_runtime *rt, uint32_t slot, const struct update *u)
{
        fixture_slot(rt, slot, u->encoding, u->weight, 0);
}

static void add_whole(struct mfl_runtime *rt, const struct update *u)
{
        struct mfl_error err = {{0}};
        open_slot(rt, 0, u);
        fixture_put(rt, 0, u->v, 0, u->bytes);
        assert_int_equal(mfl_slot_add(rt, 0, &err), 0);
        assert_false(mfl_slot_free(rt, 0));
}

/* `rt` has the sums of these updates and nothing else. */
static void is_sum_of(
        struct fixture *f, struct mfl_runtime *rt, const struct update *a, const struct update *b)
{
        uint8_t got[MFL_DIGEST_BYTES], want[MFL_DIGEST_BYTES];
        struct mfl_error err = {{0}};
        struct mfl_runtime *plain = fixture_open(f, 2, NULL);
        uint64_t weight = (a ? a->weight : 0) + (b ? b->weight : 0);
        mfl_runtime_round_open(plain, 1);
        if (a)
                add_whole(plain, a);
        if (b)
                add_whole(plain, b);
        assert_int_equal(mfl_runtime_apply(plain, &(struct mfl_round_totals){.weight = weight}, want,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &err),
                0);
        assert_int_equal(mfl_runtime_apply(rt, &(struct mfl_round_totals){.weight = weight}, got,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &err),
                0);
        assert_memory_equal(got, want, sizeof got);
        mfl_runtime_close(plain);
}

struct ahead {
        struct fixture f;
        struct mfl_runtime *rt;
        struct update f32, i64;
        struct mfl_error err;
};

static void begin(struct ahead *t)
{
        *t = (struct ahead){.rt = NULL};
        fixture_init(&t->f, MFL_STRATEGY_FEDAVG, SIDE);
        t->rt = fixture_open(&t->f, 2, NULL);
        t->f32 = update_new(&t->f, MFL_ENCODING_F32, 1, 3);
        t->i64 = update_new(&t->f, MFL_ENCODING_I64, 2, 5);
        mfl_runtime_round_open(t->rt, 1);
}

static void end(struct ahead *t)
{
        mfl_runtime_close(t->rt);
        free(t->f32.v);
        free(t->i64.v);
        fixture_deinit(&t->f);
}

static void the_sum_is_that_of_whole_updates(void **state)
{
        struct ahead t;
        begin(&t);
        open_slot(t.rt, 0, &t.f32);
        open_slot(t.rt, 1, &t.i64);
        assert_int_equal(put_ahead(t.rt, 0, &t.f32, 0, t.f32.bytes), 3);
        assert_true(put_ahead(t.rt, 1, &t.i64, 0, t.i64.bytes) > 3);
        assert_int_equal(mfl_slot_add(t.rt, 1, &t.err), 0);
        assert_int_equal(mfl_slot_add(t.rt, 0, &t.err), 0);
        assert_false(mfl_slot_free(t.rt, 0));
        assert_false(mfl_slot_free(t.rt, 1));
        is_sum_of(&t.f, t.rt, &t.f32, &t.i64);
        end(&t);
}

static void a_freed_slot_leaves_nothing_in_the_sums(void **state)
{
        struct ahead t;
        begin(&t);
        for (int settled = 0; settled < 2; settled++) {
                const struct update *u = settled ? &t.f32 : &t.i64;
                open_slot(t.rt, 0, u);
                assert_true(put_ahead(t.rt, 0, u, 0, u->bytes - CHUNK) > 0);
                assert_true(mfl_slot_free(t.rt, 0));
                if (settled)
                        mfl_runtime_settle(t.rt);
        }
        /* Handed over, and freed before the worker came to it. */
        open_slot(t.rt, 0, &t.f32);
        fixture_put(t.rt, 0, t.f32.v, 0, 3 * CHUNK);
        assert_true(mfl_slot_ahead(t.rt, 0));
        assert_false(mfl_slot_free(t.rt, 0));
        mfl_slot_add_ahead(t.rt, 0);
        add_whole(t.rt, &t.f32);
        /* And what waits when the sums are read. */
        open_slot(t.rt, 1, &t.i64);
        assert_true(put_ahead(t.rt, 1, &t.i64, 0, 4 * CHUNK) > 0);
        assert_true(mfl_slot_free(t.rt, 1));
        is_sum_of(&t.f, t.rt, &t.f32, NULL);
        /* Of a round that is over nothing goes into the next. */
        mfl_runtime_round_open(t.rt, 2);
        open_slot(t.rt, 0, &t.i64);
        assert_true(put_ahead(t.rt, 0, &t.i64, 0, 4 * CHUNK) > 0);
        assert_true(mfl_slot_free(t.rt, 0));
        mfl_runtime_round_open(t.rt, 2);
        uint8_t digest[MFL_DIGEST_BYTES];
        const struct mfl_params *params = mfl_runtime_params(t.rt, NULL);
        float first = params->v[0];
        mfl_params_unref((struct mfl_params *)(uintptr_t)params);
        memset(t.f32.v, 0, t.f32.bytes);
        add_whole(t.rt, &t.f32);
        assert_int_equal(mfl_runtime_apply(t.rt, &(struct mfl_round_totals){.weight = t.f32.weight}, digest,
                                 (double[MFL_METHOD_STATES_MAX]){0}, &t.err),
                0);
        struct mfl_params *now = mfl_runtime_params(t.rt, NULL);
        assert_true(now->v[0] == first);
        mfl_params_unref(now);
        end(&t);
}

static void what_is_wrong_is_told_as_ever_and_changes_nothing(void **state)
{
        struct ahead t;
        begin(&t);
        const uint64_t at[] = {10, 600000, 1600000}; /* in the first strip, a later one, behind the last */
        for (size_t i = 0; i < MFL_ARRAY_SIZE(at); i++) {
                float *delta = t.f32.v, right = delta[at[i]];
                char text[64];
                snprintf(text, sizeof text, "element %llu of an update", (unsigned long long)at[i]);
                delta[at[i]] = NAN;
                open_slot(t.rt, 0, &t.f32);
                put_ahead(t.rt, 0, &t.f32, 0, t.f32.bytes);
                assert_int_equal(mfl_slot_add(t.rt, 0, &t.err), MFL_INVALID);
                assert_non_null(strstr(t.err.text, text));
                assert_false(mfl_slot_free(t.rt, 0));
                delta[at[i]] = right;
        }
        /* More weight than the round may have (1,024). */
        t.f32.weight = 1025;
        open_slot(t.rt, 0, &t.f32);
        put_ahead(t.rt, 0, &t.f32, 0, t.f32.bytes);
        assert_int_equal(mfl_slot_add(t.rt, 0, &t.err), MFL_INVALID);
        assert_false(mfl_slot_free(t.rt, 0));
        t.f32.weight = 7;
        add_whole(t.rt, &t.f32);
        is_sum_of(&t.f, t.rt, &t.f32, NULL);
        end(&t);
}

/* Else it could be added as one thing, and taken away as another. */
static void bytes_that_are_added_take_no_others(void **state)
{
        struct ahead t;
        struct mfl_slot_write write;
        begin(&t);
        open_slot(t.rt, 0, &t.f32);
        /* Nor is a strip handed over while a chunk is on its way into it. */
        fixture_put(t.rt, 0, t.f32.v, 0, 3 * CHUNK);
        assert_int_equal(mfl_slot_write_begin(t.rt, 0, CHUNK, CHUNK, &write, &t.err), 0);
        assert_false(mfl_slot_ahead(t.rt, 0));
        memcpy(write.dst, (char *)t.f32.v + CHUNK, CHUNK);
        assert_false(mfl_slot_write_end(t.rt, &write, true));
        assert_true(mfl_slot_ahead(t.rt, 0));
        assert_int_equal(mfl_slot_write_begin(t.rt, 0, CHUNK, CHUNK, &write, &t.err), MFL_NOT_FOUND);
        mfl_slot_add_ahead(t.rt, 0);
        assert_int_equal(mfl_slot_write_begin(t.rt, 0, 0, CHUNK, &write, &t.err), MFL_NOT_FOUND);
        /* What lies behind a gap waits. */
        fixture_put(t.rt, 0, t.f32.v, 5 * CHUNK, t.f32.bytes - 5 * CHUNK);
        assert_false(mfl_slot_ahead(t.rt, 0));
        put_ahead(t.rt, 0, &t.f32, 3 * CHUNK, 5 * CHUNK);
        assert_int_equal(mfl_slot_add(t.rt, 0, &t.err), 0);
        assert_false(mfl_slot_free(t.rt, 0));
        is_sum_of(&t.f, t.rt, &t.f32, NULL);
        end(&t);
}

static void single_updates_are_not_added_ahead(void **state)
{
        struct fixture f;
        fixture_init(&f, MFL_STRATEGY_MEDIAN, SIDE);
        struct mfl_runtime *rt = fixture_open(&f, 1, NULL);
        struct update u = update_new(&f, MFL_ENCODING_F32, 1, 1);
        mfl_runtime_round_open(rt, 1);
        open_slot(rt, 0, &u);
        assert_int_equal(put_ahead(rt, 0, &u, 0, u.bytes), 0);
        assert_false(mfl_slot_free(rt, 0));
        mfl_runtime_close(rt);
        free(u.v);
        fixture_deinit(&f);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_sum_is_that_of_whole_updates),
                cmocka_unit_test(a_freed_slot_leaves_nothing_in_the_sums),
                cmocka_unit_test(what_is_wrong_is_told_as_ever_and_changes_nothing),
                cmocka_unit_test(bytes_that_are_added_take_no_others),
                cmocka_unit_test(single_updates_are_not_added_ahead),
        };
        return cmocka_run_group_tests_name("server_runtime_ahead", tests, NULL, NULL);
}
