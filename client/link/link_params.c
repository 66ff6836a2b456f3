/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of params: their memory, the way from the socket into it, their digests, and what is shared with
 * the node. The agent decides (client/agent/agent_params.c); each function here carries out one order.
 *
 * If the device has its own memory, the hasher also copies what arrives to it, stretch by stretch. A task gets
 * the copy only when the digest is right.
 *
 * A part lives until the agent drops it and nothing reads it any more: no running task, no piece on its way,
 * no hashing, no part behind it in the flat vector.
 *
 * Ways to fail: no room (the agent is told); no memory, or a failing hash function (the process can't go
 * on). */
#include "client/link/link_internal.h"
#include "common/base/log.h"
#include "common/codec/grid_down.h"
#include "common/codec/pack.h"

/* ---- life ---- */

/* Freeing a device's memory waits for all that the device does, so the hasher does it. */
struct stage_end {
        struct mfl_work work;
        struct mfl_link *link;
        struct mfl_stage *stage;
        uint64_t n;
};

static void free_stage(struct mfl_link *link, struct mfl_stage *stage, uint64_t n)
{
        if (stage)
                link->options.ops->stage_free(link->options.compute, stage, n);
}

static void run_stage_end(struct mfl_work *work)
{
        struct stage_end *end = MFL_CONTAINER_OF(work, struct stage_end, work);
        free_stage(end->link, end->stage, end->n);
        end->stage = NULL;
}

static void on_stage_end(struct mfl_work *work)
{
        struct stage_end *end = MFL_CONTAINER_OF(work, struct stage_end, work);
        struct mfl_link *link = end->link;
        free_stage(link, end->stage, end->n); /* it was cancelled */
        free(end);
        mfl_link_pending_done(link);
}

static void end_stage(struct link_params *params)
{
        struct mfl_link *link = params->link;
        struct stage_end *end = params->stage && link->life == LINK_RUNS ? mfl_calloc(1, sizeof(*end)) : NULL;
        if (end)
                *end = (struct stage_end){
                        {.run = run_stage_end, .done = on_stage_end}, link, params->stage, params->n};
        if (end && !mfl_worker_submit(link->options.hasher, &end->work)) {
                link->pending++;
        } else {
                free(end);
                free_stage(link, params->stage, params->n);
        }
        params->stage = NULL;
}

static void free_params(struct link_params *params)
{
        mfl_assert(params->state != LINK_PARAMS_HASHING && !params->refs);
        end_stage(params);
        if (params->frozen)
                mfl_link_params_unref(params->frozen);
        mfl_sha256_deinit(&params->sha);
        mfl_sha256_deinit(&params->prefix);
        mfl_link_store_free(&params->store);
        mfl_link_store_free(&params->copy);
        mfl_share_buffer_free(params->absent);
        free(params);
}

void mfl_link_params_unref(struct link_params *params)
{
        mfl_assert(params->refs > 0);
        if (--params->refs == 0 && params->dead)
                free_params(params);
}

struct link_params *mfl_link_params_find(struct mfl_link *link, uint64_t number)
{
        for (struct link_params *params = link->params; params; params = params->next) {
                if (params->number == number)
                        return params;
        }
        return NULL;
}

const struct mfl_stage *mfl_link_params_stage(const struct link_params *params)
{
        return params->state == LINK_PARAMS_WHOLE && !params->stage_off ? params->stage : NULL;
}

static void unlink_params(struct link_params *params)
{
        struct link_params **at = &params->link->params;
        while (*at != params)
                at = &(*at)->next;
        *at = params->next;
        params->dead = true;
        if (params->store.buffer)
                mfl_share_withdraw(params->store.buffer);
        if (params->copy.buffer)
                mfl_share_withdraw(params->copy.buffer);
}

void mfl_link_params_free(struct mfl_link *link, uint64_t number)
{
        struct link_params *params = mfl_link_params_find(link, number);
        if (!params)
                return;
        unlink_params(params);
        if (!params->refs)
                free_params(params);
}

void mfl_link_params_free_all(struct mfl_link *link)
{
        while (link->params)
                mfl_link_params_free(link, link->params->number);
}

static struct link_params *new_params(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct link_params *params = mfl_calloc(1, sizeof(*params));
        mfl_assert(!mfl_link_params_find(link, action->part));
        if (!params)
                return NULL;
        params->link = link;
        params->number = action->part;
        params->n = action->n_floats;
        mfl_strcpy(params->job, sizeof(params->job), action->job);
        memcpy(params->digest, action->digest, MFL_DIGEST_BYTES);
        if (action->frozen_part) {
                params->frozen = mfl_link_params_find(link, action->frozen_part);
                mfl_assert(params->frozen);
                params->frozen->refs++;
        }
        params->next = link->params;
        link->params = params;
        return params;
}

static void post(const struct link_params *params, enum mfl_agent_event_kind kind, bool ok)
{
        struct mfl_agent_event event = {.kind = kind, .part = params->number, .ok = ok};
        mfl_link_post(params->link, &event);
}

static void fatal_memory(struct mfl_link *link)
{
        struct mfl_error err;
        mfl_fail_memory(&err, sizeof(struct link_params), "params");
        mfl_link_fatal(link, &err);
}

/* ---- what the node shares ---- */

static void publish(struct link_params *params, struct mfl_share_buffer *buffer)
{
        struct mfl_error err;
        if (mfl_share_publish(buffer, params->digest, &err))
                mfl_link_trace(
                        params->link, "params of %s are not shared with the node: %s", params->job, err.text);
}

/* Other daemons of the node that look for these params find a page of another size, and ask the server at
 * once. */
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

/* This daemon fetches for the node, but holds the params where the others can't read them: in private memory,
 * or in another daemon's. The copy is made on the loop: that is rare, and faster than a download. */
static void copy_to_share(struct link_params *params)
{
        struct link_store copy = {0};
        struct mfl_error err, no_room = {{0}};
        int r = mfl_link_store_new(params->link, params->n, &copy, &no_room, &err);
        if (r || !copy.buffer) {
                mfl_link_store_free(&copy);
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
                mfl_link_store_free(&params->store);
                params->store = copy;
        }
}

/* Published each time, because params of another job with the same digest may have taken the name. */
void mfl_link_params_share(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct link_params *params = mfl_link_params_find(link, action->part);
        mfl_assert(params && params->state == LINK_PARAMS_WHOLE);
        if (params->store.buffer)
                publish(params, params->store.buffer);
        else if (params->copy.buffer)
                publish(params, params->copy.buffer);
        else if (link->options.share && params->n && action->make)
                copy_to_share(params);
}

static void found(struct mfl_link *link, const struct mfl_agent_action *action, struct mfl_share_view *view)
{
        struct link_params *params = new_params(link, action);
        if (!params) {
                mfl_share_view_close(view);
                fatal_memory(link);
                return;
        }
        /* Nothing writes to it: it is whole. */
        params->store =
                (struct link_store){.data = (float *)mfl_share_view_data(view), .n = params->n, .view = view};
        params->state = LINK_PARAMS_WHOLE;
        mfl_link_trace(link, "params of %s: read from daemon %016llx of this node", params->job,
                (unsigned long long)action->from);
        post(params, MFL_AGENT_EV_PARAMS_LOOKED, true);
}

void mfl_link_params_look(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_PARAMS_LOOKED, .part = action->part};
        struct mfl_share_view *view;
        struct mfl_error err = {"this daemon has no shared memory"};
        int r = MFL_INVALID;
        if (link->options.share)
                r = mfl_share_view_open(link->options.share, action->from, action->digest,
                        action->n_floats * sizeof(float), &view, &err);
        if (!r) {
                found(link, action, view);
                return;
        }
        if (r < 0) {
                mfl_link_fatal(link, &err);
                return;
        }
        event.gone = r != MFL_NOT_FOUND;
        if (event.gone)
                mfl_link_trace(link, "params of %s: not from daemon %016llx of this node (%s)", action->job,
                        (unsigned long long)action->from, err.text);
        mfl_link_post(link, &event);
}

/* ---- memory ---- */

/* Takes over the memory of a part that is dropped, if nothing reads it: its pages have been touched
 * before. */
static bool reuse(struct mfl_link *link, uint64_t number, struct link_params *params)
{
        struct link_params *old = mfl_link_params_find(link, number);
        bool reused = false;
        if (!old)
                return false;
        unlink_params(old);
        if (old->refs)
                return false;
        if (old->n == params->n) {
                params->stage = old->stage;
                old->stage = NULL;
        }
        reused = mfl_link_store_reuse(&old->store, params->n);
        if (reused) {
                params->store = old->store;
                old->store = (struct link_store){0};
        }
        free_params(old);
        return reused;
}

static void tell_room(struct link_params *params, int r, const struct mfl_error *err)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_PARAMS_ROOM, .part = params->number, .ok = !r};
        mfl_strcpy(event.reason, sizeof(event.reason), err->text);
        mfl_link_post(params->link, &event);
}

static int find_room(struct link_params *params, struct mfl_error *err)
{
        struct mfl_error no_room = {{0}};
        int r = mfl_link_store_new(params->link, params->n, &params->store, &no_room, err);
        if (*no_room.text)
                tell_absent(params, &no_room);
        return r;
}

static void on_trimmed(struct mfl_trim_call *call)
{
        struct link_params *params = MFL_CONTAINER_OF(call, struct link_params, trim);
        struct mfl_link *link = params->link;
        struct mfl_error err = {{0}};
        if (!params->dead) {
                int r = find_room(params, &err);
                tell_room(params, r, &err);
        }
        mfl_link_params_unref(params);
        mfl_link_pending_done(link);
}

/* Networks that the last task left ready may be in the way, or those of a task that is about to end. */
static bool make_room(struct link_params *params)
{
        struct mfl_link *link = params->link;
        params->trim.done = on_trimmed;
        if (!link->options.ops->trim || !link->options.ops->trim(link->options.compute, &params->trim))
                return false;
        params->refs++;
        link->pending++;
        return true;
}

void mfl_link_params_room(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct mfl_error err = {{0}};
        struct link_params *params = new_params(link, action);
        if (!params) {
                fatal_memory(link);
                return;
        }
        int r = reuse(link, action->reuse, params) ? 0 : find_room(params, &err);
        if (r != MFL_BUSY || !make_room(params))
                tell_room(params, r, &err);
}

/* ---- hashing ---- */

/* The digest of params behind frozen ones continues the frozen ones' digest. Frozen params that were read
 * from another daemon have not been hashed here yet. */
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

/* The stretch goes to the device while the rest still arrives. Without room there, the task reads the host's
 * memory. */
static int stage_stretch(struct link_params *params, struct mfl_error *err)
{
        const struct mfl_link_options *options = &params->link->options;
        if (!options->ops->stage_new || params->stage_off)
                return 0;
        int r = params->stage ? 0 : options->ops->stage_new(options->compute, params->n, &params->stage, err);
        if (!r && params->stage)
                r = options->ops->stage_put(options->compute, params->stage, params->hash_first,
                        params->store.data + params->hash_first, params->hash_end - params->hash_first, err);
        params->stage_off = r || !params->stage;
        return r < 0 ? r : 0;
}

static void run_hash(struct mfl_work *work)
{
        struct link_params *params = MFL_CONTAINER_OF(work, struct link_params, work);
        int r = params->sha.ctx ? 0 : begin_hash(params, &params->hash_err);
        if (!r)
                r = mfl_sha256_update(&params->sha, params->store.data + params->hash_first,
                        (params->hash_end - params->hash_first) * sizeof(float), &params->hash_err);
        /* Without frozen params before it: params behind it may continue from here. */
        if (!r && !params->frozen && params->hash_end == params->n)
                r = mfl_sha256_copy(&params->sha, &params->prefix, &params->hash_err);
        if (!r && params->hash_end == params->n)
                r = mfl_sha256_final(&params->sha, params->hash_digest, &params->hash_err);
        if (!r)
                r = stage_stretch(params, &params->hash_err);
        params->hash_status = r;
}

/* After a wrong digest, hashing starts over. */
static void tell_hashed(struct link_params *params)
{
        bool whole = params->hash_end == params->n;
        bool ok = whole && !memcmp(params->hash_digest, params->digest, MFL_DIGEST_BYTES);
        params->state = ok ? LINK_PARAMS_WHOLE : LINK_PARAMS_COMES;
        if (whole && !ok) {
                params->hash_end = 0;
                mfl_sha256_deinit(&params->sha);
                mfl_sha256_deinit(&params->prefix);
        }
        post(params, MFL_AGENT_EV_PARAMS_HASHED, ok);
}

static void on_hashed(struct mfl_work *work)
{
        struct link_params *params = MFL_CONTAINER_OF(work, struct link_params, work);
        struct mfl_link *link = params->link;
        mfl_assert(params->state == LINK_PARAMS_HASHING);
        params->state = LINK_PARAMS_COMES;
        if (!params->dead && !work->cancelled) {
                if (params->hash_status)
                        mfl_link_fatal(link, &params->hash_err);
                else
                        tell_hashed(params);
        }
        mfl_link_params_unref(params);
        mfl_link_pending_done(link);
}

void mfl_link_params_hash(struct mfl_link *link, const struct mfl_agent_action *action)
{
        struct link_params *params = mfl_link_params_find(link, action->part);
        mfl_assert(params && params->state == LINK_PARAMS_COMES && action->offset == params->hash_end);
        params->hash_first = action->offset;
        params->hash_end = action->offset + action->n_floats;
        mfl_assert(params->hash_end <= params->n);
        params->work = (struct mfl_work){.run = run_hash, .done = on_hashed};
        if (mfl_worker_submit(link->options.hasher, &params->work)) {
                struct mfl_error err;
                mfl_fail(&err, -EAGAIN, "hash params: the worker's queue is full");
                mfl_link_fatal(link, &err);
                return;
        }
        params->state = LINK_PARAMS_HASHING;
        params->refs++;
        link->pending++;
}

/* ---- receiving ---- */

/* The version that the payload says how to change. */
static struct link_params *find_base(struct mfl_link *link, const Mfl__Params *msg)
{
        struct link_params *params = link->params;
        while (params && (params->state != LINK_PARAMS_WHOLE || strcmp(params->job, msg->job) ||
                                 msg->since.len != MFL_DIGEST_BYTES ||
                                 memcmp(params->digest, msg->since.data, MFL_DIGEST_BYTES)))
                params = params->next;
        return params;
}

int mfl_link_params_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err)
{
        uint64_t whole = msg->bytes ? msg->bytes : bytes;
        struct mfl_agent_piece piece = {.job = msg->job,
                .digest = msg->digest.data,
                .offset = msg->offset,
                .n = whole / sizeof(float),
                .total = msg->total};
        uint64_t number;
        *ret_dst = NULL;
        if (msg->digest.len != MFL_DIGEST_BYTES)
                return mfl_fail(err, MFL_INVALID, "Params.digest: %zu bytes", msg->digest.len);
        int r = mfl_agent_params_place(link->agent, &piece, &number);
        if (r == MFL_NOT_FOUND)
                return 0;
        struct link_params *params = r ? NULL : mfl_link_params_find(link, number);
        if (r || whole % sizeof(float) || whole < bytes)
                return mfl_fail(err, MFL_INVALID, "Params: %llu bytes at %llu of %llu do not fit",
                        (unsigned long long)whole, (unsigned long long)msg->offset,
                        (unsigned long long)msg->total);
        struct link_params *base = msg->since.len ? find_base(link, msg) : NULL;
        if (msg->since.len &&
                (!base || base->n != params->n)) /* it is not there any more: the agent asks again */
                return 0;
        mfl_assert(params && params->store.data && !link->receiving);
        if (base)
                base->refs++;
        link->receiving_base = base;
        params->refs++;
        link->receiving = params;
        link->receiving_at = msg->offset;
        link->receiving_bytes = whole;
        link->receiving_packed = msg->bytes != 0;
        *ret_dst = (char *)(params->store.data + msg->offset) + (whole - bytes);
        return 0;
}

int mfl_link_params_frame(struct mfl_link *link, size_t bytes, struct mfl_error *err)
{
        struct link_params *params = link->receiving, *base = link->receiving_base;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_HEARD};
        int r = 0;
        link->receiving = link->receiving_base = NULL;
        if (params && link->receiving_packed)
                r = mfl_unpack(
                        true, params->store.data + link->receiving_at, link->receiving_bytes, bytes, err);
        if (params && !r && base)
                mfl_grid_down_add((size_t)(link->receiving_bytes / sizeof(float)),
                        base->store.data + link->receiving_at, params->store.data + link->receiving_at);
        if (params && !r) {
                event.kind = MFL_AGENT_EV_PARAMS_ARRIVED;
                event.part = params->number;
                event.offset = link->receiving_at;
                event.n_floats = link->receiving_bytes / sizeof(float);
        }
        mfl_link_post(link, &event);
        if (params)
                mfl_link_params_unref(params);
        if (base)
                mfl_link_params_unref(base);
        return r;
}

void mfl_link_params_cut(struct mfl_link *link)
{
        if (link->receiving)
                mfl_link_params_unref(link->receiving);
        if (link->receiving_base)
                mfl_link_params_unref(link->receiving_base);
        link->receiving = link->receiving_base = NULL;
}
