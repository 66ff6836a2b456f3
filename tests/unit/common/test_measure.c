/* SPDX-License-Identifier: Apache-2.0 */
/* Measures of clients' scores. */
#include "tests/lib/test.h"
#include "common/base/fixed.h"
#include "common/measure/measure.h"

#include <math.h>

static void scores_of_clients(void **state)
{
        /* accuracies 1/4, 1/2, 1/2, 1; the fifth has no samples */
        struct mfl_client_score v[] = {{7, 8, 4, 0}, {3, 4, 4, 0}, {9, 0, 0, 0}, {5, 4, 1, 0}, {2, 2, 1, 0}};
        struct mfl_measures m = {0};
        mfl_measure_clients(v, 5, true, &m);
        static const uint64_t order[] = {5, 2, 7, 3, 9};
        for (size_t i = 0; i < 5; i++)
                assert_int_equal(v[i].client, order[i]);
        assert_int_equal(m.clients, 4);
        assert_true(m.v[MFL_MEASURE_CLIENT_MEAN] == 2.25 / 4);
        assert_true(fabs(m.v[MFL_MEASURE_CLIENT_VARIANCE] - 0.07421875) < 1e-15);
        assert_true(m.v[MFL_MEASURE_CLIENT_WORST] == 0.25 && m.v[MFL_MEASURE_CLIENT_BEST] == 1);
        static const uint32_t bins[MFL_SCORE_BINS] = {[2] = 1, [5] = 2, [9] = 1};
        assert_memory_equal(m.bins, bins, sizeof bins);
        assert_false(mfl_measure_known(&m, MFL_MEASURE_MACRO_F1));
}

/* A tenth is rounded up: of 11 clients two; of losses the largest are the worst. */
static void losses_of_clients(void **state)
{
        struct mfl_client_score v[11];
        struct mfl_measures m = {0};
        for (uint32_t i = 0; i < 11; i++)
                v[i] = (struct mfl_client_score){i, i + 1, 0, mfl_fixed_loss((float)i) * (i + 1)};
        mfl_measure_clients(v, 11, false, &m);
        assert_true(v[0].client == 10 && v[10].client == 0);
        assert_true(m.v[MFL_MEASURE_CLIENT_MEAN] == 5 && m.v[MFL_MEASURE_CLIENT_VARIANCE] == 10);
        assert_true(m.v[MFL_MEASURE_CLIENT_WORST] == 9.5 && m.v[MFL_MEASURE_CLIENT_BEST] == 0.5);
        assert_true(m.v[MFL_MEASURE_CLIENT_LOW] == 0 && m.v[MFL_MEASURE_CLIENT_HIGH] == 10);
        for (int i = 0; i < MFL_SCORE_BINS; i++)
                assert_int_equal(m.bins[i], i == 9 ? 2 : 1);
}

static void nobody_and_equal_scores(void **state)
{
        struct mfl_client_score v[] = {{1, 0, 0, 0}, {2, 4, 0, 1 << 20}, {3, 8, 0, 2 << 20}};
        struct mfl_measures none = {0}, same = {0};
        mfl_measure_clients(v, 1, true, &none);
        mfl_measure_clients(NULL, 0, true, &none);
        assert_true(!none.known && !none.clients);
        mfl_measure_clients(v + 1, 2, false, &same);
        assert_true(same.v[MFL_MEASURE_CLIENT_VARIANCE] == 0 && same.bins[0] == 2);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(scores_of_clients),
                cmocka_unit_test(losses_of_clients), cmocka_unit_test(nobody_and_equal_scores)};
        return cmocka_run_group_tests_name("measure", tests, NULL, NULL);
}
