/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients as integers, and their norm; part of loops_body.h. */

INLINE float round_range(
        int64_t n, const float *restrict g, double factor, const bool first, int64_t *restrict sum)
{
        uint32_t most = 0; /* sizes of floats have the order of their bits */
        float largest;
        for (int64_t i = 0; i < n; i++) {
                uint32_t bits;
                memcpy(&bits, g + i, sizeof bits);
                bits &= 0x7fffffffu;
                most = bits > most ? bits : most;
                uint64_t rounded = mfl_fixed_round((double)g[i] * factor);
                sum[i] = (int64_t)(first ? rounded : (uint64_t)sum[i] + rounded);
        }
        most = most > 0x7f800000u ? 0x7f800000u : most;
        memcpy(&largest, &most, sizeof largest);
        return largest;
}

static float round_add(int64_t n, const float *g, double factor, bool first, int64_t *sum)
{
        return first ? round_range(n, g, factor, true, sum) : round_range(n, g, factor, false, sum);
}

#define SQUARES 16

static double squares(int64_t n, const float *x)
{
        double part[SQUARES] = {0}, sum = 0;
        int64_t i = 0;
        for (; i + SQUARES <= n; i += SQUARES)
                for (int k = 0; k < SQUARES; k++)
                        part[k] += (double)x[i + k] * (double)x[i + k];
        for (; i < n; i++)
                sum += (double)x[i] * (double)x[i];
        for (int k = 0; k < SQUARES; k++)
                sum += part[k];
        return sum;
}

static void unround(int64_t n, const int64_t *restrict sum, double factor, float *restrict g)
{
        for (int64_t i = 0; i < n; i++)
                g[i] = (float)((double)sum[i] * factor);
}

static void scale(int64_t n, float factor, float *x)
{
        for (int64_t i = 0; i < n; i++)
                x[i] *= factor;
}
