/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --data, NAME=FORMAT:PATH[,KEY=VALUE]..., as mfl-client takes it too. */
#ifndef MFL_CLI_DATA_OPTION_H
#define MFL_CLI_DATA_OPTION_H

#include "common/data/dataset.h"

/* Keys are those of data_sets in client.yaml; synthetic is synthetic:C,H,W:classes:n_train:n_test:seed.
 * MFL_INVALID. The result is deinitialised with mfl_dataset_config_deinit. */
int mfl_data_option_parse(const char *text, struct mfl_dataset_config *ret_config, struct mfl_error *err);

/* What is offered where nothing is configured: Debian's Fashion-MNIST. -ENOMEM. */
int mfl_data_option_default(struct mfl_dataset_config *ret_config, struct mfl_error *err);

/* "1x28x28" or "1,28,28"; false when it is neither. */
bool mfl_data_option_shape(const char *text, struct mfl_shape *ret_shape);

#endif
