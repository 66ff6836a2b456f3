/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of operands rounded to bfloat16; part of loops_body.h in place of loops_gemm.h.
 *
 * Packing rounds both sides to nearest even and puts two neighbours along k into a lane, as the processor's
 * product of pairs (VDPBF16PS) wants them: the even one in the low half. Sums are float: a lane adds its
 * pair's odd product, then the even one, then goes on along k. Blocks, and what an element's sum depends on,
 * are those of loops_gemm.h. Without that instruction, float products do the same; they hold the product of
 * two bfloat16 exactly. The only difference: the instructions treat numbers below 2^-126 as 0.
 */
#include "kernels/cpu/base/bf16.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define GEMM_ROWS (LANES == 16 ? 12 : 4)
#define GEMM_VECS (LANES == 16 ? 2 : 3)
#define GEMM_PANEL (GEMM_VECS * LANES)

typedef uint32_t vec_pairs __attribute__((vector_size(LANES * 4)));
typedef uint32_t vec_pairs_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t pairs4 __attribute__((vector_size(16)));

INLINE uint32_t pair_of(float even, float odd)
{
        return mfl_bf16_bits(even) >> 16 | mfl_bf16_bits(odd);
}

/* mfl_bf16_bits of four numbers. */
INLINE pairs4 bits4(vec4 v)
{
        pairs4 u, nan;
        memcpy(&u, &v, sizeof u);
        nan = (pairs4)((u & 0x7fffffffu) > 0x7f800000u);
        return ((u + 0x7fffu + (u >> 16 & 1u)) & ~nan & 0xffff0000u) | ((u | 0x400000u) & nan & 0xffff0000u);
}

/* Four pairs of eight floats. */
INLINE vec4 pairs_of(const float *p)
{
#ifdef __AVX512BF16__
        return (vec4)_mm256_cvtneps_pbh(_mm256_loadu_ps(p));
#else
        vec4 low = load4(p), high = load4(p + 4), ret;
        pairs4 even = bits4(__builtin_shufflevector(low, high, 0, 2, 4, 6));
        pairs4 pairs = even >> 16 | bits4(__builtin_shufflevector(low, high, 1, 3, 5, 7));
        memcpy(&ret, &pairs, sizeof ret);
        return ret;
#endif
}

/* Four pairs of four even floats and four odd ones. */
INLINE vec4 pairs_across(const float *even, const float *odd)
{
#ifdef __AVX512BF16__
        __m128i e = (__m128i)_mm_cvtneps_pbh(_mm_loadu_ps(even));
        __m128i o = (__m128i)_mm_cvtneps_pbh(_mm_loadu_ps(odd));
        return (vec4)_mm_unpacklo_epi16(e, o);
#else
        return (vec4)(bits4(load4(even)) >> 16 | bits4(load4(odd)));
#endif
}

/* Pairs of a panel that runs along k in memory: columns [0, n), n a multiple of 4; only whole fours of pairs.
 * Returns how many elements of each column are done. */
INLINE int64_t pack_along(
        const float *b, int64_t b_j, int64_t depth, int64_t n, const int width, uint32_t *out)
{
        int64_t whole = depth / 8 * 8;
        for (int64_t j = 0; j < n; j += 4)
                for (int64_t k = 0; k < whole; k += 8) {
                        const float *from = b + j * b_j + k;
                        vec4 r0 = pairs_of(from), r1 = pairs_of(from + b_j);
                        vec4 r2 = pairs_of(from + 2 * b_j), r3 = pairs_of(from + 3 * b_j);
                        uint32_t *to = out + k / 2 * width + j;
                        transpose4(&r0, &r1, &r2, &r3);
                        memcpy(to, &r0, sizeof r0);
                        memcpy(to + width, &r1, sizeof r1);
                        memcpy(to + 2 * width, &r2, sizeof r2);
                        memcpy(to + 3 * width, &r3, sizeof r3);
                }
        return whole;
}

/* out[k / 2 * width + j] = elements (k, j) and (k + 1, j) of b for j < n, and 0 for the rest of a panel and
 * past the last k. */
INLINE void pack_panel(
        const float *b, int64_t b_k, int64_t b_j, int64_t depth, int64_t n, const int width, uint32_t *out)
{
        int64_t j = 0, k = 0;
        if (b_j == 1 && n == width) {
                for (; k + 2 <= depth; k += 2, out += width) {
                        const float *even = b + k * b_k, *odd = even + b_k;
                        for (int i = 0; i < width; i += 4) {
                                vec4 pairs = pairs_across(even + i, odd + i);
                                memcpy(out + i, &pairs, sizeof pairs);
                        }
                }
                for (int i = 0; k < depth && i < width; i++)
                        out[i] = pair_of(b[k * b_k + i], 0.0f);
                return;
        }
        if (b_k == 1) {
                j = n / 4 * 4;
                k = pack_along(b, b_j, depth, j, width, out);
        }
        for (int64_t e = 0; e < depth; e += 2)
                for (int64_t i = e < k ? j : 0; i < width; i++) {
                        const float *from = b + e * b_k + i * b_j;
                        out[e / 2 * width + i] = i < n ? pair_of(*from, e + 1 < depth ? from[b_k] : 0.0f) : 0;
                }
}

/* sums += both products of each lane's pairs. */
INLINE vec dot_pairs(vec sums, vec_pairs a, vec_pairs b)
{
#ifdef __AVX512BF16__
        return (vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
#else
        sums += (vec)(a & 0xffff0000u) * (vec)(b & 0xffff0000u);
        return sums + (vec)(a << 16) * (vec)(b << 16);
#endif
}

INLINE void gemm_tile(
        const uint32_t *a, const uint32_t *b, int64_t pairs, float *sums, const int nr, const int nv)
{
        vec acc[GEMM_ROWS][GEMM_VECS];
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++) acc[r][v] = (vec){0};
        for (int64_t k = 0; k < pairs; k++, a += GEMM_ROWS, b += GEMM_PANEL) {
                vec_pairs bk[GEMM_VECS];
                UNROLL for (int v = 0; v < nv; v++) bk[v] = *(const vec_pairs_unaligned *)(b + v * LANES);
                UNROLL for (int r = 0; r < nr; r++)
                {
                        vec_pairs ak = a[r] - (vec_pairs){0};
                        UNROLL for (int v = 0; v < nv; v++) acc[r][v] = dot_pairs(acc[r][v], ak, bk[v]);
                }
        }
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
                store(sums + r * GEMM_PANEL + v * LANES, acc[r][v]);
}

#define GEMM_WORD uint32_t
#include "kernels/cpu/loops/loops_gemm_rows.h"

/* Columns [first, first + n) and depths [k, k + depth) of the product; b: the packed panel of the first
 * column from depth k on, panels `stride` pairs apart. */
static void gemm_block(const struct mfl_gemm *g, int64_t k, int64_t depth, int64_t first, int64_t n,
        const uint32_t *b, int64_t stride, uint32_t *work)
{
        int64_t pairs = pairs_in(depth);
        for (int64_t i = 0; i < g->m; i += MFL_GEMM_HEIGHT) {
                int64_t height = MFL_MIN(MFL_GEMM_HEIGHT, g->m - i);
                pack_rows(g->a + i * g->a_i + k * g->a_k, g->a_k, g->a_i, depth, height, pairs * GEMM_ROWS,
                        work);
                for (int64_t j = 0; j < n; j += GEMM_PANEL)
                        for (int64_t r = 0; r < height; r += GEMM_ROWS) {
                                struct gemm_place p = {.c = g->c + (i + r) * g->ldc + first + j,
                                        .ldc = g->ldc,
                                        .rows = MFL_MIN(GEMM_ROWS, height - r),
                                        .cols = MFL_MIN(GEMM_PANEL, n - j),
                                        .bias = g->bias && k == 0 ? g->bias + first + j : NULL,
                                        .add = g->add || k > 0};
                                gemm_any(work + r * pairs, b + j / GEMM_PANEL * stride, pairs, &p);
                        }
        }
}

#define tiles_begin() ((void)0)
#define tiles_end() ((void)0)
#include "kernels/cpu/loops/bf16/gemm_pairs.h"
