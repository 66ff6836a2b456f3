/* SPDX-License-Identifier: Apache-2.0 */
/* Properties that every partition has, and golden checksums: a seed means the same partition for ever. */
#include "tests/lib/test.h"
#include "common/partition/partition.h"

#include <math.h>

#define N 6000
#define CLASSES 10

static int32_t labels[N];

static int make_labels(void **state)
{
        for (int i = 0; i < N; i++)
                labels[i] = (i * 7 + i / 10) % CLASSES; /* as many of each, in a jumble */
        return 0;
}

static struct mfl_job make_job(enum mfl_partition_kind kind, uint32_t clients)
{
        struct mfl_job job = {.seed = 42,
                .data = {.partition = kind, .clients = clients, .alpha = 0.5, .shards = 2, .min_samples = 1}};
        return job;
}

static struct mfl_partition *make(const struct mfl_job *job)
{
        struct mfl_partition *p = NULL;
        struct mfl_error err = {""};
        int r = mfl_partition_new(job, labels, N, CLASSES, &p, &err);
        if (r)
                print_message("%s\n", err.text);
        assert_int_equal(r, 0);
        return p;
}

static uint64_t checksum(const struct mfl_partition *p)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (uint32_t k = 0; k <= p->n_clients; k++)
                h = (h ^ p->start[k]) * 0x100000001b3u;
        for (uint32_t i = 0; i < N; i++)
                h = (h ^ p->index[i]) * 0x100000001b3u;
        return h;
}

static void assert_each_sample_once(const struct mfl_partition *p)
{
        static uint8_t seen[N];
        memset(seen, 0, sizeof seen);
        assert_int_equal(p->start[0], 0);
        assert_int_equal(p->start[p->n_clients], N);
        for (uint32_t k = 0; k < p->n_clients; k++)
                assert_true(p->start[k + 1] > p->start[k]);
        for (uint32_t i = 0; i < N; i++) {
                assert_true(p->index[i] < N);
                assert_int_equal(seen[p->index[i]]++, 0);
        }
}

static void every_sample_has_one_owner_whatever_the_seed(void **state)
{
        for (int kind = MFL_PARTITION_LOCAL; kind <= MFL_PARTITION_SHARDS; kind++) {
                for (uint64_t seed = 0; seed < 20; seed++) {
                        struct mfl_job job = make_job((enum mfl_partition_kind)kind, 1 + (uint32_t)seed * 4);
                        job.seed = seed;
                        struct mfl_partition *p = make(&job), *again = make(&job);
                        assert_int_equal(p->n_clients, kind == MFL_PARTITION_LOCAL ? 1 : job.data.clients);
                        assert_each_sample_once(p);
                        assert_int_equal(checksum(p), checksum(again));
                        mfl_partition_free(again);
                        mfl_partition_free(p);
                }
        }
}

static void golden_checksums(void **state)
{
        static const uint64_t golden[] = {
                0xb5353ba23ceaae4du, 0x76d8c2fd674224e5u, 0x56d2f886d5b2cbccu, 0xe3ebdffb9cd169f7u};
        for (int kind = MFL_PARTITION_LOCAL; kind <= MFL_PARTITION_SHARDS; kind++) {
                struct mfl_job job = make_job((enum mfl_partition_kind)kind, 30);
                struct mfl_partition *p = make(&job);
                if (checksum(p) != golden[kind])
                        print_message("# kind %d: 0x%016llx\n", kind, (unsigned long long)checksum(p));
                assert_true(checksum(p) == golden[kind]);
                mfl_partition_free(p);
        }
}

static void seeds_differ(void **state)
{
        for (int kind = MFL_PARTITION_IID; kind <= MFL_PARTITION_SHARDS; kind++) {
                struct mfl_job job = make_job((enum mfl_partition_kind)kind, 30);
                struct mfl_partition *a = make(&job);
                job.seed++;
                struct mfl_partition *b = make(&job);
                assert_true(checksum(a) != checksum(b));
                mfl_partition_free(a);
                mfl_partition_free(b);
        }
}

static void iid_and_shards_are_even(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_IID, 77);
        struct mfl_partition *p = make(&job);
        for (uint32_t k = 0; k < 77; k++) {
                uint32_t size = p->start[k + 1] - p->start[k];
                assert_true(size == N / 77 || size == N / 77 + 1);
        }
        mfl_partition_free(p);
        /* 600 samples a class, 100 shards of 60: a shard has one class, so a client has two at most. */
        job = make_job(MFL_PARTITION_SHARDS, 50);
        p = make(&job);
        for (uint32_t k = 0; k < 50; k++) {
                unsigned seen = 0;
                assert_int_equal(p->start[k + 1] - p->start[k], 120);
                for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                        seen |= 1u << labels[p->index[i]];
                assert_true(__builtin_popcount(seen) <= 2);
        }
        mfl_partition_free(p);
}

/* Mean over clients of the largest share that one class has. */
static double mean_top_share(double alpha, uint32_t clients)
{
        struct mfl_job job = make_job(MFL_PARTITION_DIRICHLET, clients);
        job.data.alpha = alpha;
        struct mfl_partition *p = make(&job);
        double sum = 0;
        assert_each_sample_once(p);
        for (uint32_t k = 0; k < clients; k++) {
                uint32_t count[CLASSES] = {0}, top = 0;
                for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                        count[labels[p->index[i]]]++;
                for (int c = 0; c < CLASSES; c++)
                        top = MFL_MAX(top, count[c]);
                sum += (double)top / (p->start[k + 1] - p->start[k]);
        }
        mfl_partition_free(p);
        return sum / clients;
}

static void alpha_sets_the_skew(void **state)
{
        /* alpha 1e6: a proportion deviates by about sqrt(1/(20 * 1e6)), so each client has 30 of each class,
         * give or take one for the cut. alpha 0.05: nearly all of a client comes from few classes. */
        double even = mean_top_share(1e6, 20), mild = mean_top_share(1, 20),
               skewed = mean_top_share(0.05, 10);
        assert_true(even >= 0.1 && even < 0.11);
        assert_true(mild > 0.15 && mild < 0.5);
        assert_true(skewed > 0.55);
}

/* Dirichlet(alpha) over K clients: a proportion has variance (K-1) / (K^2 (K alpha + 1)). Over 400 seeds and
 * ten classes the sample variance of client 0's proportion has a relative deviation near sqrt(2 * kurtosis /
 * 4000): 10 percent is over three of them. */
static void proportions_have_the_variance_of_the_distribution(void **state)
{
        double sum = 0, squares = 0;
        const double alpha = 2, k = 5;
        for (uint64_t seed = 0; seed < 400; seed++) {
                struct mfl_job job = make_job(MFL_PARTITION_DIRICHLET, 5);
                job.seed = seed;
                job.data.alpha = alpha;
                struct mfl_partition *p = make(&job);
                uint32_t count[CLASSES] = {0}, all[CLASSES] = {0};
                for (uint32_t i = 0; i < N; i++)
                        all[labels[i]]++;
                for (uint32_t i = p->start[0]; i < p->start[1]; i++)
                        count[labels[p->index[i]]]++;
                for (int c = 0; c < CLASSES; c++) {
                        double share = (double)count[c] / all[c];
                        sum += share;
                        squares += share * share;
                }
                mfl_partition_free(p);
        }
        double mean = sum / 4000, variance = squares / 4000 - mean * mean;
        assert_true(fabs(mean - 1 / k) < 0.01);
        assert_true(fabs(variance / ((k - 1) / (k * k * (k * alpha + 1))) - 1) < 0.1);
}

static void expect(const struct mfl_job *job, const char *text)
{
        struct mfl_partition *p;
        struct mfl_error err = {""};
        assert_int_equal(mfl_partition_new(job, labels, N, CLASSES, &p, &err), MFL_INVALID);
        assert_string_equal(err.text, text);
}

static void a_population_that_does_not_fit_is_refused(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_IID, N + 1);
        expect(&job, "data.clients: 6001 clients with at least 1 each (one sample) need 6001 training "
                     "samples; the data set has 6000");
        job = make_job(MFL_PARTITION_SHARDS, N);
        expect(&job, "data.clients: 6000 clients with at least 2 each (data.shards) need 12000 training "
                     "samples; the data set has 6000");
        job = make_job(MFL_PARTITION_DIRICHLET, 100);
        job.data.min_samples = 61;
        expect(&job, "data.clients: 100 clients with at least 61 each (data.min_samples) need 6100 training "
                     "samples; the data set has 6000");
        job.data.min_samples = 60;
        job.data.alpha = NAN;
        expect(&job, "data.alpha: nan; 1e-06 to 1e+09 are possible");
        job.data.alpha = 0.001;
        expect(&job, "data.alpha: in 32 draws of Dirichlet(0.001) over 100 clients and 6000 samples some "
                     "client always had fewer than 60 samples (at best 0); raise alpha, or lower clients or "
                     "min_samples");
        job = make_job(MFL_PARTITION_IID, 0);
        expect(&job, "data.clients: 0; this partition needs a population of at least 1");
}

static void each_client_has_its_minimum(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_DIRICHLET, 20);
        job.data.min_samples = 120;
        struct mfl_partition *p = make(&job);
        for (uint32_t k = 0; k < 20; k++)
                assert_true(p->start[k + 1] - p->start[k] >= 120);
        mfl_partition_free(p);
}

static void every_failed_allocation_is_reported(void **state)
{
        for (int kind = MFL_PARTITION_LOCAL; kind <= MFL_PARTITION_SHARDS; kind++) {
                struct mfl_job job = make_job((enum mfl_partition_kind)kind, 10);
                for (long i = 0;; i++) {
                        struct mfl_partition *p = NULL;
                        mfl_alloc_fail_at(i);
                        int r = mfl_partition_new(&job, labels, N, CLASSES, &p, NULL);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        assert_int_equal(r, struck ? -ENOMEM : 0);
                        mfl_partition_free(p);
                        if (!struck)
                                break;
                        assert_true(i < 20);
                }
        }
}

static void evaluation_shards(void **state)
{
        static const struct {
                uint32_t n, batch, shards, per_shard;
        } cases[] = {{10000, 250, 40, 250}, {10000, 100, 50, 200}, {60000, 250, 60, 1000}, {1, 250, 1, 250},
                {250, 250, 1, 250}, {251, 250, 2, 250}, {16000, 250, 64, 250}, {16001, 250, 33, 500},
                {0, 250, 0, 250}, {UINT32_MAX, 1, 64, 1u << 26}, {UINT32_MAX, UINT32_MAX, 1, UINT32_MAX},
                {5, UINT32_MAX, 1, UINT32_MAX}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                uint32_t per_shard = 0;
                assert_int_equal(mfl_eval_shards(cases[i].n, cases[i].batch, &per_shard), cases[i].shards);
                assert_int_equal(per_shard, cases[i].per_shard);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_sample_has_one_owner_whatever_the_seed),
                cmocka_unit_test(golden_checksums),
                cmocka_unit_test(seeds_differ),
                cmocka_unit_test(iid_and_shards_are_even),
                cmocka_unit_test(alpha_sets_the_skew),
                cmocka_unit_test(proportions_have_the_variance_of_the_distribution),
                cmocka_unit_test(a_population_that_does_not_fit_is_refused),
                cmocka_unit_test(each_client_has_its_minimum),
                cmocka_unit_test(every_failed_allocation_is_reported),
                cmocka_unit_test(evaluation_shards),
        };
        return cmocka_run_group_tests_name("partitions", tests, make_labels, NULL);
}
