/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: staging memory of uploads, and which of its bytes have arrived. */
#include "server/runtime/runtime_internal.h"

/* Past so many separate pieces a chunk that makes one more is forgotten, and asked for again by the next
 * grant: no sender of chunks in any sane order comes near, and no other can make the list grow without end.
 */
#define EXTENTS_MAX 65536u

bool mfl_slot_open(struct mfl_runtime *rt, uint32_t slot, const struct mfl_upload *upload)
{
        struct mfl_slot *s = &rt->slots[slot];
        uint64_t bytes = upload->encoding == MFL_ENCODING_F32
                                 ? mfl_method_update_floats(rt->spec, rt->n) * sizeof(float)
                                 : rt->n * mfl_element_bytes(upload->encoding);
        mfl_assert(slot < rt->n_slots && upload->grant && bytes <= rt->pool->block_bytes);
        if (s->block && s->upload.grant == upload->grant) {
                mfl_assert(s->upload.task == upload->task && s->upload.update == upload->update);
                mfl_slots_lock(rt);
                s->upload.conn = upload->conn;
                mfl_slots_unlock(rt);
                return true;
        }
        mfl_slot_free(rt, slot);
        mfl_slots_lock(rt);
        s->block = mfl_pool_take(rt->pool);
        if (s->block) {
                s->upload = *upload;
                s->bytes = bytes;
                s->n_extents = s->n_writing = 0;
                s->n_added = s->handed = 0;
                s->adding = s->wrong = false;
        }
        mfl_slots_unlock(rt);
        return s->block != NULL;
}

bool mfl_slot_find(
        const struct mfl_runtime *rt, uint32_t conn, uint64_t task, uint32_t update, uint32_t *ret_slot)
{
        for (uint32_t i = 0; i < rt->n_slots; i++) {
                const struct mfl_upload *upload = &rt->slots[i].upload;
                *ret_slot = i;
                if (rt->slots[i].block && upload->conn == conn && upload->task == task &&
                        upload->update == update)
                        return true;
        }
        return false;
}

bool mfl_slot_free(struct mfl_runtime *rt, uint32_t slot)
{
        mfl_assert(slot < rt->n_slots);
        struct mfl_slot *s = &rt->slots[slot];
        mfl_slots_lock(rt);
        struct mfl_block *block = s->block;
        bool left = block && mfl_ahead_free(rt, s);
        s->block = NULL;
        mfl_slots_unlock(rt);
        if (!left)
                mfl_block_release(block);
        return left;
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
        mfl_slots_lock(rt);
        /* A complete slot takes no more: it may be in the middle of being checked and added. */
        if (!s->block || is_complete(s))
                r = mfl_fail(
                        err, MFL_NOT_FOUND, "chunk: slot %u is %s", slot, s->block ? "complete" : "not open");
        else if (offset < s->handed)
                r = mfl_fail(err, MFL_NOT_FOUND, "chunk: slot %u has these bytes", slot);
        else if (!bytes || offset > s->bytes || bytes > s->bytes - offset || offset % 8 ||
                 (bytes % 8 && offset + bytes != s->bytes))
                r = mfl_fail(err, MFL_INVALID,
                        "chunk: %llu bytes at %llu; expected multiples of 8 within the update's %llu",
                        (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)s->bytes);
        else {
                mfl_block_ref(s->block);
                s->n_writing++;
                *ret_write = (struct mfl_slot_write){.block = s->block,
                        .slot = slot,
                        .grant = s->upload.grant,
                        .offset = offset,
                        .bytes = bytes,
                        .floats = s->upload.encoding == MFL_ENCODING_F32,
                        .dst = (char *)s->block->memory + offset};
        }
        mfl_slots_unlock(rt);
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
        mfl_slots_lock(rt);
        bool same = s->block == write->block && s->upload.grant == write->grant;
        s->n_writing -= same;
        if (arrived && same && !is_complete(s)) {
                add_extent(s, write->offset, write->offset + write->bytes);
                completed = is_complete(s);
        }
        mfl_slots_unlock(rt);
        mfl_block_release(write->block);
        write->block = NULL;
        return completed;
}

uint32_t mfl_slot_missing(
        const struct mfl_runtime *rt, uint32_t slot, struct mfl_range ranges[MFL_RANGES_MAX])
{
        mfl_assert(slot < rt->n_slots);
        const struct mfl_slot *s = &rt->slots[slot];
        uint32_t n = 0;
        uint64_t position = 0;
        mfl_slots_lock(rt);
        for (uint32_t i = 0; s->block && i < s->n_extents && n < MFL_RANGES_MAX; i++) {
                if (s->extents[i].begin > position)
                        ranges[n++] = (struct mfl_range){position, s->extents[i].begin - position};
                position = s->extents[i].end;
        }
        if (s->block && n < MFL_RANGES_MAX && position < s->bytes)
                ranges[n++] = (struct mfl_range){position, s->bytes - position};
        mfl_slots_unlock(rt);
        return n;
}

/* The slot's contents, referenced for as long as the addition takes. */
static struct mfl_slot hold_slot(struct mfl_runtime *rt, uint32_t slot)
{
        mfl_assert(slot < rt->n_slots);
        struct mfl_slot *s = &rt->slots[slot];
        mfl_slots_lock(rt);
        mfl_assert(is_complete(s));
        mfl_block_ref(s->block);
        s->adding = true;
        struct mfl_slot held = *s;
        mfl_slots_unlock(rt);
        return held;
}

static int refuse_weight(const struct mfl_runtime *rt, const struct mfl_slot *s, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "weight %llu of an update: the round has %llu of at most %llu",
                (unsigned long long)s->upload.weight, (unsigned long long)rt->weight_added,
                (unsigned long long)rt->fixed.weight_max);
}

/* Nothing of it was added ahead. */
static int add_fed(struct mfl_runtime *rt, const struct mfl_slot *s, struct mfl_error *err)
{
        int r = mfl_feed_put(rt, s->upload.item, s->block->memory, err);
        return r ? r
                 : mfl_fixed_parts_add_f32(&rt->fixed, &rt->graph->statistics, 0, s->upload.weight, rt->fed,
                           (size_t)rt->n, rt->sums, err);
}

/* With the server's own factor, which is known only now: nothing of it was added ahead. */
static int add_discounted(struct mfl_runtime *rt, const struct mfl_slot *s, struct mfl_error *err)
{
        double real = (double)s->upload.weight * rt->method->discount(rt->spec, s->upload.staleness);
        return mfl_fixed_parts_add_real(&rt->fixed, &rt->graph->statistics, 0, s->upload.weight, real,
                s->block->memory, (size_t)rt->n, rt->sums, err);
}

static int add_held(struct mfl_runtime *rt, const struct mfl_slot *s, struct mfl_error *err)
{
        const void *memory = s->block->memory;
        if (rt->buckets)
                return mfl_buckets_add(rt, s->upload.bucket, memory, err);
        if (rt->spill) {
                int r = mfl_fixed_parts_check(&rt->fixed, &rt->graph->statistics, memory, (size_t)rt->n, err);
                return r ? r : mfl_spill_put(rt->spill, s->upload.item, s->upload.weight, memory, err);
        }
        bool fits = s->upload.weight <= rt->fixed.weight_max - rt->weight_added;
        int r = rt->told ? mfl_told_check(rt, memory, err) : 0;
        if (rt->method->discount)
                return fits ? add_discounted(rt, s, err) : refuse_weight(rt, s, err);
        if (!r && rt->fed)
                return fits ? add_fed(rt, s, err) : refuse_weight(rt, s, err);
        if (!r && rt->states)
                r = s->upload.state.there
                            ? mfl_states_put_site(rt->states, s->upload.item, &s->upload.state, err)
                            : mfl_states_put(rt->states, s->upload.item, s->upload.steps, memory, err);
        if (r) {
                mfl_ahead_subtract(rt, &s->upload, memory, s->n_added);
                return r;
        }
        if (s->n_added && fits && !s->wrong &&
                !mfl_slot_add_range(rt, s, s->n_added, rt->n - s->n_added, err))
                return 0;
        mfl_ahead_subtract(rt, &s->upload, memory, s->n_added);
        if (!fits)
                return refuse_weight(rt, s, err);
        return mfl_slot_add_range(rt, s, 0, rt->n, err);
}

/* The slot has nothing of its own in the sums any more: it counts, or it was taken away. */
static void settle(struct mfl_runtime *rt, uint32_t slot, uint64_t grant)
{
        struct mfl_slot *s = &rt->slots[slot];
        mfl_slots_lock(rt);
        if (s->upload.grant == grant) {
                s->n_added = 0;
                s->adding = false;
        }
        mfl_slots_unlock(rt);
}

int mfl_slot_add(struct mfl_runtime *rt, uint32_t slot, struct mfl_error *err)
{
        mfl_ahead_undo(rt);
        struct mfl_slot held = hold_slot(rt, slot);
        int r = add_held(rt, &held, err);
        if (!r)
                rt->weight_added += held.upload.weight;
        if (!r && rt->states && !rt->spill)
                mfl_states_keep(rt->states);
        if (!r && rt->changes)
                mfl_changes_add(rt->changes, held.upload.item, held.upload.weight, held.block->memory);
        if (!r && rt->told)
                mfl_told_add(rt, held.upload.weight, held.block->memory);
        settle(rt, slot, held.upload.grant);
        mfl_block_release(held.block);
        return r;
}
