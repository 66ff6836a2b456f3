/* SPDX-License-Identifier: Apache-2.0 */
/* One block of each pass of attention by tiles (attention.h): forward, gradients of queries, gradients of
 * keys and values. */
#ifndef MFL_KERNELS_CUDA_ATTENTION_ATTENTION_PASSES_H
#define MFL_KERNELS_CUDA_ATTENTION_ATTENTION_PASSES_H

#include "kernels/cuda/attention/attention_tile.h"

/* The sum, or the largest, over the four lanes that share a row. */
MFL_DEVICE float flash_row_sum(float v)
{
        v += mfl_shfl_xor(v, 1);
        return v + mfl_shfl_xor(v, 2);
}
MFL_DEVICE float flash_row_max(float v)
{
        float other = mfl_shfl_xor(v, 1);
        v = other > v ? other : v;
        other = mfl_shfl_xor(v, 2);
        return other > v ? other : v;
}

/* Keys below this are seen. Rows beyond the last position see all keys, so that no row has a sum of 0. */
MFL_DEVICE int flash_seen(const struct mfl_flash_args *a, int query)
{
        return a->op.causal && query < a->op.positions ? query + 1 : a->op.positions;
}

/* How much of the tile from `begin` on some of the warp's rows see. */
MFL_DEVICE struct flash_range flash_range_of(
        const struct mfl_flash_args *a, struct flash_shape s, const struct flash_place *at, int begin)
{
        int t = a->op.positions, end = t;
        struct flash_range r = {0, 0};
        if (at->first >= t)
                return r;
        if (a->op.causal && s.pass == MFL_FLASH_KEYS)
                r.low = at->first > begin ? at->first - begin : 0;
        else if (a->op.causal && at->first + 16 < t)
                end = at->first + 16;
        r.limit = end - begin < s.step ? end - begin : s.step;
        r.limit = r.limit > 0 ? (r.limit + 15) / 16 * 16 : 0;
        return r;
}

/* ---- forward ---- */

/* For a lane's two rows: the largest score so far, and the lane's share of the sum of weights. */
struct flash_state {
        float base[2], sum[2];
};

/* Scores become weights before normalisation; earlier sums shrink to the new base. */
MFL_DEVICE void flash_weights(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_place *at, int begin, const struct flash_range *range, struct flash_state *state,
        struct flash_scores *v, struct flash_sums *sums)
{
        uint32_t keeps = flash_keeps(a, s, at, begin, range);
        MFL_UNROLL
        for (int r = 0; r < 2; r++) {
                int query = at->first + at->lane / 4 + r * 8, seen = flash_seen(a, query) - begin;
                float max = -INFINITY, sum = 0.0f;
                MFL_UNROLL
                for (int i = 0; i < s.step / 4; i++) {
                        float *score = &v->of[i / 2][r * 2 + i % 2];
                        if (!flash_in(range, i / 2 * 8))
                                continue;
                        *score = i / 2 * 8 + at->lane % 4 * 2 + i % 2 < seen ? *score : -INFINITY;
                        max = *score > max ? *score : max;
                }
                max = flash_row_max(max);
                float base = max > state->base[r] ? max : state->base[r];
                float shrink = exp2f((state->base[r] - base) * a->exponent);
                MFL_UNROLL
                for (int i = 0; i < s.step / 4; i++) {
                        float *score = &v->of[i / 2][r * 2 + i % 2];
                        if (!flash_in(range, i / 2 * 8))
                                continue;
                        *score = exp2f((*score - base) * a->exponent);
                        sum += *score;
                        if (at->drops)
                                *score *= flash_keep(at, keeps, i / 2 * 4 + r * 2 + i % 2);
                }
                state->sum[r] = state->sum[r] * shrink + sum;
                state->base[r] = base;
                MFL_UNROLL
                for (int j = 0; j < s.size / 8; j++) {
                        sums->of[j][r * 2] *= shrink;
                        sums->of[j][r * 2 + 1] *= shrink;
                }
        }
}

MFL_DEVICE void flash_finish(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_place *at, const struct flash_state *state, const struct flash_sums *sums)
{
        float inverse[2];
        struct flash_rows y = flash_rows_of(a, at, a->op.out, 1, 0);
        MFL_UNROLL
        for (int r = 0; r < 2; r++) {
                int query = at->first + at->lane / 4 + r * 8;
                inverse[r] = 1.0f / flash_row_sum(state->sum[r]);
                if (at->kept && query < a->op.positions && at->lane % 4 == 0) {
                        at->kept[query] = state->base[r];
                        at->kept[a->op.positions + query] = inverse[r];
                }
        }
        flash_give(a, s, at, sums, inverse, &y, false);
}

MFL_DEVICE void flash_forward(const struct mfl_flash_args *a, struct flash_shape s, unsigned char *shared)
{
        struct flash_place at = flash_place_of(a, s, shared);
        if (mfl_cuda_rows(&a->op.steps, (uint32_t)at.group) == 0)
                return;
        struct flash_rows q = flash_rows_of(a, &at, a->op.in, 3, 0),
                          k = flash_rows_of(a, &at, a->op.in, 3, 1),
                          v = flash_rows_of(a, &at, a->op.in, 3, 2);
        int rows = (int)blockDim.x / 2, t = a->op.positions;
        int end = a->op.causal && at.block_first + rows < t ? at.block_first + rows : t;
        const unsigned char *own = at.own[0] + at.warp * 16 * flash_line(s);
        struct flash_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        struct flash_sums sums = {{{0.0f}}};
        flash_fill(a, s, &q, at.block_first, rows, at.own[0]);
        flash_fill_passing(a, s, &k, 0, at.passing[0]);
        mfl_cp_async_commit();
        for (int begin = 0; begin < end; begin += s.step) {
                struct flash_range range = flash_range_of(a, s, &at, begin);
                struct flash_scores scores;
                mfl_cp_async_wait(0);
                MFL_SYNC(); /* keys are ready; nobody reads the values of the previous tile any longer */
                flash_fill_passing(a, s, &v, begin, at.passing[1]);
                mfl_cp_async_commit();
                if (range.limit > 0)
                        flash_outer(a, s, own, at.passing[0], &range, at.lane, &scores);
                mfl_cp_async_wait(0);
                MFL_SYNC();
                if (begin + s.step < end)
                        flash_fill_passing(a, s, &k, begin + s.step, at.passing[0]);
                mfl_cp_async_commit();
                if (range.limit == 0)
                        continue;
                flash_weights(a, s, &at, begin, &range, &state, &scores, &sums);
                flash_inner(a, s, &scores, at.passing[1], &range, at.slab, at.lane, &sums);
        }
        flash_finish(a, s, &at, &state, &sums);
}

/* ---- backward ---- */

/* For a query: what forward kept, and the sum of dy y. */
struct flash_query {
        float base, inverse, mean;
};

MFL_DEVICE struct flash_query flash_query_at(
        const struct mfl_flash_args *a, const struct flash_place *at, int query)
{
        int t = a->op.positions;
        struct flash_query q = {0.0f, 0.0f, 0.0f};
        if (query < t) {
                q.base = at->kept[query];
                q.inverse = at->kept[t + query];
                q.mean = at->kept[2 * t + query];
        }
        return q;
}

/* The means of a lane's two queries, which are kept for the keys' pass, and the other values that forward
 * kept. dy is the warp's 16 rows of it. */
MFL_DEVICE void flash_means(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_place *at, const unsigned char *dy, struct flash_query queries[2])
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        struct flash_rows y = flash_rows_of(a, at, a->op.out, 1, 0);
        MFL_UNROLL
        for (int r = 0; r < 2; r++) {
                int row = at->lane / 4 + r * 8, query = at->first + row, t = a->op.positions;
                float sum = 0.0f;
                for (int c = at->lane % 4; c < a->op.size && query < t; c += 4)
                        sum = fmaf(mfl_load(dy + row * flash_line(s), c, type),
                                mfl_load(y.p, y.at + query * y.step + c, type), sum);
                sum = flash_row_sum(sum);
                if (query < t && at->lane % 4 == 0)
                        at->kept[2 * t + query] = sum;
                queries[r].base = query < t ? at->kept[query] : 0.0f;
                queries[r].inverse = query < t ? at->kept[t + query] : 0.0f;
                queries[r].mean = sum;
        }
}

/* Scores become weights as they were multiplied with the values; the gradients of those weights become those
 * of the scores. */
MFL_DEVICE void flash_grads(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_place *at, int begin, const struct flash_range *range,
        const struct flash_query queries[2], struct flash_scores *weights, struct flash_scores *grads)
{
        const bool keys = s.pass == MFL_FLASH_KEYS;
        uint32_t keeps = flash_keeps(a, s, at, begin, range);
        int t = a->op.positions;
        MFL_UNROLL
        for (int i = 0; i < s.step / 4; i++) {
                int other = begin + i / 2 * 8 + at->lane % 4 * 2 + i % 2;
                struct flash_query column = {0.0f, 0.0f, 0.0f};
                if (!flash_in(range, i / 2 * 8))
                        continue;
                if (keys)
                        column = flash_query_at(a, at, other);
                MFL_UNROLL
                for (int r = 0; r < 2; r++) {
                        int own = at->first + at->lane / 4 + r * 8;
                        int query = keys ? other : own, key = keys ? own : other;
                        struct flash_query q = keys ? column : queries[r];
                        float *w = &weights->of[i / 2][r * 2 + i % 2], *d = &grads->of[i / 2][r * 2 + i % 2];
                        bool met = key < t && query < t && (!a->op.causal || key <= query);
                        float p = exp2f((*w - q.base) * a->exponent) * q.inverse;
                        float keep = flash_keep(at, keeps, i / 2 * 4 + r * 2 + i % 2);
                        *w = met ? p * keep : 0.0f;
                        *d = met ? p * (keep * *d - q.mean) : 0.0f;
                }
        }
}

/* The two tensors of own rows and the two that pass by: the first of each give scores. */
struct flash_four {
        struct flash_rows own[2], passing[2];
};
MFL_DEVICE struct flash_four flash_four_of(
        const struct mfl_flash_args *a, struct flash_shape s, const struct flash_place *at)
{
        struct flash_rows q = flash_rows_of(a, at, a->op.in, 3, 0), k = flash_rows_of(a, at, a->op.in, 3, 1),
                          v = flash_rows_of(a, at, a->op.in, 3, 2),
                          dy = flash_rows_of(a, at, a->op.dout, 1, 0);
        struct flash_four f;
        const bool keys = s.pass == MFL_FLASH_KEYS;
        f.own[0] = keys ? k : q;
        f.own[1] = keys ? v : dy;
        f.passing[0] = keys ? q : k;
        f.passing[1] = keys ? dy : v;
        return f;
}

/* Tiles of the first tensor that passes by are read at both ends of a turn and have two places, used in turn.
 * Those of the second have one, filled while the first computes the last product. */
MFL_DEVICE void flash_back_run(const struct mfl_flash_args *a, struct flash_shape s, struct flash_place *at,
        struct flash_sums *sums, struct flash_sums *sums_of_values)
{
        const bool keys = s.pass == MFL_FLASH_KEYS;
        struct flash_four f = flash_four_of(a, s, at);
        struct flash_query queries[2] = {{0.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f}};
        int rows = (int)blockDim.x / 2, t = a->op.positions, offset = at->warp * 16 * flash_line(s);
        int first = keys && a->op.causal ? at->block_first / s.step * s.step : 0, end = t;
        if (!keys && a->op.causal && at->block_first + rows < t)
                end = at->block_first + rows;
        unsigned char *now = at->passing[0], *next = at->passing[1], *second = at->passing[2];
        flash_fill(a, s, &f.own[0], at->block_first, rows, at->own[0]);
        flash_fill(a, s, &f.own[1], at->block_first, rows, at->own[1]);
        flash_fill_passing(a, s, &f.passing[0], first, now);
        flash_fill_passing(a, s, &f.passing[1], first, second);
        mfl_cp_async_commit();
        for (int begin = first; begin < end; begin += s.step) {
                struct flash_range range = flash_range_of(a, s, at, begin);
                struct flash_scores weights, grads;
                bool more = begin + s.step < end, wanted = range.low < range.limit;
                mfl_cp_async_wait(0);
                MFL_SYNC();
                if (more)
                        flash_fill_passing(a, s, &f.passing[0], begin + s.step, next);
                mfl_cp_async_commit();
                if (!keys && begin == first)
                        flash_means(a, s, at, at->own[1] + offset, queries);
                if (wanted) {
                        flash_outer(a, s, at->own[0] + offset, now, &range, at->lane, &weights);
                        flash_outer(a, s, at->own[1] + offset, second, &range, at->lane, &grads);
                        flash_grads(a, s, at, begin, &range, queries, &weights, &grads);
                }
                if (wanted && keys)
                        flash_inner(a, s, &weights, second, &range, at->slab, at->lane, sums_of_values);
                MFL_SYNC();
                if (more)
                        flash_fill_passing(a, s, &f.passing[1], begin + s.step, second);
                mfl_cp_async_commit();
                if (wanted)
                        flash_inner(a, s, &grads, now, &range, at->slab, at->lane, sums);
                unsigned char *was = now;
                now = next;
                next = was;
        }
}

MFL_DEVICE void flash_backward(const struct mfl_flash_args *a, struct flash_shape s, unsigned char *shared)
{
        const bool keys = s.pass == MFL_FLASH_KEYS;
        struct flash_place at = flash_place_of(a, s, shared);
        if (mfl_cuda_rows(&a->op.steps, (uint32_t)at.group) == 0)
                return;
        struct flash_sums sums = {{{0.0f}}}, values = {{{0.0f}}};
        const float scale[2] = {a->scale, a->scale}, one[2] = {1.0f, 1.0f};
        flash_back_run(a, s, &at, &sums, &values);
        struct flash_rows dx = flash_rows_of(a, &at, a->op.din, 3, keys ? 1 : 0);
        flash_give(a, s, &at, &sums, scale, &dx, a->op.add);
        if (keys) {
                dx = flash_rows_of(a, &at, a->op.din, 3, 2);
                flash_give(a, s, &at, &values, one, &dx, a->op.add);
        }
}

#endif
