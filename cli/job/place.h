/* SPDX-License-Identifier: Apache-2.0 */
/* The line of a key about which a check of the whole job complains. */
#ifndef MFL_CLI_JOB_PLACE_H
#define MFL_CLI_JOB_PLACE_H

#include "common/job/job.h"

/* Makes "FILE:LINE: KEY: ..." of the message "job NAME: KEY: ..." of a check of the whole job, if the text has that key. */
void mfl_job_place(const struct mfl_job *job, const char *text, const char *file, struct mfl_error *err);

#endif
