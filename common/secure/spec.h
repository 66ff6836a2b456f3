/* SPDX-License-Identifier: Apache-2.0 */
/* The `secure_sum` key of a job: {bits: 32 | 48 | 64, bad: 0.1, lost: 0.1}. */
#ifndef MFL_COMMON_SECURE_SPEC_H
#define MFL_COMMON_SECURE_SPEC_H

#include "common/secure/graph.h"
#include "common/settings/yaml.h"

extern const struct mfl_yaml_field mfl_secure_fields[]; /* of struct mfl_secure_spec */

/* Reads the mapping into a spec. */
int mfl_secure_read(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);

#endif
