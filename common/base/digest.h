/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256, for checkpoints and model digests. Failures are negative (out of memory, broken library). */
#ifndef MFL_COMMON_BASE_DIGEST_H
#define MFL_COMMON_BASE_DIGEST_H

#include "common/base/base.h"

#define MFL_SHA256_BYTES 32
#define MFL_SHA256_HEX_BYTES 65 /* with the terminating zero */

/* Of a whole buffer. */
int mfl_sha256(const void *data, size_t bytes, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err);

/* Piece by piece. One thread at a time per object. deinit may be called on a zeroed object, and twice; final only
 * once. */
struct mfl_sha256 {
        void *ctx;
};
int mfl_sha256_init(struct mfl_sha256 *sha, struct mfl_error *err);
int mfl_sha256_update(struct mfl_sha256 *sha, const void *data, size_t bytes, struct mfl_error *err);
int mfl_sha256_final(struct mfl_sha256 *sha, uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err);
/* A new object that continues where `from`, which is not finished, stands. */
int mfl_sha256_copy(const struct mfl_sha256 *from, struct mfl_sha256 *ret_sha, struct mfl_error *err);
void mfl_sha256_deinit(struct mfl_sha256 *sha);

/* The first 8 bytes of the digest as a little-endian number, for places where a number identifies the content. */
uint64_t mfl_sha256_number(const uint8_t digest[MFL_SHA256_BYTES]);

/* Lower-case hex text of any bytes; hex has room for 2 * n + 1. */
void mfl_hex(const uint8_t *bytes, size_t n, char *hex);

#endif
