/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation of test shards, or of what clients keep: cut into units of a few whole batches, so that one shard keeps all
 * workers busy. */
#include "client/train/trainer_poison.h"
#include "kernels/check.h"

struct trainer_unit {
        uint32_t item, n; /* index into the task's items */
        const uint32_t *samples;
};

int mfl_trainer_eval_samples(struct trainer_run *run, uint64_t item, const uint32_t **ret_samples,
        uint32_t *ret_n, struct mfl_error *err)
{
        const struct trainer_job *job = run->job;
        uint32_t n_test = job->data->dataset->test.n, per = 0;
        if (trainer_evaluates_held(job->spec))
                return mfl_trainer_job_held(run->trainer, job, item, ret_samples, ret_n, err);
        if (job->spec->data.partition == MFL_PARTITION_LOCAL) {
                int r = mfl_trainer_job_client(run->trainer, job, item, ret_samples, ret_n, err);
                *ret_samples = job->test_index;
                *ret_n = n_test;
                return r;
        }
        uint32_t n_shards = mfl_eval_shards(n_test, job->spec->evaluation.batch, &per);
        if (item >= n_shards)
                return mfl_fail(
                        err, MFL_INVALID, "test shard %llu of %u", (unsigned long long)item, n_shards);
        *ret_samples = job->test_index + item * per;
        *ret_n = MFL_MIN(per, n_test - (uint32_t)item * per);
        return 0;
}

/* Counts the units (units == NULL), or writes them. */
static int cut_units(
        struct trainer_run *run, struct trainer_unit *units, uint32_t *ret_n, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        uint32_t size = CHUNK_EVAL_BATCHES * run->job->spec->evaluation.batch, n_units = 0;
        for (uint32_t i = 0; i < task->n_items; i++) {
                const uint32_t *samples;
                uint32_t n;
                int r = mfl_trainer_eval_samples(run, task->items[i], &samples, &n, err);
                if (r)
                        return r;
                for (uint32_t at = 0; at < n; at += size, n_units++) {
                        if (units)
                                units[n_units] =
                                        (struct trainer_unit){i, MFL_MIN(size, n - at), samples + at};
                }
        }
        *ret_n = n_units;
        return 0;
}

/* Numbers of each item's tally; 0: none. */
static uint32_t tally_of(const struct trainer_job *job)
{
        return mfl_tally_size(mfl_job_tally(job->spec, job->graph), (uint32_t)job->graph->classes);
}

int mfl_trainer_eval_units(struct trainer_run *run, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        uint32_t n;
        int r = cut_units(run, NULL, &n, err);
        if (r)
                return r;
        run->units = mfl_calloc(n, sizeof(*run->units));
        run->result->eval = mfl_calloc(task->n_items, sizeof(*run->result->eval));
        if (!run->units || !run->result->eval)
                return mfl_fail_memory(err, n * sizeof(*run->units), "an evaluation");
        run->result->n_eval = task->n_items;
        uint32_t counts = tally_of(run->job);
        run->result->tally = counts ? mfl_calloc((size_t)counts * task->n_items, sizeof(uint64_t)) : NULL;
        if (counts && !run->result->tally)
                return mfl_fail_memory(err, counts * sizeof(uint64_t), "an evaluation");
        run->result->n_tally = counts * task->n_items;
        for (uint32_t i = 0; i < task->n_items; i++)
                run->result->eval[i].item = task->items[i];
        if (mfl_trainer_withholds(run)) /* of 0 samples */
                return 0;
        return cut_units(run, run->units, &run->n_units, err);
}

/* tally: tally_of numbers of scratch. */
static int evaluate_unit(struct trainer_run *run, struct trainer_slot *slot, const struct trainer_unit *unit,
        uint64_t *tally, struct mfl_error *err)
{
        struct mfl_score score = {.tally = tally};
        uint32_t counts = tally_of(run->job);
        memset(tally, 0, counts * sizeof *tally);
        const struct trainer_data *data = run->job->data;
        int r = run->trainer->ops->eval(slot->eval, 0,
                trainer_evaluates_held(run->job->spec) ? data->train : data->test, unit->samples, unit->n,
                &score, err);
        if (!r && mfl_job_tally(run->job->spec, run->job->graph) == MFL_TALLY_BACKDOOR)
                r = mfl_trainer_backdoor_count(run, slot, unit->samples, unit->n, tally, err);
        if (r)
                return r;
        struct mfl_eval_item *item = &run->result->eval[unit->item];
        pthread_mutex_lock(&run->eval_lock);
        item->samples += score.n_scored;
        item->correct += score.n_correct;
        item->loss_sum = mfl_fixed_loss_add(item->loss_sum, score.loss_sum);
        for (uint32_t c = 0; c < counts; c++)
                run->result->tally[(size_t)unit->item * counts + c] += tally[c];
        pthread_mutex_unlock(&run->eval_lock);
        atomic_fetch_add(&run->request->control->samples_done, unit->n);
        mfl_trainer_add_loss(run, score.loss_sum);
        mfl_trainer_count(run, slot->eval, 0, 0, mfl_now_ns(), &slot->eval_told_ns);
        return 0;
}

/* The next units are a client's with params of its own. */
static int start_own(struct trainer_run *run, struct trainer_slot *slot, uint32_t item, struct mfl_error *err)
{
        bool lost; /* its next training says so */
        int r = mfl_trainer_own(run, run->request->task->items[item], slot->after, &lost, err);
        return r ? r : run->trainer->ops->params_set(slot->eval, 0, run->request->frozen, slot->after, err);
}

void mfl_trainer_eval_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct mfl_error err = {{0}};
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        bool own = trainer_evaluates_own(run->job->spec);
        int r = own ? 0 : mfl_trainer_params_start(run, slot->eval, 0, &err);
        uint32_t item = UINT32_MAX; /* whose params the network has */
        MFL_CLEANUP_FREE uint64_t *tally = mfl_calloc(tally_of(run->job) + 1, sizeof *tally);
        if (!r && !tally)
                r = mfl_fail_memory(&err, tally_of(run->job) * sizeof *tally, "an evaluation");
        while (!r && !mfl_trainer_run_stopped(run)) {
                uint32_t i = atomic_fetch_add(&run->next, 1);
                if (i >= run->n_units)
                        break;
                if (own && run->units[i].item != item)
                        r = start_own(run, slot, item = run->units[i].item, &err);
                if (!r)
                        r = evaluate_unit(run, slot, &run->units[i], tally, &err);
        }
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}
