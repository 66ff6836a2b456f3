/* SPDX-License-Identifier: Apache-2.0 */
/* The partitions that flwr-datasets has: sizes and class sets as flwr-datasets 0.6.1 makes them from the same
 * labels where it leaves nothing to chance, and properties where it does. */
#include "tests/lib/test.h"
#include "common/partition/partition.h"

#define CLASSES 10
#define N 2665 /* class c has 100 + 37 c samples */

static int32_t labels[N];
static uint32_t owners[N];

static int make_labels(void **state)
{
        uint32_t at = 0;
        for (int c = 0; c < CLASSES; c++)
                for (int i = 0; i < 100 + 37 * c; i++)
                        labels[at++ * 1009 % N] = c; /* 1009 and 2665 have no common factor: a jumble */
        for (uint32_t i = 0; i < N; i++)
                owners[i] = i * 7 % 11 * 2; /* 0, 2, ... 20 */
        assert_int_equal(at, N);
        return 0;
}

static struct mfl_job make_job(enum mfl_partition_kind kind, uint32_t clients)
{
        struct mfl_job job = {.seed = 42,
                .data = {.partition = kind,
                        .clients = clients,
                        .alpha = 0.5,
                        .shards = 2,
                        .min_samples = 1,
                        .classes_per_client = 2,
                        .sigma = 2,
                        .rescale = true}};
        mfl_strcpy(job.data.name, sizeof job.data.name, "toy");
        return job;
}

static struct mfl_dataset make_set(void)
{
        return (struct mfl_dataset){.name = "toy",
                .classes = CLASSES,
                .n_owners = 21,
                .train = {.n = N, .labels = labels, .owner = owners}};
}

static struct mfl_partition *make(const struct mfl_job *job)
{
        struct mfl_dataset set = make_set();
        struct mfl_partition *p = NULL;
        struct mfl_error err = {""};
        int r = mfl_partition_dataset(job, &set, &p, &err);
        if (r)
                print_message("# %s\n", err.text);
        assert_int_equal(r, 0);
        assert_int_equal(p->n_clients, job->data.clients);
        return p;
}

static void expect(const struct mfl_job *job, const char *text)
{
        struct mfl_dataset set = make_set();
        struct mfl_partition *p;
        struct mfl_error err = {""};
        assert_int_equal(mfl_partition_dataset(job, &set, &p, &err), MFL_INVALID);
        assert_string_equal(err.text, text);
}

static uint32_t size_of(const struct mfl_partition *p, uint32_t k)
{
        return p->start[k + 1] - p->start[k];
}

static void assert_no_sample_twice(const struct mfl_partition *p)
{
        static uint8_t seen[N];
        memset(seen, 0, sizeof seen);
        assert_int_equal(p->start[0], 0);
        for (uint32_t i = 0; i < p->start[p->n_clients]; i++) {
                assert_true(p->index[i] < N);
                assert_int_equal(seen[p->index[i]]++, 0);
        }
        for (uint32_t k = 0; k < p->n_clients; k++)
                assert_true(size_of(p, k) > 0);
}

static void count_classes(const struct mfl_partition *p, uint32_t k, uint32_t *counts)
{
        memset(counts, 0, CLASSES * sizeof *counts);
        for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                counts[labels[p->index[i]]]++;
}

static void assert_sizes(const struct mfl_job *job, const uint32_t *sizes, uint32_t used)
{
        struct mfl_partition *p = make(job);
        assert_no_sample_twice(p);
        assert_int_equal(p->start[p->n_clients], used);
        for (uint32_t k = 0; k < p->n_clients; k++)
                assert_int_equal(size_of(p, k), sizes[k]);
        mfl_partition_free(p);
}

static void sizes_are_those_of_flwr_datasets(void **state)
{
        static const struct {
                enum mfl_partition_kind kind;
                uint32_t clients, sizes[12];
        } cases[] = {
                {MFL_PARTITION_LINEAR, 7, {95, 190, 285, 380, 475, 571, 669}},
                {MFL_PARTITION_LINEAR, 12, {34, 68, 102, 136, 170, 205, 239, 273, 307, 341, 375, 415}},
                {MFL_PARTITION_SQUARE, 7, {19, 76, 171, 304, 475, 685, 935}},
                {MFL_PARTITION_SQUARE, 12, {4, 16, 36, 65, 102, 147, 200, 262, 332, 410, 496, 595}},
                {MFL_PARTITION_EXPONENTIAL, 5, {31, 84, 229, 623, 1698}},
                {MFL_PARTITION_EXPONENTIAL, 7, {4, 11, 30, 83, 228, 620, 1689}},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_job job = make_job(cases[i].kind, cases[i].clients);
                assert_sizes(&job, cases[i].sizes, N);
        }
        uint32_t three[] = {100, 50, 7}, all[] = {60, 60, 60, 60};
        struct mfl_job job = make_job(MFL_PARTITION_SIZE, 3);
        job.data.sizes = three;
        job.data.n_sizes = 3;
        assert_sizes(&job, three, 157);
        job.data.clients = 4;
        job.data.sizes = all;
        job.data.n_sizes = 1;
        assert_sizes(&job, all, 240);
        job = make_job(MFL_PARTITION_INNER_DIRICHLET, 3);
        job.data.sizes = three;
        job.data.n_sizes = 3;
        assert_sizes(&job, three, 157);
}

static void shards_of_a_size(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_SHARDS, 9);
        job.data.shard_size = 100;
        static const uint32_t whole[9] = {300, 300, 300, 300, 300, 300, 300, 300, 200};
        assert_sizes(&job, whole, 2600);
        job.data.keep_incomplete_shard = true;
        struct mfl_partition *p = make(&job);
        uint32_t odd = 0;
        assert_no_sample_twice(p);
        assert_int_equal(p->start[9], N);
        for (uint32_t k = 0; k < 9; k++) {
                assert_true(size_of(p, k) == 300 || size_of(p, k) == 265);
                odd += size_of(p, k) == 265;
        }
        assert_int_equal(odd, 1);
        mfl_partition_free(p);
        job.data.shard_size = 300;
        job.data.clients = 10;
        expect(&job, "data.shard_size: 2665 samples are 9 shards of 300, too few for 10 clients");
}

static void pathological_counts_are_those_of_flwr_datasets(void **state)
{
        static const uint32_t twelve[12][CLASSES] = {{25, 28, 35}, {0, 28, 35, 53}, {0, 0, 35, 53, 83},
                {0, 0, 0, 53, 83, 95}, {0, 0, 0, 0, 82, 95, 108}, {0, 0, 0, 0, 0, 95, 107, 120},
                {0, 0, 0, 0, 0, 0, 107, 120, 132}, {0, 0, 0, 0, 0, 0, 0, 119, 132, 145},
                {25, 0, 0, 0, 0, 0, 0, 0, 132, 144}, {25, 27, 0, 0, 0, 0, 0, 0, 0, 144}, {25, 27, 35},
                {0, 27, 34, 52}};
        static const uint32_t five[5][CLASSES] = {
                {100, 69}, {0, 68, 87}, {0, 0, 87, 106}, {0, 0, 0, 105, 124}, {0, 0, 0, 0, 124, 285}};
        for (int i = 0; i < 2; i++) {
                struct mfl_job job = make_job(MFL_PARTITION_PATHOLOGICAL, i ? 5 : 12);
                job.data.classes_per_client = i ? 2 : 3;
                job.data.class_assignment = MFL_ASSIGNMENT_DETERMINISTIC;
                struct mfl_partition *p = make(&job);
                assert_no_sample_twice(p);
                for (uint32_t k = 0; k < p->n_clients; k++) {
                        uint32_t counts[CLASSES];
                        count_classes(p, k, counts);
                        assert_memory_equal(counts, i ? five[k] : twelve[k], sizeof counts);
                }
                mfl_partition_free(p);
        }
}

static void a_pathological_client_has_its_number_of_classes(void **state)
{
        for (int mode = MFL_ASSIGNMENT_RANDOM; mode <= MFL_ASSIGNMENT_FIRST_DETERMINISTIC; mode++) {
                for (uint32_t per = 1; per <= 10; per += 3) {
                        struct mfl_job job = make_job(MFL_PARTITION_PATHOLOGICAL, 23);
                        job.data.class_assignment = mode;
                        job.data.classes_per_client = per;
                        struct mfl_partition *p = make(&job);
                        assert_no_sample_twice(p);
                        for (uint32_t k = 0; k < 23; k++) {
                                uint32_t counts[CLASSES], with = 0;
                                count_classes(p, k, counts);
                                for (int c = 0; c < CLASSES; c++)
                                        with += counts[c] > 0;
                                assert_int_equal(with, per);
                                if (mode != MFL_ASSIGNMENT_RANDOM)
                                        assert_true(counts[k % CLASSES] > 0);
                        }
                        mfl_partition_free(p);
                }
        }
}

/* flwr-datasets and we each put what rounding leaves of a class to one of its clients at random. */
static void a_distribution_is_that_of_flwr_datasets(void **state)
{
        static const uint32_t theirs[CLASSES][4] = {{13, 20, 29, 38}, {27, 31, 36, 43}, {37, 41, 47, 49},
                {47, 53, 54, 57}, {57, 62, 63, 66}, {66, 69, 72, 78}, {78, 79, 81, 84}, {85, 88, 92, 94},
                {96, 97, 100, 103}, {106, 106, 109, 112}};
        double v[40];
        for (int i = 0; i < 40; i++)
                v[i] = i + 1;
        struct mfl_job job = make_job(MFL_PARTITION_DISTRIBUTION, 20);
        job.data.distribution = v;
        job.data.distribution_rows = 10;
        job.data.distribution_columns = 4;
        job.data.preassigned_samples = 3;
        struct mfl_partition *p = make(&job);
        assert_no_sample_twice(p);
        assert_int_equal(p->start[20], N);
        for (int c = 0; c < CLASSES; c++) {
                uint32_t counts[CLASSES], column = 0, differ = 0;
                int difference = 0;
                for (uint32_t k = 0; k < 20; k++) {
                        count_classes(p, k, counts);
                        if (!counts[c])
                                continue;
                        assert_true(column < 4);
                        int d = (int)counts[c] - (int)theirs[c][column++];
                        differ += d != 0;
                        difference += d;
                        assert_true(d > -4 && d < 4);
                }
                assert_int_equal(column, 4);
                assert_int_equal(difference, 0);
                assert_true(differ == 0 || differ == 2);
        }
        mfl_partition_free(p);

        static const uint32_t counts[20] = {
                6, 15, 23, 31, 39, 47, 55, 63, 71, 40, 10, 19, 27, 35, 43, 51, 59, 67, 75, 44};
        job.data.rescale = false;
        job.data.preassigned_samples = 0;
        assert_sizes(&job, counts, 820);
        v[3] = 98;
        expect(&job, "data.distribution: row 0 requests 104 samples, but class 0 has 100");
        v[3] = 4;
        v[0] = 0;
        v[37] = 0;
        job.data.rescale = true;
        mfl_partition_free(make(&job)); /* a client without samples of one of its classes */
        job.data.clients = 30;
        expect(&job, "data.distribution: 10 rows of 4 numbers; 30 clients of 2 classes each make 10 rows "
                     "(classes) of 6 (clients that have the class)");
        job.data.clients = 22;
        expect(&job,
                "data.clients: 22; partition distribution needs a multiple of the classes, which are 10");
        job = make_job(MFL_PARTITION_DISTRIBUTION, 50);
        job.data.preassigned_samples = 11;
        expect(&job, "data.preassigned_samples: class 0 has 100 samples, and 10 clients get 11 each and 1 or "
                     "more of the rest");
        job.data.preassigned_samples = 5;
        p = make(&job);
        assert_no_sample_twice(p);
        assert_int_equal(p->start[50], N);
        mfl_partition_free(p);
}

static void natural_clients_are_the_owners(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_NATURAL_ID, 11);
        struct mfl_partition *p = make(&job);
        assert_no_sample_twice(p);
        assert_int_equal(p->start[11], N);
        for (uint32_t k = 0; k < 11; k++)
                for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                        assert_int_equal(owners[p->index[i]], 2 * k);
        mfl_partition_free(p);
        job.data.clients = 4;
        p = make(&job);
        assert_no_sample_twice(p);
        assert_true(p->start[4] < N);
        mfl_partition_free(p);
        job.data.clients = 12;
        expect(&job, "data.clients: 12 clients, but the training samples have 11 owners");
        assert_int_equal(mfl_partition_new(&job, labels, N, CLASSES, &p, NULL), MFL_INVALID);
}

static void self_balancing_keeps_clients_near_the_average(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_DIRICHLET, 20);
        job.data.alpha = 0.1;
        uint32_t largest[2] = {0};
        for (int i = 0; i < 40; i++) {
                job.data.self_balancing = i & 1;
                job.seed = (uint64_t)i / 2;
                struct mfl_partition *p = make(&job);
                uint32_t most = 0;
                assert_no_sample_twice(p);
                assert_int_equal(p->start[20], N);
                for (uint32_t k = 0; k < 20; k++)
                        most = MFL_MAX(most, size_of(p, k));
                /* Who is at the average at most takes one more class at most, of 433 samples. */
                assert_true(!job.data.self_balancing || most <= N / 20 + 433);
                largest[i & 1] += most;
                mfl_partition_free(p);
        }
        assert_true(largest[1] < largest[0]);
}

static void inner_dirichlet_deals_every_sample_when_told_to(void **state)
{
        uint32_t size = N / 13; /* 13 * 205 = 2665 */
        struct mfl_job job = make_job(MFL_PARTITION_INNER_DIRICHLET, 13);
        double top[2];
        for (int i = 0; i < 2; i++) {
                job.data.alpha = i ? 1e6 : 0.01;
                job.data.sizes = &size;
                job.data.n_sizes = 1;
                struct mfl_partition *p = make(&job);
                assert_no_sample_twice(p);
                assert_int_equal(p->start[13], N);
                uint32_t counts[CLASSES], most = 0;
                count_classes(p, 0, counts);
                for (int c = 0; c < CLASSES; c++)
                        most = MFL_MAX(most, counts[c]);
                top[i] = (double)most / size;
                mfl_partition_free(p);
        }
        assert_true(top[0] > top[1] && top[1] < 0.35);
        size++;
        expect(&job, "data.sizes: 2678 samples in all, but the data set has 2665");
}

static void misfits_are_refused(void **state)
{
        struct mfl_job job = make_job(MFL_PARTITION_EXPONENTIAL, 12);
        expect(&job, "data.clients: 2665 samples over 12 clients: partition exponential leaves client 0 "
                     "none; use fewer clients");
        job = make_job(MFL_PARTITION_LINEAR, 100);
        expect(&job, "data.clients: 2665 samples over 100 clients: partition linear leaves client 0 none; "
                     "use fewer clients");
        job = make_job(MFL_PARTITION_PATHOLOGICAL, 10);
        job.data.classes_per_client = 11;
        expect(&job, "data.classes_per_client: 11, but the training samples have 10 classes");
        job.data.classes_per_client = 2;
        job.data.clients = 1332;
        job.data.class_assignment = MFL_ASSIGNMENT_DETERMINISTIC;
        expect(&job, "data.classes_per_client: 267 clients have class 0, which has 100 training samples; use "
                     "fewer clients or classes, or class_assignment: deterministic, which spreads classes "
                     "evenly");
        job.data.clients = 1333;
        expect(&job, "data.clients: 1333 clients of 2 classes each need 2666 training samples; the data set "
                     "has 2665");
        struct mfl_dataset set = make_set();
        struct mfl_partition *p;
        struct mfl_error err;
        set.n_targets = 1;
        set.train.labels = NULL;
        set.train.owner = NULL;
        assert_int_equal(mfl_partition_dataset(&job, &set, &p, &err), MFL_INVALID);
        assert_string_equal(err.text,
                "data.partition: pathological divides by class, but the samples of toy have "
                "target values instead of a class");
        job.data.partition = MFL_PARTITION_NATURAL_ID;
        assert_int_equal(mfl_partition_dataset(&job, &set, &p, &err), MFL_INVALID);
        assert_string_equal(err.text,
                "data.partition: natural-id needs a data set with an owner for each sample; toy has none");
        job.data.partition = MFL_PARTITION_LINEAR;
        job.data.clients = 10;
        assert_int_equal(mfl_partition_dataset(&job, &set, &p, &err), 0);
        mfl_partition_free(p);
}

static uint64_t checksum(const struct mfl_partition *p)
{
        uint64_t h = 0xcbf29ce484222325u;
        for (uint32_t k = 0; k <= p->n_clients; k++)
                h = (h ^ p->start[k]) * 0x100000001b3u;
        for (uint32_t i = 0; i < p->start[p->n_clients]; i++)
                h = (h ^ p->index[i]) * 0x100000001b3u;
        return h;
}

static uint32_t two_hundred = 200;
static struct mfl_job job_of(int kind)
{
        struct mfl_job job =
                make_job((enum mfl_partition_kind)kind, kind == MFL_PARTITION_EXPONENTIAL ? 5 : 10);
        job.data.sizes = &two_hundred;
        job.data.n_sizes = 1;
        return job;
}

/* A seed means the same partition for ever, on every machine. */
static void golden_checksums(void **state)
{
        int wrong = 0;
        static const uint64_t golden[] = {0x9b107978106aaff2, 0x02c7479381057498, 0x4b9635e4581e5098,
                0xed7ccc8b2852e2fe, 0x60bfcf28a895b81d, 0x17e50f92b246f35d, 0xd9063e18a75b6d02,
                0x7379e54f4fe8bb99};
        for (int kind = MFL_PARTITION_PATHOLOGICAL; kind <= MFL_PARTITION_INNER_DIRICHLET; kind++) {
                struct mfl_job job = job_of(kind);
                struct mfl_partition *p = make(&job), *again = make(&job);
                uint64_t sum = checksum(p), expected = golden[kind - MFL_PARTITION_PATHOLOGICAL];
                assert_int_equal(checksum(again), sum);
                mfl_partition_free(again);
                if (sum != expected)
                        print_message("# kind %d: 0x%016llx\n", kind, (unsigned long long)sum);
                wrong += sum != expected;
                mfl_partition_free(p);
                job.seed++;
                p = make(&job);
                assert_true((checksum(p) != sum) == (kind != MFL_PARTITION_NATURAL_ID));
                mfl_partition_free(p);
        }
        assert_int_equal(wrong, 0);
}

static void every_failed_allocation_is_reported(void **state)
{
        struct mfl_dataset set = make_set();
        for (int kind = MFL_PARTITION_PATHOLOGICAL; kind <= MFL_PARTITION_INNER_DIRICHLET; kind++) {
                struct mfl_job job = job_of(kind);
                for (long i = 0;; i++) {
                        struct mfl_partition *p = NULL;
                        mfl_alloc_fail_at(i);
                        int r = mfl_partition_dataset(&job, &set, &p, NULL);
                        bool struck = mfl_alloc_failed();
                        mfl_alloc_fail_at(-1);
                        assert_int_equal(r, struck ? -ENOMEM : 0);
                        mfl_partition_free(p);
                        if (!struck)
                                break;
                        assert_true(i < 30);
                }
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(sizes_are_those_of_flwr_datasets),
                cmocka_unit_test(shards_of_a_size),
                cmocka_unit_test(pathological_counts_are_those_of_flwr_datasets),
                cmocka_unit_test(a_pathological_client_has_its_number_of_classes),
                cmocka_unit_test(a_distribution_is_that_of_flwr_datasets),
                cmocka_unit_test(natural_clients_are_the_owners),
                cmocka_unit_test(self_balancing_keeps_clients_near_the_average),
                cmocka_unit_test(inner_dirichlet_deals_every_sample_when_told_to),
                cmocka_unit_test(misfits_are_refused),
                cmocka_unit_test(golden_checksums),
                cmocka_unit_test(every_failed_allocation_is_reported),
        };
        return cmocka_run_group_tests_name("kinds of partition", tests, make_labels, NULL);
}
