/* SPDX-License-Identifier: Apache-2.0 */
/* Replays the proof of a job's ONNX file. */
#ifndef MFL_CLI_JOB_PROOF_H
#define MFL_CLI_JOB_PROOF_H

#include "cli/job/submit.h"
#include "cli/onnx/onnx.h"

/* Computes what the proof says, with the file's own params and all of its layers (the job may freeze some, or add
 * adapters). Puts the result into s->proof, or, for a file without a proof, what is not known into s->notes.
 * prover: mfl_proof_replay's backend. MFL_INVALID: mfl computes something else than PyTorch. */
int mfl_job_prove(struct mfl_submission *s, const struct mfl_onnx_model *model, const char *prover,
        struct mfl_error *err);

#endif
