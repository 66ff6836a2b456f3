/* SPDX-License-Identifier: Apache-2.0 */
/* The agent as a member of a team. */
#include "tests/sim/agent_bed.h"

/* Of this daemon, whose instance is 7, and one with the instance `other`. */
static void send_team_task(uint64_t number, uint32_t member, uint64_t other, uint32_t width)
{
        struct mfl_msg msg = task_message(number, 1, 0, 0, 0);
        msg.task.kind = member ? MFL_TASK_ASSIST : MFL_TASK_TRAIN;
        msg.task.team = (struct mfl_task_team){
                .team = 1000 + number, .member = member, .n_members = 2, .widths = {width, 1}};
        msg.task.team.members[member] = 7;
        msg.task.team.members[!member] = other;
        message(msg);
}

static void send_numbered(uint64_t number, uint64_t team, uint32_t member)
{
        struct mfl_msg msg = task_message(number, 1, 0, 0, 0);
        msg.task.kind = member ? MFL_TASK_ASSIST : MFL_TASK_TRAIN;
        msg.task.team =
                (struct mfl_task_team){.team = team, .member = member, .n_members = 2, .widths = {1, 1}};
        msg.task.team.members[member] = 7;
        msg.task.team.members[!member] = 8;
        message(msg);
}

static void begin(uint32_t member)
{
        assert_int_equal(make(), 0);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
        go_online();
        message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
        send_team_task(1, member, 8, 1);
        arrive();
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->team.team, 1001);
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->team.member, member);
}

static void who_helps_has_no_result(void **state)
{
        begin(1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED, .task = 1, .ok = true});
        assert_int_equal(actions.n, 0);
        message((struct mfl_msg){
                .kind = MFL_MSG_CANCEL, .cancel = {.task = 1}}); /* the server's, at the end */
        assert_int_equal(actions.n, 0);
        send_task(2, 1);
        assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->task, 2);
        end();
}

static void who_helps_is_stopped_by_cancel(void **state)
{
        begin(1);
        message((struct mfl_msg){.kind = MFL_MSG_CANCEL, .cancel = {.task = 1}});
        assert_int_equal(action(MFL_AGENT_ACT_ABORT)->task_number, 1);
        feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED, .task = 1, .ok = true});
        assert_int_equal(actions.n, 0);
        end();
}

static void a_lost_member_is_told(void **state)
{
        for (uint32_t member = 0; member < 2; member++) {
                begin(member);
                feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_COMPUTED,
                        .task = 1,
                        .broken = true,
                        .accused = 2,
                        .reason = "rank 1 has died"});
                const struct mfl_msg *msg = sent(MFL_MSG_TASK_FAILED);
                assert_true(msg->failed.broken && !msg->failed.permanent);
                assert_int_equal(msg->failed.accused, 2);
                assert_string_equal(msg->failed.reason, "rank 1 has died");
                end();
        }
}

/* A new start of the server has other numbers. The same team goes on; with another one, work begins anew. */
static void only_the_same_team_goes_on(void **state)
{
        const uint64_t boot = (uint64_t)1 << 32;
        for (uint32_t member = 0; member < 2; member++) {
                begin(member);
                send_team_task(boot | 1, member, 8, 1);
                assert_null(action(MFL_AGENT_ACT_ABORT));
                send_team_task(2 * boot | 1, member, 9, 1);
                assert_int_equal(action(MFL_AGENT_ACT_ABORT)->task_number, 1);
                end();
                begin(member);
                send_team_task(boot | 1, member, 8, 2);
                assert_int_equal(action(MFL_AGENT_ACT_ABORT)->task_number, 1);
                end();
                begin(member);
                send_task(boot | 1, 1);
                assert_int_equal(action(MFL_AGENT_ACT_ABORT)->task_number, 1);
                end();
        }
}

/* A server that starts anew numbers its teams anew, and some members may have begun, others not. */
static void members_meet_under_one_number(void **state)
{
        const uint64_t boot = (uint64_t)1 << 32;
        for (uint32_t member = 0; member < 2; member++) {
                begin(member);
                send_numbered(boot | 1, 1001, member);
                assert_null(action(MFL_AGENT_ACT_REGROUP));
                send_numbered(2 * boot | 1, 2000, member); /* it may wait for the others of 1001 */
                assert_int_equal(action(MFL_AGENT_ACT_REGROUP)->task_number, 1);
                feed((struct mfl_agent_event){
                        .kind = MFL_AGENT_EV_COMPUTED, .task = 1, .broken = true, .reason = "regrouped"});
                assert_int_equal(sent(MFL_MSG_TASK_FAILED)->failed.task, 2 * boot | 1);
                end();
                assert_int_equal(make(), 0);
                feed((struct mfl_agent_event){.kind = MFL_AGENT_EV_START});
                go_online();
                message((struct mfl_msg){.kind = MFL_MSG_JOB_SPEC, .job = "j-000001"});
                send_numbered(1, 1001, member); /* it has no params yet */
                send_numbered(boot | 1, 2000, member);
                assert_null(action(MFL_AGENT_ACT_REGROUP));
                arrive();
                assert_int_equal(action(MFL_AGENT_ACT_COMPUTE)->task->team.team, 2000);
                end();
        }
}

/* What is trained is trained, whoever has helped. */
static void a_result_answers_any_team(void **state)
{
        begin(0);
        compute(1);
        assert_non_null(sent(MFL_MSG_ANNOUNCE));
        send_team_task((uint64_t)1 << 32 | 1, 0, 9, 1);
        assert_int_equal(sent(MFL_MSG_ANNOUNCE)->announce.task, (uint64_t)1 << 32 | 1);
        end();
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(who_helps_has_no_result),
                cmocka_unit_test(who_helps_is_stopped_by_cancel),
                cmocka_unit_test(a_lost_member_is_told),
                cmocka_unit_test(only_the_same_team_goes_on),
                cmocka_unit_test(members_meet_under_one_number),
                cmocka_unit_test(a_result_answers_any_team),
        };
        return cmocka_run_group_tests_name("agent_team", tests, NULL, NULL);
}
