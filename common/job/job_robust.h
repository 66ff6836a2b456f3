/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of robust aggregation in a job document. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_ROBUST_H
#define MFL_COMMON_JOB_JOB_ROBUST_H

#include "common/job/job_keys.h"

/* Readers of the keys `before` and `clip_radius`; the value is the whole struct mfl_robust_spec. */
int mfl_job_read_before(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
int mfl_job_read_clip_radius(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* Which keys go with which rule, and whether a round has enough rows for it. */
int mfl_job_check_robust(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);

#endif
