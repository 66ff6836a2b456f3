/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the rows of a [rows][c] matrix, for gradients of biases and for normalisation.
 *
 * A block of 256 threads takes a tile of units (packs of channels) and a chunk of rows; its threads are
 * `lanes` times the tile. The order of every such sum is a function of rows, c and the element type alone:
 * - lane l of a chunk adds its rows l, l + lanes, ... one after another;
 * - a tree joins the lanes: for s = the powers of two below lanes, from the largest on, lane l < s takes in
 *   lane l + s where there is one;
 * - another kernel joins the chunks in the same way: 32 lanes take chunks l, l + 32, ..., then the same tree.
 * With S = ceil(chunk rows / lanes) + ceil(chunks / 32) + log2(lanes) + 5 roundings on the way of any term,
 * the error of a float sum is below S * 2^-24 * sum |term|.
 */
#ifndef MFL_KERNELS_CUDA_OPS_OPS_COLUMNS_H
#define MFL_KERNELS_CUDA_OPS_OPS_COLUMNS_H

#include "kernels/cuda/ops/ops_common.h"

#define MFL_CHUNK_LANES 32
#define MFL_CHUNK_TILE (MFL_OPS_THREADS / MFL_CHUNK_LANES)

struct mfl_columns {
        int width; /* channels of a unit */
        int units, tile, tiles, lanes, chunks;
        int64_t rows, chunk_rows; /* of a whole batch */
};

/* Narrow tiles and one block for all rows where that takes few turns, so that one launch is enough; otherwise
 * many chunks, with about 8 rows for each lane. Both limits weigh waiting for memory against launches;
 * neither has been measured on a device yet. */
static inline struct mfl_columns mfl_columns_of(int64_t rows, int c, enum mfl_cuda_type type)
{
        struct mfl_columns plan;
        plan.width = c % mfl_pack_width(type) == 0 ? mfl_pack_width(type) : 1;
        plan.units = c / plan.width;
        plan.rows = rows;
        plan.chunks = 1;
        plan.tile = MFL_MIN(plan.units, plan.width > 1 ? 2 : 8);
        plan.lanes = MFL_OPS_THREADS / plan.tile;
        if (rows > (int64_t)plan.lanes * 16) {
                plan.tile = plan.units <= 64 ? plan.units : 32;
                plan.lanes = MFL_OPS_THREADS / plan.tile;
                int64_t chunks = rows / (plan.lanes * 8);
                plan.chunks = (int)MFL_MAX(2, MFL_MIN(chunks, 512));
        }
        plan.chunk_rows = mfl_blocks(rows, plan.chunks);
        plan.chunks = (int)mfl_blocks(rows, plan.chunk_rows);
        plan.tiles = (plan.units + plan.tile - 1) / plan.tile;
        return plan;
}

/* What a thread works on. lane < 0: it has no work, though it must reach the barriers. */
struct mfl_columns_place {
        int unit, lane, slot; /* slot: the unit within the tile */
        int chunk;
        int64_t first, end; /* rows of the chunk that exist below `rows` */
};

MFL_DEVICE struct mfl_columns_place mfl_columns_place(const struct mfl_columns *plan, int64_t rows)
{
        struct mfl_columns_place at;
        int tile = (int)(blockIdx.x % (uint32_t)plan->tiles);
        at.chunk = (int)(blockIdx.x / (uint32_t)plan->tiles);
        at.slot = (int)threadIdx.x % plan->tile;
        at.lane = (int)threadIdx.x / plan->tile;
        at.unit = tile * plan->tile + at.slot;
        if (at.lane >= plan->lanes || at.unit >= plan->units)
                at.lane = -1;
        at.first = at.chunk * plan->chunk_rows;
        at.end = at.first + plan->chunk_rows < rows ? at.first + plan->chunk_rows : rows;
        return at;
}

/* The distance of the tree's first step: the largest power of two below lanes, 0 for one lane. */
static inline MFL_HD int mfl_tree_half(int lanes)
{
        int half = 1;
        while (half < lanes)
                half *= 2;
        return half / 2;
}

/* Joins n values of all lanes of each slot; part is shared, [n][256]. Afterwards lane 0's sums are in part[k
 * * 256 + slot]. All threads of the block must call it. */
MFL_DEVICE void mfl_columns_tree(float *part, const float *v, int n, int slot, int lane, int tile, int lanes)
{
        int t = lane * tile + slot;
        if (lane >= 0)
                for (int k = 0; k < n; k++)
                        part[k * MFL_OPS_THREADS + t] = v[k];
        MFL_SYNC();
        for (int s = mfl_tree_half(lanes); s > 0; s /= 2) {
                if (lane >= 0 && lane < s && lane + s < lanes)
                        for (int k = 0; k < n; k++)
                                part[k * MFL_OPS_THREADS + t] += part[k * MFL_OPS_THREADS + t + s * tile];
                MFL_SYNC();
        }
}

/* to[q][g * stride + c] = sum over chunks of from[g][chunk][q][c], in the order above; the sum also goes to
 * copy[g][q][c] where that is not NULL. chunks may be anything, such as the rows of a batch. */
struct mfl_sum_chunks {
        const float *from;
        float *to[2];
        float *copy;
        uint64_t stride;
        int groups, chunks, quantities, c;
        struct mfl_cuda_steps steps;
};
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t mfl_cuda_sum_chunks(const struct mfl_sum_chunks *a, cudaStream_t stream);
#ifdef __cplusplus
}
#endif

#endif
