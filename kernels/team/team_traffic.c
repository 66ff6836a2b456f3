/* SPDX-License-Identifier: Apache-2.0 */
/* A thread beside a rank's own that runs the reduce-scatters of one step's buckets behind the backward. */
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

struct team_traffic {
        struct mfl_mesh *mesh;
        const struct team_buckets *buckets;
        const struct mfl_grad_layout *layout;
        int64_t *sum;
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        /* Under the lock. */
        bool running, stop, closed;
        int *missing; /* of each bucket: tensors that are not ready */
        /* Of the step that runs; the thread's alone meanwhile. */
        uint32_t step, sequence, deadline_ms;
        const atomic_bool *cancel;
        uint64_t busy_ns;
        int code;
        struct mfl_error err;
};

struct mfl_mesh_op mfl_team_scatter(
        const struct mfl_mesh *mesh, const struct team_bucket *bucket, int64_t *sum)
{
        return (struct mfl_mesh_op){.kind = MFL_MESH_REDUCE_SCATTER,
                .type = MFL_MESH_I64,
                .in = sum + bucket->first,
                .out = sum + bucket->first + bucket->edge[mesh->rank],
                .n = bucket->n,
                .edge = bucket->edge};
}

/* Whether bucket k may go; false: nothing more may. Called and returns with the lock held. */
static bool await_bucket(struct team_traffic *traffic, uint32_t k)
{
        while (traffic->missing[k] > 0 && !traffic->stop)
                pthread_cond_wait(&traffic->changed, &traffic->lock);
        return !traffic->stop;
}

/* The lock is held, but not while traffic goes on. */
static void run_step(struct team_traffic *traffic)
{
        int rc = 0;
        for (uint32_t k = 0; !rc && k < traffic->buckets->n && await_bucket(traffic, k); k++) {
                struct mfl_mesh_op op =
                        mfl_team_scatter(traffic->mesh, &traffic->buckets->bucket[k], traffic->sum);
                op.step = traffic->step;
                op.sequence = traffic->sequence + k;
                pthread_mutex_unlock(&traffic->lock);
                uint64_t start_ns = mfl_now_ns();
                rc = mfl_mesh_run(traffic->mesh, &op, traffic->deadline_ms, traffic->cancel, &traffic->err);
                traffic->busy_ns += mfl_now_ns() - start_ns;
                pthread_mutex_lock(&traffic->lock);
        }
        traffic->code = rc;
}

static void *run(void *arg)
{
        struct team_traffic *traffic = arg;
        pthread_mutex_lock(&traffic->lock);
        for (;;) {
                while (!traffic->running && !traffic->closed)
                        pthread_cond_wait(&traffic->changed, &traffic->lock);
                if (traffic->closed)
                        break;
                run_step(traffic);
                traffic->running = false;
                pthread_cond_broadcast(&traffic->changed);
        }
        pthread_mutex_unlock(&traffic->lock);
        return NULL;
}

int mfl_team_traffic_new(struct mfl_mesh *mesh, const struct team_buckets *buckets,
        const struct mfl_grad_layout *layout, int64_t *sum, struct team_traffic **ret_traffic,
        struct mfl_error *err)
{
        struct team_traffic *traffic = mfl_calloc(1, sizeof *traffic);
        int *missing = mfl_calloc((size_t)buckets->n + 1, sizeof *missing);
        if (!traffic || !missing) {
                free(traffic);
                free(missing);
                return mfl_fail_memory(err, sizeof *traffic, "a team's traffic");
        }
        *traffic = (struct team_traffic){
                .mesh = mesh, .buckets = buckets, .layout = layout, .sum = sum, .missing = missing};
        pthread_mutex_init(&traffic->lock, NULL);
        pthread_cond_init(&traffic->changed, NULL);
        int rc = pthread_create(&traffic->thread, NULL, run, traffic);
        if (rc) {
                pthread_cond_destroy(&traffic->changed);
                pthread_mutex_destroy(&traffic->lock);
                free(missing);
                free(traffic);
                return mfl_fail(err, -rc, "cannot start a thread for a team's traffic: %s", strerror(rc));
        }
        *ret_traffic = traffic;
        return 0;
}

void mfl_team_traffic_free(struct team_traffic *traffic)
{
        if (!traffic)
                return;
        pthread_mutex_lock(&traffic->lock);
        traffic->closed = true;
        pthread_cond_broadcast(&traffic->changed);
        pthread_mutex_unlock(&traffic->lock);
        pthread_join(traffic->thread, NULL);
        pthread_cond_destroy(&traffic->changed);
        pthread_mutex_destroy(&traffic->lock);
        free(traffic->missing);
        free(traffic);
}

void mfl_team_traffic_begin(struct team_traffic *traffic, uint32_t step, uint32_t sequence,
        uint32_t deadline_ms, const atomic_bool *cancel)
{
        pthread_mutex_lock(&traffic->lock);
        mfl_assert(!traffic->running);
        for (uint32_t k = 0; k < traffic->buckets->n; k++)
                traffic->missing[k] = traffic->buckets->bucket[k].n_tensors;
        traffic->step = step;
        traffic->sequence = sequence;
        traffic->deadline_ms = deadline_ms;
        traffic->cancel = cancel;
        traffic->busy_ns = 0;
        traffic->code = 0;
        traffic->stop = false;
        traffic->running = true;
        pthread_cond_broadcast(&traffic->changed);
        pthread_mutex_unlock(&traffic->lock);
}

void mfl_team_traffic_ready(void *user, int tensor)
{
        struct team_traffic *traffic = user;
        const struct mfl_grad_tensor *t = &traffic->layout->tensors[tensor];
        bool wakes = false;
        pthread_mutex_lock(&traffic->lock);
        for (uint32_t k = 0; k < traffic->buckets->n; k++) {
                const struct team_bucket *bucket = &traffic->buckets->bucket[k];
                if (t->at < bucket->first + bucket->n && t->at + t->count > bucket->first)
                        wakes = --traffic->missing[k] == 0 || wakes;
        }
        if (wakes)
                pthread_cond_broadcast(&traffic->changed);
        pthread_mutex_unlock(&traffic->lock);
}

int mfl_team_traffic_wait(
        struct team_traffic *traffic, const char *reason, uint64_t *ret_busy_ns, struct mfl_error *err)
{
        if (reason)
                traffic->mesh->ops->abort(traffic->mesh, reason);
        pthread_mutex_lock(&traffic->lock);
        for (uint32_t k = 0; k < traffic->buckets->n; k++)
                traffic->missing[k] = 0;
        traffic->stop = reason != NULL;
        pthread_cond_broadcast(&traffic->changed);
        while (traffic->running)
                pthread_cond_wait(&traffic->changed, &traffic->lock);
        pthread_mutex_unlock(&traffic->lock);
        *ret_busy_ns += traffic->busy_ns;
        if (traffic->code)
                return mfl_fail(err, traffic->code, "%s", traffic->err.text);
        return 0;
}
