/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation of test shards: cut into units of a few whole batches, so that one shard keeps all workers
 * busy. */
#include "client/train/trainer_internal.h"
#include "kernels/check.h"

struct trainer_unit {
        uint32_t item, first, n; /* index into the task's items; samples of the test split */
};

static int shard_of(
        struct trainer_run *run, uint64_t item, uint32_t *ret_first, uint32_t *ret_n, struct mfl_error *err)
{
        const struct trainer_job *job = run->job;
        uint32_t n_test = job->data->dataset->test.n, per = 0;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL) {
                const uint32_t *samples;
                uint32_t n;
                int r = mfl_trainer_job_client(run->trainer, job, item, &samples, &n, err);
                if (r)
                        return r;
                *ret_first = 0;
                *ret_n = n_test;
                return 0;
        }
        uint32_t n_shards = mfl_eval_shards(n_test, job->spec->evaluation.batch, &per);
        if (item >= n_shards)
                return mfl_fail(
                        err, MFL_INVALID, "test shard %llu of %u", (unsigned long long)item, n_shards);
        *ret_first = (uint32_t)item * per;
        *ret_n = MFL_MIN(per, n_test - *ret_first);
        return 0;
}

/* Counts the units (units == NULL), or writes them. */
static int cut_units(
        struct trainer_run *run, struct trainer_unit *units, uint32_t *ret_n, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        uint32_t size = CHUNK_EVAL_BATCHES * run->job->spec->evaluation.batch, n_units = 0;
        for (uint32_t i = 0; i < task->n_items; i++) {
                uint32_t first, n;
                int r = shard_of(run, task->items[i], &first, &n, err);
                if (r)
                        return r;
                for (uint32_t at = 0; at < n; at += size, n_units++) {
                        if (units)
                                units[n_units] = (struct trainer_unit){i, first + at, MFL_MIN(size, n - at)};
                }
        }
        *ret_n = n_units;
        return 0;
}

/* Counts by class of each item; 0: none. */
static uint32_t counts_of(const struct trainer_job *job)
{
        struct mfl_loss loss = mfl_loss_of_job(job->spec);
        return mfl_counts_classes(job->graph, &loss) ? 3 * (uint32_t)job->graph->classes : 0;
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
        uint32_t counts = counts_of(run->job);
        run->result->by_class = counts ? mfl_calloc((size_t)counts * task->n_items, sizeof(uint64_t)) : NULL;
        if (counts && !run->result->by_class)
                return mfl_fail_memory(err, counts * sizeof(uint64_t), "an evaluation");
        run->result->n_by_class = counts * task->n_items;
        for (uint32_t i = 0; i < task->n_items; i++)
                run->result->eval[i].item = task->items[i];
        return cut_units(run, run->units, &run->n_units, err);
}

static int evaluate_unit(struct trainer_run *run, struct trainer_slot *slot, const struct trainer_unit *unit,
        struct mfl_error *err)
{
        uint64_t by_class[3 * MFL_COUNTED_CLASSES_MAX] = {0};
        struct mfl_score score = {.by_class = by_class};
        uint32_t counts = counts_of(run->job);
        int r = run->trainer->ops->eval(slot->eval, 0, run->job->data->test,
                run->job->test_index + unit->first, unit->n, &score, err);
        if (r)
                return r;
        struct mfl_eval_item *item = &run->result->eval[unit->item];
        pthread_mutex_lock(&run->eval_lock);
        item->samples += score.n_scored;
        item->correct += score.n_correct;
        item->loss_sum = mfl_fixed_loss_add(item->loss_sum, score.loss_sum);
        for (uint32_t c = 0; c < counts; c++)
                run->result->by_class[(size_t)unit->item * counts + c] += by_class[c];
        pthread_mutex_unlock(&run->eval_lock);
        atomic_fetch_add(&run->request->control->samples_done, unit->n);
        mfl_trainer_add_loss(run, score.loss_sum);
        mfl_trainer_count(run, slot->eval, 0, 0, mfl_now_ns(), &slot->eval_told_ns);
        return 0;
}

void mfl_trainer_eval_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct trainer_slot *slot = &run->job->slots[worker];
        struct mfl_error err = {{0}};
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        int r = mfl_trainer_params_start(run, slot->eval, 0, &err);
        while (!r && !mfl_trainer_run_stopped(run)) {
                uint32_t i = atomic_fetch_add(&run->next, 1);
                if (i >= run->n_units)
                        break;
                r = evaluate_unit(run, slot, &run->units[i], &err);
        }
        trainer_turn(run->trainer, trainer_width(run), MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}
