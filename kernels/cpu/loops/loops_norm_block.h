/* SPDX-License-Identifier: Apache-2.0 */
/* The passes over a strip whose BLOCK_LANES lanes are one vector, kept in registers from pixel to pixel; part
 * of loops_norm.h, which includes this once for each usual number of lanes. The formulas are those of its
 * loops for any number of lanes. */

/* g where y > 0, else 0; y NULL: g. */
INLINE void OF_BLOCK(open_)(const float *y, const float *g, BLOCK *ret_g)
{
        *ret_g = *(const BLOCK_AT *)g;
        if (y) {
                BLOCK_INDEX open = *(const BLOCK_AT *)y > (BLOCK){0};
                *ret_g = (BLOCK)(open & (BLOCK_INDEX)*ret_g);
        }
}

INLINE void OF_BLOCK(sum_squares_)(
        const float *x, int64_t n, int64_t stride, float mean[16], float square[16])
{
        BLOCK sum = {0}, squares = {0};
        for (int64_t p = 0; p < n; p++)
                sum += *(const BLOCK_AT *)(x + p * stride);
        const BLOCK center = sum / (float)n;
        for (int64_t p = 0; p < n; p++) {
                BLOCK d = *(const BLOCK_AT *)(x + p * stride) - center;
                squares += d * d;
        }
        *(BLOCK_AT *)mean = center;
        *(BLOCK_AT *)square = squares;
}

INLINE void OF_BLOCK(normalise_)(const float *x, int64_t n, int64_t stride, const float *mean,
        const float *scale, const float *shift, bool relu, float *y)
{
        const BLOCK m = *(const BLOCK_AT *)mean, a = *(const BLOCK_AT *)scale, b = *(const BLOCK_AT *)shift;
        for (int64_t p = 0; p < n; p++) {
                BLOCK f = (*(const BLOCK_AT *)(x + p * stride) - m) * a + b;
                if (relu) {
                        BLOCK_INDEX open = f > (BLOCK){0};
                        f = (BLOCK)(open & (BLOCK_INDEX)f);
                }
                *(BLOCK_AT *)(y + p * stride) = f;
        }
}

INLINE void OF_BLOCK(sum_segment_)(const float *x, const float *y, const float *dy, int64_t n, int64_t stride,
        const float *mean, float plain[16], float product[16])
{
        const BLOCK m = *(const BLOCK_AT *)mean;
        BLOCK sum = {0}, sum_x = {0}, g;
        for (int64_t p = 0; p < n; p++) {
                OF_BLOCK(open_)(y ? y + p * stride : NULL, dy + p * stride, &g);
                sum += g;
                sum_x += g * (*(const BLOCK_AT *)(x + p * stride) - m);
        }
        *(BLOCK_AT *)plain = sum;
        *(BLOCK_AT *)product = sum_x;
}

INLINE void OF_BLOCK(scale_gradient_)(const float *x, const float *y, const float *dy, int64_t n,
        int64_t stride, const float *mean, const float *a, const float *b, const float *c, float *dx)
{
        const BLOCK m = *(const BLOCK_AT *)mean, va = *(const BLOCK_AT *)a, vb = *(const BLOCK_AT *)b,
                    vc = *(const BLOCK_AT *)c;
        BLOCK g;
        for (int64_t p = 0; p < n; p++) {
                OF_BLOCK(open_)(y ? y + p * stride : NULL, dy + p * stride, &g);
                *(BLOCK_AT *)(dx + p * stride) =
                        va * g + (vb * (*(const BLOCK_AT *)(x + p * stride) - m) + vc);
        }
}
