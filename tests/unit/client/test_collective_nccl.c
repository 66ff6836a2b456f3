/* SPDX-License-Identifier: Apache-2.0 */
/* The nccl collective over the emulated NCCL: members are threads with a card each. */
#include "tests/lib/test.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "client/node/collective.h"
#include "kernels/cuda/nccl/comm.h"
#include "tests/emu/emu.h"

extern const struct mfl_backend_ops mfl_backend_module;
static const struct mfl_backend_ops *const ops = &mfl_backend_module;

#define MEMBERS 3
#define N 100
#define LONG_MS 20000
#define SHORT_MS 120

struct made {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        int n_ids, n_reasons;
        uint64_t number;
        uint8_t id[MFL_COMM_ID_BYTES];
        char reason[512];
};

struct member {
        uint32_t rank;
        struct mfl_device device;
        struct mfl_collective *collective;
        struct mfl_sum *sum;
        struct made made;
        struct mfl_group ordered, group; /* group: of combine */
        struct mfl_combine combine;
        struct mfl_comm_control control;
        int64_t own[N], out[N];
        pthread_t thread;
        int rc;
        struct mfl_error err;
};
static struct member members[MEMBERS];

static void on_made(void *user, uint64_t communicator, const uint8_t *id, const char *reason)
{
        struct made *made = user;
        pthread_mutex_lock(&made->lock);
        made->number = communicator;
        assert_true((id == NULL) != (reason == NULL));
        if (id) {
                memcpy(made->id, id, sizeof made->id);
                made->n_ids++;
        } else {
                snprintf(made->reason, sizeof made->reason, "%s", reason);
                made->n_reasons++;
        }
        pthread_cond_broadcast(&made->changed);
        pthread_mutex_unlock(&made->lock);
}

static void wait_for(struct made *made, const int *count)
{
        pthread_mutex_lock(&made->lock);
        while (!*count)
                pthread_cond_wait(&made->changed, &made->lock);
        pthread_mutex_unlock(&made->lock);
}

static int set_up(void **state)
{
        mfl_emu_set_devices(MEMBERS);
        mfl_cuda_nccl_tune(16, 5000, 60);
        memset(members, 0, sizeof members);
        for (uint32_t r = 0; r < MEMBERS; r++) {
                struct member *m = &members[r];
                m->rank = r;
                m->device.ordinal = (int)r;
                mfl_strcpy(m->device.info.uuid, sizeof m->device.info.uuid, "GPU-00000000");
                pthread_mutex_init(&m->made.lock, NULL);
                pthread_cond_init(&m->made.changed, NULL);
                assert_int_equal(mfl_collective_nccl_new(ops, &m->device, &m->collective, NULL), 0);
                assert_int_equal(ops->sum_new(&m->device, N, &m->sum, NULL), 0);
                for (uint64_t i = 0; i < N; i++)
                        m->own[i] = (int64_t)((i + 1) * 0x9e3779b97f4a7c15u * (r + 1));
                assert_int_equal(cudaSetDevice((int)r), cudaSuccess);
                assert_int_equal(cudaMemcpy(m->sum->memory, m->own, sizeof m->own, cudaMemcpyHostToDevice),
                        cudaSuccess);
        }
        return 0;
}

static int tear_down(void **state)
{
        for (uint32_t r = 0; r < MEMBERS; r++) {
                mfl_collective_close(members[r].collective);
                ops->sum_free(members[r].sum);
                pthread_mutex_destroy(&members[r].made.lock);
                pthread_cond_destroy(&members[r].made.changed);
        }
        assert_int_equal(mfl_emu_nccl_open(), 0);
        assert_int_equal(mfl_emu_pending(), 0);
        assert_int_equal(mfl_emu_memory_used(), 0);
        return 0;
}

static struct mfl_group group_of(const struct member *m, uint64_t communicator)
{
        return (struct mfl_group){.group = 77,
                .collective = MFL_COLLECTIVE_NCCL,
                .rank = m->rank,
                .n_members = MEMBERS,
                .members = {11, 12, 13},
                .communicator = communicator};
}

static void order(struct member *m, uint64_t communicator, const uint8_t *id)
{
        m->ordered = group_of(m, communicator);
        assert_int_equal(
                m->collective->ops->communicator(m->collective, &m->ordered, id, on_made, &m->made, NULL), 0);
}

/* Rank 0 makes the id, which the server would pass on to the members below `most`. */
static void order_all(uint64_t communicator, uint32_t most)
{
        members[0].made.n_ids = 0;
        order(&members[0], communicator, NULL);
        wait_for(&members[0].made, &members[0].made.n_ids);
        assert_int_equal(members[0].made.number, communicator);
        for (uint32_t r = 1; r < most; r++)
                order(&members[r], communicator, members[0].made.id);
}

static void *do_combine(void *arg)
{
        struct member *m = arg;
        m->rc = m->collective->ops->combine(m->collective, &m->combine, &m->err);
        return NULL;
}

static void start_combine(struct member *m, uint64_t communicator, uint32_t leader, uint32_t deadline_ms)
{
        m->group = group_of(m, communicator);
        m->control = (struct mfl_comm_control){0};
        m->combine = (struct mfl_combine){.group = &m->group,
                .ranks = 7,
                .leader = leader,
                .n = N,
                .own = m->own,
                .held = m->sum,
                .out = m->rank == leader ? m->out : NULL,
                .deadline_ms = deadline_ms,
                .control = &m->control};
        assert_int_equal(pthread_create(&m->thread, NULL, do_combine, m), 0);
}

static void start_all(uint64_t communicator, uint32_t leader, uint32_t most, uint32_t deadline_ms)
{
        for (uint32_t r = 0; r < most; r++)
                start_combine(&members[r], communicator, leader, deadline_ms);
}

static void end_all(uint32_t most)
{
        for (uint32_t r = 0; r < most; r++)
                pthread_join(members[r].thread, NULL);
}

static void assert_sum(uint32_t leader)
{
        for (uint32_t r = 0; r < MEMBERS; r++) {
                if (members[r].rc)
                        print_message("rank %u: %s\n", r, members[r].err.text);
                assert_int_equal(members[r].rc, 0);
        }
        assert_int_equal(members[leader].control.ready, N);
        for (uint64_t i = 0; i < N; i++)
                assert_int_equal(
                        members[leader].out[i], (int64_t)((i + 1) * 0x9e3779b97f4a7c15u * (1 + 2 + 3)));
}

static void assert_broken(const struct member *m, const char *text)
{
        assert_int_equal(m->rc, MFL_COLLECTIVE_BROKEN);
        if (!strstr(m->err.text, text))
                fail_msg("'%s' is not in '%s'", text, m->err.text);
}

/* ---- tests ---- */

static void where_there_is_none(void **state)
{
        struct mfl_collective *collective;
        struct mfl_error err;
        assert_int_equal(
                mfl_collective_nccl_new(&mfl_backend_reference, NULL, &collective, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "backend reference has no communicators"));
        setenv("MFL_EMU_NCCL", "absent", 1);
        assert_int_equal(mfl_collective_nccl_new(ops, &members[0].device, &collective, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "not there"));
        unsetenv("MFL_EMU_NCCL");
        mfl_alloc_fail_at(0);
        assert_int_equal(mfl_collective_nccl_new(ops, &members[0].device, &collective, &err), -ENOMEM);
        mfl_alloc_fail_at(-1);
}

static void a_communicator_serves_many_groups(void **state)
{
        order_all(7, MEMBERS);
        for (uint32_t round = 0; round < 5; round++) {
                uint32_t leader = round % MEMBERS;
                start_all(7, leader, MEMBERS, LONG_MS);
                end_all(MEMBERS);
                assert_sum(leader);
        }
        /* Once more the same order: it is open already. */
        order(&members[0], 7, NULL);
        order(&members[1], 7, members[0].made.id);
        start_all(7, 1, MEMBERS, LONG_MS);
        end_all(MEMBERS);
        assert_sum(1);
        assert_int_equal(members[0].made.n_ids, 1);
        assert_int_equal(mfl_emu_nccl_open(), MEMBERS);
}

static void combine_waits_for_the_opening(void **state)
{
        struct timespec nap = {.tv_nsec = 40000000};
        order_all(7, 2);
        start_all(7, 2, 2, LONG_MS);
        nanosleep(&nap, NULL);
        order(&members[2], 7, members[0].made.id);
        start_combine(&members[2], 7, 2, LONG_MS);
        end_all(MEMBERS);
        assert_sum(2);
}

/* A wrong order is refused, and costs nothing. */
static void orders_that_cannot_be(void **state)
{
        order_all(7, MEMBERS);
        start_all(8, 0, 1, LONG_MS);
        end_all(1);
        assert_broken(&members[0], "the communicator is not open");
        members[0].combine.ranks = 3;
        members[0].group.communicator = 7;
        do_combine(&members[0]);
        assert_broken(&members[0], "some of the 3 members are left out");
        members[0].combine.ranks = 7;
        members[0].combine.held = NULL;
        do_combine(&members[0]);
        assert_broken(&members[0], "no sum on the device");
        start_all(7, 0, MEMBERS, LONG_MS);
        end_all(MEMBERS);
        assert_sum(0);
}

static void assert_recovers(uint64_t communicator)
{
        order_all(communicator, MEMBERS);
        start_all(communicator, 1, MEMBERS, LONG_MS);
        end_all(MEMBERS);
        assert_sum(1);
}

static void a_member_never_opens(void **state)
{
        order_all(7, 2);
        start_all(7, 0, 2, SHORT_MS);
        end_all(2);
        assert_broken(&members[0], "too late before the communicator was open");
        assert_broken(&members[1], "too late before the communicator was open");
        wait_for(&members[1].made, &members[1].made.n_reasons); /* and it is given up */
        assert_non_null(strstr(members[1].made.reason, "cancelled"));
        do_combine(&members[0]);
        assert_broken(&members[0], "cancelled");
        assert_recovers(8);
}

static void waiting_is_cancelled(void **state)
{
        struct timespec nap = {.tv_nsec = 30000000};
        order_all(7, 2);
        start_all(7, 0, 2, LONG_MS);
        nanosleep(&nap, NULL);
        atomic_store(&members[0].control.cancel, true);
        atomic_store(&members[1].control.cancel, true);
        end_all(2);
        assert_broken(&members[0], "cancelled before the communicator was open");
        assert_recovers(8);
}

static void a_member_does_not_reduce(void **state)
{
        assert_recovers(7);
        start_all(7, 0, 2, SHORT_MS); /* the third is dead */
        end_all(2);
        assert_broken(&members[0], "reduce: not done within");
        assert_broken(&members[1], "reduce: not done within");
        start_all(7, 0, 1, LONG_MS); /* at once: it is known to be broken */
        end_all(1);
        assert_broken(&members[0], "reduce: not done within");
        assert_recovers(8);
}

static void a_newer_order_takes_an_opening_back(void **state)
{
        order_all(7, 2);
        start_all(7, 0, 1, LONG_MS);
        order_all(8, MEMBERS);
        pthread_join(members[0].thread, NULL);
        assert_broken(&members[0], "the communicator is not open");
        start_all(8, 2, MEMBERS, LONG_MS);
        end_all(MEMBERS);
        assert_sum(2);
}

static void two_on_one_card(void **state)
{
        members[1].device.ordinal = members[0].device.ordinal;
        order_all(7, MEMBERS);
        wait_for(&members[0].made, &members[0].made.n_reasons);
        assert_non_null(strstr(members[0].made.reason, "Duplicate GPU detected"));
        start_all(7, 0, 1, LONG_MS);
        end_all(1);
        assert_broken(&members[0], "Duplicate GPU detected");
        /* Sums belong to the device that they were made on. */
        members[1].device.ordinal = 1;
}

/* tear_down closes what nobody else will ever open. */
static void closed_while_it_opens(void **state)
{
        order_all(7, 2);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
        const struct CMUnitTest tests[] = {
                TEST(where_there_is_none),
                TEST(a_communicator_serves_many_groups),
                TEST(combine_waits_for_the_opening),
                TEST(orders_that_cannot_be),
                TEST(a_member_never_opens),
                TEST(waiting_is_cancelled),
                TEST(a_member_does_not_reduce),
                TEST(a_newer_order_takes_an_opening_back),
                TEST(two_on_one_card),
                TEST(closed_while_it_opens),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
