/* SPDX-License-Identifier: Apache-2.0 */
/* How the output shape of each operator follows from the shapes of its inputs. */
#include "common/model/graph_internal.h"
#include "common/model/unary.h"

static int fail_rank(
        const struct mfl_layer *layer, const struct mfl_shape *in, const char *what, struct mfl_error *err)
{
        char text[96];
        return mfl_fail(err, MFL_INVALID, "layer %s (%s): needs %s; its input is %s", layer->name,
                mfl_op_name(layer->op), what, mfl_shape_text(in, text, sizeof text));
}

/* All inferrers: in2 is NULL for operators with one input. */
static int infer_same(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        layer->out = *in;
        return 0;
}

/* A parameter of 0 that 0 is no value for is the default. */
static int infer_unary(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        const struct mfl_unary *f = &mfl_unaries[mfl_curve_of(layer)];
        float *const values[MFL_UNARY_PARAMS_MAX] = {&layer->alpha, &layer->beta};
        layer->out = *in;
        for (int k = 0; k < f->n_params; k++) {
                const struct mfl_unary_param *p = &f->params[k];
                float *v = values[k];
                if (*v == 0 && !p->needed)
                        *v = p->otherwise;
                if (!(*v >= p->min && *v <= p->max && !(p->open && *v == p->min)))
                        return mfl_fail(err, MFL_INVALID, "layer %s (%s): %s %g is outside %s%g, %g]",
                                layer->name, mfl_op_name(layer->op), p->key, (double)*v, p->open ? "(" : "[",
                                (double)p->min, (double)p->max);
        }
        if (layer->op == MFL_OP_HARDTANH && layer->alpha >= layer->beta)
                return mfl_fail(err, MFL_INVALID, "layer %s (hardtanh): min_val %g is not below max_val %g",
                        layer->name, (double)layer->alpha, (double)layer->beta);
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
                        "layer %s (%s): its inputs must have one shape, or the second has 1 in dimensions "
                        "where it is repeated; they are %s and %s",
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

static int infer_reshape(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        char text[96], text2[96];
        int r = mfl_graph_check_shape(layer, err);
        if (r)
                return r;
        if (mfl_shape_count(&layer->shape) != mfl_shape_count(in))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (reshape): %s has %lld numbers, but its input %s has %lld", layer->name,
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
        return mfl_graph_check_shape(layer, err);
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
                        "layer %s (slice): [%d, %d) is outside axis %d, which has %lld", layer->name,
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

static int infer_map(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        return mfl_graph_infer_map(layer, in, err);
}

static int infer_embedding(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (in->rank != 1)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (embedding): reads tokens, so the model's input must have one dimension",
                        layer->name);
        if (layer->vocabulary < 1 || layer->vocabulary > MFL_WIDTH_MAX)
                return mfl_fail(err, MFL_INVALID, "layer %s (embedding): vocabulary %d is outside 1 to %d",
                        layer->name, layer->vocabulary, MFL_WIDTH_MAX);
        if (layer->has_padding && (layer->padding_idx < 0 || layer->padding_idx >= layer->vocabulary))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (embedding): padding_idx %d is outside the vocabulary, 0 to %d",
                        layer->name, layer->padding_idx, layer->vocabulary - 1);
        layer->out = (struct mfl_shape){2, {in->dim[0], layer->out_channels}};
        return mfl_graph_check_outputs(layer, "features", err);
}

static int infer_mask(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (in->rank != 1)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (padding_mask): reads the model's input, tokens in one dimension; write "
                        "input: "
                        "input",
                        layer->name);
        layer->out = *in;
        return 0;
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
                return mfl_fail(err, MFL_INVALID, "layer %s (matmul): %s and %s%s cannot be multiplied",
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
        if (in2 && (in2->rank != 1 || in2->dim[0] != in->dim[0]))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (attention): the mask must have one number for each of the %lld positions",
                        layer->name, (long long)in->dim[0]);
        layer->out.dim[1] = width;
        return 0;
}

static int infer_recurrent(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err)
{
        if (in->rank != 2)
                return fail_rank(layer, in, "positions x features", err);
        if (layer->last_cell && in->dim[0] < 2)
                return fail_rank(layer, in, "at least two positions for last_cell", err);
        layer->out = (struct mfl_shape){2, {in->dim[0], layer->out_channels}};
        return mfl_graph_check_outputs(layer, "units", err);
}

typedef int infer_fn(struct mfl_layer *layer, const struct mfl_shape *in, const struct mfl_shape *in2,
        struct mfl_error *err);
/* By operator. The model's input has none: its shape is given. */
static infer_fn *const inferrers[MFL_OP_COUNT_] = {
#define OP(symbol, name, stem, inputs, shape, ...) [MFL_OP_##symbol] = infer_##shape,
#include "common/model/op.def"
};

int mfl_graph_infer(struct mfl_graph *graph, int i, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i];
        const struct mfl_shape *in = layer->input < 0 ? NULL : &graph->layers[layer->input].out;
        const struct mfl_shape *in2 = layer->input2 < 0 ? NULL : &graph->layers[layer->input2].out;
        struct mfl_error why;
        int r = inferrers[layer->op](layer, in, in2, &why);
        if (r && in2)
                return mfl_fail(err, r, "%.350s (layers %s and %s)", why.text,
                        graph->layers[layer->input].name, graph->layers[layer->input2].name);
        return r ? mfl_fail(err, r, "%s", why.text) : 0;
}
