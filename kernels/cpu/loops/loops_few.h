/* SPDX-License-Identifier: Apache-2.0 */
/* Dense layers of few rows, with vectors along the outputs; where vectors are shorter, forward_panel does as well. Part of loops_body.h. */
#if LANES == 16
#define FEW_ROWS 4

/* m[i][j] = m[j][i]: four times the same shuffle, which moves a bit of the row's number to the end of the column's. */
INLINE void transpose16(vec m[16])
{
        UNROLL for (int stage = 0; stage < 4; stage++)
        {
                vec n[16];
                UNROLL for (int i = 0; i < 8; i++)
                {
                        n[2 * i] = __builtin_shufflevector(
                                m[i], m[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
                        n[2 * i + 1] = __builtin_shufflevector(
                                m[i], m[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
                }
                UNROLL for (int i = 0; i < 16; i++) m[i] = n[i];
        }
}

/* sums[o][r] += the panel's share of 16 outputs for nr rows, along the outputs. A sum takes its products in the order of forward_tile, so that a
 * row has the same bits beside any others. */
INLINE void few_tile(const float *t, const float *w, int64_t width, float *sums, const int nr)
{
        vec acc[FEW_ROWS], m[16];
        UNROLL for (int r = 0; r < nr; r++) acc[r] = (vec){0};
        int64_t k = 0;
        for (; k + 16 <= width; k += 16) {
                UNROLL for (int i = 0; i < 16; i++) m[i] = load(w + i * width + k);
                transpose16(m);
                UNROLL for (int j = 0; j < 16; j++) UNROLL for (int r = 0; r < nr; r++) acc[r] +=
                        m[j] * splat(t[(k + j) * TILE_SAMPLES + r]);
        }
        for (; k < width; k++) {
                float one[16];
                UNROLL for (int i = 0; i < 16; i++) one[i] = w[i * width + k];
                UNROLL for (int r = 0; r < nr; r++) acc[r] += load(one) * splat(t[k * TILE_SAMPLES + r]);
        }
        UNROLL for (int r = 0; r < nr; r++) for (int i = 0; i < 16; i++) sums[i * TILE_SAMPLES + r] +=
                acc[r][i];
}

/* As forward_panel, for at most FEW_ROWS rows, where broadcasting each weight would cost more than to read it. */
static void few_panel(
        const float *t, const float *w, int64_t width, int64_t n_outs, float *sums, int64_t rows)
{
        int64_t o = 0;
        for (; o + 16 <= n_outs; o += 16) {
                if (rows == 1)
                        few_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, 1);
                else
                        few_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, FEW_ROWS);
        }
        for (; o < n_outs; o++)
                forward_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, 1, 1);
}

static void add_panel(
        const float *t, const float *w, int64_t width, int64_t n_outs, float *sums, int64_t rows)
{
        if (rows <= FEW_ROWS)
                few_panel(t, w, width, n_outs, sums, rows);
        else
                forward_any_panel(t, w, width, n_outs, sums, rows);
}
#else
#define add_panel forward_any_panel
#endif
