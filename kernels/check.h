/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals that every backend shares. Pure; the texts say what would be right. */
#ifndef MFL_KERNELS_CHECK_H
#define MFL_KERNELS_CHECK_H

#include "kernels/backend.h"

/* MFL_INVALID where the samples are not of the graph's input size, have more classes, another number of
 * labels or targets, or a larger vocabulary. */
int mfl_check_data(const struct mfl_graph *graph, const struct mfl_loss *loss,
        const struct mfl_dataset *dataset, struct mfl_error *err);

#endif
