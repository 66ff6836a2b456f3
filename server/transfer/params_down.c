/* SPDX-License-Identifier: Apache-2.0 */
/* Sends params down. */
#include "server/transfer/params_down.h"

#include "common/codec/pack.h"
#include "server/loop/states.h"

#define FRAME_FLOATS (MFL_PARAMS_CHUNK_BYTES / sizeof(float))
#define WINDOW 4 /* frames queued at a time: enough to keep the socket busy, few enough to stop soon */

enum transfer_state {
        TRANSFER_SENDING,
        TRANSFER_QUEUED,
        TRANSFER_ENDED,
};

static const unsigned edges[] = {
        [TRANSFER_SENDING] = MFL_TO(TRANSFER_QUEUED) | MFL_TO(TRANSFER_ENDED),
        [TRANSFER_QUEUED] = MFL_TO(TRANSFER_ENDED),
        [TRANSFER_ENDED] = 0,
};

struct mfl_transfer {
        struct mfl_session *session;
        enum transfer_state state;
        struct mfl_params *params;
        struct mfl_server_job *job; /* only while it has not ended; NULL: of no job here */
        char id[MFL_JOB_ID_BYTES];
        uint64_t offset;    /* next float */
        uint32_t in_flight; /* frames that are queued */
        uint64_t request;
        struct mfl_transfer **place; /* in the session */
        bool of_client;
        uint64_t client;
        bool steps; /* from params that the daemon has (compression.down on a grid) */
};

static void free_if_done(struct mfl_transfer *t)
{
        if (t->state != TRANSFER_ENDED || t->in_flight)
                return;
        mfl_params_unref(t->params);
        free(t);
}

static void end(struct mfl_transfer *t)
{
        mfl_assert(*t->place == t);
        mfl_state_move(t->state, edges, TRANSFER_ENDED);
        *t->place = NULL;
        t->job = NULL;
        free_if_done(t);
}

static void pump(struct mfl_transfer *t);

static void on_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct mfl_transfer *t = arg;
        mfl_assert(t->in_flight > 0);
        t->in_flight--;
        if (t->state == TRANSFER_ENDED)
                free_if_done(t);
        else if (status == 0)
                pump(t);
}

/* A packed frame, until it is sent. */
struct packed {
        struct mfl_transfer *transfer;
        uint8_t bytes[];
};

static void on_packed_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct packed *packed = arg;
        struct mfl_transfer *t = packed->transfer;
        free(packed);
        on_sent(stream, status, t);
}

/* Whoever pulls a model gets plain floats, and so does a relay, which has no job and hands them on. */
static bool is_for_daemon(const struct mfl_transfer *t)
{
        return t->job && !t->request && !t->of_client && t->session->role == MFL__ROLE__ROLE_DAEMON;
}

static const float *floats_of(const struct mfl_transfer *t)
{
        return t->steps ? t->params->step : t->params->v;
}

/* n floats in fewer bytes. NULL: they go as they are. */
static struct packed *pack_frame(struct mfl_transfer *t, uint64_t n, uint64_t *ret_bytes)
{
        bool wanted = t->steps || (is_for_daemon(t) && t->job->spec->compression.down_half);
        struct packed *packed = wanted ? mfl_malloc(sizeof *packed + mfl_pack_room(n * sizeof(float))) : NULL;
        if (!packed)
                return NULL;
        packed->transfer = t;
        *ret_bytes = mfl_pack(true, floats_of(t) + t->offset, n * sizeof(float), packed->bytes);
        if (*ret_bytes)
                return packed;
        free(packed);
        return NULL;
}

/* The payload, packed or as it is. */
static int send_payload(struct mfl_transfer *t, Mfl__Envelope *envelope, uint64_t n, uint64_t *ret_bytes,
        struct mfl_error *err)
{
        bool whole = t->offset % FRAME_FLOATS == 0;
        struct packed *packed = pack_frame(t, n, ret_bytes);
        int r;
        if (packed) {
                envelope->params->bytes = (uint32_t)(n * sizeof(float));
                r = mfl_stream_send(&t->session->stream, envelope, packed->bytes, *ret_bytes, NULL,
                        on_packed_sent, packed, err);
                if (r)
                        free(packed);
                return r;
        }
        bool known = whole && !t->steps;
        uint32_t crc = known ? mfl_params_crc(t->params, t->offset / FRAME_FLOATS) : 0;
        *ret_bytes = n * sizeof(float);
        return mfl_stream_send(&t->session->stream, envelope, floats_of(t) + t->offset, *ret_bytes,
                known ? &crc : NULL, on_sent, t, err);
}

/* Sends one frame; false when the stream takes no more. */
static bool send_frame(struct mfl_transfer *t)
{
        struct mfl_session *session = t->session;
        /* Up to the next line of the buffer's grid: whole chunks have a checksum that is computed once for
         * all receivers. */
        uint64_t n = MFL_MIN(FRAME_FLOATS - t->offset % FRAME_FLOATS, t->params->n - t->offset);
        Mfl__Params body = MFL__PARAMS__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_error err;
        body.job = t->id;
        body.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = t->params->digest};
        body.offset = t->offset;
        body.total = t->params->n;
        body.of_client = t->of_client;
        body.client = t->client;
        if (t->steps)
                body.since = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = t->params->base};
        envelope.request = t->request;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
        envelope.params = &body;
        uint64_t bytes;
        int r = send_payload(t, &envelope, n, &bytes, &err);
        if (r) {
                if (r < 0)
                        mfl_loop_fatal(session->all->loop, r, &err);
                return false;
        }
        if (t->job && !t->request) /* a model that somebody pulls is no part of the round */
                mfl_server_job_cost_bytes(t->job, session->conn, 0, bytes);
        t->offset += n;
        t->in_flight++;
        return true;
}

/* Params that were replaced twice hold memory that the job needs: the daemon will be told of newer ones. */
static void give_up(struct mfl_transfer *t)
{
        Mfl__ParamsGone body = MFL__PARAMS_GONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = t->id;
        body.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = t->params->digest};
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GONE;
        envelope.params_gone = &body;
        mfl_session_send(t->session, &envelope);
        end(t);
}

static void pump(struct mfl_transfer *t)
{
        mfl_assert(t->state != TRANSFER_ENDED && t->offset <= t->params->n);
        if (t->params->retired && !t->request) {
                give_up(t);
                return;
        }
        while (t->state == TRANSFER_SENDING && t->in_flight < WINDOW) {
                if (!send_frame(t))
                        return;
                if (t->offset == t->params->n)
                        mfl_state_move(t->state, edges, TRANSFER_QUEUED);
        }
        if (t->state == TRANSFER_QUEUED && !t->in_flight)
                end(t);
}

/* Instead of what is in that place. */
static void start(const struct mfl_transfer *transfer, const char *job, struct mfl_params *params)
{
        struct mfl_transfer *t = mfl_malloc(sizeof *t);
        mfl_assert(transfer->offset < params->n);
        if (*transfer->place)
                end(*transfer->place);
        if (!t) {
                mfl_loop_no_memory(transfer->session->all->loop, sizeof *t, "a transfer of params");
                return;
        }
        *t = *transfer;
        mfl_strcpy(t->id, sizeof t->id, job);
        t->params = mfl_params_ref(params);
        *t->place = t;
        pump(t);
}

void mfl_transfer_start(struct mfl_session *session, struct mfl_server_job *job, struct mfl_params *params,
        uint64_t offset, uint64_t request, const uint8_t *have)
{
        struct mfl_transfer transfer = {.session = session,
                .state = TRANSFER_SENDING,
                .job = job,
                .offset = offset,
                .request = request,
                .params = params,
                .place = &session->transfer};
        transfer.steps = have && params->step && is_for_daemon(&transfer) &&
                         !memcmp(params->base, have, sizeof params->base);
        start(&transfer, job->id, params);
}

void mfl_transfer_start_alone(
        struct mfl_session *session, const char *job, struct mfl_params *params, uint64_t offset)
{
        const struct mfl_transfer transfer = {
                .session = session, .state = TRANSFER_SENDING, .offset = offset, .place = &session->transfer};
        start(&transfer, job, params);
}

void mfl_transfer_start_client(struct mfl_session *session, struct mfl_server_job *job,
        struct mfl_params *correction, uint64_t client, uint64_t offset)
{
        const struct mfl_transfer transfer = {.session = session,
                .state = TRANSFER_SENDING,
                .job = job,
                .offset = offset,
                .place = &session->correction,
                .of_client = true,
                .client = client};
        start(&transfer, job->id, correction);
}

void mfl_transfer_stop(struct mfl_session *session)
{
        if (session->transfer)
                end(session->transfer);
        if (session->correction)
                end(session->correction);
}

void mfl_transfer_stop_job(struct mfl_sessions *sessions, const struct mfl_server_job *job)
{
        for (struct mfl_session *s = sessions->first; s; s = s->next) {
                if (s->transfer && s->transfer->job == job)
                        end(s->transfer);
                if (s->correction && s->correction->job == job)
                        end(s->correction);
        }
}
