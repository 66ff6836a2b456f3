/* SPDX-License-Identifier: Apache-2.0 */
/* Job files with `model: {onnx: FILE}`. */
#ifndef MFL_CLI_ONNX_JOB_H
#define MFL_CLI_ONNX_JOB_H

#include "cli/onnx/onnx.h"

struct mfl_onnx_job {
        char *text; /* the job file with layers in place of the ONNX file; NULL: it names no ONNX file */
        char *path; /* of the ONNX file */
        struct mfl_onnx_model model;
        bool has_initial;               /* it has initial params from another file */
        uint32_t model_line, next_line; /* of the user's file: of `model`, and behind it */
        uint32_t n_inserted; /* lines of `text` before that line that the user's file does not have */
};
/* MFL_INVALID with file and line. */
int mfl_onnx_job_read(
        const char *text, size_t n, const char *file, struct mfl_onnx_job *ret_job, struct mfl_error *err);
/* Makes the line in an error about job->text, "FILE:LINE: ...", the user's own. */
void mfl_onnx_job_place(const struct mfl_onnx_job *job, const char *file, struct mfl_error *err);
void mfl_onnx_job_deinit(struct mfl_onnx_job *job);

#endif
