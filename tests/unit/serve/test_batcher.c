/* SPDX-License-Identifier: Apache-2.0 */
/* The batcher on a virtual clock: when batches are due, what is in them, what is refused, and that nothing is lost. */
#include "tests/lib/test.h"

#include "serve/batch/batcher.h"

#define ROWS_MAX 8

struct bed {
        struct mfl_batcher b;
        struct mfl_batch_item item[64];
        struct mfl_batch_piece piece[ROWS_MAX];
        uint64_t now;
};

static void set_up(struct bed *bed, uint64_t delay_us, uint32_t queue_max)
{
        memset(bed, 0, sizeof *bed);
        mfl_batcher_init(&bed->b, &(struct mfl_batcher_config){ROWS_MAX, delay_us, queue_max});
        bed->now = 1000;
}

static int offer(struct bed *bed, int i, uint32_t rows, uint64_t deadline)
{
        bed->item[i] = (struct mfl_batch_item){.rows = rows, .deadline_us = deadline};
        return mfl_batcher_offer(&bed->b, &bed->item[i], bed->now);
}

/* Takes a batch, checks its pieces as "item:first+rows" texts, and ends them. */
static void take(struct bed *bed, const char *expected)
{
        char text[300] = "";
        const uint32_t n = mfl_batcher_take(&bed->b, bed->now, bed->piece);
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_batch_piece *p = &bed->piece[i];
                const size_t k = strlen(text);
                mfl_snprintf(text + k, sizeof text - k, "%s%d:%u+%u", i ? " " : "",
                        (int)(p->item - bed->item), p->first, p->rows);
                if (mfl_batcher_done(p))
                        strcat(text, "!");
        }
        assert_string_equal(text, expected);
}

static void without_delay_a_free_network_never_waits(void **state)
{
        struct bed bed;
        set_up(&bed, 0, 100);
        take(&bed, "");
        assert_int_equal(mfl_batcher_due_us(&bed.b), UINT64_MAX);
        assert_int_equal(offer(&bed, 0, 1, 0), 0);
        assert_int_equal(mfl_batcher_due_us(&bed.b), 0);
        take(&bed, "0:0+1!");
        /* What came while it computed is the next batch. */
        for (int i = 1; i < 4; i++)
                assert_int_equal(offer(&bed, i, 2, 0), 0);
        take(&bed, "1:0+2! 2:0+2! 3:0+2!");
        take(&bed, "");
}

static void waits_for_more_rows_but_not_for_long(void **state)
{
        struct bed bed;
        set_up(&bed, 500, 100);
        assert_int_equal(offer(&bed, 0, 3, 0), 0);
        take(&bed, "");
        assert_int_equal(mfl_batcher_due_us(&bed.b), 1500);
        bed.now = 1400;
        assert_int_equal(offer(&bed, 1, 1, 0), 0);
        take(&bed, "");
        assert_int_equal(mfl_batcher_due_us(&bed.b), 1500); /* the oldest one's */
        bed.now = 1500;
        take(&bed, "0:0+3! 1:0+1!");
        /* A full batch does not wait. */
        assert_int_equal(offer(&bed, 2, 5, 0), 0);
        assert_int_equal(offer(&bed, 3, 3, 0), 0);
        assert_int_equal(mfl_batcher_due_us(&bed.b), 0);
        take(&bed, "2:0+5! 3:0+3!");
}

static void a_request_of_many_rows_is_divided(void **state)
{
        struct bed bed;
        set_up(&bed, 500, 100);
        assert_int_equal(offer(&bed, 0, 2, 0), 0);
        assert_int_equal(offer(&bed, 1, 17, 0), 0);
        assert_int_equal(offer(&bed, 2, 1, 0), 0);
        take(&bed, "0:0+2! 1:0+6");
        take(&bed, "1:6+8");
        take(&bed, "1:14+3! 2:0+1!"); /* begun: its rest does not wait for the delay */
        assert_int_equal(bed.b.n_rows, 0);
        assert_int_equal(bed.b.n_items, 0);
}

static void the_queue_is_bounded(void **state)
{
        struct bed bed;
        set_up(&bed, 0, 10);
        assert_int_equal(offer(&bed, 0, 20, 0), 0); /* alone, larger than the queue: let in */
        assert_int_equal(offer(&bed, 1, 1, 0), MFL_BUSY);
        take(&bed, "0:0+8");
        take(&bed, "0:8+8");
        assert_int_equal(offer(&bed, 1, 6, 0), 0); /* 4 + 6 rows */
        assert_int_equal(offer(&bed, 2, 1, 0), MFL_BUSY);
        mfl_batcher_note(&bed.b, 8, 4000);
        assert_int_equal(mfl_batcher_drain_us(&bed.b), 5000);
        take(&bed, "0:16+4! 1:0+4");
        take(&bed, "1:4+2!");
}

static void late_requests_are_taken_out(void **state)
{
        struct bed bed;
        struct mfl_batch_item *begun;
        set_up(&bed, 1000000, 100);
        assert_int_equal(offer(&bed, 0, 1, 5000), 0);
        assert_int_equal(offer(&bed, 1, 1, 3000), 0);
        assert_int_equal(offer(&bed, 2, 1, 0), 0);
        assert_int_equal(mfl_batcher_due_us(&bed.b), 3000);
        assert_null(mfl_batcher_expire(&bed.b, 2999));
        struct mfl_batch_item *out = mfl_batcher_expire(&bed.b, 3000);
        assert_ptr_equal(out, &bed.item[1]);
        assert_null(out->next);
        assert_int_equal(mfl_batcher_due_us(&bed.b), 5000);
        out = mfl_batcher_expire(&bed.b, 9000);
        assert_ptr_equal(out, &bed.item[0]);
        assert_int_equal(bed.b.n_rows, 1);
        assert_int_equal(mfl_batcher_due_us(&bed.b), 1001000);
        out = mfl_batcher_clear(&bed.b, &begun);
        assert_ptr_equal(out, &bed.item[2]);
        assert_int_equal(mfl_batcher_due_us(&bed.b), UINT64_MAX);
        assert_int_equal(offer(&bed, 3, 1, 0), 0); /* the queue is as new */
        assert_ptr_equal(mfl_batcher_clear(&bed.b, &begun), &bed.item[3]);
}

static void clearing_ends_one_that_has_begun(void **state)
{
        struct bed bed;
        struct mfl_batch_item *begun;
        set_up(&bed, 0, 100);
        assert_int_equal(offer(&bed, 0, 20, 0), 0);
        assert_int_equal(offer(&bed, 1, 3, 0), 0);
        take(&bed, "0:0+8"); /* computed */
        struct mfl_batch_item *out = mfl_batcher_clear(&bed.b, &begun);
        assert_null(begun);
        assert_ptr_equal(out, &bed.item[0]);
        assert_ptr_equal(out->next, &bed.item[1]);
        assert_int_equal(bed.b.n_rows, 0);
        assert_int_equal(bed.b.n_items, 0);
        assert_int_equal(offer(&bed, 2, 20, 0), 0);
        assert_int_equal(mfl_batcher_take(&bed.b, bed.now, bed.piece), 1);
        struct mfl_batch_piece other[ROWS_MAX]; /* of another network */
        assert_int_equal(mfl_batcher_take(&bed.b, bed.now, other), 1);
        assert_null(mfl_batcher_clear(&bed.b, &begun));
        assert_ptr_equal(begun, &bed.item[2]);
        assert_int_equal(bed.b.n_rows, 0);
        assert_false(mfl_batcher_done(other));
        assert_true(mfl_batcher_done(bed.piece));
        assert_int_equal(mfl_batcher_take(&bed.b, bed.now, bed.piece), 0);
}

static void one_that_has_begun_is_finished(void **state)
{
        struct bed bed;
        set_up(&bed, 0, 100);
        assert_int_equal(offer(&bed, 0, 10, 2000), 0);
        assert_int_equal(offer(&bed, 1, 1, 2000), 0);
        take(&bed, "0:0+8");
        struct mfl_batch_item *out = mfl_batcher_expire(&bed.b, 2000);
        assert_ptr_equal(out, &bed.item[1]);
        assert_null(out->next);
        assert_null(mfl_batcher_expire(&bed.b, 3000));
        bed.now = 3000;
        take(&bed, "0:8+2!");
}

/* What a canary is compared by: each second batch stalls, and a row still takes as long as without stalls; then rows take longer, and less. */
static void stalls_are_no_pace(void **state)
{
        struct bed bed;
        set_up(&bed, 0, 100);
        mfl_batcher_note(&bed.b, 2, 200);
        assert_true(bed.b.row_us == 100 && bed.b.row_low_us == 100);
        for (int i = 0; i < 1000; i++)
                mfl_batcher_note(&bed.b, 2, i % 2 ? 200 : 100000);
        /* Steps of a fortieth up and three fortieths down. */
        assert_true(bed.b.row_low_us > 85 && bed.b.row_low_us < 110);
        assert_true(bed.b.row_us > 1000);
        for (int i = 0; i < 1000; i++)
                mfl_batcher_note(&bed.b, 2, i % 2 ? 800 : 100000);
        assert_true(bed.b.row_low_us > 340 && bed.b.row_low_us < 440);
        for (int i = 0; i < 1000; i++)
                mfl_batcher_note(&bed.b, 2, 100);
        assert_true(bed.b.row_low_us > 42 && bed.b.row_low_us < 55);
}

/* Seeded arrivals, and a network that takes as long as its rows: every request ends once, in order, in time or late. */
static void nothing_is_lost(void **state)
{
        for (uint32_t seed = 1; seed <= 200; seed++) {
                static struct mfl_batch_item items[400];
                struct mfl_batch_piece piece[ROWS_MAX];
                struct mfl_batcher b;
                uint32_t random = seed, n_in = 0, n_out = 0, n_refused = 0, last = 0;
                uint64_t now = 1, free_at = 0;
                mfl_batcher_init(&b, &(struct mfl_batcher_config){ROWS_MAX, seed % 3 * 200, 30});
                for (uint32_t step = 0; n_in < 400 || b.n_items; step++) {
                        random = random * 1664525u + 1013904223u;
                        if (n_in < 400 && random >> 31) {
                                items[n_in] = (struct mfl_batch_item){.rows = 1 + (random >> 8) % 12,
                                        .deadline_us = random & 64 ? now + 900 : 0};
                                n_refused += mfl_batcher_offer(&b, &items[n_in++], now) != 0;
                        }
                        for (struct mfl_batch_item *late = mfl_batcher_expire(&b, now); late;
                                late = late->next, n_out++)
                                assert_true(late->deadline_us <= now && !late->taken);
                        if (now >= free_at) {
                                const uint32_t n = mfl_batcher_take(&b, now, piece);
                                uint32_t rows = 0;
                                for (uint32_t i = 0; i < n; i++) {
                                        assert_true((uint32_t)(piece[i].item - items) >= last);
                                        last = (uint32_t)(piece[i].item - items);
                                        rows += piece[i].rows;
                                        n_out += mfl_batcher_done(&piece[i]);
                                }
                                assert_true(rows <= ROWS_MAX);
                                free_at = now + rows * 20;
                        }
                        now += 1 + (random >> 16) % 100;
                        assert_true(b.n_rows <= 30 || b.n_items == 1);
                        assert_true(step < 100000);
                }
                assert_int_equal(n_out + n_refused, 400);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(without_delay_a_free_network_never_waits),
                cmocka_unit_test(waits_for_more_rows_but_not_for_long),
                cmocka_unit_test(a_request_of_many_rows_is_divided),
                cmocka_unit_test(the_queue_is_bounded),
                cmocka_unit_test(late_requests_are_taken_out),
                cmocka_unit_test(clearing_ends_one_that_has_begun),
                cmocka_unit_test(one_that_has_begun_is_finished),
                cmocka_unit_test(stalls_are_no_pace),
                cmocka_unit_test(nothing_is_lost),
        };
        return cmocka_run_group_tests_name("serve_batcher", tests, NULL, NULL);
}
