/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of few channels; part of loops_body.h. mfl_small_conv in loops.h says which.
 *
 * A library's convolutions run their vectors along channels, but these have too few channels to fill one.
 * Here vectors run along a row of pixels, or along the outputs where those fill vectors. Weights lie as
 * [c][r][s][o]. A tensor that is read at shifted places is copied once per sample, with zeros around it, so
 * that loops need no borders. Every element is summed in one order, whatever tile it is in: over input
 * channel (or output), row and column of the window; weights' gradients over samples, rows, columns.
 */

#define CONV_OUTS 6 /* outputs of a tile, two vectors each */
#define CONV_TAPS 5 /* columns of the window in a tile of the weights' gradients */

/* Between the taps of a tile: otherwise the compiler keeps what the next tap reads again, for which it has
 * too few registers beside the sums. */
#define FORGET __asm__ volatile("" : : : "memory")

/* Calls body with the constant `no`: the largest of 6, 4, 2, 1 that is at most `left` outputs. */
#define WITH_OUTS(left, body)                                                                                \
        do {                                                                                                 \
                if ((left) >= CONV_OUTS) {                                                                   \
                        enum { no = CONV_OUTS };                                                             \
                        body;                                                                                \
                } else if ((left) >= 4) {                                                                    \
                        enum { no = 4 };                                                                     \
                        body;                                                                                \
                } else if ((left) >= 2) {                                                                    \
                        enum { no = 2 };                                                                     \
                        body;                                                                                \
                } else {                                                                                     \
                        enum { no = 1 };                                                                     \
                        body;                                                                                \
                }                                                                                            \
        } while (0)

static void copy_row(const float *from, int64_t n, float *to)
{
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES)
                store(to + i, load(from + i));
        if (i < n && n >= LANES)
                store(to + n - LANES, load(from + n - LANES));
        else
                for (; i < n; i++)
                        to[i] = from[i];
}

/* Copies n planes of h rows of w floats into planes and rows that lie further apart. */
static void copy_planes(
        const float *from, int64_t n, int64_t h, int64_t w, float *to, int64_t plane, int64_t pitch)
{
        if (w == pitch && h * w == plane) {
                memcpy(to, from, (size_t)(n * plane) * sizeof *to);
                return;
        }
        for (int64_t i = 0; i < n; i++)
                for (int64_t r = 0; r < h; r++, from += w)
                        copy_row(from, w, to + i * plane + r * pitch);
}

/* The same from blocks of channels, whose planes are `stride_block` floats apart. */
static void copy_blocks(
        const float *from, const struct mfl_layout *l, float *to, int64_t plane, int64_t pitch)
{
        for (int64_t o = 0; o < l->c; o += 4)
                for (int64_t r = 0; r < l->h; r++) {
                        const float *row =
                                from + o / l->block * l->stride_block + r * l->stride_h + o % l->block;
                        float *at = to + o * plane + r * pitch;
                        int64_t x = 0;
                        for (; x + 4 <= l->w; x += 4, row += 4 * l->block) {
                                vec4 a = load4(row), b = load4(row + l->block);
                                vec4 c = load4(row + 2 * l->block), d = load4(row + 3 * l->block);
                                transpose4(&a, &b, &c, &d);
                                store4(at + x, a);
                                store4(at + plane + x, b);
                                store4(at + 2 * plane + x, c);
                                store4(at + 3 * plane + x, d);
                        }
                        for (; x < l->w; x++, row += l->block)
                                for (int64_t i = 0; i < 4; i++)
                                        at[i * plane + x] = row[i];
                }
}

/* The input with its padding: planes of padded rows, and room for a vector after the last. */
struct padded {
        int64_t plane, pitch;
};

static inline struct padded padded_of(const struct mfl_window *v)
{
        int64_t pitch = v->w + 2 * v->p[1];
        return (struct padded){.plane = (v->h + 2 * v->p[0]) * pitch, .pitch = pitch};
}

static inline bool is_padded(const struct mfl_window *v)
{
        return v->p[0] || v->p[1];
}

static void pad_sample(const struct mfl_window *v, const float *x, float *to)
{
        struct padded p = padded_of(v);
        copy_planes(x, v->c, v->h, v->w, to + v->p[0] * p.pitch + v->p[1], p.plane, p.pitch);
}

/* ---- vectors along a row: forward into plain outputs, and the input's gradient ---- */

/* One row of results: each is the sum over planes, rows and columns of in[..] *
 * w[plane][row][column][result]. Forward sums over input channels. The input's gradient sums over outputs,
 * with the window reversed. */
struct conv_row {
        const float *in, *w;
        int64_t n_planes, n_rows, n_columns; /* n_rows: the rows of the window that are inside */
        int64_t in_plane, in_row, w_plane;
        const float *bias; /* NULL: none */
        bool relu;
        float *out; /* the row in the first result's plane */
        int64_t out_plane, n_outs, width;
        int64_t room; /* floats from `out` to the end of the plane: what lies after the row is computed
                         later */
};

/* One tap of the window for a tile of no results, nv vectors of each. */
INLINE void conv_row_tap(
        const float *in, const float *in2, const float *w, vec acc[CONV_OUTS][2], const int no, const int nv)
{
        vec xs[2];
        FORGET;
        UNROLL for (int v = 0; v < nv; v++) xs[v] = load(v ? in2 : in);
        UNROLL for (int o = 0; o < no; o++)
        {
                vec wo = splat(w[o]);
                UNROLL for (int v = 0; v < nv; v++) acc[o][v] += wo * xs[v];
        }
}

/* At columns x and x2; nk: the number of the window's columns where it is a constant, else 0. */
INLINE void conv_row_tile(const struct conv_row *p, int64_t first, int64_t x, int64_t x2, const int nk,
        const int no, const int nv)
{
        vec acc[CONV_OUTS][2];
        const int64_t n_columns = p->n_columns, n_outs = p->n_outs, n_rows = p->n_rows, in_row = p->in_row;
        UNROLL for (int o = 0; o < no; o++) UNROLL for (int v = 0; v < nv; v++) acc[o][v] =
                p->bias ? splat(p->bias[first + o]) : (vec){0};
        for (int64_t a = 0; a < p->n_planes; a++) {
                const float *in = p->in + a * p->in_plane + x, *w = p->w + first + a * p->w_plane;
                const float *in2 = in + x2 - x;
                for (int64_t r = 0; r < n_rows; r++, in += in_row, in2 += in_row)
                        if (nk)
                                UNROLL for (int s = 0; s < nk; s++, w += n_outs)
                                        conv_row_tap(in + s, in2 + s, w, acc, no, nv);
                        else
                                for (int64_t s = 0; s < n_columns; s++, w += n_outs)
                                        conv_row_tap(in + s, in2 + s, w, acc, no, nv);
        }
        UNROLL for (int o = 0; o < no; o++) UNROLL for (int v = 0; v < nv; v++)
        {
                int64_t at = v ? x2 : x, room = p->room - at;
                float *to = p->out + (first + o) * p->out_plane + at;
                vec y = p->relu ? (vec)((vec_int)acc[o][v] & (acc[o][v] > 0.0f)) : acc[o][v];
                if (room >= LANES)
                        store(to, y);
                else
                        store_part(to, y, room);
        }
}

/* The last vector ends with the row and may overlap the one before; both write the same results. */
INLINE void conv_row_outs(const struct conv_row *p, int64_t first, const int nk, const int no)
{
        int64_t last = MFL_MAX(p->width - LANES, 0);
        for (int64_t x = 0; x < p->width; x += 2 * LANES)
                if (x + LANES < p->width)
                        conv_row_tile(p, first, x, MFL_MIN(x + LANES, last), nk, no, 2);
                else
                        conv_row_tile(p, first, MFL_MIN(x, last), MFL_MIN(x, last), nk, no, 1);
}

static void conv_row(const struct conv_row *p)
{
        for (int64_t o = 0; o < p->n_outs;)
                WITH_OUTS(p->n_outs - o, {
                        if (p->n_columns == 5)
                                conv_row_outs(p, o, 5, no);
                        else if (p->n_columns == 3)
                                conv_row_outs(p, o, 3, no);
                        else
                                conv_row_outs(p, o, 0, no);
                        o += no;
                });
}

/* x is padded. */
static void conv_plain_sample(
        const struct mfl_small_conv *v, const float *x, const float *w, const float *bias, float *y)
{
        const struct mfl_window *g = &v->window;
        struct padded in = padded_of(g);
        struct conv_row row = {.w = w,
                .n_planes = g->c,
                .n_rows = g->k[0],
                .n_columns = g->k[1],
                .in_plane = in.plane,
                .in_row = in.pitch,
                .w_plane = g->k[0] * g->k[1] * g->o,
                .bias = bias,
                .relu = v->relu,
                .out_plane = g->oh * g->ow,
                .n_outs = g->o,
                .width = g->ow};
        for (int64_t r = 0; r < g->oh; r++) {
                row.in = x + r * in.pitch;
                row.out = y + r * g->ow;
                row.room = (g->oh - r) * g->ow;
                conv_row(&row);
        }
}

/* Weights as the input's gradient reads them: [o][r][s][c], rows and columns counted from the end. */
static void turn_weights(const struct mfl_window *g, const float *w, float *turned)
{
        int64_t taps = g->k[0] * g->k[1];
        for (int64_t c = 0; c < g->c; c++)
                for (int64_t t = taps - 1; t >= 0; t--)
                        for (int64_t o = 0; o < g->o; o++)
                                turned[(o * taps + t) * g->c + c] = *w++;
}

/* dy has k - 1 - p zeros on each side of its rows, and no rows of zeros; weights are reversed. */
static void conv_data_sample(const struct mfl_small_conv *v, const float *turned, const float *dy, float *dx)
{
        const struct mfl_window *g = &v->window;
        int64_t pitch = g->w + g->k[1] - 1;
        struct conv_row row = {.n_planes = g->o,
                .n_columns = g->k[1],
                .in_plane = g->oh * pitch,
                .in_row = pitch,
                .w_plane = g->k[0] * g->k[1] * g->c,
                .out_plane = g->h * g->w,
                .n_outs = g->c,
                .width = g->w};
        for (int64_t r = 0; r < g->h; r++) {
                /* Rows of dy, and of the reversed window, which lies from row `above` on. */
                int64_t above = r + g->p[0] - g->k[0] + 1;
                int64_t from = MFL_MAX(above, 0), to = MFL_MIN(above + g->k[0], g->oh);
                row.n_rows = MFL_MAX(to - from, 0);
                row.in = row.n_rows ? dy + from * pitch : dy;
                row.w = row.n_rows ? turned + (from - above) * g->k[1] * g->c : turned;
                row.out = dx + r * g->w;
                row.room = (g->h - r) * g->w;
                conv_row(&row);
        }
}

/* ---- vectors along outputs: forward into blocks ---- */

#define CONV_PIXELS(nv) ((nv) == 2 ? 6 : 10)

static inline int64_t out_at(const struct mfl_layout *l, int64_t o)
{
        return o / l->block * l->stride_block + o % l->block;
}

INLINE void conv_pixels_tap(const float *x, const float *w, vec acc[10][2], const int np, const int nv)
{
        vec ws[2];
        FORGET;
        UNROLL for (int i = 0; i < nv; i++) ws[i] = load(w + i * LANES);
        UNROLL for (int p = 0; p < np; p++)
        {
                vec xp = splat(x[p]);
                UNROLL for (int i = 0; i < nv; i++) acc[p][i] += ws[i] * xp;
        }
}

/* np pixels of a row from x on, nv vectors of outputs from `first` on; nk as above. */
INLINE void conv_pixels(const struct mfl_small_conv *v, const float *x, const float *w, const float *bias,
        float *y, int64_t first, const int nk, const int np, const int nv)
{
        const struct mfl_window *g = &v->window;
        struct padded in = padded_of(g);
        vec acc[10][2];
        UNROLL for (int i = 0; i < nv; i++) UNROLL for (int p = 0; p < np; p++) acc[p][i] =
                bias ? load(bias + first + i * LANES) : (vec){0};
        w += first;
        for (int64_t c = 0; c < g->c; c++)
                for (int64_t r = 0; r < g->k[0]; r++) {
                        const float *from = x + c * in.plane + r * in.pitch;
                        if (nk)
                                UNROLL for (int s = 0; s < nk; s++, w += g->o)
                                        conv_pixels_tap(from + s, w, acc, np, nv);
                        else
                                for (int64_t s = 0; s < g->k[1]; s++, w += g->o)
                                        conv_pixels_tap(from + s, w, acc, np, nv);
                }
        UNROLL for (int i = 0; i < nv; i++) UNROLL for (int p = 0; p < np; p++)
        {
                vec sum = v->relu ? (vec)((vec_int)acc[p][i] & (acc[p][i] > 0.0f)) : acc[p][i];
                store(y + out_at(&v->out, first + i * LANES) + p * v->out.block, sum);
        }
}

INLINE void conv_blocks_row(const struct mfl_small_conv *v, const float *x, const float *w, const float *bias,
        float *y, int64_t first, const int nk, const int nv)
{
        int64_t at = 0, width = v->window.ow, block = v->out.block;
        for (; at + CONV_PIXELS(nv) <= width; at += CONV_PIXELS(nv))
                conv_pixels(v, x + at, w, bias, y + at * block, first, nk, CONV_PIXELS(nv), nv);
        for (; at + 4 <= width; at += 4)
                conv_pixels(v, x + at, w, bias, y + at * block, first, nk, 4, nv);
        for (; at < width; at++)
                conv_pixels(v, x + at, w, bias, y + at * block, first, nk, 1, nv);
}

INLINE void conv_blocks_any_row(const struct mfl_small_conv *v, const float *x, const float *w,
        const float *bias, float *y, int64_t first, const int nv)
{
        if (v->window.k[1] == 5)
                conv_blocks_row(v, x, w, bias, y, first, 5, nv);
        else if (v->window.k[1] == 3)
                conv_blocks_row(v, x, w, bias, y, first, 3, nv);
        else
                conv_blocks_row(v, x, w, bias, y, first, 0, nv);
}

static void conv_blocks_sample(
        const struct mfl_small_conv *v, const float *x, const float *w, const float *bias, float *y)
{
        int64_t pitch = padded_of(&v->window).pitch, n_outs = v->window.o;
        for (int64_t r = 0; r < v->window.oh; r++) {
                int64_t o = 0;
                for (; o + 2 * LANES <= n_outs; o += 2 * LANES)
                        conv_blocks_any_row(v, x + r * pitch, w, bias, y + r * v->out.stride_h, o, 2);
                for (; o < n_outs; o += LANES)
                        conv_blocks_any_row(v, x + r * pitch, w, bias, y + r * v->out.stride_h, o, 1);
        }
}

/* ---- samples ---- */

/* The room of the thread that has n items from `begin` on, at least one. */
static inline float *conv_work(const struct mfl_small_conv *v, int64_t begin, int64_t n)
{
        int64_t part = (n + v->threads - 1) / v->threads; /* as DIVIDE divides */
        return v->work + begin / part * v->work_floats;
}

/* Without padding, vectors of a row that ends before they do would read past the input. */
static void small_forward_range(const struct mfl_small_conv *v, const float *x, const float *w,
        const float *bias, float *y, int64_t begin, int64_t end)
{
        const struct mfl_window *g = &v->window;
        float *padded = conv_work(v, begin, v->rows);
        bool blocks = v->out.block > 1, copies = is_padded(g) || (!blocks && g->ow < LANES);
        if (copies && begin < end)
                memset(padded, 0, (size_t)(g->c * padded_of(g).plane + LANES) * sizeof *padded);
        for (int64_t n = begin; n < end; n++) {
                const float *from = x + n * g->c * g->h * g->w;
                if (copies)
                        pad_sample(g, from, padded);
                (blocks ? conv_blocks_sample : conv_plain_sample)(
                        v, copies ? padded : from, w, bias, y + n * v->out.count);
        }
}

static void small_forward(
        const struct mfl_small_conv *v, const float *x, const float *w, const float *bias, float *y)
{
        DIVIDE(v->threads, v->rows, small_forward_range(v, x, w, bias, y, begin, end));
}

static void small_data_range(const struct mfl_small_conv *v, const float *w, const float *dy, float *dx,
        int64_t begin, int64_t end)
{
        const struct mfl_window *g = &v->window;
        int64_t pitch = g->w + g->k[1] - 1, plane = g->oh * pitch;
        if (begin == end)
                return;
        float *padded = conv_work(v, begin, v->rows), *turned = padded + g->o * plane + LANES;
        memset(padded, 0, (size_t)(g->o * plane + LANES) * sizeof *padded);
        turn_weights(g, w, turned);
        for (int64_t n = begin; n < end; n++) {
                float *at = padded + g->k[1] - 1 - g->p[1];
                if (v->out.block > 1)
                        copy_blocks(dy + n * v->out.count, &v->out, at, plane, pitch);
                else
                        copy_planes(dy + n * v->out.count, g->o, g->oh, g->ow, at, plane, pitch);
                conv_data_sample(v, turned, padded, dx + n * g->c * g->h * g->w);
        }
}

static void small_data(const struct mfl_small_conv *v, const float *w, const float *dy, float *dx)
{
        DIVIDE(v->threads, v->rows, small_data_range(v, w, dy, dx, begin, end));
}

/* ---- the gradients of weights and biases ---- */

/* sums[s][o] += over q of x[q + s] * dy[o][q], lane by lane; dy is zero past the ends of its rows. */
INLINE void conv_gradient_tile(const float *x, const float *dy, int64_t plane, int64_t n, float *sums,
        int64_t stride, const int no, const int ns)
{
        vec acc[CONV_TAPS][2];
        UNROLL for (int s = 0; s < ns; s++) UNROLL for (int o = 0; o < no; o++) acc[s][o] =
                load(sums + s * stride + o * LANES);
        for (int64_t q = 0; q < n; q += LANES) {
                vec g[2];
                UNROLL for (int o = 0; o < no; o++) g[o] = load(dy + o * plane + q);
                UNROLL for (int s = 0; s < ns; s++)
                {
                        vec xs = load(x + q + s);
                        FORGET;
                        UNROLL for (int o = 0; o < no; o++) acc[s][o] += xs * g[o];
                }
        }
        UNROLL for (int s = 0; s < ns; s++) UNROLL for (int o = 0; o < no; o++)
                store(sums + s * stride + o * LANES, acc[s][o]);
}

INLINE void conv_gradient_outs(
        const struct mfl_window *g, const float *x, const float *dy, int64_t plane, float *sums, const int no)
{
        int64_t s = 0, stride = g->o * LANES, n = (g->oh - 1) * padded_of(g).pitch + g->ow;
        for (; s + CONV_TAPS <= g->k[1]; s += CONV_TAPS)
                conv_gradient_tile(x + s, dy, plane, n, sums + s * stride, stride, no, CONV_TAPS);
        for (; s + 3 <= g->k[1]; s += 3)
                conv_gradient_tile(x + s, dy, plane, n, sums + s * stride, stride, no, 3);
        for (; s < g->k[1]; s++)
                conv_gradient_tile(x + s, dy, plane, n, sums + s * stride, stride, no, 1);
}

/* Rows [begin, end) of windows, numbered over input channels, of a plain output. `work` holds the lanes'
 * sums, then dy in rows as wide as the padded input's, then that input. */
static void conv_gradient_plain(const struct mfl_small_conv *v, const float *x, const float *dy, float *dw,
        int64_t begin, int64_t end, float *work)
{
        const struct mfl_window *g = &v->window;
        struct padded in = padded_of(g);
        int64_t width = g->k[1] * g->o, plane = (g->oh * in.pitch + LANES - 1) / LANES * LANES;
        float *sums = work, *spread = sums + (end - begin) * width * LANES, *padded = spread + g->o * plane;
        memset(work, 0, (size_t)(padded + g->c * in.plane + LANES - work) * sizeof *work);
        for (int64_t n = 0; n < v->rows; n++) {
                pad_sample(g, x + n * g->c * g->h * g->w, padded);
                copy_planes(dy + n * v->out.count, g->o, g->oh, g->ow, spread, plane, in.pitch);
                for (int64_t u = begin; u < end; u++) {
                        const float *from = padded + u / g->k[0] * in.plane + u % g->k[0] * in.pitch;
                        float *to = sums + (u - begin) * width * LANES;
                        int64_t o = 0;
                        for (; o + 2 <= g->o; o += 2)
                                conv_gradient_outs(g, from, spread + o * plane, plane, to + o * LANES, 2);
                        if (o < g->o)
                                conv_gradient_outs(g, from, spread + o * plane, plane, to + o * LANES, 1);
                }
        }
        for (int64_t i = 0; i < (end - begin) * width; i++) {
                float sum = 0;
                for (int k = 0; k < LANES; k++)
                        sum += sums[i * LANES + k];
                dw[begin * width + i] = sum;
        }
}

/* dw[r][s][o] += over pixels of x[pixel + r * pitch + s] * dy[pixel][o] for nv vectors of outputs. */
INLINE void conv_gradient_pixels(const struct mfl_small_conv *v, const float *x, const float *dy, float *dw,
        const int nr, const int ns, const int nv)
{
        const struct mfl_window *g = &v->window;
        int64_t pitch = padded_of(g).pitch, block = v->out.block,
                second = nv > 1 ? out_at(&v->out, LANES) : 0;
        vec acc[2][CONV_TAPS][2];
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int s = 0; s < ns; s++)
                UNROLL for (int i = 0; i < nv; i++) acc[r][s][i] =
                        load(dw + (r * g->k[1] + s) * g->o + i * LANES);
        for (int64_t y = 0; y < g->oh; y++, x += pitch, dy += v->out.stride_h)
                for (int64_t p = 0; p < g->ow; p++) {
                        vec d[2];
                        UNROLL for (int i = 0; i < nv; i++) d[i] = load(dy + p * block + i * second);
                        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int s = 0; s < ns; s++)
                        {
                                vec xs = splat(x[r * pitch + p + s]);
                                UNROLL for (int i = 0; i < nv; i++) acc[r][s][i] += xs * d[i];
                        }
                }
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int s = 0; s < ns; s++)
                UNROLL for (int i = 0; i < nv; i++)
                        store(dw + (r * g->k[1] + s) * g->o + i * LANES, acc[r][s][i]);
}

INLINE void conv_gradient_vectors(const struct mfl_small_conv *v, const float *x, const float *dy, float *dw,
        const int nr, const int nv)
{
        const struct mfl_window *g = &v->window;
        int64_t s = 0;
        for (; s + CONV_TAPS <= g->k[1]; s += CONV_TAPS)
                conv_gradient_pixels(v, x + s, dy, dw + s * g->o, nr, CONV_TAPS, nv);
        for (; s + 3 <= g->k[1]; s += 3)
                conv_gradient_pixels(v, x + s, dy, dw + s * g->o, nr, 3, nv);
        for (; s < g->k[1]; s++)
                conv_gradient_pixels(v, x + s, dy, dw + s * g->o, nr, 1, nv);
}

/* The same for an output in blocks: two vectors of outputs at once, or else two rows of the window. */
static void conv_gradient_blocks(const struct mfl_small_conv *v, const float *x, const float *dy, float *dw,
        int64_t begin, int64_t end, float *padded)
{
        const struct mfl_window *g = &v->window;
        struct padded in = padded_of(g);
        int64_t width = g->k[1] * g->o;
        memset(dw + begin * width, 0, (size_t)((end - begin) * width) * sizeof *dw);
        if (is_padded(g))
                memset(padded, 0, (size_t)(g->c * in.plane) * sizeof *padded);
        for (int64_t n = 0; n < v->rows; n++, dy += v->out.count) {
                const float *from = x + n * g->c * g->h * g->w;
                if (is_padded(g)) {
                        pad_sample(g, from, padded);
                        from = padded;
                }
                for (int64_t u = begin; u < end; u++) {
                        const float *at = from + u / g->k[0] * in.plane + u % g->k[0] * in.pitch;
                        bool pair = u + 1 < end && u % g->k[0] + 1 < g->k[0];
                        int64_t o = 0;
                        for (; o + 2 * LANES <= g->o; o += 2 * LANES) {
                                float *to = dw + u * width + o;
                                conv_gradient_vectors(v, at, dy + out_at(&v->out, o), to, 1, 2);
                                if (pair)
                                        conv_gradient_vectors(
                                                v, at + in.pitch, dy + out_at(&v->out, o), to + width, 1, 2);
                        }
                        for (; o < g->o; o += LANES)
                                if (pair)
                                        conv_gradient_vectors(
                                                v, at, dy + out_at(&v->out, o), dw + u * width + o, 2, 1);
                                else
                                        conv_gradient_vectors(
                                                v, at, dy + out_at(&v->out, o), dw + u * width + o, 1, 1);
                        u += pair;
                }
        }
}

static void small_gradient_range(const struct mfl_small_conv *v, const float *x, const float *dy, float *dw,
        int64_t begin, int64_t end)
{
        if (begin < end)
                (v->out.block > 1 ? conv_gradient_blocks : conv_gradient_plain)(
                        v, x, dy, dw, begin, end, conv_work(v, begin, v->window.c * v->window.k[0]));
}

static float sum_lanes(vec v)
{
        float sum = 0;
        for (int i = 0; i < LANES; i++)
                sum += v[i];
        return sum;
}

/* Vectors [begin, end) of outputs that lie in blocks. */
static void conv_bias_blocks(
        const struct mfl_layout *l, int64_t rows, const float *dy, float *dbias, int64_t begin, int64_t end)
{
        for (int64_t k = begin; k < end; k++) {
                vec sum = {0};
                for (int64_t n = 0; n < rows; n++) {
                        const float *from = dy + n * l->count + out_at(l, k * LANES);
                        for (int64_t i = 0; i < l->h * l->w; i++)
                                sum += load(from + i * l->block);
                }
                store(dbias + k * LANES, sum);
        }
}

static void conv_bias_plain(const struct mfl_small_conv *v, const float *dy, float *dbias)
{
        int64_t plane = v->window.oh * v->window.ow;
        for (int64_t o = 0; o < v->window.o; o++) {
                vec sum = {0};
                for (int64_t n = 0; n < v->rows; n++) {
                        const float *from = dy + n * v->out.count + out_at(&v->out, o);
                        int64_t i = 0;
                        for (; i + LANES <= plane; i += LANES)
                                sum += load(from + i);
                        sum += load_part(from + i, plane - i);
                }
                dbias[o] = sum_lanes(sum);
        }
}

static void small_gradient(
        const struct mfl_small_conv *v, const float *x, const float *dy, float *dw, float *dbias)
{
        DIVIDE(v->threads, v->window.c * v->window.k[0], small_gradient_range(v, x, dy, dw, begin, end));
        if (dbias && v->out.block > 1)
                conv_bias_blocks(&v->out, v->rows, dy, dbias, 0, v->window.o / LANES);
        else if (dbias)
                conv_bias_plain(v, dy, dbias);
}
