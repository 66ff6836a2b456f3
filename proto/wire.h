/* SPDX-License-Identifier: Apache-2.0 */
/* Converts envelopes between bytes and memory: the one place that validates what peers send (wire_check.c).
 *
 * protobuf-c has no limits of its own (FACTS.md): bytes are unpacked on an allocator with a budget, and then
 * every field of every message is checked against mfl.proto's comments before any other code sees it. Pure; any
 * thread. MFL_INVALID with the message's and field's name; -ENOMEM only when memory is out.
 */
#ifndef MFL_PROTO_WIRE_H
#define MFL_PROTO_WIRE_H

#include "common/base/base.h"
#include "proto/message.h"
#include "proto/mfl.pb-c.h"

#define MFL_ENVELOPE_MAX (1024 * 1024)
#define MFL_VIA_BYTES 6 /* what a carried stream's number adds to an envelope (carry.h) */
#define MFL_ENVELOPE_MAX_EARLY (64 * 1024)
#define MFL_PAYLOAD_MAX (4 * 1024 * 1024)

int mfl_wire_unpack(const void *bytes, size_t n, Mfl__Envelope **ret_envelope, struct mfl_error *err);
void mfl_wire_free(Mfl__Envelope *envelope);

/* The bytes of an envelope, malloc'ed. Outgoing messages obey the same rules as incoming ones: MFL_INVALID names the
 * field, so that a mistake appears at its origin and not at the peer. Also when over MFL_ENVELOPE_MAX. */
int mfl_wire_pack(const Mfl__Envelope *envelope, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err);

/* What Envelope.term adds to an envelope. */
#define MFL_TERM_BYTES 10
/* Appends Envelope.term; term is not 0. As mfl_wire_mark. */
int mfl_wire_mark_term(uint64_t term, uint8_t **envelope, size_t *envelope_bytes, struct mfl_error *err);
/* Appends Envelope.via to a packed envelope, which is freed if it fails. -ENOMEM. */
int mfl_wire_mark(uint32_t via, uint8_t **envelope, size_t *envelope_bytes, struct mfl_error *err);

/* MFL_NOT_FOUND when the envelope is not of the daemon plane. The message owns copies. */
int mfl_wire_to_msg(const Mfl__Envelope *envelope, struct mfl_msg *ret_msg, struct mfl_error *err);
/* The most bytes that travel inside Task and Announce, as Hello and Welcome say. */
#define MFL_INLINE_MAX 4096

/* Parts of a message that no core sees. Borrowed. */
struct mfl_wire_extra {
        const char *job_text;  /* JOB_SPEC: the job file */
        const char *job_owner; /* JOB_SPEC; NULL: unknown */
        const void *
                data; /* TASK: the params; ANNOUNCE: the update; NULL: they travel in messages of their own */
        size_t n;     /* bytes of data, at most MFL_INLINE_MAX */
        const int32_t *grid; /* TASK: of the params; NULL: none */
        uint32_t n_grid;
        const uint8_t *state_digest; /* TASK: of what its site keeps of its client; NULL: nothing */
};

/* extra may be NULL. Welcome and Hello get this program's protocol version. The reasons of Announce are cut further
 * when many items were rejected, so that the envelope keeps to its limit. */
int mfl_wire_pack_msg(const struct mfl_msg *msg, const struct mfl_wire_extra *extra, uint8_t **ret_bytes,
        size_t *ret_n, struct mfl_error *err);

/* Converts a Telemetry to its wire form, which DaemonInfo has, too. If it has an activity, the result points to
 * *ret_activity (NULL: left out). */
void mfl_wire_from_telemetry(
        const struct mfl_telemetry *telemetry, Mfl__Telemetry *ret_wire, Mfl__Activity *ret_activity);
void mfl_wire_from_activity(const struct mfl_activity_figures *figures, Mfl__Activity *ret_wire);
/* The share of one state. */
double mfl_wire_activity_share(const Mfl__Activity *activity, enum mfl_activity_state state);

/* True for Params, Chunk, Initial and PeerPiece: the only ones with a payload. */
bool mfl_wire_has_payload(const Mfl__Envelope *envelope);
/* Whether that payload may come with that (valid) envelope: only with those, whole floats (PeerPiece: any), Params
 * within its total. MFL_INVALID. */
int mfl_wire_check_payload(const Mfl__Envelope *envelope, size_t payload_bytes, struct mfl_error *err);

#endif
