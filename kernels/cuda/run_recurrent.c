/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of attention and LoRA: layers made of products of strided matrices (ops_sequence.h) and of what is
 * between them. */
#include "kernels/cuda/ops_sequence.h"
#include "kernels/cuda/run.h"

static void *element_at(const struct mfl_cuda_run *pass, const void *p, int64_t e)
{
        return (char *)(uintptr_t)p + e * mfl_cuda_type_bytes(pass->net->model.type);
}

/* A plain matrix of a group: rows of `row` elements, `group` from one group's to the next's. */
static struct mfl_cuda_matrix plain(void *p, int64_t group, int64_t row, enum mfl_cuda_type type)
{
        return (struct mfl_cuda_matrix){.p = p, .group = group, .row = row, .column = 1, .type = type};
}

static struct mfl_cuda_matrix turned(struct mfl_cuda_matrix x)
{
        int64_t row = x.row;
        x.row = x.column;
        x.column = row;
        return x;
}

static struct mfl_cuda_matmul product(const struct mfl_cuda_run *pass, int m, int n, int k)
{
        return (struct mfl_cuda_matmul){.groups = pass->net->model.options.groups,
                .outer = 1,
                .inner = 1,
                .m = m,
                .n = n,
                .k = k,
                .alpha = 1.0f,
                .steps = pass->steps};
}

/* ---- attention ---- */

struct attention {
        struct mfl_cuda_attention op;
        int64_t width;
        int size; /* of a head */
        float scale;
};

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
        struct mfl_cuda_matmul op = product(pass, v->op.positions, n, k);
        op.outer = v->op.batch;
        op.inner = v->op.heads;
        op.a = a;
        op.b = b;
        op.c = c;
        op.alpha = alpha;
        op.add = add;
        return mfl_cuda_matmul(&op, pass->net->main.stream);
}

static float *met_values(const struct attention *v)
{
        return v->op.training && v->op.rate > 0.0f ? v->op.dropped : v->op.weights;
}

static cudaError_t attention_forward(const struct mfl_cuda_run *pass, int i)
{
        struct attention v = attention_of(pass, i);
        const void *x = mfl_cuda_act_at(pass->net, pass->net->model.graph->layers[i].input);
        int64_t d = v.width, t = v.op.positions;
        struct mfl_cuda_matrix q = heads_of(pass, &v, x, 3 * d, 0), k = heads_of(pass, &v, x, 3 * d, d);
        struct mfl_cuda_matrix values = heads_of(pass, &v, x, 3 * d, 2 * d);
        struct mfl_cuda_matrix y = heads_of(pass, &v, mfl_cuda_act_at(pass->net, i), d, 0);
        cudaError_t r = multiply(
                pass, &v, q, turned(k), weights_of(&v, v.op.weights), v.scale, false, (int)t, v.size);
        if (r == cudaSuccess)
                r = mfl_cuda_attention_weights(&v.op, pass->net->main.stream);
        return r ? r
                 : multiply(pass, &v, weights_of(&v, met_values(&v)), values, y, 1.0f, false, v.size, (int)t);
}

static cudaError_t attention_backward(
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
        if (!want->dx)
                return cudaSuccess;
        cudaError_t r = mfl_cuda_attention_drop(&v.op, stream);
        if (!r)
                r = multiply(
                        pass, &v, turned(weights_of(&v, met_values(&v))), dy, dv, 1.0f, want->add, v.size, t);
        if (!r)
                r = multiply(pass, &v, dy, turned(values), ds, 1.0f, false, t, v.size);
        if (!r)
                r = mfl_cuda_attention_scores(&v.op, stream);
        if (!r)
                r = multiply(pass, &v, ds, k, dq, v.scale, want->add, v.size, t);
        return r ? r : multiply(pass, &v, turned(ds), q, dk, v.scale, want->add, v.size, t);
}

/* ---- LoRA: y += alpha / rank * B (A x) ---- */

struct lora {
        int n, in, out, rank; /* n: vectors */
        float scale;
        struct mfl_cuda_matrix a, b, x, low, dlow;
        float *da, *db;
};

static struct lora lora_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_model *model = &net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct lora v = {.in = (int)model->graph->params[layer->param_weight].fan_in,
                .out = layer->out_channels,
                .rank = layer->lora_rank,
                .scale = layer->lora_alpha / (float)layer->lora_rank,
                .da = mfl_cuda_param_grad_at(pass, layer->param_weight2),
                .db = mfl_cuda_param_grad_at(pass, layer->param_bias2)};
        v.n = model->options.batch * (int)(mfl_shape_count(&layer->out) / v.out);
        int64_t stride = (int64_t)pass->stride, each = (int64_t)v.n * v.rank;
        float *kept = mfl_cuda_aux_at(net, i);
        v.a = plain(
                (void *)(uintptr_t)mfl_cuda_low_at(pass, layer->param_weight2), stride, v.in, model->type);
        v.b = plain(
                (void *)(uintptr_t)mfl_cuda_low_at(pass, layer->param_bias2), stride, v.rank, model->type);
        v.x = plain(mfl_cuda_act_at(net, layer->input), (int64_t)v.n * v.in, v.in, model->type);
        v.low = plain(kept, each, v.rank, MFL_CUDA_F32);
        v.dlow = plain(kept + each * model->options.groups, each, v.rank, MFL_CUDA_F32);
        return v;
}

static cudaError_t lora_product(const struct mfl_cuda_run *pass, struct mfl_cuda_matrix a,
        struct mfl_cuda_matrix b, struct mfl_cuda_matrix c, const int size[3], float alpha, bool add)
{
        struct mfl_cuda_matmul op = product(pass, size[0], size[1], size[2]);
        op.a = a;
        op.b = b;
        op.c = c;
        op.alpha = alpha;
        op.add = add;
        return mfl_cuda_matmul(&op, pass->net->main.stream);
}

cudaError_t mfl_cuda_lora_forward(const struct mfl_cuda_run *pass, int i)
{
        struct lora v = lora_of(pass, i);
        struct mfl_cuda_matrix y =
                plain(mfl_cuda_act_at(pass->net, i), (int64_t)v.n * v.out, v.out, pass->net->model.type);
        cudaError_t r = lora_product(pass, v.x, turned(v.a), v.low, (int[]){v.n, v.rank, v.in}, 1.0f, false);
        return r ? r : lora_product(pass, v.low, turned(v.b), y, (int[]){v.n, v.out, v.rank}, v.scale, true);
}

cudaError_t mfl_cuda_lora_backward(const struct mfl_cuda_run *pass, int i)
{
        struct lora v = lora_of(pass, i);
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        int64_t stride = (int64_t)pass->net->model.stride;
        struct mfl_cuda_matrix dx = v.x, dy = plain(mfl_cuda_grad_at(pass->net, i), (int64_t)v.n * v.out,
                                                 v.out, pass->net->model.type);
        dx.p = want.dx;
        cudaError_t r = lora_product(pass, dy, v.b, v.dlow, (int[]){v.n, v.rank, v.out}, v.scale, false);
        if (!r && v.da)
                r = lora_product(pass, turned(v.dlow), v.x, plain(v.da, stride, v.in, MFL_CUDA_F32),
                        (int[]){v.rank, v.in, v.n}, 1.0f, false);
        if (!r && v.db)
                r = lora_product(pass, turned(dy), v.low, plain(v.db, stride, v.rank, MFL_CUDA_F32),
                        (int[]){v.out, v.rank, v.n}, v.scale, false);
        /* Behind the gradient through W, which was written before. */
        return r || !want.dx ? r
                             : lora_product(pass, v.dlow, v.a, dx, (int[]){v.n, v.in, v.rank}, 1.0f, true);
}

cudaError_t mfl_cuda_recurrent_layer_forward(const struct mfl_cuda_run *pass, int i)
{
        return attention_forward(pass, i);
}

cudaError_t mfl_cuda_recurrent_layer_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        return attention_backward(pass, i, &want);
}
