/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table by tokens: embeddings, OneHot, whose table is the identity, and tokens as numbers. */
#include "cli/onnx/internal.h"

/* Columns of the input, and whole numbers that say where the rows of each begin. */
static bool is_of_columns(const struct onnx *o, int layer)
{
        const struct mfl_layer *l = &o->layers[layer].layer,
                               *in = l->op == MFL_OP_ADD ? &o->layers[l->input].layer : NULL,
                               *first = in ? &o->layers[l->input2].layer : NULL;
        return in && (l->input == 0 || (in->op == MFL_OP_SLICE && in->input == 0)) &&
               first->op == MFL_OP_WEIGHT && first->frozen && mfl_onnx_counts_padding(o, l->input2);
}

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
                return r || (!mfl_onnx_counts_padding(o, view->layer) && !is_of_columns(o, view->layer))
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

/* ---- tokens as numbers ---- */

static bool reads_numbers(const struct mfl_layer *l)
{
        return l->op != MFL_OP_INPUT && l->op != MFL_OP_EMBEDDING && l->op != MFL_OP_PADDING_MASK &&
               (l->input == 0 || (mfl_op_inputs(l->op) > 1 && l->input2 == 0));
}

/* Room for n layers behind the input. */
static void shift(struct onnx *o, int n)
{
        memmove(o->layers + 1 + n, o->layers + 1, (size_t)(o->n_layers - 1) * sizeof *o->layers);
        o->n_layers += n;
        for (int i = 1 + n; i < o->n_layers; i++) {
                struct mfl_layer *l = &o->layers[i].layer;
                l->input += l->input > 0 ? n : 0;
                l->input2 += l->input2 > 0 ? n : 0;
                l->shares += l->shares > 0 ? n : 0;
        }
}

int mfl_onnx_number_tokens(struct onnx *o, int *last)
{
        const struct mfl_shape row = *mfl_onnx_layer_shape(o, 0);
        int vocabulary = 0;
        bool wanted = false;
        for (int i = 1; i < o->n_layers; i++) {
                const struct mfl_layer *l = &o->layers[i].layer;
                wanted = wanted || reads_numbers(l);
                if (l->op == MFL_OP_EMBEDDING && l->input == 0)
                        vocabulary = MFL_MAX(vocabulary, l->vocabulary);
        }
        if (!wanted || !vocabulary || row.rank != 1)
                return 0;
        if (o->n_layers + 2 > MFL_LAYERS_MAX)
                return mfl_onnx_fail(o, "the model needs more than %d layers", MFL_LAYERS_MAX);
        struct onnx_shape shape = {2, {vocabulary, 1}};
        struct onnx_tensor *table;
        int r = mfl_onnx_fold_new(o, &shape, true, &table);
        if (r)
                return r;
        for (int i = 0; i < vocabulary; i++)
                mfl_onnx_fold_put(table, i, i);
        shift(o, 2);
        o->layers[1] = (struct onnx_layer){.layer = {.op = MFL_OP_EMBEDDING,
                                                   .frozen = true,
                                                   .input2 = -1,
                                                   .vocabulary = vocabulary,
                                                   .out_channels = 1,
                                                   .out = {2, {row.dim[0], 1}}},
                .at = -1,
                .node = o->node,
                .tensors = {table}};
        o->layers[2] = (struct onnx_layer){
                .layer = {.op = MFL_OP_RESHAPE, .input = 1, .input2 = -1, .shape = row, .out = row},
                .at = -1,
                .node = o->node};
        for (int i = 3; i < o->n_layers; i++) {
                struct mfl_layer *l = &o->layers[i].layer;
                if (!reads_numbers(l))
                        continue;
                l->input = l->input == 0 ? 2 : l->input;
                l->input2 = l->input2 == 0 ? 2 : l->input2;
        }
        *last += *last > 0 ? 2 : 0;
        return 0;
}
