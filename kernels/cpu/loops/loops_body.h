/* SPDX-License-Identifier: Apache-2.0 */
/* The loops, for one instruction set. A file defines LANES (floats of a vector), TILE_ROWS (rows of a
 * register tile), LOOPS (the table's symbol) and LOOPS_NAME, is compiled with that set's flags, and includes
 * this. With LOOPS_BF16, matrix products take their operands in bfloat16 (bf16.h): LOOPS_GEMM is the header with them,
 * LOOPS_TILES one with convolutions, if there are any. Only a table of these products, called LOOPS_BF16, is
 * made, since the rest would be a copy. Vectors are GCC's vector extensions,
 * so that gcc and clang compile the same text for every processor. Products and sums contract to FMA here:
 * this backend, like the library beside it, promises equal results only on equal processors. */
#include <math.h>

#include "kernels/bodies.h"
#include "kernels/cpu/loops/loops.h"

#ifdef LOOPS_BF16
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t vec_int __attribute__((vector_size(LANES * 4)));
typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define TILE_VECS 4                    /* vectors of a register tile in the products along n_in */
#define BACKWARD_OUTS (10 * TILE_ROWS) /* outputs of a block of weights, which stays in the first cache */
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")
/* The loop's arrays are apart, or the same: without it the compiler asks, and takes a loop without vectors where they are the same. */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Calls over [begin, end) of [0, n), divided among the threads; one thread needs no parallel region. */
#define DIVIDE(threads, n, call)                                                                             \
        do {                                                                                                 \
                const int n_parts = (threads);                                                               \
                const int64_t total = (n), part = (total + n_parts - 1) / n_parts;                           \
                if (n_parts <= 1) {                                                                          \
                        const int64_t begin = 0, end = total;                                                \
                        call;                                                                                \
                } else {                                                                                     \
                        _Pragma("omp parallel for num_threads(n_parts) schedule(static)") for (int t = 0;    \
                                                                                               t < n_parts;  \
                                                                                               t++)          \
                        {                                                                                    \
                                const int64_t begin = MFL_MIN(t * part, total),                              \
                                              end = MFL_MIN(begin + part, total);                            \
                                call;                                                                        \
                        }                                                                                    \
                }                                                                                            \
        } while (0)

INLINE vec load(const float *p)
{
        return *(const vec_unaligned *)p;
}

INLINE void store(float *p, vec v)
{
        *(vec_unaligned *)p = v;
}

/* The first n lanes; the others are 0, or left as they are. */
INLINE vec load_part(const float *p, int64_t n)
{
        vec v = {0};
        memcpy(&v, p, (size_t)n * sizeof(float));
        return v;
}

INLINE void store_part(float *p, vec v, int64_t n)
{
        memcpy(p, &v, (size_t)n * sizeof(float));
}

INLINE vec splat(float f)
{
        return f - (vec){0};
}

typedef float vec4 __attribute__((vector_size(16)));

typedef int32_t vec4_int __attribute__((vector_size(16)));

typedef float vec4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

INLINE vec4 load4(const float *p)
{
        return *(const vec4_unaligned *)p;
}

INLINE void store4(float *p, vec4 v)
{
        *(vec4_unaligned *)p = v;
}

INLINE void transpose4(vec4 *a, vec4 *b, vec4 *c, vec4 *d)
{
        vec4 ab = __builtin_shufflevector(*a, *b, 0, 4, 1, 5),
             ab2 = __builtin_shufflevector(*a, *b, 2, 6, 3, 7);
        vec4 cd = __builtin_shufflevector(*c, *d, 0, 4, 1, 5),
             cd2 = __builtin_shufflevector(*c, *d, 2, 6, 3, 7);
        *a = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
        *b = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
        *c = __builtin_shufflevector(ab2, cd2, 0, 1, 4, 5);
        *d = __builtin_shufflevector(ab2, cd2, 2, 3, 6, 7);
}

/* ---- dense ---- */

/* Forward runs its vectors along the samples: TILE_SAMPLES of them against FORWARD_OUTS outputs, with weights
 * broadcast. No sum has to be taken across a vector. */
#define TILE_SAMPLES (2 * LANES)
#define FORWARD_OUTS (LANES == 16 ? 12 : 6)
#define OUTS_AT_ONCE 512

INLINE int64_t panel_width(const struct mfl_dense *d, int64_t k)
{
        return MFL_MIN(MFL_DENSE_PANEL, d->n_in - k);
}

/* t[k][r] = x[r][k] for a panel of up to TILE_SAMPLES rows; other columns of t stay as they are. */
static void transpose_panel(const float *x, int64_t n_in, int64_t rows, int64_t width, float *t)
{
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4, x += 4 * n_in) {
                int64_t k = 0;
                for (; k + 4 <= width; k += 4) {
                        vec4 a = load4(x + k), b = load4(x + n_in + k);
                        vec4 c = load4(x + 2 * n_in + k), e = load4(x + 3 * n_in + k);
                        transpose4(&a, &b, &c, &e);
                        store4(t + k * TILE_SAMPLES + r, a);
                        store4(t + (k + 1) * TILE_SAMPLES + r, b);
                        store4(t + (k + 2) * TILE_SAMPLES + r, c);
                        store4(t + (k + 3) * TILE_SAMPLES + r, e);
                }
                for (; k < width; k++)
                        for (int64_t i = 0; i < 4; i++)
                                t[k * TILE_SAMPLES + r + i] = x[i * n_in + k];
        }
        for (; r < rows; r++, x += n_in)
                for (int64_t k = 0; k < width; k++)
                        t[k * TILE_SAMPLES + r] = x[k];
}

/* sums[o][r] += the panel's share, for `no` outputs and nv vectors of samples. */
INLINE void forward_tile(
        const float *t, const float *w, int64_t width, float *sums, const int no, const int nv)
{
        vec acc[FORWARD_OUTS][2];
        UNROLL for (int o = 0; o < no; o++) UNROLL for (int v = 0; v < nv; v++) acc[o][v] = (vec){0};
        for (int64_t k = 0; k < width; k++) {
                vec xk[2];
                __builtin_prefetch(w + no * width + k * 16); /* of the next tile's weights */
                UNROLL for (int v = 0; v < nv; v++) xk[v] = load(t + k * TILE_SAMPLES + v * LANES);
                UNROLL for (int o = 0; o < no; o++)
                {
                        vec wk = splat(w[o * width + k]);
                        UNROLL for (int v = 0; v < nv; v++) acc[o][v] += wk * xk[v];
                }
        }
        UNROLL for (int o = 0; o < no; o++) UNROLL for (int v = 0; v < nv; v++)
        {
                float *sum = sums + o * TILE_SAMPLES + v * LANES;
                store(sum, load(sum) + acc[o][v]);
        }
}

INLINE void forward_panel(
        const float *t, const float *w, int64_t width, int64_t n_outs, float *sums, const int nv)
{
        int64_t o = 0;
        for (; o + FORWARD_OUTS <= n_outs; o += FORWARD_OUTS)
                forward_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, FORWARD_OUTS, nv);
        for (; o + 4 <= n_outs; o += 4)
                forward_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, 4, nv);
        for (; o < n_outs; o++)
                forward_tile(t, w + o * width, width, sums + o * TILE_SAMPLES, 1, nv);
}

/* The same; the usual width is a constant, so that addresses are constants too. */
static void forward_any_panel(
        const float *t, const float *w, int64_t width, int64_t n_outs, float *sums, int64_t rows)
{
        if (width == MFL_DENSE_PANEL && rows > LANES)
                forward_panel(t, w, MFL_DENSE_PANEL, n_outs, sums, 2);
        else if (width == MFL_DENSE_PANEL)
                forward_panel(t, w, MFL_DENSE_PANEL, n_outs, sums, 1);
        else
                forward_panel(t, w, width, n_outs, sums, 2);
}

#include "kernels/cpu/loops/loops_few.h"

INLINE float finish_output(const struct mfl_dense *d, float sum, float bias)
{
        float f = sum + bias;
        return d->relu ? mfl_unary_relu(f) : f;
}

/* y[r][o] = sums[o][r] + bias[o] for four rows. Sums of ReLUs have either sign, so it takes no branch. */
INLINE void finish_rows(
        const struct mfl_dense *d, const float *sums, const float *bias, float *y, int64_t n_outs)
{
        int64_t o = 0, n_out = d->n_out;
        for (; o + 4 <= n_outs; o += 4) {
                vec4 b = bias ? load4(bias + o) : (vec4){0}, row[4];
                UNROLL for (int i = 0; i < 4; i++) row[i] = load4(sums + (o + i) * TILE_SAMPLES);
                transpose4(&row[0], &row[1], &row[2], &row[3]);
                UNROLL for (int i = 0; i < 4; i++)
                {
                        vec4 f = row[i] + b;
                        store4(y + i * n_out + o, d->relu ? (vec4)((vec4_int)f & (f > 0)) : f);
                }
        }
        for (; o < n_outs; o++)
                for (int64_t i = 0; i < 4; i++)
                        y[i * n_out + o] = finish_output(d, sums[o * TILE_SAMPLES + i], bias ? bias[o] : 0);
}

static void finish_outputs(const struct mfl_dense *d, const float *sums, const float *bias, float *y,
        int64_t rows, int64_t n_outs)
{
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
                finish_rows(d, sums + r, bias, y + r * d->n_out, n_outs);
        for (; r < rows; r++)
                for (int64_t o = 0; o < n_outs; o++)
                        y[r * d->n_out + o] =
                                finish_output(d, sums[o * TILE_SAMPLES + r], bias ? bias[o] : 0.0f);
}

/* Outputs [begin, end). */
static void forward_range(const struct mfl_dense *d, const float *x, const float *w, const float *bias,
        float *y, int64_t begin, int64_t end)
{
        _Alignas(64) float sums[OUTS_AT_ONCE * TILE_SAMPLES], t[MFL_DENSE_PANEL * TILE_SAMPLES];
        for (int64_t r = 0; r < d->rows; r += TILE_SAMPLES)
                for (int64_t o = begin; o < end; o += OUTS_AT_ONCE) {
                        int64_t rows = MFL_MIN(TILE_SAMPLES, d->rows - r),
                                n_outs = MFL_MIN(OUTS_AT_ONCE, end - o);
                        memset(sums, 0, (size_t)(n_outs * TILE_SAMPLES) * sizeof *sums);
                        memset(t, 0, sizeof t);
                        for (int64_t k = 0; k < d->n_in; k += MFL_DENSE_PANEL) {
                                int64_t width = panel_width(d, k);
                                transpose_panel(x + r * d->n_in + k, d->n_in, rows, width, t);
                                add_panel(t, w + k * d->n_out + o * width, width, n_outs, sums, rows);
                        }
                        finish_outputs(d, sums, bias ? bias + o : NULL, y + r * d->n_out + o, rows, n_outs);
                }
}

static void dense_forward(
        const struct mfl_dense *d, const float *x, const float *w, const float *bias, float *y)
{
        DIVIDE(d->threads, d->n_out, forward_range(d, x, w, bias, y, begin, end));
}

/* dx[r][k ..] += dy * w over outputs [first, last), for nr rows and nv vectors along a panel, the last with
 * `lanes` floats; first = 0 starts the sum. */
INLINE void data_tile(const struct mfl_dense *d, const float *dy, const float *w, int64_t width, float *dx,
        int64_t first, int64_t last, const int nr, const int nv, int64_t lanes)
{
        vec acc[TILE_ROWS][TILE_VECS];
        bool whole = lanes == LANES;
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
        {
                const float *from = dx + r * d->n_in + v * LANES;
                acc[r][v] = first == 0 ? (vec){0} : whole ? load(from) : load_part(from, lanes);
        }
        for (int64_t o = first; o < last; o++) {
                vec wo[TILE_VECS];
                UNROLL for (int v = 0; v < nv; v++) wo[v] =
                        whole ? load(w + o * width + v * LANES) : load_part(w + o * width + v * LANES, lanes);
                UNROLL for (int r = 0; r < nr; r++)
                {
                        vec g = splat(dy[r * d->n_out + o]);
                        UNROLL for (int v = 0; v < nv; v++) acc[r][v] += g * wo[v];
                }
        }
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int v = 0; v < nv; v++)
        {
                if (whole)
                        store(dx + r * d->n_in + v * LANES, acc[r][v]);
                else
                        store_part(dx + r * d->n_in + v * LANES, acc[r][v], lanes);
        }
}

INLINE void data_rows(const struct mfl_dense *d, const float *dy, const float *w, int64_t width, float *dx,
        int64_t first, int64_t last, const int nv, int64_t lanes)
{
        int64_t r = 0, n_in = d->n_in, n_out = d->n_out;
        for (; r + TILE_ROWS <= d->rows; r += TILE_ROWS)
                data_tile(d, dy + r * n_out, w, width, dx + r * n_in, first, last, TILE_ROWS, nv, lanes);
        for (; r + 2 <= d->rows; r += 2)
                data_tile(d, dy + r * n_out, w, width, dx + r * n_in, first, last, 2, nv, lanes);
        for (; r < d->rows; r++)
                data_tile(d, dy + r * n_out, w, width, dx + r * n_in, first, last, 1, nv, lanes);
}

/* A panel's columns of dx, outputs [first, last). */
static void data_panel(const struct mfl_dense *d, const float *dy, const float *w, int64_t width, float *dx,
        int64_t first, int64_t last)
{
        int64_t k = 0;
        for (; k + TILE_VECS * LANES <= width; k += TILE_VECS * LANES)
                data_rows(d, dy, w + k, width, dx + k, first, last, TILE_VECS, LANES);
        for (; k + LANES <= width; k += LANES)
                data_rows(d, dy, w + k, width, dx + k, first, last, 1, LANES);
        if (k < width)
                data_rows(d, dy, w + k, width, dx + k, first, last, 1, width - k);
}

#include "kernels/cpu/loops/loops_round.h"

/* Whether the step is p -= lr * g and nothing else. */
INLINE bool is_plain(const struct mfl_apply *a)
{
        return !a->grad && a->opt->weight_decay == 0.0f && a->opt->prox_mu == 0.0f &&
               a->opt->momentum == 0.0f;
}

/* mfl_sgd_update on a vector of gradients at element `at` of the tensor; or stores the gradients. */
INLINE void apply_vector(const struct mfl_apply *a, int64_t at, vec g, int64_t lanes)
{
        const struct mfl_optimizer *opt = a->opt;
        bool whole = lanes == LANES;
        if (a->grad) {
                if (whole)
                        store(a->grad + at, g);
                else
                        store_part(a->grad + at, g, lanes);
                return;
        }
        vec p = whole ? load(a->p + at) : load_part(a->p + at, lanes);
        if (opt->weight_decay != 0.0f)
                g += opt->weight_decay * p;
        if (opt->prox_mu != 0.0f)
                g += opt->prox_mu * (p - (whole ? load(a->p0 + at) : load_part(a->p0 + at, lanes)));
        if (opt->momentum != 0.0f) {
                vec m = opt->momentum * (whole ? load(a->m + at) : load_part(a->m + at, lanes)) + g;
                if (whole)
                        store(a->m + at, m);
                else
                        store_part(a->m + at, m, lanes);
                g = opt->nesterov ? g + opt->momentum * m : m;
        }
        p -= a->lr * g;
        if (whole)
                store(a->p + at, p);
        else
                store_part(a->p + at, p, lanes);
}

/* Fetches the place of the gradients that the next tile stores, which nobody has read, while this one's are computed. */
INLINE void fetch_next_grads(const struct mfl_apply *apply, int64_t at, int64_t floats)
{
        if (!apply->grad)
                return;
        for (int64_t i = 0; i < floats; i += 16)
                __builtin_prefetch(apply->grad + at + i, 1);
}

/* The gradients of `no` rows of weights, nv vectors along a panel; dy, x and `at` (the place in the tensor)
 * are those of the first row. */
INLINE void weights_tile(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t at, int64_t width, const int no, const int nv, int64_t lanes)
{
        vec acc[TILE_ROWS][TILE_VECS];
        const float *ahead = apply->p + at + BACKWARD_OUTS * width; /* the next block */
        fetch_next_grads(apply, at + no * width, no * nv * LANES);
        UNROLL for (int i = 0; i < no; i++) UNROLL for (int v = 0; v < nv; v++) acc[i][v] = (vec){0};
        for (int64_t n = 0; n < d->rows; n++, dy += d->n_out, x += d->n_in) {
                vec xn[TILE_VECS];
                __builtin_prefetch(ahead + n * 16);
                UNROLL for (int v = 0; v < nv; v++) xn[v] =
                        lanes == LANES ? load(x + v * LANES) : load_part(x + v * LANES, lanes);
                UNROLL for (int i = 0; i < no; i++)
                {
                        vec g = splat(dy[i]);
                        UNROLL for (int v = 0; v < nv; v++) acc[i][v] += g * xn[v];
                }
        }
        if (is_plain(apply) && lanes == LANES) {
                UNROLL for (int i = 0; i < no; i++) UNROLL for (int v = 0; v < nv; v++)
                {
                        float *p = apply->p + at + i * width + v * LANES;
                        store(p, load(p) - apply->lr * acc[i][v]);
                }
                return;
        }
        UNROLL for (int i = 0; i < no; i++) UNROLL for (int v = 0; v < nv; v++)
                apply_vector(apply, at + i * width + v * LANES, acc[i][v], lanes);
}

/* `at` is where the panel's row of the first output lies. */
INLINE void weights_outputs(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t at, int64_t width, const int no)
{
        int64_t k = 0;
        for (; k + TILE_VECS * LANES <= width; k += TILE_VECS * LANES)
                weights_tile(d, dy, x + k, apply, at + k, width, no, TILE_VECS, LANES);
        for (; k + LANES <= width; k += LANES)
                weights_tile(d, dy, x + k, apply, at + k, width, no, 1, LANES);
        if (k < width)
                weights_tile(d, dy, x + k, apply, at + k, width, no, 1, width - k);
}

/* A panel's columns of the weights, outputs [first, last); `at` is where the panel lies. */
static void weights_panel(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t at, int64_t width, int64_t first, int64_t last)
{
        int64_t o = first;
        for (; o + TILE_ROWS <= last; o += TILE_ROWS)
                weights_outputs(d, dy + o, x, apply, at + o * width, width, TILE_ROWS);
        for (; o + 2 <= last; o += 2)
                weights_outputs(d, dy + o, x, apply, at + o * width, width, 2);
        for (; o < last; o++)
                weights_outputs(d, dy + o, x, apply, at + o * width, width, 1);
}

/* The same; the gradients become integers while they lie in the first cache. */
static void round_panel(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t at, int64_t width, int64_t first, int64_t last)
{
        _Alignas(64) float grads[BACKWARD_OUTS * MFL_DENSE_PANEL];
        struct mfl_apply to = *apply;
        int64_t from = at + first * width;
        to.grad = grads;
        to.p += from;
        weights_panel(d, dy, x, &to, -first * width, width, first, last);
        float largest =
                round_add((last - first) * width, grads, apply->factor, apply->first, apply->sum + from);
        *apply->largest = MFL_MAX(*apply->largest, largest);
}

/* Panels [begin, end). A block of weights, small enough for the first cache, is read once for both products.
 */
static void backward_range(const struct mfl_dense *d, const float *dy, const float *x, const float *w,
        float *dx, const struct mfl_apply *apply, int64_t begin, int64_t end)
{
        const int64_t block = BACKWARD_OUTS;
        for (int64_t k = begin * MFL_DENSE_PANEL; k < MFL_MIN(end * MFL_DENSE_PANEL, d->n_in);
                k += MFL_DENSE_PANEL) {
                int64_t width = panel_width(d, k), at = k * d->n_out;
                for (int64_t o = 0; o < d->n_out; o += block) {
                        int64_t last = MFL_MIN(o + block, d->n_out);
                        if (dx)
                                data_panel(d, dy, w + at, width, dx + k, o, last);
                        if (apply && apply->sum)
                                round_panel(d, dy, x + k, apply, at, width, o, last);
                        else if (apply)
                                weights_panel(d, dy, x + k, apply, at, width, o, last);
                }
        }
}

static void dense_backward(const struct mfl_dense *d, const float *dy, const float *x, const float *w,
        float *dx, const struct mfl_apply *apply)
{
        DIVIDE(d->threads, (d->n_in + MFL_DENSE_PANEL - 1) / MFL_DENSE_PANEL,
                backward_range(d, dy, x, w, dx, apply, begin, end));
}

#include "kernels/cpu/loops/loops_products.h"

static void dense_backward_bias(const struct mfl_dense *d, const float *dy, const struct mfl_apply *apply)
{
        for (int64_t o = 0; o < d->n_out; o += LANES) {
                int64_t lanes = MFL_MIN(LANES, d->n_out - o);
                vec sum = {0};
                for (int64_t n = 0; n < d->rows; n++)
                        sum += load_part(dy + n * d->n_out + o, lanes);
                apply_vector(apply, o, sum, lanes);
        }
}

static void update_range(const float *g, const struct mfl_apply *apply, int64_t begin, int64_t end)
{
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES)
                apply_vector(apply, i, load(g + i), LANES);
        if (i < end)
                apply_vector(apply, i, load_part(g + i, end - i), end - i);
}

/* mfl_adaptive_update on [begin, end). */
static void adapt_range(const float *restrict g, const struct mfl_apply *apply, int64_t begin, int64_t end)
{
        const struct mfl_optimizer opt = *apply->opt;
        const struct mfl_rate rate = apply->rate;
        float *restrict p = apply->p, *restrict m = apply->m, *restrict v = apply->v;
        const float *restrict p0 = apply->p0;
        for (int64_t i = begin; i < end; i++)
                mfl_adaptive_update(&opt, &rate, p + i, m + i, v + i, p0 + i, g[i]);
}

static void update(int64_t n, const float *g, const struct mfl_apply *apply, int threads)
{
        if (!apply->grad && apply->opt->kind != MFL_OPTIMIZER_SGD) {
                DIVIDE(threads, n, adapt_range(g, apply, begin, end));
                return;
        }
        DIVIDE(threads, n, update_range(g, apply, begin, end));
}

#include "kernels/cpu/loops/loops_block.h"
#include "kernels/cpu/loops/loops_gemm_common.h"
#ifdef LOOPS_BF16
#include LOOPS_GEMM
#else
#include "kernels/cpu/loops/loops_gemm.h"
#endif
#include "kernels/cpu/loops/loops_conv.h"
#include "kernels/cpu/loops/loops_conv_block.h"
#include "kernels/cpu/loops/loops_pool.h"
#include "kernels/cpu/loops/loops_elementwise.h"
#include "kernels/cpu/loops/loops_norm.h"
#include "kernels/cpu/loops/loops_sequence.h"
#include "kernels/cpu/loops/loops_attention.h"
#include "kernels/cpu/loops/loops_shape.h"
#include "kernels/cpu/loops/loops_map.h"
#ifdef LOOPS_TILES
#include LOOPS_TILES
#define ON_TILES tile_work, tile_forward, tile_data, tile_gradient
#else
#define ON_TILES NULL, NULL, NULL, NULL
#endif

#define PRODUCTS                                                                                             \
        {                                                                                                    \
                gemm, gemm_pack, gemm_packed, attention_forward, attention_backward, ON_TILES                \
        }

#ifdef LOOPS_BF16
const struct mfl_products LOOPS_BF16 = PRODUCTS;
#else
const struct mfl_loops LOOPS = {
        .name = LOOPS_NAME,
        .lanes = LANES,
        .dense_forward = dense_forward,
        .dense_backward = dense_backward,
        .dense_products = dense_products,
        .dense_backward_bias = dense_backward_bias,
        .update = update,
        .products = PRODUCTS,
        .small_forward = small_forward,
        .small_data = small_data,
        .small_gradient = small_gradient,
        .block_gradient = block_gradient,
        .maxpool_forward = maxpool_forward,
        .maxpool_backward = maxpool_backward,
        .avgpool_forward = avgpool_forward,
        .avgpool_backward = avgpool_backward,
        .norm_moments = norm_moments,
        .norm_forward = norm_forward,
        .norm_backward = norm_backward,
        .rownorm_forward = rownorm_forward,
        .rownorm_grad = rownorm_grad,
        .rownorm_params = rownorm_params,
        .column_sums = column_sums,
        .softmax = softmax,
        .softmax_grad = softmax_grad,
        .recurrent_cells = recurrent_cells,
        .recurrent_cells_grad = recurrent_cells_grad,
        .join = join,
        .join_grad2 = join_grad2,
        .mean = mean_axis,
        .mean_grad = mean_axis_grad,
        .map = map_rows,
        .cross_entropy = cross_entropy,
        .squares = squares,
        .round_add = round_add,
        .unround = unround,
        .scale = scale,
        .add = add,
        .join_grad = join_grad,
        .curve = curve,
        .curve_grad = curve_grad,
        .multiply = multiply,
        .dropout = dropout,
        .gather_u8 = gather_u8,
};
#endif
