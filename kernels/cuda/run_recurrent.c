/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of LSTM, GRU and LoRA: layers made of products of strided matrices (ops_sequence.h) and
 * of what is between them. A step over positions is one launch after another, all of them in the captured
 * graph. */
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

/* ---- LSTM and GRU ---- */

struct recurrent {
        struct mfl_cuda_recurrent op;
        int features, gates; /* gates: rows of the weights, 4 or 3 times hidden */
        struct mfl_cuda_matrix w_ih, w_hh, x, y, steps_of_gates;
};

static struct recurrent recurrent_of(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_cuda_model *model = &net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        int64_t t = layer->out.dim[0], h = layer->out.dim[1], b = model->options.batch;
        int64_t f = model->graph->layers[layer->input].out.dim[1], g = model->options.groups;
        struct recurrent v = {.op = {.groups = (int)g,
                                      .batch = (int)b,
                                      .positions = (int)t,
                                      .hidden = (int)h,
                                      .lstm = layer->op == MFL_OP_LSTM,
                                      .type = model->type,
                                      .gates = mfl_cuda_aux_at(net, i),
                                      .bias_ih = mfl_cuda_param_at(pass, layer->param_bias),
                                      .bias_hh = mfl_cuda_param_at(pass, layer->param_bias2),
                                      .stride = pass->stride,
                                      .out = mfl_cuda_act_at(net, i),
                                      .dh = mfl_cuda_at(net, MFL_CUDA_WORKSPACE),
                                      .steps = pass->steps},
                .features = (int)f};
        v.op.cell = v.op.gates + g * b * t * 4 * h;
        v.op.dc = v.op.dh ? v.op.dh + g * b * h : NULL;
        v.gates = (int)(v.op.lstm ? 4 * h : 3 * h);
        v.w_ih = plain((void *)(uintptr_t)mfl_cuda_low_at(pass, layer->param_weight), (int64_t)pass->stride,
                f, model->type);
        v.w_hh = plain((void *)(uintptr_t)mfl_cuda_low_at(pass, layer->param_weight2), (int64_t)pass->stride,
                h, model->type);
        v.x = plain(mfl_cuda_act_at(net, layer->input), b * t * f, f, model->type);
        v.y = plain(v.op.out, b * t * h, h, model->type);
        v.steps_of_gates = plain(v.op.gates, b * t * 4 * h, 4 * h, MFL_CUDA_F32);
        return v;
}

/* Gates of all rows at position t, from gate `first` on; outputs likewise. */
static struct mfl_cuda_matrix gates_at(const struct recurrent *v, int t, int64_t first)
{
        struct mfl_cuda_matrix m = v->steps_of_gates;
        m.p = (float *)m.p + t * m.row + first;
        m.row *= v->op.positions;
        return m;
}

static struct mfl_cuda_matrix output_at(const struct mfl_cuda_run *pass, const struct recurrent *v, int t)
{
        struct mfl_cuda_matrix m = v->y;
        m.p = element_at(pass, m.p, t * m.row);
        m.row *= v->op.positions;
        return m;
}

static struct mfl_cuda_matrix rows_from(
        const struct mfl_cuda_run *pass, struct mfl_cuda_matrix m, int64_t row)
{
        m.p = element_at(pass, m.p, row * m.row);
        return m;
}

/* Rows [first, first + n) of weight_hh meet the gates from `at` on: GRU's hidden share of the new gate has a
 * place of its own. */
struct part {
        int first, n, at;
};

static int parts_of(const struct recurrent *v, struct part parts[2])
{
        int h = v->op.hidden;
        parts[0] = (struct part){0, v->op.lstm ? 4 * h : 2 * h, 0};
        parts[1] = (struct part){2 * h, h, 3 * h};
        return v->op.lstm ? 1 : 2;
}

static cudaError_t recurrent_forward(const struct mfl_cuda_run *pass, int i)
{
        struct recurrent v = recurrent_of(pass, i);
        cudaStream_t stream = pass->net->main.stream;
        struct part parts[2];
        int n = parts_of(&v, parts);
        struct mfl_cuda_matmul op = product(pass, v.op.batch * v.op.positions, v.gates, v.features);
        op.a = v.x;
        op.b = turned(v.w_ih);
        op.c = v.steps_of_gates;
        cudaError_t r = mfl_cuda_matmul(&op, stream);
        for (int t = 0; !r && t < v.op.positions; t++) {
                for (int k = 0; !r && t > 0 && k < n; k++) {
                        op = product(pass, v.op.batch, parts[k].n, v.op.hidden);
                        op.a = output_at(pass, &v, t - 1);
                        op.b = turned(rows_from(pass, v.w_hh, parts[k].first));
                        op.c = gates_at(&v, t, parts[k].at);
                        op.add = k == 0;
                        r = mfl_cuda_matmul(&op, stream);
                }
                v.op.position = t;
                if (!r)
                        r = mfl_cuda_recurrent_forward(&v.op, stream);
        }
        return r;
}

/* From the last position to the first: gates become their gradients. */
static cudaError_t recurrent_positions(const struct mfl_cuda_run *pass, int i, struct recurrent *v)
{
        cudaStream_t stream = pass->net->main.stream;
        cudaError_t r = cudaSuccess;
        struct part parts[2];
        int n = parts_of(v, parts);
        v->op.dout = mfl_cuda_grad_at(pass->net, i);
        for (int t = v->op.positions - 1; !r && t >= 0; t--) {
                v->op.position = t;
                r = mfl_cuda_recurrent_backward(&v->op, stream);
                for (int k = 0; !r && t > 0 && k < n; k++) {
                        struct mfl_cuda_matmul op = product(pass, v->op.batch, v->op.hidden, parts[k].n);
                        op.a = gates_at(v, t, parts[k].at);
                        op.b = rows_from(pass, v->w_hh, parts[k].first);
                        op.c = plain(
                                v->op.dh, (int64_t)v->op.batch * v->op.hidden, v->op.hidden, MFL_CUDA_F32);
                        op.add = !v->op.lstm;
                        r = mfl_cuda_matmul(&op, stream);
                }
        }
        return r;
}

/* Gates' gradients times what they met, over rows and positions. */
static cudaError_t recurrent_params(const struct mfl_cuda_run *pass, int i, struct recurrent *v)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        cudaStream_t stream = pass->net->main.stream;
        float *dw_ih = mfl_cuda_param_grad_at(pass, layer->param_weight);
        float *dw_hh = mfl_cuda_param_grad_at(pass, layer->param_weight2);
        int64_t stride = (int64_t)pass->net->model.stride, h = v->op.hidden, t = v->op.positions;
        struct part parts[2];
        int n = parts_of(v, parts);
        if (!dw_ih)
                return cudaSuccess;
        struct mfl_cuda_matmul op = product(pass, v->gates, v->features, v->op.batch * v->op.positions);
        op.a = turned(v->steps_of_gates);
        op.b = v->x;
        op.c = plain(dw_ih, stride, v->features, MFL_CUDA_F32);
        cudaError_t r = mfl_cuda_matmul(&op, stream);
        for (int k = 0; !r && k < n; k++) {
                op = product(pass, parts[k].n, v->op.hidden, v->op.batch * (int)(t - 1));
                op.split = (int)(t - 1);
                op.a = turned(v->steps_of_gates);
                op.a.p = (float *)op.a.p + 4 * h + parts[k].at; /* from position 1 on */
                op.a_outer_k = t * 4 * h;
                op.b = v->y;
                op.b_outer_k = t * h;
                op.c = plain(dw_hh + parts[k].first * h, stride, h, MFL_CUDA_F32);
                r = mfl_cuda_matmul(&op, stream);
        }
        v->op.dbias_ih = mfl_cuda_param_grad_at(pass, layer->param_bias);
        v->op.dbias_hh = mfl_cuda_param_grad_at(pass, layer->param_bias2);
        v->op.stride = (uint64_t)stride;
        return r || !v->op.dbias_ih ? r : mfl_cuda_recurrent_biases(&v->op, stream);
}

static cudaError_t recurrent_backward(
        const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        struct recurrent v = recurrent_of(pass, i);
        cudaError_t r = recurrent_positions(pass, i, &v);
        if (!r && want->dx) {
                struct mfl_cuda_matmul op = product(pass, v.op.batch * v.op.positions, v.features, v.gates);
                op.a = v.steps_of_gates;
                op.b = v.w_ih;
                op.c = v.x;
                op.c.p = want->dx;
                op.add = want->add;
                r = mfl_cuda_matmul(&op, pass->net->main.stream);
        }
        return r ? r : recurrent_params(pass, i, &v);
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
        return recurrent_forward(pass, i);
}

cudaError_t mfl_cuda_recurrent_layer_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        return recurrent_backward(pass, i, &want);
}
