/* SPDX-License-Identifier: Apache-2.0 */
/* The `compression` key of a job document: how updates travel. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_COMPRESSION_H
#define MFL_COMMON_JOB_JOB_COMPRESSION_H

#include "common/job/job_keys.h"

extern const struct mfl_yaml_field mfl_job_compression_fields[];
/* Of keys that follow from it and are not written. */
void mfl_job_compression_defaults(const struct mfl_yaml_doc *doc, struct mfl_job *job);

static inline bool mfl_job_rounds_params(const struct mfl_job *job)
{
        return job->compression.down_half || job->compression.down_bits;
}

static inline bool mfl_job_compresses_nothing(const struct mfl_job *job)
{
        return !job->compression.up && !mfl_job_rounds_params(job);
}

static inline bool mfl_job_cuts(const struct mfl_job *job)
{
        return job->compression.top_k > 0;
}

#endif
