/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums: any order gives the same bytes, nothing cancels; what a site keeps to itself; data sets with another scale. */
#include "tests/lib/test.h"
#include "common/stats/scaled.h"
#include "common/stats/stats.h"

#include <float.h>
#include <math.h>

static void add_all(const float *x, size_t n, size_t stride, struct mfl_wide *sum, struct mfl_wide *squares)
{
        for (size_t i = 0; i < n; i++)
                mfl_wide_add(sum, squares, x[i * stride % n], 1);
}

/* In doubles, let alone floats, the ones are lost. */
static void nothing_cancels(void **state)
{
        const float x[] = {FLT_MAX, 1, -FLT_MAX, 1e-45f, 2, -1e-45f, -0.0f};
        struct mfl_wide sum = {{0}, 0}, squares = {{0}, 0};
        add_all(x, 7, 1, &sum, &squares);
        assert_true(mfl_wide_sum(&sum) == 3);
        assert_true(mfl_wide_squares(&squares) ==
                    2 * ((double)FLT_MAX * (double)FLT_MAX)); /* 5 is below half a unit of it */
        for (int i = 0; i < 7; i++)                           /* the negatives take everything back */
                mfl_wide_add(&sum, &squares, -x[i], 1);
        assert_true(mfl_wide_sum(&sum) == 0);
        struct mfl_wide small = {{0}, 0}, small_squares = {{0}, 0};
        mfl_wide_add(&small, &small_squares, -FLT_MAX, 65536);
        assert_true(mfl_wide_sum(&small) == -(double)FLT_MAX * 65536);
}

static void order_and_parts_do_not_matter(void **state)
{
        enum { N = 1009 };
        static float x[N];
        uint8_t a[2][MFL_WIDE_BYTES(MFL_WIDE_SUM)], b[2][MFL_WIDE_BYTES(MFL_WIDE_SQUARES)];
        for (int i = 0; i < N; i++)
                x[i] = ldexpf((float)(i * 7919 % 1000 - 500), i % 200 - 100);
        struct mfl_wide sum = {{0}, 0}, squares = {{0}, 0}, part[2][2] = {{{{0}, 0}}};
        add_all(x, N, 1, &sum, &squares);
        add_all(x, 400, 1, &part[0][0], &part[0][1]);
        for (int i = N - 1; i >= 400; i--)
                mfl_wide_add(&part[1][0], &part[1][1], x[i], 1);
        mfl_wide_join(&part[1][0], &part[0][0], MFL_WIDE_SUM);
        mfl_wide_join(&part[1][1], &part[0][1], MFL_WIDE_SQUARES);
        mfl_wide_put(&sum, MFL_WIDE_SUM, a[0]);
        mfl_wide_put(&part[1][0], MFL_WIDE_SUM, a[1]);
        mfl_wide_put(&squares, MFL_WIDE_SQUARES, b[0]);
        mfl_wide_put(&part[1][1], MFL_WIDE_SQUARES, b[1]);
        assert_memory_equal(a[0], a[1], sizeof a[0]);
        assert_memory_equal(b[0], b[1], sizeof b[0]);
        struct mfl_wide back;
        mfl_wide_get(a[0], MFL_WIDE_SUM, &back);
        assert_true(mfl_wide_sum(&back) == mfl_wide_sum(&sum));
}

/* 1e6 + {0, 1, 2}: the variance is 2/3, whatever the mean is. */
static void variance_of_far_values(void **state)
{
        struct mfl_wide sum = {{0}, 0}, squares = {{0}, 0};
        for (int i = 0; i < 3; i++)
                mfl_wide_add(&sum, &squares, 8e6f + (float)i, 1);
        assert_true(mfl_wide_spread(&sum, &squares, 3) == 6);
        struct mfl_wide lie = {{0}, 0};
        assert_true(mfl_wide_spread(&sum, &lie, 3) == 0);
}

static void bins(void **state)
{
        assert_int_equal(mfl_stats_bin(-0.1, 0, 1, 6), 0);
        assert_int_equal(mfl_stats_bin(0, 0, 1, 6), 1);
        assert_int_equal(mfl_stats_bin(0.25, 0, 1, 6), 2);
        assert_int_equal(mfl_stats_bin(1, 0, 1, 6), 4);
        assert_int_equal(mfl_stats_bin(1.1, 0, 1, 6), 5);
        assert_int_equal(mfl_stats_bin(3, 3, 3, 6), 1);
}

/* 20 rows of two floats; labels 0 ten times, 1 seven times, 2 three times. */
static struct mfl_dataset *table(void)
{
        static float x[40];
        static int32_t labels[20];
        static struct mfl_dataset d;
        for (int i = 0; i < 20; i++) {
                x[2 * i] = (float)i;
                x[2 * i + 1] = 100 - (float)i;
                labels[i] = i < 10 ? 0 : i < 17 ? 1 : 2;
        }
        d = (struct mfl_dataset){.name = "t",
                .shape = {.rank = 1, .dim = {2}},
                .classes = 3,
                .scale = {1},
                .train = {.n = 20, .dtype = MFL_F32, .samples = x, .labels = labels},
                .test = {.n = 2, .dtype = MFL_F32, .samples = x, .labels = labels}};
        return &d;
}

static void small_counts_stay(void **state)
{
        const double edges[] = {0, 0, 19, 19};
        struct mfl_stats s;
        struct mfl_error err;
        struct mfl_stats_ask ask = {.least = 5};
        assert_int_equal(mfl_stats_measure(table(), &ask, &s, &err), 0);
        /* The 3 of class 2 would follow from the total, so the 7 of class 1 stay, too. */
        assert_int_equal(s.labels[0], 10);
        assert_true(!s.labels[1] && !s.labels[2] && s.hidden == 2 && s.features[0].has_range);
        assert_true(s.features[0].least == 0 && s.features[0].most == 19);
        mfl_stats_deinit(&s);
        ask = (struct mfl_stats_ask){.least = 21, .keeps_range = true};
        assert_int_equal(mfl_stats_measure(table(), &ask, &s, &err), MFL_INVALID);
        ask.least = 1;
        assert_int_equal(mfl_stats_measure(table(), &ask, &s, &err), 0);
        assert_true(!s.features[0].has_range && s.features[0].most == 0 && s.labels[2] == 3);
        mfl_stats_deinit(&s);
        ask = (struct mfl_stats_ask){.bins = 4, .edges = edges, .n_edges = 4, .least = 1};
        assert_int_equal(mfl_stats_measure(table(), &ask, &s, &err), 0);
        assert_true(s.n_bins == 6 && s.features[0].bins[1] == 5 && s.features[1].bins[5] == 20);
        mfl_stats_deinit(&s);
        ask.n_edges = 6;
        assert_int_equal(mfl_stats_measure(table(), &ask, &s, &err), MFL_INVALID);
        assert_string_equal(err.text, "ranges of 3 features, but data set t has 2");
}

static void sites_are_added(void **state)
{
        struct mfl_stats total = {0}, part;
        struct mfl_error err;
        const struct mfl_stats_ask ask = {.least = 1};
        double mean, std;
        for (int i = 0; i < 2; i++) {
                assert_int_equal(mfl_stats_measure(table(), &ask, &part, &err), 0);
                assert_int_equal(mfl_stats_add(&total, &part, &err), 0);
                mfl_stats_deinit(&part);
        }
        mfl_stats_moments(&total, &total.features[0], &mean, &std);
        assert_true(total.samples == 40 && mean == 9.5 && fabs(std - sqrt(33.25)) < 1e-15);
        struct mfl_dataset other = *table();
        other.shape.dim[0] = 1;
        assert_int_equal(mfl_stats_measure(&other, &ask, &part, &err), 0);
        assert_int_equal(mfl_stats_add(&total, &part, &err), MFL_INVALID);
        assert_int_equal(total.samples, 40);
        mfl_stats_deinit(&part);
        mfl_stats_deinit(&total);
}

static void another_scale(void **state)
{
        const double mean[] = {9.5, 90}, std[] = {2, 4};
        uint8_t categorical[] = {0, 1}, pixels[] = {0, 255};
        struct mfl_dataset *scaled, d = *table();
        struct mfl_error err;
        d.categorical = categorical;
        assert_int_equal(mfl_dataset_scaled(&d, 2, mean, std, &scaled, &err), 0);
        const float *x = scaled->train.samples;
        assert_true(x[0] == -4.75f && x[1] == 100 && x[38] == 4.75f && scaled->column_mean[0] == 9.5 &&
                    scaled->column_std[1] == 1);
        assert_true(((const float *)d.train.samples)[0] == 0); /* the site's own stay */
        mfl_dataset_scaled_free(scaled);
        assert_int_equal(mfl_dataset_scaled(&d, 3, mean, std, &scaled, &err), MFL_INVALID);
        d = (struct mfl_dataset){.name = "p",
                .shape = {.rank = 3, .dim = {1, 1, 1}},
                .scale = {9},
                .train = {.n = 2, .dtype = MFL_U8, .samples = pixels}};
        assert_int_equal(mfl_dataset_scaled_bytes(&d), 0);
        assert_int_equal(
                mfl_dataset_scaled(&d, 1, (const double[]){0.5}, (const double[]){0.25}, &scaled, &err), 0);
        assert_true(scaled->scale[0] == (float)(1 / 255.0 / 0.25) && scaled->shift[0] == -2 &&
                    scaled->train.samples == pixels);
        mfl_dataset_scaled_free(scaled);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_cancels),
                cmocka_unit_test(order_and_parts_do_not_matter), cmocka_unit_test(variance_of_far_values),
                cmocka_unit_test(bins), cmocka_unit_test(small_counts_stay),
                cmocka_unit_test(sites_are_added), cmocka_unit_test(another_scale)};
        return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
