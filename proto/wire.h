/* SPDX-License-Identifier: Apache-2.0 */
/* Envelopes between bytes and memory: the one place where what peers send is validated (wire_check.c).
 *
 * protobuf-c has no limits of its own (FACTS.md): bytes are unpacked on an allocator with a budget, and then
 * every field of every message is checked against mfl.proto's comments before anyone else sees it. Pure; any
 * thread. MFL_INVALID with the message's and field's name; -ENOMEM only for real want of memory.
 */
#ifndef MFL_PROTO_WIRE_H
#define MFL_PROTO_WIRE_H

#include "common/base.h"
#include "proto/message.h"
#include "proto/mfl.pb-c.h"

#define MFL_ENVELOPE_MAX (1024 * 1024)
#define MFL_ENVELOPE_MAX_EARLY (64 * 1024)
#define MFL_PAYLOAD_MAX (4 * 1024 * 1024)

int mfl_wire_unpack(const void *bytes, size_t n, Mfl__Envelope **ret_envelope, struct mfl_error *err);
void mfl_wire_free(Mfl__Envelope *envelope);

/* The bytes of an envelope, malloc'ed. What is sent is held to the same rules as what is received:
 * MFL_INVALID names the field, so that a mistake shows at its origin and not at the peer. Also when over
 * MFL_ENVELOPE_MAX. */
int mfl_wire_pack(const Mfl__Envelope *envelope, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err);

/* MFL_NOT_FOUND when the envelope is not of the daemon plane. The message owns copies. */
int mfl_wire_to_msg(const Mfl__Envelope *envelope, struct mfl_msg *ret_msg, struct mfl_error *err);
/* job_text is what JOB_SPEC carries; NULL elsewhere. Welcome and Hello get this program's protocol version.
 * The reasons of Announce are cut further when many items were rejected, so that the envelope keeps to its
 * limit. */
int mfl_wire_pack_msg(const struct mfl_msg *msg, const char *job_text, uint8_t **ret_bytes, size_t *ret_n,
        struct mfl_error *err);

/* The two forms of a Telemetry, of which DaemonInfo has one too. What is made from one that has an activity
 * points to *ret_activity (NULL: it is left out). */
void mfl_wire_to_telemetry(const Mfl__Telemetry *wire, struct mfl_telemetry *ret_telemetry);
void mfl_wire_from_telemetry(
        const struct mfl_telemetry *telemetry, Mfl__Telemetry *ret_wire, Mfl__Activity *ret_activity);
void mfl_wire_from_activity(const struct mfl_activity_figures *figures, Mfl__Activity *ret_wire);
/* The share of one of the states. */
double mfl_wire_activity_share(const Mfl__Activity *activity, enum mfl_activity_state state);

/* True for Params, Chunk and Initial: the only ones with a payload. */
bool mfl_wire_has_payload(const Mfl__Envelope *envelope);
/* Whether that payload may come with that (valid) envelope: only with those three, whole floats, Params
 * within its total. MFL_INVALID. */
int mfl_wire_check_payload(const Mfl__Envelope *envelope, size_t payload_bytes, struct mfl_error *err);

#endif
