/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a model gives what the losses of `training` need. */
#include "common/job/job.h"

bool mfl_job_counts_classes(const struct mfl_graph *graph, uint32_t auxiliary)
{
        return !graph->vocabulary && graph->positions > 1 + (int)auxiliary &&
               graph->classes <= MFL_COUNTED_CLASSES_MAX;
}

const char *mfl_job_losses(enum mfl_loss_answers answers)
{
        return answers == MFL_ANSWERS_LABELS ? "cross-entropy and focal"
                                             : "binary, squared, huber, smooth-l1 and l1";
}

int mfl_job_check_outputs(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err)
{
        const struct mfl_job_floats *weights = &job->training.class_weights;
        bool binary = job->training.loss == MFL_LOSS_BINARY;
        uint32_t heads = 1 + job->training.auxiliary.n;
        if (weights->n && weights->n != (uint32_t)graph->classes && !(binary && weights->n == 1))
                return mfl_fail(err, MFL_INVALID,
                        "training.%s has %u number%s, but the model has %d %s: write one number for each%s",
                        binary ? "pos_weight" : "class_weights", weights->n, weights->n == 1 ? "" : "s",
                        graph->classes, binary ? "outputs" : "classes",
                        binary ? ", or one number for all" : ", in their order");
        if ((uint32_t)graph->positions % heads)
                return mfl_fail(err, MFL_INVALID,
                        "training.auxiliary has %u number%s, so the model needs %u outputs of equal size, "
                        "one after "
                        "another: {%u times the labels per sample, classes}; it gives {%d, %d}",
                        heads - 1, heads == 2 ? "" : "s", heads, heads, graph->positions, graph->classes);
        return 0;
}
