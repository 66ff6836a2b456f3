/* SPDX-License-Identifier: Apache-2.0 */
/* What goes with what: the combinations of a job's keys that each exist but make no sense together. One table, each row with
 * the reason and what to write instead; docs/jobs.md prints it. Pure.
 */
#ifndef MFL_COMMON_JOB_JOB_GOES_H
#define MFL_COMMON_JOB_JOB_GOES_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

/* After the defaults are set. MFL_INVALID names the key. */
int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);

#endif
