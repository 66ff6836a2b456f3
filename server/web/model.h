/* SPDX-License-Identifier: Apache-2.0 */
/* A committed model as a file for a browser: what `mfl pull` writes, byte for byte. Disk worker. */
#ifndef MFL_SERVER_WEB_MODEL_H
#define MFL_SERVER_WEB_MODEL_H

#include "server/store/store.h"

/* The model of a round, or MFL_STORE_NEWEST or MFL_STORE_BEST, in a file without a name beside the job's others, at its beginning.
 * Tensors are copied from one mapped file to the other, so this needs no memory. MFL_NOT_FOUND: no such round, or it is no longer
 * kept. */
int mfl_web_model(struct mfl_store *store, const char *job, int64_t which, int *ret_fd, uint64_t *ret_bytes,
        uint32_t *ret_round, struct mfl_error *err);

#endif
