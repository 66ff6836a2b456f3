/* SPDX-License-Identifier: Apache-2.0 */
/* Taking items back from a task. */
#include "server/work/core_reclaim.h"

#include "server/work/core_member.h"
#include "server/work/core_update.h"

void mfl_core_task_reclaim(struct mfl_core *core, struct core_task *task, enum item_state to)
{
        struct core_job *job = task->job;
        uint32_t n = 0;
        char owner[CORE_OWNER_BYTES];
        mfl_core_task_owner(core, task, owner);
        mfl_assert(!task->group || task->group->state == GROUP_ADDING);
        if (task->daemon && task->daemon->job == job)
                task->daemon->items_total -= MFL_MIN(task->daemon->items_total, task->n_held);
        mfl_core_task_detach(task);
        task->unmeasured = true;
        for (uint32_t i = 0; i < task->n_items; i++)
                if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                        mfl_core_update_drop(core, task->updates[i]);
        for (uint32_t i = 0; i < task->n_items; i++) {
                struct core_item *item = &job->items[task->index[i]];
                if (item->task != task || task->cover[i]) /* counted, refused, or being added */
                        continue;
                mfl_core_item_set(job, task->index[i], to, NULL);
                n++;
        }
        mfl_assert(task->n_held >= n);
        task->n_held -= n;
        job->progress_samples -= task->progress_samples;
        job->progress_loss -= task->progress_loss;
        task->progress_samples = 0;
        task->progress_loss = 0;
        if (n && to == ITEM_OPEN)
                mfl_core_trace(core, job, "round %u: %u %s of %s go to other daemons", job->round, n,
                        task->kind == MFL_TASK_TRAIN ? "clients" : "shards", owner);
        else if (n)
                mfl_core_trace(core, job, "round %u: %u clients of %s are missing", job->round, n, owner);
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}
