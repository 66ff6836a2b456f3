/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of layers that move, join or average tensors (ops_shape.h).
 *
 * They walk over a sample in the order of its memory: height, width, channel for an image; the dimensions in
 * their order for everything else. So a part of an image along any axis is a part of a plain tensor.
 */
#include "kernels/cuda/ops/ops_shape.h"
#include "kernels/cuda/net/run.h"

/* The place of a shape's dimension d in the walk. */
static int walk_index(const struct mfl_shape *shape, int d)
{
        static const int image[] = {2, 0, 1};
        return shape->rank == 3 ? image[d] : 3 - shape->rank + d;
}

static void walk_dims(const struct mfl_shape *shape, int dim[3])
{
        dim[0] = dim[1] = dim[2] = 1;
        for (int d = 0; d < shape->rank; d++)
                dim[walk_index(shape, d)] = (int)shape->dim[d];
}

/* The whole sample of layer i. */
static struct mfl_cuda_side side_of(const struct mfl_cuda_model *model, int i)
{
        const struct mfl_shape *shape = &model->graph->layers[i].out;
        const struct mfl_cuda_tensor *x = &model->layers[i].x;
        struct mfl_cuda_side side = {.count = (int)mfl_shape_count(shape), .pixels = 1, .c = 1};
        int dim[3];
        walk_dims(shape, dim);
        side.stride[2] = 1;
        side.stride[1] = dim[2];
        side.stride[0] = dim[1] * dim[2];
        if (shape->rank != 3) {
                side.pixels = x->h * x->w;
                side.c = x->c;
        }
        return side;
}

static struct mfl_cuda_move move_of(const struct mfl_cuda_run *pass, const void *from, void *to, bool add)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        return (struct mfl_cuda_move){.groups = model->options.groups,
                .batch = model->options.batch,
                .dim = {1, 1, 1},
                .type = model->type,
                .from = from,
                .to = to,
                .add = add,
                .steps = pass->steps};
}

/* The same move in the other direction. */
static cudaError_t turn_and_move(struct mfl_cuda_move *a, bool back, cudaStream_t stream)
{
        if (back) {
                struct mfl_cuda_side side = a->source;
                a->source = a->target;
                a->target = side;
        }
        return mfl_cuda_move(a, stream);
}

/* Copies [start, end) of an axis of layer `whole` into layer `part`'s tensor, or back. */
static cudaError_t move_part(const struct mfl_cuda_run *pass, struct mfl_cuda_move *a, int whole, int part,
        int axis, int start, bool into)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_shape *shape = &model->graph->layers[whole].out;
        a->source = side_of(model, whole);
        a->target = side_of(model, part);
        a->source.first = start * a->source.stride[walk_index(shape, axis)];
        walk_dims(&model->graph->layers[part].out, a->dim);
        return turn_and_move(a, into, pass->net->main.stream);
}

static cudaError_t transpose(const struct mfl_cuda_run *pass, int i, struct mfl_cuda_move *a, bool back)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        const struct mfl_shape *in = &model->graph->layers[layer->input].out;
        a->target = side_of(model, i);
        a->source = side_of(model, layer->input);
        struct mfl_cuda_side whole = a->source;
        walk_dims(&layer->out, a->dim);
        for (int d = 0; d < in->rank; d++)
                a->source.stride[walk_index(&layer->out, d)] = whole.stride[walk_index(in, layer->order[d])];
        return turn_and_move(a, back, pass->net->main.stream);
}

/* The same numbers in another shape: element e of both. */
static cudaError_t reshape(const struct mfl_cuda_run *pass, int i, struct mfl_cuda_move *a, bool back)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_cuda_tensor *in = &model->layers[model->graph->layers[i].input].x,
                                     *out = &model->layers[i].x;
        int count = in->h * in->w * in->c;
        a->dim[2] = count;
        a->source = (struct mfl_cuda_side){
                .count = count, .stride = {0, 0, 1}, .pixels = in->h * in->w, .c = in->c};
        a->target = (struct mfl_cuda_side){
                .count = count, .stride = {0, 0, 1}, .pixels = out->h * out->w, .c = out->c};
        return turn_and_move(a, back, pass->net->main.stream);
}

static struct mfl_cuda_join join_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        struct mfl_cuda_join a = {.groups = model->options.groups,
                .batch = model->options.batch,
                .type = model->type,
                .multiply = layer->op == MFL_OP_MULTIPLY,
                .gate = layer->op == MFL_OP_GATE,
                .x = side_of(model, layer->input),
                .x2 = side_of(model, layer->input2),
                .y = side_of(model, i),
                .in = mfl_cuda_act_at(pass->net, layer->input),
                .in2 = mfl_cuda_act_at(pass->net, layer->input2),
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
        walk_dims(&layer->out, a.dim);
        walk_dims(&model->graph->layers[layer->input2].out, a.dim2);
        for (int d = 0; d < 3; d++)
                if (a.dim2[d] == 1)
                        a.x2.stride[d] = 0;
        return a;
}

/* The result is counted like the input, without the axis. */
static struct mfl_cuda_mean mean_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_cuda_model *model = &pass->net->model;
        const struct mfl_layer *layer = &model->graph->layers[i];
        const struct mfl_shape *in = &model->graph->layers[layer->input].out;
        struct mfl_cuda_mean a = {.groups = model->options.groups,
                .batch = model->options.batch,
                .type = model->type,
                .x = side_of(model, layer->input),
                .y = {.count = (int)mfl_shape_count(&layer->out), .pixels = 1, .c = 1},
                .n = (int)in->dim[layer->axis],
                .in = mfl_cuda_act_at(pass->net, layer->input),
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
        int gone = walk_index(in, layer->axis);
        walk_dims(in, a.dim);
        a.dim[gone] = 1;
        a.step = a.x.stride[gone];
        for (int d = in->rank - 1, stride = 1; d >= 0; d--) {
                if (d == layer->axis)
                        continue;
                a.y.stride[walk_index(in, d)] = stride;
                stride *= (int)in->dim[d];
        }
        return a;
}

static struct mfl_cuda_unary unary_of(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        return (struct mfl_cuda_unary){.x = pass->net->model.layers[i].x,
                .curve = mfl_curve_of(layer),
                .alpha = layer->alpha,
                .beta = layer->beta,
                .in = mfl_cuda_act_at(pass->net, layer->input),
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
}

static cudaError_t weight_forward(const struct mfl_cuda_run *pass, int i)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        struct mfl_cuda_rows_of a = {.x = pass->net->model.layers[i].x,
                .weight = mfl_cuda_param_at(pass, layer->param_weight),
                .stride = pass->stride,
                .out = mfl_cuda_act_at(pass->net, i),
                .steps = pass->steps};
        return mfl_cuda_rows_of(&a, pass->net->main.stream);
}

/* A sum over rows, as for a bias. */
static cudaError_t weight_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        struct mfl_cuda_bias a = {.x = mfl_cuda_row_tensor(&net->model, i),
                .values = mfl_cuda_grad_at(net, i),
                .db = mfl_cuda_param_grad_at(pass, layer->param_weight),
                .stride = net->model.stride,
                .workspace = mfl_cuda_at(net, MFL_CUDA_WORKSPACE),
                .steps = pass->steps};
        return a.db ? mfl_cuda_bias_grad(&a, net->main.stream) : cudaSuccess;
}

cudaError_t mfl_cuda_shape_forward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        cudaStream_t stream = net->main.stream;
        void *y = mfl_cuda_act_at(net, i);
        if (layer->op == MFL_OP_WEIGHT)
                return weight_forward(pass, i);
        if (layer->op == MFL_OP_MAP)
                return mfl_cuda_map_forward(pass, i);
        struct mfl_cuda_move a = move_of(pass, mfl_cuda_act_at(net, layer->input), y, false);
        struct mfl_cuda_unary unary;
        struct mfl_cuda_join join;
        struct mfl_cuda_mean mean;
        cudaError_t r;
        switch (layer->op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
        case MFL_OP_GATE:
                join = join_of(pass, i);
                return mfl_cuda_join_forward(&join, stream);
        case MFL_OP_CONCAT:
                r = move_part(pass, &a, i, layer->input, layer->axis, 0, true);
                a = move_of(pass, mfl_cuda_act_at(net, layer->input2), y, false);
                int first = (int)net->model.graph->layers[layer->input].out.dim[layer->axis];
                return r == cudaSuccess ? move_part(pass, &a, i, layer->input2, layer->axis, first, true) : r;
        case MFL_OP_SLICE:
                return move_part(pass, &a, layer->input, i, layer->axis, layer->start, false);
        case MFL_OP_TRANSPOSE:
                return transpose(pass, i, &a, false);
        case MFL_OP_RESHAPE:
                return reshape(pass, i, &a, false);
        case MFL_OP_MEAN:
                mean = mean_of(pass, i);
                return mfl_cuda_mean_forward(&mean, stream);
        default: /* activations */
                unary = unary_of(pass, i);
                return mfl_cuda_unary_forward(&unary, stream);
        }
}

static cudaError_t join_backward(const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        struct mfl_cuda_join a = join_of(pass, i);
        a.dout = mfl_cuda_grad_at(pass->net, i);
        a.din = want->dx;
        a.din2 = want->dx2;
        a.add = want->add;
        a.add2 = want->add2;
        return mfl_cuda_join_backward(&a, pass->net->main.stream);
}

static cudaError_t concat_backward(const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        int first = (int)pass->net->model.graph->layers[layer->input].out.dim[layer->axis];
        void *dy = mfl_cuda_grad_at(pass->net, i);
        struct mfl_cuda_move a = move_of(pass, dy, want->dx, want->add);
        cudaError_t r = want->dx ? move_part(pass, &a, i, layer->input, layer->axis, 0, false) : cudaSuccess;
        a = move_of(pass, dy, want->dx2, want->add2);
        if (r == cudaSuccess && want->dx2)
                r = move_part(pass, &a, i, layer->input2, layer->axis, first, false);
        return r;
}

/* The first reader fills what a slice left out with zeros. */
static cudaError_t slice_backward(const struct mfl_cuda_run *pass, int i, const struct mfl_cuda_wanted *want)
{
        const struct mfl_layer *layer = &pass->net->model.graph->layers[i];
        cudaError_t r = want->add ? cudaSuccess : mfl_cuda_clear_grad(pass, layer->input);
        struct mfl_cuda_move a = move_of(pass, mfl_cuda_grad_at(pass->net, i), want->dx, want->add);
        return r == cudaSuccess ? move_part(pass, &a, layer->input, i, layer->axis, layer->start, true) : r;
}

cudaError_t mfl_cuda_shape_backward(const struct mfl_cuda_run *pass, int i)
{
        struct mfl_net *net = pass->net;
        const struct mfl_layer *layer = &net->model.graph->layers[i];
        struct mfl_cuda_wanted want = mfl_cuda_wanted_of(pass, i);
        struct mfl_cuda_move a = move_of(pass, mfl_cuda_grad_at(net, i), want.dx, want.add);
        struct mfl_cuda_unary unary;
        struct mfl_cuda_mean mean;
        if (layer->op == MFL_OP_WEIGHT)
                return weight_backward(pass, i);
        if (layer->op == MFL_OP_MAP)
                return mfl_cuda_map_backward(pass, i);
        if (!want.dx && !want.dx2)
                return cudaSuccess;
        switch (layer->op) {
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
        case MFL_OP_GATE:
                return join_backward(pass, i, &want);
        case MFL_OP_CONCAT:
                return concat_backward(pass, i, &want);
        case MFL_OP_SLICE:
                return slice_backward(pass, i, &want);
        case MFL_OP_TRANSPOSE:
                return transpose(pass, i, &a, true);
        case MFL_OP_RESHAPE:
                return reshape(pass, i, &a, true);
        case MFL_OP_MEAN:
                mean = mean_of(pass, i);
                mean.dout = a.from;
                mean.din = want.dx;
                mean.add = want.add;
                return mfl_cuda_mean_backward(&mean, net->main.stream);
        default:
                unary = unary_of(pass, i);
                unary.dout = a.from;
                unary.din = want.dx;
                unary.add = want.add;
                return mfl_cuda_unary_backward(&unary, net->main.stream);
        }
}
