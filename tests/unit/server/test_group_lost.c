/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of the server core that lose somebody or something, in each of their states, action by action. */
#include "tests/unit/server/group_bed.h"

static void start_three(struct bed *bed)
{
        bed_start(bed, 6);
        bed_run(bed, 3);
        assert_true(bed->n_tasks == 3 && bed->task[2].group.group == ((uint64_t)1 << 32 | 4));
}

static void test_member_lost_while_gathering(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 1, true);
        bed_down(&bed, 2); /* trains still */
        bed_expect(&bed, "");
        bed_announce(&bed, 0, true);
        bed_expect(&bed, "d00: combine 4, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n");
        bed_up(&bed, 2);
        bed_expect(&bed, "d02: train 3 of 2 from 0\n");
        bed_announce(&bed, 2, false);
        bed_expect(&bed, "open 1 for 3: 32 bytes, weight 2, client 2\nd02: grant 1 for 3\n");
        bed_end(&bed);
}

/* The last one that was waited for goes: the rest is ready. */
static void test_loss_makes_the_rest_ready(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 1, true);
        bed_down(&bed, 2);
        bed_expect(&bed, "d00: combine 4, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n");
        bed_end(&bed);
}

/* Its announced update goes too: its memory may be gone. It says it again when it is back. */
static void test_ready_member_lost(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 2, true);
        bed_down(&bed, 2);
        bed_up(&bed, 2);
        bed_announce(&bed, 2, true); /* with the old number */
        bed_expect(&bed, "d02: train 3 of 2 from 0\n"
                         "open 0 for 3: 32 bytes, weight 2, client 2\nd02: grant 0 for 3\n");
        bed_end(&bed);
}

/* It fetched the params: who has announced nothing may never have got them. */
static void test_fetcher_lost(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 8);
        bed_run(&bed, 4);
        bed_announce(&bed, 2, true);
        bed_announce(&bed, 3, true);
        bed_down(&bed, 0);
        bed_expect(&bed, "d01: alone 2: daemon d00, which fetched the params, is lost\n"
                         "d02: combine 5, ranks c, leader 2, 10000 ms\n"
                         "open 0 for 5: 32 bytes, weight 4, client 2\nd02: grant 0 for 5\n");
        bed_announce(&bed, 1, false);
        bed_expect(&bed, "open 1 for 2: 32 bytes, weight 2, client 1\nd01: grant 1 for 2\n");
        bed_end(&bed);
}

static void start_combine(struct bed *bed)
{
        start_three(bed);
        for (uint32_t i = 0; i < 3; i++)
                bed_announce(bed, i, true);
        bed_expect(bed, "d00: combine 4, ranks 7, leader 0, 10000 ms\n"
                        "open 0 for 4: 32 bytes, weight 6, client 0\nd00: grant 0 for 4\n");
}

static void test_member_lost_while_combining(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_down(&bed, 1);
        bed_expect(&bed,
                "free 0 of 4\nd00: alone 1: its connection is lost\nd02: alone 3: its connection is lost\n"
                "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n"
                "open 1 for 3: 32 bytes, weight 2, client 2\nd02: grant 1 for 3\n");
        bed_complete(&bed, 1);
        bed_complete(&bed, 0);
        bed_added(&bed, 1, true);
        bed_added(&bed, 0, true);
        bed.log[0] = '\0';
        bed_up(&bed, 1);
        bed_announce(&bed, 1, false);
        bed_complete(&bed, 0);
        bed_added(&bed, 0, true);
        bed_expect(&bed, "d01: train 2 of 2 from 0\nopen 0 for 2: 32 bytes, weight 2, client 1\n"
                         "d01: grant 0 for 2\nadd 0 of 2, weight 2\nfree 0 of 2\nd01: accepted 2\napply 6\n");
        bed_end(&bed);
}

static void test_leader_lost_while_combining(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_down(&bed, 0);
        bed_expect(&bed,
                "free 0 of 4\nd01: alone 2: its connection is lost\nd02: alone 3: its connection is lost\n"
                "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n"
                "open 1 for 3: 32 bytes, weight 2, client 2\nd02: grant 1 for 3\n");
        bed_wait(&bed, 10000); /* for good: its clients go to the others, who can add these */
        bed_expect(&bed, "d01: train 5 of 1 from 2, group 7 by shm, rank 0 of 2, workers 4\n"
                         "d02: train 6 of 1 from 2, group 7 by shm, rank 1 of 2, workers 4\n");
        bed_end(&bed);
}

/* The leader waits for a slot that another update has. */
static void test_leader_lost_in_the_queue(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 8);
        bed.n_slots = 1;
        bed_run(&bed, 4);
        bed_announce(&bed, 3, false);
        bed_expect(&bed, "open 0 for 4: 32 bytes, weight 2, client 3\nd03: grant 0 for 4\n");
        for (uint32_t i = 0; i < 3; i++)
                bed_announce(&bed, i, true);
        bed_expect(&bed, "d00: combine 5, ranks 7, leader 0, 10000 ms\n");
        bed_down(&bed, 0);
        bed_expect(&bed, "d01: alone 2: its connection is lost\nd02: alone 3: its connection is lost\n");
        bed_complete(&bed, 0);
        bed_added(&bed, 0, true);
        bed_expect(&bed, "add 0 of 4, weight 2\nfree 0 of 4\nd03: accepted 4\n"
                         "open 0 for 2: 32 bytes, weight 2, client 1\nd01: grant 0 for 2\n");
        bed_end(&bed);
}

/* The sum is here: it counts for all of them, and nobody does their clients again. */
static void test_lost_while_adding(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_down(&bed, 0);
        bed_down(&bed, 1);
        bed_wait(&bed, 10000);
        bed_combine_failed(&bed, 2, bed.task[0].group.group); /* too late */
        bed_expect(&bed, "");
        bed_up(&bed, 1);
        bed_expect(&bed, "");
        bed_announce(&bed, 1, false); /* it need not hold on to it: nobody is left to tell when it counts */
        bed_expect(&bed, "d01: refused 2: its task was taken back, but it is being added\n");
        bed_added(&bed, 0, true);
        bed_expect(&bed, "free 0 of 4\nd02: accepted 3\napply 6\n");
        bed_end(&bed);
}

static void test_back_while_adding(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_down(&bed, 1);
        bed_up(&bed, 1);
        bed_announce(&bed, 1, false);
        bed_expect(&bed, "d01: train 2 of 2 from 0\n");
        bed_added(&bed, 0, true);
        bed_expect(&bed, "free 0 of 4\nd00: accepted 1\nd01: accepted 2\nd02: accepted 3\napply 6\n");
        bed_end(&bed);
}

static void test_refused_sum(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_complete(&bed, 0);
        bed.log[0] = '\0';
        bed_down(&bed, 1);
        bed_down(&bed, 2);
        bed_up(&bed, 2);
        bed.info[1].instance = 99;
        bed_up(&bed, 1); /* another process: nobody has its clients any more */
        bed_expect(&bed, "d02: train 3 of 2 from 0\n");
        bed_added(&bed, 0, false);
        bed_expect(&bed, "free 0 of 4\nd00: alone 1: not finite\nd02: alone 3: not finite\n"
                         "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n"
                         "open 1 for 3: 32 bytes, weight 2, client 2\nd02: grant 1 for 3\n"
                         "d01: train 5 of 2 from 1\n");
        bed_complete(&bed, 0);
        bed_added(&bed, 0, false); /* it was this one */
        bed_expect(&bed, "add 0 of 1, weight 2\nfree 0 of 1\nd00: refused 1: not finite\n");
        bed_end(&bed);
}

static void test_combine_fails(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_combine_failed(&bed, 0, 12345);
        bed_combine_failed(&bed, 0, 0);
        bed_expect(&bed, "");
        bed_combine_failed(&bed, 0, bed.task[0].group.group);
        bed_expect(&bed,
                "free 0 of 4\nd00: alone 1: daemon d00: it broke\nd01: alone 2: daemon d00: it broke\n"
                "d02: alone 3: daemon d00: it broke\n"
                "open 0 for 1: 32 bytes, weight 2, client 0\nd00: grant 0 for 1\n"
                "open 1 for 2: 32 bytes, weight 2, client 1\nd01: grant 1 for 2\n"
                "open 2 for 3: 32 bytes, weight 2, client 2\nd02: grant 2 for 3\n");
        bed_combine_failed(&bed, 0, bed.task[0].group.group);
        bed_expect(&bed, "");
        bed_end(&bed);
}

static void test_sum_takes_too_long(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_wait(&bed, 9000);
        bed_expect(&bed, "");
        bed_wait(&bed, 1000);
        assert_non_null(strstr(bed.log, "free 0 of 4\nd00: alone 1: the sum takes too long\n"));
        bed_end(&bed);
}

/* The leader lives, but its sum stops coming: long before the time of the whole sum the members upload
 * singly. */
static void test_leader_stalls(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 6);
        bed.n_params = 4u << 20;
        bed_run(&bed, 3);
        for (uint32_t i = 0; i < 3; i++)
                bed_announce(&bed, i, true);
        bed.log[0] = '\0';
        bed_wait(&bed, 10500 + 14000); /* the time to combine, and nearly enough after it */
        bed_chunk(&bed, 0);
        bed_wait(&bed, 14900);
        assert_string_equal(bed.log, "");
        bed_wait(&bed, 200);
        const char *alone = strstr(bed.log, "free 0 of 4\nd00: alone 1: its leader sends nothing\n");
        assert_non_null(alone);
        assert_non_null(strstr(alone, "d02: grant 2 for 3\n"));
        bed_end(&bed);
}

/* Downloads hold the memory for longer than the sum may take: its time begins when there is a slot for it. */
static void test_no_memory(void **state)
{
        (void)state;
        struct bed bed;
        start_combine(&bed);
        bed_busy(&bed, 0);
        bed_expect(&bed, "free 0 of 4\n");
        for (uint32_t i = 0; i < 60; i++) {
                bed_wait(&bed, 200);
                bed_expect(&bed, "open 0 for 4: 32 bytes, weight 6, client 0\nd00: grant 0 for 4\n");
                bed_busy(&bed, 0);
                bed_expect(&bed, "free 0 of 4\n");
        }
        bed_wait(&bed, 200);
        bed_expect(&bed, "open 0 for 4: 32 bytes, weight 6, client 0\nd00: grant 0 for 4\n");
        bed_wait(&bed, 9900);
        bed_expect(&bed, "");
        bed_complete(&bed, 0);
        bed_expect(&bed, "add 0 of 4, weight 6\n");
        bed_end(&bed);
}

static void test_task_fails(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        bed_announce(&bed, 2, true);
        struct mfl_msg msg = {.kind = MFL_MSG_TASK_FAILED,
                .failed = {.task = bed.task[1].task, .reason = "no memory", .permanent = true}};
        bed_send(&bed, 1, &msg);
        bed_expect(&bed, "d00: combine 4, ranks 5, leader 0, 10000 ms\n"
                         "open 0 for 4: 32 bytes, weight 4, client 0\nd00: grant 0 for 4\n"
                         "d00: train 5 of 1 from 1, group 7 by shm, rank 0 of 2, workers 4\n"
                         "d02: train 6 of 1 from 1, group 7 by shm, rank 1 of 2, workers 4\n");
        bed_end(&bed);
}

static void test_job_stops(void **state)
{
        (void)state;
        struct bed bed;
        start_three(&bed);
        bed_announce(&bed, 0, true);
        bed_job_event(&bed, MFL_EV_JOB_STOP);
        bed_expect(&bed, "d02: cancel 3\nd01: cancel 2\nd00: cancel 1\nrelease\n");
        bed_end(&bed);
        start_combine(&bed);
        bed_job_event(&bed, MFL_EV_JOB_STOP);
        bed_expect(&bed, "free 0 of 4\nd02: cancel 3\nd01: cancel 2\nd00: cancel 1\nrelease\n");
        bed_end(&bed);
        for (int ok = 0; ok < 2; ok++) {
                start_combine(&bed);
                bed_complete(&bed, 0);
                bed.log[0] = '\0';
                bed_job_event(&bed, MFL_EV_JOB_STOP);
                bed_expect(&bed, "d02: cancel 3\nd01: cancel 2\nd00: cancel 1\n");
                bed_added(&bed, 0, ok);
                bed_expect(&bed, "free 0 of 4\nrelease\n");
                bed_end(&bed);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_member_lost_while_gathering),
                cmocka_unit_test(test_loss_makes_the_rest_ready),
                cmocka_unit_test(test_ready_member_lost),
                cmocka_unit_test(test_fetcher_lost),
                cmocka_unit_test(test_member_lost_while_combining),
                cmocka_unit_test(test_leader_lost_while_combining),
                cmocka_unit_test(test_leader_lost_in_the_queue),
                cmocka_unit_test(test_lost_while_adding),
                cmocka_unit_test(test_back_while_adding),
                cmocka_unit_test(test_refused_sum),
                cmocka_unit_test(test_combine_fails),
                cmocka_unit_test(test_sum_takes_too_long),
                cmocka_unit_test(test_leader_stalls),
                cmocka_unit_test(test_no_memory),
                cmocka_unit_test(test_task_fails),
                cmocka_unit_test(test_job_stops),
        };
        return cmocka_run_group_tests_name("group lost", tests, NULL, NULL);
}
