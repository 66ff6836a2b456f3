/* SPDX-License-Identifier: Apache-2.0 */
/* Which daemons form a node, what is told of the others, and what keeps a node from NCCL. */
#include "tests/unit/server/group_bed.h"

/* The first daemon is as bed_info says, and the second one otherwise. */
static void expect_strangers(struct bed *bed, const char *here, const char *there)
{
        bed_up(bed, 0);
        bed_up(bed, 1);
        bed_expect_alone(bed, "d00", MFL_COLLECTIVE_SOLO, here);
        bed_expect_alone(bed, "d01", MFL_COLLECTIVE_SOLO, there);
        bed_end(bed);
        bed_start(bed, 4);
}

static void test_why_alone(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        strcpy(bed.info[1].node, "other");
        expect_strangers(&bed, "no other daemon on its node", "no other daemon on its node");
        bed.info[1].reach.user = 1001;
        expect_strangers(&bed, "another user than d01 (uid 1001, here 1000)",
                "another user than d00 (uid 1000, here 1001)");
        bed.info[1].reach.network_space = 0; /* unknown is not like any that is known */
        expect_strangers(&bed, "another network namespace than d01", "another network namespace than d00");
        bed.info[1].reach.memory_space = 9;
        expect_strangers(&bed, "another /dev/shm than d01", "another /dev/shm than d00");
        bed.info[1].reach.memory_space = 0;
        strcpy(bed.info[1].reach.memory_reason, "it is full");
        expect_strangers(&bed, "d01: it is full", "it is full");
        bed.info[1].has_reach = false;
        expect_strangers(&bed, "d01 does not say how to reach it", "it does not say how others can reach it");
        bed.info[1].instance = 0; /* members are known by it */
        expect_strangers(&bed, "d01: its instance number is 0", "its instance number is 0");
        bed.info[0].node[0] = bed.info[1].node[0] = '\0'; /* two hosts' spaces may well be equal */
        expect_strangers(&bed, "no other daemon on its node", "no other daemon on its node");
        bed.info[0].node[0] = bed.info[1].node[0] = '\0';
        bed.info[0].has_reach = bed.info[1].has_reach = false;
        expect_strangers(&bed, "no other daemon on its node", "no other daemon on its node");
        bed_end(&bed);
}

static void test_lost_daemon(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed.info[0].reach.network_space = bed.info[1].reach.network_space = 0; /* both unknown: equal */
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SHM, "");
        assert_true(bed_view(&bed, "d00").leader && !bed_view(&bed, "d01").leader);
        bed_down(&bed, 0);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SOLO, "it is not connected");
        bed_expect_alone(&bed, "d01", MFL_COLLECTIVE_SOLO, "no other daemon on its node");
        assert_false(bed_view(&bed, "d01").leader);
        bed_end(&bed);
}

/* Two GPUs, of which the second one is otherwise. */
static void expect_no_nccl(struct bed *bed, const char *here, const char *there)
{
        bed_gpu(bed, 0);
        bed_up(bed, 0);
        bed_up(bed, 1);
        bed_expect_alone(bed, "d00", MFL_COLLECTIVE_SHM, here);
        bed_expect_alone(bed, "d01", MFL_COLLECTIVE_SHM, there);
        bed_end(bed);
        bed_start(bed, 4);
}

static void test_why_not_nccl(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        expect_no_nccl(&bed, "d01 has no GPU", "");
        strcpy(bed_gpu(&bed, 1)->device_uuid, "GPU-0");
        expect_no_nccl(&bed, "shares GPU-0 with d01", "shares GPU-0 with d00");
        bed_gpu(&bed, 1)->reach.nccl = 22703;
        expect_no_nccl(&bed, "NCCL 2.28.9 here, 2.27.3 at d01", "NCCL 2.27.3 here, 2.28.9 at d00");
        strcpy(bed_gpu(&bed, 1)->device_uuid, "MIG-5");
        expect_no_nccl(&bed, "d01: a MIG instance", "a MIG instance");
        bed_gpu(&bed, 1)->reach.nccl = 0;
        strcpy(bed.info[1].reach.nccl_reason, "libnccl.so.2 is not there");
        expect_no_nccl(&bed, "d01: libnccl.so.2 is not there", "libnccl.so.2 is not there");
        strcpy(bed_gpu(&bed, 1)->device_uuid, "GPU-2"); /* two others share */
        bed_gpu(&bed, 0);
        bed_gpu(&bed, 2);
        for (uint32_t i = 0; i < 3; i++)
                bed_up(&bed, i);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SHM, "d01: shares GPU-2 with d02");
        bed_down(&bed, 2);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_NCCL, "");
        bed_up(&bed, 2);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SHM, "d01: shares GPU-2 with d02");
        bed_end(&bed);
        bed_start(&bed, 4);
        bed_gpu(&bed, 0);
        bed_gpu(&bed, 1)->device_memory++;
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_NCCL, "");
        assert_true(bed_view(&bed, "d01").leader && !bed_view(&bed, "d00").leader); /* more memory */
        bed_end(&bed);
}

static void expect_label(struct bed *bed, uint32_t i, const char *label)
{
        char node[MFL_NODE_BYTES];
        mfl_core_node(bed->core, bed->conn[i], node);
        assert_string_equal(node, label);
        assert_string_equal(bed_view(bed, bed->info[i].name).node, label);
}

/* Two containers of one host, with two daemons each, and one that nobody reaches. */
static void test_two_namespaces(void **state)
{
        (void)state;
        struct bed bed;
        char node[MFL_NODE_BYTES];
        bed_start(&bed, 10);
        for (uint32_t i = 0; i < 4; i++)
                bed.info[i].reach.network_space = 7 + i % 2;
        bed_up(&bed, 3);
        bed_up(&bed, 1);
        expect_label(&bed, 3, "host");
        bed_up(&bed, 2);
        bed_up(&bed, 0);
        expect_label(&bed, 0, "host/d00");
        expect_label(&bed, 2, "host/d00");
        expect_label(&bed, 1, "host/d01");
        expect_label(&bed, 3, "host/d01");
        bed.info[4].has_reach = false;
        bed_up(&bed, 4);
        expect_label(&bed, 4, "host/d04");
        bed_add_job(&bed);
        bed_expect(&bed, "d00: train 1 of 2 from 1, group 6 by shm, rank 0 of 2, workers 4\n"
                         "d01: train 2 of 2 from 2, group 7 by shm, rank 0 of 2, workers 4\n"
                         "d02: train 3 of 2 from 1, group 6 by shm, rank 1 of 2, workers 4\n"
                         "d03: train 4 of 2 from 2, group 7 by shm, rank 1 of 2, workers 4\n"
                         "d04: train 5 of 2 from 0\n");
        for (uint32_t i = 0; i < 5; i++)
                bed_announce(&bed, i, true);
        bed_expect(&bed, "d00: combine 6, ranks 3, leader 0, 10000 ms\n"
                         "open 0 for 6: 32 bytes, weight 4, client 0\nd00: grant 0 for 6\n"
                         "d01: combine 7, ranks 3, leader 0, 10000 ms\n"
                         "open 1 for 7: 32 bytes, weight 4, client 1\nd01: grant 1 for 7\n"
                         "open 2 for 5: 32 bytes, weight 2, client 4\nd04: grant 2 for 5\n");
        mfl_core_node(bed.core, 12345, node);
        assert_string_equal(node, "");
        bed_end(&bed);
        bed_start(&bed, 4);
        bed.info[0].node[0] = '\0';
        bed_up(&bed, 0);
        expect_label(&bed, 0, "d00");
        bed_end(&bed);
}

/* A daemon that comes back as another one changes its node. */
static void test_daemon_moves(void **state)
{
        (void)state;
        struct bed bed;
        bed_start(&bed, 4);
        bed_up(&bed, 0);
        bed_up(&bed, 1);
        bed_down(&bed, 1);
        strcpy(bed.info[1].node, "other");
        bed_up(&bed, 1);
        expect_label(&bed, 1, "other");
        bed_expect_alone(&bed, "d00", MFL_COLLECTIVE_SOLO, "no other daemon on its node");
        bed_down(&bed, 1);
        strcpy(bed.info[1].node, "host");
        bed.info[1].device_memory = 5;
        bed_up(&bed, 1);
        assert_true(bed_view(&bed, "d01").leader);
        bed_end(&bed);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_why_alone),
                cmocka_unit_test(test_lost_daemon),
                cmocka_unit_test(test_why_not_nccl),
                cmocka_unit_test(test_two_namespaces),
                cmocka_unit_test(test_daemon_moves),
        };
        return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
