/* SPDX-License-Identifier: Apache-2.0 */
/* Job files for the server: read, checked here with the server's own parser, and sent with the initial
 * params. */
#ifndef MFL_CLI_JOB_SUBMIT_H
#define MFL_CLI_JOB_SUBMIT_H

#include "cli/base/client.h"
#include "common/job/job.h"

struct mfl_submission {
        const char *path; /* owned by the caller */
        char *text;
        size_t text_bytes;
        struct mfl_job *job;
        float *initial;   /* params of model.initial; NULL: none */
        float *start;     /* while the job is read: params of an ONNX file beside model.initial; owned */
        char *start_path; /* of that file; owned */
        char *parts;      /* struct mfl_onnx_model's; owned */
        uint64_t n_initial;
        char notes[2048]; /* lines about an ONNX file and the model; empty: none */
        char proof[256];  /* what the replay of an ONNX file's proof gave; empty: not replayed */
};

/* Changes of a job file, each "training.lr=0.01". */
struct mfl_sets {
        const char *const *text;
        int n;
};

/* The changed text, on the heap; file is for messages. A result is YAML, but not yet known to be a job. MFL_INVALID;
 * MFL_CLI_USAGE: a change is not KEY=VALUE. */
int mfl_sets_apply(const struct mfl_sets *sets, const char *file, const char *text, char **ret_text,
        struct mfl_error *err);

/* Reads and checks path ("-" is standard input), with the changes (NULL: none), and the file that model.initial names.
 * text is the job file, with layers in place of an ONNX file, whose proof is replayed on `prover` (mfl_proof_replay's
 * backend; NULL: not replayed). MFL_INVALID names FILE:LINE; MFL_NOT_FOUND if there is no such file.
 */
int mfl_submission_read(const char *path, const struct mfl_sets *sets, const char *prover,
        struct mfl_submission *ret_submission, struct mfl_error *err);
/* The same for text, which is copied; path is for messages and files beside it. */
int mfl_submission_read_text(const char *path, const char *text, const struct mfl_sets *sets,
        const char *prover, struct mfl_submission *ret_submission, struct mfl_error *err);
/* Reads the file, and refuses a model in place of a job. The caller frees. */
int mfl_submission_load(const char *path, char **ret_text, struct mfl_error *err);
/* Prints its notes on standard error, once. */
void mfl_submission_tell(struct mfl_submission *submission, struct mfl_cli *cli);
void mfl_submission_deinit(struct mfl_submission *submission);
#define MFL_CLEANUP_SUBMISSION __attribute__((cleanup(mfl_submission_deinit)))

/* Sends it. token may be NULL. */
int mfl_submission_send(const struct mfl_submission *submission, struct mfl_client *client, const char *token,
        char *ret_job, bool *ret_existed, struct mfl_error *err);

#endif
