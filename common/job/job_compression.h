/* SPDX-License-Identifier: Apache-2.0 */
/* The `compression` key of a job document: how updates travel. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_COMPRESSION_H
#define MFL_COMMON_JOB_JOB_COMPRESSION_H

#include "common/job/job_keys.h"

extern const struct mfl_yaml_field mfl_job_compression_fields[];

static inline bool mfl_job_sends_halves(const struct mfl_job *job)
{
        return job->compression.down_half;
}

static inline bool mfl_job_compresses_nothing(const struct mfl_job *job)
{
        return !job->compression.up && !mfl_job_sends_halves(job);
}

#endif
