/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a client's steps take: an order for each epoch, from the job's seed. */
#include "client/train/trainer_internal.h"

void mfl_trainer_local_begin(struct trainer_local *local, const struct mfl_job *spec, uint64_t client,
        const uint32_t *samples, uint32_t n)
{
        *local = (struct trainer_local){.client = client,
                .samples = samples,
                .n = n,
                .n_epoch = trainer_epoch_rows(spec, n),
                .n_steps = mfl_job_steps(spec, n)};
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

/* The rows of the lane's next step, which is then behind it; *ret_n: how many. */
static const uint32_t *next_rows(struct trainer_run *run, struct trainer_lane *lane, uint32_t *ret_n)
{
        const struct mfl_job *spec = run->job->spec;
        struct trainer_local *local = &lane->local;
        if (local->at == local->n_epoch)
                shuffle_epoch(local, spec, run->request->task->round, lane->order);
        const uint32_t *rows = lane->order + local->at;
        *ret_n = MFL_MIN(trainer_step_rows(spec), local->n_epoch - local->at);
        local->at += *ret_n;
        local->step++;
        return rows;
}

void mfl_trainer_local_fill(struct trainer_run *run, struct trainer_slot *slot, uint32_t i_lane, uint32_t n)
{
        const struct mfl_job *spec = run->job->spec;
        struct trainer_lane *lane = &slot->lanes[i_lane];
        struct trainer_local *local = &lane->local;
        uint32_t rows = trainer_step_rows(spec), round = run->request->task->round, t = 0;
        uint32_t *index = slot->index + (size_t)i_lane * slot->steps_max * rows;
        uint32_t *count = slot->count + (size_t)i_lane * slot->steps_max;
        float *scale = slot->lr_scale ? slot->lr_scale + (size_t)i_lane * slot->steps_max : NULL;
        uint64_t first = local->step;
        for (; lane->active && t < n && local->step < local->n_steps; t++) {
                if (scale)
                        scale[t] = mfl_job_lr_scale(spec, round, local->step, local->n_steps);
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
                .dropout = mfl_rng_derive(spec->seed, MFL_RNG_DROPOUT, local->client, round),
                .augment = mfl_rng_derive(spec->seed, MFL_RNG_AUGMENT, local->client, round),
                .step_first = (uint32_t)first,
                .lr_scale = scale};
}

uint64_t mfl_trainer_local_skip(struct trainer_run *run, struct trainer_lane *lane, uint64_t step)
{
        uint64_t rows = 0;
        for (uint32_t n; lane->local.step < step; rows += n)
                next_rows(run, lane, &n);
        return rows;
}
