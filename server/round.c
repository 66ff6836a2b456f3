/* SPDX-License-Identifier: Apache-2.0 */
/* One job's rounds: phases, deadlines, quorum, retries. */
#include "server/round.h"

#include "server/round_cohort.h"
#include "server/round_store.h"

#include <math.h>

static bool is_local(const struct core_job *job)
{
        return job->spec->data.partition == MFL_PARTITION_LOCAL;
}

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
        if (job->stop_after && job->stop_after < job->spec->rounds)
                mfl_round_reason(core, job, MFL_JOB_RUNNING, "stops after round %u%s%.200s", job->stop_after,
                        *disk ? "; " : "", disk);
        else
                set_state(core, job, MFL_JOB_RUNNING, disk);
}

/* ---- work of a phase: begin and end ---- */

/* Ends the phase's tasks. Those of a phase that came to its end have nothing left to cancel. */
static void drop_work(struct mfl_core *core, struct core_job *job, const char *reason)
{
        mfl_assert(!job->n_adding && !job->groups);
        while (job->tasks) {
                struct core_task *task = job->tasks;
                job->tasks = task->job_next;
                mfl_core_task_cancel(core, task, reason);
                for (uint32_t i = 0; i < task->n_items; i++)
                        if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                                mfl_core_update_drop(core, task->updates[i]);
                mfl_core_task_free(core, task);
        }
        while (job->n_leased)
                mfl_core_unlease(core, job->leased[job->n_leased - 1]);
        mfl_round_items_clear(job);
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        job->progress_samples = 0;
        job->progress_loss = 0;
        job->stamp = ++core->stamp; /* who rested may work again */
}

static void start_clock(struct core_job *job)
{
        job->deadline_ms = CORE_NEVER;
        job->deadline_left = job->spec->limits.deadline_ms;
}

/* The clock of a round runs only while a daemon could work on it. */
static void watch_clock(struct mfl_core *core, struct core_job *job)
{
        bool running = job->deadline_ms != CORE_NEVER, should = job->n_leased_up > 0;
        if (running && !should) {
                job->deadline_left = job->deadline_ms > core->now_ms ? job->deadline_ms - core->now_ms : 0;
                job->deadline_ms = CORE_NEVER;
        } else if (!running && should && job->deadline_left != CORE_NEVER) {
                job->deadline_ms = core->now_ms + job->deadline_left;
                mfl_core_wake(core, job->deadline_ms);
        }
}

static void begin_train(struct mfl_core *core, struct core_job *job)
{
        if (job->attempt == 0)
                job->record.started_ms = core->now_ms;
        uint64_t started = job->record.started_ms;
        job->record = (struct mfl_round_record){
                .round = job->round, .attempt = job->attempt, .started_ms = started};
        job->train_loss = job->eval_loss = 0;
        job->train_correct = job->eval_correct = 0;
        job->weight_claimed = job->weight_counted = 0;
        job->quorum_failed = false;
        if (mfl_round_items_train(core, job)) {
                core->error = -ENOMEM;
                return;
        }
        job->phase = PHASE_TRAIN;
        job->last_failure[0] = '\0';
        mfl_round_running(core, job);
        mfl_core_trace(core, job, "round %u of %u begins%s: %u clients on %u daemons", job->round,
                job->spec->rounds, job->attempt ? " anew" : "", job->n_items, job->n_leased);
        mfl_core_act(core, MFL_ACT_ROUND_OPEN, job);
}

static void begin_eval(struct mfl_core *core, struct core_job *job)
{
        if (mfl_round_items_eval(core, job)) {
                core->error = -ENOMEM;
                return;
        }
        job->phase = PHASE_EVAL;
        job->eval_tries = 0;
        mfl_core_trace(core, job, "round %u: evaluation begins: %u shards on %u daemons", job->round,
                job->n_items, job->n_leased);
}

void mfl_round_begin(struct mfl_core *core, struct core_job *job)
{
        if (job->phase == PHASE_TRAIN_WAIT)
                begin_train(core, job);
        else
                begin_eval(core, job);
        start_clock(job);
        mfl_core_dirty(core, job);
}

void mfl_round_next(struct mfl_core *core, struct core_job *job)
{
        job->round = MFL_MAX(job->committed, job->store.round) + 1;
        job->attempt = 0;
        job->phase = PHASE_TRAIN_WAIT;
        core->sched_dirty = true;
}

/* ---- how a phase ends ---- */

static uint32_t quorum_need(const struct core_job *job)
{
        double need = ceil(job->spec->limits.quorum * job->n_items);
        return need < 1 ? 1 : (uint32_t)need;
}

/* The round is decided. What is still outstanding is refused from here on; sums under way end first. */
static void close_train(struct mfl_core *core, struct core_job *job, const char *why)
{
        uint32_t need = quorum_need(job);
        mfl_core_groups_end(core, job, "the round closes");
        for (struct core_task *task = job->tasks; task; task = task->job_next)
                for (uint32_t i = 0; i < task->n_items; i++)
                        if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                                mfl_core_update_drop(core, task->updates[i]);
        job->phase = PHASE_CLOSING;
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        mfl_core_trace(core, job, "round %u closes, %s: %u of %u clients counted, %u rejected, %u needed",
                job->round, why, job->count[ITEM_COUNTED], job->n_items, job->count[ITEM_REJECTED], need);
        mfl_core_dirty(core, job);
}

static void retry_round(
        struct mfl_core *core, struct core_job *job, uint32_t counted, uint32_t n, uint32_t need)
{
        char reason[MFL_REASON_BYTES];
        int len = mfl_snprintf(reason, sizeof reason, "round %u: %u of %u clients counted, %u needed",
                job->round, counted, n, need);
        if (job->last_failure[0])
                mfl_snprintf(reason + len, sizeof reason - (size_t)len, "; %.180s", job->last_failure);
        if (job->attempt >= job->spec->limits.retries) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, reason);
                return;
        }
        job->attempt++;
        job->phase = PHASE_TRAIN_WAIT;
        core->sched_dirty = true;
        mfl_core_trace(core, job, "%s: attempt %u follows", reason, job->attempt + 1);
}

void mfl_round_apply(struct mfl_core *core, struct core_job *job)
{
        job->phase = PHASE_APPLY;
        job->n_pending++;
        mfl_core_act(core, MFL_ACT_APPLY, job)->weight = job->weight_counted;
        mfl_core_trace(core, job, "round %u: the update of weight %llu is applied", job->round,
                (unsigned long long)job->weight_counted);
}

static double ratio(double a, uint64_t b)
{
        return b ? a / (double)b : 0;
}

/* Not a number where there is none. */
static double accuracy_of(const struct core_job *job, uint64_t correct, uint64_t scored)
{
        return mfl_job_has_accuracy(job->spec) ? ratio((double)correct, scored) : (double)NAN;
}

static void finish_train(struct mfl_core *core, struct core_job *job)
{
        uint32_t counted = job->count[ITEM_COUNTED], n = job->n_items, need = quorum_need(job);
        struct mfl_round_record *record = &job->record;
        record->clients = counted;
        record->clients_rejected = job->count[ITEM_REJECTED];
        record->weight = job->weight_counted;
        record->train_loss = ratio(mfl_fixed_loss_to_double(job->train_loss), record->samples);
        record->train_accuracy = accuracy_of(job, job->train_correct, record->samples);
        drop_work(core, job, "the round is over");
        if (counted < need) {
                retry_round(core, job, counted, n, need);
                return;
        }
        if (job->store.round && !MFL_SIM_BUG(11)) {
                job->phase = PHASE_TRAINED;
                mfl_core_trace(core, job, "round %u waits until round %u is committed", job->round,
                        job->store.round);
        } else
                mfl_round_apply(core, job);
}

/* The record has all that it will have. */
static void complete_record(struct mfl_core *core, struct core_job *job)
{
        job->store.record = job->record;
        job->store.complete = true;
        job->phase = PHASE_STORE;
        mfl_core_dirty(core, job);
}

static void finish_eval(struct mfl_core *core, struct core_job *job)
{
        struct mfl_round_record *record = &job->record;
        uint32_t counted = job->count[ITEM_COUNTED], n = job->n_items;
        record->evaluated = counted && (counted == n || is_local(job));
        if (record->evaluated) {
                record->loss = ratio(mfl_fixed_loss_to_double(job->eval_loss), record->eval_samples);
                record->accuracy = accuracy_of(job, job->eval_correct, record->eval_samples);
                mfl_core_trace(core, job, "round %u is evaluated on %llu samples", job->round,
                        (unsigned long long)record->eval_samples);
        } else {
                record->eval_samples = 0;
                mfl_core_trace(
                        core, job, "round %u is not evaluated: %u of %u shards came", job->round, counted, n);
        }
        drop_work(core, job, "the evaluation is over");
        complete_record(core, job);
}

/* ---- after the sums ---- */

static bool evaluates(const struct core_job *job)
{
        uint32_t every = job->spec->evaluation.every;
        if (!every || (!is_local(job) && !job->data.test_samples))
                return false;
        return job->round % every == 0 || job->round == job->spec->rounds || job->round == job->stop_after;
}

bool mfl_round_answered(struct core_job *job)
{
        mfl_assert(job->n_pending);
        job->n_pending--;
        return job->phase != PHASE_OVER;
}

void mfl_round_applied(
        struct mfl_core *core, struct core_job *job, bool ok, const char *reason, const uint8_t *digest)
{
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        mfl_assert(job->phase == PHASE_APPLY);
        if (!ok) {
                char text[MFL_REASON_BYTES];
                mfl_snprintf(text, sizeof text, "round %u: %.200s", job->round, reason);
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, text);
                return;
        }
        memcpy(job->digest, digest, MFL_DIGEST_BYTES);
        memcpy(job->record.digest, digest, MFL_DIGEST_BYTES);
        mfl_round_store_begin(core, job);
        core->sched_dirty = true;
        if (evaluates(job) && !MFL_SIM_BUG(6)) {
                job->phase = PHASE_EVAL_WAIT;
                return;
        }
        complete_record(core, job);
        if (job->round < job->spec->rounds && job->round != job->stop_after)
                mfl_round_next(core, job); /* trains while this one is stored */
}

/* ---- beginning and end of a job ---- */

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
        job->committed = event->job_add.committed + (event->job_add.committed && MFL_SIM_BUG(8));
        job->round = job->committed + 1;
        job->phase = PHASE_DATA;
        job->state = MFL_JOB_WAITING;
        job->stamp = ++core->stamp;
        job->served = core->turn;
        job->arrival_ms = core->arrival_ms; /* daemons that are long there are not waited for */
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        mfl_round_store_clear(job);
        *core->jobs_end = job;
        core->jobs_end = &job->next;
        mfl_core_trace(core, job, "job %s is added after round %u of %u", job->id, job->committed,
                job->spec->rounds);
        job->stop_after = event->job_add.stop_after;
        if (job->committed == job->spec->rounds) { /* the server died between the last commit and its end */
                job->phase = PHASE_OVER;
                set_state(core, job, MFL_JOB_DONE, "");
        } else
                mfl_round_stops(core, job);
        mfl_core_dirty(core, job);
}

static bool prepare_outcome(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        struct mfl_error err;
        if (event->kind == MFL_EV_JOB_PREPARE_FAILED && event->later) {
                job->phase = PHASE_DATA; /* by then other daemons may be there */
                job->prepare_ms = core->now_ms + CORE_DISK_RETRY_MS;
                mfl_core_wake(core, job->prepare_ms);
                mfl_round_reason(core, job, MFL_JOB_WAITING, "%.180s; tried again every 5 s", event->reason);
                return false;
        }
        if (event->kind == MFL_EV_JOB_PREPARE_FAILED) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, event->reason);
                return false;
        }
        if (mfl_core_fixed(job->spec, job->data.train_samples, job->spec->data.clients, &job->fixed, &err)) {
                err.text[MFL_REASON_BYTES - 1] = '\0';
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, err.text);
                return false;
        }
        return true;
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
        memcpy(job->frozen_digest, event->job_ready.frozen_digest, MFL_DIGEST_BYTES);
        job->n_slots = event->job_ready.n_slots;
        memcpy(job->digest, event->job_ready.digest, MFL_DIGEST_BYTES);
        job->slots = mfl_calloc(job->n_slots, sizeof(struct core_update *));
        if (!job->slots) {
                core->error = -ENOMEM;
                return;
        }
        job->ready_ms = core->now_ms;
        mfl_core_wake(core, core->now_ms);
        mfl_round_next(core, job);
        mfl_core_data_ready(core, job);
}

void mfl_round_job_fail(
        struct mfl_core *core, struct core_job *job, enum mfl_job_state state, const char *reason)
{
        if (job->phase == PHASE_OVER)
                return;
        mfl_core_trace(core, job, "job %s %s: %.200s", job->id,
                state == MFL_JOB_STOPPED ? "is stopped" : "has failed", reason);
        mfl_core_groups_end(core, job, "the job is over");
        for (struct core_task *task = job->tasks; task; task = task->job_next) {
                mfl_core_task_cancel(core, task, reason);
                mfl_core_task_take(core, task, ITEM_OPEN);
        }
        while (job->n_leased)
                mfl_core_unlease(core, job->leased[job->n_leased - 1]);
        job->phase = PHASE_OVER;
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        job->store.checkpoint_retry_ms = job->store.commit_retry_ms = CORE_NEVER;
        set_state(core, job, state, reason);
        mfl_core_dirty(core, job);
}

bool mfl_round_stops(struct mfl_core *core, struct core_job *job)
{
        char reason[MFL_REASON_BYTES];
        if (!job->stop_after || job->committed < job->stop_after)
                return false;
        mfl_snprintf(reason, sizeof reason, "stopped after round %u, as it was asked to", job->committed);
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

void mfl_round_free(struct mfl_core *core, struct core_job *job)
{
        mfl_core_groups_free(job);
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
        free(job->leased);
        free(job->slots);
        mfl_round_items_clear(job);
        free(job);
}

void mfl_round_hopeless(struct mfl_core *core, struct core_job *job)
{
        char reason[MFL_REASON_BYTES];
        mfl_snprintf(reason, sizeof reason, "no daemon can do this job; %.200s", job->last_failure);
        if (job->phase == PHASE_TRAIN_WAIT) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, reason);
                return;
        }
        mfl_core_trace(core, job, "round %u is not evaluated: %s", job->round, reason);
        complete_record(core, job);
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
                set_state(core, job, MFL_JOB_WAITING, lack);
                return;
        }
        job->phase = PHASE_PREPARE;
        job->n_pending++;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_JOB_PREPARE, job);
        action->prepare.data = job->data;
        mfl_strcpy(action->prepare.data_from, sizeof action->prepare.data_from, job->data_from);
        action->prepare.population = is_local(job) ? 0 : job->spec->data.clients;
}

/* Open items that no daemon can take: those that are connected and have the data rest, or have said that they
 * can't. A drained one may be let back in, so that only resting ones, who try again in the next attempt, make
 * an end then. */
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
                        *(mfl_core_daemon_takes_work(daemon) ? &n_rest : &n_drained) += 1;
        }
        return n_rest > 0 || (n_barred > 0 && n_drained == 0);
}

static const char *why_over(const struct mfl_core *core, const struct core_job *job)
{
        if (!job->count[ITEM_OPEN] && !job->count[ITEM_ASSIGNED])
                return job->count[ITEM_MISSING] ? "daemons are missing" : "all done";
        if (job->deadline_ms != CORE_NEVER && core->now_ms >= job->deadline_ms)
                return "deadline";
        return impossible(core, job) ? "no daemon can do the rest" : NULL;
}

static void progress_work(struct mfl_core *core, struct core_job *job)
{
        watch_clock(core, job);
        mfl_core_slots_grant(core, job);
        const char *why = why_over(core, job);
        if (why && job->phase == PHASE_TRAIN)
                close_train(core, job, why);
        else if (why && job->eval_tries < job->spec->limits.retries && impossible(core, job)) {
                job->eval_tries++;
                job->stamp = ++core->stamp; /* who rested may try again */
                core->sched_dirty = true;
                mfl_core_dirty(core, job);
        } else if (why)
                finish_eval(core, job);
        else if (job->count[ITEM_OPEN]) /* MISSING ones wait for an arrival, which wakes the scheduler itself
                                         */
                core->sched_dirty = true;
}

void mfl_round_progress(struct mfl_core *core, struct core_job *job)
{
        mfl_round_store_progress(core, job);
        switch (job->phase) {
        case PHASE_DATA:
                find_data(core, job);
                break;
        case PHASE_TRAIN:
        case PHASE_EVAL:
                progress_work(core, job);
                break;
        case PHASE_CLOSING:
                if (!job->n_adding || MFL_SIM_BUG(10))
                        finish_train(core, job);
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
        if (core->now_ms >= job->deadline_ms)
                mfl_core_dirty(core, job);
        if (job->phase == PHASE_DATA && job->prepare_ms > core->now_ms)
                *next_ms = MFL_MIN(*next_ms, job->prepare_ms);
        else if (job->prepare_ms)
                mfl_core_dirty(core, job);
        if (job->phase == PHASE_TRAIN_WAIT && !job->settled) {
                uint64_t at = MFL_MIN(job->arrival_ms + CORE_SETTLE_MS, job->ready_ms + CORE_SETTLE_MAX_MS);
                if (core->now_ms >= at) {
                        job->settled = true;
                        core->sched_dirty = true;
                } else
                        *next_ms = MFL_MIN(*next_ms, at);
        }
        if (job->deadline_ms > core->now_ms)
                *next_ms = MFL_MIN(*next_ms, job->deadline_ms);
}
