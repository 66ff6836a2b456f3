/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether a job and a data set on this machine fit together, as a server and its daemons would. */
#ifndef MFL_CLI_JOB_DATA_CHECK_H
#define MFL_CLI_JOB_DATA_CHECK_H

#include "common/data/dataset.h"
#include "common/job/job.h"

struct mfl_data_facts {
        struct mfl_shape shape;
        uint32_t train, test, clients, samples_min, samples_max;
        int classes, n_targets, vocabulary; /* as in struct mfl_dataset */
        char note[256];
};

/* Reads the data set, builds the job's graph for it, and cuts it into the job's clients. initial: the model's numbers in the order of
 * layers; NULL: not known. The caller owns the graph. MFL_INVALID and MFL_NOT_FOUND with the text that the server or the daemon would give. Blocking I/O.
 */
int mfl_data_check(const struct mfl_job *job, const float *initial, const struct mfl_dataset_config *config,
        struct mfl_graph **ret_graph, struct mfl_data_facts *ret_facts, struct mfl_error *err);

#endif
