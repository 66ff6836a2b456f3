/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of the rows and columns that there are, of packed operands: the same for float and bfloat16. The
 * including file has GEMM_WORD, the type of what is packed, and gemm_tile; `depth` counts words. Part of
 * loops_body.h. */
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
                gemm_tile(a, b, depth, sums, 2, nv); /* of a batch of 10 behind two tiles of 4 */
}

static void gemm_any(const GEMM_WORD *a, const GEMM_WORD *b, int64_t depth, const struct gemm_place *p)
{
        _Alignas(64) float sums[GEMM_ROWS * GEMM_PANEL];
        if (p->cols <= LANES)
                gemm_rows(a, b, depth, p->rows, sums, 1);
        else if (p->cols <= 2 * LANES)
                gemm_rows(a, b, depth, p->rows, sums, 2);
        else
                gemm_rows(a, b, depth, p->rows, sums, GEMM_VECS);
        gemm_finish(p, GEMM_PANEL, sums);
}
