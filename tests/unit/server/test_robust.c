/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of robust aggregation by themselves: the Gram matrix, rules per element, decisions by table, attacks. Whole rules
 * beside numpy and byzfl: tests/e2e/test_robust.py. */
#include <math.h>

#include "server/robust/attack.h"
#include "server/robust/rule.h"
#include "tests/unit/server/fixture.h"

enum { ROWS = 33, WIDTH = 700 };
static float data[ROWS][WIDTH];
static const float *rows[ROWS];

static void fill(int kind)
{
        for (uint32_t k = 0; k < ROWS; k++) {
                rows[k] = data[k];
                for (uint32_t e = 0; e < WIDTH; e++) {
                        float x = fixture_delta(k, 0, e);
                        data[k][e] = kind == 0 ? x : kind == 1 ? roundf(x * 4) : (float)k * (e % 2 ? 1 : -1);
                }
        }
}

/* Whole numbers: every order of the sum is exact. Cut anywhere, and for numbers of rows that fill no panel. */
static void gram_matrix_is_exact(void **state)
{
        static double g[ROWS * ROWS], scratch[(ROWS + 3) * MFL_GRAM_BLOCK];
        fill(1);
        for (uint32_t m = 1; m <= ROWS; m += 4) {
                memset(g, 0, sizeof g);
                assert_true(mfl_gram_scratch(m) <= MFL_ARRAY_SIZE(scratch));
                mfl_gram_add(rows, m, 0, 3, scratch, g);
                mfl_gram_add(rows, m, 3, WIDTH - 3, scratch, g);
                mfl_gram_mirror(m, g);
                for (uint32_t i = 0; i < m; i++)
                        for (uint32_t j = 0; j < m; j++) {
                                double want = 0;
                                for (uint32_t e = 0; e < WIDTH; e++)
                                        want += (double)data[i][e] * (double)data[j][e];
                                assert_true(g[i * m + j] == want);
                        }
        }
}

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;
        return (x > y) - (x < y);
}

/* Also with many equal values, which bad selection loops stumble over. */
static void columns_are_those_of_the_sorted(void **state)
{
        double v[ROWS], sorted[ROWS], scratch[2 * ROWS];
        for (int kind = 0; kind < 3; kind++) {
                fill(kind);
                for (uint32_t n = 1; n <= ROWS; n++)
                        for (uint32_t e = 0; e < 50; e++) {
                                for (uint32_t k = 0; k < n; k++)
                                        v[k] = sorted[k] = (double)data[k][e];
                                qsort(sorted, n, sizeof *sorted, compare_doubles);
                                double middle =
                                        n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
                                double sum = 0;
                                uint32_t cut = (n - 1) / 3;
                                for (uint32_t k = cut; k < n - cut; k++)
                                        sum += sorted[k];
                                double near = mfl_column_near(v, n, 1, scratch), best = INFINITY;
                                for (uint32_t k = n; k-- > 0;)
                                        best = fabs(v[k] - middle) <= fabs(best - middle) ? v[k] : best;
                                assert_true(near == best); /* the lowest row of those */
                                assert_true(fabs(mfl_column_trim(v, n, cut) - sum / (n - 2 * cut)) < 1e-12);
                                assert_true(mfl_column_median(v, n) == middle);
                        }
        }
}

/* ---- decisions ---- */

static struct mfl_job job_with(enum mfl_strategy_kind kind, uint32_t f)
{
        struct mfl_job job = {.seed = 7};
        job.aggregation.strategy = kind;
        job.aggregation.robust = (struct mfl_robust_spec){.has_f = true, .f = f, .beta = 0.2};
        return job;
}

/* Rows on a line at x[i]. */
static struct mfl_choice decide_line(const struct mfl_job *job, const double *x, uint32_t m, bool guess)
{
        double g[17 * 17];
        struct mfl_choice choice;
        struct mfl_error err;
        for (uint32_t i = 0; i < m + guess; i++)
                for (uint32_t j = 0; j < m + guess; j++)
                        g[i * (m + guess) + j] = x[i] * x[j];
        int r = mfl_robust_decide(job, 1, m, guess, g, NULL, &choice, &err);
        if (r)
                fail_msg("%s", err.text);
        return choice;
}

static void decisions_by_table(void **state)
{
        static const struct {
                enum mfl_strategy_kind kind;
                uint32_t f, m;
                double x[16], share[16];
        } cases[] = {
                {MFL_STRATEGY_KRUM, 1, 5, {0, 1, 2, 3, 100},
                        {0, 1, 0, 0, 0}}, /* rows 1 and 2 are equal: the lower one */
                {MFL_STRATEGY_KRUM, 1, 5, {100, 3, 2, 1, 0}, {0, 0, 1, 0, 0}},
                {MFL_STRATEGY_KRUM, 1, 5, {9, 4, 4, 4, 1}, {0, 1, 0, 0, 0}}, /* duplicates win */
                {MFL_STRATEGY_MULTI_KRUM, 1, 5, {0, 1, 2, 3, 100}, {.25, .25, .25, .25, 0}},
                {MFL_STRATEGY_NORM_FILTER, 2, 5, {-3, 1, 2, 0, 3}, {0, 1 / 3., 1 / 3., 1 / 3., 0}},
                {MFL_STRATEGY_RFA, 0, 3, {0, 0, 0}, {1 / 3., 1 / 3., 1 / 3.}}, /* zero rows */
                {MFL_STRATEGY_RFA, 0, 1, {5}, {1}},
                {MFL_STRATEGY_NORM_FILTER, 0, 1, {5}, {1}},
                {MFL_STRATEGY_FOOLSGOLD, 0, 3, {1, 2, 3}, {1 / 3., 1 / 3., 1 / 3.}}, /* all are alike */
                {MFL_STRATEGY_FOOLSGOLD, 0, 3, {1, 2, -3}, {0, 0, 1}},               /* the one that is not */
                {MFL_STRATEGY_FOOLSGOLD, 0, 3, {0, 2, 3}, {1, 0, 0}}, /* zeros are like nothing */
                {MFL_STRATEGY_FOOLSGOLD, 0, 1, {5}, {1}},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job job = job_with(cases[i].kind, cases[i].f);
                struct mfl_choice choice = decide_line(&job, cases[i].x, cases[i].m, false);
                for (uint32_t k = 0; k < cases[i].m; k++)
                        assert_true(fabs(choice.share[k] - cases[i].share[k]) < 1e-12);
                mfl_choice_deinit(&choice);
        }
}

static void bulyan_leaves_the_far_rows_out(void **state)
{
        struct mfl_job job = job_with(MFL_STRATEGY_BULYAN, 1);
        const double x[] = {1, 2, 3, 4, 5, 90, 6};
        struct mfl_choice choice = decide_line(&job, x, 7, false);
        assert_int_equal(choice.n_out, 5);
        assert_int_equal(choice.cut, 3);
        assert_true(choice.column == MFL_COLUMN_NEAR && choice.share[5] == 0);
        mfl_choice_deinit(&choice);
}

static void centered_clipping_starts_at_the_guess(void **state)
{
        struct mfl_job job = job_with(MFL_STRATEGY_CENTERED_CLIP, 0);
        job.aggregation.robust.clip_radius = 2;
        const double x[] = {11, 12, 18, 6, 10}; /* the guess is 10 */
        struct mfl_choice choice = decide_line(&job, x, 4, true);
        double d = 0, means = 0;
        for (int k = 0; k < 5; k++) {
                d += choice.a[k] * x[k];
                means += choice.a_means[k];
        }
        assert_true(fabs(d - (10 + (1 + 2 + 2 - 2) / 4.)) < 1e-12);
        assert_true(fabs(means - 1) < 1e-12 && choice.a_means[4] == 0);
        mfl_choice_deinit(&choice);
}

/* On a line cosines are 1, 0 and -1. */
static void fltrust_follows_the_root(void **state)
{
        struct mfl_job job = job_with(MFL_STRATEGY_FLTRUST, 0);
        const double x[] = {4, -8, 0, 1, 2}, against[] = {-1, 0, -3, 2}; /* the root is the last */
        struct mfl_choice choice = decide_line(&job, x, 4, true);
        assert_true(choice.a[0] == 2 / 4. / 2 && choice.a[1] == 0 && choice.a[2] == 0 && choice.a[3] == 1);
        assert_true(choice.a[4] == 0 && choice.a_means[4] == 0 && choice.n_used == 2);
        assert_true(choice.score[0] == 0 && choice.score[1] == 2 && choice.score[2] == 1);
        mfl_choice_deinit(&choice);
        choice = decide_line(&job, against, 3, true); /* none is trusted */
        assert_true(choice.a[0] == 0 && choice.a[3] == 1 && choice.a_means[3] == 1 && choice.n_used == 0);
        mfl_choice_deinit(&choice);
        struct mfl_error err;
        const double g[4] = {1, 0, 0, 1};
        assert_int_equal(mfl_robust_decide(&job, 1, 2, false, g, NULL, &choice, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "fltrust: the round has no update of the root"));
}

static void few_rows_are_never_passed_over_in_silence(void **state)
{
        struct mfl_job job = job_with(MFL_STRATEGY_BULYAN, 1);
        const double x[] = {1, 2, 3, 4, 5, 6};
        double g[36] = {0};
        struct mfl_choice choice;
        struct mfl_error err;
        assert_int_equal(mfl_robust_decide(&job, 1, 6, false, g, NULL, &choice, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "bulyan with f: 1 needs 7 rows, and the round has 6"));
        job.aggregation.robust.on_few = MFL_ON_FEW_MEAN;
        choice = decide_line(&job, x, 6, false);
        assert_true(choice.few == 6 && choice.column == MFL_COLUMN_SUM && choice.a[5] == 1 / 6.);
        mfl_choice_deinit(&choice);
        job.aggregation.robust.on_few = MFL_ON_FEW_MEDIAN;
        choice = decide_line(&job, x, 6, false);
        assert_true(choice.few == 6 && choice.column == MFL_COLUMN_MEDIAN && !choice.a);
        mfl_choice_deinit(&choice);
}

/* Every allocation of a decision may fail. */
static void decisions_survive_failed_allocations(void **state)
{
        struct mfl_job job = job_with(MFL_STRATEGY_BULYAN, 1);
        job.aggregation.robust.before[0] = (struct mfl_before){MFL_BEFORE_NNM, 0, 0};
        job.aggregation.robust.before[1] = (struct mfl_before){MFL_BEFORE_BUCKET, 2, 0};
        job.aggregation.robust.n_before = 2;
        double g[14 * 14];
        for (int i = 0; i < 14 * 14; i++)
                g[i] = (i / 14 + 1) * (i % 14 + 1);
        for (long n = 0;; n++) {
                struct mfl_choice choice;
                struct mfl_error err;
                mfl_alloc_fail_at(n);
                int r = mfl_robust_decide(&job, 1, 14, false, g, NULL, &choice, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                assert_int_equal(r, struck ? -ENOMEM : 0);
                if (!struck) {
                        mfl_choice_deinit(&choice);
                        break;
                }
                assert_true(n < 100);
        }
}

/* ---- attacks ---- */

/* 20 rows, 4 bad: s = 7, the quantile of 9/16 is 0.157311. */
static void alie_takes_the_quantile(void **state)
{
        assert_true(fabs(mfl_attack_alie(20, 4) - 0.15731068461017068) < 1e-8);
        assert_true(mfl_attack_alie(3, 1) == 0);                     /* the quantile of 1/2 */
        assert_true(fabs(mfl_attack_alie(100, 51) - 1.9725) < 0.01); /* of 1: cut off */
}

/* Four honest rows on a plane; gamma by its definition: one step further is too far. */
static void gamma_is_the_largest(void **state)
{
        const double x[5][2] = {{0, 0}, {2, 0}, {0, 1}, {3, 4}, {1.5, 2}}; /* the last one is p */
        double g[25];
        for (int i = 0; i < 25; i++)
                g[i] = x[i / 5][0] * x[i % 5][0] + x[i / 5][1] * x[i % 5][1];
        const enum mfl_attack kinds[] = {MFL_ATTACK_MIN_MAX, MFL_ATTACK_MIN_SUM};
        for (int kind = 0; kind < 2; kind++) {
                double gamma = mfl_attack_gamma(kinds[kind], 4, g), most = 0;
                for (int i = 0; i < 4; i++) {
                        double sum = 0;
                        for (int j = 0; j < 4; j++) {
                                double d = pow(x[i][0] - x[j][0], 2) + pow(x[i][1] - x[j][1], 2);
                                sum = kind ? sum + d : fmax(sum, d);
                        }
                        most = fmax(most, sum);
                }
                for (int further = 0; further < 2; further++) {
                        double at = gamma + (further ? 1e-6 : -1e-9), worst = 0;
                        for (int i = 0; i < 4; i++) {
                                double d =
                                        pow(1.25 - at * 1.5 - x[i][0], 2) + pow(1.25 - at * 2 - x[i][1], 2);
                                worst = kind ? worst + d : fmax(worst, d);
                        }
                        assert_true(gamma > 0 && (further ? worst > most : worst <= most));
                }
        }
}

/* Krum takes it, and not twice as much. */
static void lambda_is_what_krum_takes(void **state)
{
        const double x[6][2] = {{3, 1}, {0, -2}, {-2, -4}, {-4, -4}, {-3, 3}, {1, 1}}; /* the last one is p */
        double g[36], lambda = 0;
        for (int i = 0; i < 36; i++)
                g[i] = x[i / 6][0] * x[i % 6][0] + x[i / 6][1] * x[i % 6][1];
        assert_int_equal(mfl_attack_lambda(5, 2, g, &lambda), 0);
        assert_true(fabs(lambda - 3.6955824957813173) < 1e-12); /* half the paper's bound */
        for (int twice = 0; twice < 2; twice++) {
                double l = lambda * (1 + twice), line[7][2], scores[7];
                for (int i = 0; i < 7; i++)
                        for (int e = 0; e < 2; e++)
                                line[i][e] = i < 5 ? x[i][e] : -l;
                for (int i = 0; i < 7; i++) {
                        double d[7];
                        for (int j = 0; j < 7; j++)
                                d[j] = pow(line[i][0] - line[j][0], 2) + pow(line[i][1] - line[j][1], 2);
                        qsort(d, 7, sizeof *d, compare_doubles);
                        scores[i] = d[1] + d[2] + d[3]; /* m - f - 2 neighbours, not itself */
                }
                double honest = INFINITY;
                for (int i = 0; i < 5; i++)
                        honest = fmin(honest, scores[i]);
                assert_true(twice ? scores[5] > honest : scores[5] < honest);
        }
        memset(g, 0, sizeof g); /* no direction: nothing to send */
        assert_int_equal(mfl_attack_lambda(5, 2, g, &lambda), 0);
        assert_true(lambda == 0);
}

static void attacks_by_table(void **state)
{
        const float a[] = {1, -2, 40}, b[] = {3, -2, 44}, own[] = {5, 6, 7};
        const float *const honest[] = {a, b};
        const float root = 1.41421356f;
        const struct {
                enum mfl_attack kind;
                double scale;
                float want[3];
        } cases[] = {
                {MFL_ATTACK_SIGN_FLIP, 2, {-10, -12, -14}},
                {MFL_ATTACK_ALIE, 1, {2 + root, -2, 16}}, /* at most the limit */
                {MFL_ATTACK_IPM, 0.5, {-1, 1, -16}}, {MFL_ATTACK_MIN_MAX, 2, {2 - 2 * root, -2, 16}},
                {MFL_ATTACK_MIMIC, 0, {1, -2, 16}}, {MFL_ATTACK_LAZY, 0, {0, 0, 0}},
                {MFL_ATTACK_BACKDOOR, 2, {10, 12, 14}}, {MFL_ATTACK_BACKDOOR, 20, {16, 16, 16}},
                {MFL_ATTACK_FANG_KRUM, 3, {-3, 3, -3}},
                {MFL_ATTACK_FANG_TRIMMED, 1, {1, -2, 16}}, /* no further than the extreme */
        };
        float out[3], again[3];
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                const struct mfl_attack_plan plan = {.kind = cases[i].kind, .scale = cases[i].scale};
                mfl_attack_range(&plan, honest, 2, own, 0, 3, 16, out);
                for (int e = 0; e < 3; e++)
                        assert_true(fabsf(out[e] - cases[i].want[e]) < 1e-5f);
        }
        /* Noise depends on the place in the vector, not on the range. */
        static float noise[4096];
        const struct mfl_attack_plan plan = {
                .kind = MFL_ATTACK_GAUSSIAN, .scale = 0.1, .seed = 1, .round = 2, .client = 3};
        mfl_attack_range(&plan, NULL, 0, noise, 0, 4096, 16, noise);
        mfl_attack_range(&plan, NULL, 0, own, 7, 3, 16, again);
        assert_memory_equal(noise + 7, again, sizeof again);
        double sum = 0, squares = 0;
        for (int e = 0; e < 4096; e++) {
                sum += (double)noise[e] / 4096;
                squares += (double)noise[e] * (double)noise[e] / 4096;
        }
        assert_true(fabs(sum) < 0.01 && fabs(sqrt(squares) - 0.1) < 0.01);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(gram_matrix_is_exact),
                cmocka_unit_test(columns_are_those_of_the_sorted),
                cmocka_unit_test(decisions_by_table),
                cmocka_unit_test(bulyan_leaves_the_far_rows_out),
                cmocka_unit_test(centered_clipping_starts_at_the_guess),
                cmocka_unit_test(fltrust_follows_the_root),
                cmocka_unit_test(few_rows_are_never_passed_over_in_silence),
                cmocka_unit_test(decisions_survive_failed_allocations),
                cmocka_unit_test(alie_takes_the_quantile),
                cmocka_unit_test(gamma_is_the_largest),
                cmocka_unit_test(lambda_is_what_krum_takes),
                cmocka_unit_test(attacks_by_table),
        };
        return cmocka_run_group_tests_name("server_robust", tests, NULL, NULL);
}
