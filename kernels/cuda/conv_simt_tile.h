/* SPDX-License-Identifier: Apache-2.0 */
/* The tiled product of the fp32 family (conv_simt.h): one block makes a bm x bn tile of one group's output.
 *
 * Both operands come to shared memory in steps of bk of the reduction by asynchronous copies, `stages` deep;
 * what lies in padding, or beyond an edge, is zero there, so the inner loop asks nothing. An operand whose
 * memory is contiguous along the reduction is kept as [row][bk + 4], else as [bk][rows + 4]; from both, a
 * thread reads 16 bytes at once, and 8 neighbouring lanes hit 8 different groups of 4 banks.
 *
 * The block is cut into `slices` of (bm / tm) * (bn / tn) threads. In each round slice i takes segment
 * round * slices + i; then the segments' sums are added in order. Everything below is inlined into a kernel
 * with a constant tile, so that loops unroll and arrays become registers.
 */
#ifndef MFL_KERNELS_CUDA_CONV_SIMT_TILE_H
#define MFL_KERNELS_CUDA_CONV_SIMT_TILE_H

#include "kernels/cuda/conv_simt.h"

struct simt_tile {
        enum mfl_cuda_pass pass;
        int bm, bn, bk, tm, tn, slices, stages;
};

/* Floats of shared memory: the operands' stages and, afterwards in the same place, the slices' sums. Macros,
 * because arrays need constants. */
#define SIMT_A_FLOATS(weights, bm, bk) ((weights) ? (bk) * ((bm) + 4) : (bm) * ((bk) + 4))
#define SIMT_B_FLOATS(forward, bn, bk) ((forward) ? (bn) * ((bk) + 4) : (bk) * ((bn) + 4))
#define SIMT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SIMT_FLOATS(pass, bm, bn, bk, slices, stages)                                                        \
        SIMT_MAX((slices) * (stages) *                                                                       \
                         (SIMT_A_FLOATS((pass) == MFL_CUDA_BACKWARD_WEIGHTS, bm, bk) +                       \
                                 SIMT_B_FLOATS((pass) == MFL_CUDA_FORWARD, bn, bk)),                         \
                (slices) * (bm) * ((bn) + 4))

/* Where a pixel's window begins in the gathered tensor (where backward data divides by a stride: where its
 * image begins); y is far outside for rows that are none. */
struct simt_row {
        int64_t at;
        int y, x;
};
#define SIMT_OUTSIDE (-(1 << 30))

struct simt_shared {
        float *load;           /* SIMT_FLOATS */
        float *sum;            /* slices > 1: [bm * bn] */
        float *db;             /* backward weights, slices > 1: [slices * bm] */
        struct simt_row *rows; /* [bm]; backward weights: two tables of [bk] for each slice */
};

MFL_DEVICE int simt_a_floats(const struct simt_tile t)
{
        return SIMT_A_FLOATS(t.pass == MFL_CUDA_BACKWARD_WEIGHTS, t.bm, t.bk);
}
MFL_DEVICE int simt_b_floats(const struct simt_tile t)
{
        return SIMT_B_FLOATS(t.pass == MFL_CUDA_FORWARD, t.bn, t.bk);
}
MFL_DEVICE int simt_threads(const struct simt_tile t)
{
        return t.bm / t.tm * (t.bn / t.tn);
}

MFL_DEVICE bool simt_divides(const struct mfl_simt_args *a, const struct simt_tile t)
{
        return t.pass == MFL_CUDA_BACKWARD_DATA && (a->stride[0] != 1 || a->stride[1] != 1);
}

/* Pixel `p`, counted from the first one of the image at `base`; images lie one behind the other. */
MFL_DEVICE struct simt_row simt_row_of(
        const struct mfl_simt_args *a, const struct simt_tile t, int64_t base, int p)
{
        struct simt_row row;
        int image = mfl_simt_quotient(&a->by_grid_pixels, p);
        int in_image = p - image * a->grid_pixels;
        int y = mfl_simt_quotient(&a->by_grid_w, in_image);
        int x = in_image - y * a->grid_w;
        row.y = t.pass == MFL_CUDA_BACKWARD_DATA ? y + a->pad[0] : y * a->stride[0] - a->pad[0];
        row.x = t.pass == MFL_CUDA_BACKWARD_DATA ? x + a->pad[1] : x * a->stride[1] - a->pad[1];
        row.at = base + (int64_t)image * (a->sh * a->sw * a->sc);
        if (!simt_divides(a, t))
                row.at += (int64_t)row.y * a->sw * a->sc + row.x * a->sc;
        return row;
}

/* A tap and channel of the reduction (or of the columns of the weights' gradient). */
struct simt_tap {
        int dy, dx, channel, at;
};
MFL_DEVICE struct simt_tap simt_tap_of(const struct mfl_simt_args *a, const struct simt_tile t, int index)
{
        struct simt_tap tap;
        int rs = mfl_simt_quotient(&a->by_sc, index);
        int r = mfl_simt_quotient(&a->by_s, rs);
        tap.channel = index - rs * a->sc;
        tap.dy = r * a->dilation[0];
        tap.dx = (rs - r * a->s) * a->dilation[1];
        if (t.pass == MFL_CUDA_BACKWARD_DATA) {
                tap.dy = -tap.dy;
                tap.dx = -tap.dx;
        }
        tap.at = (tap.dy * a->sw + tap.dx) * a->sc + tap.channel;
        return tap;
}

/* Where a tap of a row's window lies; false: in padding. */
MFL_DEVICE bool simt_gather_at(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_row *row, const struct simt_tap *tap, int64_t *ret_at)
{
        int y = row->y + tap->dy, x = row->x + tap->dx;
        if (simt_divides(a, t)) {
                if (y < 0 || x < 0)
                        return false;
                int qy = mfl_simt_quotient(&a->by_stride_h, y), qx = mfl_simt_quotient(&a->by_stride_w, x);
                *ret_at = row->at + (int64_t)(qy * a->sw + qx) * a->sc + tap->channel;
                return qy * a->stride[0] == y && qx * a->stride[1] == x && qy < a->sh && qx < a->sw;
        }
        *ret_at = row->at + tap->at;
        return (unsigned)y < (unsigned)a->sh && (unsigned)x < (unsigned)a->sw;
}

/* `width` floats, 1 or 4; zeros where not valid: then the source is not read, and may lie anywhere. */
MFL_DEVICE void simt_copy(float *to, const float *from, int64_t at, bool valid, const int width)
{
        if (width == 4)
                mfl_cp_async_16(to, from + at, valid ? 16 : 0);
        else
                mfl_cp_async_4(to, from + at, valid ? 4 : 0);
}

/* Forward and backward data: pixels' windows along the reduction. */
MFL_DEVICE void simt_load_windows(const struct mfl_simt_args *a, const struct simt_tile t, float *to,
        const struct simt_row *rows, const float *src, int64_t red0, int64_t red_end, int tid,
        const int width)
{
        const int chunks = t.bk / width, step = simt_threads(t) / chunks;
        int col = tid % chunks * width, first = tid / chunks;
        bool valid = red0 + col < red_end;
        struct simt_tap tap = simt_tap_of(a, t, valid ? (int)(red0 + col) : 0);
        MFL_UNROLL
        for (int i = 0; i < (t.bm + step - 1) / step; i++) {
                int row = first + i * step;
                if (t.bm % step != 0 && row >= t.bm)
                        break;
                int64_t at = 0;
                bool inside = simt_gather_at(a, t, &rows[row], &tap, &at);
                simt_copy(to + row * (t.bk + 4) + col, src, at, valid && inside, width);
        }
}

/* Forward: w[n][red]. */
MFL_DEVICE void simt_load_w(const struct mfl_simt_args *a, const struct simt_tile t, float *to,
        const float *w, int n0, int64_t red0, int64_t red_end, int tid, const int width)
{
        const int chunks = t.bk / width, step = simt_threads(t) / chunks;
        int col = tid % chunks * width, first = tid / chunks;
        MFL_UNROLL
        for (int i = 0; i < (t.bn + step - 1) / step; i++) {
                int row = first + i * step;
                if (t.bn % step != 0 && row >= t.bn)
                        break;
                bool valid = red0 + col < red_end && n0 + row < a->n;
                simt_copy(to + row * (t.bk + 4) + col, w, (int64_t)(n0 + row) * a->red + red0 + col, valid,
                        width);
        }
}

/* Backward data: w[k][r][s][c] for red = (r, s, k), n = c. */
MFL_DEVICE void simt_load_w_turned(const struct mfl_simt_args *a, const struct simt_tile t, float *to,
        const float *w, int n0, int64_t red0, int64_t red_end, int tid, const int width)
{
        const int chunks = t.bn / width, step = SIMT_MAX(simt_threads(t) / chunks, 1);
        int col = tid % chunks * width, first = tid / chunks;
        MFL_UNROLL
        for (int i = 0; i < (t.bk + step - 1) / step; i++) {
                int row = first + i * step;
                if (t.bk % step != 0 && row >= t.bk)
                        break;
                bool valid = red0 + row < red_end && n0 + col < a->n;
                int red = valid ? (int)(red0 + row) : 0;
                int rs = mfl_simt_quotient(&a->by_sc, red), k = red - rs * a->sc;
                simt_copy(to + row * (t.bn + 4) + col, w, ((int64_t)k * a->rs + rs) * a->c + n0 + col, valid,
                        width);
        }
}

/* Backward weights: dy[pixel][m]. */
MFL_DEVICE void simt_load_dy(const struct mfl_simt_args *a, const struct simt_tile t, float *to,
        const float *dy, int64_t m0, int64_t red0, int64_t red_end, int tid, const int width)
{
        const int chunks = t.bm / width, step = SIMT_MAX(simt_threads(t) / chunks, 1);
        int col = tid % chunks * width, first = tid / chunks;
        MFL_UNROLL
        for (int i = 0; i < (t.bk + step - 1) / step; i++) {
                int row = first + i * step;
                if (t.bk % step != 0 && row >= t.bk)
                        break;
                bool valid = red0 + row < red_end && m0 + col < a->m;
                simt_copy(to + row * (t.bm + 4) + col, dy, (red0 + row) * a->m + m0 + col, valid, width);
        }
}

/* Backward weights: where the windows of bk pixels of the reduction begin, one thread a pixel. */
MFL_DEVICE void simt_find_rows(const struct mfl_simt_args *a, const struct simt_tile t, struct simt_row *rows,
        int64_t red0, int64_t red_end, int tid)
{
        if (tid >= t.bk)
                return;
        struct simt_row row = {0, SIMT_OUTSIDE, 0};
        int64_t pixel = red0 + tid;
        if (pixel < red_end) {
                /* wide divisions only where a batch has 2^31 pixels */
                int64_t image = pixel <= INT32_MAX ? 0 : pixel / a->grid_pixels;
                row = simt_row_of(
                        a, t, image * (a->sh * a->sw * a->sc), (int)(pixel - image * a->grid_pixels));
        }
        rows[tid] = row;
}

/* Backward weights: taps of those pixels' windows. Slices of few threads take several columns each. */
MFL_DEVICE void simt_load_taps(const struct mfl_simt_args *a, const struct simt_tile t, float *to,
        const struct simt_row *rows, const float *src, int n0, int tid, const int width)
{
        const int chunks = t.bn / width, step = SIMT_MAX(simt_threads(t) / chunks, 1);
        int first = simt_threads(t) > chunks ? tid / chunks : 0;
        for (int chunk = tid % chunks; chunk < chunks; chunk += simt_threads(t)) {
                int col = chunk * width;
                bool valid = n0 + col < a->n;
                struct simt_tap tap = simt_tap_of(a, t, valid ? n0 + col : 0);
                MFL_UNROLL
                for (int i = 0; i < (t.bk + step - 1) / step; i++) {
                        int pixel = first + i * step;
                        if (t.bk % step != 0 && pixel >= t.bk)
                                break;
                        int64_t at = 0;
                        bool inside = simt_gather_at(a, t, &rows[pixel], &tap, &at);
                        simt_copy(to + pixel * (t.bn + 4) + col, src, at, valid && inside, width);
                }
        }
}

/* Operand element e (0 to 3) of 4 consecutive reduction steps, or 4 consecutive rows, as 16 bytes. */
MFL_DEVICE void simt_fragment(float *to, const float *from)
{
        mfl_copy_16(to, from);
}

/* The i-th of a thread's `per` rows (or columns): neighbours in fours where memory is contiguous along
 * them, else one from each stripe, so that lanes read neighbouring rows. */
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
                                simt_fragment(fa + i * 4, a + (ty + i * lanes_y) * (t.bk + 4) + k4);
                }
                if (!b_rows) {
                        MFL_UNROLL
                        for (int j = 0; j < t.tn; j++)
                                simt_fragment(fb + j * 4, b + (tx + j * lanes_x) * (t.bk + 4) + k4);
                }
                MFL_UNROLL
                for (int e = 0; e < 4; e++) {
                        float va[8] __attribute__((aligned(16))), vb[8] __attribute__((aligned(16)));
                        MFL_UNROLL
                        for (int i = 0; i < t.tm; i += 4) {
                                if (a_rows)
                                        simt_fragment(va + i,
                                                a + (k4 + e) * (t.bm + 4) + (i / 4 * lanes_y + ty) * 4);
                        }
                        MFL_UNROLL
                        for (int j = 0; j < t.tn; j += 4) {
                                if (b_rows)
                                        simt_fragment(vb + j,
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

/* Which part of the problem a block has. */
struct simt_block {
        int64_t group, m0, round, rounds;
        int n0;
        bool split;
};
MFL_DEVICE struct simt_block simt_block_of(const struct mfl_simt_args *a, const struct simt_tile t)
{
        struct simt_block b;
        uint32_t i = blockIdx.x, n_tiles = (uint32_t)a->n_tiles, m_tiles = (uint32_t)a->m_tiles;
        uint32_t n_splits = (uint32_t)a->n_splits;
        b.n0 = (int)(i % n_tiles) * t.bn;
        i /= n_tiles;
        b.m0 = (int64_t)(i % m_tiles) * t.bm;
        i /= m_tiles;
        b.split = n_splits > 1;
        b.round = b.split ? i % n_splits : 0;
        b.rounds = b.split ? 1 : (a->n_segments + t.slices - 1) / t.slices;
        b.group = i / n_splits;
        return b;
}

/* One slice's loads of one step of its segment. */
MFL_DEVICE void simt_load(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_row *rows, float *to, int64_t red0, int64_t red_end,
        int tid)
{
        const float *src_a = a->a + block->group * a->a_group, *src_b = a->b + block->group * a->b_group;
        float *to_b = to + simt_a_floats(t);
        if (t.pass != MFL_CUDA_BACKWARD_WEIGHTS) {
                if (a->vector_a)
                        simt_load_windows(a, t, to, rows, src_a, red0, red_end, tid, 4);
                else
                        simt_load_windows(a, t, to, rows, src_a, red0, red_end, tid, 1);
        } else if (a->vector_a)
                simt_load_dy(a, t, to, src_a, block->m0, red0, red_end, tid, 4);
        else
                simt_load_dy(a, t, to, src_a, block->m0, red0, red_end, tid, 1);

        if (t.pass == MFL_CUDA_FORWARD) {
                if (a->vector_b)
                        simt_load_w(a, t, to_b, src_b, block->n0, red0, red_end, tid, 4);
                else
                        simt_load_w(a, t, to_b, src_b, block->n0, red0, red_end, tid, 1);
        } else if (t.pass == MFL_CUDA_BACKWARD_DATA) {
                if (a->vector_b)
                        simt_load_w_turned(a, t, to_b, src_b, block->n0, red0, red_end, tid, 4);
                else
                        simt_load_w_turned(a, t, to_b, src_b, block->n0, red0, red_end, tid, 1);
        } else {
                if (a->vector_b)
                        simt_load_taps(a, t, to_b, rows, src_b, block->n0, tid, 4);
                else
                        simt_load_taps(a, t, to_b, rows, src_b, block->n0, tid, 1);
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

/* Thread i sums row i of dy: the bias' gradient rides along with the blocks of the first columns. */
MFL_DEVICE void simt_add_db(const struct simt_tile t, struct simt_thread *th, const float *dy)
{
        for (int k = 0; k < t.bk; k++)
                th->db += dy[k * (t.bm + 4) + th->tid];
}

/* A step of the reduction that is to be copied: `red0` up to the next one or the segment's end. */
struct simt_step {
        int64_t begin, step, steps; /* the segment's first, number within it of so many */
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
 * i's copies are started stages - 1 steps earlier; for backward weights the places of its pixels are found
 * one step before that, in one of two tables. */
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

/* A thread's sums to shared memory, as [bm][bn + 4]. */
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

/* The end of a round with several slices: their segments' sums are added in order, or kept for the second
 * kernel. Threads keep their elements from round to round. */
MFL_DEVICE void simt_end_round(const struct mfl_simt_args *a, const struct simt_tile t,
        const struct simt_block *block, const struct simt_shared *shared, struct simt_thread *th,
        int64_t round, bool first, bool last)
{
        const int tile_floats = t.bm * (t.bn + 4), threads = t.slices * simt_threads(t);
        int64_t segment = round * t.slices;
        int slices = a->n_segments - segment < t.slices ? (int)(a->n_segments - segment) : t.slices;
        MFL_SYNC(); /* the stage takes the place of the operands */
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

/* As simt_end_round for the bias' gradient; returns the sum so far. */
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
        if (mfl_cuda_rows(&a->steps, (uint32_t)block.group) == 0)
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
