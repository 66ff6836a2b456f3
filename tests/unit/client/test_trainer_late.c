/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that come to the host after the task, range by range; and how many lanes a task's clients need. */
#include "tests/lib/test.h"

#include <semaphore.h>

#include "client/train/compute.h"
#include "client/train/trainer_internal.h"

#define N_ALL 50u
#define FITS 16 /* lanes that pay */

/* 411504 params: four ranges, the last of which is short. */
#define MODEL                                                                                                \
        "model: {layers: [flatten, {dense: {units: 3000}}, relu, {dense: {units: 100}}, relu, "              \
        "{dense: {units: 4}}]}\n"
#define DATA "data: {name: toy, partition: iid, clients: 50}\n"
static const char small_text[] =
        "name: t\nrounds: 3\nseed: 11\n"
        "model: {layers: [flatten, {dense: {units: 4}}]}\n" DATA "training: {lr: 0.1, epochs: 1, batch: 8}\n";
/* 660 params: the sum is too large to travel inside an Announce. */
static const char medium_text[] =
        "name: t\nrounds: 3\nseed: 11\n"
        "model: {layers: [flatten, {dense: {units: 16}}, relu, {dense: {units: 4}}]}\n" DATA
        "training: {lr: 0.1, epochs: 1, batch: 8}\n";
static const char large_text[] =
        "name: t\nrounds: 3\nseed: 11\n" MODEL DATA "training: {lr: 0.1, epochs: 1, batch: 8}\n";

static struct {
        struct mfl_dataset *dataset;
        struct mfl_device *device;
        struct mfl_fixed fixed;
        int groups, wanted, n_nets, last_group; /* of the backend below */
        uint64_t taken[8];                      /* what the listener saw */
        uint32_t n_told;
        struct mfl_train_result *result;
        const int64_t *want;
} w;

static int setup(void **state)
{
        struct mfl_error err;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 1600,
                .n_test = 10,
                .seed = 5};
        assert_int_equal(mfl_dataset_load(&config, &w.dataset, &err), 0);
        assert_int_equal(mfl_backend_reference.device_open(&w.device, &err), 0);
        assert_int_equal(mfl_fixed_choose(16, 4096, &w.fixed, &err), 0);
        return 0;
}

static int teardown(void **state)
{
        mfl_backend_reference.device_close(w.device);
        mfl_dataset_free(w.dataset);
        return 0;
}

static struct mfl_trainer *new_trainer(const struct mfl_backend_ops *ops, uint32_t workers)
{
        struct mfl_error err;
        const struct mfl_dataset *data_sets[] = {w.dataset};
        uint64_t fingerprint = 77;
        struct mfl_trainer_options options = {.ops = ops,
                .device = w.device,
                .workers = workers,
                .name = "late",
                .n_data_sets = 1,
                .data_sets = data_sets,
                .fingerprints = &fingerprint};
        struct mfl_trainer *trainer;
        assert_int_equal(mfl_trainer_new(&options, &trainer, &err), 0);
        return trainer;
}

static uint64_t ready(void)
{
        return atomic_load(&w.result->control.ready);
}

/* What has come is what it should be, while the rest has not. */
static void on_advanced(void *user)
{
        assert_true(w.n_told < MFL_ARRAY_SIZE(w.taken));
        assert_memory_equal(w.result->data[0], w.want, ready() * sizeof(int64_t));
        w.taken[w.n_told++] = ready();
}

/* Clients [first, first + n) of the job. */
static struct mfl_train_result *run(
        struct mfl_trainer *trainer, const char *text, uint64_t first, uint32_t n, bool late)
{
        struct mfl_error err;
        struct mfl_job *job;
        struct mfl_graph *graph;
        uint64_t items[N_ALL];
        for (uint32_t i = 0; i < n; i++)
                items[i] = first + i;
        assert_int_equal(mfl_job_parse(text, strlen(text), "t", &job, &err), 0);
        assert_int_equal(mfl_job_graph(job, &w.dataset->shape, 4, &graph, &err), 0);
        float *params = mfl_malloc(graph->n * sizeof(float));
        mfl_graph_init_params(graph, 3, params);
        struct mfl_task task = {.task = 1,
                .job = "j-000001",
                .kind = MFL_TASK_TRAIN,
                .n_items = n,
                .items = items,
                .n_params = graph->n,
                .fixed = w.fixed,
                .fingerprint = 77};
        struct mfl_train_control control = {0};
        struct mfl_train_request request = {.task = &task,
                .job_text = text,
                .params = params,
                .control = &control,
                .advanced = late ? on_advanced : NULL};
        struct mfl_train_result *result;
        int r = mfl_trainer_run(trainer, &request, &result, &err);
        if (r)
                fail_msg("%s", err.text);
        free(params);
        mfl_graph_free(graph);
        mfl_job_free(job);
        return result;
}

/* Of several workers, the one that ends last may have found nothing to do: then nothing is late. */
static void land(struct mfl_trainer *trainer)
{
        struct mfl_error err;
        w.n_told = 0;
        assert_int_equal(mfl_trainer_land(trainer, w.result, &err), 0);
        assert_int_equal(ready(), w.result->late ? w.result->n : 0);
}

/* ---- sums ---- */

static void a_sum_comes_range_by_range(void **state)
{
        for (uint32_t workers = 1; workers <= 3; workers++) {
                struct mfl_trainer *trainer = new_trainer(&mfl_backend_reference, workers);
                struct mfl_train_result *whole = run(trainer, large_text, 0, 6, false);
                w.want = whole->data[0];
                assert_false(whole->late);
                w.result = run(trainer, large_text, 0, 6, true);
                assert_true(w.result->late || workers > 1);
                assert_int_equal(ready(), 0);
                assert_int_equal(w.result->updates[0].weight, whole->updates[0].weight);
                land(trainer);
                assert_int_equal(w.n_told, w.result->late ? 4 : 0);
                for (uint32_t i = 0; i < 3 && w.result->late; i++)
                        assert_int_equal(w.taken[i], (i + 1) * MFL_SUM_RANGE);
                assert_memory_equal(w.result->data[0], whole->data[0], whole->n * sizeof(int64_t));
                struct mfl_error err; /* once more brings nothing */
                assert_int_equal(mfl_trainer_land(trainer, w.result, &err), 0);
                mfl_trainer_result_free(trainer, w.result);
                mfl_trainer_result_free(trainer, whole);
                mfl_trainer_free(trainer);
        }
}

/* Nobody wants it any more: the next task's sum has nothing of it, also in the same buffer. */
static void a_sum_that_nobody_brings_is_gone(void **state)
{
        struct mfl_trainer *trainer = new_trainer(&mfl_backend_reference, 2);
        struct mfl_train_result *want = run(trainer, medium_text, 7, 9, false);
        w.want = want->data[0];
        mfl_trainer_result_free(trainer, run(trainer, medium_text, 0, 7, true));
        w.result = run(trainer, medium_text, 7, 9, true);
        land(trainer);
        assert_memory_equal(w.result->data[0], want->data[0], want->n * sizeof(int64_t));
        mfl_trainer_result_free(trainer, w.result);
        mfl_trainer_result_free(trainer, want);
        mfl_trainer_free(trainer);
}

/* A sum that travels inside its Announce has to be there by then. */
static void a_small_sum_is_whole(void **state)
{
        struct mfl_trainer *trainer = new_trainer(&mfl_backend_reference, 1);
        struct mfl_train_result *whole = run(trainer, small_text, 0, 6, false);
        w.result = run(trainer, small_text, 0, 6, true);
        assert_false(w.result->late);
        assert_int_equal(w.result->updates[0].encoding, MFL_ENCODING_I64);
        assert_memory_equal(w.result->data[0], whole->data[0], whole->n * sizeof(int64_t));
        mfl_trainer_result_free(trainer, w.result);
        mfl_trainer_result_free(trainer, whole);
        mfl_trainer_free(trainer);
}

/* A delta of one client has to be looked at as a whole before it is announced. */
static void a_client_s_delta_is_whole(void **state)
{
        struct mfl_trainer *trainer = new_trainer(&mfl_backend_reference, 1);
        w.result = run(trainer, small_text, 3, 1, true);
        assert_false(w.result->late);
        assert_int_equal(w.result->updates[0].encoding, MFL_ENCODING_F32);
        mfl_trainer_result_free(trainer, w.result);
        mfl_trainer_free(trainer);
}

/* ---- beside the loop ---- */

/* The device brings nothing until it is let; the task, and all that it points to, are the starter's again. */
static struct {
        uv_loop_t loop;
        struct mfl_trainer *trainer;
        struct mfl_compute compute;
        struct mfl_task task;
        uint64_t items[4];
        struct mfl_job *job;
        float *params;
        struct mfl_compute_call *call[2];
        sem_t let;
        uint32_t n_done, n_advanced;
        struct mfl_train_result *result;
        bool free_early, close_early;
        int64_t *copy;
} c;

static int wait_to_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        if (control)
                sem_wait(&c.let);
        return mfl_backend_reference.sum_take(net, acc, add, control, err);
}

static void on_done(struct mfl_compute_call *call);

static void start(uint32_t i)
{
        struct mfl_error err;
        c.call[i] = calloc(1, sizeof(*c.call[i]));
        c.call[i]->task = &c.task;
        c.call[i]->job_text = large_text;
        c.call[i]->params = c.params;
        c.call[i]->done = on_done;
        assert_int_equal(mfl_compute_trainer.start(&c.compute, c.call[i], &err), 0);
}

static void end(struct mfl_train_result *result)
{
        mfl_compute_trainer.result_free(&c.compute, result);
        mfl_compute_close(&c.compute, NULL);
}

/* Numbers first; the second task begins when the first one's sum is there. */
static void on_done(struct mfl_compute_call *call)
{
        struct mfl_train_result *result = call->result;
        assert_int_equal(call->status, 0);
        assert_true(result->late && result->updates[0].bytes == result->n * sizeof(int64_t));
        mfl_population_free(atomic_exchange(&call->population, NULL));
        free(call);
        c.n_done++;
        assert_int_equal(atomic_load(&result->control.ready), 0);
        if (c.n_done == 1) {
                c.result = result;
                if (c.free_early || c.close_early)
                        mfl_compute_trainer.result_free(&c.compute, result);
                if (c.close_early)
                        mfl_compute_close(&c.compute, NULL);
                else
                        start(1);
                sem_post(&c.let);
                return;
        }
        if (!c.free_early) {
                assert_int_equal(atomic_load(&c.result->control.ready), c.result->n);
                assert_true(c.n_advanced > 0);
                memcpy(c.copy, c.result->data[0], c.result->n * sizeof(int64_t));
                mfl_compute_trainer.result_free(&c.compute, c.result);
        }
        sem_post(&c.let);
        end(result);
}

static void count_advance(void *user)
{
        c.n_advanced++;
}

static void fail_broken(void *user, const struct mfl_error *err)
{
        fail_msg("%s", err->text);
}

static void run_compute(bool free_early, bool close_early)
{
        struct mfl_error err;
        struct mfl_backend_ops ops = mfl_backend_reference;
        struct mfl_compute_listener listener = {.advanced = count_advance, .broken = fail_broken};
        struct mfl_graph *graph;
        memset(&c, 0, sizeof(c));
        c.free_early = free_early;
        c.close_early = close_early;
        for (uint32_t i = 0; i < MFL_ARRAY_SIZE(c.items); i++)
                c.items[i] = i;
        assert_int_equal(mfl_job_parse(large_text, strlen(large_text), "t", &c.job, &err), 0);
        assert_int_equal(mfl_job_graph(c.job, &w.dataset->shape, 4, &graph, &err), 0);
        c.params = mfl_malloc(graph->n * sizeof(float));
        c.copy = mfl_calloc(graph->n, sizeof(int64_t));
        mfl_graph_init_params(graph, 3, c.params);
        c.task = (struct mfl_task){.task = 1,
                .job = "j-000001",
                .kind = MFL_TASK_TRAIN,
                .n_items = MFL_ARRAY_SIZE(c.items),
                .items = c.items,
                .n_params = graph->n,
                .fixed = w.fixed,
                .fingerprint = 77};
        sem_init(&c.let, 0, 0);
        ops.sum_take = wait_to_take;
        c.trainer = new_trainer(&ops, 1);
        assert_int_equal(uv_loop_init(&c.loop), 0);
        assert_int_equal(mfl_compute_open(&c.compute, &c.loop, c.trainer, &err), 0);
        mfl_compute_trainer.listen(&c.compute, &listener);
        start(0);
        uv_run(&c.loop, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(&c.loop), 0);
        assert_int_equal(c.n_done, close_early ? 1 : 2);
        mfl_trainer_forget(c.trainer, "j-000001");
        assert_int_equal(mfl_trainer_memory(c.trainer), 0);
        if (!free_early && !close_early) {
                sem_post(&c.let);
                struct mfl_train_result *want = run(c.trainer, large_text, 0, 4, false);
                assert_memory_equal(c.copy, want->data[0], want->n * sizeof(int64_t));
                mfl_trainer_result_free(c.trainer, want);
        }
        mfl_trainer_free(c.trainer);
        mfl_graph_free(graph);
        mfl_job_free(c.job);
        free(c.params);
        free(c.copy);
        sem_destroy(&c.let);
}

static void a_task_is_done_before_its_sum_is_there(void **state)
{
        run_compute(false, false);
}

/* A cancelled task's result goes, or the daemon, while the device still brings its sum. */
static void a_late_result_can_be_freed(void **state)
{
        run_compute(true, false);
        run_compute(false, true);
}

/* ---- lanes ---- */

static uint32_t balance(const uint64_t *steps, uint32_t n, uint32_t workers, uint32_t most)
{
        struct trainer_client v[N_ALL];
        struct trainer_clients clients = {n, v};
        for (uint32_t i = 0; i < n; i++)
                v[i] = (struct trainer_client){steps[i], i};
        mfl_trainer_clients_sort(&clients);
        for (uint32_t i = 1; i < n; i++) {
                assert_true(v[i - 1].steps >= v[i].steps);
                assert_true(v[i - 1].steps > v[i].steps || v[i - 1].item < v[i].item);
        }
        return mfl_trainer_balance(&clients, workers, most);
}

static void lanes_end_together(void **state)
{
        uint64_t same[N_ALL], mixed[] = {1, 9, 2, 3, 3, 4, 5};
        for (uint32_t i = 0; i < N_ALL; i++)
                same[i] = 5;
        assert_int_equal(balance(same, 50, 1, 16), 13); /* 13 + 13 + 12 + 12, not 16 + 16 + 16 + 2 */
        assert_int_equal(balance(same, 50, 2, 16), 13); /* 26 + 24 */
        assert_int_equal(balance(same, 48, 1, 16), 16);
        assert_int_equal(balance(same, 17, 1, 16), 9);
        assert_int_equal(balance(same, 16, 1, 16), 16);
        assert_int_equal(balance(same, 3, 1, 3), 3);
        assert_int_equal(balance(same, 50, 1, 1), 1);
        /* One of 9 steps; the other 18 go beside it on two lanes. */
        assert_int_equal(balance(mixed, 7, 1, 7), 3);
        assert_int_equal(balance(mixed, 7, 1, 2), 2);
        mixed[1] = 100;
        assert_int_equal(balance(mixed, 7, 1, 7), 2);
        uint64_t none[] = {0, 0};
        assert_int_equal(balance(none, 2, 1, 2), 1);
}

static int fits_16(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, int wanted, uint64_t memory_bytes, int *ret_groups,
        struct mfl_error *err)
{
        w.wanted = wanted;
        *ret_groups = MFL_MIN(wanted, FITS);
        return 0;
}

static int count_net(struct mfl_device *device, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_net **ret_net, struct mfl_error *err)
{
        w.groups = options->groups;
        w.n_nets++;
        return mfl_backend_reference.net_new(device, graph, options, ret_net, err);
}

static int note_group(
        struct mfl_net *net, int group, const float *frozen, const float *params, struct mfl_error *err)
{
        w.last_group = MFL_MAX(w.last_group, group);
        return mfl_backend_reference.params_set(net, group, frozen, params, err);
}

/* Trains n clients and tells how many lanes took some. */
static int lanes_used(struct mfl_trainer *trainer, const char *text, uint32_t n)
{
        w.last_group = -1;
        struct mfl_train_result *want, *got = run(trainer, text, 0, n, false);
        struct mfl_trainer *plain = new_trainer(&mfl_backend_reference, 1);
        want = run(plain, text, 0, n, false);
        assert_memory_equal(got->data[0], want->data[0], want->n * sizeof(int64_t));
        mfl_trainer_result_free(plain, want);
        mfl_trainer_free(plain);
        mfl_trainer_result_free(trainer, got);
        return w.last_group + 1;
}

static void waves_are_balanced(void **state)
{
        struct mfl_backend_ops ops = mfl_backend_reference;
        ops.fuse = fits_16;
        ops.net_new = count_net;
        ops.params_set = note_group;
        struct mfl_trainer *trainer = new_trainer(&ops, 1);
        w.n_nets = 0;
        assert_int_equal(lanes_used(trainer, small_text, 50), 13);
        assert_int_equal(w.groups, 13);
        assert_int_equal(w.wanted, 50);
        assert_int_equal(lanes_used(trainer, small_text, 39), 13);
        assert_int_equal(w.n_nets, 1);
        /* 48 are three waves of 16: the network is made anew, once. */
        assert_int_equal(lanes_used(trainer, small_text, 48), 16);
        assert_int_equal(w.groups, 16);
        assert_int_equal(lanes_used(trainer, small_text, 50), 13);
        assert_int_equal(lanes_used(trainer, small_text, 20), 10);
        assert_int_equal(w.n_nets, 2);
        mfl_trainer_free(trainer);
}

/* A job's own number is done as it says. */
static void a_job_s_word_is_not_balanced(void **state)
{
        static const char text[] = "name: t\nrounds: 3\nseed: 11\n"
                                   "model: {layers: [flatten, {dense: {units: 4}}]}\n" DATA
                                   "training: {lr: 0.1, epochs: 1, batch: 8, fuse: 16}\n";
        struct mfl_backend_ops ops = mfl_backend_reference;
        ops.net_new = count_net;
        ops.params_set = note_group;
        struct mfl_trainer *trainer = new_trainer(&ops, 1);
        assert_int_equal(lanes_used(trainer, text, 50), 16);
        assert_int_equal(w.groups, 16);
        mfl_trainer_free(trainer);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_sum_comes_range_by_range),
                cmocka_unit_test(a_sum_that_nobody_brings_is_gone),
                cmocka_unit_test(a_small_sum_is_whole),
                cmocka_unit_test(a_client_s_delta_is_whole),
                cmocka_unit_test(a_task_is_done_before_its_sum_is_there),
                cmocka_unit_test(a_late_result_can_be_freed),
                cmocka_unit_test(lanes_end_together),
                cmocka_unit_test(waves_are_balanced),
                cmocka_unit_test(a_job_s_word_is_not_balanced),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
