/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of operands rounded to bfloat16, on tiles; part of loops_body.h in place of loops_gemm.h.
 *
 * Packing rounds both sides to nearest even. The left one lies row by row along k, 32 numbers for each step, the right one in
 * panels of 32 columns as pairs along k. Blocks are those of loops_gemm.h. A tile of sums begins with what is at its place, so that
 * an element's sum depends on its depth alone, not on the tile that it is in.
 */
#include "kernels/cpu/loops/bf16/tile.h"

#define GEMM_PANEL 32
#define STEP_PAIRS 16 /* of a tile along k */
#define TILE_WORDS 256

/* Pairs in whole steps. */
INLINE int64_t steps_in(int64_t pairs)
{
        return (pairs + STEP_PAIRS - 1) / STEP_PAIRS * STEP_PAIRS;
}

/* The first n lanes, at most 16; the others are 0, or left as they are. */
INLINE vec load_up_to(const float *p, int64_t n)
{
#ifdef __AVX512BF16__
        return (vec)_mm512_maskz_loadu_ps((__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1u : 0u), p);
#else
        return n >= 16 ? load(p) : n > 0 ? load_part(p, n) : (vec){0};
#endif
}

INLINE void store_up_to(float *p, vec v, int64_t n)
{
#ifdef __AVX512BF16__
        _mm512_mask_storeu_ps(p, (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1u : 0u), (__m512)v);
#else
        if (n > 0)
                store_part(p, v, MFL_MIN(n, 16));
#endif
}

/* Up to 16 pairs of up to 16 vectors along k, each s_i further, one of the strides 1: the pairs of vector i in m[i], or, with
 * s_i == 1, pair i of all. What is not there is 0. */
INLINE void pairs_in_order(
        const float *x, int64_t s_k, int64_t s_i, int64_t depth, int64_t n, vec m[16], const bool whole)
{
        if (s_k == 1) {
                UNROLL for (int64_t i = 0; i < 16; i++)
                {
                        const float *at = x + i * s_i;
                        if (whole)
                                m[i] = pairs_along(load(at), load(at + 16));
                        else
                                m[i] = pairs_along(load_up_to(at, i < n ? depth : 0),
                                        load_up_to(at + 16, i < n ? depth - 16 : 0));
                }
                return;
        }
        UNROLL for (int64_t p = 0; p < 16; p++)
        {
                const float *at = x + 2 * p * s_k;
                if (whole)
                        m[p] = pairs_across(load(at), load(at + s_k));
                else
                        m[p] = pairs_across(load_up_to(at, 2 * p < depth ? n : 0),
                                load_up_to(at + s_k, 2 * p + 1 < depth ? n : 0));
        }
}

/* The same of any strides. */
static void pairs_apart(const float *x, int64_t s_k, int64_t s_i, int64_t depth, int64_t n, vec m[16])
{
        for (int64_t p = 0; p < 16; p++) {
                vec even = {0}, odd = {0};
                const float *at = x + 2 * p * s_k;
                for (int64_t i = 0; i < n && 2 * p < depth; i++) {
                        even[i] = at[i * s_i];
                        odd[i] = 2 * p + 1 < depth ? at[i * s_i + s_k] : 0.0f;
                }
                m[p] = pairs_across(even, odd);
        }
}

/* m[i] has the pairs of vector i, or, not `along`, m[p] pair p of all. */
INLINE void pairs_of(
        const float *x, int64_t s_k, int64_t s_i, int64_t depth, int64_t n, const bool along, vec m[16])
{
        if (s_k != 1 && s_i != 1)
                pairs_apart(x, s_k, s_i, depth, n, m);
        else if (depth == 32 && n == 16)
                pairs_in_order(x, s_k, s_i, depth, n, m, true);
        else
                pairs_in_order(x, s_k, s_i, depth, n, m, false);
        if ((s_k == 1) != along)
                transpose16(m);
}

/* out[i * ld + p] = pair p of row i, for whole steps of pairs and rows. */
static void pack_left(
        const float *a, int64_t a_k, int64_t a_i, int64_t depth, int64_t m, int64_t ld, uint32_t *out)
{
        vec v[16];
        for (int64_t i = 0; i < m; i += 16)
                for (int64_t k = 0; k < depth; k += 32) {
                        pairs_of(a + i * a_i + k * a_k, a_k, a_i, MFL_MIN(depth - k, 32), MFL_MIN(m - i, 16),
                                true, v);
                        UNROLL for (int64_t r = 0; r < 16; r++) store_pairs(out + (i + r) * ld + k / 2, v[r]);
                }
}

/* Panels of 32 columns, `stride` words apart: out[p * 32 + j] = pair p of column j, and 0 past the last column. */
static void pack_columns(
        const float *b, int64_t b_k, int64_t b_j, int64_t depth, int64_t n, int64_t stride, uint32_t *out)
{
        vec v[16];
        for (int64_t j = 0; j < n; j += 16)
                for (int64_t k = 0; k < depth; k += 32) {
                        uint32_t *to = out + j / GEMM_PANEL * stride + k / 2 * GEMM_PANEL + j % GEMM_PANEL;
                        int64_t there = MFL_MIN(depth - k, 32);
                        pairs_of(b + k * b_k + j * b_j, b_k, b_j, there, MFL_MIN(n - j, 16), false, v);
                        for (int64_t p = 0; p < pairs_in(there); p++, to += GEMM_PANEL)
                                store_pairs(to, v[p]);
                }
}

/* Where up to two tiles by two have their sums. */
struct gemm_sums {
        float *at;
        int64_t ld; /* bytes from a row to the next; 0: all rows are alike */
        bool tall, wide;
};

/* sums (0 to 3) += left * right over `steps` tiles along k; tail: the last step of the panel, or NULL. */
INLINE void multiply_tiles(const struct gemm_sums *s, const uint32_t *left, int64_t ld, const uint32_t *right,
        int64_t pairs, const uint32_t *tail)
{
        for (int64_t k = 0; k < pairs; k += STEP_PAIRS) {
                const uint32_t *a = left + k;
                const uint32_t *b = tail && k + STEP_PAIRS > pairs ? tail : right + k * GEMM_PANEL;
                tile_load(4, a, ld);
                tile_load(6, b, 4 * GEMM_PANEL);
                tile_product(0, 4, 6);
                if (s->wide) {
                        tile_load(7, b + 16, 4 * GEMM_PANEL);
                        tile_product(1, 4, 7);
                }
                if (!s->tall)
                        continue;
                tile_load(5, a + 4 * ld, ld);
                tile_product(2, 5, 6);
                if (s->wide)
                        tile_product(3, 5, 7);
        }
}

INLINE void load_sums(const struct gemm_sums *s)
{
        tile_load(0, s->at, s->ld);
        if (s->wide)
                tile_load(1, s->at + 16, s->ld);
        if (s->tall)
                tile_load(2, s->at + 4 * s->ld, s->ld);
        if (s->tall && s->wide)
                tile_load(3, s->at + 4 * s->ld + 16, s->ld);
}

INLINE void store_sums(const struct gemm_sums *s)
{
        tile_store(0, s->at, s->ld);
        if (s->wide)
                tile_store(1, s->at + 16, s->ld);
        if (s->tall)
                tile_store(2, s->at + 4 * s->ld, s->ld);
        if (s->tall && s->wide)
                tile_store(3, s->at + 4 * s->ld + 16, s->ld);
}

/* What a place holds before the product, 0 past its edge; and the other way. */
static void read_place(const struct gemm_place *p, float *sums)
{
        for (int64_t r = 0; r < GEMM_PANEL; r++)
                for (int64_t j = 0; j < GEMM_PANEL; j += 16) {
                        int64_t n = r < p->rows ? p->cols - j : 0;
                        vec before = load_up_to(p->c + r * p->ldc + j, p->add ? n : 0);
                        vec bias = p->bias ? load_up_to(p->bias + j, n) : (vec){0};
                        store(sums + r * GEMM_PANEL + j, before + bias);
                }
}

static void write_place(const struct gemm_place *p, const float *sums)
{
        for (int64_t r = 0; r < p->rows; r++)
                for (int64_t j = 0; j < p->cols; j += 16)
                        store_up_to(p->c + r * p->ldc + j, load(sums + r * GEMM_PANEL + j), p->cols - j);
}

static void gemm_square(const uint32_t *left, int64_t ld, const uint32_t *right, int64_t pairs,
        const uint32_t *tail, const struct gemm_place *p)
{
        _Alignas(64) float edge[GEMM_PANEL * GEMM_PANEL];
        struct gemm_sums s = {p->c, 4 * p->ldc, p->rows > 16, p->cols > 16};
        bool whole = p->rows % 16 == 0 && p->cols % 16 == 0 && !(p->bias && p->add);
        gemm_fetch(p);
        if (!whole) {
                read_place(p, edge);
                s.at = edge;
                s.ld = 4 * GEMM_PANEL;
        }
        if (!whole || p->add) {
                load_sums(&s);
        } else if (p->bias) {
                struct gemm_sums rows = {(float *)(uintptr_t)p->bias, 0, s.tall, s.wide};
                load_sums(&rows);
        } else {
                tile_zero(0);
                tile_zero(1);
                tile_zero(2);
                tile_zero(3);
        }
        multiply_tiles(&s, left, ld, right, pairs, tail);
        store_sums(&s);
        if (!whole)
                write_place(p, edge);
}

/* Columns [first, first + n) and depths [k, k + depth) of the product; b: the packed panel of the first
 * column from depth k on, panels `stride` words apart. */
static void gemm_block(const struct mfl_gemm *g, int64_t k, int64_t depth, int64_t first, int64_t n,
        const uint32_t *b, int64_t stride, uint32_t *work)
{
        _Alignas(64) uint32_t last[STEP_PAIRS * GEMM_PANEL];
        const int64_t pairs = pairs_in(depth), ld = steps_in(pairs), rest = pairs % STEP_PAIRS;
        for (int64_t i = 0; i < g->m; i += MFL_GEMM_HEIGHT) {
                int64_t height = MFL_MIN(MFL_GEMM_HEIGHT, g->m - i);
                pack_left(g->a + i * g->a_i + k * g->a_k, g->a_k, g->a_i, depth, height, ld, work);
                for (int64_t j = 0; j < n; j += GEMM_PANEL) {
                        const uint32_t *panel = b + j / GEMM_PANEL * stride;
                        if (rest) {
                                memcpy(last, panel + (pairs - rest) * GEMM_PANEL,
                                        (size_t)(rest * GEMM_PANEL) * 4);
                                memset(last + rest * GEMM_PANEL, 0,
                                        (size_t)((STEP_PAIRS - rest) * GEMM_PANEL) * 4);
                        }
                        for (int64_t r = 0; r < height; r += GEMM_PANEL) {
                                struct gemm_place p = {.c = g->c + (i + r) * g->ldc + first + j,
                                        .ldc = g->ldc,
                                        .rows = MFL_MIN(GEMM_PANEL, height - r),
                                        .cols = MFL_MIN(GEMM_PANEL, n - j),
                                        .bias = g->bias && k == 0 ? g->bias + first + j : NULL,
                                        .add = g->add || k > 0};
                                gemm_square(work + r * ld, 4 * ld, panel, pairs, rest ? last : NULL, &p);
                        }
                }
        }
}

#include "kernels/cpu/loops/bf16/gemm_pairs.h"
