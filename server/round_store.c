/* SPDX-License-Identifier: Apache-2.0 */
/* Storing a round that is applied: its checkpoint, its commit, and a disk that fails. See round_store.h. */
#include "server/round_store.h"

static void order_checkpoint(struct mfl_core *core, struct core_job *job)
{
        job->store.checkpoint_retry_ms = CORE_NEVER;
        job->n_pending++;
        mfl_core_act(core, MFL_ACT_CHECKPOINT, job)->round = job->store.round;
}

static void order_commit(struct mfl_core *core, struct core_job *job)
{
        struct core_store *store = &job->store;
        store->commit_retry_ms = CORE_NEVER;
        store->committing = true;
        job->n_pending++;
        store->record.ended_ms = core->now_ms;
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_COMMIT, job);
        action->round = store->round;
        action->record = store->record;
}

void mfl_round_store_clear(struct core_job *job)
{
        job->store = (struct core_store){.checkpoint_retry_ms = CORE_NEVER, .commit_retry_ms = CORE_NEVER};
}

void mfl_round_store_begin(struct mfl_core *core, struct core_job *job)
{
        mfl_assert(!job->store.round);
        mfl_round_store_clear(job);
        job->store.round = job->round;
        job->store.record = job->record;
        order_checkpoint(core, job);
}

/* Shown until the disk takes it, whatever the job does meanwhile. */
static void disk_fails(struct mfl_core *core, struct core_job *job, const char *what, const char *reason,
        uint64_t *ret_retry_ms)
{
        struct core_store *store = &job->store;
        *ret_retry_ms = core->now_ms + CORE_DISK_RETRY_MS;
        mfl_core_wake(core, *ret_retry_ms);
        store->failing = true;
        mfl_snprintf(store->reason, sizeof store->reason,
                "round %u: %s failed, tried again every 5 s: %.180s", store->round, what, reason);
        mfl_round_running(core, job);
}

void mfl_round_checkpointed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason)
{
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        if (ok)
                job->store.checkpointed = true;
        else
                disk_fails(core, job, "checkpoint", reason, &job->store.checkpoint_retry_ms);
}

void mfl_round_committed(struct mfl_core *core, struct core_job *job, bool ok, const char *reason)
{
        struct core_store *store = &job->store;
        mfl_core_dirty(core, job);
        if (!mfl_round_answered(job))
                return;
        mfl_assert(store->committing);
        if (!ok) {
                disk_fails(core, job, "commit", reason, &store->commit_retry_ms);
                return;
        }
        bool failed = store->failing;
        job->committed = store->round;
        mfl_round_store_clear(job);
        mfl_core_trace(core, job, "round %u is committed", job->committed);
        if (job->committed == job->spec->rounds) {
                job->phase = PHASE_OVER;
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

/* Once the checkpoint is on disk and the record complete. After a failure the timer orders it again. */
void mfl_round_store_progress(struct mfl_core *core, struct core_job *job)
{
        const struct core_store *store = &job->store;
        if (store->round && store->checkpointed && store->complete && !store->committing &&
                job->phase != PHASE_OVER)
                order_commit(core, job);
}

void mfl_round_store_timers(struct mfl_core *core, struct core_job *job, uint64_t *next_ms)
{
        struct core_store *store = &job->store;
        if (core->now_ms >= store->checkpoint_retry_ms)
                order_checkpoint(core, job);
        if (core->now_ms >= store->commit_retry_ms)
                order_commit(core, job);
        *next_ms = MFL_MIN(*next_ms, MFL_MIN(store->checkpoint_retry_ms, store->commit_retry_ms));
}
