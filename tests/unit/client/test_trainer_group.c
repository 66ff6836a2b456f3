/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers of one node: the sums that several lay out for each other add up to one trainer's, bit for bit,
 * through shared memory and through a device's; what a reader holds is not overwritten; without room a result
 * is an ordinary one; memory is charged and given back, also when it runs out anywhere. */
#include "tests/lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "client/train/trainer.h"
#include "common/job/job.h"

#define N_CLIENTS 7
#define GROUP 77u

static const char job_text[] = "name: t\nrounds: 3\nseed: 11\nmodel: {preset: mlp}\n"
                               "data: {name: toy, partition: dirichlet, alpha: 1.0, clients: 7}\n"
                               "training: {lr: 0.1, momentum: 0.9, epochs: 2, batch: 8}\n";

static const char frozen_text[] = "name: t\nrounds: 3\nseed: 11\nmodel: {preset: mlp, freeze: [fc2]}\n"
                                  "data: {name: toy, partition: dirichlet, alpha: 1.0, clients: 7}\n"
                                  "training: {lr: 0.1, momentum: 0.9, epochs: 2, batch: 8}\n";

static struct {
        const char *text; /* the job's */
        char dir[64];
        struct mfl_dataset *dataset;
        struct mfl_device *device;
        struct mfl_graph *graph;
        float *params;
        struct mfl_fixed fixed;
        uint64_t sum_bytes;
} w;

/* A daemon of the node. */
struct member {
        struct mfl_share *share;
        struct mfl_collective *shm;
        struct mfl_budget budget;
        struct mfl_trainer *trainer;
        struct mfl_train_result *result;
        struct mfl_group group;
};

static int setup_job(const char *text)
{
        struct mfl_error err;
        struct mfl_dataset_config config = {.name = "toy",
                .format = MFL_FORMAT_SYNTHETIC,
                .classes = 4,
                .shape = {3, {1, 6, 6}},
                .n_train = 230,
                .n_test = 61,
                .seed = 5};
        w.text = text;
        strcpy(w.dir, "/tmp/mfl-test-group-XXXXXX");
        assert_non_null(mkdtemp(w.dir));
        assert_int_equal(mfl_dataset_load(&config, &w.dataset, &err), 0);
        assert_int_equal(mfl_backend_reference.device_open(&w.device, &err), 0);
        struct mfl_job *job;
        assert_int_equal(mfl_job_parse(text, strlen(text), "t", &job, &err), 0);
        assert_int_equal(mfl_job_graph(job, &w.dataset->shape, 4, &w.graph, &err), 0);
        mfl_job_free(job);
        w.params = mfl_malloc(w.graph->n * sizeof(float));
        w.sum_bytes = w.graph->n_moving * sizeof(int64_t);
        mfl_graph_init_params(w.graph, 3, w.params);
        assert_int_equal(mfl_fixed_choose(16, 256, &w.fixed, &err), 0);
        return 0;
}

static int setup(void **state)
{
        return setup_job(job_text);
}

static uint32_t count_files(void)
{
        uint32_t n = 0;
        DIR *dir = opendir(w.dir);
        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir));)
                n += entry->d_name[0] != '.';
        closedir(dir);
        return n;
}

static int teardown(void **state)
{
        assert_int_equal(count_files(), 0);
        rmdir(w.dir);
        free(w.params);
        mfl_graph_free(w.graph);
        mfl_backend_reference.device_close(w.device);
        mfl_dataset_free(w.dataset);
        return 0;
}

static struct mfl_trainer *new_trainer(
        const struct mfl_backend_ops *ops, struct member *member, struct mfl_collective *nccl)
{
        struct mfl_error err;
        const struct mfl_dataset *data_sets[] = {w.dataset};
        uint64_t fingerprint = 77;
        struct mfl_trainer_options options = {.ops = ops,
                .device = w.device,
                .workers = 1,
                .budget = &member->budget,
                .name = "d",
                .n_data_sets = 1,
                .data_sets = data_sets,
                .fingerprints = &fingerprint,
                .share = member->share,
                .shm = member->shm,
                .nccl = nccl};
        struct mfl_trainer *trainer;
        assert_int_equal(mfl_trainer_new(&options, &trainer, &err), 0);
        return trainer;
}

/* Its instance is `rank` + 1. */
static void open_member(struct member *member, uint32_t rank, uint64_t share_bytes_max)
{
        struct mfl_error err;
        struct mfl_share_options options = {.dir = w.dir, .instance = rank + 1, .bytes_max = share_bytes_max};
        *member = (struct member){.group = {.group = GROUP, .collective = MFL_COLLECTIVE_SHM, .rank = rank}};
        if (mfl_share_open(&options, &member->share, &err))
                fail_msg("%s", err.text);
        assert_int_equal(mfl_collective_shm_new(member->share, 2, &member->shm, &err), 0);
        mfl_budget_init(&member->budget, 0);
        member->trainer = new_trainer(&mfl_backend_reference, member, NULL);
}

static void close_member(struct member *member)
{
        mfl_trainer_result_free(member->trainer, member->result);
        mfl_trainer_free(member->trainer);
        assert_int_equal(mfl_budget_used(&member->budget), 0);
        mfl_collective_close(member->shm);
        mfl_share_close(member->share);
}

static int run(struct mfl_trainer *trainer, const struct mfl_group *group, uint64_t first, uint32_t n,
        bool single, struct mfl_train_result **ret_result, struct mfl_error *err)
{
        uint64_t items[N_CLIENTS];
        struct mfl_train_control control = {0};
        struct mfl_task task = {.task = 1,
                .job = "j-000001",
                .round = 2,
                .kind = MFL_TASK_TRAIN,
                .n_items = n,
                .items = items,
                .n_params = w.graph->n,
                .n_frozen = w.graph->n_frozen,
                .fixed = w.fixed,
                .single_updates = single,
                .fingerprint = 77};
        for (uint32_t i = 0; i < n; i++)
                items[i] = first + i;
        if (group)
                task.group = *group;
        struct mfl_train_request request = {.task = &task,
                .job_text = w.text,
                .frozen = w.graph->n_frozen ? w.params : NULL,
                .params = w.params + w.graph->n_frozen,
                .control = &control};
        return mfl_trainer_run(trainer, &request, ret_result, err);
}

/* All clients, by one trainer that knows no group. */
static int64_t *sum_of_one(void)
{
        struct mfl_error err;
        struct member alone = {0};
        mfl_budget_init(&alone.budget, 0);
        alone.trainer = new_trainer(&mfl_backend_reference, &alone, NULL);
        assert_int_equal(run(alone.trainer, NULL, 0, N_CLIENTS, false, &alone.result, &err), 0);
        assert_false(alone.result->grouped);
        int64_t *sum = mfl_malloc(w.sum_bytes);
        memcpy(sum, alone.result->data[0], w.sum_bytes);
        mfl_trainer_result_free(alone.trainer, alone.result);
        mfl_trainer_free(alone.trainer);
        return sum;
}

static struct mfl_train_combine combine_of(
        const struct member *members, uint32_t n, uint32_t leader, struct mfl_comm_control *control)
{
        struct mfl_train_combine combine = {.result = members[leader].result,
                .group = members[leader].group,
                .ranks = (1u << n) - 1,
                .leader = leader,
                .deadline_ms = 10000,
                .control = control};
        combine.group.n_members = n;
        for (uint32_t i = 0; i < n; i++)
                combine.group.members[i] = i + 1;
        return combine;
}

/* Clients 0..6 as one, two, four of three members; a task of one client is a sum here, too. */
static void train_members(struct member members[3])
{
        static const uint32_t first[] = {0, 1, 3}, count[] = {1, 2, 4};
        struct mfl_error err;
        for (uint32_t i = 0; i < 3; i++) {
                struct member *m = &members[i];
                assert_int_equal(run(m->trainer, &m->group, first[i], count[i], false, &m->result, &err), 0);
                assert_true(m->result->grouped);
                assert_int_equal(m->result->n, w.graph->n_moving);
                assert_int_equal(m->result->updates[0].encoding, MFL_ENCODING_I64);
                assert_int_equal(m->result->updates[0].bytes, w.sum_bytes);
                assert_int_equal(mfl_trainer_publish(m->trainer, m->result, GROUP, &err), 0);
        }
}

static void members_add_up_to_one_trainer(void **state)
{
        struct mfl_error err;
        struct member members[3];
        int64_t *want = sum_of_one(), *own = mfl_malloc(w.sum_bytes);
        for (uint32_t i = 0; i < 3; i++)
                open_member(&members[i], i, 0);
        train_members(members);
        for (uint32_t leader = 0; leader < 3; leader++) {
                struct member *m = &members[leader];
                struct mfl_comm_control control = {0};
                struct mfl_train_combine combine = combine_of(members, 3, leader, &control);
                memcpy(own, m->result->data[0], w.sum_bytes);
                uint64_t before = mfl_trainer_memory(m->trainer);
                if (mfl_trainer_combine(m->trainer, &combine, &err))
                        fail_msg("%s", err.text);
                assert_int_equal(atomic_load(&control.ready), w.graph->n_moving);
                assert_memory_equal(combine.sum, want, w.sum_bytes);
                assert_memory_equal(m->result->data[0], own, w.sum_bytes);
                assert_int_equal(mfl_trainer_memory(m->trainer), before + w.sum_bytes);
                mfl_trainer_combine_free(m->trainer, &combine);
                assert_null(combine.sum);
        }
        for (uint32_t i = 0; i < 3; i++)
                close_member(&members[i]);
        free(want);
        free(own);
}

static void a_lost_member_leaves_the_own_update_intact(void **state)
{
        struct mfl_error err;
        struct member members[3];
        int64_t *own = mfl_malloc(w.sum_bytes);
        for (uint32_t i = 0; i < 3; i++)
                open_member(&members[i], i, 0);
        train_members(members);
        memcpy(own, members[0].result->data[0], w.sum_bytes);
        close_member(&members[2]);
        struct mfl_comm_control control = {0};
        struct mfl_train_combine combine = combine_of(members, 3, 0, &control);
        assert_int_equal(mfl_trainer_combine(members[0].trainer, &combine, &err), MFL_COLLECTIVE_BROKEN);
        assert_true(*err.text);
        mfl_trainer_combine_free(members[0].trainer, &combine);
        assert_memory_equal(members[0].result->data[0], own, w.sum_bytes);
        close_member(&members[0]);
        close_member(&members[1]);
        free(own);
}

/* A reader that stands still keeps what it has; the next round's result goes elsewhere, and the one after
 * that is not kept from the first buffer for ever. */
static void what_somebody_reads_is_not_written_to(void **state)
{
        struct mfl_error err;
        struct member a, reader;
        uint8_t key[MFL_SHARE_KEY_BYTES];
        struct mfl_share_view *view;
        open_member(&a, 0, 0);
        open_member(&reader, 1, 0);
        assert_int_equal(run(a.trainer, &a.group, 0, 2, false, &a.result, &err), 0);
        assert_int_equal(mfl_trainer_publish(a.trainer, a.result, GROUP, &err), 0);
        mfl_collective_key(GROUP, key);
        assert_int_equal(mfl_share_view_open(reader.share, 1, key, w.sum_bytes, &view, &err), 0);
        int64_t *seen = mfl_malloc(w.sum_bytes);
        memcpy(seen, mfl_share_view_data(view), w.sum_bytes);
        mfl_trainer_result_free(a.trainer, a.result);
        uint64_t used = mfl_trainer_memory(a.trainer);
        assert_int_equal(run(a.trainer, &a.group, 2, 3, false, &a.result, &err), 0);
        assert_memory_not_equal(a.result->data[0], seen, w.sum_bytes);
        assert_memory_equal(mfl_share_view_data(view), seen, w.sum_bytes);
        assert_int_equal(mfl_trainer_memory(a.trainer), used); /* not one more for each round */
        mfl_share_view_close(view);
        void *first = a.result->data[0];
        mfl_trainer_result_free(a.trainer, a.result);
        assert_int_equal(run(a.trainer, &a.group, 2, 3, false, &a.result, &err), 0);
        assert_ptr_equal(a.result->data[0], first);
        free(seen);
        close_member(&a);
        close_member(&reader);
}

static void without_room_a_result_is_an_ordinary_one(void **state)
{
        struct mfl_error err;
        struct member m;
        open_member(&m, 0, w.sum_bytes - 1);
        assert_int_equal(run(m.trainer, &m.group, 0, 1, false, &m.result, &err), 0);
        assert_false(m.result->grouped);
        assert_int_equal(m.result->updates[0].encoding, MFL_ENCODING_F32);
        assert_int_equal(mfl_trainer_publish(m.trainer, m.result, GROUP, &err), MFL_INVALID);
        struct mfl_comm_control control = {0};
        struct mfl_train_combine combine = combine_of(&m, 1, 0, &control);
        assert_int_equal(mfl_trainer_combine(m.trainer, &combine, &err), MFL_INVALID);
        mfl_trainer_combine_free(m.trainer, &combine);
        mfl_trainer_result_free(m.trainer, m.result);
        assert_int_equal(run(m.trainer, &m.group, 0, 2, false, &m.result, &err), 0);
        assert_false(m.result->grouped);
        assert_int_equal(m.result->updates[0].encoding, MFL_ENCODING_I64);
        close_member(&m);
        /* Single updates are never added, and NCCL is not to be had here. */
        open_member(&m, 0, 0);
        assert_int_equal(run(m.trainer, &m.group, 0, 2, true, &m.result, &err), 0);
        assert_false(m.result->grouped);
        assert_int_equal(m.result->n_updates, 2);
        mfl_trainer_result_free(m.trainer, m.result);
        m.group.collective = MFL_COLLECTIVE_NCCL;
        assert_int_equal(run(m.trainer, &m.group, 0, 2, false, &m.result, &err), 0);
        assert_false(m.result->grouped);
        assert_int_equal(mfl_trainer_communicator(m.trainer, &m.group, NULL, NULL, NULL, &err), MFL_INVALID);
        close_member(&m);
}

/* What lies in shared memory counts, and when the budget has no room for it an ordinary result may still
 * fit: a delta of one client takes half, and is made where it is uploaded from. */
static void shared_memory_is_charged_to_the_budget(void **state)
{
        struct mfl_error err;
        struct member m;
        open_member(&m, 0, 0);
        assert_int_equal(run(m.trainer, NULL, 0, 1, false, &m.result, &err), 0);
        uint64_t alone = mfl_budget_used(&m.budget);
        mfl_trainer_result_free(m.trainer, m.result);
        mfl_trainer_forget(m.trainer, "j-000001");
        assert_int_equal(mfl_budget_used(&m.budget), 0);
        assert_int_equal(run(m.trainer, &m.group, 0, 1, false, &m.result, &err), 0);
        assert_true(m.result->grouped);
        assert_int_equal(
                mfl_budget_used(&m.budget), alone + w.sum_bytes / 2 + w.graph->n_moving * sizeof(float));
        mfl_trainer_result_free(m.trainer, m.result);
        mfl_trainer_forget(m.trainer, "j-000001");
        assert_int_equal(mfl_budget_used(&m.budget), 0);
        assert_int_equal(count_files(), 1); /* its lock */
        /* The sum fits, and not the networks beside it; a delta of half its size does. */
        m.budget.limit_bytes = alone;
        assert_int_equal(run(m.trainer, &m.group, 0, 1, false, &m.result, &err), 0);
        assert_false(m.result->grouped);
        assert_int_equal(m.result->updates[0].encoding, MFL_ENCODING_F32);
        assert_int_equal(mfl_budget_used(&m.budget), alone);
        close_member(&m);
}

/* ---- a device that holds sums, and a collective on it: the reference backend, and one that only copies ----
 */

struct mfl_sum {
        uint64_t n;
        int64_t v[];
};

static struct {
        struct mfl_sum *of_net; /* there is one network */
        const float *base;
        uint32_t n_sums, n_combines;
        bool full;
        struct mfl_trainer *trainer;
        struct mfl_train_result *given_back; /* while a sum is freed */
} fake;

static int fake_base(struct mfl_net *net, const float *frozen, const float *params, struct mfl_error *err)
{
        fake.base = params;
        return 0;
}

static int fake_set(
        struct mfl_net *net, int group, const float *frozen, const float *params, struct mfl_error *err)
{
        return mfl_backend_reference.params_set(net, group, frozen, params ? params : fake.base, err);
}

static int fake_sum_add(struct mfl_net *net, const struct mfl_fixed *fixed, const uint64_t *weight,
        uint64_t *n_bad, struct mfl_error *err)
{
        n_bad[0] = 0;
        if (!weight[0])
                return 0;
        float *delta = mfl_malloc(w.graph->n_moving * sizeof(float));
        assert_int_equal(mfl_backend_reference.params_get(net, 0, w.graph->n_frozen, delta, err), 0);
        for (uint64_t i = 0; i < w.graph->n_moving; i++)
                delta[i] -= fake.base[i];
        int r = mfl_fixed_add_f32(fixed, weight[0], delta, w.graph->n_moving, fake.of_net->v, err);
        free(delta);
        return r;
}

static int fake_sum_take(
        struct mfl_net *net, int64_t *acc, bool add, struct mfl_comm_control *control, struct mfl_error *err)
{
        for (uint64_t i = 0; acc && i < w.graph->n_moving; i++)
                acc[i] = (add ? acc[i] : 0) + fake.of_net->v[i];
        mfl_comm_advance(control, w.graph->n_moving);
        memset(fake.of_net->v, 0, w.sum_bytes);
        return 0;
}

static int fake_sum_new(
        struct mfl_device *device, uint64_t n, struct mfl_sum **ret_sum, struct mfl_error *err)
{
        if (fake.full)
                return mfl_fail(err, MFL_INVALID, "the device is full");
        *ret_sum = calloc(1, sizeof(struct mfl_sum) + n * sizeof(int64_t));
        (*ret_sum)->n = n;
        fake.n_sums++;
        return 0;
}

static void fake_sum_free(struct mfl_sum *sum)
{
        fake.n_sums -= sum != NULL;
        free(sum);
        if (fake.given_back)
                mfl_trainer_result_free(fake.trainer, fake.given_back);
        fake.given_back = NULL;
}

static int fake_sum_clear(struct mfl_sum *sum, struct mfl_error *err)
{
        memset(sum->v, 0, sum->n * sizeof(int64_t));
        return 0;
}

static int fake_sum_move(struct mfl_net *net, struct mfl_sum *sum, struct mfl_error *err)
{
        return fake_sum_take(net, sum->v, true, NULL, err);
}

static int fake_sum_read(
        struct mfl_sum *sum, int64_t *out, struct mfl_comm_control *control, struct mfl_error *err)
{
        memcpy(out, sum->v, sum->n * sizeof(int64_t));
        mfl_comm_advance(control, sum->n);
        return 0;
}

static uint64_t fake_sum_bytes(uint64_t n)
{
        return n * sizeof(int64_t);
}

static int fake_combine(
        struct mfl_collective *collective, const struct mfl_combine *combine, struct mfl_error *err)
{
        assert_memory_equal(combine->held->v, combine->own, combine->n * sizeof(int64_t));
        for (uint64_t i = 0; combine->out && i < combine->n; i++)
                combine->out[i] = 3 * combine->held->v[i];
        atomic_store(&combine->control->ready, combine->out ? combine->n : 0);
        fake.n_combines++;
        return 0;
}

static void fake_close(struct mfl_collective *collective)
{
}

static struct mfl_backend_ops fake_ops(void)
{
        struct mfl_backend_ops ops = mfl_backend_reference;
        ops.params_base = fake_base;
        ops.params_set = fake_set;
        ops.sum_add = fake_sum_add;
        ops.sum_take = fake_sum_take;
        ops.sum_new = fake_sum_new;
        ops.sum_free = fake_sum_free;
        ops.sum_clear = fake_sum_clear;
        ops.sum_move = fake_sum_move;
        ops.sum_read = fake_sum_read;
        ops.sum_bytes = fake_sum_bytes;
        return ops;
}

static void a_sum_is_held_on_the_device_and_read_once(void **state)
{
        static const struct mfl_collective_ops ops = {
                .name = "fake", .kind = MFL_COLLECTIVE_NCCL, .combine = fake_combine, .close = fake_close};
        struct mfl_collective nccl = {&ops};
        struct mfl_backend_ops backend = fake_ops();
        struct mfl_error err;
        struct member m = {.group = {.group = GROUP, .collective = MFL_COLLECTIVE_NCCL, .rank = 1}};
        mfl_budget_init(&m.budget, 0);
        int64_t *want = sum_of_one();
        fake.of_net = calloc(1, sizeof(struct mfl_sum) + w.sum_bytes);
        m.trainer = new_trainer(&backend, &m, &nccl);
        for (int i = 0; i < 2; i++) { /* the second time in the sum of the first, cleared */
                assert_int_equal(run(m.trainer, &m.group, 0, N_CLIENTS, false, &m.result, &err), 0);
                assert_true(m.result->grouped);
                assert_memory_equal(m.result->data[0], want, w.sum_bytes);
                assert_int_equal(mfl_trainer_publish(m.trainer, m.result, GROUP, &err), 0);
                for (uint32_t leader = 0; leader < 2; leader++) {
                        struct mfl_comm_control control = {0};
                        struct mfl_train_combine combine = combine_of(&m, 2, 0, &control);
                        combine.leader = leader;
                        assert_int_equal(mfl_trainer_combine(m.trainer, &combine, &err), 0);
                        assert_int_equal(combine.sum != NULL, leader == 1);
                        for (uint64_t j = 0; combine.sum && j < w.graph->n_moving; j++)
                                assert_int_equal(combine.sum[j], 3 * want[j]);
                        mfl_trainer_combine_free(m.trainer, &combine);
                }
                mfl_trainer_result_free(m.trainer, m.result);
                assert_int_equal(fake.n_sums, 1);
        }
        assert_int_equal(fake.n_combines, 4);
        /* Freeing one may wait for a reduction; results are given back meanwhile. */
        struct mfl_train_result *first;
        assert_int_equal(run(m.trainer, &m.group, 0, 2, false, &first, &err), 0);
        assert_int_equal(run(m.trainer, &m.group, 0, 2, false, &m.result, &err), 0);
        assert_int_equal(fake.n_sums, 2);
        mfl_trainer_result_free(m.trainer, first);
        fake.trainer = m.trainer;
        fake.given_back = m.result;
        mfl_trainer_forget(m.trainer, "j-000001");
        assert_int_equal(fake.n_sums, 1);
        mfl_trainer_forget(m.trainer, "j-000001"); /* the card is free at once */
        assert_int_equal(fake.n_sums, 0);
        mfl_trainer_free(m.trainer);
        assert_int_equal(fake.n_sums, 0);
        m.trainer = new_trainer(&backend, &m, &nccl);
        fake.full = true;
        assert_int_equal(run(m.trainer, &m.group, 0, 2, false, &m.result, &err), 0);
        assert_false(m.result->grouped);
        mfl_trainer_result_free(m.trainer, m.result);
        mfl_trainer_free(m.trainer);
        assert_int_equal(mfl_budget_used(&m.budget), 0);
        free(fake.of_net);
        free(want);
}

/* Sums, in shared memory and on a device, are of the params that move. */
static void frozen_params_are_in_no_sum(void **state)
{
        teardown(state);
        setup_job(frozen_text);
        assert_in_range(w.graph->n_frozen, 1, w.graph->n - 1);
        fake.full = false;
        fake.n_combines = 0;
        members_add_up_to_one_trainer(state);
        a_sum_is_held_on_the_device_and_read_once(state);
        teardown(state);
        setup_job(job_text);
}

static void want_of_memory_is_survived_at_every_allocation(void **state)
{
        struct mfl_error err;
        struct member m;
        struct mfl_comm_control control = {0};
        long n = 0;
        for (bool struck = true; struck; n++) {
                open_member(&m, 0, 0);
                mfl_alloc_fail_at(n);
                int r = run(m.trainer, &m.group, 0, 2, false, &m.result, &err);
                struct mfl_train_combine combine = {0};
                if (!r) {
                        combine = combine_of(&m, 1, 0, &control);
                        r = m.result->grouped ? mfl_trainer_combine(m.trainer, &combine, &err) : 0;
                }
                struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck)
                        assert_int_equal(r, 0);
                else if (r)
                        assert_int_equal(r, -ENOMEM);
                if (combine.result)
                        mfl_trainer_combine_free(m.trainer, &combine);
                close_member(&m);
        }
        assert_true(n > 10);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(members_add_up_to_one_trainer),
                cmocka_unit_test(a_lost_member_leaves_the_own_update_intact),
                cmocka_unit_test(what_somebody_reads_is_not_written_to),
                cmocka_unit_test(without_room_a_result_is_an_ordinary_one),
                cmocka_unit_test(shared_memory_is_charged_to_the_budget),
                cmocka_unit_test(a_sum_is_held_on_the_device_and_read_once),
                cmocka_unit_test(frozen_params_are_in_no_sum),
                cmocka_unit_test(want_of_memory_is_survived_at_every_allocation),
        };
        return cmocka_run_group_tests_name("client_trainer_group", tests, setup, teardown);
}
