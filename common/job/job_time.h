/* SPDX-License-Identifier: Apache-2.0 */
/* The keys `time` and `trace`, and selections that know clients by their samples, losses or durations. Private to the
 * parser's files. */
#ifndef MFL_COMMON_JOB_JOB_TIME_H
#define MFL_COMMON_JOB_JOB_TIME_H

#include "common/job/job.h"
#include "common/settings/yaml.h"

extern const char *const mfl_job_time_names[];
extern const struct mfl_yaml_field mfl_job_trace_fields[];

void mfl_job_time_defaults(struct mfl_job *job);
/* value: the job. */
int mfl_job_read_trace(
        const struct mfl_yaml_doc *doc, const struct mfl_yaml_node *node, void *value, struct mfl_error *err);
/* After all keys are read, the partition's among them. MFL_INVALID names the key; reads the trace's table. */
int mfl_job_check_time(const struct mfl_yaml_doc *doc, struct mfl_job *job, struct mfl_error *err);

static inline bool mfl_job_is_virtual(const struct mfl_job *job)
{
        return job->time == MFL_TIME_VIRTUAL;
}

#endif
