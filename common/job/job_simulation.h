/* SPDX-License-Identifier: Apache-2.0 */
/* The `simulation` keys of a job document. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_SIMULATION_H
#define MFL_COMMON_JOB_JOB_SIMULATION_H

#include "common/job/job_keys.h"

extern const struct mfl_yaml_field mfl_job_simulation_fields[];
int mfl_job_check_simulation(
        const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

#endif
