/* SPDX-License-Identifier: Apache-2.0 */
/* The link's params: where downloads land, how far they are, and whether they are what their digest says. A
 * job's frozen params come first, once, and stay; then each version of those that move comes in the same way.
 */
#include "client/link_internal.h"
#include "common/log.h"

#define VERSIONS_MAX 2u

static void free_params(struct link_params *params)
{
        if (params->frozen)
                link_params_unref(params->frozen);
        mfl_sha256_deinit(&params->sha);
        mfl_sha256_deinit(&params->prefix);
        link_store_free(&params->store);
        link_store_free(&params->copy);
        mfl_share_buffer_free(params->absent);
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
        params->from = 0;
        if (params->store.buffer)
                mfl_share_withdraw(params->store.buffer);
        if (params->copy.buffer)
                mfl_share_withdraw(params->copy.buffer);
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

/* Makes room for one more version of a job. True with a store of n floats that became free, whose pages were
 * touched before. */
static bool evict(struct mfl_link *link, const struct link_params *keep, struct link_store *ret_store)
{
        uint32_t n_versions = 0;
        struct link_params *oldest = NULL;
        for (struct link_params *params = link->params; params; params = params->next) {
                if (strcmp(params->job, keep->job) || params == keep || params->is_frozen)
                        continue;
                n_versions++;
                if (!oldest || params->used < oldest->used)
                        oldest = params;
        }
        if (n_versions < VERSIONS_MAX || keep->is_frozen)
                return false;
        bool reused = false;
        unlink_params(link, oldest);
        if (!oldest->refs) {
                reused = link_store_reuse(&oldest->store, keep->n);
                if (reused) {
                        *ret_store = oldest->store;
                        oldest->store = (struct link_store){0};
                }
                free_params(oldest);
        }
        return reused;
}

static void refuse(struct link_params *params, const char *reason)
{
        params->refused = true;
        mfl_strcpy(params->reason, sizeof(params->reason), reason);
}

static void publish(struct link_params *params, struct mfl_share_buffer *buffer)
{
        struct mfl_error err;
        if (mfl_share_publish(buffer, params->digest, &err))
                link_trace(params->link, "params of %s are not for others of the node: %s", params->job,
                        err.text);
}

/* Others of the node that look for these params find something of another size, and ask the server at once.
 */
static void tell_absent(struct link_params *params, const struct mfl_error *why)
{
        struct mfl_link *link = params->link;
        struct mfl_error err;
        if (strcmp(link->told_no_room, params->job))
                mfl_log_job(MFL_LOG_INFO, params->job, "params of %s are not shared with other daemons: %s",
                        params->job, why->text);
        mfl_strcpy(link->told_no_room, sizeof(link->told_no_room), params->job);
        if (!mfl_share_buffer_new(link->options.share, 1, &params->absent, &err))
                publish(params, params->absent);
}

/* This daemon is to have them for the node, and holds them where the others can't read: in a view of one that
 * had them before, or in private memory. Copied on the loop: that is rare, and takes less than their way from
 * the server did. */
static void copy_to_share(struct link_params *params)
{
        struct link_store copy = {0};
        struct mfl_error err, no_room = {{0}};
        int r = link_store_new(params->link, params->n, &copy, &no_room, &err);
        if (r || !copy.buffer) {
                link_store_free(&copy);
                if (!params->absent)
                        tell_absent(params, *no_room.text ? &no_room : &err);
                return;
        }
        mfl_share_buffer_touch(copy.buffer);
        memcpy(copy.data, params->store.data, params->n * sizeof(float));
        publish(params, copy.buffer);
        mfl_share_buffer_free(params->absent);
        params->absent = NULL;
        if (params->refs) {
                params->copy = copy;
        } else {
                link_store_free(&params->store);
                params->store = copy;
        }
}

/* Of params that are here. Another job's of the same digest may have taken the name, or it went with them. */
static void offer(struct link_params *params, const struct mfl_task *task)
{
        const struct mfl_link *link = params->link;
        if (params->store.buffer)
                publish(params, params->store.buffer);
        else if (params->copy.buffer)
                publish(params, params->copy.buffer);
        else if (link->options.share && params->n && task->params_from == link->options.agent.info.instance)
                copy_to_share(params);
}

static void get_store(struct mfl_link *link, struct link_params *params)
{
        struct mfl_error err, no_room = {{0}};
        if (evict(link, params, &params->store))
                return;
        int r = link_store_new(link, params->n, &params->store, &no_room, &err);
        if (*no_room.text)
                tell_absent(params, &no_room);
        if (r)
                refuse(params, err.text);
}

static struct link_params *new_params(
        struct mfl_link *link, const char *job, const uint8_t *digest, uint64_t n)
{
        struct mfl_error err;
        struct link_params *params = mfl_calloc(1, sizeof(*params));
        if (!params) {
                mfl_fail_memory(&err, sizeof(*params), "params");
                link_fatal(link, &err);
                return NULL;
        }
        params->link = link;
        params->n = n;
        mfl_strcpy(params->job, sizeof(params->job), job);
        memcpy(params->digest, digest, MFL_DIGEST_BYTES);
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

/* From the server, into memory of this daemon. */
static void fetch(struct link_params *params)
{
        params->from = 0;
        if (!params->store.data && !params->refused)
                get_store(params->link, params);
        /* What was refused is told when the task starts: the agent knows no other way to fail. */
        if (params->ready || params->refused)
                post(params, MFL_AGENT_EV_PARAMS_DONE, true);
        else if (params->have < params->n)
                post(params, MFL_AGENT_EV_PARAMS_MISSING, false);
        /* Else it is being hashed, and PARAMS_DONE comes from there. */
}

/* ---- params that another daemon of the node fetches ---- */

#define WAIT_MS 5000u
#define WAIT_LOOK_MS 20u
#define WAIT_BYTES_PER_MS (16u * 1024 * 1024 / 1000)

/* The daemon that they belong to can write the next version into that memory only when nobody reads it, and
 * new memory for every version costs more than the way to look at an old one again, should it be wanted. */
static void drop_older_views(struct link_params *params)
{
        struct link_params *next;
        for (struct link_params *other = params->link->params; other; other = next) {
                next = other->next;
                if (other == params || strcmp(other->job, params->job) || !other->store.view || other->refs ||
                        other->is_frozen)
                        continue;
                unlink_params(params->link, other);
                free_params(other);
        }
}

static void take_view(struct link_params *params, struct mfl_share_view *view)
{
        struct link_store spare = {0};
        if (!params->is_frozen)
                drop_older_views(params);
        evict(params->link, params, &spare);
        link_store_free(&spare);
        /* Never written to: all of it has come. */
        params->store =
                (struct link_store){.data = (float *)mfl_share_view_data(view), .n = params->n, .view = view};
        link_trace(params->link, "params of %s: read from daemon %016llx of this node after %llu ms",
                params->job, (unsigned long long)params->from,
                (unsigned long long)(mfl_now_ms() - params->since_ms));
        params->have = params->hashed = params->n;
        params->ready = true;
        params->from = 0;
        post(params, MFL_AGENT_EV_PARAMS_DONE, true);
}

/* Ms between two looks for params: next to nothing of what the wait has taken so far, so small params are
 * found at once, and a long download is not looked for a thousand times a second. */
static uint32_t pause_of(const struct link_params *params)
{
        return (uint32_t)MFL_MIN(1 + (mfl_now_ms() - params->since_ms) / 32, (uint64_t)WAIT_LOOK_MS);
}

/* True: it waits still. */
static bool look(struct link_params *params)
{
        struct mfl_share_view *view;
        struct mfl_error err;
        int r = mfl_share_view_open(params->link->options.share, params->from, params->digest,
                params->n * sizeof(float), &view, &err);
        if (!r) {
                take_view(params, view);
                return false;
        }
        if (r < 0) {
                link_fatal(params->link, &err);
                return false;
        }
        if (r == MFL_NOT_FOUND && mfl_now_ms() < params->deadline_ms)
                return true;
        link_trace(params->link, "params of %s: not from daemon %016llx of this node (%s), but the server",
                params->job, (unsigned long long)params->from,
                r == MFL_NOT_FOUND ? "it takes too long" : err.text);
        fetch(params);
        return false;
}

static bool may_wait(const struct link_params *params, const struct mfl_task *task)
{
        const struct mfl_link *link = params->link;
        return task->params_from && task->params_from != link->options.agent.info.instance &&
               link->options.share && params->n && !params->store.data && !params->ready && !params->refused;
}

static void wait_for(struct link_params *params, uint64_t from)
{
        if (params->from != from) {
                params->from = from;
                params->since_ms = mfl_now_ms();
                params->deadline_ms =
                        params->since_ms + WAIT_MS + params->n * sizeof(float) / WAIT_BYTES_PER_MS;
        }
        if (look(params))
                link_poll(params->link, pause_of(params));
}

uint32_t link_params_poll(struct mfl_link *link)
{
        uint32_t ms = 0;
        /* What is found is told at once, and that may change the list: then from the start. */
        for (struct link_params *params = link->params; params;) {
                struct link_params *next = params->next;
                if (!params->from) {
                        params = next;
                        continue;
                }
                if (look(params)) {
                        uint32_t pause = pause_of(params);
                        ms = ms ? MFL_MIN(ms, pause) : pause;
                        params = next;
                        continue;
                }
                if (link->exited || link->closing)
                        return 0;
                params = link->params;
                ms = 0;
        }
        return ms;
}

/* That part of a job's params, as far as it is here. NULL: memory is out. */
static struct link_params *get_params(struct mfl_link *link, const char *job, const uint8_t *digest,
        uint64_t n, const struct link_params *frozen)
{
        struct link_params *params = link_params_find(link, job, digest);
        if (params && (params->n != n || params->frozen != frozen)) {
                /* The same digest can't be of two sizes: one of the tasks is wrong, and this one's will show.
                 */
                unlink_params(link, params);
                if (!params->refs)
                        free_params(params);
                params = NULL;
        }
        return params ? params : new_params(link, job, digest, n);
}

static void open_params(struct link_params *params, const struct mfl_task *task)
{
        params->used = ++params->link->clock;
        if (params->ready)
                offer(params, task);
        if (may_wait(params, task))
                wait_for(params, task->params_from);
        else
                fetch(params);
}

void link_params_open(struct mfl_link *link, const struct mfl_task *task)
{
        struct link_params *frozen = NULL;
        if (task->n_frozen) {
                frozen = get_params(link, task->job, task->frozen_digest, task->n_frozen, NULL);
                if (!frozen)
                        return;
                frozen->is_frozen = true;
                /* The agent orders again when they are here; with what was refused the task fails when it
                 * starts. */
                if (!frozen->ready && !frozen->refused) {
                        open_params(frozen, task);
                        return;
                }
                offer(frozen, task);
        }
        struct link_params *params =
                get_params(link, task->job, task->params_digest, task->n_params - task->n_frozen, frozen);
        if (!params)
                return;
        if (frozen && !params->frozen) {
                params->frozen = frozen;
                frozen->refs++;
        }
        open_params(params, task);
}

/* ---- hashing ---- */

/* The digest of params behind frozen ones goes on where that of those ends. One daemon's view of another's
 * was never hashed here. */
static int begin_hash(struct link_params *params, struct mfl_error *err)
{
        struct link_params *frozen = params->frozen;
        if (!frozen)
                return mfl_sha256_init(&params->sha, err);
        int r = 0;
        if (!frozen->prefix.ctx) {
                r = mfl_sha256_init(&frozen->prefix, err);
                if (!r)
                        r = mfl_sha256_update(
                                &frozen->prefix, frozen->store.data, frozen->n * sizeof(float), err);
        }
        return r ? r : mfl_sha256_copy(&frozen->prefix, &params->sha, err);
}

static void run_hash(struct mfl_work *work)
{
        struct link_params *params = MFL_CONTAINER_OF(work, struct link_params, work);
        int r = params->sha.ctx ? 0 : begin_hash(params, &params->hash_err);
        if (!r)
                r = mfl_sha256_update(&params->sha, params->store.data + params->hashed,
                        (params->hash_end - params->hashed) * sizeof(float), &params->hash_err);
        if (!r && params->is_frozen && params->hash_end == params->n)
                r = mfl_sha256_copy(&params->sha, &params->prefix, &params->hash_err);
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
                mfl_sha256_deinit(&params->prefix);
        }
        if (ok && params->store.buffer)
                publish(params, params->store.buffer);
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
        if (!params || !params->store.data || params->refused || msg->offset != params->have ||
                params->have == params->n)
                return 0;
        if (msg->total != params->n || bytes % sizeof(float) || !bytes ||
                bytes / sizeof(float) > params->n - params->have)
                return mfl_fail(err, MFL_INVALID, "Params: %zu bytes at %llu of %llu, expected %llu in all",
                        bytes, (unsigned long long)msg->offset, (unsigned long long)msg->total,
                        (unsigned long long)params->n);
        params->refs++;
        link->receiving = params;
        *ret_dst = params->store.data + params->have;
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
        /* Ordered again after a reconnect. */
        for (struct link_params *params = link->params; params; params = params->next)
                params->from = 0;
}
