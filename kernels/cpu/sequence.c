/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of sequences, in plain order always: norms and softmax of rows, products, embedding, attention.
 */
#include "kernels/cpu/op.h"

static struct mfl_rownorm rownorm_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (struct mfl_rownorm){.n = mfl_cpu_vectors(net, &layer->out),
                .width = layer->out.dim[layer->out.rank - 1],
                .eps = layer->eps,
                .centred = layer->op == MFL_OP_LAYERNORM,
                .threads = net->options.threads};
}

static uint64_t rownorm_aux_bytes(const struct mfl_net *net, int i)
{
        return (uint64_t)mfl_cpu_vectors(net, &net->graph->layers[i].out) * 2 * sizeof(float);
}

static uint64_t attention_aux_bytes(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        return (uint64_t)net->options.batch * (uint64_t)layer->heads * (uint64_t)layer->out.dim[0] * 2 *
               sizeof(float);
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
                .mask = layer->input2 < 0 ? NULL : mfl_cpu_act(net, layer->input2),
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
        int64_t pairs = net->rows * v->heads, part = (pairs + threads - 1) / threads;
        if (threads == 1) {
                run(v, 0, pairs, net->work);
                return;
        }
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int t = 0; t < threads; t++)
                run(v, MFL_MIN(t * part, pairs), MFL_MIN((t + 1) * part, pairs), mfl_cpu_work(net, t));
}

/* The products of a matmul layer: `n` of them, one for each leading index. */
struct matmul {
        int64_t n, m, k, width;
        bool transposed;
};

static struct matmul matmul_of(const struct mfl_net *net, int i)
{
        const struct mfl_layer *layer = &net->graph->layers[i];
        const struct mfl_shape *in = &net->graph->layers[layer->input].out, *out = &layer->out;
        int rank = out->rank;
        return (struct matmul){.n = net->rows * (rank == 3 ? out->dim[0] : 1),
                .m = out->dim[rank - 2],
                .k = in->dim[rank - 1],
                .width = out->dim[rank - 1],
                .transposed = layer->transposed};
}

static void product_forward(const struct mfl_net *net, int i, const float *x, const float *x2, float *y)
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
static void product_backward(const struct mfl_net *net, int i, const float *x2, const float *dy, float *dx)
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
static void product_backward2(const struct mfl_net *net, int i, const float *x, const float *dy, float *dx2)
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

static int embedding_forward(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        int64_t n = pass->net->rows * layer->out.dim[0], width = layer->out_channels;
        const float *x = mfl_cpu_plain(pass->net, layer->input, 0);
        float *y = mfl_cpu_act(pass->net, i);
        const float *w = mfl_cpu_param(pass, layer->param_weight);
        for (int64_t k = 0; k < n; k++)
                memcpy(y + k * width, w + mfl_token(x[k], layer->vocabulary) * width,
                        (size_t)width * sizeof *y);
        return 0;
}

/* Whether a parameter whose gradient is 0 stays as it is. */
static bool rests_without_gradient(const struct mfl_optimizer *opt)
{
        return opt && opt->kind == MFL_OPTIMIZER_SGD && opt->momentum == 0.0f && opt->weight_decay == 0.0f &&
               opt->prox_mu == 0.0f;
}

/* Takes the step of each row that occurs, once: afterwards the row's gradient is 0, and a second step changes
 * nothing. */
static void step_rows(const struct pass *pass, int i, int param, int64_t n, const int *tokens, int64_t width)
{
        struct mfl_apply apply = mfl_cpu_apply(pass, param), row = apply;
        float *grad = mfl_cpu_param_grad(pass, i, param);
        for (int64_t k = 0; k < n; k++) {
                int64_t at = tokens[k] * width;
                row.p = apply.p + at;
                row.p0 = apply.p0 + at;
                row.grad = NULL;
                pass->net->device->loops->update(width, grad + at, &row, 1);
                memset(grad + at, 0, (size_t)width * sizeof *grad);
        }
}

/* Adds rows in the order of their occurrence; to the gradient of a later layer, where the weights are shared. */
static void rows_backward(const struct pass *pass, int i, const float *dy)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        int64_t n = pass->rows * layer->out.dim[0], width = layer->out_channels;
        bool shared = mfl_cpu_is_shared(net->graph, layer->param_weight);
        float *grad = pass->grads + net->wide[layer->param_weight].grad;
        const float *x = mfl_cpu_act(net, layer->input);
        int *tokens = (int *)net->work;
        bool sparse = !shared && rests_without_gradient(pass->opt);
        if (!mfl_cpu_is_trained(net->graph, layer->param_weight))
                return;
        for (int64_t k = 0; k < n; k++)
                tokens[k] = mfl_token(x[k], layer->vocabulary);
        if (!sparse && !mfl_cpu_adds_grad(pass, i, layer->param_weight))
                memset(grad, 0, (size_t)layer->vocabulary * (size_t)width * sizeof *grad);
        for (int64_t k = 0; sparse && k < n; k++)
                memset(grad + tokens[k] * width, 0, (size_t)width * sizeof *grad);
        for (int64_t k = 0; k < n; k++) {
                float *to = grad + tokens[k] * width;
                if (layer->has_padding && tokens[k] == layer->padding_idx)
                        continue;
                net->device->loops->add(width, to, dy + k * width, false, to, 1);
        }
        if (sparse)
                step_rows(pass, i, layer->param_weight, n, tokens, width);
        else if (net->graph->params[layer->param_weight].layer == i)
                mfl_cpu_step_tensor(pass, layer->param_weight);
}

static int embedding_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        rows_backward(pass, i, mfl_cpu_grad(net, i));
        if (dx) /* tokens have none */
                memset(dx, 0, (size_t)mfl_cpu_floats(net, net->graph->layers[i].input) * sizeof *dx);
        return 0;
}

static int mask_forward(const struct pass *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->graph->layers[i];
        const float *x = mfl_cpu_plain(pass->net, layer->input, 0);
        float *y = mfl_cpu_act(pass->net, i);
        for (int64_t k = 0, n = pass->net->rows * layer->out.dim[0]; k < n; k++)
                y[k] = mfl_masked_at(x[k], layer->padding_idx);
        return 0;
}

static int mask_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        if (dx) /* tokens have none */
                memset(dx, 0,
                        (size_t)mfl_cpu_floats(pass->net, pass->net->graph->layers[i].input) * sizeof *dx);
        return 0;
}

static int rownorm_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        struct mfl_rownorm norm = rownorm_of(net, i);
        net->device->loops->rownorm_forward(&norm, mfl_cpu_plain(net, layer->input, 0),
                mfl_cpu_param(pass, layer->param_weight), mfl_cpu_param(pass, layer->param_bias),
                mfl_cpu_aux(net, i), mfl_cpu_act(net, i));
        return 0;
}

static int rownorm_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_loops *loops = net->device->loops;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *x = mfl_cpu_plain(net, layer->input, 0);
        const float *dy = mfl_cpu_grad(net, i), *kept = mfl_cpu_aux(net, i);
        struct mfl_rownorm norm = rownorm_of(net, i);
        float *dw = mfl_cpu_param_grad(pass, i, layer->param_weight);
        if (dx)
                loops->rownorm_grad(&norm, x, kept, dy, mfl_cpu_param(pass, layer->param_weight), dx);
        if (!dw)
                return 0;
        loops->rownorm_params(&norm, x, kept, dy, dw, mfl_cpu_param_grad(pass, i, layer->param_bias));
        mfl_cpu_take_grad(pass, i, layer->param_weight);
        mfl_cpu_take_grad(pass, i, layer->param_bias);
        return 0;
}

static int softmax_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_shape *out = &net->graph->layers[i].out;
        net->device->loops->softmax(mfl_cpu_vectors(net, out), out->dim[out->rank - 1],
                mfl_cpu_plain(net, net->graph->layers[i].input, 0), mfl_cpu_act(net, i),
                net->options.threads);
        return 0;
}

static int softmax_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_shape *out = &net->graph->layers[i].out;
        if (dx)
                net->device->loops->softmax_grad(mfl_cpu_vectors(net, out), out->dim[out->rank - 1],
                        mfl_cpu_act(net, i), mfl_cpu_grad(net, i), dx, net->options.threads);
        return 0;
}

static int matmul_forward(const struct pass *pass, int i)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        product_forward(net, i, mfl_cpu_plain(net, layer->input, 0), mfl_cpu_plain(net, layer->input2, 1),
                mfl_cpu_act(net, i));
        return 0;
}

static int matmul_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        const struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->graph->layers[i];
        const float *dy = mfl_cpu_grad(net, i);
        if (dx)
                product_backward(net, i, mfl_cpu_plain(net, layer->input2, 1), dy, dx);
        if (dx2)
                product_backward2(net, i, mfl_cpu_plain(net, layer->input, 0), dy, dx2);
        return 0;
}

static int attention_forward(const struct pass *pass, int i)
{
        struct mfl_rng_key key;
        struct mfl_attention attention = attention_of(pass, i, &key);
        attention.y = mfl_cpu_act(pass->net, i);
        run_heads(pass->net, &attention, pass->net->device->loops->products.attention_forward);
        return 0;
}

static int attention_backward(const struct pass *pass, int i, float *dx, float *dx2)
{
        struct mfl_rng_key key;
        struct mfl_attention attention = attention_of(pass, i, &key);
        attention.dy = mfl_cpu_grad(pass->net, i);
        attention.dx = dx;
        if (dx)
                run_heads(pass->net, &attention, pass->net->device->loops->products.attention_backward);
        if (dx2) /* a mask has none */
                memset(dx2, 0,
                        (size_t)mfl_cpu_floats(pass->net, pass->net->graph->layers[i].input2) * sizeof *dx2);
        return 0;
}

#define OF_PRODUCTS (MFL_CPU_PLAIN | MFL_CPU_PRODUCTS)
const struct mfl_cpu_op mfl_cpu_op_layernorm = {
        OF_PRODUCTS | MFL_CPU_YIELDS, rownorm_forward, rownorm_backward, rownorm_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_rmsnorm = {
        OF_PRODUCTS | MFL_CPU_YIELDS, rownorm_forward, rownorm_backward, rownorm_aux_bytes};
const struct mfl_cpu_op mfl_cpu_op_softmax = {OF_PRODUCTS, softmax_forward, softmax_backward};
const struct mfl_cpu_op mfl_cpu_op_matmul = {OF_PRODUCTS | MFL_CPU_YIELDS, matmul_forward, matmul_backward};
const struct mfl_cpu_op mfl_cpu_op_embedding = {
        OF_PRODUCTS | MFL_CPU_YIELDS, embedding_forward, embedding_backward};
const struct mfl_cpu_op mfl_cpu_op_padding_mask = {
        MFL_CPU_PLAIN | MFL_CPU_NO_INPUT, mask_forward, mask_backward};
const struct mfl_cpu_op mfl_cpu_op_attention = {
        OF_PRODUCTS | MFL_CPU_YIELDS, attention_forward, attention_backward, attention_aux_bytes};
