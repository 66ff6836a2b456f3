/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the configuration of a data set: for the daemon's data_sets, and for --data of both programs. The
 * result is deinitialised with mfl_dataset_config_deinit. MFL_INVALID with file, line and key, and what would
 * be right. Pure.
 */
#ifndef MFL_COMMON_DATA_CONFIG_H
#define MFL_COMMON_DATA_CONFIG_H

#include "common/data/dataset.h"
#include "common/settings/yaml.h"

/* One entry of data_sets. */
int mfl_dataset_config_read(const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node,
        struct mfl_dataset_config *ret_config, struct mfl_error *err);

/* The parts of NAME=FORMAT:REST. REST is PATH[,KEY=VALUE]..., with the keys and values of an entry:
 * "iris.csv,label=species,test_fraction=0.2". The caller has checked that name and format consist of letters, digits,
 * '.', '_' and '-'. Not for synthetic. */
int mfl_dataset_config_parse(const char *name, const char *format, const char *rest,
        struct mfl_dataset_config *ret_config, struct mfl_error *err);

#endif
