/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --data, NAME=FORMAT:PATH[,KEY=VALUE]..., in the same form as for mfl-client. */
#ifndef MFL_CLI_JOB_DATA_OPTION_H
#define MFL_CLI_JOB_DATA_OPTION_H

#include "common/data/dataset.h"

/* The keys are those of data_sets in client.yaml; synthetic is synthetic:C,H,W:classes:n_train:n_test:seed.
 * MFL_INVALID. Release the result with mfl_dataset_config_deinit. */
int mfl_data_option_parse(const char *text, struct mfl_dataset_config *ret_config, struct mfl_error *err);

/* Finds the job's data set of that name among n options, or takes the default. MFL_NOT_FOUND says how to give
 * it, and where the data come from if that is known. */
int mfl_data_option_find(const char *const *options, int n, const char *name,
        struct mfl_dataset_config *ret_config, struct mfl_error *err);

/* "1x28x28" or "1,28,28"; false for other text. */
bool mfl_data_option_shape(const char *text, struct mfl_shape *ret_shape);

#endif
