/* SPDX-License-Identifier: Apache-2.0 */
/* Local training of clients, and the sum of their updates. */
#include "client/trainer_internal.h"

#include <math.h>

/* Cancelling shall be felt within 100 ms, but a call of the backend has a cost of its own. */
#define CHUNK_NS_SHORT 10000000u
#define CHUNK_NS_LONG 40000000u

static void begin_local(struct trainer_local *local, const struct mfl_job *spec, uint64_t client,
        const uint32_t *samples, uint32_t n)
{
        uint32_t rows = trainer_step_rows(spec);
        uint64_t per_epoch = ((uint64_t)n + rows - 1) / rows;
        *local = (struct trainer_local){.client = client,
                .samples = samples,
                .n = n,
                .n_steps = spec->training.steps ? spec->training.steps : per_epoch * spec->training.epochs,
                .at = n};
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

/* Lays out the lane's next n steps, fewer where its client ends before; the rest count nothing. */
static void fill_lane(struct trainer_run *run, struct trainer_slot *slot, uint32_t i_lane, uint32_t n)
{
        const struct mfl_job *spec = run->job->spec;
        struct trainer_lane *lane = &slot->lanes[i_lane];
        struct trainer_local *local = &lane->local;
        uint32_t rows = trainer_step_rows(spec), round = run->request->task->round, t = 0;
        uint32_t *index = slot->index + (size_t)i_lane * slot->steps_max * rows;
        uint32_t *count = slot->count + (size_t)i_lane * slot->steps_max;
        float *scale = slot->lr_scale ? slot->lr_scale + (size_t)i_lane * slot->steps_max : NULL;
        for (; lane->active && t < n && local->step + t < local->n_steps; t++) {
                if (local->at == local->n)
                        shuffle_epoch(local, spec, round, lane->order);
                count[t] = MFL_MIN(rows, local->n - local->at);
                if (scale)
                        scale[t] = mfl_job_lr_scale(spec, round, local->step + t, local->n_steps);
                memcpy(index + (size_t)t * rows, lane->order + local->at, count[t] * sizeof(uint32_t));
                local->at += count[t];
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
                .step_first = (uint32_t)local->step,
                .lr_scale = scale};
        local->step += t;
}

static void adapt_chunk(struct trainer_slot *slot, uint32_t n_steps, uint64_t ns)
{
        if (ns > CHUNK_NS_LONG)
                slot->chunk_steps = MFL_MAX(1u, slot->chunk_steps / 2);
        else if (ns < CHUNK_NS_SHORT && n_steps == slot->chunk_steps)
                slot->chunk_steps = MFL_MIN(slot->steps_max, slot->chunk_steps * 2);
}

static struct mfl_optimizer optimizer_of(const struct mfl_job *spec)
{
        return (struct mfl_optimizer){.kind = (enum mfl_optimizer_kind)spec->training.optimizer,
                .lr = spec->training.lr,
                .momentum = spec->training.momentum,
                .weight_decay = spec->training.weight_decay,
                .nesterov = spec->training.nesterov,
                .beta1 = spec->training.beta1,
                .beta2 = spec->training.beta2,
                .eps = spec->training.eps,
                .clip_norm = spec->training.clip_norm,
                .prox_mu = spec->aggregation.strategy == MFL_STRATEGY_FEDPROX ? spec->aggregation.mu : 0};
}

/* How far to go: while clients wait, to the end of the first lane, so that the next one can start there;
 * else to the end of the last. */
static uint32_t steps_of_chunk(struct trainer_run *run, const struct trainer_slot *slot)
{
        bool waiting = atomic_load(&run->next) < run->request->task->n_items;
        uint64_t n = waiting ? UINT64_MAX : 0;
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                const struct trainer_local *local = &slot->lanes[i].local;
                if (!slot->lanes[i].active)
                        continue;
                n = waiting ? MFL_MIN(n, local->n_steps - local->step)
                            : MFL_MAX(n, local->n_steps - local->step);
        }
        return (uint32_t)MFL_MIN(n, slot->chunk_steps);
}

static int step_lanes(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        struct mfl_train_control *control = run->request->control;
        struct mfl_optimizer opt = optimizer_of(run->job->spec);
        uint64_t start_ns = mfl_now_ns();
        uint32_t n = steps_of_chunk(run, slot), n_active = 0;
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                fill_lane(run, slot, i, n);
                n_active += slot->lanes[i].active;
        }
        uint64_t filled_ns = mfl_now_ns(), samples = 0;
        int r = n ? run->trainer->ops->step(slot->train, run->job->data->train, slot->groups, n, &opt, err)
                  : 0;
        if (r)
                return r;
        uint64_t end_ns = mfl_now_ns(), ns = end_ns - start_ns;
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                struct trainer_lane *lane = &slot->lanes[i];
                const struct mfl_group_steps *group = &slot->groups[i];
                if (!lane->active)
                        continue;
                struct trainer_item *item = &run->items[lane->item];
                item->loss_sum += group->score.loss_sum;
                item->correct += group->score.n_correct;
                item->samples += group->score.n_scored;
                lane->busy_ns += ns / n_active; /* its share of the device's time */
                samples += group->n_samples;
                atomic_fetch_add(&control->samples_done, group->n_samples);
                atomic_fetch_add(&control->loss_sum, group->score.loss_sum);
        }
        trainer_count(run, slot->train, samples, filled_ns - start_ns, end_ns, &slot->train_told_ns);
        adapt_chunk(slot, n, ns);
        return 0;
}

static int reject(struct trainer_item *item, char *reason, struct mfl_error *err)
{
        if (!reason)
                return mfl_fail_memory(err, MFL_REASON_BYTES, "a reason");
        *item = (struct trainer_item){.rejected = reason};
        return 0;
}

/* params becomes the delta. The first element that can't be added rejects the client. */
static int take_delta(
        struct trainer_run *run, float *params, struct trainer_item *item, struct mfl_error *err)
{
        const float *before = run->request->params;
        const struct mfl_graph *graph = run->job->graph;
        float max = run->request->task->fixed.delta_max;
        uint64_t n = graph->n_moving, n_bad = 0;
        for (uint64_t i = 0; i < n; i++) {
                params[i] -= before[i];
                n_bad += !(fabsf(params[i]) <= max);
        }
        if (!n_bad)
                return 0;
        uint64_t i = 0;
        while (fabsf(params[i]) <= max)
                i++;
        int t = 0;
        while (t + 1 < graph->n_params && graph->params[t + 1].offset <= graph->n_frozen + i)
                t++;
        return reject(item,
                mfl_asprintf("%llu elements of the update are not within +-%g (aggregation.delta_max; a "
                             "smaller training.lr may "
                             "help); the first is %g in %s",
                        (unsigned long long)n_bad, (double)max, (double)params[i], graph->params[t].name),
                err);
}

/* Workers start at different stripes, so they seldom wait for each other. */
static int add_delta(
        struct trainer_run *run, uint32_t worker, const float *delta, uint64_t weight, struct mfl_error *err)
{
        uint64_t n = run->job->graph->n_moving;
        uint32_t n_stripes = (uint32_t)((n + run->stripe - 1) / run->stripe);
        for (uint32_t s = 0; s < n_stripes; s++) {
                uint32_t i = (s + worker * 7) % n_stripes;
                uint64_t first = i * run->stripe, count = MFL_MIN(run->stripe, n - first);
                pthread_mutex_lock(&run->stripes[i]);
                int r = mfl_fixed_add_f32(
                        &run->request->task->fixed, weight, delta + first, count, run->sum + first, err);
                pthread_mutex_unlock(&run->stripes[i]);
                if (r)
                        return r;
        }
        return 0;
}

/* Lane i takes item `item`; a client that can't be counted is rejected at once. */
static int start_lane(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, uint32_t item, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = run->trainer->ops;
        const struct mfl_job *spec = run->job->spec;
        const struct mfl_task *task = run->request->task;
        struct trainer_lane *lane = &slot->lanes[i];
        uint64_t start_ns = mfl_now_ns();
        const uint32_t *samples;
        uint32_t n;
        int r = trainer_job_client(run->trainer, run->job, task->items[item], &samples, &n, err);
        if (r)
                return r;
        uint64_t weight = !n || spec->aggregation.weighting == MFL_WEIGHT_SAMPLES ? n : 1;
        uint64_t max = MFL_MIN(MFL_WEIGHT_MAX - 1, task->fixed.weight_max);
        if (weight < 1 || weight > max) {
                atomic_fetch_add(&run->request->control->items_done, 1);
                return reject(&run->items[item],
                        mfl_asprintf("its weight is %llu, but 1 to %llu can be added",
                                (unsigned long long)weight, (unsigned long long)max),
                        err);
        }
        begin_local(&lane->local, spec, task->items[item], samples, n);
        r = ops->params_set(slot->train, (int)i, run->request->frozen,
                ops->params_base ? NULL : run->request->params, err);
        lane->item = item;
        lane->weight = weight;
        lane->active = true;
        lane->busy_ns = mfl_now_ns() - start_ns;
        return r;
}

static int start_lanes(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t *ret_n_active, struct mfl_error *err)
{
        uint32_t n_items = run->request->task->n_items, n_active = 0;
        int r = 0;
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++) {
                while (!r && !slot->lanes[i].active) {
                        uint32_t item = atomic_fetch_add(&run->next, 1);
                        if (item >= n_items)
                                break;
                        r = start_lane(run, slot, i, item, err);
                }
                n_active += slot->lanes[i].active;
        }
        *ret_n_active = n_active;
        return r;
}

static bool lane_done(const struct trainer_lane *lane)
{
        return lane->active && lane->local.step == lane->local.n_steps;
}

/* The client's update through the host: alone where it is uploaded alone, else into the common sum. */
static int end_on_host(struct trainer_run *run, struct trainer_slot *slot, uint32_t worker, uint32_t i,
        struct mfl_error *err)
{
        struct trainer_lane *lane = &slot->lanes[i];
        struct trainer_item *item = &run->items[lane->item];
        /* A delta that is uploaded alone is made where the upload reads it. */
        float *delta = run->sum ? slot->after : run->result->data[lane->item];
        int r = run->trainer->ops->params_get(slot->train, (int)i, run->job->graph->n_frozen, delta, err);
        if (!r)
                r = take_delta(run, delta, item, err);
        /* Only what the device finds unfit comes here then, and a sum on the device would miss it. */
        if (!r && run->held && !item->rejected)
                return mfl_fail(err, -EIO, "the device rejects an update that is within +-%g",
                        (double)run->request->task->fixed.delta_max);
        if (!r && run->sum && !item->rejected)
                r = add_delta(run, worker, delta, lane->weight, err);
        return r;
}

/* The same for all lanes that are done at once, on the device; a client whose update is not fit for the sum
 * comes to the host for the reason. */
static int end_on_device(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t worker, struct mfl_error *err)
{
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                slot->weight[i] = lane_done(&slot->lanes[i]) ? slot->lanes[i].weight : 0;
        slot->sum_used = true;
        int r = run->trainer->ops->sum_add(
                slot->train, &run->request->task->fixed, slot->weight, slot->n_bad, err);
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++)
                if (slot->n_bad[i])
                        r = end_on_host(run, slot, worker, i, err);
        return r;
}

static int end_lanes(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t worker, struct mfl_error *err)
{
        bool on_device = run->sum && run->trainer->ops->sum_add;
        uint64_t start_ns = mfl_now_ns();
        uint32_t n_done = 0;
        int r = 0;
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                n_done += lane_done(&slot->lanes[i]);
        if (n_done && on_device)
                r = end_on_device(run, slot, worker, err);
        for (uint32_t i = 0; !r && !on_device && i < slot->n_lanes; i++)
                if (lane_done(&slot->lanes[i]))
                        r = end_on_host(run, slot, worker, i, err);
        uint64_t ns = n_done ? (mfl_now_ns() - start_ns) / n_done : 0;
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++) {
                struct trainer_lane *lane = &slot->lanes[i];
                if (!lane_done(lane))
                        continue;
                struct trainer_item *item = &run->items[lane->item];
                if (!item->rejected) {
                        item->weight = lane->weight;
                        item->train_us = (lane->busy_ns + ns) / 1000;
                }
                lane->active = false;
                atomic_fetch_add(&run->request->control->items_done, 1);
        }
        return r;
}

/* A task that failed or was cancelled may have left lanes and a sum behind. */
static int begin_worker(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = run->trainer->ops;
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                slot->lanes[i].active = false;
        int r = slot->sum_used ? ops->sum_take(slot->train, NULL, err) : 0;
        slot->sum_used = false;
        if (!r && ops->params_base)
                r = ops->params_base(slot->train, run->request->frozen, run->request->params, err);
        return r;
}

static int take_sum(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        if (!slot->sum_used)
                return 0;
        pthread_mutex_lock(&run->lock);
        int r = run->held ? run->trainer->ops->sum_move(slot->train, run->held, err)
                          : run->trainer->ops->sum_take(slot->train, run->sum, err);
        pthread_mutex_unlock(&run->lock);
        slot->sum_used = r != 0;
        return r;
}

void trainer_train_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct mfl_error err = {{0}};
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        int r = begin_worker(run, slot, &err);
        while (!r && !trainer_run_stopped(run)) {
                uint32_t n_active;
                r = start_lanes(run, slot, &n_active, &err);
                if (!r && !n_active) {
                        r = take_sum(run, slot, &err);
                        break;
                }
                if (!r)
                        r = step_lanes(run, slot, &err);
                if (!r)
                        r = end_lanes(run, slot, worker, &err);
        }
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                trainer_run_fail(run, r, &err);
}

/* Announces items [first, first + count) as update u. */
static int announce(
        struct trainer_run *run, uint32_t u, uint32_t first, uint32_t count, struct mfl_error *err)
{
        struct mfl_announce *update = &run->result->updates[u];
        uint64_t element = run->sum ? sizeof(int64_t) : sizeof(float);
        update->update = u;
        update->item_first = first;
        update->item_count = count;
        update->encoding = run->sum ? MFL_ENCODING_I64 : MFL_ENCODING_F32;
        for (uint32_t i = first; i < first + count; i++) {
                const struct trainer_item *item = &run->items[i];
                update->n_rejected += item->rejected != NULL;
                update->weight += item->weight;
                update->samples += item->samples;
                update->correct += item->correct;
                update->loss_sum += item->loss_sum;
                update->train_us += item->train_us;
        }
        update->bytes = update->n_rejected < count ? run->job->graph->n_moving * element : 0;
        if (!update->n_rejected)
                return 0;
        update->rejected = mfl_calloc(update->n_rejected, sizeof(*update->rejected));
        if (!update->rejected)
                return mfl_fail_memory(
                        err, update->n_rejected * sizeof(*update->rejected), "rejected clients");
        uint32_t at = 0;
        for (uint32_t i = first; i < first + count; i++) {
                if (!run->items[i].rejected)
                        continue;
                update->rejected[at].item = run->request->task->items[i];
                mfl_strcpy(update->rejected[at].reason, MFL_REASON_BYTES, run->items[i].rejected);
                at++;
        }
        return 0;
}

int trainer_train_result(struct trainer_run *run, struct mfl_error *err)
{
        uint32_t n = run->request->task->n_items;
        int r = 0;
        if (run->result->n_updates == 1)
                return announce(run, 0, 0, n, err);
        for (uint32_t i = 0; !r && i < n; i++)
                r = announce(run, i, i, 1, err);
        return r;
}
