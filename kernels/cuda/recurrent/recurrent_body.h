/* SPDX-License-Identifier: Apache-2.0 */
/* The two forms of ops_recurrent.h for one constant shape: the product of a tile, and the gates after it. */
#ifndef MFL_KERNELS_CUDA_RECURRENT_RECURRENT_BODY_H
#define MFL_KERNELS_CUDA_RECURRENT_RECURRENT_BODY_H

#include "kernels/cuda/recurrent/recurrent.h"

/* ---- the product of a warp: 16 rows by 8 units, for each panel ---- */

/* Element e of lane l of a panel: tensor cores, row l / 4 + e / 2 * 8, unit l % 4 * 2 + e % 2; fp32, row
 * l % 4 + 4 * e, unit l / 4. */
struct recurrent_sums {
        float of[MFL_RECURRENT_PANELS][4];
};
struct recurrent_words {
        uint32_t w[4];
};

/* What a warp multiplies: the state's rows, and the packed weights of its tile. */
struct recurrent_operands {
        const unsigned char *state, *weights;
        int rows, lane; /* rows: the existing ones */
};

MFL_DEVICE int recurrent_row(struct mfl_recurrent_shape s, int lane, int e)
{
        return s.precision == MFL_PRECISION_FP32 ? lane % 4 + 4 * e : lane / 4 + e / 2 * 8;
}
MFL_DEVICE int recurrent_unit(struct mfl_recurrent_shape s, int lane, int e)
{
        return s.precision == MFL_PRECISION_FP32 ? lane / 4 : lane % 4 * 2 + e % 2;
}

/* 16 bytes, or zeros. */
MFL_DEVICE struct recurrent_words recurrent_load(const unsigned char *p, bool there)
{
        uint4 q = {0, 0, 0, 0};
        if (there)
                mfl_copy_16(&q, p);
        struct recurrent_words r = {{q.x, q.y, q.z, q.w}};
        return r;
}

MFL_DEVICE void recurrent_mma(
        struct mfl_recurrent_shape s, float d[4], const uint32_t a[4], const uint32_t b[2])
{
        if (s.precision == MFL_PRECISION_TF32)
                mfl_mma_tf32(d, a, b);
        else if (s.precision == MFL_PRECISION_BF16)
                mfl_mma_bf16(d, a, b);
        else
                mfl_mma_f16(d, a, b);
}

/* Chunks [first, end), `at_once` of them requested before it waits for the first: fewer where they are in
 * shared memory. */
MFL_DEVICE void recurrent_tensor_product(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_operands *at, int first, int end, struct recurrent_sums *sums)
{
        const int panels = mfl_recurrent_panels(s.kind, s.backward),
                  at_once = (panels == 1 ? 4 : 2) / (s.whole ? 2 : 1);
        const int row = at->lane / 4, word = at->lane % 4 * 16;
        for (int c = first; c < end; c += at_once) {
                struct recurrent_words low[4], high[4], w[4][MFL_RECURRENT_PANELS];
                MFL_UNROLL
                for (int i = 0; i < at_once; i++) {
                        const bool there = c + i < end;
                        const unsigned char *from =
                                at->state + row * a->pitch + (c + i) * MFL_RECURRENT_CHUNK + word;
                        low[i] = recurrent_load(from, there && row < at->rows);
                        high[i] = recurrent_load(from + 8 * a->pitch, there && row + 8 < at->rows);
                        MFL_UNROLL
                        for (int p = 0; p < panels; p++)
                                w[i][p] = recurrent_load(
                                        at->weights + (p * a->chunks + c + i) * MFL_RECURRENT_LOAD +
                                                at->lane * 16,
                                        there);
                }
                MFL_UNROLL
                for (int i = 0; i < at_once; i++) {
                        if (c + i >= end)
                                continue;
                        const uint32_t one[4] = {low[i].w[0], high[i].w[0], low[i].w[1], high[i].w[1]};
                        const uint32_t two[4] = {low[i].w[2], high[i].w[2], low[i].w[3], high[i].w[3]};
                        MFL_UNROLL
                        for (int p = 0; p < panels; p++) {
                                recurrent_mma(s, sums->of[p], one, w[i][p].w);
                                recurrent_mma(s, sums->of[p], two, w[i][p].w + 2);
                        }
                }
        }
}

MFL_DEVICE void recurrent_plain_product(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_operands *at, int first, int end, struct recurrent_sums *sums)
{
        const int panels = mfl_recurrent_panels(s.kind, s.backward);
        const int row = at->lane % 4, unit = at->lane / 4;
        for (int c = first; c < end; c++) {
                MFL_UNROLL
                for (int q = 0; q < 4; q++) {
                        struct recurrent_words x[4], w[MFL_RECURRENT_PANELS];
                        MFL_UNROLL
                        for (int i = 0; i < 4; i++)
                                x[i] = recurrent_load(at->state + (row + 4 * i) * a->pitch +
                                                              c * MFL_RECURRENT_CHUNK + q * 16,
                                        row + 4 * i < at->rows);
                        MFL_UNROLL
                        for (int p = 0; p < panels; p++)
                                w[p] = recurrent_load(at->weights + (p * a->chunks + c) * MFL_RECURRENT_LOAD +
                                                              (unit * 4 + q) * 16,
                                        true);
                        MFL_UNROLL
                        for (int e = 0; e < 4; e++) {
                                MFL_UNROLL
                                for (int p = 0; p < panels; p++) {
                                        MFL_UNROLL
                                        for (int i = 0; i < 4; i++)
                                                sums->of[p][i] = fmaf(mfl_bits_to_float(x[i].w[e]),
                                                        mfl_bits_to_float(w[p].w[e]), sums->of[p][i]);
                                }
                        }
                }
        }
}

/* One slice, from +0. */
MFL_DEVICE void recurrent_slice(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_operands *at, int slice, struct recurrent_sums *sums)
{
        int first = slice * a->slice, end = first + a->slice < a->chunks ? first + a->slice : a->chunks;
        MFL_UNROLL
        for (int p = 0; p < MFL_RECURRENT_PANELS; p++)
                MFL_UNROLL
        for (int e = 0; e < 4; e++)
                sums->of[p][e] = 0.0f;
        if (s.precision == MFL_PRECISION_FP32)
                recurrent_plain_product(a, s, at, first, end, sums);
        else
                recurrent_tensor_product(a, s, at, first, end, sums);
}

/* A warp's sums to shared memory, [panel][16][8]. */
MFL_DEVICE void recurrent_stage(
        struct mfl_recurrent_shape s, int lane, const struct recurrent_sums *sums, float *stage)
{
        const int panels = mfl_recurrent_panels(s.kind, s.backward);
        MFL_UNROLL
        for (int p = 0; p < panels; p++)
                MFL_UNROLL
        for (int e = 0; e < 4; e++)
                stage[p * MFL_RECURRENT_ITEMS + recurrent_row(s, lane, e) * MFL_RECURRENT_UNITS +
                        recurrent_unit(s, lane, e)] = sums->of[p][e];
}

/* ---- gates: one row and unit ---- */

struct recurrent_item {
        bool exists;
        int row, u;    /* row: of the block's */
        int64_t whole; /* the row's number among those of all groups */
        int group;
};
/* What a position reads besides the product; requested before the product. */
struct recurrent_inputs {
        float gate[MFL_RECURRENT_PANELS], bias[MFL_RECURRENT_PANELS];
        float before; /* cell (LSTM) or output (GRU) of the previous position */
        float own;    /* backward: this position's cell (LSTM), the new gate's hidden share (GRU), output */
        float dy, carry;
};

MFL_DEVICE struct recurrent_item recurrent_item_of(
        const struct mfl_recurrent_args *a, int group, int block, int tile, int i)
{
        struct recurrent_item at;
        int first = block * MFL_RECURRENT_ROWS;
        at.row = i / MFL_RECURRENT_UNITS;
        at.u = tile * MFL_RECURRENT_UNITS + i % MFL_RECURRENT_UNITS;
        at.group = group;
        at.whole = (int64_t)group * a->batch + first + at.row;
        at.exists = first + at.row < a->batch && at.u < a->hidden;
        return at;
}

MFL_DEVICE struct recurrent_inputs recurrent_inputs_of(const struct mfl_recurrent_args *a,
        struct mfl_recurrent_shape s, const struct recurrent_item *at, int t)
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        const int gates = mfl_cell_gates(s.kind);
        struct recurrent_inputs in = {{0.0f}, {0.0f}, 0.0f, 0.0f, 0.0f, 0.0f};
        if (!at->exists)
                return in;
        int64_t place = at->whole * a->positions + t, own = place * a->hidden + at->u;
        MFL_UNROLL
        for (int p = 0; p < gates; p++) {
                in.gate[p] = mfl_load(a->gates, (place * gates + p) * a->hidden + at->u, type);
                if (!s.backward && a->bias)
                        in.bias[p] =
                                a->bias[(uint64_t)at->group * a->stride + (uint64_t)(p * a->hidden + at->u)];
        }
        const bool lstm = s.kind == MFL_CELL_LSTM, gru = s.kind == MFL_CELL_GRU;
        if (t > 0 && (lstm || gru))
                in.before = lstm ? a->cell[own - a->hidden] : mfl_load(a->out, own - a->hidden, type);
        if (!s.backward)
                return in;
        in.own = lstm  ? a->cell[own]
                 : gru ? mfl_load(a->hidden_gates, (place * gates + 2) * a->hidden + at->u, type)
                       : mfl_load(a->out, own, type);
        in.dy = mfl_load(a->dout, own, type);
        if (t + 1 < a->positions && (lstm || gru))
                in.carry = a->carry[at->whole * a->hidden + at->u];
        return in;
}

/* Element k of the operand that the next position multiplies. */
MFL_DEVICE void recurrent_keep(struct mfl_recurrent_shape s, unsigned char *row, int k, float v)
{
        if (s.precision == MFL_PRECISION_TF32)
                ((uint32_t *)row)[k] = mfl_to_tf32(v);
        else
                mfl_store(row, k, v, mfl_cuda_type_of(s.precision));
}

/* Whether the output at t is the last cell. */
MFL_DEVICE bool recurrent_gives_cell(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s, int t)
{
        return s.kind == MFL_CELL_LSTM && a->last_cell && t + 1 == a->positions;
}

/* v: for each panel, h(t-1) W_hh'. state: this item's row of the operand that the next position reads. */
MFL_DEVICE void recurrent_forward(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_item *at, int t, const struct recurrent_inputs *in, const float v[4],
        unsigned char *state)
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        const int64_t n = a->hidden, place = at->whole * a->positions + t, own = place * n + at->u;
        const int64_t gate = place * mfl_cell_gates(s.kind) * n + at->u;
        if (s.kind == MFL_CELL_TANH) {
                float sum = in->gate[0] + (v[0] + in->bias[0]),
                      y = a->relu ? mfl_unary_relu(sum) : tanhf(sum);
                mfl_store(a->out, own, y, type);
                recurrent_keep(s, state, at->u, y);
                return;
        }
        if (recurrent_gives_cell(a, s, t)) {
                mfl_store(a->out, own, in->before, type);
                return;
        }
        float first = mfl_unary_sigmoid(in->gate[0] + (v[0] + in->bias[0]));
        float second = mfl_unary_sigmoid(in->gate[1] + (v[1] + in->bias[1]));
        float third, h;
        if (s.kind == MFL_CELL_LSTM) {
                third = tanhf(in->gate[2] + (v[2] + in->bias[2]));
                float o = mfl_unary_sigmoid(in->gate[3] + (v[3] + in->bias[3]));
                float c = second * in->before + first * third;
                h = o * tanhf(c);
                a->cell[own] = c;
                mfl_store(a->gates, gate + 3 * n, o, type);
        } else {
                float hidden = v[2] + in->bias[2];
                third = tanhf(in->gate[2] + first * hidden);
                h = (1.0f - second) * third + second * in->before;
                mfl_store(a->hidden_gates, gate + 2 * n, hidden, type);
        }
        mfl_store(a->gates, gate, first, type);
        mfl_store(a->gates, gate + n, second, type);
        mfl_store(a->gates, gate + 2 * n, third, type);
        mfl_store(a->out, own, h, type);
        recurrent_keep(s, state, at->u, h);
}

/* v[0]: dgates(t+1) W_hh. */
MFL_DEVICE void recurrent_backward(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_item *at, int t, const struct recurrent_inputs *in, const float v[4],
        unsigned char *state)
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        const int gates = mfl_cell_gates(s.kind);
        const int64_t n = a->hidden, place = at->whole * a->positions + t;
        if (s.kind == MFL_CELL_TANH) {
                float dh = v[0] + in->dy;
                dh = a->relu ? mfl_unary_relu_grad(in->own, dh) : mfl_unary_tanh_grad(in->own, dh);
                mfl_store(a->gates, place * n + at->u, dh, type);
                recurrent_keep(s, state, at->u, dh);
                return;
        }
        float d[4], carry, last; /* last: the gradient of the product with W_hh's last rows */
        if (recurrent_gives_cell(a, s, t)) {
                d[0] = d[1] = d[2] = d[3] = last = 0.0f;
                carry = in->dy;
        } else if (s.kind == MFL_CELL_LSTM) {
                float i = in->gate[0], f = in->gate[1], g = in->gate[2], o = in->gate[3];
                float dh = v[0] + in->dy, c = tanhf(in->own), dc = in->carry + mfl_unary_tanh_grad(c, dh * o);
                d[0] = mfl_unary_sigmoid_grad(i, dc * g);
                d[1] = mfl_unary_sigmoid_grad(f, dc * in->before);
                d[2] = mfl_unary_tanh_grad(g, dc * i);
                last = d[3] = mfl_unary_sigmoid_grad(o, dh * c);
                carry = dc * f;
        } else {
                float r = in->gate[0], z = in->gate[1], c = in->gate[2];
                float dh = (in->carry + v[0]) + in->dy, dn = mfl_unary_tanh_grad(c, dh * (1.0f - z));
                d[0] = mfl_unary_sigmoid_grad(r, dn * in->own);
                d[1] = mfl_unary_sigmoid_grad(z, dh * (in->before - c));
                d[2] = dn;
                last = dn * r;
                carry = dh * z;
        }
        a->carry[at->whole * n + at->u] = carry;
        MFL_UNROLL
        for (int p = 0; p < gates; p++) {
                float hidden = p + 1 < gates ? d[p] : last;
                mfl_store(a->gates, (place * gates + p) * n + at->u, d[p], type);
                if (s.kind == MFL_CELL_GRU)
                        mfl_store(a->hidden_gates, (place * gates + p) * n + at->u, hidden, type);
                recurrent_keep(s, state, p * a->hidden + at->u, hidden);
        }
}

MFL_DEVICE void recurrent_finish(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_item *at, int t, const struct recurrent_inputs *in, const float v[4],
        unsigned char *state)
{
        if (s.backward)
                recurrent_backward(a, s, at, t, in, v, state);
        else
                recurrent_forward(a, s, at, t, in, v, state);
}

MFL_DEVICE int recurrent_rows_of(const struct mfl_recurrent_args *a, int block)
{
        int left = a->batch - block * MFL_RECURRENT_ROWS;
        return left < MFL_RECURRENT_ROWS ? left : MFL_RECURRENT_ROWS;
}

/* ---- one position: a warp for each slice ---- */

MFL_DEVICE void recurrent_step(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s, float *stage)
{
        const int panels = mfl_recurrent_panels(s.kind, s.backward), sums_each = panels * MFL_RECURRENT_ITEMS;
        int thread = (int)threadIdx.x, warp = thread / 32, t = a->position, tile = (int)blockIdx.x;
        int group = (int)blockIdx.z, block = (int)blockIdx.y;
        bool rests = mfl_cuda_rows(&a->steps, (uint32_t)group) == 0;
        if (a->rests_early && rests)
                return;
        bool multiplies = s.backward ? t + 1 < a->positions : t > 0;
        unsigned char *state =
                a->state + group * a->state_group + (int64_t)block * MFL_RECURRENT_ROWS * a->pitch;
        struct recurrent_item item = recurrent_item_of(a, group, block, tile, thread);
        item.exists = item.exists && thread < MFL_RECURRENT_ITEMS;
        struct recurrent_inputs in = recurrent_inputs_of(a, s, &item, t);
        if (multiplies && warp < a->slices) {
                struct recurrent_operands at = {state + (t + 1) % 2 * a->state_half,
                        a->packed + group * a->packed_group +
                                (int64_t)tile * panels * a->chunks * MFL_RECURRENT_LOAD,
                        recurrent_rows_of(a, block), thread % 32};
                struct recurrent_sums sums;
                recurrent_slice(a, s, &at, warp, &sums);
                recurrent_stage(s, at.lane, &sums, stage + warp * sums_each);
        }
        MFL_SYNC();
        if (!item.exists || rests)
                return;
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        MFL_UNROLL
        for (int p = 0; p < panels; p++) {
                const float *sum = stage + p * MFL_RECURRENT_ITEMS + thread;
                if (multiplies)
                        v[p] = sum[0];
                for (int slice = 1; multiplies && slice < a->slices; slice++)
                        v[p] += sum[slice * sums_each];
        }
        recurrent_finish(
                a, s, &item, t, &in, v, state + t % 2 * a->state_half + (int64_t)item.row * a->pitch);
}

/* ---- all positions: a warp for each tile ---- */

/* Weights from memory, and a state of zeros. */
MFL_DEVICE void recurrent_fill(const struct mfl_recurrent_args *a, int group, unsigned char *weights,
        int weight_bytes, unsigned char *state, int state_bytes)
{
        const unsigned char *from = a->packed + group * a->packed_group;
        for (int i = (int)threadIdx.x * 16; i < weight_bytes; i += (int)blockDim.x * 16)
                mfl_cp_async_16(weights + i, from + i, 16);
        mfl_cp_async_commit();
        for (int i = (int)threadIdx.x * 4; i < state_bytes; i += (int)blockDim.x * 4)
                *(uint32_t *)(state + i) = 0;
        mfl_cp_async_wait(0);
        MFL_SYNC();
}

/* All slices, added in order. */
MFL_DEVICE void recurrent_all_slices(const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s,
        const struct recurrent_operands *at, struct recurrent_sums *total)
{
        recurrent_slice(a, s, at, 0, total);
        for (int slice = 1; slice < a->slices; slice++) {
                struct recurrent_sums sums;
                recurrent_slice(a, s, at, slice, &sums);
                MFL_UNROLL
                for (int p = 0; p < MFL_RECURRENT_PANELS; p++)
                        MFL_UNROLL
                for (int e = 0; e < 4; e++)
                        total->of[p][e] += sums.of[p][e];
        }
}

MFL_DEVICE void recurrent_whole(
        const struct mfl_recurrent_args *a, struct mfl_recurrent_shape s, unsigned char *shared)
{
        const int panels = mfl_recurrent_panels(s.kind, s.backward), sums_each = panels * MFL_RECURRENT_ITEMS;
        int warp = (int)threadIdx.x / 32, group = (int)blockIdx.z, block = (int)blockIdx.x;
        int tile_bytes = panels * a->chunks * MFL_RECURRENT_LOAD, weight_bytes = a->tiles * tile_bytes;
        int state_bytes = MFL_RECURRENT_ROWS * a->pitch;
        unsigned char *state = shared + weight_bytes;
        float *stage = (float *)(state + state_bytes) + warp * sums_each;
        struct recurrent_operands at = {
                state, shared + warp * tile_bytes, recurrent_rows_of(a, block), (int)threadIdx.x % 32};
        if (mfl_cuda_rows(&a->steps, (uint32_t)group) == 0)
                return;
        recurrent_fill(a, group, shared, weight_bytes, state, state_bytes);
        for (int done = 0; done < a->positions; done++) {
                int t = s.backward ? a->positions - 1 - done : done;
                struct recurrent_inputs in[4];
                struct recurrent_sums sums = {{{0.0f}}};
                MFL_UNROLL
                for (int e = 0; e < 4; e++) {
                        struct recurrent_item item =
                                recurrent_item_of(a, group, block, warp, at.lane + 32 * e);
                        in[e] = recurrent_inputs_of(a, s, &item, t);
                }
                if (done > 0)
                        recurrent_all_slices(a, s, &at, &sums);
                MFL_SYNC(); /* all warps have read the state */
                recurrent_stage(s, at.lane, &sums, stage);
                MFL_SYNC_WARP();
                MFL_UNROLL
                for (int e = 0; e < 4; e++) {
                        struct recurrent_item item =
                                recurrent_item_of(a, group, block, warp, at.lane + 32 * e);
                        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                        MFL_UNROLL
                        for (int p = 0; p < panels; p++)
                                v[p] = stage[p * MFL_RECURRENT_ITEMS + at.lane + 32 * e];
                        if (item.exists)
                                recurrent_finish(a, s, &item, t, &in[e], v, state + item.row * a->pitch);
                }
                MFL_SYNC();
        }
}

#endif
