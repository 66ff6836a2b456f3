/* SPDX-License-Identifier: Apache-2.0 */
/* The base of the agent's files: the actions of a step, and the list of tasks. */
#include "client/agent/agent_internal.h"

/* ---- actions ---- */

static void deinit_action(struct mfl_agent_action *action)
{
        if (action->kind == MFL_AGENT_ACT_SEND)
                mfl_msg_deinit(&action->msg);
        free(action->ranges);
}

void mfl_agent_actions_clear(struct mfl_agent_actions *actions)
{
        for (uint32_t i = 0; i < actions->n; i++)
                deinit_action(&actions->v[i]);
        actions->n = 0;
}

void mfl_agent_actions_deinit(struct mfl_agent_actions *actions)
{
        mfl_agent_actions_clear(actions);
        free(actions->v);
        *actions = (struct mfl_agent_actions){0};
}

struct mfl_agent_action *mfl_agent_act(struct mfl_agent *agent, enum mfl_agent_action_kind kind)
{
        struct mfl_agent_actions *out = agent->out;
        if (out->n == out->capacity) {
                uint32_t capacity = out->capacity ? out->capacity * 2 : 16;
                struct mfl_agent_action *v = mfl_realloc(out->v, capacity * sizeof *v);
                if (!v) {
                        agent->error = -ENOMEM;
                        deinit_action(&agent->scrap);
                        agent->scrap = (struct mfl_agent_action){.kind = kind};
                        return &agent->scrap;
                }
                out->v = v;
                out->capacity = capacity;
        }
        out->v[out->n] = (struct mfl_agent_action){.kind = kind};
        return &out->v[out->n++];
}

void mfl_agent_trace(struct mfl_agent *agent, const char *fmt, ...)
{
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_TRACE);
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(action->reason, sizeof action->reason, fmt, ap);
        va_end(ap);
}

struct mfl_msg *mfl_agent_send(struct mfl_agent *agent, enum mfl_msg_kind kind)
{
        mfl_assert(agent->state == AGENT_ONLINE || agent->state == AGENT_GREETING);
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_SEND);
        action->msg.kind = kind;
        agent->sent_ms = agent->now_ms;
        return &action->msg;
}

void mfl_agent_actions_end(struct mfl_agent *agent)
{
        deinit_action(&agent->scrap);
        agent->scrap = (struct mfl_agent_action){.kind = MFL_AGENT_ACT_TRACE};
        agent->out = NULL;
}

/* ---- tasks ---- */

#define TO(state) (1u << (state))
static const uint16_t edges[TASK_STATES] = {
        [TASK_QUEUED] = TO(TASK_PARAMS) | TO(TASK_FAILED),
        [TASK_PARAMS] = TO(TASK_READY) | TO(TASK_FAILED),
        [TASK_READY] = TO(TASK_COMPUTE),
        [TASK_COMPUTE] = TO(TASK_ABORT) | TO(TASK_RESULT) | TO(TASK_FAILED),
        [TASK_ABORT] = TO(TASK_RESULT) | TO(TASK_FAILED),
        [TASK_RESULT] = 0,
        [TASK_FAILED] = 0,
};

void mfl_agent_task_move(struct agent_task *task, enum agent_task_state to)
{
        mfl_assert(to < TASK_STATES && edges[task->state] & TO(to));
        task->state = to;
}

struct agent_task *mfl_agent_find_wire(struct mfl_agent *agent, uint64_t wire)
{
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                if (task->wire == wire && task->state != TASK_ABORT)
                        return task;
        return NULL;
}

struct agent_task *mfl_agent_find_number(struct mfl_agent *agent, uint64_t number)
{
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                if (task->task.task == number)
                        return task;
        return NULL;
}

static void free_task(struct agent_task *task)
{
        for (uint32_t i = 0; i < task->n_updates; i++) {
                free(task->updates[i].announce.rejected);
                free(task->updates[i].announce.losses);
        }
        free(task->updates);
        free(task->eval);
        free(task->tally);
        free(task->task.items);
        free(task->task.grid);
        free(task->task.team.peers);
        free(task);
}

/* Drops a task and the result that the shell holds for it. */
void mfl_agent_drop_task(struct mfl_agent *agent, struct agent_task *task)
{
        struct agent_task **at = &agent->tasks;
        mfl_assert(task->state != TASK_COMPUTE && task->state != TASK_ABORT);
        while (*at != task)
                at = &(*at)->next;
        *at = task->next;
        if (task->state == TASK_RESULT)
                mfl_agent_act(agent, MFL_AGENT_ACT_RESULT_FREE)->task_number = task->task.task;
        free_task(task);
}

void mfl_agent_tasks_free(struct mfl_agent *agent)
{
        while (agent->tasks) {
                struct agent_task *task = agent->tasks;
                agent->tasks = task->next;
                free_task(task);
        }
}
