/* SPDX-License-Identifier: Apache-2.0 */
/* What goes with what: the combinations of a job's keys that each exist but make no sense together. One table, each row with
 * the reason and what to write instead; `mfl help job` prints it. Pure.
 */
#ifndef MFL_COMMON_JOB_JOB_GOES_H
#define MFL_COMMON_JOB_JOB_GOES_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

/* A combination that is refused, as people write it, and why. */
struct mfl_job_goes {
        const char *one, *other, *why;
};
size_t mfl_job_goes_count(void);
const struct mfl_job_goes *mfl_job_goes_at(size_t i);

/* After the defaults are set. MFL_INVALID names the key. */
int mfl_job_check_goes(const struct mfl_yaml_doc *doc, const struct mfl_job *job, struct mfl_error *err);

#endif
