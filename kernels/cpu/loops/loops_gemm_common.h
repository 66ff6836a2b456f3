/* SPDX-License-Identifier: Apache-2.0 */
/* What matrix products of floats and of bfloat16 share; part of loops_body.h. */

/* The place of a tile in the result: its existing rows and columns, and what is there before. */
struct gemm_place {
        float *c;
        int64_t ldc, rows, cols;
        const float *bias;
        bool add;
};

/* Fetches the result's lines while a tile's sums are computed. */
INLINE void gemm_fetch(const struct gemm_place *p)
{
        for (int64_t r = 0; r < p->rows; r++)
                for (int64_t j = 0; j < p->cols; j += 16)
                        __builtin_prefetch(p->c + r * p->ldc + j, 1);
}

/* Rows of a large operand that the next block reads, `stride` floats apart, and how many lines of them go to the
 * second cache in each AHEAD_STEPS steps of a tile along k. Zeroed: nothing. */
struct gemm_ahead {
        const float *row;
        int64_t stride, rows, floats, at, at_once;
};
#define AHEAD_STEPS 32
#define AHEAD_LINES_MAX 8

INLINE void gemm_look_ahead(struct gemm_ahead *h)
{
        for (int64_t n = 0; n < h->at_once && h->rows; n++) {
                __builtin_prefetch(h->row + h->at, 0, 2);
                h->at += 16;
                if (h->at < h->floats)
                        continue;
                h->at = 0;
                h->row += h->stride;
                h->rows--;
        }
}

/* Writes a tile's sums, one row of `panel` after another, to their place. */
static void gemm_finish(const struct gemm_place *p, const int panel, const float *sums)
{
        int64_t whole = p->cols / LANES * LANES, rest = p->cols - whole;
        for (int64_t r = 0; r < p->rows; r++, sums += panel) {
                float *c = p->c + r * p->ldc;
                for (int64_t j = 0; j < whole; j += LANES) {
                        vec sum = load(sums + j);
                        if (p->bias)
                                sum += load(p->bias + j);
                        if (p->add)
                                sum += load(c + j);
                        store(c + j, sum);
                }
                for (int64_t j = whole; j < whole + rest; j++)
                        c[j] = sums[j] + (p->bias ? p->bias[j] : 0.0f) + (p->add ? c[j] : 0.0f);
        }
}

/* Equal blocks along k. */
static int64_t depth_of(int64_t k)
{
        int64_t blocks = (k + MFL_GEMM_DEPTH - 1) / MFL_GEMM_DEPTH;
        return (k + blocks - 1) / MFL_MAX(blocks, 1);
}

/* Equal blocks of columns, so that no block has only a few columns, for which all of a would be packed again.
 */
static int64_t width_of(int64_t n, const int panel)
{
        int64_t blocks = (n + MFL_GEMM_WIDTH - 1) / MFL_GEMM_WIDTH;
        int64_t width = (n + blocks - 1) / MFL_MAX(blocks, 1);
        return (width + panel - 1) / panel * panel;
}

/* Pairs in `depth` elements, as bfloat16 operands lie. */
INLINE int64_t pairs_in(int64_t depth)
{
        return (depth + 1) / 2;
}
