/* SPDX-License-Identifier: Apache-2.0 */
/* Batch and group norm, adding, global pooling in any layout; part of loops_body.h.
 *
 * Work is cut into chunks: up to 16 channels that lie side by side, or one channel whose pixels do. A row's
 * part of a chunk is one or two strips of `n` places, `stride` floats apart, with `lanes` floats at each.
 * Sums run in float over short segments, which stay in the first cache between the two passes of a variance,
 * and in double from segment to segment (Chan, Golub and LeVeque 1983).
 */

#define SEGMENT_FLOATS 4096

struct strip {
        int64_t at, n, stride, lanes;
};

struct chunk {
        int64_t channel, lanes; /* channels */
        bool spread;            /* the lanes of a strip are pixels of one channel */
        struct strip strips[2];
        int n_strips;
};

static inline int64_t chunks_of_block(const struct mfl_norm_loop *v)
{
        return (v->block + 15) / 16;
}

static inline int64_t n_chunks(const struct mfl_norm_loop *v)
{
        return v->channels / v->block * chunks_of_block(v);
}

static struct chunk chunk_at(const struct mfl_norm_loop *v, int64_t k)
{
        int64_t block = k / chunks_of_block(v), b = k % chunks_of_block(v) * 16;
        struct chunk c = {.channel = block * v->block + b, .lanes = MFL_MIN(16, v->block - b)};
        int64_t at = block * v->block * v->pixels, whole = v->pixels / 16 * 16;
        c.spread = v->block == 1 && v->pixels > 1;
        if (!c.spread) {
                c.strips[c.n_strips++] = (struct strip){at + b, v->pixels, v->block, c.lanes};
                return c;
        }
        if (whole)
                c.strips[c.n_strips++] = (struct strip){at, whole / 16, 16, 16};
        if (whole < v->pixels)
                c.strips[c.n_strips++] = (struct strip){at + whole, 1, 0, v->pixels - whole};
        return c;
}

/* Calls body with the number of lanes as a constant where it is a usual number. */
#define WITH_STRIP_LANES(n, body)                                                                            \
        do {                                                                                                 \
                if ((n) == 16) {                                                                             \
                        enum { lanes = 16 };                                                                 \
                        body;                                                                                \
                } else if ((n) == 8) {                                                                       \
                        enum { lanes = 8 };                                                                  \
                        body;                                                                                \
                } else {                                                                                     \
                        const int lanes = (int)(n);                                                          \
                        body;                                                                                \
                }                                                                                            \
        } while (0)

#define BLOCK_LANES 16
#include "kernels/cpu/loops/loops_norm_block.h"
#undef BLOCK_LANES
#define BLOCK_LANES 8
#include "kernels/cpu/loops/loops_norm_block.h"
#undef BLOCK_LANES

/* A pass over a strip: a vector version for usual numbers of lanes, else the loop that follows. */
#define IF_ONE_VECTOR(pass, ...)                                                                             \
        do {                                                                                                 \
                if (lanes == 16) {                                                                           \
                        pass##16(__VA_ARGS__);                                                               \
                        return;                                                                              \
                }                                                                                            \
                if (lanes == 8) {                                                                            \
                        pass##8(__VA_ARGS__);                                                                \
                        return;                                                                              \
                }                                                                                            \
        } while (0)

/* Mean and sum of squared distances from it, of each lane. */
struct moments {
        double mean[16], m2[16], count;
};

/* Merges two sets of values into one. */
static inline void merge_moments(
        double *mean, double *m2, double count, double mean2, double m2_2, double count2)
{
        double delta = mean2 - *mean, share = count2 / (count + count2);
        *mean += delta * share;
        *m2 += m2_2 + delta * delta * count * share;
}

INLINE void sum_squares(
        const float *x, int64_t n, int64_t stride, float mean[16], float square[16], const int lanes)
{
        IF_ONE_VECTOR(sum_squares_, x, n, stride, mean, square);
        for (int i = 0; i < lanes; i++) {
                float sum = 0.0f, squares = 0.0f;
                for (int64_t p = 0; p < n; p++)
                        sum += x[p * stride + i];
                mean[i] = sum / (float)n;
                for (int64_t p = 0; p < n; p++) {
                        float d = x[p * stride + i] - mean[i];
                        squares += d * d;
                }
                square[i] = squares;
        }
}

INLINE void add_segment(struct moments *m, const float *x, int64_t n, int64_t stride, const int lanes)
{
        float mean[16], square[16];
        sum_squares(x, n, stride, mean, square, lanes);
        for (int i = 0; i < lanes; i++)
                merge_moments(
                        &m->mean[i], &m->m2[i], m->count, (double)mean[i], (double)square[i], (double)n);
        m->count += (double)n;
}

INLINE void add_strip(struct moments *m, const float *x, int64_t n, int64_t stride, const int lanes)
{
        int64_t most = SEGMENT_FLOATS / 16;
        for (int64_t p = 0; p < n; p += most)
                add_segment(m, x + p * stride, MFL_MIN(most, n - p), stride, lanes);
}

/* Of a chunk over rows [first, last): one set for each channel. */
static void chunk_moments(const struct mfl_norm_loop *v, const struct chunk *c, const float *x, int64_t first,
        int64_t last, struct moments *ret_m)
{
        struct moments parts[2] = {{.count = 0}, {.count = 0}};
        for (int s = 0; s < c->n_strips; s++)
                for (int64_t r = first; r < last; r++) {
                        const struct strip *strip = &c->strips[s];
                        const float *from = x + r * v->count + strip->at;
                        WITH_STRIP_LANES(
                                strip->lanes, add_strip(&parts[s], from, strip->n, strip->stride, lanes));
                }
        if (!c->spread) {
                *ret_m = parts[0];
                return;
        }
        *ret_m = (struct moments){.count = 0};
        for (int s = 0; s < c->n_strips; s++)
                for (int i = 0; i < c->strips[s].lanes; i++) {
                        merge_moments(&ret_m->mean[0], &ret_m->m2[0], ret_m->count, parts[s].mean[i],
                                parts[s].m2[i], parts[s].count);
                        ret_m->count += parts[s].count;
                }
}

static inline float rstd_of(const struct mfl_norm_loop *v, double var)
{
        return (float)(1.0 / sqrt(var + (double)v->eps));
}

static void batch_moments_range(const struct mfl_norm_loop *v, const float *x, float *mean, float *rstd,
        float *var, int64_t begin, int64_t end)
{
        for (int64_t k = begin; k < end; k++) {
                struct chunk c = chunk_at(v, k);
                struct moments m;
                chunk_moments(v, &c, x, 0, v->rows, &m);
                for (int64_t i = 0; i < c.lanes; i++) {
                        double of_lane = m.m2[i] / m.count;
                        mean[c.channel + i] = (float)m.mean[i];
                        rstd[c.channel + i] = rstd_of(v, of_lane);
                        var[c.channel + i] = (float)of_lane;
                }
        }
}

/* Computes the channels' own moments, then replaces them by those of each group. */
static void group_moments_row(
        const struct mfl_norm_loop *v, const float *x, float *mean, float *rstd, int64_t r)
{
        int64_t size = v->logical / v->groups;
        double count = (double)v->pixels;
        for (int64_t k = 0; k < n_chunks(v); k++) {
                struct chunk c = chunk_at(v, k);
                struct moments m;
                chunk_moments(v, &c, x, r, r + 1, &m);
                for (int64_t i = 0; i < c.lanes; i++) {
                        mean[c.channel + i] = (float)m.mean[i];
                        rstd[c.channel + i] = (float)m.m2[i];
                }
        }
        for (int64_t g = 0; g < v->groups; g++) {
                double of_mean = 0, of_m2 = 0;
                for (int64_t c = g * size; c < (g + 1) * size; c++)
                        merge_moments(&of_mean, &of_m2, (double)(c - g * size) * count, (double)mean[c],
                                (double)rstd[c], count);
                float scale = rstd_of(v, of_m2 / (count * (double)size));
                for (int64_t c = g * size; c < (g + 1) * size; c++) {
                        mean[c] = (float)of_mean;
                        rstd[c] = scale;
                }
        }
}

static void group_moments_range(
        const struct mfl_norm_loop *v, const float *x, float *mean, float *rstd, int64_t begin, int64_t end)
{
        for (int64_t r = begin; r < end; r++)
                group_moments_row(v, x, mean + r * v->channels, rstd + r * v->channels, r);
}

static void norm_moments(const struct mfl_norm_loop *v, const float *x, float *mean, float *rstd, float *var)
{
        if (v->groups)
                DIVIDE(v->threads, v->rows, group_moments_range(v, x, mean, rstd, begin, end));
        else
                DIVIDE(v->threads, n_chunks(v), batch_moments_range(v, x, mean, rstd, var, begin, end));
}

/* A coefficient for each lane of a chunk's strips. */
static inline void spread_lanes(const struct chunk *c, float a[16])
{
        for (int i = 1; c->spread && i < 16; i++)
                a[i] = a[0];
}

INLINE void normalise(const float *x, int64_t n, int64_t stride, const float *mean, const float *scale,
        const float *shift, bool relu, float *y, const int lanes)
{
        IF_ONE_VECTOR(normalise_, x, n, stride, mean, scale, shift, relu, y);
        for (int64_t p = 0; p < n; p++)
                for (int i = 0; i < lanes; i++) {
                        float f = (x[p * stride + i] - mean[i]) * scale[i] + shift[i];
                        y[p * stride + i] = relu ? mfl_unary_relu(f) : f;
                }
}

INLINE void normalise_strip(const struct strip *s, const float *x, const float *mean, const float *scale,
        const float *shift, bool relu, float *y)
{
        if (relu)
                WITH_STRIP_LANES(s->lanes,
                        normalise(x + s->at, s->n, s->stride, mean, scale, shift, true, y + s->at, lanes));
        else
                WITH_STRIP_LANES(s->lanes,
                        normalise(x + s->at, s->n, s->stride, mean, scale, shift, false, y + s->at, lanes));
}

/* Chunks [begin, end), numbered row by row. */
static void norm_forward_range(const struct mfl_norm_loop *v, const float *x,
        const struct mfl_norm_vectors *p, bool relu, float *y, int64_t begin, int64_t end)
{
        for (int64_t k = begin; k < end; k++) {
                int64_t r = k / n_chunks(v);
                struct chunk c = chunk_at(v, k % n_chunks(v));
                float mean[16] = {0}, scale[16] = {0}, shift[16] = {0};
                int64_t at = (v->groups ? r * v->channels : 0) + c.channel;
                for (int64_t i = 0; i < c.lanes; i++) {
                        bool padding = c.channel + i >= v->logical;
                        mean[i] = padding ? 0.0f : p->mean[at + i];
                        scale[i] = padding ? 0.0f : p->rstd[at + i] * p->weight[c.channel + i];
                        shift[i] = padding ? 0.0f : p->bias[c.channel + i];
                }
                spread_lanes(&c, mean);
                spread_lanes(&c, scale);
                spread_lanes(&c, shift);
                for (int s = 0; s < c.n_strips; s++)
                        normalise_strip(
                                &c.strips[s], x + r * v->count, mean, scale, shift, relu, y + r * v->count);
        }
}

static void norm_forward(
        const struct mfl_norm_loop *v, const float *x, const struct mfl_norm_vectors *p, bool relu, float *y)
{
        DIVIDE(v->threads, v->rows * n_chunks(v), norm_forward_range(v, x, p, relu, y, begin, end));
}

/* The sums of dy, and of dy * (x - mean). */
INLINE void sum_segment(const float *x, const float *y, const float *dy, int64_t n, int64_t stride,
        const float *mean, float plain[16], float product[16], const int lanes)
{
        IF_ONE_VECTOR(sum_segment_, x, y, dy, n, stride, mean, plain, product);
        for (int i = 0; i < lanes; i++) {
                plain[i] = product[i] = 0.0f;
                for (int64_t p = 0; p < n; p++) {
                        float g = dy[p * stride + i];
                        if (y)
                                g = mfl_unary_relu_grad(y[p * stride + i], g);
                        plain[i] += g;
                        product[i] += g * (x[p * stride + i] - mean[i]);
                }
        }
}

INLINE void sum_strip(const float *x, const float *y, const float *dy, int64_t n, int64_t stride,
        const float *mean, double sums[2][16], const int lanes)
{
        int64_t most = SEGMENT_FLOATS / 16;
        for (int64_t from = 0; from < n; from += most) {
                float plain[16], product[16];
                int64_t at = from * stride;
                sum_segment(x + at, y ? y + at : NULL, dy + at, MFL_MIN(most, n - from), stride, mean, plain,
                        product, lanes);
                for (int i = 0; i < lanes; i++) {
                        sums[0][i] += (double)plain[i];
                        sums[1][i] += (double)product[i];
                }
        }
}

/* Of a chunk over rows [first, last): for each channel. */
static void chunk_sums(const struct mfl_norm_loop *v, const struct chunk *c, const struct mfl_norm_grad *g,
        const float mean[16], int64_t first, int64_t last, double ret_sums[2][16])
{
        double sums[2][16] = {{0}};
        for (int s = 0; s < c->n_strips; s++)
                for (int64_t r = first; r < last; r++) {
                        const struct strip *strip = &c->strips[s];
                        int64_t at = r * v->count + strip->at;
                        if (g->y)
                                WITH_STRIP_LANES(
                                        strip->lanes, sum_strip(g->x + at, g->y + at, g->dy + at, strip->n,
                                                              strip->stride, mean, sums, lanes));
                        else
                                WITH_STRIP_LANES(
                                        strip->lanes, sum_strip(g->x + at, NULL, g->dy + at, strip->n,
                                                              strip->stride, mean, sums, lanes));
                }
        for (int k = 0; k < 2; k++)
                for (int i = 1; c->spread && i < 16; i++)
                        sums[k][0] += sums[k][i];
        memcpy(ret_sums, sums, sizeof sums);
}

/* dx = a * dy + b * (x - mean) + c */
INLINE void scale_gradient(const float *x, const float *y, const float *dy, int64_t n, int64_t stride,
        const float *mean, const float *a, const float *b, const float *c, float *dx, const int lanes)
{
        IF_ONE_VECTOR(scale_gradient_, x, y, dy, n, stride, mean, a, b, c, dx);
        for (int64_t p = 0; p < n; p++)
                for (int i = 0; i < lanes; i++) {
                        float g = dy[p * stride + i];
                        if (y)
                                g = mfl_unary_relu_grad(y[p * stride + i], g);
                        dx[p * stride + i] = a[i] * g + (b[i] * (x[p * stride + i] - mean[i]) + c[i]);
                }
}

struct coefficients {
        float mean[16], a[16], b[16], c[16];
};

static void chunk_gradient(const struct mfl_norm_loop *v, const struct chunk *c,
        const struct mfl_norm_grad *g, struct coefficients *k, int64_t first, int64_t last)
{
        spread_lanes(c, k->mean);
        spread_lanes(c, k->a);
        spread_lanes(c, k->b);
        spread_lanes(c, k->c);
        for (int64_t r = first; r < last; r++)
                for (int s = 0; s < c->n_strips; s++) {
                        const struct strip *strip = &c->strips[s];
                        int64_t at = r * v->count + strip->at;
                        if (g->y)
                                WITH_STRIP_LANES(strip->lanes,
                                        scale_gradient(g->x + at, g->y + at, g->dy + at, strip->n,
                                                strip->stride, k->mean, k->a, k->b, k->c, g->dx + at, lanes));
                        else
                                WITH_STRIP_LANES(strip->lanes,
                                        scale_gradient(g->x + at, NULL, g->dy + at, strip->n, strip->stride,
                                                k->mean, k->a, k->b, k->c, g->dx + at, lanes));
                }
}

/* With hat = (x - mean) rstd and h = weight dy: dx = rstd (h - mean(h) - hat mean(h hat)). The means are 0
 * where mean and rstd are constants. */
static void batch_gradient_range(const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p,
        const struct mfl_norm_grad *g, int64_t begin, int64_t end)
{
        double count = (double)(v->rows * v->pixels);
        for (int64_t j = begin; j < end; j++) {
                struct chunk c = chunk_at(v, j);
                struct coefficients k = {.mean = {0}};
                double sums[2][16];
                memcpy(k.mean, p->mean + c.channel, (size_t)c.lanes * sizeof *k.mean);
                spread_lanes(&c, k.mean);
                chunk_sums(v, &c, g, k.mean, 0, v->rows, sums);
                for (int64_t i = 0; i < c.lanes; i++) {
                        double rstd = (double)p->rstd[c.channel + i], w = (double)p->weight[c.channel + i];
                        bool moving = !g->constant && c.channel + i < v->logical;
                        k.a[i] = (float)(w * rstd);
                        k.b[i] = moving ? (float)(-w * rstd * rstd * rstd * sums[1][i] / count) : 0.0f;
                        k.c[i] = moving ? (float)(-w * rstd * sums[0][i] / count) : 0.0f;
                        g->dbias[c.channel + i] = (float)sums[0][i];
                        g->dweight[c.channel + i] = (float)(sums[1][i] * rstd);
                }
                if (g->dx)
                        chunk_gradient(v, &c, g, &k, 0, v->rows);
        }
}

/* Puts the coefficients b and c of a row's groups in place of mean_h and mean_hx of its channels. */
static void group_means(const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p, const float *rstd,
        const float *plain, const float *product, float *ret_b, float *ret_c)
{
        int64_t size = v->logical / v->groups;
        double count = (double)(size * v->pixels);
        for (int64_t g = 0; g < v->groups; g++) {
                double h = 0, hx = 0, scale = (double)rstd[g * size];
                for (int64_t c = g * size; c < (g + 1) * size; c++) {
                        h += (double)p->weight[c] * (double)plain[c];
                        hx += (double)p->weight[c] * (double)product[c];
                }
                for (int64_t c = g * size; c < (g + 1) * size; c++) {
                        ret_b[c] = (float)(-scale * scale * scale * hx / count);
                        ret_c[c] = (float)(-scale * h / count);
                }
        }
}

static void group_gradient_row(const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p,
        const struct mfl_norm_grad *g, int64_t r)
{
        int64_t row = r * v->channels, all = v->rows * v->channels;
        const float *mean = p->mean + row, *rstd = p->rstd + row;
        float *plain = g->work + row, *product = plain + all, *b = product + all, *shift = b + all;
        for (int64_t j = 0; j < n_chunks(v); j++) {
                struct chunk c = chunk_at(v, j);
                float of_chunk[16] = {0};
                double sums[2][16];
                memcpy(of_chunk, mean + c.channel, (size_t)c.lanes * sizeof *of_chunk);
                spread_lanes(&c, of_chunk);
                chunk_sums(v, &c, g, of_chunk, r, r + 1, sums);
                for (int64_t i = 0; i < c.lanes; i++) {
                        plain[c.channel + i] = (float)sums[0][i];
                        product[c.channel + i] = (float)sums[1][i];
                }
        }
        group_means(v, p, rstd, plain, product, b, shift);
        for (int64_t j = 0; g->dx && j < n_chunks(v); j++) {
                struct chunk c = chunk_at(v, j);
                struct coefficients k = {.mean = {0}};
                for (int64_t i = 0; i < c.lanes && c.channel + i < v->logical; i++) {
                        k.mean[i] = mean[c.channel + i];
                        k.a[i] = p->weight[c.channel + i] * rstd[c.channel + i];
                        k.b[i] = b[c.channel + i];
                        k.c[i] = shift[c.channel + i];
                }
                chunk_gradient(v, &c, g, &k, r, r + 1);
        }
}

static void group_gradient_range(const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p,
        const struct mfl_norm_grad *g, int64_t begin, int64_t end)
{
        for (int64_t r = begin; r < end; r++)
                group_gradient_row(v, p, g, r);
}

static void norm_backward(
        const struct mfl_norm_loop *v, const struct mfl_norm_vectors *p, const struct mfl_norm_grad *g)
{
        const float *plain = g->work, *product = g->work + v->rows * v->channels;
        if (!v->groups) {
                DIVIDE(v->threads, n_chunks(v), batch_gradient_range(v, p, g, begin, end));
                return;
        }
        DIVIDE(v->threads, v->rows, group_gradient_range(v, p, g, begin, end));
        for (int64_t c = 0; c < v->logical; c++) {
                double weight = 0, bias = 0;
                for (int64_t r = 0; r < v->rows; r++) {
                        bias += (double)plain[r * v->channels + c];
                        weight += (double)product[r * v->channels + c] * (double)p->rstd[r * v->channels + c];
                }
                g->dbias[c] = (float)bias;
                g->dweight[c] = (float)weight;
        }
}

static void add_range(const float *a, const float *b, bool relu, float *y, int64_t begin, int64_t end)
{
        if (relu)
                for (int64_t i = begin; i < end; i++)
                        y[i] = mfl_unary_relu(a[i] + b[i]);
        else
                for (int64_t i = begin; i < end; i++)
                        y[i] = a[i] + b[i];
}

static void add(int64_t n, const float *a, const float *b, bool relu, float *y, int threads)
{
        DIVIDE(threads, n, add_range(a, b, relu, y, begin, end));
}

/* dx = dy where y > 0, else 0; other = or += the same. */
INLINE void join_grad_range(
        const float *y, const float *dy, float *dx, float *other, bool sum, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++) {
                float g = mfl_unary_relu_grad(y[i], dy[i]);
                dx[i] = g;
                other[i] = sum ? other[i] + g : g;
        }
}

static void join_grad(
        int64_t n, const float *y, const float *dy, float *dx, float *other, bool sum, int threads)
{
        if (sum)
                DIVIDE(threads, n, join_grad_range(y, dy, dx, other, true, begin, end));
        else
                DIVIDE(threads, n, join_grad_range(y, dy, dx, other, false, begin, end));
}
