/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of attention: by tiles (attention.h) or, where heads are too large for that, by products of
 * strided matrices with stored weights (ops_sequence.h). */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/cuda/net/run.h"

/* ---- by tiles ---- */

static struct mfl_cuda_flash flash_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_model *model = &net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        return (struct mfl_cuda_flash){.groups = model->options.groups,
                .batch = model->options.batch,
                .heads = layer->heads,
                .positions = (int)layer->out.dim[0],
                .size = (int)layer->out.dim[1] / layer->heads,
                .precision = model->options.precision,
                .causal = layer->causal,
                .training = pass->training,
                .rate = layer->rate,
                .layer = (uint32_t)i,
                .in = mfl_cuda_act_at(net, layer->input),
                .out = mfl_cuda_act_at(net, i),
                .kept = model->options.training ? mfl_cuda_aux_at(net, i) : NULL,
                .steps = pass->steps};
}

/* ---- by products ---- */

struct attention {
        struct mfl_cuda_attention op;
        int64_t width;
        int size; /* of a head */
        float scale;
};

static void *element_at(const struct mfl_cuda_run *pass, const void *p, int64_t e)
{
        return (char *)(uintptr_t)p + e * mfl_cuda_type_bytes(pass->net->model.type);
}

static struct attention attention_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        struct attention v = {.op = {.groups = net->model.options.groups,
                                      .batch = net->model.options.batch,
                                      .heads = layer->heads,
                                      .positions = (int)layer->out.dim[0],
                                      .causal = layer->causal,
                                      .training = pass->training,
                                      .rate = layer->rate,
                                      .layer = (uint32_t)i,
                                      .weights = mfl_cuda_aux_at(net, i),
                                      .mask = layer->input2 < 0 ? NULL : mfl_cuda_act_at(net, layer->input2),
                                      .mask_type = net->model.type,
                                      .steps = pass->steps},
                .width = layer->out.dim[1],
                .size = (int)layer->out.dim[1] / layer->heads};
        v.op.dropped = v.op.scores = mfl_cuda_at(net, MFL_CUDA_WORKSPACE);
        v.scale = 1.0f / sqrtf((float)v.size);
        return v;
}

/* Heads of a tensor whose positions have `row` features, from feature `first` on. */
static struct mfl_cuda_matrix heads_of(
        const struct mfl_cuda_run *pass, const struct attention *v, const void *p, int64_t row, int64_t first)
{
        return (struct mfl_cuda_matrix){.p = element_at(pass, p, first),
                .group = (int64_t)v->op.batch * v->op.positions * row,
                .outer = v->op.positions * row,
                .inner = v->size,
                .row = row,
                .column = 1,
                .type = pass->net->model.type};
}

static struct mfl_cuda_matrix weights_of(const struct attention *v, float *p)
{
        int64_t square = (int64_t)v->op.positions * v->op.positions;
        return (struct mfl_cuda_matrix){.p = p,
                .group = square * v->op.heads * v->op.batch,
                .outer = square * v->op.heads,
                .inner = square,
                .row = v->op.positions,
                .column = 1,
                .type = MFL_CUDA_F32};
}

static cudaError_t multiply(const struct mfl_cuda_run *pass, const struct attention *v,
        struct mfl_cuda_matrix a, struct mfl_cuda_matrix b, struct mfl_cuda_matrix c, float alpha, bool add,
        int n, int k)
{
        struct mfl_cuda_matmul op = {.groups = v->op.groups,
                .outer = v->op.batch,
                .inner = v->op.heads,
                .m = v->op.positions,
                .n = n,
                .k = k,
                .a = a,
                .b = b,
                .c = c,
                .alpha = alpha,
                .add = add,
                .steps = pass->steps};
        return mfl_cuda_matmul(&op, pass->net->main.stream);
}

static float *met_values(const struct attention *v)
{
        return v->op.training && v->op.rate > 0.0f ? v->op.dropped : v->op.weights;
}

static cudaError_t products_forward(const struct mfl_cuda_run *pass, int i)
{
        struct attention v = attention_of(pass, i);
        const void *x = mfl_cuda_act_at(pass->net, pass->net->model.graph->layers[i].input);
        int64_t d = v.width, t = v.op.positions;
        struct mfl_cuda_matrix q = heads_of(pass, &v, x, 3 * d, 0), k = heads_of(pass, &v, x, 3 * d, d);
        struct mfl_cuda_matrix values = heads_of(pass, &v, x, 3 * d, 2 * d);
        struct mfl_cuda_matrix y = heads_of(pass, &v, mfl_cuda_act_at(pass->net, i), d, 0);
        cudaError_t r = multiply(pass, &v, q, mfl_cuda_turned(k), weights_of(&v, v.op.weights), v.scale,
                false, (int)t, v.size);
        if (r == cudaSuccess)
                r = mfl_cuda_attention_weights(&v.op, pass->net->main.stream);
        return r ? r
                 : multiply(pass, &v, weights_of(&v, met_values(&v)), values, y, 1.0f, false, v.size, (int)t);
}

static cudaError_t products_backward(
        const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        struct attention v = attention_of(pass, i);
        const void *x = mfl_cuda_act_at(pass->net, pass->net->model.graph->layers[i].input);
        int64_t d = v.width;
        int t = v.op.positions;
        struct mfl_cuda_matrix q = heads_of(pass, &v, x, 3 * d, 0), k = heads_of(pass, &v, x, 3 * d, d);
        struct mfl_cuda_matrix values = heads_of(pass, &v, x, 3 * d, 2 * d);
        struct mfl_cuda_matrix dy = heads_of(pass, &v, mfl_cuda_grad_at(pass->net, i), d, 0);
        struct mfl_cuda_matrix dq = heads_of(pass, &v, want->dx, 3 * d, 0);
        struct mfl_cuda_matrix dk = heads_of(pass, &v, want->dx, 3 * d, d);
        struct mfl_cuda_matrix dv = heads_of(pass, &v, want->dx, 3 * d, 2 * d);
        struct mfl_cuda_matrix ds = weights_of(&v, v.op.scores);
        cudaStream_t stream = pass->net->main.stream;
        cudaError_t r = mfl_cuda_attention_drop(&v.op, stream);
        if (!r)
                r = multiply(pass, &v, mfl_cuda_turned(weights_of(&v, met_values(&v))), dy, dv, 1.0f,
                        want->add, v.size, t);
        if (!r)
                r = multiply(pass, &v, dy, mfl_cuda_turned(values), ds, 1.0f, false, t, v.size);
        if (!r)
                r = mfl_cuda_attention_scores(&v.op, stream);
        if (!r)
                r = multiply(pass, &v, ds, k, dq, v.scale, want->add, v.size, t);
        return r ? r : multiply(pass, &v, mfl_cuda_turned(ds), q, dk, v.scale, want->add, v.size, t);
}

cudaError_t mfl_cuda_attention_layer_forward(const struct mfl_cuda_run *pass, int i)
{
        if (mfl_cuda_attention_keeps_weights(&pass->net->model.graph->layers[i]))
                return products_forward(pass, i);
        struct mfl_cuda_flash a = flash_of(pass, i);
        return mfl_cuda_flash_forward(&a, pass->net->main.stream);
}

cudaError_t mfl_cuda_attention_layer_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        if (want.dx2 && !want.add2) { /* a mask has no gradient */
                cudaError_t r = mfl_cuda_clear_grad(pass, pass->net->model.graph->layers[i].input2);
                if (r != cudaSuccess)
                        return r;
        }
        if (!want.dx)
                return cudaSuccess;
        if (mfl_cuda_attention_keeps_weights(&pass->net->model.graph->layers[i]))
                return products_backward(pass, i, &want);
        struct mfl_cuda_flash a = flash_of(pass, i);
        a.dout = mfl_cuda_grad_at(pass->net, i);
        a.din = want.dx;
        a.add = want.add;
        return mfl_cuda_flash_backward(&a, pass->net->main.stream);
}
