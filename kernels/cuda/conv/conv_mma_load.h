/* SPDX-License-Identifier: Apache-2.0 */
/* From global to shared memory: how the tensor-core kernels (conv_mma.h) fill a stage of their pipeline.
 *
 * Two layouts of a tile in shared memory. Reduction innermost ("deep"): [rows][32 + 16 bytes], read by
 * ldmatrix; for the operands of forward, and dy of backward data. Reduction outermost ("flat"): [32][rows +
 * 8], read by transposing ldmatrix (16-bit) or word by word (tf32); for w of backward data, and both operands
 * of backward weights. Either padding puts the eight 16-byte rows of an ldmatrix, or the 4 x 8 words of a
 * tf32 fragment, into different banks.
 *
 * No thread divides in the loop: a gathered operand needs a position (kept in a table in shared memory) and a
 * tap (one for each thread and k-tile, two multiplications); the element's offset is the sum of their
 * offsets.
 */
#ifndef MFL_KERNELS_CUDA_CONV_CONV_MMA_LOAD_H
#define MFL_KERNELS_CUDA_CONV_CONV_MMA_LOAD_H

#include "kernels/cuda/conv/conv_mma.h"
#include "kernels/cuda/base/mma.h"

/* The specialisation of a kernel; always a constant. */
struct mfl_mma_shape {
        enum mfl_cuda_pass pass;
        enum mfl_precision precision;
        int bm, bn, wm, wn; /* tiles of a block and of a warp */
};

static inline MFL_HD int mma_threads(struct mfl_mma_shape s)
{
        return s.bm / s.wm * (s.bn / s.wn) * 32;
}
static inline MFL_HD int mma_bytes(struct mfl_mma_shape s)
{
        return s.precision == MFL_PRECISION_TF32 ? 4 : 2;
}
static inline MFL_HD bool mma_a_deep(struct mfl_mma_shape s)
{
        return s.pass != MFL_CUDA_BACKWARD_WEIGHTS;
}
static inline MFL_HD bool mma_b_deep(struct mfl_mma_shape s)
{
        return s.pass == MFL_CUDA_FORWARD;
}
/* Elements from one row of shared memory to the next. */
static inline MFL_HD int mma_a_pitch(struct mfl_mma_shape s)
{
        return mma_a_deep(s) ? MFL_MMA_BK + 16 / mma_bytes(s) : s.bm + 8;
}
static inline MFL_HD int mma_b_pitch(struct mfl_mma_shape s)
{
        return mma_b_deep(s) ? MFL_MMA_BK + 16 / mma_bytes(s) : s.bn + 8;
}
static inline MFL_HD int mma_a_bytes(struct mfl_mma_shape s)
{
        return (mma_a_deep(s) ? s.bm : MFL_MMA_BK) * mma_a_pitch(s) * mma_bytes(s);
}
static inline MFL_HD int mma_stage_bytes(struct mfl_mma_shape s)
{
        return mma_a_bytes(s) + (mma_b_deep(s) ? s.bn : MFL_MMA_BK) * mma_b_pitch(s) * mma_bytes(s);
}
/* Positions of the tile's rows, or of the k-tiles in the pipeline. 16 bytes each. */
static inline MFL_HD int mma_table_rows(struct mfl_mma_shape s)
{
        return s.pass == MFL_CUDA_BACKWARD_WEIGHTS ? MFL_MMA_STAGES * MFL_MMA_BK : s.bm;
}
/* Four partial sums of db for each row. */
static inline MFL_HD int mma_db_bytes(struct mfl_mma_shape s)
{
        return s.pass == MFL_CUDA_BACKWARD_WEIGHTS ? 4 * s.bm * 4 : 0;
}
static inline MFL_HD int mma_out_pitch(struct mfl_mma_shape s)
{
        return s.bn + 8;
}
/* The epilogue's floats take the place of the stages. */
static inline MFL_HD int mma_shared_bytes(struct mfl_mma_shape s)
{
        int stages = MFL_MMA_STAGES * mma_stage_bytes(s), out = s.bm * mma_out_pitch(s) * 4;
        return mma_table_rows(s) * 16 + mma_db_bytes(s) + (stages > out ? stages : out);
}

struct mma_position {
        int at; /* element of the tensor, before the tap's offset is added */
        int i, j;
        int unused;
};
struct mma_tap {
        int at, i, j;
};
enum {
        MMA_NOWHERE = -(1 << 30), /* no image reaches there, and two of them do not overflow */
};

MFL_DEVICE struct mma_position mma_position_of(const struct mfl_mma_gather *g, int p)
{
        struct mma_position r = {0, MMA_NOWHERE, MMA_NOWHERE, 0};
        if (p < g->positions) {
                int image = (int)mfl_mma_quotient(g->image, (uint32_t)p);
                int rest = p - image * (int)g->image.d;
                int line = (int)mfl_mma_quotient(g->line, (uint32_t)rest);
                r.i = line * g->mul_i + g->add_i;
                r.j = (rest - line * (int)g->line.d) * g->mul_j + g->add_j;
                r.at = image * g->h * g->w * g->c + (g->strided ? 0 : (r.i * g->w + r.j) * g->c);
        }
        return r;
}

/* `strided` is g->strided, as a constant where possible. */
MFL_DEVICE struct mma_tap mma_tap_of(const struct mfl_mma_gather *g, bool strided, int kk)
{
        int tap = (int)mfl_mma_quotient(g->channels, (uint32_t)kk);
        int line = (int)mfl_mma_quotient(g->columns, (uint32_t)tap);
        struct mma_tap r;
        r.i = line * g->step_i;
        r.j = (tap - line * (int)g->columns.d) * g->step_j;
        r.at = kk - tap * (int)g->channels.d + (strided ? 0 : (r.i * g->w + r.j) * g->c);
        if (kk >= g->taps)
                r.i = MMA_NOWHERE;
        return r;
}

/* Returns an element of the gathered tensor; *ret_there false: outside, zero. */
MFL_DEVICE int mma_gathered(const struct mfl_mma_gather *g, bool strided, struct mma_position p,
        struct mma_tap t, bool *ret_there)
{
        int i = p.i + t.i, j = p.j + t.j;
        if (!strided) {
                *ret_there = (uint32_t)i < (uint32_t)g->h && (uint32_t)j < (uint32_t)g->w;
                return p.at + t.at;
        }
        int qi = (int)mfl_mma_quotient(g->stride_i, (uint32_t)(i < 0 ? 0 : i));
        int qj = (int)mfl_mma_quotient(g->stride_j, (uint32_t)(j < 0 ? 0 : j));
        bool multiple = qi * (int)g->stride_i.d == i && qj * (int)g->stride_j.d == j;
        *ret_there = multiple && qi < g->h && qj < g->w;
        return p.at + t.at + (qi * g->w + qj) * g->c;
}

/* One operand's part of one stage. */
struct mma_fill {
        const unsigned char *from; /* of this group */
        unsigned char *to;
        const struct mma_position *table;
        int first; /* of the block's rows (of a) or columns (of b) */
        int k0;    /* of the reduction */
};

/* Returns the element of the operand at `line`, `column` of its tile in shared memory; *ret_there false:
 * zero. */
MFL_DEVICE int mma_element(const struct mfl_mma_args *a, struct mfl_mma_shape s, bool is_a, bool strided,
        const struct mma_fill *f, struct mma_tap tap, int line, int column, bool *ret_there)
{
        const bool weights = s.pass == MFL_CUDA_BACKWARD_WEIGHTS;
        if (is_a != weights) /* x or dy, gathered: a line is a position, a column a tap */
                return mma_gathered(&a->gather, strided, f->table[line], tap, ret_there);
        if (weights) { /* dy: a line is kk, a column is m */
                int kk = f->k0 + line, m = f->first + column;
                *ret_there = kk < a->kk && m < a->m;
                return kk * a->m + m;
        }
        if (s.pass == MFL_CUDA_FORWARD) { /* w: a line is n, a column is kk */
                int n = f->first + line, kk = f->k0 + column;
                *ret_there = n < a->n && kk < a->kk;
                return n * a->row_weights + kk;
        }
        int kk = f->k0 + line, n = f->first + column; /* w: a line is kk = (r, s, k), a column is n */
        int at = (int)mfl_mma_quotient(a->channels_out, (uint32_t)kk), k = kk - at * (int)a->channels_out.d;
        *ret_there = kk < a->kk && n < a->n;
        return k * a->row_weights + at * a->c + n;
}

/* All threads fill a tile by copies of `width` bytes, four under way at once. Where copies are wide, there
 * are few rounds of four; where they are narrow, rounds are not worth the code. */
MFL_DEVICE void mma_fill_by(const struct mfl_mma_args *a, struct mfl_mma_shape s, bool is_a, bool strided,
        const struct mma_fill *f, int width)
{
        const int bytes = mma_bytes(s), across = is_a ? s.bm : s.bn;
        const bool deep = is_a ? mma_a_deep(s) : mma_b_deep(s);
        const int lines = deep ? across : MFL_MMA_BK, columns = deep ? MFL_MMA_BK : across;
        const int pitch = (is_a ? mma_a_pitch(s) : mma_b_pitch(s)) * bytes;
        const int at_once = width / bytes, per_line = columns / at_once, step = mma_threads(s) / per_line;
        int column = (int)threadIdx.x % per_line * at_once, line0 = (int)threadIdx.x / per_line;
        struct mma_tap tap = {0, 0, 0};
        if (is_a == (s.pass != MFL_CUDA_BACKWARD_WEIGHTS))
                tap = mma_tap_of(&a->gather, strided, (is_a ? f->k0 : f->first) + column);
        unsigned char *to = f->to + line0 * pitch + column * bytes;
        MMA_ROLLED
        for (int done = 0; done < lines; done += 4 * step) {
                uint16_t v[4] = {0};
                MFL_UNROLL
                for (int u = 0; u < 4; u++) {
                        const int first = done + u * step;
                        bool there;
                        if (first >= lines || (lines % step && first + line0 >= lines))
                                continue;
                        int at = mma_element(a, s, is_a, strided, f, tap, first + line0, column, &there);
                        const unsigned char *from = f->from + (int64_t)at * bytes;
                        if (width == 16)
                                mfl_cp_async_16(to + first * pitch, from, there ? 16 : 0);
                        else if (width == 4)
                                mfl_cp_async_4(to + first * pitch, from, there ? 4 : 0);
                        else if (there)
                                v[u] = *(const uint16_t *)from;
                }
                MFL_UNROLL
                for (int u = 0; u < 4 && width == 2; u++) {
                        const int first = done + u * step;
                        if (first < lines && (lines % step == 0 || first + line0 < lines))
                                *(uint16_t *)(to + first * pitch) = v[u];
                }
        }
}

MFL_DEVICE void mma_fill_any(const struct mfl_mma_args *a, struct mfl_mma_shape s, bool is_a, bool strided,
        const struct mma_fill *f)
{
        int width = is_a ? a->a_width : a->b_width;
        if (width == 16)
                mma_fill_by(a, s, is_a, strided, f, 16);
        else if (width == 4 || mma_bytes(s) == 4)
                mma_fill_by(a, s, is_a, strided, f, 4);
        else
                mma_fill_by(a, s, is_a, strided, f, 2);
}

MFL_DEVICE void mma_fill(
        const struct mfl_mma_args *a, struct mfl_mma_shape s, bool is_a, const struct mma_fill *f)
{
        if (is_a && s.pass == MFL_CUDA_BACKWARD_DATA && a->gather.strided)
                mma_fill_any(a, s, is_a, true, f);
        else
                mma_fill_any(a, s, is_a, false, f);
}

#endif
