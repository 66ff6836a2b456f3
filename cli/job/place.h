/* SPDX-License-Identifier: Apache-2.0 */
/* Where in a job's file that key stands of which a check of the whole job complains. */
#ifndef MFL_CLI_JOB_PLACE_H
#define MFL_CLI_JOB_PLACE_H

#include "common/job/job.h"

/* Makes "FILE:LINE: KEY: ..." of a message "job NAME: KEY: ..." of those who check a job as a whole, if its text has that key. */
void mfl_job_place(const struct mfl_job *job, const char *text, const char *file, struct mfl_error *err);

#endif
