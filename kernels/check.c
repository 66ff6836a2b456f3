/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares: data that does not fit a model, and what a backend has not got. */
#include "kernels/check.h"

static int check_answers(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err)
{
        bool classes = loss->kind == MFL_LOSS_CROSS_ENTROPY;
        if (classes != (dataset->n_targets == 0))
                return mfl_fail(err, MFL_INVALID, "data set %s has %s, but the loss compares with %s",
                        dataset->name, dataset->n_targets ? "numbers to be met" : "classes",
                        classes ? "classes" : "numbers");
        if (!classes && (dataset->n_targets != graph->classes || graph->positions != 1))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %d targets, model %s gives %d x %d numbers", dataset->name,
                        dataset->n_targets, graph->name, graph->positions, graph->classes);
        if (classes && (int)mfl_dataset_labels_per_sample(dataset) != graph->positions)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %u labels a sample, model %s gives predictions for %d positions",
                        dataset->name, mfl_dataset_labels_per_sample(dataset), graph->name, graph->positions);
        return 0;
}

int mfl_check_data(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err)
{
        char have[96], want[96];
        if (mfl_shape_count(&dataset->shape) != mfl_shape_count(&graph->input) ||
                dataset->classes > graph->classes)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s (%s, %d classes) does not fit model %s (%s, %d classes)", dataset->name,
                        mfl_shape_text(&dataset->shape, have, sizeof have), dataset->classes, graph->name,
                        mfl_shape_text(&graph->input, want, sizeof want), graph->classes);
        if (graph->vocabulary ? dataset->vocabulary < 1 || dataset->vocabulary > graph->vocabulary
                              : dataset->vocabulary > 0)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has a vocabulary of %d tokens, model %s reads one of %d (0: no tokens)",
                        dataset->name, dataset->vocabulary, graph->name, graph->vocabulary);
        return check_answers(graph, loss, dataset, err);
}

/* What a layer asks that not every backend has, or NULL. */
static const char *lacking(
        const struct mfl_backend_can *can, const struct mfl_graph *graph, const struct mfl_layer *layer)
{
        bool joins = layer->op == MFL_OP_ADD || layer->op == MFL_OP_MULTIPLY;
        if (!(can->ops >> layer->op & 1))
                return "this operator";
        if (layer->conv_groups > 1 && !can->conv_groups)
                return "groups of channels";
        if (layer->lora_rank && !can->lora)
                return "LoRA";
        if (joins && !can->repeats &&
                !mfl_shape_equal(&graph->layers[layer->input].out, &graph->layers[layer->input2].out))
                return "a repeated second input";
        if (layer->op == MFL_OP_DENSE && layer->out.rank == 2 && !can->sequences)
                return "dense layers of sequences";
        return NULL;
}

int mfl_check_graph(const struct mfl_backend_can *can, const struct mfl_graph *graph,
        const struct mfl_net_options *options, struct mfl_error *err)
{
        for (int i = 0; i < graph->n_layers; i++) {
                const char *what = lacking(can, graph, &graph->layers[i]);
                if (what)
                        return mfl_fail(err, MFL_INVALID,
                                "layer %s (%s): the %s backend does not have %s yet", graph->layers[i].name,
                                mfl_op_name(graph->layers[i].op), can->backend, what);
        }
        if (!can->losses && (options->loss.kind != MFL_LOSS_CROSS_ENTROPY || options->loss.smoothing > 0 ||
                                    graph->positions > 1))
                return mfl_fail(err, MFL_INVALID,
                        "the %s backend has softmax cross entropy of one prediction only, without smoothing",
                        can->backend);
        if (!can->accumulate && options->accumulate > 1)
                return mfl_fail(
                        err, MFL_INVALID, "the %s backend does not accumulate gradients yet", can->backend);
        return 0;
}

int mfl_check_plain_steps(const char *backend, const struct mfl_optimizer *opt,
        const struct mfl_group_steps *groups, int n_groups, struct mfl_error *err)
{
        bool plain = opt->kind == MFL_OPTIMIZER_SGD && opt->clip_norm == 0;
        for (int g = 0; g < n_groups; g++)
                plain = plain && !groups[g].lr_scale;
        if (plain)
                return 0;
        return mfl_fail(err, MFL_INVALID,
                "the %s backend has SGD with a constant learning rate only, without clipping", backend);
}
