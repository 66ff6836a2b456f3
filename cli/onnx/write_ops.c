/* SPDX-License-Identifier: Apache-2.0 */
/* Writes each layer as ONNX nodes of opset 17, for inference. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/onnx/write.h"
#include "common/model/unary.h"

#define NODE(w, op, output, ...)                                                                             \
        mfl_onnx_writer_node(w, op, output, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),   \
                (const char *[]){__VA_ARGS__})

static const char *whole(struct onnx_writer *w, const char *what, int64_t v)
{
        return mfl_onnx_writer_whole(w, what, &v, 1);
}

/* {batch, shape} */
static const char *reshape(
        struct onnx_writer *w, const char *in, const char *output, const struct mfl_shape *shape)
{
        int64_t dims[MFL_SHAPE_RANK_MAX + 1] = {-1};
        memcpy(dims + 1, shape->dim, sizeof shape->dim);
        return NODE(w, "Reshape", output, in, mfl_onnx_writer_whole(w, "shape", dims, shape->rank + 1));
}

static void two(struct onnx_writer *w, const char *name, const int *v)
{
        mfl_onnx_writer_ints(w, name, (const int64_t[]){v[0], v[1]}, 2);
}

static void window(struct onnx_writer *w, const struct mfl_layer *l)
{
        two(w, "kernel_shape", l->kernel);
        two(w, "strides", l->stride);
        mfl_onnx_writer_ints(
                w, "pads", (const int64_t[]){l->padding[0], l->padding[1], l->padding[0], l->padding[1]}, 4);
        if (l->op != MFL_OP_AVGPOOL2D)
                two(w, "dilations", l->dilation);
}

/* The weight of another layer that has another shape, as a parameter that is a value may, is reshaped. */
static const char *weight_of(struct onnx_writer *w, const struct mfl_layer *l)
{
        const struct mfl_shape *in = &w->graph->layers[l->input].out;
        int64_t n = l->out_channels, groups = l->conv_groups;
        switch (l->op) {
        case MFL_OP_CONV2D:
                return mfl_onnx_writer_shaped(w, l->param_weight,
                        (const int64_t[]){n, in->dim[0] / groups, l->kernel[0], l->kernel[1]}, 4);
        case MFL_OP_CONVTRANSPOSE2D:
                return mfl_onnx_writer_shaped(w, l->param_weight,
                        (const int64_t[]){in->dim[0], n / groups, l->kernel[0], l->kernel[1]}, 4);
        case MFL_OP_DENSE: {
                int64_t features = mfl_graph_features(w->graph, (int)(l - w->graph->layers));
                return mfl_onnx_writer_shaped(w, l->param_weight,
                        l->turned ? (const int64_t[]){features, n} : (const int64_t[]){n, features}, 2);
        }
        case MFL_OP_EMBEDDING:
                return mfl_onnx_writer_shaped(w, l->param_weight, (const int64_t[]){l->vocabulary, n}, 2);
        case MFL_OP_WEIGHT:
                return mfl_onnx_writer_shaped(w, l->param_weight, l->shape.dim, l->shape.rank);
        default: { /* norms */
                int64_t channels = l->op == MFL_OP_BATCHNORM ? l->out.dim[0] : l->out.dim[l->out.rank - 1];
                return mfl_onnx_writer_shaped(w, l->param_weight, &channels, 1);
        }
        }
}

static void write_conv(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *weight = weight_of(w, l);
        const char *bias = l->bias ? mfl_onnx_writer_param(w, l->param_bias) : NULL;
        const char *inputs[] = {in, weight, bias};
        mfl_onnx_writer_node(w, l->op == MFL_OP_CONV2D ? "Conv" : "ConvTranspose", out, bias ? 3 : 2, inputs);
        window(w, l);
        mfl_onnx_writer_int(w, "group", l->conv_groups);
        if (l->op == MFL_OP_CONVTRANSPOSE2D)
                two(w, "output_padding", l->output_padding);
}

/* LoRA's adapters are added to the weights that they adapt, which gives the same function. */
static const char *dense_weight(struct onnx_writer *w, const struct mfl_layer *l)
{
        const struct mfl_param *p = &w->graph->params[l->param_weight];
        if (!l->lora_rank)
                return weight_of(w, l);
        const float *weight = w->params + p->offset,
                    *a = w->params + w->graph->params[l->param_weight2].offset,
                    *b = w->params + w->graph->params[l->param_bias2].offset;
        int64_t in = mfl_graph_features(w->graph, (int)(l - w->graph->layers)), out = l->out_channels;
        char name[MFL_TENSOR_NAME_BYTES]; /* the sum is no shared tensor, even where the weight is */
        mfl_snprintf(name, sizeof name, "%s.weight",
                w->graph->layers[w->graph->params[l->param_weight2].layer].name);
        float *sum = mfl_onnx_writer_alloc(w, (size_t)p->count, sizeof *sum);
        for (int64_t i = 0; sum && i < out * in; i++) {
                double add = 0;
                for (int r = 0; r < l->lora_rank; r++)
                        add += (double)b[i / in * l->lora_rank + r] * (double)a[r * in + i % in];
                float base = weight[l->turned ? i % in * out + i / in : i];
                sum[i] = (float)((double)base + (double)l->lora_alpha / l->lora_rank * add);
        }
        return sum ? mfl_onnx_writer_tensor(w, name, (const int64_t[]){out, in}, 2, sum, p->count) : NULL;
}

static void write_dense(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const struct mfl_shape *shape = &w->graph->layers[l->input].out;
        const char *weight = dense_weight(w, l),
                   *bias = l->bias ? mfl_onnx_writer_param(w, l->param_bias) : NULL;
        bool as_it_is = l->turned && !l->lora_rank; /* the tensor is {inputs, outputs} */
        if (shape->rank == 2) {
                const char *turned = weight;
                if (!as_it_is) {
                        turned = NODE(w, "Transpose", mfl_onnx_writer_name(w, "weight"), weight);
                        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){1, 0}, 2);
                }
                const char *product =
                        NODE(w, "MatMul", bias ? mfl_onnx_writer_name(w, "product") : out, in, turned);
                if (bias)
                        NODE(w, "Add", out, product, bias);
                return;
        }
        if (shape->rank == 3) {
                in = NODE(w, "Flatten", mfl_onnx_writer_name(w, "flat"), in);
                mfl_onnx_writer_int(w, "axis", 1);
        }
        const char *inputs[] = {in, weight, bias};
        mfl_onnx_writer_node(w, "Gemm", out, bias ? 3 : 2, inputs);
        mfl_onnx_writer_int(w, "transB", !as_it_is);
}

static int write_pool(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out,
        struct mfl_error *err)
{
        bool average = l->op == MFL_OP_AVGPOOL2D;
        if (average && (l->dilation[0] > 1 || l->dilation[1] > 1))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (avgpool2d): dilation needs ONNX opset 19, and mfl writes opset 17",
                        l->name);
        NODE(w, average ? "AveragePool" : "MaxPool", out, in);
        window(w, l);
        if (average)
                mfl_onnx_writer_int(w, "count_include_pad", 1);
        if (l->ceil_mode)
                mfl_onnx_writer_int(w, "ceil_mode", 1);
        return 0;
}

/* https://pytorch.org/docs/stable/generated/torch.nn.GELU.html */
static void write_batchnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *weight = weight_of(w, l), *bias = mfl_onnx_writer_param(w, l->param_bias),
                   *mean = mfl_onnx_writer_param(w, l->param_mean),
                   *var = mfl_onnx_writer_param(w, l->param_var);
        NODE(w, "BatchNormalization", out, in, weight, bias, mean, var);
        mfl_onnx_writer_float(w, "epsilon", l->eps);
        mfl_onnx_writer_float(w, "momentum", 1 - l->momentum);
}

/* InstanceNormalization with each group as one channel, then scale and shift of the channels. */
static void write_groupnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int64_t groups = l->norm_groups, channels = l->out.dim[0];
        int64_t dims[] = {0, groups, -1}, column[] = {channels, 1, 1};
        const char *scale = mfl_onnx_writer_repeated(w, "ones", 1, groups),
                   *shift = mfl_onnx_writer_repeated(w, "zeros", 0, groups);
        const char *split = NODE(w, "Reshape", mfl_onnx_writer_name(w, "groups"), in,
                mfl_onnx_writer_whole(w, "to_groups", dims, 3));
        const char *normed =
                NODE(w, "InstanceNormalization", mfl_onnx_writer_name(w, "normed"), split, scale, shift);
        mfl_onnx_writer_float(w, "epsilon", l->eps);
        const char *back = reshape(w, normed, mfl_onnx_writer_name(w, "back"), &l->out);
        int n = l->out.rank == 3 ? 3 : 1;
        const char *weight = mfl_onnx_writer_shaped(w, l->param_weight, column, n);
        const char *bias = mfl_onnx_writer_shaped(w, l->param_bias, column, n);
        NODE(w, "Add", out, NODE(w, "Mul", mfl_onnx_writer_name(w, "scaled"), back, weight), bias);
}

static void write_layernorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *inputs[] = {
                in, weight_of(w, l), l->bias ? mfl_onnx_writer_param(w, l->param_bias) : NULL};
        mfl_onnx_writer_node(w, "LayerNormalization", out, l->bias ? 3 : 2, inputs);
        mfl_onnx_writer_int(w, "axis", -1);
        mfl_onnx_writer_float(w, "epsilon", l->eps);
}

static void write_rmsnorm(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *square =
                NODE(w, "Pow", mfl_onnx_writer_name(w, "square"), in, mfl_onnx_writer_scalar(w, "two", 2));
        const char *mean = NODE(w, "ReduceMean", mfl_onnx_writer_name(w, "mean"), square);
        mfl_onnx_writer_ints(w, "axes", (const int64_t[]){-1}, 1);
        const char *sum = NODE(
                w, "Add", mfl_onnx_writer_name(w, "sum"), mean, mfl_onnx_writer_scalar(w, "eps", l->eps));
        const char *root = NODE(w, "Sqrt", mfl_onnx_writer_name(w, "root"), sum);
        const char *normed = NODE(w, "Div", mfl_onnx_writer_name(w, "normed"), in, root);
        NODE(w, "Mul", out, normed, weight_of(w, l));
}

static const char *part_of_heads(struct onnx_writer *w, const char *all, const char *what, int64_t which)
{
        char index[32];
        mfl_snprintf(index, sizeof index, "%s_index", what);
        const char *v = NODE(
                w, "Gather", mfl_onnx_writer_name(w, what), all, mfl_onnx_writer_whole(w, index, &which, -1));
        mfl_onnx_writer_int(w, "axis", 0);
        return v;
}

static const char *causal_mask(struct onnx_writer *w, int64_t t)
{
        const char *ones = NODE(w, "ConstantOfShape", mfl_onnx_writer_name(w, "full"),
                mfl_onnx_writer_whole(w, "positions", (const int64_t[]){t, t}, 2));
        const char *sum = NODE(w, "Add", mfl_onnx_writer_name(w, "hidden"), ones,
                mfl_onnx_writer_scalar(w, "far", -INFINITY));
        int64_t one = 1;
        const char *mask = NODE(w, "Trilu", mfl_onnx_writer_name(w, "mask"), sum,
                mfl_onnx_writer_whole(w, "above", &one, -1));
        mfl_onnx_writer_int(w, "upper", 1);
        return mask;
}

/* Categories of a table are floats, which an index may not be. */
static void write_embedding(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *tokens = in;
        if (l->input > 0) {
                tokens = NODE(w, "Cast", mfl_onnx_writer_name(w, "codes"), in);
                mfl_onnx_writer_int(w, "to", 7); /* int64 */
        }
        NODE(w, "Gather", out, weight_of(w, l), tokens);
}

static void write_mask(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const int64_t token = l->padding_idx;
        const char *constant = l->input > 0 ? mfl_onnx_writer_scalar(w, "token", (float)l->padding_idx)
                                            : mfl_onnx_writer_whole(w, "token", &token, 1);
        const char *padding = NODE(w, "Equal", mfl_onnx_writer_name(w, "padding"), in, constant);
        NODE(w, "Where", out, padding, mfl_onnx_writer_scalar(w, "masked", MFL_MASKED),
                mfl_onnx_writer_scalar(w, "seen", 0));
}

static void write_attention(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        int64_t t = l->out.dim[0], d = l->out.dim[1] / l->heads, dims[] = {-1, t, 3, l->heads, d};
        const char *split = NODE(w, "Reshape", mfl_onnx_writer_name(w, "split"), in,
                mfl_onnx_writer_whole(w, "heads", dims, 5));
        const char *all = NODE(w, "Transpose", mfl_onnx_writer_name(w, "qkv"), split);
        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){2, 0, 3, 1, 4}, 5);
        const char *q = part_of_heads(w, all, "q", 0), *k = part_of_heads(w, all, "k", 1),
                   *v = part_of_heads(w, all, "v", 2);
        const char *kt = NODE(w, "Transpose", mfl_onnx_writer_name(w, "kt"), k);
        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){0, 1, 3, 2}, 4);
        const char *product = NODE(w, "MatMul", mfl_onnx_writer_name(w, "product"), q, kt);
        const char *scores = NODE(w, "Mul", mfl_onnx_writer_name(w, "scores"), product,
                mfl_onnx_writer_scalar(w, "scale", (float)(1 / sqrt((double)d))));
        if (l->causal)
                scores = NODE(w, "Add", mfl_onnx_writer_name(w, "masked"), scores, causal_mask(w, t));
        if (l->input2 >= 0) {
                const char *mask = NODE(w, "Reshape", mfl_onnx_writer_name(w, "mask"), w->names[l->input2],
                        mfl_onnx_writer_whole(w, "mask_shape", (const int64_t[]){-1, 1, 1, t}, 4));
                scores = NODE(w, "Add", mfl_onnx_writer_name(w, "padded"), scores, mask);
        }
        const char *weights = NODE(w, "Softmax", mfl_onnx_writer_name(w, "weights"), scores);
        mfl_onnx_writer_int(w, "axis", -1);
        if (l->rate > 0)
                weights = NODE(w, "Dropout", mfl_onnx_writer_name(w, "kept"), weights,
                        mfl_onnx_writer_scalar(w, "rate", l->rate));
        const char *mixed = NODE(w, "MatMul", mfl_onnx_writer_name(w, "mixed"), weights, v);
        const char *rows = NODE(w, "Transpose", mfl_onnx_writer_name(w, "rows"), mixed);
        mfl_onnx_writer_ints(w, "perm", (const int64_t[]){0, 2, 1, 3}, 4);
        reshape(w, rows, out, &l->out);
}

/* Whether the layer's output is the same for all samples. Its batch is 1 in the file. */
static bool is_of_params(const struct mfl_graph *g, int layer)
{
        const struct mfl_layer *l = &g->layers[layer];
        if (l->op == MFL_OP_INPUT)
                return false;
        int n = mfl_op_inputs(l->op);
        return (n < 1 || is_of_params(g, l->input)) && (n < 2 || is_of_params(g, l->input2));
}

static bool is_join(enum mfl_op op)
{
        return op == MFL_OP_ADD || op == MFL_OP_MULTIPLY || op == MFL_OP_GATE || op == MFL_OP_CONCAT ||
               op == MFL_OP_MATMUL;
}

/* A weight that is only joined with samples stays without a batch. */
static void write_weight(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const struct mfl_graph *g = w->graph;
        int own = (int)(l - g->layers);
        bool computed = false;
        for (int i = own + 1; i < g->n_layers; i++) {
                const struct mfl_layer *reader = &g->layers[i];
                bool reads = (mfl_op_inputs(reader->op) > 0 && reader->input == own) ||
                             (mfl_op_inputs(reader->op) > 1 && reader->input2 == own);
                computed = computed || (reads && (!is_join(reader->op) || is_of_params(g, i)));
        }
        const char *data = weight_of(w, l);
        if (!computed) {
                NODE(w, "Identity", out, data);
                return;
        }
        NODE(w, "Unsqueeze", out, data, mfl_onnx_writer_whole(w, "axes", (const int64_t[]){0}, 1));
}

/* A weight has no batch. If broadcasting can't add one, it is repeated. */
static const char *with_batch(struct onnx_writer *w, int layer, const char *what)
{
        const struct mfl_layer *l = &w->graph->layers[layer];
        char text[48];
        if (!is_of_params(w->graph, layer))
                return w->names[layer];
        const char *names[3];
        static const char *const steps[] = {"shape", "batch", "to", "all"};
        for (int i = 0; i < 3; i++) {
                mfl_snprintf(text, sizeof text, "%s_%s", what, steps[i]);
                names[i] = mfl_onnx_writer_name(w, text);
        }
        NODE(w, "Shape", names[0], "input");
        mfl_onnx_writer_int(w, "start", 0);
        mfl_onnx_writer_int(w, "end", 1);
        mfl_snprintf(text, sizeof text, "%s_rest", what);
        const char *rest = mfl_onnx_writer_whole(w, text, l->out.dim, l->out.rank);
        NODE(w, "Concat", names[2], names[0], rest);
        mfl_onnx_writer_int(w, "axis", 0);
        mfl_snprintf(text, sizeof text, "%s_all", what);
        return NODE(w, "Expand", mfl_onnx_writer_name(w, text), w->names[layer], names[2]);
}

static void write_join(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *a = w->names[l->input], *b = w->names[l->input2];
        bool of_params = is_of_params(w->graph, (int)(l - w->graph->layers));
        if (l->op == MFL_OP_GATE) {
                const char *on = NODE(
                        w, "Greater", mfl_onnx_writer_name(w, "on"), b, mfl_onnx_writer_scalar(w, "off", 0));
                NODE(w, "Where", out, on, of_params ? a : with_batch(w, l->input, "first"),
                        mfl_onnx_writer_scalar(w, "else", 0));
                return;
        }
        if (l->op == MFL_OP_ADD || l->op == MFL_OP_MULTIPLY) {
                NODE(w, l->op == MFL_OP_ADD ? "Add" : "Mul", out,
                        of_params ? a : with_batch(w, l->input, "first"), b);
                return;
        }
        bool computed = l->op == MFL_OP_MATMUL && w->graph->layers[l->input2].op != MFL_OP_WEIGHT;
        if (!of_params) {
                a = with_batch(w, l->input, "first");
                b = computed ? b : with_batch(w, l->input2, "second");
        }
        if (l->op == MFL_OP_CONCAT) {
                NODE(w, "Concat", out, a, b);
                mfl_onnx_writer_int(w, "axis", l->axis + 1);
                return;
        }
        if (l->transposed) {
                int rank = w->graph->layers[l->input2].out.rank;
                b = NODE(w, "Transpose", mfl_onnx_writer_name(w, "turned"), b);
                mfl_onnx_writer_ints(w, "perm",
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
                mfl_onnx_writer_int(w, "axis", 1);
                break;
        case MFL_OP_RESHAPE:
                reshape(w, in, out, &l->out);
                break;
        case MFL_OP_TRANSPOSE:
                for (int d = 0; d < l->out.rank; d++)
                        perm[d + 1] = l->order[d] + 1;
                NODE(w, "Transpose", out, in);
                mfl_onnx_writer_ints(w, "perm", perm, l->out.rank + 1);
                break;
        case MFL_OP_SLICE:
                NODE(w, "Slice", out, in, whole(w, "start", l->start), whole(w, "end", l->end),
                        whole(w, "axis", l->axis + 1));
                break;
        default:
                NODE(w, "ReduceMean", out, in);
                mfl_onnx_writer_ints(w, "axes", (const int64_t[]){l->axis + 1}, 1);
                mfl_onnx_writer_int(w, "keepdims", 0);
                break;
        }
}

/* Without training_mode it passes its input through; the rate is informational. */
static void write_dropout(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        NODE(w, "Dropout", out, in, mfl_onnx_writer_scalar(w, "rate", l->rate));
}

static void write_softmax(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        NODE(w, "Softmax", out, in);
        mfl_onnx_writer_int(w, "axis", -1);
}

static void write_global_pool(
        struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        NODE(w, l->op == MFL_OP_GLOBAL_AVGPOOL2D ? "GlobalAveragePool" : "GlobalMaxPool", out, in);
}

/* ---- functions of one variable, by the formulas of unary.def ---- */

#define STACK 8 /* more than any formula needs */

/* "a", "b" or a number. */
static double number_of(const struct mfl_layer *l, const char *word)
{
        return !strcmp(word, "a")   ? (double)l->alpha
               : !strcmp(word, "b") ? (double)l->beta
                                    : strtod(word, NULL);
}

static int inputs_of(const char *node)
{
        static const char *const two[] = {"Add", "Sub", "Mul", "Div", "Pow", "Greater", "Mod", NULL};
        for (int i = 0; two[i]; i++)
                if (!strcmp(two[i], node))
                        return 2;
        return !strcmp(node, "Clip") || !strcmp(node, "Where") ? 3 : 1;
}

/* "alpha=a,beta=0.5" */
static void write_attributes(struct onnx_writer *w, const struct mfl_layer *l, char *text)
{
        for (char *rest = text; rest && *rest;) {
                char *comma = strchr(rest, ','), *value = strchr(rest, '=');
                if (comma)
                        *comma = 0;
                mfl_assert(value);
                *value++ = 0;
                if (!strcmp(rest, "fmod")) /* the only one that is a whole number */
                        mfl_onnx_writer_int(w, rest, 1);
                else
                        mfl_onnx_writer_float(w, rest, (float)number_of(l, value));
                rest = comma ? comma + 1 : NULL;
        }
}

/* A copy of the formula that can be cut into words. */
static char *formula_of(struct onnx_writer *w, const struct mfl_layer *l)
{
        const char *formula = mfl_unaries[mfl_curve_of(l)].onnx;
        char *copy = mfl_onnx_writer_alloc(w, strlen(formula) + 1, 1);
        if (copy)
                memcpy(copy, formula, strlen(formula) + 1);
        return copy;
}

/* "step" and a number: names of one layer's nodes are unique. */
static const char *name_of(struct onnx_writer *w, const char *what, int i)
{
        char name[MFL_LAYER_NAME_BYTES];
        snprintf(name, sizeof name, "%s%d", what, i);
        return mfl_onnx_writer_name(w, name);
}

static void write_unary(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out)
{
        const char *stack[STACK];
        char *rest = formula_of(w, l), name[MFL_LAYER_NAME_BYTES];
        int n = 0;
        for (int i = 0; rest; i++) {
                char *word = rest, *space = strchr(rest, ' ');
                rest = space ? space + 1 : NULL;
                if (space)
                        *space = 0;
                mfl_assert(n < STACK);
                if (!strcmp(word, "x")) {
                        stack[n++] = in;
                } else if (!isupper((unsigned char)*word)) {
                        snprintf(name, sizeof name, "number%d", i);
                        stack[n++] = mfl_onnx_writer_scalar(w, name, (float)number_of(l, word));
                } else {
                        char *attributes = strchr(word, ':');
                        if (attributes)
                                *attributes++ = 0;
                        n -= inputs_of(word);
                        mfl_assert(n >= 0);
                        stack[n] = mfl_onnx_writer_node(
                                w, word, rest ? name_of(w, "step", i) : out, inputs_of(word), stack + n);
                        write_attributes(w, l, attributes);
                        n++;
                }
        }
}

typedef void write_fn(struct onnx_writer *w, const struct mfl_layer *l, const char *in, const char *out);
/* By operator. Pools, which some settings have no node for, are written by write_pool. */
static write_fn *const writers[MFL_OP_COUNT_] = {
        [MFL_OP_CONV2D] = write_conv,
        [MFL_OP_CONVTRANSPOSE2D] = write_conv,
        [MFL_OP_DENSE] = write_dense,
        [MFL_OP_BATCHNORM] = write_batchnorm,
        [MFL_OP_GROUPNORM] = write_groupnorm,
        [MFL_OP_LAYERNORM] = write_layernorm,
        [MFL_OP_RMSNORM] = write_rmsnorm,
        [MFL_OP_EMBEDDING] = write_embedding,
        [MFL_OP_WEIGHT] = write_weight,
        [MFL_OP_PADDING_MASK] = write_mask,
        [MFL_OP_ATTENTION] = write_attention,
        [MFL_OP_LSTM] = mfl_onnx_write_recurrent,
        [MFL_OP_GRU] = mfl_onnx_write_recurrent,
        [MFL_OP_RNN] = mfl_onnx_write_recurrent,
        [MFL_OP_ADD] = write_join,
        [MFL_OP_MULTIPLY] = write_join,
        [MFL_OP_GATE] = write_join,
        [MFL_OP_CONCAT] = write_join,
        [MFL_OP_MATMUL] = write_join,
        [MFL_OP_FLATTEN] = write_moved,
        [MFL_OP_RESHAPE] = write_moved,
        [MFL_OP_TRANSPOSE] = write_moved,
        [MFL_OP_SLICE] = write_moved,
        [MFL_OP_MEAN] = write_moved,
        [MFL_OP_DROPOUT] = write_dropout,
        [MFL_OP_SOFTMAX] = write_softmax,
        [MFL_OP_GLOBAL_AVGPOOL2D] = write_global_pool,
        [MFL_OP_GLOBAL_MAXPOOL2D] = write_global_pool,
#define UNARY(symbol, ...) [MFL_OP_##symbol] = write_unary,
#include "common/model/unary.def"
};

int mfl_onnx_write_layer(struct onnx_writer *w, int i, struct mfl_error *err)
{
        const struct mfl_layer *l = &w->graph->layers[i];
        w->at = l->name;
        const char *out = mfl_onnx_writer_name(w, ""), *in = l->input < 0 ? NULL : w->names[l->input];
        if (!out)
                return 0;
        mfl_strcpy(w->names[i], sizeof w->names[i], out);
        out = w->names[i];
        if (l->op == MFL_OP_MAXPOOL2D || l->op == MFL_OP_AVGPOOL2D)
                return write_pool(w, l, in, out, err);
        if (l->op == MFL_OP_MAP)
                return mfl_onnx_write_map(w, i, in, out, err);
        if (!writers[l->op])
                return mfl_fail(err, MFL_INVALID, "layer %s: %s can't be written as ONNX", l->name,
                        mfl_op_name(l->op));
        writers[l->op](w, l, in, out);
        return 0;
}
