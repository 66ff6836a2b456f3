/* SPDX-License-Identifier: Apache-2.0 */
/* Params on their way down: frames that point into one shared, reference-counted buffer. */
#include "server/server.h"

#define FRAME_FLOATS (1024 * 1024 / 4)
#define TRANSFER_WINDOW 4 /* frames queued at a time: enough to keep the socket busy, few enough to stop soon */

/* A frame holds its own reference: the transfer may be replaced while it is still queued. */
struct frame_in_flight {
        struct mfl_params *params;
        struct mfl_transfer *transfer; /* NULL: replaced or gone */
};

static void pump(struct mfl_session *session);

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
        uint64_t n = MFL_MIN((uint64_t)FRAME_FLOATS, t->params->n - t->offset);
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
        /* Frames on the grid of the buffer have a checksum that was computed once for all receivers. */
        uint32_t crc;
        bool known = mfl_params_crc(t->params, t->offset, n, &crc);
        mfl_params_ref(t->params);
        int r = mfl_stream_send(&session->stream, &envelope, t->params->v + t->offset, n * sizeof(float),
                known ? &crc : NULL, on_sent, t->params, &err);
        if (r) {
                mfl_params_unref(t->params);
                if (r < 0)
                        mfl_server_fatal(session->server, r, &err);
                return false;
        }
        t->job->round_bytes_down += n * sizeof(float);
        t->offset += n;
        t->in_flight++;
        return true;
}

static void pump(struct mfl_session *session)
{
        struct mfl_transfer *t = &session->transfer;
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
        session->transfer = (struct mfl_transfer){.params = params, .job = job, .offset = offset, .request = request};
        pump(session);
}

void mfl_transfer_stop(struct mfl_session *session)
{
        if (session->transfer.params)
                mfl_params_unref(session->transfer.params);
        session->transfer = (struct mfl_transfer){.params = NULL};
}
