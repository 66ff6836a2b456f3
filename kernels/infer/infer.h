/* SPDX-License-Identifier: Apache-2.0 */
/* Inference: a model file becomes an object that turns raw samples into outputs.
 *
 * An answer is a function of the model, the row, the precision, and the kind of device: its bits depend neither on the number of
 * rows in a call nor on the other rows.
 *
 * Ownership: what open returns owns everything it needs; the file may be replaced meanwhile. Threads: an object belongs to one
 * thread at a time; several of them may work side by side, and each has its own copy of the params. run allocates nothing.
 * Errors: MFL_NOT_FOUND: no such file, or no such backend; MFL_INVALID: the file is no model, or the backend does not have
 * its layers; negative: memory or device.
 */
#ifndef MFL_KERNELS_INFER_INFER_H
#define MFL_KERNELS_INFER_INFER_H

#include "common/contract/model_file.h"
#include "kernels/backend.h"

struct mfl_infer;

struct mfl_infer_options {
        const char *backend; /* NULL: "auto", as mfl_backend_open */
        uint32_t batch_max;  /* rows of a call, at most; 1 to 65536 */
        uint32_t threads; /* CPU threads that compute a call; 0: 1. Another number may have other last bits */
        enum mfl_precision precision; /* MFL_INVALID where the backend does not have it */
};

/* Whether this machine computes in a precision, before there is a model: 0; MFL_INVALID with the reason, and what to write instead;
 * otherwise as open. backend: as in the options. alone: a row must have the same bits alone and among others, which below fp32 only backends with
 * `infer` promise. */
int mfl_infer_check_precision(
        const char *backend, enum mfl_precision precision, bool alone, struct mfl_error *err);

int mfl_infer_open(const char *path, const struct mfl_infer_options *options, struct mfl_infer **ret_infer,
        struct mfl_error *err);
/* The same of a model in memory, which must outlive the object. */
int mfl_infer_new(const struct mfl_model_file *model, const struct mfl_infer_options *options,
        struct mfl_infer **ret_infer, struct mfl_error *err);
void mfl_infer_free(struct mfl_infer *infer); /* NULL is fine */

const struct mfl_contract *mfl_infer_contract(const struct mfl_infer *infer);
const struct mfl_model_file *mfl_infer_model(const struct mfl_infer *infer);
uint32_t mfl_infer_batch_max(const struct mfl_infer *infer);
/* Floats of an answer: with a class per position, mfl_contract.classes (the model's may be more) for each of them, position
 * by position. */
uint32_t mfl_infer_outputs(const struct mfl_infer *infer);
/* Logits per position; outputs / classes positions. With targets: outputs. */
uint32_t mfl_infer_classes(const struct mfl_infer *infer);

/* x: n samples, n <= batch_max, one after another, of the contract's type (floats if it says normalised), aligned as that type. y: n *
 * mfl_infer_outputs. Not finite values in a row make that row's answer meaningless, and no other. */
int mfl_infer_run(struct mfl_infer *infer, uint32_t n, const void *x, float *y, struct mfl_error *err);

/* evaluate.c. MFL_INVALID: a column that an embedding reads has a number in dataset->train that is no row of its table
 * (mfl_check_codes); mfl_infer_run takes the nearest row. The samples are raw, with the contract's scale and shift in the data set. Reads
 * nothing that mfl_infer_run changes: another thread may be in it. */
int mfl_infer_check(const struct mfl_infer *infer, const struct mfl_dataset *dataset, struct mfl_error *err);

/* evaluate.c: the loss and the right predictions of labelled samples, by the backend's `eval` in batches of the job's
 * evaluation, in the object's precision: what a daemon of this kind of device says, whose precision is the job's. The samples are raw, with the contract's scale and shift in the data set.
 * tally: what the caller's ret_score->tally adds up. MFL_INVALID: the model carries no job, or the data do not fit it. */
int mfl_infer_evaluate(const struct mfl_infer *infer, const struct mfl_dataset *dataset, enum mfl_tally tally,
        struct mfl_score *ret_score, struct mfl_error *err);

#endif
