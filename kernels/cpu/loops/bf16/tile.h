/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles: eight registers of 16 rows of 64 bytes, and the product of two of them, as AMX has them; elsewhere
 * the same by loops, for tests. Part of loops_body.h; LANES is 16.
 *
 * Tiles 0 to 3 hold sums, floats [row][column]. Tiles 4 and 5 hold 16 rows of the left side, 32 bfloat16 each, along k. Tiles
 * 6 and 7 hold the right side: 16 pairs along k, each of 16 columns, the even number of a pair in the low half. A product
 * adds, to each sum, the sum of the even products, then that of the odd ones; numbers below 2^-126 count as 0.
 * Source: Intel, Architecture Instruction Set Extensions Programming Reference, TDPBF16PS.
 */
typedef uint32_t vec_pairs __attribute__((vector_size(64)));
typedef uint32_t vec_pairs_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* the second: clang before 16 */

/* All tiles whole. Each thread says so before its first use, and releases them after its last one. */
INLINE void tiles_begin(void)
{
        _Alignas(64) struct {
                uint8_t palette, start_row, reserved[14];
                uint16_t row_bytes[16];
                uint8_t rows[16];
        } config = {.palette = 1};
        for (int i = 0; i < 8; i++) {
                config.row_bytes[i] = 64;
                config.rows[i] = 16;
        }
        _tile_loadconfig(&config);
}

#define tiles_end() _tile_release()
#define tile_zero(t) _tile_zero(t)
/* stride: bytes from a row to the next. */
#define tile_load(t, from, stride) _tile_loadd(t, from, stride)
#define tile_store(t, to, stride) _tile_stored(t, to, stride)
#define tile_product(sums, left, right) _tile_dpbf16ps(sums, left, right)
#else
typedef union {
        vec_pairs row[16];
        uint32_t pairs[16][16];
} tile;
static _Thread_local tile tiles[8];

#define tiles_begin() ((void)0)
#define tiles_end() ((void)0)
#define tile_zero(t) memset(&tiles[t], 0, sizeof(tile))

static void load_rows(tile *to, const void *from, int64_t stride)
{
        for (int64_t r = 0; r < 16; r++)
                memcpy(&to->row[r], (const char *)from + r * stride, sizeof to->row[r]);
}

static void store_rows(const tile *from, void *to, int64_t stride)
{
        for (int64_t r = 0; r < 16; r++)
                memcpy((char *)to + r * stride, &from->row[r], sizeof from->row[r]);
}

static void product_of(tile *sums, const tile *left, const tile *right)
{
        for (int m = 0; m < 16; m++) {
                vec even = {0}, odd = {0};
                for (int k = 0; k < 16; k++) {
                        vec_pairs a = left->pairs[m][k] - (vec_pairs){0}, b = right->row[k];
                        even += (vec)(a << 16) * (vec)(b << 16);
                        odd += (vec)(a & 0xffff0000u) * (vec)(b & 0xffff0000u);
                }
                sums->row[m] = (vec_pairs)((vec)sums->row[m] + (even + odd));
        }
}

#define tile_load(t, from, stride) load_rows(&tiles[t], from, stride)
#define tile_store(t, to, stride) store_rows(&tiles[t], to, stride)
#define tile_product(sums, left, right) product_of(&tiles[sums], &tiles[left], &tiles[right])
#endif

/* Sixteen pairs. */
INLINE void store_pairs(uint32_t *to, vec v)
{
        *(vec_pairs_unaligned *)to = (vec_pairs)v;
}

#ifndef __AVX512BF16__
/* mfl_bf16_bits of sixteen numbers. */
INLINE vec_pairs bits_of(vec v)
{
        vec_pairs u = (vec_pairs)v, nan = (vec_pairs)((u & 0x7fffffffu) > 0x7f800000u);
        return ((u + 0x7fffu + (u >> 16 & 1u)) & ~nan & 0xffff0000u) | ((u | 0x400000u) & nan & 0xffff0000u);
}
#endif

/* Pairs of two vectors, one with the even numbers. */
INLINE vec pairs_across(vec even, vec odd)
{
#ifdef __AVX512BF16__
        __m512i e = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)even));
        __m512i o = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)odd));
        return (vec)_mm512_or_si512(e, _mm512_slli_epi32(o, 16));
#else
        return (vec)(bits_of(even) >> 16 | bits_of(odd));
#endif
}

/* Pairs of 32 numbers in order. */
INLINE vec pairs_along(vec low, vec high)
{
#ifdef __AVX512BF16__
        return (vec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
        vec even =
                __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        vec odd =
                __builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        return pairs_across(even, odd);
#endif
}

/* Sixteen bfloat16. */
INLINE void store_bf16(uint16_t *to, vec v)
{
#ifdef __AVX512BF16__
        _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
        vec_pairs bits = bits_of(v);
        for (int i = 0; i < 16; i++)
                to[i] = (uint16_t)(bits[i] >> 16);
#endif
}
