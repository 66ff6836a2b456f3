/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and unpacks envelopes: checked in both directions, and within a memory budget. */
#include "proto/wire.h"

#include "common/base/bounded.h"
#include "proto/frame.h"
#include "proto/wire_internal.h"

/* The received bytes limit what protobuf-c may allocate for one envelope. */
#define BUDGET_FACTOR 8
#define BUDGET_BASE (64 * 1024)
#define BUDGET_MAX (16 * 1024 * 1024)
#define VIA_FIELD 180u  /* Envelope.via */
#define TERM_FIELD 370u /* Envelope.term */
#define WIRE_FIXED32 5u
#define WIRE_FIXED64 1u

int mfl_wire_unpack(const void *bytes, size_t n, Mfl__Envelope **ret_envelope, struct mfl_error *err)
{
        if (n > MFL_ENVELOPE_MAX + MFL_VIA_BYTES + MFL_TERM_BYTES)
                return mfl_fail(
                        err, MFL_INVALID, "envelope: %zu bytes, expected at most %d", n, MFL_ENVELOPE_MAX);
        struct mfl_bounded bounded = {.left = MFL_MIN(n * BUDGET_FACTOR + BUDGET_BASE, (size_t)BUDGET_MAX)};
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, &bounded};
        Mfl__Envelope *envelope = mfl__envelope__unpack(&allocator, n, bytes);
        if (!envelope) {
                if (bounded.out_of_memory)
                        return mfl_fail_memory(err, n, "an envelope");
                return mfl_fail(err, MFL_INVALID, "envelope: %s",
                        bounded.spent ? "needs too much memory for its size" : "not a protobuf message");
        }
        int r = mfl_wire_check(envelope, true, err);
        if (r) {
                mfl_wire_free(envelope);
                return r;
        }
        *ret_envelope = envelope;
        return 0;
}

void mfl_wire_free(Mfl__Envelope *envelope)
{
        ProtobufCAllocator allocator = {mfl_bounded_alloc, mfl_bounded_free, NULL};
        if (envelope)
                mfl__envelope__free_unpacked(envelope, &allocator);
}

int mfl_wire_pack(const Mfl__Envelope *envelope, uint8_t **ret_bytes, size_t *ret_n, struct mfl_error *err)
{
        int r = mfl_wire_check(envelope, false, err);
        if (r)
                return r;
        size_t n = mfl__envelope__get_packed_size(envelope);
        if (n > MFL_ENVELOPE_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "envelope: %zu bytes, expected at most %d", n, MFL_ENVELOPE_MAX);
        uint8_t *bytes = mfl_malloc(n);
        if (!bytes)
                return mfl_fail_memory(err, n, "an envelope");
        *ret_n = mfl__envelope__pack(envelope, bytes);
        *ret_bytes = bytes;
        return 0;
}

/* Fields may stand in any order. value_bytes: 4 or 8. */
static int append(uint32_t key, uint64_t value, unsigned value_bytes, uint8_t **envelope,
        size_t *envelope_bytes, struct mfl_error *err)
{
        uint8_t *bytes = mfl_realloc(*envelope, *envelope_bytes + 2 + value_bytes);
        if (!bytes) {
                free(*envelope);
                return mfl_fail_memory(err, *envelope_bytes + 2 + value_bytes, "an envelope");
        }
        uint8_t *p = bytes + *envelope_bytes;
        *p++ = (uint8_t)(key | 0x80);
        *p++ = (uint8_t)(key >> 7);
        for (unsigned i = 0; i < value_bytes; i++)
                *p++ = (uint8_t)(value >> 8 * i);
        *envelope = bytes;
        *envelope_bytes += 2 + value_bytes;
        return 0;
}

int mfl_wire_mark(uint32_t via, uint8_t **envelope, size_t *envelope_bytes, struct mfl_error *err)
{
        return append(VIA_FIELD << 3 | WIRE_FIXED32, via, 4, envelope, envelope_bytes, err);
}

int mfl_wire_mark_term(uint64_t term, uint8_t **envelope, size_t *envelope_bytes, struct mfl_error *err)
{
        return append(TERM_FIELD << 3 | WIRE_FIXED64, term, 8, envelope, envelope_bytes, err);
}

bool mfl_wire_has_payload(const Mfl__Envelope *envelope)
{
        return envelope->body_case == MFL__ENVELOPE__BODY_PARAMS ||
               envelope->body_case == MFL__ENVELOPE__BODY_CHUNK ||
               envelope->body_case == MFL__ENVELOPE__BODY_INITIAL ||
               envelope->body_case == MFL__ENVELOPE__BODY_PEER_PIECE;
}
