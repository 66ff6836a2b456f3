/* SPDX-License-Identifier: Apache-2.0 */
/* The `compression` key of a job document: how updates travel. Private to the parser. */
#ifndef MFL_COMMON_JOB_JOB_COMPRESSION_H
#define MFL_COMMON_JOB_JOB_COMPRESSION_H

#include "common/job/job_keys.h"

extern const struct mfl_yaml_field mfl_job_compression_fields[];

#endif
