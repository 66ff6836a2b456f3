/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that test the emulated device itself, some of them wrong on purpose. */
#ifndef MFL_TESTS_UNIT_CUDA_EMU_EMU_KERNELS_H
#define MFL_TESTS_UNIT_CUDA_EMU_EMU_KERNELS_H

#include "kernels/cuda/base/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = x[i] + by, i in [0, n). */
struct emu_add {
        const float *x;
        float *y, by;
        int64_t n;
};
cudaError_t emu_add(const struct emu_add *a, cudaStream_t stream);

/* to[block] = sum of the block's 256 elements of x, as a tree in shared memory. */
struct emu_sum {
        const uint32_t *x;
        uint32_t *to;
        int rounds; /* how often, for measuring */
};
cudaError_t emu_sum(const struct emu_sum *a, uint32_t blocks, cudaStream_t stream);

/* One block or warp that makes a mistake, or makes none. */
enum emu_case {
        EMU_RIGHT,
        EMU_NO_BARRIER,       /* thread t reads what its right-hand neighbour wrote */
        EMU_NO_BARRIER_LEFT,  /* the left-hand one */
        EMU_EXIT_BEFORE_SYNC, /* thread 3 leaves */
        EMU_TWO_BARRIERS,     /* odd threads wait at another barrier */
        EMU_LANE_MISSING,     /* lane 5 skips a shuffle */
        EMU_MISALIGNED,       /* copy_16 to an odd place */
        EMU_BEYOND_SHARED,    /* writes one byte past the end */
        EMU_STALE_SHARED,     /* reads shared memory that nobody wrote */
        EMU_COPY,             /* an asynchronous copy done right */
        EMU_COPY_NO_WAIT,     /* read before the wait */
        EMU_COPY_NO_COMMIT,   /* waits, but the group was not committed */
        EMU_COPY_TOO_FEW,     /* leaves one group too many under way */
        EMU_COPY_OVERWRITTEN, /* its source changes before the wait */
        EMU_COPY_MISALIGNED,
        EMU_DIVERGENT_KINDS, /* half a warp shuffles, half multiplies */
};
struct emu_try {
        enum emu_case what;
        uint32_t *in, *out; /* one word per thread, in 8 (for copies 4) words per thread */
};
cudaError_t emu_try(const struct emu_try *a, uint32_t threads, size_t shared, cudaStream_t stream);

/* One warp: d[16][8] = c + a[16][k] * b[k][8] with fragments that are read element by element. */
struct emu_mma {
        enum mfl_precision precision;
        const float *a, *b, *c;
        float *d;
};
cudaError_t emu_mma(const struct emu_mma *a, cudaStream_t stream);

/* One warp: out[lane][4] of the four 8x8 matrices in[4][8][8]. */
struct emu_ldmatrix {
        const uint16_t *in;
        uint32_t *out;
        bool transposed;
};
cudaError_t emu_ldmatrix(const struct emu_ldmatrix *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
