/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of LoRA, y += alpha / rank * B (A x): products of strided matrices (ops_sequence.h) besides those
 * of a dense layer. */
#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/cuda/net/run.h"

/* A plain matrix of a group: rows of `row` elements; groups are `group` elements apart. */
static struct mfl_cuda_matrix plain(void *p, int64_t group, int64_t row, enum mfl_cuda_type type)
{
        return (struct mfl_cuda_matrix){.p = p, .group = group, .row = row, .column = 1, .type = type};
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
        struct lora v = {.in = (int)mfl_graph_features(model->graph, i),
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
        cudaError_t r =
                lora_product(pass, v.x, mfl_cuda_turned(v.a), v.low, (int[]){v.n, v.rank, v.in}, 1.0f, false);
        return r ? r
                 : lora_product(
                           pass, v.low, mfl_cuda_turned(v.b), y, (int[]){v.n, v.out, v.rank}, v.scale, true);
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
                r = lora_product(pass, mfl_cuda_turned(v.dlow), v.x, plain(v.da, stride, v.in, MFL_CUDA_F32),
                        (int[]){v.rank, v.in, v.n}, 1.0f, false);
        if (!r && v.db)
                r = lora_product(pass, mfl_cuda_turned(dy), v.low, plain(v.db, stride, v.rank, MFL_CUDA_F32),
                        (int[]){v.out, v.rank, v.n}, v.scale, false);
        /* After the gradient through W, which is already written. */
        return r || !want.dx ? r
                             : lora_product(pass, v.dlow, v.a, dx, (int[]){v.n, v.in, v.rank}, 1.0f, true);
}
