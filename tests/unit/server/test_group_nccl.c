/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of the server core by nccl: communicators, their failures, and when NCCL is left alone. */
#include "tests/unit/server/group_bed.h"

static void send_id(struct bed *bed, uint32_t i, uint64_t communicator, bool made)
{
        struct mfl_msg msg = {.kind = MFL_MSG_COMMUNICATOR_ID};
        msg.communicator.communicator = communicator;
        msg.communicator.made = made;
        msg.communicator.id[0] = 42;
        strcpy(msg.communicator.reason, made ? "" : "no socket");
        bed_send(bed, i, &msg);
}

static void start_gpus(struct bed *bed, uint32_t n)
{
        bed_start(bed, 2 * n);
        bed->spec.rounds = 10;
        for (uint32_t i = 0; i < n; i++)
                bed_gpu(bed, i);
        bed_run(bed, n);
        bed->log[0] = '\0';
}

static const struct mfl_group *group_of(struct bed *bed, uint32_t i)
{
        return &bed_task(bed, i)->group;
}

static void announce_all(struct bed *bed, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                bed_announce(bed, i, true);
}

/* What is in the slots counts, and the next round begins. */
static void finish_round(struct bed *bed)
{
        uint32_t round = bed->task[bed->n_tasks - 1].round;
        while (bed->task[bed->n_tasks - 1].round == round) {
                for (uint32_t s = 0; s < bed->n_slots; s++) {
                        if (!(bed->granted >> s & 1))
                                continue;
                        bed_complete(bed, s);
                        bed_added(bed, s, true);
                }
                assert_non_null(strstr(bed->log, "apply"));
                bed_job_event(bed, MFL_EV_APPLIED);
                bed_job_event(bed, MFL_EV_CHECKPOINTED);
                bed_job_event(bed, MFL_EV_COMMITTED);
        }
        bed->log[0] = '\0';
}

static void test_nccl(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 3);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_NCCL);
        uint64_t number = group_of(&bed, 0)->communicator;
        assert_true(number && number == group_of(&bed, 2)->communicator);
        send_id(&bed, 1, number, true); /* only the leader makes it */
        send_id(&bed, 0, number + 1, true);
        send_id(&bed, 0, 0, true);
        bed_expect(&bed, "");
        send_id(&bed, 0, number, true);
        bed_expect(&bed, "d01: id of 5 is 42\nd02: id of 5 is 42\n");
        send_id(&bed, 0, number, true); /* once */
        bed_expect(&bed, "");
        announce_all(&bed, 3);
        bed_expect(&bed, "d00: combine 4, ranks 7, leader 0, 10000 ms\n"
                         "d01: combine 4, ranks 7, leader 0, 10000 ms\n"
                         "d02: combine 4, ranks 7, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 6, client 0\nd00: grant 0 for 4\n");
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator == number && group_of(&bed, 0)->group != number);
        bed_expect_alone(&bed, "d01", MFL_COLLECTIVE_NCCL, "");
        bed_end(&bed);
}

/* It failed while no group was at hand: the next group does not count on it. */
static void test_communicator_breaks_between_rounds(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 3);
        uint64_t number = group_of(&bed, 0)->communicator;
        bed_gpu(&bed, 3);
        bed_up(&bed, 3);
        send_id(&bed, 0, number, true);
        announce_all(&bed, 3);
        bed_complete(&bed, 0);
        send_id(&bed, 3, number, false); /* not its own */
        bed_added(&bed, 0, true);
        bed_down(&bed, 3);
        bed_wait(&bed, 10000);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator == number);
        announce_all(&bed, 3);
        bed_complete(&bed, 0);
        bed_added(&bed, 0, true);
        send_id(&bed, 1, number, false);
        finish_round(&bed);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_NCCL);
        assert_true(group_of(&bed, 0)->communicator > number);
        assert_true(group_of(&bed, 0)->communicator == group_of(&bed, 2)->communicator);
        bed_end(&bed);
}

/* NCCL can't do without one of the communicator's ranks. */
static void test_nccl_is_all_or_none(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 3);
        uint64_t number = group_of(&bed, 0)->communicator;
        send_id(&bed, 0, number, true);
        bed.log[0] = '\0';
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, false);
        bed_expect(&bed, "d00: alone 1: its update is not for the group\n"
                         "d02: alone 3: its update is not for the group\n"
                         "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n"
                         "open 1 for 2: 32 bytes, weight 2, client 1\nd01: grant 1 for 2\n");
        bed_announce(&bed, 2, true);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator == number); /* nothing was combined with it */
        bed_announce(&bed, 0, true);
        bed_wait(&bed, 2000);
        bed_expect(&bed, "d00: alone 6: the other daemons of the node take longer\n"
                         "d01: alone 7: the other daemons of the node take longer\n"
                         "d02: alone 8: the other daemons of the node take longer\n"
                         "open 0 for 6: 32 bytes, weight 2, client 0\nd00: grant 0 for 6\n");
        bed_announce(&bed, 1, true);
        bed_announce(&bed, 2, true);
        finish_round(&bed);
        bed_announce(&bed, 0, true);
        bed_down(&bed, 2); /* it may have missed the id: nothing was ever added with it */
        assert_non_null(strstr(bed.log, "d01: alone 11: its connection is lost\n"));
        bed_up(&bed, 2);
        bed_announce(&bed, 1, false);
        bed_announce(&bed, 2, false);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator > number);
        bed_end(&bed);
}

static void fail_round(struct bed *bed, uint32_t n)
{
        send_id(bed, 0, group_of(bed, 0)->communicator, true);
        announce_all(bed, n);
        bed->log[0] = '\0';
        bed_combine_failed(bed, n - 1, group_of(bed, 0)->group);
        assert_non_null(strstr(bed->log, "d00: alone"));
        finish_round(bed);
}

static void test_nccl_fails_twice(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 2);
        uint64_t first = group_of(&bed, 0)->communicator;
        fail_round(&bed, 2);
        uint64_t second = group_of(&bed, 0)->communicator;
        assert_true(second > first);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_NCCL, "");
        fail_round(&bed, 2);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_SHM);
        assert_true(group_of(&bed, 0)->communicator == 0);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SHM, "nccl failed twice: daemon d01: it broke");
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_SHM);
        bed_gpu(&bed, 2); /* another daemon: everybody gets another chance */
        bed_up(&bed, 2);
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_int_equal(group_of(&bed, 0)->n_members, 3);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_NCCL);
        bed_end(&bed);
}

/* A success in between: the failures are not in a row. */
static void test_nccl_recovers(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 2);
        for (int i = 0; i < 3; i++) {
                uint64_t number = group_of(&bed, 0)->communicator;
                fail_round(&bed, 2);
                assert_true(group_of(&bed, 0)->communicator > number);
                send_id(&bed, 0, group_of(&bed, 0)->communicator, true);
                announce_all(&bed, 2);
                finish_round(&bed);
        }
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_NCCL);
        bed_end(&bed);
}

static void test_communicator_fails(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 2);
        send_id(&bed, 0, group_of(&bed, 0)->communicator, false);
        bed_expect(&bed, "d00: alone 1: daemon d00: no socket\nd01: alone 2: daemon d00: no socket\n");
        send_id(&bed, 0, group_of(&bed, 0)->communicator, true); /* of no group any more */
        bed_expect(&bed, "");
        announce_all(&bed, 2);
        finish_round(&bed);
        send_id(&bed, 1, group_of(&bed, 0)->communicator, false); /* a member could not open it */
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_SHM);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SHM, "nccl failed twice: daemon d01: no socket");
        bed_end(&bed);
}

/* Everybody is ready before the id is there: nobody's time to combine begins to run. */
static void test_late_communicator(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 2);
        uint64_t number = group_of(&bed, 0)->communicator;
        announce_all(&bed, 2);
        bed_expect(&bed, "");
        send_id(&bed, 0, number, true);
        bed_expect(&bed, "d01: id of 4 is 42\n"
                         "d00: combine 3, ranks 3, leader 0, 10000 ms\n"
                         "d01: combine 3, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 3: 32 bytes, weight 4, client 0\nd00: grant 0 for 3\n");
        bed_combine_failed(&bed, 1, group_of(&bed, 0)->group);
        finish_round(&bed);
        announce_all(&bed, 2);
        bed_wait(&bed, 2000);
        bed_expect(&bed, "d00: alone 5: the communicator takes too long\n"
                         "d01: alone 6: the communicator takes too long\n"
                         "open 0 for 5: 32 bytes, weight 2, client 0\nd00: grant 0 for 5\n"
                         "open 1 for 6: 32 bytes, weight 2, client 1\nd01: grant 1 for 6\n");
        finish_round(&bed);
        bed_expect_alone(
                &bed, "d00", MFL_COLLECTIVE_SHM, "nccl failed twice: the communicator takes too long");
        bed_end(&bed);
}

/* More work, of a daemon elsewhere that can't, comes while a group waits: its communicator stays. */
static void test_second_group_at_once(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 6);
        for (uint32_t i = 0; i < 3; i++)
                bed_gpu(&bed, i)->reach.network_space = i < 2 ? 7 : 9;
        bed_run(&bed, 3);
        uint64_t number = group_of(&bed, 0)->communicator;
        send_id(&bed, 0, number, true);
        bed_announce(&bed, 0, true);
        struct mfl_announce second = bed_announcement(&bed, 1, true);
        struct mfl_msg msg = {
                .kind = MFL_MSG_TASK_FAILED, .failed = {.task = bed.task[2].task, .reason = "no memory"}};
        bed.log[0] = '\0';
        bed_send(&bed, 2, &msg);
        bed_expect(&bed, "d00: train 6 of 1 from 1, group 8 by shm, rank 0 of 2, workers 4\n"
                         "d01: train 7 of 1 from 1, group 8 by shm, rank 1 of 2, workers 4\n");
        bed_announce_as(&bed, 1, &second);
        bed_expect(&bed, "d00: combine 4, ranks 3, leader 0, 10000 ms\n"
                         "d01: combine 4, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n");
        bed_announce(&bed, 1, true);
        bed_announce(&bed, 0, true);
        bed_expect(&bed, "d00: combine 8, ranks 3, leader 0, 10000 ms\n"
                         "open 1 for 8: 32 bytes, weight 2, client 2\nd00: grant 1 for 8\n");
        bed_end(&bed);
}

/* A new process has no communicator; its group is another one. */
static void test_member_restarts(void **state)
{
        (void)state;
        struct bed bed;
        start_gpus(&bed, 2);
        uint64_t number = group_of(&bed, 0)->communicator;
        send_id(&bed, 0, number, true);
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator == number);
        bed_down(&bed, 1);
        bed_up(&bed, 1); /* the same process: it has it still */
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator == number);
        bed_down(&bed, 1);
        bed.info[1].instance = 99;
        bed_up(&bed, 1);
        announce_all(&bed, 2);
        finish_round(&bed);
        assert_true(group_of(&bed, 0)->communicator > number);
        assert_true(group_of(&bed, 0)->members[1] == 99);
        bed_end(&bed);
}

static void test_mixed_node_adds_by_shm(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 6);
        bed_gpu(&bed, 1);
        bed_gpu(&bed, 2);
        bed_run(&bed, 3);
        assert_int_equal(group_of(&bed, 0)->collective, MFL_COLLECTIVE_SHM);
        /* GPUs first, and they fetch. */
        assert_true(group_of(&bed, 0)->members[0] == 2 && group_of(&bed, 0)->members[2] == 1);
        assert_true(bed_task(&bed, 0)->params_from == 2);
        bed_end(&bed);
}

static void run_gpus(struct bed *bed)
{
        bed->spec.rounds = 2;
        for (uint32_t i = 0; i < 2; i++)
                bed_gpu(bed, i);
        bed_run(bed, 2);
        if (bed->n_tasks != 2)
                return;
        send_id(bed, 0, group_of(bed, 0)->communicator, true);
        announce_all(bed, 2);
        bed_combine_failed(bed, 1, group_of(bed, 0)->group);
}

static void test_no_memory(void **state)
{
        (void)state;
        for (long n = 0;; n++) {
                struct bed bed;
                mfl_alloc_fail_at(n);
                bed_start(&bed, 4);
                if (bed.core) {
                        run_gpus(&bed);
                        bed_end(&bed);
                }
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(bed.r, 0);
                        assert_non_null(strstr(bed.log, "d01: grant 1 for 2\n"));
                        return;
                }
                assert_int_equal(bed.r, -ENOMEM);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_nccl),
                cmocka_unit_test(test_communicator_breaks_between_rounds),
                cmocka_unit_test(test_nccl_is_all_or_none),
                cmocka_unit_test(test_nccl_fails_twice),
                cmocka_unit_test(test_nccl_recovers),
                cmocka_unit_test(test_communicator_fails),
                cmocka_unit_test(test_late_communicator),
                cmocka_unit_test(test_second_group_at_once),
                cmocka_unit_test(test_member_restarts),
                cmocka_unit_test(test_mixed_node_adds_by_shm),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests_name("group nccl", tests, NULL, NULL);
}
