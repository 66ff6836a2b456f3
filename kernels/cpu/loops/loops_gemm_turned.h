/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with a large matrix, such as a sequence with the weights of a language model; part of
 * loops_body.h.
 *
 * Packing a large b costs as much as a tenth of the product then, and waits for the memory. Where b's columns
 * lie along k, the transpose of the result is computed instead: its rows are b's columns, which tiles read in
 * place, and only the few rows of a are packed. Elsewhere the lines of the next block are fetched while the tiles
 * of this one are computed. Elements are the same sums in the same order, and so have the same bits.
 */

#define TURNED_ROWS_MIN 24
#define TURNED_ROWS_MAX 128                      /* of a */
#define TURNED_FLOATS_MIN ((int64_t)256 * 1024)  /* of b: fewer stay in the cache */
#define AHEAD_ROWS_MAX 256                       /* of a; more hide the waiting by themselves */
#define TURNED_EDGE (MFL_GEMM_DEPTH * GEMM_ROWS) /* floats for rows that fill no tile */
#define TURNED_PACKED (MFL_GEMM_DEPTH * TURNED_ROWS_MAX)

/* Columns of b whose products with all of a fit into the working floats, beside the packed rows. */
#define TURNED_HEIGHT                                                                                        \
        ((MFL_GEMM_WORK - TURNED_EDGE - TURNED_PACKED) / TURNED_ROWS_MAX / MFL_GEMM_HEIGHT * MFL_GEMM_HEIGHT)

static bool is_large(const struct mfl_gemm *g)
{
        return g->k * g->n >= TURNED_FLOATS_MIN;
}

static bool is_turned(const struct mfl_gemm *g)
{
        return g->b_k == 1 && g->b_j != 1 && !g->add && g->m >= TURNED_ROWS_MIN && g->m <= TURNED_ROWS_MAX &&
               g->n >= 2 * g->m && is_large(g);
}

/* The lines of `rows` rows of `floats` floats each, to be fetched by tiles of that depth. */
static struct gemm_ahead ahead_of(
        const float *at, int64_t stride, int64_t rows, int64_t floats, int64_t tiles, int64_t depth)
{
        int64_t lines = rows * (floats / 16 + 1), looks = tiles * ((depth + AHEAD_STEPS - 1) / AHEAD_STEPS);
        return (struct gemm_ahead){at, stride, rows, floats, 0, MFL_MIN(lines / looks + 1, AHEAD_LINES_MAX)};
}

/* The block of b after columns [j, j + n) and depths [k, k + depth). */
static struct gemm_ahead ahead_of_b(const struct mfl_gemm *g, int64_t j, int64_t n, int64_t k, int64_t depth)
{
        int64_t tiles = (g->m + GEMM_ROWS - 1) / GEMM_ROWS * ((n + GEMM_PANEL - 1) / GEMM_PANEL);
        int64_t own = depth;
        k += depth;
        if (k >= g->k) {
                k = 0;
                j += n;
        }
        if (!is_large(g) || g->m > AHEAD_ROWS_MAX || j >= g->n)
                return (struct gemm_ahead){0};
        n = MFL_MIN(n, g->n - j);
        depth = MFL_MIN(depth, g->k - k);
        const float *at = g->b + k * g->b_k + j * g->b_j;
        if (g->b_k == 1)
                return ahead_of(at, g->b_j, n, depth, tiles, own);
        return g->b_j == 1 ? ahead_of(at, g->b_k, depth, n, tiles, own) : (struct gemm_ahead){0};
}

/* Rows [i, i + n) of the turned product over depths [k, k + depth). */
static void turned_block(const struct mfl_gemm *t, int64_t i, int64_t n, int64_t k, int64_t depth,
        const float *packed, float *work)
{
        int64_t panels = (t->n + GEMM_PANEL - 1) / GEMM_PANEL;
        for (int64_t r = 0; r < n; r += MFL_GEMM_HEIGHT) {
                struct mfl_gemm part = *t;
                part.m = MFL_MIN(MFL_GEMM_HEIGHT, n - r);
                part.a += (i + r) * t->a_i;
                part.c += r * t->ldc;
                int64_t tiles = panels * ((part.m + GEMM_ROWS - 1) / GEMM_ROWS);
                int64_t next = i + r + part.m, rest = MFL_MIN(MFL_GEMM_HEIGHT, t->m - next);
                struct gemm_ahead ahead = {0};
                if (r + part.m >= n && k + depth < t->k)
                        ahead = ahead_of(t->a + i * t->a_i + k + depth, t->a_i, MFL_MIN(MFL_GEMM_HEIGHT, n),
                                MFL_MIN(depth, t->k - k - depth), tiles, depth);
                else if (rest > 0)
                        ahead = ahead_of(t->a + next * t->a_i + (r + part.m >= n ? 0 : k), t->a_i, rest,
                                depth, tiles, depth);
                gemm_block(&part, k, depth, 0, t->n, packed, depth * GEMM_PANEL, &ahead, work);
        }
}

/* A few rows of the turned product become columns of c, whole lines of it at a time. */
static void turn_rows(const float *t, int64_t ldt, int64_t rows, int64_t m, float *c, int64_t ldc)
{
        int64_t whole = rows / 4 * 4, j = 0;
        for (; j + 4 <= m; j += 4)
                for (int64_t r = 0; r < whole; r += 4) {
                        const float *from = t + r * ldt + j;
                        float *to = c + j * ldc + r;
                        vec4 r0 = load4(from), r1 = load4(from + ldt);
                        vec4 r2 = load4(from + 2 * ldt), r3 = load4(from + 3 * ldt);
                        transpose4(&r0, &r1, &r2, &r3);
                        store4(to, r0);
                        store4(to + ldc, r1);
                        store4(to + 2 * ldc, r2);
                        store4(to + 3 * ldc, r3);
                }
        for (int64_t e = 0; e < m; e++)
                for (int64_t r = e < j ? whole : 0; r < rows; r++)
                        c[e * ldc + r] = t[r * ldt + e];
}

static void add_to_rows(const float *bias, int64_t rows, int64_t m, float *t, int64_t ldt)
{
        for (int64_t r = 0; r < rows; r++)
                for (int64_t j = 0; j < m; j++)
                        t[r * ldt + j] += bias[r];
}

static void gemm_turned(const struct mfl_gemm *g, float *work)
{
        int64_t block = depth_of(g->k), ldt = (g->m + LANES - 1) / LANES * LANES;
        float *packed = work + TURNED_EDGE, *t = packed + TURNED_PACKED;
        struct mfl_gemm turned = {
                .m = g->n, .n = g->m, .k = g->k, .a = g->b, .a_i = g->b_j, .a_k = 1, .c = t, .ldc = ldt};
        for (int64_t i = 0; i < g->n; i += TURNED_HEIGHT) {
                int64_t n = MFL_MIN(TURNED_HEIGHT, g->n - i);
                for (int64_t k = 0; k < g->k; k += block) {
                        int64_t depth = MFL_MIN(block, g->k - k);
                        pack_columns(
                                g->a + k * g->a_k, g->a_k, g->a_i, depth, g->m, depth * GEMM_PANEL, packed);
                        turned_block(&turned, i, n, k, depth, packed, work);
                        if (k == 0 && g->bias)
                                add_to_rows(g->bias + i, n, g->m, t, ldt);
                }
                for (int64_t r = 0; r < n; r += MFL_GEMM_HEIGHT)
                        turn_rows(t + r * ldt, ldt, MFL_MIN(MFL_GEMM_HEIGHT, n - r), g->m, g->c + i + r,
                                g->ldc);
        }
}
