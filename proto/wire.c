/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking envelopes: checked both ways, and within a budget of memory. */
#include "proto/wire.h"

#include "proto/frame.h"
#include "proto/wire_internal.h"

/* protobuf-c turns 10 MiB of empty messages into 440 MiB and has no limit of its own, so what it may allocate
 * for one envelope is bounded by the bytes received. */
#define BUDGET_FACTOR 8
#define BUDGET_BASE (64 * 1024)
#define BUDGET_MAX (16 * 1024 * 1024)

struct budget {
        size_t left;
        bool spent, out_of_memory;
};

/* Before each allocation: its size. Aligned as malloc's results are. */
struct prefix {
        _Alignas(max_align_t) size_t size;
};

static void *budget_alloc(void *data, size_t size)
{
        struct budget *b = data;
        if (size > BUDGET_MAX || size + sizeof(struct prefix) > b->left) {
                b->spent = true;
                return NULL;
        }
        struct prefix *p = mfl_malloc(sizeof *p + size);
        if (!p) {
                b->out_of_memory = true;
                return NULL;
        }
        b->left -= sizeof *p + size;
        p->size = size;
        return p + 1;
}

/* What protobuf-c needs only while it reads (a kilobyte for each message of more than 16 fields) is given
 * back: the bound is on what is there at a time. */
static void budget_free(void *data, void *ptr)
{
        struct budget *b = data;
        struct prefix *p = ptr ? (struct prefix *)ptr - 1 : NULL;
        if (b && p)
                b->left += sizeof *p + p->size;
        free(p);
}

size_t mfl_wire_alloc_size(const void *p)
{
        return ((const struct prefix *)p - 1)->size;
}

int mfl_wire_unpack(const void *bytes, size_t n, Mfl__Envelope **ret_envelope, struct mfl_error *err)
{
        if (n > MFL_ENVELOPE_MAX)
                return mfl_fail(
                        err, MFL_INVALID, "envelope: %zu bytes, expected at most %d", n, MFL_ENVELOPE_MAX);
        struct budget budget = {.left = MFL_MIN(n * BUDGET_FACTOR + BUDGET_BASE, (size_t)BUDGET_MAX)};
        ProtobufCAllocator allocator = {budget_alloc, budget_free, &budget};
        Mfl__Envelope *envelope = mfl__envelope__unpack(&allocator, n, bytes);
        if (!envelope) {
                if (budget.out_of_memory)
                        return mfl_fail_memory(err, n, "an envelope");
                return mfl_fail(err, MFL_INVALID, "envelope: %s",
                        budget.spent ? "needs too much memory for its size" : "not a protobuf message");
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
        ProtobufCAllocator allocator = {budget_alloc, budget_free, NULL};
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

bool mfl_wire_has_payload(const Mfl__Envelope *envelope)
{
        return envelope->body_case == MFL__ENVELOPE__BODY_PARAMS ||
               envelope->body_case == MFL__ENVELOPE__BODY_CHUNK ||
               envelope->body_case == MFL__ENVELOPE__BODY_INITIAL;
}
