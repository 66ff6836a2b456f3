/* SPDX-License-Identifier: Apache-2.0 */
/* Central privacy: no client changes an integer sum by more than the clip, exactly; the grid of noise; refusals of models; budgets. */
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

#include "common/base/rng.h"
#include "common/method/central_grid.h"
#include "common/method/method.h"
#include "common/privacy/noise.h"
#include "common/privacy/spend.h"

__extension__ typedef unsigned __int128 wide;

static struct mfl_job *job_of(const char *more, struct mfl_error *err)
{
        struct mfl_job *job = NULL;
        char text[1024];
        mfl_snprintf(text, sizeof text,
                "name: x\nrounds: 100\nmodel: {preset: logistic}\ndata: {name: d, partition: iid, clients: "
                "1000}\n"
                "training: {optimizer: sgd, lr: 0.1, epochs: 1, batch: 10}\n%s",
                more);
        return mfl_job_parse(text, strlen(text), "job.yaml", &job, err) ? NULL : job;
}

static struct mfl_job *good(double clip, double noise)
{
        char more[256];
        struct mfl_error err;
        mfl_snprintf(more, sizeof more,
                "selection: {kind: poisson, rate: 0.1}\nprivacy: {kind: central, clip: %.17g, noise: %.17g, "
                "epsilon_max: 8, "
                "delta: 1e-5}\n",
                clip, noise);
        struct mfl_job *job = job_of(more, &err);
        if (!job)
                fail_msg("%s", err.text);
        return job;
}

/* Some very long, some tiny, some a few large elements among zeros. */
static void make_delta(struct mfl_rng *rng, double clip, float *delta, size_t n)
{
        double size = clip * pow(10, 6 * mfl_rng_unit(rng) - 3) / sqrt((double)n);
        uint32_t shape = mfl_rng_below(rng, 4);
        for (size_t i = 0; i < n; i++) {
                double x = size * (2 * mfl_rng_unit(rng) - 1);
                if (shape == 1 && mfl_rng_below(rng, 64))
                        x = 0;
                if (shape == 2)
                        x = size; /* all roundings go the same way */
                if (shape == 3)
                        x = clip / sqrt((double)n) * (1 + 1e-7 * mfl_rng_unit(rng));
                delta[i] = (float)x;
        }
}

static void no_client_exceeds_the_clip(void **state)
{
        enum { N = 5000 };
        static float delta[N];
        static int64_t before[N], after[N];
        struct mfl_rng rng = mfl_rng_new(5, MFL_RNG_TEST, 0, 0);
        const double clips[] = {1, 0.1, 0.37, 3.3e-3, 117.7}, noises[] = {1, 0.5, 3.7, 20};
        size_t closest = 0;
        struct mfl_fixed of[20];
        for (uint32_t i = 0; i < 20; i++) {
                struct mfl_job *job = good(clips[i % 5], noises[i % 4]);
                assert_int_equal(mfl_job_fixed(job, 60000, 1000, &of[i], NULL), 0);
                mfl_job_free(job);
        }
        for (uint32_t round = 0; round < 100000; round++) {
                double clip = clips[round % 5];
                const struct mfl_fixed fixed = of[round % 20];
                size_t n = round % 97 ? 4 + mfl_rng_below(&rng, 61) : N;
                make_delta(&rng, clip, delta, n);
                double norm2 = mfl_method_norm2(&fixed, NULL, delta, n);
                double w = mfl_central_weight(clip, fixed.scale_bits, n, norm2);
                /* The cohort that the client joins: the change of its sum is what counts. */
                for (size_t i = 0; i < n; i++)
                        before[i] = after[i] = (int64_t)mfl_rng_u32(&rng) - INT32_MAX;
                assert_int_equal(mfl_fixed_parts_add_real(&fixed, NULL, 0, 1, w, delta, n, after, NULL), 0);
                wide sum = 0;
                for (size_t i = 0; i < n; i++) {
                        int64_t q = after[i] - before[i];
                        sum += (wide)((__int128_t)q * q);
                }
                /* clip * 2^s has 53 bits, so its square is exact in 128 where 2^s makes it whole; rounded down elsewhere */
                double scaled = ldexp(clip, fixed.scale_bits);
                wide limit = (wide)(uint64_t)floor(scaled) * (uint64_t)floor(scaled);
                double exact = scaled * scaled * (1 + 0x1p-51);
                assert_true(sum <= limit || (double)sum * (1 - 0x1p-51) <= exact);
                closest += (double)sum > 0.999 * (double)limit;
        }
        assert_true(closest > 10000); /* not by clipping everything to nothing */
}

static void sigma_is_on_the_grid(void **state)
{
        const double clips[] = {1e-3, 0.1, 1, 1.7, 1000}, noises[] = {0.05, 0.5, 1, 3.3, 100};
        for (int i = 0; i < 5; i++)
                for (int k = 0; k < 5; k++) {
                        struct mfl_job *job = good(clips[i], noises[k]);
                        struct mfl_fixed fixed;
                        assert_int_equal(mfl_job_fixed(job, 60000, 1000, &fixed, NULL), 0);
                        uint64_t sigma;
                        assert_int_equal(mfl_central_sigma(job, &fixed, job->privacy.clip, &sigma, NULL), 0);
                        assert_true(sigma <= (uint64_t)1 << 24);
                        assert_true((double)sigma >= ldexp(noises[k] * clips[i], fixed.scale_bits));
                        if (clips[i] * noises[k] > 1e-3) {
                                assert_true(sigma > (uint64_t)1 << 22);
                                int most;
                                assert_int_equal(mfl_central_scale_max(job, &most, NULL), 0);
                                assert_int_equal(fixed.scale_bits, most);
                        }
                        mfl_job_free(job);
                }
}

static void a_clip_of_rounding_alone_is_refused(void **state)
{
        struct mfl_job *job = good(1e-6, 0.05);
        struct mfl_fixed fixed;
        struct mfl_error err;
        assert_int_equal(mfl_job_fixed(job, 0, 1000, &fixed, NULL), 0);
        assert_int_equal(mfl_central_check(job, &fixed, 1000000000000, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "too short for 1000000000000 parameters"));
        /* more clients leave fewer bits to each */
        assert_int_equal(mfl_job_fixed(job, 0, 1000000, &fixed, NULL), 0);
        assert_int_equal(mfl_central_check(job, &fixed, 10, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "units of the grid"));
        mfl_job_free(job);
        job = good(1, 1);
        assert_int_equal(mfl_job_fixed(job, 0, 1000, &fixed, NULL), 0);
        assert_int_equal(mfl_central_check(job, &fixed, 10, &err), 0);
        mfl_job_free(job);
}

static void a_budget_ends_before_it_is_passed(void **state)
{
        struct mfl_job *job = good(1, 1);
        uint64_t most = 0;
        double at = 0, beyond = 0;
        job->privacy.epsilon_max = 4;
        assert_int_equal(mfl_privacy_releases(&job->privacy, 0.1, 1000, &most, NULL), 0);
        assert_int_equal(mfl_privacy_epsilon(&job->privacy, 0.1, most, &at, NULL), 0);
        assert_int_equal(mfl_privacy_epsilon(&job->privacy, 0.1, most + 1, &beyond, NULL), 0);
        assert_true(most > 1 && at <= 4 && beyond > 4);
        assert_int_equal(mfl_privacy_releases(&job->privacy, 0.1, most - 1, &most, NULL), 0);
        assert_int_equal(mfl_privacy_epsilon(&job->privacy, 0.1, 100, &at, NULL), 0);
        assert_true(fabs(at - 7.046603) < 1e-4); /* dp-accounting 0.6.0 */
        assert_int_equal(mfl_privacy_epsilon(&job->privacy, 0.1, 0, &at, NULL), 0);
        assert_true(at == 0);
        struct mfl_error err;
        job->privacy.epsilon_max = 0.01;
        assert_int_equal(mfl_privacy_releases(&job->privacy, 0.1, 1000, &most, NULL), 0);
        assert_int_equal(most, 0);
        assert_int_equal(mfl_privacy_check_first(&job->privacy, 0.1, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "the first round would cost epsilon"));
        mfl_job_free(job);
}

#define POISSON "selection: {kind: poisson, rate: 0.1}\n"
#define PRIVACY "privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}\n"

static void what_it_does_not_go_with_is_refused(void **state)
{
        static const struct {
                const char *more, *why;
        } of[] = {
                {PRIVACY POISSON "aggregation: {strategy: median}\n", "only adds up"},
                {PRIVACY POISSON "aggregation: {strategy: scaffold}\n", "only adds up"},
                {PRIVACY POISSON "aggregation: {strategy: qfedavg}\n", "only adds up"},
                {PRIVACY POISSON "aggregation: {strategy: krum, f: 1}\n", "only adds up"},
                {PRIVACY POISSON "aggregation: {strategy: fedprox, mu: adaptive}\n",
                        "no noise; write a number"},
                {PRIVACY POISSON "aggregation: {weighting: samples}\n", "must not count more"},
                {PRIVACY POISSON "aggregation: {delta_max: 0.5}\n", "write at least privacy.clip"},
                {PRIVACY "selection: {clients: 10}\n", "drawn by itself"},
                {PRIVACY "selection: {kind: separated, separation: 5}\n", "drawn by itself"},
                {PRIVACY POISSON "compression: {up: {bits: 8}}\n", "write lossless"},
                {PRIVACY POISSON "personal: {layers: [dense]}\nevaluation: {every: 0}\n",
                        "not supported with privacy"},
                {PRIVACY POISSON "simulation: {attack: ipm, share: 0.1}\n", "privacy"},
                {"privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5, clients: "
                 "5}\n" POISSON,
                        "data.clients"},
                {"privacy: {kind: local, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}\n",
                        "write partition: local, or kind: central"},
                {"privacy: {kind: distributed, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}\n",
                        "write secure_sum: {bits: 64}, or kind: local"},
                {"privacy: {kind: site, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5}\n",
                        "expected central, local or distributed"},
                {"privacy: {kind: central, clip: adaptive, noise: 10, epsilon_max: 8, delta: 1e-5}\n" POISSON,
                        "takes all the noise"},
                {"privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5, mechanism: "
                 "bisr}\n",
                        "write selection: {kind: separated"},
                {"privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5, mechanism: "
                 "tree}\n",
                        "'gaussian', 'bisr', 'bsr'"},
                {"privacy: {kind: central, clip: 0, noise: 1, epsilon_max: 8, delta: 1e-5}\n", "clip"},
                {"privacy: {kind: central, clip: 1, noise: 0, epsilon_max: 8, delta: 1e-5}\n", "noise"},
                {"privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1}\n", "delta"},
                {"privacy: {kind: central, clip: 1, noise: 1, delta: 1e-5}\n", "epsilon_max"},
        };
        struct mfl_error err;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                struct mfl_job *job = job_of(of[i].more, &err);
                if (job || !strstr(err.text, of[i].why))
                        fail_msg("%s: %s", of[i].more, job ? "accepted" : err.text);
        }
        static const char *const fine[] = {PRIVACY POISSON, PRIVACY,
                PRIVACY POISSON "aggregation: {strategy: fedadam}\n",
                PRIVACY POISSON "aggregation: {strategy: fedprox, mu: 0.1, weighting: uniform}\n",
                PRIVACY POISSON "compression: {up: lossless}\n",
                ("privacy: {kind: central, clip: 1, noise: 1, epsilon_max: 8, delta: 1e-5, mechanism: bsr}\n"
                 "selection: {kind: separated, separation: 5}\n")};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(fine); i++) {
                struct mfl_job *job = job_of(fine[i], &err);
                if (!job)
                        fail_msg("%s: %s", fine[i], err.text);
                assert_int_equal(job->aggregation.weighting, MFL_WEIGHT_UNIFORM);
                mfl_job_free(job);
        }
}

#define ADAPTIVE "privacy: {kind: central, clip: adaptive, noise: 1, epsilon_max: 8, delta: 1e-5}\n"

/* Andrew et al. 2021, figure 2: from far below and above, the clip goes to the median of the lengths. Cohorts of 100, in which the
 * lengths double within 100 rounds. */
static void a_clip_follows_the_median(void **state)
{
        static const double scales[] = {0.02, 0.1, 0.3, 0.6};
        struct mfl_error err;
        struct mfl_job *job = job_of(ADAPTIVE POISSON, &err);
        assert_non_null(job);
        const struct mfl_method_ops *method = mfl_method_get(job);
        assert_true(fabs(mfl_central_bits_sigma(job) - 5) < 1e-12);
        for (int k = 0; k < 4; k++) {
                struct mfl_rng rng = mfl_rng_new(8, MFL_RNG_TEST, (uint64_t)k, 0);
                double clip = 0, share = 0;
                method->initial(job, 10, &clip);
                assert_true(clip == 0.1);
                for (int round = 1; round <= 50; round++) {
                        struct mfl_round_totals totals = {.weight = 80 + mfl_rng_below(&rng, 41)};
                        for (uint64_t i = 0; i < totals.weight; i++) {
                                double length = scales[k] * exp2(round / 100.0 + 2 * mfl_rng_unit(&rng) - 1);
                                struct mfl_client_facts facts = {
                                        .weight = 1, .n = 1000, .scale_bits = 30, .norm2 = length * length};
                                double weight, bit;
                                method->weigh(job, &clip, &facts, &weight, &bit);
                                assert_true(weight * length <= clip && bit == (length <= clip));
                                totals.scalar[0] += bit;
                        }
                        share += round > 30 ? totals.scalar[0] / (double)totals.weight / 20 : 0;
                        for (int i = 0; i < 12; i++) /* about Gaussian, of sigma 5 */
                                totals.scalar[0] += 5 * (mfl_rng_unit(&rng) - 0.5);
                        method->advance(job, &totals, &clip);
                }
                if (fabs(share - 0.5) > 0.05)
                        fail_msg("lengths about %g: %g are below the clip, which is %g", scales[k], share,
                                clip);
        }
        mfl_job_free(job);
}

/* Both releases of a round cost together what one of `noise` costs; the clip stays where the grid has room. */
static void bits_take_their_part_of_the_noise(void **state)
{
        struct mfl_error err;
        struct mfl_job *job = job_of(ADAPTIVE POISSON, &err);
        struct mfl_fixed fixed;
        assert_non_null(job);
        assert_int_equal(mfl_job_fixed(job, 60000, 1000, &fixed, &err), 0);
        uint64_t sigma;
        assert_int_equal(mfl_central_sigma(job, &fixed, 0.8, &sigma, NULL), 0);
        double z = (double)sigma / ldexp(0.8, fixed.scale_bits), b = 10;
        assert_true(fabs(1 / (z * z) + 1 / (b * b) - 1) < 1e-4);
        double up = 0.1, down = 0.1;
        for (int i = 0; i < 200; i++) {
                up = mfl_central_next_clip(job, up, 100, -500);
                down = mfl_central_next_clip(job, down, 100, 600);
        }
        assert_true(fabs(up - 6.4) < 1e-12 && fabs(down - 0.1 / 128) < 1e-12);
        assert_int_equal(mfl_central_sigma(job, &fixed, up, &sigma, NULL), 0);
        assert_true(sigma <= MFL_NOISE_SIGMA_MAX);
        assert_int_equal(mfl_central_check(job, &fixed, 1000000, &err), 0);
        /* Exactly half below: it stays. */
        assert_true(mfl_central_next_clip(job, 0.3, 100, 50) == 0.3);
        /* Nobody: the noise alone moves it. */
        assert_true(mfl_central_next_clip(job, 0.3, 0, 5) < 0.3);
        mfl_job_free(job);
}

static void batch_norms_are_refused(void **state)
{
        struct mfl_error err;
        struct mfl_job *job = good(1, 1);
        struct mfl_shape shape = {.rank = 3, .dim = {3, 32, 32}};
        struct mfl_graph *graph = NULL;
        mfl_strcpy(job->model.preset, sizeof job->model.preset, "resnet20");
        assert_int_equal(mfl_job_graph(job, &shape, 10, &graph, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "group norms"));
        mfl_job_free(job);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(no_client_exceeds_the_clip),
                cmocka_unit_test(sigma_is_on_the_grid),
                cmocka_unit_test(a_clip_of_rounding_alone_is_refused),
                cmocka_unit_test(a_budget_ends_before_it_is_passed),
                cmocka_unit_test(what_it_does_not_go_with_is_refused),
                cmocka_unit_test(a_clip_follows_the_median),
                cmocka_unit_test(bits_take_their_part_of_the_noise),
                cmocka_unit_test(batch_norms_are_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
