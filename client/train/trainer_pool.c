/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's threads: they wait for a function, call it with their number, and wait again. */
#include "client/train/trainer_internal.h"

#include <signal.h>

struct trainer_thread {
        struct trainer_pool *pool;
        uint32_t number;
        pthread_t id;
};

static void *run_thread(void *arg)
{
        struct trainer_thread *thread = arg;
        struct trainer_pool *pool = thread->pool;
        uint64_t seen = 0;
        pthread_mutex_lock(&pool->lock);
        for (;;) {
                while (!pool->stop && pool->generation == seen)
                        pthread_cond_wait(&pool->start, &pool->lock);
                if (pool->stop)
                        break;
                seen = pool->generation;
                if (thread->number >= pool->n_wanted)
                        continue;
                pthread_mutex_unlock(&pool->lock);
                pool->fn(pool->arg, thread->number);
                pthread_mutex_lock(&pool->lock);
                if (--pool->n_busy == 0)
                        pthread_cond_signal(&pool->done);
        }
        pthread_mutex_unlock(&pool->lock);
        return NULL;
}

static void stop_threads(struct trainer_pool *pool)
{
        pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->start);
        pthread_mutex_unlock(&pool->lock);
        for (uint32_t i = 0; i < pool->n; i++)
                pthread_join(pool->threads[i].id, NULL);
        pool->n = 0;
}

/* Signals belong to the loop thread, so the threads start with all of them blocked. */
static int start_threads(struct trainer_pool *pool, uint32_t n)
{
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int r = 0;
        while (!r && pool->n < n) {
                struct trainer_thread *thread = &pool->threads[pool->n];
                *thread = (struct trainer_thread){.pool = pool, .number = pool->n};
                r = pthread_create(&thread->id, NULL, run_thread, thread);
                if (!r)
                        pool->n++;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return r;
}

int mfl_trainer_pool_init(struct trainer_pool *pool, uint32_t n, struct mfl_error *err)
{
        struct trainer_thread *threads = mfl_calloc(n, sizeof(*threads));
        if (!threads)
                return mfl_fail_memory(err, n * sizeof(*threads), "threads");
        *pool = (struct trainer_pool){.threads = threads};
        pthread_mutex_init(&pool->lock, NULL);
        pthread_cond_init(&pool->start, NULL);
        pthread_cond_init(&pool->done, NULL);
        int r = start_threads(pool, n);
        if (!r)
                return 0;
        mfl_trainer_pool_deinit(pool);
        return mfl_fail(err, -r, "trainer: start thread: %s", strerror(r));
}

void mfl_trainer_pool_deinit(struct trainer_pool *pool)
{
        if (!pool->threads)
                return;
        stop_threads(pool);
        pthread_cond_destroy(&pool->done);
        pthread_cond_destroy(&pool->start);
        pthread_mutex_destroy(&pool->lock);
        free(pool->threads);
        pool->threads = NULL;
}

void mfl_trainer_pool_run(
        struct trainer_pool *pool, uint32_t n, void (*fn)(void *arg, uint32_t worker), void *arg)
{
        mfl_assert(n >= 1 && n <= pool->n);
        pthread_mutex_lock(&pool->lock);
        pool->fn = fn;
        pool->arg = arg;
        pool->n_wanted = pool->n_busy = n;
        pool->generation++;
        pthread_cond_broadcast(&pool->start);
        while (pool->n_busy)
                pthread_cond_wait(&pool->done, &pool->lock);
        pthread_mutex_unlock(&pool->lock);
}
