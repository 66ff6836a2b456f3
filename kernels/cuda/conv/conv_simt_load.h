/* SPDX-License-Identifier: Apache-2.0 */
/* How the tiled products of the fp32 family (conv_simt_tile.h) bring their operands to shared memory: tensors
 * gathered through windows, weights, gradients, each by asynchronous copies of 4 or 16 bytes. */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_SIMT_LOAD_H
#define MFL_KERNELS_CUDA_CONV_CONV_SIMT_LOAD_H

#include "kernels/cuda/conv/conv_simt.h"

struct simt_tile {
        enum mfl_cuda_pass pass;
        int bm, bn, bk, tm, tn, slices, stages;
};

/* Floats of shared memory: the operands' stages and later, in the same place, the slices' sums. They are
 * macros because arrays need constants. */
#define SIMT_A_FLOATS(weights, bm, bk) ((weights) ? (bk) * ((bm) + 4) : (bm) * ((bk) + 4))
#define SIMT_B_FLOATS(forward, bn, bk) ((forward) ? (bn) * ((bk) + 4) : (bk) * ((bn) + 4))
#define SIMT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define SIMT_FLOATS(pass, bm, bn, bk, slices, stages)                                                        \
        SIMT_MAX((slices) * (stages) *                                                                       \
                         (SIMT_A_FLOATS((pass) == MFL_CUDA_BACKWARD_WEIGHTS, bm, bk) +                       \
                                 SIMT_B_FLOATS((pass) == MFL_CUDA_FORWARD, bn, bk)),                         \
                (slices) * (bm) * ((bn) + 4))

/* Where a pixel's window begins in the gathered tensor (where backward data divides by a stride: where its
 * image begins). For rows that do not exist, y is far outside. */
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

/* Pixel `p`, counted from the first one of the image at `base`; images are adjacent. */
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

/* The place of a tap of a row's window; false: in padding. */
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

/* Copies `width` floats, 1 or 4; zeros where not valid: the source is then not read and may be anywhere. */
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

/* Backward weights: finds where the windows of bk pixels of the reduction begin, one thread per pixel. */
MFL_DEVICE void simt_find_rows(const struct mfl_simt_args *a, const struct simt_tile t, struct simt_row *rows,
        int64_t red0, int64_t red_end, int tid)
{
        if (tid >= t.bk)
                return;
        struct simt_row row = {0, SIMT_OUTSIDE, 0};
        int64_t pixel = red0 + tid;
        if (pixel < red_end) {
                /* Wide divisions only where a batch has 2^31 pixels. */
                int64_t image = pixel <= INT32_MAX ? 0 : pixel / a->grid_pixels;
                row = simt_row_of(
                        a, t, image * (a->sh * a->sw * a->sc), (int)(pixel - image * a->grid_pixels));
        }
        rows[tid] = row;
}

/* Backward weights: taps of those pixels' windows. Slices with few threads take several columns per thread.
 */
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

/* The part of the problem that a block computes. */
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

#endif
