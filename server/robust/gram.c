/* SPDX-License-Identifier: Apache-2.0 */
/* The Gram matrix of rows of floats: blocks of elements are packed as doubles in panels of four rows, and two panels
 * give 16 sums that stay in registers. Each sum runs over a block in the order of its elements, and blocks are added
 * in their order, so vectors of any width give the same bits. */
#include "server/robust/robust.h"

typedef double quad __attribute__((vector_size(32)));

static uint32_t n_panels(uint32_t m)
{
        return (m + MFL_GRAM_PANEL - 1) / MFL_GRAM_PANEL;
}

size_t mfl_gram_scratch(uint32_t m)
{
        return (size_t)n_panels(m) * MFL_GRAM_PANEL * MFL_GRAM_BLOCK;
}

/* [panel][element][row of the panel]; rows that are not there are zero. */
static void pack(const float *const *rows, uint32_t m, size_t from, size_t count, double *packed)
{
        for (uint32_t p = 0; p < n_panels(m); p++) {
                double *to = packed + (size_t)p * MFL_GRAM_PANEL * MFL_GRAM_BLOCK;
                for (uint32_t k = 0; k < MFL_GRAM_PANEL; k++) {
                        uint32_t row = p * MFL_GRAM_PANEL + k;
                        for (size_t e = 0; e < count; e++)
                                to[e * MFL_GRAM_PANEL + k] = row < m ? (double)rows[row][from + e] : 0;
                }
        }
}

/* ret[k][l] = sum of x[e][k] * y[e][l]. Products of floats are exact in double, fused or not. */
static void multiply(const double *x, const double *y, size_t count, quad ret[MFL_GRAM_PANEL])
{
        quad s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
        for (size_t e = 0; e < count; e++, x += MFL_GRAM_PANEL, y += MFL_GRAM_PANEL) {
                quad b = {y[0], y[1], y[2], y[3]};
                s0 += x[0] * b;
                s1 += x[1] * b;
                s2 += x[2] * b;
                s3 += x[3] * b;
        }
        ret[0] = s0;
        ret[1] = s1;
        ret[2] = s2;
        ret[3] = s3;
}

static void add_block(const double *packed, uint32_t m, size_t count, double *g)
{
        const size_t panel = (size_t)MFL_GRAM_PANEL * MFL_GRAM_BLOCK;
        for (uint32_t p = 0; p < n_panels(m); p++)
                for (uint32_t q = 0; q <= p; q++) {
                        quad sums[MFL_GRAM_PANEL];
                        multiply(packed + p * panel, packed + q * panel, count, sums);
                        for (uint32_t k = 0; k < MFL_GRAM_PANEL; k++)
                                for (uint32_t l = 0; l < MFL_GRAM_PANEL; l++) {
                                        uint32_t i = p * MFL_GRAM_PANEL + k, j = q * MFL_GRAM_PANEL + l;
                                        if (i < m && j <= i)
                                                g[(size_t)i * m + j] += sums[k][l];
                                }
                }
}

void mfl_gram_add(const float *const *rows, uint32_t m, size_t from, size_t count, double *scratch, double *g)
{
        for (size_t at = 0; at < count; at += MFL_GRAM_BLOCK) {
                size_t n = MFL_MIN(count - at, (size_t)MFL_GRAM_BLOCK);
                pack(rows, m, from + at, n, scratch);
                add_block(scratch, m, n, g);
        }
}

void mfl_gram_mirror(uint32_t m, double *g)
{
        for (uint32_t i = 0; i < m; i++)
                for (uint32_t j = i + 1; j < m; j++)
                        g[(size_t)i * m + j] = g[(size_t)j * m + i];
}
