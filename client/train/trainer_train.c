/* SPDX-License-Identifier: Apache-2.0 */
/* Local training of clients, and the sum of their updates. */
#include "client/train/trainer_team.h"

#include "client/train/trainer_poison.h"
#include "common/cohort/memory.h"

/* A cancel should take effect within 100 ms, but each call of the backend has a cost. */
#define CHUNK_NS_SHORT 10000000u
#define CHUNK_NS_LONG 40000000u

/* The lane's client goes on where another team was lost, if this one has what that team had come to. */
static int resume_lane(
        struct trainer_run *run, struct trainer_slot *slot, struct trainer_lane *lane, struct mfl_error *err)
{
        struct trainer_item *item = &run->items[lane->item];
        struct mfl_score score;
        uint32_t step;
        int64_t squares;
        int r = mfl_trainer_resume(run, slot, lane->local.client, &step, &score, &squares, err);
        if (r || !step)
                return r;
        if (step > lane->local.n_steps) {
                lane->active = false; /* what it gave is not kept for the next team */
                return mfl_fail(err, MFL_TEAM_BROKEN, "a member says that it has taken %u steps of %llu",
                        step, (unsigned long long)lane->local.n_steps);
        }
        uint64_t rows = mfl_trainer_local_skip(run, lane, step);
        item->loss_sum = score.loss_sum;
        item->square_sum = squares;
        item->correct = score.n_correct;
        item->samples = score.n_scored;
        if (run->request->task->kind == MFL_TASK_TRAIN) { /* whoever helps reports no progress */
                atomic_fetch_add(&run->request->control->samples_done, rows);
                mfl_trainer_add_loss(run, score.loss_sum);
        }
        return 0;
}

static void adapt_chunk(struct trainer_slot *slot, uint32_t n_steps, uint64_t ns)
{
        if (ns > CHUNK_NS_LONG)
                slot->chunk_steps = MFL_MAX(1u, slot->chunk_steps / 2);
        else if (ns < CHUNK_NS_SHORT && n_steps == slot->chunk_steps)
                slot->chunk_steps = MFL_MIN(slot->steps_max, slot->chunk_steps * 2);
}

static void count_score(
        struct trainer_run *run, const struct trainer_lane *lane, const struct mfl_score *score)
{
        struct trainer_item *item = &run->items[lane->item];
        if (trainer_phase(run, lane)->unsent) /* a round's loss is that of what the server gets */
                return;
        item->loss_sum = mfl_fixed_loss_add(item->loss_sum, score->loss_sum);
        if (mfl_memory_needs_squares(run->job->spec))
                item->square_sum = mfl_memory_add_square(item->square_sum, score->loss_sum, score->n_scored);
        item->correct += score->n_correct;
        item->samples += score->n_scored;
}

static bool is_stepped(const struct trainer_lane *lane, uint32_t phase)
{
        return lane->active && lane->local.phase == phase;
}

static int step_lanes(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        uint32_t phase, n_active = 0, n = mfl_trainer_chunk(run, slot, &phase);
        struct mfl_optimizer opt = mfl_trainer_phase_optimizer(run, phase);
        uint64_t start_ns = mfl_now_ns();
        for (uint32_t i = 0; i < slot->n_lanes; i++) {
                mfl_trainer_local_fill(run, slot, i, phase, n);
                n_active += is_stepped(&slot->lanes[i], phase);
        }
        uint64_t filled_ns = mfl_now_ns(), samples = 0;
        int r = n && !slot->team ? mfl_trainer_probe(run, slot, phase, err) : 0;
        if (n && !r)
                r = slot->team ? mfl_trainer_team_step(run, slot, n, &opt, err)
                               : run->trainer->ops->step(slot->train, mfl_trainer_train_data(run),
                                         slot->groups, n, &opt, err);
        if (r)
                return r;
        uint64_t end_ns = mfl_now_ns(), ns = end_ns - start_ns;
        for (uint32_t i = 0; !r && i < slot->n_lanes; i++) {
                struct trainer_lane *lane = &slot->lanes[i];
                const struct mfl_group_steps *group = &slot->groups[i];
                if (!is_stepped(lane, phase))
                        continue;
                count_score(run, lane, &group->score);
                lane->busy_ns += ns / n_active; /* its share of the device's time */
                samples += group->n_samples;
                if (!run->phases[phase].unsent) { /* the server knows how many there are at most */
                        atomic_fetch_add(&run->request->control->samples_done, group->n_samples);
                        mfl_trainer_add_loss(run, group->score.loss_sum);
                }
                r = mfl_trainer_phase_stepped(run, slot, i, err);
        }
        mfl_trainer_count(run, slot->train, samples, filled_ns - start_ns, end_ns, &slot->train_told_ns);
        adapt_chunk(slot, n, ns);
        return r;
}

/* The client's loss before it trains: an evaluation of its own samples. */
static int measure_loss(
        struct trainer_run *run, struct trainer_slot *slot, struct trainer_lane *lane, struct mfl_error *err)
{
        struct mfl_score score = {0};
        if (!mfl_method_get(run->job->spec)->needs_loss)
                return 0;
        int r = run->trainer->ops->eval(
                slot->eval, 0, mfl_trainer_train_data(run), lane->local.samples, lane->local.n, &score, err);
        lane->loss = score.n_scored ? mfl_fixed_loss_to_double(score.loss_sum) / (double)score.n_scored : 0;
        mfl_trainer_count(run, slot->eval, 0, 0, mfl_now_ns(), &slot->eval_told_ns);
        return r;
}

/* Lane i takes item `item`; a client that can't be counted is rejected at once. */
static int start_lane(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, uint32_t item, struct mfl_error *err)
{
        const struct mfl_job *spec = run->job->spec;
        const struct mfl_task *task = run->request->task;
        struct trainer_lane *lane = &slot->lanes[i];
        uint64_t start_ns = mfl_now_ns();
        const uint32_t *samples;
        uint32_t n;
        int r = mfl_trainer_job_client(run->trainer, run->job, task->items[item], &samples, &n, err);
        if (r)
                return r;
        uint64_t weight;
        r = mfl_trainer_weight(run, &run->items[item], n, &weight, err);
        if (r || run->items[item].rejected) {
                atomic_fetch_add(&run->request->control->items_done, 1);
                return r;
        }
        if (!trainer_epoch_rows(spec, n)) {
                atomic_fetch_add(&run->request->control->items_done, 1);
                return mfl_trainer_reject(&run->items[item],
                        mfl_asprintf("training.drop_last leaves none of its %u samples: a batch has %u", n,
                                spec->training.batch),
                        err);
        }
        mfl_trainer_local_begin(&lane->local, spec, task->round, task->items[item], samples, n);
        mfl_trainer_local_phase(&lane->local, spec, run->phases, 0);
        lane->item = item;
        r = mfl_trainer_phase_begin(run, slot, i, err);
        if (!r && slot->team)
                r = mfl_trainer_team_begin(run, slot, item, err);
        lane->weight = weight;
        lane->active = true;
        if (!r && slot->team)
                r = resume_lane(run, slot, lane, err);
        if (!r && run->request->task->kind == MFL_TASK_TRAIN)
                r = measure_loss(run, slot, lane, err);
        lane->busy_ns = mfl_now_ns() - start_ns;
        return r;
}

static int start_lanes(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t *ret_n_active, struct mfl_error *err)
{
        uint32_t n_active = 0, item;
        int r = 0;
        for (uint32_t i = 0; !r && i < slot->n_used; i++) {
                while (!r && !slot->lanes[i].active && mfl_trainer_item_begin(run, &item))
                        r = start_lane(run, slot, i, item, err);
                n_active += slot->lanes[i].active;
        }
        *ret_n_active = n_active;
        return r;
}

/* Its phase is over; its client, too, unless there is a next phase. */
static bool lane_done(const struct trainer_lane *lane)
{
        return lane->active && lane->local.step == lane->local.end;
}

/* Takes the client's update through the host: as it is if it is uploaded alone, otherwise into the common
 * sum. */
static int end_on_host(struct trainer_run *run, struct trainer_slot *slot, uint32_t worker, uint32_t i,
        struct mfl_error *err)
{
        struct trainer_lane *lane = &slot->lanes[i];
        const struct mfl_phase *phase = trainer_phase(run, lane);
        struct trainer_item *item = &run->items[lane->item];
        /* A delta that is uploaded alone is made where the upload reads it. */
        float *delta = run->sum ? slot->after : run->result->data[lane->item];
        int r = 0;
        if (phase->unsent)
                return 0;
        if (run->job->in_place)
                r = mfl_trainer_team_take(run, slot, &delta, err);
        else if (!phase->inner && !phase->gradient) /* else it lies there */
                r = run->trainer->ops->params_get(slot->train, (int)i, run->job->graph->n_frozen, delta, err);
        const struct trainer_trained trained = {.client = lane->local.client,
                .weight = lane->weight,
                .samples = lane->local.n,
                .steps = lane->local.n_steps,
                .loss = lane->loss};
        return r ? r : mfl_trainer_delta(run, worker, delta, &trained, item, err);
}

/* The same on the device, for all lanes that are done at once. A client whose update is not fit for the sum
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

/* *ret_over: the lane's client has no further phase. */
static int next_phase(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t i, bool *ret_over, struct mfl_error *err)
{
        struct trainer_lane *lane = &slot->lanes[i];
        struct trainer_item *item = &run->items[lane->item];
        bool finite = true;
        int r = item->rejected ? 0 : mfl_trainer_phase_own(run, slot, i, &finite, err);
        if (!r && !finite)
                r = mfl_trainer_reject(item,
                        mfl_asprintf("its %s is not finite: its training diverges; a smaller training.lr%s "
                                     "may help",
                                trainer_phase(run, lane)->gradient ? "gradient" : "own model",
                                trainer_phase(run, lane)->pull != 0 ? " or aggregation.lambda" : ""),
                        err);
        *ret_over = r || item->rejected || lane->local.phase + 1 == run->n_phases;
        if (!r && !item->rejected && *ret_over)
                r = mfl_trainer_site_keep(run, lane, item, err);
        if (*ret_over)
                return r;
        mfl_trainer_local_phase(&lane->local, run->job->spec, run->phases, lane->local.phase + 1);
        return mfl_trainer_phase_begin(run, slot, i, err);
}

static int end_lanes(
        struct trainer_run *run, struct trainer_slot *slot, uint32_t worker, struct mfl_error *err)
{
        bool on_device = trainer_adds_on_device(run);
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
                bool over = true;
                if (!lane_done(lane))
                        continue;
                r = next_phase(run, slot, i, &over, err);
                lane->busy_ns += over ? 0 : ns;
                if (!over)
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

/* A task that failed or was cancelled may have left lanes and a sum. */
static int begin_worker(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        const struct mfl_backend_ops *ops = run->trainer->ops;
        for (uint32_t i = 0; i < slot->n_lanes; i++)
                slot->lanes[i].active = false;
        int r = slot->sum_used ? ops->sum_take(slot->train, NULL, false, NULL, err) : 0;
        slot->sum_used = false;
        if (!r && trainer_keeps_start(run))
                r = mfl_trainer_params_start(run, slot->train, -1, err);
        if (!r && slot->eval && run->request->task->kind == MFL_TASK_TRAIN &&
                mfl_method_get(run->job->spec)->needs_loss)
                r = mfl_trainer_params_start(run, slot->eval, 0, err);
        return r;
}

/* The last worker leaves its sum for mfl_trainer_land; the other sums are added while it still trains. */
static int take_sum(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        bool last = atomic_fetch_sub(&run->n_working, 1) == 1;
        int r = 0;
        if (!slot->sum_used)
                return 0;
        pthread_mutex_lock(&run->lock);
        if (run->held)
                r = run->trainer->ops->sum_move(slot->train, run->held, err);
        else if (last)
                run->last = slot;
        else
                r = run->trainer->ops->sum_take(slot->train, run->sum, run->sum_begun, NULL, err);
        run->sum_begun |= !last;
        slot->sum_used = r != 0 || run->last == slot;
        pthread_mutex_unlock(&run->lock);
        return r;
}

/* The result is whole, whether the others hear it or not: they are told by the server, too. */
static void dismiss(struct trainer_run *run, struct trainer_slot *slot, const char *reason)
{
        enum trainer_word word = WORD_END;
        uint32_t number = 0;
        if (!reason) {
                mfl_trainer_meet_word(run, slot, &word, &number, NULL);
                const struct mfl_team_times *t = mfl_team_times(slot->team->ranks[0].team);
                run->times = (struct mfl_task_times){.compute_us = t->compute / 1000,
                        .exchange_us = t->exchange / 1000,
                        .apply_us = t->apply / 1000,
                        .repeats = t->repeats,
                        .kept = run->times.kept};
        } else
                mfl_trainer_keep(run, slot);
        mfl_trainer_part(run->trainer, slot, reason);
}

void mfl_trainer_train_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct mfl_error err = {{0}};
        uint32_t width = trainer_width(run) * mfl_trainer_team_size(slot->team);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        int r = begin_worker(run, slot, &err);
        bool done = false;
        if (!r && run->job->apart)
                r = mfl_trainer_meet(run, slot, &err);
        while (!r && !mfl_trainer_run_stopped(run)) {
                uint32_t n_active;
                r = start_lanes(run, slot, &n_active, &err);
                if (!r && !n_active) {
                        r = take_sum(run, slot, &err);
                        done = !r;
                        break;
                }
                if (!r)
                        r = step_lanes(run, slot, &err);
                if (!r)
                        r = end_lanes(run, slot, worker, &err);
        }
        if (run->job->apart)
                dismiss(run, slot, done ? NULL : r ? err.text : "the leader stops");
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}

/* What the leader says, until it says the end. */
static int assist(struct trainer_run *run, struct trainer_slot *slot, struct mfl_error *err)
{
        struct mfl_optimizer opt = mfl_trainer_task_optimizer(run->job->spec, run->request->task);
        struct trainer_lane *lane = &slot->lanes[0];
        for (;;) {
                enum trainer_word word;
                uint32_t number;
                int r = mfl_trainer_meet_word(run, slot, &word, &number, err);
                if (r || word == WORD_END)
                        return r;
                bool item = word == WORD_ITEM && number < run->request->task->n_items;
                bool steps = word == WORD_STEPS && lane->active && number && number <= slot->steps_max;
                if (item)
                        r = start_lane(run, slot, 0, number, err);
                else if (steps) {
                        mfl_trainer_local_fill(run, slot, 0, 0, number);
                        r = mfl_trainer_team_step(run, slot, number, &opt, err);
                        if (!r)
                                count_score(run, lane, &slot->groups[0].score);
                } else
                        r = mfl_fail(err, MFL_TEAM_BROKEN, "the team's leader says what makes no sense");
                if (r)
                        return r;
        }
}

void mfl_trainer_assist_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct mfl_error err = {{0}};
        uint32_t width = trainer_width(run) * mfl_trainer_team_size(slot->team);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        int r = begin_worker(run, slot, &err);
        if (!r)
                r = mfl_trainer_meet(run, slot, &err);
        if (!r)
                r = assist(run, slot, &err);
        if (r)
                mfl_trainer_keep(run, slot);
        mfl_trainer_part(run->trainer, slot, r ? err.text : NULL);
        trainer_turn(run->trainer, width, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}

/* Announces items [first, first + count) as update u. */
static int announce(
        struct trainer_run *run, uint32_t u, uint32_t first, uint32_t count, struct mfl_error *err)
{
        struct mfl_announce *update = &run->result->updates[u];
        uint64_t n = run->job->graph->n_moving;
        uint64_t bytes =
                run->sum ? n * sizeof(int64_t) : mfl_method_update_floats(run->job->spec, n) * sizeof(float);
        bool withholds = mfl_trainer_withholds(run);
        update->update = u;
        update->item_first = first;
        update->item_count = count;
        update->encoding = run->sum ? MFL_ENCODING_I64 : MFL_ENCODING_F32;
        update->n_scalars = (uint32_t)mfl_method_get(run->job->spec)->n_scalars;
        for (uint32_t i = first; i < first + count; i++) {
                const struct trainer_item *item = &run->items[i];
                update->n_rejected += item->rejected != NULL;
                update->weight += item->weight;
                update->samples += withholds ? 0 : item->samples;
                update->correct += withholds ? 0 : item->correct;
                update->loss_sum = withholds ? 0 : mfl_fixed_loss_add(update->loss_sum, item->loss_sum);
                update->train_us += item->train_us;
                update->clamped += item->clamped;
                update->state = item->rejected ? update->state : item->state;
                for (uint32_t k = 0; k < update->n_scalars; k++)
                        update->scalars[k] += item->scalars[k];
        }
        update->bytes = update->n_rejected < count ? bytes : 0;
        if (mfl_memory_is_needed(run->job->spec)) {
                update->losses = mfl_calloc(count, sizeof(*update->losses));
                if (!update->losses)
                        return mfl_fail_memory(err, count * sizeof(*update->losses), "clients' losses");
                update->n_losses = count;
        }
        for (uint32_t i = 0; i < update->n_losses; i++) {
                const struct trainer_item *item = &run->items[first + i];
                if (!withholds)
                        update->losses[i] =
                                (struct mfl_client_loss){item->samples, item->loss_sum, item->square_sum};
        }
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

int mfl_trainer_train_result(struct trainer_run *run, struct mfl_error *err)
{
        uint32_t n = mfl_trainer_items(run); /* all are done: nothing is given back from here on */
        int r = 0;
        run->result->updates[0].has_team = run->request->task->team.team != 0 || run->times.kept;
        run->result->updates[0].team = run->times;
        if (!run->request->task->single_updates)
                return announce(run, 0, 0, n, err);
        for (uint32_t i = 0; !r && i < n; i++)
                r = announce(run, i, i, 1, err);
        return r;
}
