/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer on worker threads beside the daemon's loop. */
#include "client/train/compute.h"

#define QUEUE_MAX 4096u
#define IDLE_MS 60000u /* after which what only the next task would use is closed */

/* The work after a task on the worker: it brings the late sum. The starter may free the call and the result
 * meanwhile. */
struct mfl_compute_bringing {
        struct mfl_work work;
        struct mfl_compute *compute;
        struct mfl_train_result *late; /* for the worker: the task's result; NULL: nothing is late */
        struct mfl_train_result *told; /* for the loop: the same, after done was called */
        bool freed;                    /* the starter has freed it */
        int status;
        struct mfl_error err;
        struct mfl_compute_bringing *next;
};

/* The worker's thread, or a combine's. */
static void tell_advanced(void *user)
{
        struct mfl_compute *compute = user;
        pthread_mutex_lock(&compute->lock);
        if (!compute->closed)
                uv_async_send(&compute->noted);
        pthread_mutex_unlock(&compute->lock);
}

static void run_task(struct mfl_work *work)
{
        struct mfl_compute_call *call = MFL_CONTAINER_OF(work, struct mfl_compute_call, work);
        struct mfl_compute *compute = call->compute;
        struct mfl_train_request request = {.task = call->task,
                .job_text = call->job_text,
                .frozen = call->frozen,
                .params = call->params,
                .frozen_stage = call->frozen_stage,
                .params_stage = call->params_stage,
                .correct = call->correct,
                .correct_user = call->correct_user,
                .control = &call->control,
                .population = &call->population,
                .advanced = tell_advanced,
                .user = compute};
        call->status = mfl_trainer_run(compute->trainer, &request, &call->result, &call->err);
        if (!call->status && call->result->late)
                call->bringing->late = call->result;
}

static void run_bringing(struct mfl_work *work)
{
        struct mfl_compute_bringing *bringing = MFL_CONTAINER_OF(work, struct mfl_compute_bringing, work);
        if (bringing->late)
                bringing->status =
                        mfl_trainer_land(bringing->compute->trainer, bringing->late, &bringing->err);
}

static void on_brought(struct mfl_work *work)
{
        struct mfl_compute_bringing *bringing = MFL_CONTAINER_OF(work, struct mfl_compute_bringing, work);
        struct mfl_compute *compute = bringing->compute;
        struct mfl_compute_bringing **at = &compute->bringing;
        while (*at != bringing)
                at = &(*at)->next;
        *at = bringing->next;
        if (bringing->freed)
                mfl_trainer_result_free(compute->trainer, bringing->late);
        if (bringing->status && compute->listener.broken)
                compute->listener.broken(compute->listener.user, &bringing->err);
        free(bringing);
}

static void run_rest(struct mfl_work *work)
{
        mfl_trainer_rest(MFL_CONTAINER_OF(work, struct mfl_compute, rest)->trainer);
}

static void on_rested(struct mfl_work *work)
{
        MFL_CONTAINER_OF(work, struct mfl_compute, rest)->resting = false;
}

static void on_idle(uv_timer_t *timer)
{
        struct mfl_compute *compute = timer->data;
        if (mfl_worker_pending(&compute->worker)) {
                uv_timer_start(timer, on_idle, IDLE_MS, 0);
                return;
        }
        compute->rest = (struct mfl_work){.run = run_rest, .done = on_rested};
        compute->resting = !mfl_worker_submit(&compute->worker, &compute->rest);
}

static void on_task_done(struct mfl_work *work)
{
        struct mfl_compute_call *call = MFL_CONTAINER_OF(work, struct mfl_compute_call, work);
        struct mfl_compute *compute = call->compute;
        if (!compute->closed && !compute->resting)
                uv_timer_start(&compute->idle, on_idle, IDLE_MS, 0);
        if (work->cancelled)
                call->status = mfl_fail(&call->err, MFL_CANCELLED, "cancelled");
        if (!call->status)
                call->bringing->told = call->result;
        call->done(call);
}

static int start_task(void *arg, struct mfl_compute_call *call, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        struct mfl_compute_bringing *bringing = mfl_calloc(1, sizeof(*bringing));
        if (!bringing)
                return mfl_fail_memory(err, sizeof(*bringing), "a task");
        uv_timer_stop(&compute->idle);
        call->compute = compute;
        call->bringing = bringing;
        call->work = (struct mfl_work){.run = run_task, .done = on_task_done};
        *bringing = (struct mfl_compute_bringing){.compute = compute,
                .work = {.run = run_bringing, .done = on_brought},
                .next = compute->bringing};
        /* Submit both or none. */
        int r = mfl_worker_pending(&compute->worker) + 2 > QUEUE_MAX ? MFL_BUSY : 0;
        if (!r)
                r = mfl_worker_submit(&compute->worker, &call->work);
        if (r) {
                free(bringing);
                return mfl_fail(err, r, "the worker's queue is full");
        }
        r = mfl_worker_submit(&compute->worker, &bringing->work);
        mfl_assert(!r);
        compute->bringing = bringing;
        return 0;
}

static void cancel_task(void *arg, struct mfl_compute_call *call)
{
        atomic_store(&call->control.cancel, true);
        atomic_store(&call->control.regroup, true);
}

static uint32_t recall_items(void *arg, struct mfl_compute_call *call, uint32_t keep)
{
        (void)arg;
        return mfl_train_recall(&call->control, call->task->n_items, keep);
}

struct forget {
        struct mfl_work work;
        struct mfl_compute *compute;
        char job[MFL_JOB_ID_BYTES];
};

static void run_forget(struct mfl_work *work)
{
        struct forget *forget = MFL_CONTAINER_OF(work, struct forget, work);
        mfl_trainer_forget(forget->compute->trainer, forget->job);
}

static void on_forgotten(struct mfl_work *work)
{
        free(MFL_CONTAINER_OF(work, struct forget, work));
}

/* Networks are freed by the thread that uses them. What can't be forgotten now is freed when memory is
 * short. */
static void forget_job(void *arg, const char *job)
{
        struct mfl_compute *compute = arg;
        struct forget *forget = mfl_calloc(1, sizeof(*forget));
        if (!forget)
                return;
        forget->work = (struct mfl_work){.run = run_forget, .done = on_forgotten};
        forget->compute = compute;
        mfl_strcpy(forget->job, sizeof(forget->job), job);
        if (mfl_worker_submit(&compute->worker, &forget->work))
                free(forget);
}

static void run_trim(struct mfl_work *work)
{
        struct mfl_compute *compute = MFL_CONTAINER_OF(work, struct mfl_trim_call, work)->compute;
        mfl_trainer_trim(compute->trainer);
}

static void on_trimmed(struct mfl_work *work)
{
        struct mfl_trim_call *call = MFL_CONTAINER_OF(work, struct mfl_trim_call, work);
        call->done(call);
}

static bool trim(void *arg, struct mfl_trim_call *call)
{
        struct mfl_compute *compute = arg;
        call->compute = compute;
        call->work = (struct mfl_work){.run = run_trim, .done = on_trimmed};
        return !mfl_worker_submit(&compute->worker, &call->work);
}

static bool take_aside(void *arg, struct mfl_work *work)
{
        struct mfl_compute *compute = arg;
        return !mfl_worker_submit(&compute->worker, work);
}

static void free_result(void *arg, struct mfl_train_result *result)
{
        struct mfl_compute *compute = arg;
        struct mfl_compute_bringing *bringing = result ? compute->bringing : NULL;
        while (bringing && bringing->told != result)
                bringing = bringing->next;
        if (bringing)
                bringing->told = NULL;
        if (bringing && result->late)
                bringing->freed = true;
        else
                mfl_trainer_result_free(compute->trainer, result);
}

/* ---- staged params ---- */

static int new_stage(void *arg, uint64_t n, struct mfl_stage **ret_stage, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        return mfl_trainer_stage_new(compute->trainer, n, ret_stage, err);
}

static void free_stage(void *arg, struct mfl_stage *stage, uint64_t n)
{
        struct mfl_compute *compute = arg;
        mfl_trainer_stage_free(compute->trainer, stage, n);
}

static int put_stage(void *arg, struct mfl_stage *stage, uint64_t first, const float *params, uint64_t n,
        struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        return mfl_trainer_stage_put(compute->trainer, stage, first, params, n, err);
}

/* ---- groups ---- */

static int publish_result(
        void *arg, const struct mfl_train_result *result, uint64_t group, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        return mfl_trainer_publish(compute->trainer, result, group, err);
}

static void run_combine(struct mfl_work *work)
{
        struct mfl_combine_call *call = MFL_CONTAINER_OF(work, struct mfl_combine_call, work);
        struct mfl_compute *compute = call->compute;
        uint64_t waited_ms = mfl_now_ms() - call->start_ms;
        if (atomic_load(&call->control.cancel)) {
                call->status = mfl_fail(&call->err, MFL_COLLECTIVE_BROKEN, "cancelled");
        } else if (waited_ms >= call->combine.deadline_ms) {
                call->status =
                        mfl_fail(&call->err, MFL_COLLECTIVE_BROKEN, "too late: another group is being added");
        } else {
                call->combine.deadline_ms -= (uint32_t)waited_ms;
                call->status = mfl_trainer_combine(compute->trainer, &call->combine, &call->err);
        }
}

static void on_combine_done(struct mfl_work *work)
{
        struct mfl_combine_call *call = MFL_CONTAINER_OF(work, struct mfl_combine_call, work);
        if (work->cancelled)
                call->status = mfl_fail(&call->err, MFL_COLLECTIVE_BROKEN, "cancelled");
        call->done(call);
}

static int start_combine(void *arg, struct mfl_combine_call *call, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        call->compute = compute;
        call->combine.control = &call->control;
        call->control.advanced = tell_advanced;
        call->control.user = compute;
        call->start_ms = mfl_now_ms();
        call->work = (struct mfl_work){.run = run_combine, .done = on_combine_done};
        int r = mfl_worker_submit(&compute->combiner, &call->work);
        return r ? mfl_fail(err, r, "the worker's queue is full") : 0;
}

static void cancel_combine(void *arg, struct mfl_combine_call *call)
{
        atomic_store(&call->control.cancel, true);
}

static void free_combine(void *arg, struct mfl_combine_call *call)
{
        struct mfl_compute *compute = arg;
        mfl_trainer_combine_free(compute->trainer, &call->combine);
}

struct mfl_compute_note {
        uint64_t communicator;
        bool made;
        uint8_t id[MFL_COMMUNICATOR_ID_BYTES];
        char reason[MFL_REASON_BYTES];
        struct mfl_compute_note *next;
};

/* Any thread. If a note can't be kept, the group ends by the server's deadline. */
static void note_communicator(void *arg, uint64_t communicator, const uint8_t *id, const char *reason)
{
        struct mfl_compute *compute = arg;
        struct mfl_compute_note *note = mfl_calloc(1, sizeof(*note));
        if (!note)
                return;
        note->communicator = communicator;
        note->made = id != NULL;
        if (id)
                memcpy(note->id, id, sizeof(note->id));
        mfl_strcpy(note->reason, sizeof(note->reason), reason ? reason : "");
        pthread_mutex_lock(&compute->lock);
        struct mfl_compute_note **at = &compute->notes;
        while (*at)
                at = &(*at)->next;
        if (compute->closed) {
                free(note);
        } else {
                *at = note;
                uv_async_send(&compute->noted);
        }
        pthread_mutex_unlock(&compute->lock);
}

static void on_noted(uv_async_t *async)
{
        struct mfl_compute *compute = async->data;
        pthread_mutex_lock(&compute->lock);
        struct mfl_compute_note *notes = compute->notes;
        compute->notes = NULL;
        pthread_mutex_unlock(&compute->lock);
        while (notes) {
                struct mfl_compute_note *note = notes;
                notes = note->next;
                if (compute->listener.communicator)
                        compute->listener.communicator(compute->listener.user, note->communicator,
                                note->made ? note->id : NULL, note->reason);
                free(note);
        }
        if (compute->listener.advanced)
                compute->listener.advanced(compute->listener.user);
}

/* Opened by the collective's own thread. */
static int start_communicator(
        void *arg, const struct mfl_group *group, const uint8_t *id, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        return mfl_trainer_communicator(compute->trainer, group, id, note_communicator, compute, err);
}

static void set_listener(void *arg, const struct mfl_compute_listener *listener)
{
        struct mfl_compute *compute = arg;
        compute->listener = listener ? *listener : (struct mfl_compute_listener){0};
}

const struct mfl_compute_ops mfl_compute_trainer = {
        .start = start_task,
        .cancel = cancel_task,
        .forget = forget_job,
        .trim = trim,
        .aside = take_aside,
        .result_free = free_result,
        .publish = publish_result,
        .combine = start_combine,
        .combine_cancel = cancel_combine,
        .combine_free = free_combine,
        .communicator = start_communicator,
        .listen = set_listener,
        .stage_new = new_stage,
        .stage_free = free_stage,
        .stage_put = put_stage,
        .recall = recall_items,
};

/* ---- life ---- */

int mfl_compute_open(
        struct mfl_compute *compute, uv_loop_t *loop, struct mfl_trainer *trainer, struct mfl_error *err)
{
        *compute = (struct mfl_compute){.trainer = trainer, .user = compute->user, .n_open = 4};
        int r = pthread_mutex_init(&compute->lock, NULL);
        if (r)
                return mfl_fail(err, -r, "compute: mutex: %s", strerror(r));
        r = uv_async_init(loop, &compute->noted, on_noted);
        if (r)
                return mfl_fail(err, r, "compute: %s", uv_strerror(r));
        compute->noted.data = compute;
        uv_timer_init(loop, &compute->idle);
        uv_unref((uv_handle_t *)&compute->idle);
        compute->idle.data = compute;
        r = mfl_worker_start(&compute->worker, loop, "train", QUEUE_MAX, err);
        return r ? r : mfl_worker_start(&compute->combiner, loop, "combine", QUEUE_MAX, err);
}

static void close_part(struct mfl_compute *compute)
{
        if (--compute->n_open == 0 && compute->on_close)
                compute->on_close(compute);
}

static void on_worker_closed(struct mfl_worker *worker)
{
        close_part(MFL_CONTAINER_OF(worker, struct mfl_compute, worker));
}

static void on_combiner_closed(struct mfl_worker *worker)
{
        close_part(MFL_CONTAINER_OF(worker, struct mfl_compute, combiner));
}

static void on_handle_closed(uv_handle_t *handle)
{
        close_part(handle->data);
}

void mfl_compute_close(struct mfl_compute *compute, void (*cb)(struct mfl_compute *compute))
{
        compute->on_close = cb;
        compute->listener = (struct mfl_compute_listener){0};
        pthread_mutex_lock(&compute->lock);
        compute->closed = true;
        pthread_mutex_unlock(&compute->lock);
        on_noted(&compute->noted); /* what is left is freed */
        uv_close((uv_handle_t *)&compute->noted, on_handle_closed);
        uv_close((uv_handle_t *)&compute->idle, on_handle_closed);
        mfl_worker_close(&compute->worker, on_worker_closed);
        mfl_worker_close(&compute->combiner, on_combiner_closed);
}
