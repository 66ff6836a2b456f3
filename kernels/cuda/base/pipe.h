/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors between pageable host memory and the device, through two pinned buffers.
 *
 *     to the device    this thread   memcpy 0 | memcpy 1 | memcpy 2 (buffer 0 is free again) | ..
 *                      DMA                    | copy 0   | copy 1                            | ..
 *     to the host      DMA           copy 0   | copy 1   | copy 2                            | ..
 *                      this thread            | take 0   | take 1                            | ..
 *
 * A copy from or to pageable memory goes through the driver's own buffers, waits, and reaches a fraction of
 * the bus's speed. A pipe belongs to one thread at a time. The copies are ordered by the stream that each
 * call names, which must be the same for all calls of a pipe. Errors as mfl_cuda_check.
 */
#ifndef MFL_KERNELS_CUDA_BASE_PIPE_H
#define MFL_KERNELS_CUDA_BASE_PIPE_H

#include <cuda_runtime_api.h>

#include "common/base/base.h"

#define MFL_CUDA_PIPE_BYTES ((uint64_t)1 << 20) /* of a buffer; the copy takes far longer than its start */

struct mfl_cuda_pipe {
        char *pinned[2];
        uint64_t bytes; /* of a buffer */
        cudaEvent_t copied[2];
};
/* For vectors of at most `most` bytes. After a failure call mfl_cuda_pipe_deinit, which also accepts a zeroed
 * pipe. */
int mfl_cuda_pipe_init(struct mfl_cuda_pipe *pipe, uint64_t most, struct mfl_error *err);
/* The stream's copies have ended. */
void mfl_cuda_pipe_deinit(struct mfl_cuda_pipe *pipe);

/* It has read the host's memory when it returns, which may then change; the last copies may still be under
 * way. */
int mfl_cuda_pipe_send(struct mfl_cuda_pipe *pipe, cudaStream_t stream, void *to, const void *from,
        uint64_t bytes, const char *what, struct mfl_error *err);

/* A vector on its way to the host, in adjacent pieces. */
struct mfl_cuda_landing {
        const char *what; /* for errors */
        uint64_t bytes;
        /* Queues the work that makes bytes [at, at + n), and returns where they will lie; called before the
         * piece is copied. */
        int (*make)(void *arg, uint64_t at, uint64_t n, const void **ret_from, struct mfl_error *err);
        void (*take)(void *arg, uint64_t at, uint64_t n, const void *bytes); /* they have arrived */
        void *arg;
};
/* Pieces are as large as a buffer, except the last. Everything has been taken when it returns 0. */
int mfl_cuda_pipe_land(struct mfl_cuda_pipe *pipe, cudaStream_t stream,
        const struct mfl_cuda_landing *landing, struct mfl_error *err);

#endif
