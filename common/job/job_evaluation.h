/* SPDX-License-Identifier: Apache-2.0 */
/* The `evaluation` key of a job document. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_EVALUATION_H
#define MFL_COMMON_JOB_JOB_EVALUATION_H

#include "common/job/job.h"
#include "common/job/job_keys.h"

#define MFL_HELD_ALL 1000000u /* so many samples that each millionth of a split shows */

extern const struct mfl_yaml_field mfl_job_evaluation_fields[];
/* After the rules of `data`; sets the defaults that depend on other keys. */
int mfl_job_check_evaluation(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

#endif
