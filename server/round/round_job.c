/* SPDX-License-Identifier: Apache-2.0 */
/* A job from its beginning to its end, and what people are told about it. */
#include "server/round/round_job.h"

#include "server/live/live.h"
#include "server/round/round_scores.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"

static void set_state(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *reason)
{
        if (job->state == state && strcmp(job->reason, reason) == 0)
                return;
        job->state = state;
        mfl_strcpy(job->reason, sizeof job->reason, reason);
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_JOB_STATE, job);
        action->job_state.state = state;
        action->job_state.stop_after = job->stop_after;
        mfl_strcpy(action->reason, sizeof action->reason, reason);
}

void mfl_round_reason(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *fmt, ...)
{
        char reason[MFL_REASON_BYTES];
        va_list ap;
        va_start(ap, fmt);
        mfl_vsnprintf(reason, sizeof reason, fmt, ap);
        va_end(ap);
        set_state(core, job, state, reason);
}

void mfl_round_running(struct mfl_core *core, struct core_job *job)
{
        const char *disk = job->store.failing ? job->store.reason : "";
        bool asked = job->stop_after && job->stop_after < job->spec->rounds;
        bool budget = job->last_round && job->last_round < job->spec->rounds;
        if (asked && (!budget || job->stop_after <= job->last_round))
                mfl_round_reason(core, job, MFL_JOB_RUNNING, "stops after round %u%s%.200s", job->stop_after,
                        *disk ? "; " : "", disk);
        else if (budget)
                mfl_round_reason(core, job, MFL_JOB_RUNNING,
                        "stops after round %u, when its privacy budget is spent%s%.200s", job->last_round,
                        *disk ? "; " : "", disk);
        else
                set_state(core, job, MFL_JOB_RUNNING, disk);
}

bool mfl_round_answered(struct core_job *job)
{
        mfl_assert(job->n_pending);
        job->n_pending--;
        return job->phase != PHASE_OVER;
}

void mfl_round_next(struct mfl_core *core, struct core_job *job)
{
        job->round = MFL_MAX(job->committed, job->store.round) + 1;
        job->attempt = job->excused = 0;
        mfl_core_job_move(job, PHASE_TRAIN_WAIT);
        core->sched_dirty = true;
}

void mfl_round_note_bases(struct core_job *job, const struct mfl_core_event *event)
{
        uint32_t n = mfl_job_bases(job->spec);
        if (!job->bases)
                return;
        if (event->bases)
                memcpy(job->bases, event->bases, n * sizeof *job->bases);
        if (job->calendar)
                memcpy(job->bases[job->round % n], job->digest, MFL_DIGEST_BYTES);
}

void mfl_round_apply(struct mfl_core *core, struct core_job *job)
{
        mfl_core_job_move(job, PHASE_APPLY);
        job->n_pending++;
        const struct mfl_method_ops *method = mfl_method_get(job->spec);
        struct mfl_round_totals totals = {.weight = job->weight_counted,
                .train_loss = job->record.train_loss,
                .staleness = job->staleness,
                .weights = job->weights};
        for (int i = 0; i < method->n_scalars; i++)
                totals.scalar[i] = __builtin_ldexp(
                        (double)job->scalars[i], -mfl_method_scalar_bits(job->spec, &job->fixed, i));
        if (job->memory)
                mfl_memory_learn(job->memory, job->spec, job->spec->data.clients, job->round, job->samples,
                        job->seen, job->n_seen);
        if (job->calendar) {
                union mfl_calendar_row *next = job->calendar_next;
                job->calendar_next = job->calendar;
                job->calendar = next;
        }
        job->virtual_us = job->record.virtual_end_us;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_APPLY, job);
        action->totals = totals;
        action->arrivals = job->arrivals;
        action->n_arrivals = job->n_arrivals;
        mfl_core_trace(core, job, "round %u: the updates of weight %llu are applied", job->round,
                (unsigned long long)job->weight_counted);
}

void mfl_round_job_fail(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *reason)
{
        if (job->phase == PHASE_OVER)
                return;
        mfl_core_trace(core, job, "job %s %s: %.200s", job->id,
                state == MFL_JOB_STOPPED ? "is stopped" : "has failed", reason);
        mfl_core_groups_end(core, job, "the job is over");
        mfl_core_teams_end(core, job, reason);
        for (struct core_task *task = job->tasks; task; task = task->job_next) {
                mfl_core_task_cancel(core, task, reason);
                mfl_core_task_take(core, task, ITEM_OPEN);
        }
        mfl_live_end(core, job, reason);
        while (job->n_leased)
                mfl_core_unlease(core, job->leased[job->n_leased - 1]);
        mfl_core_job_move(job, PHASE_OVER);
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        job->store.retry_ms = CORE_NEVER;
        set_state(core, job, state, reason);
        mfl_core_dirty(core, job);
}

bool mfl_round_stops(struct mfl_core *core, struct core_job *job)
{
        char reason[MFL_REASON_BYTES];
        bool asked = job->stop_after && job->committed >= job->stop_after;
        if (!asked && (!job->last_round || job->committed < job->last_round))
                return false;
        if (asked)
                mfl_snprintf(reason, sizeof reason, "stopped after round %u as requested", job->committed);
        else
                mfl_snprintf(reason, sizeof reason,
                        "stopped after round %u: another round would pass privacy.epsilon_max, which is %g",
                        job->committed, job->spec->privacy.epsilon_max);
        mfl_round_job_fail(core, job, MFL_JOB_STOPPED, reason);
        return true;
}

void mfl_round_job_stop(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        bool under_way = job->phase >= PHASE_TRAIN && job->phase != PHASE_OVER;
        uint32_t round = under_way ? job->round : job->store.round;
        if (!event->after_round || (!round && !job->stop_after)) {
                mfl_round_job_fail(core, job, MFL_JOB_STOPPED, event->reason[0] ? event->reason : "stopped");
                return;
        }
        if (job->stop_after || job->phase == PHASE_OVER)
                return;
        job->stop_after = round;
        mfl_core_trace(core, job, "job %s stops after round %u: %.180s", job->id, round, event->reason);
        mfl_round_running(core, job);
}

void mfl_round_job_add(struct mfl_core *core, const struct mfl_core_event *event)
{
        struct core_job *job = mfl_calloc(1, sizeof *job);
        if (!job) {
                core->error = -ENOMEM;
                return;
        }
        mfl_assert(!mfl_core_job(core, event->job));
        mfl_assert(event->job_add.committed <= event->job_add.spec->rounds);
        mfl_strcpy(job->id, sizeof job->id, event->job);
        job->spec = event->job_add.spec;
        if (event->job_add.data && event->job_add.data->name[0]) {
                job->data = *event->job_add.data;
                mfl_strcpy(job->data_from, sizeof job->data_from, event->job_add.data_from);
        }
        job->serial = ++core->job_serial;
        job->committed = event->job_add.committed;
        job->round = job->committed + 1;
        job->state = MFL_JOB_WAITING;
        job->stamp = ++core->stamp;
        job->served = core->turn;
        job->arrival_ms = core->arrival_ms; /* it need not wait for daemons that came long ago */
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        job->store.retry_ms = CORE_NEVER;
        *core->jobs_end = job;
        core->jobs_end = &job->next;
        mfl_core_trace(core, job, "job %s is added after round %u of %u", job->id, job->committed,
                job->spec->rounds);
        job->stop_after = event->job_add.stop_after;
        if (job->committed == job->spec->rounds) { /* the server died after the last commit */
                mfl_core_job_move(job, PHASE_OVER);
                set_state(core, job, MFL_JOB_DONE, "");
        } else
                mfl_round_stops(core, job);
        mfl_core_dirty(core, job);
}

void mfl_round_free(struct mfl_core *core, struct core_job *job)
{
        mfl_core_groups_free(job);
        mfl_core_teams_free(job);
        while (job->tasks) {
                struct core_task *task = job->tasks;
                job->tasks = task->job_next;
                mfl_core_task_free(core, task);
        }
        while (job->n_leased) {
                struct core_daemon *daemon = job->leased[--job->n_leased];
                daemon->job = NULL;
        }
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                struct core_daemon *daemon = core->daemons[i];
                for (uint32_t k = 0; k < daemon->n_relations; k++)
                        if (daemon->relations[k].job == job->serial)
                                daemon->relations[k] = daemon->relations[--daemon->n_relations];
        }
        mfl_core_cuts_free(job);
        free(job->leased);
        free(job->slots);
        free(job->tally);
        mfl_round_scores_clear(job);
        mfl_core_items_clear(job);
        free(job->samples);
        free(job->seen);
        free(job->memory);
        free(job->calendar);
        free(job->calendar_next);
        mfl_live_free(job);
        free(job->bases);
        free(job->weights);
        free(job);
}
