/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of operands rounded to bfloat16, on tiles: output, and the gradient of the input; part of loops_body.h. See
 * mfl_tile_conv in loops.h.
 *
 * Both are one product. Samples are copied as padded images in bfloat16, channels innermost, `part` of them one after another. Position
 * q of the output begins at the image's element q * step * channels, so that the 16 rows of a tile are positions in
 * order, and a row of the window, with all of its channels, is one run along k. Positions between the output's rows and between samples are
 * computed and left out. Weights are packed as bf16/gemm_tile.h has its right side. The gradient of the input is the same with
 * inputs and outputs exchanged, the window turned around, and the output's gradient spread out by the strides. An
 * element's sum depends on the shape of the convolution alone.
 */

/* Pixel (i, j) of a tensor is pixel (top + i * spread, left + j * spread) of an image. */
struct tile_image {
        struct mfl_layout from;
        int64_t spread, top, left, rows, pitch, channels;
};

struct tile_product {
        struct tile_image image;
        struct mfl_layout to;
        int64_t k[2], step, run; /* run: elements along k of a row of the window, in whole steps of 32 */
        int64_t part;            /* samples at a time */
        bool by_rows, relu;      /* by_rows: each row of the output has tiles of its own */
        int64_t column,
                channel; /* weight (column, channel, r, s) is at their multiples, plus r * tap[0] + s * tap[1] + first */
        int64_t tap[2], first;
};

#define TILE_PART 131072 /* elements of the images of a part: they stay in the second cache */

INLINE int64_t up_to(int64_t n, int64_t unit)
{
        return (n + unit - 1) / unit * unit;
}

/* Completes an image for an output of h x w positions. */
static void product_sizes(struct tile_product *p)
{
        struct tile_image *m = &p->image;
        const int64_t blocks = m->from.block == 16 ? m->from.n_blocks * 16 : up_to(m->from.c, 2);
        m->channels = blocks;
        p->run = up_to(p->k[1] * blocks, 32);
        m->pitch = (p->to.w - 1) * p->step + p->k[1];
        m->rows = up_to((p->to.h - 1) * p->step + p->k[0], p->step);
        const int64_t past =
                p->run - p->k[1] * blocks; /* what a run reads past the window belongs to its sample */
        m->rows += up_to((past + m->pitch * blocks - 1) / (m->pitch * blocks), p->step);
        int64_t lines = m->rows / p->step, whole = p->to.h * up_to(p->to.w, 16);
        p->by_rows = whole < lines * m->pitch;
        p->part = MFL_MAX(TILE_PART / (m->rows * m->pitch * blocks), 1); /* whatever the batch: tile_work */
}

static struct tile_product forward_product(const struct mfl_tile_conv *v)
{
        const struct mfl_window *g = &v->window;
        struct tile_product p = {.image = {.from = v->in, .spread = 1, .top = g->p[0], .left = g->p[1]},
                .to = v->out,
                .k = {g->k[0], g->k[1]},
                .step = g->s[0],
                .relu = v->relu,
                .column = g->c * g->k[0] * g->k[1],
                .channel = g->k[0] * g->k[1],
                .tap = {g->k[1], 1}};
        product_sizes(&p);
        return p;
}

static struct tile_product data_product(const struct mfl_tile_conv *v)
{
        const struct mfl_window *g = &v->window;
        const int64_t top = g->k[0] - 1 - g->p[0], left = g->k[1] - 1 - g->p[1];
        struct tile_product p = {.image = {.from = v->out, .spread = g->s[0], .top = top, .left = left},
                .to = v->in,
                .k = {g->k[0], g->k[1]},
                .step = 1,
                .column = g->k[0] * g->k[1],
                .channel = g->c * g->k[0] * g->k[1],
                .tap = {-g->k[1], -1},
                .first = g->k[0] * g->k[1] - 1};
        product_sizes(&p);
        return p;
}

/* Words of the packed weights, and of one thread's images. */
INLINE int64_t weight_words(const struct tile_product *p)
{
        return up_to(p->to.c, GEMM_PANEL) * p->k[0] * p->run / 2;
}

INLINE int64_t image_words(const struct tile_product *p)
{
        const struct tile_image *m = &p->image;
        int64_t beyond = GEMM_PANEL * p->step * m->channels +
                         p->run; /* what the last tile reads past the last position */
        return up_to(p->part * m->rows * m->pitch * m->channels + beyond, 32) / 2;
}

/* Of both. Inference makes its convolutions for one sample, and runs them for more, so the number of samples plays no part. */
INLINE int64_t product_words(const struct mfl_tile_conv *v, const struct tile_product *p)
{
        return up_to(weight_words(p), 16) + v->threads * image_words(p);
}

/* One channel's weights for 16 columns, of which n exist. */
INLINE vec load_columns(const float *w, int64_t stride, int64_t n)
{
#ifdef __AVX512BF16__
        const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        __mmask16 there = (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1u << n) - 1u : 0u);
        return (vec)_mm512_mask_i32gather_ps(
                _mm512_setzero_ps(), there, _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)stride)), w, 4);
#else
        vec v = {0};
        for (int64_t i = 0; i < MFL_MIN(n, 16); i++)
                v[i] = w[i * stride];
        return v;
#endif
}

/* Panels [begin, end) of the weights. */
static void pack_weights(
        const struct tile_product *p, const float *w, int64_t begin, int64_t end, uint32_t *out)
{
        const int64_t words = p->k[0] * p->run / 2 * GEMM_PANEL, c = p->image.from.c;
        memset(out + begin * words, 0, (size_t)((end - begin) * words) * sizeof *out);
        for (int64_t half = 2 * begin; half < 2 * end; half++) {
                const float *from = w + p->first + half * 16 * p->column;
                uint32_t *panel = out + half / 2 * words + half % 2 * 16;
                for (int64_t r = 0; r < p->k[0]; r++)
                        for (int64_t s = 0; s < p->k[1]; s++)
                                for (int64_t i = 0; i < c; i += 2) {
                                        const float *at =
                                                from + r * p->tap[0] + s * p->tap[1] + i * p->channel;
                                        int64_t n = p->to.c - half * 16,
                                                k = r * p->run + s * p->image.channels + i;
                                        vec even = load_columns(at, p->column, n);
                                        vec odd = load_columns(at + p->channel, p->column, i + 1 < c ? n : 0);
                                        store_pairs(panel + k / 2 * GEMM_PANEL, pairs_across(even, odd));
                                }
        }
}

/* One row of an image: pixels of row i of the tensor, and zeros. */
static void image_row(const struct tile_image *m, const float *x, int64_t i, uint16_t *to)
{
        const struct mfl_layout *l = &m->from;
        const int64_t n = MFL_MIN(l->w, (m->pitch - 1 - m->left) / m->spread + 1),
                      pixel = m->spread * m->channels;
        const float *row = x + i * l->stride_h;
        uint16_t *first = to + m->left * m->channels, *end = to + m->pitch * m->channels;
        if (m->spread > 1 || l->block != 16) {
                memset(to, 0, (size_t)(m->pitch * m->channels) * sizeof *to);
        } else {
                memset(to, 0, (size_t)(first - to) * sizeof *to);
                memset(first + n * pixel, 0, (size_t)(end - first - n * pixel) * sizeof *to);
        }
        for (int64_t b = 0; b < l->n_blocks; b++) {
                const float *from = row + b * l->stride_block;
                uint16_t *at = first + b * l->block;
                if (l->block == 16) {
                        for (int64_t j = 0; j < n; j++, at += pixel)
                                store_bf16(at, load(from + j * 16));
                        continue;
                }
                for (int64_t j = 0; j < n; j++, at += pixel)
                        for (int64_t c = 0; c < MFL_MIN(l->block, l->c - b * l->block); c++)
                                at[c] = (uint16_t)(mfl_bf16_bits(from[j * l->stride_w + c]) >> 16);
        }
}

static void fill_images(const struct tile_product *p, const float *x, int64_t n, uint16_t *images)
{
        const struct tile_image *m = &p->image;
        const int64_t row = m->pitch * m->channels, sample = m->rows * row;
        for (int64_t s = 0; s < n; s++)
                for (int64_t at = 0; at < m->rows; at++) {
                        int64_t i = (at - m->top) / m->spread;
                        uint16_t *to = images + s * sample + at * row;
                        if (at < m->top || (at - m->top) % m->spread || i >= m->from.h)
                                memset(to, 0, (size_t)row * sizeof *to);
                        else
                                image_row(m, x + s * m->from.count, i, to);
                }
        memset(images + n * sample, 0, (size_t)(2 * image_words(p) - n * sample) * sizeof *images);
}

/* Sums of 32 positions from q on, with two blocks of 16 channels from `block` on, to their places. */
static void write_positions(const struct tile_product *p, const float *sums, int64_t q, int64_t n,
        int64_t block, const float *bias, float *y)
{
        const struct mfl_layout *l = &p->to;
        const int64_t lines = p->image.rows / p->step;
        int64_t w = q % p->image.pitch, line = q / p->image.pitch, h = line % lines, sample = line / lines;
        vec add[2] = {{0}, {0}};
        int64_t halves = MFL_MIN(2, (l->c + 15) / 16 - block), channels = l->n_blocks * l->block;
        for (int64_t b = 0; b < halves && bias; b++)
                add[b] = load_up_to(bias + (block + b) * 16, l->c - (block + b) * 16);
        for (int64_t i = 0; i < n; i++, sums += GEMM_PANEL) {
                if (w < l->w && h < l->h)
                        for (int64_t b = 0; b < halves; b++) {
                                vec v = load(sums + b * 16) + add[b];
                                v = p->relu ? (vec)((vec_int)v & (v > 0.0f)) : v;
                                float *to = y + sample * l->count + h * l->stride_h + w * l->stride_w;
                                if (l->block == 16)
                                        store(to + (block + b) * l->stride_block, v);
                                else
                                        for (int64_t c = (block + b) * 16, e = 0; e < 16 && c < channels;
                                                c++, e++)
                                                to[c / l->block * l->stride_block + c % l->block] = v[e];
                        }
                if (++w < p->image.pitch)
                        continue;
                w = 0;
                if (++h == lines) {
                        h = 0;
                        sample++;
                }
        }
}

/* Positions [q, q + n) of the images. */
static void product_run(const struct tile_product *p, const uint16_t *images, const uint32_t *weights,
        int64_t q, int64_t n, int64_t block, const float *bias, float *y)
{
        _Alignas(64) float sums[GEMM_PANEL * GEMM_PANEL];
        const struct tile_image *m = &p->image;
        const int64_t ld = p->step * m->channels, pairs = p->run / 2;
        struct gemm_sums s = {sums, 4 * GEMM_PANEL, false, p->to.c > (block + 1) * 16};
        for (const int64_t end = q + n; q < end; q += GEMM_PANEL) {
                int64_t positions = MFL_MIN(end - q, GEMM_PANEL);
                s.tall = positions > 16;
                tile_zero(0);
                tile_zero(1);
                tile_zero(2);
                tile_zero(3);
                for (int64_t r = 0; r < p->k[0]; r++)
                        multiply_tiles(&s, (const uint32_t *)(images + q * ld + r * m->pitch * m->channels),
                                2 * ld, weights + r * pairs * GEMM_PANEL, pairs, NULL);
                store_sums(&s);
                write_positions(p, sums, q, positions, block, bias, y);
        }
}

/* Samples [begin, end), by one thread. */
static void product_samples(const struct tile_product *p, const float *x, const uint32_t *weights,
        const float *bias, int64_t begin, int64_t end, float *y, uint16_t *images)
{
        const struct tile_image *m = &p->image;
        const int64_t lines = m->rows / p->step, panel = p->k[0] * p->run / 2 * GEMM_PANEL;
        tiles_begin();
        for (int64_t i = begin; i < end; i += p->part) {
                int64_t n = MFL_MIN(p->part, end - i), last = (n - 1) * lines + p->to.h - 1;
                float *to = y + i * p->to.count;
                fill_images(p, x + i * m->from.count, n, images);
                for (int64_t block = 0; block * 16 < p->to.c; block += 2) {
                        const uint32_t *w = weights + block / 2 * panel;
                        if (!p->by_rows)
                                product_run(p, images, w, 0, last * m->pitch + p->to.w, block, bias, to);
                        for (int64_t h = 0; p->by_rows && h <= last; h++)
                                if (h % lines < p->to.h)
                                        product_run(p, images, w, h * m->pitch, p->to.w, block, bias, to);
                }
        }
        tiles_end();
}

static void product_all(const struct mfl_tile_conv *v, const struct tile_product *p, const float *x,
        const float *w, const float *bias, float *y)
{
        uint32_t *weights = v->work, *images = weights + up_to(weight_words(p), 16);
        const int64_t own = image_words(p), share = (v->rows + v->threads - 1) / v->threads;
        DIVIDE(v->threads, (p->to.c + GEMM_PANEL - 1) / GEMM_PANEL, pack_weights(p, w, begin, end, weights));
        DIVIDE(v->threads, v->rows,
                product_samples(
                        p, x, weights, bias, begin, end, y, (uint16_t *)(images + begin / share * own)));
}

static void tile_forward(
        const struct mfl_tile_conv *v, const float *x, const float *w, const float *bias, float *y)
{
        struct tile_product p = forward_product(v);
        product_all(v, &p, x, w, bias, y);
}

static void tile_data(const struct mfl_tile_conv *v, const float *w, const float *dy, float *dx)
{
        struct tile_product p = data_product(v);
        product_all(v, &p, dy, w, NULL, dx);
}

#include "kernels/cpu/loops/bf16/grad_tile.h"
