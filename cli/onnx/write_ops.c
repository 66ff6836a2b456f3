/* SPDX-License-Identifier: Apache-2.0 */
/* Each layer as ONNX nodes of opset 17, for inference. */
#include <math.h>

#include "cli/onnx/write.h"

#define NODE(w, op, output, ...)                                                                             \
        onnx_writer_node(w, op, output, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),       \
                (const char *[]){__VA_ARGS__})

static const char *whole(struct onnx_writer *w, const char *what, int64_t v)
{
        return onnx_writer_whole(w, what, &v, 1);
}

/* {batch, shape} */
static const char *reshape(
        struct onnx_writer *w, const char *in, const char *output, const struct mfl_shape *shape)
{
        int64_t dims[MFL_SHAPE_RANK_MAX + 1] = {-1};
        memcpy(dims + 1, shape->dim, sizeof shape->dim);
        return NODE(w, "Reshape", output, in, onnx_writer_whole(w, "shape", dims, shape->rank + 1));
}

static void two(struct onnx_writer *w, const char *name, const int *v)
{
        onnx_writer_ints(w, name, (const int64_t[]){v[0], v[1]}, 2);
}

static void window(struct onnx_writer *w, const struct mfl_layer *l)
{
        two(w, "kernel_shape", l->kernel);
        two(w, "strides", l->stride);
        onnx_writer_ints(
                w, "pads", (const int64_t[]){l->padding[0], l->padding[1], l->padding[0], l->padding[1]}, 4);
        if (l->op != MFL_OP_AVGPOOL2D)
                two(w, "dilations", l->dilation);
}

static void write_conv(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *weight = onnx_writer_param(w, l->param_weight);
        const char *bias = l->bias ? onnx_writer_param(w, l->param_bias) : NULL;
        const char *inputs[] = {in, weight, bias};
        onnx_writer_node(w, l->op == MFL_OP_CONV2D ? "Conv" : "ConvTranspose", out, bias ? 3 : 2, inputs);
        window(w, l);
        onnx_writer_int(w, "group", l->conv_groups);
        if (l->op == MFL_OP_CONVTRANSPOSE2D)
                two(w, "output_padding", l->output_padding);
}

/* LoRA's adapters are added to the weights that they adapt: the same function. */
static const char *dense_weight(struct onnx_writer *w, const struct mfl_layer *l)
{
        const struct mfl_param *p = &w->graph->params[l->param_weight];
        if (!l->lora_rank)
                return onnx_writer_param(w, l->param_weight);
        const float *weight = w->params + p->offset,
                    *a = w->params + w->graph->params[l->param_weight2].offset,
                    *b = w->params + w->graph->params[l->param_bias2].offset;
        int64_t out = p->shape.dim[0], in = p->shape.dim[1];
        float *sum = onnx_writer_alloc(w, (size_t)p->count, sizeof *sum);
        for (int64_t i = 0; sum && i < out * in; i++) {
                double add = 0;
                for (int r = 0; r < l->lora_rank; r++)
                        add += (double)b[i / in * l->lora_rank + r] * (double)a[r * in + i % in];
                sum[i] = (float)((double)weight[i] + (double)l->lora_alpha / l->lora_rank * add);
        }
        return sum ? onnx_writer_tensor(w, p->name, p->shape.dim, 2, sum, p->count) : NULL;
}

static void write_dense(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const struct mfl_shape *shape = &w->graph->layers[l->input].out;
        const char *weight = dense_weight(w, l), *bias = l->bias ? onnx_writer_param(w, l->param_bias) : NULL;
        if (shape->rank == 2) {
                const char *turned = NODE(w, "Transpose", onnx_writer_name(w, "weight"), weight);
                onnx_writer_ints(w, "perm", (const int64_t[]){1, 0}, 2);
                const char *product =
                        NODE(w, "MatMul", bias ? onnx_writer_name(w, "product") : out, in, turned);
                if (bias)
                        NODE(w, "Add", out, product, bias);
                return;
        }
        if (shape->rank == 3) {
                in = NODE(w, "Flatten", onnx_writer_name(w, "flat"), in);
                onnx_writer_int(w, "axis", 1);
        }
        const char *inputs[] = {in, weight, bias};
        onnx_writer_node(w, "Gemm", out, bias ? 3 : 2, inputs);
        onnx_writer_int(w, "transB", 1);
}

static int write_pool(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out,
        struct mfl_error *err)
{
        bool average = l->op == MFL_OP_AVGPOOL2D;
        if (average && (l->dilation[0] > 1 || l->dilation[1] > 1))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (avgpool2d): ONNX has no dilated average before opset 19", l->name);
        NODE(w, average ? "AveragePool" : "MaxPool", out, in);
        window(w, l);
        if (average)
                onnx_writer_int(w, "count_include_pad", 1);
        if (l->ceil_mode)
                onnx_writer_int(w, "ceil_mode", 1);
        return 0;
}

/* https://pytorch.org/docs/stable/generated/torch.nn.GELU.html */
static void write_gelu(struct onnx_writer *w, const struct mfl_layer *l, const char *x, const char *out)
{
        const char *one = onnx_writer_scalar(w, "one", 1), *half = onnx_writer_scalar(w, "half", 0.5f),
                   *inner;
        if (l->approximate) {
                const char *square = NODE(w, "Mul", onnx_writer_name(w, "square"), x, x);
                const char *cube = NODE(w, "Mul", onnx_writer_name(w, "cube"), x, square);
                const char *term = NODE(w, "Mul", onnx_writer_name(w, "term"), cube,
                        onnx_writer_scalar(w, "factor", 0.044715f));
                const char *sum = NODE(w, "Add", onnx_writer_name(w, "sum"), x, term);
                const char *scaled = NODE(w, "Mul", onnx_writer_name(w, "scaled"), sum,
                        onnx_writer_scalar(w, "root", 0.79788456f));
                inner = NODE(w, "Tanh", onnx_writer_name(w, "inner"), scaled);
        } else {
                const char *scaled = NODE(w, "Div", onnx_writer_name(w, "scaled"), x,
                        onnx_writer_scalar(w, "root", 1.41421356f));
                inner = NODE(w, "Erf", onnx_writer_name(w, "inner"), scaled);
        }
        const char *more = NODE(w, "Add", onnx_writer_name(w, "more"), inner, one);
        const char *twice = NODE(w, "Mul", onnx_writer_name(w, "twice"), x, more);
        NODE(w, "Mul", out, twice, half);
}

static void write_batchnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *weight = onnx_writer_param(w, l->param_weight),
                   *bias = onnx_writer_param(w, l->param_bias), *mean = onnx_writer_param(w, l->param_mean),
                   *var = onnx_writer_param(w, l->param_var);
        NODE(w, "BatchNormalization", out, in, weight, bias, mean, var);
        onnx_writer_float(w, "epsilon", l->eps);
        onnx_writer_float(w, "momentum", 1 - l->momentum);
}

/* InstanceNormalization over each group as one channel, then scale and shift of the channels. */
static void write_groupnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int64_t groups = l->norm_groups, channels = l->out.dim[0];
        int64_t dims[] = {0, groups, -1}, column[] = {channels, 1, 1};
        const char *scale = onnx_writer_repeated(w, "ones", 1, groups),
                   *shift = onnx_writer_repeated(w, "zeros", 0, groups);
        const char *split = NODE(
                w, "Reshape", onnx_writer_name(w, "groups"), in, onnx_writer_whole(w, "to_groups", dims, 3));
        const char *normed =
                NODE(w, "InstanceNormalization", onnx_writer_name(w, "normed"), split, scale, shift);
        onnx_writer_float(w, "epsilon", l->eps);
        const char *back = reshape(w, normed, onnx_writer_name(w, "back"), &l->out);
        int n = l->out.rank == 3 ? 3 : 1;
        const char *weight = onnx_writer_shaped(w, l->param_weight, column, n);
        const char *bias = onnx_writer_shaped(w, l->param_bias, column, n);
        NODE(w, "Add", out, NODE(w, "Mul", onnx_writer_name(w, "scaled"), back, weight), bias);
}

static void write_layernorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *inputs[] = {in, onnx_writer_param(w, l->param_weight),
                l->bias ? onnx_writer_param(w, l->param_bias) : NULL};
        onnx_writer_node(w, "LayerNormalization", out, l->bias ? 3 : 2, inputs);
        onnx_writer_int(w, "axis", -1);
        onnx_writer_float(w, "epsilon", l->eps);
}

static void write_rmsnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *square =
                NODE(w, "Pow", onnx_writer_name(w, "square"), in, onnx_writer_scalar(w, "two", 2));
        const char *mean = NODE(w, "ReduceMean", onnx_writer_name(w, "mean"), square);
        onnx_writer_ints(w, "axes", (const int64_t[]){-1}, 1);
        const char *sum =
                NODE(w, "Add", onnx_writer_name(w, "sum"), mean, onnx_writer_scalar(w, "eps", l->eps));
        const char *root = NODE(w, "Sqrt", onnx_writer_name(w, "root"), sum);
        const char *normed = NODE(w, "Div", onnx_writer_name(w, "normed"), in, root);
        NODE(w, "Mul", out, normed, onnx_writer_param(w, l->param_weight));
}

static const char *part_of_heads(struct onnx_writer *w, const char *all, const char *what, int64_t which)
{
        char index[32];
        mfl_snprintf(index, sizeof index, "%s_index", what);
        const char *v =
                NODE(w, "Gather", onnx_writer_name(w, what), all, onnx_writer_whole(w, index, &which, -1));
        onnx_writer_int(w, "axis", 0);
        return v;
}

static const char *causal_mask(struct onnx_writer *w, int64_t t)
{
        const char *ones = NODE(w, "ConstantOfShape", onnx_writer_name(w, "full"),
                onnx_writer_whole(w, "positions", (const int64_t[]){t, t}, 2));
        const char *sum =
                NODE(w, "Add", onnx_writer_name(w, "hidden"), ones, onnx_writer_scalar(w, "far", -INFINITY));
        int64_t one = 1;
        const char *mask =
                NODE(w, "Trilu", onnx_writer_name(w, "mask"), sum, onnx_writer_whole(w, "above", &one, -1));
        onnx_writer_int(w, "upper", 1);
        return mask;
}

static void write_attention(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int64_t t = l->out.dim[0], d = l->out.dim[1] / l->heads, dims[] = {-1, t, 3, l->heads, d};
        const char *split =
                NODE(w, "Reshape", onnx_writer_name(w, "split"), in, onnx_writer_whole(w, "heads", dims, 5));
        const char *all = NODE(w, "Transpose", onnx_writer_name(w, "qkv"), split);
        onnx_writer_ints(w, "perm", (const int64_t[]){2, 0, 3, 1, 4}, 5);
        const char *q = part_of_heads(w, all, "q", 0), *k = part_of_heads(w, all, "k", 1),
                   *v = part_of_heads(w, all, "v", 2);
        const char *kt = NODE(w, "Transpose", onnx_writer_name(w, "kt"), k);
        onnx_writer_ints(w, "perm", (const int64_t[]){0, 1, 3, 2}, 4);
        const char *product = NODE(w, "MatMul", onnx_writer_name(w, "product"), q, kt);
        const char *scores = NODE(w, "Mul", onnx_writer_name(w, "scores"), product,
                onnx_writer_scalar(w, "scale", (float)(1 / sqrt((double)d))));
        if (l->causal)
                scores = NODE(w, "Add", onnx_writer_name(w, "masked"), scores, causal_mask(w, t));
        const char *weights = NODE(w, "Softmax", onnx_writer_name(w, "weights"), scores);
        onnx_writer_int(w, "axis", -1);
        if (l->rate > 0)
                weights = NODE(w, "Dropout", onnx_writer_name(w, "kept"), weights,
                        onnx_writer_scalar(w, "rate", l->rate));
        const char *mixed = NODE(w, "MatMul", onnx_writer_name(w, "mixed"), weights, v);
        const char *rows = NODE(w, "Transpose", onnx_writer_name(w, "rows"), mixed);
        onnx_writer_ints(w, "perm", (const int64_t[]){0, 2, 1, 3}, 4);
        reshape(w, rows, out, &l->out);
}

/* PyTorch's gates i, f, g, o and r, z, n in ONNX's order: i, o, f, c and z, r, h. */
static const char *gates(struct onnx_writer *w, int param, const char *what, bool lstm)
{
        static const int order_lstm[] = {0, 3, 1, 2}, order_gru[] = {1, 0, 2};
        const char *piece[4], *moved[4];
        int n = lstm ? 4 : 3;
        char text[48];
        for (int g = 0; g < n; g++) {
                mfl_snprintf(text, sizeof text, "%s_%d", what, g);
                piece[g] = onnx_writer_name(w, text);
        }
        NODE(w, "Split", piece[0], onnx_writer_param(w, param));
        onnx_writer_int(w, "axis", 0);
        for (int g = 1; g < n; g++)
                onnx_writer_output(w, piece[g]);
        for (int g = 0; g < n; g++)
                moved[g] = piece[lstm ? order_lstm[g] : order_gru[g]];
        mfl_snprintf(text, sizeof text, "%s_moved", what);
        const char *joined = onnx_writer_node(w, "Concat", onnx_writer_name(w, text), n, moved);
        onnx_writer_int(w, "axis", 0);
        return joined;
}

static void write_recurrent(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        bool lstm = l->op == MFL_OP_LSTM;
        const char *turned = NODE(w, "Transpose", onnx_writer_name(w, "turned"), in);
        onnx_writer_ints(w, "perm", (const int64_t[]){1, 0, 2}, 3);
        const char *zero = whole(w, "zero", 0);
        const char *wi =
                NODE(w, "Unsqueeze", onnx_writer_name(w, "W"), gates(w, l->param_weight, "ih", lstm), zero);
        const char *wh =
                NODE(w, "Unsqueeze", onnx_writer_name(w, "R"), gates(w, l->param_weight2, "hh", lstm), zero);
        const char *inputs[] = {turned, wi, wh, NULL};
        if (l->bias) {
                const char *bi = gates(w, l->param_bias, "bih", lstm),
                           *bh = gates(w, l->param_bias2, "bhh", lstm);
                const char *both = NODE(w, "Concat", onnx_writer_name(w, "biases"), bi, bh);
                onnx_writer_int(w, "axis", 0);
                inputs[3] = NODE(w, "Unsqueeze", onnx_writer_name(w, "B"), both, zero);
        }
        const char *y = onnx_writer_node(
                w, lstm ? "LSTM" : "GRU", onnx_writer_name(w, "all"), l->bias ? 4 : 3, inputs);
        onnx_writer_int(w, "hidden_size", l->out_channels);
        if (!lstm)
                onnx_writer_int(w, "linear_before_reset", 1);
        const char *one = NODE(w, "Squeeze", onnx_writer_name(w, "one"), y, whole(w, "directions", 1));
        NODE(w, "Transpose", out, one);
        onnx_writer_ints(w, "perm", (const int64_t[]){1, 0, 2}, 3);
}

/* A weight has no batch; where none comes in by broadcasting it is repeated. */
static const char *with_batch(struct onnx_writer *w, int layer, const char *what)
{
        const struct mfl_layer *l = &w->graph->layers[layer];
        char text[48];
        if (l->op != MFL_OP_WEIGHT)
                return w->names[layer];
        const char *names[3];
        static const char *const steps[] = {"shape", "batch", "to", "all"};
        for (int i = 0; i < 3; i++) {
                mfl_snprintf(text, sizeof text, "%s_%s", what, steps[i]);
                names[i] = onnx_writer_name(w, text);
        }
        NODE(w, "Shape", names[0], "input");
        onnx_writer_int(w, "start", 0);
        onnx_writer_int(w, "end", 1);
        mfl_snprintf(text, sizeof text, "%s_rest", what);
        const char *rest = onnx_writer_whole(w, text, l->out.dim, l->out.rank);
        NODE(w, "Concat", names[2], names[0], rest);
        onnx_writer_int(w, "axis", 0);
        mfl_snprintf(text, sizeof text, "%s_all", what);
        return NODE(w, "Expand", onnx_writer_name(w, text), w->names[layer], names[2]);
}

static void write_join(struct onnx_writer *w, const struct mfl_layer *l, const char *out)
{
        const char *a = w->names[l->input], *b = w->names[l->input2];
        if (l->op == MFL_OP_ADD || l->op == MFL_OP_MULTIPLY) {
                NODE(w, l->op == MFL_OP_ADD ? "Add" : "Mul", out, with_batch(w, l->input, "first"), b);
                return;
        }
        a = with_batch(w, l->input, "first");
        b = with_batch(w, l->input2, "second");
        if (l->op == MFL_OP_CONCAT) {
                NODE(w, "Concat", out, a, b);
                onnx_writer_int(w, "axis", l->axis + 1);
                return;
        }
        if (l->transposed) {
                int rank = w->graph->layers[l->input2].out.rank;
                b = NODE(w, "Transpose", onnx_writer_name(w, "turned"), b);
                onnx_writer_ints(w, "perm",
                        rank == 2 ? (const int64_t[]){0, 2, 1} : (const int64_t[]){0, 1, 3, 2}, rank + 1);
        }
        NODE(w, "MatMul", out, a, b);
}

static void write_moved(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int64_t perm[MFL_SHAPE_RANK_MAX + 1] = {0};
        switch (l->op) {
        case MFL_OP_FLATTEN:
                NODE(w, "Flatten", out, in);
                onnx_writer_int(w, "axis", 1);
                break;
        case MFL_OP_RESHAPE:
                reshape(w, in, out, &l->out);
                break;
        case MFL_OP_TRANSPOSE:
                for (int d = 0; d < l->out.rank; d++)
                        perm[d + 1] = l->order[d] + 1;
                NODE(w, "Transpose", out, in);
                onnx_writer_ints(w, "perm", perm, l->out.rank + 1);
                break;
        case MFL_OP_SLICE:
                NODE(w, "Slice", out, in, whole(w, "start", l->start), whole(w, "end", l->end),
                        whole(w, "axis", l->axis + 1));
                break;
        default:
                NODE(w, "ReduceMean", out, in);
                onnx_writer_ints(w, "axes", (const int64_t[]){l->axis + 1}, 1);
                onnx_writer_int(w, "keepdims", 0);
                break;
        }
}

static void write_unary(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        switch (l->op) {
        case MFL_OP_RELU:
                NODE(w, "Relu", out, in);
                break;
        case MFL_OP_TANH:
                NODE(w, "Tanh", out, in);
                break;
        case MFL_OP_SIGMOID:
                NODE(w, "Sigmoid", out, in);
                break;
        case MFL_OP_RELU6:
                NODE(w, "Clip", out, in, onnx_writer_scalar(w, "least", 0), onnx_writer_scalar(w, "most", 6));
                break;
        case MFL_OP_LEAKY_RELU:
        case MFL_OP_ELU:
                NODE(w, l->op == MFL_OP_ELU ? "Elu" : "LeakyRelu", out, in);
                onnx_writer_float(w, "alpha", l->alpha);
                break;
        case MFL_OP_HARDSIGMOID: /* PyTorch's, not ONNX's default */
                NODE(w, "HardSigmoid", out, in);
                onnx_writer_float(w, "alpha", 1.0f / 6.0f);
                onnx_writer_float(w, "beta", 0.5f);
                break;
        case MFL_OP_HARDSWISH:
                NODE(w, "HardSwish", out, in);
                break;
        case MFL_OP_SOFTPLUS:
                NODE(w, "Softplus", out, in);
                break;
        case MFL_OP_SILU:
                NODE(w, "Mul", out, in, NODE(w, "Sigmoid", onnx_writer_name(w, "gate"), in));
                break;
        case MFL_OP_DROPOUT: /* without training_mode it passes everything, and tells the rate */
                NODE(w, "Dropout", out, in, onnx_writer_scalar(w, "rate", l->rate));
                break;
        case MFL_OP_SOFTMAX:
                NODE(w, "Softmax", out, in);
                onnx_writer_int(w, "axis", -1);
                break;
        case MFL_OP_GLOBAL_AVGPOOL2D:
                NODE(w, "GlobalAveragePool", out, in);
                break;
        default:
                NODE(w, "GlobalMaxPool", out, in);
                break;
        }
}

int onnx_write_layer(struct onnx_writer *w, int i, struct mfl_error *err)
{
        const struct mfl_layer *l = &w->graph->layers[i];
        w->at = l->name;
        const char *out = onnx_writer_name(w, ""), *in = l->input < 0 ? NULL : w->names[l->input];
        if (!out)
                return 0;
        mfl_strcpy(w->names[i], sizeof w->names[i], out);
        out = w->names[i];
        switch (l->op) {
        case MFL_OP_CONV2D:
        case MFL_OP_CONVTRANSPOSE2D:
                write_conv(w, l, in, out);
                return 0;
        case MFL_OP_DENSE:
                write_dense(w, l, in, out);
                return 0;
        case MFL_OP_MAXPOOL2D:
        case MFL_OP_AVGPOOL2D:
                return write_pool(w, l, in, out, err);
        case MFL_OP_GELU:
                write_gelu(w, l, in, out);
                return 0;
        case MFL_OP_BATCHNORM:
                write_batchnorm(w, l, in, out);
                return 0;
        case MFL_OP_GROUPNORM:
                write_groupnorm(w, l, in, out);
                return 0;
        case MFL_OP_LAYERNORM:
                write_layernorm(w, l, in, out);
                return 0;
        case MFL_OP_RMSNORM:
                write_rmsnorm(w, l, in, out);
                return 0;
        case MFL_OP_EMBEDDING:
                NODE(w, "Gather", out, onnx_writer_param(w, l->param_weight), in);
                return 0;
        case MFL_OP_WEIGHT:
                NODE(w, "Identity", out, onnx_writer_param(w, l->param_weight));
                return 0;
        case MFL_OP_ATTENTION:
                write_attention(w, l, in, out);
                return 0;
        case MFL_OP_LSTM:
        case MFL_OP_GRU:
                write_recurrent(w, l, in, out);
                return 0;
        case MFL_OP_ADD:
        case MFL_OP_MULTIPLY:
        case MFL_OP_CONCAT:
        case MFL_OP_MATMUL:
                write_join(w, l, out);
                return 0;
        case MFL_OP_FLATTEN:
        case MFL_OP_RESHAPE:
        case MFL_OP_TRANSPOSE:
        case MFL_OP_SLICE:
        case MFL_OP_MEAN:
                write_moved(w, l, in, out);
                return 0;
        default:
                write_unary(w, l, in, out);
                return 0;
        }
}
