/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM (Hochreiter and Schmidhuber 1997, with forget gates), GRU (Cho et al. 2014) and plain recurrent layers (Elman
 * 1990) with the equations of torch.nn, as plain loops.
 *
 * Backward runs a row from its last position to its first. Where the gates were, it leaves the gradients of
 * the gates' inputs: for LSTM those of i, f, g, o; for GRU those of r, z, n, and of the hidden share of n; for plain
 * layers that of the one function.
 * The gradients of the params are then sums over rows and positions.
 */
#include "kernels/reference/sequence.h"

#include <math.h>

#include "kernels/bodies.h"

/* One row. h_before at position 0 is zero. */
struct row {
        const mfl_real *x;
        mfl_real *y;
        mfl_real *gates, *cell;
};

static mfl_real *scratch_of(const struct mfl_ref_recurrent *v, mfl_real *kept)
{
        return kept + v->rows * v->positions * MFL_REF_RECURRENT_KEPT * v->hidden;
}

static struct row row_of(
        const struct mfl_ref_recurrent *v, int64_t r, const mfl_real *x, mfl_real *kept, mfl_real *y)
{
        int64_t first = r * v->positions;
        mfl_real *cells = kept + v->rows * v->positions * 4 * v->hidden;
        return (struct row){.x = x + first * v->features,
                .y = y + first * v->hidden,
                .gates = kept + first * 4 * v->hidden,
                .cell = cells + first * v->hidden};
}

/* bias[u] + weight[u] . x, x NULL for zeros. */
static double share(const mfl_real *weight, const mfl_real *bias, int64_t u, int64_t n, const mfl_real *x)
{
        double sum = bias ? (double)bias[u] : 0.0;
        for (int64_t k = 0; x && k < n; k++)
                sum += (double)weight[u * n + k] * (double)x[k];
        return sum;
}

static void lstm_forward(const struct mfl_ref_recurrent *v, const struct row *row, int64_t t)
{
        int64_t n = v->hidden;
        const mfl_real *x = row->x + t * v->features, *before = t ? row->y + (t - 1) * n : NULL;
        mfl_real *gate = row->gates + t * 4 * n, *cell = row->cell + t * n;
        if (v->last_cell && t == v->positions - 1) {
                memcpy(row->y + t * n, cell - n, (size_t)n * sizeof *cell);
                return;
        }
        for (int64_t u = 0; u < 4 * n; u++) {
                mfl_real a = (mfl_real)(share(v->weight_ih, v->bias_ih, u, v->features, x) +
                                        share(v->weight_hh, v->bias_hh, u, n, before));
                gate[u] = u / n == 2 ? MFL_REAL_TANH(a) : MFL_REAL_BODY(sigmoid)(a);
        }
        for (int64_t u = 0; u < n; u++) {
                mfl_real c = t ? row->cell[(t - 1) * n + u] : 0.0f;
                cell[u] = gate[n + u] * c + gate[u] * gate[2 * n + u];
                row->y[t * n + u] = gate[3 * n + u] * MFL_REAL_TANH(cell[u]);
        }
}

static void gru_forward(const struct mfl_ref_recurrent *v, const struct row *row, int64_t t)
{
        int64_t n = v->hidden;
        const mfl_real *x = row->x + t * v->features, *before = t ? row->y + (t - 1) * n : NULL;
        mfl_real *gate = row->gates + t * 4 * n;
        for (int64_t u = 0; u < 2 * n; u++)
                gate[u] =
                        MFL_REAL_BODY(sigmoid)((mfl_real)(share(v->weight_ih, v->bias_ih, u, v->features, x) +
                                                          share(v->weight_hh, v->bias_hh, u, n, before)));
        for (int64_t u = 0; u < n; u++) {
                mfl_real hidden = (mfl_real)share(v->weight_hh, v->bias_hh, 2 * n + u, n, before);
                mfl_real input = (mfl_real)share(v->weight_ih, v->bias_ih, 2 * n + u, v->features, x);
                gate[3 * n + u] = hidden;
                gate[2 * n + u] = MFL_REAL_TANH(input + gate[u] * hidden);
                mfl_real z = gate[n + u], last = before ? before[u] : 0.0f;
                row->y[t * n + u] = (1.0f - z) * gate[2 * n + u] + z * last;
        }
}

static void rnn_forward(const struct mfl_ref_recurrent *v, const struct row *row, int64_t t)
{
        int64_t n = v->hidden;
        const mfl_real *x = row->x + t * v->features, *before = t ? row->y + (t - 1) * n : NULL;
        for (int64_t u = 0; u < n; u++) {
                mfl_real a = (mfl_real)(share(v->weight_ih, v->bias_ih, u, v->features, x) +
                                        share(v->weight_hh, v->bias_hh, u, n, before));
                row->y[t * n + u] = v->cell == MFL_CELL_RELU ? MFL_REAL_BODY(relu)(a) : MFL_REAL_TANH(a);
        }
}

void mfl_ref_recurrent_forward(
        const struct mfl_ref_recurrent *v, const mfl_real *x, mfl_real *kept, mfl_real *y)
{
        static void (*const forwards[])(const struct mfl_ref_recurrent *, const struct row *, int64_t) = {
                [MFL_CELL_LSTM] = lstm_forward,
                [MFL_CELL_GRU] = gru_forward,
                [MFL_CELL_TANH] = rnn_forward,
                [MFL_CELL_RELU] = rnn_forward};
        for (int64_t r = 0; r < v->rows; r++) {
                struct row row = row_of(v, r, x, kept, y);
                for (int64_t t = 0; t < v->positions; t++)
                        forwards[v->cell](v, &row, t);
        }
}

/* dh: the gradient of this position's output; dc (LSTM): of its cell, from later positions. Both become those
 * of the position before, except for what passes through the weights. */
static void lstm_backward(
        const struct mfl_ref_recurrent *v, const struct row *row, int64_t t, mfl_real *dh, mfl_real *dc)
{
        int64_t n = v->hidden;
        mfl_real *gate = row->gates + t * 4 * n;
        if (v->last_cell && t == v->positions - 1) {
                memset(gate, 0, (size_t)(4 * n) * sizeof *gate);
                memcpy(dc, dh, (size_t)n * sizeof *dc);
                memset(dh, 0, (size_t)n * sizeof *dh);
                return;
        }
        for (int64_t u = 0; u < n; u++) {
                mfl_real i = gate[u], f = gate[n + u], g = gate[2 * n + u], o = gate[3 * n + u];
                mfl_real c = MFL_REAL_TANH(row->cell[t * n + u]),
                         before = t ? row->cell[(t - 1) * n + u] : 0.0f;
                mfl_real d = dc[u] + MFL_REAL_BODY(tanh_grad)(c, dh[u] * o);
                gate[3 * n + u] = MFL_REAL_BODY(sigmoid_grad)(o, dh[u] * c);
                gate[u] = MFL_REAL_BODY(sigmoid_grad)(i, d * g);
                gate[n + u] = MFL_REAL_BODY(sigmoid_grad)(f, d * before);
                gate[2 * n + u] = MFL_REAL_BODY(tanh_grad)(g, d * i);
                dc[u] = d * f;
                dh[u] = 0;
        }
}

static void gru_backward(const struct mfl_ref_recurrent *v, const struct row *row, int64_t t, mfl_real *dh)
{
        int64_t n = v->hidden;
        mfl_real *gate = row->gates + t * 4 * n;
        for (int64_t u = 0; u < n; u++) {
                mfl_real r = gate[u], z = gate[n + u], c = gate[2 * n + u], hidden = gate[3 * n + u];
                mfl_real before = t ? row->y[(t - 1) * n + u] : 0.0f;
                mfl_real dn = MFL_REAL_BODY(tanh_grad)(c, dh[u] * (1.0f - z));
                gate[u] = MFL_REAL_BODY(sigmoid_grad)(r, dn * hidden);
                gate[n + u] = MFL_REAL_BODY(sigmoid_grad)(z, dh[u] * (before - c));
                gate[2 * n + u] = dn;
                gate[3 * n + u] = dn * r;
                dh[u] *= z;
        }
}

static void rnn_backward(const struct mfl_ref_recurrent *v, const struct row *row, int64_t t, mfl_real *dh)
{
        int64_t n = v->hidden;
        mfl_real *gate = row->gates + t * 4 * n;
        for (int64_t u = 0; u < n; u++) {
                mfl_real y = row->y[t * n + u];
                gate[u] = v->cell == MFL_CELL_RELU ? MFL_REAL_BODY(relu_grad)(y, dh[u])
                                                   : MFL_REAL_BODY(tanh_grad)(y, dh[u]);
                dh[u] = 0;
        }
}

/* Where the gradient of the product with weight_hh's row u lies in `gates` of a position. */
static int64_t hidden_row(const struct mfl_ref_recurrent *v, int64_t u)
{
        return v->cell == MFL_CELL_GRU && u >= 2 * v->hidden ? u + v->hidden : u;
}

static void add_before(const struct mfl_ref_recurrent *v, const mfl_real *gate, mfl_real *dh)
{
        int64_t n = v->hidden, rows = mfl_cell_gates(v->cell) * n;
        for (int64_t k = 0; k < n; k++) {
                double sum = 0;
                for (int64_t u = 0; u < rows; u++)
                        sum += (double)gate[hidden_row(v, u)] * (double)v->weight_hh[u * n + k];
                dh[k] += (mfl_real)sum;
        }
}

static void row_backward(const struct mfl_ref_recurrent *v, const struct row *row, const mfl_real *dy,
        bool add, mfl_real *scratch, mfl_real *dx)
{
        int64_t n = v->hidden, rows = mfl_cell_gates(v->cell) * n;
        mfl_real *dh = scratch, *dc = scratch + n;
        memset(scratch, 0, (size_t)(2 * n) * sizeof *scratch);
        for (int64_t t = v->positions - 1; t >= 0; t--) {
                const mfl_real *gate = row->gates + t * 4 * n;
                for (int64_t u = 0; u < n; u++)
                        dh[u] += dy[t * n + u];
                if (v->cell == MFL_CELL_LSTM)
                        lstm_backward(v, row, t, dh, dc);
                else if (v->cell == MFL_CELL_GRU)
                        gru_backward(v, row, t, dh);
                else
                        rnn_backward(v, row, t, dh);
                add_before(v, gate, dh);
                for (int64_t k = 0; dx && k < v->features; k++) {
                        double sum = 0;
                        for (int64_t u = 0; u < rows; u++)
                                sum += (double)gate[u] * (double)v->weight_ih[u * v->features + k];
                        mfl_real *at = &dx[t * v->features + k];
                        *at = (add ? *at : 0.0f) + (mfl_real)sum;
                }
        }
}

/* The sum over rows and positions of a gate's gradient times its factor: element k of the input (hidden
 * false) or of the previous output (hidden); k < 0: times 1. */
static mfl_real sum_params(const struct mfl_ref_recurrent *v, const mfl_real *gates, int64_t u, bool hidden,
        const mfl_real *met, int64_t k)
{
        int64_t n = v->hidden, width = hidden ? n : v->features, at = hidden ? hidden_row(v, u) : u;
        double sum = 0;
        for (int64_t r = 0; r < v->rows; r++)
                for (int64_t t = hidden && k >= 0 ? 1 : 0; t < v->positions; t++) {
                        int64_t i = r * v->positions + t;
                        double d = (double)gates[i * 4 * n + at];
                        sum += k < 0 ? d : d * (double)met[(hidden ? i - 1 : i) * width + k];
                }
        return (mfl_real)sum;
}

void mfl_ref_recurrent_backward(const struct mfl_ref_recurrent *v, const mfl_real *x, const mfl_real *y,
        mfl_real *kept, const mfl_real *dy, bool add, mfl_real *dx, mfl_real *dw_ih, mfl_real *dw_hh,
        mfl_real *db_ih, mfl_real *db_hh)
{
        int64_t n = v->hidden, per_row = v->positions * v->features;
        for (int64_t r = 0; r < v->rows; r++) {
                struct row row = row_of(v, r, x, kept, (mfl_real *)y);
                row_backward(v, &row, dy + r * v->positions * n, add, scratch_of(v, kept),
                        dx ? dx + r * per_row : NULL);
        }
        for (int64_t u = 0; u < mfl_cell_gates(v->cell) * n; u++) {
                for (int64_t k = 0; dw_ih && k < v->features; k++)
                        dw_ih[u * v->features + k] = sum_params(v, kept, u, false, x, k);
                for (int64_t k = 0; dw_hh && k < n; k++)
                        dw_hh[u * n + k] = sum_params(v, kept, u, true, y, k);
                if (db_ih)
                        db_ih[u] = sum_params(v, kept, u, false, NULL, -1);
                if (db_hh)
                        db_hh[u] = sum_params(v, kept, u, true, NULL, -1);
        }
}
