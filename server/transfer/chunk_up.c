/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of updates, from their connections into slots. */
#include "server/transfer/chunk_up.h"

#include "common/codec/pack.h"
#include "server/loop/states.h"

static const unsigned edges[] = {
        [MFL_CHUNK_NONE] = MFL_TO(MFL_CHUNK_LANDING) | MFL_TO(MFL_CHUNK_DROPPING),
        [MFL_CHUNK_LANDING] = MFL_TO(MFL_CHUNK_NONE),
        [MFL_CHUNK_DROPPING] = MFL_TO(MFL_CHUNK_NONE) | MFL_TO(MFL_CHUNK_LANDING),
};

/* The slot that was granted for (task, update) to this connection. */
static struct mfl_server_job *find_slot(const struct mfl_session *session, const struct mfl_jobs *jobs,
        const Mfl__Chunk *chunk, uint32_t *ret_slot)
{
        for (struct mfl_server_job *job = jobs->first; job; job = job->next)
                if (job->runtime &&
                        mfl_slot_find(job->runtime, session->conn, chunk->task, chunk->update, ret_slot))
                        return job;
        return NULL;
}

int mfl_chunk_begin(struct mfl_session *session, struct mfl_chunk *chunk, struct mfl_jobs *jobs,
        const Mfl__Envelope *envelope, size_t payload_bytes, void **ret_dst, struct mfl_error *err)
{
        const Mfl__Chunk *body = envelope->chunk;
        uint64_t bytes = body->bytes ? body->bytes : payload_bytes;
        uint32_t slot;
        struct mfl_server_job *job = find_slot(session, jobs, body, &slot);
        mfl_state_move(chunk->state, edges, MFL_CHUNK_DROPPING);
        *ret_dst = NULL;
        if (!job)
                return 0;
        if (body->bytes && !job->spec->compression.up)
                return mfl_fail(err, MFL_INVALID, "a packed chunk of a job without compression");
        int r = mfl_slot_write_begin(job->runtime, slot, body->offset, bytes, &chunk->write, err);
        if (r)
                return r == MFL_NOT_FOUND ? 0 : r;
        mfl_state_move(chunk->state, edges, MFL_CHUNK_LANDING);
        chunk->job = job;
        mfl_server_job_use(job);
        chunk->packed = body->bytes ? (uint32_t)payload_bytes : 0;
        *ret_dst = (char *)chunk->write.dst + (bytes - payload_bytes);
        return 0;
}

static void end_chunk(
        struct mfl_session *session, struct mfl_chunk *chunk, uint64_t payload_bytes, bool arrived)
{
        struct mfl_server_job *job = chunk->job;
        bool landing = chunk->state == MFL_CHUNK_LANDING;
        if (chunk->state == MFL_CHUNK_NONE) /* a chunk without a payload */
                return;
        mfl_state_move(chunk->state, edges, MFL_CHUNK_NONE);
        if (!landing)
                return;
        struct mfl_core_event whole = {.kind = MFL_EV_UPLOAD_COMPLETE,
                .conn = session->conn,
                .upload = {chunk->write.slot, chunk->write.grant}};
        mfl_strcpy(whole.job, sizeof whole.job, job->id);
        chunk->job = NULL;
        if (arrived)
                mfl_server_job_cost_bytes(job, session->conn, payload_bytes, 0);
        if (mfl_slot_write_end(job->runtime, &chunk->write, arrived)) {
                chunk->told = chunk->bytes;
                mfl_loop_feed(job->jobs->loop, &whole);
        } else if (arrived) {
                mfl_server_job_slot_ahead(job, whole.upload.slot);
        }
        mfl_server_job_unuse(job);
}

int mfl_chunk_arrived(
        struct mfl_session *session, struct mfl_chunk *chunk, size_t payload_bytes, struct mfl_error *err)
{
        const struct mfl_slot_write *write = &chunk->write;
        int r = 0;
        if (chunk->state == MFL_CHUNK_LANDING && chunk->packed)
                r = mfl_unpack(write->floats, write->dst, write->bytes, chunk->packed, err);
        chunk->bytes += payload_bytes;
        end_chunk(session, chunk, payload_bytes, !r);
        return r;
}

void mfl_chunk_broken(struct mfl_session *session, struct mfl_chunk *chunk)
{
        end_chunk(session, chunk, 0, false);
}

/* The core measures silence in seconds: it need not hear of every chunk, only whose uploads move. A chunk of
 * megabytes takes long on a slow line, so a part of one counts too. */
void mfl_chunk_beat(struct mfl_session *session, struct mfl_chunk *chunk)
{
        const struct mfl_stream *wire = session->carrier ? &session->carrier->stream : &session->stream;
        uint64_t bytes = chunk->bytes + (chunk->state == MFL_CHUNK_NONE ? 0 : wire->in.have);
        if (bytes == chunk->told)
                return;
        struct mfl_core_event event = {.kind = MFL_EV_UPLOADING, .conn = session->conn};
        chunk->told = bytes;
        mfl_loop_feed(session->all->loop, &event);
}
