/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon's site says of a job. It is not a failure: nothing is counted, and the job's other daemons go on. */
#include "server/core/core_say.h"

#include "server/work/core_task.h"

/* The daemon has none of the job's work any more. True: it had some. */
static bool take_all(struct mfl_core *core, struct core_daemon *daemon, const struct core_job *job)
{
        struct core_task *task = daemon->tasks;
        bool any = false;
        while (task) {
                if (task->job != job || !mfl_core_task_live(task)) {
                        task = task->daemon_next;
                        continue;
                }
                any = true;
                mfl_core_task_take(core, task, ITEM_OPEN);
                task = daemon->tasks; /* others of its team may have gone with it */
        }
        mfl_core_daemon_idle(core, daemon);
        return any;
}

void mfl_core_site_said(struct mfl_core *core, struct core_daemon *daemon, const struct mfl_msg *msg)
{
        struct core_job *job = mfl_core_job(core, msg->failed.job);
        struct core_relation *relation = job ? mfl_core_relation(core, daemon, job) : NULL;
        if (!relation || job->phase == PHASE_OVER)
                return;
        bool refuses = msg->failed.site == MFL_SITE_REFUSES, asks = msg->failed.site == MFL_SITE_ASKS;
        bool news = relation->barred != refuses || relation->asks != asks;
        relation->barred = refuses;
        relation->asks = asks;
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
        if (!refuses && !asks) {
                daemon->note[0] = '\0';
                if (news)
                        mfl_core_trace(core, job, "the site of daemon %s takes the job", daemon->info.name);
                return;
        }
        mfl_snprintf(daemon->note, sizeof daemon->note, "%s: %.180s", job->id, msg->failed.reason);
        mfl_snprintf(job->last_failure, sizeof job->last_failure, "daemon %s: %.170s", daemon->info.name,
                msg->failed.reason);
        if (news)
                mfl_core_trace(core, job, "the site of daemon %s %s: %.150s", daemon->info.name,
                        refuses ? "refuses the job" : "asks its administrator", msg->failed.reason);
        if (take_all(core, daemon, job) && !relation->excused)
                job->turned_away = relation->excused = true;
}
