/* SPDX-License-Identifier: Apache-2.0 */
/* What the two families of mfl_cuda_matmul share (ops_matmul.cu: fmaf; ops_matmul_mma.cu: tensor cores):
 * which tile of which pair a block computes, and how a sum becomes the result. */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_MATMUL_H
#define MFL_KERNELS_CUDA_OPS_OPS_MATMUL_H

#include "kernels/cuda/ops/ops_common.h"
#include "kernels/cuda/ops/ops_sequence.h"

struct matmul_place {
        int i, j;        /* the tile's first row and column */
        int64_t a, b, c; /* where the pair's matrices begin */
};

MFL_DEVICE int64_t matmul_pair_at(const struct mfl_cuda_matrix *x, int pair, int inner)
{
        return (int64_t)blockIdx.y * x->group + pair / inner * x->outer + pair % inner * x->inner;
}

MFL_DEVICE struct matmul_place matmul_place_of(const struct mfl_cuda_matmul *v, int tile_m, int tile_n)
{
        int across = (v->n + tile_n - 1) / tile_n, tiles = (v->m + tile_m - 1) / tile_m * across;
        int pair = (int)(blockIdx.x / (uint32_t)tiles), tile = (int)(blockIdx.x % (uint32_t)tiles);
        struct matmul_place at;
        at.i = tile / across * tile_m;
        at.j = tile % across * tile_n;
        at.a = matmul_pair_at(&v->a, pair, v->inner);
        at.b = matmul_pair_at(&v->b, pair, v->inner);
        at.c = matmul_pair_at(&v->c, pair, v->inner);
        return at;
}

/* One operand, as the product sees it: `other` is its row (of a) or column (of b). Index k lies at k * step.
 */
struct matmul_operand {
        const struct mfl_cuda_matrix *x;
        int64_t base, step_other, step;
        int end_other, end, first_other;
};

MFL_DEVICE struct matmul_operand matmul_operand_of(
        const struct mfl_cuda_matmul *v, const struct matmul_place *at, bool is_a)
{
        struct matmul_operand o;
        o.x = is_a ? &v->a : &v->b;
        o.base = is_a ? at->a : at->b;
        o.step_other = is_a ? v->a.row : v->b.column;
        o.step = is_a ? v->a.column : v->b.row;
        o.first_other = is_a ? at->i : at->j;
        o.end_other = is_a ? v->m : v->n;
        o.end = v->k;
        return o;
}

MFL_DEVICE int64_t matmul_at(const struct matmul_operand *o, int other, int k)
{
        return o->base + (o->first_other + other) * o->step_other + k * o->step;
}

MFL_DEVICE bool matmul_inside(const struct matmul_operand *o, int other, int k)
{
        return o->first_other + other < o->end_other && k < o->end;
}

/* Element (i, j) of the block's tile. */
MFL_DEVICE void matmul_give(
        const struct mfl_cuda_matmul *v, const struct matmul_place *at, int i, int j, float sum)
{
        int64_t to = at->c + (at->i + i) * v->c.row + (at->j + j) * v->c.column;
        float x = v->alpha * sum;
        if (at->i + i < v->m && at->j + j < v->n)
                mfl_store(v->c.p, to, v->add ? mfl_load(v->c.p, to, v->c.type) + x : x, v->c.type);
}

/* Tiles of 64 x 64 where they are worth it, else 32 x 32: the bits are the same. */
static inline int matmul_tile(const struct mfl_cuda_matmul *a)
{
        return a->m > 32 && a->n > 32 ? 64 : 32;
}

#ifdef __cplusplus
extern "C" {
#endif
/* Requires that a->precision is not fp32, and that all three matrices have its type. blocks: along the grid's
 * x. */
cudaError_t mfl_cuda_matmul_mma(
        const struct mfl_cuda_matmul *a, int tile, uint32_t blocks, cudaStream_t stream);
#ifdef __cplusplus
}
#endif
#endif
