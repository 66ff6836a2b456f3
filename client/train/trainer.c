/* SPDX-License-Identifier: Apache-2.0 */
/* One task from request to result: buffers, threads, and the result. */
#include "client/train/trainer.h"

#include "client/train/trainer_internal.h"
#include "kernels/mesh/mesh_memory.h"
#include "common/base/log.h"
#include "common/method/central_grid.h"
#include "common/partition/partition.h"
#include "proto/wire.h"

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
        trainer->peers = options->peers;
        trainer->activity = options->activity;
        trainer->programs = options->programs;
        trainer->filters = options->filters;
        trainer->plugins = options->plugins;
        trainer->hidden = options->hidden;
        trainer->privacy = options->privacy;
        trainer->state_dir = options->state_dir;
        mfl_strcpy(trainer->name, sizeof trainer->name, options->name);
        mfl_strcpy(trainer->site, sizeof trainer->site, options->site ? options->site : "");
        int r = mfl_partition_site_client(
                options->site ? options->site : "", options->name, &trainer->local_item, err);
        if (r)
                return r;
        return mfl_trainer_pool_init(&trainer->pool, trainer->workers, err);
}

int mfl_trainer_new(
        const struct mfl_trainer_options *options, struct mfl_trainer **ret_trainer, struct mfl_error *err)
{
        struct mfl_trainer *trainer = mfl_calloc(1, sizeof(*trainer));
        if (!trainer)
                return mfl_fail_memory(err, sizeof(*trainer), "the trainer");
        int r = mfl_trainer_memory_init(&trainer->memory, options->budget, err);
        if (r) {
                free(trainer);
                return r;
        }
        r = mfl_trainer_memory_init(&trainer->device_memory, NULL, err);
        if (r) {
                mfl_trainer_memory_deinit(&trainer->memory);
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
        mfl_trainer_pool_deinit(&trainer->pool);
        while (trainer->jobs) {
                struct trainer_job *job = trainer->jobs;
                trainer->jobs = job->next;
                mfl_trainer_job_free(trainer, job);
        }
        for (uint32_t i = 0; i < trainer->n_data; i++) {
                if (trainer->data[i].train)
                        trainer->ops->data_free(trainer->data[i].train);
                if (trainer->data[i].test)
                        trainer->ops->data_free(trainer->data[i].test);
                mfl_trainer_memory_release(&trainer->device_memory, trainer->data[i].device_bytes);
        }
        mfl_trainer_memory_deinit(&trainer->device_memory);
        mfl_trainer_memory_deinit(&trainer->memory);
        free(trainer->data);
        free(trainer);
}

void mfl_trainer_rest(struct mfl_trainer *trainer)
{
        mfl_communicator_close(&trainer->comm);
}

uint64_t mfl_trainer_memory(struct mfl_trainer *trainer)
{
        pthread_mutex_lock(&trainer->memory.lock);
        uint64_t used = trainer->memory.used;
        pthread_mutex_unlock(&trainer->memory.lock);
        return used;
}

/* ---- results ---- */

/* Bytes of one of the result's buffers, rejected or not. */
static uint64_t buffer_bytes(enum mfl_encoding encoding, const struct mfl_train_result *result)
{
        return encoding == MFL_ENCODING_I64 ? result->n * sizeof(int64_t) : result->floats * sizeof(float);
}

void mfl_trainer_result_free(struct mfl_trainer *trainer, struct mfl_train_result *result)
{
        if (!result)
                return;
        struct trainer_result *owned = MFL_CONTAINER_OF(result, struct trainer_result, base);
        mfl_trainer_group_leave(trainer, owned);
        for (uint32_t i = 0; i < result->n_updates; i++) {
                if (!owned->lent)
                        mfl_trainer_buffer_put(
                                &trainer->memory, result->data[i], buffer_bytes(owned->encoding, result));
                free(result->updates[i].rejected);
                free(result->updates[i].losses);
        }
        mfl_mesh_memory_close(owned->lent);
        if (owned->lent_bytes)
                mfl_trainer_memory_release(&trainer->memory, owned->lent_bytes);
        mfl_secure_ring_deinit(&result->ring);
        free(result->data);
        free(result->updates);
        free(result->eval);
        free(result->tally);
        free(owned);
}

static int make_ring(struct trainer_run *run, struct mfl_secure_ring *ret_ring, struct mfl_error *err)
{
        const struct mfl_job *spec = run->job->spec;
        return spec->secure.bits
                       ? mfl_secure_ring_make(spec->secure.bits, spec->compression.bits, run->job->graph,
                                 &run->request->task->fixed, run->request->task->grid, ret_ring, err)
                       : 0;
}

static int make_buffers(struct trainer_run *run, struct trainer_result *owned, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        struct mfl_train_result *result = &owned->base;
        uint32_t n = task->single_updates ? task->n_items : 1;
        result->n = run->job->graph->n_moving;
        result->floats = mfl_method_trained_floats(run->job->spec, result->n);
        result->packed = run->job->spec->compression.up;
        result->tail = run->job->spec->secure.bits ? MFL_SECURE_TAIL : 0;
        int r = 0;
        if (run->job->spec->privacy.kind == MFL_PRIVACY_DISTRIBUTED)
                r = mfl_central_sigma(
                        run->job->spec, &task->fixed, run->job->spec->privacy.clip, &result->noise, err);
        if (r)
                return r;
        result->updates = mfl_calloc(n, sizeof(*result->updates));
        result->data = mfl_calloc(n, sizeof(*result->data));
        if (!result->updates || !result->data)
                return mfl_fail_memory(err, n * sizeof(*result->updates), "updates");
        result->n_updates = n;
        r = make_ring(run, &result->ring, err);
        if (!r)
                r = mfl_trainer_group_place(run, owned, err);
        bool weighs = mfl_method_get(run->job->spec)->weighs || run->job->spec->secure.bits;
        bool alone =
                !result->grouped && !weighs && !task->sum && (task->n_items == 1 || task->single_updates);
        owned->encoding = alone ? MFL_ENCODING_F32 : MFL_ENCODING_I64;
        uint64_t bytes = buffer_bytes(owned->encoding, result);
        run->job->in_place = alone && task->team.team && task->n_items == 1 && run->trainer->ops->grad;
        for (uint32_t i = 0; !r && !run->job->in_place && i < n; i++)
                if (!result->data[i])
                        r = mfl_trainer_buffer_get(
                                &run->trainer->memory, bytes, "an update", &result->data[i], err);
        if (!r && !alone)
                run->sum = result->data[0];
        if (r == MFL_INVALID)
                mfl_trainer_job_advise(run->trainer, run->job, err);
        return r;
}

/* Frees the buffers of single updates whose clients were given back. */
static void drop_returned(struct trainer_run *run, struct trainer_result *owned)
{
        struct mfl_train_result *result = &owned->base;
        uint32_t n = run->request->task->single_updates ? mfl_trainer_items(run) : 1;
        while (result->n_updates > n)
                mfl_trainer_buffer_put(&run->trainer->memory, result->data[--result->n_updates],
                        buffer_bytes(owned->encoding, result));
}

static void init_run(struct trainer_run *run)
{
        pthread_mutex_init(&run->lock, NULL);
        pthread_mutex_init(&run->eval_lock, NULL);
        for (uint32_t i = 0; i < STRIPES; i++)
                pthread_mutex_init(&run->stripes[i], NULL);
        const struct mfl_method_ops *method = mfl_method_get(run->job->spec);
        run->fixed = run->request->task->fixed;
        run->fixed.share_bits = method->share_bits ? method->share_bits(run->job->spec) : 0;
        run->n_phases = (uint32_t)mfl_method_phases(run->job->spec, run->request->task->round, run->phases);
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
        free(run->clients.v);
        free(run->units);
}

static int run_threads(struct trainer_run *run, uint32_t n_work, void (*fn)(void *arg, uint32_t worker),
        struct mfl_error *err)
{
        struct mfl_trainer *trainer = run->trainer;
        const struct mfl_task *task = run->request->task;
        enum mfl_task_kind kind = task->kind == MFL_TASK_EVAL ? MFL_TASK_EVAL : MFL_TASK_TRAIN;
        uint32_t n = task->team.team ? 1 : MFL_MAX(1u, MFL_MIN(n_work, run->job->n_slots));
        run->job->apart = task->team.team ? task->team.widths[task->team.member] : 0;
        run->job->apart_ranks = run->job->apart_widest = 0;
        run->job->apart_peers = task->team.team && task->team.peers;
        run->job->sums = run->sum || trainer_corrects(run->job->spec) || run->phases[0].mix != 0;
        for (uint32_t i = 0; task->team.team && i < task->team.n_members; i++) {
                run->job->apart_ranks += task->team.widths[i];
                run->job->apart_widest = MFL_MAX(run->job->apart_widest, task->team.widths[i]);
        }
        int r = mfl_trainer_job_prepare(trainer, run->job, kind, n, &run->clients, err);
        atomic_store(&run->n_working, n);
        run->unprepared = r && trainer->no_room;
        if (r)
                return r;
        trainer_turn(trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE); /* the pool's threads work now */
        mfl_trainer_pool_run(&trainer->pool, n, fn, run);
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

/* A client that the job does not have counts 0 steps; training it fails. */
static int order_clients(struct trainer_run *run, struct mfl_error *err)
{
        const struct mfl_task *task = run->request->task;
        run->clients.v = mfl_calloc(task->n_items, sizeof(*run->clients.v));
        if (!run->clients.v)
                return mfl_fail_memory(err, task->n_items * sizeof(*run->clients.v), "clients");
        run->clients.n = task->n_items;
        for (uint32_t i = 0; i < task->n_items; i++) {
                const uint32_t *samples;
                uint32_t n = 0;
                int r = mfl_trainer_job_client(run->trainer, run->job, task->items[i], &samples, &n, err);
                if (r)
                        return r;
                run->clients.v[i] =
                        (struct trainer_client){mfl_method_all_steps(run->job->spec, task->round, n), i};
        }
        /* If each client has its own network, the task's order leaves the most to be given back. */
        if (run->trainer->ops->fuse || run->job->spec->training.fuse > 1)
                mfl_trainer_clients_sort(&run->clients);
        return 0;
}

/* ---- late sums ---- */

static int land(struct mfl_trainer *trainer, struct trainer_result *owned, struct mfl_error *err)
{
        struct mfl_train_result *result = &owned->base;
        struct trainer_slot *last = owned->last;
        int r = owned->held ? trainer->ops->sum_read(owned->held->sum, result->data[0], &result->control, err)
                            : trainer->ops->sum_take(
                                      last->train, result->data[0], owned->add, &result->control, err);
        if (last)
                last->sum_used = r != 0;
        owned->last = NULL;
        return r;
}

int mfl_trainer_land(struct mfl_trainer *trainer, struct mfl_train_result *result, struct mfl_error *err)
{
        struct trainer_result *owned = MFL_CONTAINER_OF(result, struct trainer_result, base);
        if (!result->late || atomic_load(&result->control.ready) == result->n)
                return 0;
        trainer_turn(trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_COMPUTES);
        int r = land(trainer, owned, err);
        trainer_turn(trainer, 1, MFL_ACTIVITY_COMPUTES, MFL_ACTIVITY_IDLE);
        return r;
}

/* What remains to do after the clients are trained. */
static int leave_sum(struct trainer_run *run, struct trainer_result *owned, struct mfl_error *err)
{
        struct mfl_train_result *result = &owned->base;
        if (!run->sum)
                return 0;
        owned->last = run->last;
        owned->add = run->sum_begun;
        if (!run->held && !run->last) {
                if (!run->sum_begun) /* no client counts: other daemons may still add it */
                        memset(run->sum, 0, result->n * sizeof(*run->sum));
                return 0;
        }
        /* A small sum travels inside its Announce, so it has to be there by then; one of a secure sum is masked as a whole. */
        bool is_small = result->n * sizeof(*run->sum) <= MFL_INLINE_MAX;
        if (owned->shared || is_small || run->job->spec->secure.bits || !run->request->advanced)
                return land(run->trainer, owned, err);
        result->late = true;
        result->control.advanced = run->request->advanced;
        result->control.user = run->request->user;
        return 0;
}

/* One client after another is trained with the team's leader, which has the result. */
static int run_assist(struct trainer_run *run, struct mfl_error *err)
{
        uint32_t n = run->request->task->n_items;
        run->items = mfl_calloc(n, sizeof(*run->items));
        if (!run->items)
                return mfl_fail_memory(err, n * sizeof(*run->items), "clients");
        int r = mfl_trainer_check_rule(run, err);
        if (!r)
                r = order_clients(run, err);
        return r ? r : run_threads(run, n, mfl_trainer_assist_worker, err);
}

/* The result's lent memory is charged to the result; where there is no room for it beside what the job keeps ready, in place of that. */
static int settle(struct mfl_trainer *trainer, struct trainer_job *job, struct trainer_result *owned,
        struct mfl_error *err)
{
        uint64_t bytes = mfl_trainer_update_bytes(job);
        if (!owned->lent)
                return 0;
        if (mfl_trainer_memory_reserve(&trainer->memory, bytes, "an update", err)) {
                mfl_assert(job->bytes >= bytes); /* mfl_trainer_team_bytes */
                job->bytes -= bytes;
                mfl_trainer_job_empty(trainer, job);
        }
        owned->lent_bytes = bytes;
        return 0;
}

static int run_train(struct trainer_run *run, struct trainer_result *owned, struct mfl_error *err)
{
        uint32_t n = run->request->task->n_items;
        run->items = mfl_calloc(n, sizeof(*run->items));
        if (!run->items)
                return mfl_fail_memory(err, n * sizeof(*run->items), "clients");
        int r = mfl_trainer_check_rule(run, err);
        if (!r)
                r = order_clients(run, err);
        if (!r)
                r = make_buffers(run, owned, err);
        if (!r && run->sum && !trainer_adds_on_device(run)) {
                memset(run->sum, 0, run->result->n * sizeof(*run->sum));
                run->sum_begun = true;
        }
        if (!r)
                r = run_threads(run, n, run->job->work->train, err);
        if (!r)
                drop_returned(run, owned);
        if (!r)
                r = mfl_trainer_train_result(run, err);
        if (!r)
                r = settle(run->trainer, run->job, owned, err);
        if (!r)
                r = leave_sum(run, owned, err);
        const struct mfl_train_result *made = &owned->base;
        return r || !made->noise ? r
                                 : mfl_sha256(run->sum, made->n * sizeof *run->sum, owned->base.digest, err);
}

static int run_eval(struct trainer_run *run, struct mfl_error *err)
{
        int r = mfl_trainer_eval_units(run, err);
        return r ? r : run_threads(run, run->n_units, run->job->work->eval, err);
}

/* Before and after its threads, a task takes one worker, which reads until the job is there. */
static int get_job(struct mfl_trainer *trainer, const struct mfl_train_request *request,
        struct trainer_job **ret_job, struct mfl_error *err)
{
        trainer_turn(trainer, 1, MFL_ACTIVITY_IDLE, MFL_ACTIVITY_READS);
        mfl_communicator_close_of(&trainer->comm, request->task->job, true);
        int r = mfl_trainer_job_get(trainer, request, ret_job, err);
        if (!r)
                r = mfl_trainer_check_codes(request, *ret_job, err);
        trainer_turn(trainer, 1, MFL_ACTIVITY_READS, r ? MFL_ACTIVITY_IDLE : MFL_ACTIVITY_COMPUTES);
        return r;
}

/* *ret_crowded: the task may fit without a sum that the group can read. */
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
        job->in_place = false;
        struct trainer_run run = {
                .trainer = trainer, .job = job, .request = request, .result = &owned->base, .alone = alone};
        init_run(&run);
        r = request->task->kind == MFL_TASK_TRAIN    ? run_train(&run, owned, err)
            : request->task->kind == MFL_TASK_ASSIST ? run_assist(&run, err)
                                                     : run_eval(&run, err);
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
                        "%s: an update is uploaded alone: there is no room for a sum that the node can read: "
                        "%s",
                        request->task->job, why.text);
                r = run_once(trainer, request, true, ret_result, &crowded, &why);
        }
        if (r && err)
                *err = why;
        return r;
}
