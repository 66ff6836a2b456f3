/* SPDX-License-Identifier: Apache-2.0 */
/* One task from request to result: buffers, threads, and what came of it. */
#include "client/trainer.h"

#include "client/trainer_internal.h"
#include "common/digest.h"
#include "common/log.h"

int mfl_trainer_local_item(const char *name, uint64_t *ret_item, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        int r = mfl_sha256(name, strlen(name), digest, err);
        if (!r)
                *ret_item = mfl_sha256_number(digest);
        return r;
}

static int fill_trainer(
        struct mfl_trainer *trainer, const struct mfl_trainer_options *options, struct mfl_error *err)
{
        trainer->ops = options->ops;
        trainer->device = options->device;
        trainer->ops->device_info(trainer->device, &trainer->info);
        trainer->workers = MFL_MAX(1u, options->workers);
        uint64_t own = options->device_memory_bytes ? options->device_memory_bytes
                                                    : trainer->info.memory_free_bytes / 10 * 9;
        trainer->device_memory.own.limit_bytes = own;
        trainer->data = mfl_calloc(options->n_data_sets, sizeof(*trainer->data));
        if (!trainer->data)
                return mfl_fail_memory(err, options->n_data_sets * sizeof(*trainer->data), "data sets");
        for (uint32_t i = 0; i < options->n_data_sets; i++) {
                trainer->data[i].dataset = options->data_sets[i];
                trainer->data[i].fingerprint = options->fingerprints[i];
        }
        trainer->n_data = options->n_data_sets;
        trainer->share = options->share;
        trainer->shm = options->shm;
        trainer->nccl = options->nccl;
        trainer->activity = options->activity;
        int r = mfl_trainer_local_item(options->name, &trainer->local_item, err);
        if (r)
                return r;
        return trainer_pool_init(&trainer->pool, trainer->workers, err);
}

int mfl_trainer_new(
        const struct mfl_trainer_options *options, struct mfl_trainer **ret_trainer, struct mfl_error *err)
{
        struct mfl_trainer *trainer = mfl_calloc(1, sizeof(*trainer));
        if (!trainer)
                return mfl_fail_memory(err, sizeof(*trainer), "the trainer");
        int r = trainer_memory_init(&trainer->memory, options->budget, err);
        if (r) {
                free(trainer);
                return r;
        }
        r = trainer_memory_init(&trainer->device_memory, NULL, err);
        if (r) {
                trainer_memory_deinit(&trainer->memory);
                free(trainer);
                return r;
        }
        r = fill_trainer(trainer, options, err);
        if (r) {
                mfl_trainer_free(trainer);
                return r;
        }
        *ret_trainer = trainer;
        return 0;
}

void mfl_trainer_free(struct mfl_trainer *trainer)
{
        if (!trainer)
                return;
        trainer_pool_deinit(&trainer->pool);
        while (trainer->jobs) {
                struct trainer_job *job = trainer->jobs;
                trainer->jobs = job->next;
                trainer_job_free(trainer, job);
        }
        for (uint32_t i = 0; i < trainer->n_data; i++) {
                if (trainer->data[i].train)
                        trainer->ops->data_free(trainer->data[i].train);
                if (trainer->data[i].test)
                        trainer->ops->data_free(trainer->data[i].test);
                trainer_memory_release(&trainer->device_memory, trainer->data[i].device_bytes);
        }
        trainer_memory_deinit(&trainer->device_memory);
        trainer_memory_deinit(&trainer->memory);
        free(trainer->data);
        free(trainer);
}

uint64_t mfl_trainer_memory(struct mfl_trainer *trainer)
{
        pthread_mutex_lock(&trainer->memory.lock);
        uint64_t used = trainer->memory.used;
        pthread_mutex_unlock(&trainer->memory.lock);
        return used;
}

void trainer_run_fail(struct trainer_run *run, int code, const struct mfl_error *err)
{
        pthread_mutex_lock(&run->lock);
        /* A broken device outranks what the other threads met because of it. */
        if (!run->code || (code < 0 && run->code > 0)) {
                run->code = code;
                run->err = *err;
        }
        pthread_mutex_unlock(&run->lock);
        atomic_store(&run->stop, true);
}

bool trainer_run_stopped(struct trainer_run *run)
{
        return atomic_load(&run->stop) || atomic_load(&run->request->control->cancel);
}

void trainer_count(struct trainer_run *run, struct mfl_net *net, uint64_t samples, uint64_t reads_ns,
        uint64_t now_ns, uint64_t *told_ns)
{
        struct mfl_trainer *trainer = run->trainer;
        if (!trainer->activity)
                return;
        uint64_t gathers_ns = trainer->ops->gather_ns ? trainer->ops->gather_ns(net) : 0;
        /* The network's other threads wait meanwhile. */
        reads_ns = (reads_ns + gathers_ns - *told_ns) * trainer_width(run);
        *told_ns = gathers_ns;
        mfl_activity_count(trainer->activity, samples, reads_ns, now_ns);
}

/* ---- results ---- */

/* Bytes of one of the result's buffers, rejected or not. */
static uint64_t buffer_bytes(const struct mfl_announce *update, uint64_t n_params)
{
        return n_params * (update->encoding == MFL_ENCODING_I64 ? sizeof(int64_t) : sizeof(float));
}

void mfl_trainer_result_free(struct mfl_trainer *trainer, struct mfl_train_result *result)
{
        if (!result)
                return;
        struct trainer_result *owned = MFL_CONTAINER_OF(result, struct trainer_result, base);
        struct mfl_announce kind = {.encoding = owned->encoding};
        trainer_group_leave(trainer, owned);
        for (uint32_t i = 0; i < result->n_updates; i++) {
                trainer_buffer_put(&trainer->memory, result->data[i], buffer_bytes(&kind, result->n));
                free(result->updates[i].rejected);
        }
        free(result->data);
        free(result->updates);
        free(result->eval);
        free(owned);
}

static int make_buffers(struct trainer_run *run, struct trainer_result *owned, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        struct mfl_train_result *result = &owned->base;
        uint32_t n = task->single_updates ? task->n_items : 1;
        result->n = run->job->graph->n_moving;
        result->updates = mfl_calloc(n, sizeof(*result->updates));
        result->data = mfl_calloc(n, sizeof(*result->data));
        if (!result->updates || !result->data)
                return mfl_fail_memory(err, n * sizeof(*result->updates), "updates");
        result->n_updates = n;
        int r = trainer_group_place(run, owned, err);
        bool alone = !result->grouped && (task->n_items == 1 || task->single_updates);
        owned->encoding = alone ? MFL_ENCODING_F32 : MFL_ENCODING_I64;
        struct mfl_announce kind = {.encoding = owned->encoding};
        uint64_t bytes = buffer_bytes(&kind, result->n);
        for (uint32_t i = 0; !r && i < n; i++)
                if (!result->data[i])
                        r = trainer_buffer_get(
                                &run->trainer->memory, bytes, "an update", &result->data[i], err);
        if (!r && !alone) {
                run->sum = result->data[0];
                memset(run->sum, 0, bytes);
        }
        return r;
}

static void init_run(struct trainer_run *run)
{
        pthread_mutex_init(&run->lock, NULL);
        pthread_mutex_init(&run->eval_lock, NULL);
        for (uint32_t i = 0; i < STRIPES; i++)
                pthread_mutex_init(&run->stripes[i], NULL);
        run->stripe = MFL_MAX(1u, (run->job->graph->n_moving + STRIPES - 1) / STRIPES);
}

static void deinit_run(struct trainer_run *run)
{
        for (uint32_t i = 0; i < STRIPES; i++)
                pthread_mutex_destroy(&run->stripes[i]);
        pthread_mutex_destroy(&run->eval_lock);
        pthread_mutex_destroy(&run->lock);
        for (uint32_t i = 0; run->items && i < run->request->task->n_items; i++)
                free(run->items[i].rejected);
        free(run->items);
        free(run->units);
}

static int run_threads(struct trainer_run *run, uint32_t n_work, void (*fn)(void *arg, uint32_t worker),
        struct mfl_error *err)
{
        struct mfl_trainer *trainer = run->trainer;
        uint32_t n = MFL_MAX(1u, MFL_MIN(n_work, run->job->n_slots));
        int r = trainer_job_prepare(
                trainer, run->job, run->request->task->kind, n, run->request->task->n_items, err);
        run->unprepared = r && trainer->no_room;
        if (r)
                return r;
        trainer_turn(trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE); /* those of the pool work now */
        trainer_pool_run(&trainer->pool, n, fn, run);
        trainer_turn(trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        if (run->code) {
                if (err)
                        *err = run->err;
                return run->code;
        }
        if (atomic_load(&run->request->control->cancel))
                return mfl_fail(err, MFL_CANCELLED, "cancelled");
        return 0;
}

static int run_train(struct trainer_run *run, struct trainer_result *owned, struct mfl_error *err)
{
        uint32_t n = run->request->task->n_items;
        run->items = mfl_calloc(n, sizeof(*run->items));
        if (!run->items)
                return mfl_fail_memory(err, n * sizeof(*run->items), "clients");
        int r = make_buffers(run, owned, err);
        if (!r)
                r = run_threads(run, n, trainer_train_worker, err);
        if (!r && run->held)
                r = run->trainer->ops->sum_read(run->held, run->sum, err);
        return r ? r : trainer_train_result(run, err);
}

static int run_eval(struct trainer_run *run, struct mfl_error *err)
{
        int r = trainer_eval_units(run, err);
        return r ? r : run_threads(run, run->n_units, trainer_eval_worker, err);
}

/* What a task does before and after its threads takes one worker, that reads until the job is there. */
static int get_job(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err)
{
        trainer_turn(trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_READS);
        int r = trainer_job_get(trainer, request, ret_job, err);
        trainer_turn(trainer, 1, MFL_ACTIVITY_READS, r ? MFL_ACTIVITY_IDLE : MFL_ACTIVITY_COMPUTES);
        return r;
}

/* *ret_crowded: it may fit without a place that the group reaches. */
static int run_once(struct mfl_trainer *trainer, const struct mfl_train_request *request, bool alone,
        struct mfl_train_result **ret_result, bool *ret_crowded, struct mfl_error *err)
{
        struct trainer_job *job;
        struct trainer_result *owned = mfl_calloc(1, sizeof(*owned));
        if (!owned)
                return mfl_fail_memory(err, sizeof(*owned), "a result");
        int r = get_job(trainer, request, &job, err);
        if (r) {
                free(owned);
                return r;
        }
        struct trainer_run run = {
                .trainer = trainer, .job = job, .request = request, .result = &owned->base, .alone = alone};
        init_run(&run);
        r = request->task->kind == MFL_TASK_TRAIN ? run_train(&run, owned, err) : run_eval(&run, err);
        deinit_run(&run);
        trainer_turn(trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        if (r) {
                *ret_crowded = r == MFL_INVALID && run.unprepared && owned->base.grouped;
                mfl_trainer_result_free(trainer, &owned->base);
                return r;
        }
        *ret_result = &owned->base;
        return 0;
}

int mfl_trainer_run(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct mfl_train_result **ret_result, struct mfl_error *err)
{
        struct mfl_error why = {{0}};
        bool crowded = false;
        int r = run_once(trainer, request, false, ret_result, &crowded, &why);
        if (crowded) {
                mfl_log_job(MFL_LOG_INFO, request->task->job,
                        "%s: an update is uploaded alone: a sum for the node takes the room: %s",
                        request->task->job, why.text);
                r = run_once(trainer, request, true, ret_result, &crowded, &why);
        }
        if (r && err)
                *err = why;
        return r;
}
