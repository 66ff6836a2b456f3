/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many small matrices of any strides: a block makes 32 x 32 elements of one of them, through 32
 * columns and rows at a time in shared memory. */
#include "kernels/cuda/ops_common.h"
#include "kernels/cuda/ops_sequence.h"

#define TILE 32
#define EACH (TILE * TILE / MFL_OPS_THREADS) /* elements of a thread */

struct tile_place {
        int i, j;        /* the tile's first row and column */
        int64_t a, b, c; /* where the pair's matrices begin */
};

MFL_DEVICE int64_t pair_at(const struct mfl_cuda_matrix *x, int pair, int inner)
{
        return (int64_t)blockIdx.y * x->group + pair / inner * x->outer + pair % inner * x->inner;
}

MFL_DEVICE struct tile_place tile_place(const struct mfl_cuda_matmul *v)
{
        int across = (v->n + TILE - 1) / TILE, tiles = (v->m + TILE - 1) / TILE * across;
        int pair = (int)(blockIdx.x / (uint32_t)tiles), tile = (int)(blockIdx.x % (uint32_t)tiles);
        struct tile_place at;
        at.i = tile / across * TILE;
        at.j = tile % across * TILE;
        at.a = pair_at(&v->a, pair, v->inner);
        at.b = pair_at(&v->b, pair, v->inner);
        at.c = pair_at(&v->c, pair, v->inner);
        return at;
}

/* Steps of index k of a product: its own, or those of its two parts. */
MFL_DEVICE int64_t k_at(int k, int split, int64_t outer, int64_t step)
{
        return split ? k / split * outer + k % split * step : k * step;
}

/* Neighbouring threads take what lies together: along k, or across. s is [k][other]. */
MFL_DEVICE void load_tile(float (*s)[TILE + 1], const struct mfl_cuda_matrix *x, int64_t base, int first,
        int end, int64_t step, int k_first, int k_end, int split, int64_t outer, int64_t k_step)
{
        bool along = k_step == 1;
        MFL_UNROLL
        for (int e = 0; e < EACH; e++) {
                int t = (int)threadIdx.x + e * MFL_OPS_THREADS;
                int kk = along ? t % TILE : t / TILE, o = along ? t / TILE : t % TILE;
                bool inside = k_first + kk < k_end && first + o < end;
                int64_t at = base + (first + o) * step + k_at(k_first + kk, split, outer, k_step);
                s[kk][o] = inside ? mfl_load(x->p, at, x->type) : 0.0f;
        }
}

MFL_KERNEL_BOUNDS(matmul, struct mfl_cuda_matmul, MFL_OPS_THREADS, 2)
{
        MFL_SHARED(float, sa, TILE *(TILE + 1));
        MFL_SHARED(float, sb, TILE *(TILE + 1));
        float(*ta)[TILE + 1] = (float(*)[TILE + 1]) sa, (*tb)[TILE + 1] = (float(*)[TILE + 1]) sb;
        if (mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        struct tile_place at = tile_place(&a);
        int j = (int)threadIdx.x % TILE, i = (int)threadIdx.x / TILE * EACH;
        float sum[EACH] = {0.0f};
        for (int k = 0; k < a.k; k += TILE) {
                int n = a.k - k < TILE ? a.k - k : TILE;
                load_tile(ta, &a.a, at.a, at.i, a.m, a.a.row, k, a.k, a.split, a.a_outer_k, a.a.column);
                load_tile(tb, &a.b, at.b, at.j, a.n, a.b.column, k, a.k, a.split, a.b_outer_k, a.b.row);
                MFL_SYNC();
                for (int kk = 0; kk < n; kk++) {
                        MFL_UNROLL
                        for (int e = 0; e < EACH; e++)
                                sum[e] = fmaf(ta[kk][i + e], tb[kk][j], sum[e]);
                }
                MFL_SYNC();
        }
        MFL_UNROLL
        for (int e = 0; e < EACH; e++) {
                int64_t to = at.c + (at.i + i + e) * a.c.row + (at.j + j) * a.c.column;
                if (at.i + i + e >= a.m || at.j + j >= a.n)
                        continue;
                float v = a.alpha * sum[e];
                mfl_store(a.c.p, to, a.add ? mfl_load(a.c.p, to, a.c.type) + v : v, a.c.type);
        }
}

MFL_HOST cudaError_t mfl_cuda_matmul(const struct mfl_cuda_matmul *a, cudaStream_t stream)
{
        int64_t tiles = mfl_blocks(a->m, TILE) * mfl_blocks(a->n, TILE) * a->outer * a->inner;
        if (a->groups < 1 || a->groups > 65535 || a->m < 1 || a->n < 1 || a->k < 0 || a->outer < 1 ||
                a->inner < 1 || tiles >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        return mfl_launch((const void *)(matmul), (uint32_t)tiles, (uint32_t)a->groups, 1, MFL_OPS_THREADS, 0,
                stream, a);
}
