/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: staging memory of uploads, and which of its bytes have arrived. */
#include "server/runtime_internal.h"

/* Past so many separate pieces a chunk that makes one more is forgotten, and asked for again by the next
 * grant: no sender of chunks in any sane order comes near, and no other can make the list grow without end.
 */
#define EXTENTS_MAX 65536u

static void lock(const struct mfl_runtime *rt)
{
        pthread_mutex_lock(&rt->pool->mutex);
}

static void unlock(const struct mfl_runtime *rt)
{
        pthread_mutex_unlock(&rt->pool->mutex);
}

static uint64_t element_bytes(enum mfl_encoding encoding)
{
        return encoding == MFL_ENCODING_F32 ? sizeof(float) : sizeof(int64_t);
}

int mfl_slot_open(struct mfl_runtime *rt, uint32_t slot, uint64_t bytes, enum mfl_encoding encoding,
        struct mfl_error *err)
{
        mfl_assert(slot < rt->n_slots);
        if (encoding != MFL_ENCODING_F32 && encoding != MFL_ENCODING_I64)
                return mfl_fail(err, MFL_INVALID, "upload: encoding %d is unknown", (int)encoding);
        uint64_t want = rt->n * element_bytes(encoding);
        if (want > rt->pool->block_bytes)
                return mfl_fail(
                        err, MFL_INVALID, "upload: this job takes float32 deltas of single clients only");
        if (bytes != want)
                return mfl_fail(err, MFL_INVALID,
                        "upload: %llu bytes announced, expected %llu for %llu parameters",
                        (unsigned long long)bytes, (unsigned long long)want, (unsigned long long)rt->n);
        mfl_slot_free(rt, slot);
        struct mfl_slot *s = &rt->slots[slot];
        lock(rt);
        s->block = mfl_pool_take(rt->pool);
        if (s->block) {
                s->opening = ++rt->openings;
                s->bytes = bytes;
                s->encoding = encoding;
                s->n_extents = 0;
        }
        unlock(rt);
        if (!s->block)
                return mfl_fail(err, MFL_BUSY,
                        "upload: all memory of job %s is held by downloads of old parameters", rt->job);
        return 0;
}

void mfl_slot_free(struct mfl_runtime *rt, uint32_t slot)
{
        mfl_assert(slot < rt->n_slots);
        lock(rt);
        struct mfl_block *block = rt->slots[slot].block;
        rt->slots[slot].block = NULL;
        unlock(rt);
        mfl_block_release(block);
}

static bool is_complete(const struct mfl_slot *s)
{
        return s->block && s->n_extents == 1 && s->extents[0].begin == 0 && s->extents[0].end == s->bytes;
}

int mfl_slot_write_begin(struct mfl_runtime *rt, uint32_t slot, uint64_t offset, uint64_t bytes,
        struct mfl_slot_write *ret_write, struct mfl_error *err)
{
        if (slot >= rt->n_slots)
                return mfl_fail(err, MFL_NOT_FOUND, "chunk: slot %u does not exist", slot);
        struct mfl_slot *s = &rt->slots[slot];
        int r = 0;
        lock(rt);
        /* A complete slot takes no more: it may be in the middle of being checked and added. */
        if (!s->block || is_complete(s))
                r = mfl_fail(
                        err, MFL_NOT_FOUND, "chunk: slot %u is %s", slot, s->block ? "complete" : "not open");
        else if (!bytes || offset > s->bytes || bytes > s->bytes - offset || offset % 8 ||
                 (bytes % 8 && offset + bytes != s->bytes))
                r = mfl_fail(err, MFL_INVALID,
                        "chunk: %llu bytes at %llu; expected multiples of 8 within the update's %llu",
                        (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)s->bytes);
        else {
                mfl_block_ref(s->block);
                *ret_write = (struct mfl_slot_write){.block = s->block,
                        .slot = slot,
                        .opening = s->opening,
                        .offset = offset,
                        .bytes = bytes,
                        .dst = (char *)s->block->memory + offset};
        }
        unlock(rt);
        return r;
}

/* Index of the first extent that ends at or after position: the first that a piece beginning there can join.
 */
static uint32_t find_extent(const struct mfl_slot *s, uint64_t position)
{
        uint32_t low = 0, high = s->n_extents;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                if (s->extents[middle].end < position)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static bool grow_extents(struct mfl_slot *s)
{
        if (s->n_extents < s->room)
                return true;
        if (s->room >= EXTENTS_MAX)
                return false;
        uint32_t room = s->room ? 2 * s->room : 16;
        struct mfl_extent *grown = mfl_realloc(s->extents, room * sizeof *grown);
        if (!grown)
                return false;
        s->extents = grown;
        s->room = room;
        return true;
}

static void add_extent(struct mfl_slot *s, uint64_t begin, uint64_t end)
{
        uint32_t i = find_extent(s, begin), j = i;
        while (j < s->n_extents && s->extents[j].begin <= end) {
                begin = MFL_MIN(begin, s->extents[j].begin);
                end = MFL_MAX(end, s->extents[j].end);
                j++;
        }
        if (i == j && !grow_extents(s))
                return;
        memmove(s->extents + i + 1, s->extents + j, (s->n_extents - j) * sizeof *s->extents);
        s->extents[i] = (struct mfl_extent){begin, end};
        s->n_extents = s->n_extents - (j - i) + 1;
}

bool mfl_slot_write_end(struct mfl_runtime *rt, struct mfl_slot_write *write, bool arrived)
{
        if (!write->block)
                return false;
        struct mfl_slot *s = &rt->slots[write->slot];
        bool completed = false;
        lock(rt);
        if (arrived && s->block == write->block && s->opening == write->opening && !is_complete(s)) {
                add_extent(s, write->offset, write->offset + write->bytes);
                completed = is_complete(s);
        }
        unlock(rt);
        mfl_block_release(write->block);
        write->block = NULL;
        return completed;
}

bool mfl_slot_complete(const struct mfl_runtime *rt, uint32_t slot)
{
        mfl_assert(slot < rt->n_slots);
        lock(rt);
        bool complete = is_complete(&rt->slots[slot]);
        unlock(rt);
        return complete;
}

uint32_t mfl_slot_missing(
        const struct mfl_runtime *rt, uint32_t slot, struct mfl_range ranges[MFL_RANGES_MAX])
{
        mfl_assert(slot < rt->n_slots);
        const struct mfl_slot *s = &rt->slots[slot];
        uint32_t n = 0;
        uint64_t position = 0;
        lock(rt);
        for (uint32_t i = 0; s->block && i < s->n_extents && n < MFL_RANGES_MAX; i++) {
                if (s->extents[i].begin > position)
                        ranges[n++] = (struct mfl_range){position, s->extents[i].begin - position};
                position = s->extents[i].end;
        }
        if (s->block && n < MFL_RANGES_MAX && position < s->bytes)
                ranges[n++] = (struct mfl_range){position, s->bytes - position};
        unlock(rt);
        return n;
}

/* The slot's contents, referenced for as long as the addition takes. */
static int hold_slot(struct mfl_runtime *rt, uint32_t slot, struct mfl_slot *ret_slot, struct mfl_error *err)
{
        mfl_assert(slot < rt->n_slots);
        int r = 0;
        lock(rt);
        struct mfl_slot *s = &rt->slots[slot];
        if (!s->block)
                r = mfl_fail(err, MFL_NOT_FOUND, "slot %u is not open", slot);
        else if (!is_complete(s))
                r = mfl_fail(err, MFL_INVALID, "slot %u is not complete", slot);
        else {
                mfl_block_ref(s->block);
                *ret_slot = *s;
        }
        unlock(rt);
        return r;
}

static int check_delta(const struct mfl_runtime *rt, const float *delta, struct mfl_error *err)
{
        for (uint64_t i = 0; i < rt->n; i++)
                if (!(__builtin_fabsf(delta[i]) <= rt->fixed.delta_max))
                        return mfl_fail(err, MFL_INVALID,
                                "element %llu of an update is %.9g, expected within +-%g",
                                (unsigned long long)i, (double)delta[i], (double)rt->fixed.delta_max);
        return 0;
}

static int add_held(struct mfl_runtime *rt, const struct mfl_slot *s, uint64_t weight, uint64_t item,
        struct mfl_error *err)
{
        const void *memory = s->block->memory;
        if (rt->spill) {
                int r = check_delta(rt, memory, err);
                return r ? r : mfl_spill_put(rt->spill, item, memory, err);
        }
        if (weight > rt->fixed.weight_max - rt->weight_added)
                return mfl_fail(err, MFL_INVALID,
                        "weight %llu of an update: the round has %llu of at most %llu",
                        (unsigned long long)weight, (unsigned long long)rt->weight_added,
                        (unsigned long long)rt->fixed.weight_max);
        if (s->encoding == MFL_ENCODING_F32)
                return mfl_fixed_add_f32(&rt->fixed, weight, memory, rt->n, rt->sums, err);
        return mfl_fixed_add_i64(&rt->fixed, weight, memory, rt->n, rt->sums, err);
}

int mfl_slot_add(struct mfl_runtime *rt, uint32_t slot, uint64_t weight, uint64_t item, struct mfl_error *err)
{
        struct mfl_slot held = {0};
        int r = hold_slot(rt, slot, &held, err);
        if (r)
                return r;
        r = add_held(rt, &held, weight, item, err);
        if (!r)
                rt->weight_added += weight;
        mfl_block_release(held.block);
        return r;
}
