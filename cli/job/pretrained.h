/* SPDX-License-Identifier: Apache-2.0 */
/* Reads model.initial: a safetensors file, a folder as Hugging Face stores models (model.safetensors, or
 * model.safetensors.index.json with its shards), or such an index.
 *
 * Names. Model tensor N is the file's tensor N. With `prefix: P` it is P + N, or N without its leading P, or N;
 * exactly one of them may be in the file. Weights and biases of norms may also be called gamma and beta, as in
 * files that were converted from TensorFlow. An adapter (lora_A, lora_B) that the file lacks, with all other
 * adapters, gets its start values.
 * What is strict. Each tensor of the model is in the file, unless it matches `missing` (it then gets its start
 * values) and each tensor of the file is in the model, unless it matches `unused`, is state that holds no weights
 * (position_ids, inv_freq, num_batches_tracked, masks of GPT-2's attention), or has a '/' in its name. The
 * message lists what is left over, and which prefix would help.
 * Values. F32, F16 and BF16, which are converted exactly. Matrices that match `transposed` are stored [in][out], as
 * by GPT-2's Conv1D. Where any is, a square matrix of a dense layer must match it, too, or a pattern "!...", because
 * its shape does not tell.
 */
#ifndef MFL_CLI_JOB_PRETRAINED_H
#define MFL_CLI_JOB_PRETRAINED_H

#include "common/job/job.h"

/* Fills params (graph->n floats) from job->model.initial. start: the start values, those of an ONNX file, whose constants no
 * other file need have; NULL: they come from the job's seed. parts: of struct mfl_onnx_model: the file has such a tensor whole. notes: lines about what is missing and unused with
 * permission. MFL_INVALID: the file or its names; MFL_NOT_FOUND: no such file. */
int mfl_pretrained_read(const struct mfl_job *job, const struct mfl_graph *graph, const float *start,
        const char *parts, float *params, char *notes, size_t notes_bytes, struct mfl_error *err);

#endif
