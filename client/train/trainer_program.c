/* SPDX-License-Identifier: Apache-2.0 */
/* Local work that a program does: one client, or part of an evaluation, after another. What fails because of the program
 * rejects the client, with the program's words; an evaluation fails as a whole. */
#include "client/train/trainer_internal.h"
#include "common/base/log.h"

static bool is_stopped(void *user)
{
        return mfl_trainer_run_stopped(user);
}

static int call(struct trainer_run *run, struct mfl_program_call *call, uint64_t item,
        struct mfl_program_answer *ret_answer, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        struct mfl_rng rng =
                mfl_rng_new(run->job->spec->seed, MFL_RNG_SHUFFLE, item, (uint64_t)task->round << 16);
        call->item = item;
        call->round = task->round;
        call->seed = mfl_rng_u64(&rng);
        call->params = run->request->params;
        call->stopped = is_stopped;
        call->user = run;
        if (mfl_job_owns_data(run->job->spec))
                call->samples = NULL;
        int r = mfl_program_call(run->job->program, call, ret_answer, err);
        return r == MFL_PROGRAM_STOPPED ? mfl_fail(err, MFL_CANCELLED, "cancelled") : r;
}

static int64_t loss_sum(const struct mfl_program_answer *answer)
{
        int64_t sum;
        bool over =
                __builtin_mul_overflow(mfl_fixed_loss((float)answer->loss), (int64_t)answer->samples, &sum);
        return over ? INT64_MAX : sum;
}

/* ---- training ---- */

/* The program's words, beside what is wrong with its numbers. */
static int blame(struct trainer_run *run, struct trainer_item *item, struct mfl_error *err)
{
        struct mfl_error why;
        if (!item->rejected)
                return 0;
        mfl_program_blame(run->job->program, item->rejected, &why);
        free(item->rejected);
        return mfl_trainer_reject(item, mfl_strdup(why.text), err);
}

static int count(struct trainer_run *run, uint32_t worker, struct trainer_item *item, uint64_t client,
        const struct mfl_program_answer *answer, struct mfl_error *err)
{
        float *delta =
                run->sum ? run->job->slots[worker].after : run->result->data[(uint32_t)(item - run->items)];
        struct trainer_trained trained = {.client = client,
                .samples = (uint32_t)answer->samples,
                .is_delta = answer->delta,
                .source = answer->result};
        int r = mfl_trainer_weight(run, item, answer->samples, &trained.weight, err);
        if (r || item->rejected)
                return r;
        item->samples = answer->samples;
        item->correct = answer->correct;
        item->loss_sum = loss_sum(answer);
        r = mfl_trainer_delta(run, worker, delta, &trained, item, err);
        if (!r && !item->rejected)
                item->weight = trained.weight;
        return r;
}

/* *same: a call of this run was before it. */
static int train_one(struct trainer_run *run, uint32_t worker, uint32_t i, bool *same, struct mfl_error *err)
{
        struct trainer_item *item = &run->items[i];
        struct mfl_train_control *control = run->request->control;
        struct mfl_program_call asked = {.same_params = *same};
        struct mfl_program_answer answer;
        struct mfl_error why;
        uint64_t client = run->request->task->items[i], start_ns = mfl_now_ns();
        int r = mfl_trainer_job_client(run->trainer, run->job, client, &asked.samples, &asked.n_samples, err);
        if (r)
                return r;
        if (!asked.n_samples && !mfl_job_owns_data(run->job->spec))
                return mfl_trainer_reject(item, mfl_strdup("it has no samples"), err);
        *same = true;
        r = call(run, &asked, client, &answer, &why);
        if (r == MFL_PROGRAM_FAILED)
                r = mfl_trainer_reject(item, mfl_strdup(why.text), err);
        else if (r)
                return mfl_fail(err, r, "%s", why.text);
        else {
                r = count(run, worker, item, client, &answer, err);
                if (!r)
                        r = blame(run, item, err);
        }
        if (!item->rejected) {
                item->train_us = (mfl_now_ns() - start_ns) / 1000;
                atomic_fetch_add(&control->samples_done, item->samples);
                mfl_trainer_add_loss(run, item->loss_sum);
        } else
                mfl_log_job(MFL_LOG_WARN, run->job->id, "%s: client %llu is left out: %s", run->job->id,
                        (unsigned long long)client, item->rejected);
        atomic_fetch_add(&control->items_done, 1);
        return r;
}

static void train_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct mfl_error err = {{0}};
        uint32_t item;
        bool same = false;
        int r = 0;
        trainer_turn(run->trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        while (!r && !mfl_trainer_run_stopped(run) && mfl_trainer_item_begin(run, &item))
                r = train_one(run, worker, item, &same, &err);
        trainer_turn(run->trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}

/* ---- evaluation ---- */

static int evaluate_one(struct trainer_run *run, uint32_t i, struct mfl_error *err)
{
        struct mfl_eval_item *item = &run->result->eval[i];
        struct mfl_program_call asked = {.evaluates = true, .same_params = i > 0};
        struct mfl_program_answer answer;
        int r = mfl_trainer_eval_samples(run, item->item, &asked.samples, &asked.n_samples, err);
        if (!r)
                r = call(run, &asked, item->item, &answer, err);
        if (r)
                return r == MFL_PROGRAM_FAILED ? MFL_INVALID : r;
        item->samples = answer.samples;
        item->correct = answer.correct;
        item->loss_sum = loss_sum(&answer);
        atomic_fetch_add(&run->request->control->samples_done, answer.samples);
        mfl_trainer_add_loss(run, item->loss_sum);
        return 0;
}

static void eval_worker(void *arg, uint32_t worker)
{
        struct trainer_run *run = arg;
        struct mfl_error err = {{0}};
        uint32_t n = mfl_trainer_withholds(run) ? 0 : run->result->n_eval;
        int r = 0;
        trainer_turn(run->trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        for (uint32_t i = 0; !r && !mfl_trainer_run_stopped(run) && i < n; i++)
                r = evaluate_one(run, i, &err);
        trainer_turn(run->trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r)
                mfl_trainer_run_fail(run, r, &err);
}

/* ---- the job ---- */

const struct trainer_work mfl_trainer_program = {.train = train_worker, .eval = eval_worker};

int mfl_trainer_program_new(struct mfl_trainer *trainer, struct trainer_job *job, struct mfl_error *err)
{
        const char *name = job->spec->training.program;
        struct mfl_program_options options = {.config = mfl_programs_find(trainer->programs, name),
                .job = job->id,
                .spec = job->spec,
                .graph = job->graph,
                .data = mfl_job_owns_data(job->spec) ? NULL : job->data->dataset,
                .group = trainer->programs ? trainer->programs->group : "",
                .hidden = trainer->hidden};
        if (!options.config)
                return mfl_fail(err, MFL_INVALID,
                        "this daemon has no program %s: programs in its client.yaml has the names", name);
        return mfl_program_new(&options, &job->program, err);
}
