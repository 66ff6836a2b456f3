/* SPDX-License-Identifier: Apache-2.0 */
/* The agent among the other daemons of its node: groups, whom params come from, communicators. */
#include "tests/sim/agent_bed.h"

static void begin(void)
{
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
}

/* Trains task 1 as a member of group 50 of the given rank. */
static void begin_group(uint32_t rank)
{
        begin();
        send_group_task(1, 50, rank);
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 50);
}

static void order_combine(uint64_t group, uint64_t ranks, uint32_t leader)
{
        message((struct mfl_msg){.kind = MFL_MSG_COMBINE, .combine = {group, ranks, leader, 5000}});
}

static void answer_combine(bool ok)
{
        feed((struct mfl_agent_event){
                .kind = MFL_AGENT_EV_COMBINED, .task = 1, .ok = ok, .reason = "a member is gone"});
}

static void grant(uint64_t number, uint64_t offset, uint64_t bytes)
{
        struct mfl_range range = {offset, bytes};
        message((struct mfl_msg){
                .kind = MFL_MSG_GRANT, .update = {.task = number, .n_ranges = 1, .ranges = &range}});
}

static void reconnect(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        go_online();
}

static uint32_t position(const struct mfl_agent_action *a)
{
        return (uint32_t)(a - actions.v);
}

/* The sum lies there before the server hears of it; the leader's sum goes up under the group's number. */
static void test_leader(void **state)
{
        (void)state;
        begin_group(0);
        struct mfl_agent_action *publish = action(MFL_AGENT_ACT_PUBLISH);
        assert_int_equal(publish->task_number, 1);
        assert_int_equal(publish->group.group, 50);
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == MFL_AGENT_ACT_SEND)
                        assert_true(position(publish) < i);
        grant(50, 0, 32);
        assert_null(action(MFL_AGENT_ACT_UPLOAD)); /* there is no sum yet */
        order_combine(50, 7, 0);
        struct mfl_agent_action *combine = action(MFL_AGENT_ACT_COMBINE);
        assert_int_equal(combine->task_number, 1);
        assert_int_equal(combine->group.n_members, 3);
        assert_int_equal(combine->ranks, 7);
        assert_int_equal(combine->leader, 0);
        assert_int_equal(combine->deadline_ms, 5000);
        order_combine(50, 7, 0);
        assert_int_equal(actions.n, 0); /* said twice */
        grant(50, 8, 32);
        assert_null(action(MFL_AGENT_ACT_UPLOAD)); /* beyond its end */
        grant(50, 8, 24);                          /* before it is ready */
        struct mfl_agent_action *upload = action(MFL_AGENT_ACT_UPLOAD);
        assert_true(upload->combined);
        assert_int_equal(upload->wire_task, 50);
        assert_int_equal(upload->task_number, 1);
        assert_int_equal(upload->ranges[0].offset, 8);
        answer_combine(true);
        assert_int_equal(actions.n, 0);
        grant(50, 0, 8);
        assert_true(action(MFL_AGENT_ACT_UPLOAD)->combined);
        message((struct mfl_msg){.kind = MFL_MSG_ACCEPTED, .update = {.task = 1}});
        assert_int_equal(action(MFL_AGENT_ACT_RESULT_FREE)->task_number, 1);
        answer_combine(true); /* of what is gone */
        order_combine(50, 7, 0);
        assert_int_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.task, 50);
        end();
}

/* A member has nothing to do but to hold its sum; its own update waits untouched. */
static void test_member(void **state)
{
        (void)state;
        begin_group(2);
        order_combine(50, 7, 0); /* the leader alone adds in shared memory */
        assert_non_null(sent(MFL_MSG_COMBINE_FAILED));
        assert_null(action(MFL_AGENT_ACT_COMBINE));
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "the leader is gone"}});
        assert_null(sent(MFL_MSG_ANNOUNCE));
        grant(50, 0, 32);
        assert_null(action(MFL_AGENT_ACT_UPLOAD));
        grant(1, 0, 32);
        assert_false(action(MFL_AGENT_ACT_UPLOAD)->combined);
        assert_int_equal(action(MFL_AGENT_ACT_UPLOAD)->wire_task, 1);
        end();
}

static void test_wrong_combine(void **state)
{
        (void)state;
        static const struct {
                uint64_t group, ranks;
                uint32_t leader;
        } wrong[] = {{51, 7, 0}, {50, 15, 0}, {50, 6, 1}, {50, 5, 1}, {50, 7, 3}, {50, 7, 64}, {50, 0, 0}};
        begin_group(0);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(wrong); i++) {
                order_combine(wrong[i].group, wrong[i].ranks, wrong[i].leader);
                assert_null(action(MFL_AGENT_ACT_COMBINE));
                assert_int_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.task, wrong[i].group);
        }
        assert_string_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.reason, "its ranks make no sense");
        order_combine(50, 3, 0);
        assert_non_null(action(MFL_AGENT_ACT_COMBINE));
        end();
        begin();
        send_group_task(1, 50, 0); /* still to be computed */
        order_combine(50, 7, 0);
        assert_non_null(sent(MFL_MSG_COMBINE_FAILED));
        end();
}

/* Not ok: the server is told, the group is over, and a new one can be taken part in with the same result. */
static void test_combine_fails(void **state)
{
        (void)state;
        begin_group(0);
        order_combine(50, 7, 0);
        answer_combine(false);
        assert_int_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.task, 50);
        assert_string_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.reason, "a member is gone");
        assert_null(sent(MFL_MSG_ANNOUNCE));
        grant(50, 0, 32);
        assert_null(action(MFL_AGENT_ACT_UPLOAD));
        send_group_task(9, 51, 1);
        assert_int_equal(action(MFL_AGENT_ACT_PUBLISH)->group.group, 51);
        assert_int_equal(action(MFL_AGENT_ACT_PUBLISH)->task_number, 1);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 51);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.task, 9);
        end();
}

/* Alone while it adds: the adding is stopped, and until that is done there is no other. */
static void test_alone_stops(void **state)
{
        (void)state;
        begin_group(0);
        order_combine(50, 7, 0);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "late"}});
        assert_int_equal(action(MFL_AGENT_ACT_COMBINE_STOP)->task_number, 1);
        send_group_task(1, 51, 0);
        order_combine(51, 7, 0);
        assert_int_equal(sent(MFL_MSG_COMBINE_FAILED)->cancel.task, 51);
        answer_combine(false); /* of the first */
        assert_int_equal(actions.n, 0);
        order_combine(51, 7, 0);
        assert_non_null(action(MFL_AGENT_ACT_COMBINE));
        answer_combine(true);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "late"}});
        assert_non_null(action(MFL_AGENT_ACT_COMBINE_STOP)); /* its sum's memory goes */
        end();
}

/* What can't be laid out for the others is announced alone: no room, no single sum, or another kind. */
static void test_not_grouped(void **state)
{
        (void)state;
        begin();
        send_group_task(1, 50, 0);
        computed(1, false);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        assert_null(action(MFL_AGENT_ACT_PUBLISH));
        send_group_task(1, 51, 0);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();

        begin();
        send_group_task(1, 50, 0);
        struct mfl_announce a[2] = {{.item_count = 1, .bytes = 32, .weight = 1, .encoding = MFL_ENCODING_I64},
                {.update = 1,
                        .item_first = 1,
                        .item_count = 1,
                        .bytes = 32,
                        .weight = 1,
                        .encoding = MFL_ENCODING_I64}};
        arrive();
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED,
                .task = 1,
                .ok = true,
                .n_updates = 2,
                .updates = a,
                .grouped = true});
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();

        begin_group(0);
        struct mfl_msg other = task_message(1, 1, 51, 0, 0);
        other.task.group.collective = MFL_COLLECTIVE_NCCL; /* the result is in shared memory */
        message(other);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();
}

/* A lost connection ends the group, whatever its state; the Task that comes again may name another. */
static void test_group_lost(void **state)
{
        (void)state;
        begin_group(0);
        order_combine(50, 7, 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        assert_non_null(action(MFL_AGENT_ACT_COMBINE_STOP));
        answer_combine(false);
        assert_int_equal(actions.n, 0);
        tick(mfl_agent_next_ms(agent));
        go_online();
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        send_group_task(1, 51, 2);
        assert_int_equal(action(MFL_AGENT_ACT_PUBLISH)->group.rank, 2);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 51);
        send_group_task(1, 51, 2);
        assert_int_equal(actions.n, 0); /* known */
        send_task(1, 1);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();
}

/* A group that ends or changes while the task is computed: the result is announced as things are then. */
static void test_group_changes(void **state)
{
        (void)state;
        begin();
        send_group_task(1, 50, 0);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "a member is gone"}});
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();
        begin();
        send_group_task(1, 50, 0);
        arrive();
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->group.group, 50);
        send_group_task(2, 51, 1);
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 51);
        assert_int_equal(action(MFL_AGENT_ACT_PUBLISH)->group.group, 51);
        end();
        begin();
        send_task(1, 1);
        arrive();
        send_group_task(1, 51, 1); /* work began without a group: nothing was laid out */
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();
}

/* A group that does not have this daemon at its rank is none. */
static void test_wrong_group(void **state)
{
        (void)state;
        begin();
        struct mfl_msg msg = task_message(1, 1, 50, 0, 0);
        msg.task.group.members[0] = 99;
        message(msg);
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 0);
        end();
        begin_group(0);
        struct mfl_msg second = task_message(2, 2, 50, 0, 0); /* a number that another task has */
        mfl_strcpy(second.task.job, sizeof second.task.job, "j-000002");
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000002"});
        message(second);
        order_combine(50, 7, 0);
        assert_int_equal(action(MFL_AGENT_ACT_COMBINE)->task_number, 1);
        end();
}

/* ---- communicators ---- */

static void send_nccl_task(uint64_t number, uint64_t group, uint32_t rank, uint64_t communicator)
{
        struct mfl_msg msg = task_message(number, (uint32_t)number, group, rank, 0);
        msg.task.group.collective = MFL_COLLECTIVE_NCCL;
        msg.task.group.communicator = communicator;
        message(msg);
}

static void test_communicator_made(void **state)
{
        (void)state;
        begin();
        send_nccl_task(1, 50, 0, 60);
        assert_true(action(MFL_AGENT_ACT_COMMUNICATOR)->make);
        assert_int_equal(action(MFL_AGENT_ACT_COMMUNICATOR)->group.communicator, 60);
        struct mfl_agent_event made = {
                .kind = MFL_AGENT_EV_COMMUNICATOR, .communicator = 60, .ok = true, .communicator_id = {1, 2}};
        feed(made);
        assert_true(sent(MFL_MSG_COMMUNICATOR_ID)->communicator.made);
        assert_int_equal(sent(MFL_MSG_COMMUNICATOR_ID)->communicator.id[1], 2);
        send_nccl_task(2, 51, 0, 60); /* the same members: the same one */
        assert_null(action(MFL_AGENT_ACT_COMMUNICATOR));
        feed((struct mfl_agent_event){
                .kind = MFL_AGENT_EV_COMMUNICATOR, .communicator = 60, .reason = "a rank is gone"});
        assert_false(sent(MFL_MSG_COMMUNICATOR_ID)->communicator.made);
        assert_string_equal(sent(MFL_MSG_COMMUNICATOR_ID)->communicator.reason, "a rank is gone");
        send_nccl_task(3, 52, 0, 61);
        assert_non_null(action(MFL_AGENT_ACT_COMMUNICATOR));
        feed(made); /* of the one before */
        assert_null(sent(MFL_MSG_COMMUNICATOR_ID));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        made.communicator = 61;
        feed(made);
        tick(mfl_agent_next_ms(agent));
        go_online();
        assert_int_equal(sent(MFL_MSG_COMMUNICATOR_ID)->communicator.communicator, 61);
        reconnect();
        assert_null(sent(MFL_MSG_COMMUNICATOR_ID));
        end();
}

static void send_id(uint64_t communicator, bool made, uint8_t first)
{
        struct mfl_msg msg = {.kind = MFL_MSG_COMMUNICATOR_ID, .communicator = {communicator, made}};
        msg.communicator.id[0] = first;
        message(msg);
}

static void test_communicator_joined(void **state)
{
        (void)state;
        begin();
        send_nccl_task(1, 50, 2, 60);
        assert_null(action(MFL_AGENT_ACT_COMMUNICATOR));
        send_id(60, false, 0);
        send_id(61, true, 4); /* of a group to come */
        assert_null(action(MFL_AGENT_ACT_COMMUNICATOR));
        send_id(60, true, 3);
        assert_false(action(MFL_AGENT_ACT_COMMUNICATOR)->make);
        assert_int_equal(action(MFL_AGENT_ACT_COMMUNICATOR)->communicator_id[0], 3);
        send_id(60, true, 3);
        assert_null(action(MFL_AGENT_ACT_COMMUNICATOR));
        send_id(62, true, 5);
        send_nccl_task(2, 51, 1, 62); /* its id came before it */
        assert_int_equal(action(MFL_AGENT_ACT_COMMUNICATOR)->communicator_id[0], 5);
        assert_int_equal(action(MFL_AGENT_ACT_COMMUNICATOR)->group.rank, 1);
        end();
}

/* nccl: every member takes part, and one that does not lead has no sum to upload. */
static void test_nccl_member(void **state)
{
        (void)state;
        begin();
        send_nccl_task(1, 50, 1, 60);
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 50);
        order_combine(50, 7, 0);
        assert_int_equal(action(MFL_AGENT_ACT_COMBINE)->leader, 0);
        grant(50, 0, 32);
        assert_null(action(MFL_AGENT_ACT_UPLOAD));
        answer_combine(true);
        assert_int_equal(actions.n, 0);
        end();
}

static void group_without_memory(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_nccl_task(1, 50, 0, 60);
        computed(1, true);
        order_combine(50, 7, 0);
        grant(50, 0, 32);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "late"}});
        grant(1, 0, 32);
}

static void test_no_memory(void **state)
{
        (void)state;
        sweep_memory(group_without_memory);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_leader),
                cmocka_unit_test(test_member),
                cmocka_unit_test(test_wrong_combine),
                cmocka_unit_test(test_combine_fails),
                cmocka_unit_test(test_alone_stops),
                cmocka_unit_test(test_not_grouped),
                cmocka_unit_test(test_group_lost),
                cmocka_unit_test(test_group_changes),
                cmocka_unit_test(test_wrong_group),
                cmocka_unit_test(test_communicator_made),
                cmocka_unit_test(test_communicator_joined),
                cmocka_unit_test(test_nccl_member),
                cmocka_unit_test(test_no_memory),
        };
        return cmocka_run_group_tests_name("agent_group", tests, NULL, NULL);
}
