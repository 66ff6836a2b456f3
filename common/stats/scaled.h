/* SPDX-License-Identifier: Apache-2.0 */
/* A data set as a job with data.normalise sees it: every value minus the mean, divided by the deviation, of its column or channel. */
#ifndef MFL_COMMON_STATS_SCALED_H
#define MFL_COMMON_STATS_SCALED_H

#include "common/data/dataset.h"

/* Bytes of the copied samples that mfl_dataset_scaled makes: 0 for images, whose scale and shift change alone. */
uint64_t mfl_dataset_scaled_bytes(const struct mfl_dataset *dataset);
/* The copy shares what it does not change with the data set, which outlives it. Rows of floats are (float)((x - mean) / std) in double; columns of
 * categories stay. What the site's own configuration scales by is not used. MFL_INVALID: tokens, another number of columns, or samples that are
 * normalised as they are read. */
int mfl_dataset_scaled(const struct mfl_dataset *dataset, uint32_t n, const double *mean, const double *std,
        struct mfl_dataset **ret_scaled, struct mfl_error *err);
void mfl_dataset_scaled_free(struct mfl_dataset *scaled); /* NULL is fine */

#endif
