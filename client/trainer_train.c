/* SPDX-License-Identifier: Apache-2.0 */
/* Local training of clients, and the sum of their updates. */
#include "client/trainer_internal.h"

#include <math.h>

/* Cancelling shall be felt within 100 ms, but a call of the backend has a cost of its own. */
#define CHUNK_NS_SHORT 10000000u
#define CHUNK_NS_LONG 40000000u

/* Where a client's local training stands. */
struct local {
        uint64_t client;
        const uint32_t *samples;
        uint32_t n;
        uint64_t n_steps, step; /* in all; next */
        uint64_t epoch;         /* next to be shuffled */
        uint32_t at;            /* position within the epoch's order */
};

static void begin_local(
        struct local *local, const struct mfl_job *spec, uint64_t client, const uint32_t *samples, uint32_t n)
{
        uint64_t per_epoch = ((uint64_t)n + spec->training.batch - 1) / spec->training.batch;
        *local = (struct local){.client = client,
                .samples = samples,
                .n = n,
                .n_steps = spec->training.steps ? spec->training.steps : per_epoch * spec->training.epochs,
                .at = n};
}

static void shuffle_epoch(struct local *local, const struct mfl_job *spec, uint32_t round, uint32_t *order)
{
        memcpy(order, local->samples, local->n * sizeof(*order));
        struct mfl_rng rng = mfl_rng_new(
                spec->seed, MFL_RNG_SHUFFLE, local->client, (uint64_t)round * 65536 + local->epoch);
        mfl_rng_shuffle(&rng, order, local->n);
        local->epoch++;
        local->at = 0;
}

/* Lays out the next steps; returns their number. */
static uint32_t fill_chunk(
        struct local *local, const struct mfl_job *spec, uint32_t round, struct trainer_slot *slot)
{
        uint32_t batch = spec->training.batch, n = 0;
        for (; n < slot->chunk_steps && local->step + n < local->n_steps; n++) {
                if (local->at == local->n)
                        shuffle_epoch(local, spec, round, slot->order);
                uint32_t count = MFL_MIN(batch, local->n - local->at);
                memcpy(slot->index + (size_t)n * batch, slot->order + local->at, count * sizeof(uint32_t));
                slot->count[n] = count;
                local->at += count;
        }
        return n;
}

static void adapt_chunk(struct trainer_slot *slot, uint32_t n_steps, uint64_t ns)
{
        if (ns > CHUNK_NS_LONG)
                slot->chunk_steps = MFL_MAX(1u, slot->chunk_steps / 2);
        else if (ns < CHUNK_NS_SHORT && n_steps == slot->chunk_steps)
                slot->chunk_steps = MFL_MIN(CHUNK_STEPS_MAX, slot->chunk_steps * 2);
}

static struct mfl_sgd sgd_of(const struct mfl_job *spec)
{
        return (struct mfl_sgd){.lr = spec->training.lr,
                .momentum = spec->training.momentum,
                .weight_decay = spec->training.weight_decay,
                .nesterov = spec->training.nesterov,
                .prox_mu = spec->aggregation.strategy == MFL_STRATEGY_FEDPROX ? spec->aggregation.mu : 0};
}

static int train_steps(struct trainer_run *run, struct trainer_slot *slot, struct local *local,
        struct trainer_item *item, struct mfl_error *err)
{
        const struct mfl_job *spec = run->job->spec;
        const struct mfl_backend_ops *ops = run->trainer->ops;
        struct mfl_train_control *control = run->request->control;
        struct mfl_sgd sgd = sgd_of(spec);
        uint32_t round = run->request->task->round;
        struct mfl_rng_key dropout = mfl_rng_derive(spec->seed, MFL_RNG_DROPOUT, local->client, round);
        while (local->step < local->n_steps) {
                if (trainer_run_stopped(run))
                        return mfl_fail(err, MFL_CANCELLED, "cancelled");
                uint64_t start_ns = mfl_now_ns();
                uint32_t n = fill_chunk(local, spec, round, slot);
                struct mfl_group_steps group = {.index = slot->index,
                        .count = slot->count,
                        .dropout = dropout,
                        .step_first = (uint32_t)local->step};
                int r = ops->step(slot->train, run->job->data->train, &group, n, &sgd, err);
                if (r)
                        return r;
                local->step += n;
                item->loss_sum += group.loss_sum;
                item->correct += group.n_correct;
                item->samples += group.n_samples;
                atomic_fetch_add(&control->samples_done, group.n_samples);
                atomic_fetch_add(&control->loss_sum, group.loss_sum);
                adapt_chunk(slot, n, mfl_now_ns() - start_ns);
        }
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
        uint64_t n = graph->n, n_bad = 0;
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
        while (t + 1 < graph->n_params && graph->params[t + 1].offset <= i)
                t++;
        return reject(item,
                mfl_asprintf("%llu elements of the update are not within +-%g; the first is %g in %s",
                        (unsigned long long)n_bad, (double)max, (double)params[i], graph->params[t].name),
                err);
}

/* Workers start at different stripes, so they seldom wait for each other. */
static int add_delta(
        struct trainer_run *run, uint32_t worker, const float *delta, uint64_t weight, struct mfl_error *err)
{
        uint64_t n = run->job->graph->n;
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

static int train_client(struct trainer_run *run, uint32_t worker, uint32_t i, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = run->trainer->ops;
        const struct mfl_job *spec = run->job->spec;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct trainer_item *item = &run->items[i];
        uint64_t start_ns = mfl_now_ns();
        struct local local;
        const uint32_t *samples;
        uint32_t n;
        int r = trainer_job_client(run->trainer, run->job, run->request->task->items[i], &samples, &n, err);
        if (r)
                return r;
        uint64_t weight = !n || spec->aggregation.weighting == MFL_WEIGHT_SAMPLES ? n : 1;
        uint64_t max = MFL_MIN(MFL_WEIGHT_MAX - 1, run->request->task->fixed.weight_max);
        if (weight < 1 || weight > max)
                return reject(item,
                        mfl_asprintf("its weight is %llu, but 1 to %llu can be added",
                                (unsigned long long)weight, (unsigned long long)max),
                        err);
        begin_local(&local, spec, run->request->task->items[i], samples, n);
        r = ops->params_set(slot->train, 0, run->request->params, err);
        if (!r)
                r = train_steps(run, slot, &local, item, err);
        /* A delta that is uploaded alone is made where the upload reads it. */
        float *delta = run->sum ? slot->after : run->result->data[i];
        if (!r)
                r = ops->params_get(slot->train, 0, delta, err);
        if (!r)
                r = take_delta(run, delta, item, err);
        if (r || item->rejected)
                return r;
        item->weight = weight;
        if (run->sum)
                r = add_delta(run, worker, delta, weight, err);
        item->train_us = (mfl_now_ns() - start_ns) / 1000;
        return r;
}

void trainer_train_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        for (;;) {
                uint32_t i = atomic_fetch_add(&run->next, 1);
                if (i >= run->request->task->n_items || trainer_run_stopped(run))
                        return;
                struct mfl_error err = {{0}};
                int r = train_client(run, worker, i, &err);
                if (r) {
                        trainer_run_fail(run, r, &err);
                        return;
                }
                atomic_fetch_add(&run->request->control->items_done, 1);
        }
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
        update->bytes = update->n_rejected < count ? run->job->graph->n * element : 0;
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
