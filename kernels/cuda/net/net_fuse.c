/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers are done together: carriers of activations and sums, shared memory, and which layer applies
 * the gradient of an activation. */
#include "kernels/cuda/net/net.h"

enum mfl_cuda_act mfl_cuda_act_of(enum mfl_op op)
{
        switch (op) {
        case MFL_OP_RELU:
                return MFL_CUDA_ACT_RELU;
        case MFL_OP_TANH:
                return MFL_CUDA_ACT_TANH;
        case MFL_OP_SIGMOID:
                return MFL_CUDA_ACT_SIGMOID;
        default:
                return MFL_CUDA_ACT_NONE;
        }
}

bool mfl_cuda_is_conv(const struct mfl_layer *layer)
{
        return (layer->op == MFL_OP_CONV2D && layer->conv_groups <= 1) || layer->op == MFL_OP_DENSE;
}

bool mfl_cuda_is_direct(const struct mfl_layer *layer)
{
        return (layer->op == MFL_OP_CONV2D && layer->conv_groups > 1) || layer->op == MFL_OP_CONVTRANSPOSE2D;
}

bool mfl_cuda_is_norm(enum mfl_op op)
{
        return op == MFL_OP_BATCHNORM || op == MFL_OP_GROUPNORM;
}

bool mfl_cuda_is_recurrent(enum mfl_op op)
{
        return mfl_op_is_recurrent(op);
}

bool mfl_cuda_has_plans(const struct mfl_layer *layer)
{
        return mfl_cuda_is_conv(layer) || mfl_cuda_is_recurrent(layer->op);
}

bool mfl_cuda_is_plain_add(const struct mfl_graph *graph, int i)
{
        const struct mfl_layer *layer = &graph->layers[i];
        return layer->op == MFL_OP_ADD &&
               mfl_shape_equal(&graph->layers[layer->input].out, &graph->layers[layer->input2].out);
}

/* Whether there is only one order of the elements, the plain one: not for an image with several channels and
 * pixels. */
static bool is_plain(const struct mfl_cuda_tensor *x)
{
        return x->h * x->w == 1 || x->c == 1;
}

/* Layers whose output's numbers lie where their input's do, in the same order. */
static bool is_copy(const struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        return layer->op == MFL_OP_FLATTEN || (layer->op == MFL_OP_RESHAPE && is_plain(&model->layers[i].x) &&
                                                      is_plain(&model->layers[layer->input].x));
}

bool mfl_cuda_is_curve(enum mfl_op op)
{
        return mfl_op_info(op)->unary && mfl_cuda_act_of(op) == MFL_CUDA_ACT_NONE;
}

bool mfl_cuda_is_shape(const struct mfl_cuda_model *model, int i)
{
        if (mfl_cuda_is_curve(model->graph->layers[i].op))
                return true;
        switch (model->graph->layers[i].op) {
        case MFL_OP_MULTIPLY:
        case MFL_OP_GATE:
        case MFL_OP_CONCAT:
        case MFL_OP_TRANSPOSE:
        case MFL_OP_SLICE:
        case MFL_OP_MEAN:
        case MFL_OP_WEIGHT:
        case MFL_OP_MAP:
                return true;
        case MFL_OP_RESHAPE:
                return !is_copy(model, i);
        case MFL_OP_ADD:
                return !mfl_cuda_is_plain_add(model->graph, i);
        default:
                return false;
        }
}

bool mfl_cuda_is_sequence(enum mfl_op op)
{
        return op == MFL_OP_EMBEDDING || op == MFL_OP_LAYERNORM || op == MFL_OP_RMSNORM ||
               op == MFL_OP_SOFTMAX || op == MFL_OP_MATMUL || op == MFL_OP_ATTENTION ||
               op == MFL_OP_PADDING_MASK;
}

static bool is_pool(enum mfl_op op)
{
        return op == MFL_OP_MAXPOOL2D || op == MFL_OP_AVGPOOL2D || op == MFL_OP_GLOBAL_AVGPOOL2D;
}

/* Operators that can apply the gradient of their input's activation to the gradient of their input. */
static bool can_fold(const struct mfl_layer *layer)
{
        return (mfl_cuda_is_conv(layer) && !layer->lora_rank) || is_pool(layer->op) ||
               layer->op == MFL_OP_DROPOUT;
}

static void find_readers(struct mfl_cuda_model *model)
{
        const struct mfl_graph *graph = model->graph;
        for (int i = 0; i < graph->n_layers; i++)
                model->layers[i].only_reader = model->layers[i].alias = model->layers[i].residual = -1;
        model->layers[graph->n_layers - 1].live = true;
        for (int i = graph->n_layers - 1; i > 0; i--) {
                int reads[2] = {graph->layers[i].input, graph->layers[i].input2};
                if (!model->layers[i].live)
                        continue;
                for (int k = 0; k < 2; k++) {
                        struct mfl_cuda_layer *from = reads[k] < 0 ? NULL : &model->layers[reads[k]];
                        if (!from)
                                continue;
                        from->only_reader = from->live ? -1 : i;
                        from->live = true;
                }
        }
}

static int root_of(const struct mfl_cuda_model *model, int i)
{
        while (model->layers[i].alias >= 0)
                i = model->layers[i].alias;
        return i;
}

static void carry(struct mfl_cuda_model *model, int carrier, int i)
{
        model->layers[i].carried = true;
        model->layers[i].alias = carrier;
}

/* The activation that is the only reader of layer `end`; it uses the carrier's memory. */
static void carry_activation(struct mfl_cuda_model *model, int carrier, int end)
{
        int reader = model->layers[end].only_reader;
        enum mfl_cuda_act act =
                reader < 0 ? MFL_CUDA_ACT_NONE : mfl_cuda_act_of(model->graph->layers[reader].op);
        if (act == MFL_CUDA_ACT_NONE)
                return;
        model->layers[carrier].act = act;
        carry(model, end, reader);
        /* Norms and sums apply the gradient of their activation themselves. */
        model->layers[reader].folded = !mfl_cuda_is_conv(&model->graph->layers[carrier]);
}

/* A sum that is the only reader of normalisation i, where its other term exists before i runs. */
static int carry_sum(struct mfl_cuda_model *model, int i)
{
        int reader = model->layers[i].only_reader;
        if (reader < 0 || !mfl_cuda_is_plain_add(model->graph, reader))
                return i;
        const struct mfl_layer *sum = &model->graph->layers[reader];
        int other = sum->input == i ? sum->input2 : sum->input;
        /* If both terms were one tensor, its gradient would be written and added to at the same time. */
        if (other >= i || root_of(model, other) == root_of(model, model->graph->layers[i].input))
                return i;
        model->layers[i].residual = other;
        carry(model, i, reader);
        model->layers[reader].folded = true;
        return reader;
}

/* Layers that may work in their input's memory: nobody needs the input afterwards. */
static bool in_place(const struct mfl_cuda_model *model, int i)
{
        const struct mfl_layer *layer = &model->graph->layers[i];
        if (layer->input < 0 || model->layers[layer->input].only_reader != i)
                return false;
        enum mfl_op before = model->graph->layers[layer->input].op;
        return is_copy(model, i) || (mfl_cuda_act_of(layer->op) != MFL_CUDA_ACT_NONE &&
                                            (is_pool(before) || before == MFL_OP_DROPOUT));
}

static void find_carriers(struct mfl_cuda_model *model)
{
        for (int i = 1; i < model->graph->n_layers; i++) {
                struct mfl_cuda_layer *own = &model->layers[i];
                const struct mfl_layer *layer = &model->graph->layers[i];
                if (!own->live || own->carried)
                        continue;
                if (mfl_cuda_is_norm(layer->op))
                        carry_activation(model, i, carry_sum(model, i));
                else if ((mfl_cuda_is_conv(layer) && !layer->lora_rank) ||
                         mfl_cuda_is_plain_add(model->graph, i))
                        carry_activation(model, i, i);
                else if (in_place(model, i))
                        own->alias = layer->input;
                if (own->alias >= 0 && is_copy(model, i))
                        own->carried = own->folded = true;
        }
}

/* Whether layer i gives gradients to its inputs when backward visits it, and to which: its input and, for
 * sums and for norms that carry one, a second. */
static bool gives_gradients(const struct mfl_cuda_model *model, int i, int *ret_second)
{
        const struct mfl_cuda_layer *own = &model->layers[i];
        const struct mfl_layer *layer = &model->graph->layers[i];
        *ret_second = own->residual >= 0 ? own->residual : layer->input2;
        /* What shares its input's memory shares the gradient too. */
        return own->live && own->alias < 0 && layer->input >= 0;
}

/* In the order of backward: the first gradient of a tensor is written, the others are added; the last applies
 * the gradient of the activation where it can. completes: per root, layer or -1. */
static void find_gradients(struct mfl_cuda_model *model, bool *seen, int *completes)
{
        const struct mfl_graph *graph = model->graph;
        for (int i = 0; i < graph->n_layers; i++)
                completes[i] = -1;
        for (int i = graph->n_layers - 1, second; i > 0; i--) {
                struct mfl_cuda_layer *own = &model->layers[i];
                if (!gives_gradients(model, i, &second))
                        continue;
                int root = root_of(model, graph->layers[i].input);
                own->add = seen[root];
                seen[root] = true;
                completes[root] = can_fold(&graph->layers[i]) ? i : -1;
                if (second < 0)
                        continue;
                root = root_of(model, second);
                own->add2 = seen[root];
                seen[root] = true;
                completes[root] = -1;
        }
        for (int i = 1; i < graph->n_layers; i++) {
                struct mfl_cuda_layer *own = &model->layers[i];
                enum mfl_cuda_act act = mfl_cuda_act_of(graph->layers[i].op);
                int by = act == MFL_CUDA_ACT_NONE || own->alias < 0 ? -1 : completes[root_of(model, i)];
                if (!own->live || own->folded || by < 0)
                        continue;
                model->layers[by].in_act = act;
                own->folded = true;
        }
}

int mfl_cuda_model_fuse(struct mfl_cuda_model *model, struct mfl_error *err)
{
        size_t n = (size_t)model->graph->n_layers;
        MFL_CLEANUP_FREE bool *seen = mfl_calloc(n, sizeof *seen);
        MFL_CLEANUP_FREE int *completes = mfl_calloc(n, sizeof *completes);
        if (!seen || !completes)
                return mfl_fail_memory(err, n * sizeof *completes, "network");
        find_readers(model);
        find_carriers(model);
        find_gradients(model, seen, completes);
        return 0;
}
