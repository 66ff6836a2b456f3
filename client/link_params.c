/* SPDX-License-Identifier: Apache-2.0 */
/* The link's params: where downloads land, how far they are, and whether they are what their digest says. */
#include "client/link_internal.h"

#define VERSIONS_MAX 2u

static void free_params(struct link_params *params)
{
        mfl_sha256_deinit(&params->sha);
        if (params->data && params->budget)
                mfl_budget_release(params->budget, params->n * sizeof(float));
        free(params->data);
        free(params);
}

void link_params_unref(struct link_params *params)
{
        mfl_assert(params->refs > 0);
        if (--params->refs == 0 && params->dead)
                free_params(params);
}

static void unlink_params(struct mfl_link *link, struct link_params *params)
{
        struct link_params **at = &link->params;
        while (*at != params)
                at = &(*at)->next;
        *at = params->next;
        params->dead = true;
}

void link_params_forget(struct mfl_link *link, const char *job)
{
        struct link_params *next;
        for (struct link_params *params = link->params; params; params = next) {
                next = params->next;
                if (job && strcmp(params->job, job))
                        continue;
                unlink_params(link, params);
                if (!params->refs)
                        free_params(params);
        }
}

struct link_params *link_params_find(struct mfl_link *link, const char *job, const uint8_t *digest)
{
        for (struct link_params *params = link->params; params; params = params->next) {
                if (!strcmp(params->job, job) && !memcmp(params->digest, digest, MFL_DIGEST_BYTES))
                        return params;
        }
        return NULL;
}

/* Makes room for one more version of a job. Returns a buffer of n floats that became free, whose pages were
 * touched before, or NULL. */
static float *evict(struct mfl_link *link, const char *job, uint64_t n)
{
        uint32_t n_versions = 0;
        struct link_params *oldest = NULL;
        for (struct link_params *params = link->params; params; params = params->next) {
                if (strcmp(params->job, job))
                        continue;
                n_versions++;
                if (!oldest || params->used < oldest->used)
                        oldest = params;
        }
        if (n_versions < VERSIONS_MAX)
                return NULL;
        float *data = NULL;
        unlink_params(link, oldest);
        if (!oldest->refs) {
                if (oldest->n == n) {
                        data = oldest->data;
                        oldest->data = NULL;
                }
                free_params(oldest);
        }
        return data;
}

static void refuse(struct link_params *params, const char *reason)
{
        params->refused = true;
        mfl_strcpy(params->reason, sizeof(params->reason), reason);
}

static void get_buffer(struct mfl_link *link, struct link_params *params)
{
        struct mfl_error err;
        uint64_t bytes = params->n * sizeof(float);
        params->data = evict(link, params->job, params->n);
        if (params->data)
                return;
        if (params->budget && mfl_budget_reserve(params->budget, bytes, "params", &err)) {
                refuse(params, err.text);
                return;
        }
        params->data = mfl_alloc_aligned(bytes);
        if (!params->data) {
                if (params->budget)
                        mfl_budget_release(params->budget, bytes);
                mfl_fail_memory(&err, bytes, "params");
                refuse(params, err.text);
        }
}

static struct link_params *new_params(struct mfl_link *link, const struct mfl_task *task)
{
        struct mfl_error err;
        struct link_params *params = mfl_calloc(1, sizeof(*params));
        if (!params) {
                mfl_fail_memory(&err, sizeof(*params), "params");
                link_fatal(link, &err);
                return NULL;
        }
        params->link = link;
        params->budget = link->options.budget;
        params->n = task->n_params;
        mfl_strcpy(params->job, sizeof(params->job), task->job);
        memcpy(params->digest, task->params_digest, MFL_DIGEST_BYTES);
        if (mfl_sha256_init(&params->sha, &err) < 0) {
                link_fatal(link, &err);
                free(params);
                return NULL;
        }
        get_buffer(link, params);
        params->next = link->params;
        link->params = params;
        return params;
}

static void post(struct link_params *params, enum mfl_agent_event_kind kind, bool ok)
{
        struct mfl_agent_event event = {.kind = kind, .ok = ok, .offset = params->have};
        memcpy(event.digest, params->digest, MFL_DIGEST_BYTES);
        memcpy(event.job, params->job, sizeof(event.job));
        link_post(params->link, &event);
}

void link_params_open(struct mfl_link *link, const struct mfl_task *task)
{
        struct link_params *params = link_params_find(link, task->job, task->params_digest);
        if (params && params->n != task->n_params) {
                /* The same digest can't be of two sizes: one of the tasks is wrong, and this one's will show.
                 */
                unlink_params(link, params);
                if (!params->refs)
                        free_params(params);
                params = NULL;
        }
        if (!params)
                params = new_params(link, task);
        if (!params)
                return;
        params->used = ++link->clock;
        /* What was refused is told when the task starts: the agent knows no other way to fail. */
        if (params->ready || params->refused)
                post(params, MFL_AGENT_EV_PARAMS_DONE, true);
        else if (params->have < params->n)
                post(params, MFL_AGENT_EV_PARAMS_MISSING, false);
        /* Else it is being hashed, and PARAMS_DONE comes from there. */
}

/* ---- hashing ---- */

static void run_hash(struct mfl_work *work)
{
        struct link_params *params = MFL_CONTAINER_OF(work, struct link_params, work);
        int r = mfl_sha256_update(&params->sha, params->data + params->hashed,
                (params->hash_end - params->hashed) * sizeof(float), &params->hash_err);
        if (!r && params->hash_end == params->n)
                r = mfl_sha256_final(&params->sha, params->hash_digest, &params->hash_err);
        params->hash_status = r;
}

static void on_hashed(struct mfl_work *work);

static void start_hash(struct link_params *params)
{
        if (params->hashing || params->hashed == params->have)
                return;
        params->hash_end = params->have;
        params->work = (struct mfl_work){.run = run_hash, .done = on_hashed};
        int r = mfl_worker_submit(params->link->options.hasher, &params->work);
        if (r) {
                struct mfl_error err;
                mfl_fail(&err, -EAGAIN, "hash params: the worker's queue is full");
                link_fatal(params->link, &err);
                return;
        }
        params->hashing = true;
        params->refs++;
        params->link->pending++;
}

/* Wrong params are fetched anew from the start. */
static void finish_hash(struct link_params *params)
{
        bool ok = !memcmp(params->hash_digest, params->digest, MFL_DIGEST_BYTES);
        params->ready = ok;
        if (!ok) {
                params->have = params->hashed = 0;
                mfl_sha256_deinit(&params->sha);
                struct mfl_error err;
                if (mfl_sha256_init(&params->sha, &err) < 0) {
                        link_fatal(params->link, &err);
                        return;
                }
        }
        post(params, MFL_AGENT_EV_PARAMS_DONE, ok);
}

static void on_hashed(struct mfl_work *work)
{
        struct link_params *params = MFL_CONTAINER_OF(work, struct link_params, work);
        struct mfl_link *link = params->link;
        params->hashing = false;
        if (!params->dead && !work->cancelled) {
                params->hashed = params->hash_end;
                if (params->hash_status)
                        link_fatal(link, &params->hash_err);
                else if (params->hashed == params->n)
                        finish_hash(params);
                else
                        start_hash(params);
        }
        link_params_unref(params);
        link_pending_done(link);
}

/* ---- receiving ---- */

/* A piece that isn't the next one of params that are wanted belongs to a ParamsGet that was replaced:
 * dropped. */
int link_params_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err)
{
        *ret_dst = NULL;
        if (msg->digest.len != MFL_DIGEST_BYTES)
                return mfl_fail(err, MFL_INVALID, "Params.digest: %zu bytes", msg->digest.len);
        struct link_params *params = link_params_find(link, msg->job, msg->digest.data);
        if (!params || params->refused || msg->offset != params->have || params->have == params->n)
                return 0;
        if (msg->total != params->n || bytes % sizeof(float) || !bytes ||
                bytes / sizeof(float) > params->n - params->have)
                return mfl_fail(err, MFL_INVALID, "Params: %zu bytes at %llu of %llu, expected %llu in all",
                        bytes, (unsigned long long)msg->offset, (unsigned long long)msg->total,
                        (unsigned long long)params->n);
        params->refs++;
        link->receiving = params;
        *ret_dst = params->data + params->have;
        return 0;
}

void link_params_frame(struct mfl_link *link, size_t bytes)
{
        struct link_params *params = link->receiving;
        if (!params)
                return;
        link->receiving = NULL;
        if (!params->dead) {
                params->have += bytes / sizeof(float);
                start_hash(params);
        }
        link_params_unref(params);
}

void link_params_cut(struct mfl_link *link)
{
        if (link->receiving)
                link_params_unref(link->receiving);
        link->receiving = NULL;
}
