/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: finding them, their phases and their items. */
#include "server/state/state.h"

#include "common/base/states.h"

#define TO(state) MFL_TO(PHASE_##state)
/* OVER may follow every phase: a job can be stopped, or fail, at any time. core.h has a picture of a
 * round. */
static const struct mfl_states phases = {.thing = "phase of a job",
        .n = PHASES_,
        .v = {
                [PHASE_DATA] = {"DATA", TO(PREPARE) | TO(OVER)},
                [PHASE_PREPARE] = {"PREPARE", TO(DATA) | TO(SETTLE) | TO(OVER)},
                [PHASE_SETTLE] = {"SETTLE", TO(TRAIN_WAIT) | TO(OVER)},
                [PHASE_TRAIN_WAIT] = {"TRAIN_WAIT", TO(TRAIN) | TO(EVAL) | TO(OVER)},
                [PHASE_TRAIN] = {"TRAIN", TO(CLOSING) | TO(OVER)},
                [PHASE_CLOSING] = {"CLOSING", TO(TRAIN_WAIT) | TO(TRAINED) | TO(APPLY) | TO(OVER)},
                [PHASE_TRAINED] = {"TRAINED", TO(APPLY) | TO(OVER)},
                [PHASE_APPLY] = {"APPLY", TO(EVAL_WAIT) | TO(STORE) | TO(OVER)},
                [PHASE_EVAL_WAIT] = {"EVAL_WAIT", TO(EVAL) | TO(STORE) | TO(OVER)},
                [PHASE_EVAL] = {"EVAL", TO(STORE) | TO(TRAIN_WAIT) | TO(OVER)},
                [PHASE_STORE] = {"STORE", TO(TRAIN_WAIT) | TO(OVER)},
                [PHASE_OVER] = {"OVER", 0},
        }};
#undef TO

#define TO(state) MFL_TO(ITEM_##state)
/* ASSIGNED may follow itself and MISSING: a result may arrive for a task that was taken back. COUNTED becomes MISSING with a bucket whose
 * secure sum can't be opened. */
static const struct mfl_states items = {.thing = "item",
        .n = ITEM_STATES_,
        .v = {
                [ITEM_OPEN] = {"OPEN", TO(ASSIGNED) | TO(MISSING)},
                [ITEM_ASSIGNED] = {"ASSIGNED",
                        TO(OPEN) | TO(ASSIGNED) | TO(COUNTED) | TO(REJECTED) | TO(MISSING)},
                [ITEM_COUNTED] = {"COUNTED", TO(MISSING)},
                [ITEM_REJECTED] = {"REJECTED", 0},
                [ITEM_MISSING] = {"MISSING", TO(OPEN) | TO(ASSIGNED)},
        }};
#undef TO

struct core_job *mfl_core_job(const struct mfl_core *core, const char *id)
{
        for (struct core_job *job = core->jobs; job; job = job->next)
                if (strcmp(job->id, id) == 0)
                        return job;
        return NULL;
}

void mfl_core_dirty(struct mfl_core *core, struct core_job *job)
{
        job->dirty = core->dirty = true;
}

void mfl_core_job_move(struct core_job *job, enum core_phase to)
{
        job->phase = mfl_states_move(&phases, job->phase, to);
}

void mfl_core_item_set(struct core_job *job, uint32_t i, enum item_state state, struct core_task *task)
{
        struct core_item *item = &job->items[i];
        mfl_assert((state == ITEM_ASSIGNED) == (task != NULL));
        job->count[item->state]--;
        job->count[state]++;
        item->state = mfl_states_move(&items, item->state, state);
        item->task = task;
}

void mfl_core_items_clear(struct core_job *job)
{
        free(job->items);
        free(job->losses);
        free(job->base);
        job->base = NULL;
        job->items = NULL;
        job->losses = NULL;
        job->n_items = 0;
        memset(job->count, 0, sizeof job->count);
}

const uint8_t *mfl_core_item_params(const struct core_job *job, uint32_t i)
{
        return job->base ? job->bases[job->base[i] % mfl_job_bases(job->spec)] : job->digest;
}

uint32_t mfl_core_item_round(const struct core_job *job, uint32_t i)
{
        return job->base && mfl_job_is_live(job->spec) ? job->base[i] + 1 : job->round;
}

bool mfl_core_stands(const struct mfl_core *core, uint64_t task)
{
        for (const struct core_job *job = core->jobs; job; job = job->next)
                for (uint32_t i = 0; i < job->n_standing; i++)
                        if (job->standing[i].task == task)
                                return true;
        return false;
}

uint32_t mfl_core_item_staleness(const struct core_job *job, uint32_t i)
{
        return job->calendar && job->base ? job->round - 1 - job->base[i] : 0;
}
