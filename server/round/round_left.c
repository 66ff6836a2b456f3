/* SPDX-License-Identifier: Apache-2.0 */
/* How much longer work will take. */
#include "server/round/round_left.h"

/* The expected duration of a phase about which nothing is known. */
#define PHASE_MS 1000
/* Without Progress, the number of done items is taken to be this old. */
#define PROGRESS_MS 1000

static const struct core_speed *speed_of(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return !relation ? NULL : job->phase == PHASE_EVAL ? &relation->eval : &relation->train;
}

static bool is_at_work(const struct core_task *task)
{
        return mfl_core_task_live(task) && task->n_covered < task->n_items;
}

/* The task that the daemon computes. Tasks are done in the order of sending, and the list has the newest
 * first. */
static const struct core_task *at_work(const struct core_daemon *daemon)
{
        const struct core_task *first = NULL;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (is_at_work(task))
                        first = task;
        return first;
}

static uint64_t begun_ms(const struct core_daemon *daemon, const struct core_task *task)
{
        return MFL_MAX(task->sent_ms, daemon->free_ms);
}

static double elapsed_ms(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_task *task)
{
        return (double)(core->now_ms - begun_ms(daemon, task));
}

/* The same for the moment at which its progress was as known. */
static double known_ms(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_task *task)
{
        uint64_t begun = begun_ms(daemon, task), at = task->progress_ms;
        if (!at)
                at = core->now_ms > PROGRESS_MS ? core->now_ms - PROGRESS_MS : 0;
        return at > begun ? (double)(at - begun) : 0;
}

/* While the next item is not done, the cost is at least the time per item so far, counting that item. */
double mfl_round_cost(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_speed *speed = speed_of(daemon, job);
        const struct core_task *task = at_work(daemon);
        double cost = speed ? speed->cost : 0;
        if (!task || task->job != job)
                return cost;
        double ms = known_ms(core, daemon, task), done = task->progress_items;
        if (!(cost > 0))
                return done > 0 ? ms / done : 0;
        double least = ms / (done + MFL_MAX(daemon->info.workers, 1u));
        return cost > least ? cost : least;
}

uint32_t mfl_round_done(const struct mfl_core *core, const struct core_task *task)
{
        double cost = mfl_round_cost(core, task->daemon, task->job);
        uint32_t known = MFL_MAX(task->n_covered, task->progress_items);
        if (!(cost > 0) || task != at_work(task->daemon))
                return known;
        double guess = elapsed_ms(core, task->daemon, task) / cost;
        return guess < task->n_items ? MFL_MAX((uint32_t)guess, known) : MFL_MAX(task->n_items - 1, known);
}

uint32_t mfl_round_load(const struct mfl_core *core, const struct core_daemon *daemon)
{
        uint32_t load = 0;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                if (mfl_core_task_live(task))
                        load += task->n_items - mfl_round_done(core, task);
        return load;
}

uint64_t mfl_round_left_of(
        const struct mfl_core *core, const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_task *first = at_work(daemon);
        uint32_t n = 0;
        if (!first)
                return 0;
        for (const struct core_task *task = daemon->tasks; task; task = task->daemon_next)
                n += is_at_work(task) ? task->n_items : 0;
        double ms = elapsed_ms(core, daemon, first), left = mfl_round_cost(core, daemon, job) * n - ms;
        return (uint64_t)(left < 0 ? -left : left);
}

uint64_t mfl_round_left(const struct mfl_core *core, const struct core_job *job)
{
        uint64_t left = 0;
        for (uint32_t i = 0; i < job->n_leased; i++)
                left = MFL_MAX(left, mfl_round_left_of(core, job->leased[i], job));
        return left;
}

uint64_t mfl_round_expected(const struct core_job *job)
{
        bool trains = job->phase == PHASE_TRAIN || job->phase == PHASE_TRAIN_WAIT;
        uint64_t ms = trains ? job->train_ms : job->eval_ms;
        return ms ? ms : PHASE_MS;
}
