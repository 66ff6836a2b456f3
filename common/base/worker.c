/* SPDX-License-Identifier: Apache-2.0 */
/* A worker thread with a bounded queue beside a libuv loop.
 *
 * - submit appends to `queued` and wakes the thread;
 * - the thread takes the first, runs it, appends it to `finished` and wakes the loop;
 * - the loop takes all of `finished` and calls done for each.
 * Closing: the thread moves what is left in `queued` to `finished` as cancelled, sets `stopped` and ends; the
 * loop joins it, delivers the rest and closes its own handle.
 */
#include "common/base/worker.h"

#include <pthread.h>
#include <signal.h>

static void append(struct mfl_work_list *list, struct mfl_work *work)
{
        work->next = NULL;
        if (list->last)
                list->last->next = work;
        else
                list->first = work;
        list->last = work;
}

static struct mfl_work *take_first(struct mfl_work_list *list)
{
        struct mfl_work *work = list->first;
        if (work) {
                list->first = work->next;
                if (!list->first)
                        list->last = NULL;
        }
        return work;
}

/* Cancels what is left; setting `stopped` is the last thing that this thread does. */
static void stop_thread(struct mfl_worker *worker)
{
        struct mfl_work *work;
        while ((work = take_first(&worker->queued))) {
                work->cancelled = true;
                append(&worker->finished, work);
        }
        worker->stopped = true;
}

static void run_thread(void *arg)
{
        struct mfl_worker *worker = arg;
        pthread_setname_np(pthread_self(), worker->name);
        uv_mutex_lock(&worker->lock);
        while (!worker->stop) {
                struct mfl_work *work = take_first(&worker->queued);
                if (!work) {
                        uv_cond_wait(&worker->changed, &worker->lock);
                        continue;
                }
                worker->since_ms = MFL_MAX(mfl_now_ms(), 1u);
                uv_mutex_unlock(&worker->lock);
                work->run(work);
                uv_mutex_lock(&worker->lock);
                worker->since_ms = 0;
                append(&worker->finished, work);
                uv_async_send(&worker->wakeup);
        }
        stop_thread(worker);
        /* Under the lock, so that the loop cannot join and close the handle before this has returned. */
        if (worker->wakeup.data)
                uv_async_send(&worker->wakeup);
        uv_mutex_unlock(&worker->lock);
}

static void on_closed(uv_handle_t *handle)
{
        struct mfl_worker *worker = handle->data;
        uv_cond_destroy(&worker->changed);
        uv_mutex_destroy(&worker->lock);
        if (worker->on_close)
                worker->on_close(worker);
}

static void on_wakeup(uv_async_t *handle)
{
        struct mfl_worker *worker = handle->data;
        uv_mutex_lock(&worker->lock);
        struct mfl_work_list finished = worker->finished;
        worker->finished = (struct mfl_work_list){NULL, NULL};
        bool stopped = worker->stopped;
        uv_mutex_unlock(&worker->lock);

        struct mfl_work *work;
        while ((work = take_first(&finished))) {
                worker->n_pending--;
                work->done(work);
        }
        if (stopped && !worker->joined) {
                uv_thread_join(&worker->thread);
                worker->joined = true;
                uv_close((uv_handle_t *)&worker->wakeup, on_closed);
        }
}

/* Signals go to the loop thread: the new thread inherits a mask that blocks them all. */
static int create_thread(struct mfl_worker *worker)
{
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int r = uv_thread_create(&worker->thread, run_thread, worker);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        return r;
}

static void request_stop(struct mfl_worker *worker)
{
        uv_mutex_lock(&worker->lock);
        worker->stop = true;
        uv_cond_signal(&worker->changed);
        uv_mutex_unlock(&worker->lock);
}

int mfl_worker_start(struct mfl_worker *worker, uv_loop_t *loop, const char *name, uint32_t queue_max,
        struct mfl_error *err)
{
        *worker = (struct mfl_worker){.user = worker->user, .queue_max = queue_max};
        mfl_strcpy(worker->name, sizeof worker->name, name);
        int r = uv_mutex_init(&worker->lock);
        if (r)
                return mfl_fail(err, r, "worker %s: mutex: %s", name, uv_strerror(r));
        r = uv_cond_init(&worker->changed);
        if (r)
                goto out_mutex;
        /* A handle cannot be closed at once, but a thread can be joined. So the thread starts first, and waits for
         * the lock until it is clear whether there is a handle (then it has data). */
        uv_mutex_lock(&worker->lock);
        r = create_thread(worker);
        if (r) {
                uv_mutex_unlock(&worker->lock);
                goto out_cond;
        }
        r = uv_async_init(loop, &worker->wakeup, on_wakeup);
        worker->wakeup.data = r ? NULL : worker;
        uv_mutex_unlock(&worker->lock);
        if (!r)
                return 0;
        request_stop(worker);
        uv_thread_join(&worker->thread);
out_cond:
        uv_cond_destroy(&worker->changed);
out_mutex:
        uv_mutex_destroy(&worker->lock);
        return mfl_fail(err, r, "worker %s: start: %s", name, uv_strerror(r));
}

int mfl_worker_submit(struct mfl_worker *worker, struct mfl_work *work)
{
        if (worker->closing || worker->n_pending >= worker->queue_max)
                return MFL_BUSY;
        worker->n_pending++;
        work->cancelled = false;
        uv_mutex_lock(&worker->lock);
        append(&worker->queued, work);
        uv_cond_signal(&worker->changed);
        uv_mutex_unlock(&worker->lock);
        return 0;
}

uint32_t mfl_worker_pending(const struct mfl_worker *worker)
{
        return worker->n_pending;
}

uint64_t mfl_worker_running_ms(struct mfl_worker *worker)
{
        uv_mutex_lock(&worker->lock);
        uint64_t since_ms = worker->since_ms;
        uv_mutex_unlock(&worker->lock);
        return since_ms ? mfl_now_ms() - since_ms : 0;
}

void mfl_worker_close(struct mfl_worker *worker, mfl_worker_close_cb *cb)
{
        if (worker->closing)
                return;
        worker->closing = true;
        worker->on_close = cb;
        request_stop(worker);
}
