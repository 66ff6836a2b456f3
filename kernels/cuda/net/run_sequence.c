/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of layers of sequences (ops_sequence.h). */
#include "kernels/cuda/ops/ops_sequence.h"
#include "kernels/cuda/ops/ops_shape.h"
#include "kernels/cuda/net/run.h"

static struct mfl_cuda_rownorm rownorm_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_rownorm a = {.groups = model->options.groups,
                .width = (int)layer->out.dim[layer->out.rank - 1],
                .type = model->type,
                .centred = layer->op == MFL_OP_LAYERNORM,
                .eps = layer->eps,
                .weight = mfl_cuda_param_at(pass, layer->param_weight),
                .bias = mfl_cuda_param_at(pass, layer->param_bias),
                .stride = pass->stride,
                .in = mfl_cuda_act_at(pass->net, layer->input),
                .out = mfl_cuda_act_at(pass->net, i),
                .kept = model->options.training ? mfl_cuda_aux_at(pass->net, i) : NULL,
                .workspace = mfl_cuda_at(pass->net, MFL_CUDA_WORKSPACE),
                .steps = pass->steps};
        a.vectors = model->options.batch * (int)(mfl_shape_count(&layer->out) / a.width);
        return a;
}

/* In an image, a vector is a row of a channel. */
static struct mfl_cuda_softmax softmax_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        int width = (int)layer->out.dim[layer->out.rank - 1];
        int64_t count = mfl_shape_count(&layer->out);
        struct mfl_cuda_softmax a = {.groups = model->options.groups,
                .vectors = model->options.batch * (int)(count / width),
                .width = width,
                .inner = 1,
                .step = 1,
                .group_step = count * model->options.batch,
                .type = model->type,
                .in = mfl_cuda_act_at(pass->net, layer->input),
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
        if (layer->out.rank == 3)
                a.inner = a.step = (int)layer->out.dim[0];
        a.outer_step = (int64_t)width * a.inner;
        return a;
}

static struct mfl_cuda_embedding embedding_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        return (struct mfl_cuda_embedding){.groups = model->options.groups,
                .batch = model->options.batch,
                .positions = (int)layer->out.dim[0],
                .width = layer->out_channels,
                .vocabulary = layer->vocabulary,
                .type = model->type,
                .padding = layer->has_padding ? layer->padding_idx : -1,
                .token_type = model->layers[layer->input].x.type,
                .tokens = mfl_cuda_act_at(pass->net, layer->input),
                .weight = mfl_cuda_low_at(pass, layer->param_weight),
                .stride = pass->stride,
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
}

static cudaError_t mask_forward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_mask a = {.groups = model->options.groups,
                .batch = model->options.batch,
                .positions = (int)layer->out.dim[0],
                .padding = layer->padding_idx,
                .type = model->type,
                .token_type = model->layers[layer->input].x.type,
                .tokens = mfl_cuda_act_at(pass->net, layer->input),
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
        return mfl_cuda_mask(&a, pass->net->main.stream);
}

/* Layer i's samples as matrices, one for each index of an image's channels, which are innermost. */
static struct mfl_cuda_matrix matrix_of(const struct mfl_cuda_model *model, int i, void *p)
{
        const struct mfl_shape *shape = &model->graph->layers[i].out;
        int64_t inner = shape->rank == 3 ? shape->dim[0] : 1, count = mfl_shape_count(shape);
        return (struct mfl_cuda_matrix){.p = p,
                .group = count * model->options.batch,
                .outer = count,
                .inner = 1,
                .row = shape->dim[shape->rank - 1] * inner,
                .column = inner,
                .type = model->type};
}

static struct mfl_cuda_matmul matmul_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        const struct mfl_shape *in = &model->graph->layers[layer->input].out, *out = &layer->out;
        struct mfl_cuda_matmul v = {.precision = model->options.precision,
                .groups = model->options.groups,
                .outer = model->options.batch,
                .inner = out->rank == 3 ? (int)out->dim[0] : 1,
                .m = (int)out->dim[out->rank - 2],
                .n = (int)out->dim[out->rank - 1],
                .k = (int)in->dim[in->rank - 1],
                .a = matrix_of(model, layer->input, mfl_cuda_act_at(pass->net, layer->input)),
                .b = matrix_of(model, layer->input2, mfl_cuda_act_at(pass->net, layer->input2)),
                .c = matrix_of(model, i, mfl_cuda_act_at(pass->net, i)),
                .alpha = 1.0f,
                .steps = pass->steps};
        if (layer->transposed)
                v.b = mfl_cuda_turned(v.b);
        return v;
}

/* dx = dy x2', dx2 = x' dy. */
static cudaError_t matmul_backward(const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        struct mfl_cuda_matmul v = matmul_of(pass, i), d = v;
        struct mfl_cuda_matrix dy = v.c;
        cudaError_t r = cudaSuccess;
        dy.p = mfl_cuda_grad_at(pass->net, i);
        d.a = dy;
        d.b = mfl_cuda_turned(v.b);
        d.c = v.a;
        d.c.p = want->dx;
        d.n = v.k;
        d.k = v.n;
        d.add = want->add;
        if (want->dx)
                r = mfl_cuda_matmul(&d, pass->net->main.stream);
        d = v;
        d.a = mfl_cuda_turned(v.a);
        d.b = dy;
        d.c = v.b;
        d.c.p = want->dx2;
        d.m = v.k;
        d.k = v.m;
        d.add = want->add2;
        return r == cudaSuccess && want->dx2 ? mfl_cuda_matmul(&d, pass->net->main.stream) : r;
}

cudaError_t mfl_cuda_sequence_forward(const struct mfl_cuda_run *pass, int i)
{
        cudaStream_t stream = pass->net->main.stream;
        struct mfl_cuda_rownorm norm;
        struct mfl_cuda_softmax softmax;
        struct mfl_cuda_embedding embedding;
        struct mfl_cuda_matmul matmul;
        switch (pass->net->model.graph->layers[i].op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                norm = rownorm_of(pass, i);
                return mfl_cuda_rownorm_forward(&norm, stream);
        case MFL_OP_SOFTMAX:
                softmax = softmax_of(pass, i);
                return mfl_cuda_softmax_forward(&softmax, stream);
        case MFL_OP_EMBEDDING:
                embedding = embedding_of(pass, i);
                return mfl_cuda_embedding_forward(&embedding, stream);
        case MFL_OP_PADDING_MASK:
                return mask_forward(pass, i);
        case MFL_OP_ATTENTION:
                return mfl_cuda_attention_layer_forward(pass, i);
        default:
                matmul = matmul_of(pass, i);
                return mfl_cuda_matmul(&matmul, stream);
        }
}

static cudaError_t rownorm_backward(
        const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        struct mfl_cuda_rownorm a = rownorm_of(pass, i);
        a.dout = mfl_cuda_grad_at(pass->net, i);
        a.din = want->dx;
        a.add = want->add;
        a.dweight = mfl_cuda_param_grad_at(pass, layer->param_weight);
        a.dbias = mfl_cuda_param_grad_at(pass, layer->param_bias);
        a.stride = pass->net->model.stride;
        return mfl_cuda_rownorm_backward(&a, pass->net->main.stream);
}

/* Tokens have no gradient: a reader gets zeros. */
static cudaError_t embedding_backward(
        const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        struct mfl_cuda_embedding a = embedding_of(pass, i);
        a.dout = mfl_cuda_grad_at(pass->net, i);
        a.dweight = mfl_cuda_param_grad_at(pass, layer->param_weight);
        a.links = mfl_cuda_aux_at(pass->net, i);
        a.stride = pass->net->model.stride;
        cudaError_t r = a.dweight ? mfl_cuda_embedding_backward(&a, pass->net->main.stream) : cudaSuccess;
        return r == cudaSuccess && want->dx && !want->add ? mfl_cuda_clear_grad(pass, layer->input) : r;
}

cudaError_t mfl_cuda_sequence_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        struct mfl_cuda_softmax softmax;
        switch (pass->net->model.graph->layers[i].op) {
        case MFL_OP_LAYERNORM:
        case MFL_OP_RMSNORM:
                return rownorm_backward(pass, i, &want);
        case MFL_OP_SOFTMAX:
                softmax = softmax_of(pass, i);
                softmax.dout = mfl_cuda_grad_at(pass->net, i);
                softmax.din = want.dx;
                softmax.add = want.add;
                return want.dx ? mfl_cuda_softmax_backward(&softmax, pass->net->main.stream) : cudaSuccess;
        case MFL_OP_EMBEDDING:
                return embedding_backward(pass, i, &want);
        case MFL_OP_PADDING_MASK:
                return want.dx && !want.add
                               ? mfl_cuda_clear_grad(pass, pass->net->model.graph->layers[i].input)
                               : cudaSuccess;
        case MFL_OP_ATTENTION:
                return mfl_cuda_attention_layer_backward(pass, i);
        default:
                return matmul_backward(pass, i, &want);
        }
}
