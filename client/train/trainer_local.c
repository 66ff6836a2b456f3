/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a client's steps take: an order for each epoch, from the job's seed. */
#include "client/train/trainer_internal.h"
#include "common/cohort/memory.h"

void mfl_trainer_local_begin(struct trainer_local *local, const struct mfl_job *spec, uint32_t round,
        uint64_t client, const uint32_t *samples, uint32_t n)
{
        *local = (struct trainer_local){.client = client,
                .samples = samples,
                .n = n,
                .n_epoch = trainer_epoch_rows(spec, n),
                .n_steps = mfl_method_all_steps(spec, round, n)};
}

void mfl_trainer_local_phase(struct trainer_local *local, const struct mfl_job *spec,
        const struct mfl_phase *phases, uint32_t phase)
{
        local->phase = phase;
        local->first = local->step;
        local->end = local->first + mfl_phase_steps(spec, &phases[phase], local->n);
        local->at = local->n_epoch;
}

static void shuffle_epoch(
        struct trainer_local *local, const struct mfl_job *spec, uint32_t round, uint32_t *order)
{
        memcpy(order, local->samples, local->n * sizeof(*order));
        struct mfl_rng rng = mfl_rng_new(
                spec->seed, MFL_RNG_SHUFFLE, local->client, (uint64_t)round * 65536 + local->epoch);
        mfl_rng_shuffle(&rng, order, local->n);
        local->epoch++;
        local->at = 0;
}

/* The rows of the lane's next step, which is then behind it; *ret_n: how many. Inner steps have the same rows. */
static const uint32_t *next_rows(struct trainer_run *run, struct trainer_lane *lane, uint32_t *ret_n)
{
        const struct mfl_job *spec = run->job->spec;
        struct trainer_local *local = &lane->local;
        if (trainer_phase(run, lane)->gradient) { /* each sample once */
                uint32_t at = (uint32_t)(local->step++ - local->first) * trainer_step_rows(spec);
                *ret_n = MFL_MIN(trainer_step_rows(spec), local->n - at);
                return local->samples + at;
        }
        uint32_t inner = MFL_MAX(trainer_phase(run, lane)->inner, 1u);
        if ((local->step - local->first) % inner) {
                uint32_t rest = local->at % trainer_step_rows(spec); /* of the epoch's last batch */
                *ret_n = rest ? rest : trainer_step_rows(spec);
                local->step++;
                return lane->order + local->at - *ret_n;
        }
        if (local->at == local->n_epoch)
                shuffle_epoch(local, spec, run->request->task->round, lane->order);
        const uint32_t *rows = lane->order + local->at;
        *ret_n = MFL_MIN(trainer_step_rows(spec), local->n_epoch - local->at);
        local->at += *ret_n;
        local->step++;
        return rows;
}

void mfl_trainer_local_fill(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i_lane, uint32_t phase, uint32_t n)
{
        const struct mfl_job *spec = run->job->spec;
        struct trainer_lane *lane = &slot->lanes[i_lane];
        struct trainer_local *local = &lane->local;
        uint32_t rows = trainer_step_rows(spec), round = run->request->task->round, t = 0;
        uint32_t *index = slot->index + (size_t)i_lane * slot->steps_max * rows;
        uint32_t *count = slot->count + (size_t)i_lane * slot->steps_max;
        float *scale = mfl_trainer_scales(slot, i_lane);
        uint64_t first = local->step - local->first, stream = round | (uint64_t)phase << 32;
        uint32_t inner = MFL_MAX(run->phases[phase].inner, 1u);
        bool in_phase = lane->active && local->phase == phase;
        for (; in_phase && t < n && local->step < local->end; t++) {
                if (scale)
                        scale[t] = mfl_job_lr_scale(spec, round, (local->step - local->first) / inner,
                                (local->end - local->first) / inner);
                const uint32_t *from = next_rows(run, lane, &count[t]);
                memcpy(index + (size_t)t * rows, from, count[t] * sizeof(uint32_t));
        }
        for (uint32_t rest = t; rest < n; rest++) {
                count[rest] = 0;
                if (scale)
                        scale[rest] = 0;
        }
        slot->groups[i_lane] = (struct mfl_group_steps){.index = index,
                .count = count,
                .dropout = mfl_rng_derive(spec->seed, MFL_RNG_DROPOUT, local->client, stream),
                .augment = mfl_rng_derive(spec->seed, MFL_RNG_AUGMENT, local->client, stream),
                .step_first = (uint32_t)first,
                .lr_scale = run->phases[phase].gradient ? NULL : scale};
}

/* Steps of one call have one optimizer: lanes that are in a later phase wait. */
static uint32_t phase_of_chunk(const struct trainer_slot *slot)
{
        uint32_t phase = UINT32_MAX;
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                if (slot->lanes[i].active)
                        phase = MFL_MIN(phase, slot->lanes[i].local.phase);
        return phase;
}

/* How many steps to take: while clients or phases wait, to the end of the first lane, so that the next can start there;
 * otherwise to the end of the last lane. Never beyond the inner steps of a batch. */
uint32_t mfl_trainer_chunk(struct trainer_run *run, const struct trainer_slot *slot, uint32_t *ret_phase)
{
        uint32_t phase = *ret_phase = phase_of_chunk(slot);
        if (mfl_memory_needs_squares(run->job->spec)) /* of each batch's loss */
                return 1;
        const struct mfl_phase *now = &run->phases[phase];
        if (now->gradient || now->anchored || now->mix != 0) /* the params are looked at after each */
                return 1;
        bool waiting = mfl_trainer_item_waits(run) || phase + 1 < run->n_phases;
        uint64_t n = waiting ? UINT64_MAX : 0, most = slot->chunk_steps, inner = now->inner;
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                const struct trainer_local *local = &slot->lanes[i].local;
                if (!slot->lanes[i].active || local->phase != phase)
                        continue;
                n = waiting ? MFL_MIN(n, local->end - local->step) : MFL_MAX(n, local->end - local->step);
                if (inner)
                        most = MFL_MIN(most, inner - (local->step - local->first) % inner);
        }
        return (uint32_t)MFL_MIN(n, most);
}

uint64_t mfl_trainer_local_skip(struct trainer_run *run, struct trainer_lane *lane, uint64_t step)
{
        uint64_t rows = 0;
        for (uint32_t n; lane->local.step < step; rows += n)
                next_rows(run, lane, &n);
        return rows;
}
