/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares: data that does not fit a model. */
#include "kernels/check.h"

#include "kernels/bodies.h"

struct mfl_optimizer mfl_optimizer_of_job(const struct mfl_job *job)
{
        return (struct mfl_optimizer){.kind = (enum mfl_optimizer_kind)job->training.optimizer,
                .lr = job->training.lr,
                .momentum = job->training.momentum,
                .weight_decay = job->training.weight_decay,
                .nesterov = job->training.nesterov,
                .beta1 = job->training.beta1,
                .beta2 = job->training.beta2,
                .eps = job->training.eps,
                .clip_norm = job->training.clip_norm,
                .clip_prox = job->arithmetic >= MFL_ARITHMETIC_STATISTICS,
                .prox_mu = job->aggregation.strategy == MFL_STRATEGY_FEDPROX  ? job->aggregation.mu
                           : job->aggregation.strategy == MFL_STRATEGY_FEDDYN ? (float)job->aggregation.alpha
                                                                              : 0};
}

struct mfl_loss_share mfl_loss_share_of(const struct mfl_dataset *dataset, const struct mfl_split *split,
        const struct mfl_loss *loss, const uint32_t *index, uint32_t rows)
{
        size_t each = mfl_dataset_labels_per_sample(dataset);
        bool weighted = loss->kind == MFL_LOSS_CROSS_ENTROPY && loss->weights;
        uint64_t n = 0;
        double sum = 0;
        if (mfl_loss_answers(loss->kind) == MFL_ANSWERS_TARGETS)
                n = (uint64_t)rows * (uint64_t)dataset->n_targets;
        for (uint32_t r = 0; r < rows && !dataset->n_targets; r++) {
                const int32_t *labels = split->labels + (size_t)index[r] * each;
                for (size_t t = 0; t < each; t++) {
                        bool scored = mfl_is_scored(loss, labels[t]);
                        n += scored;
                        sum += weighted && scored ? (double)loss->weights[labels[t]] : 0;
                }
        }
        if (!weighted)
                return (struct mfl_loss_share){n ? 1.0f / (float)n : 0.0f, 1.0f};
        return (struct mfl_loss_share){
                sum > 0 ? (float)(1.0 / sum) : 0.0f, sum > 0 ? (float)((double)n / sum) : 0.0f};
}

struct mfl_loss mfl_loss_of_job(const struct mfl_job *job)
{
        struct mfl_loss loss = {.kind = (enum mfl_loss_kind)job->training.loss,
                .smoothing = job->training.label_smoothing,
                .has_ignored = job->training.has_ignore_index,
                .ignored = (int)job->training.ignore_index,
                .n_weights = (int)job->training.class_weights.n,
                .weights = job->training.class_weights.v,
                .n_auxiliary = (int)job->training.auxiliary.n};
        mfl_assert(job->training.auxiliary.n <= MFL_AUXILIARY_MAX);
        for (uint32_t i = 0; i < job->training.auxiliary.n; i++)
                loss.auxiliary_weights[i] = job->training.auxiliary.v[i];
        loss.parameter = loss.kind == MFL_LOSS_FOCAL   ? job->training.focal_gamma
                         : loss.kind == MFL_LOSS_HUBER ? job->training.huber_delta
                                                       : job->training.smooth_l1_beta;
        return loss;
}

/* Labels: as many as the model has predictions, of its main output and of each other. */
static int check_positions(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err)
{
        int each = (int)mfl_dataset_labels_per_sample(dataset), heads = 1 + loss->n_auxiliary;
        if (heads > 1 && each * heads != graph->positions)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %d labels per sample, so with %d auxiliary outputs "
                        "(training.auxiliary) the model "
                        "must give {%d, %d}: the main output, then the auxiliary ones; model %s gives {%d, "
                        "%d}",
                        dataset->name, each, loss->n_auxiliary, each * heads, graph->classes, graph->name,
                        graph->positions, graph->classes);
        if (each > 1 && graph->positions == 1 && !dataset->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has a label per pixel (%d per sample), but model %s gives one "
                        "prediction per "
                        "sample: let it end in an image {classes, height, width}, or in {%d, classes}",
                        dataset->name, each, graph->name, each);
        if (each * heads != graph->positions)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %u labels per sample, but model %s predicts %d positions",
                        dataset->name, mfl_dataset_labels_per_sample(dataset), graph->name, graph->positions);
        return 0;
}

static int check_answers(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err)
{
        bool labels = mfl_loss_answers(loss->kind) == MFL_ANSWERS_LABELS;
        if (labels != (dataset->n_targets == 0))
                return mfl_fail(err, MFL_INVALID, "data set %s has %s, but the loss needs %s", dataset->name,
                        dataset->n_targets ? "target values" : "labels", labels ? "labels" : "target values");
        if (!labels && (dataset->n_targets != graph->classes || graph->positions != 1))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %d target values per sample, but model %s has %d x %d outputs",
                        dataset->name, dataset->n_targets, graph->name, graph->positions, graph->classes);
        return labels ? check_positions(graph, loss, dataset, err) : 0;
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
        if (graph->vocabulary && !dataset->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has numbers, but model %s reads tokens: give npy and npz files "
                        "vocabulary (the "
                        "number of tokens, or auto), and let an embedding of a table's columns read a slice "
                        "of the input",
                        dataset->name, graph->name);
        if (graph->vocabulary ? dataset->vocabulary < 1 || dataset->vocabulary > graph->vocabulary
                              : dataset->vocabulary > 0)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has a vocabulary of %d tokens, but model %s expects %d (0: no tokens)",
                        dataset->name, dataset->vocabulary, graph->name, graph->vocabulary);
        return check_answers(graph, loss, dataset, err);
}

/* A simulated attack on data. */
static int check_attack(const struct mfl_job *job, const struct mfl_dataset *dataset, struct mfl_error *err)
{
        const struct mfl_simulation *sim = &job->simulation;
        const struct mfl_shape *shape = &dataset->shape;
        uint32_t last = sim->attack == MFL_ATTACK_BACKDOOR ? sim->target
                        : sim->labels == MFL_FLIP_PAIR     ? MFL_MAX(sim->pair[0], sim->pair[1])
                                                           : 0;
        if (!mfl_attack_is_on_data(sim))
                return 0;
        if (dataset->n_targets || mfl_dataset_labels_per_sample(dataset) > 1 || dataset->vocabulary)
                return mfl_fail(err, MFL_INVALID,
                        "simulation.attack: %s needs samples with one label each, which those of data set %s "
                        "have not",
                        mfl_attack_name(sim->attack), dataset->name);
        if (last >= (uint32_t)dataset->classes)
                return mfl_fail(err, MFL_INVALID, "simulation: data set %s has labels 0 to %d, and not %u",
                        dataset->name, dataset->classes - 1, last);
        if (sim->attack == MFL_ATTACK_BACKDOOR &&
                (shape->rank != 3 || shape->dim[1] < 3 || shape->dim[2] < 3))
                return mfl_fail(err, MFL_INVALID,
                        "simulation.attack: backdoor puts a patch of 3 x 3 pixels on images, and the samples "
                        "of "
                        "data set %s are none that have so many",
                        dataset->name);
        return 0;
}

int mfl_check_job(const struct mfl_job *job, const struct mfl_dataset *dataset, struct mfl_graph **ret_graph,
        struct mfl_error *err)
{
        const struct mfl_loss loss = mfl_loss_of_job(job);
        int outputs = dataset->n_targets ? dataset->n_targets : dataset->classes;
        bool labels = mfl_loss_answers(loss.kind) == MFL_ANSWERS_LABELS;
        if (dataset->n_targets && labels)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has %d target values per sample and no labels: training.loss must be "
                        "one of %s",
                        dataset->name, dataset->n_targets, mfl_job_losses(MFL_ANSWERS_TARGETS));
        if (!dataset->n_targets && !labels)
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has labels and no target values: training.loss must be one of %s",
                        dataset->name, mfl_job_losses(MFL_ANSWERS_LABELS));
        if (mfl_dataset_labels_per_sample(dataset) > 1 && (job->data.augment.crop || job->data.augment.flip))
                return mfl_fail(err, MFL_INVALID,
                        "data set %s has a label per pixel: data.augment would move the images, but not "
                        "their labels; "
                        "remove it",
                        dataset->name);
        int r = check_attack(job, dataset, err);
        if (!r)
                r = mfl_job_graph(job, &dataset->shape, outputs, ret_graph, err);
        if (!r && (r = mfl_check_data(*ret_graph, &loss, dataset, err))) {
                mfl_graph_free(*ret_graph);
                *ret_graph = NULL;
        }
        return r;
}
