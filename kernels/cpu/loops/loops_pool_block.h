/* SPDX-License-Identifier: Apache-2.0 */
/* Max pooling with windows of 2x2 that tile the image, for blocks of BLOCK_LANES channels, each block one
 * vector; part of loops_pool.h. */

INLINE void OF_BLOCK(max_2x2_)(const float *x, int64_t stride_h, float *y, uint16_t *argmax)
{
        BLOCK best = *(const BLOCK_AT *)x;
        BLOCK_INDEX at = {0};
        UNROLL for (int tap = 1; tap < 4; tap++)
        {
                BLOCK v = *(const BLOCK_AT *)(x + tap / 2 * stride_h + tap % 2 * BLOCK_LANES);
                BLOCK_INDEX wins = v > best;
                best = (BLOCK)((wins & (BLOCK_INDEX)v) | (~wins & (BLOCK_INDEX)best));
                at = (wins & tap) | (~wins & at);
        }
        *(BLOCK_AT *)y = best;
        if (argmax)
                *(BLOCK_SHORT_AT *)argmax = __builtin_convertvector(at, BLOCK_SHORT);
}

/* y NULL: no ReLU before the pool. */
INLINE void OF_BLOCK(max_grad_2x2_)(
        const float *dy, const float *y, const uint16_t *argmax, int64_t stride_h, float *dx)
{
        BLOCK_INDEX g = (BLOCK_INDEX) * (const BLOCK_AT *)dy;
        BLOCK_INDEX at = __builtin_convertvector(*(const BLOCK_SHORT_AT *)argmax, BLOCK_INDEX);
        if (y)
                g &= *(const BLOCK_AT *)y > 0.0f;
        UNROLL for (int tap = 0; tap < 4; tap++) *
                (BLOCK_AT *)(dx + tap / 2 * stride_h + tap % 2 * BLOCK_LANES) = (BLOCK)(g & (at == tap));
}

static void OF_BLOCK(max_plane_2x2_)(const struct mfl_pool *p, const float *x, float *y, uint16_t *argmax)
{
        for (int64_t oh = 0; oh < p->window.oh; oh++)
                for (int64_t ow = 0; ow < p->window.ow; ow++) {
                        int64_t at = oh * p->out.stride_h + ow * BLOCK_LANES;
                        OF_BLOCK(max_2x2_)
                        (x + 2 * oh * p->in.stride_h + 2 * ow * BLOCK_LANES, p->in.stride_h, y + at,
                                argmax ? argmax + at : NULL);
                }
}

static void OF_BLOCK(max_grad_plane_2x2_)(
        const struct mfl_pool *p, const float *dy, const float *y, const uint16_t *argmax, float *dx)
{
        for (int64_t oh = 0; oh < p->window.oh; oh++)
                for (int64_t ow = 0; ow < p->window.ow; ow++) {
                        int64_t at = oh * p->out.stride_h + ow * BLOCK_LANES;
                        OF_BLOCK(max_grad_2x2_)
                        (dy + at, y ? y + at : NULL, argmax + at, p->in.stride_h,
                                dx + 2 * oh * p->in.stride_h + 2 * ow * BLOCK_LANES);
                }
}
