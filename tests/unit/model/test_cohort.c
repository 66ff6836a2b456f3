/* SPDX-License-Identifier: Apache-2.0 */
/* Who takes part in a round: draws against exact probabilities, durations, virtual time, and what is remembered of clients. */
#include "tests/lib/test.h"
#include "common/cohort/calendar.h"
#include "common/cohort/cohort.h"
#include "common/cohort/draw.h"
#include "common/cohort/duration.h"
#include "common/method/method.h"

#include <math.h>
#include <stdio.h>

/* ---- draws ---- */

static int compare(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
        return (x > y) - (x < y);
}

/* The same clients as by the array of them all. */
static void a_draw_needs_no_population(void **state)
{
        (void)state;
        static const uint32_t sizes[][2] = {
                {1, 1}, {7, 3}, {100, 99}, {5000, 40}, {70000, 69999}, {10000000, 1000}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(sizes); i++) {
                uint32_t population = sizes[i][0], n = sizes[i][1];
                uint32_t *v = malloc(population * sizeof *v), *got = malloc(n * sizeof *got);
                struct mfl_rng a = mfl_rng_new(i, MFL_RNG_SELECT, 3, 1), b = a;
                for (uint32_t k = 0; k < population; k++)
                        v[k] = k;
                for (uint32_t k = 0; k < n; k++) {
                        uint32_t j = k + mfl_rng_below(&a, population - k), t = v[k];
                        v[k] = v[j];
                        v[j] = t;
                }
                qsort(v, n, sizeof *v, compare);
                assert_int_equal(mfl_draw_uniform(&b, population, n, got), 0);
                assert_memory_equal(v, got, n * sizeof *v);
                free(v);
                free(got);
        }
}

/* Probability that `pair` of 5 are the first two, in this order: w_a / W * w_b / (W - w_a). */
static void a_weighted_draw_has_the_exact_probabilities(void **state)
{
        enum { N = 5, DRAWS = 200000 };
        static const uint64_t weight[N] = {1, 2, 0, 4, 9};
        uint32_t count[N][N] = {{0}}, v[N], n;
        (void)state;
        for (uint32_t i = 0; i < DRAWS; i++) {
                struct mfl_rng rng = mfl_rng_new(5, MFL_RNG_TEST, i, 0);
                assert_int_equal(mfl_draw_weighted(&rng, weight, N, 2, v, &n), 0);
                assert_int_equal(n, 2);
                count[v[0]][v[1]]++;
        }
        for (int a = 0; a < N; a++)
                for (int b = 0; b < N; b++) {
                        double p = a == b ? 0
                                          : (double)weight[a] / 16 * (double)weight[b] /
                                                    (16 - (double)weight[a]);
                        double deviation = sqrt(DRAWS * p * (1 - p));
                        assert_true(fabs(count[a][b] - DRAWS * p) <= 5 * deviation);
                        assert_true(p > 0 || !count[a][b]);
                }
}

/* The tree draws who a linear search over the weights that are left draws; until nobody with a weight is left. */
static void a_weighted_draw_is_a_linear_search(void **state)
{
        enum { N = 1000 };
        uint64_t weight[N], left[N], total = 0;
        uint32_t v[N], n, positive = 0;
        (void)state;
        struct mfl_rng sizes = mfl_rng_new(1, MFL_RNG_TEST, 0, 0), rng = mfl_rng_new(2, MFL_RNG_TEST, 0, 0),
                       same = rng;
        for (int i = 0; i < N; i++) {
                left[i] = weight[i] = i % 7 ? (uint64_t)mfl_rng_u32(&sizes) << (i % 20) : 0;
                total += weight[i];
                positive += weight[i] > 0;
        }
        assert_int_equal(mfl_draw_weighted(&rng, weight, N, N, v, &n), 0);
        assert_int_equal(n, positive);
        for (uint32_t k = 0; k < n; k++) {
                __extension__ typedef unsigned __int128 wide;
                wide m = (wide)mfl_rng_u64(&same) * total;
                while ((uint64_t)m < -total % total)
                        m = (wide)mfl_rng_u64(&same) * total;
                uint64_t at = (uint64_t)(m >> 64);
                uint32_t i = 0;
                while (at >= left[i])
                        at -= left[i++];
                assert_int_equal(v[k], i);
                total -= left[i];
                left[i] = 0;
        }
}

static void quarter_million_of_a_million(void **state)
{
        enum { N = 1 << 20, TAKEN = 250000 };
        uint64_t *weight = malloc(N * sizeof *weight);
        uint32_t *v = malloc(TAKEN * sizeof *v), n;
        uint64_t sum = 0;
        (void)state;
        for (uint32_t i = 0; i < N; i++)
                weight[i] = 1 + i % 100;
        struct mfl_rng rng = mfl_rng_new(1, MFL_RNG_TEST, 0, 0);
        assert_int_equal(mfl_draw_weighted(&rng, weight, N, TAKEN, v, &n), 0);
        assert_int_equal(n, TAKEN);
        for (uint32_t i = 0; i < n; i++)
                sum += weight[v[i]];
        assert_true(sum / n > 55); /* the mean is 50.5 */
        qsort(v, n, sizeof *v, compare);
        for (uint32_t i = 1; i < n; i++)
                assert_true(v[i] != v[i - 1]);
        free(weight);
        free(v);
}

/* ---- jobs ---- */

#define HEAD "name: a\nrounds: 50\nseed: 9\nmodel: {preset: mlp}\ntraining: {lr: 0.1, batch: 10, epochs: 2}\n"
#define DATA(n) "data: {name: d, partition: iid, clients: " #n "}\n"

static struct mfl_job *parse(const char *text)
{
        struct mfl_job *job = NULL;
        struct mfl_error err = {{0}};
        int r = mfl_job_parse(text, strlen(text), "j.yaml", &job, &err);
        if (r)
                print_error("%s\n", err.text);
        assert_int_equal(r, 0);
        return job;
}

static void expect_refused(const char *text, const char *why)
{
        struct mfl_job *job = NULL;
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_job_parse(text, strlen(text), "j.yaml", &job, &err), MFL_INVALID);
        assert_string_equal(err.text, why);
}

#define TABLE(rows) "time: virtual\ntrace:\n  day: 100s\n  csv: |\n" rows

static void durations_and_days(void **state)
{
        (void)state;
        struct mfl_job *job = parse(HEAD DATA(4) TABLE("    on, client, speed ,bandwidth\n"
                                                       "    ,0,100,\n"
                                                       "    10-20;50-60.5,2,0.5,1000\n"
                                                       "\n"
                                                       "    0-100,1,3,0.25\n"
                                                       "    0-20;90-100,3,1,\n"));
        const struct mfl_trace *t = &job->trace;
        uint64_t until;
        /* 3 rows / speed + bytes / bandwidth, rounded up to microseconds. */
        assert_int_equal(mfl_duration_of(t, 9, 0, 1000, 77), 30000000);
        assert_int_equal(mfl_duration_of(t, 9, 2, 10, 500), 60500000);
        assert_int_equal(mfl_duration_of(t, 9, 1, 1, 1), 1000000 + 4000000);
        assert_int_equal(mfl_duration_of(t, 9, 1, UINT64_MAX, 1), MFL_VIRTUAL_MAX_US);
        assert_true(mfl_duration_is_on(t, 9, 0, 5000000, &until) && until == MFL_VIRTUAL_NEVER);
        assert_true(mfl_duration_is_on(t, 9, 1, 5000000, &until) && until == MFL_VIRTUAL_NEVER);
        assert_true(!mfl_duration_is_on(t, 9, 2, 0, &until) && until == 10000000);
        assert_true(mfl_duration_is_on(t, 9, 2, 10000000, &until) && until == 20000000);
        assert_true(!mfl_duration_is_on(t, 9, 2, 20000000, &until) && until == 50000000);
        assert_true(mfl_duration_is_on(t, 9, 2, 360499999, &until) && until == 360500000);
        assert_true(!mfl_duration_is_on(t, 9, 2, 360500000, &until) && until == 410000000);
        assert_true(mfl_duration_is_on(t, 9, 3, 95000000, &until) && until == 120000000); /* over midnight */
        assert_true(mfl_duration_is_on(t, 9, 3, 105000000, &until) && until == 120000000);
        assert_true(!mfl_duration_is_on(t, 9, 3, 20000000, &until) && until == 90000000);
        assert_false(mfl_trace_is_fixed(t));
        mfl_job_free(job);
        job = parse(HEAD DATA(1) TABLE("    client,duration\n    0,2.5\n"));
        assert_true(mfl_trace_is_fixed(&job->trace) && !mfl_cohort_needs_samples(job));
        assert_int_equal(mfl_duration_of(&job->trace, 9, 0, 1000, 5), 2500000);
        mfl_job_free(job);
}

static void bad_traces_are_refused_with_the_line(void **state)
{
        (void)state;
#define BAD(rows, why) expect_refused(HEAD DATA(3) TABLE(rows), "j.yaml:10: trace.csv: " why)
        BAD("    client,speed\n    0,1\n    2,1\n",
                "line 3: the trace ends without client 1; each of the 3 clients needs a line");
        BAD("    client,speed\n    0,1\n    3,1\n",
                "line 3: client 3 is unknown: the population has 3, numbered from 0");
        BAD("    client,speed\n    0,1\n    0,1\n", "line 3: client 0 has a line already");
        BAD("    client,speed\n    0,1\n    x,1\n", "line 3: client 'x': expected the number of a client");
        BAD("    client,speed\n    0,0\n",
                "line 2: speed '0': expected a number above 0 with at most six digits behind the point");
        BAD("    client,speed\n    0,1e3\n",
                "line 2: speed '1e3': expected a number above 0 with at most six digits behind the point");
        BAD("    client,speed\n    0,1,2\n", "line 2: more than the 2 cells of the first line");
        BAD("    client,speed,on\n    0,1\n", "line 2: 2 cells, but the first line has 3");
        BAD("    client,speed,on\n    0,1,5-4\n",
                "line 2: on '5-4': spans must ascend, each after the end of the one before");
        BAD("    client,speed,on\n    0,1,0-4;4-5\n",
                "line 2: on '4-5': spans must ascend, each after the end of the one before");
        BAD("    client,speed,on\n    0,1,0-101\n",
                "line 2: on '0-101' ends after the day, which has 100 s (trace.day)");
        BAD("    client,speed,on\n    0,1,now\n",
                "line 2: on 'now': expected seconds, for example 0-3600;7200-86400");
        BAD("    client,pace\n    0,1\n",
                "line 1: column 'pace' is none of client, speed, duration, bandwidth, on");
        BAD("    client,client\n    0,1\n", "line 1: there are two columns 'client'");
        BAD("    client,speed,duration\n    0,1,1\n",
                "line 1: a trace needs the columns client, and speed or duration");
        BAD("    speed\n    1\n", "line 1: a trace needs the columns client, and speed or duration");
}

static void the_model_is_log_normal(void **state)
{
        enum { N = 20000 };
        struct mfl_trace t = {.day_ms = 86400000, .mu = 1, .sigma = 0.6, .speed = 200, .online = 0.25};
        double sum = 0, squares = 0;
        uint32_t night = 0, noon = 0, on;
        uint64_t until;
        (void)state;
        for (uint32_t k = 0; k < N; k++) {
                double x = log((double)mfl_duration_of(&t, 3, k, 1000000, 0) / 3e12 * 200);
                sum += x;
                squares += x * x;
                on = mfl_duration_is_on(&t, 3, k, 0, &until);
                assert_true(until <= t.day_ms * 1000);
                night += on;
                noon += mfl_duration_is_on(&t, 3, k, 54000000000u, &until); /* 15:00 */
        }
        double mean = sum / N, variance = squares / N - mean * mean;
        assert_true(fabs(mean - 1) < 5 * 0.6 / sqrt(N));
        assert_true(fabs(sqrt(variance) - 0.6) < 5 * 0.6 / sqrt(2 * N));
        /* At midnight those are on who came after 18:00: 2 (1/4)^2. At 15:00 who came since 9:00. */
        assert_true(fabs(night / (double)N - 0.125) < 0.02 &&
                    fabs(noon / (double)N - (1 - 2 * 0.375 * 0.375 - 2 * 0.375 * 0.375)) < 0.02);
}

/* ---- virtual time ---- */

static struct mfl_cohort draw(const struct mfl_job *job, uint32_t round, uint64_t start_us,
        const uint32_t *samples, const union mfl_memory_row *memory)
{
        struct mfl_cohort_ask ask = {.job = job,
                .population = job->data.clients,
                .round = round,
                .samples = samples,
                .memory = memory,
                .start_us = start_us};
        struct mfl_cohort cohort;
        struct mfl_error err = {{0}};
        int r = mfl_cohort_draw(&ask, &cohort, &err);
        if (r)
                print_error("%s\n", err.text);
        assert_int_equal(r, 0);
        return cohort;
}

static void expect_clients(struct mfl_cohort cohort, uint32_t n, const uint32_t *v)
{
        assert_int_equal(cohort.n, n);
        assert_memory_equal(cohort.client, v, n * sizeof *v);
        free(cohort.client);
}

#define SLOW                                                                                                 \
        TABLE("    client,duration,on\n    0,5,\n    1,3,\n    2,4,\n    3,30,\n    4,1,50-99\n    "         \
              "5,9,0-8\n")

static void the_first_of_more_take_part(void **state)
{
        (void)state;
        /* Four of the five who are on are wanted, and all five are drawn: 5 goes off before it is done, so 3 takes part. */
        struct mfl_job *job = parse(HEAD DATA(6) SLOW "selection: {clients: 4, over: 1.5}\n");
        struct mfl_cohort c = draw(job, 1, 0, NULL, NULL);
        assert_int_equal(c.end_us, 30000000);
        assert_int_equal(c.wanted, 4);
        expect_clients(c, 4, (const uint32_t[]){0, 1, 2, 3});
        mfl_job_free(job);
        job = parse(HEAD DATA(6) SLOW "selection: {clients: 3, over: 2}\n");
        c = draw(job, 1, 0, NULL, NULL);
        assert_int_equal(c.end_us, 5000000);
        expect_clients(c, 3, (const uint32_t[]){0, 1, 2});
        c = draw(job, 2, 150000000, NULL, NULL); /* 50 s into the second day: 4 is on, and the fastest */
        assert_int_equal(c.start_us, 150000000);
        assert_int_equal(c.end_us, 154000000);
        expect_clients(c, 3, (const uint32_t[]){1, 2, 4});
        mfl_job_free(job);
}

static void a_deadline_ends_a_round(void **state)
{
        (void)state;
        struct mfl_job *job = parse(HEAD DATA(6) SLOW "selection: {clients: 4, over: 1.5}\n"
                                                      "limits: {virtual_deadline: 4s, quorum: 0.5}\n");
        struct mfl_cohort c = draw(job, 1, 0, NULL, NULL);
        assert_int_equal(
                c.end_us, 4000000); /* two are on time, and the server waits for the others until then */
        assert_int_equal(c.wanted, 4);
        expect_clients(c, 2, (const uint32_t[]){1, 2});
        mfl_job_free(job);
}

static void time_passes_until_enough_are_on(void **state)
{
        (void)state;
        struct mfl_job *job =
                parse(HEAD DATA(3) TABLE("    client,duration,on\n    0,5,10-90\n    1,5,20-90\n    "
                                         "2,5,40-99\n") "selection: {clients: 2}\n");
        struct mfl_cohort c = draw(job, 1, 0, NULL, NULL);
        assert_int_equal(c.start_us, 20000000);
        assert_int_equal(c.end_us, 25000000);
        expect_clients(c, 2, (const uint32_t[]){0, 1});
        c = draw(job, 2, 88000000, NULL,
                NULL); /* who is on would go off; on the next day two are on in time */
        assert_int_equal(c.start_us, 120000000);
        expect_clients(c, 2, (const uint32_t[]){0, 1});
        mfl_job_free(job);
        job = parse(HEAD DATA(2) TABLE("    client,duration,on\n    0,5,10-20\n    1,5,30-40\n"));
        struct mfl_cohort_ask ask = {.job = job, .population = 2, .round = 3};
        struct mfl_error err = {{0}};
        assert_int_equal(mfl_cohort_draw(&ask, &c, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "round 3: in virtual time, "));
        assert_non_null(strstr(err.text, " of the 2 clients that its quorum needs are on at once"));
        mfl_job_free(job);
}

/* Nobody is late, and everybody is on: virtual time changes nothing. */
static void virtual_time_draws_whom_real_time_draws(void **state)
{
        static const char *const kinds[] = {"kind: uniform, clients: 7",
                "kind: separated, separation: 3, clients: 5", "kind: poisson, rate: 0.2",
                "kind: weighted, clients: 6"};
        uint32_t samples[60];
        (void)state;
        for (uint32_t k = 0; k < 60; k++)
                samples[k] = 1 + k * k;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(kinds); i++) {
                char real[600], virtual[700];
                snprintf(real, sizeof real, HEAD DATA(60) "selection: {%s}\n", kinds[i]);
                snprintf(virtual, sizeof virtual, "%stime: virtual\ntrace: {sigma: 0.5}\n", real);
                struct mfl_job *a = parse(real), *b = parse(virtual);
                uint64_t time = 0;
                for (uint32_t r = 1; r <= 20; r++) {
                        struct mfl_cohort c = draw(a, r, 0, samples, NULL),
                                          d = draw(b, r, time, samples, NULL);
                        assert_int_equal(d.start_us, time);
                        assert_true(d.end_us > time || !d.n);
                        time = d.end_us;
                        expect_clients(d, c.n, c.client);
                        free(c.client);
                }
                mfl_job_free(a);
                mfl_job_free(b);
        }
}

/* ---- losses ---- */

static void see(union mfl_memory_row *memory, const struct mfl_job *job, uint32_t round,
        const uint32_t *samples, uint32_t client, double loss, uint64_t n)
{
        struct mfl_seen_client seen = {
                .client = client, .loss = {.samples = n, .loss_sum = (int64_t)ldexp(loss * (double)n, 32)}};
        seen.loss.square_sum = mfl_memory_add_square(0, seen.loss.loss_sum, n);
        mfl_memory_learn(memory, job, job->data.clients, round, samples, &seen, 1);
}

static void power_of_choice_takes_the_largest_losses(void **state)
{
        uint32_t samples[8] = {10, 10, 10, 10, 10, 10, 10, 10};
        (void)state;
        struct mfl_job *job =
                parse(HEAD DATA(8) "selection: {kind: power-of-choice, clients: 3, candidates: 8}\n");
        union mfl_memory_row *memory = mfl_memory_new(job, 8);
        for (uint32_t k = 0; k < 7; k++)
                see(memory, job, 1, samples, k, k == 2 ? 9 : k == 4 ? 9.5 : k, 100 + k);
        expect_clients(
                draw(job, 2, 0, samples, memory), 3, (const uint32_t[]){2, 4, 7}); /* 7 has no loss yet */
        see(memory, job, 2, samples, 7, 0.1, 5);
        expect_clients(draw(job, 3, 0, samples, memory), 3, (const uint32_t[]){2, 4, 6});
        assert_int_equal(memory[7].round, 2);
        assert_int_equal(memory[7].times, 1);
        free(memory);
        mfl_job_free(job);
}

static void squares_are_of_batches(void **state)
{
        (void)state;
        int64_t two = (int64_t)2 << 32;
        assert_int_equal(mfl_memory_add_square(5, 10 * two, 10), 5 + (40ll << MFL_SQUARE_BITS));
        assert_int_equal(mfl_memory_add_square(7, 0, 0), 7);
        assert_int_equal(mfl_memory_add_square(INT64_MAX - 1, 10 * two, 10), INT64_MAX);
        assert_int_equal(mfl_memory_add_square(0, INT64_MAX, 1), (int64_t)1 << 62);
}

#define OORT "selection: {kind: oort, clients: 10}\ntime: virtual\ntrace: {sigma: 1}\n"

static void oort_explores_then_exploits(void **state)
{
        enum { N = 200 };
        uint32_t samples[N], known = 0;
        (void)state;
        struct mfl_job *job = parse(HEAD DATA(200) OORT);
        union mfl_memory_row *memory = mfl_memory_new(job, N);
        for (uint32_t k = 0; k < N; k++)
                samples[k] = 50;
        for (uint32_t r = 1; r <= 60; r++) {
                struct mfl_cohort c = draw(job, r, 0, samples, memory);
                uint32_t again = 0;
                assert_int_equal(c.n, 10);
                for (uint32_t i = 0; i < c.n; i++)
                        again += memory[c.client[i]].times > 0;
                /* ceil(10 e) are new as long as there are new ones, and the others known. */
                uint32_t fresh = (uint32_t)ceil(fmax(0.9 * pow(0.98, r - 1), 0.3) * 10 - 1e-9);
                fresh = MFL_MIN(MFL_MAX(fresh, 10 - MFL_MIN(10u, known)), N - known);
                assert_int_equal(again, 10 - fresh);
                struct mfl_seen_client seen[10];
                for (uint32_t i = 0; i < c.n; i++) {
                        seen[i] = (struct mfl_seen_client){.client = c.client[i],
                                .loss = {.samples = 50,
                                        .loss_sum = 50 * ((int64_t)(1 + c.client[i] % 3) << 32)}};
                        seen[i].loss.square_sum = mfl_memory_add_square(0, seen[i].loss.loss_sum, 50);
                }
                mfl_memory_learn(memory, job, N, r, samples, seen, c.n);
                known += fresh;
                free(c.client);
        }
        /* After rounds 40 and 60 the utilities have hardly changed: the pacer lets slower clients in. */
        assert_int_equal(memory[N].pacer.threshold, 30 + 5 + 5);
        free(memory);
        mfl_job_free(job);
}

/* A client of a large loss that is slow: without a penalty it comes first, with one it does not. */
static void oort_weighs_loss_and_duration(void **state)
{
        static const char *const penalties[] = {"0", "100"};
        (void)state;
        for (int slow_is_bad = 0; slow_is_bad < 2; slow_is_bad++) {
                char text[1000];
                uint32_t samples[4] = {10, 10, 10, 10}, picked = 0;
                snprintf(text, sizeof text,
                        HEAD DATA(4) TABLE("    client,duration\n    0,1\n    1,1\n    2,1\n    "
                                           "3,1.5\n") "selection: {kind: oort, clients: 1, "
                                                      "oort: {exploration: 0, floor: 0, cut_off: 1, "
                                                      "penalty: %s, clip: 1}}\n",
                        penalties[slow_is_bad]);
                struct mfl_job *job = parse(text);
                union mfl_memory_row *memory = mfl_memory_new(job, 4);
                for (uint32_t k = 0; k < 4; k++)
                        see(memory, job, 1, samples, k, k == 3 ? 2 : 1, 10);
                for (uint32_t r = 2; r < 30; r++) {
                        struct mfl_cohort c = draw(job, r, 0, samples, memory);
                        picked += c.client[0] == 3;
                        free(c.client);
                }
                assert_int_equal(picked, slow_is_bad ? 0 : 28);
                free(memory);
                mfl_job_free(job);
        }
}

static void what_makes_no_sense_is_refused(void **state)
{
        (void)state;
#define LOCAL "data: {name: d}\n"
        expect_refused(HEAD LOCAL "selection: {kind: power-of-choice}\n",
                "j.yaml:7: selection.kind: power-of-choice needs a population that is known beforehand; with "
                "partition local, "
                "write uniform");
        expect_refused(HEAD LOCAL "selection: {kind: oort}\n",
                "j.yaml:7: selection.kind: oort needs a population that is known beforehand; with partition "
                "local, write uniform");
        expect_refused(HEAD LOCAL "time: virtual\n",
                "j.yaml:7: time: virtual time has a trace of a population that is known beforehand; with "
                "partition local, write "
                "real");
        expect_refused(HEAD DATA(9) "selection: {kind: oort, clients: 2}\n",
                "j.yaml:7: selection.kind: oort weighs clients by their durations, which virtual time has: "
                "add time: virtual and "
                "trace");
        expect_refused(HEAD DATA(9) "trace: {online: 0.5}\n",
                "j.yaml:7: trace: is only used with time: virtual; add that, or remove it");
        expect_refused(HEAD DATA(9) "selection: {clients: 2, over: 1.3}\n",
                "j.yaml:7: selection.over: is only used with time: virtual, which knows who would be late; "
                "add that, or remove "
                "it");
        expect_refused(HEAD DATA(9) "limits: {virtual_deadline: 9s}\n",
                "j.yaml:7: limits.virtual_deadline: is only used with time: virtual; add that, or write "
                "deadline");
        expect_refused(HEAD DATA(9) "time: virtual\n", "j.yaml:7: time: virtual needs trace: the file of a "
                                                       "table, or a model, for example {online: 0.5}");
        expect_refused(HEAD DATA(9) "time: virtual\ntrace: phones.csv\n",
                "j.yaml:8: trace: 'phones.csv' is a file that 'mfl check', 'mfl submit' and 'mfl run' read; "
                "here the table itself "
                "must stand, as csv");
        expect_refused(HEAD DATA(1) TABLE("    client,speed\n    0,1\n") "  mu: 2\n",
                "j.yaml:13: trace.mu: is the model's, and a table is given too; keep one");
        expect_refused(HEAD DATA(9) "selection: {kind: power-of-choice, clients: 3}\n",
                "j.yaml:7: selection.kind: power-of-choice needs candidates: how many are drawn by their "
                "samples, of which the 3 "
                "with the largest loss train");
        expect_refused(HEAD DATA(9) "selection: {kind: power-of-choice, candidates: 5}\n",
                "j.yaml:7: selection.kind: power-of-choice needs clients, the number per round");
        expect_refused(HEAD DATA(9) "selection: {kind: power-of-choice, clients: 3, candidates: 10}\n",
                "j.yaml:7: selection.candidates: 10 of 9 clients, of which 3 are to be chosen; write a "
                "number between");
        expect_refused(HEAD DATA(9) "selection: {kind: power-of-choice, clients: 3, candidates: 2}\n",
                "j.yaml:7: selection.candidates: 2 of 9 clients, of which 3 are to be chosen; write a number "
                "between");
        expect_refused(HEAD DATA(1048577) "selection: {kind: weighted, clients: 3}\n",
                "j.yaml:6: data.clients: 1048577 clients, and the server must know each one; with this "
                "selection and time at most "
                "1048576, with selection.kind: uniform in real time any number");
        expect_refused(HEAD DATA(131073) OORT,
                "j.yaml:6: data.clients: 131073 clients, and the server must know each one; with this "
                "selection and time at most "
                "131072, with selection.kind: uniform in real time any number");
        expect_refused(
                HEAD DATA(1048576) "selection: {kind: power-of-choice, clients: 32769, candidates: 40000}\n",
                "j.yaml:7: selection.clients: power-of-choice: 32769 clients are drawn per round; the limit "
                "is 32768");
        expect_refused(HEAD DATA(9) "selection: {clients: 3, candidates: 4}\n",
                "j.yaml:7: selection.candidates: is not used by uniform; remove it");
}

/* New jobs only: stored ones may have it, and drew fewer. */
static void no_more_than_there_are_can_be_drawn(void **state)
{
        (void)state;
#define VIRTUAL(selection) HEAD DATA(9) "time: virtual\ntrace: {online: 0.5}\nselection: {" selection "}\n"
        const struct {
                const char *text, *why;
        } table[] = {
                {VIRTUAL("clients: 7, over: 1.3"),
                        "1.3 times 7 clients are 10, and there are 9 to draw from: lower it, or "
                        "selection.clients"},
                {VIRTUAL("kind: separated, separation: 2, clients: 3, over: 1.5"),
                        "1.5 times 3 clients are 5, and there are 4 to draw from: lower it, or "
                        "selection.clients"},
                {VIRTUAL("over: 1.3"), "so many times selection.clients are drawn: write selection.clients, "
                                       "the number that take part"},
                {VIRTUAL("clients: 6, over: 1.5"), NULL},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(table); i++) {
                struct mfl_job *job = parse(table[i].text);
                struct mfl_error err;
                char why[256];
                mfl_snprintf(why, sizeof why, "job %s: selection.over: %s", job->name,
                        table[i].why ? table[i].why : "");
                assert_int_equal(mfl_job_check_over(job, &err), table[i].why ? MFL_INVALID : 0);
                if (table[i].why)
                        assert_string_equal(err.text, why);
                mfl_job_free(job);
        }
}

/* ---- real time ---- */

#define LIVE "aggregation: {strategy: fedbuff, buffer: 2, staleness_max: 1}\nselection: {clients: 4}\n"

static bool has(const union mfl_calendar_row *rows, uint64_t client, uint32_t base)
{
        uint32_t n = 0;
        for (uint32_t i = 1; i <= 4; i++)
                n += rows[i].client == client + 1 && rows[i].base == base;
        return n == 1;
}

/* Places stay with who trains; who is too stale leaves; the others start from the newest version, each once. */
static void places_are_filled_in_real_time(void **state)
{
        (void)state;
        struct mfl_job *job = parse(HEAD DATA(9) LIVE);
        assert_true(mfl_job_is_live(job) && mfl_job_needs_single_updates(job) && mfl_calendar_rows(job) == 5);
        assert_true(mfl_method_get(job)->discount && !mfl_method_get(job)->weighs);
        union mfl_calendar_row none[5] = {{.word = {0}}}, rows[5], again[5];
        struct mfl_cohort_ask ask = {.job = job, .population = 9, .round = 1};
        uint32_t dropped = 7;
        assert_int_equal(mfl_calendar_fill(&ask, none, NULL, 0, rows, &dropped), 0);
        assert_true(!dropped && mfl_calendar_valid(job, rows, 0) && rows[4].client);
        uint64_t left = rows[2].client - 1, arrived = rows[1].client - 1;
        rows[1] = rows[3] = (union mfl_calendar_row){.word = {0}};
        ask.round = 2;
        assert_int_equal(mfl_calendar_fill(&ask, rows, NULL, 0, again, &dropped), 0);
        assert_true(!dropped && has(again, left, 0) && again[1].base == 1 && again[3].base == 1);
        assert_true(mfl_calendar_valid(job, again, 1) && mfl_calendar_oldest(job, again, 1) == 0);
        ask.round = 3; /* base 0 would be two versions late */
        assert_int_equal(mfl_calendar_fill(&ask, again, NULL, 0, rows, &dropped), 0);
        assert_true(dropped == 2 && !has(rows, left, 0) && has(rows, again[1].client - 1, 1));

        const uint64_t sites[] = {3, arrived + 100, UINT64_MAX - 1};
        assert_int_equal(mfl_calendar_fill(&ask, none, sites, 3, rows, &dropped), 0);
        assert_true(has(rows, 3, 2) && has(rows, UINT64_MAX - 1, 2) && !rows[4].client);
        mfl_job_free(job);
}

static void places_follow_a_record(void **state)
{
        static const struct mfl_arrival record[] = {{.client = 5, .version = 2, .base = 0},
                {.client = 1, .version = 2, .base = 1}, {.client = 5, .version = 3, .base = 2},
                {.client = 8, .version = 3, .base = 1}};
        (void)state;
        struct mfl_job *job = parse(HEAD DATA(9) LIVE);
        struct mfl_error err = {{0}};
        union mfl_calendar_row rows[5];
        const struct mfl_cohort_ask ask = {.job = job, .population = 9, .round = 2};
        assert_int_equal(mfl_calendar_refill(&ask, record, 4, rows, &err), 0);
        assert_true(has(rows, 5, 0) && has(rows, 1, 1) && has(rows, 8, 1) && !rows[4].client);
        const struct mfl_arrival twice[] = {record[0], record[0]};
        assert_int_equal(mfl_calendar_refill(&ask, twice, 2, rows, &err), MFL_INVALID);
        struct mfl_arrival one = record[0];
        assert_true(mfl_calendar_arrival_valid(job, &one));
        one.client = 9;
        assert_false(mfl_calendar_arrival_valid(job, &one));
        one = (struct mfl_arrival){.client = 1, .version = 4, .base = 1};
        assert_false(mfl_calendar_arrival_valid(job, &one)); /* too stale */
        one.base = 4;
        assert_false(mfl_calendar_arrival_valid(job, &one));
        mfl_job_free(job);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_draw_needs_no_population),
                cmocka_unit_test(a_weighted_draw_has_the_exact_probabilities),
                cmocka_unit_test(a_weighted_draw_is_a_linear_search),
                cmocka_unit_test(quarter_million_of_a_million),
                cmocka_unit_test(durations_and_days),
                cmocka_unit_test(bad_traces_are_refused_with_the_line),
                cmocka_unit_test(the_model_is_log_normal),
                cmocka_unit_test(the_first_of_more_take_part),
                cmocka_unit_test(a_deadline_ends_a_round),
                cmocka_unit_test(time_passes_until_enough_are_on),
                cmocka_unit_test(virtual_time_draws_whom_real_time_draws),
                cmocka_unit_test(power_of_choice_takes_the_largest_losses),
                cmocka_unit_test(squares_are_of_batches),
                cmocka_unit_test(oort_explores_then_exploits),
                cmocka_unit_test(oort_weighs_loss_and_duration),
                cmocka_unit_test(what_makes_no_sense_is_refused),
                cmocka_unit_test(no_more_than_there_are_can_be_drawn),
                cmocka_unit_test(places_are_filled_in_real_time),
                cmocka_unit_test(places_follow_a_record),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
