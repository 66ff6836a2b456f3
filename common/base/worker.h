/* SPDX-License-Identifier: Apache-2.0 */
/* A worker thread with a bounded queue beside a libuv loop: what would block the loop runs here.
 *
 *     loop thread:    submit(a) submit(b)            a.done      b.done
 *     worker thread:            a.run ------- b.run -------
 *
 * One worker is one thread and one FIFO: work runs in the order of submission, one at a time, and done is
 * called in that order too. What must not overlap (the device, the database) shares a worker; what may
 * overlap gets two.
 *
 * Contract: a submit that fails never calls back. One that succeeds calls done exactly once, later, on the
 * loop thread, from the loop and never from inside submit or close. All functions are for the loop thread
 * only.
 */
#ifndef MFL_COMMON_BASE_WORKER_H
#define MFL_COMMON_BASE_WORKER_H

#include "common/base/base.h"

#include <uv.h>

/* Embedded in the caller's object, which it finds again by MFL_CONTAINER_OF. The caller keeps it alive until
 * done, where it may be freed or submitted again. */
struct mfl_work {
        void (*run)(struct mfl_work *work);  /* on the worker thread */
        void (*done)(struct mfl_work *work); /* on the loop thread, after run */
        bool cancelled;                      /* in done: the worker was closed before run was called */
        struct mfl_work *next;               /* the worker's own */
};

struct mfl_worker;
typedef void mfl_worker_close_cb(struct mfl_worker *worker);

struct mfl_work_list {
        struct mfl_work *first, *last;
};

/* Private, but for user. */
struct mfl_worker {
        void *user;
        char name[16];
        uv_async_t wakeup; /* of the loop */
        uv_thread_t thread;
        uv_mutex_t lock; /* of the lists, stop, stopped and since_ms */
        uv_cond_t changed;
        struct mfl_work_list queued, finished;
        bool stop, stopped;
        uint64_t since_ms; /* when the current work began; 0: there is none */
        /* Of the loop thread. */
        bool closing, joined;
        uint32_t n_pending, queue_max;
        mfl_worker_close_cb *on_close;
};

/* Starts the thread. name is shown by top and debuggers, 15 characters. queue_max is how much work may be
 * submitted and not yet done. All signals are blocked on the thread. The worker keeps the loop alive until it
 * is closed. Sets all members but user. Negative on failure; then there is nothing to close. */
int mfl_worker_start(struct mfl_worker *worker, uv_loop_t *loop, const char *name, uint32_t queue_max,
        struct mfl_error *err);

/* Appends work. MFL_BUSY when the queue is full or the worker is closing. */
int mfl_worker_submit(struct mfl_worker *worker, struct mfl_work *work) MFL_MUST_CHECK;

/* How much work was submitted and is not yet done. */
uint32_t mfl_worker_pending(const struct mfl_worker *worker);

/* For how long the current work has been running, in ms; 0 when the thread is idle. A figure that only grows means
 * that the work is stuck. */
uint64_t mfl_worker_running_ms(struct mfl_worker *worker);

/* Lets the work that runs finish, cancels the rest, calls done for all of it, then cb (may be NULL), after
 * which the memory is the caller's again. A second call does nothing, and its cb is not called. */
void mfl_worker_close(struct mfl_worker *worker, mfl_worker_close_cb *cb);

#endif
