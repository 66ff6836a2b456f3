/* SPDX-License-Identifier: Apache-2.0 */
/* The tiled product of the fp32 family (conv_simt.h): one block computes a bm x bn tile of one group's
 * output.
 *
 * Both operands come to shared memory in steps of bk of the reduction by asynchronous copies, `stages` deep.
 * Padding, and what lies beyond an edge, is zero there, so the inner loop needs no conditions. An operand
 * whose memory is contiguous along the reduction is kept as [row][bk + 4], else as [bk][rows + 4]; from both,
 * a thread reads 16 bytes at once, and 8 neighbouring lanes hit 8 different groups of 4 banks.
 *
 * The block is cut into `slices` of (bm / tm) * (bn / tn) threads. In each round, slice i takes segment round
 * * slices + i; then the segments' sums are added in order. Everything below is inlined into a kernel with a
 * constant tile, so that loops unroll and arrays become registers.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_SIMT_TILE_H
#define MFL_KERNELS_CUDA_CONV_CONV_SIMT_TILE_H

#include "kernels/cuda/conv/conv_simt_load.h"

/* The i-th of a thread's `per` rows (or columns): fours of neighbours where memory is contiguous along them,
 * else one from each stripe, so that lanes read neighbouring rows. */
MFL_DEVICE int simt_place(int i, int t, const int lanes, const bool contiguous)
{
        return contiguous ? (i / 4 * lanes + t) * 4 + i % 4 : t + i * lanes;
}

/* acc[tm][tn] += a * b over bk steps, in order. */
MFL_DEVICE void simt_multiply(
        const struct simt_tile t, const float *a, const float *b, int ty, int tx, float *acc)
{
        const bool a_rows = t.pass == MFL_CUDA_BACKWARD_WEIGHTS, b_rows = t.pass != MFL_CUDA_FORWARD;
        const int lanes_y = t.bm / t.tm, lanes_x = t.bn / t.tn;
        MFL_UNROLL
        for (int k4 = 0; k4 < t.bk; k4 += 4) {
                float fa[8 * 4] __attribute__((aligned(16))), fb[8 * 4] __attribute__((aligned(16)));
                if (!a_rows) {
                        MFL_UNROLL
                        for (int i = 0; i < t.tm; i++)
                                mfl_copy_16(fa + i * 4, a + (ty + i * lanes_y) * (t.bk + 4) + k4);
                }
                if (!b_rows) {
                        MFL_UNROLL
                        for (int j = 0; j < t.tn; j++)
                                mfl_copy_16(fb + j * 4, b + (tx + j * lanes_x) * (t.bk + 4) + k4);
                }
                MFL_UNROLL
                for (int e = 0; e < 4; e++) {
                        float va[8] __attribute__((aligned(16))), vb[8] __attribute__((aligned(16)));
                        MFL_UNROLL
                        for (int i = 0; i < t.tm; i += 4) {
                                if (a_rows)
                                        mfl_copy_16(va + i,
                                                a + (k4 + e) * (t.bm + 4) + (i / 4 * lanes_y + ty) * 4);
                        }
                        MFL_UNROLL
                        for (int j = 0; j < t.tn; j += 4) {
                                if (b_rows)
                                        mfl_copy_16(vb + j,
                                                b + (k4 + e) * (t.bn + 4) + (j / 4 * lanes_x + tx) * 4);
                        }
                        MFL_UNROLL
                        for (int i = 0; i < t.tm; i++) {
                                MFL_UNROLL
                                for (int j = 0; j < t.tn; j++)
                                        acc[i * t.tn + j] = fmaf(a_rows ? va[i] : fa[i * 4 + e],
                                                b_rows ? vb[j] : fb[j * 4 + e], acc[i * t.tn + j]);
                        }
                }
        }
}

/* What one thread carries through the reduction. */
struct simt_thread {
        int slice, tid, ty, tx;
        bool wants_db;
        float db, db_total;
        float acc[64], total[64];
};

MFL_DEVICE void simt_wait(const int stages)
{
        if (stages == 2)
                mfl_cp_async_wait(0);
        else if (stages == 3)
                mfl_cp_async_wait(1);
        else
                mfl_cp_async_wait(2);
}

MFL_DEVICE void simt_end_segment(const struct simt_tile t, struct simt_thread *th)
{
        MFL_UNROLL
        for (int i = 0; i < t.tm * t.tn; i++) {
                th->total[i] += th->acc[i];
                th->acc[i] = 0.0f;
        }
        th->db_total += th->db;
        th->db = 0.0f;
}

/* Thread i sums row i of dy: the blocks of the first columns also compute the bias' gradient. */
MFL_DEVICE void simt_add_db(const struct simt_tile t, struct simt_thread *th, const float *dy)
{
        for (int k = 0; k < t.bk; k++)
                th->db += dy[k * (t.bm + 4) + th->tid];
}

/* A step of the reduction that has to be copied: from `red0` to the next step or the segment's end. */
struct simt_step {
        int64_t begin, step, steps; /* the segment's first element, the step's number within it, and how
                                       many steps it has */
};
MFL_DEVICE int64_t simt_step_first(const struct simt_tile t, const struct simt_step *at)
{
        return at->begin + at->step * t.bk;
}
MFL_DEVICE int64_t simt_step_end(const struct mfl_simt_args *a, const struct simt_step *at)
{
        return at->begin + a->segment < a->red ? at->begin + a->segment : a->red;
}
MFL_DEVICE void simt_step_next(const struct mfl_simt_args *a, const struct simt_tile t, struct simt_step *at)
{
        if (++at->step == at->steps) {
                at->step = 0;
                at->begin += t.slices * a->segment;
        }
}

/* The segments of `rounds` rounds, as one stream of steps: copies run ahead across the segments' ends. Step
 * i's copies are started stages - 1 steps earlier. For backward weights, the places of its pixels are
 * computed one step before that, in one of two tables. */
MFL_DEVICE void simt_stream(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_shared *shared, struct simt_thread *th,
        int64_t round, int64_t rounds)
{
        const bool weights = t.pass == MFL_CUDA_BACKWARD_WEIGHTS;
        const int stage_floats = simt_a_floats(t) + simt_b_floats(t);
        float *stages = shared->load + th->slice * t.stages * stage_floats;
        struct simt_row *rows = shared->rows + (weights ? th->slice * 2 * t.bk : 0);
        struct simt_step ahead = {
                (round * t.slices + th->slice) * a->segment, 0, (a->segment + t.bk - 1) / t.bk};
        int64_t n = rounds * ahead.steps, steps = ahead.steps, step = 0;
        int to = 0, from = 0, table = 0;

        if (weights)
                simt_find_rows(a, t, rows, simt_step_first(t, &ahead), simt_step_end(a, &ahead), th->tid);
        for (int64_t i = 1 - t.stages; i < n; i++) {
                if (i >= 0)
                        simt_wait(t.stages);
                if (i >= 0 || weights)
                        MFL_SYNC();
                if (i + t.stages - 1 < n) {
                        simt_load(a, t, block, rows + table * t.bk, stages + to * stage_floats,
                                simt_step_first(t, &ahead), simt_step_end(a, &ahead), th->tid);
                        to = to + 1 == t.stages ? 0 : to + 1;
                        simt_step_next(a, t, &ahead);
                        if (weights) {
                                table = 1 - table;
                                simt_find_rows(a, t, rows + table * t.bk, simt_step_first(t, &ahead),
                                        simt_step_end(a, &ahead), th->tid);
                        }
                }
                mfl_cp_async_commit();
                if (i < 0)
                        continue;
                const float *tile = stages + from * stage_floats;
                from = from + 1 == t.stages ? 0 : from + 1;
                simt_multiply(t, tile, tile + simt_a_floats(t), th->ty, th->tx, th->acc);
                if (weights && th->wants_db)
                        simt_add_db(t, th, tile);
                if (++step == steps) {
                        step = 0;
                        simt_end_segment(t, th);
                }
        }
}

/* A finished value, or a segment's sum. */
MFL_DEVICE void simt_put(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, int64_t segment, int e, float v)
{
        int64_t m = block->m0 + e / t.bn;
        int n = block->n0 + e % t.bn;
        if (m >= a->m || n >= a->n)
                return;
        int64_t i = m * a->n + n;
        if (block->split)
                a->work[(block->group * a->n_segments + segment) * (a->m * a->n + (a->db ? a->m : 0)) + i] =
                        v;
        else
                a->out[block->group * a->out_group + i] = mfl_simt_finish(a, t.pass, block->group, i, n, v);
}

MFL_DEVICE void simt_put_db(
        const struct mfl_simt_args *a, const struct simt_block *block, int64_t segment, int64_t m, float v)
{
        if (m >= a->m)
                return;
        if (block->split)
                a->work[(block->group * a->n_segments + segment) * (a->m * a->n + a->m) + a->m * a->n + m] =
                        v;
        else
                a->db[block->group * a->param_group + m] = v;
}

/* Writes a thread's sums to shared memory, as [bm][bn + 4]. */
MFL_DEVICE void simt_stage(const struct simt_tile t, float *stage, const struct simt_thread *th)
{
        const bool a_rows = t.pass == MFL_CUDA_BACKWARD_WEIGHTS, b_rows = t.pass != MFL_CUDA_FORWARD;
        MFL_UNROLL
        for (int i = 0; i < t.tm; i++) {
                MFL_UNROLL
                for (int j = 0; j < t.tn; j++)
                        stage[simt_place(i, th->ty, t.bm / t.tm, a_rows) * (t.bn + 4) +
                                simt_place(j, th->tx, t.bn / t.tn, b_rows)] = th->total[i * t.tn + j];
        }
}

/* The end of a round with several slices: adds their segments' sums in order, or stores them for the second
 * kernel. Threads keep their elements from round to round. */
MFL_DEVICE void simt_end_round(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_shared *shared, struct simt_thread *th,
        int64_t round, bool first, bool last)
{
        const int tile_floats = t.bm * (t.bn + 4), threads = t.slices * simt_threads(t);
        int64_t segment = round * t.slices;
        int slices = a->n_segments - segment < t.slices ? (int)(a->n_segments - segment) : t.slices;
        MFL_SYNC(); /* the sums take the place of the operands */
        simt_stage(t, shared->load + th->slice * tile_floats, th);
        if (th->wants_db)
                shared->db[th->slice * t.bm + th->tid] = th->db_total;
        MFL_SYNC();
        for (int e = (int)threadIdx.x; e < t.bm * t.bn; e += threads) {
                float sum = first ? 0.0f : shared->sum[e];
                for (int s = 0; s < slices; s++) {
                        float v = shared->load[s * tile_floats + e / t.bn * (t.bn + 4) + e % t.bn];
                        if (block->split)
                                simt_put(a, t, block, segment + s, e, v);
                        sum += v;
                }
                shared->sum[e] = sum;
                if (last && !block->split)
                        simt_put(a, t, block, 0, e, sum);
        }
        MFL_SYNC();
        MFL_UNROLL
        for (int i = 0; i < t.tm * t.tn; i++)
                th->total[i] = 0.0f;
        th->db_total = 0.0f;
}

/* Like simt_end_round, for the bias' gradient; returns the sum so far. */
MFL_DEVICE float simt_end_round_db(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_shared *shared, int64_t round, float sum)
{
        for (int s = 0; s < t.slices && round * t.slices + s < a->n_segments; s++) {
                float v = shared->db[s * t.bm + (int)threadIdx.x];
                if (block->split)
                        simt_put_db(a, block, round * t.slices + s, block->m0 + threadIdx.x, v);
                sum += v;
        }
        return sum;
}

MFL_DEVICE void simt_start(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_shared *shared, struct simt_thread *th)
{
        const int threads = simt_threads(t);
        th->slice = t.slices == 1 ? 0 : (int)threadIdx.x / threads;
        th->tid = t.slices == 1 ? (int)threadIdx.x : (int)threadIdx.x % threads;
        th->tx = th->tid % (t.bn / t.tn);
        th->ty = th->tid / (t.bn / t.tn);
        th->wants_db = t.pass == MFL_CUDA_BACKWARD_WEIGHTS && a->db && block->n0 == 0 && th->tid < t.bm;
        th->db = th->db_total = 0.0f;
        MFL_UNROLL
        for (int i = 0; i < t.tm * t.tn; i++)
                th->acc[i] = th->total[i] = 0.0f;
        if (t.pass == MFL_CUDA_BACKWARD_WEIGHTS)
                return;
        int64_t image = block->m0 / a->grid_pixels;
        for (int i = (int)threadIdx.x; i < t.bm; i += t.slices * threads) {
                struct simt_row row = simt_row_of(
                        a, t, image * (a->sh * a->sw * a->sc), (int)(block->m0 - image * a->grid_pixels) + i);
                if (block->m0 + i >= a->m)
                        row.y = SIMT_OUTSIDE;
                shared->rows[i] = row;
        }
        MFL_SYNC();
}

MFL_DEVICE void simt_product(
        const struct mfl_simt_args *a, const struct simt_tile t, const struct simt_shared *shared)
{
        struct simt_block block = simt_block_of(a, t);
        if (mfl_simt_is_left_out(&a->steps, block.group))
                return;
        struct simt_thread th;
        simt_start(a, t, &block, shared, &th);
        if (t.slices == 1) {
                simt_stream(a, t, &block, shared, &th, block.round, block.rounds);
                MFL_SYNC();
                simt_stage(t, shared->load, &th);
                MFL_SYNC();
                for (int e = (int)threadIdx.x; e < t.bm * t.bn; e += simt_threads(t))
                        simt_put(
                                a, t, &block, block.round, e, shared->load[e / t.bn * (t.bn + 4) + e % t.bn]);
                if (th.wants_db)
                        simt_put_db(a, &block, block.round, block.m0 + th.tid, th.db_total);
                return;
        }
        float db = 0.0f;
        for (int64_t i = 0; i < block.rounds; i++) {
                simt_stream(a, t, &block, shared, &th, block.round + i, 1);
                simt_end_round(a, t, &block, shared, &th, block.round + i, i == 0, i + 1 == block.rounds);
                if (t.pass == MFL_CUDA_BACKWARD_WEIGHTS && th.wants_db && th.slice == 0)
                        db = simt_end_round_db(a, t, &block, shared, block.round + i, db);
        }
        if (th.wants_db && th.slice == 0 && !block.split)
                simt_put_db(a, &block, 0, block.m0 + th.tid, db);
}

#define SIMT_KERNEL(name, pass, bm, bn, bk, tm, tn, slices, stages, blocks)                                  \
        MFL_KERNEL_BOUNDS(name, struct mfl_simt_args, (slices) * ((bm) / (tm)) * ((bn) / (tn)), blocks)      \
        {                                                                                                    \
                MFL_SHARED(float, load, SIMT_FLOATS(pass, bm, bn, bk, slices, stages));                      \
                MFL_SHARED(float, sum, (slices) > 1 ? (bm) * (bn) : 4);                                      \
                MFL_SHARED(float, db,                                                                        \
                        (slices) > 1 && (pass) == MFL_CUDA_BACKWARD_WEIGHTS ? (slices) * (bm) : 4);          \
                MFL_SHARED(struct simt_row, rows,                                                            \
                        (pass) == MFL_CUDA_BACKWARD_WEIGHTS ? 2 * (slices) * (bk) : (bm));                   \
                const struct simt_tile t = {pass, bm, bn, bk, tm, tn, slices, stages};                       \
                const struct simt_shared shared = {load, sum, db, rows};                                     \
                simt_product(&a, t, &shared);                                                                \
        }                                                                                                    \
        static cudaError_t name##_run(const struct mfl_simt_args *a, int64_t blocks_, cudaStream_t stream)   \
        {                                                                                                    \
                return MFL_LAUNCH(                                                                           \
                        name, blocks_, 1, 1, (slices) * ((bm) / (tm)) * ((bn) / (tn)), 0, stream, a);        \
        }

#endif
