/* SPDX-License-Identifier: Apache-2.0 */
/* Backward weights with few weights (conv_simt.h): a block keeps a client's whole gradient in its registers.
 *
 * Each segment is some whole rows of the output. A block processes `slots` segments at once. Each thread of a
 * slot has 4 taps x 8 channels of dy and walks along the rows: one row of dy and the r rows of x under it lie
 * in shared memory. One step is 4 reads of 4 bytes (neighbouring lanes, neighbouring taps), 2 of 16 bytes
 * (one address for all lanes of a slot; slots lie 4 banks apart) and 32 products. The bias' gradient is one
 * more tap, which always reads 1. After all rows, the slots' sums are added in order, and the block continues
 * with its next segments.
 */
#include "kernels/cuda/conv/conv_simt.h"

#define ROWS_THREADS 256
#define ROWS_TAPS 4
#define ROWS_CHANNELS 8
#define ROWS_FLOATS (48 * 256) /* 48 KiB of shared memory */

struct simt_rows {
        struct mfl_simt_args a;
        int slots, lanes, parts; /* threads of a slot: lanes of taps x parts of the channels */
        int rows, grid_h;        /* of a segment; of an image */
        int64_t all_rows;
        int x_row, dy_pitch, slot_floats, r; /* floats: a row of x, a pixel of dy, a slot */
        struct mfl_simt_div by_lanes, by_parts, by_rows, by_k, by_grid_h, by_n;
};

static int rows_floats(const struct simt_rows *p)
{
        int sums = p->slots * (int)p->a.m * (p->a.n + 1), inputs = p->slots * p->slot_floats + 4;
        return sums > inputs ? sums : inputs;
}

/* Everything except by_*; false: not one segment fits. */
static bool rows_plan(const struct mfl_simt_args *a, struct simt_rows *p)
{
        if (a->grid_pixels == 1 || a->m > 512 || a->n > 1023 || a->grid_w > 1024 || a->sc > 512 ||
                a->stride[1] > 64 || (int64_t)(a->s - 1) * a->dilation[1] > 4096 || a->red > INT32_MAX ||
                a->segment % a->grid_w != 0)
                return false;
        p->a = *a;
        p->r = a->rs / a->s;
        p->rows = (int)(a->segment / a->grid_w);
        p->grid_h = a->grid_pixels / a->grid_w;
        p->all_rows = a->red / a->grid_w;
        p->lanes = (a->n + 1 + ROWS_TAPS - 1) / ROWS_TAPS;
        p->parts = ((int)a->m + ROWS_CHANNELS - 1) / ROWS_CHANNELS;
        p->x_row = ((a->grid_w - 1) * a->stride[1] + (a->s - 1) * a->dilation[1] + 1) * a->sc;
        p->dy_pitch = p->parts * ROWS_CHANNELS;
        int64_t floats = (int64_t)(p->r * p->x_row + 3) / 4 * 4 + (int64_t)a->grid_w * p->dy_pitch;
        floats = (floats + 27) / 32 * 32 + 4;
        if (floats > ROWS_FLOATS || (int64_t)a->m * (a->n + 1) > ROWS_FLOATS ||
                p->lanes * p->parts > ROWS_THREADS)
                return false;
        p->slot_floats = (int)floats;
        p->slots = ROWS_THREADS / (p->lanes * p->parts);
        if (p->slots > a->n_segments)
                p->slots = (int)a->n_segments;
        while (p->slots > 1 && rows_floats(p) > ROWS_FLOATS)
                p->slots--;
        if (rows_floats(p) > ROWS_FLOATS)
                return false;
        int64_t rounds = (a->n_segments + p->slots - 1) / p->slots;
        p->slots = (int)((a->n_segments + rounds - 1) / rounds); /* rounds of equal length */
        return true;
}

/* Copies row `step` of the segments from `segment` on: dy and the rows of x, one warp per row of memory. A
 * row beyond the segment's end has zeros in dy and so adds nothing. */
MFL_DEVICE void rows_load(const struct simt_rows *p, int64_t group, int segment, int step, float *shared)
{
        const struct mfl_simt_args *a = &p->a;
        int warps = (int)blockDim.x / 32, lane = (int)threadIdx.x % 32, per_slot = p->r + 1,
            width = a->sw * a->sc;
        int k = (int)a->m, x_floats = (p->r * p->x_row + 3) / 4 * 4, left = -a->pad[1] * a->sc;
        for (int i = (int)threadIdx.x / 32; i < p->slots * per_slot; i += warps) {
                int slot = mfl_simt_quotient(&p->by_rows, i), r = i - slot * per_slot;
                int row = (segment + slot) * p->rows + step;
                bool valid = row < p->all_rows && step < p->rows;
                float *to = shared + slot * p->slot_floats;
                if (r == p->r) {
                        const float *from = a->a + group * a->a_group + (int64_t)row * a->grid_w * k;
                        to += x_floats;
                        for (int e = lane * 4; a->vector_a && e < a->grid_w * k; e += 128) {
                                int pixel = mfl_simt_quotient(&p->by_k, e);
                                mfl_cp_async_16(
                                        to + pixel * p->dy_pitch + (e - pixel * k), from + e, valid ? 16 : 0);
                        }
                        for (int e = lane; !a->vector_a && e < a->grid_w * k; e += 32) {
                                int pixel = mfl_simt_quotient(&p->by_k, e);
                                mfl_cp_async_4(
                                        to + pixel * p->dy_pitch + (e - pixel * k), from + e, valid ? 4 : 0);
                        }
                        continue;
                }
                int image = mfl_simt_quotient(&p->by_grid_h, row);
                int y = (row - image * p->grid_h) * a->stride[0] - a->pad[0] + r * a->dilation[0];
                valid = valid && y >= 0 && y < a->sh;
                const float *from =
                        a->b + group * a->b_group + ((int64_t)image * a->sh + (valid ? y : 0)) * width;
                for (int e = lane; e < p->x_row; e += 32)
                        mfl_cp_async_4(to + r * p->x_row + e, from + left + e,
                                valid && (unsigned)(left + e) < (unsigned)width ? 4 : 0);
        }
}

struct simt_rows_sums {
        float acc[ROWS_TAPS * ROWS_CHANNELS];
};

/* Along one row: products of 4 taps and the first `used` (a constant) of 8 channels. */
MFL_DEVICE void rows_multiply(const struct simt_rows *p, const float *const first[ROWS_TAPS],
        const int stride[ROWS_TAPS], const float *dy, struct simt_rows_sums *sums, const int used)
{
        const float *x[ROWS_TAPS];
        MFL_UNROLL
        for (int i = 0; i < ROWS_TAPS; i++)
                x[i] = first[i];
        for (int pixel = 0; pixel < p->a.grid_w; pixel++) {
                float fd[ROWS_CHANNELS] __attribute__((aligned(16)));
                mfl_copy_16(fd, dy);
                mfl_copy_16(fd + 4, dy + 4);
                dy += p->dy_pitch;
                MFL_UNROLL
                for (int i = 0; i < ROWS_TAPS; i++) {
                        float v = *x[i];
                        x[i] += stride[i];
                        MFL_UNROLL
                        for (int j = 0; j < used; j++)
                                sums->acc[i * ROWS_CHANNELS + j] =
                                        fmaf(fd[j], v, sums->acc[i * ROWS_CHANNELS + j]);
                }
        }
}

/* A thread's place in the block. */
struct simt_rows_thread {
        int slot, lane, channel;
        bool works;
        const float *first[ROWS_TAPS];
        int stride[ROWS_TAPS];
};

/* Taps from n on read the 1 that lies after the slots. */
MFL_DEVICE struct simt_rows_thread rows_thread(const struct simt_rows *p, const float *shared)
{
        const struct mfl_simt_args *a = &p->a;
        struct simt_rows_thread th;
        int rest = mfl_simt_quotient(&p->by_lanes, (int)threadIdx.x);
        th.lane = (int)threadIdx.x - rest * p->lanes;
        th.slot = mfl_simt_quotient(&p->by_parts, rest);
        th.channel = (rest - th.slot * p->parts) * ROWS_CHANNELS;
        th.works = th.slot < p->slots;
        MFL_UNROLL
        for (int i = 0; i < ROWS_TAPS; i++) {
                int n = th.lane + i * p->lanes;
                int rs = mfl_simt_quotient(&a->by_sc, n), r = mfl_simt_quotient(&a->by_s, rs);
                int at = r * p->x_row + (rs - r * a->s) * a->dilation[1] * a->sc + (n - rs * a->sc);
                bool tap = n < a->n;
                th.first[i] = shared + (tap ? th.slot * p->slot_floats + at : p->slots * p->slot_floats);
                th.stride[i] = tap ? a->stride[1] * a->sc : 0;
        }
        return th;
}

/* Adds the slots' sums in order to what earlier rounds left in the output; a thread keeps its elements. */
MFL_DEVICE void rows_put(const struct simt_rows *p, int64_t group, int segment, const float *sums)
{
        const struct mfl_simt_args *a = &p->a;
        int columns = a->n + 1, floats = (int)a->m * columns;
        for (int e = (int)threadIdx.x; e < floats; e += (int)blockDim.x) {
                int m = mfl_simt_quotient(&p->by_n, e), n = e - m * columns;
                if (n == a->n && !a->db)
                        continue;
                float *to = n == a->n ? a->db + group * a->param_group + m
                                      : a->out + group * a->out_group + (int64_t)m * a->n + n;
                float sum = segment == 0 ? 0.0f : *to;
                for (int s = 0; s < p->slots && segment + s < a->n_segments; s++)
                        sum += sums[s * floats + e];
                *to = sum;
        }
}

MFL_DEVICE void rows_block(const struct simt_rows *p, float *shared, const int used)
{
        const struct mfl_simt_args *a = &p->a;
        int64_t group = blockIdx.x;
        if (mfl_simt_is_left_out(&a->steps, group))
                return;
        struct simt_rows_thread th = rows_thread(p, shared);
        const float *dy = shared + th.slot * p->slot_floats + (p->r * p->x_row + 3) / 4 * 4 + th.channel;
        for (int segment = 0; segment < a->n_segments; segment += p->slots) {
                struct simt_rows_sums sums;
                MFL_UNROLL
                for (int j = 0; j < ROWS_TAPS * ROWS_CHANNELS; j++)
                        sums.acc[j] = 0.0f;
                if (threadIdx.x == 0)
                        shared[p->slots * p->slot_floats] = 1.0f;
                for (int step = 0; step < p->rows; step++) {
                        rows_load(p, group, segment, step, shared);
                        mfl_cp_async_commit();
                        mfl_cp_async_wait(0);
                        MFL_SYNC();
                        if (th.works)
                                rows_multiply(p, th.first, th.stride, dy, &sums, used);
                        MFL_SYNC();
                }
                MFL_UNROLL
                for (int j = 0; j < ROWS_TAPS * ROWS_CHANNELS; j++) {
                        int n = th.lane + j / ROWS_CHANNELS * p->lanes, m = th.channel + j % ROWS_CHANNELS;
                        if (th.works && n <= a->n && m < a->m)
                                shared[(th.slot * (int)a->m + m) * (a->n + 1) + n] = sums.acc[j];
                }
                MFL_SYNC();
                rows_put(p, group, segment, shared);
                MFL_SYNC();
        }
}

MFL_KERNEL_BOUNDS(simt_rows_8, struct simt_rows, ROWS_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        rows_block(&a, (float *)shared, 8);
}
MFL_KERNEL_BOUNDS(simt_rows_6, struct simt_rows, ROWS_THREADS, 2)
{
        MFL_SHARED_DYNAMIC(shared);
        rows_block(&a, (float *)shared, 6);
}

bool mfl_simt_rows_can(const struct mfl_simt_args *a)
{
        struct simt_rows p;
        return rows_plan(a, &p);
}

cudaError_t mfl_simt_rows(const struct mfl_simt_args *a, int64_t blocks, cudaStream_t stream)
{
        struct simt_rows p;
        if (!rows_plan(a, &p))
                return cudaErrorInvalidValue;
        p.by_lanes = mfl_simt_divide_by(p.lanes);
        p.by_parts = mfl_simt_divide_by(p.parts);
        p.by_rows = mfl_simt_divide_by(p.r + 1);
        p.by_k = mfl_simt_divide_by((int)a->m);
        p.by_grid_h = mfl_simt_divide_by(p.grid_h);
        p.by_n = mfl_simt_divide_by(a->n + 1);
        int threads = (p.slots * p.lanes * p.parts + 31) / 32 * 32;
        return MFL_LAUNCH(a->m <= 6 ? simt_rows_6 : simt_rows_8, a->groups, 1, 1, threads,
                (size_t)rows_floats(&p) * sizeof(float), stream, &p);
}
