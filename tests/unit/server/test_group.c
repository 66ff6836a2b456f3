/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of the server core by shm: every way from the deal to the count or to the end, action by action. */
#include "tests/unit/server/group_bed.h"

static void test_shm(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed.costs = true;
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_add_job(&bed);
        bed_expect(&bed, "d00: train 1 of 2 from 1, group 3 by shm, rank 0 of 2, workers 4\n"
                         "cost of d00 at host: up 0, down 16\n"
                         "d01: train 2 of 2 from 1, group 3 by shm, rank 1 of 2, workers 4\n"
                         "cost of d01 at host: up 0, down 16\n");
        assert_true(bed.task[0].group.members[0] == 1 && bed.task[0].group.members[1] == 2);
        bed_announce(&bed, 1, true);
        bed_expect(&bed, "");
        bed_announce(&bed, 1, true); /* again: nothing new */
        bed_expect(&bed, "");
        bed_announce(&bed, 0, true);
        bed_expect(&bed, "d00: combine 3, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 3: 32 bytes, weight 4, client 0\n"
                         "d00: grant 0 for 3\n");
        bed_complete(&bed, 0);
        bed_expect(&bed, "add 0 of 3, weight 4\n");
        bed_added(&bed, 0, true);
        bed_expect(&bed, "free 0 of 3\n"
                         "cost of d00 at host: up 32, down 0\n"
                         "d00: accepted 1\n"
                         "cost of d01 at host: up 32, down 0\n"
                         "d01: accepted 2\n"
                         "apply 4\n");
        bed_end(&bed);
}

/* A client by itself would have travelled as float32; a daemon is told of the same params once. */
static void test_costs(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 2);
        bed.spec.evaluation.every = 1;
        bed.costs = true;
        bed_run(&bed, 2);
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, true);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_added(&bed, 0, true);
        bed_expect(&bed, "free 0 of 3\n"
                         "cost of d00 at host: up 16, down 0\n"
                         "d00: accepted 1\n"
                         "cost of d01 at host: up 16, down 0\n"
                         "d01: accepted 2\n"
                         "apply 2\n");
        bed_job_event(&bed, MFL_EV_APPLIED);
        /* Shards have the params from one as well, and add nothing. */
        assert_non_null(strstr(bed.log, "d00: evaluate 4 of "));
        assert_non_null(strstr(bed.log, "cost of d00 at host: up 0, down 16\n"));
        assert_true(bed_task(&bed, 1)->params_from == 1 && !bed_task(&bed, 1)->group.group);
        bed.log[0] = '\0';
        bed_down(&bed, 0);
        bed_expect(&bed, "d01: alone 5: daemon d00, which fetched the params, is lost\n");
        bed_down(&bed, 1);
        bed_up(&bed, 1);
        assert_true(bed_task(&bed, 1)->params_from == 0);
        assert_null(strstr(bed.log, "cost")); /* it has them */
        bed_end(&bed);
}

static void start_three(struct bed *bed)
{
        bed_start(bed, 6);
        bed_run(bed, 3);
        assert_true(bed->n_tasks == 3 && bed->task[2].group.group == ((uint64_t)1 << 32 | 4));
}

/* Without room to publish, a member announces for itself; the others go on. */
static void test_member_alone_by_itself(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 1, false);
        bed_expect(&bed, "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n");
        bed_announce(&bed, 2, true);
        bed_announce(&bed, 0, true);
        bed_expect(&bed, "d00: combine 4, ranks 5, leader 0, 10000 ms\n"
                         "open 1 for 4: 32 bytes, weight 4, client 0\nd00: grant 1 for 4\n");
        bed_complete(&bed, 1);
        bed_added(&bed, 1, true);
        bed_expect(&bed, "add 1 of 4, weight 4\nfree 1 of 4\nd00: accepted 1\nd02: accepted 3\n");
        bed_complete(&bed, 0);
        bed_added(&bed, 0, true);
        bed_expect(&bed, "add 0 of 2, weight 2\nfree 0 of 2\nd01: accepted 2\napply 6\n");
        bed_end(&bed);
}

static void test_leader_alone_by_itself(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 1, true);
        bed_announce(&bed, 2, true);
        bed_announce(&bed, 0, false);
        bed_expect(&bed, "d01: combine 4, ranks 6, leader 1, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 1\nd01: grant 0 for 4\n"
                         "open 1 for 1: 32 bytes, weight 2, client 0\nd00: grant 1 for 1\n");
        bed_end(&bed);
}

/* One that had said that it is ready takes it back. */
static void test_member_takes_it_back(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 1, true);
        bed_announce(&bed, 1, false);
        bed_expect(&bed, "d01: alone 2: it asked to upload alone\n"
                         "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n");
        bed_end(&bed);
}

static void reject_all(struct bed *bed, uint32_t i)
{
        struct mfl_rejected rejected[16];
        struct mfl_announce a = bed_announcement(bed, i, true);
        for (uint32_t k = 0; k < a.item_count; k++)
                rejected[k] = (struct mfl_rejected){.item = bed_task(bed, i)->items[k], .reason = "no data"};
        a.rejected = rejected;
        a.n_rejected = a.item_count;
        a.weight = a.bytes = 0;
        bed_announce_as(bed, i, &a);
}

static void test_member_all_rejected(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        reject_all(&bed, 1);
        bed_expect(&bed, "d01: accepted 2\n");
        bed_announce(&bed, 2, true);
        bed_expect(&bed, "d00: combine 4, ranks 5, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n");
        bed_end(&bed);
        bed_start(&bed, 4); /* of two, one is left */
        bed_run(&bed, 2);
        bed_announce(&bed, 1, true);
        reject_all(&bed, 0);
        bed_expect(&bed, "d01: alone 2: its update is not for the group\nd00: accepted 1\n"
                         "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n");
        bed_end(&bed);
}

static void test_invalid_member(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        struct mfl_announce a = bed_announcement(&bed, 1, true);
        a.weight = 3;
        bed_announce_as(&bed, 1, &a);
        bed_expect(&bed, "d01: cancel 2\nd01: close: weight 3, but it has 2 clients\n"
                         "d00: train 5 of 1 from 1, group 7 by shm, rank 0 of 2, workers 4\n"
                         "d02: train 6 of 1 from 1, group 7 by shm, rank 1 of 2, workers 4\n");
        bed_end(&bed);
}

static void test_fault(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        struct mfl_announce a = bed_announcement(&bed, 1, true);
        a.encoding = MFL_ENCODING_F32;
        a.bytes = 16;
        bed_announce_as(&bed, 1, &a);
        bed_expect(&bed, "d01: close: wrong announce: an update for a group must be int64\n");
        bed.conn[1] = 0;
        static const enum mfl_msg_kind kinds[] = {MFL_MSG_COMBINE, MFL_MSG_ALONE};
        for (uint32_t i = 0; i < 2; i++) {
                bed_up(&bed, 1);
                bed.log[0] = '\0';
                struct mfl_msg msg = {.kind = kinds[i]};
                bed_send(&bed, 1, &msg);
                assert_non_null(strstr(bed.log, "is not for a server"));
        }
        bed_end(&bed);
}

/* A part of a task can't be a group's; nor what names another group. */
static void test_not_for_the_group(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        struct mfl_announce a = bed_announcement(&bed, 1, true);
        a.item_count = a.weight = 1;
        bed_announce_as(&bed, 1, &a);
        bed_expect(&bed, "open 0 for 2: 32 bytes, weight 1, client 1\nd01: grant 0 for 2\n");
        a = bed_announcement(&bed, 2, true);
        a.group++;
        bed_announce_as(&bed, 2, &a);
        bed_expect(&bed, "d00: alone 1: its update is not for the group\n"
                         "open 1 for 3: 32 bytes, weight 2, client 2\nd02: grant 1 for 3\n");
        bed_announce(&bed, 0, true); /* sent before it heard that */
        bed_expect(&bed, "open 2 for 1: 32 bytes, weight 2, client 0\nd00: grant 2 for 1\n");
        bed_end(&bed);
}

/* ---- patience ---- */

static void test_late_member(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_wait(&bed, 5000);
        bed_announce(&bed, 2, true);
        bed_wait(&bed, 1000);
        bed_announce(&bed, 1, true);
        bed_wait(&bed, 3999);
        bed_expect(&bed, "");
        bed_wait(&bed, 1); /* as long again as the first one took */
        bed_expect(&bed, "d01: combine 4, ranks 6, leader 1, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 1\nd01: grant 0 for 4\n");
        bed_announce(&bed, 0, true);
        bed_expect(&bed, "open 1 for 1: 32 bytes, weight 2, client 0\nd00: grant 1 for 1\n");
        bed_down(&bed, 0); /* nobody's matter any more */
        bed_expect(&bed, "");
        bed_end(&bed);
}

static void test_one_does_not_wait_for_all(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        bed_wait(&bed, 1999);
        bed_expect(&bed, "");
        bed_wait(&bed, 1);
        bed_expect(&bed, "d00: alone 1: the other daemons of the node take longer\n"
                         "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n");
        bed_announce(&bed, 1, true);
        bed_wait(&bed, 1000);
        bed_announce(&bed, 2, true);
        bed_expect(&bed, "d01: combine 4, ranks 6, leader 1, 10000 ms\n"
                         "open 1 for 4: 32 bytes, weight 4, client 1\nd01: grant 1 for 4\n");
        bed_end(&bed);
}

static void test_two_of_which_one_is_late(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed_run(&bed, 2);
        bed_announce(&bed, 0, true);
        bed_wait(&bed, 2000);
        bed_expect(&bed, "d00: alone 1: the other daemons of the node take longer\n"
                         "d01: alone 2: the other daemons of the node take longer\n"
                         "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n");
        bed_end(&bed);
}

/* Time to upload must be left, and whatever waits when the round closes is dropped with its slot. */
static void test_deadline(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 6);
        bed.spec.limits.deadline_ms = 2000;
        bed.spec.limits.quorum = 0.3;
        bed_run(&bed, 3);
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, true);
        bed_wait(&bed, 1000);
        bed_expect(&bed, "d00: combine 4, ranks 3, leader 0, 500 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n");
        bed_wait(&bed, 500); /* a sum that hangs does not take them through the deadline */
        bed_expect(&bed, "free 0 of 4\nd00: alone 1: the sum takes too long\n"
                         "d01: alone 2: the sum takes too long\n"
                         "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n"
                         "open 1 for 2: 32 bytes, weight 2, client 1\nd01: grant 1 for 2\n");
        bed_wait(&bed, 500);
        bed_expect(&bed, "free 1 of 2\nfree 0 of 1\nd02: cancel 3\nd01: cancel 2\nd00: cancel 1\n"
                         "d00: train 5 of 2 from 1, group 8 by shm, rank 0 of 3, workers 6\n"
                         "d01: train 6 of 2 from 1, group 8 by shm, rank 1 of 3, workers 6\n"
                         "d02: train 7 of 2 from 1, group 8 by shm, rank 2 of 3, workers 6\n");
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, true);
        bed_wait(&bed, 1000);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_wait(&bed, 1000); /* closes, but what the worker has counts */
        bed_expect(&bed, "");
        bed_added(&bed, 0, true);
        bed_expect(&bed, "free 0 of 8\nd00: accepted 5\nd01: accepted 6\nd02: cancel 7\napply 4\n");
        bed_end(&bed);
}

/* ---- jobs ---- */

static void test_local_job(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 0);
        bed.spec.data.partition = MFL_PARTITION_LOCAL;
        bed_run(&bed, 2);
        assert_true(bed.n_tasks == 2 && bed.task[0].n_items == 1 && bed.task[0].group.group);
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, true);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_down(&bed, 1);
        bed.info[1].instance = 99;
        bed_up(&bed, 1);
        bed_added(&bed, 0, false);
        assert_non_null(strstr(bed.log, "d01: train 4 of 1 from 1\n")); /* its own data, once more */
        bed_end(&bed);
}

/* One that is alone at its node for now lays the params where those read them to whom its clients may go later. */
static void test_alone_shares_params(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 1);
        bed_run(&bed, 2);
        assert_true(bed.n_tasks == 1 && bed_task(&bed, 0)->params_from == 1);
        bed_end(&bed);
}

/* It may have gone before it got them, and is asked for them by others. */
static void test_back_and_shares_params(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 2);
        bed_run(&bed, 2);
        assert_true(bed.n_tasks == 2 && bed_task(&bed, 0)->params_from == 1);
        bed_down(&bed, 0);
        bed_up(&bed, 0);
        assert_non_null(strstr(bed.log, "d00: train 1 of 1 from 1\n"));
        bed_down(&bed, 1);
        bed_up(&bed, 1);
        assert_non_null(strstr(bed.log, "d01: train 2 of 1 from 0\n"));
        bed_end(&bed);
}

static void test_single_updates(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed.spec.aggregation.strategy = MFL_STRATEGY_MEDIAN;
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_add_job(&bed);
        bed_expect(&bed, "d00: train 1 of 2 from 1\nd01: train 2 of 2 from 1\n");
        struct mfl_announce a = bed_announcement(&bed, 1, false);
        a.item_count = a.weight = 1;
        bed_announce_as(&bed, 1, &a); /* such a job's slots have no room for int64 */
        bed_expect(&bed, "d01: refused 2: this job wants float32\n");
        bed_end(&bed);
}

/* Two pieces in one deal can't be one sum; and 65 are two groups. */
/* Daemons that say the same number of themselves are never members of one group: its Task could not be sent.
 */
static void test_same_instance(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed.info[1].instance = 1;
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_add_job(&bed);
        bed_expect(&bed, "d00: train 1 of 2 from 1\nd01: train 2 of 2 from 1\n");
        bed_end(&bed);
        bed_start(&bed, 6);
        bed.info[1].instance = 1;
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_up(&bed, 2);
        bed_add_job(&bed);
        bed_expect(&bed, "d00: train 1 of 2 from 1, group 4 by shm, rank 0 of 2, workers 4\n"
                         "d01: train 2 of 2 from 1\n"
                         "d02: train 3 of 2 from 1, group 4 by shm, rank 1 of 2, workers 4\n");
        for (uint32_t i = 0; i < 3; i++)
                bed_announce(&bed, i, true);
        bed_expect(&bed, "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n"
                         "d00: combine 4, ranks 3, leader 0, 10000 ms\n"
                         "open 1 for 4: 32 bytes, weight 4, client 0\nd00: grant 1 for 4\n");
        bed_end(&bed);
}

static void test_many_members(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 65);
        bed.n_slots = 2;
        bed_run(&bed, 65);
        assert_int_equal(bed.n_tasks, 65);
        assert_int_equal(bed.task[0].group.n_members + bed.task[64].group.n_members, 65);
        assert_int_equal(bed.task[0].group.n_members, 32);
        assert_true(bed.task[0].group.group != bed.task[64].group.group);
        for (uint32_t i = 0; i < 65; i++)
                bed_announce(&bed, i, true);
        assert_non_null(strstr(bed.log, "d00: combine 66, ranks ffffffff, leader 0"));
        assert_non_null(strstr(bed.log, "d32: combine 67, ranks 1ffffffff, leader 0"));
        bed.log[0] = '\0';
        bed_complete(&bed, 1);
        bed_added(&bed, 1, true);
        bed_complete(&bed, 0);
        bed_added(&bed, 0, true);
        assert_non_null(strstr(bed.log, "apply 65\n"));
        bed_end(&bed);
}

static void run_grouped(struct bed *bed)
{
        bed_run(bed, 3);
        for (uint32_t i = 0; i < 3 && bed->n_tasks == 3; i++)
                bed_announce(bed, i, true);
        bed_complete(bed, 0);
        bed_added(bed, 0, true);
}

static void test_no_memory(void **state)
{
        (void)state;
        for (long n = 0;; n++) {
                struct bed bed;
                mfl_alloc_fail_at(n);
                bed_start(&bed, 6);
                if (bed.core) {
                        run_grouped(&bed);
                        bed_end(&bed);
                }
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                if (!struck) {
                        assert_int_equal(bed.r, 0);
                        assert_non_null(strstr(bed.log, "apply 6\n"));
                        return;
                }
                assert_int_equal(bed.r, -ENOMEM);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_shm),
                cmocka_unit_test(test_costs),
                cmocka_unit_test(test_member_alone_by_itself),
                cmocka_unit_test(test_leader_alone_by_itself),
                cmocka_unit_test(test_member_takes_it_back),
                cmocka_unit_test(test_member_all_rejected),
                cmocka_unit_test(test_invalid_member),
                cmocka_unit_test(test_fault),
                cmocka_unit_test(test_not_for_the_group),
                cmocka_unit_test(test_late_member),
                cmocka_unit_test(test_one_does_not_wait_for_all),
                cmocka_unit_test(test_two_of_which_one_is_late),
                cmocka_unit_test(test_deadline),
                cmocka_unit_test(test_local_job),
                cmocka_unit_test(test_alone_shares_params),
                cmocka_unit_test(test_back_and_shares_params),
                cmocka_unit_test(test_single_updates),
                cmocka_unit_test(test_same_instance),
                cmocka_unit_test(test_many_members),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests_name("group", tests, NULL, NULL);
}
