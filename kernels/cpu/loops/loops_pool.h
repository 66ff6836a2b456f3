/* SPDX-License-Identifier: Apache-2.0 */
/* Pooling in any layout; part of loops_body.h. The innermost loops run over `lanes` channels of a block, and
 * so they take it as a constant: 16 and 8 become vectors, and 1 serves plain NCHW. */

/* Taps [first, last) of output coordinate o that lie inside the image. */
struct taps {
        int64_t first, last, at; /* at: input coordinate of tap 0, may be negative */
};

static inline struct taps taps_of(const struct mfl_window *v, int axis, int64_t o, int64_t size)
{
        struct taps t = {.at = o * v->s[axis] - v->p[axis], .last = v->k[axis]};
        while (t.first < t.last && t.at + t.first * v->d[axis] < 0)
                t.first++;
        while (t.last > t.first && t.at + (t.last - 1) * v->d[axis] >= size)
                t.last--;
        return t;
}

/* Windows that tile the image without overlap or padding, and lie inside: backward writes each gradient once.
 */
static inline bool is_tiling(const struct mfl_window *v)
{
        return v->k[0] == v->s[0] && v->k[1] == v->s[1] && v->d[0] == 1 && v->d[1] == 1 && v->p[0] == 0 &&
               v->p[1] == 0 && v->oh * v->k[0] <= v->h && v->ow * v->k[1] <= v->w;
}

#define BLOCK_LANES 16
#include "kernels/cpu/loops/loops_pool_block.h"
#undef BLOCK_LANES
#define BLOCK_LANES 8
#include "kernels/cpu/loops/loops_pool_block.h"
#undef BLOCK_LANES

/* Windows of 2x2 that tile the image: nearly every max pool. */
static inline bool is_2x2(const struct mfl_pool *p)
{
        return is_tiling(&p->window) && p->window.k[0] == 2 && p->window.k[1] == 2;
}

/* For plain images: a row of windows, with vectors along it. */
static void max_row_2x2(int64_t n, const float *restrict x, const float *restrict x2, float *restrict y,
        uint16_t *restrict argmax)
{
        for (int64_t i = 0; i < n; i++) {
                float best = x[2 * i];
                int32_t at = 0;
                const float others[] = {x[2 * i + 1], x2[2 * i], x2[2 * i + 1]};
                UNROLL for (int tap = 0; tap < 3; tap++)
                {
                        bool wins = others[tap] > best;
                        best = wins ? others[tap] : best;
                        at = wins ? tap + 1 : at;
                }
                y[i] = best;
                if (argmax)
                        argmax[i] = (uint16_t)at;
        }
}

/* Windows [i, i + 8) of a row. */
INLINE void max_grad_eight_2x2(const float *dy, const float *y, const uint16_t *argmax, float *dx, float *dx2)
{
        lanes8 g = *(const lanes8_unaligned *)dy;
        index8 at = __builtin_convertvector(*(const short8_unaligned *)argmax, index8);
        if (y)
                g = (lanes8)((index8)g & (*(const lanes8_unaligned *)y > 0.0f));
        UNROLL for (int row = 0; row < 2; row++)
        {
                float *to = row ? dx2 : dx;
                lanes8 left = (lanes8)((index8)g & (at == 2 * row));
                lanes8 right = (lanes8)((index8)g & (at == 2 * row + 1));
                *(lanes8_unaligned *)to = __builtin_shufflevector(left, right, 0, 8, 1, 9, 2, 10, 3, 11);
                *(lanes8_unaligned *)(to + 8) =
                        __builtin_shufflevector(left, right, 4, 12, 5, 13, 6, 14, 7, 15);
        }
}

/* The last eight windows may overlap those before; both write the same gradients. */
static void max_grad_row_2x2(
        int64_t n, const float *dy, const float *y, const uint16_t *argmax, float *dx, float *dx2)
{
        for (int64_t i = 0; n >= 8 && i < n; i += 8) {
                int64_t at = MFL_MIN(i, n - 8);
                max_grad_eight_2x2(dy + at, y ? y + at : NULL, argmax + at, dx + 2 * at, dx2 + 2 * at);
        }
        for (int64_t i = 0; n < 8 && i < n; i++) {
                float g = !y || y[i] > 0.0f ? dy[i] : 0.0f;
                for (int k = 0; k < 2; k++) {
                        dx[2 * i + k] = argmax[i] == k ? g : 0.0f;
                        dx2[2 * i + k] = argmax[i] == k + 2 ? g : 0.0f;
                }
        }
}

static void avg_row_2x2(int64_t n, const float *restrict x, const float *restrict x2, float *restrict y)
{
        for (int64_t i = 0; i < n; i++)
                y[i] = (x[2 * i] + x[2 * i + 1] + x2[2 * i] + x2[2 * i + 1]) / 4.0f;
}

static void avg_grad_row_2x2(int64_t n, const float *restrict dy, float *restrict dx, float *restrict dx2)
{
        for (int64_t i = 0; i < n; i++)
                dx[2 * i] = dx[2 * i + 1] = dx2[2 * i] = dx2[2 * i + 1] = dy[i] / 4.0f;
}

INLINE void max_point(const struct mfl_pool *p, const float *x, struct taps th, struct taps tw, float *y,
        uint16_t *argmax, const int lanes)
{
        const struct mfl_window *v = &p->window;
        float best[16];
        int32_t at[16];
        bool any = false;
        for (int i = 0; i < lanes; i++) {
                best[i] = 0.0f;
                at[i] = 0;
        }
        for (int64_t r = th.first; r < th.last; r++)
                for (int64_t c = tw.first; c < tw.last; c++) {
                        const float *from = x + (th.at + r * v->d[0]) * p->in.stride_h +
                                            (tw.at + c * v->d[1]) * p->in.stride_w;
                        int32_t tap = (int32_t)(r * v->k[1] + c);
                        for (int i = 0; i < lanes; i++) {
                                bool wins = !any || from[i] > best[i];
                                best[i] = wins ? from[i] : best[i];
                                at[i] = wins ? tap : at[i];
                        }
                        any = true;
                }
        for (int i = 0; i < lanes; i++) {
                y[i] = best[i];
                if (argmax)
                        argmax[i] = (uint16_t)at[i];
        }
}

/* One plane of blocks; lanes divides the block. */
INLINE void max_plane(const struct mfl_pool *p, const float *x, float *y, uint16_t *argmax, const int lanes)
{
        for (int64_t oh = 0; oh < p->window.oh; oh++) {
                struct taps th = taps_of(&p->window, 0, oh, p->window.h);
                for (int64_t ow = 0; ow < p->window.ow; ow++) {
                        struct taps tw = taps_of(&p->window, 1, ow, p->window.w);
                        int64_t at = oh * p->out.stride_h + ow * p->out.stride_w;
                        for (int64_t b = 0; b < p->in.block; b += lanes)
                                max_point(
                                        p, x + b, th, tw, y + at + b, argmax ? argmax + at + b : NULL, lanes);
                }
        }
}

/* Calls body with the constant number of lanes that suits the block. */
#define WITH_LANES(block, body)                                                                              \
        do {                                                                                                 \
                if ((block) % 16 == 0) {                                                                     \
                        enum { lanes = 16 };                                                                 \
                        body;                                                                                \
                } else if ((block) % 8 == 0) {                                                               \
                        enum { lanes = 8 };                                                                  \
                        body;                                                                                \
                } else {                                                                                     \
                        enum { lanes = 1 };                                                                  \
                        body;                                                                                \
                }                                                                                            \
        } while (0)

/* Planes are numbered over samples and blocks; those of a sample are adjacent. */
static void max_range(
        const struct mfl_pool *p, const float *x, float *y, uint16_t *argmax, int64_t begin, int64_t end)
{
        for (int64_t q = begin; q < end; q++) {
                const float *from = x + q * p->in.stride_block;
                float *to = y + q * p->out.stride_block;
                uint16_t *at = argmax ? argmax + q * p->out.stride_block : NULL;
                if (is_2x2(p) && p->in.block == 16)
                        max_plane_2x2_16(p, from, to, at);
                else if (is_2x2(p) && p->in.block == 8)
                        max_plane_2x2_8(p, from, to, at);
                else if (is_2x2(p) && p->in.block == 1)
                        for (int64_t r = 0, w = p->window.w, ow = p->window.ow; r < p->window.oh; r++)
                                max_row_2x2(ow, from + 2 * r * w, from + (2 * r + 1) * w, to + r * ow,
                                        at ? at + r * ow : NULL);
                else
                        WITH_LANES(p->in.block, max_plane(p, from, to, at, lanes));
        }
}

static void maxpool_forward(const struct mfl_pool *p, const float *x, float *y, uint16_t *argmax)
{
        DIVIDE(p->threads, p->rows * p->in.n_blocks, max_range(p, x, y, argmax, begin, end));
}

INLINE void max_grad_point(const struct mfl_pool *p, struct taps th, struct taps tw, const float *dy,
        const float *y, const uint16_t *argmax, bool once, float *dx, const int lanes)
{
        const struct mfl_window *v = &p->window;
        float g[16];
        for (int i = 0; i < lanes; i++)
                g[i] = !y || y[i] > 0.0f ? dy[i] : 0.0f;
        for (int64_t r = th.first; r < th.last; r++)
                for (int64_t c = tw.first; c < tw.last; c++) {
                        float *to = dx + (th.at + r * v->d[0]) * p->in.stride_h +
                                    (tw.at + c * v->d[1]) * p->in.stride_w;
                        int32_t tap = (int32_t)(r * v->k[1] + c);
                        for (int i = 0; i < lanes; i++) {
                                float mine = argmax[i] == tap ? g[i] : 0.0f;
                                to[i] = once ? mine : to[i] + mine;
                        }
                }
}

INLINE void max_grad_plane(const struct mfl_pool *p, const float *dy, const float *y, const uint16_t *argmax,
        bool once, float *dx, const int lanes)
{
        for (int64_t oh = 0; oh < p->window.oh; oh++) {
                struct taps th = taps_of(&p->window, 0, oh, p->window.h);
                for (int64_t ow = 0; ow < p->window.ow; ow++) {
                        struct taps tw = taps_of(&p->window, 1, ow, p->window.w);
                        int64_t at = oh * p->out.stride_h + ow * p->out.stride_w;
                        for (int64_t b = 0; b < p->in.block; b += lanes)
                                max_grad_point(p, th, tw, dy + at + b, y ? y + at + b : NULL, argmax + at + b,
                                        once, dx + b, lanes);
                }
        }
}

/* Whether backward has to start from zeros: windows overlap, or leave a margin. */
static inline bool needs_zeros(const struct mfl_window *v)
{
        return !is_tiling(v) || v->oh * v->k[0] != v->h || v->ow * v->k[1] != v->w;
}

static void max_grad_range(const struct mfl_pool *p, const float *dy, const float *y, const uint16_t *argmax,
        float *dx, int64_t begin, int64_t end)
{
        bool once = is_tiling(&p->window), zeros = needs_zeros(&p->window);
        for (int64_t q = begin; q < end; q++) {
                int64_t at = q * p->out.stride_block;
                float *to = dx + q * p->in.stride_block;
                if (zeros)
                        memset(to, 0, (size_t)p->in.stride_block * sizeof *to);
                if (is_2x2(p) && p->in.block == 16)
                        max_grad_plane_2x2_16(p, dy + at, y ? y + at : NULL, argmax + at, to);
                else if (is_2x2(p) && p->in.block == 8)
                        max_grad_plane_2x2_8(p, dy + at, y ? y + at : NULL, argmax + at, to);
                else if (is_2x2(p) && p->in.block == 1)
                        for (int64_t r = 0, w = p->window.w, ow = p->window.ow; r < p->window.oh; r++)
                                max_grad_row_2x2(ow, dy + at + r * ow, y ? y + at + r * ow : NULL,
                                        argmax + at + r * ow, to + 2 * r * w, to + (2 * r + 1) * w);
                else
                        WITH_LANES(p->in.block,
                                max_grad_plane(p, dy + at, y ? y + at : NULL, argmax + at, once, to, lanes));
        }
}

static void maxpool_backward(const struct mfl_pool *p, const float *dy, const float *y,
        const uint16_t *argmax, bool relu, float *dx)
{
        const float *mask = relu ? y : NULL;
        DIVIDE(p->threads, p->rows * p->in.n_blocks, max_grad_range(p, dy, mask, argmax, dx, begin, end));
}

INLINE void avg_plane(const struct mfl_pool *p, const float *x, float *y, const int lanes)
{
        const struct mfl_window *v = &p->window;
        float area = (float)(v->k[0] * v->k[1]);
        for (int64_t oh = 0; oh < v->oh; oh++) {
                struct taps th = taps_of(v, 0, oh, v->h);
                for (int64_t ow = 0; ow < v->ow; ow++) {
                        struct taps tw = taps_of(v, 1, ow, v->w);
                        float *to = y + oh * p->out.stride_h + ow * p->out.stride_w;
                        for (int64_t b = 0; b < p->in.block; b += lanes) {
                                float sum[16] = {0};
                                for (int64_t r = th.first; r < th.last; r++)
                                        for (int64_t c = tw.first; c < tw.last; c++) {
                                                const float *from = x + b +
                                                                    (th.at + r * v->d[0]) * p->in.stride_h +
                                                                    (tw.at + c * v->d[1]) * p->in.stride_w;
                                                for (int i = 0; i < lanes; i++)
                                                        sum[i] += from[i];
                                        }
                                for (int i = 0; i < lanes; i++)
                                        to[b + i] = sum[i] / area;
                        }
                }
        }
}

static void avg_range(const struct mfl_pool *p, const float *x, float *y, int64_t begin, int64_t end)
{
        for (int64_t q = begin; q < end; q++) {
                const float *from = x + q * p->in.stride_block;
                float *to = y + q * p->out.stride_block;
                if (is_2x2(p) && p->in.block == 1)
                        for (int64_t r = 0, w = p->window.w, ow = p->window.ow; r < p->window.oh; r++)
                                avg_row_2x2(ow, from + 2 * r * w, from + (2 * r + 1) * w, to + r * ow);
                else
                        WITH_LANES(p->in.block, avg_plane(p, from, to, lanes));
        }
}

static void avgpool_forward(const struct mfl_pool *p, const float *x, float *y)
{
        DIVIDE(p->threads, p->rows * p->in.n_blocks, avg_range(p, x, y, begin, end));
}

INLINE void avg_grad_plane(const struct mfl_pool *p, const float *dy, bool once, float *dx, const int lanes)
{
        const struct mfl_window *v = &p->window;
        float area = (float)(v->k[0] * v->k[1]);
        for (int64_t oh = 0; oh < v->oh; oh++) {
                struct taps th = taps_of(v, 0, oh, v->h);
                for (int64_t ow = 0; ow < v->ow; ow++) {
                        struct taps tw = taps_of(v, 1, ow, v->w);
                        const float *from = dy + oh * p->out.stride_h + ow * p->out.stride_w;
                        for (int64_t b = 0; b < p->in.block; b += lanes) {
                                float share[16];
                                for (int i = 0; i < lanes; i++)
                                        share[i] = from[b + i] / area;
                                for (int64_t r = th.first; r < th.last; r++)
                                        for (int64_t c = tw.first; c < tw.last; c++) {
                                                float *to = dx + b + (th.at + r * v->d[0]) * p->in.stride_h +
                                                            (tw.at + c * v->d[1]) * p->in.stride_w;
                                                for (int i = 0; i < lanes; i++)
                                                        to[i] = once ? share[i] : to[i] + share[i];
                                        }
                        }
                }
        }
}

static void avg_grad_range(const struct mfl_pool *p, const float *dy, float *dx, int64_t begin, int64_t end)
{
        bool once = is_tiling(&p->window), zeros = needs_zeros(&p->window);
        for (int64_t q = begin; q < end; q++) {
                const float *from = dy + q * p->out.stride_block;
                float *to = dx + q * p->in.stride_block;
                if (zeros)
                        memset(to, 0, (size_t)p->in.stride_block * sizeof *to);
                if (is_2x2(p) && p->in.block == 1)
                        for (int64_t r = 0, w = p->window.w, ow = p->window.ow; r < p->window.oh; r++)
                                avg_grad_row_2x2(ow, from + r * ow, to + 2 * r * w, to + (2 * r + 1) * w);
                else
                        WITH_LANES(p->in.block, avg_grad_plane(p, from, once, to, lanes));
        }
}

static void avgpool_backward(const struct mfl_pool *p, const float *dy, float *dx)
{
        DIVIDE(p->threads, p->rows * p->in.n_blocks, avg_grad_range(p, dy, dx, begin, end));
}
