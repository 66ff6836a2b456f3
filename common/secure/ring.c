/* SPDX-License-Identifier: Apache-2.0 */
/* Widths of elements, and what they are divided by. */
#include "common/secure/ring.h"

#include <inttypes.h>

#define SHIFT_MAX 62 /* no exact sum is beyond 2^62 */

static uint32_t bits_of(uint64_t weight)
{
        return weight <= 1 ? 0 : 64 - (uint32_t)__builtin_clzll(weight - 1);
}

int mfl_secure_ring_fits(uint32_t bits, uint32_t grid_bits, uint64_t weight_max, struct mfl_error *err)
{
        static const uint32_t grids[] = {48, 32, 16, 8};
        uint32_t need = grid_bits + bits_of(weight_max), i = 0;
        if (bits == 64 || need <= bits)
                return 0;
        while (i < MFL_ARRAY_SIZE(grids) && grids[i] + bits_of(weight_max) > bits)
                i++;
        char remedy[64] = "weighting: uniform";
        if (i < MFL_ARRAY_SIZE(grids))
                mfl_snprintf(remedy, sizeof remedy, "compression: {up: {bits: %u}}", grids[i]);
        return mfl_fail(err, MFL_INVALID,
                "secure_sum.bits: %u can't hold a round's sum: clients' changes have %u bits, their weights "
                "add up to as much as %" PRIu64 ", and the sum takes %u bits with its sign; write %s, or "
                "secure_sum: {bits: %d}",
                bits, grid_bits, weight_max, need, remedy, need <= 48 ? 48 : 64);
}

int mfl_secure_ring_make(uint32_t bits, uint32_t grid_bits, const struct mfl_graph *graph,
        const struct mfl_fixed *fixed, const int32_t *exponent, struct mfl_secure_ring *ret_ring,
        struct mfl_error *err)
{
        struct mfl_secure_ring ring = {.grid_bits = (int)grid_bits};
        if (bits == 64 || !grid_bits || !exponent) {
                *ret_ring = (struct mfl_secure_ring){0};
                return 0;
        }
        ring.n = mfl_grid_tensors(graph);
        ring.v = mfl_calloc(MFL_MAX(ring.n, 1u), sizeof *ring.v);
        if (!ring.v)
                return mfl_fail_memory(err, ring.n * sizeof *ring.v, "a ring");
        for (uint32_t t = 0; t < ring.n; t++) {
                const struct mfl_param *param = &graph->params[(uint32_t)graph->i_moving + t];
                struct mfl_secure_ring_part *part = &ring.v[t];
                int shift = exponent[t] + fixed->scale_bits;
                bool exact = exponent[t] == MFL_GRID_EXACT || mfl_param_is_statistics(param);
                *part = (struct mfl_secure_ring_part){.end = param->offset - graph->n_frozen + param->count,
                        .bits = exact ? 64 : (uint8_t)bits,
                        .shift = exact ? 0 : (uint8_t)MFL_MAX(0, MFL_MIN(shift, SHIFT_MAX))};
        }
        *ret_ring = ring;
        return 0;
}

void mfl_secure_ring_deinit(struct mfl_secure_ring *ring)
{
        free(ring->v);
        *ring = (struct mfl_secure_ring){0};
}

/* The part of element `at`; parts may be empty. */
static const struct mfl_secure_ring_part *part_at(const struct mfl_secure_ring *ring, uint64_t at)
{
        uint32_t low = 0, high = ring->n - 1;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;
                if (ring->v[middle].end > at)
                        high = middle;
                else
                        low = middle + 1;
        }
        mfl_assert(ring->v[low].end > at);
        return &ring->v[low];
}

int mfl_secure_ring_fold(const struct mfl_secure_ring *ring, int64_t *v, uint64_t n, struct mfl_error *err)
{
        for (uint64_t at = 0; ring->n && at < n;) {
                const struct mfl_secure_ring_part *part = part_at(ring, at);
                int64_t unit = (int64_t)1 << part->shift, rest = 0;
                uint64_t end = MFL_MIN(part->end, n);
                for (; at < end; at++) {
                        rest |= v[at] % unit;
                        v[at] /= unit;
                }
                if (rest)
                        return mfl_fail(err, MFL_INVALID,
                                "an update is not on the round's grid, and can't be masked in %u bits",
                                part->bits);
        }
        return 0;
}

void mfl_secure_ring_cut(const struct mfl_secure_ring *ring, uint64_t first, uint64_t *v, uint64_t n)
{
        for (uint64_t at = first; ring->n && at < first + n;) {
                const struct mfl_secure_ring_part *part = part_at(ring, at);
                uint64_t end = MFL_MIN(part->end, first + n), sign = (uint64_t)1 << (part->bits - 1);
                uint64_t low = 2 * sign - 1; /* 64 bits: all */
                for (; at < end; at++)
                        v[at - first] = ((v[at - first] & low) ^ sign) - sign;
        }
}

int mfl_secure_ring_unfold(const struct mfl_secure_ring *ring, uint64_t first, uint64_t weight, int64_t *v,
        uint64_t n, struct mfl_error *err)
{
        mfl_secure_ring_cut(ring, first, (uint64_t *)v, n);
        for (uint64_t at = first; ring->n && at < first + n;) {
                const struct mfl_secure_ring_part *part = part_at(ring, at);
                uint64_t end = MFL_MIN(part->end, first + n);
                if (part->bits == 64) {
                        at = end;
                        continue;
                }
                __int128 most = ((__int128)weight << (ring->grid_bits - 1)) - 1;
                __int128 room = (__int128)INT64_MAX >> part->shift;
                most = MFL_MIN(most, room);
                for (; at < end; at++) {
                        int64_t *x = &v[at - first];
                        if (*x > most || *x < -most)
                                return mfl_fail(err, MFL_INVALID,
                                        "element %" PRIu64 " is %" PRId64
                                        " steps of its grid, and clients of a weight of %" PRIu64
                                        " on %d bits have at most %" PRId64,
                                        at, *x, weight, ring->grid_bits, (int64_t)most);
                        *x = (int64_t)((uint64_t)*x << part->shift);
                }
        }
        return 0;
}
