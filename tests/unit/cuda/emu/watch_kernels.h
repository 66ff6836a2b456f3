/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that test the watched device (tests/emu/watch.h): planted races, and requests of known cost. */
#ifndef MFL_TESTS_UNIT_CUDA_EMU_WATCH_KERNELS_H
#define MFL_TESTS_UNIT_CUDA_EMU_WATCH_KERNELS_H

#include "kernels/cuda/base/kernel.h"

enum race_case {
        RACE_NONE,             /* every kind of order, done right */
        RACE_NO_SYNC,          /* reads what a thread of another warp wrote */
        RACE_SYNC_WARP_ONLY,   /* the same, with only the warp's barrier */
        RACE_NO_SYNC_WARP,     /* reads what another lane wrote */
        RACE_SHUFFLE_ONLY,     /* the same, with a shuffle in between */
        RACE_WRITE_AFTER_READ, /* the next round's write is not ordered after the last round's reads */
        RACE_SAME_VALUE,       /* all threads write one word, to the same value */
        RACE_BLOCKS,           /* two blocks write one word of global memory */
        RACE_BLOCKS_READ,      /* one block reads what another wrote */
        RACE_ATOMIC_PLAIN,     /* an atomic sum that another thread reads */
        RACE_BYTE,             /* two threads write one byte */
        RACE_COPY,             /* an asynchronous copy is waited for, but read by another thread */
        RACE_LDMATRIX,         /* rows that other lanes wrote */
        RACE_ATOMICS_FINE,     /* all threads of all blocks add to one word */
        RACE_BYTES_FINE,       /* each thread writes a byte of its own */
        RACE_COUNT_
};
struct race {
        enum race_case what;
        uint32_t *in, *out; /* 4 words per thread and block */
        uint64_t *sum;
};
cudaError_t race_run(const struct race *a, uint32_t blocks, cudaStream_t stream); /* of 64 threads */

/* One warp: reads shared memory at word lane * shared_stride, global memory at global_first + lane *
 * global_stride. */
struct request {
        const uint32_t *in;
        uint32_t *out;
        uint32_t shared_stride, global_stride, global_first;
};
cudaError_t request_words(const struct request *a, cudaStream_t stream);
/* 16 bytes per lane: from in + 4 lane to shared word lane * shared_stride. */
cudaError_t request_vectors(const struct request *a, cudaStream_t stream);

#endif
