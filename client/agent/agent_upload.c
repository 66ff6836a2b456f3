/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's uploads: which ranges the server grants, and its answers. */
#include "client/agent/agent_internal.h"

/* NULL if a range is outside the update's bytes, or without memory. */
static struct mfl_range *copy_ranges(struct mfl_agent *agent, const struct mfl_msg *msg, uint64_t bytes)
{
        uint32_t n = msg->update.n_ranges;
        for (uint32_t i = 0; i < n; i++) {
                const struct mfl_range *range = &msg->update.ranges[i];
                if (range->offset <= bytes && range->bytes <= bytes - range->offset)
                        continue;
                mfl_agent_trace(
                        agent, "a grant of bytes that task %u does not have", (uint32_t)msg->update.task);
                return NULL;
        }
        struct mfl_range *ranges = mfl_calloc(n, sizeof *ranges);
        if (!ranges)
                agent->error = -ENOMEM;
        else if (n)
                memcpy(ranges, msg->update.ranges, n * sizeof *ranges);
        return ranges;
}

/* The grant is for the task's own update, or for its group's sum, which has the same size, if this daemon
 * leads the group. */
void mfl_agent_granted(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *own = mfl_agent_find_wire(agent, msg->update.task);
        struct agent_task *task = own ? own : mfl_agent_group_led(agent, msg->update.task);
        if (!task || task->state != TASK_RESULT || msg->update.update >= task->n_updates)
                return;
        struct agent_update *update = &task->updates[msg->update.update];
        if (update->state == UPDATE_DONE)
                return;
        struct mfl_range *ranges = copy_ranges(agent, msg, update->announce.bytes);
        if (!ranges)
                return;
        if (own)
                update->state = UPDATE_UPLOADING;
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_UPLOAD);
        action->task_number = task->task.task;
        action->wire_task = msg->update.task;
        action->combined = !own;
        action->update = msg->update.update;
        action->n_ranges = msg->update.n_ranges;
        action->ranges = ranges;
}

void mfl_agent_answered(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *task = mfl_agent_find_wire(agent, msg->update.task);
        if (!task || task->state != TASK_RESULT || msg->update.update >= task->n_updates)
                return;
        task->updates[msg->update.update].state = UPDATE_DONE;
        if (msg->kind == MFL_MSG_REFUSED)
                mfl_agent_trace(agent, "update %u of task %u is refused: %.180s", msg->update.update,
                        (uint32_t)task->wire, msg->update.reason);
        for (uint32_t i = 0; i < task->n_updates; i++)
                if (task->updates[i].state != UPDATE_DONE)
                        return;
        mfl_agent_drop_task(agent, task);
}

void mfl_agent_sent(struct mfl_agent *agent, uint64_t number, uint32_t update)
{
        struct agent_task *task = mfl_agent_find_number(agent, number);
        if (task && update < task->n_updates && task->updates[update].state == UPDATE_UPLOADING)
                task->updates[update].state = UPDATE_SENT;
}
