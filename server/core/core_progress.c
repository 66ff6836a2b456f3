/* SPDX-License-Identifier: Apache-2.0 */
/* How far a training is. */
#include "server/core/core_progress.h"

#define ALMOST 0.99 /* of a client that is not done */

/* The mean number of samples that a client of the daemon trains on in a round; 0: not known. */
static double samples_of_client(const struct core_job *job, const struct core_daemon *daemon)
{
        const struct mfl_job *spec = job->spec;
        const struct mfl_data_info *own = daemon ? mfl_core_daemon_data(daemon, job) : NULL;
        if (spec->training.steps)
                return (double)spec->training.steps * spec->training.batch *
                       MFL_MAX(spec->training.accumulate, 1u);
        double n = spec->data.partition != MFL_PARTITION_LOCAL
                           ? (double)job->data.train_samples / MFL_MAX(spec->data.clients, 1u)
                   : own ? own->train_samples
                         : 0;
        return n * spec->training.epochs;
}

/* How many clients of the task are done that no update covers yet. */
static double under_way(const struct core_task *task)
{
        double left = task->n_items - task->n_covered, each = samples_of_client(task->job, task->daemon);
        double told = each > 0 ? (double)task->progress_samples / each : 0;
        double done = MFL_MIN((double)task->progress_items, left);
        /* No client counts as done before its daemon says so. */
        return MFL_MAX(done, MFL_MIN(told, left * ALMOST));
}

double mfl_core_items_part(const struct core_daemon *daemon)
{
        double sum = 0;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (task->kind == MFL_TASK_TRAIN && mfl_core_task_live(task))
                        sum += under_way(task) -
                               MFL_MIN(task->progress_items, task->n_items - task->n_covered);
        return daemon->items_done + sum;
}

double mfl_core_trained(const struct core_job *job)
{
        double done = job->count[ITEM_COUNTED] + job->count[ITEM_REJECTED];
        if (job->phase != PHASE_TRAIN && job->phase != PHASE_CLOSING)
                return job->phase > PHASE_TRAIN && job->phase != PHASE_OVER;
        for (const struct core_task *task = job->tasks; task; task = task->job_next)
                if (task->kind == MFL_TASK_TRAIN && mfl_core_task_live(task)) {
                        uint32_t counted = task->n_items - task->n_held;
                        done += task->n_covered > counted ? task->n_covered - counted : 0;
                        done += under_way(task);
                }
        return job->n_items ? MFL_MIN(done / job->n_items, 1.0) : 0;
}
