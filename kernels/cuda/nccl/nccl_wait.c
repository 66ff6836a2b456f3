/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for NCCL and for other ranks, by polling, with a deadline and a cancel; and calls that may never
 * return, on threads of their own. */
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "kernels/cuda/nccl/nccl_internal.h"

/* ---- polling ---- */

struct patience mfl_nccl_patience(uint32_t deadline_ms, const atomic_bool *cancel)
{
        return (struct patience){mfl_now_ns() + (uint64_t)deadline_ms * 1000000u, deadline_ms, 0, cancel};
}

/* MFL_COMM_BROKEN when patience has ended. */
int mfl_nccl_check_patience(const struct patience *p, const char *what, struct mfl_error *err)
{
        if (p->cancel && atomic_load(p->cancel))
                return mfl_fail(err, MFL_COMM_BROKEN, "NCCL: %s: cancelled", what);
        if (mfl_now_ns() >= p->end_ns)
                return mfl_fail(err, MFL_COMM_BROKEN,
                        "NCCL: %s: not done within %u ms: another rank is late or gone", what,
                        p->deadline_ms);
        return 0;
}

/* A launch takes tens of microseconds, a range hundreds, a late rank seconds. So it first only yields the
 * processor, then sleeps longer and longer. */
int mfl_nccl_be_patient(struct patience *p, const char *what, struct mfl_error *err)
{
        struct timespec nap = {.tv_nsec = p->n_polls < 1000 ? 20000 : 500000};
        if (p->n_polls++ < 50)
                sched_yield();
        else
                nanosleep(&nap, NULL);
        return mfl_nccl_check_patience(p, what, err);
}

int mfl_nccl_fail(const struct mfl_comm *comm, ncclResult_t result, const char *what, struct mfl_error *err)
{
        const char *last = comm->nccl->last_error(NULL);
        return mfl_fail(err, MFL_COMM_BROKEN, "NCCL: %s: %s%s%s", what, comm->nccl->error_string(result),
                last && *last ? ": " : "", last ? last : "");
}

/* The errors that NCCL has found since. ret_busy: the last call is not done yet. */
int mfl_nccl_check_async(struct mfl_comm *comm, const char *what, bool *ret_busy, struct mfl_error *err)
{
        ncclResult_t state = ncclSuccess, result = comm->nccl->get_async_error(mfl_nccl_handle(comm), &state);
        if (result != ncclSuccess)
                return mfl_nccl_fail(comm, result, what, err);
        if (state != ncclSuccess && state != ncclInProgress)
                return mfl_nccl_fail(comm, state, what, err);
        *ret_busy = state == ncclInProgress;
        return 0;
}

/* Waits until the call that returned `result` is done. */
int mfl_nccl_settle(struct mfl_comm *comm, ncclResult_t result, struct patience *p, const char *what,
        struct mfl_error *err)
{
        bool busy = result == ncclInProgress;
        if (result != ncclSuccess && !busy)
                return mfl_nccl_fail(comm, result, what, err);
        int rc = 0;
        while (!rc && busy) {
                rc = mfl_nccl_check_async(comm, what, &busy, err);
                if (!rc && busy)
                        rc = mfl_nccl_be_patient(p, what, err);
        }
        return rc;
}

/* ---- calls that may never return ---- */

struct errand {
        ncclResult_t (*call)(ncclComm_t handle);
        ncclComm_t handle;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        bool done, abandoned;
};

static void free_errand(struct errand *e)
{
        pthread_cond_destroy(&e->changed);
        pthread_mutex_destroy(&e->lock);
        free(e);
}

static void *run_errand(void *arg)
{
        struct errand *e = arg;
        (void)e->call(e->handle);
        pthread_mutex_lock(&e->lock);
        e->done = true;
        bool abandoned = e->abandoned;
        pthread_cond_signal(&e->changed);
        pthread_mutex_unlock(&e->lock);
        if (abandoned)
                free_errand(e);
        return NULL;
}

static struct errand *start_errand(ncclResult_t (*call)(ncclComm_t handle), ncclComm_t handle)
{
        struct errand *e = mfl_calloc(1, sizeof *e);
        pthread_condattr_t attr;
        pthread_attr_t detached;
        pthread_t thread;
        sigset_t all, old;
        if (!e)
                return NULL;
        e->call = call;
        e->handle = handle;
        pthread_mutex_init(&e->lock, NULL);
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&e->changed, &attr);
        pthread_condattr_destroy(&attr);
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        int failed = pthread_create(&thread, &detached, run_errand, e);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        pthread_attr_destroy(&detached);
        if (!failed)
                return e;
        free_errand(e);
        return NULL;
}

/* False: it did not return in time. If no thread can be made, it is called directly. */
bool mfl_nccl_call_in_time(ncclResult_t (*call)(ncclComm_t handle), ncclComm_t handle, uint32_t ms)
{
        struct errand *e = start_errand(call, handle);
        struct timespec end;
        int late = 0;
        if (!e) {
                (void)call(handle);
                return true;
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += ms / 1000;
        end.tv_nsec += (long)(ms % 1000) * 1000000;
        if (end.tv_nsec >= 1000000000) {
                end.tv_sec++;
                end.tv_nsec -= 1000000000;
        }
        pthread_mutex_lock(&e->lock);
        while (!e->done && late != ETIMEDOUT)
                late = pthread_cond_timedwait(&e->changed, &e->lock, &end);
        bool done = e->done;
        e->abandoned = !done;
        pthread_mutex_unlock(&e->lock);
        if (done)
                free_errand(e);
        return done;
}
