/* SPDX-License-Identifier: Apache-2.0 */
/* The table of operators: names, numbers of inputs, and how each one's output shape comes from its inputs'.
 */
#include "common/model/graph_internal.h"

int mfl_graph_check_outputs(const struct mfl_layer *layer, const char *what, struct mfl_error *err)
{
        if (layer->out_channels < 1 || layer->out_channels > MFL_GRAPH_SIZE_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %d is outside 1 to %d", layer->name,
                        mfl_op_name(layer->op), what, layer->out_channels, MFL_GRAPH_SIZE_MAX);
        if (layer->init > MFL_INIT_GPT2)
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): there is no initialisation number %u",
                        layer->name, mfl_op_name(layer->op), (unsigned)layer->init);
        return 0;
}

static int fail_rank(
        const struct mfl_layer *layer, const struct mfl_shape *in, const char *what, struct mfl_error *err)
{
        char text[96];
        return mfl_fail(err, MFL_INVALID, "layer %s (%s): needs %s, its input is %s", layer->name,
                mfl_op_name(layer->op), what, mfl_shape_text(in, text, sizeof text));
}

/* All inferrers: in2 is NULL for operators of one input. */
static int infer_same(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        layer->out = *in;
        return 0;
}

static int infer_alpha(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        bool leaky = layer->op == MFL_OP_LEAKY_RELU;
        layer->out = *in;
        if (layer->alpha == 0)
                layer->alpha = leaky ? 0.01f : 1.0f;
        if (!(layer->alpha > 0 && layer->alpha <= MFL_GRAPH_ALPHA_MAX))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %g is outside (0, %d]", layer->name,
                        mfl_op_name(layer->op), leaky ? "negative_slope" : "alpha", (double)layer->alpha,
                        MFL_GRAPH_ALPHA_MAX);
        return 0;
}

static int infer_conv(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        return mfl_graph_infer_conv(layer, in, err);
}

static int infer_pool(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        return mfl_graph_infer_pool(layer, in, err);
}

static int infer_dense(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        int64_t features = in->rank == 2 ? in->dim[1] : mfl_shape_count(in);
        layer->out = in->rank == 2 ? (struct mfl_shape){2, {in->dim[0], layer->out_channels}}
                                   : (struct mfl_shape){1, {layer->out_channels}};
        if (layer->lora_rank < 0 || layer->lora_rank > MFL_MIN(features, (int64_t)layer->out_channels))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (dense): lora_rank %d is more than the smaller side of %d x %lld",
                        layer->name, layer->lora_rank, layer->out_channels, (long long)features);
        if (layer->lora_alpha == 0)
                layer->lora_alpha = (float)layer->lora_rank;
        if (!(layer->lora_alpha >= 0 && layer->lora_alpha <= 1e6f))
                return mfl_fail(err, MFL_INVALID, "layer %s (dense): lora_alpha %g is outside 0 to 1000000",
                        layer->name, (double)layer->lora_alpha);
        return mfl_graph_check_outputs(layer, "units", err);
}

static int infer_flatten(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        layer->out = (struct mfl_shape){.rank = 1, .dim = {mfl_shape_count(in)}};
        return 0;
}

static int infer_dropout(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        layer->out = *in;
        if (!(layer->rate >= 0 && layer->rate < 1))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): rate %g is outside [0, 1)", layer->name,
                        mfl_op_name(layer->op), (double)layer->rate);
        return 0;
}

static int infer_join(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        char text[96], text2[96];
        bool fits = in->rank == in2->rank;
        for (int d = 0; fits && d < in->rank; d++)
                fits = in2->dim[d] == in->dim[d] || in2->dim[d] == 1;
        if (!fits)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): its inputs must be of one shape, or the second 1 where it is "
                        "repeated; they are %s and %s",
                        layer->name, mfl_op_name(layer->op), mfl_shape_text(in, text, sizeof text),
                        mfl_shape_text(in2, text2, sizeof text2));
        layer->out = *in;
        return 0;
}

static int infer_norm(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        const char *op = mfl_op_name(layer->op);
        layer->out = *in;
        if (layer->eps == 0)
                layer->eps = 1e-5f;
        if (layer->momentum == 0)
                layer->momentum = 0.1f;
        if (!(layer->eps > 0 && layer->eps <= 1))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): eps %g is outside (0, 1]", layer->name, op,
                        (double)layer->eps);
        if (!(layer->momentum > 0 && layer->momentum <= 1))
                return mfl_fail(err, MFL_INVALID, "layer %s (%s): momentum %g is outside (0, 1]", layer->name,
                        op, (double)layer->momentum);
        bool by_channel = layer->op == MFL_OP_BATCHNORM || layer->op == MFL_OP_GROUPNORM;
        if (by_channel ? in->rank == 2 : in->rank > 2)
                return fail_rank(layer, in,
                        by_channel ? "an image or a vector" : "positions x features or a vector", err);
        if (layer->op != MFL_OP_GROUPNORM)
                return 0;
        if (layer->norm_groups < 1 || in->dim[0] % layer->norm_groups)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (groupnorm): norm_groups %d does not divide its %lld channels", layer->name,
                        layer->norm_groups, (long long)in->dim[0]);
        return 0;
}

static int infer_global_pool(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (in->rank != 3)
                return fail_rank(layer, in, "an image (channels x height x width)", err);
        layer->out = (struct mfl_shape){.rank = 3, .dim = {in->dim[0], 1, 1}};
        return 0;
}

static int check_axis(const struct mfl_layer *layer, const struct mfl_shape *in, struct mfl_error *err)
{
        if (layer->axis >= 0 && layer->axis < in->rank)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "layer %s (%s): axis %d; its input has dimensions 0 to %d (the batch does not count)",
                layer->name, mfl_op_name(layer->op), layer->axis, in->rank - 1);
}

static int infer_concat(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        char text[96], text2[96];
        int r = check_axis(layer, in, err);
        bool fits = in->rank == in2->rank;
        if (r)
                return r;
        for (int d = 0; fits && d < in->rank; d++)
                fits = d == layer->axis || in->dim[d] == in2->dim[d];
        if (!fits)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (concat): its inputs may differ in axis %d only; they are %s and %s",
                        layer->name, layer->axis, mfl_shape_text(in, text, sizeof text),
                        mfl_shape_text(in2, text2, sizeof text2));
        layer->out = *in;
        layer->out.dim[layer->axis] += in2->dim[layer->axis];
        return 0;
}

/* The shape that a description gives: each dimension 1 to 2^31 - 1, in all not more than a tensor may have.
 */
static int check_shape(const struct mfl_layer *layer, struct mfl_error *err)
{
        const struct mfl_shape *shape = &layer->shape;
        uint64_t count = 1;
        bool fits = shape->rank >= 1 && shape->rank <= 3;
        for (int d = 0; fits && d < shape->rank; d++) {
                fits = shape->dim[d] >= 1 && shape->dim[d] <= INT32_MAX;
                count = fits ? mfl_graph_multiply(count, (uint64_t)shape->dim[d]) : count;
        }
        if (!fits || count > MFL_PARAMS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): a shape has 1 to 3 dimensions of at least 1, and at most %llu "
                        "numbers",
                        layer->name, mfl_op_name(layer->op), (unsigned long long)MFL_PARAMS_MAX);
        return 0;
}

static int infer_reshape(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        char text[96], text2[96];
        int r = check_shape(layer, err);
        if (r)
                return r;
        if (mfl_shape_count(&layer->shape) != mfl_shape_count(in))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (reshape): %s holds %lld numbers, its input %s holds %lld", layer->name,
                        mfl_shape_text(&layer->shape, text, sizeof text),
                        (long long)mfl_shape_count(&layer->shape), mfl_shape_text(in, text2, sizeof text2),
                        (long long)mfl_shape_count(in));
        layer->out = layer->shape;
        return 0;
}

static int infer_weight(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        layer->out = layer->shape;
        return check_shape(layer, err);
}

static int infer_transpose(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        unsigned seen = 0;
        layer->out.rank = in->rank;
        for (int d = 0; d < in->rank; d++) {
                int from = layer->order[d];
                if (from < 0 || from >= in->rank || seen & 1u << from)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (transpose): order must name each of the dimensions 0 to %d once",
                                layer->name, in->rank - 1);
                seen |= 1u << from;
                layer->out.dim[d] = in->dim[from];
        }
        return 0;
}

static int infer_slice(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        int r = check_axis(layer, in, err);
        if (r)
                return r;
        int64_t size = in->dim[layer->axis];
        if (layer->end == 0)
                layer->end = (int)size;
        if (layer->start < 0 || layer->start >= layer->end || layer->end > size)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (slice): [%d, %d) is no part of axis %d, which has %lld", layer->name,
                        layer->start, layer->end, layer->axis, (long long)size);
        layer->out = *in;
        layer->out.dim[layer->axis] = layer->end - layer->start;
        return 0;
}

static int infer_mean(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        int r = check_axis(layer, in, err);
        if (r)
                return r;
        if (in->rank < 2)
                return fail_rank(layer, in, "at least two dimensions", err);
        layer->out = (struct mfl_shape){.rank = in->rank - 1};
        for (int d = 0, to = 0; d < in->rank; d++)
                if (d != layer->axis)
                        layer->out.dim[to++] = in->dim[d];
        return 0;
}

static int infer_embedding(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (layer->input != 0 || in->rank != 1)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (embedding): reads tokens, which are the model's input of one dimension",
                        layer->name);
        if (layer->vocabulary < 1 || layer->vocabulary > MFL_GRAPH_SIZE_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (embedding): vocabulary %d is outside 1 to %d",
                        layer->name, layer->vocabulary, MFL_GRAPH_SIZE_MAX);
        layer->out = (struct mfl_shape){2, {in->dim[0], layer->out_channels}};
        return mfl_graph_check_outputs(layer, "features", err);
}

static int infer_matmul(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        char text[96], text2[96];
        int n = in->rank, k = layer->transposed ? n - 1 : n - 2;
        bool fits = n == in2->rank && n >= 2 && in->dim[n - 1] == in2->dim[k];
        for (int d = 0; fits && d < n - 2; d++)
                fits = in->dim[d] == in2->dim[d];
        if (!fits)
                return mfl_fail(err, MFL_INVALID, "layer %s (matmul): %s and %s%s don't make a product",
                        layer->name, mfl_shape_text(in, text, sizeof text),
                        mfl_shape_text(in2, text2, sizeof text2), layer->transposed ? " transposed" : "");
        layer->out = *in;
        layer->out.dim[n - 1] = in2->dim[layer->transposed ? n - 2 : n - 1];
        return 0;
}

static int infer_attention(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        int r = infer_dropout(layer, in, in2, err);
        if (r)
                return r;
        if (in->rank != 2 || in->dim[1] % 3)
                return fail_rank(layer, in,
                        "queries, keys and values side by side (positions x three times the width)", err);
        int64_t width = in->dim[1] / 3;
        if (layer->heads < 1 || width % layer->heads)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (attention): heads %d does not divide the width %lld", layer->name,
                        layer->heads, (long long)width);
        layer->out.dim[1] = width;
        return 0;
}

static int infer_recurrent(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (in->rank != 2)
                return fail_rank(layer, in, "positions x features", err);
        layer->out = (struct mfl_shape){2, {in->dim[0], layer->out_channels}};
        return mfl_graph_check_outputs(layer, "units", err);
}

/* stem: what a generated name starts with. */
static const struct {
        const char *name, *stem;
        int n_inputs;
        int (*infer)(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
                struct mfl_error *err);
} ops[MFL_OP_COUNT_] = {
        [MFL_OP_INPUT] = {"input", "input", 0, NULL},
        [MFL_OP_CONV2D] = {"conv2d", "conv", 1, infer_conv},
        [MFL_OP_DENSE] = {"dense", "dense", 1, infer_dense},
        [MFL_OP_RELU] = {"relu", "relu", 1, infer_same},
        [MFL_OP_TANH] = {"tanh", "tanh", 1, infer_same},
        [MFL_OP_SIGMOID] = {"sigmoid", "sigmoid", 1, infer_same},
        [MFL_OP_MAXPOOL2D] = {"maxpool2d", "maxpool", 1, infer_pool},
        [MFL_OP_AVGPOOL2D] = {"avgpool2d", "avgpool", 1, infer_pool},
        [MFL_OP_DROPOUT] = {"dropout", "dropout", 1, infer_dropout},
        [MFL_OP_FLATTEN] = {"flatten", "flatten", 1, infer_flatten},
        [MFL_OP_ADD] = {"add", "add", 2, infer_join},
        [MFL_OP_GLOBAL_AVGPOOL2D] = {"global_avgpool2d", "pool", 1, infer_global_pool},
        [MFL_OP_BATCHNORM] = {"batchnorm", "bn", 1, infer_norm},
        [MFL_OP_GROUPNORM] = {"groupnorm", "gn", 1, infer_norm},
        [MFL_OP_CONVTRANSPOSE2D] = {"convtranspose2d", "convt", 1, infer_conv},
        [MFL_OP_GLOBAL_MAXPOOL2D] = {"global_maxpool2d", "maxpool", 1, infer_global_pool},
        [MFL_OP_RELU6] = {"relu6", "relu", 1, infer_same},
        [MFL_OP_GELU] = {"gelu", "gelu", 1, infer_same},
        [MFL_OP_SILU] = {"silu", "silu", 1, infer_same},
        [MFL_OP_MULTIPLY] = {"multiply", "multiply", 2, infer_join},
        [MFL_OP_CONCAT] = {"concat", "concat", 2, infer_concat},
        [MFL_OP_RESHAPE] = {"reshape", "reshape", 1, infer_reshape},
        [MFL_OP_TRANSPOSE] = {"transpose", "transpose", 1, infer_transpose},
        [MFL_OP_SLICE] = {"slice", "slice", 1, infer_slice},
        [MFL_OP_MEAN] = {"mean", "mean", 1, infer_mean},
        [MFL_OP_WEIGHT] = {"weight", "weight", 0, infer_weight},
        [MFL_OP_EMBEDDING] = {"embedding", "embedding", 1, infer_embedding},
        [MFL_OP_LAYERNORM] = {"layernorm", "ln", 1, infer_norm},
        [MFL_OP_RMSNORM] = {"rmsnorm", "rms", 1, infer_norm},
        [MFL_OP_SOFTMAX] = {"softmax", "softmax", 1, infer_same},
        [MFL_OP_MATMUL] = {"matmul", "matmul", 2, infer_matmul},
        [MFL_OP_ATTENTION] = {"attention", "attention", 1, infer_attention},
        [MFL_OP_LSTM] = {"lstm", "lstm", 1, infer_recurrent},
        [MFL_OP_GRU] = {"gru", "gru", 1, infer_recurrent},
        [MFL_OP_LEAKY_RELU] = {"leaky_relu", "relu", 1, infer_alpha},
        [MFL_OP_ELU] = {"elu", "elu", 1, infer_alpha},
        [MFL_OP_HARDSIGMOID] = {"hardsigmoid", "sigmoid", 1, infer_same},
        [MFL_OP_HARDSWISH] = {"hardswish", "swish", 1, infer_same},
        [MFL_OP_SOFTPLUS] = {"softplus", "softplus", 1, infer_same},
};

const char *mfl_op_name(enum mfl_op op)
{
        return (unsigned)op < MFL_OP_COUNT_ ? ops[op].name : "?";
}

int mfl_op_inputs(enum mfl_op op)
{
        return ops[op].n_inputs;
}

const char *mfl_op_stem(enum mfl_op op)
{
        return ops[op].stem;
}

int mfl_graph_infer(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = layer->input < 0 ? NULL : &graph->layers[layer->input].out;
        const struct mfl_shape *in2 = layer->input2 < 0 ? NULL : &graph->layers[layer->input2].out;
        struct mfl_error why;
        int r = ops[layer->op].infer(layer, in, in2, &why);
        if (r && in2)
                return mfl_fail(err, r, "%.350s (layers %s and %s)", why.text,
                        graph->layers[layer->input].name, graph->layers[layer->input2].name);
        return r ? mfl_fail(err, r, "%s", why.text) : 0;
}
