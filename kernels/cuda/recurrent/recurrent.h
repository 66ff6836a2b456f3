/* SPDX-License-Identifier: Apache-2.0 */
/* Inside ops_recurrent.h: what its host side (ops_recurrent.cu), its kernels (recurrent_f32.cu,
 * recurrent_tf32.cu, recurrent_bf16.cu, recurrent_f16.cu) and their bodies (recurrent_body.h) share. */
#ifndef MFL_KERNELS_CUDA_RECURRENT_RECURRENT_H
#define MFL_KERNELS_CUDA_RECURRENT_RECURRENT_H

#include "kernels/cuda/base/kernel.h"

enum {
        MFL_RECURRENT_ROWS = 16, /* of a block: the rows of an mma */
        MFL_RECURRENT_UNITS = 8, /* of a tile: its columns */
        MFL_RECURRENT_ITEMS = MFL_RECURRENT_ROWS * MFL_RECURRENT_UNITS,
        MFL_RECURRENT_CHUNK = 64,  /* bytes of the reduction: 16 of each of the 4 lanes of a row */
        MFL_RECURRENT_SLICES = 8,  /* of the reduction, at most; the warps of the step form */
        MFL_RECURRENT_PANELS = 4,  /* gates at most */
        MFL_RECURRENT_LOAD = 512,  /* bytes of weights of a chunk and panel */
        MFL_RECURRENT_LATENCY = 8, /* groups up to which a launch waits for the latency of its loads, not
                                      for their bytes */
        /* At most this many warps, one per tile, in the whole form: limited by registers, 255 or 168 per
         * thread. */
        MFL_RECURRENT_WARPS_FLOAT = 8,
        MFL_RECURRENT_WARPS_HALF = 12,
        MFL_RECURRENT_SHARED = 99 << 10,
};

/* The specialisation of a kernel; always a constant. */
struct mfl_recurrent_shape {
        enum mfl_precision precision;
        enum mfl_cell kind; /* MFL_CELL_TANH for both functions of rnn: args.relu tells them apart */
        bool backward, whole;
};
/* Matrices of a tile: in forward one product for each gate, in backward one over all gates. */
static inline MFL_HD int mfl_recurrent_panels(enum mfl_cell kind, bool backward)
{
        return backward ? 1 : mfl_cell_gates(kind);
}

struct mfl_recurrent_args {
        int batch, positions, hidden;
        bool relu, last_cell;
        int position; /* of this launch; whole: unused */
        /* Step form: a block of a group without rows ends at once. Otherwise the block computes without
         * writing anything; but then no block waits for two loads, one after the other, before it requests
         * its weights. */
        bool rests_early;
        int tiles, chunks, slice, slices; /* slice: chunks per slice */
        int pitch;                        /* bytes from a row of the state to the next */
        void *gates, *hidden_gates, *out;
        const void *dout;
        float *cell;
        float *carry; /* backward: [G][batch][hidden], what goes to the previous position besides the
                         product */
        const float *bias;
        uint64_t stride;
        unsigned char *packed,
                *state; /* [G] of packed_group bytes; 2 times [G] of state_group bytes, not in the whole
                           form */
        int64_t packed_group, state_group, state_half;
        struct mfl_cuda_steps steps;
};

#ifdef __cplusplus
extern "C" {
#endif
/* The kernel of one precision. */
const void *mfl_recurrent_kernel_f32(enum mfl_cell kind, bool backward, bool whole);
const void *mfl_recurrent_kernel_tf32(enum mfl_cell kind, bool backward, bool whole);
const void *mfl_recurrent_kernel_bf16(enum mfl_cell kind, bool backward, bool whole);
const void *mfl_recurrent_kernel_f16(enum mfl_cell kind, bool backward, bool whole);
#ifdef __cplusplus
}
#endif
#endif
