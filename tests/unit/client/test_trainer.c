/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer on the reference backend: one digest for any number of threads, any cut of the clients and any
 * number of clients trained at once; what is rejected and refused, cancelling, evaluation; what it asks of a
 * device that has its own memory. */
#include "tests/lib/test.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "client/train/trainer.h"
#include "common/base/digest.h"
#include "common/job/job.h"
#include "common/partition/partition.h"

#define N_CLIENTS 7
#define NAME "test-daemon"

struct world {
        struct mfl_dataset *dataset;
        struct mfl_device *device;
        struct mfl_graph *graph;
        float *params;
        struct mfl_fixed fixed;
};

/* 2834 parameters: stripes and blocks of several lengths, and no more to compute than that takes. */
#define MODEL                                                                                                \
        "model: {layers: [flatten, {dense: {units: 40}}, relu, {dense: {units: 30}}, relu, "                 \
        "{dense: {units: 4}}]}\n"

static const char job_text[] = "name: t\nrounds: 3\nseed: 11\n" MODEL
                               "data: {name: toy, partition: dirichlet, alpha: 1.0, clients: 7}\n"
                               "training: {lr: 0.1, momentum: 0.9, epochs: 2, batch: 8}\n"
                               "evaluation: {batch: 5}\n";
#define FUSED(n)                                                                                             \
        "name: t\nrounds: 3\nseed: 11\n" MODEL                                                               \
        "data: {name: toy, partition: dirichlet, alpha: 1.0, clients: 7}\n"                                  \
        "training: {lr: 0.1, momentum: 0.9, epochs: 2, batch: 8, fuse: " #n "}\n"                            \
        "evaluation: {batch: 5}\n"
static const char *const fused_texts[] = {FUSED(2), FUSED(3), FUSED(7), FUSED(100)};
static const char steps_text[] =
        "name: t\nrounds: 3\nseed: 11\n" MODEL "data: {name: toy, partition: iid, clients: 7}\n"
        "training: {lr: 0.1, steps: 13, batch: 8}\n"
        "aggregation: {weighting: uniform}\n";
static const char local_text[] =
        "name: t\nrounds: 3\nseed: 11\n" MODEL "data: {name: toy, partition: local}\n"
        "training: {lr: 0.1, epochs: 1, batch: 8}\n";
static const char wild_text[] =
        "name: t\nrounds: 3\nseed: 11\n" MODEL "data: {name: toy, partition: iid, clients: 7}\n"
        "training: {lr: 1000, momentum: 0.9, epochs: 5, batch: 8}\n";
static const char long_text[] =
        "name: t\nrounds: 3\nseed: 11\n" MODEL "data: {name: toy, partition: iid, clients: 7}\n"
        "training: {lr: 0.01, steps: 10000000, batch: 8}\n";

static struct world w;

static int setup(void **state)
{
        struct mfl_error err;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 230,
                .n_test = 61,
                .seed = 5};
        assert_int_equal(mfl_dataset_load(&config, &w.dataset, &err), 0);
        assert_int_equal(mfl_backend_reference.device_open(&w.device, &err), 0);
        struct mfl_job *job;
        assert_int_equal(mfl_job_parse(job_text, strlen(job_text), "t", &job, &err), 0);
        assert_int_equal(mfl_job_graph(job, &w.dataset->shape, 4, &w.graph, &err), 0);
        w.params = mfl_malloc(w.graph->n * sizeof(float));
        mfl_graph_init_params(w.graph, 3, w.params);
        assert_int_equal(mfl_fixed_choose(16, 256, &w.fixed, &err), 0);
        mfl_job_free(job);
        return 0;
}

static int teardown(void **state)
{
        free(w.params);
        mfl_graph_free(w.graph);
        mfl_backend_reference.device_close(w.device);
        mfl_dataset_free(w.dataset);
        return 0;
}

/* One at a time has a limit. */
static struct mfl_budget budget;

static struct mfl_trainer *new_trainer_on(
        const struct mfl_backend_ops *ops, uint32_t workers, uint64_t memory_max)
{
        mfl_budget_init(&budget, memory_max);
        struct mfl_error err;
        const struct mfl_dataset *data_sets[] = {w.dataset};
        uint64_t fingerprint = 77;
        struct mfl_trainer_options options = {.ops = ops,
                .device = w.device,
                .workers = workers,
                .budget = memory_max ? &budget : NULL,
                .name = NAME,
                .n_data_sets = 1,
                .data_sets = data_sets,
                .fingerprints = &fingerprint};
        struct mfl_trainer *trainer;
        assert_int_equal(mfl_trainer_new(&options, &trainer, &err), 0);
        return trainer;
}

static struct mfl_trainer *new_trainer(uint32_t workers, uint64_t memory_max)
{
        return new_trainer_on(&mfl_backend_reference, workers, memory_max);
}

static struct mfl_task train_task(uint64_t *items, uint32_t n)
{
        return (struct mfl_task){.task = 1,
                .job = "j-000001",
                .round = 2,
                .kind = MFL_TASK_TRAIN,
                .n_items = n,
                .items = items,
                .n_params = w.graph->n,
                .fixed = w.fixed,
                .fingerprint = 77};
}

static int run(struct mfl_trainer *trainer, const char *text, const struct mfl_task *task,
        struct mfl_train_result **ret_result, struct mfl_error *err)
{
        struct mfl_train_control control = {0};
        struct mfl_train_request request = {
                .task = task, .job_text = text, .params = w.params, .control = &control};
        return mfl_trainer_run(trainer, &request, ret_result, err);
}

/* What the server makes of a result: everything added into one sum. */
struct total {
        int64_t *sum;
        uint64_t weight, samples, correct;
        int64_t loss_sum;
        uint32_t n_rejected;
};

static void add_result(struct total *total, const struct mfl_train_result *result)
{
        struct mfl_error err;
        for (uint32_t i = 0; i < result->n_updates; i++) {
                const struct mfl_announce *u = &result->updates[i];
                int r = 0;
                if (u->bytes && u->encoding == MFL_ENCODING_I64) {
                        assert_int_equal(u->bytes, w.graph->n * 8);
                        r = mfl_fixed_add_i64(
                                &w.fixed, u->weight, result->data[i], w.graph->n, total->sum, &err);
                } else if (u->bytes) {
                        assert_int_equal(u->bytes, w.graph->n * 4);
                        r = mfl_fixed_add_f32(
                                &w.fixed, u->weight, result->data[i], w.graph->n, total->sum, &err);
                }
                assert_int_equal(r, 0);
                total->weight += u->weight;
                total->samples += u->samples;
                total->correct += u->correct;
                total->loss_sum += u->loss_sum;
                total->n_rejected += u->n_rejected;
        }
}

/* Trains clients 0 .. N_CLIENTS - 1 in tasks of at most `per` clients. */
static struct total train_all(const char *text, uint32_t workers, uint32_t per, bool single)
{
        struct total total = {.sum = mfl_calloc(w.graph->n, sizeof(int64_t))};
        struct mfl_trainer *trainer = new_trainer(workers, 0);
        uint64_t items[N_CLIENTS];
        for (uint32_t i = 0; i < N_CLIENTS; i++)
                items[i] = N_CLIENTS - 1 - i;
        for (uint32_t at = 0; at < N_CLIENTS; at += per) {
                struct mfl_task task = train_task(items + at, MFL_MIN(per, N_CLIENTS - at));
                task.single_updates = single;
                struct mfl_train_result *result;
                struct mfl_error err;
                int r = run(trainer, text, &task, &result, &err);
                if (r)
                        fail_msg("%s", err.text);
                bool alone = single || task.n_items == 1;
                assert_int_equal(result->n_updates, single ? task.n_items : 1);
                assert_int_equal(result->updates[0].encoding, alone ? MFL_ENCODING_F32 : MFL_ENCODING_I64);
                add_result(&total, result);
                mfl_trainer_result_free(trainer, result);
        }
        mfl_trainer_free(trainer);
        return total;
}

static void check_same(const char *text, struct total *want, uint32_t workers, uint32_t per, bool single)
{
        struct total got = train_all(text, workers, per, single);
        assert_memory_equal(got.sum, want->sum, w.graph->n * sizeof(int64_t));
        assert_int_equal(got.weight, want->weight);
        assert_int_equal(got.samples, want->samples);
        assert_int_equal(got.correct, want->correct);
        assert_int_equal(got.loss_sum, want->loss_sum);
        free(got.sum);
}

static void one_sum_for_any_threads_and_any_cut(void **state)
{
        struct total want = train_all(job_text, 1, N_CLIENTS, false);
        assert_int_equal(want.weight, 230);
        assert_int_equal(want.samples, 2 * 230);
        assert_true(want.loss_sum > 0);
        int64_t any = 0;
        for (uint64_t i = 0; i < w.graph->n; i++)
                any |= want.sum[i];
        assert_true(any != 0);
        for (uint32_t workers = 1; workers <= 3; workers++) {
                check_same(job_text, &want, workers, N_CLIENTS, false);
                check_same(job_text, &want, workers, 1, false);
                check_same(job_text, &want, workers, 3, false);
                check_same(job_text, &want, workers, N_CLIENTS, true);
        }
        free(want.sum);
}

/* Clients are of different sizes (Dirichlet), so lanes finish and start anew at different steps. */
static void clients_trained_at_once_give_the_same_bits(void **state)
{
        struct total want = train_all(job_text, 1, N_CLIENTS, false);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(fused_texts); i++) {
                check_same(fused_texts[i], &want, 1, N_CLIENTS, false);
                check_same(fused_texts[i], &want, 2, N_CLIENTS, false);
                check_same(fused_texts[i], &want, 1, 1, false);
                check_same(fused_texts[i], &want, 1, 4, false); /* the second task needs fewer lanes */
                check_same(fused_texts[i], &want, 1, N_CLIENTS, true);
        }
        free(want.sum);
}

/* 70 clients of unequal sizes in one task, trained 1, 2, 3, 8 and 64 at once on one thread and on two: one
 * sum, and that of every client trained alone. */
#define N_MANY 70u
#define MANY(n)                                                                                              \
        "name: t\nrounds: 3\nseed: 12\n" MODEL                                                               \
        "data: {name: toy, partition: dirichlet, alpha: 1.5, clients: 70}\n"                                 \
        "training: {lr: 0.1, momentum: 0.9, epochs: 1, batch: 4, fuse: " #n "}\n"                            \
        "aggregation: {weighting: uniform}\n"

static void train_many(
        const struct mfl_backend_ops *ops, const char *text, uint32_t workers, uint32_t per, int64_t *sum)
{
        struct mfl_trainer *trainer = new_trainer_on(ops, workers, 0);
        struct total total = {.sum = sum};
        uint64_t items[N_MANY];
        memset(sum, 0, w.graph->n * sizeof(int64_t));
        for (uint32_t i = 0; i < N_MANY; i++)
                items[i] = i * 13 % N_MANY;
        for (uint32_t at = 0; at < N_MANY; at += per) {
                struct mfl_task task = train_task(items + at, MFL_MIN(per, N_MANY - at));
                struct mfl_train_result *result;
                struct mfl_error err;
                if (run(trainer, text, &task, &result, &err))
                        fail_msg("%s", err.text);
                add_result(&total, result);
                mfl_trainer_result_free(trainer, result);
        }
        assert_int_equal(total.weight, N_MANY);
        assert_int_equal(total.samples, 700);
        assert_int_equal(total.n_rejected, 0);
        mfl_trainer_free(trainer);
}

static void check_many(const struct mfl_backend_ops *ops)
{
        static const char *const texts[] = {MANY(1), MANY(2), MANY(3), MANY(8), MANY(64)};
        size_t bytes = w.graph->n * sizeof(int64_t);
        int64_t *alone = mfl_malloc(bytes), *got = mfl_malloc(bytes);
        struct mfl_dataset *small = w.dataset;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 700,
                .n_test = 10,
                .seed = 6};
        struct mfl_error err;
        assert_true(alone && got);
        assert_int_equal(mfl_dataset_load(&config, &w.dataset, &err), 0);
        train_many(ops, texts[0], 1, 1, alone);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(texts); i++)
                for (uint32_t workers = 1; workers <= 2; workers++) {
                        train_many(ops, texts[i], workers, N_MANY, got);
                        if (memcmp(alone, got, bytes))
                                fail_msg("other bits on %u workers with: %s", workers, texts[i]);
                }
        train_many(ops, texts[3], 2, 23, got); /* in three daemons' shares */
        assert_memory_equal(alone, got, bytes);
        mfl_dataset_free(w.dataset);
        w.dataset = small;
        free(alone);
        free(got);
}

static void any_number_at_once_gives_the_same_bits(void **state)
{
        check_many(&mfl_backend_reference);
}

/* The same on the module with oneDNN, where this build has one. */
static void any_number_at_once_gives_the_same_bits_on_the_cpu_backend(void **state)
{
        const struct mfl_backend_ops *ops;
        struct mfl_error err;
        struct mfl_device *device, *reference = w.device;
        if (mfl_backend_open("cpu", &ops, &err)) {
                print_message("# no CPU backend in this build: %s\n", err.text);
                return;
        }
        assert_int_equal(ops->device_open(&device, &err), 0);
        w.device = device;
        check_many(ops);
        w.device = reference;
        ops->device_close(device);
}

/* A client that does not exist ends a task after others of it were added on the device. */
static void a_sum_left_behind_is_not_found_by_the_next_task(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(1, 0);
        uint64_t broken[] = {0, 1, 2, 3, 99}, whole[] = {4, 5, 6};
        struct mfl_task task = train_task(broken, 5);
        struct mfl_train_result *result, *again;
        assert_int_equal(run(trainer, fused_texts[0], &task, &result, &err), MFL_INVALID);
        task = train_task(whole, 3);
        assert_int_equal(run(trainer, fused_texts[0], &task, &result, &err), 0);
        mfl_trainer_forget(trainer, task.job);
        assert_int_equal(run(trainer, fused_texts[0], &task, &again, &err), 0);
        assert_memory_equal(result->data[0], again->data[0], w.graph->n * sizeof(int64_t));
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_result_free(trainer, again);
        mfl_trainer_free(trainer);
}

/* A narrow network is made anew for a task of more clients. */
static void lanes_grow_with_the_task(void **state)
{
        struct mfl_error err;
        struct total want = train_all(job_text, 1, N_CLIENTS, false);
        struct total got = {.sum = mfl_calloc(w.graph->n, sizeof(int64_t))};
        struct mfl_trainer *trainer = new_trainer(1, 0);
        uint64_t items[] = {0, 1, 2, 3, 4, 5, 6}, used = 0;
        for (uint32_t at = 0, n = 2; at < N_CLIENTS; at += n, n = 5) {
                struct mfl_task task = train_task(items + at, n);
                struct mfl_train_result *result;
                assert_int_equal(run(trainer, FUSED(100), &task, &result, &err), 0);
                add_result(&got, result);
                mfl_trainer_result_free(trainer, result);
                assert_true(mfl_trainer_memory(trainer) > used);
                used = mfl_trainer_memory(trainer);
        }
        assert_memory_equal(got.sum, want.sum, w.graph->n * sizeof(int64_t));
        mfl_trainer_forget(trainer, "j-000001");
        assert_int_equal(mfl_trainer_memory(trainer), 0);
        mfl_trainer_free(trainer);
        free(got.sum);
        free(want.sum);
}

/* ---- a device with memory of its own: the reference backend that says so ---- */

static struct {
        uint64_t free_bytes, data_bytes;
        bool resident, streamed, shared_start;
        int lanes, wanted, n_base;
        const float *base;
} own;

static void own_info(const struct mfl_device *device, struct mfl_device_info *ret_info)
{
        mfl_backend_reference.device_info(device, ret_info);
        ret_info->own_memory = true;
        ret_info->memory_free_bytes = own.free_bytes;
}

static uint64_t own_data_bytes(const struct mfl_dataset *dataset, const struct mfl_split *split)
{
        return own.data_bytes;
}

static int own_data_new(struct mfl_device *device, const struct mfl_dataset *dataset,
        const struct mfl_split *split, bool resident, struct mfl_device_data **ret_data,
        struct mfl_error *err)
{
        own.resident = resident;
        return mfl_backend_reference.data_new(device, dataset, split, resident, ret_data, err);
}

static int own_net_new(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        own.streamed = options->streamed;
        own.shared_start = options->shared_start;
        own.lanes = options->groups;
        return mfl_backend_reference.net_new(device, graph, options, ret_net, err);
}

static int own_fuse(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
        struct mfl_error *err)
{
        struct mfl_net_options one = *options;
        own.wanted = wanted;
        for (one.groups = wanted; one.groups > 1; one.groups--)
                if (mfl_backend_reference.net_bytes(graph, &one) <= memory_bytes)
                        break;
        *ret_groups = one.groups;
        return 0;
}

static int own_base(struct mfl_net *net, const float *frozen, const float *params, struct mfl_error *err)
{
        own.base = params;
        own.n_base++;
        return 0;
}

static int own_set(
        struct mfl_net *net, int group, const float *frozen, const float *params, struct mfl_error *err)
{
        return mfl_backend_reference.params_set(net, group, frozen, params ? params : own.base, err);
}

static struct mfl_backend_ops own_ops(uint64_t free_bytes, uint64_t data_bytes)
{
        struct mfl_backend_ops ops = mfl_backend_reference;
        memset(&own, 0, sizeof(own));
        own.free_bytes = free_bytes;
        own.data_bytes = data_bytes;
        ops.device_info = own_info;
        ops.data_bytes = own_data_bytes;
        ops.data_new = own_data_new;
        ops.net_new = own_net_new;
        ops.fuse = own_fuse;
        ops.params_base = own_base;
        ops.params_set = own_set;
        return ops;
}

static uint64_t bytes_of_lanes(int lanes)
{
        struct mfl_net_options options = {
                .batch = 8, .groups = lanes, .threads = 1, .training = true, .moments = MFL_MOMENTS_FIRST};
        return mfl_backend_reference.net_bytes(w.graph, &options);
}

static void check_own_memory(uint64_t free_bytes, uint64_t data_bytes, bool streamed, int lanes)
{
        struct mfl_error err;
        struct mfl_backend_ops ops = own_ops(free_bytes, data_bytes);
        struct total want = train_all(job_text, 1, N_CLIENTS, false), got = {0};
        struct mfl_trainer *trainer = new_trainer_on(&ops, 1, 0);
        uint64_t items[] = {0, 1, 2, 3, 4, 5, 6};
        struct mfl_task task = train_task(items, N_CLIENTS);
        struct mfl_train_result *result;
        assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
        got.sum = mfl_calloc(w.graph->n, sizeof(int64_t));
        add_result(&got, result);
        assert_memory_equal(got.sum, want.sum, w.graph->n * sizeof(int64_t));
        assert_int_equal(own.streamed, streamed);
        assert_int_equal(own.resident, !streamed);
        assert_int_equal(own.lanes, lanes);
        assert_int_equal(own.wanted, N_CLIENTS);
        assert_true(own.shared_start);
        assert_int_equal(own.n_base, 1);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
        free(got.sum);
        free(want.sum);
}

static void a_devices_own_memory_bounds_lanes_and_data(void **state)
{
        uint64_t three = bytes_of_lanes(3) + (bytes_of_lanes(4) - bytes_of_lanes(3)) / 2;
        /* Seven have room, but six end as early: two of the clients are short. */
        check_own_memory(1 << 30, 1000, false, N_CLIENTS - 1);
        check_own_memory(three * 10 / 9 + 10, 0, false, 3);
        check_own_memory((three + 1000) * 10 / 9 + 20, 1000, false, 3);
        check_own_memory(three * 10 / 9 + 10, three * 6 / 10, true, 3); /* over half of it */
}

static void a_job_that_a_device_cannot_hold_is_refused_with_the_sizes(void **state)
{
        struct mfl_error err;
        struct mfl_backend_ops ops = own_ops(bytes_of_lanes(1) / 2, 0);
        struct mfl_trainer *trainer = new_trainer_on(&ops, 1, 0);
        uint64_t items[] = {0, 1};
        struct mfl_task task = train_task(items, 2);
        struct mfl_train_result *result = NULL;
        char need[16];
        assert_int_equal(run(trainer, job_text, &task, &result, &err), MFL_INVALID);
        mfl_format_bytes(bytes_of_lanes(1), need);
        if (!strstr(err.text, need) || !strstr(err.text, "a training network"))
                fail_msg("\"%s\" lacks the size %s", err.text, need);
        mfl_trainer_free(trainer);
}

static void steps_are_cut_and_weights_may_be_uniform(void **state)
{
        struct total want = train_all(steps_text, 1, N_CLIENTS, false);
        assert_int_equal(want.weight, N_CLIENTS);
        /* 230 samples over 7 clients: 33 or 32 each, so an epoch is 5 or 4 steps and 13 steps are 2 or 3
         * epochs and 3 or 1 full batches more. */
        struct mfl_error err;
        struct mfl_job *job;
        assert_int_equal(mfl_job_parse(steps_text, strlen(steps_text), "t", &job, &err), 0);
        uint64_t samples = 0;
        for (uint32_t k = 0; k < N_CLIENTS; k++) {
                uint32_t n = 230 / N_CLIENTS + (k < 230 % N_CLIENTS), at = n;
                for (uint32_t s = 0; s < 13; s++) {
                        at = at == n ? 0 : at;
                        uint32_t count = MFL_MIN(8u, n - at);
                        samples += count;
                        at += count;
                }
        }
        assert_int_equal(want.samples, samples);
        check_same(steps_text, &want, 2, 2, false);
        free(want.sum);
        mfl_job_free(job);
}

/* The specification of a local training, written out: shuffles, batches, and the backend called one step at a
 * time. */
static void a_client_is_trained_as_specified(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(1, 0);
        uint64_t item;
        assert_int_equal(mfl_partition_site_client("", NAME, &item, &err), 0);
        struct mfl_task task = train_task(&item, 1);
        task.fingerprint = 123; /* of no meaning for local data */
        struct mfl_train_result *result;
        assert_int_equal(run(trainer, local_text, &task, &result, &err), 0);

        const struct mfl_backend_ops *ops = &mfl_backend_reference;
        struct mfl_net_options options = {.batch = 8, .groups = 1, .threads = 1, .training = true};
        struct mfl_net *net;
        struct mfl_device_data *data;
        assert_int_equal(ops->net_new(w.device, w.graph, &options, &net, &err), 0);
        assert_int_equal(ops->data_new(w.device, w.dataset, &w.dataset->train, true, &data, &err), 0);
        uint32_t order[230];
        for (uint32_t i = 0; i < 230; i++)
                order[i] = i;
        struct mfl_rng rng = mfl_rng_new(11, MFL_RNG_SHUFFLE, item, 2 * 65536);
        mfl_rng_shuffle(&rng, order, 230);
        assert_int_equal(mfl_backend_set(ops, net, w.graph, 0, w.params, &err), 0);
        struct mfl_optimizer opt = {.lr = 0.1f};
        struct mfl_group_steps group = {.dropout = mfl_rng_derive(11, MFL_RNG_DROPOUT, item, 2)};
        for (uint32_t at = 0; at < 230; at += 8) {
                uint32_t count = MFL_MIN(8u, 230 - at);
                group.index = order + at;
                group.count = &count;
                group.step_first = at / 8;
                assert_int_equal(ops->step(net, data, &group, 1, &opt, &err), 0);
        }
        float *after = mfl_malloc(w.graph->n * sizeof(float));
        assert_int_equal(ops->params_get(net, 0, 0, after, &err), 0);
        const float *delta = result->data[0];
        for (uint64_t i = 0; i < w.graph->n; i++)
                assert_true(delta[i] == after[i] - w.params[i]);
        assert_int_equal(result->updates[0].loss_sum, group.score.loss_sum);
        assert_int_equal(result->updates[0].correct, group.score.n_correct);
        assert_int_equal(result->updates[0].weight, 230);
        free(after);
        ops->data_free(data);
        ops->net_free(net);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void a_wild_client_is_rejected_and_adds_nothing(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(2, 0);
        uint64_t items[] = {4, 1, 6};
        struct mfl_task task = train_task(items, 3);
        struct mfl_train_result *result;
        assert_int_equal(run(trainer, wild_text, &task, &result, &err), 0);
        const struct mfl_announce *update = &result->updates[0];
        assert_int_equal(update->n_rejected, 3);
        assert_int_equal(update->bytes, 0);
        assert_int_equal(update->weight, 0);
        for (uint32_t i = 0; i < 3; i++) {
                assert_int_equal(update->rejected[i].item, items[i]);
                assert_non_null(strstr(update->rejected[i].reason, "not within"));
        }
        const int64_t *sum = result->data[0];
        for (uint64_t i = 0; i < w.graph->n; i++)
                assert_int_equal(sum[i], 0);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

/* A limit between the clients' largest elements rejects some: the sum is that of the others. */
static void the_rest_of_a_task_survives_a_rejection(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(3, 0);
        uint64_t items[N_CLIENTS] = {0, 1, 2, 3, 4, 5, 6};
        struct mfl_task task = train_task(items, N_CLIENTS);
        task.single_updates = true;
        struct mfl_train_result *single, *result;
        assert_int_equal(run(trainer, job_text, &task, &single, &err), 0);
        float max[N_CLIENTS], limit = INFINITY, largest = 0;
        for (uint32_t k = 0; k < N_CLIENTS; k++) {
                const float *delta = single->data[k];
                max[k] = 0;
                for (uint64_t i = 0; i < w.graph->n; i++)
                        max[k] = fmaxf(max[k], fabsf(delta[i]));
                limit = fminf(limit, max[k]);
                largest = fmaxf(largest, max[k]);
        }
        assert_true(limit < largest);
        task.single_updates = false;
        task.fixed.delta_max = limit; /* only the tamest stays */
        assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
        assert_int_equal(result->updates[0].n_rejected, N_CLIENTS - 1);
        int64_t *want = mfl_calloc(w.graph->n, sizeof(int64_t));
        for (uint32_t k = 0; k < N_CLIENTS; k++) {
                if (max[k] > limit)
                        continue;
                assert_int_equal(result->updates[0].weight, single->updates[k].weight);
                assert_int_equal(mfl_fixed_add_f32(&task.fixed, single->updates[k].weight, single->data[k],
                                         w.graph->n, want, &err),
                        0);
        }
        assert_memory_equal(result->data[0], want, w.graph->n * sizeof(int64_t));
        free(want);
        mfl_trainer_result_free(trainer, single);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void expect_refused(
        const char *text, const struct mfl_task *task, uint64_t memory_max, const char *part)
{
        struct mfl_error err;
        struct mfl_train_result *result = NULL;
        struct mfl_trainer *trainer = new_trainer(2, memory_max);
        assert_int_equal(run(trainer, text, task, &result, &err), MFL_INVALID);
        if (!strstr(err.text, part))
                fail_msg("\"%s\" lacks \"%s\"", err.text, part);
        assert_null(result);
        mfl_trainer_free(trainer);
}

#define DEEP(training)                                                                                       \
        "name: t\nrounds: 3\nseed: 11\nmodel: {preset: resnet20}\n"                                          \
        "data: {name: toy, partition: iid, clients: 7}\ntraining: {lr: 0.1, steps: 1, " training "}\n"
#define SCRATCH ((uint64_t)4 << 20) /* more than a worker takes beside its network */

static uint64_t deep_bytes(const struct mfl_graph *graph, int batch, int segments)
{
        struct mfl_net_options options = {.batch = batch,
                .groups = 1,
                .threads = 1,
                .training = true,
                .segments = segments,
                .moments = MFL_MOMENTS_NONE};
        return mfl_backend_reference.net_bytes(graph, &options);
}

/* For two workers, who have `room` each. */
static void expect_advice(
        const char *text, const struct mfl_task *task, uint64_t room, const char *format, uint64_t bytes)
{
        char part[160], size[16];
        mfl_snprintf(part, sizeof(part), format, mfl_format_bytes(bytes, size));
        expect_refused(text, task, 2 * room, part);
}

/* The batch that is told, followed by `behind`. */
static int batch_told(const char *text, const struct mfl_task *task, uint64_t room, const char *behind)
{
        struct mfl_error err;
        struct mfl_train_result *result = NULL;
        struct mfl_trainer *trainer = new_trainer(2, 2 * room);
        int batch = 0, length = 0;
        assert_int_equal(run(trainer, text, task, &result, &err), MFL_INVALID);
        const char *told = strstr(err.text, "; training.batch: ");
        if (!told || sscanf(told, "; training.batch: %d%n", &batch, &length) != 1 ||
                strncmp(told + length, behind, strlen(behind)))
                fail_msg("%s", err.text);
        mfl_trainer_free(trainer);
        return batch;
}

/* What is told is what the network would take that is made then, and the largest one that fits. */
static void too_large_a_network_is_refused_with_advice(void **state)
{
        uint64_t items[] = {0, 1};
        struct mfl_task task = train_task(items, 2);
        struct mfl_graph *graph;
        assert_int_equal(mfl_graph_preset("resnet20", &w.dataset->shape, 4, &graph, NULL), 0);
        task.n_params = graph->n;
        uint64_t whole = deep_bytes(graph, 256, 0), cut = deep_bytes(graph, 256, MFL_SEGMENTS_AUTO);
        uint64_t less = deep_bytes(graph, 37, MFL_SEGMENTS_AUTO),
                 one = deep_bytes(graph, 1, MFL_SEGMENTS_AUTO);
        assert_true(whole > cut + SCRATCH && cut > less + SCRATCH);
        expect_advice(DEEP("batch: 256"), &task, cut + SCRATCH,
                " are free; training.checkpointing: auto makes it %s, and gives the same model", cut);
        expect_advice(DEEP("batch: 256, checkpointing: 2"), &task, cut + SCRATCH,
                " are free; training.checkpointing: auto makes it %s, and gives the same model", cut);
        int batch =
                batch_told(DEEP("batch: 256"), &task, less + SCRATCH, " and checkpointing: auto would take ");
        assert_in_range(batch, 37, 255);
        assert_true(deep_bytes(graph, batch, MFL_SEGMENTS_AUTO) <= less + SCRATCH);
        assert_int_equal(
                batch_told(DEEP("batch: 256, checkpointing: auto"), &task, less + SCRATCH, " would take "),
                batch);
        expect_advice(DEEP("batch: 256"), &task, one / 2 + SCRATCH,
                "; a batch of 1 and checkpointing: auto would still take %s", one);
        mfl_graph_free(graph);
}

static void what_cannot_be_done_is_refused_with_the_reason(void **state)
{
        uint64_t items[] = {0, 7};
        struct mfl_task task = train_task(items, 2);
        expect_refused(job_text, &task, 0, "client 7 of a population of 7");
        task.n_items = 1;
        expect_refused(job_text, &task, 1000, "memory: ");
        expect_refused(local_text, &task, 0, "another site's");
        expect_refused("name: [", &task, 0, "j-000001:2");
        task.n_params++;
        expect_refused(job_text, &task, 0, "the model has");
        task.n_params--;
        task.fingerprint = 78;
        expect_refused(job_text, &task, 0, "fingerprint");
        task.fingerprint = 77;
        task.kind = MFL_TASK_EVAL;
        items[0] = 13; /* 61 samples in batches of 5 are shards 0 .. 12 */
        expect_refused(job_text, &task, 0, "test shard 13 of 13");
}

struct canceller {
        struct mfl_train_control control;
};

static void *cancel_soon(void *arg)
{
        struct canceller *c = arg;
        while (!atomic_load(&c->control.samples_done))
                sched_yield();
        atomic_store(&c->control.cancel, true);
        return NULL;
}

static void a_task_can_be_cancelled(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(2, 0);
        uint64_t items[] = {0, 1, 2};
        struct mfl_task task = train_task(items, 3);
        struct canceller c = {0};
        struct mfl_train_request request = {
                .task = &task, .job_text = long_text, .params = w.params, .control = &c.control};
        struct mfl_train_result *result;
        pthread_t thread;
        pthread_create(&thread, NULL, cancel_soon, &c);
        /* Ten million steps would take minutes: that it comes back at all is the test. */
        assert_int_equal(mfl_trainer_run(trainer, &request, &result, &err), MFL_CANCELLED);
        pthread_join(thread, NULL);
        /* And the trainer is as good as new. */
        assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

struct taker {
        struct mfl_train_control control;
        uint32_t keep, kept;
};

/* At some moment of the training, whichever. */
static void *take_back(void *arg)
{
        struct taker *t = arg;
        while (!atomic_load(&t->control.samples_done))
                sched_yield();
        t->kept = mfl_train_recall(&t->control, N_CLIENTS, t->keep);
        return NULL;
}

/* One trainer gives back what it has not begun, another one does it: together they have every client once. */
static void check_taken_back(const struct total *want, uint32_t workers, uint32_t keep, bool single)
{
        struct total total = {.sum = mfl_calloc(w.graph->n, sizeof(int64_t))};
        struct mfl_trainer *trainer = new_trainer(workers, 0);
        struct mfl_error err;
        struct taker taker = {.keep = keep};
        uint64_t items[N_CLIENTS];
        for (uint32_t i = 0; i < N_CLIENTS; i++)
                items[i] = N_CLIENTS - 1 - i;
        struct mfl_task task = train_task(items, N_CLIENTS);
        task.single_updates = single;
        struct mfl_train_request request = {
                .task = &task, .job_text = job_text, .params = w.params, .control = &taker.control};
        struct mfl_train_result *result;
        pthread_t thread;
        pthread_create(&thread, NULL, take_back, &taker);
        assert_int_equal(mfl_trainer_run(trainer, &request, &result, &err), 0);
        pthread_join(thread, NULL);
        uint32_t kept = taker.kept;
        assert_true(kept >= 1 && kept >= MFL_MIN(keep, (uint32_t)N_CLIENTS) && kept <= N_CLIENTS);
        assert_int_equal(mfl_train_recall(&taker.control, N_CLIENTS, 1), kept); /* it is over */
        assert_int_equal(result->n_updates, single ? kept : 1);
        assert_int_equal(single ? kept : result->updates[0].item_count, kept);
        add_result(&total, result);
        mfl_trainer_result_free(trainer, result);
        if (kept < N_CLIENTS) {
                task = train_task(items + kept, N_CLIENTS - kept);
                assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
                add_result(&total, result);
                mfl_trainer_result_free(trainer, result);
        }
        mfl_trainer_free(trainer);
        assert_memory_equal(total.sum, want->sum, w.graph->n * sizeof(int64_t));
        assert_int_equal(total.weight, want->weight);
        assert_int_equal(total.samples, want->samples);
        free(total.sum);
}

static void what_is_given_back_is_trained_once(void **state)
{
        struct mfl_train_control control = {0};
        assert_int_equal(mfl_train_recall(&control, 6, 9), 6);
        assert_int_equal(mfl_train_recall(&control, 6, 4), 4);
        assert_int_equal(mfl_train_recall(&control, 6, 5), 4);
        assert_int_equal(mfl_train_recall(&control, 6, 0), 1); /* it never has nothing */
        struct total want = train_all(job_text, 1, N_CLIENTS, false);
        for (uint32_t workers = 1; workers <= 3; workers++)
                for (uint32_t keep = 0; keep < N_CLIENTS + 2; keep++)
                        check_taken_back(&want, workers, keep, keep % 2);
        free(want.sum);
}

static void evaluation_does_not_depend_on_the_cut(void **state)
{
        struct mfl_error err;
        uint64_t items[13], samples = 0, correct = 0;
        int64_t loss_sum = 0;
        for (uint32_t i = 0; i < 13; i++)
                items[i] = i;
        struct mfl_trainer *alone = new_trainer(1, 0), *three = new_trainer(3, 0);
        struct mfl_task task = train_task(items, 13);
        task.kind = MFL_TASK_EVAL;
        struct mfl_train_result *all, *one;
        assert_int_equal(run(three, job_text, &task, &all, &err), 0);
        assert_int_equal(all->n_eval, 13);
        for (uint32_t i = 0; i < 13; i++) {
                task.items = items + i;
                task.n_items = 1;
                assert_int_equal(run(alone, job_text, &task, &one, &err), 0);
                assert_int_equal(one->eval[0].item, i);
                assert_int_equal(one->eval[0].samples, i < 12 ? 5 : 1);
                assert_int_equal(one->eval[0].loss_sum, all->eval[i].loss_sum);
                assert_int_equal(one->eval[0].correct, all->eval[i].correct);
                samples += one->eval[0].samples;
                correct += one->eval[0].correct;
                loss_sum += one->eval[0].loss_sum;
                mfl_trainer_result_free(alone, one);
        }
        mfl_trainer_result_free(three, all);
        assert_int_equal(samples, 61);
        assert_true(loss_sum > 0 && correct <= samples);
        mfl_trainer_free(alone);
        mfl_trainer_free(three);
}

static void memory_is_reused_and_given_back(void **state)
{
        struct mfl_error err;
        struct mfl_trainer *trainer = new_trainer(2, 0);
        uint64_t items[] = {0, 1, 2};
        struct mfl_task task = train_task(items, 3);
        struct mfl_train_result *result;
        uint64_t used = 0;
        for (int i = 0; i < 3; i++) {
                assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
                mfl_trainer_result_free(trainer, result);
                if (i == 0)
                        used = mfl_trainer_memory(trainer);
                assert_int_equal(mfl_trainer_memory(trainer), used);
        }
        assert_true(used > 0);
        /* An unknown job: only the idle buffer goes. */
        mfl_trainer_forget(trainer, "j-000002");
        assert_int_equal(mfl_trainer_memory(trainer), used - w.graph->n * sizeof(int64_t));
        mfl_trainer_forget(trainer, "j-000001");
        assert_int_equal(mfl_trainer_memory(trainer), 0);
        mfl_trainer_free(trainer);
        /* Another job's networks make room for those of the job at hand. */
        trainer = new_trainer(2, used + used / 2);
        assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
        mfl_trainer_result_free(trainer, result);
        mfl_strcpy(task.job, sizeof(task.job), "j-000002");
        assert_int_equal(run(trainer, job_text, &task, &result, &err), 0);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

static void want_of_memory_is_survived_at_every_allocation(void **state)
{
        struct mfl_error err;
        uint64_t items[] = {0, 1};
        struct mfl_task task = train_task(items, 2);
        struct mfl_trainer *trainer = new_trainer(1, 0);
        struct mfl_train_result *result = NULL;
        long n = 0;
        for (;; n++) {
                mfl_alloc_fail_at(n);
                int r = run(trainer, job_text, &task, &result, &err);
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(r, 0);
                        break;
                }
                if (!r)
                        mfl_trainer_result_free(trainer, result);
                else
                        assert_int_equal(r, -ENOMEM);
                mfl_trainer_forget(trainer, "j-000001");
                assert_int_equal(mfl_trainer_memory(trainer), 0);
        }
        assert_true(n > 10);
        mfl_trainer_result_free(trainer, result);
        mfl_trainer_free(trainer);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_sum_for_any_threads_and_any_cut),
                cmocka_unit_test(clients_trained_at_once_give_the_same_bits),
                cmocka_unit_test(any_number_at_once_gives_the_same_bits),
                cmocka_unit_test(any_number_at_once_gives_the_same_bits_on_the_cpu_backend),
                cmocka_unit_test(a_sum_left_behind_is_not_found_by_the_next_task),
                cmocka_unit_test(lanes_grow_with_the_task),
                cmocka_unit_test(a_devices_own_memory_bounds_lanes_and_data),
                cmocka_unit_test(a_job_that_a_device_cannot_hold_is_refused_with_the_sizes),
                cmocka_unit_test(steps_are_cut_and_weights_may_be_uniform),
                cmocka_unit_test(a_client_is_trained_as_specified),
                cmocka_unit_test(a_wild_client_is_rejected_and_adds_nothing),
                cmocka_unit_test(the_rest_of_a_task_survives_a_rejection),
                cmocka_unit_test(too_large_a_network_is_refused_with_advice),
                cmocka_unit_test(what_cannot_be_done_is_refused_with_the_reason),
                cmocka_unit_test(a_task_can_be_cancelled),
                cmocka_unit_test(what_is_given_back_is_trained_once),
                cmocka_unit_test(evaluation_does_not_depend_on_the_cut),
                cmocka_unit_test(memory_is_reused_and_given_back),
                cmocka_unit_test(want_of_memory_is_survived_at_every_allocation),
        };
        return cmocka_run_group_tests_name("client_trainer", tests, setup, teardown);
}
