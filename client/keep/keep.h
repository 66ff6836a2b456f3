/* SPDX-License-Identifier: Apache-2.0 */
/* What a site keeps of its client from round to round (client_state: daemon): a file of floats for each turn, named by its SHA-256, in
 *
 *      DIR/states/JOB-TEXT-CLIENT/SHA256.f32      TEXT: CRC-32C of the job's file, so that an id that is used again means another job
 *
 * The server says which of them counts. A turn that never counted leaves a file that nobody asks for, and after a crash of the server the one
 * before may count again: the newest few stay, the others are removed when a new one is written.
 *
 * Blocks; one thread at a time per client. Errors: MFL_INVALID (a full disk, a file that can't be written); negative: no memory. */
#ifndef MFL_CLIENT_KEEP_KEEP_H
#define MFL_CLIENT_KEEP_KEEP_H

#include "common/base/base.h"
#include "common/base/digest.h"

#define MFL_KEEP_FILES 4u /* that stay, the newest ones */

struct mfl_keep {
        const char *dir;            /* the daemon's */
        const char *job, *job_text; /* id, file */
        uint64_t client;
};

/* Reads n floats with that SHA-256. *ret_there false: they are not there, or damaged; `to` then holds anything. */
int mfl_keep_load(const struct mfl_keep *keep, const uint8_t sha256[MFL_SHA256_BYTES], size_t n, float *to,
        bool *ret_there, struct mfl_error *err);

/* The floats are durable when this returns 0. */
int mfl_keep_save(const struct mfl_keep *keep, size_t n, const float *from,
        uint8_t ret_sha256[MFL_SHA256_BYTES], struct mfl_error *err);

#endif
