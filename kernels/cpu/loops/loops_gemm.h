/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with any strides; part of loops_body.h.
 *
 * Both sides are packed into panels, GEMM_ROWS of a and GEMM_VECS vectors of b wide; a tile of the result in
 * registers runs along them (Goto and van de Geijn 2008). k is cut into equal blocks of at most
 * MFL_GEMM_DEPTH. An element is the sum of its blocks' sums, in order, whatever m, n and the threads are.
 */

#define GEMM_ROWS (LANES == 16 ? 12 : 4)
#define GEMM_VECS (LANES == 16 ? 2 : 3)
#define GEMM_PANEL (GEMM_VECS * LANES)

/* out[k * width + j] = element (k, j) of b for j < n, and 0 for the rest of a panel. */
INLINE void pack_panel(
        const float *b, int64_t b_k, int64_t b_j, int64_t depth, int64_t n, const int width, float *out)
{
        int64_t j = 0;
        if (b_j == 1 && n == width) {
                for (int64_t k = 0; k < depth; k++)
                        memcpy(out + k * width, b + k * b_k, (size_t)width * sizeof *out);
                return;
        }
        for (; b_k == 1 && j + 4 <= n; j += 4) {
                const float *from = b + j * b_j;
                int64_t k = 0;
                for (; k + 4 <= depth; k += 4) {
                        vec4 r0 = load4(from + k), r1 = load4(from + b_j + k);
                        vec4 r2 = load4(from + 2 * b_j + k), r3 = load4(from + 3 * b_j + k);
                        float *to = out + k * width + j;
                        transpose4(&r0, &r1, &r2, &r3);
                        store4(to, r0);
                        store4(to + width, r1);
                        store4(to + 2 * width, r2);
                        store4(to + 3 * width, r3);
                }
                for (; k < depth; k++)
                        for (int64_t i = 0; i < 4; i++)
                                out[k * width + j + i] = from[i * b_j + k];
        }
        for (int64_t k = 0; k < depth; k++)
                for (int64_t i = j; i < width; i++)
                        out[k * width + i] = i < n ? b[k * b_k + i * b_j] : 0.0f;
}

/* The sums leave through memory: conditions here would cost the compiler its registers. */
INLINE void gemm_tile(const float *a, const float *b, int64_t depth, float *sums, const int nr, const int nv)
{
        vec acc[GEMM_ROWS][GEMM_VECS];
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++) acc[r][v] = (vec){0};
        for (int64_t k = 0; k < depth; k++, a += GEMM_ROWS, b += GEMM_PANEL) {
                vec bk[GEMM_VECS];
                UNROLL for (int v = 0; v < nv; v++) bk[v] = load(b + v * LANES);
                UNROLL for (int r = 0; r < nr; r++)
                {
                        vec ak = splat(a[r]);
                        UNROLL for (int v = 0; v < nv; v++) acc[r][v] += ak * bk[v];
                }
        }
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
                store(sums + r * GEMM_PANEL + v * LANES, acc[r][v]);
}

/* The same for a whole tile whose rows of a lie along k, `stride` apart; they are read in place. One base and
 * one index register reach three rows per pointer. What is ahead is fetched in small portions, which the
 * processor hides behind the products. */
INLINE void gemm_tile_direct(const float *a, int64_t stride, const float *b, int64_t depth,
        struct gemm_ahead *ahead, float *sums, const int nv)
{
        vec acc[GEMM_ROWS][GEMM_VECS];
        const float *row[(GEMM_ROWS + 2) / 3];
        UNROLL for (int g = 0; g < (GEMM_ROWS + 2) / 3; g++) row[g] = a + 3 * g * stride;
        UNROLL for (int r = 0; r < GEMM_ROWS; r++) UNROLL for (int v = 0; v < nv; v++) acc[r][v] = (vec){0};
        for (int64_t k = 0; k < depth;) {
                int64_t end = MFL_MIN(k + AHEAD_STEPS, depth);
                gemm_look_ahead(ahead);
                for (; k < end; k++, b += GEMM_PANEL) {
                        vec bk[GEMM_VECS];
                        UNROLL for (int v = 0; v < nv; v++) bk[v] = load(b + v * LANES);
                        UNROLL for (int r = 0; r < GEMM_ROWS; r++)
                        {
                                vec ak = splat(row[r / 3][r % 3 * stride]);
                                UNROLL for (int v = 0; v < nv; v++) acc[r][v] += ak * bk[v];
                        }
                        UNROLL for (int g = 0; g < (GEMM_ROWS + 2) / 3; g++) row[g]++;
                }
        }
        UNROLL for (int r = 0; r < GEMM_ROWS; r++) UNROLL for (int v = 0; v < nv; v++)
                store(sums + r * GEMM_PANEL + v * LANES, acc[r][v]);
}

static void gemm_direct(const float *a, int64_t stride, const float *b, int64_t depth,
        struct gemm_ahead *ahead, const struct gemm_place *p)
{
        _Alignas(64) float sums[GEMM_ROWS * GEMM_PANEL];
        gemm_fetch(p);
        if (p->cols <= LANES)
                gemm_tile_direct(a, stride, b, depth, ahead, sums, 1);
        else if (p->cols <= 2 * LANES)
                gemm_tile_direct(a, stride, b, depth, ahead, sums, 2);
        else
                gemm_tile_direct(a, stride, b, depth, ahead, sums, GEMM_VECS);
        gemm_finish(p, GEMM_PANEL, sums);
}

#define GEMM_WORD float
#include "kernels/cpu/loops/loops_gemm_rows.h"

/* Columns [first, first + n) and depths [k, k + depth) of the product; b: the packed panel of the first
 * column from depth k on, panels `stride` floats apart. Meanwhile fetches what is ahead. */
static void gemm_block(const struct mfl_gemm *g, int64_t k, int64_t depth, int64_t first, int64_t n,
        const float *b, int64_t stride, struct gemm_ahead *ahead, float *work)
{
        for (int64_t i = 0; i < g->m; i += MFL_GEMM_HEIGHT) {
                int64_t height = MFL_MIN(MFL_GEMM_HEIGHT, g->m - i);
                int64_t direct = g->a_k == 1 ? height / GEMM_ROWS * GEMM_ROWS : 0;
                const float *a = g->a + i * g->a_i + k * g->a_k;
                pack_rows(
                        a + direct * g->a_i, g->a_k, g->a_i, depth, height - direct, depth * GEMM_ROWS, work);
                for (int64_t j = 0; j < n; j += GEMM_PANEL)
                        for (int64_t r = 0; r < height; r += GEMM_ROWS) {
                                const float *panel = b + j / GEMM_PANEL * stride;
                                struct gemm_place p = {.c = g->c + (i + r) * g->ldc + first + j,
                                        .ldc = g->ldc,
                                        .rows = MFL_MIN(GEMM_ROWS, height - r),
                                        .cols = MFL_MIN(GEMM_PANEL, n - j),
                                        .bias = g->bias && k == 0 ? g->bias + first + j : NULL,
                                        .add = g->add || k > 0};
                                if (r < direct)
                                        gemm_direct(a + r * g->a_i, g->a_i, panel, depth, ahead, &p);
                                else
                                        gemm_any(work + (r - direct) * depth, panel, depth, &p);
                        }
        }
}

#include "kernels/cpu/loops/loops_gemm_turned.h"

static void gemm(const struct mfl_gemm *g, float *work)
{
        if (is_turned(g)) {
                gemm_turned(g, work);
                return;
        }
        int64_t block = depth_of(g->k), width = width_of(g->n, GEMM_PANEL);
        float *columns = work + MFL_GEMM_HEIGHT * MFL_GEMM_DEPTH;
        for (int64_t j = 0; j < g->n; j += width)
                for (int64_t k = 0; k < g->k; k += block) {
                        int64_t n = MFL_MIN(width, g->n - j), depth = MFL_MIN(block, g->k - k);
                        pack_columns(g->b + k * g->b_k + j * g->b_j, g->b_k, g->b_j, depth, n,
                                depth * GEMM_PANEL, columns);
                        struct gemm_ahead ahead = ahead_of_b(g, j, n, k, depth);
                        gemm_block(g, k, depth, j, n, columns, depth * GEMM_PANEL, &ahead, work);
                }
}

static void gemm_pack(int64_t k, int64_t n, const float *b, int64_t b_k, int64_t b_j, float *packed)
{
        pack_columns(b, b_k, b_j, k, n, k * GEMM_PANEL, packed);
}

static void gemm_packed(
        const struct mfl_gemm *g, const float *packed, int64_t packed_k, int64_t row, float *work)
{
        int64_t block = depth_of(g->k);
        struct gemm_ahead nothing = {0};
        for (int64_t k = 0; k < g->k; k += block)
                gemm_block(g, k, MFL_MIN(block, g->k - k), 0, g->n, packed + (row + k) * GEMM_PANEL,
                        packed_k * GEMM_PANEL, &nothing, work);
}
