/* SPDX-License-Identifier: Apache-2.0 */
/* Storing an applied round: its checkpoint, its commit, and a failing disk. */
#include "server/round/round_store.h"

#include "common/base/states.h"
#include "server/round/round_job.h"
#include "server/live/live.h"

#define RETRY_MS 5000

#define TO(state) MFL_TO(STORE_##state)
static const struct mfl_states states = {.thing = "store of a job",
        .n = STORE_STATES_,
        .v = {
                [STORE_EMPTY] = {"EMPTY", TO(CHECKPOINT)},
                [STORE_CHECKPOINT] = {"CHECKPOINT", TO(CHECKPOINT_RETRY) | TO(CHECKPOINTED)},
                [STORE_CHECKPOINT_RETRY] = {"CHECKPOINT_RETRY", TO(CHECKPOINT)},
                [STORE_CHECKPOINTED] = {"CHECKPOINTED", TO(COMMIT)},
                [STORE_COMMIT] = {"COMMIT", TO(COMMIT_RETRY) | TO(EMPTY)},
                [STORE_COMMIT_RETRY] = {"COMMIT_RETRY", TO(COMMIT)},
        }};
#undef TO

static void move(struct core_store *store, enum store_state to)
{
        store->state = mfl_states_move(&states, store->state, to);
        store->retry_ms = CORE_NEVER;
}

static void order_checkpoint(struct mfl_core *core, struct core_job *job)
{
        move(&job->store, STORE_CHECKPOINT);
        job->n_pending++;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_CHECKPOINT, job);
        action->round = job->store.round;
        action->memory.v = job->memory ? job->memory->word : NULL;
        action->memory.n = job->memory ? (uint64_t)job->spec->data.clients + 1 : 0;
        if (job->calendar) {
                action->memory.v = job->calendar->word;
                action->memory.n = mfl_calendar_rows(job->spec);
        }
}

static void order_commit(struct mfl_core *core, struct core_job *job)
{
        struct core_store *store = &job->store;
        move(store, STORE_COMMIT);
        job->n_pending++;
        store->record.ended_ms = core->now_ms;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_COMMIT, job);
        action->round = store->round;
        action->record = store->record;
        action->scores = job->scores.round == store->round ? &job->scores : NULL;
}

void mfl_round_store_begin(struct mfl_core *core, struct core_job *job)
{
        mfl_assert(!job->store.round);
        job->store = (struct core_store){.round = job->round, .record = job->record, .retry_ms = CORE_NEVER};
        order_checkpoint(core, job);
}

/* The reason is shown until the round is committed, whatever the job does meanwhile. */
static void disk_fails(struct mfl_core *core, struct core_job *job, enum store_state to, const char *what,
        const char *reason)
{
        struct core_store *store = &job->store;
        move(store, to);
        store->retry_ms = core->now_ms + RETRY_MS;
        mfl_core_wake(core, store->retry_ms);
        store->failing = true;
        mfl_snprintf(store->reason, sizeof store->reason, "round %u: %s failed, retried every 5 s: %.180s",
                store->round, what, reason);
        mfl_round_running(core, job);
}

void mfl_round_checkpointed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason)
{
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        if (ok)
                move(&job->store, STORE_CHECKPOINTED);
        else
                disk_fails(core, job, STORE_CHECKPOINT_RETRY, "checkpoint", reason);
}

void mfl_round_committed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason)
{
        struct core_store *store = &job->store;
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        if (!ok) {
                disk_fails(core, job, STORE_COMMIT_RETRY, "commit", reason);
                return;
        }
        bool failed = store->failing;
        job->committed = store->round;
        move(store, STORE_EMPTY);
        *store = (struct core_store){.retry_ms = CORE_NEVER};
        mfl_core_trace(core, job, "round %u is committed", job->committed);
        if (job->committed == job->spec->rounds) {
                mfl_live_end(core, job, "the job is done");
                mfl_core_job_move(job, PHASE_OVER);
                mfl_round_reason(core, job, MFL_JOB_DONE, "%s", "");
                return;
        }
        if (mfl_round_stops(core, job))
                return;
        if (failed && job->state == MFL_JOB_RUNNING)
                mfl_round_running(core, job);
        if (job->phase == PHASE_STORE)
                mfl_round_next(core, job);
        else if (job->phase == PHASE_TRAINED)
                mfl_round_apply(core, job);
}

/* After a failure the timer repeats the order. */
void mfl_round_store_progress(struct mfl_core *core, struct core_job *job)
{
        const struct core_store *store = &job->store;
        if (store->state == STORE_CHECKPOINTED && store->complete && job->phase != PHASE_OVER)
                order_commit(core, job);
}

void mfl_round_store_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        const struct core_store *store = &job->store;
        if (core->now_ms >= store->retry_ms && store->state == STORE_CHECKPOINT_RETRY)
                order_checkpoint(core, job);
        else if (core->now_ms >= store->retry_ms)
                order_commit(core, job);
        *next_ms = MFL_MIN(*next_ms, store->retry_ms);
}
