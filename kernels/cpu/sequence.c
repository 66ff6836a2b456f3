/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences, in plain order always: norms and softmax of rows, products, embedding, attention.
 */
#include <omp.h>

#include "kernels/cpu/pass.h"

#define GEMM_ALONE 200000 /* multiplications: fewer take less time than it takes to wake another thread */

void mfl_cpu_gemm(const struct mfl_net *net, const struct mfl_gemm *g)
{
        const struct mfl_loops *loops = net->device->loops;
        int threads = net->options.threads;
        bool by_rows = g->m >= g->n;
        if (threads == 1 || g->m * g->n * g->k < GEMM_ALONE) {
                loops->gemm(g, net->work);
                return;
        }
        int64_t total = by_rows ? g->m : g->n, part = (total + threads - 1) / threads;
        part = (part + MFL_GEMM_HEIGHT - 1) / MFL_GEMM_HEIGHT * MFL_GEMM_HEIGHT;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++) {
                int64_t begin = MFL_MIN(t * part, total), end = MFL_MIN(begin + part, total);
                struct mfl_gemm own = *g;
                own.a += by_rows ? begin * g->a_i : 0;
                own.b += by_rows ? 0 : begin * g->b_j;
                own.bias += by_rows || !g->bias ? 0 : begin;
                own.c += by_rows ? begin * g->ldc : begin;
                own.m = by_rows ? end - begin : g->m;
                own.n = by_rows ? g->n : end - begin;
                if (begin < end)
                        loops->gemm(&own, mfl_cpu_work(net, t));
        }
}

static struct mfl_rownorm rownorm_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_rownorm){.n = mfl_cpu_vectors(net, &layer->out),
                .width = layer->out.dim[layer->out.rank - 1],
                .eps = layer->eps,
                .centred = layer->op == MFL_OP_LAYERNORM,
                .threads = net->options.threads};
}

uint64_t mfl_cpu_sequence_aux_bytes(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        uint64_t batch = (uint64_t)net->options.batch, positions = (uint64_t)layer->out.dim[0];
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                return (uint64_t)mfl_cpu_vectors(net, &layer->out) * 2 * sizeof(float);
        case MFL_OP_ATTENTION:
                return batch * (uint64_t)layer->heads * positions * 2 * sizeof(float);
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
                return batch * positions * 5 * (uint64_t)layer->out_channels * sizeof(float);
        default:
                return 0;
        }
}

/* key: where the layer's dropout key is put. */
static struct mfl_attention attention_of(const struct pass *pass, int i, struct mfl_rng_key *key)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_attention v = {.first_row = pass->first_row,
                .positions = layer->out.dim[0],
                .width = layer->out.dim[1],
                .heads = layer->heads,
                .causal = layer->causal,
                .rate = layer->rate,
                .x = mfl_cpu_plain(net, layer->input, 0),
                .kept = mfl_cpu_aux(net, i)};
        if (pass->dropout && layer->rate > 0) {
                *key = mfl_rng_dropout_key(*pass->dropout, pass->step, (uint32_t)i);
                v.dropout = key;
        }
        return v;
}

static void run_heads(const struct mfl_net *net, const struct mfl_attention *v,
        void (*run)(const struct mfl_attention *v, int64_t begin, int64_t end, float *work))
{
        int threads = net->options.threads;
        int64_t pairs = net->options.batch * v->heads, part = (pairs + threads - 1) / threads;
        if (threads == 1) {
                run(v, 0, pairs, net->work);
                return;
        }
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++)
                run(v, MFL_MIN(t * part, pairs), MFL_MIN((t + 1) * part, pairs), mfl_cpu_work(net, t));
}

/* The products of a matmul layer: `n` of them, one per leading index. */
struct matmul {
        int64_t n, m, k, width;
        bool transposed;
};

static struct matmul matmul_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = &net->graph->layers[layer->input].out, *out = &layer->out;
        int rank = out->rank;
        return (struct matmul){.n = net->options.batch * (rank == 3 ? out->dim[0] : 1),
                .m = out->dim[rank - 2],
                .k = in->dim[rank - 1],
                .width = out->dim[rank - 1],
                .transposed = layer->transposed};
}

static void matmul_forward(const struct mfl_net *net, int i, const float *x, const float *x2, float *y)
{
        struct matmul v = matmul_of(net, i);
        for (int64_t p = 0; p < v.n; p++) {
                struct mfl_gemm g = {.m = v.m,
                        .n = v.width,
                        .k = v.k,
                        .a = x + p * v.m * v.k,
                        .a_i = v.k,
                        .a_k = 1,
                        .b = x2 + p * v.k * v.width,
                        .b_k = v.transposed ? 1 : v.width,
                        .b_j = v.transposed ? v.k : 1,
                        .c = y + p * v.m * v.width,
                        .ldc = v.width};
                mfl_cpu_gemm(net, &g);
        }
}

/* dx = dy x2^T */
static void matmul_backward(const struct mfl_net *net, int i, const float *x2, const float *dy, float *dx)
{
        struct matmul v = matmul_of(net, i);
        for (int64_t p = 0; p < v.n; p++) {
                struct mfl_gemm g = {.m = v.m,
                        .n = v.k,
                        .k = v.width,
                        .a = dy + p * v.m * v.width,
                        .a_i = v.width,
                        .a_k = 1,
                        .b = x2 + p * v.k * v.width,
                        .b_k = v.transposed ? v.k : 1,
                        .b_j = v.transposed ? 1 : v.width,
                        .c = dx + p * v.m * v.k,
                        .ldc = v.k};
                mfl_cpu_gemm(net, &g);
        }
}

/* dx2 = x^T dy, or dy^T x where x2 is transposed. */
static void matmul_backward2(const struct mfl_net *net, int i, const float *x, const float *dy, float *dx2)
{
        struct matmul v = matmul_of(net, i);
        for (int64_t p = 0; p < v.n; p++) {
                const float *a = x + p * v.m * v.k, *d = dy + p * v.m * v.width;
                int64_t n_a = v.transposed ? v.width : v.k, n_b = v.transposed ? v.k : v.width;
                struct mfl_gemm g = {.m = n_a,
                        .n = n_b,
                        .k = v.m,
                        .a = v.transposed ? d : a,
                        .a_i = 1,
                        .a_k = n_a,
                        .b = v.transposed ? a : d,
                        .b_k = n_b,
                        .b_j = 1,
                        .c = dx2 + p * v.k * v.width,
                        .ldc = n_b};
                mfl_cpu_gemm(net, &g);
        }
}

static void embedding_forward(const struct pass *pass, int i, const float *x, float *y)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        int64_t n = pass->net->options.batch * layer->out.dim[0], width = layer->out_channels;
        const float *w = mfl_cpu_param(pass, layer->param_weight);
        for (int64_t k = 0; k < n; k++)
                memcpy(y + k * width, w + mfl_token(x[k], layer->vocabulary) * width,
                        (size_t)width * sizeof *y);
}

/* Whether a parameter whose gradient is 0 stays as it is. */
static bool rests_without_gradient(const struct mfl_optimizer *opt)
{
        return opt && opt->kind == MFL_OPTIMIZER_SGD && opt->momentum == 0.0f && opt->weight_decay == 0.0f &&
               opt->prox_mu == 0.0f;
}

/* Rows that occur get their step, each once: then its gradient is 0, which a second step would not feel. */
static void step_rows(const struct pass *pass, int param, int64_t n, const int *tokens, int64_t width)
{
        struct mfl_apply apply = mfl_cpu_apply(pass, param), row = apply;
        float *grad = mfl_cpu_param_grad(pass, param);
        for (int64_t k = 0; k < n; k++) {
                int64_t at = tokens[k] * width;
                row.p = apply.p + at;
                row.m = apply.m + at;
                row.p0 = apply.p0 + at;
                row.grad = NULL;
                pass->net->device->loops->update(width, grad + at, &row, 1);
                memset(grad + at, 0, (size_t)width * sizeof *grad);
        }
}

/* Rows are added in the order of their occurrence. */
static void embedding_backward(const struct pass *pass, int i, const float *dy)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = pass->rows * layer->out.dim[0], width = layer->out_channels;
        float *grad = mfl_cpu_param_grad(pass, layer->param_weight);
        const float *x = mfl_cpu_act(net, layer->input);
        int *tokens = (int *)net->work;
        bool sparse = rests_without_gradient(pass->opt);
        if (!grad)
                return;
        for (int64_t k = 0; k < n; k++)
                tokens[k] = mfl_token(x[k], layer->vocabulary);
        if (!sparse)
                memset(grad, 0, (size_t)layer->vocabulary * (size_t)width * sizeof *grad);
        for (int64_t k = 0; sparse && k < n; k++)
                memset(grad + tokens[k] * width, 0, (size_t)width * sizeof *grad);
        for (int64_t k = 0; k < n; k++) {
                float *to = grad + tokens[k] * width;
                net->device->loops->add(width, to, dy + k * width, false, to, 1);
        }
        if (sparse)
                step_rows(pass, layer->param_weight, n, tokens, width);
        else
                mfl_cpu_take_grad(pass, layer->param_weight);
}

void mfl_cpu_sequence_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = mfl_cpu_plain(net, layer->input, 0), *w = mfl_cpu_param(pass, layer->param_weight);
        float *y = mfl_cpu_act(net, i);
        struct mfl_rng_key key;
        struct mfl_rownorm norm;
        struct mfl_attention attention;
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                norm = rownorm_of(net, i);
                loops->rownorm_forward(
                        &norm, x, w, mfl_cpu_param(pass, layer->param_bias), mfl_cpu_aux(net, i), y);
                break;
        case MFL_OP_SOFTMAX:
                loops->softmax(mfl_cpu_vectors(net, &layer->out), layer->out.dim[layer->out.rank - 1], x, y,
                        net->options.threads);
                break;
        case MFL_OP_MATMUL:
                matmul_forward(net, i, x, mfl_cpu_plain(net, layer->input2, 1), y);
                break;
        case MFL_OP_EMBEDDING:
                embedding_forward(pass, i, x, y);
                break;
        default: /* attention */
                attention = attention_of(pass, i, &key);
                attention.y = y;
                run_heads(net, &attention, loops->attention_forward);
        }
}

static void rownorm_backward(const struct pass *pass, int i, const float *x, float *dx)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i), *kept = mfl_cpu_aux(net, i);
        struct mfl_rownorm norm = rownorm_of(net, i);
        float *dw = mfl_cpu_param_grad(pass, layer->param_weight);
        if (dx)
                loops->rownorm_grad(&norm, x, kept, dy, mfl_cpu_param(pass, layer->param_weight), dx);
        if (!dw)
                return;
        loops->rownorm_params(&norm, x, kept, dy, dw, mfl_cpu_param_grad(pass, layer->param_bias));
        mfl_cpu_take_grad(pass, layer->param_weight);
        mfl_cpu_take_grad(pass, layer->param_bias);
}

void mfl_cpu_sequence_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i);
        struct mfl_rng_key key;
        struct mfl_attention attention;
        switch (layer->op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                rownorm_backward(pass, i, mfl_cpu_plain(net, layer->input, 0), dx);
                break;
        case MFL_OP_SOFTMAX:
                if (dx)
                        loops->softmax_grad(mfl_cpu_vectors(net, &layer->out),
                                layer->out.dim[layer->out.rank - 1], mfl_cpu_act(net, i), dy, dx,
                                net->options.threads);
                break;
        case MFL_OP_MATMUL:
                if (dx)
                        matmul_backward(net, i, mfl_cpu_plain(net, layer->input2, 1), dy, dx);
                if (dx2)
                        matmul_backward2(net, i, mfl_cpu_plain(net, layer->input, 0), dy, dx2);
                break;
        case MFL_OP_EMBEDDING:
                embedding_backward(pass, i, dy);
                if (dx) /* tokens have none */
                        memset(dx, 0, (size_t)mfl_cpu_floats(net, layer->input) * sizeof *dx);
                break;
        default: /* attention */
                attention = attention_of(pass, i, &key);
                attention.dy = dy;
                attention.dx = dx;
                if (dx)
                        run_heads(net, &attention, loops->attention_backward);
        }
}
