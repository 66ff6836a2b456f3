/* SPDX-License-Identifier: Apache-2.0 */
/* A number that is equal for two daemons if they have the same data set. */
#ifndef MFL_CLIENT_SERVICE_FINGERPRINT_H
#define MFL_CLIENT_SERVICE_FINGERPRINT_H

#include "common/data/dataset.h"

/* The first 8 bytes of SHA-256 over shape, classes, normalisation, samples and labels. */
int mfl_client_fingerprint(
        const struct mfl_dataset *dataset, uint64_t *ret_fingerprint, struct mfl_error *err);

#endif
