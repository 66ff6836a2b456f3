/* SPDX-License-Identifier: Apache-2.0 */
/* Params on their way down: frames that point into one shared, reference-counted buffer. */
#include "server/server.h"

#define FRAME_FLOATS (MFL_PARAMS_CHUNK_BYTES / sizeof(float))
#define TRANSFER_WINDOW                                                                                      \
        4 /* frames queued at a time: enough to keep the socket busy, few enough to stop soon */

static void pump(struct mfl_session *session);

/* A queued frame holds its own reference: the transfer may be replaced while it waits. */
static void on_sent(struct mfl_stream *stream, int status, void *arg)
{
        struct mfl_session *session = stream->owner;
        struct mfl_params *params = arg;
        struct mfl_transfer *t = &session->transfer;
        bool current = t->params == params;
        mfl_params_unref(params);
        if (!current || status < 0)
                return;
        t->in_flight--;
        pump(session);
}

/* Sends one frame; false when the stream takes no more. */
static bool send_frame(struct mfl_session *session)
{
        struct mfl_transfer *t = &session->transfer;
        /* Up to the next line of the buffer's grid: whole chunks have a checksum computed once for all
         * receivers. */
        uint64_t n = MFL_MIN(FRAME_FLOATS - t->offset % FRAME_FLOATS, t->params->n - t->offset);
        Mfl__Params body = MFL__PARAMS__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct mfl_error err;
        body.job = t->job->id;
        body.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = t->params->digest};
        body.offset = t->offset;
        body.total = t->params->n;
        envelope.request = t->request;
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS;
        envelope.params = &body;
        bool whole = t->offset % FRAME_FLOATS == 0;
        uint32_t crc = whole ? mfl_params_crc(t->params, t->offset / FRAME_FLOATS) : 0;
        mfl_params_ref(t->params);
        int r = mfl_stream_send(&session->stream, &envelope, t->params->v + t->offset, n * sizeof(float),
                whole ? &crc : NULL, on_sent, t->params, &err);
        if (r) {
                mfl_params_unref(t->params);
                if (r < 0)
                        mfl_server_fatal(session->server, r, &err);
                return false;
        }
        if (!t->request) /* a model that somebody pulls is no part of the round */
                mfl_server_job_cost_bytes(t->job, session->conn, 0, n * sizeof(float));
        t->offset += n;
        t->in_flight++;
        return true;
}

/* Params that were replaced twice hold memory which the job needs: the daemon will be told of others. */
static void give_up(struct mfl_session *session)
{
        struct mfl_transfer *t = &session->transfer;
        Mfl__ParamsGone body = MFL__PARAMS_GONE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        body.job = t->job->id;
        body.digest = (ProtobufCBinaryData){.len = MFL_DIGEST_BYTES, .data = t->params->digest};
        envelope.body_case = MFL__ENVELOPE__BODY_PARAMS_GONE;
        envelope.params_gone = &body;
        mfl_session_send(session, &envelope);
        mfl_transfer_stop(session);
}

static void pump(struct mfl_session *session)
{
        struct mfl_transfer *t = &session->transfer;
        if (t->params && t->params->retired && !t->request) {
                give_up(session);
                return;
        }
        while (t->params && t->in_flight < TRANSFER_WINDOW && t->offset < t->params->n)
                if (!send_frame(session))
                        return;
        if (t->params && t->offset == t->params->n && !t->in_flight)
                mfl_transfer_stop(session);
}

void mfl_transfer_start(struct mfl_session *session, struct mfl_server_job *job, struct mfl_params *params,
        uint64_t offset, uint64_t request)
{
        mfl_transfer_stop(session);
        mfl_params_ref(params);
        session->transfer =
                (struct mfl_transfer){.params = params, .job = job, .offset = offset, .request = request};
        pump(session);
}

void mfl_transfer_stop(struct mfl_session *session)
{
        if (session->transfer.params)
                mfl_params_unref(session->transfer.params);
        session->transfer = (struct mfl_transfer){.params = NULL};
}
