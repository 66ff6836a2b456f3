/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions at a site: a model's answers for the test samples of a data set, written to a file that stays there. */
#ifndef MFL_CLIENT_INQUIRY_PREDICT_H
#define MFL_CLIENT_INQUIRY_PREDICT_H

#include "common/base/digest.h"
#include "common/data/dataset.h"

struct mfl_site_model {
        const char *text; /* the job file */
        float *params;    /* n_params, the frozen ones first */
        uint64_t n_params, n_frozen;
        const uint8_t *digest; /* MFL_SHA256_BYTES, of the params */
};

/* Writes DIR/DATA-DIGEST.csv (12 digits of the digest), mode 0600, replacing what was there: a line per sample with its number, and
 * the most probable class and its probability, or the model's values. The samples are scaled as the site's trainings scale them. Blocks; on the
 * worker's thread. MFL_INVALID: the model does not fit the data, or the file can't be written. */
int mfl_site_predict(const struct mfl_site_model *model, const struct mfl_dataset *dataset,
        const char *backend, const char *dir, uint64_t *ret_rows, struct mfl_error *err);

#endif
