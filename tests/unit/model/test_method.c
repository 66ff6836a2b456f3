/* SPDX-License-Identifier: Apache-2.0 */
/* Methods: their numbers against closed formulas and libm, their limits, and exact logarithms and powers. */
#include "tests/lib/test.h"
#include "common/base/rng.h"
#include "common/exact/exact.h"
#include "common/method/method.h"

#include <math.h>
#include <stdio.h>

static struct mfl_job *job_of(const char *training, const char *aggregation)
{
        char text[1024];
        struct mfl_job *job;
        struct mfl_error err = {""};
        snprintf(text, sizeof text,
                "name: t\nrounds: 5\ndata: {name: d, partition: iid, clients: 4}\nmodel: mlp\n"
                "training: {lr: 0.5%s}\naggregation: {%s}\n",
                training, aggregation);
        if (mfl_job_parse(text, strlen(text), "j.yaml", &job, &err))
                fail_msg("%s", err.text);
        return job;
}

static void assert_close(double got, double want, double relative)
{
        if (!(fabs(got - want) <= relative * fabs(want)))
                fail_msg("%.17g, expected %.17g", got, want);
}

static void powers_are_those_of_libm_but_for_the_last_bits(void **state)
{
        struct mfl_rng rng = mfl_rng_new(3, 1, 0, 0);
        for (int i = 0; i < 20000; i++) {
                double x = exp(40 * mfl_rng_unit(&rng) - 25), y = 30 * mfl_rng_unit(&rng) - 10;
                assert_close(mfl_exact_log(x), log(x), 1e-15 * (1 + 1 / fabs(log(x))));
                double want = pow(x, y);
                assert_close(mfl_exact_power(x, y), want, 4e-16 * (2 + fabs(log(want))));
        }
        assert_true(mfl_exact_power(3.7, 0) == 1 && mfl_exact_power(3.7, 1) == 3.7);
        assert_true(mfl_exact_power(1e300, 30) == INFINITY && mfl_exact_power(1e-300, 30) == 0);
}

static void weigh(const struct mfl_job *job, uint64_t steps, uint64_t weight, double state, double loss,
        double norm2, double *ret_weight, double ret_scalars[2])
{
        struct mfl_fixed fixed;
        struct mfl_error err = {""};
        int64_t units[MFL_METHOD_SCALARS_MAX];
        const struct mfl_client_facts facts = {
                .weight = weight, .samples = 9, .steps = steps, .loss = loss, .norm2 = norm2};
        if (mfl_job_fixed(job, 60000, 4, &fixed, &err) ||
                mfl_method_weigh(job, &fixed, &state, &facts, ret_weight, units, &err))
                fail_msg("%s", err.text);
        for (int i = 0; i < mfl_method_get(job)->n_scalars; i++)
                ret_scalars[i] = ldexp((double)units[i], -mfl_method_scalar_bits(job, &fixed, i));
}

static void fednova_has_the_closed_formula(void **state)
{
        double weight, scalars[2];
        struct mfl_job *plain = job_of("", "strategy: fednova");
        weigh(plain, 13, 100, 0, 0, 0, &weight, scalars);
        assert_true(weight == 100 / 13.0 && scalars[0] == 1300);
        mfl_job_free(plain);
        struct mfl_job *heavy = job_of(", momentum: 0.75", "strategy: fednova");
        for (uint64_t tau = 1; tau < 400; tau += 7) {
                double rho = 0.75,
                       a = ((double)tau - rho * (1 - pow(rho, (double)tau)) / (1 - rho)) / (1 - rho);
                weigh(heavy, tau, 100, 0, 0, 0, &weight, scalars);
                assert_close(weight, 100 / a, 1e-14);
                assert_close(scalars[0], 100 * a, 1e-7);
        }
        struct mfl_round_totals totals = {.weight = 200, .scalar = {1300}};
        assert_true(mfl_method_get(heavy)->step(heavy, &totals) == 6.5);
        mfl_job_free(heavy);
}

static void qfedavg_follows_the_losses(void **state)
{
        struct mfl_job *job = job_of("", "strategy: qfedavg, q: 3");
        double weight, scalars[2], n;
        mfl_method_get(job)->initial(job, 10, &n);
        assert_close(n, log(10), 1e-15);
        weigh(job, 5, 1, 2, 3, 0.25, &weight, scalars);
        assert_close(weight, 27.0 / 8, 1e-15);
        assert_close(scalars[0], 27.0 / 8 * (1 + 3 / 0.5 * 0.25 / 3), 1e-8);
        assert_close(scalars[1], 27.0 / 8, 1e-8);
        struct mfl_round_totals totals = {.weight = 4, .scalar = {16, 32}};
        assert_true(mfl_method_get(job)->step(job, &totals) == 0.25);
        n = 2;
        mfl_method_get(job)->advance(job, &totals, &n);
        assert_close(n, 4, 1e-15);                   /* a mean weight of 8 is a loss twice as large */
        weigh(job, 5, 1, 2, 0, 0, &weight, scalars); /* no loss: 1e-10 */
        assert_close(weight, pow(0.5e-10, 3), 1e-14);
        mfl_job_free(job);
}

static void stale_updates_count_less(void **state)
{
#define VIRTUAL "}\ntime: virtual\ntrace: {sigma: 1"
        struct mfl_job *job = job_of("", "strategy: fedbuff, buffer: 4" VIRTUAL);
        struct mfl_job *mixed = job_of("", "strategy: fedasync" VIRTUAL);
        const struct mfl_method_ops *ops = mfl_method_get(job);
        for (uint32_t s = 0; s <= MFL_STALENESS_MAX; s++) {
                struct mfl_client_facts facts = {.weight = 7, .staleness = s};
                struct mfl_round_totals totals = {.weight = 1, .staleness = s};
                double weight;
                ops->weigh(job, NULL, &facts, &weight, NULL);
                assert_close(weight, 7 / sqrt(1.0 + s), 1e-14);
                assert_true(s || weight == 7);
                assert_close(mfl_method_get(mixed)->share(mixed, &totals), 0.6 / sqrt(1.0 + s), 1e-14);
        }
        assert_null(ops->share_bits); /* no weight is above the whole one */
        mfl_job_free(job);
        mfl_job_free(mixed);
}

static void what_can_not_be_added_is_refused(void **state)
{
        struct mfl_job *job = job_of("", "strategy: qfedavg, q: 3");
        struct mfl_fixed fixed;
        struct mfl_error err;
        double weight, n = 1;
        int64_t units[MFL_METHOD_SCALARS_MAX];
        struct mfl_client_facts facts = {.weight = 1, .samples = 9, .steps = 1, .loss = 41};
        assert_int_equal(mfl_job_fixed(job, 60000, 4, &fixed, NULL), 0);
        assert_int_equal(fixed.share_bits, 16);
        assert_int_equal(mfl_method_weigh(job, &fixed, &n, &facts, &weight, units, &err), MFL_INVALID);
        assert_non_null(
                strstr(err.text, "qfedavg gives it a weight of 68921, and at most 65536 can be added"));
        facts.loss = 40;
        assert_int_equal(mfl_method_weigh(job, &fixed, &n, &facts, &weight, units, &err), 0);
        facts.norm2 = 1e12;
        assert_int_equal(mfl_method_weigh(job, &fixed, &n, &facts, &weight, units, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "for the round's sum"));
        facts.norm2 = NAN;
        assert_int_equal(mfl_method_weigh(job, &fixed, &n, &facts, &weight, units, &err), MFL_INVALID);
        mfl_job_free(job);
}

static void mu_rises_and_falls(void **state)
{
        struct mfl_job *job = job_of("", "strategy: fedprox, mu: adaptive, mu_start: 0.95, mu_patience: 2");
        const struct mfl_method_ops *ops = mfl_method_get(job);
        static const double losses[] = {2, 3, 4, 3.5, 3, 3, 2, 1, 0.5, 0.4, 0.3};
        static const double want[] = {0.95, 1, 1, 1, 0.9, 1, 1, 0.9, 0.9, 0.8, 0.8};
        double numbers[MFL_METHOD_STATES_MAX];
        ops->initial(job, 10, numbers);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(losses); i++) {
                struct mfl_round_totals totals = {.weight = 1, .train_loss = losses[i]};
                ops->advance(job, &totals, numbers);
                assert_close(numbers[0], want[i], 1e-12);
        }
        mfl_job_free(job);
}

static void norms_leave_running_statistics_out(void **state)
{
        enum { N = 10000 };
        static float delta[N];
        static const uint64_t edges[] = {4000, 4200};
        const struct mfl_fixed_parts parts = {edges, MFL_ARRAY_SIZE(edges)};
        const struct mfl_fixed fixed = {.statistics_max = 1};
        for (int i = 0; i < N; i++)
                delta[i] = i >= 4000 && i < 4200 ? 1e6f : (float)(i % 3);
        double want = 0;
        for (int i = 0; i < N; i++)
                want += i >= 4000 && i < 4200 ? 0 : (i % 3) * (i % 3);
        assert_true(mfl_method_norm2(&fixed, &parts, delta, N) == want);
}

/* 23 samples in batches of 10 are 3 steps an epoch. */
static void training_is_a_program_of_phases(void **state)
{
        struct mfl_phase phases[MFL_PHASES_MAX];
        struct mfl_job *job = job_of(", batch: 10, epochs: 2", "strategy: fedavg");
        assert_int_equal(mfl_method_phases(job, 1, phases), 1);
        assert_int_equal(mfl_method_all_steps(job, 1, 23), 6);
        assert_int_equal(mfl_method_update_floats(job, 10), 10);
        mfl_job_free(job);
        job = job_of(", batch: 10, epochs: 2", "strategy: ditto, lambda: 0.3");
        assert_int_equal(mfl_method_phases(job, 1, phases), 2);
        assert_true(phases[0].pull == 0 && !phases[0].unsent && !phases[0].models);
        assert_true(phases[1].pull == 0.3 && phases[1].unsent && phases[1].models);
        assert_int_equal(mfl_method_all_steps(job, 1, 23), 12);
        assert_int_equal(mfl_method_update_floats(job, 10), 20);
        mfl_job_free(job);
        job = job_of(", batch: 10, epochs: 2", "strategy: pfedme");
        assert_int_equal(mfl_method_phases(job, 1, phases), 1);
        assert_true(phases[0].inner == 5 && phases[0].pull == 15 && phases[0].rate == 0.005);
        assert_int_equal(mfl_method_all_steps(job, 1, 23), 30);
        mfl_job_free(job);
        job = job_of(", batch: 10, steps: 7}\nevaluation: {every: 0}\npersonal: {layers: [fc2], epochs: 4",
                "strategy: fedavg");
        assert_int_equal(mfl_method_phases(job, 1, phases), 2);
        assert_true(phases[0].moves == MFL_MOVES_PERSONAL && phases[1].moves == MFL_MOVES_OTHERS);
        assert_int_equal(mfl_phase_steps(job, &phases[0], 23), 12);
        assert_int_equal(mfl_phase_steps(job, &phases[1], 23), 7);
        mfl_job_free(job);
        job = job_of(", batch: 10, epochs: 2", "strategy: mimelite");
        assert_int_equal(mfl_method_phases(job, 1, phases), 2);
        assert_true(!phases[0].gradient && phases[1].gradient && phases[1].unsent);
        assert_int_equal(mfl_method_all_steps(job, 1, 23), 9); /* each sample once more */
        assert_int_equal(mfl_method_update_floats(job, 10), 20);
        assert_true(!mfl_method_corrects(job, 1) && mfl_method_corrects(job, 2));
        mfl_job_free(job);
        job = job_of(", batch: 10, epochs: 2", "strategy: mimelite, momentum: 0");
        assert_true(!mfl_method_corrects(job, 2));
        mfl_job_free(job);
        job = job_of(", batch: 10, epochs: 2, accumulate: 2", "strategy: apfl, alpha: 0.25");
        assert_int_equal(mfl_method_phases(job, 1, phases), 1);
        assert_true(phases[0].mix == 0.25 && phases[0].models && !phases[0].unsent);
        assert_int_equal(mfl_method_all_steps(job, 1, 23), 4);
        assert_int_equal(mfl_method_update_floats(job, 10), 20);
        mfl_job_free(job);
        job = job_of("", "strategy: apfl, alpha: adaptive");
        assert_int_equal(mfl_method_phases(job, 1, phases), 1);
        assert_true(phases[0].mix == 0.5 && mfl_method_get(job)->own_start == 0.5f);
        assert_int_equal(mfl_method_state_floats(job, 10), 11);
        assert_int_equal(mfl_method_update_floats(job, 10), 21);
        mfl_job_free(job);
}

/* Its rounds take turns: gradients, then training. */
static void mime_takes_two_rounds(void **state)
{
        struct mfl_phase phases[MFL_PHASES_MAX];
        struct mfl_job *job = job_of(", batch: 10, epochs: 2", "strategy: mime, momentum: 0.75");
        const struct mfl_method_ops *ops = mfl_method_get(job);
        const float s[] = {2, -4}, c[] = {0.5f, 1}, *vectors[] = {s, c};
        float got[2];
        assert_int_equal(ops->turn_rounds, 2);
        assert_int_equal(mfl_method_phases(job, 7, phases), 1);
        assert_true(phases[0].gradient && !phases[0].anchored && !mfl_method_corrects(job, 7));
        assert_int_equal(mfl_method_all_steps(job, 7, 23), 3);
        assert_int_equal(mfl_method_phases(job, 8, phases), 1);
        assert_true(!phases[0].gradient && phases[0].anchored && mfl_method_corrects(job, 8));
        assert_int_equal(mfl_method_all_steps(job, 8, 23), 6);
        ops->guide(job, 2, vectors, got); /* 3 s + c */
        assert_true(got[0] == 6.5f && got[1] == -11 && ops->rate(job) == 0.25);
        mfl_job_free(job);
        job = job_of("", "strategy: mimelite, momentum: 0.75");
        mfl_method_get(job)->guide(job, 2, vectors, got);
        assert_true(got[0] == 6 && got[1] == -12);
        mfl_job_free(job);
}

/* SCAFFOLD's and FedDyn's formulas, by hand; a client without steps changes nothing. */
static void clients_remember(void **state)
{
        const double mean[] = {0.25, -1};
        const float own[] = {1, 2}, delta[] = {-0.5f, 0.25f};
        const struct mfl_client_turn turn = {.round = 3, .steps = 4}, none = {.round = 3};
        float got[2];
        struct mfl_job *job = job_of("", "strategy: scaffold");
        const struct mfl_method_ops *ops = mfl_method_get(job);
        ops->correct(job, 2, mean, own, got);
        assert_true(got[0] == -0.75f && got[1] == -3);
        ops->remember(job, &turn, 2, mean, own, delta, got); /* 4 steps of 0.5 */
        assert_true(got[0] == 1 && got[1] == 2.875f);
        ops->remember(job, &none, 2, mean, own, delta, got);
        assert_true(got[0] == own[0] && got[1] == own[1]);
        mfl_job_free(job);
        job = job_of(", schedule: {kind: step, every: 1, factor: 0.5}", "strategy: scaffold");
        mfl_method_get(job)->remember(
                job, &turn, 2, mean, own, delta, got); /* the third round's rate is 0.125 */
        assert_true(got[0] == 1.75f && got[1] == 2.5f);
        mfl_job_free(job);
        job = job_of("", "strategy: feddyn, alpha: 0.5");
        ops = mfl_method_get(job);
        ops->correct(job, 2, mean, own, got);
        assert_true(got[0] == -1 && got[1] == -2);
        ops->remember(job, &turn, 2, mean, own, delta, got);
        assert_true(got[0] == 1.25f && got[1] == 1.875f);
        assert_true(ops->shift(job, 0.25) == -0.5);
        mfl_job_free(job);
}

static void steps_are_counted_exactly(void **state)
{
        struct mfl_job *job = job_of("", "strategy: scaffold");
        struct mfl_fixed fixed;
        struct mfl_error err = {""};
        int64_t units;
        assert_int_equal(mfl_job_fixed(job, 60000, 4, &fixed, &err), 0);
        for (uint64_t steps = 0; steps <= 1 << 24; steps = 3 * steps + 1) {
                assert_int_equal(mfl_method_count(job, &fixed, steps, &units, &err), 0);
                assert_int_equal(mfl_method_steps(job, &fixed, units), steps);
        }
        assert_int_equal(mfl_method_count(job, &fixed, (1 << 24) + 1, &units, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "scaffold counts at most 2^24 local steps, and it took 16777217"));
        mfl_job_free(job);
}

/* The exact length of the floats, whatever the sums round; running statistics stay. */
static void no_clipped_update_is_longer(void **state)
{
        static float delta[20000];
        const struct mfl_fixed fixed = {.delta_max = 16, .statistics_max = 16};
        const uint64_t edge[] = {5000, 5100};
        const struct mfl_fixed_parts parts = {edge, 2};
        struct mfl_rng rng = mfl_rng_new(5, 1, 0, 0);
        for (int turn = 0; turn < 50; turn++) {
                double limit = exp(8 * mfl_rng_unit(&rng) - 6);
                size_t n = 1 + (size_t)(mfl_rng_unit(&rng) * 19999);
                for (size_t i = 0; i < n; i++)
                        delta[i] = (float)(mfl_rng_unit(&rng) - 0.5) * (i % 7 ? 1 : 1e-6f);
                float before = n > 5050 ? delta[5050] : 0;
                double was = sqrt(mfl_method_norm2(&fixed, &parts, delta, n));
                double factor = mfl_method_clip(&fixed, &parts, limit, delta, n);
                long double sum = 0;
                for (size_t i = 0; i < n; i++)
                        sum += i >= 5000 && i < 5100 ? 0 : (long double)delta[i] * delta[i];
                assert_true(sqrtl(sum) <= (long double)limit);
                assert_true(factor < 1 || was <= limit);
                assert_true(was < limit * (1 - 1e-6) ? factor == 1 : (double)sqrtl(sum) > limit * (1 - 3e-6));
                assert_true(n <= 5050 || delta[5050] == before);
                assert_true(mfl_method_clip(&fixed, &parts, limit, delta, n) == 1); /* once is enough */
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(training_is_a_program_of_phases),
                cmocka_unit_test(mime_takes_two_rounds),
                cmocka_unit_test(powers_are_those_of_libm_but_for_the_last_bits),
                cmocka_unit_test(fednova_has_the_closed_formula),
                cmocka_unit_test(clients_remember),
                cmocka_unit_test(steps_are_counted_exactly),
                cmocka_unit_test(qfedavg_follows_the_losses),
                cmocka_unit_test(stale_updates_count_less),
                cmocka_unit_test(what_can_not_be_added_is_refused),
                cmocka_unit_test(mu_rises_and_falls),
                cmocka_unit_test(no_clipped_update_is_longer),
                cmocka_unit_test(norms_leave_running_statistics_out),
        };
        return cmocka_run_group_tests_name("method", tests, NULL, NULL);
}
