/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences: norms and softmax of rows, cells of recurrent layers; part of
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

#define COLUMNS_AT_ONCE 1024

/* The sums of the columns of n rows, each over ROWS_AT_ONCE rows at a time. Rows are read as they lie. */
static void column_sums(int64_t n, int64_t width, int64_t stride, const float *x, float *restrict sums)
{
        float part[COLUMNS_AT_ONCE];
        memset(sums, 0, (size_t)width * sizeof *sums);
        for (int64_t c = 0; c < width; c += COLUMNS_AT_ONCE) {
                int64_t columns = MFL_MIN(COLUMNS_AT_ONCE, width - c);
                for (int64_t first = 0; first < n; first += ROWS_AT_ONCE) {
                        memset(part, 0, (size_t)columns * sizeof *part);
                        for (int64_t i = first; i < MFL_MIN(first + ROWS_AT_ONCE, n); i++)
                                for (int64_t k = 0; k < columns; k++)
                                        part[k] += x[i * stride + c + k];
                        for (int64_t k = 0; k < columns; k++)
                                sums[c + k] += part[k];
                }
        }
}

/* ---- softmax ---- */

/* y = exp(x * scale - max) / sum over n values; returns max and 1 / sum. */
INLINE void softmax_row(int64_t n, float scale, const float *x, float *y, float *ret_max, float *ret_inverse)
{
        float max = largest_of(x, n) * scale;
        for (int64_t k = 0; k < n; k++)
                y[k] = exp_unmasked(x[k] * scale - max);
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

#define CLASSES_AT_ONCE 1024

/* Writes the exponentials of n logits to `to`; returns their sum, and that of z - max. */
INLINE double exponentials(int64_t n, const float *z, float max, float *to, double *sum_z)
{
        for (int64_t k = 0; k < n; k++)
                to[k] = exp_poly(z[k] - max);
        *sum_z += (double)sum_of(z, n) - (double)n * (double)max;
        return (double)sum_of(to, n);
}

static float cross_entropy(const struct mfl_logits *v, const float *z, float *dz, bool *ret_hit)
{
        float max = largest_of(z, v->classes), at_once[CLASSES_AT_ONCE], value, own = z[v->label] - max;
        double sum = 0, sum_z = 0;
        bool hit = z[v->label] >= max;
        for (int k = 0; hit && k < v->label; k++)
                hit = z[k] < max;
        *ret_hit = hit;
        for (int64_t k = 0; k < v->classes; k += CLASSES_AT_ONCE) {
                int64_t n = MFL_MIN(CLASSES_AT_ONCE, v->classes - k);
                sum += exponentials(n, z + k, max, dz ? dz + k : at_once, &sum_z);
        }
        value = logf((float)sum) - own;
        if (v->smoothing > 0.0f)
                value = mfl_smooth_loss(value, value + own, (float)sum_z, v->classes, v->smoothing);
        if (!dz)
                return value;
        float factor = (float)(1.0 / sum) * v->scale, floor = v->smoothing / (float)v->classes * v->scale;
        for (int k = 0; k < v->classes; k++)
                dz[k] = dz[k] * factor - floor;
        dz[v->label] -= (1.0f - v->smoothing) * v->scale;
        return value;
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

static void rnn_cell(
        int64_t n, bool relu, const float *restrict gate, const float *restrict before, float *restrict y)
{
        for (int64_t u = 0; u < n; u++) {
                float a = gate[u] + before[u];
                y[u] = relu ? mfl_unary_relu(a) : tanh_poly(a);
        }
}

static void recurrent_cells(const struct mfl_recurrent *v, int64_t t)
{
        int64_t n = v->hidden, width = mfl_cell_gates(v->kind) * n;
        for (int64_t r = 0; r < v->rows; r++) {
                int64_t at = r * v->positions + t;
                float *gate = v->gates + at * 4 * n, *y = v->y + at * n, *cell = v->cells + at * n;
                const float *before = v->before + r * width;
                if (v->last_cell && t == v->positions - 1)
                        memcpy(y, cell - n, (size_t)n * sizeof *y);
                else if (v->kind == MFL_CELL_LSTM)
                        lstm_cell(n, gate, before, t ? cell - n : v->zeros, cell, y);
                else if (v->kind == MFL_CELL_GRU)
                        gru_cell(n, gate, before, t ? y - n : v->zeros, y);
                else
                        rnn_cell(n, v->kind == MFL_CELL_RELU, gate, before, y);
        }
}

static void lstm_cell_grad(int64_t n, float *restrict gate, const float *restrict cell,
        const float *restrict last_cell, const float *restrict dy, float *restrict dh, float *restrict dc)
{
        for (int64_t u = 0; u < n; u++) {
                float i = gate[u], f = gate[n + u], g = gate[2 * n + u], o = gate[3 * n + u];
                float c = tanh_poly(cell[u]), h = dh[u] + dy[u];
                float d = dc[u] + mfl_unary_tanh_grad(c, h * o);
                gate[u] = mfl_unary_sigmoid_grad(i, d * g);
                gate[n + u] = mfl_unary_sigmoid_grad(f, d * last_cell[u]);
                gate[2 * n + u] = mfl_unary_tanh_grad(g, d * i);
                gate[3 * n + u] = mfl_unary_sigmoid_grad(o, h * c);
                dc[u] = d * f;
                dh[u] = 0.0f;
        }
}

static void gru_cell_grad(int64_t n, float *restrict gate, const float *restrict last,
        const float *restrict dy, float *restrict dh)
{
        for (int64_t u = 0; u < n; u++) {
                float r = gate[u], z = gate[n + u], c = gate[2 * n + u], hidden = gate[3 * n + u];
                float h = dh[u] + dy[u], dn = mfl_unary_tanh_grad(c, h * (1.0f - z));
                gate[u] = mfl_unary_sigmoid_grad(r, dn * hidden);
                gate[n + u] = mfl_unary_sigmoid_grad(z, h * (last[u] - c));
                gate[2 * n + u] = dn;
                gate[3 * n + u] = dn * r;
                dh[u] = h * z;
        }
}

static void rnn_cell_grad(int64_t n, bool relu, float *restrict gate, const float *restrict y,
        const float *restrict dy, float *restrict dh)
{
        for (int64_t u = 0; u < n; u++) {
                float h = dh[u] + dy[u];
                gate[u] = relu ? mfl_unary_relu_grad(y[u], h) : mfl_unary_tanh_grad(y[u], h);
                dh[u] = 0.0f;
        }
}

/* The output is the last cell: its gradient is the cell's, and the gates have none. */
static void last_cell_grad(int64_t n, float *gate, const float *dy, float *dc)
{
        memset(gate, 0, (size_t)(4 * n) * sizeof *gate);
        memcpy(dc, dy, (size_t)n * sizeof *dc);
}

static void recurrent_cells_grad(const struct mfl_recurrent *v, const float *dy, int64_t t)
{
        int64_t n = v->hidden;
        for (int64_t r = 0; r < v->rows; r++) {
                int64_t at = r * v->positions + t;
                float *gate = v->gates + at * 4 * n, *dh = v->dh + r * n, *dc = v->dc + r * n;
                const float *cell = v->cells + at * n, *y = v->y + at * n;
                if (v->last_cell && t == v->positions - 1)
                        last_cell_grad(n, gate, dy + at * n, dc);
                else if (v->kind == MFL_CELL_LSTM)
                        lstm_cell_grad(n, gate, cell, t ? cell - n : v->zeros, dy + at * n, dh, dc);
                else if (v->kind == MFL_CELL_GRU)
                        gru_cell_grad(n, gate, t ? y - n : v->zeros, dy + at * n, dh);
                else
                        rnn_cell_grad(n, v->kind == MFL_CELL_RELU, gate, y, dy + at * n, dh);
        }
}
