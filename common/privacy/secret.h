/* SPDX-License-Identifier: Apache-2.0 */
/* Secret random numbers: a key of 32 bytes from the kernel, in a file that only its owner can read, and streams that follow from
 * it. The job's seed is public, so whatever must be hidden from readers of a model (noise, who was drawn) comes from here.
 *
 * A key never leaves its directory: no checkpoint, message, back-up or log has it or anything from which it follows.
 * Streams are AES-256 in counter mode (NIST SP 800-38A) of a derived key: SHA-256 of the key, what it is for, the job, a number, and
 * a digest, all of fixed length. One thread at a time per stream.
 *
 * An OpenSSL that stops working in the middle of a stream ends the process, so that no number is ever predictable. Other
 * errors are negative: OpenSSL or the disk is broken; or MFL_INVALID: the key's file is not what this wrote.
 */
#ifndef MFL_COMMON_PRIVACY_SECRET_H
#define MFL_COMMON_PRIVACY_SECRET_H

#include "common/base/base.h"
#include "common/base/digest.h"

#define MFL_SECRET_BYTES 32

struct mfl_secret {
        uint8_t key[MFL_SECRET_BYTES];
};

/* Reads the key at path, or makes one (mode 0600, durable) if there is no file. MFL_INVALID: it has another size, or others may
 * read it. Blocking. */
int mfl_secret_open(const char *path, struct mfl_secret *ret_secret, struct mfl_error *err);

#define MFL_SECRET_WHAT_BYTES 16
#define MFL_SECRET_JOB_BYTES 32

/* what, job: shorter than their sizes above; digest NULL: zeros. */
int mfl_secret_derive(const struct mfl_secret *secret, const char *what, const char *job, uint64_t number,
        const uint8_t digest[MFL_SHA256_BYTES], struct mfl_secret *ret_secret, struct mfl_error *err);

struct mfl_secret_stream {
        void *ctx; /* NULL: not open */
        uint32_t at;
        uint32_t word[1024];
};
int mfl_secret_stream_open(
        struct mfl_secret_stream *stream, const struct mfl_secret *secret, struct mfl_error *err);
void mfl_secret_stream_close(struct mfl_secret_stream *stream); /* a zeroed one is fine */
/* Goes to the beginning of a part: the counter's upper half, big-endian, is the part's number and its lower half counts blocks
 * from 0. */
void mfl_secret_stream_seek(struct mfl_secret_stream *stream, uint64_t part);
/* Fills word[] anew. */
void mfl_secret_stream_fill(struct mfl_secret_stream *stream);

/* The next 32 bits, little-endian. */
static inline uint32_t mfl_secret_u32(struct mfl_secret_stream *stream)
{
        if (stream->at == MFL_ARRAY_SIZE(stream->word))
                mfl_secret_stream_fill(stream);
        return stream->word[stream->at++];
}

#endif
