/* SPDX-License-Identifier: Apache-2.0 */
/* The privacy accountant: beside Google's dp-accounting 0.6.0 (privacy loss distributions in steps of 1e-4), beside closed
 * formulas, and what it refuses. bench/privacy.py compares random rows. */
#include "tests/lib/test.h"
#include "common/privacy/accountant.h"

#include <math.h>

static struct mfl_dp_cost cost_of(const struct mfl_dp_rounds *v, size_t n, double delta)
{
        struct mfl_dp_cost cost;
        struct mfl_error err = {""};
        if (mfl_dp_epsilon(v, n, delta, &cost, &err))
                fail_msg("%s", err.text);
        return cost;
}

static void assert_cost(const struct mfl_dp_rounds *v, size_t n, double delta, double want)
{
        struct mfl_dp_cost cost = cost_of(v, n, delta);
        if (fabs(cost.epsilon - want) > 1e-4)
                fail_msg("epsilon %.7f, expected %.7f", cost.epsilon, want);
        if (cost.epsilon > cost.epsilon_rdp)
                fail_msg("epsilon %.7f is above the one by Renyi's divergence, %.7f", cost.epsilon,
                        cost.epsilon_rdp);
}

static void published_rows_come_out(void **state)
{
        static const struct {
                struct mfl_dp_rounds v;
                double delta, epsilon;
        } rows[] = {
                {{1, .01, 1000}, 1e-5, 1.828244},
                {{.76, .01, 1000}, 1e-6, 4.284302},
                {{.4975, 1e-4, 100}, 1e-8, 1.999301},
                {{1, 1, 1}, 1e-5, 4.377178},
                {{4, 1, 100}, 1e-5, 13.206712},
                {{2, .5, 50}, 1e-5, 9.473594},
                {{.6, .001, 3000}, 1e-6, 2.516309},
                {{1.1, 256 / 60000.0, 14063}, 1e-5, 2.381779},
                {{1, .001, 3000}, 1e-6, .305372},
                {{.8, .1, 100}, 1e-5, 10.976378},
                {{1, .1, 100}, 1e-5, 7.046603},
                {{5, 1, 200}, 1e-3, 12.069668},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++)
                assert_cost(&rows[i].v, 1, rows[i].delta, rows[i].epsilon);
}

static void kinds_of_rounds_add_up(void **state)
{
        static const struct mfl_dp_rounds two[] = {{1, .1, 100}, {.8, .1, 20}};
        static const struct mfl_dp_rounds three[] = {{2, 1, 3}, {1.5, .02, 500}, {3, .5, 40}};
        static const struct mfl_dp_rounds halves[] = {{1, .01, 400}, {1, .01, 600}};
        assert_cost(two, 2, 1e-5, 8.669218);
        assert_cost(three, 3, 1e-6, 7.482795);
        assert_cost(halves, 2, 1e-5, 1.828244);
}

/* Balle and Wang 2018, theorem 8: delta of one Gaussian release is known exactly. */
static void one_release_is_the_closed_formula(void **state)
{
        for (double sigma = 0.3; sigma < 9; sigma *= 1.7) {
                struct mfl_dp_rounds v = {sigma, 1, 1};
                double e = cost_of(&v, 1, 1e-5).epsilon, root = 0.70710678118654752440;
                double a = 0.5 * erfc(-(0.5 / sigma - e * sigma) * root);
                double b = 0.5 * erfc((0.5 / sigma + e * sigma) * root);
                double delta = a - exp(e) * b;
                if (fabs(delta - 1e-5) > 1e-8)
                        fail_msg("sigma %g: epsilon %g has delta %g", sigma, e, delta);
        }
}

static void noise_for_a_budget_is_found(void **state)
{
        static const struct {
                double epsilon, q;
                uint64_t rounds;
                double sigma;
        } of[] = {{1, .05, 200, 2.83860}, {8, .1, 100, .93593}, {2, .1, 100, 2.24772}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                double sigma;
                struct mfl_error err;
                assert_int_equal(mfl_dp_sigma(of[i].epsilon, of[i].q, of[i].rounds, 1e-5, &sigma, &err), 0);
                if (fabs(sigma - of[i].sigma) > 1e-4)
                        fail_msg("sigma %.6f, expected %.5f", sigma, of[i].sigma);
                struct mfl_dp_rounds v = {sigma, of[i].q, of[i].rounds};
                double epsilon = cost_of(&v, 1, 1e-5).epsilon;
                assert_true(epsilon <= of[i].epsilon && epsilon > 0.9999 * of[i].epsilon);
        }
}

/* Noise that hides nothing has no epsilon, and no noise of this range hides a billion rounds. */
static void what_has_no_answer_says_so(void **state)
{
        struct mfl_dp_rounds loud = {0.05, 1, 1000000000};
        assert_true(isinf(cost_of(&loud, 1, 1e-5).epsilon));
        struct mfl_dp_rounds quiet = {1e6, 1e-3, 1};
        assert_true(cost_of(&quiet, 1, 1e-5).epsilon == 0);
        static const struct {
                struct mfl_dp_rounds v;
                double delta;
                const char *said;
        } rows[] = {
                {{1, .1, 1}, 0, "delta: expected a number between 0 and 1"},
                {{1, .1, 1}, 1, "delta: "},
                {{0, .1, 1}, 1e-5, "sigma: expected 0.05 to 1000000, got 0"},
                {{NAN, .1, 1}, 1e-5, "sigma: "},
                {{1, 0, 1}, 1e-5, "q: expected a probability above 0 and at most 1, got 0"},
                {{1, 1.5, 1}, 1e-5, "q: "},
                {{1, .1, 0}, 1e-5, "rounds: expected 1 to 1000000000, got 0"},
        };
        struct mfl_dp_cost cost;
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                assert_int_equal(mfl_dp_epsilon(&rows[i].v, 1, rows[i].delta, &cost, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, rows[i].said));
        }
        double sigma;
        assert_int_equal(mfl_dp_sigma(0, .1, 1, 1e-5, &sigma, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "epsilon: "));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(published_rows_come_out),
                cmocka_unit_test(kinds_of_rounds_add_up),
                cmocka_unit_test(one_release_is_the_closed_formula),
                cmocka_unit_test(noise_for_a_budget_is_found),
                cmocka_unit_test(what_has_no_answer_says_so),
        };
        return cmocka_run_group_tests_name("privacy", tests, NULL, NULL);
}
