/* SPDX-License-Identifier: Apache-2.0 */
/* Job files whose `trace` is a file: the table's text takes its place, so that the job is whole when it is sent and stored. */
#ifndef MFL_CLI_JOB_TRACE_FILE_H
#define MFL_CLI_JOB_TRACE_FILE_H

#include "common/base/base.h"

/* *ret_text: the job file with the table, on the heap; NULL: it names no file. The user's own lines stay, as comments. file is
 * for messages. MFL_INVALID with file and line; -errno. */
int mfl_trace_file_read(const char *text, size_t n, const char *file, char **ret_text, struct mfl_error *err);

#endif
