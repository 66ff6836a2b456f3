/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of whole operands, and tiles at the edges: the same for float and bfloat16. The including file
 * defines GEMM_WORD, the type of what is packed, pack_panel and gemm_tile; `depth` counts words. Part of
 * loops_body.h. */
static void pack_rows(
        const float *a, int64_t a_k, int64_t a_i, int64_t depth, int64_t m, int64_t stride, GEMM_WORD *out)
{
        for (int64_t i = 0; i < m; i += GEMM_ROWS)
                pack_panel(a + i * a_i, a_k, a_i, depth, MFL_MIN(GEMM_ROWS, m - i), GEMM_ROWS,
                        out + i / GEMM_ROWS * stride);
}

static void pack_columns(
        const float *b, int64_t b_k, int64_t b_j, int64_t depth, int64_t n, int64_t stride, GEMM_WORD *out)
{
        for (int64_t j = 0; j < n; j += GEMM_PANEL)
                pack_panel(b + j * b_j, b_k, b_j, depth, MFL_MIN(GEMM_PANEL, n - j), GEMM_PANEL,
                        out + j / GEMM_PANEL * stride);
}

INLINE void gemm_rows(
        const GEMM_WORD *a, const GEMM_WORD *b, int64_t depth, int64_t rows, float *sums, const int nv)
{
        if (rows > 10)
                gemm_tile(a, b, depth, sums, GEMM_ROWS, nv);
        else if (rows > 8)
                gemm_tile(a, b, depth, sums, LANES == 16 ? 10 : 4, nv);
        else if (rows > 4)
                gemm_tile(a, b, depth, sums, LANES == 16 ? 8 : 4, nv);
        else if (rows > 2)
                gemm_tile(a, b, depth, sums, 4, nv);
        else
                gemm_tile(a, b, depth, sums, 2, nv); /* for a batch of 10, after two tiles of 4 */
}

static void gemm_any(const GEMM_WORD *a, const GEMM_WORD *b, int64_t depth, const struct gemm_place *p)
{
        _Alignas(64) float sums[GEMM_ROWS * GEMM_PANEL];
        gemm_fetch(p);
        if (p->cols <= LANES)
                gemm_rows(a, b, depth, p->rows, sums, 1);
        else if (p->cols <= 2 * LANES)
                gemm_rows(a, b, depth, p->rows, sums, 2);
        else
                gemm_rows(a, b, depth, p->rows, sums, GEMM_VECS);
        gemm_finish(p, GEMM_PANEL, sums);
}
