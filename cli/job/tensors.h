/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that a program trains: the tensors of model.initial become the job's model. */
#ifndef MFL_CLI_JOB_TENSORS_H
#define MFL_CLI_JOB_TENSORS_H

#include "common/base/base.h"

/* The job file with model.tensors, in the order of the file that model.initial names. *ret_text NULL: the job has no program, or has
 * model.tensors already, or no such file. MFL_INVALID: the file can't be read, or has tensors that are no floats and that
 * model.initial.unused does not name. file is the job's, for messages. */
int mfl_tensors_job_read(
        const char *text, size_t n, const char *file, char **ret_text, struct mfl_error *err);

#endif
