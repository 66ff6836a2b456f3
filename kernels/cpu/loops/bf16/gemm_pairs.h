/* SPDX-License-Identifier: Apache-2.0 */
/* Whole products of operands rounded to bfloat16, block by block; part of loops_body.h. The including file defines GEMM_PANEL,
 * pack_columns, gemm_block, and what begins and ends the use of tiles. */

/* Blocks hold whole pairs. */
static int64_t pair_depth_of(int64_t k)
{
        return (depth_of(k) + 1) / 2 * 2;
}

static void gemm(const struct mfl_gemm *g, float *work)
{
        int64_t block = pair_depth_of(g->k), width = width_of(g->n, GEMM_PANEL);
        uint32_t *rows = (uint32_t *)work, *columns = rows + MFL_GEMM_HEIGHT * MFL_GEMM_DEPTH;
        tiles_begin();
        for (int64_t j = 0; j < g->n; j += width)
                for (int64_t k = 0; k < g->k; k += block) {
                        int64_t n = MFL_MIN(width, g->n - j), depth = MFL_MIN(block, g->k - k);
                        int64_t stride = pairs_in(depth) * GEMM_PANEL;
                        pack_columns(
                                g->b + k * g->b_k + j * g->b_j, g->b_k, g->b_j, depth, n, stride, columns);
                        gemm_block(g, k, depth, j, n, columns, stride, rows);
                }
        tiles_end();
}

static void gemm_pack(int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_j, float *packed)
{
        pack_columns(b, b_k, b_j, k, n, pairs_in(k) * GEMM_PANEL, (uint32_t *)packed);
}

/* `row` is even; so is g->k, except where it ends with the packed rows. */
static void gemm_packed(
        const struct mfl_gemm *g, const float *packed, int64_t packed_k, int64_t row, float *work)
{
        int64_t block = pair_depth_of(g->k);
        mfl_assert(row % 2 == 0 && (g->k % 2 == 0 || row + g->k == packed_k));
        tiles_begin();
        for (int64_t k = 0; k < g->k; k += block)
                gemm_block(g, k, MFL_MIN(block, g->k - k), 0, g->n,
                        (const uint32_t *)packed + (row + k) / 2 * GEMM_PANEL,
                        pairs_in(packed_k) * GEMM_PANEL, (uint32_t *)work);
        tiles_end();
}
