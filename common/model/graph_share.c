/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that use the tensors of an earlier layer: which may, and what they have in common. */
#include "common/model/graph_internal.h"

#include <stddef.h>
#include <stdio.h>

const size_t mfl_layer_params[MFL_LAYER_PARAMS] = {offsetof(struct mfl_layer, param_weight),
        offsetof(struct mfl_layer, param_bias), offsetof(struct mfl_layer, param_weight2),
        offsetof(struct mfl_layer, param_bias2), offsetof(struct mfl_layer, param_mean),
        offsetof(struct mfl_layer, param_var)};

bool mfl_graph_shares(const struct mfl_layer *layer, const int *index)
{
        return layer->shares && (layer->sharing == MFL_SHARES_ALL || index == &layer->param_weight);
}

static bool is_matrix(enum mfl_op op)
{
        return op == MFL_OP_DENSE || op == MFL_OP_EMBEDDING || op == MFL_OP_WEIGHT;
}

/* Operators whose `weight` alone may be another's. */
static bool has_weight(enum mfl_op op)
{
        return is_matrix(op) || op == MFL_OP_CONV2D || op == MFL_OP_CONVTRANSPOSE2D ||
               op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM || op == MFL_OP_LAYERNORM ||
               op == MFL_OP_RMSNORM;
}

int mfl_graph_check_sharing(const struct mfl_graph *graph, int i, struct mfl_error *err)
{
        const struct mfl_layer *layer = &graph->layers[i], *other = &graph->layers[MFL_MAX(layer->shares, 0)];
        const char *op = mfl_op_name(layer->op);
        if (!layer->shares)
                return 0;
        if (layer->shares < 0 || layer->shares >= i)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): shares the weights of layer %d; it can share those of layers 1 to %d",
                        layer->name, op, layer->shares, i - 1);
        if (other->param_weight < 0)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): shares the weights of %s (%s), which has none", layer->name, op,
                        other->name, mfl_op_name(other->op));
        if (layer->sharing == MFL_SHARES_ALL && layer->op != other->op)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): shares all weights of %s (%s), another operator; shares_weight "
                        "shares "
                        "`weight` alone",
                        layer->name, op, other->name, mfl_op_name(other->op));
        if (layer->sharing == MFL_SHARES_WEIGHT && !(has_weight(layer->op) && has_weight(other->op)))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): %s (%s) and %s have no single tensor `weight`; `shares` shares all "
                        "tensors "
                        "of equal layers",
                        layer->name, op, other->name, mfl_op_name(other->op), op);
        if (layer->sharing == MFL_SHARES_TRANSPOSED && !(layer->op == MFL_OP_DENSE && is_matrix(other->op)))
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): shares_transposed is for a dense layer and the weight of a dense, "
                        "embedding "
                        "or weight layer; %s is %s",
                        layer->name, op, other->name, mfl_op_name(other->op));
        return 0;
}

/* A parameter as a value has the shape of what it is added to or multiplied with; its elements are in the same order. Of a matrix
 * that another layer has transposed, rows and columns agree: {1, rows, columns}. */
static bool is_reshaped(const struct mfl_layer *layer, const struct mfl_layer *other,
        const struct mfl_shape *own, const struct mfl_shape *shape)
{
        if (layer->op != MFL_OP_WEIGHT && other->op != MFL_OP_WEIGHT)
                return false;
        /* Of a matrix that has the sizes of the other one turned, it is more likely that shares_transposed is meant. */
        bool swapped = own->rank == 2 && shape->rank == 2 && own->dim[0] == shape->dim[1] &&
                       own->dim[1] == shape->dim[0];
        if (layer->sharing == MFL_SHARES_WEIGHT)
                return mfl_shape_count(own) == mfl_shape_count(shape) && !swapped;
        if (layer->sharing == MFL_SHARES_ALL)
                return mfl_shape_equal(own, &other->shape);
        return shape->rank == 3 && shape->dim[0] == 1 && shape->dim[1] == own->dim[0] &&
               shape->dim[2] == own->dim[1];
}

static int fail_shape(const struct mfl_layer *layer, const struct mfl_layer *other, const char *suffix,
        const struct mfl_shape *own, const struct mfl_shape *shape, struct mfl_error *err)
{
        char text[96], text2[96];
        return mfl_fail(err, MFL_INVALID,
                "layer %s (%s): its %s is %s, but that of %s, which it shares%s, is %s", layer->name,
                mfl_op_name(layer->op), *suffix ? suffix : "tensor", mfl_shape_text(own, text, sizeof text),
                other->name, layer->sharing == MFL_SHARES_TRANSPOSED ? " transposed" : "",
                mfl_shape_text(shape, text2, sizeof text2));
}

bool mfl_layer_is_unnamed(const struct mfl_layer *layer)
{
        const char *stem = mfl_op_info(layer->op)->stem;
        size_t n = strlen(stem);
        const char *digits = layer->name + n;
        return !strncmp(layer->name, stem, n) && *digits && !digits[strspn(digits, "0123456789")];
}

/* A file has each name once: the weight of layer `a`, and the same tensor as a value, are both "a.weight". */
static void add_alias(struct mfl_graph *graph, const struct mfl_layer *layer, const char *suffix, int param)
{
        struct mfl_alias *alias = &graph->aliases[graph->n_aliases];
        alias->param = param;
        alias->layer = (int)(layer - graph->layers);
        snprintf(alias->name, sizeof alias->name, "%s%s%s", layer->name, *suffix ? "." : "", suffix);
        alias->written = layer->sharing == MFL_SHARES_WEIGHT && !mfl_layer_is_unnamed(layer) &&
                         mfl_graph_find_param(graph, alias->name) != param;
        graph->n_aliases++;
}

int mfl_graph_share(struct mfl_graph *graph, int i, const char *suffix, const struct mfl_param *what,
        int *index, struct mfl_error *err)
{
        struct mfl_layer *layer = &graph->layers[i], *other = &graph->layers[layer->shares];
        int param = *(int *)(void *)((char *)other + ((char *)index - (char *)layer));
        bool turned = (layer->sharing == MFL_SHARES_TRANSPOSED) != other->turned, trained = what->trained;
        if (param < 0)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): has a %s of its own, but %s, whose weights it shares, "
                        "has none; set bias: false, or use shares_weight",
                        layer->name, mfl_op_name(layer->op), suffix, other->name);
        if (turned && layer->op != MFL_OP_DENSE)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): the weight of %s lies transposed; only a dense layer can share it",
                        layer->name, mfl_op_name(layer->op), other->name);
        struct mfl_param *shared = &graph->params[param];
        struct mfl_shape own = what->shape;
        if (index == &layer->param_weight && turned && own.rank == 2)
                own = (struct mfl_shape){2, {what->shape.dim[1], what->shape.dim[0]}};
        if (!mfl_shape_equal(&own, &shared->shape) &&
                !(index == &layer->param_weight && is_reshaped(layer, other, &own, &shared->shape)))
                return fail_shape(layer, other, suffix, &what->shape, &shared->shape, err);
        /* Files have the tensor as the module has it, not as a value that is computed before has it. */
        if (index == &layer->param_weight && !turned && layer->op != MFL_OP_WEIGHT &&
                graph->layers[shared->layer].op == MFL_OP_WEIGHT)
                shared->shape = own;
        trained = trained && !layer->frozen;
        if (trained != shared->trained)
                return mfl_fail(err, MFL_INVALID,
                        "layer %s (%s): its %s is %s, but it is also that of %s, which is %s; train or "
                        "freeze both",
                        layer->name, mfl_op_name(layer->op), *suffix ? suffix : "tensor",
                        trained ? "trained" : "frozen", graph->layers[shared->layer].name,
                        trained ? "frozen" : "trained");
        if (index == &layer->param_weight)
                layer->turned = turned;
        shared->last_layer = i;
        shared->n_uses++;
        *index = param;
        if (layer->sharing != MFL_SHARES_TRANSPOSED)
                add_alias(graph, layer, suffix, param);
        return 0;
}

bool mfl_graph_is_tied(const struct mfl_graph *graph)
{
        for (int i = 1; i < graph->n_layers; i++)
                if (graph->layers[i].shares)
                        return true;
        return false;
}

int mfl_graph_find_param(const struct mfl_graph *graph, const char *name)
{
        for (int t = 0; t < graph->n_params; t++)
                if (!strcmp(graph->params[t].name, name))
                        return t;
        for (int k = 0; k < graph->n_aliases; k++)
                if (!strcmp(graph->aliases[k].name, name))
                        return graph->aliases[k].param;
        return -1;
}

int64_t mfl_graph_features(const struct mfl_graph *graph, int i)
{
        const struct mfl_shape *in = &graph->layers[graph->layers[i].input].out;
        return in->rank == 2 ? in->dim[1] : mfl_shape_count(in);
}
