/* SPDX-License-Identifier: Apache-2.0 */
/* Params at a relay: fetched from above once, kept by digest, and sent to all who ask from one buffer.
 *
 * Happy path: a daemon, or a relay below, asks -> they are not here -> ParamsGet above, one at a time -> frames arrive in order -> whole
 * -> all who wait are served. Failures: the server no longer has them, or memory is short: all who wait get ParamsGone; the
 * connection above ends: those who wait are gone, too. A job keeps the newest RELAY_KEEP of them.
 */
#include "common/base/log.h"
#include "server/relay/relay_shell.h"
#include "server/transfer/params_down.h"

#define RELAY_KEEP 4 /* frozen ones, the current ones, and those of versions under way */

struct relay_waiter {
        struct relay_waiter *next;
        uint32_t conn;
        uint64_t offset;
};

struct relay_cached {
        struct relay_cached *next; /* the newest first */
        char job[MFL_JOB_ID_BYTES];
        uint8_t digest[MFL_DIGEST_BYTES];
        struct mfl_params *params; /* NULL: nothing has come */
        float *v;
        uint64_t have; /* floats */
        bool asked, whole;
        struct relay_waiter *waiters;
};

static struct relay_cached *find(const struct mfl_relay *relay, const char *job, const uint8_t *digest)
{
        struct relay_cached *c = relay->cache;
        while (c && (strcmp(c->job, job) != 0 || memcmp(c->digest, digest, MFL_DIGEST_BYTES) != 0))
                c = c->next;
        return c;
}

static void send_gone(struct mfl_session *session, const struct relay_cached *c)
{
        Mfl__ParamsGone body = MFL__PARAMS_GONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = (char *)(uintptr_t)c->job;
        body.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, (uint8_t *)(uintptr_t)c->digest};
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GONE;
        envelope.params_gone = &body;
        mfl_session_send(session, &envelope);
}

static void serve(struct mfl_relay *relay, struct relay_cached *c)
{
        while (c->waiters) {
                struct relay_waiter *waiter = c->waiters;
                struct mfl_session *session = mfl_session_find(relay->sessions, waiter->conn);
                c->waiters = waiter->next;
                if (session && !session->stream.closing && c->whole && waiter->offset < c->params->n)
                        mfl_transfer_start_alone(session, c->job, c->params, waiter->offset);
                else if (session && !session->stream.closing)
                        send_gone(session, c);
                free(waiter);
        }
}

static void drop(struct mfl_relay *relay, struct relay_cached **at)
{
        struct relay_cached *c = *at;
        *at = c->next;
        c->whole = false;
        serve(relay, c);
        mfl_params_unref(c->params); /* transfers have references of their own */
        free(c);
}

/* Those of the job, or of all jobs (NULL), that are whole, but the newest `keep`. */
static void trim(struct mfl_relay *relay, const char *job, unsigned keep)
{
        for (struct relay_cached **at = &relay->cache; *at;) {
                struct relay_cached *c = *at;
                bool counts = c->whole && (!job || !strcmp(c->job, job));
                if (counts && !keep)
                        drop(relay, at);
                else
                        at = &c->next;
                keep -= counts && keep;
        }
}

void relay_params_forget(struct mfl_relay *relay, const char *job)
{
        trim(relay, job, 0);
}

void relay_params_reset(struct mfl_relay *relay, bool all)
{
        for (struct relay_cached **at = &relay->cache; *at;)
                if (all || !(*at)->whole)
                        drop(relay, at);
                else
                        at = &(*at)->next;
}

/* One at a time: a new ParamsGet replaces the one before. The oldest comes first. */
static void fetch_next(struct mfl_relay *relay)
{
        struct relay_cached *next = NULL;
        for (struct relay_cached *c = relay->cache; c; c = c->next) {
                if (c->whole)
                        continue;
                if (c->asked)
                        return;
                next = c;
        }
        if (!next || !relay_is_up(relay))
                return;
        Mfl__ParamsGet body = MFL__PARAMS_GET__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = next->job;
        body.digest = (ProtobufCBinaryData){MFL_DIGEST_BYTES, next->digest};
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GET;
        envelope.params_get = &body;
        next->asked = true;
        if (mfl_stream_send(&relay->up.stream, &envelope, NULL, 0, NULL, NULL, NULL, NULL) == -ENOMEM)
                mfl_loop_no_memory(relay->loop, 0, "a request for params");
}

static struct relay_cached *add(struct mfl_relay *relay, const Mfl__ParamsGet *get)
{
        struct relay_cached *c = mfl_calloc(1, sizeof *c);
        if (!c) {
                mfl_loop_no_memory(relay->loop, sizeof *c, "params");
                return NULL;
        }
        mfl_strcpy(c->job, sizeof c->job, get->job);
        memcpy(c->digest, get->digest.data, MFL_DIGEST_BYTES);
        c->next = relay->cache;
        relay->cache = c;
        return c;
}

void relay_params_leave(struct mfl_relay *relay, const struct mfl_session *session)
{
        for (struct relay_cached **at = &relay->cache, *c; (c = *at);) {
                for (struct relay_waiter **w = &c->waiters, *waiter; (waiter = *w);) {
                        if (waiter->conn != session->conn) {
                                w = &waiter->next;
                                continue;
                        }
                        *w = waiter->next;
                        free(waiter);
                }
                if (c->whole || c->asked || c->waiters)
                        at = &c->next;
                else
                        drop(relay, at);
        }
}

/* A new ParamsGet replaces the one before. */
void relay_params_ask(struct mfl_relay *relay, struct mfl_session *session, const Mfl__ParamsGet *get)
{
        relay_params_leave(relay, session);
        struct relay_cached *c = find(relay, get->job, get->digest.data);
        struct relay_waiter *waiter = mfl_calloc(1, sizeof *waiter);
        if (!c)
                c = add(relay, get);
        if (!c || !waiter) {
                free(waiter);
                mfl_loop_no_memory(relay->loop, sizeof *waiter, "a request for params");
                return;
        }
        *waiter = (struct relay_waiter){.next = c->waiters, .conn = session->conn, .offset = get->offset};
        c->waiters = waiter;
        if (c->whole)
                serve(relay, c);
        else
                fetch_next(relay);
}

/* ---- what comes from above ---- */

static struct relay_cached **fetched(struct mfl_relay *relay, const char *job, const uint8_t *digest)
{
        struct relay_cached **at = &relay->cache;
        while (*at && !((*at)->asked && !(*at)->whole && !strcmp((*at)->job, job) &&
                              !memcmp((*at)->digest, digest, MFL_DIGEST_BYTES)))
                at = &(*at)->next;
        return at;
}

/* Params that nobody is being sent can be fetched again. */
static int make_room(struct mfl_relay *relay, struct relay_cached *c, uint64_t n)
{
        struct mfl_error err;
        int r = mfl_params_alone(relay->budget, n, c->digest, &c->v, &c->params, &err);
        if (r == MFL_RUNTIME_MEMORY) {
                trim(relay, NULL, 0);
                r = mfl_params_alone(relay->budget, n, c->digest, &c->v, &c->params, &err);
        }
        if (r < 0)
                mfl_loop_fatal(relay->loop, r, &err);
        else if (r)
                mfl_log(MFL_LOG_ERROR, "%s: params are not fetched: %s (memory_max)", c->job, err.text);
        return r;
}

int relay_params_payload(
        struct mfl_relay *relay, const Mfl__Params *params, size_t payload_bytes, void **ret_dst)
{
        struct relay_cached **at = fetched(relay, params->job, params->digest.data), *c = *at;
        uint64_t n = payload_bytes / sizeof(float);
        *ret_dst = NULL;
        if (!c)
                return 0;
        if (!c->params && make_room(relay, c, params->total)) {
                drop(relay, at);
                return 0;
        }
        if (params->offset != c->have || params->total != c->params->n || n > c->params->n - c->have)
                return MFL_INVALID;
        *ret_dst = c->v + c->have;
        return 0;
}

void relay_params_frame(struct mfl_relay *relay, const Mfl__Params *params, size_t payload_bytes)
{
        struct relay_cached *c = *fetched(relay, params->job, params->digest.data);
        if (!c || !c->params)
                return;
        c->have += payload_bytes / sizeof(float);
        if (c->have < c->params->n)
                return;
        c->whole = true;
        mfl_log_job(MFL_LOG_DEBUG, c->job, "%s: params of %llu floats are here", c->job,
                (unsigned long long)c->params->n);
        serve(relay, c);
        trim(relay, c->job, RELAY_KEEP);
        fetch_next(relay);
}

void relay_params_gone(struct mfl_relay *relay, const Mfl__ParamsGone *gone)
{
        struct relay_cached **at = fetched(relay, gone->job, gone->digest.data);
        if (*at)
                drop(relay, at);
        fetch_next(relay);
}
