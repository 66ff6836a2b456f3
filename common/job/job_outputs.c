/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a model gives what the losses of `training` need. */
#include "common/job/job.h"

static bool has_positions(const struct mfl_job *job, const struct mfl_graph *graph)
{
        return !graph->vocabulary && graph->positions > 1 + (int)job->training.auxiliary.n;
}

enum mfl_tally mfl_job_tally(const struct mfl_job *job, const struct mfl_graph *graph)
{
        bool labels = mfl_loss_answers(job->training.loss) == MFL_ANSWERS_LABELS;
        if (mfl_job_has_program(job))
                return MFL_TALLY_NONE;
        if (job->simulation.attack == MFL_ATTACK_BACKDOOR)
                return MFL_TALLY_BACKDOOR;
        if (job->evaluation.detailed)
                return labels ? MFL_TALLY_CONFUSION : MFL_TALLY_TARGETS;
        return labels && has_positions(job, graph) && graph->classes <= MFL_TALLY_CLASSES_MAX
                       ? MFL_TALLY_CLASSES
                       : MFL_TALLY_NONE;
}

int mfl_job_check_tally(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err)
{
        enum mfl_tally kind = mfl_job_tally(job, graph);
        if (kind == MFL_TALLY_CONFUSION && (graph->vocabulary || graph->classes > MFL_TALLY_CONFUSION_MAX))
                return mfl_fail(err, MFL_INVALID,
                        "evaluation.detailed: the model has %d classes, and a confusion matrix at most %d; "
                        "remove it",
                        graph->classes, MFL_TALLY_CONFUSION_MAX);
        if (kind == MFL_TALLY_TARGETS && graph->classes > MFL_TALLY_TARGETS_MAX)
                return mfl_fail(err, MFL_INVALID,
                        "evaluation.detailed: samples have %d target values, and errors are added up for at "
                        "most "
                        "%d; remove it",
                        graph->classes, MFL_TALLY_TARGETS_MAX);
        return 0;
}

const char *mfl_job_losses(enum mfl_loss_answers answers)
{
        return answers == MFL_ANSWERS_LABELS ? "cross-entropy and focal"
                                             : "binary, squared, huber, smooth-l1 and l1";
}

int mfl_job_check_outputs(const struct mfl_job *job, const struct mfl_graph *graph, struct mfl_error *err)
{
        if (job->privacy.kind && graph->statistics.n)
                return mfl_fail(err, MFL_INVALID,
                        "privacy: the model's batch norms have running statistics, which noise would spoil, "
                        "and "
                        "which would tell of clients without it; use group norms, as presets that end in -gn "
                        "do");
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
