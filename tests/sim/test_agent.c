/* SPDX-License-Identifier: Apache-2.0 */
/* The agent alone: back-off, liveness, one task from params to Accepted, reuse of a result, and memory that
 * runs out anywhere. */
#include "tests/sim/agent_bed.h"

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

static void test_no_memory(void **state)
{
        (void)state;
        sweep_memory(train_and_reuse);
}

/* A server that has lost its state directory gives the same id to another job, whose params may be the same:
 * what was made for the one before is no answer. */
static void test_another_job_of_the_same_id(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task((uint64_t)7 << 32 | 1, 1);
        compute((uint64_t)7 << 32 | 1);
        assert_non_null(sent(MFL_MSG_ANNOUNCE));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        go_online();
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_JOB_CHANGED, .job = "j-000002"});
        assert_null(action(MFL_AGENT_ACT_RESULT_FREE));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_JOB_CHANGED, .job = "j-000001"});
        assert_non_null(action(MFL_AGENT_ACT_RESULT_FREE));
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task((uint64_t)7 << 32 | 9, 1);
        assert_null(sent(MFL_MSG_ANNOUNCE));
        assert_non_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        /* What is being computed is given up, and its number means nothing any more. */
        arrive();
        assert_non_null(action(MFL_AGENT_ACT_COMPUTE));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_JOB_CHANGED, .job = "j-000001"});
        assert_true(action(MFL_AGENT_ACT_ABORT)->task_number == ((uint64_t)7 << 32 | 9));
        end();
}

/* What it has is brought to its end; what comes later goes back; then it says goodbye. */
static void test_leave(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task(1, 1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = 60000});
        assert_non_null(sent(MFL_MSG_LEAVING));
        assert_null(action(MFL_AGENT_ACT_EXIT));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = 1});
        assert_null(sent(MFL_MSG_LEAVING)); /* once is enough */
        send_task(2, 2);                    /* it crossed Leaving, and is of a later round */
        assert_true(sent(MFL_MSG_TASK_FAILED)->failed.task == 2);
        assert_false(sent(MFL_MSG_TASK_FAILED)->failed.permanent);
        end();
}

static void leave_with_a_result(void)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task(1, 1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = 60000});
        compute(1);
        if (result)
                return;
        assert_non_null(sent(MFL_MSG_ANNOUNCE));
        assert_null(action(MFL_AGENT_ACT_EXIT));
        /* The server goes away and comes back: it is told again, before anything else, and in Hello, since it may have forgotten. */
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED});
        tick(mfl_agent_next_ms(agent));
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CONNECTED});
        if (result)
                return;
        assert_true(sent(MFL_MSG_HELLO)->hello.leaving);
        message((struct mfl_msg){.kind = MFL_MSG_WELCOME, .welcome = {1000, 3000, 99}});
        if (result)
                return;
        assert_non_null(sent(MFL_MSG_LEAVING));
        assert_true(sent(MFL_MSG_LEAVING) < sent(MFL_MSG_ANNOUNCE));
        message((struct mfl_msg){.kind = MFL_MSG_ACCEPTED, .update = {.task = 1}});
        if (result)
                return;
        assert_non_null(sent(MFL_MSG_BYE));
        assert_false(sent(MFL_MSG_BYE)->bye.retry);
        assert_true(action(MFL_AGENT_ACT_EXIT)->ok);
}

static void test_leave_with_a_result(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        leave_with_a_result();
        assert_int_equal(result, 0);
        end();
}

static void test_leave_in_time(void **state)
{
        (void)state;
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = 60000});
        assert_true(action(MFL_AGENT_ACT_EXIT)->ok); /* nothing to do, and nobody to tell */
        end();
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_task(1, 1);
        arrive();
        uint64_t limit = now_ms + 1500;
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_LEAVE, .within_ms = 1500});
        while (mfl_agent_next_ms(agent) < limit) {
                tick(mfl_agent_next_ms(agent));
                assert_null(action(MFL_AGENT_ACT_EXIT));
        }
        assert_int_equal(mfl_agent_next_ms(agent), limit);
        tick(limit);
        assert_non_null(action(MFL_AGENT_ACT_ABORT));
        assert_true(action(MFL_AGENT_ACT_EXIT)->ok);
        end();
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

/* ---- clients that go back ---- */

static struct mfl_msg many_items(uint64_t number, uint32_t n)
{
        static uint64_t items[6] = {10, 11, 12, 13, 14, 15};
        struct mfl_msg msg = task_message(number, 1, 0, 0, 0);
        msg.task.items = items;
        msg.task.n_items = n;
        return msg;
}

static void send_recall(uint64_t task, uint32_t keep)
{
        message((struct mfl_msg){.kind = MFL_MSG_RECALL, .recall = {task, keep}});
}

static void recalled(uint64_t task, uint32_t n)
{
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_RECALLED, .task = task, .n_items = n});
}

static void assert_returned(uint64_t task, uint32_t n)
{
        const struct mfl_msg *msg = sent(MFL_MSG_RETURNED);
        assert_non_null(msg);
        assert_true(msg->recall.task == task);
        assert_int_equal(msg->recall.n_items, n);
}

static void test_recall_of_what_waits(void **state)
{
        (void)state;
        make();
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        message(many_items(5, 6));
        send_recall(99, 1); /* nobody's */
        assert_null(sent(MFL_MSG_RETURNED));
        send_recall(5, 4); /* its params are on their way: nothing is begun */
        assert_null(action(MFL_AGENT_ACT_RECALL));
        assert_returned(5, 4);
        send_recall(5, 4); /* resent */
        assert_returned(5, 4);
        send_recall(5, 0); /* one stays in any case */
        assert_returned(5, 1);
        end();
}

static void test_recall_of_what_computes(void **state)
{
        (void)state;
        make();
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        message(many_items(5, 6));
        arrive();
        assert_non_null(action(MFL_AGENT_ACT_COMPUTE));
        send_recall(5, 2);
        assert_int_equal(action(MFL_AGENT_ACT_RECALL)->n_items, 2);
        assert_null(sent(MFL_MSG_RETURNED)); /* only the trainer knows */
        recalled(5, 3);
        assert_returned(5, 3);
        /* The answer is lost; the server sends the task again as it was. */
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CLOSED, .reason = "cut"});
        tick(now_ms + 11000);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_CONNECTED});
        message((struct mfl_msg){.kind = MFL_MSG_WELCOME, .welcome = {1000, 3000, 99}});
        assert_returned(5, 3);
        message(many_items(5, 6));
        assert_null(action(MFL_AGENT_ACT_ABORT)); /* it is the same work */
        assert_null(action(MFL_AGENT_ACT_PARAMS_ROOM));
        struct mfl_announce a = {.item_count = 3, .bytes = 32, .weight = 3, .encoding = MFL_ENCODING_I64};
        feed((struct mfl_agent_event){
                .kind = MFL_AGENT_EV_COMPUTED, .task = 5, .ok = true, .n_updates = 1, .updates = &a});
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.item_count, 3);
        send_recall(5, 1); /* too late */
        assert_null(action(MFL_AGENT_ACT_RECALL));
        assert_returned(5, 3);
        /* Another start of the server deals those three under another number: that is what is held. */
        message(many_items((uint64_t)7 << 32 | 1, 3));
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.item_count, 3);
        assert_null(sent(MFL_MSG_RETURNED));
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
                cmocka_unit_test(test_another_job_of_the_same_id),
                cmocka_unit_test(test_leave),
                cmocka_unit_test(test_leave_with_a_result),
                cmocka_unit_test(test_leave_in_time),
                cmocka_unit_test(test_many_jobs),
                cmocka_unit_test(test_recall_of_what_waits),
                cmocka_unit_test(test_recall_of_what_computes),
        };
        return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
