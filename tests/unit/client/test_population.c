/* SPDX-License-Identifier: Apache-2.0 */
/* What the server is told of a job's data: exact counts, their bounds, and nothing of a site's labels. */
#include "client/data/population.h"

#include "proto/message.h"
#include "proto/wire.h"
#include "tests/lib/test.h"

#define SAMPLES_MAX 400000

static int32_t labels[SAMPLES_MAX];

static struct mfl_job job_of(enum mfl_partition_kind kind, uint32_t clients)
{
        struct mfl_job job = {.seed = 5};
        job.data.partition = kind;
        job.data.clients = clients;
        job.data.alpha = 0.5;
        job.data.shards = 2;
        job.data.min_samples = 1;
        return job;
}

static Mfl__Partition *tell(const struct mfl_job *job, struct mfl_partition *partition, int classes)
{
        struct mfl_error err = {{0}};
        Mfl__Partition *told;
        if (mfl_population_new("j-000001", job, partition, labels, classes, 77, &told, &err))
                fail_msg("%s", err.text);
        /* By the rules of the wire, in every case. */
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT, *back = NULL;
        uint8_t *bytes;
        size_t n;
        envelope.body_case = MFL__ENVELOPE__BODY_PARTITION;
        envelope.partition = told;
        if (mfl_wire_pack(&envelope, &bytes, &n, &err) || mfl_wire_unpack(bytes, n, &back, &err))
                fail_msg("%s", err.text);
        assert_true(n <= MFL_PARTITION_BYTES_MAX + 16);
        mfl_wire_free(back);
        free(bytes);
        return told;
}

static struct mfl_partition *cut(const struct mfl_job *job, uint32_t n, int classes)
{
        struct mfl_partition *partition;
        struct mfl_error err = {{0}};
        for (uint32_t i = 0; i < n; i++)
                labels[i] = (int32_t)((i * 2654435761u >> 7) % (uint32_t)classes);
        if (mfl_partition_new(job, labels, n, classes, &partition, &err))
                fail_msg("%s", err.text);
        return partition;
}

static void counts_are_exact(void **state)
{
        struct mfl_job job = job_of(MFL_PARTITION_DIRICHLET, 30);
        struct mfl_partition *p = cut(&job, 3000, 7);
        Mfl__Partition *told = tell(&job, p, 7);
        uint64_t samples = 0;
        assert_int_equal(told->clients, 30);
        assert_int_equal(told->n_shown, 30);
        assert_int_equal(told->classes, 7);
        for (uint32_t k = 0; k < 30; k++) {
                uint32_t expected[7] = {0};
                const Mfl__ClientSamples *c = told->shown[k];
                for (uint32_t i = p->start[k]; i < p->start[k + 1]; i++)
                        expected[labels[p->index[i]]]++;
                assert_int_equal(c->client, k);
                assert_int_equal(c->n_classes, 7);
                assert_memory_equal(c->classes, expected, sizeof expected);
                samples += c->samples;
                assert_in_range(c->samples, told->samples_min, told->samples_max);
        }
        assert_int_equal(samples, 3000);
        assert_int_equal(told->samples, 3000);
        mfl_population_free(told);
        mfl_partition_free(p);
}

static void much_is_cut_down(void **state)
{
        struct mfl_job job = job_of(MFL_PARTITION_IID, 1000);
        struct mfl_partition *p = cut(&job, SAMPLES_MAX, 100);
        Mfl__Partition *told = tell(&job, p, 100);
        assert_int_equal(told->clients, 1000);
        assert_int_equal(told->classes, 100);
        assert_int_equal(told->n_shown, MFL_PARTITION_SHOWN_MAX);
        for (size_t i = 0; i < told->n_shown; i++) {
                const Mfl__ClientSamples *c = told->shown[i];
                uint64_t sum = 0, rest = 0;
                assert_int_equal(c->n_classes, MFL_PARTITION_CLASSES_MAX);
                assert_int_equal(c->client, i * 1000 / MFL_PARTITION_SHOWN_MAX);
                for (uint32_t s = p->start[c->client]; s < p->start[c->client + 1]; s++)
                        rest += labels[p->index[s]] >= MFL_PARTITION_CLASSES_MAX - 1;
                for (size_t k = 0; k < c->n_classes; k++)
                        sum += c->classes[k];
                assert_int_equal(sum, c->samples);
                assert_int_equal(c->classes[MFL_PARTITION_CLASSES_MAX - 1], rest);
        }
        mfl_population_free(told);
        mfl_partition_free(p);
}

static void a_site_tells_no_labels(void **state)
{
        struct mfl_job job = job_of(MFL_PARTITION_LOCAL, 0);
        struct mfl_partition *p = cut(&job, 123, 5);
        Mfl__Partition *told = tell(&job, p, 5);
        assert_int_equal(told->clients, 1);
        assert_int_equal(told->classes, 0);
        assert_int_equal(told->n_shown, 1);
        assert_int_equal(told->shown[0]->client, 77);
        assert_int_equal(told->shown[0]->samples, 123);
        assert_int_equal(told->shown[0]->n_classes, 0);
        mfl_population_free(told);
        mfl_partition_free(p);
}

static void check_refused(Mfl__Partition *told, const char *text)
{
        struct mfl_error err = {{0}};
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        uint8_t *bytes;
        size_t n;
        envelope.body_case = MFL__ENVELOPE__BODY_PARTITION;
        envelope.partition = told;
        assert_int_equal(mfl_wire_pack(&envelope, &bytes, &n, &err), MFL_INVALID);
        if (strncmp(err.text, text, strlen(text)))
                fail_msg("\"%s\" does not begin with \"%s\"", err.text, text);
}

/* Wherever memory ends, nothing is left behind. */
static void want_of_memory_leaks_nothing(void **state)
{
        struct mfl_job job = job_of(MFL_PARTITION_IID, 9);
        struct mfl_partition *p = cut(&job, 90, 4);
        struct mfl_error err;
        Mfl__Partition *told = NULL;
        long at = 0;
        for (;; at++) {
                mfl_alloc_fail_at(at);
                int r = mfl_population_new("j-000001", &job, p, labels, 4, 77, &told, &err);
                mfl_alloc_fail_at(-1);
                if (!r)
                        break;
                assert_int_equal(r, -ENOMEM);
        }
        assert_true(at > 9);
        mfl_population_free(told);
        mfl_partition_free(p);
}

static void nonsense_is_refused(void **state)
{
        struct mfl_job job = job_of(MFL_PARTITION_IID, 3);
        struct mfl_partition *p = cut(&job, 30, 4);
        Mfl__Partition *told = tell(&job, p, 4);
#define BROKEN(field, value, text)                                                                           \
        do {                                                                                                 \
                __typeof__(field) kept_ = (field);                                                           \
                (field) = (value);                                                                           \
                check_refused(told, text);                                                                   \
                (field) = kept_;                                                                             \
        } while (0)
        BROKEN(told->clients, 0, "Partition.clients");
        BROKEN(told->clients, 2, "Partition.shown: 3 of 2");
        BROKEN(told->samples, 29, "Partition.samples: 29");
        BROKEN(told->samples_min, 11, "Partition.samples_min: 11 is above");
        BROKEN(told->shown[1]->client, 0, "Partition.shown: client 0 after 0");
        BROKEN(told->shown[1]->samples, 9, "ClientSamples.classes: 10 samples");
        BROKEN(told->shown[1]->n_classes, 3, "ClientSamples.classes");
        BROKEN(told->classes, 5, "Partition.shown: counts of 4 classes");
        BROKEN(told->n_shown, 0, "Partition.shown: count 0");
        mfl_population_free(told);
        mfl_partition_free(p);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(counts_are_exact),
                cmocka_unit_test(much_is_cut_down),
                cmocka_unit_test(a_site_tells_no_labels),
                cmocka_unit_test(want_of_memory_leaks_nothing),
                cmocka_unit_test(nonsense_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
