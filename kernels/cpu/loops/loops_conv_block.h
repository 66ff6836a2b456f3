/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of weights and biases of convolutions between tensors in blocks of LANES channels; part of
 * loops_body.h. See mfl_block_conv in loops.h.
 *
 * A tile is two blocks of outputs against up to six pairs of input channel and column of the window. Its
 * twelve vectors of sums stay in registers while a band of pixels passes. A band's part of the two tensors
 * stays in the first cache while it is used for all rows of the window and all input channels of the block.
 * Sums go over samples, rows and columns, in order, whatever tile an element is in and whichever thread
 * computes it; bands depend only on the shape.
 */

#define BAND_PIXELS 256 /* at least, unless there are fewer */

/* Input channels side by side in a tile with this many columns of the window. */
#define BLOCK_INS(ns) ((ns) >= 4 ? 1 : (ns) >= 2 ? 2 : 4)

/* Strides of the input as tiles read it, in floats: of a sample, a block, a row. */
struct block_input {
        const float *x;
        int64_t sample, block, row;
};

/* Rows [first, last) of outputs, numbered over the samples of a part. x: the tile's first channel at its row
 * and column of the window; dy: its first outputs; dw: their gradients, the second block's at `dw_block`
 * further. */
INLINE void block_tile(const struct mfl_block_conv *v, const struct block_input *in, const float *x,
        const float *dy, int64_t first, int64_t last, float *dw, int64_t dw_block, const int no, const int ns)
{
        const struct mfl_window *g = &v->window;
        const int ni = BLOCK_INS(ns);
        const int64_t step = g->s[1] * LANES, width = g->ow;
        vec acc[6][2];
        UNROLL for (int s = 0; s < ns; s++) UNROLL for (int i = 0; i < ni; i++)
                UNROLL for (int o = 0; o < no; o++) acc[s * ni + i][o] =
                        load(dw + (s * LANES + i) * LANES + o * dw_block);
        for (int64_t n = first / g->oh, y = first % g->oh, r = first; r < last; r++) {
                const float *xs = x + n * in->sample + y * g->s[0] * in->row;
                const float *d0 = dy + n * v->out.count + y * v->out.stride_h, *d1 = d0 + v->out.stride_block;
                for (int64_t p = 0; p < width; p++, xs += step) {
                        vec d[2];
                        UNROLL for (int o = 0; o < no; o++) d[o] = load((o ? d1 : d0) + p * LANES);
                        UNROLL for (int s = 0; s < ns; s++) UNROLL for (int i = 0; i < ni; i++)
                        {
                                vec one = splat(xs[s * LANES + i]);
                                UNROLL for (int o = 0; o < no; o++) acc[s * ni + i][o] += one * d[o];
                        }
                }
                y = y + 1 < g->oh ? y + 1 : 0;
                n += y == 0;
        }
        UNROLL for (int s = 0; s < ns; s++) UNROLL for (int i = 0; i < ni; i++)
                UNROLL for (int o = 0; o < no; o++)
                        store(dw + (s * LANES + i) * LANES + o * dw_block, acc[s * ni + i][o]);
}

/* All input channels of a block at one row of the window, columns [s, s + ns). */
INLINE void block_columns(const struct mfl_block_conv *v, const struct block_input *in, const float *x,
        const float *dy, int64_t first, int64_t last, float *dw, int64_t dw_block, const int no, const int ns)
{
        for (int64_t i = 0; i < LANES; i += BLOCK_INS(ns))
                block_tile(v, in, x + i, dy, first, last, dw + i * LANES, dw_block, no, ns);
}

/* One block of input channels, `no` blocks of outputs, one band. */
INLINE void block_band(const struct mfl_block_conv *v, const struct block_input *in, const float *x,
        const float *dy, int64_t first, int64_t last, float *dw, int64_t dw_block, const int no)
{
        const struct mfl_window *g = &v->window;
        for (int64_t r = 0; r < g->k[0]; r++, x += in->row) {
                int64_t s = 0;
                for (; g->k[1] - s == 5; s += 5, dw += 5 * LANES * LANES)
                        block_columns(v, in, x + s * LANES, dy, first, last, dw, dw_block, no, 5);
                for (; s + 3 <= g->k[1]; s += 3, dw += 3 * LANES * LANES)
                        block_columns(v, in, x + s * LANES, dy, first, last, dw, dw_block, no, 3);
                for (; s < g->k[1]; s++, dw += LANES * LANES)
                        block_columns(v, in, x + s * LANES, dy, first, last, dw, dw_block, no, 1);
        }
}

/* Blocks of outputs [begin, end), summed over n samples. */
static void block_part(const struct mfl_block_conv *v, const struct block_input *in, const float *dy,
        int64_t n, float *dw, int64_t begin, int64_t end)
{
        const struct mfl_window *g = &v->window;
        int64_t weights = g->k[0] * g->k[1] * LANES * LANES, n_in = g->c / LANES, rows = n * g->oh;
        int64_t band = MFL_MAX((BAND_PIXELS + g->ow - 1) / g->ow, 1);
        for (int64_t o = begin; o < end; o += 2)
                for (int64_t i = 0; i < n_in; i++)
                        for (int64_t r = 0; r < rows; r += band) {
                                const float *x = in->x + i * in->block, *d = dy + o * v->out.stride_block;
                                float *to = dw + (o * n_in + i) * weights;
                                int64_t last = MFL_MIN(r + band, rows);
                                if (o + 1 < end)
                                        block_band(v, in, x, d, r, last, to, n_in * weights, 2);
                                else
                                        block_band(v, in, x, d, r, last, to, n_in * weights, 1);
                        }
}

/* Copies blocks [begin, end) of inputs into `padded`, whose margins are zeros. */
static void block_pad(const struct mfl_window *g, const struct block_input *in, const float *x, float *padded,
        int64_t begin, int64_t end)
{
        int64_t width = g->w * LANES, first = g->p[0] * in->row + g->p[1] * LANES;
        copy_planes(x + begin * g->h * width, end - begin, g->h, width, padded + begin * in->block + first,
                in->block, in->row);
}

static void block_gradient(
        const struct mfl_block_conv *v, const float *x, const float *dy, float *dw, float *dbias)
{
        const struct mfl_window *g = &v->window;
        int64_t n_outs = g->o / LANES, n_in = g->c / LANES, pairs = (n_outs + 1) / 2;
        struct block_input in = {.row = (g->w + 2 * g->p[1]) * LANES};
        in.block = (g->h + 2 * g->p[0]) * in.row;
        in.sample = n_in * in.block;
        memset(dw, 0, (size_t)(g->o * g->c * g->k[0] * g->k[1]) * sizeof *dw);
        if (is_padded(g))
                memset(v->work, 0, (size_t)(v->part * in.sample) * sizeof *v->work);
        for (int64_t n = 0; n < v->rows; n += v->part) {
                int64_t many = MFL_MIN(v->part, v->rows - n);
                const float *from = x + n * g->c * g->h * g->w, *d = dy + n * v->out.count;
                in.x = from;
                if (is_padded(g)) {
                        in.x = v->work;
                        DIVIDE(v->threads, many * n_in, block_pad(g, &in, from, v->work, begin, end));
                }
                DIVIDE(v->threads, pairs,
                        block_part(v, &in, d, many, dw, 2 * begin, MFL_MIN(2 * end, n_outs)));
        }
        if (dbias)
                DIVIDE(v->threads, n_outs, conv_bias_blocks(&v->out, v->rows, dy, dbias, begin, end));
}
