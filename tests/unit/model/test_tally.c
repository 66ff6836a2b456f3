/* SPDX-License-Identifier: Apache-2.0 */
/* Tallies: what evaluations add up. */
#include "tests/lib/test.h"
#include "common/measure/tally.h"

#include <math.h>

/* Three classes, of which the third occurs neither as a label nor as a prediction. */
static void labels(void **state)
{
        static const uint32_t pairs[][2] = {{0, 0}, {0, 0}, {0, 1}, {1, 1}, {1, 0}, {1, 1}, {1, 1}};
        uint64_t confusion[9] = {0}, classes[9] = {0};
        struct mfl_measures m = {0};
        double iou[2];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(pairs); i++) {
                mfl_tally_label(MFL_TALLY_CONFUSION, confusion, 3, pairs[i][0], pairs[i][1]);
                mfl_tally_label(MFL_TALLY_CLASSES, classes, 3, pairs[i][0], pairs[i][1]);
        }
        static const uint64_t matrix[9] = {2, 1, 0, 1, 3, 0, 0, 0, 0},
                              counts[9] = {3, 4, 0, 3, 4, 0, 2, 3, 0};
        assert_memory_equal(confusion, matrix, sizeof matrix);
        assert_memory_equal(classes, counts, sizeof counts);
        mfl_tally_measure(MFL_TALLY_CONFUSION, confusion, 3, 7, &m);
        assert_true(m.v[MFL_MEASURE_MACRO_F1] == (4.0 / 6 + 6.0 / 8) / 2);
        assert_true(mfl_tally_iou(MFL_TALLY_CONFUSION, confusion, 3, &iou[0]));
        assert_true(mfl_tally_iou(MFL_TALLY_CLASSES, classes, 3, &iou[1]));
        assert_true(iou[0] == iou[1] && iou[0] == (2.0 / 4 + 3.0 / 5) / 2);
        assert_true(mfl_tally_agrees(MFL_TALLY_CONFUSION, confusion, 3, 7, 5));
        assert_false(mfl_tally_agrees(MFL_TALLY_CONFUSION, confusion, 3, 7, 4));
        assert_false(mfl_tally_agrees(MFL_TALLY_CONFUSION, confusion, 3, 8, 5));
        confusion[1] = UINT64_MAX; /* a sum that would be right modulo 2^64 */
        confusion[8] = 2;
        assert_false(mfl_tally_agrees(MFL_TALLY_CONFUSION, confusion, 3, 7, 7));
}

/* Sums of two halves are the sum of the whole; the numbers are those of the definitions. */
static void targets(void **state)
{
        enum { N = 40, T = 2 };
        uint64_t whole[1 + 8 * T] = {0}, half[2][1 + 8 * T] = {{0}};
        double absolute = 0, square[T] = {0}, mean[T] = {0}, spread[T] = {0}, y[N][T], p[N][T];
        for (uint32_t i = 0; i < N; i++)
                for (uint32_t k = 0; k < T; k++) {
                        y[i][k] = k ? -300 + 0.5 * i : 0.001 * (i % 7) - 0.25;
                        p[i][k] = y[i][k] + (i % 3 - 1.0) * (k ? 8 : 0.125);
                        y[i][k] = (double)(float)y[i][k];
                        p[i][k] = (double)(float)p[i][k];
                        mfl_tally_target(whole, k, (float)p[i][k], (float)y[i][k]);
                        mfl_tally_target(half[i % 2], k, (float)p[i][k], (float)y[i][k]);
                        absolute += fabs(p[i][k] - y[i][k]) / (N * T);
                        square[k] += pow(p[i][k] - y[i][k], 2);
                        mean[k] += y[i][k] / N;
                }
        for (uint32_t i = 0; i < N; i++)
                for (uint32_t k = 0; k < T; k++)
                        spread[k] += pow(y[i][k] - mean[k], 2);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(whole); i++)
                assert_int_equal(whole[i], half[0][i] + half[1][i]);
        struct mfl_measures m = {0};
        mfl_tally_measure(MFL_TALLY_TARGETS, whole, T, N * T, &m);
        assert_true(fabs(m.v[MFL_MEASURE_MAE] - absolute) < 1e-9);
        assert_true(fabs(m.v[MFL_MEASURE_RMSE] - sqrt((square[0] + square[1]) / (N * T))) < 1e-9);
        /* a square is rounded to 2^-32, 2e-4 of the first target's spread */
        assert_true(fabs(m.v[MFL_MEASURE_R2] - (1 - (square[0] / spread[0] + square[1] / spread[1]) / 2)) <
                    1e-3 * fabs(m.v[MFL_MEASURE_R2]));
        assert_true(mfl_tally_agrees(MFL_TALLY_TARGETS, whole, T, N * T, 0));
        whole[1] = UINT64_MAX; /* a sum of errors below 0 */
        assert_false(mfl_tally_agrees(MFL_TALLY_TARGETS, whole, T, N * T, 0));
}

/* What can't be added is counted, and then nothing is said; targets that never vary have no R2. */
static void targets_without_measures(void **state)
{
        uint64_t large[9] = {0}, same[9] = {0};
        struct mfl_measures m = {0};
        mfl_tally_target(large, 0, 0, 0x1p30f);
        mfl_tally_target(large, 0, NAN, 1);
        assert_int_equal(large[0], 2 + 2); /* the squares of error and target; both errors */
        mfl_tally_measure(MFL_TALLY_TARGETS, large, 1, 2, &m);
        assert_int_equal(m.known, 0);
        assert_true(mfl_tally_agrees(MFL_TALLY_TARGETS, large, 1, 2, 0));
        for (int i = 0; i < 5; i++)
                mfl_tally_target(same, 0, (float)i, 0.3f);
        mfl_tally_measure(MFL_TALLY_TARGETS, same, 1, 5, &m);
        assert_true(mfl_measure_known(&m, MFL_MEASURE_MAE) && !mfl_measure_known(&m, MFL_MEASURE_R2));
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(labels), cmocka_unit_test(targets),
                cmocka_unit_test(targets_without_measures)};
        return cmocka_run_group_tests_name("tally", tests, NULL, NULL);
}
