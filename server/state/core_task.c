/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks and the list of tasks that each daemon has. */
#include "server/state/state.h"

#include "common/base/states.h"

#define TO(state) MFL_TO(RECALL_##state)
static const struct mfl_states recalls = {.thing = "recall of a task",
        .n = RECALL_STATES_,
        .v = {
                [RECALL_NONE] = {"NONE", TO(ASKED)},
                [RECALL_ASKED] = {"ASKED", TO(NONE) | TO(SPENT)},
                [RECALL_SPENT] = {"SPENT", 0},
        }};
#undef TO

void mfl_core_task_recall_move(struct core_task *task, enum recall_state to)
{
        task->recall = mfl_states_move(&recalls, task->recall, to);
}

void mfl_core_task_attach(struct core_task *task, struct core_daemon *daemon)
{
        mfl_assert(!task->daemon);
        task->daemon = daemon;
        task->daemon_next = daemon->tasks;
        if (daemon->tasks)
                daemon->tasks->daemon_prev = task;
        daemon->tasks = task;
}

void mfl_core_task_detach(struct core_task *task)
{
        if (!task->daemon)
                return;
        if (task->daemon_prev)
                task->daemon_prev->daemon_next = task->daemon_next;
        else
                task->daemon->tasks = task->daemon_next;
        if (task->daemon_next)
                task->daemon_next->daemon_prev = task->daemon_prev;
        task->daemon_prev = task->daemon_next = NULL;
        task->daemon = NULL;
}

struct core_task *mfl_core_task_new(struct mfl_core *core, struct core_daemon *daemon, uint32_t n)
{
        struct core_task *task = mfl_calloc(1, sizeof *task);
        if (!task)
                return NULL;
        task->index = mfl_calloc(n, sizeof *task->index);
        task->cover = mfl_calloc(n, sizeof *task->cover);
        task->updates = mfl_calloc(n, sizeof(struct core_update *));
        task->number = mfl_core_number(core);
        task->n_items = n;
        if (!task->index || !task->cover || !task->updates ||
                mfl_core_map_put(&core->tasks, task->number, task)) {
                mfl_core_task_free(core, task);
                return NULL;
        }
        task->owner_key = daemon->key;
        task->owner_instance = daemon->info.instance;
        task->sent_ms = core->now_ms;
        task->sent_changes = core->changes;
        mfl_core_task_attach(task, daemon);
        return task;
}

void mfl_core_task_free(struct mfl_core *core, struct core_task *task)
{
        mfl_core_task_detach(task);
        mfl_core_map_remove(&core->tasks, task->number);
        if (task->updates)
                for (uint32_t i = 0; i < task->n_items; i++)
                        mfl_core_update_free(task->updates[i]);
        free(task->updates);
        free(task->index);
        free(task->cover);
        free(task);
}

bool mfl_core_task_is_of(const struct core_task *task, const struct core_daemon *daemon)
{
        if (task->daemon)
                return task->daemon == daemon;
        return task->owner_key == daemon->key && task->owner_instance == daemon->info.instance;
}

const char *mfl_core_task_owner(
        const struct mfl_core *core, const struct core_task *task, char text[CORE_OWNER_BYTES])
{
        const struct core_daemon *daemon = mfl_core_map_get(&core->by_key, task->owner_key);
        mfl_snprintf(text, CORE_OWNER_BYTES, "%s%s", daemon ? "daemon " : "a lost daemon",
                daemon ? daemon->info.name : "");
        return text;
}

void mfl_core_task_cancel(struct mfl_core *core, struct core_task *task, const char *reason)
{
        if (!mfl_core_task_live(task) || !task->daemon->conn)
                return;
        task->cancelled = task->daemon->conn;
        struct mfl_msg *msg = mfl_core_send(core, task->daemon, MFL_MSG_CANCEL);
        msg->cancel.task = task->number;
        mfl_strcpy(msg->cancel.reason, sizeof msg->cancel.reason, reason);
}
