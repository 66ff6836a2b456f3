/* SPDX-License-Identifier: Apache-2.0 */
/* The loops, for one instruction set: a file defines LANES (floats of a vector), TILE_ROWS (rows of a
 * register tile), LOOPS (the table's symbol) and LOOPS_NAME, is compiled with that set's flags, and includes
 * this. Vectors are GCC's vector extensions, so that gcc and clang compile the same text for every processor.
 * Products and sums contract to FMA here: this backend, like the library beside it, promises equal results on
 * equal processors only.
 */
#include <math.h>

#include "kernels/bodies.h"
#include "kernels/cpu/loops.h"

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t vec_int __attribute__((vector_size(LANES * 4)));
typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define TILE_OUTS 4
#define TILE_VECS 4 /* vectors of a register tile in the products that go along n_in */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* call over [begin, end) of [0, n), divided among the threads; one thread pays for no parallel region. */
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

/* The vector's quarters (or halves, or all of it) added to four lanes. */
INLINE vec4 fold(vec v)
{
        vec4 part[LANES / 4], sum;
        memcpy(part, &v, sizeof part);
        sum = part[0];
        UNROLL for (int i = 1; i < LANES / 4; i++) sum += part[i];
        return sum;
}

/* The sums of all lanes of four vectors. */
INLINE vec4 sum_lanes(const vec *v)
{
        vec4 a = fold(v[0]), b = fold(v[1]), c = fold(v[2]), d = fold(v[3]);
        vec4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
        vec4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
        return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* ---- dense ---- */

#define ROWS_AT_ONCE 32
#define FORWARD_BLOCK (64 * LANES) /* along n_in: what stays in the first cache */

/* sums[r][o] += x[r] * w[o] over n elements, vectors running along them: nr rows, TILE_OUTS outputs of which
 * `no` exist. */
INLINE void forward_tile(const struct mfl_dense *d, const float *x, const float *w, int64_t n, vec *sums,
        const int nr, const int no)
{
        vec acc[TILE_ROWS][TILE_OUTS];
        int64_t k = 0, n_in = d->n_in;
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int o = 0; o < no; o++) acc[r][o] =
                sums[r * TILE_OUTS + o];
        for (; k + LANES <= n; k += LANES) {
                vec wk[TILE_OUTS];
                UNROLL for (int o = 0; o < no; o++) wk[o] = load(w + o * n_in + k);
                UNROLL for (int r = 0; r < nr; r++)
                {
                        vec xk = load(x + r * n_in + k);
                        UNROLL for (int o = 0; o < no; o++) acc[r][o] += xk * wk[o];
                }
        }
        if (k < n) {
                vec wk[TILE_OUTS];
                for (int o = 0; o < no; o++)
                        wk[o] = load_part(w + o * n_in + k, n - k);
                for (int r = 0; r < nr; r++) {
                        vec xk = load_part(x + r * n_in + k, n - k);
                        for (int o = 0; o < no; o++)
                                acc[r][o] += xk * wk[o];
                }
        }
        UNROLL for (int r = 0; r < nr; r++) UNROLL for (int o = 0; o < no; o++) sums[r * TILE_OUTS + o] =
                acc[r][o];
}

INLINE void forward_block(const struct mfl_dense *d, const float *x, const float *w, int64_t n, int64_t rows,
        vec *sums, const int no)
{
        int64_t r = 0;
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
                forward_tile(d, x + r * d->n_in, w, n, sums + r * TILE_OUTS, TILE_ROWS, no);
        for (; r + 4 <= rows && TILE_ROWS > 4; r += 4)
                forward_tile(d, x + r * d->n_in, w, n, sums + r * TILE_OUTS, MFL_MIN(4, TILE_ROWS), no);
        for (; r + 2 <= rows; r += 2)
                forward_tile(d, x + r * d->n_in, w, n, sums + r * TILE_OUTS, 2, no);
        for (; r < rows; r++)
                forward_tile(d, x + r * d->n_in, w, n, sums + r * TILE_OUTS, 1, no);
}

/* Outputs [o, o + no) of up to ROWS_AT_ONCE rows. */
INLINE void forward_outputs(const struct mfl_dense *d, const float *x, const float *w, const float *bias,
        float *y, int64_t rows, const int no)
{
        vec sums[ROWS_AT_ONCE * TILE_OUTS];
        memset(sums, 0, (size_t)rows * TILE_OUTS * sizeof *sums);
        for (int64_t k = 0; k < d->n_in; k += FORWARD_BLOCK)
                forward_block(d, x + k, w + k, MFL_MIN(FORWARD_BLOCK, d->n_in - k), rows, sums, no);
        for (int64_t r = 0; r < rows; r++) {
                vec4 sum = sum_lanes(sums + r * TILE_OUTS);
                for (int o = 0; o < no; o++) {
                        float f = sum[o] + (bias ? bias[o] : 0.0f);
                        y[r * d->n_out + o] = d->relu ? mfl_relu(f) : f;
                }
        }
}

static void forward_range(const struct mfl_dense *d, const float *x, const float *w, const float *bias,
        float *y, int64_t begin, int64_t end)
{
        for (int64_t r = 0; r < d->rows; r += ROWS_AT_ONCE) {
                int64_t rows = MFL_MIN(ROWS_AT_ONCE, d->rows - r), o = begin;
                const float *xr = x + r * d->n_in;
                float *yr = y + r * d->n_out;
                for (; o + TILE_OUTS <= end; o += TILE_OUTS)
                        forward_outputs(
                                d, xr, w + o * d->n_in, bias ? bias + o : NULL, yr + o, rows, TILE_OUTS);
                for (; o < end; o++)
                        forward_outputs(d, xr, w + o * d->n_in, bias ? bias + o : NULL, yr + o, rows, 1);
        }
}

static void dense_forward(
        const struct mfl_dense *d, const float *x, const float *w, const float *bias, float *y)
{
        DIVIDE(d->threads, d->n_out, forward_range(d, x, w, bias, y, begin, end));
}

/* dx[r][k ..] += dy * w over outputs [first, last) for nr rows and nv vectors along n_in, the last of `lanes`
 * floats; first = 0 starts the sum. */
INLINE void data_tile(const struct mfl_dense *d, const float *dy, const float *w, float *dx, int64_t first,
        int64_t last, const int nr, const int nv, int64_t lanes)
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
                        whole ? load(w + o * d->n_in + v * LANES)
                              : load_part(w + o * d->n_in + v * LANES, lanes);
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

INLINE void data_rows(const struct mfl_dense *d, const float *dy, const float *w, float *dx, int64_t first,
        int64_t last, const int nv, int64_t lanes)
{
        int64_t r = 0;
        for (; r + TILE_ROWS <= d->rows; r += TILE_ROWS)
                data_tile(d, dy + r * d->n_out, w, dx + r * d->n_in, first, last, TILE_ROWS, nv, lanes);
        for (; r + 2 <= d->rows; r += 2)
                data_tile(d, dy + r * d->n_out, w, dx + r * d->n_in, first, last, 2, nv, lanes);
        for (; r < d->rows; r++)
                data_tile(d, dy + r * d->n_out, w, dx + r * d->n_in, first, last, 1, nv, lanes);
}

/* Columns [begin, end) of dx, outputs [first, last). */
static void data_range(const struct mfl_dense *d, const float *dy, const float *w, float *dx, int64_t first,
        int64_t last, int64_t begin, int64_t end)
{
        int64_t k = begin;
        for (; k + TILE_VECS * LANES <= end; k += TILE_VECS * LANES)
                data_rows(d, dy, w + k, dx + k, first, last, TILE_VECS, LANES);
        for (; k + LANES <= end; k += LANES)
                data_rows(d, dy, w + k, dx + k, first, last, 1, LANES);
        if (k < end)
                data_rows(d, dy, w + k, dx + k, first, last, 1, end - k);
}

/* mfl_sgd_update on a vector of gradients, or the gradients themselves, at element `at` of the tensor. */
INLINE void apply_vector(const struct mfl_apply *a, int64_t at, vec g, int64_t lanes)
{
        const struct mfl_sgd *sgd = a->sgd;
        bool whole = lanes == LANES;
        if (a->grad) {
                if (whole)
                        store(a->grad + at, g);
                else
                        store_part(a->grad + at, g, lanes);
                return;
        }
        vec p = whole ? load(a->p + at) : load_part(a->p + at, lanes);
        if (sgd->weight_decay != 0.0f)
                g += sgd->weight_decay * p;
        if (sgd->prox_mu != 0.0f)
                g += sgd->prox_mu * (p - (whole ? load(a->p0 + at) : load_part(a->p0 + at, lanes)));
        if (sgd->momentum != 0.0f) {
                vec m = sgd->momentum * (whole ? load(a->m + at) : load_part(a->m + at, lanes)) + g;
                if (whole)
                        store(a->m + at, m);
                else
                        store_part(a->m + at, m, lanes);
                g = sgd->nesterov ? g + sgd->momentum * m : m;
        }
        p -= sgd->lr * g;
        if (whole)
                store(a->p + at, p);
        else
                store_part(a->p + at, p, lanes);
}

/* The gradients of no rows of weights from output o on, nv vectors along n_in from k on. */
INLINE void weights_tile(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t o, int64_t k, const int no, const int nv, int64_t lanes)
{
        vec acc[TILE_ROWS][TILE_VECS];
        UNROLL for (int i = 0; i < no; i++) UNROLL for (int v = 0; v < nv; v++) acc[i][v] = (vec){0};
        dy += o;
        x += k;
        for (int64_t n = 0; n < d->rows; n++, dy += d->n_out, x += d->n_in) {
                vec xn[TILE_VECS];
                UNROLL for (int v = 0; v < nv; v++) xn[v] =
                        lanes == LANES ? load(x + v * LANES) : load_part(x + v * LANES, lanes);
                UNROLL for (int i = 0; i < no; i++)
                {
                        vec g = splat(dy[i]);
                        UNROLL for (int v = 0; v < nv; v++) acc[i][v] += g * xn[v];
                }
        }
        UNROLL for (int i = 0; i < no; i++) UNROLL for (int v = 0; v < nv; v++)
                apply_vector(apply, (o + i) * d->n_in + k + v * LANES, acc[i][v], lanes);
}

INLINE void weights_outputs(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t o, const int no)
{
        int64_t k = 0;
        for (; k + TILE_VECS * LANES <= d->n_in; k += TILE_VECS * LANES)
                weights_tile(d, dy, x, apply, o, k, no, TILE_VECS, LANES);
        for (; k + LANES <= d->n_in; k += LANES)
                weights_tile(d, dy, x, apply, o, k, no, 1, LANES);
        if (k < d->n_in)
                weights_tile(d, dy, x, apply, o, k, no, 1, d->n_in - k);
}

static void weights_range(const struct mfl_dense *d, const float *dy, const float *x,
        const struct mfl_apply *apply, int64_t begin, int64_t end)
{
        int64_t o = begin;
        for (; o + TILE_ROWS <= end; o += TILE_ROWS)
                weights_outputs(d, dy, x, apply, o, TILE_ROWS);
        for (; o + 2 <= end; o += 2)
                weights_outputs(d, dy, x, apply, o, 2);
        for (; o < end; o++)
                weights_outputs(d, dy, x, apply, o, 1);
}

/* On one thread a block of weights is read once for both products, while it is in the cache; sums have the
 * same order either way. */
static void dense_backward(const struct mfl_dense *d, const float *dy, const float *x, const float *w,
        float *dx, const struct mfl_apply *apply)
{
        const int64_t block = 5 * TILE_ROWS;
        if (d->threads > 1) {
                if (dx)
                        DIVIDE(d->threads, d->n_in, data_range(d, dy, w, dx, 0, d->n_out, begin, end));
                DIVIDE(d->threads, d->n_out, weights_range(d, dy, x, apply, begin, end));
                return;
        }
        for (int64_t o = 0; o < d->n_out; o += block) {
                int64_t last = MFL_MIN(o + block, d->n_out);
                if (dx)
                        data_range(d, dy, w, dx, o, last, 0, d->n_in);
                weights_range(d, dy, x, apply, o, last);
        }
}

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

static void update(int64_t n, const float *g, const struct mfl_apply *apply, int threads)
{
        DIVIDE(threads, n, update_range(g, apply, begin, end));
}

#include "kernels/cpu/loops_pool.h"
#include "kernels/cpu/loops_elementwise.h"

const struct mfl_loops LOOPS = {
        .name = LOOPS_NAME,
        .dense_forward = dense_forward,
        .dense_backward = dense_backward,
        .dense_backward_bias = dense_backward_bias,
        .update = update,
        .maxpool_forward = maxpool_forward,
        .maxpool_backward = maxpool_backward,
        .avgpool_forward = avgpool_forward,
        .avgpool_backward = avgpool_backward,
        .relu = relu,
        .relu_grad = relu_grad,
        .tanh = tanh_vector,
        .tanh_grad = tanh_grad,
        .sigmoid = sigmoid,
        .sigmoid_grad = sigmoid_grad,
        .multiply = multiply,
        .dropout = dropout,
        .gather_u8 = gather_u8,
};
