/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares. Pure; the texts say what would be right. */
#ifndef MFL_KERNELS_CHECK_H
#define MFL_KERNELS_CHECK_H

#include "common/job/job.h"
#include "kernels/backend.h"

/* MFL_INVALID where the samples do not have the graph's input size, or have more classes, another number of
 * labels or targets, or a larger vocabulary. */
int mfl_check_data(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err);
/* A model's numbers: the two parts of its flat vector, graph->n_frozen floats, NULL where that is 0, and n_moving; or, not NULL, all of
 * them in the order of layers. */
struct mfl_model_numbers {
        const float *frozen, *moving, *by_layers;
};
/* MFL_INVALID where a column that an embedding reads has a number in a sample that is no row of its table. What the model adds to
 * the column before (where the column's rows begin in a table of several columns) is among its numbers; of NULL: not
 * known, and such columns are not checked. Reads all samples. */
int mfl_check_codes(const struct mfl_graph *graph, const struct mfl_model_numbers *of,
        const struct mfl_dataset *dataset, struct mfl_error *err);
/* The graph that a daemon trains: the job's, for a data set; its outputs are classes or, where the data set
 * has them, targets. MFL_INVALID where loss, model and data do not fit together. */
int mfl_check_job(const struct mfl_job *job, const struct mfl_dataset *dataset, struct mfl_graph **ret_graph,
        struct mfl_error *err);

/* The loss of a job's training; its weights are the job's. */
struct mfl_loss mfl_loss_of_job(const struct mfl_job *job);
/* The optimizer of its local training; of adaptive FedProx, without its term. */
struct mfl_optimizer mfl_optimizer_of_job(const struct mfl_job *job);
/* What the predictions of a whole step share; index: all its rows. 0 where none counts. */
struct mfl_loss_share mfl_loss_share_of(const struct mfl_dataset *dataset, const struct mfl_split *split,
        const struct mfl_loss *loss, const uint32_t *index, uint32_t rows);
#endif
