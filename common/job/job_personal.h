/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the `personal` key of a job document; private to common/job. */
#ifndef MFL_COMMON_JOB_JOB_PERSONAL_H
#define MFL_COMMON_JOB_JOB_PERSONAL_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

extern const struct mfl_yaml_field mfl_job_personal_fields[];

/* Sets graph->personal. MFL_INVALID: a name that the model does not have, or nothing or everything is personal. */
int mfl_job_mark_personal(const struct mfl_job *job, struct mfl_graph *graph, struct mfl_error *err);

#endif
