/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares: data that does not fit a model. */
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
