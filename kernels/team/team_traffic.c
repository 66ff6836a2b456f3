/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to the ranks' gradients, bucket by bucket: on a thread beside a rank's own, behind the backward, or on that. */
#include "kernels/check.h"
#include "kernels/team/team_internal.h"

/* So many buckets may have memory while one of them still goes: backward waits for traffic that is slower. */
#define WINDOWS 3

/* A window's memory. */
struct buffer {
        char *data;
        uint64_t bytes;
        bool used;
};

struct team_traffic {
        struct team_traffic_options options;
        struct mfl_mesh_rounding rounding;
        uint64_t at;   /* of the bucket that is rounded */
        uint64_t size; /* of an element that is filled */
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        /* Under the lock. */
        bool running, stop, closed;
        uint32_t next;          /* bucket to go */
        int *missing;           /* of each bucket: tensors that are not ready */
        struct buffer **filled; /* windows: of each bucket; NULL: it has no memory now */
        struct buffer *buffers; /* at most one for each bucket */
        uint32_t n_buffers, n_open;
        bool going; /* a bucket is on its way */
        /* Of the session that runs. */
        uint32_t step, sequence, deadline_ms;
        const atomic_bool *cancel;
        bool adds;
        uint64_t busy_ns;
        int code;
        struct mfl_error err;
};

static uint32_t n_buckets(const struct team_traffic *traffic)
{
        return traffic->options.buckets->n;
}

/* ---- windows ---- */

/* Of those that fit, the smallest; else the first one unused is made larger. */
static struct buffer *find_buffer(struct team_traffic *traffic, uint64_t bytes)
{
        struct buffer *best = NULL, *other = NULL;
        for (uint32_t i = 0; i < traffic->n_buffers; i++) {
                struct buffer *buffer = &traffic->buffers[i];
                if (buffer->used)
                        continue;
                other = buffer;
                if (buffer->bytes >= bytes && (!best || buffer->bytes < best->bytes))
                        best = buffer;
        }
        if (best)
                return best;
        if (!other)
                other = &traffic->buffers[traffic->n_buffers++];
        free(other->data);
        *other = (struct buffer){.data = mfl_alloc_aligned(bytes), .bytes = bytes};
        if (!other->data)
                other->bytes = 0;
        return other;
}

/* The bucket's memory, which holds zeros when it is new. NULL: there is none. */
static char *open_window(struct team_traffic *traffic, uint32_t k)
{
        uint64_t bytes = traffic->options.buckets->bucket[k].n * traffic->size;
        if (traffic->filled[k])
                return traffic->filled[k]->data;
        struct buffer *buffer = find_buffer(traffic, bytes);
        if (!buffer->data) {
                traffic->code = mfl_fail_memory(&traffic->err, bytes, "a bucket of a team's gradient");
                return NULL;
        }
        memset(buffer->data, 0, bytes);
        buffer->used = true;
        traffic->filled[k] = buffer;
        traffic->n_open++;
        return buffer->data;
}

static void close_window(struct team_traffic *traffic, uint32_t k)
{
        if (!traffic->filled[k])
                return;
        traffic->filled[k]->used = false;
        traffic->filled[k] = NULL;
        traffic->n_open--;
}

/* ---- buckets ---- */

static struct mfl_mesh_op op_of(const struct team_traffic *traffic, uint32_t k, char *window)
{
        const struct team_traffic_options *options = &traffic->options;
        const struct team_bucket *bucket = &options->buckets->bucket[k];
        uint64_t slice = bucket->edge[options->mesh->rank] * traffic->size;
        char *whole = options->grads ? (char *)options->grads : options->sum;
        char *in = window ? window : whole + bucket->first * traffic->size;
        return (struct mfl_mesh_op){.kind = options->all ? MFL_MESH_ALL_REDUCE : MFL_MESH_REDUCE_SCATTER,
                .type = options->type,
                .reduction = options->own ? MFL_MESH_SUM_ROUNDED : MFL_MESH_SUM,
                .rounding = &traffic->rounding,
                .in = in,
                .out = options->own   ? (char *)((int64_t *)options->sum + options->own[k])
                       : options->all ? in
                                      : in + slice,
                .n = bucket->n,
                .edge = options->all ? NULL : bucket->edge,
                .step = traffic->step,
                .sequence = traffic->sequence + k};
}

/* Elements from `at` of the bucket on. */
static void add_rounded(void *user, uint64_t at, uint64_t n, const float *grads, bool first, int64_t *sum)
{
        struct team_traffic *traffic = user;
        const struct team_traffic_options *options = &traffic->options;
        options->ops->round(
                options->net, &options->rounding, traffic->at + at, n, grads, first && !traffic->adds, sum);
}

/* The lock is held, but not while the bucket goes. */
static void run_bucket(struct team_traffic *traffic, uint32_t k)
{
        const struct team_traffic_options *options = &traffic->options;
        char *window = options->own && !options->grads ? open_window(traffic, k) : NULL;
        if (traffic->code)
                return;
        struct mfl_mesh_op op = op_of(traffic, k, window);
        struct mfl_error err;
        traffic->going = true;
        traffic->at = options->buckets->bucket[k].first;
        pthread_mutex_unlock(&traffic->lock);
        uint64_t start_ns = mfl_now_ns();
        int rc = mfl_mesh_run(options->mesh, &op, traffic->deadline_ms, traffic->cancel, &err);
        uint64_t ns = mfl_now_ns() - start_ns;
        pthread_mutex_lock(&traffic->lock);
        traffic->busy_ns += ns;
        if (rc) {
                traffic->code = rc;
                traffic->err = err;
        }
        if (window)
                close_window(traffic, k);
        traffic->going = false;
        pthread_cond_broadcast(&traffic->changed);
}

static bool is_over(const struct team_traffic *traffic)
{
        return traffic->code || traffic->stop || traffic->next == n_buckets(traffic);
}

/* All buckets that may go, in their order. The lock is held. */
static void run_ready(struct team_traffic *traffic)
{
        while (!is_over(traffic) && traffic->missing[traffic->next] <= 0) {
                uint32_t k = traffic->next++;
                if (traffic->options.buckets->bucket[k].deferred < 0)
                        run_bucket(traffic, k);
        }
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
                run_ready(traffic);
                if (is_over(traffic)) {
                        traffic->running = false;
                        pthread_cond_broadcast(&traffic->changed);
                } else
                        pthread_cond_wait(&traffic->changed, &traffic->lock);
        }
        pthread_mutex_unlock(&traffic->lock);
        return NULL;
}

/* ---- its life ---- */

static int start(struct team_traffic *traffic, struct mfl_error *err)
{
        size_t n = (size_t)n_buckets(traffic) + 1;
        traffic->missing = mfl_calloc(n, sizeof *traffic->missing);
        traffic->filled = mfl_calloc(n, sizeof(struct buffer *));
        traffic->buffers = mfl_calloc(n, sizeof *traffic->buffers);
        if (!traffic->missing || !traffic->filled || !traffic->buffers)
                return mfl_fail_memory(err, n * sizeof *traffic->buffers, "a team's traffic");
        if (!traffic->options.behind)
                return 0;
        int rc = pthread_create(&traffic->thread, NULL, run, traffic);
        if (!rc)
                return 0;
        traffic->options.behind = false;
        return mfl_fail(err, -rc, "cannot start a thread for a team's traffic: %s", strerror(rc));
}

int mfl_team_traffic_new(
        const struct team_traffic_options *options, struct team_traffic **ret_traffic, struct mfl_error *err)
{
        struct team_traffic *traffic = mfl_calloc(1, sizeof *traffic);
        if (!traffic)
                return mfl_fail_memory(err, sizeof *traffic, "a team's traffic");
        *traffic = (struct team_traffic){.options = *options,
                .rounding = {add_rounded, traffic},
                .size = mfl_mesh_type_bytes(options->type)};
        pthread_mutex_init(&traffic->lock, NULL);
        pthread_cond_init(&traffic->changed, NULL);
        int rc = start(traffic, err);
        if (rc) {
                mfl_team_traffic_free(traffic);
                return rc;
        }
        *ret_traffic = traffic;
        return 0;
}

void mfl_team_traffic_free(struct team_traffic *traffic)
{
        if (!traffic)
                return;
        if (traffic->options.behind) {
                pthread_mutex_lock(&traffic->lock);
                traffic->closed = true;
                pthread_cond_broadcast(&traffic->changed);
                pthread_mutex_unlock(&traffic->lock);
                pthread_join(traffic->thread, NULL);
        }
        pthread_cond_destroy(&traffic->changed);
        pthread_mutex_destroy(&traffic->lock);
        for (uint32_t i = 0; i < traffic->n_buffers; i++)
                free(traffic->buffers[i].data);
        free(traffic->buffers);
        free(traffic->filled);
        free(traffic->missing);
        free(traffic);
}

uint64_t mfl_team_traffic_bytes(const struct team_traffic *traffic)
{
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < traffic->n_buffers; i++)
                bytes += traffic->buffers[i].bytes;
        return bytes;
}

/* ---- a session ---- */

void mfl_team_traffic_begin(struct team_traffic *traffic, const struct team_traffic_session *session)
{
        pthread_mutex_lock(&traffic->lock);
        mfl_assert(!traffic->running);
        for (uint32_t k = 0; k < n_buckets(traffic); k++) {
                const struct team_bucket *bucket = &traffic->options.buckets->bucket[k];
                traffic->missing[k] = bucket->deferred < 0 ? bucket->n_tensors : 0;
                close_window(traffic, k);
        }
        traffic->next = 0;
        traffic->step = session->step;
        traffic->sequence = session->sequence;
        traffic->deadline_ms = session->deadline_ms;
        traffic->cancel = session->cancel;
        traffic->adds = session->adds;
        traffic->busy_ns = 0;
        traffic->code = 0;
        traffic->stop = false;
        traffic->running = true;
        pthread_cond_broadcast(&traffic->changed);
        pthread_mutex_unlock(&traffic->lock);
}

static bool may_open(const struct team_traffic *traffic)
{
        bool more = traffic->going || traffic->missing[traffic->next] <= 0;
        return is_over(traffic) || traffic->n_open < WINDOWS || !more;
}

void *mfl_team_traffic_place(void *user, uint64_t at, uint64_t *n)
{
        struct team_traffic *traffic = user;
        if (traffic->options.grads)
                return traffic->options.grads + at;
        if (!traffic->options.own)
                return (char *)traffic->options.sum + at * traffic->size;
        const struct team_bucket *bucket = traffic->options.buckets->bucket;
        uint32_t k = 0;
        while (at < bucket[k].first) /* the last bucket begins at 0 */
                k++;
        *n = MFL_MIN(*n, bucket[k].first + bucket[k].n - at);
        pthread_mutex_lock(&traffic->lock);
        while (traffic->options.behind && !traffic->filled[k] && !may_open(traffic))
                pthread_cond_wait(&traffic->changed, &traffic->lock);
        char *window = traffic->code ? NULL : open_window(traffic, k);
        pthread_mutex_unlock(&traffic->lock);
        return window ? window + (at - bucket[k].first) * traffic->size : NULL;
}

void mfl_team_traffic_ready(void *user, int tensor)
{
        struct team_traffic *traffic = user;
        const struct mfl_grad_tensor *t = &traffic->options.layout->tensors[tensor];
        bool wakes = false;
        pthread_mutex_lock(&traffic->lock);
        for (uint32_t k = 0; k < n_buckets(traffic); k++) {
                const struct team_bucket *bucket = &traffic->options.buckets->bucket[k];
                if (t->at < bucket->first + bucket->n && t->at + t->count > bucket->first)
                        wakes = --traffic->missing[k] == 0 || wakes;
        }
        if (wakes && traffic->options.behind)
                pthread_cond_broadcast(&traffic->changed);
        else if (wakes)
                run_ready(traffic);
        pthread_mutex_unlock(&traffic->lock);
}

int mfl_team_traffic_wait(
        struct team_traffic *traffic, const char *reason, uint64_t *ret_busy_ns, struct mfl_error *err)
{
        struct mfl_mesh *mesh = traffic->options.mesh;
        if (reason)
                mesh->ops->abort(mesh, reason);
        pthread_mutex_lock(&traffic->lock);
        for (uint32_t k = 0; k < n_buckets(traffic); k++)
                traffic->missing[k] = 0;
        traffic->stop = reason != NULL;
        pthread_cond_broadcast(&traffic->changed);
        while (traffic->options.behind && traffic->running)
                pthread_cond_wait(&traffic->changed, &traffic->lock);
        run_ready(traffic);
        traffic->running = false;
        pthread_mutex_unlock(&traffic->lock);
        *ret_busy_ns += traffic->busy_ns;
        if (traffic->code)
                return mfl_fail(err, traffic->code, "%s", traffic->err.text);
        return 0;
}
