/* SPDX-License-Identifier: Apache-2.0 */
/* The agent alone: back-off, liveness, one task from params to Accepted, reuse of a result, groups, and
 * memory that runs out anywhere. */
#include "tests/lib/test.h"

#include "client/agent.h"

#include <stdio.h>

static struct mfl_agent *agent;
static struct mfl_agent_actions actions;
static uint64_t now_ms;
static int result;

static void feed(struct mfl_agent_event event)
{
        event.now_ms = now_ms;
        mfl_agent_actions_clear(&actions);
        if (!result)
                result = mfl_agent_step(agent, &event, &actions);
        if (!result)
                mfl_agent_check(agent);
}

static void tick(uint64_t at)
{
        now_ms = at;
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_TICK});
}

static void message(struct mfl_msg msg)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_MESSAGE, .msg = &msg});
}

/* The i-th action of a kind; NULL if there is none. */
static struct mfl_agent_action *action(enum mfl_agent_action_kind kind)
{
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == kind)
                        return &actions.v[i];
        return NULL;
}

static struct mfl_msg *sent(enum mfl_msg_kind kind)
{
        for (uint32_t i = 0; i < actions.n; i++)
                if (actions.v[i].kind == MFL_AGENT_ACT_SEND && actions.v[i].msg.kind == kind)
                        return &actions.v[i].msg;
        return NULL;
}

static int make(void)
{
        struct mfl_agent_options options = {
                .info = {.name = "d1", .instance = 7, .workers = 1}, .seed = 3, .results_max = 2};
        actions = (struct mfl_agent_actions){0};
        agent = NULL;
        now_ms = 1000;
        result = mfl_agent_new(&options, &agent, NULL);
        return result;
}

static void end(void)
{
        mfl_agent_actions_deinit(&actions);
        mfl_agent_free(agent);
}

static void go_online(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CONNECTED});
        message((struct mfl_msg){.kind = MFL_MSG_WELCOME, .welcome = {1000, 3000, 99}});
}

/* A task of this daemon, whose instance is 7, in a group of three, as the given rank; group 0: without one.
 */
static struct mfl_msg task_message(
        uint64_t number, uint32_t round, uint64_t group, uint32_t rank, uint64_t params_from)
{
        static uint64_t items[2] = {4, 5};
        struct mfl_msg msg = {.kind = MFL_MSG_TASK};
        msg.task = (struct mfl_task){.task = number,
                .job = "j-000001",
                .round = round,
                .kind = MFL_TASK_TRAIN,
                .n_items = 2,
                .items = items,
                .n_params = 4,
                .params_from = params_from};
        if (!group)
                return msg;
        msg.task.group = (struct mfl_group){
                .group = group, .collective = MFL_COLLECTIVE_SHM, .rank = rank, .n_members = 3, .workers = 3};
        for (uint32_t i = 0; i < 3; i++)
                msg.task.group.members[i] = i == rank ? 7 : 100 + i;
        return msg;
}

static void send_task(uint64_t number, uint32_t round)
{
        message(task_message(number, round, 0, 0, 0));
}

static void send_group_task(uint64_t number, uint64_t group, uint32_t rank)
{
        message(task_message(number, 1, group, rank, 0));
}

static void computed(uint64_t number, bool grouped)
{
        struct mfl_announce a = {.item_count = 2, .bytes = 32, .weight = 2, .encoding = MFL_ENCODING_I64};
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_DONE, .job = "j-000001", .ok = true});
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED,
                .task = number,
                .ok = true,
                .n_updates = 1,
                .updates = &a,
                .grouped = grouped});
}

static void compute(uint64_t number)
{
        computed(number, false);
}

static void test_back_off(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        assert_non_null(action(MFL_AGENT_ACT_CONNECT));
        uint64_t limit = 200;
        for (int i = 0; i < 12; i++) {
                feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED, .reason = "refused"});
                uint64_t wait = mfl_agent_next_ms(agent) - now_ms;
                assert_true(wait >= MFL_MAX(limit / 2, 200u) && wait <= limit);
                limit = MFL_MIN(limit * 2, 10000u);
                tick(mfl_agent_next_ms(agent));
                assert_non_null(action(MFL_AGENT_ACT_CONNECT));
        }
        end();
}

static void test_liveness(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        assert_true(mfl_agent_online(agent));
        message((struct mfl_msg){.kind = MFL_MSG_PING, .cookie = 42});
        assert_int_equal(sent(MFL_MSG_PONG)->cookie, 42);
        for (int i = 1; i < 3; i++) {
                tick(now_ms + 1000);
                assert_non_null(sent(MFL_MSG_PING));
        }
        tick(now_ms + 1000);
        assert_non_null(action(MFL_AGENT_ACT_CLOSE));
        assert_false(mfl_agent_online(agent));
        end();
}

static void test_bye(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_BYE, .bye = {"replaced", false}});
        assert_false(action(MFL_AGENT_ACT_EXIT)->ok);
        assert_non_null(strstr(action(MFL_AGENT_ACT_EXIT)->reason, "replaced"));
        end();
}

/* From Task to Announce; the loss of the connection in between costs no computing. */
static void train_and_reuse(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task((uint64_t)1 << 32 | 1, 1);
        compute((uint64_t)1 << 32 | 1);
        if (result)
                return;
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.round, 1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        go_online();
        if (result)
                return;
        assert_non_null(sent(MFL_MSG_ANNOUNCE));
        send_task((uint64_t)2 << 32 | 9,
                1); /* the server started anew and gives the same work another number */
        if (result)
                return;
        assert_null(action(MFL_AGENT_ACT_COMPUTE));
        assert_true(sent(MFL_MSG_ANNOUNCE)->announce.task == ((uint64_t)2 << 32 | 9));
        struct mfl_range range = {8, 24};
        message((struct mfl_msg){.kind = MFL_MSG_GRANT,
                .update = {.task = (uint64_t)2 << 32 | 9, .n_ranges = 1, .ranges = &range}});
        if (result)
                return;
        assert_true(action(MFL_AGENT_ACT_UPLOAD)->wire_task == ((uint64_t)2 << 32 | 9));
        assert_true(action(MFL_AGENT_ACT_UPLOAD)->task_number == ((uint64_t)1 << 32 | 1));
        message((struct mfl_msg){.kind = MFL_MSG_ACCEPTED, .update = {.task = (uint64_t)2 << 32 | 9}});
        if (!result)
                assert_non_null(action(MFL_AGENT_ACT_RESULT_FREE));
}

static void test_reuse(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        train_and_reuse();
        assert_int_equal(result, 0);
        end();
}

static void sweep_memory(void (*run)(void))
{
        for (long n = 0;; n++) {
                mfl_alloc_fail_at(n);
                if (make() == 0)
                        run();
                bool struck = mfl_alloc_failed();
                mfl_alloc_fail_at(-1);
                end();
                if (!struck) {
                        assert_true(n > 8);
                        return;
                }
                assert_int_equal(result, -ENOMEM);
        }
}

/* ---- groups ---- */

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
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_DONE, .job = "j-000001", .ok = true});
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
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_DONE, .job = "j-000001", .ok = true});
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->group.group, 50);
        send_group_task(2, 51, 1);
        computed(1, true);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.group, 51);
        assert_int_equal(action(MFL_AGENT_ACT_PUBLISH)->group.group, 51);
        end();
        begin();
        send_task(1, 1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_PARAMS_DONE, .job = "j-000001", .ok = true});
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

/* Whom to get the params from: asked anew when another daemon was named and is not any more. */
static void test_params_from(void **state)
{
        (void)state;
        begin();
        message(task_message(1, 1, 0, 0, 101));
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_OPEN)->task->params_from, 101);
        message(task_message(1, 1, 0, 0, 101));
        assert_null(action(MFL_AGENT_ACT_PARAMS_OPEN));
        message(task_message(1, 1, 0, 0, 102));
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_OPEN)->task->params_from, 102);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "it is gone"}});
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_OPEN)->task->params_from, 0);
        message((struct mfl_msg){.kind = MFL_MSG_ALONE, .cancel = {1, "it is gone"}});
        assert_null(action(MFL_AGENT_ACT_PARAMS_OPEN));
        message(task_message(1, 1, 0, 0, 7)); /* itself: the download goes on */
        assert_null(action(MFL_AGENT_ACT_PARAMS_OPEN));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        go_online();
        assert_int_equal(action(MFL_AGENT_ACT_PARAMS_OPEN)->task->params_from, 0);
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
        sweep_memory(train_and_reuse);
        sweep_memory(group_without_memory);
}

/* More jobs than it remembers: the oldest one's spec goes, never one with work. */
static void test_many_jobs(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        uint32_t n_forgotten = 0;
        for (uint32_t i = 1; i <= 50; i++) {
                struct mfl_msg msg = {.kind = MFL_MSG_JOB_SPEC};
                snprintf(msg.job, sizeof msg.job, "j-%06u", i);
                message(msg);
                if (i == 1)
                        send_task((uint64_t)1 << 32 | 1, 1);
                n_forgotten += action(MFL_AGENT_ACT_JOB_FORGET) != NULL;
                if (action(MFL_AGENT_ACT_JOB_FORGET))
                        assert_string_not_equal(action(MFL_AGENT_ACT_JOB_FORGET)->job, "j-000001");
        }
        assert_int_equal(n_forgotten, 50 - 32);
        end();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_back_off),
                cmocka_unit_test(test_liveness),
                cmocka_unit_test(test_bye),
                cmocka_unit_test(test_reuse),
                cmocka_unit_test(test_no_memory),
                cmocka_unit_test(test_many_jobs),
                cmocka_unit_test(test_leader),
                cmocka_unit_test(test_member),
                cmocka_unit_test(test_wrong_combine),
                cmocka_unit_test(test_combine_fails),
                cmocka_unit_test(test_alone_stops),
                cmocka_unit_test(test_not_grouped),
                cmocka_unit_test(test_group_lost),
                cmocka_unit_test(test_group_changes),
                cmocka_unit_test(test_wrong_group),
                cmocka_unit_test(test_params_from),
                cmocka_unit_test(test_communicator_made),
                cmocka_unit_test(test_communicator_joined),
                cmocka_unit_test(test_nccl_member),
        };
        return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
