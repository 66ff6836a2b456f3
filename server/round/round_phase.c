/* SPDX-License-Identifier: Apache-2.0 */
/* Phases of a round: their beginning and their end. */
#include "server/round/round_phase.h"

#include "server/round/round_cohort.h"
#include "server/round/round_job.h"
#include "server/live/live.h"
#include "server/round/round_scores.h"
#include "server/round/round_secure.h"
#include "server/round/round_store.h"
#include "server/work/core_group.h"
#include "server/work/core_task.h"
#include "server/work/core_team.h"
#include "server/work/core_update.h"

#include <math.h>

/* ---- the clock ---- */

static void start_clock(struct core_job *job)
{
        job->deadline_ms = CORE_NEVER;
        job->deadline_left = job->spec->limits.deadline_ms;
}

/* The clock of a round runs only while a daemon could work on it. */
void mfl_round_watch_clock(struct mfl_core *core, struct core_job *job)
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

/* ---- beginning ---- */

static void begin_train(struct mfl_core *core, struct core_job *job)
{
        if (job->attempt == 0)
                job->record.started_ms = core->now_ms;
        uint64_t started = job->record.started_ms;
        job->record = (struct mfl_round_record){
                .round = job->round, .attempt = job->attempt, .started_ms = started};
        job->train_loss = job->eval_loss = 0;
        memset(job->scalars, 0, sizeof job->scalars);
        job->train_correct = job->eval_correct = 0;
        if (job->n_tally)
                memset(job->tally, 0, job->n_tally * sizeof *job->tally);
        job->weight_claimed = job->weight_counted = 0;
        if (job->weights)
                memset(job->weights, 0, (mfl_job_versions(job->spec) + 1) * sizeof *job->weights);
        job->spoilt = job->turned_away = false;
        struct mfl_error err;
        int r = mfl_round_items_train(job, &err);
        if (r == -ENOMEM) {
                core->error = r;
                return;
        }
        if (r) {
                err.text[MFL_REASON_BYTES - 1] = '\0';
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, err.text);
                return;
        }
        mfl_core_job_move(job, PHASE_TRAIN);
        job->last_failure[0] = '\0';
        mfl_round_running(core, job);
        mfl_core_trace(core, job, "round %u of %u begins%s: %u clients on %u daemons", job->round,
                job->spec->rounds, job->attempt ? " again" : "", job->n_items, job->n_leased);
        mfl_core_act(core, MFL_ACT_ROUND_OPEN, job);
}

static const char *shards_of(const struct core_job *job)
{
        return job->spec->evaluation.on == MFL_EVALUATE_CLIENTS ? "clients" : "shards";
}

/* An evaluation whose score nobody needs (round_cohort.h). */
static void begin_census(struct mfl_core *core, struct core_job *job)
{
        if (mfl_round_items_census(job)) {
                core->error = -ENOMEM;
                return;
        }
        job->census = true;
        job->eval_tries = 0;
        mfl_core_job_move(job, PHASE_EVAL);
        mfl_core_trace(core, job, "round %u: a daemon is asked for the samples of each client", job->round);
}

static void begin_eval(struct mfl_core *core, struct core_job *job)
{
        job->census = false;
        if (mfl_round_items_eval(job)) {
                core->error = -ENOMEM;
                return;
        }
        if (mfl_round_scores_begin(job)) {
                core->error = -ENOMEM;
                return;
        }
        mfl_core_job_move(job, PHASE_EVAL);
        job->eval_tries = 0;
        mfl_core_trace(core, job, "round %u: evaluation begins: %u %s on %u daemons", job->round,
                job->n_items, shards_of(job), job->n_leased);
}

void mfl_round_begin(struct mfl_core *core, struct core_job *job)
{
        if (job->phase != PHASE_TRAIN_WAIT)
                begin_eval(core, job);
        else if (mfl_round_lacks_samples(job))
                begin_census(core, job);
        else
                begin_train(core, job);
        if (core->error || job->phase == PHASE_OVER)
                return;
        job->began_ms = core->now_ms;
        job->claim = job->wait_ms = job->wait_turn = 0;
        start_clock(job);
        mfl_core_dirty(core, job);
}

/* ---- ending ---- */

static void note_duration(const struct mfl_core *core, struct core_job *job)
{
        uint64_t ms = MFL_MAX(core->now_ms - job->began_ms, (uint64_t)1);
        uint64_t *kept = job->phase == PHASE_EVAL ? &job->eval_ms : &job->train_ms;
        *kept = *kept ? (*kept + ms + 1) / 2 : ms;
}

/* Ends the phase's tasks. Tasks that are done have nothing to cancel. */
static void drop_work(struct mfl_core *core, struct core_job *job, const char *reason)
{
        mfl_assert(!job->n_adding && !job->groups);
        while (job->tasks) {
                struct core_task *task = job->tasks;
                job->tasks = task->job_next;
                if (!mfl_live_keep(core, job, task))
                        mfl_core_task_cancel(core, task, reason);
                for (uint32_t i = 0; i < task->n_items; i++)
                        if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                                mfl_core_update_drop(core, task->updates[i]);
                mfl_core_task_free(core, task);
        }
        mfl_core_teams_free(job);
        while (job->n_leased)
                mfl_core_unlease(core, job->leased[job->n_leased - 1]);
        mfl_core_items_clear(job);
        note_duration(core, job);
        job->moving = false;
        job->deadline_ms = job->deadline_left = CORE_NEVER;
        job->progress_samples = 0;
        job->progress_loss = 0;
        job->stamp = ++core->stamp; /* resting daemons may work again */
}

/* The round is decided. What is still outstanding is refused from here on; sums under way end first. */
void mfl_round_close_train(struct mfl_core *core, struct core_job *job, const char *why)
{
        uint32_t need = mfl_round_quorum(job);
        mfl_core_groups_end(core, job, "the round closes");
        for (struct core_task *task = job->tasks; task; task = task->job_next)
                for (uint32_t i = 0; i < task->n_items; i++)
                        if (task->updates[i] && task->updates[i]->state < UPDATE_ADDING)
                                mfl_core_update_drop(core, task->updates[i]);
        mfl_core_job_move(job, PHASE_CLOSING);
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
        job->excused += job->turned_away;
        if (job->attempt >= job->spec->limits.retries + job->excused) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, reason);
                return;
        }
        job->attempt++;
        mfl_core_job_move(job, PHASE_TRAIN_WAIT);
        core->sched_dirty = true;
        mfl_core_trace(core, job, "%s: attempt %u follows", reason, job->attempt + 1);
}

static double ratio(double a, uint64_t b)
{
        return b ? a / (double)b : 0;
}

/* NaN if the loss has no accuracy. */
static double accuracy_of(const struct core_job *job, uint64_t correct, uint64_t scored)
{
        return mfl_job_has_accuracy(job->spec) ? ratio((double)correct, scored) : (double)NAN;
}

static void measure(const struct core_job *job, struct mfl_round_record *record)
{
        bool positions = job->tally_kind == MFL_TALLY_CLASSES || job->scored > 1;
        mfl_tally_measure(job->tally_kind, job->tally, job->answers, record->eval_samples, &record->measures);
        record->has_mean_iou =
                positions && mfl_tally_iou(job->tally_kind, job->tally, job->answers, &record->mean_iou);
}

/* The losses of the clients that count wait until the round is applied. */
static int keep_losses(struct core_job *job)
{
        free(job->seen);
        job->seen = NULL;
        job->n_seen = 0;
        if (!job->memory)
                return 0;
        job->seen = mfl_malloc(MFL_MAX(job->n_items, 1u) * sizeof *job->seen);
        if (!job->seen)
                return -ENOMEM;
        for (uint32_t i = 0; i < job->n_items; i++)
                if (job->items[i].state == ITEM_COUNTED)
                        job->seen[job->n_seen++] =
                                (struct mfl_seen_client){job->items[i].item, job->losses[i]};
        return 0;
}

void mfl_round_finish_train(struct mfl_core *core, struct core_job *job)
{
        enum round_secure secure = mfl_round_secure_end(core, job);
        bool none = secure == ROUND_SECURE_RETRY || secure == ROUND_SECURE_SKIP;
        uint32_t counted = none ? 0 : job->count[ITEM_COUNTED], n = job->n_items,
                 need = mfl_round_quorum(job);
        struct mfl_round_record *record = &job->record;
        record->clients = counted;
        record->clients_rejected = job->count[ITEM_REJECTED];
        record->weight = job->weight_counted;
        record->train_loss = ratio(mfl_core_loss(job->train_loss), record->samples);
        record->train_accuracy = accuracy_of(job, job->train_correct, record->samples);
        if (keep_losses(job)) {
                core->error = -ENOMEM;
                return;
        }
        mfl_live_close(job);
        drop_work(core, job, "the round is over");
        if (job->cuts) { /* a tie may have waited for this round */
                job->cuts_dirty = true;
                mfl_core_dirty(core, job);
        }
        if (job->spoilt && (secure == ROUND_SECURE_NONE || secure == ROUND_SECURE_RETRY)) {
                mfl_core_job_move(job, PHASE_TRAIN_WAIT);
                core->sched_dirty = true;
                mfl_core_trace(core, job, "round %u begins again, %s", job->round,
                        job->samples ? "drawn anew: what was told of its clients proved false"
                                     : "with the same clients: a counted update proved false");
                return;
        }
        if (counted < need && secure != ROUND_SECURE_SKIP) {
                retry_round(core, job, counted, n, need);
                return;
        }
        if (secure == ROUND_SECURE_SKIP && job->n_skipped > job->spec->limits.retries) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED, job->last_failure);
                return;
        }
        if (job->store.round) {
                mfl_core_job_move(job, PHASE_TRAINED);
                mfl_core_trace(core, job, "round %u waits until round %u is committed", job->round,
                        job->store.round);
        } else
                mfl_round_apply(core, job);
}

/* The record is final. */
static void complete_record(struct mfl_core *core, struct core_job *job)
{
        job->store.record = job->record;
        job->store.complete = true;
        mfl_core_job_move(job, PHASE_STORE);
        mfl_core_dirty(core, job);
}

void mfl_round_finish_census(struct mfl_core *core, struct core_job *job)
{
        drop_work(core, job, "the samples are known");
        job->census = false;
        job->census_tries = job->cut_exact ? 0 : job->census_tries + 1;
        if (job->census_tries > job->spec->limits.retries) {
                mfl_round_job_fail(core, job, MFL_JOB_FAILED,
                        "no daemon has told the samples of each client, which the selection needs");
                return;
        }
        mfl_core_job_move(job, PHASE_TRAIN_WAIT);
        core->sched_dirty = true;
        mfl_core_dirty(core, job);
}

void mfl_round_finish_eval(struct mfl_core *core, struct core_job *job)
{
        struct mfl_round_record *record = &job->record;
        uint32_t counted = job->count[ITEM_COUNTED], n = job->n_items;
        bool enough = counted && (counted == n || mfl_core_job_is_local(job));
        record->evaluated = enough && record->eval_samples;
        if (record->evaluated) {
                record->loss = ratio(mfl_core_loss(job->eval_loss), record->eval_samples);
                record->accuracy = accuracy_of(job, job->eval_correct, record->eval_samples);
                measure(job, record);
                mfl_round_scores_end(core, job);
                mfl_core_trace(core, job, "round %u is evaluated on %llu samples", job->round,
                        (unsigned long long)record->eval_samples);
        } else {
                record->eval_samples = 0;
                mfl_round_scores_clear(job);
                if (enough)
                        mfl_core_trace(core, job,
                                "round %u is not evaluated: there is no sample to evaluate on", job->round);
                else
                        mfl_core_trace(core, job, "round %u is not evaluated: only %u of %u %s were done",
                                job->round, counted, n, shards_of(job));
        }
        drop_work(core, job, "the evaluation is over");
        complete_record(core, job);
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

/* ---- after the sums ---- */

static bool evaluates(const struct core_job *job)
{
        uint32_t every = job->spec->evaluation.every;
        bool shards = job->spec->evaluation.on == MFL_EVALUATE_TEST && !mfl_core_job_is_local(job);
        if (!every || (shards && !job->data.test_samples))
                return false;
        return job->round % every == 0 || job->round == job->spec->rounds || job->round == job->stop_after ||
               job->round == job->last_round;
}

void mfl_round_applied(struct mfl_core *core, struct core_job *job, const struct mfl_core_event *event)
{
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        mfl_assert(job->phase == PHASE_APPLY);
        if (!event->ok) {
                char text[MFL_REASON_BYTES];
                mfl_snprintf(text, sizeof text, "round %u: %.200s", job->round, event->reason);
                mfl_round_job_fail(core, job, event->spent ? MFL_JOB_STOPPED : MFL_JOB_FAILED, text);
                return;
        }
        if (job->spec->privacy.kind)
                mfl_measure_set(&job->record.measures, MFL_MEASURE_EPSILON, event->epsilon);
        if (job->spec->privacy.adaptive) /* what the round has used */
                mfl_measure_set(&job->record.measures, MFL_MEASURE_CLIP, job->method[0]);
        memcpy(job->digest, event->digest, MFL_DIGEST_BYTES);
        memcpy(job->record.digest, event->digest, MFL_DIGEST_BYTES);
        mfl_round_note_bases(job, event);
        memcpy(job->method, event->method, sizeof job->method);
        mfl_round_store_begin(core, job);
        core->sched_dirty = true;
        if (evaluates(job)) {
                mfl_core_job_move(job, PHASE_EVAL_WAIT);
                return;
        }
        complete_record(core, job);
        if (job->round < job->spec->rounds && job->round != job->stop_after && job->round != job->last_round)
                mfl_round_next(core, job); /* it trains while this one is stored */
}
