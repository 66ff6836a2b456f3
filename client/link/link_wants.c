/* SPDX-License-Identifier: Apache-2.0 */
/* What clients' states add to gradients, on its way from the server to the threads that train (mfl.proto, CLIENTS' STATES).
 *
 *     thread:  want --------------- waits ------------------> copies, goes on
 *     loop:         `-> ParamsGet -> Params.. into `buffer` -'
 *
 * The loop asks for one client at a time, in the order in which threads came. The bytes land in a buffer of the link, because a
 * thread whose task is cancelled leaves at once. After a lost connection the loop asks for the rest; after ParamsGone, again
 * with the next report of progress.
 *
 * Ways to fail: the task is cancelled, or the link ends (MFL_CANCELLED); the buffer does not fit into the budget (MFL_INVALID); no
 * memory (the process can't go on). */
#include <time.h>

#include "client/link/link_internal.h"

#define LOOK_MS 20u /* how soon a waiting thread sees that its task is cancelled */

struct link_want {
        struct link_work *work;
        uint64_t client, n;
        float *to;
        bool done;
        int status; /* done: 0, or err */
        struct mfl_error err;
        struct link_want *next;
};

static void on_wanted(uv_async_t *async)
{
        mfl_link_wants_pump(async->data);
}

int mfl_link_wants_open(struct mfl_link *link, struct mfl_error *err)
{
        struct link_wants *wants = &link->wants;
        pthread_mutex_init(&wants->lock, NULL);
        pthread_cond_init(&wants->done, NULL);
        int r = uv_async_init(link->loop, &wants->async, on_wanted);
        wants->async.data = link;
        return r ? mfl_fail(err, r, "clients' states: %s", uv_strerror(r)) : 0;
}

static void on_async_closed(uv_handle_t *handle)
{
        mfl_link_pending_done(handle->data);
}

void mfl_link_wants_close(struct mfl_link *link)
{
        pthread_mutex_lock(&link->wants.lock);
        link->wants.closed = true;
        pthread_cond_broadcast(&link->wants.done);
        pthread_mutex_unlock(&link->wants.lock);
        uv_close((uv_handle_t *)&link->wants.async, on_async_closed);
}

static void free_buffer(struct mfl_link *link)
{
        struct link_wants *wants = &link->wants;
        free(wants->buffer);
        if (link->options.budget)
                mfl_budget_release(link->options.budget, wants->room * sizeof(float));
        wants->buffer = NULL;
        wants->room = 0;
}

void mfl_link_wants_free(struct mfl_link *link)
{
        mfl_assert(!link->wants.first);
        pthread_cond_destroy(&link->wants.done);
        pthread_mutex_destroy(&link->wants.lock);
        free_buffer(link);
}

/* ---- a thread that trains ---- */

static void unlink_want(struct link_wants *wants, const struct link_want *want)
{
        struct link_want **at = &wants->first;
        while (*at && *at != want)
                at = &(*at)->next;
        if (*at)
                *at = want->next;
}

static void wait_a_while(struct link_wants *wants)
{
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&wants->done, &wants->lock, &until);
}

int mfl_link_want(void *user, uint64_t client, uint64_t n, float *to, struct mfl_error *err)
{
        struct link_work *work = user;
        struct link_wants *wants = &work->link->wants;
        struct link_want want = {.work = work, .client = client, .n = n, .to = to}, **at = &wants->first;
        pthread_mutex_lock(&wants->lock);
        while (*at)
                at = &(*at)->next;
        *at = &want;
        if (!wants->closed)
                uv_async_send(&wants->async);
        while (!want.done && !wants->closed && !atomic_load(&work->call.control.cancel))
                wait_a_while(wants);
        unlink_want(wants, &want);
        pthread_mutex_unlock(&wants->lock);
        if (want.done && want.status)
                return mfl_fail(err, want.status, "%s", want.err.text);
        return want.done ? 0 : mfl_fail(err, MFL_CANCELLED, "cancelled");
}

/* ---- the loop ---- */

/* The buffer may hold the beginning of this client's, from a connection that was lost. */
static bool same(const struct link_wants *wants, const struct link_want *want)
{
        const struct link_params *params = want->work->params;
        return wants->client == want->client && wants->n == want->n &&
               !memcmp(wants->digest, params->digest, MFL_DIGEST_BYTES) &&
               !strcmp(wants->job, want->work->order.job);
}

/* MFL_INVALID: no room in the budget. */
static int make_room(struct mfl_link *link, const struct link_want *want, struct mfl_error *err)
{
        struct link_wants *wants = &link->wants;
        const struct link_params *params = want->work->params;
        struct mfl_budget *budget = link->options.budget;
        uint64_t bytes = want->n * sizeof(float);
        if (same(wants, want))
                return 0;
        if (wants->room < want->n) {
                free_buffer(link);
                wants->n = 0;
                int r = budget ? mfl_budget_reserve(budget, bytes, "a client's state", err) : 0;
                if (r)
                        return MFL_INVALID;
                wants->buffer = mfl_malloc(bytes);
                if (!wants->buffer && budget)
                        mfl_budget_release(budget, bytes);
                if (!wants->buffer)
                        return mfl_fail_memory(err, bytes, "a client's state");
                wants->room = want->n;
        }
        mfl_strcpy(wants->job, sizeof(wants->job), want->work->order.job);
        memcpy(wants->digest, params->digest, MFL_DIGEST_BYTES);
        wants->client = want->client;
        wants->n = want->n;
        wants->have = 0;
        return 0;
}

static int ask(struct mfl_link *link, struct mfl_error *err)
{
        struct link_wants *wants = &link->wants;
        Mfl__ParamsGet body = MFL__PARAMS_GET__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = wants->job;
        body.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, wants->digest};
        body.offset = wants->have;
        body.of_client = true;
        body.client = wants->client;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GET;
        envelope.params_get = &body;
        int r = mfl_stream_send(&link->stream, &envelope, NULL, 0, NULL, NULL, NULL, err);
        wants->asked = !r;
        return MFL_MIN(r, 0); /* a full stream: with the next report of progress */
}

void mfl_link_wants_pump(struct mfl_link *link)
{
        struct link_wants *wants = &link->wants;
        struct mfl_error err;
        int r = 0;
        pthread_mutex_lock(&wants->lock);
        bool may = !wants->asked && !wants->landing && link->online && link->stream_state &&
                   link->life == LINK_RUNS;
        for (struct link_want *want = may ? wants->first : NULL; want && !r && !wants->asked;
                want = want->next) {
                if (want->done)
                        continue;
                want->status = make_room(link, want, &want->err);
                if (want->status > 0) {
                        want->done = true;
                        pthread_cond_broadcast(&wants->done);
                        continue;
                }
                err = want->err;
                r = want->status ? want->status : ask(link, &err);
                break;
        }
        pthread_mutex_unlock(&wants->lock);
        if (r)
                mfl_link_fatal(link, &err);
}

static bool is_asked(
        const struct link_wants *wants, const char *job, const ProtobufCBinaryData *digest, uint64_t client)
{
        return wants->asked && wants->client == client && digest->len == MFL_DIGEST_BYTES &&
               !memcmp(wants->digest, digest->data, MFL_DIGEST_BYTES) && !strcmp(wants->job, job);
}

int mfl_link_wants_payload(
        struct mfl_link *link, const Mfl__Params *msg, size_t bytes, void **ret_dst, struct mfl_error *err)
{
        struct link_wants *wants = &link->wants;
        *ret_dst = NULL;
        if (!is_asked(wants, msg->job, &msg->digest, msg->client))
                return 0;
        if (bytes % sizeof(float) || msg->total != wants->n || msg->offset != wants->have ||
                bytes / sizeof(float) > wants->n - wants->have)
                return mfl_fail(err, MFL_INVALID,
                        "Params of client %llu: %zu bytes at %llu of %llu do not fit",
                        (unsigned long long)msg->client, bytes, (unsigned long long)msg->offset,
                        (unsigned long long)msg->total);
        wants->landing = true;
        *ret_dst = wants->buffer + wants->have;
        return 0;
}

/* The first thread that waits for this client goes on. */
static void deliver(struct link_wants *wants)
{
        pthread_mutex_lock(&wants->lock);
        for (struct link_want *want = wants->first; want; want = want->next)
                if (!want->done && same(wants, want)) {
                        memcpy(want->to, wants->buffer, wants->n * sizeof(float));
                        want->done = true;
                        break;
                }
        pthread_cond_broadcast(&wants->done);
        pthread_mutex_unlock(&wants->lock);
        wants->n = 0; /* another round's may differ */
}

void mfl_link_wants_frame(struct mfl_link *link, size_t bytes)
{
        struct link_wants *wants = &link->wants;
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_HEARD};
        mfl_link_post(link, &event);
        if (!wants->landing)
                return;
        wants->landing = false;
        wants->have += bytes / sizeof(float);
        if (wants->have < wants->n)
                return;
        wants->asked = false;
        deliver(wants);
        mfl_link_wants_pump(link);
}

void mfl_link_wants_gone(struct mfl_link *link, const Mfl__ParamsGone *msg)
{
        struct mfl_agent_event event = {.kind = MFL_AGENT_EV_HEARD};
        if (is_asked(&link->wants, msg->job, &msg->digest, msg->client))
                link->wants.asked = false;
        mfl_link_post(link, &event);
}

void mfl_link_wants_cut(struct mfl_link *link)
{
        link->wants.asked = link->wants.landing = false;
}
