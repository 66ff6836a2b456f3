/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's part in its node: groups that add their updates, and communicators. */
#include "client/agent/agent_internal.h"

static struct agent_task *find_group(struct mfl_agent *agent, uint64_t group)
{
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                if (group && task->task.group.group == group)
                        return task;
        return NULL;
}

/* ---- the end of a group ---- */

static void stop_combine(struct mfl_agent *agent, struct agent_task *task)
{
        if (task->combine == COMBINE_NONE)
                return;
        mfl_agent_act(agent, MFL_AGENT_ACT_COMBINE_STOP)->task_number = task->task.task;
        task->n_stopping += task->combine == COMBINE_ORDERED;
        task->combine = COMBINE_NONE;
}

static void end_group(struct mfl_agent *agent, struct agent_task *task)
{
        stop_combine(agent, task);
        task->task.group = (struct mfl_group){0};
}

void mfl_agent_groups_lost(struct mfl_agent *agent)
{
        for (struct agent_task *task = agent->tasks; task; task = task->next) {
                end_group(agent, task);
                task->task.params_from = 0;
        }
}

/* ---- communicators ---- */

static void open_communicator(struct mfl_agent *agent, const struct mfl_group *group, const uint8_t *id)
{
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_COMMUNICATOR);
        agent->communicator = group->communicator;
        action->group = *group;
        action->make = !id;
        if (id)
                memcpy(action->communicator_id, id, sizeof action->communicator_id);
        mfl_agent_trace(agent, "communicator %u: %s", (uint32_t)group->communicator,
                id ? "is joined" : "its id is made");
}

/* Rank 0 makes the id; the others wait for it, or already have it. */
static void want_communicator(struct mfl_agent *agent, const struct mfl_group *group)
{
        if (group->collective != MFL_COLLECTIVE_NCCL || !group->communicator ||
                group->communicator == agent->communicator)
                return;
        if (group->rank == 0)
                open_communicator(agent, group, NULL);
        else if (agent->early_communicator == group->communicator)
                open_communicator(agent, group, agent->early_id);
}

static void on_communicator_id(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        uint64_t communicator = msg->communicator.communicator;
        if (!msg->communicator.made || !communicator)
                return; /* the server ends the groups that wait for it */
        agent->early_communicator = communicator;
        memcpy(agent->early_id, msg->communicator.id, sizeof agent->early_id);
        for (struct agent_task *task = agent->tasks; task; task = task->next)
                if (task->task.group.group && task->task.group.communicator == communicator &&
                        task->task.group.rank > 0)
                        want_communicator(agent, &task->task.group);
}

static void send_communicator(struct mfl_agent *agent)
{
        struct agent_made *made = &agent->made;
        if (!made->communicator || agent->state != AGENT_ONLINE)
                return;
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_COMMUNICATOR_ID);
        msg->communicator.communicator = made->communicator;
        msg->communicator.made = made->ok;
        memcpy(msg->communicator.id, made->id, sizeof made->id);
        mfl_strcpy(msg->communicator.reason, sizeof msg->communicator.reason, made->reason);
        made->communicator = 0;
}

void mfl_agent_communicator(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        struct agent_made *made = &agent->made;
        if (!event->communicator || event->communicator != agent->communicator)
                return; /* that one has been replaced */
        *made = (struct agent_made){.communicator = event->communicator, .ok = event->ok};
        if (event->ok)
                memcpy(made->id, event->communicator_id, sizeof made->id);
        else {
                mfl_strcpy(made->reason, sizeof made->reason, event->reason);
                mfl_agent_trace(agent, "communicator %u failed: %.180s", (uint32_t)event->communicator,
                        event->reason);
        }
        send_communicator(agent);
}

void mfl_agent_groups_welcomed(struct mfl_agent *agent)
{
        send_communicator(agent);
}

/* ---- a task's group ---- */

/* A group that does not list this daemon at its rank is ignored: the update is uploaded alone. */
static bool is_valid(struct mfl_agent *agent, const struct agent_task *task, const struct mfl_task *t)
{
        const struct mfl_group *g = &t->group;
        struct agent_task *other = find_group(agent, g->group);
        if (!g->group)
                return false;
        if (t->kind == MFL_TASK_TRAIN && g->n_members >= 2 && g->n_members <= MFL_GROUP_MAX &&
                g->rank < g->n_members && g->members[g->rank] == agent->options.info.instance &&
                (g->collective == MFL_COLLECTIVE_SHM || g->collective == MFL_COLLECTIVE_NCCL) &&
                (!other || other == task))
                return true;
        mfl_agent_trace(agent, "task %u: its group makes no sense", (uint32_t)t->task);
        return false;
}

bool mfl_agent_group_take(struct mfl_agent *agent, struct agent_task *task, const struct mfl_task *t)
{
        bool changed = task->task.group.group != t->group.group;
        bool valid =
                is_valid(agent, task, t) && (task->state != TASK_RESULT || task->laid == t->group.collective);
        if (changed || !valid)
                end_group(agent, task);
        task->task.params_from = t->params_from;
        if (valid) {
                task->task.group = t->group;
                want_communicator(agent, &task->task.group);
        }
        return changed;
}

bool mfl_agent_group_ready(const struct agent_task *task)
{
        const struct mfl_group *group = &task->task.group;
        return group->group && task->laid == group->collective;
}

void mfl_agent_group_laid(struct mfl_agent *agent, struct agent_task *task, bool grouped)
{
        const struct mfl_announce *a = &task->updates[0].announce;
        bool sum = task->n_updates == 1 && a->encoding == MFL_ENCODING_I64 && a->bytes > 0;
        if (!grouped || !sum)
                task->laid = 0;
        if (task->task.group.group && !mfl_agent_group_ready(task)) {
                mfl_agent_trace(agent, "task %u is announced without its group", (uint32_t)task->wire);
                end_group(agent, task);
        }
}

void mfl_agent_group_publish(struct mfl_agent *agent, struct agent_task *task)
{
        if (task->published == task->task.group.group)
                return;
        task->published = task->task.group.group;
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_PUBLISH);
        action->task_number = task->task.task;
        action->group = task->task.group;
}

/* ---- combining ---- */

static void combine_failed(struct mfl_agent *agent, uint64_t group, const char *reason)
{
        mfl_agent_trace(agent, "group %u is not combined: %.180s", (uint32_t)group, reason);
        if (agent->state != AGENT_ONLINE)
                return; /* the server has noticed the lost connection */
        struct mfl_msg *msg = mfl_agent_send(agent, MFL_MSG_COMBINE_FAILED);
        msg->cancel.task = group;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}

/* Why the sum can't be added; NULL: it can. */
static const char *combine_fault(const struct agent_task *task, const struct mfl_msg *msg)
{
        if (!task)
                return "no such group";
        const struct mfl_group *group = &task->task.group;
        uint64_t ranks = msg->combine.ranks;
        uint64_t all = UINT64_MAX >> (MFL_GROUP_MAX - group->n_members);
        if (ranks & ~all || msg->combine.leader >= group->n_members || !(ranks >> group->rank & 1) ||
                !(ranks >> msg->combine.leader & 1))
                return "its ranks make no sense";
        if (group->collective == MFL_COLLECTIVE_SHM && msg->combine.leader != group->rank)
                return "another member leads this group";
        if (task->state != TASK_RESULT || !mfl_agent_group_ready(task))
                return "this daemon's sum is not ready";
        if (task->n_stopping)
                return "the sum before it is still being stopped";
        return NULL;
}

static void on_combine(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *task = find_group(agent, msg->combine.group);
        if (task && task->combine != COMBINE_NONE)
                return; /* resent */
        const char *fault = combine_fault(task, msg);
        if (fault) {
                combine_failed(agent, msg->combine.group, fault);
                return;
        }
        task->combine = COMBINE_ORDERED;
        task->leader = msg->combine.leader;
        struct mfl_agent_action *action = mfl_agent_act(agent, MFL_AGENT_ACT_COMBINE);
        action->task_number = task->task.task;
        action->group = task->task.group;
        action->ranks = msg->combine.ranks;
        action->leader = msg->combine.leader;
        action->deadline_ms = msg->combine.deadline_ms;
        mfl_agent_trace(agent, "group %u is combined, rank %u leads", (uint32_t)msg->combine.group,
                msg->combine.leader);
}

void mfl_agent_combined(struct mfl_agent *agent, const struct mfl_agent_event *event)
{
        struct agent_task *task = mfl_agent_find_number(agent, event->task);
        if (!task)
                return; /* its result has been dropped */
        if (task->n_stopping) {
                task->n_stopping--;
                return;
        }
        if (task->combine != COMBINE_ORDERED)
                return;
        if (event->ok) {
                task->combine = COMBINE_DONE;
                return;
        }
        uint64_t group = task->task.group.group;
        task->combine = COMBINE_NONE;
        end_group(agent, task);
        combine_failed(agent, group, event->reason);
}

static void on_alone(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        struct agent_task *task = mfl_agent_find_wire(agent, msg->cancel.task);
        if (!task)
                return;
        mfl_agent_trace(agent, "task %u goes on alone: %.180s", (uint32_t)task->wire, msg->cancel.reason);
        end_group(agent, task);
        task->task.params_from = 0;
}

/* ---- entrance ---- */

bool mfl_agent_group_message(struct mfl_agent *agent, const struct mfl_msg *msg)
{
        if (msg->kind == MFL_MSG_COMBINE)
                on_combine(agent, msg);
        else if (msg->kind == MFL_MSG_ALONE)
                on_alone(agent, msg);
        else if (msg->kind == MFL_MSG_COMMUNICATOR_ID)
                on_communicator_id(agent, msg);
        else
                return false;
        return true;
}

struct agent_task *mfl_agent_group_led(struct mfl_agent *agent, uint64_t group)
{
        struct agent_task *task = find_group(agent, group);
        bool leads = task && task->combine != COMBINE_NONE && task->leader == task->task.group.rank;
        return leads ? task : NULL;
}

void mfl_agent_group_check(const struct mfl_agent *agent, const struct agent_task *task)
{
        const struct mfl_group *group = &task->task.group;
        bool online = agent->state == AGENT_ONLINE || agent->state == AGENT_ENDED;
        mfl_assert(online || (!group->group && !task->task.params_from));
        mfl_assert(task->combine == COMBINE_NONE || (task->state == TASK_RESULT && group->group));
        mfl_assert(task->state != TASK_RESULT || !group->group || mfl_agent_group_ready(task));
        mfl_assert(task->state == TASK_RESULT || (!task->published && !task->n_stopping));
        mfl_assert(!task->laid || task->state != TASK_RESULT || task->n_updates == 1);
        if (!group->group)
                return;
        mfl_assert(group->rank < group->n_members && task->task.kind == MFL_TASK_TRAIN);
        mfl_assert(group->members[group->rank] == agent->options.info.instance);
        for (const struct agent_task *other = task->next; other; other = other->next)
                mfl_assert(other->task.group.group != group->group);
}
