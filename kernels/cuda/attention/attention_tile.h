/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the passes of attention by tiles (attention.h): where a block works, tiles from global to
 * shared memory, a warp's two kinds of products, and the way of its results to memory.
 *
 * A warp owns 16 rows (queries, or keys) and goes through tiles of `step` rows of the other kind. Scores, and
 * what is computed from them, stay in registers, in the places that tensor cores give them: element e of
 * of[j] is in row lane / 4 + e / 2 * 8 and column 8 j + lane % 4 * 2 + e % 2. fp32 uses the same places, so
 * that everything except products is written once.
 *
 * For 16-bit types, two neighbouring fragments of scores are one fragment of the second product's left
 * operand as they lie. 4-byte types pass through the warp's own slab of shared memory.
 */
#ifndef MFL_KERNELS_CUDA_ATTENTION_ATTENTION_TILE_H
#define MFL_KERNELS_CUDA_ATTENTION_ATTENTION_TILE_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/base/mma.h"
#include "kernels/cuda/ops/ops_common.h"

enum {
        FLASH_STEP_MAX = 64,
        FLASH_SIZE_MAX = MFL_FLASH_SIZE_MAX,
};

/* The specialisation of a kernel; always a constant. */
struct flash_shape {
        enum mfl_precision precision;
        enum mfl_flash_pass pass;
        int size; /* columns of a tile: at least a head's size */
        int step; /* rows of a tile that passes by */
};

static inline MFL_HD int flash_bytes(struct flash_shape s)
{
        return mfl_cuda_type_bytes(mfl_cuda_type_of(s.precision));
}
/* Elements from one line of a tile to the next: the eight lines of an ldmatrix are in different banks. */
static inline MFL_HD int flash_pitch(struct flash_shape s)
{
        return s.size + 16 / flash_bytes(s);
}
static inline MFL_HD int flash_line(struct flash_shape s)
{
        return flash_pitch(s) * flash_bytes(s);
}
static inline MFL_HD int flash_slab_pitch(struct flash_shape s)
{
        return s.step + 4;
}
static inline MFL_HD int flash_slab_floats(struct flash_shape s)
{
        return flash_bytes(s) == 4 ? 16 * flash_slab_pitch(s) : 0;
}
/* Tiles of own rows, and of rows that pass by. */
static inline MFL_HD int flash_n_own(struct flash_shape s)
{
        return s.pass == MFL_FLASH_FORWARD ? 1 : 2;
}
static inline MFL_HD int flash_n_passing(struct flash_shape s)
{
        return s.pass == MFL_FLASH_FORWARD ? 2 : 3;
}
static inline MFL_HD int flash_shared_of_warp(struct flash_shape s)
{
        return flash_n_own(s) * 16 * flash_line(s) + flash_slab_floats(s) * 4;
}
static inline MFL_HD int flash_shared_of_block(struct flash_shape s)
{
        return flash_n_passing(s) * s.step * flash_line(s);
}

struct flash_place {
        int group, row, head, warp, lane;
        int block_first, first; /* of the block's rows; of the warp's 16 */
        unsigned char *own[2];  /* the block's */
        unsigned char *passing[3];
        float *slab;      /* the warp's */
        float *kept;      /* of this head: base [T], inverse [T], mean [T]; NULL: not wanted */
        uint64_t element; /* number of this head's first weight in the mask */
        bool drops;
        struct mfl_rng_key key;
        float scale; /* of weights that are not dropped */
};

MFL_DEVICE struct flash_place flash_place_of(
        const struct mfl_flash_args *a, struct flash_shape s, unsigned char *shared)
{
        const struct mfl_cuda_flash *op = &a->op;
        struct flash_place at;
        int rows = (int)blockDim.x / 2, pair = (int)(blockIdx.x / (uint32_t)a->blocks);
        int64_t t = op->positions, pairs = (int64_t)op->batch * op->heads;
        at.group = (int)blockIdx.y;
        at.row = pair / op->heads;
        at.head = pair % op->heads;
        at.warp = (int)threadIdx.x / 32;
        at.lane = (int)threadIdx.x % 32;
        /* Under a causal mask the last queries see most keys, and the first keys are seen by most queries:
         * long work begins first. */
        int block = (int)(blockIdx.x % (uint32_t)a->blocks);
        at.block_first = (s.pass == MFL_FLASH_KEYS ? block : a->blocks - 1 - block) * rows;
        at.first = at.block_first + at.warp * 16;
        for (int i = 0; i < 2; i++)
                at.own[i] = shared + i * rows * flash_line(s);
        unsigned char *passing = shared + flash_n_own(s) * rows * flash_line(s);
        for (int i = 0; i < 3; i++)
                at.passing[i] = passing + i * s.step * flash_line(s);
        at.slab = (float *)(passing + flash_shared_of_block(s)) + at.warp * flash_slab_floats(s);
        at.kept = op->kept ? op->kept + ((int64_t)at.group * pairs + pair) * MFL_FLASH_KEPT * t : NULL;
        at.element = (uint64_t)(mfl_cuda_part(&op->steps) * pairs + pair) * (uint64_t)(t * t);
        at.drops = op->training && op->rate > 0.0f;
        at.scale = 1.0f;
        if (at.drops) {
                at.key = mfl_rng_dropout_key(
                        op->steps.dropout[at.group], mfl_cuda_step_number(&op->steps, at.group), op->layer);
                at.scale = mfl_dropout_factor(UINT32_MAX, op->rate);
        }
        return at;
}

/* One tensor's part of the head: rows `step` elements apart, the first at element `at`. */
struct flash_rows {
        const void *p;
        int64_t at, step;
};
MFL_DEVICE struct flash_rows flash_rows_of(const struct mfl_flash_args *a, const struct flash_place *at,
        const void *p, int64_t parts, int64_t part)
{
        int64_t width = (int64_t)a->op.heads * a->op.size;
        struct flash_rows r;
        r.p = p;
        r.step = parts * width;
        r.at = ((int64_t)at->group * a->op.batch + at->row) * a->op.positions * r.step + part * width +
               (int64_t)at->head * a->op.size;
        return r;
}

/* ---- from global to shared memory ---- */

/* All threads, by copies of `width` bytes. */
MFL_DEVICE void flash_fill_by(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_rows *from, int first, int rows, unsigned char *to, int width)
{
        const int bytes = flash_bytes(s), each = width / bytes, per_line = s.size / each;
        for (int t = (int)threadIdx.x; t < rows * per_line; t += (int)blockDim.x) {
                int r = t / per_line, c = t % per_line * each;
                bool there = first + r < a->op.positions && c < a->op.size;
                int64_t element = there ? from->at + (first + r) * from->step + c : from->at;
                const unsigned char *source = (const unsigned char *)from->p + element * bytes;
                unsigned char *put = to + r * flash_line(s) + c * bytes;
                if (c >= a->depth)
                        continue;
                if (width == 16)
                        mfl_cp_async_16(put, source, there ? 16 : 0);
                else if (width == 4)
                        mfl_cp_async_4(put, source, there ? 4 : 0);
                else
                        *(uint16_t *)put = there ? *(const uint16_t *)source : 0;
        }
}

/* Rows [first, first + rows), with zeros beyond the last position and the head's last column. */
MFL_DEVICE void flash_fill(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_rows *from, int first, int rows, unsigned char *to)
{
        if (a->copy == 16)
                flash_fill_by(a, s, from, first, rows, to, 16);
        else if (a->copy == 4 || flash_bytes(s) == 4)
                flash_fill_by(a, s, from, first, rows, to, 4);
        else
                flash_fill_by(a, s, from, first, rows, to, 2);
}

/* A tile that passes by: those of its rows that some fragment reads. */
MFL_DEVICE void flash_fill_passing(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_rows *from, int first, unsigned char *to)
{
        int rows = (a->op.positions - first + 15) / 16 * 16;
        flash_fill(a, s, from, first, rows < s.step ? rows : s.step, to);
}

/* ---- products ---- */

struct flash_scores {
        float of[FLASH_STEP_MAX / 8][4];
};
struct flash_sums {
        float of[FLASH_SIZE_MAX / 8][4];
};

/* The warp needs columns [low, limit) of a tile that passes by; multiples of 16, the same in all its lanes.
 */
struct flash_range {
        int low, limit;
};
MFL_DEVICE bool flash_in(const struct flash_range *r, int column)
{
        return column >= r->low && column < r->limit;
}

/* Which of a lane's scores dropout keeps: bit 4 j + e stands for of[j][e]. This loop is separate and not
 * unrolled: it is much code, and few models drop. */
MFL_DEVICE uint32_t flash_keeps(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_place *at, int begin, const struct flash_range *range)
{
        uint64_t t = (uint64_t)a->op.positions;
        uint32_t bits = 0;
        if (!at->drops)
                return UINT32_MAX;
        MMA_ROLLED
        for (int i = 0; i < s.step / 2; i++) {
                uint64_t own = (uint64_t)(at->first + at->lane / 4 + i / 2 % 2 * 8),
                         other = (uint64_t)(begin + i / 4 * 8 + at->lane % 4 * 2 + i % 2);
                if (!flash_in(range, i / 4 * 8))
                        continue;
                uint64_t e = s.pass == MFL_FLASH_KEYS ? other * t + own : own * t + other;
                bits |= (uint32_t)(mfl_dropout_at(at->key, at->element + e, a->op.rate) > 0.0f) << i;
        }
        return bits;
}
MFL_DEVICE float flash_keep(const struct flash_place *at, uint32_t keeps, int i)
{
        return keeps >> i & 1 ? at->scale : 0.0f;
}

MFL_DEVICE float flash_dot(float sum, float4 a, float4 b)
{
        return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

MFL_DEVICE void flash_outer_float(const struct mfl_flash_args *a, struct flash_shape s,
        const unsigned char *own, const unsigned char *passing, const struct flash_range *range, int lane,
        struct flash_scores *v)
{
        const int line = flash_line(s);
        for (int k = 0; k < a->depth; k += 4) {
                float4 high = *(const float4 *)(own + lane / 4 * line + k * 4);
                float4 low = *(const float4 *)(own + (lane / 4 + 8) * line + k * 4);
                MFL_UNROLL
                for (int j = 0; j < s.step / 8; j++) {
                        if (!flash_in(range, j * 8))
                                continue;
                        MFL_UNROLL
                        for (int e = 0; e < 2; e++) {
                                float4 b = *(
                                        const float4 *)(passing + (j * 8 + lane % 4 * 2 + e) * line + k * 4);
                                v->of[j][e] = flash_dot(v->of[j][e], high, b);
                                v->of[j][2 + e] = flash_dot(v->of[j][2 + e], low, b);
                        }
                }
        }
}

/* v = the warp's own 16 rows times rows of the tile that passes by, over a head's columns. */
MFL_DEVICE void flash_outer(const struct mfl_flash_args *a, struct flash_shape s, const unsigned char *own,
        const unsigned char *passing, const struct flash_range *range, int lane, struct flash_scores *v)
{
        const int bytes = flash_bytes(s), pitch = flash_pitch(s), k_step = bytes == 4 ? 8 : 16;
        MFL_UNROLL
        for (int j = 0; j < s.step / 8; j++)
                MFL_UNROLL
        for (int e = 0; e < 4; e++)
                v->of[j][e] = 0.0f;
        if (s.precision == MFL_PRECISION_FP32) {
                flash_outer_float(a, s, own, passing, range, lane, v);
                return;
        }
        MFL_UNROLL
        for (int k = 0; k < s.size; k += k_step) {
                uint32_t fa[4], fb[4];
                if (k >= a->depth)
                        continue;
                mma_fragment_a(bytes, true, pitch, own, 0, k, lane, fa);
                MFL_UNROLL
                for (int n = 0; n < s.step; n += 16) {
                        if (!flash_in(range, n))
                                continue;
                        mma_fragment_b(bytes, true, pitch, passing, n, k, lane, fb);
                        mma_product(s.precision, v->of[n / 8], fa, fb);
                        mma_product(s.precision, v->of[n / 8 + 1], fa, fb + 2);
                }
        }
}

MFL_DEVICE void flash_to_slab(struct flash_shape s, const struct flash_scores *w,
        const struct flash_range *range, int lane, float *slab)
{
        const int pitch = flash_slab_pitch(s);
        MFL_UNROLL
        for (int j = 0; j < s.step / 8; j++) {
                float2 high = {w->of[j][0], w->of[j][1]}, low = {w->of[j][2], w->of[j][3]};
                float *to = slab + lane / 4 * pitch + j * 8 + lane % 4 * 2;
                if (!flash_in(range, j * 8))
                        continue;
                *(float2 *)to = high;
                *(float2 *)(to + 8 * pitch) = low;
        }
}

/* Columns of fp32's sums: lanes read 16 bytes. */
static inline MFL_HD int flash_sum_column(struct flash_shape s, int j, int lane)
{
        return s.precision == MFL_PRECISION_FP32 ? j / 2 * 16 + lane % 4 * 4 + j % 2 * 2
                                                 : j * 8 + lane % 4 * 2;
}

MFL_DEVICE void flash_inner_float(const struct mfl_flash_args *a, struct flash_shape s,
        const unsigned char *passing, const struct flash_range *range, const float *slab, int lane,
        struct flash_sums *v)
{
        const int pitch = flash_slab_pitch(s), line = flash_line(s);
        for (int k = range->low; k < range->limit; k += 4) {
                float4 high4 = *(const float4 *)(slab + lane / 4 * pitch + k);
                float4 low4 = *(const float4 *)(slab + (lane / 4 + 8) * pitch + k);
                float high[4] = {high4.x, high4.y, high4.z, high4.w},
                      low[4] = {low4.x, low4.y, low4.z, low4.w};
                MFL_UNROLL
                for (int i = 0; i < 4; i++) {
                        MFL_UNROLL
                        for (int n = 0; n < s.size; n += 16) {
                                if (n >= a->depth)
                                        continue;
                                float4 b4 =
                                        *(const float4 *)(passing + (k + i) * line + (n + lane % 4 * 4) * 4);
                                float b[4] = {b4.x, b4.y, b4.z, b4.w};
                                MFL_UNROLL
                                for (int c = 0; c < 4; c++) {
                                        float *of = v->of[n / 8 + c / 2];
                                        of[c % 2] = fmaf(high[i], b[c], of[c % 2]);
                                        of[2 + c % 2] = fmaf(low[i], b[c], of[2 + c % 2]);
                                }
                        }
                }
        }
}

MFL_DEVICE void flash_to_fragment(
        struct flash_shape s, const struct flash_scores *w, int k, int lane, const float *slab, uint32_t f[4])
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        if (flash_bytes(s) == 4) {
                mma_fragment_a(4, true, flash_slab_pitch(s), (const unsigned char *)slab, 0, k, lane, f);
                return;
        }
        MFL_UNROLL
        for (int i = 0; i < 4; i++)
                f[i] = mfl_pack_pair(
                        w->of[k / 8 + i / 2][i % 2 * 2], w->of[k / 8 + i / 2][i % 2 * 2 + 1], type);
}

/* v += 16 rows of weights times rows of the tile that passes by. */
MFL_DEVICE void flash_inner(const struct mfl_flash_args *a, struct flash_shape s,
        const struct flash_scores *w, const unsigned char *passing, const struct flash_range *range,
        float *slab, int lane, struct flash_sums *v)
{
        const int bytes = flash_bytes(s), pitch = flash_pitch(s), k_step = bytes == 4 ? 8 : 16;
        if (bytes == 4) {
                flash_to_slab(s, w, range, lane, slab);
                MFL_SYNC_WARP();
        }
        if (s.precision == MFL_PRECISION_FP32)
                flash_inner_float(a, s, passing, range, slab, lane, v);
        MFL_UNROLL
        for (int k = 0; k < s.step && s.precision != MFL_PRECISION_FP32; k += k_step) {
                uint32_t fa[4], fb[4];
                if (!flash_in(range, k))
                        continue;
                flash_to_fragment(s, w, k, lane, slab, fa);
                MFL_UNROLL
                for (int n = 0; n < s.size; n += 16) {
                        if (n >= a->depth)
                                continue;
                        mma_fragment_b(bytes, false, pitch, passing, n, k, lane, fb);
                        mma_product(s.precision, v->of[n / 8], fa, fb);
                        mma_product(s.precision, v->of[n / 8 + 1], fa, fb + 2);
                }
        }
        if (bytes == 4)
                MFL_SYNC_WARP(); /* before the slab is written again */
}

/* ---- from registers to global memory ---- */

/* Two neighbours: aligned to their size. */
MFL_DEVICE void flash_give_pair(void *to, int64_t i, bool add, float low, float high, enum mfl_cuda_type type)
{
        if (type == MFL_CUDA_F32) {
                float2 *at = (float2 *)((float *)to + i);
                float2 v = {low, high};
                if (add)
                        v.x = at->x + low, v.y = at->y + high;
                *at = v;
                return;
        }
        if (add) {
                low = mfl_load(to, i, type) + low;
                high = mfl_load(to, i + 1, type) + high;
        }
        *(uint32_t *)((uint16_t *)to + i) = mfl_pack_pair(low, high, type);
}

/* Writes the warp's rows of sums, times the factors of a lane's two rows, to the tensor (add: adds them). */
MFL_DEVICE void flash_give(const struct mfl_flash_args *a, struct flash_shape s, const struct flash_place *at,
        const struct flash_sums *v, const float factor[2], const struct flash_rows *rows, bool add)
{
        const enum mfl_cuda_type type = mfl_cuda_type_of(s.precision);
        void *to = (void *)(uintptr_t)rows->p;
        MFL_UNROLL
        for (int r = 0; r < 2; r++) {
                int position = at->first + at->lane / 4 + r * 8;
                if (position >= a->op.positions)
                        continue;
                MFL_UNROLL
                for (int j = 0; j < s.size / 8; j++) {
                        int column = flash_sum_column(s, j, at->lane);
                        int64_t i = rows->at + position * rows->step + column;
                        float low = v->of[j][r * 2] * factor[r], high = v->of[j][r * 2 + 1] * factor[r];
                        if (column >= a->op.size)
                                continue;
                        if (a->pairs) {
                                flash_give_pair(to, i, add, low, high, type);
                                continue;
                        }
                        mfl_store(to, i, add ? mfl_load(to, i, type) + low : low, type);
                        if (column + 1 < a->op.size)
                                mfl_store(to, i + 1, add ? mfl_load(to, i + 1, type) + high : high, type);
                }
        }
}

#endif
