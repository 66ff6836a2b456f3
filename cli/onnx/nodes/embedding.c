/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table by tokens: embeddings, and OneHot, whose table is the identity. */
#include "cli/onnx/internal.h"

/* The layer that an embedding reads: the input, the slice of it that the value is, or numbers that follow from which tokens are
 * padding. -1: none of them. */
static int layer_of_tokens(struct onnx *o, struct onnx_value *tokens, int *ret_layer, int64_t *ret_n)
{
        int64_t n = mfl_onnx_count(&tokens->shape);
        *ret_layer = -1;
        if (!tokens->tensor && tokens->layer > 0) {
                struct onnx_value *view;
                int r = mfl_onnx_resolve(o, tokens, &view);
                *ret_n = n;
                return r || !mfl_onnx_counts_padding(o, view->layer)
                               ? r
                               : mfl_onnx_view_layer(o, view, &(struct mfl_shape){1, {n}}, ret_layer);
        }
        if (tokens->tensor || tokens->layer != 0 || tokens->samples || tokens->pending ||
                mfl_onnx_layer_shape(o, 0)->rank != 1)
                return 0;
        *ret_n = n;
        if (!tokens->map) {
                *ret_layer = 0;
                return 0;
        }
        for (int64_t k = 1; k < n; k++)
                if (tokens->map[k] != tokens->map[0] + k)
                        return 0;
        struct mfl_layer l = {.op = MFL_OP_SLICE,
                .input = 0,
                .start = tokens->map[0],
                .end = (int)(tokens->map[0] + n),
                .out = {1, {n}}};
        return mfl_onnx_derive(o, &l, o->node, ret_layer);
}

int mfl_onnx_embedding(struct onnx *o)
{
        const struct onnx_value *table = mfl_onnx_input(o, 0);
        struct onnx_value *tokens = mfl_onnx_input(o, 1);
        if (!table || !table->tensor || !table->tensor->f || table->shape.rank != 2 || !tokens ||
                mfl_onnx_int(o, "axis", 0))
                return mfl_onnx_fail(o,
                        "is supported only with constant indices, or as an embedding (rows of a "
                        "matrix by tokens)");
        int64_t t = 0;
        int from, r = layer_of_tokens(o, tokens, &from, &t);
        if (r)
                return r;
        if (from < 0)
                return mfl_onnx_fail(o, "an embedding must read the model's input, tokens of {batch, "
                                        "positions}, or neighbouring columns "
                                        "of an input of {batch, features}");
        int64_t n = table->shape.dim[0], features = table->shape.dim[1];
        if (n < 1 || n > MFL_WIDTH_MAX || features < 1 || features > MFL_WIDTH_MAX)
                return mfl_onnx_fail(o, "the embedding is %lld x %lld; the limit is %d each", (long long)n,
                        (long long)features, MFL_WIDTH_MAX);
        struct mfl_layer l = {.op = MFL_OP_EMBEDDING,
                .input = from,
                .vocabulary = (int)n,
                .out_channels = (int)features,
                .out = {2, {t, features}}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {table->tensor};
        struct onnx_shape shape = tokens->shape;
        mfl_onnx_name(o, &l, table->tensor, "weight");
        shape.dim[shape.rank++] = features;
        return mfl_onnx_layer_output(o, &l, tensors, &shape);
}

/* An embedding of tokens whose table is the identity, and does not train. Tokens outside the depth have no row in PyTorch either:
 * one_hot refuses them. */
int mfl_onnx_one_hot(struct onnx *o)
{
        struct onnx_value *tokens = mfl_onnx_input(o, 0), *of = mfl_onnx_input(o, 2);
        double depth = 0;
        struct onnx_tensor *table;
        int64_t n = 0, axis = mfl_onnx_int(o, "axis", -1);
        int from, r;
        if (!tokens || !of || !of->tensor || of->tensor->count != 2 ||
                !mfl_onnx_scalar(mfl_onnx_input(o, 1), &depth) || !(depth >= 1 && depth <= 4096) ||
                (axis != -1 && axis != tokens->shape.rank))
                return mfl_onnx_fail(
                        o, "needs a depth from 1 to 4096, and the classes as the last dimension");
        if ((r = layer_of_tokens(o, tokens, &from, &n)))
                return r;
        if (from < 0)
                return mfl_onnx_fail(o, "is supported of the model's input: tokens, or neighbouring columns "
                                        "of {batch, features}");
        int64_t classes = (int64_t)depth;
        struct onnx_shape shape = {2, {classes, classes}};
        if ((r = mfl_onnx_fold_new(o, &shape, true, &table)))
                return r;
        for (int64_t i = 0; i < table->count; i++)
                mfl_onnx_fold_put(table, i, mfl_onnx_number(of->tensor, i % (classes + 1) == 0));
        struct mfl_layer l = {.op = MFL_OP_EMBEDDING,
                .frozen = true,
                .input = from,
                .vocabulary = (int)classes,
                .out_channels = (int)classes,
                .out = {2, {n, classes}}};
        const struct onnx_tensor *tensors[ONNX_TENSORS_PER_LAYER] = {table};
        shape = tokens->shape;
        shape.dim[shape.rank++] = classes;
        return mfl_onnx_layer_output(o, &l, tensors, &shape);
}
