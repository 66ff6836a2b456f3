/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences: norms and softmax of rows, attention, cells of recurrent layers; part of
 * loops_body.h. Sums go along a row in LANES partial sums, which are then added in order. */

INLINE float add_lanes(vec v)
{
        float sum = 0;
        for (int i = 0; i < LANES; i++)
                sum += v[i];
        return sum;
}

INLINE float largest_of(const float *x, int64_t n)
{
        float max = x[0];
        int64_t k = 0;
        if (n >= LANES) {
                vec best = load(x);
                for (k = LANES; k + LANES <= n; k += LANES) {
                        vec v = load(x + k);
                        vec_int wins = v > best;
                        best = (vec)((wins & (vec_int)v) | (~wins & (vec_int)best));
                }
                for (int i = 0; i < LANES; i++)
                        max = best[i] > max ? best[i] : max;
        }
        for (; k < n; k++)
                max = x[k] > max ? x[k] : max;
        return max;
}

INLINE float sum_of(const float *x, int64_t n)
{
        vec sum = {0};
        int64_t k = 0;
        for (; k + LANES <= n; k += LANES)
                sum += load(x + k);
        if (k < n)
                sum += load_part(x + k, n - k);
        return add_lanes(sum);
}

INLINE float dot_of(const float *a, const float *b, int64_t n)
{
        vec sum = {0};
        int64_t k = 0;
        for (; k + LANES <= n; k += LANES)
                sum += load(a + k) * load(b + k);
        if (k < n)
                sum += load_part(a + k, n - k) * load_part(b + k, n - k);
        return add_lanes(sum);
}

INLINE float square_about(const float *x, float mean, int64_t n)
{
        vec sum = {0};
        int64_t k = 0;
        for (; k + LANES <= n; k += LANES) {
                vec d = load(x + k) - mean;
                sum += d * d;
        }
        float rest = 0;
        for (; k < n; k++)
                rest += (x[k] - mean) * (x[k] - mean);
        return add_lanes(sum) + rest;
}

/* ---- layer and RMS norm ---- */

static void rownorm_range(const struct mfl_rownorm *v, const float *x, const float *restrict weight,
        const float *restrict bias, float *restrict kept, float *restrict y, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++) {
                const float *restrict from = x + i * v->width;
                float *restrict to = y + i * v->width;
                float mean = v->centred ? sum_of(from, v->width) / (float)v->width : 0.0f;
                float var = square_about(from, mean, v->width) / (float)v->width;
                float rstd = 1.0f / sqrtf(var + v->eps);
                kept[2 * i] = mean;
                kept[2 * i + 1] = rstd;
                for (int64_t k = 0; bias && k < v->width; k++)
                        to[k] = (from[k] - mean) * rstd * weight[k] + bias[k];
                for (int64_t k = 0; !bias && k < v->width; k++)
                        to[k] = (from[k] - mean) * rstd * weight[k];
        }
}

static void rownorm_forward(const struct mfl_rownorm *v, const float *x, const float *weight,
        const float *bias, float *kept, float *y)
{
        DIVIDE(v->threads, v->n, rownorm_range(v, x, weight, bias, kept, y, begin, end));
}

static void rownorm_grad_range(const struct mfl_rownorm *v, const float *x, const float *kept,
        const float *dy, const float *restrict weight, float *dx, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++) {
                const float *restrict from = x + i * v->width, *restrict d = dy + i * v->width;
                float *restrict to = dx + i * v->width;
                float mean = kept[2 * i], rstd = kept[2 * i + 1];
                vec plain = {0}, along = {0};
                int64_t k = 0;
                for (; k + LANES <= v->width; k += LANES) {
                        vec g = load(d + k) * load(weight + k);
                        plain += g;
                        along += g * (load(from + k) - mean);
                }
                float m1 = add_lanes(plain), m2 = add_lanes(along);
                for (; k < v->width; k++) {
                        m1 += d[k] * weight[k];
                        m2 += d[k] * weight[k] * (from[k] - mean);
                }
                m1 = v->centred ? m1 / (float)v->width : 0.0f;
                m2 = m2 * rstd * rstd / (float)v->width;
                for (k = 0; k < v->width; k++)
                        to[k] = rstd * (d[k] * weight[k] - m1 - (from[k] - mean) * m2);
        }
}

static void rownorm_grad(const struct mfl_rownorm *v, const float *x, const float *kept, const float *dy,
        const float *weight, float *dx)
{
        DIVIDE(v->threads, v->n, rownorm_grad_range(v, x, kept, dy, weight, dx, begin, end));
}

#define ROWS_AT_ONCE 64

/* Columns [begin, end) of LANES: each sum runs over ROWS_AT_ONCE rows, then these sums are added. */
static void rownorm_params_range(const struct mfl_rownorm *v, const float *x, const float *kept,
        const float *dy, float *dweight, float *dbias, int64_t begin, int64_t end)
{
        for (int64_t c = begin * LANES; c < MFL_MIN(end * LANES, v->width); c += LANES) {
                int64_t lanes = MFL_MIN(LANES, v->width - c);
                vec gw = {0}, gb = {0};
                for (int64_t first = 0; first < v->n; first += ROWS_AT_ONCE) {
                        vec w = {0}, b = {0};
                        for (int64_t i = first; i < MFL_MIN(first + ROWS_AT_ONCE, v->n); i++) {
                                const float *d = dy + i * v->width + c, *from = x + i * v->width + c;
                                vec g = lanes == LANES ? load(d) : load_part(d, lanes);
                                vec at = lanes == LANES ? load(from) : load_part(from, lanes);
                                b += g;
                                w += g * ((at - kept[2 * i]) * kept[2 * i + 1]);
                        }
                        gw += w;
                        gb += b;
                }
                if (dweight)
                        store_part(dweight + c, gw, lanes);
                if (dbias)
                        store_part(dbias + c, gb, lanes);
        }
}

static void rownorm_params(const struct mfl_rownorm *v, const float *x, const float *kept, const float *dy,
        float *dweight, float *dbias)
{
        DIVIDE(v->threads, (v->width + LANES - 1) / LANES,
                rownorm_params_range(v, x, kept, dy, dweight, dbias, begin, end));
}

/* The sums of the columns of n rows, each over ROWS_AT_ONCE rows at a time. */
static void column_sums(int64_t n, int64_t width, int64_t stride, const float *x, float *sums)
{
        for (int64_t c = 0; c < width; c += LANES) {
                int64_t lanes = MFL_MIN(LANES, width - c);
                vec sum = {0};
                for (int64_t first = 0; first < n; first += ROWS_AT_ONCE) {
                        vec part = {0};
                        for (int64_t i = first; i < MFL_MIN(first + ROWS_AT_ONCE, n); i++)
                                part += lanes == LANES ? load(x + i * stride + c)
                                                       : load_part(x + i * stride + c, lanes);
                        sum += part;
                }
                store_part(sums + c, sum, lanes);
        }
}

/* ---- softmax ---- */

/* y = exp(x * scale - max) / sum over n values; tells max and 1 / sum. */
INLINE void softmax_row(int64_t n, float scale, const float *x, float *y, float *ret_max, float *ret_inverse)
{
        float max = largest_of(x, n) * scale;
        for (int64_t k = 0; k < n; k++)
                y[k] = exp_poly(x[k] * scale - max);
        float inverse = 1.0f / sum_of(y, n);
        for (int64_t k = 0; k < n; k++)
                y[k] *= inverse;
        *ret_max = max;
        *ret_inverse = inverse;
}

static void softmax_range(int64_t width, const float *x, float *y, int64_t begin, int64_t end)
{
        float max, inverse;
        for (int64_t i = begin; i < end; i++)
                softmax_row(width, 1.0f, x + i * width, y + i * width, &max, &inverse);
}

static void softmax(int64_t n, int64_t width, const float *x, float *y, int threads)
{
        DIVIDE(threads, n, softmax_range(width, x, y, begin, end));
}

static void softmax_grad_range(
        int64_t width, const float *y, const float *dy, float *dx, int64_t begin, int64_t end)
{
        for (int64_t i = begin; i < end; i++) {
                const float *p = y + i * width, *d = dy + i * width;
                float *to = dx + i * width, along = dot_of(p, d, width);
                for (int64_t k = 0; k < width; k++)
                        to[k] = p[k] * (d[k] - along);
        }
}

static void softmax_grad(int64_t n, int64_t width, const float *y, const float *dy, float *dx, int threads)
{
        DIVIDE(threads, n, softmax_grad_range(width, y, dy, dx, begin, end));
}

/* ---- attention ---- */

/* One head of one row, and where its block of queries works. */
struct head {
        const float *q, *k, *v, *dy;
        float *y, *dq, *dk, *dv;
        float *kept; /* max and 1 / sum of each query */
        uint64_t first;
        float *product, *scores, *dropped, *grads, *mask, *keys, *values, *rows; /* the thread's */
};

static struct head head_of(const struct mfl_attention *v, int64_t pair, float *work)
{
        int64_t t = v->positions, size = v->width / v->heads, r = pair / v->heads, block = MFL_ATTENTION_ROWS;
        int64_t in = r * t * 3 * v->width + pair % v->heads * size,
                out = r * t * v->width + pair % v->heads * size;
        struct head h = {.q = v->x + in, .k = v->x + in + v->width, .v = v->x + in + 2 * v->width};
        h.kept = v->kept + pair * 2 * t;
        h.first = (uint64_t)((pair + v->first_row * v->heads) * t * t);
        h.product = work;
        h.scores = h.product + MFL_GEMM_WORK;
        h.dropped = h.scores + block * t;
        h.grads = h.dropped + block * t;
        h.mask = h.grads + block * t;
        h.keys = h.mask + block * t + 8;
        h.values = h.keys + mfl_gemm_packed_floats(size, t);
        h.rows = h.values + MFL_MAX(mfl_gemm_packed_floats(size, t), mfl_gemm_packed_floats(t, size));
        if (v->y)
                h.y = v->y + out;
        if (v->dy)
                h.dy = v->dy + out;
        if (v->dx) {
                h.dq = v->dx + in;
                h.dk = h.dq + v->width;
                h.dv = h.dk + v->width;
        }
        return h;
}

/* Query i sees positions below this. */
INLINE int64_t seen_by(const struct mfl_attention *v, int64_t i)
{
        return v->causal ? i + 1 : v->positions;
}

/* The factors of queries [i, i + n) at mask[ret]: the stream's blocks of four need not begin with a row. */
static const float *attention_mask(const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n)
{
        uint64_t first = h->first + (uint64_t)(i * v->positions);
        int64_t ahead = (int64_t)(first % 4);
        dropout(*v->dropout, first - (uint64_t)ahead, n * v->positions + ahead, v->rate, h->mask);
        return h->mask + ahead;
}

/* scores = q k^T for n queries from i on, `seen` positions of them. */
static void attention_scores(
        const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n, int64_t seen)
{
        int64_t step = 3 * v->width, size = v->width / v->heads;
        struct mfl_gemm g = {.m = n,
                .n = seen,
                .k = size,
                .a = h->q + i * step,
                .a_i = step,
                .a_k = 1,
                .c = h->scores,
                .ldc = v->positions};
        gemm_packed(&g, h->keys, size, 0, h->product);
}

static void head_forward(const struct mfl_attention *v, const struct head *h)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        float scale = 1.0f / sqrtf((float)size);
        gemm_pack(size, t, h->k, 1, step, h->keys);
        gemm_pack(t, size, h->v, step, 1, h->values);
        for (int64_t i = 0; i < t; i += MFL_ATTENTION_ROWS) {
                int64_t n = MFL_MIN(MFL_ATTENTION_ROWS, t - i), seen = seen_by(v, i + n - 1);
                attention_scores(v, h, i, n, seen);
                for (int64_t r = 0; r < n; r++) {
                        float *p = h->scores + r * t, *kept = h->kept + 2 * (i + r);
                        int64_t own = seen_by(v, i + r);
                        softmax_row(own, scale, p, p, &kept[0], &kept[1]);
                        for (int64_t k = own; k < seen; k++)
                                p[k] = 0.0f;
                }
                const float *mask = v->dropout ? attention_mask(v, h, i, n) : NULL;
                for (int64_t e = 0; mask && e < n * t; e += t)
                        multiply_range(h->scores + e, mask + e, h->scores + e, 0, seen);
                struct mfl_gemm g = {.m = n,
                        .n = size,
                        .k = seen,
                        .a = h->scores,
                        .a_i = t,
                        .a_k = 1,
                        .c = h->y + i * v->width,
                        .ldc = v->width};
                gemm_packed(&g, h->values, t, 0, h->product);
        }
}

static void attention_forward(const struct mfl_attention *v, int64_t begin, int64_t end, float *work)
{
        for (int64_t pair = begin; pair < end; pair++) {
                struct head h = head_of(v, pair, work);
                head_forward(v, &h);
        }
}

/* One query: from its scores and the gradient of what they became, that of the scores, in `grads`; `dropped`
 * is what the values were weighted with. */
static void query_backward(const struct mfl_attention *v, int64_t own, int64_t seen, float scale,
        const float *kept, const float *mask, const float *restrict scores, float *restrict dropped,
        float *restrict grads)
{
        float max = kept[0], inverse = kept[1];
        for (int64_t k = 0; k < own; k++)
                dropped[k] = exp_poly(scores[k] * scale - max) * inverse;
        if (mask)
                multiply_range(grads, mask, grads, 0, own);
        float along = dot_of(dropped, grads, own);
        for (int64_t k = 0; k < own; k++)
                grads[k] = dropped[k] * (grads[k] - along) * scale;
        if (mask)
                multiply_range(dropped, mask, dropped, 0, own);
        for (int64_t k = own; k < seen; k++)
                dropped[k] = grads[k] = 0.0f;
}

/* to[j] += sum over the block's n queries of weights[i][j] * from[i] */
static void gather_back(const struct mfl_attention *v, const struct head *h, const float *weights, int64_t n,
        int64_t seen, const float *from, int64_t step, float *to)
{
        struct mfl_gemm g = {.m = seen,
                .n = v->width / v->heads,
                .k = n,
                .a = weights,
                .a_i = 1,
                .a_k = v->positions,
                .b = from,
                .b_k = step,
                .b_j = 1,
                .c = to,
                .ldc = 3 * v->width,
                .add = true};
        gemm(&g, h->product);
}

static void block_backward(const struct mfl_attention *v, const struct head *h, int64_t i, int64_t n)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        int64_t seen = seen_by(v, i + n - 1);
        float scale = 1.0f / sqrtf((float)size);
        const float *mask = v->dropout ? attention_mask(v, h, i, n) : NULL;
        struct mfl_gemm of_weights = {.m = n,
                .n = seen,
                .k = size,
                .a = h->dy + i * v->width,
                .a_i = v->width,
                .a_k = 1,
                .c = h->grads,
                .ldc = t};
        struct mfl_gemm of_queries = {.m = n,
                .n = size,
                .k = seen,
                .a = h->grads,
                .a_i = t,
                .a_k = 1,
                .c = h->dq + i * step,
                .ldc = step};
        attention_scores(v, h, i, n, seen);
        gemm_packed(&of_weights, h->values, size, 0, h->product);
        for (int64_t r = 0; r < n; r++)
                query_backward(v, seen_by(v, i + r), seen, scale, h->kept + 2 * (i + r),
                        mask ? mask + r * t : NULL, h->scores + r * t, h->dropped + r * t, h->grads + r * t);
        gather_back(v, h, h->dropped, n, seen, h->dy + i * v->width, v->width, h->dv);
        gather_back(v, h, h->grads, n, seen, h->q + i * step, step, h->dk);
        gemm_packed(&of_queries, h->rows, t, 0, h->product);
}

static void attention_backward(const struct mfl_attention *v, int64_t begin, int64_t end, float *work)
{
        int64_t t = v->positions, size = v->width / v->heads, step = 3 * v->width;
        for (int64_t pair = begin; pair < end; pair++) {
                struct head h = head_of(v, pair, work);
                gemm_pack(size, t, h.k, 1, step, h.keys);
                gemm_pack(size, t, h.v, 1, step, h.values);
                gemm_pack(t, size, h.k, step, 1, h.rows);
                for (int64_t i = 0; i < t; i++) {
                        memset(h.dk + i * step, 0, (size_t)size * sizeof(float));
                        memset(h.dv + i * step, 0, (size_t)size * sizeof(float));
                }
                for (int64_t i = 0; i < t; i += MFL_ATTENTION_ROWS)
                        block_backward(v, &h, i, MFL_MIN(MFL_ATTENTION_ROWS, t - i));
        }
}

/* ---- LSTM and GRU: one position of a row ---- */

static void lstm_cell(int64_t n, float *restrict gate, const float *restrict before,
        const float *restrict last_cell, float *restrict cell, float *restrict y)
{
        for (int64_t u = 0; u < n; u++) {
                float i = 1.0f / (1.0f + exp_poly(-(gate[u] + before[u])));
                float f = 1.0f / (1.0f + exp_poly(-(gate[n + u] + before[n + u])));
                float g = tanh_poly(gate[2 * n + u] + before[2 * n + u]);
                float o = 1.0f / (1.0f + exp_poly(-(gate[3 * n + u] + before[3 * n + u])));
                float c = f * last_cell[u] + i * g;
                gate[u] = i;
                gate[n + u] = f;
                gate[2 * n + u] = g;
                gate[3 * n + u] = o;
                cell[u] = c;
                y[u] = o * tanh_poly(c);
        }
}

static void gru_cell(
        int64_t n, float *restrict gate, const float *restrict before, const float *last, float *y)
{
        for (int64_t u = 0; u < n; u++) {
                float r = 1.0f / (1.0f + exp_poly(-(gate[u] + before[u])));
                float z = 1.0f / (1.0f + exp_poly(-(gate[n + u] + before[n + u])));
                float hidden = before[2 * n + u], c = tanh_poly(gate[2 * n + u] + r * hidden);
                gate[u] = r;
                gate[n + u] = z;
                gate[2 * n + u] = c;
                gate[3 * n + u] = hidden;
                y[u] = (1.0f - z) * c + z * last[u];
        }
}

static void recurrent_cells(const struct mfl_recurrent *v, int64_t t)
{
        int64_t n = v->hidden, width = (v->lstm ? 4 : 3) * n;
        for (int64_t r = 0; r < v->rows; r++) {
                int64_t at = r * v->positions + t;
                float *gate = v->gates + at * 4 * n, *y = v->y + at * n, *cell = v->cells + at * n;
                const float *before = v->before + r * width;
                if (v->lstm)
                        lstm_cell(n, gate, before, t ? cell - n : v->zeros, cell, y);
                else
                        gru_cell(n, gate, before, t ? y - n : v->zeros, y);
        }
}

static void lstm_cell_grad(int64_t n, float *restrict gate, const float *restrict cell,
        const float *restrict last_cell, const float *restrict dy, float *restrict dh, float *restrict dc)
{
        for (int64_t u = 0; u < n; u++) {
                float i = gate[u], f = gate[n + u], g = gate[2 * n + u], o = gate[3 * n + u];
                float c = tanh_poly(cell[u]), h = dh[u] + dy[u];
                float d = dc[u] + mfl_tanh_grad(c, h * o);
                gate[u] = mfl_sigmoid_grad(i, d * g);
                gate[n + u] = mfl_sigmoid_grad(f, d * last_cell[u]);
                gate[2 * n + u] = mfl_tanh_grad(g, d * i);
                gate[3 * n + u] = mfl_sigmoid_grad(o, h * c);
                dc[u] = d * f;
                dh[u] = 0.0f;
        }
}

static void gru_cell_grad(int64_t n, float *restrict gate, const float *restrict last,
        const float *restrict dy, float *restrict dh)
{
        for (int64_t u = 0; u < n; u++) {
                float r = gate[u], z = gate[n + u], c = gate[2 * n + u], hidden = gate[3 * n + u];
                float h = dh[u] + dy[u], dn = mfl_tanh_grad(c, h * (1.0f - z));
                gate[u] = mfl_sigmoid_grad(r, dn * hidden);
                gate[n + u] = mfl_sigmoid_grad(z, h * (last[u] - c));
                gate[2 * n + u] = dn;
                gate[3 * n + u] = dn * r;
                dh[u] = h * z;
        }
}

static void recurrent_cells_grad(const struct mfl_recurrent *v, const float *dy, int64_t t)
{
        int64_t n = v->hidden;
        for (int64_t r = 0; r < v->rows; r++) {
                int64_t at = r * v->positions + t;
                float *gate = v->gates + at * 4 * n, *dh = v->dh + r * n, *dc = v->dc + r * n;
                const float *cell = v->cells + at * n, *y = v->y + at * n;
                if (v->lstm)
                        lstm_cell_grad(n, gate, cell, t ? cell - n : v->zeros, dy + at * n, dh, dc);
                else
                        gru_cell_grad(n, gate, t ? y - n : v->zeros, dy + at * n, dh);
        }
}
