/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that go back to the server because another daemon is idle. */
#include "client/agent/agent_internal.h"

static void tell(struct mfl_agent *agent, const struct agent_task *task)
{
        if (agent->state != AGENT_ONLINE)
                return; /* sent after Welcome */
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_RETURNED);
        msg->recall.task = task->wire;
        msg->recall.n_items = task->task.n_items;
}

static void shorten(struct mfl_agent *agent, struct agent_task *task, uint32_t n)
{
        if (n < task->task.n_items) {
                mfl_agent_trace(agent, "task %u: %u of its %u items go back", (uint32_t)task->wire,
                        task->task.n_items - n, task->task.n_items);
                task->task.n_items = n;
        }
        tell(agent, task);
}

void mfl_agent_recall(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *task = mfl_agent_find_wire(agent, msg->recall.task);
        uint32_t keep = MFL_MAX(msg->recall.n_items, 1u);
        if (!task || task->task.kind != MFL_TASK_TRAIN || task->state == TASK_FAILED)
                return;
        if (task->state == TASK_COMPUTE && keep < task->task.n_items) {
                struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_RECALL);
                action->task_number = task->task.task;
                action->n_items = keep;
        } else /* nothing has begun, or everything is done */
                shorten(agent, task, task->state < TASK_COMPUTE ? keep : task->task.n_items);
}

void mfl_agent_recalled(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        struct agent_task *task = mfl_agent_find_number(agent, event->task);
        if (task && task->state == TASK_COMPUTE)
                shorten(agent, task, event->n_items);
        else if (task && task->state == TASK_RESULT)
                tell(agent, task);
}

void mfl_agent_recall_repeat(struct mfl_agent *agent, const struct agent_task *task)
{
        if (task->task.n_items < task->n_given)
                tell(agent, task);
}
