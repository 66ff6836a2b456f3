/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of a file or folder, as a model's contract wants them. Private to cli/predict. */
#ifndef MFL_CLI_PREDICT_SAMPLES_H
#define MFL_CLI_PREDICT_SAMPLES_H

#include "common/contract/contract.h"

struct mfl_samples {
        struct mfl_dataset
                *dataset; /* `train` is all of it; scale and shift, labels and tokens are the model's */
        bool labelled;
};

/* text: [FORMAT:]PATH[,KEY=VALUE]..., with the keys of data_sets. It is read as the daemons read it, but as a whole. labels:
 * they must be there; otherwise they are used where they are. MFL_INVALID: what does not fit the contract, and what
 * to write. */
int mfl_samples_load(const char *text, const struct mfl_contract *contract, bool labels,
        struct mfl_samples *ret_samples, struct mfl_error *err);
void mfl_samples_deinit(struct mfl_samples *samples);

/* samples_fit.c: numbers of labels, tokens and values as the model has them. */
int mfl_samples_fit(const char *path, const struct mfl_contract *contract, bool labelled,
        struct mfl_dataset *dataset, struct mfl_error *err);

#endif
