/* SPDX-License-Identifier: Apache-2.0 */
/* Updates on their way up: a chunk's payload lands straight in the slot that was granted to its daemon, and is unpacked
 * there if it is packed (common/codec/pack.h). While it lands it uses the job's memory. Each chunk that has begun ends once, by its frame or by the connection's
 * end. */
#ifndef MFL_SERVER_TRANSFER_CHUNK_UP_H
#define MFL_SERVER_TRANSFER_CHUNK_UP_H

#include "server/jobs/job.h"
#include "server/session/session.h"

enum mfl_chunk_state {
        MFL_CHUNK_NONE,     /* between two chunks */
        MFL_CHUNK_LANDING,  /* a payload is coming into a slot */
        MFL_CHUNK_DROPPING, /* a payload is read and dropped: its slot was taken back */
};

/* What a daemon's connection is receiving. */
struct mfl_chunk {
        enum mfl_chunk_state state;
        struct mfl_server_job *job; /* LANDING: whose slot */
        struct mfl_slot_write write;
        uint32_t packed; /* bytes of the payload, at the end of what it stands for; 0: it is not packed */
        uint64_t bytes;  /* of all chunks before the current one, dropped ones included */
        uint64_t told;   /* bytes of all of them when the core last heard of them */
};

/* The payload of a Chunk begins: finds its place. *ret_dst NULL: read and drop it. MFL_INVALID: outside the
 * update. */
int mfl_chunk_begin(struct mfl_session *session, struct mfl_chunk *chunk, struct mfl_jobs *jobs,
        const Mfl__Envelope *envelope, size_t payload_bytes, void **ret_dst, struct mfl_error *err);
/* The payload has arrived. MFL_INVALID: it was packed wrongly. */
int mfl_chunk_arrived(
        struct mfl_session *session, struct mfl_chunk *chunk, size_t payload_bytes, struct mfl_error *err);
/* The connection is gone. */
void mfl_chunk_broken(struct mfl_session *session, struct mfl_chunk *chunk);
/* A few times a second: tells the core whether its uploads move. */
void mfl_chunk_beat(struct mfl_session *session, struct mfl_chunk *chunk);

#endif
