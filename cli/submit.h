/* SPDX-License-Identifier: Apache-2.0 */
/* A job file on its way to the server: read, checked here with the server's own parser, sent with what it
 * starts from. */
#ifndef MFL_CLI_SUBMIT_H
#define MFL_CLI_SUBMIT_H

#include "cli/client.h"
#include "common/job.h"

struct mfl_submission {
        const char *path; /* the caller's */
        char *text;
        size_t text_bytes;
        struct mfl_job *job;
        float *initial; /* params of model.initial; NULL: none */
        uint64_t n_initial;
        char notes[1280]; /* about an ONNX file and the model, lines; empty: none */
};

/* Reads and checks path ("-" is standard input) and the file that model.initial names; text is the job with
 * layers where it named an ONNX file. MFL_INVALID names FILE:LINE; MFL_NOT_FOUND when there is no such file.
 */
int mfl_submission_read(const char *path, struct mfl_submission *ret_submission, struct mfl_error *err);
/* Its notes, on standard error; once. */
void mfl_submission_tell(struct mfl_submission *submission, struct mfl_cli *cli);
void mfl_submission_deinit(struct mfl_submission *submission);
#define MFL_CLEANUP_SUBMISSION __attribute__((cleanup(mfl_submission_deinit)))

/* Sends it. token may be NULL. */
int mfl_submission_send(const struct mfl_submission *submission, struct mfl_client *client, const char *token,
        char *ret_job, bool *ret_existed, struct mfl_error *err);

#endif
