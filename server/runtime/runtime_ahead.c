/* SPDX-License-Identifier: Apache-2.0 */
/* Updates that are added while the rest of them comes.
 *
 *   - the loop hands the worker what has arrived from the beginning on, a strip at a time; those bytes take
 * no more chunks, so what was checked and added is what lies there, and can be taken away again exactly;
 *   - SLOT_ADD adds the rest, and only then does the update count;
 *   - a slot that is freed before leaves its block in a list: the worker takes from the sums what the block
 *     has there, before it does anything else with them. A slot that is freed while the worker is at it is
 *     the worker's to undo.
 */
#include "server/runtime/runtime_internal.h"

#define STRIP_BYTES ((uint64_t)2 << 20)
#define STRIP_ELEMENTS ((uint64_t)4096) /* strips end at multiples */

bool mfl_slot_ahead(struct mfl_runtime *rt, uint32_t slot)
{
        struct mfl_slot *s = &rt->slots[slot];
        bool due = false;
        mfl_slots_lock(rt);
        if (rt->sums && !rt->fed && !rt->method->discount && s->block && !s->n_writing && s->n_extents &&
                !s->extents[0].begin && !s->wrong) {
                uint64_t unit = STRIP_ELEMENTS * mfl_element_bytes(s->upload.encoding);
                /* A client's own model, behind the delta, is not added. */
                uint64_t whole = rt->n * mfl_element_bytes(s->upload.encoding);
                uint64_t end = MFL_MIN(s->extents[0].end, whole) / unit * unit;
                due = end >= s->handed + STRIP_BYTES;
                if (due)
                        s->handed = end;
        }
        mfl_slots_unlock(rt);
        return due;
}

int mfl_slot_add_range(
        struct mfl_runtime *rt, const struct mfl_slot *s, uint64_t from, uint64_t n, struct mfl_error *err)
{
        const void *memory = s->block->memory;
        const struct mfl_fixed_parts *parts = &rt->graph->statistics;
        uint64_t weight = s->upload.weight;
        if (rt->spec->secure.bits) { /* any number, modulo 2^64 */
                const uint64_t *masked = (const uint64_t *)memory + from;
                for (uint64_t i = 0; i < n; i++)
                        rt->sums[from + i] = (int64_t)((uint64_t)rt->sums[from + i] + masked[i]);
                return 0;
        }
        if (s->upload.encoding == MFL_ENCODING_F32)
                return mfl_fixed_parts_add_f32(&rt->fixed, parts, from, weight, (const float *)memory + from,
                        (size_t)n, rt->sums + from, err);
        return mfl_fixed_parts_add_i64(&rt->fixed, parts, from, weight, (const int64_t *)memory + from,
                (size_t)n, rt->sums + from, err);
}

void mfl_slot_add_ahead(struct mfl_runtime *rt, uint32_t slot)
{
        struct mfl_slot held = {0}, *s = &rt->slots[slot];
        mfl_ahead_undo(rt);
        mfl_slots_lock(rt);
        uint64_t to = s->block ? s->handed / mfl_element_bytes(s->upload.encoding) : 0;
        if (to > s->n_added && !s->wrong) {
                s->adding = true;
                held = *s;
                mfl_block_ref(held.block);
        }
        mfl_slots_unlock(rt);
        if (!held.block)
                return;
        bool wrong = mfl_slot_add_range(rt, &held, held.n_added, to - held.n_added, NULL);
        to = wrong ? held.n_added : to;
        mfl_slots_lock(rt);
        bool same = s->block == held.block && s->upload.grant == held.upload.grant;
        if (same) {
                s->adding = false;
                s->wrong = wrong;
                s->n_added = to;
        }
        mfl_slots_unlock(rt);
        if (!same)
                mfl_ahead_subtract(rt, &held.upload, held.block->memory, to);
        mfl_block_release(held.block);
}

void mfl_ahead_subtract(struct mfl_runtime *rt, const struct mfl_upload *upload, const void *v, uint64_t n)
{
        if (!n)
                return;
        if (upload->encoding == MFL_ENCODING_F32)
                mfl_fixed_parts_subtract_f32(
                        &rt->fixed, &rt->graph->statistics, 0, upload->weight, v, n, rt->sums);
        else
                mfl_fixed_subtract_i64(v, n, rt->sums);
}

bool mfl_ahead_free(struct mfl_runtime *rt, struct mfl_slot *s)
{
        struct mfl_block *block = s->block;
        if (s->adding || !s->n_added)
                return false;
        block->undo = (struct mfl_added){.next = rt->undo, .elements = s->n_added, .upload = s->upload};
        rt->undo = block;
        return true;
}

static struct mfl_block *take_first(struct mfl_runtime *rt)
{
        mfl_slots_lock(rt);
        struct mfl_block *block = rt->undo;
        if (block)
                rt->undo = block->undo.next;
        mfl_slots_unlock(rt);
        return block;
}

void mfl_ahead_undo(struct mfl_runtime *rt)
{
        for (struct mfl_block *block; (block = take_first(rt));) {
                mfl_ahead_subtract(rt, &block->undo.upload, block->memory, block->undo.elements);
                mfl_block_release(block);
        }
}

void mfl_ahead_forget(struct mfl_runtime *rt)
{
        for (struct mfl_block *block; (block = take_first(rt));)
                mfl_block_release(block);
}

void mfl_runtime_settle(struct mfl_runtime *rt)
{
        mfl_ahead_undo(rt);
}
