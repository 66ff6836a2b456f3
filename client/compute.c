/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer on a worker thread beside the daemon's loop. */
#include "client/compute.h"

#define QUEUE_MAX 4096u

static void run_task(struct mfl_work *work)
{
        struct mfl_compute_call *call = MFL_CONTAINER_OF(work, struct mfl_compute_call, work);
        struct mfl_compute *compute = call->compute;
        struct mfl_train_request request = {.task = call->task,
                .job_text = call->job_text,
                .params = call->params,
                .control = &call->control};
        call->status = mfl_trainer_run(compute->trainer, &request, &call->result, &call->err);
}

static void on_task_done(struct mfl_work *work)
{
        struct mfl_compute_call *call = MFL_CONTAINER_OF(work, struct mfl_compute_call, work);
        if (work->cancelled)
                call->status = mfl_fail(&call->err, MFL_CANCELLED, "cancelled");
        call->done(call);
}

static int start_task(void *arg, struct mfl_compute_call *call, struct mfl_error *err)
{
        struct mfl_compute *compute = arg;
        call->compute = compute;
        call->work = (struct mfl_work){.run = run_task, .done = on_task_done};
        int r = mfl_worker_submit(&compute->worker, &call->work);
        return r ? mfl_fail(err, r, "the worker's queue is full") : 0;
}

static void cancel_task(void *arg, struct mfl_compute_call *call)
{
        atomic_store(&call->control.cancel, true);
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

/* Networks are freed by the thread that uses them. What can't be forgotten now goes when memory is short. */
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

static void free_result(void *arg, struct mfl_train_result *result)
{
        struct mfl_compute *compute = arg;
        mfl_trainer_result_free(compute->trainer, result);
}

const struct mfl_compute_ops mfl_compute_trainer = {
        .start = start_task,
        .cancel = cancel_task,
        .forget = forget_job,
        .result_free = free_result,
};

int mfl_compute_open(
        struct mfl_compute *compute, uv_loop_t *loop, struct mfl_trainer *trainer, struct mfl_error *err)
{
        compute->trainer = trainer;
        compute->on_close = NULL;
        return mfl_worker_start(&compute->worker, loop, "train", QUEUE_MAX, err);
}

static void on_worker_closed(struct mfl_worker *worker)
{
        struct mfl_compute *compute = MFL_CONTAINER_OF(worker, struct mfl_compute, worker);
        if (compute->on_close)
                compute->on_close(compute);
}

void mfl_compute_close(struct mfl_compute *compute, void (*cb)(struct mfl_compute *compute))
{
        compute->on_close = cb;
        mfl_worker_close(&compute->worker, on_worker_closed);
}
