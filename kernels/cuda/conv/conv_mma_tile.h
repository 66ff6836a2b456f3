/* SPDX-License-Identifier: Apache-2.0 */
/* One block of a tensor-core kernel (conv_mma.h): the pipeline over k-tiles, fragments and mma, and the way
 * of the sums to the output. A kernel is mma_block with a constant shape. */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_MMA_TILE_H
#define MFL_KERNELS_CUDA_CONV_CONV_MMA_TILE_H

#include "kernels/cuda/conv/conv_mma_load.h"

enum {
        MMA_WARP_M_MAX = 4, /* 16-row and 8-column fragments of a warp's tile */
        MMA_WARP_N_MAX = 4,
};

/* Where this block and thread work, and the parts of shared memory. */
struct mma_place {
        int m0, n0, group, part;
        int warp_m, warp_n, lane;
        struct mma_position *table;
        float *db_parts;
        unsigned char *stages;
        const unsigned char *a, *b; /* of the group */
        bool wants_db;
};

/* Keeps an address in registers; otherwise it would be computed again for every copy. */
#ifdef __CUDACC__
#define MMA_KEEP(p) asm("" : "+l"(p))
#else
#define MMA_KEEP(p) (void)(p)
#endif

struct mma_sums {
        float of[MMA_WARP_M_MAX][MMA_WARP_N_MAX][4];
};

/* ---- fragments ---- */

/* 16 rows from `m` on, one k-step from `k` on. */
MFL_DEVICE void mma_load_a(
        struct mfl_mma_shape s, const unsigned char *tile, int m, int k, int lane, uint32_t f[4])
{
        mma_fragment_a(mma_bytes(s), mma_a_deep(s), mma_a_pitch(s), tile, m, k, lane, f);
}

/* 16 columns from `n` on: two fragments. */
MFL_DEVICE void mma_load_b(
        struct mfl_mma_shape s, const unsigned char *tile, int n, int k, int lane, uint32_t f[4])
{
        mma_fragment_b(mma_bytes(s), mma_b_deep(s), mma_b_pitch(s), tile, n, k, lane, f);
}

/* One stage of shared memory: MFL_MMA_BK of the reduction. */
MFL_DEVICE void mma_compute(
        struct mfl_mma_shape s, const struct mma_place *at, const unsigned char *stage, struct mma_sums *sums)
{
        const int k_step = mma_bytes(s) == 4 ? 8 : 16;
        const unsigned char *tile_b = stage + mma_a_bytes(s);
        MFL_UNROLL
        for (int k = 0; k < MFL_MMA_BK; k += k_step) {
                uint32_t a[MMA_WARP_M_MAX][4], b[MMA_WARP_N_MAX / 2][4];
                MFL_UNROLL
                for (int i = 0; i < s.wm / 16; i++)
                        mma_load_a(s, stage, at->warp_m + i * 16, k, at->lane, a[i]);
                MFL_UNROLL
                for (int j = 0; j < s.wn / 16; j++)
                        mma_load_b(s, tile_b, at->warp_n + j * 16, k, at->lane, b[j]);
                MFL_UNROLL
                for (int i = 0; i < s.wm / 16; i++)
                        MFL_UNROLL
                for (int j = 0; j < s.wn / 8; j++)
                        mma_product(s.precision, sums->of[i][j], a[i], b[j / 2] + j % 2 * 2);
        }
}

/* ---- db: blocks of the first columns sum dy from shared memory ---- */

enum {
        MMA_DB_ITEMS_MAX = 4, /* of a thread: a block has at least as many threads as rows */
};
/* An item is a row and a quarter of the k-tile; rows are adjacent. */
struct mma_db {
        float part[MMA_DB_ITEMS_MAX], total;
};

MFL_DEVICE void mma_db_add(struct mfl_mma_shape s, const unsigned char *stage, struct mma_db *db)
{
        const int pitch = mma_a_pitch(s), threads = mma_threads(s);
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        MFL_UNROLL
        for (int item = 0; item * threads < 4 * s.bm; item++) {
                int i = item * threads + (int)threadIdx.x, quarter = i / s.bm;
                if (i >= 4 * s.bm)
                        continue;
                MFL_UNROLL
                for (int k = 0; k < MFL_MMA_BK; k += 4)
                        db->part[item] += mfl_load(stage, (k + quarter) * pitch + i % s.bm, type);
        }
}

/* A segment ends: thread m has the total of row m. It has two barriers, so call it uniformly. */
MFL_DEVICE void mma_db_flush(
        struct mfl_mma_shape s, const struct mma_place *at, bool first, struct mma_db *db)
{
        const int threads = mma_threads(s);
        float *parts = at->db_parts;
        MFL_UNROLL
        for (int item = 0; item * threads < 4 * s.bm; item++) {
                int i = item * threads + (int)threadIdx.x;
                if (i < 4 * s.bm)
                        parts[i] = db->part[item];
                db->part[item] = 0.0f;
        }
        MFL_SYNC();
        int m = (int)threadIdx.x;
        if (m < s.bm) {
                float sum = (parts[m] + parts[s.bm + m]) + (parts[2 * s.bm + m] + parts[3 * s.bm + m]);
                db->total = first ? sum : db->total + sum;
        }
        MFL_SYNC();
}

MFL_DEVICE void mma_db_store(const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at,
        const struct mma_db *db)
{
        int row = (int)threadIdx.x, m = at->m0 + row;
        if (row >= s.bm || m >= a->m)
                return;
        if (a->workspace)
                a->workspace_db[((int64_t)at->group * a->segments + at->part) * a->m + m] = db->total;
        else
                a->db[(int64_t)at->group * (int64_t)a->p_stride + m] = db->total;
}

/* ---- epilogue ---- */

/* Turns the sum of output (m, n) into the result. */
MFL_DEVICE void mma_finish(const struct mfl_mma_args *a, enum mfl_cuda_pass pass, enum mfl_cuda_type type,
        int group, int64_t element, int n, float v)
{
        int64_t at = (int64_t)group * (int64_t)a->out_stride + element;
        if (pass == MFL_CUDA_BACKWARD_WEIGHTS) {
                ((float *)a->out)[at] = v;
                return;
        }
        if (pass == MFL_CUDA_FORWARD) {
                if (a->bias)
                        v += a->bias[(int64_t)group * (int64_t)a->p_stride + n];
                v = mfl_act(a->act, v);
        } else {
                if (a->add)
                        v = mfl_load(a->out, at, type) + v;
                if (a->act != MFL_CUDA_ACT_NONE)
                        v = mfl_act_grad(a->act, mfl_load(a->act_y, at, type), v);
        }
        mfl_store(a->out, at, v, type);
}

struct mma_four {
        float v[4];
};

/* Aligned to their size. */
MFL_DEVICE struct mma_four mma_load_four(const void *p, int64_t at, enum mfl_cuda_type type)
{
        struct mma_four r;
        if (type == MFL_CUDA_F32) {
                float4 f = *(const float4 *)((const float *)p + at);
                r.v[0] = f.x, r.v[1] = f.y, r.v[2] = f.z, r.v[3] = f.w;
                return r;
        }
        ushort4 h = *(const ushort4 *)((const uint16_t *)p + at);
        uint16_t e[4] = {h.x, h.y, h.z, h.w};
        MFL_UNROLL
        for (int i = 0; i < 4; i++)
                r.v[i] = type == MFL_CUDA_BF16 ? mfl_bf16_to_float(e[i]) : mfl_f16_to_float(e[i]);
        return r;
}

MFL_DEVICE void mma_store_four(void *p, int64_t at, struct mma_four r, enum mfl_cuda_type type)
{
        if (type == MFL_CUDA_F32) {
                float4 f = {r.v[0], r.v[1], r.v[2], r.v[3]};
                *(float4 *)((float *)p + at) = f;
                return;
        }
        uint16_t e[4];
        MFL_UNROLL
        for (int i = 0; i < 4; i++)
                e[i] = type == MFL_CUDA_BF16 ? mfl_float_to_bf16(r.v[i]) : mfl_float_to_f16(r.v[i]);
        ushort4 h = {e[0], e[1], e[2], e[3]};
        *(ushort4 *)((uint16_t *)p + at) = h;
}

/* mma_finish for four adjacent outputs, with no activation or ReLU. */
MFL_DEVICE void mma_finish_four(const struct mfl_mma_args *a, enum mfl_cuda_pass pass,
        enum mfl_cuda_type type, int group, int64_t element, int n, struct mma_four r)
{
        int64_t at = (int64_t)group * (int64_t)a->out_stride + element;
        bool relu = a->act == MFL_CUDA_ACT_RELU;
        if (pass == MFL_CUDA_FORWARD) {
                const float *bias = a->bias ? a->bias + (int64_t)group * (int64_t)a->p_stride + n : NULL;
                MFL_UNROLL
                for (int i = 0; i < 4; i++) {
                        float v = bias ? r.v[i] + bias[i] : r.v[i];
                        r.v[i] = relu ? mfl_unary_relu(v) : v;
                }
        } else if (pass == MFL_CUDA_BACKWARD_DATA) {
                struct mma_four old = {{0}}, y = {{0}};
                if (a->add)
                        old = mma_load_four(a->out, at, type);
                if (relu)
                        y = mma_load_four(a->act_y, at, type);
                MFL_UNROLL
                for (int i = 0; i < 4; i++) {
                        float v = a->add ? old.v[i] + r.v[i] : r.v[i];
                        r.v[i] = relu ? mfl_unary_relu_grad(y.v[i], v) : v;
                }
        }
        mma_store_four(a->out, at, r, pass == MFL_CUDA_BACKWARD_WEIGHTS ? MFL_CUDA_F32 : type);
}

/* Writes fragments to shared memory, as [bm][bn + 8] floats. */
MFL_DEVICE void mma_stage_out(struct mfl_mma_shape s, const struct mma_place *at, const struct mma_sums *sums)
{
        float *out = (float *)at->stages;
        MFL_UNROLL
        for (int i = 0; i < s.wm / 16; i++) {
                MFL_UNROLL
                for (int j = 0; j < s.wn / 8; j++) {
                        const float *v = sums->of[i][j];
                        int m = at->warp_m + i * 16 + at->lane / 4, n = at->warp_n + j * 8 + at->lane % 4 * 2;
                        float2 low = {v[0], v[1]}, high = {v[2], v[3]};
                        *(float2 *)(out + m * mma_out_pitch(s) + n) = low;
                        *(float2 *)(out + (m + 8) * mma_out_pitch(s) + n) = high;
                }
        }
}

/* From shared memory to `out` or the workspace; each thread writes `at_once` (4 or 1) outputs that are
 * adjacent along n. */
MFL_DEVICE void mma_store_by(
        const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at, int at_once)
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        const int per_row = s.bn / at_once;
        const float *out = (const float *)at->stages;
        float *sums = a->workspace;
        if (sums)
                sums += ((int64_t)at->group * a->segments + at->part) * a->m * a->n;
        for (int i = (int)threadIdx.x; i < s.bm * per_row; i += mma_threads(s)) {
                int row = i / per_row, column = i % per_row * at_once, m = at->m0 + row, n = at->n0 + column;
                const float *v = out + row * mma_out_pitch(s) + column;
                int64_t element = (int64_t)m * a->n + n;
                if (m >= a->m || n >= a->n)
                        continue;
                if (at_once == 1 && sums)
                        sums[element] = *v;
                else if (at_once == 1)
                        mma_finish(a, s.pass, type, at->group, element, n, *v);
                else if (sums)
                        mma_store_four(sums, element, mma_load_four(v, 0, MFL_CUDA_F32), MFL_CUDA_F32);
                else
                        mma_finish_four(
                                a, s.pass, type, at->group, element, n, mma_load_four(v, 0, MFL_CUDA_F32));
        }
}

MFL_DEVICE void mma_store(const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at)
{
        if (a->wide)
                mma_store_by(a, s, at, 4);
        else
                mma_store_by(a, s, at, 1);
}

/* ---- the block ---- */

MFL_DEVICE struct mma_place mma_place_of(
        const struct mfl_mma_args *a, struct mfl_mma_shape s, unsigned char *shared)
{
        const int warps_n = s.bn / s.wn;
        int tiles_n = (a->n + s.bn - 1) / s.bn, tile = (int)blockIdx.x, warp = (int)threadIdx.x / 32;
        struct mma_place at;
        at.m0 = tile / tiles_n * s.bm;
        at.n0 = tile % tiles_n * s.bn;
        at.group = (int)blockIdx.z;
        at.part = (int)blockIdx.y;
        at.lane = (int)threadIdx.x % 32;
        at.warp_m = warp / warps_n * s.wm;
        at.warp_n = warp % warps_n * s.wn;
        at.table = (struct mma_position *)shared;
        at.db_parts = (float *)(shared + mma_table_rows(s) * 16);
        at.stages = shared + mma_table_rows(s) * 16 + mma_db_bytes(s);
        at.a = (const unsigned char *)a->a + (int64_t)at.group * (int64_t)a->a_stride * mma_bytes(s);
        at.b = (const unsigned char *)a->b + (int64_t)at.group * (int64_t)a->b_stride * mma_bytes(s);
        MMA_KEEP(at.a);
        MMA_KEEP(at.b);
        at.wants_db = s.pass == MFL_CUDA_BACKWARD_WEIGHTS && a->db && at.n0 == 0;
        return at;
}

/* Computes the positions of k-tile `tile` (backward weights), in the first warp. */
MFL_DEVICE void mma_table_add(const struct mfl_mma_args *a, const struct mma_place *at, int tile, int slot)
{
        int line = (int)threadIdx.x;
        if (line < MFL_MMA_BK)
                at->table[slot * MFL_MMA_BK + line] = mma_position_of(&a->gather, tile * MFL_MMA_BK + line);
}

MFL_DEVICE void mma_table_start(
        const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at, int tile)
{
        if (s.pass == MFL_CUDA_BACKWARD_WEIGHTS)
                for (int i = 0; i < MFL_MMA_STAGES; i++)
                        mma_table_add(a, at, tile + i, i);
        else
                for (int row = (int)threadIdx.x; row < s.bm; row += mma_threads(s))
                        at->table[row] = mma_position_of(&a->gather, at->m0 + row);
        MFL_SYNC();
}

/* Starts the copies of k-tile `tile` into a slot, if it is before `end`; always commits one group. */
MFL_DEVICE void mma_fetch(const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at,
        int tile, int end, int slot)
{
        if (tile < end) {
                unsigned char *stage = at->stages + slot * mma_stage_bytes(s);
                const struct mma_position *table =
                        at->table + (s.pass == MFL_CUDA_BACKWARD_WEIGHTS ? slot * MFL_MMA_BK : 0);
                struct mma_fill fill_a = {at->a, stage, table, at->m0, tile * MFL_MMA_BK};
                struct mma_fill fill_b = {at->b, stage + mma_a_bytes(s), table, at->n0, tile * MFL_MMA_BK};
                mma_fill(a, s, true, &fill_a);
                mma_fill(a, s, false, &fill_b);
        }
        mfl_cp_async_commit();
}

/* total = acc, or total + acc; acc = 0. */
MFL_DEVICE void mma_flush(struct mfl_mma_shape s, bool first, struct mma_sums *total, struct mma_sums *acc)
{
        MFL_UNROLL
        for (int i = 0; i < s.wm / 16; i++)
                MFL_UNROLL
        for (int j = 0; j < s.wn / 8; j++)
                MFL_UNROLL
        for (int e = 0; e < 4; e++) {
                float v = acc->of[i][j][e];
                total->of[i][j][e] = first ? v : total->of[i][j][e] + v;
                acc->of[i][j][e] = 0.0f;
        }
}

/* K-tiles [begin, end), in segments of `per_segment`. */
MFL_DEVICE void mma_run(const struct mfl_mma_args *a, struct mfl_mma_shape s, const struct mma_place *at,
        int begin, int end, int per_segment, struct mma_sums *total, struct mma_db *db)
{
        struct mma_sums acc = {{{{0.0f}}}};
        bool first = true;
        int left = per_segment, slot = 0; /* k-tile begin + i is in slot i % MFL_MMA_STAGES */
        mma_table_start(a, s, at, begin);
        MFL_UNROLL
        for (int i = 0; i < MFL_MMA_STAGES - 1; i++)
                mma_fetch(a, s, at, begin + i, end, i);
        for (int tile = begin; tile < end; tile++) {
                const unsigned char *stage = at->stages + slot * mma_stage_bytes(s);
                mfl_cp_async_wait(MFL_MMA_STAGES - 2);
                MFL_SYNC();
                mma_fetch(
                        a, s, at, tile + MFL_MMA_STAGES - 1, end, slot == 0 ? MFL_MMA_STAGES - 1 : slot - 1);
                if (s.pass == MFL_CUDA_BACKWARD_WEIGHTS)
                        mma_table_add(a, at, tile + MFL_MMA_STAGES, slot);
                slot = slot == MFL_MMA_STAGES - 1 ? 0 : slot + 1;
                mma_compute(s, at, stage, &acc);
                if (at->wants_db)
                        mma_db_add(s, stage, db);
                if (--left == 0 || tile + 1 == end) {
                        mma_flush(s, first, total, &acc);
                        if (at->wants_db)
                                mma_db_flush(s, at, first, db);
                        first = false;
                        left = per_segment;
                }
        }
}

MFL_DEVICE void mma_block(const struct mfl_mma_args *a, struct mfl_mma_shape s, unsigned char *shared)
{
        struct mma_place at = mma_place_of(a, s, shared);
        if (mfl_cuda_rows(&a->steps, (uint32_t)at.group) == 0)
                return;
        int tiles = (a->kk + MFL_MMA_BK - 1) / MFL_MMA_BK, per_segment = a->segment / MFL_MMA_BK;
        int begin = a->workspace ? at.part * per_segment : 0;
        int end = a->workspace && begin + per_segment < tiles ? begin + per_segment : tiles;
        struct mma_sums total;
        struct mma_db db = {{0.0f}, 0.0f};
        mma_run(a, s, &at, begin, end, per_segment, &total, &db);
        MFL_SYNC(); /* the last stage has been read: its place is reused */
        mma_stage_out(s, &at, &total);
        MFL_SYNC();
        mma_store(a, s, &at);
        if (at.wants_db)
                mma_db_store(a, s, &at, &db);
}

#endif
