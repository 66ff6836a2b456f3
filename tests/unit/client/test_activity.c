/* SPDX-License-Identifier: Apache-2.0 */
/* Where workers' time goes, on a clock that the test turns: every nanosecond is accounted for, once. */
#include "tests/lib/test.h"

#include <math.h>

#include "client/train/activity.h"
#include "common/base/rng.h"

#define MS 1000000ull
#define S (1000 * MS)
#define START (7 * S) /* of the clock */

static struct mfl_activity make(uint32_t n_workers)
{
        struct mfl_activity a;
        assert_int_equal(mfl_activity_init(&a, n_workers, START, NULL), 0);
        return a;
}

static void check_totals(const struct mfl_activity_figures *f, uint64_t compute_ms, uint64_t data_ms,
        uint64_t network_ms, uint64_t wait_ms)
{
        assert_int_equal(f->total_us[MFL_ACTIVITY_COMPUTE], compute_ms * 1000);
        assert_int_equal(f->total_us[MFL_ACTIVITY_DATA], data_ms * 1000);
        assert_int_equal(f->total_us[MFL_ACTIVITY_NETWORK], network_ms * 1000);
        assert_int_equal(f->total_us[MFL_ACTIVITY_WAIT], wait_ms * 1000);
}

static void check_shares(
        const struct mfl_activity_figures *f, double compute, double data, double network, double wait)
{
        const double expected[] = {compute, data, network, wait};
        double sum = 0;
        for (int s = 0; s < MFL_ACTIVITY_STATES; s++) {
                if (!(fabs(f->share[s] - expected[s]) < 1e-12))
                        fail_msg("%s: %.17g, expected %.17g", mfl_activity_state_name(s), f->share[s],
                                expected[s]);
                sum += f->share[s];
        }
        assert_true(fabs(sum - 1) < 1e-12);
}

static struct mfl_activity_figures read_at(struct mfl_activity *a, uint64_t ns)
{
        struct mfl_activity_figures f;
        mfl_activity_read(a, ns, &f);
        return f;
}

static void nothing_has_happened(void **state)
{
        struct mfl_activity a = make(3);
        struct mfl_activity_figures f = read_at(&a, START);
        check_totals(&f, 0, 0, 0, 0);
        check_shares(&f, 0, 0, 0, 1);
        assert_int_equal(f.workers, 3);
        assert_true(f.samples_per_second == 0);
        f = read_at(&a, START + S);
        check_totals(&f, 0, 0, 0, 3000);
        mfl_activity_deinit(&a);
}

/* A task: params come, data is read, it trains, the update goes, it waits. */
static void one_worker(void **state)
{
        struct mfl_activity a = make(1);
        uint64_t t = START;
        mfl_activity_transfer(&a, true, t += 100 * MS); /* 100 ms waited */
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_READS, t += 200 * MS);
        mfl_activity_transfer(&a, false, t += 50 * MS); /* still reading */
        mfl_activity_move(&a, 1, MFL_ACTIVITY_READS, MFL_ACTIVITY_COMPUTES, t += 50 * MS);
        mfl_activity_count(&a, 300, 30 * MS, t += 500 * MS);
        mfl_activity_count(&a, 100, 20 * MS, t += 500 * MS);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE, t += 100 * MS);
        mfl_activity_transfer(&a, true, t += 100 * MS);
        mfl_activity_transfer(&a, false, t += 300 * MS);
        struct mfl_activity_figures f = read_at(&a, t += 100 * MS);
        check_totals(&f, 1050, 150, 500, 300);
        assert_int_equal(t - START, 2 * S);
        check_shares(&f, 0.525, 0.075, 0.25, 0.15);
        assert_int_equal(f.samples, 400);
        assert_true(fabs(f.samples_per_second - 200) < 1e-9);
        mfl_activity_deinit(&a);
}

/* Four workers have four seconds a second; what hides behind those that compute is nothing to the others but
 * for whoever is idle. */
static void several_workers(void **state)
{
        struct mfl_activity a = make(4);
        uint64_t t = START;
        mfl_activity_move(&a, 2, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, t);
        mfl_activity_transfer(&a, true, t);
        mfl_activity_move(
                &a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, t += S); /* 2 s compute, 2 network */
        mfl_activity_transfer(&a, false, t += S);                         /* 3, 1 */
        mfl_activity_count(&a, 1000, 2 * S, t += S);                      /* 3, 1 waited */
        struct mfl_activity_figures f = read_at(&a, t);
        check_totals(&f, 6000, 2000, 3000, 1000);
        check_shares(&f, 0.5, 2.0 / 12, 0.25, 1.0 / 12);
        assert_true(fabs(f.samples_per_second - 1000.0 / 3) < 1e-9);
        mfl_activity_deinit(&a);
}

/* What is older than ten seconds, counted from a whole second on, is in the totals alone. */
static void the_window_slides(void **state)
{
        struct mfl_activity a = make(1);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, START);
        mfl_activity_count(&a, 5000, 0, START + 5 * S - 1);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE, START + 5 * S);
        struct mfl_activity_figures f = read_at(&a, START + 9 * S + 500 * MS);
        check_shares(&f, 5 / 9.5, 0, 0, 4.5 / 9.5);
        assert_true(fabs(f.samples_per_second - 5000 / 9.5) < 1e-9);
        f = read_at(&a, START + 11 * S); /* second 18 begins: of 9 .. 18 */
        check_shares(&f, 3.0 / 9, 0, 0, 6.0 / 9);
        f = read_at(&a, START + 14 * S - 1);
        assert_true(f.share[MFL_ACTIVITY_COMPUTE] > 0 && f.samples_per_second > 0);
        f = read_at(&a, START + 14 * S);
        check_shares(&f, 0, 0, 0, 1);
        assert_true(f.samples_per_second == 0);
        check_totals(&f, 5000, 0, 0, 9000);
        assert_int_equal(f.samples, 5000);
        mfl_activity_deinit(&a);
}

/* A process that was stopped for an hour, and threads whose times come in the wrong order. */
static void clock_jumps(void **state)
{
        struct mfl_activity a = make(2);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, START + S);
        struct mfl_activity_figures f = read_at(&a, START + S + 3600 * S);
        check_totals(&f, 3600000, 0, 0, 3602000);
        check_shares(&f, 0.5, 0, 0, 0.5);
        mfl_activity_count(&a, 7, 400 * MS, START); /* long ago: counts as now */
        mfl_activity_move(&a, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE, START + 2 * S);
        f = read_at(&a, START);
        check_totals(&f, 3599600, 400, 0, 3602000);
        assert_int_equal(f.samples, 7);
        f = read_at(&a, START + 3602 * S);
        check_totals(&f, 3599600, 400, 0, 3604000);
        mfl_activity_deinit(&a);
}

/* More than was computed can't have been data; the ring holds the part of it that lies within. */
static void data_is_a_part_of_computing(void **state)
{
        struct mfl_activity a = make(1);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, START);
        mfl_activity_count(&a, 1, 1500 * MS, START + 2 * S); /* over two seconds of the clock */
        struct mfl_activity_figures f = read_at(&a, START + 2 * S);
        check_totals(&f, 500, 1500, 0, 0);
        check_shares(&f, 0.25, 0.75, 0, 0);
        mfl_activity_count(&a, 1, 100 * S, START + 20 * S);
        f = read_at(&a, START + 20 * S);
        check_totals(&f, 0, 20000, 0, 0);
        check_shares(&f, 0, 1, 0, 0);
        mfl_activity_deinit(&a);
}

/* Whatever happens: all workers' time, and no more. */
static void time_is_conserved(void **state)
{
        struct mfl_rng r = mfl_rng_new(3, MFL_RNG_TEST, 0, 0);
        struct mfl_activity a = make(5);
        enum mfl_activity_work work[5] = {MFL_ACTIVITY_IDLE, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_IDLE,
                MFL_ACTIVITY_IDLE, MFL_ACTIVITY_IDLE};
        uint64_t t = START;
        for (int i = 0; i < 20000; i++) {
                t += mfl_rng_below(&r, 100) ? mfl_rng_below(&r, 20 * MS) : mfl_rng_below(&r, 3000) * MS;
                uint32_t k = mfl_rng_below(&r, 5);
                enum mfl_activity_work to = mfl_rng_below(&r, MFL_ACTIVITY_WORKS_);
                mfl_activity_move(&a, 1, work[k], to, t - mfl_rng_below(&r, 2) * mfl_rng_below(&r, 1000));
                work[k] = to;
                if (i % 3 == 0)
                        mfl_activity_transfer(&a, mfl_rng_below(&r, 2), t);
                if (i % 5 == 0)
                        mfl_activity_count(&a, 1, mfl_rng_below(&r, 30 * MS), t);
                uint64_t sum = 0, in_ring = 0;
                for (int s = 0; s < MFL_ACTIVITY_STATES; s++)
                        sum += a.total_ns[s];
                assert_int_equal(sum, 5 * (a.now_ns - START));
                struct mfl_activity_figures f = read_at(&a, t);
                for (int k2 = 0; k2 < MFL_ACTIVITY_STATES; k2++) {
                        assert_true(f.share[k2] >= 0 && f.share[k2] <= 1);
                        for (uint32_t n = 0; n < MFL_ACTIVITY_SECONDS; n++)
                                in_ring += a.ring[n].ns[k2];
                }
                uint64_t from = t / S < 9 + START / S ? START : (t / S - 9) * S;
                assert_int_equal(in_ring, 5 * (t - from));
        }
        mfl_activity_deinit(&a);
}

/* A job of short rounds after a long pause: its figures are its own, not the pause's. */
static void a_pause_is_not_averaged_in(void **state)
{
        struct mfl_activity a = make(1);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, START + 60 * S);
        mfl_activity_count(&a, 500, 0, START + 60 * S + 500 * MS);
        struct mfl_activity_figures f = read_at(&a, START + 60 * S + 500 * MS);
        check_shares(&f, 1, 0, 0, 0);
        assert_true(fabs(f.samples_per_second - 1000) < 1e-6);
        check_totals(&f, 500, 0, 0, 60000);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE, START + 60 * S + 500 * MS);
        mfl_activity_move(&a, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES, START + 61 * S); /* no pause yet */
        f = read_at(&a, START + 61 * S);
        check_shares(&f, 0.5, 0, 0, 0.5);
        mfl_activity_deinit(&a);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(nothing_has_happened),
                cmocka_unit_test(one_worker),
                cmocka_unit_test(several_workers),
                cmocka_unit_test(the_window_slides),
                cmocka_unit_test(clock_jumps),
                cmocka_unit_test(data_is_a_part_of_computing),
                cmocka_unit_test(time_is_conserved),
                cmocka_unit_test(a_pause_is_not_averaged_in),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
