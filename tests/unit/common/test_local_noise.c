/* SPDX-License-Identifier: Apache-2.0 */
/* Noise where the data is: no change is longer than the clip, noise follows from the secret, and what it costs is Balle and Wang's
 * formula. */
#include "tests/lib/test.h"

#include <math.h>

#include "common/base/rng.h"
#include "common/method/local_noise.h"
#include "common/method/method.h"
#include "common/privacy/accountant.h"
#include "common/privacy/gaussian.h"

typedef unsigned __int128 wide;

/* A site is in the sum or not: what changes is its integers, whose norm is added up exactly. */
static void no_change_exceeds_the_clip(void **state)
{
        enum { N = 40, COHORTS = 100000 };
        struct mfl_rng rng = mfl_rng_new(6, MFL_RNG_TEST, 0, 0);
        static const double clips[] = {1, 0.1, 0.37, 3.3e-3, 117.7}, noises[] = {1, 0.5, 3.7, 20};
        size_t closest = 0;
        for (uint32_t i = 0; i < COHORTS; i++) {
                struct mfl_local_rule rule = {clips[i % 5], noises[i % 4]};
                float delta[N];
                int64_t q[N];
                size_t n = 1 + mfl_rng_below(&rng, N);
                double size = rule.clip * pow(10, 4 * mfl_rng_unit(&rng) - 2), norm2 = 0;
                for (size_t e = 0; e < n; e++) {
                        delta[e] = (float)(size * (i % 3 ? 2 * mfl_rng_unit(&rng) - 1 : 1));
                        norm2 += (double)delta[e] * delta[e];
                }
                mfl_local_shorten(&rule, delta, norm2, n, q);
                wide sum = 0;
                for (size_t e = 0; e < n; e++)
                        sum += (wide)((__int128_t)q[e] * q[e]);
                /* 0.1 and the like times a power of two are floats: their product is found as one of a whole number and 2^-k */
                int exponent;
                uint64_t whole = (uint64_t)ldexp(frexp(rule.clip, &exponent), 53);
                int s = mfl_local_scale(&rule) + exponent - 53; /* clip 2^scale = whole 2^s, s < 0 */
                uint64_t floor_of = whole >> -s;
                bool below = sum <= (wide)floor_of * floor_of;
                /* between floor^2 and the true square, which floor + 1 is beyond */
                wide fine = whole - (floor_of << -s);
                below |= sum <= (wide)floor_of * floor_of + (((wide)floor_of * 2 * fine) >> -s);
                if (!below)
                        fail_msg("cohort %u: clip %g", i, rule.clip);
                closest += (double)sum > 0.999 * (double)floor_of * (double)floor_of;
        }
        assert_true(closest > COHORTS / 10);
}

static void noise_follows_from_the_secret(void **state)
{
        enum { N = 5000 };
        static float a[N], b[N];
        static int64_t q[N];
        const struct mfl_local_rule rule = {2, 3};
        const struct mfl_secret secrets[] = {{{1}}, {{2}}};
        double sum = 0, squares = 0;
        memset(q, 0, sizeof q);
        assert_int_equal(mfl_local_noise(&rule, &secrets[0], 1, 1e9f, N, q, a, NULL), 0);
        memset(q, 0, sizeof q);
        assert_int_equal(mfl_local_noise(&rule, &secrets[0], 4, 1e9f, N, q, b, NULL), 0);
        assert_memory_equal(a, b, sizeof a);
        memset(q, 0, sizeof q);
        assert_int_equal(mfl_local_noise(&rule, &secrets[1], 1, 1e9f, N, q, b, NULL), 0);
        assert_true(memcmp(a, b, sizeof a));
        for (int i = 0; i < N; i++) {
                sum += (double)a[i];
                squares += (double)a[i] * (double)a[i];
        }
        assert_true(fabs(sum / N) < 5 * 6 / sqrt(N));
        assert_true(fabs(squares / N / 36 - 1) < 5 * sqrt(2.0 / N));
        memset(q, 0, sizeof q);
        assert_int_equal(mfl_local_noise(&rule, &secrets[0], 1, 4, N, q, b, NULL), 0);
        for (int i = 0; i < N; i++)
                assert_true(b[i] == fminf(4, fmaxf(-4, a[i])));
}

static void the_stricter_rule_holds(void **state)
{
        const struct mfl_local_rule none = {0}, site = {1, 2}, clip = {0.5, 0}, job = {3, 5};
        struct mfl_local_rule r = mfl_local_stricter(none, job);
        assert_true(r.clip == 3 && r.noise == 5);
        r = mfl_local_stricter(site, job);
        assert_true(r.clip == 1 && r.noise == 5);
        r = mfl_local_stricter(job, site);
        assert_true(r.clip == 1 && r.noise == 5);
        r = mfl_local_stricter(clip, site);
        assert_true(r.clip == 0.5 && r.noise == 2);
        r = mfl_local_stricter(none, none);
        assert_true(r.clip == 0 && r.noise == 0);
}

/* Of dp-accounting's calibration of the analytic Gaussian, delta 1e-5. */
static void noise_is_calibrated(void **state)
{
        static const double rows[][2] = {
                {.5, 7.03183}, {1, 3.73063}, {2, 1.99381}, {4, 1.08116}, {8, .60023}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(rows); i++) {
                double sigma = mfl_dp_gaussian_sigma(rows[i][0], 1e-5);
                if (fabs(sigma - rows[i][1]) > 6e-6)
                        fail_msg("epsilon %g: %.7f", rows[i][0], sigma);
                assert_true(fabs(mfl_dp_gaussian_epsilon(sigma, 1e-5) - rows[i][0]) < 1e-6);
        }
        /* Many releases are one, and the general accountant says the same. */
        static const double sigmas[] = {4, 12, 40};
        for (int i = 0; i < 3; i++) {
                struct mfl_dp_rounds rounds = {sigmas[i], 1, 100};
                struct mfl_dp_cost cost;
                assert_int_equal(mfl_dp_epsilon(&rounds, 1, 1e-5, &cost, NULL), 0);
                double exact = mfl_dp_gaussian_epsilon(sigmas[i] / 10, 1e-5);
                assert_true(fabs(cost.epsilon - exact) < 1e-3 + 1e-3 * exact);
        }
        assert_true(isinf(mfl_dp_gaussian_epsilon(1e-3, 1e-5)));
        assert_true(mfl_dp_gaussian_epsilon(1e6, 1e-5) == 0);
        /* Where P(x) is too small for a double. */
        double far = mfl_dp_gaussian_epsilon(0.02, 1e-5);
        assert_true(far > 1250 && far < 1600);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(no_change_exceeds_the_clip),
                cmocka_unit_test(noise_follows_from_the_secret),
                cmocka_unit_test(the_stricter_rule_holds),
                cmocka_unit_test(noise_is_calibrated),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
