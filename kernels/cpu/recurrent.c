/* SPDX-License-Identifier: Apache-2.0 */
/* LSTM and GRU. The input's contribution to the gates of all positions is one product. Then each position
 * adds the previous output's contribution, with weights packed once. Backward turns the gates into their
 * gradients, from the last position on; the params' gradients are one product each over all positions.
 * Threads divide the rows: rows are independent except in the params' gradients. */
#include <omp.h>

#include "kernels/cpu/op.h"

/* Buffers of a layer, for all rows of a batch. */
struct cells {
        int64_t rows, positions, features, hidden, width; /* width: of all gates, with the weights' rows */
        enum mfl_cell kind;
        bool last_cell;
        float *gates, *cell; /* kept */
        float *packed, *before, *zeros, *dh, *dc;
};

static struct cells cells_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct cells v = {.rows = net->rows,
                .positions = layer->out.dim[0],
                .features = net->graph->layers[layer->input].out.dim[1],
                .hidden = layer->out_channels,
                .kind = mfl_cell_of(layer),
                .last_cell = layer->last_cell};
        int64_t all = v.rows * v.positions;
        v.width = mfl_cell_gates(v.kind) * v.hidden;
        if (net->arena) {
                v.gates = mfl_cpu_aux(net, i);
                v.cell = v.gates + all * 4 * v.hidden;
        }
        if (net->work) {
                v.packed = mfl_cpu_work(net, net->options.threads);
                v.before = v.packed + MFL_MAX(mfl_gemm_packed_floats(v.hidden, v.width),
                                              mfl_gemm_packed_floats(v.width, v.hidden));
                v.zeros = v.before + v.rows * v.width;
                v.dh = v.zeros + v.hidden;
                v.dc = v.dh + v.rows * v.hidden;
        }
        return v;
}

int64_t mfl_cpu_recurrent_work(const struct mfl_net *net, int i)
{
        if (!mfl_op_is_recurrent(net->graph->layers[i].op))
                return 0;
        struct cells v = cells_of(net, i);
        return MFL_MAX(mfl_gemm_packed_floats(v.hidden, v.width), mfl_gemm_packed_floats(v.width, v.hidden)) +
               v.rows * (v.width + 2 * v.hidden) + v.hidden;
}

static struct mfl_recurrent rows_of(const struct cells *v, float *y, int64_t begin, int64_t end)
{
        int64_t all = begin * v->positions;
        return (struct mfl_recurrent){.rows = end - begin,
                .positions = v->positions,
                .hidden = v->hidden,
                .kind = v->kind,
                .last_cell = v->last_cell,
                .gates = v->gates + all * 4 * v->hidden,
                .cells = v->cell + all * v->hidden,
                .y = y + all * v->hidden,
                .before = v->before + begin * v->width,
                .zeros = v->zeros,
                .dh = v->dh + begin * v->hidden,
                .dc = v->dc + begin * v->hidden};
}

static void forward_rows(const struct mfl_net *net, const struct cells *v, const float *bias, float *y,
        int64_t begin, int64_t end, float *work)
{
        const struct mfl_loops *loops = net->device->loops;
        struct mfl_recurrent rows = rows_of(v, y, begin, end);
        float *before = v->before + begin * v->width;
        struct mfl_gemm g = {.m = rows.rows,
                .n = v->width,
                .k = v->hidden,
                .a_i = v->positions * v->hidden,
                .a_k = 1,
                .c = before,
                .ldc = v->width,
                .bias = bias};
        for (int64_t r = 0; r < rows.rows; r++)
                for (int64_t u = 0; u < v->width; u++)
                        before[r * v->width + u] = bias ? bias[u] : 0.0f;
        for (int64_t t = 0; t < v->positions; t++) {
                g.a = rows.y + (t - 1) * v->hidden;
                if (t)
                        loops->products.gemm_packed(&g, v->packed, v->hidden, 0, work);
                loops->recurrent_cells(&rows, t);
        }
}

static int recurrent_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct cells v = cells_of(net, i);
        const float *bias = mfl_cpu_param(pass, layer->param_bias2);
        float *y = mfl_cpu_act(net, i);
        int threads = net->options.threads;
        int64_t part = (v.rows + threads - 1) / threads;
        struct mfl_gemm g = {.m = v.rows * v.positions,
                .n = v.width,
                .k = v.features,
                .a = mfl_cpu_plain(net, layer->input, 0),
                .a_i = v.features,
                .a_k = 1,
                .b = mfl_cpu_param(pass, layer->param_weight),
                .b_k = 1,
                .b_j = v.features,
                .c = v.gates,
                .ldc = 4 * v.hidden,
                .bias = mfl_cpu_param(pass, layer->param_bias)};
        mfl_cpu_gemm(net, &g);
        net->device->loops->products.gemm_pack(
                v.hidden, v.width, mfl_cpu_param(pass, layer->param_weight2), 1, v.hidden, v.packed);
        memset(v.zeros, 0, (size_t)v.hidden * sizeof *v.zeros);
        if (threads == 1) {
                forward_rows(net, &v, bias, y, 0, v.rows, net->work);
                return 0;
        }
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++)
                forward_rows(net, &v, bias, y, MFL_MIN(t * part, v.rows), MFL_MIN((t + 1) * part, v.rows),
                        mfl_cpu_work(net, t));
        return 0;
}

/* The gates whose gradients are those of the products with the previous output, too; GRU keeps the last one's apart. */
static int64_t direct_gates(const struct cells *v)
{
        return v->kind == MFL_CELL_GRU ? 2 : mfl_cell_gates(v->kind);
}

/* to (+)= gradients of gates [first, first + n) of every row, at `gates`, times the packed weights' rows from
 * `weight_row` on. */
static void times_weights(const struct mfl_net *net, const struct cells *v, const float *gates, int64_t n,
        int64_t weight_row, int64_t rows, float *to, float *work)
{
        struct mfl_gemm g = {.m = rows,
                .n = v->hidden,
                .k = n,
                .a = gates,
                .a_i = v->positions * 4 * v->hidden,
                .a_k = 1,
                .c = to,
                .ldc = v->hidden,
                .add = true};
        net->device->loops->products.gemm_packed(&g, v->packed, v->width, weight_row, work);
}

static void backward_rows(const struct mfl_net *net, const struct cells *v, const float *dy, float *y,
        int64_t begin, int64_t end, float *work)
{
        const struct mfl_loops *loops = net->device->loops;
        struct mfl_recurrent rows = rows_of(v, y, begin, end);
        int64_t n = v->hidden, direct = direct_gates(v) * n;
        memset(rows.dh, 0, (size_t)(rows.rows * n) * sizeof(float));
        memset(rows.dc, 0, (size_t)(rows.rows * n) * sizeof(float));
        for (int64_t t = v->positions - 1; t >= 0; t--) {
                const float *gates = rows.gates + t * 4 * n;
                loops->recurrent_cells_grad(&rows, dy + begin * v->positions * n, t);
                if (t == 0)
                        break;
                times_weights(net, v, gates, direct, 0, rows.rows, rows.dh, work);
                if (v->kind == MFL_CELL_GRU)
                        times_weights(net, v, gates + 3 * n, n, 2 * n, rows.rows, rows.dh, work);
        }
}

/* Gates [first, first + n) of all positions except the first `skip`, as a product's transposed left side. */
static void weights_gradient(const struct mfl_net *net, const struct cells *v, int64_t first, int64_t n,
        int64_t skip, const float *met, int64_t met_width, float *dw)
{
        struct mfl_gemm g = {.m = n,
                .n = met_width,
                .k = v->rows * v->positions - skip,
                .a = v->gates + skip * 4 * v->hidden + first,
                .a_i = 1,
                .a_k = 4 * v->hidden,
                .b = met,
                .b_k = met_width,
                .b_j = 1,
                .c = dw,
                .ldc = met_width};
        if (g.k > 0)
                mfl_cpu_gemm(net, &g);
        else
                memset(dw, 0, (size_t)(n * met_width) * sizeof *dw);
}

static void biases_gradient(const struct mfl_net *net, const struct cells *v, float *db_ih, float *db_hh)
{
        const struct mfl_loops *loops = net->device->loops;
        int64_t all = v->rows * v->positions, n = v->hidden;
        if (db_ih)
                loops->column_sums(all, v->width, 4 * n, v->gates, db_ih);
        if (!db_hh)
                return;
        loops->column_sums(all, v->width, 4 * n, v->gates, db_hh);
        if (v->kind == MFL_CELL_GRU)
                loops->column_sums(all, n, 4 * n, v->gates + 3 * n, db_hh + 2 * n);
}

/* A position's hidden weights multiply the previous output. The first position of a row has none: its gates'
 * gradients are cleared, so that all positions of all rows are one product. */
static void hidden_gradient(const struct mfl_net *net, const struct cells *v, const float *y, float *dw)
{
        int64_t n = v->hidden;
        for (int64_t r = 0; r < v->rows; r++)
                memset(v->gates + r * v->positions * 4 * n, 0, (size_t)(4 * n) * sizeof(float));
        weights_gradient(net, v, 0, direct_gates(v) * n, 1, y, n, dw);
        if (v->kind == MFL_CELL_GRU)
                weights_gradient(net, v, 3 * n, n, 1, y, n, dw + 2 * n * n);
}

static void params_backward(const struct pass *pass, int i, const struct cells *v)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const int params[] = {
                layer->param_weight, layer->param_weight2, layer->param_bias, layer->param_bias2};
        float *dw = mfl_cpu_param_grad(pass, i, layer->param_weight),
              *dw2 = mfl_cpu_param_grad(pass, i, layer->param_weight2);
        if (dw)
                weights_gradient(
                        net, v, 0, v->width, 0, mfl_cpu_plain(net, layer->input, 0), v->features, dw);
        biases_gradient(net, v, mfl_cpu_param_grad(pass, i, layer->param_bias),
                mfl_cpu_param_grad(pass, i, layer->param_bias2));
        if (dw2)
                hidden_gradient(net, v, mfl_cpu_act(net, i), dw2);
        for (size_t k = 0; k < MFL_ARRAY_SIZE(params); k++)
                mfl_cpu_take_grad(pass, i, params[k]);
}

static int recurrent_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct cells v = cells_of(net, i);
        float *y = mfl_cpu_act(net, i);
        const float *dy = mfl_cpu_grad(net, i);
        int threads = net->options.threads;
        int64_t part = (v.rows + threads - 1) / threads;
        net->device->loops->products.gemm_pack(
                v.width, v.hidden, mfl_cpu_param(pass, layer->param_weight2), v.hidden, 1, v.packed);
        memset(v.zeros, 0, (size_t)v.hidden * sizeof *v.zeros);
        if (threads == 1) {
                backward_rows(net, &v, dy, y, 0, v.rows, net->work);
        } else {
#pragma omp parallel for num_threads(threads) schedule(static)
                for (int t = 0; t < threads; t++)
                        backward_rows(net, &v, dy, y, MFL_MIN(t * part, v.rows),
                                MFL_MIN((t + 1) * part, v.rows), mfl_cpu_work(net, t));
        }
        struct mfl_gemm g = {.m = v.rows * v.positions,
                .n = v.features,
                .k = v.width,
                .a = v.gates,
                .a_i = 4 * v.hidden,
                .a_k = 1,
                .b = mfl_cpu_param(pass, layer->param_weight),
                .b_k = v.features,
                .b_j = 1,
                .c = dx,
                .ldc = v.features};
        if (dx)
                mfl_cpu_gemm(net, &g);
        params_backward(pass, i, &v);
        return 0;
}

static uint64_t recurrent_aux_bytes(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (uint64_t)net->options.batch * (uint64_t)layer->out.dim[0] * 5 *
               (uint64_t)layer->out_channels * sizeof(float);
}

const struct mfl_cpu_op mfl_cpu_op_lstm = {
        MFL_CPU_PLAIN | MFL_CPU_PRODUCTS, recurrent_forward, recurrent_backward, recurrent_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_gru = {
        MFL_CPU_PLAIN | MFL_CPU_PRODUCTS, recurrent_forward, recurrent_backward, recurrent_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_rnn = {
        MFL_CPU_PLAIN | MFL_CPU_PRODUCTS, recurrent_forward, recurrent_backward, recurrent_aux_bytes};
