/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of weights and biases of convolutions, on tiles; part of loops_body.h. See mfl_tile_conv in loops.h.
 *
 * A weight's gradient is a sum over positions q, those of all rows of an image with the window's width beside the output's. The left side is the
 * output's gradient: 16 channels, 32 positions in order, 0 where there is no output. The right side is the input, shifted by the tap:
 * pairs of positions, 16 channels. Pairs begin at even positions; a second copy has those that begin at odd ones, for taps at odd
 * distances. Strides of n part the input into n * n images, in each of which a tap moves by one position. Sums go
 * over parts of the samples in order, whichever thread computes them.
 */
#define PART_POSITIONS 1024       /* the operands of two blocks by two stay in the second cache */
#define PART_POSITIONS_LARGE 4096 /* where the sums do not */
#define LARGE_SUMS 262144         /* floats */

struct tile_gradient {
        int64_t blocks_in, blocks_out, taps, phases, copies;
        int64_t rows, pitch; /* of an image, in positions */
        int64_t part;        /* samples at a time */
        int64_t positions;   /* of a part, in whole steps of 32 */
        int64_t image;       /* words of one copy of one block of a part, and what tiles read past it */
};

static struct tile_gradient gradient_of(const struct mfl_tile_conv *v)
{
        const struct mfl_window *g = &v->window;
        const int64_t s = g->s[0], down = (g->k[0] - 1) / s, right = (g->k[1] - 1) / s;
        struct tile_gradient t = {.blocks_in = (g->c + 15) / 16,
                .blocks_out = (g->o + 15) / 16,
                .taps = g->k[0] * g->k[1],
                .phases = s * s,
                .copies = right > 0 ? 2 : 1,
                .rows = g->oh + down,
                .pitch = up_to(g->ow + right, 2)};
        bool large = t.blocks_in * t.blocks_out * 256 * t.taps > LARGE_SUMS;
        int64_t wanted = large ? PART_POSITIONS_LARGE : PART_POSITIONS;
        t.part = MFL_MIN(MFL_MAX(wanted / (t.rows * t.pitch), 1), v->rows);
        t.positions = up_to(t.part * t.rows * t.pitch, 32);
        t.image = up_to(t.positions + down * t.pitch + right + 2, 32) / 2 * 16;
        return t;
}

/* Words of the output's gradient, of the input, and floats of the sums. */
INLINE int64_t gradient_words(const struct tile_gradient *t)
{
        return t->blocks_out * t->positions * 8 + t->blocks_in * t->phases * t->copies * t->image +
               t->taps * t->blocks_in * t->blocks_out * 256;
}

/* 16 channels of a pixel. */
INLINE vec pixel_of(const struct mfl_layout *l, const float *at, int64_t block)
{
        if (l->block == 16)
                return load(at + block * l->stride_block);
        vec v = {0};
        for (int64_t e = 0, c = block * 16; e < 16 && c < l->c; e++, c++)
                v[e] = at[c / l->block * l->stride_block + c % l->block];
        return v;
}

/* n pixels of row i of a sample, from column `left` on, each `step` further, 0 where there are none. */
static void pixels_of_row(const struct mfl_layout *l, const float *sample, int64_t block, int64_t i,
        int64_t left, int64_t step, int64_t n, vec *out)
{
        int64_t j = 0,
                last = i < 0 || i >= l->h || left >= l->w ? 0 : MFL_MIN(n, (l->w - 1 - left) / step + 1);
        const float *at = sample + i * l->stride_h + left * l->stride_w;
        for (; j < last && left + j * step < 0; j++, at += step * l->stride_w)
                out[j] = (vec){0};
        for (; j < last; j++, at += step * l->stride_w)
                out[j] = pixel_of(l, at, block);
        for (; j < n; j++)
                out[j] = (vec){0};
}

#define ROW_PIXELS 64 /* at a time */

/* One block of the output's gradient, n samples. */
static void pack_outputs(const struct mfl_tile_conv *v, const struct tile_gradient *t, const float *dy,
        int64_t n, int64_t block, uint32_t *out)
{
        vec row[ROW_PIXELS], m[16];
        int64_t q = 0, pairs = 0;
        for (int64_t line = 0; line < n * t->rows; line++)
                for (int64_t j = 0; j < t->pitch; j += ROW_PIXELS) {
                        const int64_t some = MFL_MIN(ROW_PIXELS, t->pitch - j), sample = line / t->rows;
                        pixels_of_row(
                                &v->out, dy + sample * v->out.count, block, line % t->rows, j, 1, some, row);
                        for (int64_t e = 0; e < some; e += 2) {
                                m[pairs++] = pairs_across(row[e], row[e + 1]);
                                if (pairs < 16)
                                        continue;
                                pairs = 0;
                                transpose16(m);
                                UNROLL for (int64_t r = 0; r < 16; r++)
                                        store_pairs(out + q * 8 + r * 16, m[r]);
                                q += 32;
                        }
                }
        if (pairs) {
                for (; pairs < 16; pairs++)
                        m[pairs] = (vec){0};
                transpose16(m);
                for (int64_t r = 0; r < 16; r++)
                        store_pairs(out + q * 8 + r * 16, m[r]);
                q += 32;
        }
        memset(out + q * 8, 0, (size_t)(t->positions - q) * 8 * sizeof *out);
}

/* One block of one image of the input in its copies. */
static void pack_inputs(const struct mfl_tile_conv *v, const struct tile_gradient *t, const float *x,
        int64_t n, int64_t block, int64_t phase, uint32_t *out)
{
        const struct mfl_window *g = &v->window;
        const int64_t s = g->s[0], top = phase / s - g->p[0], left = phase % s - g->p[1];
        uint32_t *even = out, *odd = out + t->image;
        vec row[ROW_PIXELS], before = {0};
        for (int64_t line = 0; line < n * t->rows; line++)
                for (int64_t j = 0; j < t->pitch; j += ROW_PIXELS) {
                        const int64_t some = MFL_MIN(ROW_PIXELS, t->pitch - j);
                        const float *sample = x + line / t->rows * v->in.count;
                        pixels_of_row(
                                &v->in, sample, block, line % t->rows * s + top, j * s + left, s, some, row);
                        for (int64_t e = 0; e < some; e += 2, even += 16) {
                                store_pairs(even, pairs_across(row[e], row[e + 1]));
                                if (t->copies > 1 && even != out) {
                                        store_pairs(odd, pairs_across(before, row[e]));
                                        odd += 16;
                                }
                                before = row[e + 1];
                        }
                }
        memset(even, 0, (size_t)(out + t->image - even) * sizeof *even);
        if (t->copies == 1)
                return;
        store_pairs(odd, pairs_across(before, (vec){0}));
        odd += 16;
        memset(odd, 0, (size_t)(out + 2 * t->image - odd) * sizeof *odd);
}

static void pack_blocks(const struct mfl_tile_conv *v, const struct tile_gradient *t, const float *x,
        const float *dy, int64_t n, int64_t begin, int64_t end, uint32_t *work)
{
        const int64_t phases = t->phases, inputs = t->blocks_out * t->positions * 8;
        for (int64_t i = begin; i < end; i++) {
                if (i < t->blocks_out) {
                        pack_outputs(v, t, dy, n, i, work + i * t->positions * 8);
                        continue;
                }
                int64_t image = i - t->blocks_out, phase = image % phases;
                if (phase / v->window.s[0] < v->window.k[0] && phase % v->window.s[0] < v->window.k[1])
                        pack_inputs(v, t, x, n, image / phases, phase,
                                work + inputs + image * t->copies * t->image);
        }
}

/* The sums of tap `tap` for outputs' blocks o and o + 1, inputs' blocks c and c + 1. */
static void gradient_unit(const struct mfl_tile_conv *v, const struct tile_gradient *t, const uint32_t *work,
        int64_t tap, int64_t o, int64_t c, bool first, float *sums)
{
        const struct mfl_window *g = &v->window;
        const int64_t s = g->s[0], r = tap / g->k[1], column = tap % g->k[1],
                      shift = r / s * t->pitch + column / s;
        const int64_t image = t->phases * t->copies * t->image, side = t->positions * 8;
        const bool tall = o + 1 < t->blocks_out, wide = c + 1 < t->blocks_in;
        const uint32_t *left = work + o * side, *left2 = tall ? left + side : left;
        const uint32_t *right = work + t->blocks_out * side + c * image +
                                (r % s * s + column % s) * t->copies * t->image + column / s % 2 * t->image +
                                shift / 2 * 16;
        const uint32_t *right2 = wide ? right + image : right;
        float *at = sums + ((tap * t->blocks_out + o) * t->blocks_in + c) * 256,
              *below = at + (tall ? t->blocks_in * 256 : 0);
        if (first) {
                tile_zero(0);
                tile_zero(1);
                tile_zero(2);
                tile_zero(3);
        } else {
                tile_load(0, at, 64);
                tile_load(1, at + (wide ? 256 : 0), 64);
                tile_load(2, below, 64);
                tile_load(3, below + (wide ? 256 : 0), 64);
        }
        for (int64_t q = 0; q < t->positions; q += 32) {
                tile_load(4, left + q * 8, 64);
                tile_load(6, right + q * 8, 64);
                tile_product(0, 4, 6);
                if (wide) {
                        tile_load(7, right2 + q * 8, 64);
                        tile_product(1, 4, 7);
                }
                if (!tall)
                        continue;
                tile_load(5, left2 + q * 8, 64);
                tile_product(2, 5, 6);
                if (wide)
                        tile_product(3, 5, 7);
        }
        tile_store(0, at, 64);
        if (wide)
                tile_store(1, at + 256, 64);
        if (tall)
                tile_store(2, below, 64);
        if (tall && wide)
                tile_store(3, below + 256, 64);
}

/* Of all pairs of blocks and taps, the taps innermost. */
static void gradient_units(const struct mfl_tile_conv *v, const struct tile_gradient *t, const uint32_t *work,
        int64_t begin, int64_t end, bool first, float *sums)
{
        const int64_t across = (t->blocks_in + 1) / 2;
        tiles_begin();
        for (int64_t i = begin; i < end; i++)
                gradient_unit(v, t, work, i % t->taps, i / t->taps / across * 2, i / t->taps % across * 2,
                        first, sums);
        tiles_end();
}

/* Outputs [begin, end) of the gradient in the order of the weights. */
static void order_gradient(const struct mfl_tile_conv *v, const struct tile_gradient *t, const float *sums,
        int64_t begin, int64_t end, float *dw)
{
        for (int64_t o = begin; o < end; o++)
                for (int64_t c = 0; c < v->window.c; c++)
                        for (int64_t tap = 0; tap < t->taps; tap++)
                                dw[(o * v->window.c + c) * t->taps + tap] =
                                        sums[((tap * t->blocks_out + o / 16) * t->blocks_in + c / 16) * 256 +
                                                o % 16 * 16 + c % 16];
}

/* Sums of the output's gradient in float, block by block. */
static void order_bias(
        const struct mfl_tile_conv *v, const float *dy, int64_t begin, int64_t end, float *dbias)
{
        const struct mfl_layout *l = &v->out;
        for (int64_t block = begin; block < end; block++) {
                vec sum = {0};
                for (int64_t n = 0; n < v->rows; n++) {
                        vec of_sample = {0};
                        for (int64_t i = 0; i < l->h; i++)
                                for (int64_t j = 0; j < l->w; j++)
                                        of_sample += pixel_of(l,
                                                dy + n * l->count + i * l->stride_h + j * l->stride_w, block);
                        sum += of_sample;
                }
                store_up_to(dbias + block * 16, sum, l->c - block * 16);
        }
}

static void tile_gradient(
        const struct mfl_tile_conv *v, const float *x, const float *dy, float *dw, float *dbias)
{
        const struct tile_gradient own = gradient_of(v);
        uint32_t *work = v->work;
        float *sums = (float *)work + gradient_words(&own) - own.taps * own.blocks_in * own.blocks_out * 256;
        for (int64_t i = 0; i < v->rows; i += own.part) {
                const float *xs = x + i * v->in.count, *dys = dy + i * v->out.count;
                const int64_t n = MFL_MIN(own.part, v->rows - i);
                DIVIDE(v->threads, own.blocks_out + own.blocks_in * own.phases,
                        pack_blocks(v, &own, xs, dys, n, begin, end, work));
                DIVIDE(v->threads, (own.blocks_out + 1) / 2 * ((own.blocks_in + 1) / 2) * own.taps,
                        gradient_units(v, &own, work, begin, end, i == 0, sums));
        }
        DIVIDE(v->threads, v->window.o, order_gradient(v, &own, sums, begin, end, dw));
        if (dbias)
                DIVIDE(v->threads, own.blocks_out, order_bias(v, dy, begin, end, dbias));
}

static size_t tile_work(const struct mfl_tile_conv *v, bool training)
{
        struct tile_product forward = forward_product(v), data = data_product(v);
        struct tile_gradient gradient = gradient_of(v);
        int64_t words = product_words(v, &forward);
        if (training) {
                words = MFL_MAX(words, product_words(v, &data));
                words = MFL_MAX(words, gradient_words(&gradient));
        }
        return (size_t)words * sizeof(uint32_t);
}
