/* SPDX-License-Identifier: Apache-2.0 */
/* The core's entrance: events in, timers, actions out. */
#include "server/core/core_message.h"
#include "server/round/round.h"
#include "server/round/round_job.h"
#include "server/round/round_phase.h"
#include "server/round/round_secure.h"
#include "server/round/round_store.h"
#include "server/round/scheduler.h"
#include "server/work/core_presence.h"
#include "server/work/core_rival.h"
#include "server/work/core_upload.h"
#include "server/work/core_vote.h"

#define TIMER_STEP_MS 20 /* timers that are due within this time are one scan */

int mfl_core_new(const struct mfl_core_options *options, struct mfl_core **ret_core, struct mfl_error *err)
{
        if (!options->heartbeat_ms || options->dead_ms <= options->heartbeat_ms)
                return mfl_fail(err, MFL_INVALID,
                        "dead_ms (%u) must be larger than heartbeat_ms (%u), which must not be 0",
                        options->dead_ms, options->heartbeat_ms);
        struct mfl_core *core = mfl_calloc(1, sizeof *core);
        if (!core)
                return mfl_fail_memory(err, sizeof *core, "the server core");
        core->options = *options;
        core->task_serial = (uint32_t)(options->server_instance >> 32);
        core->jobs_end = &core->jobs;
        core->scan_ms = core->again_ms = CORE_NEVER;
        *ret_core = core;
        return 0;
}

void mfl_core_free(struct mfl_core *core)
{
        if (!core)
                return;
        while (core->jobs) {
                struct core_job *job = core->jobs;
                core->jobs = job->next;
                mfl_round_secure_free(job);
                mfl_round_free(core, job);
        }
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                mfl_core_node_leave(core, core->daemons[i]);
                mfl_core_site_leave(core, core->daemons[i]);
                mfl_core_daemon_free(core->daemons[i]);
        }
        mfl_core_comm_free(core);
        mfl_core_rivals_free(core);
        free(core->daemons);
        free(core->refused);
        mfl_core_map_deinit(&core->by_conn);
        mfl_core_map_deinit(&core->by_key);
        mfl_core_map_deinit(&core->tasks);
        mfl_core_map_deinit(&core->nodes);
        mfl_core_map_deinit(&core->hosts);
        mfl_core_map_deinit(&core->sites);
        free(core);
}

/* ---- actions ---- */

void mfl_core_actions_clear(struct mfl_core_actions *actions)
{
        for (uint32_t i = 0; i < actions->n; i++)
                mfl_core_action_deinit(&actions->v[i]);
        actions->n = 0;
}

void mfl_core_actions_deinit(struct mfl_core_actions *actions)
{
        mfl_core_actions_clear(actions);
        free(actions->v);
        *actions = (struct mfl_core_actions){0};
}

/* ---- timers ---- */

/* A server that was itself stopped or suspended has heard nothing. That says nothing about the daemons. */
static void forgive_own_sleep(struct mfl_core *core, uint64_t now_ms)
{
        if (now_ms - core->now_ms < core->options.dead_ms / 2 || core->scan_ms >= now_ms)
                return;
        for (uint32_t i = 0; i < core->n_daemons; i++)
                core->daemons[i]->heard_ms = now_ms;
}

static void run_timers(struct mfl_core *core)
{
        if (core->now_ms < core->scan_ms)
                return;
        core->scan_ms = CORE_NEVER;
        uint64_t next = CORE_NEVER;
        /* Backwards: a daemon whose grace time is over is removed, and the last daemon takes its place. */
        for (uint32_t i = core->n_daemons; i-- > 0;)
                mfl_core_daemon_timers(core, core->daemons[i], &next);
        mfl_core_rivals_timers(core, &next);
        for (struct core_job *job = core->jobs; job; job = job->next)
                mfl_round_timers(core, job, &next);
        if (core->now_ms >= core->again_ms)
                core->sched_dirty = true;
        else
                next = MFL_MIN(next, core->again_ms);
        if (next != CORE_NEVER) /* timers close to each other are one scan */
                next = MFL_MAX(next, core->now_ms + TIMER_STEP_MS);
        mfl_core_wake(core, next);
}

uint64_t mfl_core_next_ms(const struct mfl_core *core)
{
        return core->scan_ms;
}

/* ---- decisions ---- */

static void release_jobs(struct mfl_core *core)
{
        for (struct core_job **at = &core->jobs; *at;) {
                struct core_job *job = *at;
                if (!job->released) {
                        at = &job->next;
                        continue;
                }
                *at = job->next;
                if (!*at)
                        core->jobs_end = at;
                mfl_core_act(core, MFL_ACT_JOB_RELEASE, job)->teams = job->team_totals;
                mfl_round_secure_free(job);
                mfl_round_free(core, job);
        }
}

/* Decisions of jobs make work for the scheduler, and the other way round, until nothing is left to decide. */
static void settle(struct mfl_core *core)
{
        for (struct core_job *job = core->sched_dirty ? core->jobs : NULL; job; job = job->next)
                if (job->phase == PHASE_DATA) /* another daemon may fit, or another reason apply */
                        mfl_core_dirty(core, job);
        while ((core->dirty || core->sched_dirty) && !core->error) {
                bool released = false;
                core->dirty = false;
                for (struct core_job *job = core->jobs; job; job = job->next) {
                        if (!job->dirty)
                                continue;
                        job->dirty = false;
                        mfl_round_progress(core, job);
                        released |= job->released;
                }
                if (released)
                        release_jobs(core);
                if (core->sched_dirty) {
                        core->sched_dirty = false;
                        mfl_scheduler_run(core);
                }
        }
}

static void told_population(
        struct mfl_core *core, struct core_daemon *daemon, const struct mfl_core_event *event)
{
        struct core_job *job = mfl_core_job(core, event->job);
        if (job)
                mfl_core_vote_told(core, daemon, job, &event->population);
}

static void daemon_event(struct mfl_core *core, const struct mfl_core_event *event)
{
        if (event->kind == MFL_EV_DAEMON_UP) {
                if (!mfl_core_daemon_up(core, event->conn, event->daemon, event->drained))
                        mfl_core_rival_add(core, event->conn, event->daemon, event->drained);
                return;
        }
        struct core_daemon *daemon = mfl_core_map_get(&core->by_conn, event->conn);
        if (!daemon && event->kind == MFL_EV_DAEMON_DOWN)
                mfl_core_rival_gone(core, event->conn);
        if (!daemon)
                return; /* closed by the core, or replaced: late events mean nothing */
        daemon->heard_ms = core->now_ms;
        if (event->kind == MFL_EV_UPLOADING)
                daemon->upload_ms = core->now_ms;
        else if (event->kind == MFL_EV_MESSAGE)
                mfl_core_message(core, daemon, event->msg);
        else if (event->kind == MFL_EV_POPULATION)
                told_population(core, daemon, event);
        else if (event->kind == MFL_EV_LIED)
                mfl_core_daemon_lied(core, daemon, NULL, "%s", event->reason);
        else if (event->kind == MFL_EV_DAEMON_DOWN)
                mfl_core_daemon_down(
                        core, daemon, event->reason[0] ? event->reason : "its connection closed");
}

static void job_event(struct mfl_core *core, const struct mfl_core_event *event)
{
        struct core_job *job = mfl_core_job(core, event->job);
        if (!job)
                return; /* it was released in the meantime */
        switch (event->kind) {
        case MFL_EV_JOB_READY:
        case MFL_EV_JOB_PREPARE_FAILED:
                mfl_round_job_ready(core, job, event);
                break;
        case MFL_EV_JOB_STOP:
                mfl_round_job_stop(core, job, event);
                break;
        case MFL_EV_UPLOAD_COMPLETE:
        case MFL_EV_SLOT_BUSY:
        case MFL_EV_ADDED:
                mfl_core_slot_event(core, job, event);
                break;
        case MFL_EV_SECURE_NOTED:
        case MFL_EV_UNMASKED:
                mfl_round_secure_event(core, job, event);
                break;
        case MFL_EV_APPLIED:
                mfl_round_applied(core, job, event);
                break;
        case MFL_EV_CHECKPOINTED:
                mfl_round_checkpointed(core, job, event->ok, event->reason);
                break;
        case MFL_EV_COMMITTED:
                mfl_round_committed(core, job, event->ok, event->reason);
                break;
        default:
                mfl_assert(!"a known event");
        }
}

int mfl_core_step(struct mfl_core *core, const struct mfl_core_event *event, struct mfl_core_actions *actions)
{
        mfl_assert(event->now_ms >= core->now_ms);
        if (core->error)
                return core->error;
        core->out = actions;
        forgive_own_sleep(core, event->now_ms);
        core->now_ms = event->now_ms;
        switch (event->kind) {
        case MFL_EV_TICK:
                break;
        case MFL_EV_JOB_ADD:
                mfl_round_job_add(core, event);
                break;
        case MFL_EV_DAEMON_UP:
        case MFL_EV_DAEMON_DOWN:
        case MFL_EV_MESSAGE:
        case MFL_EV_HEARD:
        case MFL_EV_UPLOADING:
        case MFL_EV_POPULATION:
        case MFL_EV_LIED:
                daemon_event(core, event);
                break;
        case MFL_EV_DRAIN:
                mfl_core_daemon_drain(core, event->drain.name, event->drain.on);
                break;
        case MFL_EV_REFUSED:
                mfl_core_refused_add(core, event->daemon, event->refusal);
                break;
        case MFL_EV_EXPEL:
                mfl_core_rival_expel(core, event->drain.name, event->reason);
                mfl_core_daemon_expel(core, event->drain.name, event->reason);
                break;
        default:
                job_event(core, event);
        }
        run_timers(core);
        mfl_core_rivals_admit(core);
        settle(core);
        mfl_core_action_deinit(&core->scrap);
        core->scrap = (struct mfl_core_action){0};
        core->out = NULL;
        return core->error;
}
