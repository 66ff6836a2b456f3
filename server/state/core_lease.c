/* SPDX-License-Identifier: Apache-2.0 */
/* Leases of daemons to jobs. */
#include "server/state/state.h"

void mfl_core_lease(struct mfl_core *core, struct core_daemon *daemon, struct core_job *job)
{
        mfl_assert(!daemon->job && daemon->conn);
        if (job->n_leased == job->leased_capacity) {
                uint32_t capacity = job->leased_capacity ? job->leased_capacity * 2 : 8;
                struct core_daemon **v = mfl_realloc(job->leased, capacity * sizeof *v);
                if (!v) {
                        core->error = -ENOMEM;
                        return;
                }
                job->leased = v;
                job->leased_capacity = capacity;
        }
        daemon->job = job;
        daemon->lease = job->n_leased;
        daemon->lease_turn = ++core->lease_turn;
        daemon->items_done = daemon->items_total = 0;
        job->leased[job->n_leased++] = daemon;
        job->n_leased_up++;
        mfl_core_dirty(core, job);
}

void mfl_core_unlease(struct mfl_core *core, struct core_daemon *daemon)
{
        struct core_job *job = daemon->job;
        if (!job)
                return;
        mfl_assert(job->leased[daemon->lease] == daemon);
        struct core_daemon *last = job->leased[--job->n_leased];
        job->leased[daemon->lease] = last;
        last->lease = daemon->lease;
        job->n_leased_up -= daemon->conn != 0;
        daemon->job = NULL;
        if (!mfl_core_daemon_takes_work(daemon))
                mfl_core_cuts_changed(core, daemon); /* it has done its last work */
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}

static bool has_live_task(const struct core_daemon *daemon)
{
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        return true;
        return false;
}

void mfl_core_daemon_idle(struct mfl_core *core, struct core_daemon *daemon)
{
        bool works = mfl_core_daemon_takes_work(daemon) &&
                     (!daemon->job || !daemon->conn || mfl_core_daemon_usable(daemon, daemon->job));
        if (!works && !has_live_task(daemon))
                mfl_core_unlease(core, daemon);
}
