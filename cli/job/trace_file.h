/* SPDX-License-Identifier: Apache-2.0 */
/* Job files whose `trace` is a file: the table's text takes its place, so that the job is whole when it is sent and stored. */
#ifndef MFL_CLI_JOB_TRACE_FILE_H
#define MFL_CLI_JOB_TRACE_FILE_H

#include "common/base/base.h"

struct mfl_trace_file {
        char *text;    /* the job file with the table at its end, on the heap; NULL: it names no file */
        char *path;    /* the table's; on the heap */
        uint32_t line; /* that names it */
        uint32_t day_line,
                day_at; /* of `day` beside it, in the user's text and in this one; 0: it is not given */
};

/* The user's own lines stay where they are, those of `trace` as comments. file is for messages. The caller frees text and path. MFL_INVALID with
 * file and line; -errno. */
int mfl_trace_file_read(const char *text, size_t n, const char *file, struct mfl_trace_file *ret_trace,
        struct mfl_error *err);
/* What is wrong with the table, in the words of the job's reader, becomes a message with the table's name, and what is wrong with `day` one
 * with the user's line. */
void mfl_trace_file_name(const struct mfl_trace_file *trace, const char *file, struct mfl_error *err);

#endif
