/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon offers to jobs: its data sets, loaded, and its programs, which the server knows as data sets; and the filters of its updates. At start only. */
#ifndef MFL_CLIENT_SERVICE_DATA_H
#define MFL_CLIENT_SERVICE_DATA_H

#include "client/service/config.h"
#include "proto/message.h"

struct mfl_client_data {
        uint32_t n;
        struct mfl_dataset *sets[MFL_DATA_SETS_MAX];
        uint64_t fingerprints[MFL_DATA_SETS_MAX];
        struct mfl_data_info infos[MFL_DATA_SETS_MAX];
};

/* MFL_INVALID: a data set is wrong, there is nothing to offer, or too much. Call deinit also after a failure. */
int mfl_client_data_load(struct mfl_client_data *data, const struct mfl_client_config *config,
        struct mfl_client_plugins *plugins, struct mfl_error *err);
/* NULL: none are configured. */
int mfl_client_filters_open(const struct mfl_client_config *config, struct mfl_client_plugins *plugins,
        uint32_t workers, struct mfl_filters **ret_filters, struct mfl_error *err);
void mfl_client_data_deinit(struct mfl_client_data *data);

#endif
