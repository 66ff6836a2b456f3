/* SPDX-License-Identifier: Apache-2.0 */
/* One job's rounds: preparation, decisions, timers. */
#include "server/round/round.h"
#include "common/method/method.h"

#include "server/round/round_cohort.h"
#include "server/round/round_job.h"
#include "server/live/live.h"
#include "server/round/round_phase.h"
#include "server/round/round_secure.h"
#include "server/round/round_store.h"
#include "server/round/round_team.h"
#include "server/work/core_data.h"
#include "server/work/core_group.h"
#include "server/work/core_upload.h"
#include "server/work/core_vote.h"

/* Daemons that start together should share the first round: it waits until none has come for this long. */
#define SETTLE_MS 300
#define SETTLE_MAX_MS 1500
/* A full disk is tried again after this time. */
#define PREPARE_RETRY_MS 5000

static bool prepare_outcome(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        struct mfl_error err;
        if (event->kind == MFL_EV_JOB_PREPARE_FAILED && event->later) {
                mfl_core_job_move(job, PHASE_DATA); /* other daemons may be connected by then */
                job->prepare_ms = core->now_ms + PREPARE_RETRY_MS;
                mfl_core_wake(core, job->prepare_ms);
                mfl_round_reason(core, job, MFL_JOB_WAITING, "%.180s; retried every 5 s", event->reason);
                return false;
        }
        if (event->kind == MFL_EV_JOB_PREPARE_FAILED) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, event->reason);
                return false;
        }
        if (mfl_job_fixed(job->spec, job->data.train_samples, job->spec->data.clients, &job->fixed, &err)) {
                err.text[MFL_REASON_BYTES - 1] = '\0';
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, err.text);
                return false;
        }
        if (mfl_round_lacks_samples(job) && !job->data.test_samples) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED,
                        "the selection needs the samples of each client, which daemons tell with an "
                        "evaluation, and the data "
                        "set has no test samples; use partition: iid, or a data set with some");
                return false;
        }
        return true;
}

/* What is under way, and the params that clients start from. */
static int recall_bases(struct core_job *job, const struct mfl_core_event *event)
{
        const int64_t *words = event->job_ready.memory;
        uint32_t n_rows = mfl_calendar_rows(job->spec), n = mfl_job_bases(job->spec);
        if (!n_rows && !mfl_job_has_regions(job->spec))
                return 0;
        job->bases = mfl_calloc(n, sizeof *job->bases);
        if (n_rows) {
                job->calendar = mfl_calendar_new(job->spec);
                job->calendar_next = mfl_calendar_new(job->spec);
                job->weights = mfl_calloc(n, sizeof *job->weights);
        }
        if (!job->bases || (n_rows && (!job->calendar || !job->calendar_next || !job->weights)))
                return -ENOMEM;
        if (n_rows && words)
                memcpy(job->calendar, words, n_rows * sizeof *job->calendar);
        job->round = job->committed;
        mfl_round_note_bases(job, event);
        return 0;
}

/* What is known of clients, as it was stored with the newest params. */
static int recall_clients(struct core_job *job, const int64_t *words)
{
        uint32_t population = job->spec->data.clients;
        if (!mfl_memory_is_needed(job->spec))
                return 0;
        job->memory = mfl_memory_new(job->spec, population);
        if (job->memory && words)
                memcpy(job->memory, words, ((size_t)population + 1) * sizeof *job->memory);
        return job->memory ? 0 : -ENOMEM;
}

void mfl_round_job_ready(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        mfl_assert(job->phase == PHASE_PREPARE);
        if (!prepare_outcome(core, job, event))
                return;
        mfl_assert(event->job_ready.n_params && event->job_ready.n_slots);
        mfl_assert(event->job_ready.n_frozen < event->job_ready.n_params);
        job->n_params = event->job_ready.n_params;
        job->n_frozen = event->job_ready.n_frozen;
        job->statistics = event->job_ready.statistics;
        memcpy(job->frozen_digest, event->job_ready.frozen_digest, MFL_DIGEST_BYTES);
        job->n_slots = event->job_ready.n_slots;
        job->scored = event->job_ready.scored;
        job->scored_all = event->job_ready.scored_all;
        job->tally_kind = event->job_ready.tally;
        job->answers = event->job_ready.answers;
        job->n_tally = mfl_tally_size(job->tally_kind, job->answers);
        free(job->tally);
        job->tally = job->n_tally ? mfl_calloc(job->n_tally, sizeof *job->tally) : NULL;
        if (job->n_tally && !job->tally) {
                core->error = -ENOMEM;
                return;
        }
        memcpy(job->digest, event->job_ready.digest, MFL_DIGEST_BYTES);
        memcpy(job->method, event->method, sizeof job->method);
        job->slots = mfl_calloc(job->n_slots, sizeof *job->slots);
        job->virtual_us = event->job_ready.virtual_us;
        job->select_seed = job->spec->privacy.kind == MFL_PRIVACY_CENTRAL ? event->job_ready.select_seed
                                                                          : job->spec->seed;
        job->last_round = event->job_ready.last_round;
        job->skip_round = event->job_ready.opened ? job->committed + 1 : 0;
        if (!job->slots || recall_clients(job, event->job_ready.memory) || recall_bases(job, event) ||
                mfl_live_recall(job, event)) {
                core->error = -ENOMEM;
                return;
        }
        if (mfl_round_stops(core, job))
                return;
        job->ready_ms = core->now_ms;
        mfl_core_wake(core, core->now_ms);
        job->round = job->committed + 1;
        mfl_core_job_move(job, PHASE_SETTLE);
        core->sched_dirty = true;
        mfl_core_data_ready(core, job);
}

/* ---- progress ---- */

static void find_data(struct mfl_core *core, struct core_job *job)
{
        if (core->now_ms < job->prepare_ms)
                return;
        job->prepare_ms = 0;
        if (!mfl_core_data_decide(core, job)) {
                char lack[MFL_REASON_BYTES];
                mfl_core_data_lack(core, job, lack);
                mfl_round_reason(core, job, MFL_JOB_WAITING, "%s", lack);
                return;
        }
        mfl_core_job_move(job, PHASE_PREPARE);
        job->n_pending++;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_JOB_PREPARE, job);
        action->prepare.data = job->data;
        mfl_strcpy(action->prepare.data_from, sizeof action->prepare.data_from, job->data_from);
        action->prepare.population = mfl_core_job_is_local(job) ? 0 : job->spec->data.clients;
}

/* Whether no daemon can take the open items: each connected daemon with the data rests, or has reported
 * that it can't do the job. Drained daemons, and daemons whose cut of the population others contradict,
 * may work again later; while there are any, only resting daemons, which try again in the next attempt,
 * end the phase. */
static bool impossible(const struct mfl_core *core, const struct core_job *job)
{
        uint32_t n_rest = 0, n_barred = 0, n_drained = 0;
        if (!job->count[ITEM_OPEN] || job->count[ITEM_ASSIGNED])
                return false;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                if (!daemon->conn || !mfl_core_daemon_data(daemon, job))
                        continue;
                if (mfl_core_daemon_usable(daemon, job))
                        return false;
                if (mfl_core_daemon_barred(daemon, job))
                        n_barred++;
                else
                        *(mfl_core_daemon_rests(daemon, job) && mfl_core_daemon_takes_work(daemon)
                                        ? &n_rest
                                        : &n_drained) += 1;
        }
        return n_rest > 0 || (n_barred > 0 && n_drained == 0);
}

static const char *why_over(const struct mfl_core *core, const struct core_job *job)
{
        if (!job->count[ITEM_OPEN] && !job->count[ITEM_ASSIGNED])
                return job->count[ITEM_MISSING] ? "daemons are missing" : "all done";
        if (mfl_live_is_full(job))
                return "its buffer is full";
        if (job->deadline_ms != CORE_NEVER && core->now_ms >= job->deadline_ms)
                return "deadline";
        return impossible(core, job) ? "no daemon can do the rest" : NULL;
}

/* The daemon has answered, but not yet told everything: the rest comes while it is connected. */
static void progress_census(struct mfl_core *core, struct core_job *job)
{
        bool answered = !job->count[ITEM_OPEN] && !job->count[ITEM_ASSIGNED];
        if (!mfl_round_lacks_samples(job) || (answered ? !job->n_leased_up : why_over(core, job) != NULL))
                mfl_round_finish_census(core, job);
        else if (job->count[ITEM_OPEN])
                core->sched_dirty = true;
}

static void progress_work(struct mfl_core *core, struct core_job *job)
{
        mfl_round_watch_clock(core, job);
        mfl_core_slots_grant(core, job);
        mfl_round_team_wait(core, job);
        if (job->phase == PHASE_EVAL && job->census) {
                progress_census(core, job);
                return;
        }
        const char *why = job->spoilt ? "what was told of clients proved false" : why_over(core, job);
        if (job->phase == PHASE_TRAIN && job->spec->secure.bits)
                why = mfl_round_secure_progress(core, job, why);
        if (why && job->phase == PHASE_TRAIN)
                mfl_round_close_train(core, job, why);
        else if (why && job->eval_tries < job->spec->limits.retries && impossible(core, job)) {
                job->eval_tries++;
                job->stamp = ++core->stamp; /* resting daemons may try again */
                core->sched_dirty = true;
                mfl_core_dirty(core, job);
        } else if (why)
                mfl_round_finish_eval(core, job);
        else if (job->count[ITEM_OPEN]) /* MISSING items wait for an arrival, which wakes the scheduler */
                core->sched_dirty = true;
}

void mfl_round_progress(struct mfl_core *core, struct core_job *job)
{
        mfl_round_store_progress(core, job);
        if (job->cuts_dirty && job->phase != PHASE_OVER) {
                mfl_core_votes_settle(core, job);
                job->spoilt |= job->phase == PHASE_TRAIN && mfl_round_samples_differ(job);
        }
        switch (job->phase) {
        case PHASE_DATA:
                find_data(core, job);
                break;
        case PHASE_TRAIN:
        case PHASE_EVAL:
                progress_work(core, job);
                break;
        case PHASE_CLOSING:
                if (!job->n_adding)
                        mfl_round_finish_train(core, job);
                break;
        case PHASE_OVER:
                job->released = job->n_pending == 0;
                break;
        default:
                break;
        }
}

void mfl_round_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        mfl_round_store_timers(core, job, next_ms);
        mfl_core_group_timers(core, job, next_ms);
        mfl_core_slots_timers(core, job, next_ms);
        mfl_round_secure_timers(core, job, next_ms);
        if (core->now_ms >= job->deadline_ms)
                mfl_core_dirty(core, job);
        if (job->phase == PHASE_DATA && job->prepare_ms > core->now_ms)
                *next_ms = MFL_MIN(*next_ms, job->prepare_ms);
        else if (job->prepare_ms)
                mfl_core_dirty(core, job);
        if (job->rest_ms > core->now_ms)
                *next_ms = MFL_MIN(*next_ms, job->rest_ms);
        else if (job->rest_ms)
                mfl_core_dirty(core, job);
        if (job->phase == PHASE_SETTLE) {
                uint64_t at = MFL_MIN(job->arrival_ms + SETTLE_MS, job->ready_ms + SETTLE_MAX_MS);
                if (core->now_ms >= at) {
                        mfl_core_job_move(job, PHASE_TRAIN_WAIT);
                        core->sched_dirty = true;
                } else
                        *next_ms = MFL_MIN(*next_ms, at);
        }
        if (job->deadline_ms > core->now_ms)
                *next_ms = MFL_MIN(*next_ms, job->deadline_ms);
}
