/* SPDX-License-Identifier: Apache-2.0 */
/* Robust aggregation and simulated attacks in job files: what arrives, and what is refused with which words. */
#include "tests/lib/test.h"

#include <stdio.h>

#include "common/job/job.h"

static int parse(const char *data, const char *rest, struct mfl_job **ret_job, struct mfl_error *err)
{
        char text[1024];
        snprintf(text, sizeof text, "name: t\nrounds: 2\nmodel: mlp\ndata: %s\ntraining: {lr: 0.1}\n%s\n",
                data ? data : "{name: d, partition: iid, clients: 10}", rest);
        return mfl_job_parse(text, strlen(text), "j.yaml", ret_job, err);
}

static void values_arrive(void **state)
{
        struct mfl_job *job;
        struct mfl_error err;
        assert_int_equal(parse(NULL,
                                 "aggregation: {strategy: bulyan, f: 1, on_few: median, before: [arc, {clip: "
                                 "1.5}, {clip: "
                                 "median}]}\nsimulation: {attack: ipm, share: 0.2, from: 3}",
                                 &job, &err),
                0);
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        assert_true(mfl_job_is_robust(job) && mfl_job_needs_single_updates(job) && mfl_robust_compares(job));
        assert_true(spec->f == 1 && spec->on_few == MFL_ON_FEW_MEDIAN && spec->n_before == 3);
        assert_true(spec->before[0].kind == MFL_BEFORE_ARC && spec->before[1].radius == 1.5);
        assert_true(spec->before[2].kind == MFL_BEFORE_CLIP && spec->before[2].radius == 0);
        assert_int_equal(mfl_robust_rows_least(job), 7);
        assert_true(job->simulation.attack == MFL_ATTACK_IPM && job->simulation.scale == 0.1 &&
                    job->simulation.from == 3);
        assert_int_equal(mfl_simulation_bad(job), 2);
        bool *bad = NULL, *again = NULL;
        int n = 0;
        assert_int_equal(mfl_simulation_draw(job, &bad), 0);
        assert_int_equal(mfl_simulation_draw(job, &again), 0);
        for (int k = 0; k < 10; k++) {
                n += bad[k];
                assert_true(bad[k] == again[k]);
        }
        assert_int_equal(n, 2);
        free(bad);
        free(again);
        mfl_job_free(job);
        assert_int_equal(parse(NULL, "aggregation: {strategy: trimmed-mean}", &job, &err), 0);
        assert_true(job->aggregation.robust.beta == 0.2 && !mfl_robust_compares(job));
        mfl_job_free(job);
        /* A clip at a number leaves sums; at the median it needs rows, and then the rule is a step before the mean. */
        assert_int_equal(parse(NULL, "aggregation: {update_clip: 2.5}", &job, &err), 0);
        assert_true(!mfl_job_has_rows(job) && job->aggregation.robust.update_clip == 2.5 &&
                    !job->aggregation.robust.n_before);
        mfl_job_free(job);
        assert_int_equal(parse(NULL, "aggregation: {update_clip: median}", &job, &err), 0);
        assert_true(mfl_job_has_rows(job) && mfl_robust_compares(job) && !mfl_job_is_robust(job));
        assert_true(job->aggregation.robust.n_before == 1 && job->aggregation.robust.before[0].radius == 0);
        mfl_job_free(job);
        /* f counts buckets; a bucket is a row. The root is none. */
        assert_int_equal(parse(NULL, "aggregation: {strategy: krum, f: 1, unit: bucket}", &job, &err), 0);
        assert_true(mfl_robust_rows_of(&job->aggregation.robust, 10) == 5 &&
                    mfl_robust_rows_of(&job->aggregation.robust, 9) == 5);
        mfl_job_free(job);
        assert_int_equal(
                parse(NULL,
                        "aggregation: {strategy: fltrust, root: {client: 3}, unit: bucket, bucket: 4}\n"
                        "simulation: {attack: label-flip, share: 0.9, labels: [1, 2]}",
                        &job, &err),
                0);
        assert_true(mfl_robust_rows_of(&job->aggregation.robust, 10) == 3);
        assert_true(mfl_attack_label(&job->simulation, 1, 4) == 2 &&
                    mfl_attack_label(&job->simulation, 3, 4) == 3);
        bad = NULL;
        assert_int_equal(mfl_simulation_draw(job, &bad), 0);
        for (int k = 0; k < 10; k++)
                assert_true(bad[k] == (k != 3)); /* the root is never bad */
        free(bad);
        mfl_job_free(job);
        /* The plain mean under an attack needs single updates, too. */
        assert_int_equal(parse(NULL, "simulation: {attack: nan, share: 0.1}", &job, &err), 0);
        assert_true(mfl_job_needs_single_updates(job) && !mfl_job_is_robust(job));
        mfl_job_free(job);
}

/* By number, never by connection; sites are drawn. */
static void regions_are_cut_by_number(void **state)
{
        struct mfl_job *job;
        struct mfl_error err;
        assert_int_equal(parse(NULL, "edges: {count: 4, rounds: 2}", &job, &err), 0);
        static const uint32_t want[10] = {0, 0, 0, 1, 1, 2, 2, 2, 3, 3};
        for (uint32_t k = 0; k < 10; k++)
                assert_int_equal(mfl_job_region(job, k), want[k]);
        assert_true(mfl_job_has_regions(job) && mfl_job_needs_single_updates(job) && mfl_job_bases(job) == 4);
        assert_true(!mfl_job_regions_meet(job, 1) && mfl_job_regions_meet(job, 2));
        mfl_job_free(job);
        assert_int_equal(parse(NULL,
                                 "edges: {count: 5}\naggregation: {strategy: krum, f: 1, unit: server}\n"
                                 "simulation: {servers: {attack: noise, share: 0.4}}",
                                 &job, &err),
                0);
        bool bad[MFL_REGIONS_MAX];
        assert_true(!mfl_job_has_regions(job) && mfl_job_bases(job) == 1);
        assert_int_equal(mfl_robust_rows_of(&job->aggregation.robust, 10), 5);
        assert_int_equal(mfl_simulation_servers(job, bad), 2);
        assert_true(mfl_simulation_is_on(&job->simulation) && job->simulation.servers.scale == 0.1);
        mfl_job_free(job);
        assert_int_equal(
                parse("{name: d, partition: local}",
                        "aggregation: {strategy: fltrust, root: {daemon: lab, data: trusted}}", &job, &err),
                0);
        assert_string_equal(mfl_job_data_for(job, "lab", ""), "trusted");
        assert_string_equal(mfl_job_data_for(job, "x", "lab"), "trusted");
        assert_string_equal(mfl_job_data_for(job, "lab", "x"), "d");
        mfl_job_free(job);
}

static void mistakes_are_refused_by_name(void **state)
{
        static const struct {
                const char *data, *rest, *want;
        } cases[] = {
                {NULL, "edges: {count: 11}", "11 regions, but the population has 10 clients"},
                {NULL, "edges: {count: 2, within: median}", "within: goes with unit: server"},
                {NULL, "edges: {rounds: 2}", "count"},
                {NULL, "edges: {count: 2}\naggregation: {strategy: median}",
                        "a robust rule needs unit: server"},
                {NULL, "edges: {count: 2}\ncompression: {down: bf16}",
                        "regions take each client's by itself"},
                {NULL, "aggregation: {strategy: median, unit: server}", "server needs edges: {count: 10}"},
                {NULL, "edges: {count: 4}\naggregation: {strategy: krum, f: 1, unit: server}",
                        "krum with f: 1 needs 5 rows, and a round may have 4, one for each server"},
                {"{name: d, partition: local}",
                        "edges: {count: 4}\naggregation: {strategy: krum, f: 1, unit: server}",
                        "krum with f: 1 needs 5 rows, and a round may have 4, one for each server"},
                {NULL, "edges: {count: 4, rounds: 2}\naggregation: {strategy: median, unit: server}",
                        "meet in each round"},
                {NULL, "edges: {count: 4}\nsimulation: {servers: {attack: noise, share: 0.4}}",
                        "are bad where a strategy compares servers"},
                {NULL,
                        "edges: {count: 4}\naggregation: {strategy: median, unit: server}\n"
                        "simulation: {servers: {attack: delayed, share: 0.4, scale: 2}}",
                        "scale"},
                {NULL, "aggregation: {strategy: fltrust, root: {client: 1, data: x}}",
                        "is a data set of the root's daemon"},
                {NULL, "aggregation: {strategy: krum}", "krum needs f, the number of bad updates"},
                {NULL, "aggregation: {strategy: krum, f: 4}",
                        "j.yaml:6: aggregation.f: krum with f: 4 needs 11 rows, and a round may have 10; "
                        "lower f"},
                {NULL, "aggregation: {strategy: bulyan, f: 2}",
                        "bulyan with f: 2 needs 11 rows, and a round may have 10"},
                {NULL, "aggregation: {strategy: median, f: 5, before: nnm}",
                        "median with f: 5 needs 11 rows"},
                {NULL, "aggregation: {strategy: multi-krum, f: 2, before: {bucket: 2}}",
                        "multi-krum with f: 2 needs 7 rows, and a round may have 5 after `before`"},
                {NULL, "aggregation: {strategy: krum, f: 1, neighbours: 10}", "krum with f: 1 needs 11 rows"},
                {NULL, "aggregation: {strategy: rfa, before: nnm}", "aggregation.before: nnm needs f"},
                {NULL, "aggregation: {strategy: rfa, f: 1, before: bucket}",
                        "expected nnm, arc, {bucket: 2}"},
                {NULL, "aggregation: {strategy: rfa, f: 1, before: {bucket: 1}}",
                        "expected a whole number from 2 to 65536"},
                {NULL, "aggregation: {strategy: rfa, f: 1, before: [arc, arc, arc, arc, arc]}",
                        "at most 4 steps"},
                {NULL, "aggregation: {strategy: trimmed-mean, f: 1, beta: 0.1}", "remove one of the two"},
                {NULL, "aggregation: {strategy: krum, f: 1, beta: 0.1}",
                        "aggregation.beta: is not used by krum"},
                {NULL, "aggregation: {strategy: fedavg, f: 1}", "aggregation.f: is not used by fedavg"},
                {NULL, "aggregation: {strategy: rfa, weighting: samples}",
                        "aggregation.weighting: is not used by rfa"},
                {NULL, "aggregation: {strategy: centered-clip}", "centered-clip needs clip_radius"},
                {NULL, "aggregation: {strategy: fltrust}", "fltrust needs root: {client: NUMBER}"},
                {NULL, "aggregation: {strategy: fltrust, root: {daemon: a}}",
                        "aggregation.root: fltrust needs root: {client: NUMBER}"},
                {"{name: d}", "aggregation: {strategy: fltrust, root: {client: 1}}",
                        "fltrust needs root: {daemon: NAME}"},
                {NULL, "aggregation: {strategy: fltrust, root: {client: 10}}",
                        "aggregation.root.client: is 10, and the population has clients 0 to 9"},
                {NULL, "aggregation: {strategy: fltrust, root: {client: 1}}\nselection: {clients: 9}",
                        "let every round take all clients"},
                {NULL, "aggregation: {strategy: krum, f: 1, root: {client: 1}}", "root: is not used by krum"},
                {NULL, "aggregation: {strategy: foolsgold, before: nnm, f: 1}",
                        "foolsgold looks at updates as they came"},
                {NULL, "aggregation: {strategy: foolsgold, unit: bucket}",
                        "a bucket has no history of a client's updates"},
                {NULL, "aggregation: {strategy: foolsgold}\nclient_state: daemon",
                        "what clients sent before is kept by the server"},
                {NULL, "aggregation: {strategy: krum, f: 1, update_clip: 1.5}", "write before: {clip: 1.5}"},
                {NULL, "aggregation: {update_clip: 0}", "expected a number above 0"},
                {NULL, "aggregation: {strategy: scaffold, update_clip: 1}",
                        "a client's state follows from how far it went"},
                {NULL, "aggregation: {strategy: fednova, update_clip: median}", "write a number"},
                {NULL, "aggregation: {update_clip: median}\ncompression: {up: lossless}",
                        "this job takes each client's by itself"},
                {NULL, "aggregation: {strategy: multi-krum, f: 2, unit: bucket}",
                        "multi-krum with f: 2 needs 7 rows, and a round may have 5 after buckets"},
                {NULL, "aggregation: {strategy: rfa, bucket: 3}", "is the size of a row with unit: bucket"},
                {NULL, "aggregation: {strategy: dnc}", "dnc needs f"},
                {NULL, "aggregation: {strategy: dnc, f: 1, before: nnm}",
                        "dnc looks at updates as they came"},
                {NULL, "aggregation: {strategy: flame, sample: 10}", "sample: is not used by flame"},
                {NULL, "aggregation: {strategy: fedasync, alpha: adaptive}", "is for apfl's clients"},
                {NULL, "aggregation: {strategy: apfl, alpha: 2}", "is the share of the client's own part"},
                {NULL, "aggregation: {strategy: rfa, unit: daemon}", "daemon needs partition: local"},
                {"{name: d, partition: iid, clients: 2000}", "aggregation: {strategy: rfa}",
                        "at most 1024 clients per round, not 2000 (selection.clients)"},
                {NULL, "aggregation: {strategy: krum, f: 0}\nselection: {kind: poisson, rate: 0.9}",
                        "krum with f: 0 needs 3 rows, and a round may have 1"},
                {NULL, "simulation: {attack: lazy}", "needs attack, and share"},
                {NULL, "simulation: {attack: lazy, share: 0.01}", "of 10 clients, that is 0 bad ones"},
                {NULL, "simulation: {attack: lazy, share: 0.1, scale: 2}",
                        "simulation.scale: is not used by lazy"},
                {NULL, "simulation: {attack: backdoor, share: 0.1, labels: next}",
                        "simulation.labels: is not used by backdoor"},
                {NULL, "simulation: {attack: label-flip, share: 0.1, labels: [1]}",
                        "expected reverse, next, or two labels"},
                {NULL, "simulation: {attack: lazy, share: 0.1, target: 1}",
                        "simulation.target: is not used by lazy"},
                {NULL, "simulation: {attack: backdoor, share: 0.1, poison: 0}", "simulation.poison: "},
                {NULL, "simulation: {attack: backdoor, share: 0.1}\nevaluation: {on: clients}",
                        "a backdoor's success is measured on the test split"},
                {NULL, "simulation: {attack: backdoor, share: 0.1}\nevaluation: {detailed: true}",
                        "counts its successes instead of a confusion matrix"},
                {"{name: d, partition: iid, clients: 2000}", "simulation: {attack: min-max, share: 0.1}",
                        "min-max compares each update of a round"},
                {NULL, "aggregation: {strategy: foolsgold}\nsimulation: {attack: stale, share: 0.1}",
                        "stale keeps what this strategy keeps"},
                {"{name: d}", "simulation: {attack: lazy, share: 0.1}", "needs a simulated population"},
                {NULL, "aggregation: {strategy: fednova}\nsimulation: {attack: lazy, share: 0.1}",
                        "lazy works on single updates, which fednova does not have"},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job *job = NULL;
                struct mfl_error err = {""};
                int r = parse(cases[i].data, cases[i].rest, &job, &err);
                if (r != MFL_INVALID || !strstr(err.text, cases[i].want))
                        fail_msg("case %zu: %d \"%s\", not \"%s\"", i, r, err.text, cases[i].want);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(values_arrive),
                cmocka_unit_test(regions_are_cut_by_number),
                cmocka_unit_test(mistakes_are_refused_by_name),
        };
        return cmocka_run_group_tests_name("job_robust", tests, NULL, NULL);
}
